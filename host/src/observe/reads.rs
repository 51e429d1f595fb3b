//! What a guest read, as subscriptions; and the memo of plans.
//!
//! A read is what was asked and the hash of the answer. The index leads from a changed object to the parents
//! whose answer may differ; the memo tells whether it does.
//! Never: I/O, clocks.

mod index;
mod memo;
#[cfg(test)]
mod tests;
mod why;

pub use memo::{Answer, Check, Memo, Memos, Planned, Subscribed};
pub use why::Why;

use super::{cache::Snapshot, watch::WatchKey};
use crate::{
    decide::readiness::{Readiness, readiness},
    manifest::{Access, Denied, Manifest},
    object::{ContentHash, Gvk, LABEL_OWNED_BY, Object, ObjectKey, ParseSelectorError, Selector},
};
use std::{collections::BTreeMap, sync::Arc};

/// One question of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Read {
    /// One object, present or not.
    Get {
        /// Where it is looked up.
        watch: WatchKey,
        /// Its namespace.
        namespace: Option<Arc<str>>,
        /// Its name.
        name: Arc<str>,
    },
    /// Objects of a kind.
    List {
        /// Where they are looked up.
        watch: WatchKey,
        /// One namespace, or all.
        namespace: Option<Arc<str>>,
        /// Those with these labels.
        selector: Option<Selector>,
    },
    /// The parent's children, by readiness.
    Children,
    /// The parent's status.
    PreviousStatus,
    /// The time: never the same again.
    Clock,
}

/// A question and the hash of its answer.
pub type Recorded = (Read, ContentHash);

/// A parent of a plugin: what requests, the memo and the index speak of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParentRef {
    /// The plugin's name.
    pub plugin: Arc<str>,
    /// The parent.
    pub parent: ObjectKey,
}

/// How a plugin's kinds are watched: from a kind to its watch, and whether it is namespaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The plugin's name: whose children are its own.
    pub plugin: Arc<str>,
    /// Child kinds, watched by the host's label, with their scope from discovery. Kinds of earlier versions too.
    pub children: BTreeMap<Gvk, (WatchKey, bool)>,
    /// Kinds of whose objects it owns fields: those that carry the host's label for that.
    pub fields: BTreeMap<Gvk, WatchKey>,
    /// Read kinds, with their scope from discovery.
    pub reads: BTreeMap<Gvk, (WatchKey, bool)>,
}

impl Sources {
    /// No kinds yet.
    pub fn new(plugin: Arc<str>) -> Self {
        Self { plugin, children: BTreeMap::new(), fields: BTreeMap::new(), reads: BTreeMap::new() }
    }
}

/// Why a read has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not allowed (rules Z1, Z2).
    #[error(transparent)]
    Denied(#[from] Denied),
    /// A malformed selector.
    #[error(transparent)]
    Selector(#[from] ParseSelectorError),
    /// Which one is meant cannot be told.
    #[error("a read of one {gvk} names its namespace, as the parent has none")]
    NamespaceMissing {
        /// The kind.
        gvk: Gvk,
    },
    /// Too much was read.
    #[error("the call has come to {count} {what}, at most {limit} are allowed")]
    Exhausted {
        /// `different reads`, or `bytes of reads`.
        what: &'static str,
        /// How many with this one.
        count: usize,
        /// How many may be.
        limit: usize,
    },
}

/// One child as `children.list` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildState {
    /// The child.
    pub key: ObjectKey,
    /// How far it is.
    pub readiness: Readiness,
}

/// What one call may see: one snapshot, one parent, one time. Answers reads and records them.
#[derive(Clone)]
pub struct View {
    /// The moment.
    pub snapshot: Snapshot,
    /// The parent, as in that moment.
    pub parent: Arc<Object>,
    /// What the plugin declared.
    pub manifest: Arc<Manifest>,
    /// Where its kinds are watched.
    pub sources: Arc<Sources>,
    /// The host's namespace, for the authority check.
    pub host_namespace: Arc<str>,
    /// The time of the call, RFC 3339.
    pub now: Arc<str>,
    /// Limits of reads and of bytes.
    pub limits: (usize, usize),
    recorded: BTreeMap<Read, ContentHash>,
    bytes: usize,
}

/// What one question costs beside its text and its answer: with the limit of bytes it bounds the host's work
/// for a guest that asks the same small thing for ever, which its fuel hardly notices.
const QUESTION_BYTES: usize = 64;

impl View {
    /// Nothing read yet.
    pub fn new(
        snapshot: Snapshot,
        parent: Arc<Object>,
        manifest: Arc<Manifest>,
        sources: Arc<Sources>,
        host_namespace: Arc<str>,
        now: Arc<str>,
        limits: (usize, usize),
    ) -> Self {
        let recorded = BTreeMap::new();
        Self { snapshot, parent, manifest, sources, host_namespace, now, limits, recorded, bytes: 0 }
    }

