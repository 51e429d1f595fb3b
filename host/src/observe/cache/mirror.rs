//! What one watch has said, with own writes on top.
//!
//! Every input is a fact about the history of one object: at this version it was so. What is kept is the
//! newest fact, in whatever order they come; so a fact about an object that is not here (it is gone, or has
//! left the selector) has to be kept for a while too.

mod order;

pub(super) use order::{Entry, Name};

use crate::{
    object::{Object, ObjectKey, ResourceVersion, Selector},
    observe::client::Scope,
};
use imbl::{OrdMap, OrdSet};
use order::Child;
use std::{collections::BTreeSet, sync::Arc};

/// Before and after.
pub(super) type Effect = (Option<Arc<Object>>, Option<Arc<Object>>);

/// How many objects that are gone are remembered. They matter only while older facts about them are on their
/// way: for the length of a request.
const GONE_KEPT: usize = 1024;

/// One watch's objects.
#[derive(Clone)]
pub(super) struct Mirror {
    labels: Labels,
    objects: OrdSet<Entry>,
    children: OrdSet<Child>,
    /// The newest version heard of; `None` before the first list.
    newest: Option<ResourceVersion>,
    /// Up to here everything is known: the list, or the last bookmark.
    complete: Option<ResourceVersion>,
    /// Objects that are known not to be here, since which version.
    gone: OrdMap<ObjectKey, ResourceVersion>,
    /// Uids that the host deleted and that the watch has not yet seen go.
    deleting: OrdSet<Arc<str>>,
    /// Why it is not believed until the next list.
    doubt: Option<Doubt>,
    /// How often it was not.
    doubts: u64,
}

/// Why a mirror is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Its watch has lost something.
    Lost,
    /// The cluster's history has been replaced by another: nothing that was heard, or written, need be true.
    OtherHistory,
}

/// What the watch selects by.
#[derive(Clone)]
enum Labels {
    Any,
    Selected(Arc<Selector>),
    /// The API server refuses such a watch; own writes cannot tell whether they belong to it.
    Malformed,
}

impl Labels {
    fn of(scope: &Scope) -> Self {
        match scope.label_selector.as_deref().map(Selector::parse) {
            None => Self::Any,
            Some(Ok(selector)) => Self::Selected(Arc::new(selector)),
            Some(Err(_)) => Self::Malformed,
        }
    }

    fn match_object(&self, object: &Object) -> bool {
        match self {
            Self::Any => true,
            Self::Selected(selector) => selector.matches(&object.labels),
            Self::Malformed => false,
        }
    }
}

impl Mirror {
    pub(super) fn new(scope: &Scope) -> Self {
        Self {
            labels: Labels::of(scope),
            objects: OrdSet::new(),
            children: OrdSet::new(),
            newest: None,
            complete: None,
            gone: OrdMap::new(),
            deleting: OrdSet::new(),
            doubt: None,
            doubts: 0,
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.newest.is_some() && self.doubt.is_none()
    }

    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    pub(super) fn doubts(&self) -> u64 {
        self.doubts
    }

    /// Stops believing it until the next list. A mirror that waits for its first list is believed in nothing.
    pub(super) fn be_doubted(&mut self, doubt: Doubt) {
        if self.newest.is_some() && self.doubt < Some(doubt) {
            self.doubt = Some(doubt);
            self.doubts += 1;
        }
    }

    /// Whether it is known that an object is not here although it was at this version.
    pub(super) fn has_seen_go(&self, key: &ObjectKey, version: &ResourceVersion) -> bool {
        self.gone.get(key).is_some_and(|since| is_covered(version, since))
    }

    pub(super) fn version(&self) -> Option<&ResourceVersion> {
        self.newest.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn get(&self, name: Name<'_>) -> Option<&Arc<Object>> {
        self.objects.get(&name).map(|entry| &entry.0)
    }

    pub(super) fn list<'a>(
        &'a self,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        self.objects
            .range(Name { namespace, name: "" }..)
            .map(|entry| &entry.0)
            .take_while(move |object| namespace.is_none() || object.key.namespace.as_deref() == namespace)
    }

    pub(super) fn children<'a>(&'a self, parent: &'a str) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        self.children
            .range((parent, Name { namespace: None, name: "" })..)
            .take_while(move |child| &*child.parent == parent)
            .map(|child| &child.object)
    }

    pub(super) fn replace(&mut self, listed: BTreeSet<Entry>, version: &ResourceVersion) -> Vec<Effect> {
        let other_history = self.doubt.take() == Some(Doubt::OtherHistory)
            || self.newest.as_ref().is_some_and(|newest| version.is_older_than(newest));
        if other_history {
            self.gone.clear();
            self.deleting.clear();
        }
        // Newer than the list: an own write. Anything else is what the list says, even if it looks older than
        // what was known: after a restored backup the versions have been given out a second time.
        let outlives_list = |known: &ResourceVersion| !other_history && version.is_older_than(known);
        self.gone = self
            .gone
            .iter()
            .filter(|(_, since)| outlives_list(since))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();

        let mut effects = Vec::new();
        let missing: Vec<Arc<Object>> = self
            .objects
            .iter()
            .filter(|entry| !listed.contains(*entry) && !outlives_list(&entry.0.version))
            .map(|entry| Arc::clone(&entry.0))
            .collect();
        effects.extend(missing.iter().map(|object| self.remove(object)));
        for Entry(object) in listed {
            let known = match self.get(Name::of(&object.key)) {
                Some(present) => Some(&present.version),
                None => self.gone.get(&object.key),
            };
            if !known.is_some_and(outlives_list) {
                effects.extend(self.put(object));
            }
        }
        self.newest = Some(version.clone());
        self.complete = Some(version.clone());
        effects
    }

