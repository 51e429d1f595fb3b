//! Plans by parent, and the index from an object to the parents that read it.

use super::{ParentRef, Read, Recorded, View, answer_get, answer_list};
use crate::{
    decide::{Unplanned, plan::Plan},
    object::{ContentHash, Object, Selector},
    observe::{
        cache::{Change, Snapshot},
        watch::WatchKey,
    },
};
use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An answer that is valid as long as its reads answer the same.
#[derive(Clone)]
pub struct Memo {
    /// The plugin version that made it.
    pub digest: Arc<str>,
    /// The parent's uid and content.
    pub parent: (Arc<str>, ContentHash),
    /// What was read.
    pub reads: Arc<[Recorded]>,
    /// The plan, or why there is none: calls are deterministic, so a guest that failed would fail again.
    pub plan: Planned,
}

/// What a call came to.
pub(crate) type Planned = Result<Arc<Plan>, Arc<Unplanned>>;

/// Plans by parent, with the index from reads to parents.
#[derive(Default)]
pub struct Memos {
    inner: Mutex<Inner>,
}

/// Reads that have just been subscribed to. A change that came after the call's snapshot and before the
/// subscription has woken nobody, so a fresh snapshot must be asked once.
#[must_use = "ask a fresh snapshot: a change between the call's snapshot and the subscription has woken nobody"]
pub struct Subscribed(Arc<[Recorded]>);

impl Subscribed {
    /// Whether a read answers otherwise by now: then the parent must be looked at again. `fresh` is to be
    /// taken after the subscription. Reads of the parent and its children need none of this, as their changes
    /// are enqueued whoever reads them.
    pub fn is_outdated(&self, fresh: &Snapshot) -> bool {
        self.0.iter().any(|(read, answer)| match read {
            Read::Get { watch, namespace, name } => {
                answer_get(fresh, watch, namespace.as_deref(), name) != *answer
            }
            Read::List { watch, namespace, selector } => {
                answer_list(fresh, watch, namespace.as_deref(), selector.as_ref()) != *answer
            }
            Read::Children | Read::PreviousStatus | Read::Clock => false,
        })
    }
}

impl Memos {
    /// The answer for this parent if it is still valid in this moment: same version, same parent content, and
    /// every read answers the same. `view` answers the reads.
    pub fn valid(&self, parent: &ParentRef, digest: &str, view: &View) -> Option<Planned> {
        let (memo, children) = {
            let inner = self.lock();
            let entry = inner.entries.get(parent)?;
            (entry.memo.clone()?, entry.children)
        };
        if *memo.digest != *digest
            || memo.parent.0 != view.parent.uid
            || memo.parent.1 != view.parent.body_hash
        {
            return None;
        }
        let mut seen = children;
        let answers_the_same = |(read, answer): &Recorded| match read {
            Read::Clock => false,
            Read::Children => {
                // Telling readiness parses every child; its content tells as well that nothing changed.
                let content = view.children_content();
                let same = seen == Some(content) || view.answer(read) == *answer;
                seen = Some(content);
                same
            }
            Read::Get { .. } | Read::List { .. } | Read::PreviousStatus => view.answer(read) == *answer,
        };
        if !memo.reads.iter().all(answers_the_same) {
            return None;
        }
        if seen != children
            && let Some(entry) = self.lock().entries.get_mut(parent)
            && Arc::ptr_eq(&entry.reads, &memo.reads)
        {
            entry.children = seen;
        }
        Some(memo.plan)
    }

    /// Keeps an answer and subscribes to its reads.
    pub fn record(&self, parent: &ParentRef, memo: Memo) -> Subscribed {
        let reads = Arc::clone(&memo.reads);
        let _dropped_without_the_lock = self.lock().keep(parent, &reads, Some(memo));
        Subscribed(reads)
    }