    /// Answers `cluster.get`. `namespace` absent means the parent's for a namespaced kind.
    pub fn get(&mut self, gvk: &Gvk, namespace: Option<&str>, name: &str) -> Result<Option<String>, Error> {
        self.charge(
            gvk.group.len() + gvk.kind.len() + namespace.map_or(0, str::len) + name.len() + QUESTION_BYTES,
        )?;
        let (watch, namespaced, namespace) = self.resolve(gvk, namespace)?;
        if namespaced && namespace.is_none() {
            return Err(Error::NamespaceMissing { gvk: gvk.clone() });
        }
        let object = self.snapshot.get(&watch, namespace.as_deref(), name).cloned();
        self.record(Read::Get { watch, namespace, name: name.into() })?;
        let Some(object) = object else { return Ok(None) };
        self.charge(text_len(&object))?;
        Ok(Some(object.to_json()))
    }

    /// Answers `cluster.list`.
    pub fn list(
        &mut self,
        gvk: &Gvk,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<Vec<String>, Error> {
        let selector_len = selector.map_or(0, str::len);
        self.charge(
            gvk.group.len() + gvk.kind.len() + namespace.map_or(0, str::len) + selector_len + QUESTION_BYTES,
        )?;
        let selector =
            selector.map(Selector::parse).transpose()?.filter(|selector| !selector.is_everything());
        let (watch, _, namespace) = self.resolve(gvk, namespace)?;
        self.record(Read::List {
            watch: watch.clone(),
            namespace: namespace.clone(),
            selector: selector.clone(),
        })?;
        let objects: Vec<Arc<Object>> =
            selected(&self.snapshot, &watch, namespace.as_deref(), selector.as_ref()).cloned().collect();
        self.charge(objects.iter().map(|object| text_len(object)).sum())?;
        Ok(objects.iter().map(|object| object.to_json()).collect())
    }

    /// Answers `children.list`: sorted by kind, namespace and name; only objects of this plugin and this
    /// parent's uid.
    pub fn children(&mut self) -> Result<Vec<ChildState>, Error> {
        self.charge(QUESTION_BYTES)?;
        self.record(Read::Children)?;
        let children: Vec<ChildState> = self.child_objects().map(child_state).collect();
        let text_len = |child: &ChildState| match &child.readiness {
            Readiness::Ready | Readiness::Terminating => QUESTION_BYTES,
            Readiness::Progressing(message) | Readiness::Failed(message) => QUESTION_BYTES + message.len(),
        };
        self.charge(children.iter().map(text_len).sum())?;
        Ok(children)
    }

    /// Answers `previous.status`.
    pub fn previous_status(&mut self) -> Option<Arc<str>> {
        // No answer but the status is possible here, so these two questions do not count against the limit.
        self.recorded.insert(Read::PreviousStatus, self.parent.status_hash);
        self.parent.status.clone()
    }

    /// Answers `clock.now`.
    pub fn now(&mut self) -> Arc<str> {
        self.recorded.insert(Read::Clock, ContentHash::of(self.now.as_bytes()));
        Arc::clone(&self.now)
    }

    /// What was read, each question once.
    pub fn into_recorded(self) -> Vec<Recorded> {
        self.recorded.into_iter().collect()
    }

    /// Where a kind is looked up, whether it is namespaced, and in which namespace, if the plugin may read it.
    fn resolve(&self, gvk: &Gvk, asked: Option<&str>) -> Result<(WatchKey, bool, Option<Arc<str>>), Error> {
        let undeclared = || Denied::Undeclared { gvk: gvk.clone(), section: "reads" };
        let &(ref watch, namespaced) = self.sources.reads.get(gvk).ok_or_else(undeclared)?;
        let own = self.parent.key.namespace.as_deref();
        // As for kubectl, a namespace means nothing for a kind that has none.
        let namespace = if namespaced { asked.or(own) } else { None };
        self.manifest.check(
            &self.host_namespace,
            &self.parent.key,
            Access::Read { gvk, namespace, namespaced },
        )?;
        Ok((watch.clone(), namespaced, namespace.map(Into::into)))
    }

    /// Keeps the question, once, with the hash of its answer. What is asked again has the same answer: the
    /// snapshot does not move.
    fn record(&mut self, read: Read) -> Result<(), Error> {
        if !self.recorded.contains_key(&read) {
            if self.recorded.len() >= self.limits.0 {
                let (count, limit) = (self.recorded.len() + 1, self.limits.0);
                return Err(Error::Exhausted { what: "different reads", count, limit });
            }
            let answer = self.answer(&read);
            self.recorded.insert(read, answer);
        }
        Ok(())
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        let (count, limit) = (self.bytes, self.limits.1);
        if count > limit { Err(Error::Exhausted { what: "bytes of reads", count, limit }) } else { Ok(()) }
    }

    /// The hash of the answer to a question, in this view.
    fn answer(&self, read: &Read) -> ContentHash {
        match read {
            Read::Get { watch, namespace, name } => {
                answer_get(&self.snapshot, watch, namespace.as_deref(), name)
            }
            Read::List { watch, namespace, selector } => {
                answer_list(&self.snapshot, watch, namespace.as_deref(), selector.as_ref())
            }
            Read::Children => ContentHash::of_all(self.child_objects().map(child_state).flat_map(|child| {
                let key = &child.key;
                let namespace = key.namespace.as_deref().unwrap_or_default();
                let (word, message) = match &child.readiness {
                    Readiness::Ready => ("ready", ""),
                    Readiness::Progressing(message) => ("progressing", &**message),
                    Readiness::Failed(message) => ("failed", &**message),
                    Readiness::Terminating => ("terminating", ""),
                };
                [&key.gvk.group, &*key.gvk.version, &key.gvk.kind, namespace, &key.name, word, message]
                    .map(|text| ContentHash::of(text.as_bytes()))
            })),
            Read::PreviousStatus => self.parent.status_hash,
            Read::Clock => ContentHash::of(self.now.as_bytes()),
        }
    }

    /// The same without children that are on their way out: one that the host deleted is gone some time later,
    /// which is no news.
    fn settled(&self) -> Self {
        let mut snapshot = self.snapshot.clone();
        for child in self.child_objects().filter(|child| child.is_terminating()) {
            snapshot.leave_out(child);
        }
        let (parent, manifest, sources) = (self.parent.clone(), self.manifest.clone(), self.sources.clone());
        Self::new(
            snapshot,
            parent,
            manifest,
            sources,
            self.host_namespace.clone(),
            self.now.clone(),
            self.limits,
        )
    }

    /// Hash of all that the readiness of the children is told from: equal, so is the answer to
    /// [`Read::Children`], without telling it.
    fn children_content(&self) -> ContentHash {
        ContentHash::of_all(self.child_objects().flat_map(|child| {
            [content(child), ContentHash::of(if child.is_terminating() { b"terminating" } else { b"" })]
        }))
    }

    /// The parent's children of this plugin. The labels are what finds them; the owner reference, which the
    /// API server guards, is what makes them the parent's.
    fn child_objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        let declared = &self.manifest.children;
        // A kind of an earlier version of the plugin, in another version of the API, shows the same objects.
        let is_shown_already = |gvk: &Gvk| {
            !declared.contains(gvk)
                && declared.iter().any(|other| other.group == gvk.group && other.kind == gvk.kind)
        };
        let mut kinds: Vec<(&Gvk, &WatchKey)> =
            self.sources.children.iter().map(|(gvk, (watch, _))| (gvk, watch)).collect();
        kinds.retain(|(gvk, _)| !is_shown_already(gvk));
        kinds.sort_by_key(|(gvk, _)| (&gvk.kind, *gvk));
        kinds.into_iter().flat_map(|(_, watch)| self.snapshot.children(watch, &self.parent.uid)).filter(
            |child| {
                child.labels.get(LABEL_OWNED_BY).is_some_and(|plugin| **plugin == *self.sources.plugin)
                    && child.controller().is_some_and(|owner| owner.uid == self.parent.uid)
            },
        )
    }
}

