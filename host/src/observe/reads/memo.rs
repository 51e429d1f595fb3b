//! Plans by parent, and what they depend on.

use super::{ParentRef, Read, Recorded, View, Why, answer_get, answer_list, index::Index};
use crate::{
    decide::{Unplanned, plan::Plan},
    object::ContentHash,
    observe::cache::{Change, Snapshot},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
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
    /// What the guest said, or why it said nothing.
    pub answer: Answer,
    /// When it was asked.
    pub called: Instant,
}

/// A plan, and whether the guest says that nothing is left to do (while the parent is being deleted).
#[derive(Clone, Default)]
pub struct Planned {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Nothing is left to do.
    pub done: bool,
}

/// What a call came to. A guest that failed would fail again, as calls are deterministic, unless the failure is
/// transient.
pub type Answer = Result<Planned, Arc<Unplanned>>;

/// Whether a guest has to be called.
pub enum Check {
    /// No: this is what it would say, and when it said so.
    Valid(Answer, Instant),
    /// Yes.
    Call {
        /// What differs.
        why: Why,
        /// The last answer, if nothing differs but the time and what the plugin wrote itself for this parent.
        standing: Option<Answer>,
    },
}

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
    /// every read answers the same; else what differs. `view` answers the reads.
    pub fn check(&self, parent: &ParentRef, digest: &str, view: &View) -> Check {
        let (memo, own, children) = {
            let inner = self.lock();
            match inner.entries.get(parent) {
                Some(entry) => (entry.memo.clone(), entry.own.clone(), entry.children),
                None => return Check::Call { why: Why::First, standing: None },
            }
        };
        if *memo.digest != *digest {
            return Check::Call { why: Why::Version, standing: None };
        }
        if memo.parent.0 != view.parent.uid {
            return Check::Call { why: Why::Parent, standing: None };
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
        let is_same: Vec<bool> = memo.reads.iter().map(answers_the_same).collect();
        let differing = || memo.reads.iter().zip(&is_same).filter(|(_, is_same)| !**is_same);
        let why = if memo.parent.1 != view.parent.body_hash {
            Why::Parent
        } else if differing().next().is_some() {
            Why::Reads(differing().map(|((read, _), _)| read.clone()).collect())
        } else if memo.answer.as_ref().is_err_and(|unplanned| unplanned.is_transient()) {
            Why::Retry
        } else {
            if seen != children
                && let Some(entry) = self.lock().entries.get_mut(parent)
                && Arc::ptr_eq(&entry.memo.reads, &memo.reads)
            {
                entry.children = seen;
            }
            return Check::Valid(memo.answer, memo.called);
        };
        let is_own = is_own_doing(&memo, own.as_deref(), &is_same, view);
        Check::Call { why, standing: is_own.then_some(memo.answer) }
    }

    /// Takes in what the parent's own writes make of what its guest sees. `view` has nothing beside them that the
    /// pass did not have at its beginning. True if what the guest saw of other objects is no longer so.
    pub fn wrote(&self, parent: &ParentRef, view: &View) -> bool {
        let Some(memo) = self.lock().entries.get(parent).map(|entry| entry.memo.clone()) else {
            return false;
        };
        let view = view.settled();
        let answers: Box<[ContentHash]> = memo.reads.iter().map(|(read, _)| view.answer(read)).collect();
        let own = Own { parent: view.parent.body_hash, answers };
        let differs = |of_objects: bool| {
            own.answers.iter().zip(&*memo.reads).any(|(own, (read, answer))| {
                own != answer && (!of_objects || !matches!(read, Read::PreviousStatus | Read::Clock))
            })
        };
        let is_told = own.parent != memo.parent.1 || differs(false);
        let is_overtaken = differs(true);
        if let Some(entry) = self.lock().entries.get_mut(parent)
            && Arc::ptr_eq(&entry.memo.reads, &memo.reads)
        {
            entry.own = is_told.then(|| Arc::new(own));
        }
        is_overtaken
    }

    /// Keeps an answer and subscribes to its reads.
    pub fn record(&self, parent: &ParentRef, memo: Memo) -> Subscribed {
        let reads = Arc::clone(&memo.reads);
        let _dropped_without_the_lock = self.lock().keep(parent, memo);
        Subscribed(reads)
    }

    /// What the last call for this parent read, and so is subscribed to; `None` if none is kept.
    pub fn reads(&self, parent: &ParentRef) -> Option<Arc<[Recorded]>> {
        self.lock().entries.get(parent).map(|entry| Arc::clone(&entry.memo.reads))
    }

    /// Whether the guest read this parent's status at its last call.
    pub fn reads_status(&self, parent: &ParentRef) -> bool {
        let inner = self.lock();
        let entry = inner.entries.get(parent);
        entry.is_some_and(|entry| entry.memo.reads.iter().any(|(read, _)| *read == Read::PreviousStatus))
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
        let mut parents = self.lock().index.readers(&change.watch, [before, after].into_iter().flatten());
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
    memo: Memo,
    /// Absent where the parent's own writes do not change what its guest sees.
    own: Option<Arc<Own>>,
    /// [`View::children_content`] when the memo was last found valid.
    children: Option<ContentHash>,
}

/// What a guest would see if nobody had done anything since its call but the host for this very parent.
struct Own {
    /// The parent's content.
    parent: ContentHash,
    /// The answers to the memo's reads, in their order; children on their way out are left out.
    answers: Box<[ContentHash]>,
}

/// Whether all that differs since the call is the time and what was written for this parent.
fn is_own_doing(memo: &Memo, own: Option<&Own>, is_same: &[bool], view: &View) -> bool {
    if view.parent.body_hash != own.map_or(memo.parent.1, |own| own.parent)
        && view.parent.body_hash != memo.parent.1
    {
        return false;
    }
    let mut settled = None;
    memo.reads.iter().zip(is_same).enumerate().all(|(at, ((read, _), is_same))| {
        *is_same
            || *read == Read::Clock
            || own.is_some_and(|own| {
                settled.get_or_insert_with(|| view.settled()).answer(read) == own.answers[at]
            })
    })
}

#[derive(Default)]
struct Inner {
    entries: HashMap<Arc<ParentRef>, Entry>,
    index: Index,
}

impl Inner {
    fn keep(&mut self, parent: &ParentRef, memo: Memo) -> Option<Entry> {
        let key = self
            .entries
            .get_key_value(parent)
            .map_or_else(|| Arc::new(parent.clone()), |(key, _)| Arc::clone(key));
        let reads = Arc::clone(&memo.reads);
        let old = self.entries.insert(Arc::clone(&key), Entry { memo, own: None, children: None });
        if old.as_ref().is_some_and(|old| {
            old.memo.reads.iter().map(|(read, _)| read).eq(reads.iter().map(|(read, _)| read))
        }) {
            return old;
        }
        for (read, _) in old.iter().flat_map(|old| &*old.memo.reads) {
            self.index.unsubscribe(&key, read);
        }
        for (read, _) in &*reads {
            self.index.subscribe(&key, read);
        }
        old
    }

    fn remove(&mut self, parent: &ParentRef) -> Option<Entry> {
        let old = self.entries.remove(parent)?;
        for (read, _) in &*old.memo.reads {
            self.index.unsubscribe(parent, read);
        }
        Some(old)
    }
}

#[cfg(test)]
impl Memos {
    /// Whether the index keeps nothing of parents that are gone.
    pub(super) fn is_index_empty(&self) -> bool {
        self.lock().index.is_empty()
    }
}