    /// The subscriptions of a call that is tried again all the same: nothing of its answer is kept.
    pub fn record_reads(&self, parent: &ParentRef, reads: &[Recorded]) -> Subscribed {
        let reads: Arc<[Recorded]> = reads.into();
        let _dropped_without_the_lock = self.lock().keep(parent, &reads, None);
        Subscribed(reads)
    }

    /// Forgets a parent that is gone.
    pub fn forget(&self, parent: &ParentRef) {
        let _dropped_without_the_lock = self.lock().remove(parent);
    }

    /// Forgets everything of a plugin.
    pub fn forget_plugin(&self, plugin: &str) {
        let mut inner = self.lock();
        let parents: Vec<Arc<ParentRef>> =
            inner.entries.keys().filter(|parent| *parent.plugin == *plugin).map(Arc::clone).collect();
        for parent in parents {
            inner.remove(&parent);
        }
    }

    /// The parents with a read whose answer may differ after this change, each once, sorted.
    pub fn affected(&self, change: &Change) -> Vec<ParentRef> {
        let (before, after) = (change.before.as_deref(), change.after.as_deref());
        if let (Some(before), Some(after)) = (before, after)
            && (before.body_hash, before.status_hash) == (after.body_hash, after.status_hash)
        {
            return Vec::new();
        }
        let mut parents = Vec::new();
        if let Some(readers) = self.lock().index.get(&change.watch) {
            for object in [before, after].into_iter().flatten() {
                readers.of(object, &mut parents);
            }
        }
        parents.sort_unstable();
        parents.dedup();
        parents.into_iter().map(|parent| (*parent).clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics half-way by itself; if it did, a plan too few in the memo costs one call.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is kept of a parent.
struct Entry {
    /// Absent after a call that failed.
    memo: Option<Memo>,
    reads: Arc<[Recorded]>,
    /// [`View::children_content`] when the memo was last found valid.
    children: Option<ContentHash>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<Arc<ParentRef>, Entry>,
    index: HashMap<WatchKey, Readers>,
}

type Parents = HashSet<Arc<ParentRef>>;

/// Who reads the objects of one watch.
#[derive(Default)]
struct Readers {
    /// By namespace and name.
    gets: HashMap<(Option<Arc<str>>, Arc<str>), Parents>,
    /// By namespace; `None` for lists of all.
    lists: HashMap<Option<Arc<str>>, Lists>,
}

/// Who lists the objects of one namespace. Most selectors ask for a value of a label, often another one for
/// each parent: those are found by the label, so that a change costs the same however many there are.
#[derive(Default)]
struct Lists {
    by_label: HashMap<Box<str>, HashMap<Box<str>, Selected>>,
    others: Selected,
}

type Selected = HashMap<Option<Selector>, Parents>;

impl Inner {
    fn keep(&mut self, parent: &ParentRef, reads: &Arc<[Recorded]>, memo: Option<Memo>) -> Option<Entry> {
        let key = self
            .entries
            .get_key_value(parent)
            .map_or_else(|| Arc::new(parent.clone()), |(key, _)| Arc::clone(key));
        let old =
            self.entries.insert(Arc::clone(&key), Entry { memo, reads: Arc::clone(reads), children: None });
        if old
            .as_ref()
            .is_some_and(|old| old.reads.iter().map(|(read, _)| read).eq(reads.iter().map(|(read, _)| read)))
        {
            return old;
        }
        for (read, _) in old.iter().flat_map(|old| &*old.reads) {
            self.unsubscribe(&key, read);
        }
        for (read, _) in &**reads {
            self.subscribe(&key, read);
        }
        old
    }

    fn remove(&mut self, parent: &ParentRef) -> Option<Entry> {
        let old = self.entries.remove(parent)?;
        for (read, _) in &*old.reads {
            self.unsubscribe(parent, read);
        }
        Some(old)
    }

    fn subscribe(&mut self, parent: &Arc<ParentRef>, read: &Read) {
        let parent = || Arc::clone(parent);
        match read {
            Read::Get { watch, namespace, name } => {
                let readers = self.index.entry(watch.clone()).or_default();
                readers.gets.entry((namespace.clone(), Arc::clone(name))).or_default().insert(parent());
            }
            Read::List { watch, namespace, selector } => {
                let readers = self.index.entry(watch.clone()).or_default();
                let lists = readers.lists.entry(namespace.clone()).or_default();
                let keep_in = |selected: &mut Selected| {
                    selected.entry(selector.clone()).or_default().insert(parent());
                };
                match selector.as_ref().and_then(Selector::needed_labels) {
                    Some(labels) => labels.for_each(|(label, value)| {
                        keep_in(
                            lists.by_label.entry(label.into()).or_default().entry(value.into()).or_default(),
                        );
                    }),
                    None => keep_in(&mut lists.others),
                }
            }
            // Changes of a parent and of its children are enqueued whoever reads them; time has no changes.
            Read::Children | Read::PreviousStatus | Read::Clock => {}
        }
    }

    fn unsubscribe(&mut self, parent: &ParentRef, read: &Read) {
        let without = |parents: &mut Parents| {
            parents.remove(parent);
            parents.is_empty()
        };
        match read {
            Read::Get { watch, namespace, name } => narrow(&mut self.index, watch, |readers| {
                narrow(&mut readers.gets, &(namespace.clone(), Arc::clone(name)), without);
                readers.is_empty()
            }),
            Read::List { watch, namespace, selector } => narrow(&mut self.index, watch, |readers| {
                narrow(&mut readers.lists, namespace, |lists| {
                    let leave = |selected: &mut Selected| {
                        narrow(selected, selector, without);
                        selected.is_empty()
                    };
                    match selector.as_ref().and_then(Selector::needed_labels) {
                        Some(labels) => labels.for_each(|(label, value)| {
                            narrow(&mut lists.by_label, label, |values| {
                                narrow(values, value, leave);
                                values.is_empty()
                            });
                        }),
                        None => {
                            leave(&mut lists.others);
                        }
                    }
                    lists.by_label.is_empty() && lists.others.is_empty()
                });
                readers.is_empty()
            }),
            Read::Children | Read::PreviousStatus | Read::Clock => {}
        }
    }
}

/// Changes the value of a key, and removes both if it says that nothing is left.
fn narrow<K, Q, V>(map: &mut HashMap<K, V>, key: &Q, is_empty_after: impl FnOnce(&mut V) -> bool)
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ?Sized,
{
    if map.get_mut(key).is_some_and(is_empty_after) {
        map.remove(key);
    }
}

impl Readers {
    fn is_empty(&self) -> bool {
        self.gets.is_empty() && self.lists.is_empty()
    }

    /// Adds those with a read that this object is or was an answer to.
    fn of(&self, object: &Object, parents: &mut Vec<Arc<ParentRef>>) {
        if !self.gets.is_empty() {
            let name = (object.key.namespace.clone(), Arc::clone(&object.key.name));
            parents.extend(self.gets.get(&name).into_iter().flatten().cloned());
        }
        if self.lists.is_empty() {
            return;
        }
        let own = object.key.namespace.as_ref().and_then(|_| self.lists.get(&object.key.namespace));
        for lists in own.into_iter().chain(self.lists.get(&None)) {
            let labels = if lists.by_label.is_empty() { None } else { Some(&object.labels) };
            let labelled = labels.into_iter().flatten().filter_map(|(label, value)| {
                lists.by_label.get(&**label).and_then(|values| values.get(&**value))
            });
            for (selector, readers) in labelled.chain([&lists.others]).flatten() {
                if selector.as_ref().is_none_or(|selector| selector.matches(&object.labels)) {
                    parents.extend(readers.iter().cloned());
                }
            }
        }
    }
}

#[cfg(test)]
impl Memos {
    /// Whether the index keeps nothing of parents that are gone.
    pub(super) fn is_index_empty(&self) -> bool {
        self.lock().index.is_empty()
    }
}
