//! What one watch has said, with own writes on top.
//!
//! Every input is a fact about the history of one object: at this version it was so. What is kept is the
//! newest fact, in whatever order they come; so a fact about an object that is not here (it is gone, or has
//! left the selector) has to be kept for a while too.

use crate::{
    object::{LABEL_PARENT, Object, ObjectKey, ResourceVersion, Selector},
    observe::client::Scope,
};
use equivalent::{Comparable, Equivalent};
use imbl::{OrdMap, OrdSet};
use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

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
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.newest.is_some()
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
        let other_history = self.newest.as_ref().is_some_and(|newest| version.is_older_than(newest));
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
        if self.is_synced() {
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
fn is_covered(version: &ResourceVersion, known: &ResourceVersion) -> bool {
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

/// Namespace and name, in the order of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) name: &'a str,
}

impl<'a> Name<'a> {
    pub(super) fn of(key: &'a ObjectKey) -> Self {
        Self { namespace: key.namespace.as_deref(), name: &key.name }
    }
}

/// An object, sorted by its name.
#[derive(Clone)]
pub(super) struct Entry(Arc<Object>);

impl Entry {
    pub(super) fn new(object: Object) -> Self {
        Self(Arc::new(object))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        Name::of(&self.0.key).cmp(&Name::of(&other.0.key))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl Equivalent<Entry> for Name<'_> {
    fn equivalent(&self, entry: &Entry) -> bool {
        *self == Name::of(&entry.0.key)
    }
}

impl Comparable<Entry> for Name<'_> {
    fn compare(&self, entry: &Entry) -> Ordering {
        self.cmp(&Name::of(&entry.0.key))
    }
}

/// An object, sorted by the uid in its parent label, then by its name.
#[derive(Clone)]
struct Child {
    parent: Arc<str>,
    object: Arc<Object>,
}

impl Child {
    fn of(object: &Arc<Object>) -> Option<Self> {
        let label = object.labels.get(LABEL_PARENT)?;
        // Mostly the parent is an owner too: then its uid is there to be shared.
        let owner = object.owners.iter().find(|owner| *owner.uid == **label);
        let parent = owner.map_or_else(|| Arc::from(label.as_str()), |owner| Arc::clone(&owner.uid));
        Some(Self { parent, object: Arc::clone(object) })
    }

    fn sort_key(&self) -> (&str, Name<'_>) {
        (&self.parent, Name::of(&self.object.key))
    }
}

impl Ord for Child {
    fn cmp(&self, other: &Self) -> Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

impl PartialOrd for Child {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Child {}

impl Equivalent<Child> for (&str, Name<'_>) {
    fn equivalent(&self, child: &Child) -> bool {
        *self == child.sort_key()
    }
}

impl Comparable<Child> for (&str, Name<'_>) {
    fn compare(&self, child: &Child) -> Ordering {
        self.cmp(&child.sort_key())
    }
}