    pub(super) fn applied(&mut self, object: Object) -> Option<Effect> {
        self.heard_of(&object.version);
        if self.knows_newer(&object) { None } else { self.put(Arc::new(object)) }
    }

    pub(super) fn deleted(&mut self, object: &Object) -> Option<Effect> {
        self.heard_of(&object.version);
        let Some(present) = self.get(Name::of(&object.key)) else {
            if !self.knows_newer(object) {
                self.remember_gone(&object.key, &object.version);
            }
            return None;
        };
        // Another uid: the object of this name is a new one, whose arrival was delivered before.
        if present.uid != object.uid || object.version.is_older_than(&present.version) {
            return None;
        }
        let present = Arc::clone(present);
        self.remember_gone(&object.key, &object.version);
        Some(self.remove(&present))
    }

    pub(super) fn reached(&mut self, version: &ResourceVersion) {
        self.heard_of(version);
        if self.newest.is_some() {
            self.complete = Some(version.clone());
        }
    }

    pub(super) fn wrote(&mut self, object: &Arc<Object>) -> Option<Effect> {
        if self.knows_newer(object) {
            return None;
        }
        let present = self.get(Name::of(&object.key)).cloned();
        // A slow response: it has been listed or delivered meanwhile, and has gone again.
        let overtaken = self.complete.as_ref().is_some_and(|complete| is_covered(&object.version, complete));
        if overtaken && present.is_none() {
            return None;
        }
        if self.labels.match_object(object) {
            return self.put(Arc::clone(object));
        }
        self.remember_gone(&object.key, &object.version);
        present.map(|present| self.remove(&present))
    }

    pub(super) fn deleting(&mut self, name: Name<'_>, uid: &str) -> Option<Effect> {
        let present = self.get(name).filter(|present| &*present.uid == uid)?.clone();
        self.deleting.insert(Arc::clone(&present.uid));
        self.put(present)
    }

    pub(super) fn leave_out(&mut self, object: &Object) {
        if let Some(present) =
            self.get(Name::of(&object.key)).filter(|present| present.uid == object.uid).cloned()
        {
            self.remove(&present);
        }
    }

    /// Whether something is known of this object that is as new, or newer.
    fn knows_newer(&self, object: &Object) -> bool {
        match self.get(Name::of(&object.key)) {
            Some(present) if present.uid == object.uid => is_covered(&object.version, &present.version),
            // Versions of one kind are comparable across objects: the recreated one is newer.
            Some(present) => object.version.is_older_than(&present.version),
            None => self.gone.get(&object.key).is_some_and(|since| is_covered(&object.version, since)),
        }
    }

    fn heard_of(&mut self, version: &ResourceVersion) {
        if let Some(newest) = &mut self.newest
            && !version.is_older_than(newest)
        {
            newest.clone_from(version);
        }
    }

    fn remember_gone(&mut self, key: &ObjectKey, since: &ResourceVersion) {
        if self.gone.len() >= GONE_KEPT {
            let newest = self.newest.as_ref();
            let kept: OrdMap<_, _> = self
                .gone
                .iter()
                .filter(|(_, since)| newest.is_some_and(|newest| newest.is_older_than(since)))
                .map(|(key, since)| (key.clone(), since.clone()))
                .collect();
            // Still full: without any of it an older delivery may show an object a moment longer.
            self.gone = if kept.len() < GONE_KEPT { kept } else { OrdMap::new() };
        }
        self.gone.insert(key.clone(), since.clone());
    }

    /// Takes an object as the newest; no effect if nothing differs.
    fn put(&mut self, mut object: Arc<Object>) -> Option<Effect> {
        // A delete cannot be taken back: until the watch has caught up with it, later changes do not undo it.
        if self.deleting.contains(&*object.uid) && !object.is_terminating() {
            object = Arc::new(Object { deleted: Some(Box::default()), ..Object::clone(&object) });
        }
        let before = self.get(Name::of(&object.key)).cloned();
        if before.as_ref().is_some_and(|before| is_same(before, &object)) {
            return None;
        }
        if let Some(before) = &before {
            self.unlink(before, Some(&object.uid));
        }
        self.gone.remove(&object.key);
        self.children.extend(Child::of(&object));
        self.objects.insert(Entry(Arc::clone(&object)));
        Some((before, Some(object)))
    }

    fn remove(&mut self, present: &Arc<Object>) -> Effect {
        self.unlink(present, None);
        self.objects.remove(&Name::of(&present.key));
        (Some(Arc::clone(present)), None)
    }

    /// Takes an object out of the indexes, before another version or nothing follows.
    fn unlink(&mut self, present: &Arc<Object>, next_uid: Option<&str>) {
        if let Some(child) = Child::of(present) {
            self.children.remove(&child);
        }
        if next_uid != Some(&*present.uid) {
            self.deleting.remove(&*present.uid);
        }
    }
}

/// Whether everything up to `known` includes `version`.
pub(super) fn is_covered(version: &ResourceVersion, known: &ResourceVersion) -> bool {
    version == known || version.is_older_than(known)
}

/// By content too: in another history the same version may be other content.
fn is_same(a: &Object, b: &Object) -> bool {
    a.uid == b.uid
        && a.version == b.version
        && a.body_hash == b.body_hash
        && a.status_hash == b.status_hash
        && a.is_terminating() == b.is_terminating()
}