fn child_state(child: &Arc<Object>) -> ChildState {
    ChildState { key: child.key.clone(), readiness: readiness(child) }
}

/// Length of what [`Object::to_json`] returns, within a few bytes.
fn text_len(object: &Object) -> usize {
    object.body.len() + object.status.as_ref().map_or(0, |status| status.len())
}

/// Hash of an object as a guest sees it. Its key is in the body.
fn content(object: &Object) -> ContentHash {
    ContentHash::of_all([object.body_hash, object.status_hash])
}

fn answer_get(snapshot: &Snapshot, watch: &WatchKey, namespace: Option<&str>, name: &str) -> ContentHash {
    snapshot.get(watch, namespace, name).map_or_else(|| ContentHash::of(b"absent"), |object| content(object))
}

fn answer_list(
    snapshot: &Snapshot,
    watch: &WatchKey,
    namespace: Option<&str>,
    selector: Option<&Selector>,
) -> ContentHash {
    let objects = selected(snapshot, watch, namespace, selector);
    ContentHash::of_all(objects.flat_map(|object| [object.body_hash, object.status_hash]))
}

fn selected<'a>(
    snapshot: &'a Snapshot,
    watch: &WatchKey,
    namespace: Option<&'a str>,
    selector: Option<&Selector>,
) -> impl Iterator<Item = &'a Arc<Object>> {
    let objects = snapshot.list(watch, namespace);
    objects.filter(move |object| selector.is_none_or(|selector| selector.matches(&object.labels)))
}
