//! The explain log: what the last passes over each parent came to, for people (rule S9).
//!
//! In: requests and reports. Out: a parent's [`Record`]. Bounded: so many entries a parent, so many parents, text
//! cut; whoever was checked least recently goes first. A pass that did nothing costs a lookup and no text.
//! Never: I/O, clocks, contents of objects.

#[cfg(test)]
mod tests;

use crate::{
    object::ObjectKey,
    observe::reads::ParentRef,
    report::{Reason, Report, Seen, StatusWrite, Trigger},
    schedule::queue::Request,
};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Entries of a parent. What nothing came of is folded, so at least four of them are about something.
const ENTRIES: usize = 8;
/// Parents: up to about 4 KB each, where every entry wrote something, so 80 MB in all; mostly a quarter of that.
const PARENTS: usize = 20_000;
/// Children that are named in an entry, of those created, updated, replaced and pruned each; the others are counted.
const NAMED: usize = 8;
/// Bytes of a message; conditions and events have it whole.
const TEXT: usize = 512;

/// What is known of every parent that was checked lately; one for the host.
pub struct Journal {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Each with the number of its last pass.
    records: HashMap<Arc<ParentRef>, (u64, Record)>,
    /// By the number of the last pass: the first is the next to go.
    order: BTreeMap<u64, Arc<ParentRef>>,
    passes: u64,
}

/// What is kept of a parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose it is: an object of the same name that came later has a record of its own.
    pub uid: Arc<str>,
    /// When the last pass began.
    pub checked: Timestamp,
    /// When the last pass began that wrote something; `None` if none did since the host looks at it.
    pub changed: Option<Timestamp>,
    /// The last passes, newest first.
    pub entries: VecDeque<Entry>,
}

/// A pass, or several in a row that wrote nothing and came to the same: then all but `first`, `passes`, `calls` and
/// `triggers` is of the last of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When the first of them began.
    pub first: Timestamp,
    /// When the last of them began.
    pub last: Timestamp,
    /// How many they are.
    pub passes: u32,
    /// In how many of them the guest was called; otherwise the memo answered.
    pub calls: u32,
    /// How long it took.
    pub took: Duration,
    /// What set it going.
    pub triggers: BTreeSet<Trigger>,
    /// How often in a row it had failed before.
    pub attempt: u32,
    /// The generation of the parent.
    pub generation: i64,
    /// The plugin's version, by digest.
    pub digest: Arc<str>,
    /// Why the guest was called, at the last of the calls.
    pub why: Option<Box<str>>,
    /// What was written; `None` if nothing was.
    pub wrote: Option<Box<Wrote>>,
    /// What went wrong, if anything.
    pub failure: Option<(Reason, Box<str>)>,
}

/// What a pass wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wrote {
    /// Children.
    pub created: Names,
    /// Children.
    pub updated: Names,
    /// Children.
    pub replaced: Names,
    /// Children.
    pub pruned: Names,
    /// The parent's labels, annotations or finalizers.
    pub metadata: bool,
    /// The parent's status.
    pub status: bool,
}

/// Objects by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The first of them, as `Deployment demo/blog`.
    pub shown: Box<[Box<str>]>,
    /// How many they are in all.
    pub total: usize,
}

impl Default for Journal {
    fn default() -> Self {
        Self { capacity: PARENTS, inner: Mutex::default() }
    }
}

impl Journal {
    /// A pass is over that began at this time and took so long. One that looked at nothing leaves no trace, unless it
    /// failed on the way: then it is taken for one over the object that was there before.
    pub fn record(&self, request: &Request, report: &Report, began: Timestamp, took: Duration) {
        let before = || report.failure.as_ref().and_then(|_| self.last_seen(&request.parent));
        let Some(seen) = report.seen.clone().or_else(before) else { return };
        let wrote = wrote(report);
        let why = why(report);
        let entry = Entry {
            first: began,
            last: began,
            passes: 1,
            calls: why.is_some().into(),
            took,
            triggers: request.triggers.clone(),
            attempt: request.attempt,
            generation: seen.generation,
            digest: seen.digest,
            why,
            wrote,
            failure: report.failure.as_ref().map(|(reason, message)| (*reason, cut(message))),
        };
        let _dropped_without_the_lock = self.lock().add(&request.parent, &seen.uid, entry, self.capacity);
    }

    /// What is known of a parent.
    pub fn of(&self, parent: &ParentRef) -> Option<Record> {
        self.lock().records.get(parent).map(|(_, record)| record.clone())
    }

    fn last_seen(&self, parent: &ParentRef) -> Option<Seen> {
        let inner = self.lock();
        let (_, record) = inner.records.get(parent)?;
        let newest = record.entries.front()?;
        let (uid, digest) = (Arc::clone(&record.uid), Arc::clone(&newest.digest));
        Some(Seen { uid, generation: newest.generation, digest })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // If an addition panicked half-way, a record may be missing: then there is less to tell.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Adds to a parent's record, and returns what had to go for it.
    fn add(
        &mut self,
        parent: &ParentRef,
        uid: &Arc<str>,
        entry: Entry,
        capacity: usize,
    ) -> Option<(u64, Record)> {
        self.passes += 1;
        let pass = self.passes;
        let mut gone = None;
        if let Some((last, record)) = self.records.get_mut(parent) {
            if let Some(parent) = self.order.remove(last) {
                self.order.insert(pass, parent);
            }
            *last = pass;
            if record.uid == *uid {
                record.add(entry);
            } else {
                gone = Some((pass, std::mem::replace(record, Record::new(uid, entry))));
            }
            return gone;
        }
        if self.records.len() >= capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            gone = self.records.remove(&oldest);
        }
        let parent = Arc::new(parent.clone());
        self.order.insert(pass, Arc::clone(&parent));
        self.records.insert(parent, (pass, Record::new(uid, entry)));
        gone
    }
}

impl Record {
    fn new(uid: &Arc<str>, entry: Entry) -> Self {
        let changed = entry.wrote.is_some().then_some(entry.last);
        let (uid, checked) = (Arc::clone(uid), entry.last);
        // Most parents never have more than a few.
        Self { uid, checked, changed, entries: VecDeque::from([entry]) }
    }

    fn add(&mut self, entry: Entry) {
        self.checked = entry.last;
        if entry.wrote.is_some() {
            self.changed = Some(entry.last);
        }
        match self.entries.front_mut() {
            Some(newest) if newest.comes_to_the_same(&entry) => newest.fold(entry),
            Some(_) | None => {
                self.entries.truncate(ENTRIES - 1);
                self.entries.push_front(entry);
            }
        }
    }
}

impl Entry {
    /// Whether neither wrote anything, and both went well or failed for one reason.
    fn comes_to_the_same(&self, later: &Self) -> bool {
        let reason = |entry: &Self| entry.failure.as_ref().map(|(reason, _)| *reason);
        self.wrote.is_none() && later.wrote.is_none() && reason(self) == reason(later)
    }

    fn fold(&mut self, mut later: Self) {
        later.first = self.first;
        later.passes = self.passes.saturating_add(later.passes);
        later.calls = self.calls.saturating_add(later.calls);
        later.why = later.why.or_else(|| self.why.take());
        later.triggers.append(&mut self.triggers);
        *self = later;
    }
}

/// Why the guest was called; `None` where the memo answered.
fn why(report: &Report) -> Option<Box<str>> {
    report.why.as_ref().map(|why| cut(&why.to_string()))
}

fn wrote(report: &Report) -> Option<Box<Wrote>> {
    let children = [&report.created, &report.updated, &report.replaced, &report.pruned];
    let (metadata, status) = (report.metadata_written, report.status == StatusWrite::Written);
    if children.iter().all(|keys| keys.is_empty()) && !metadata && !status {
        return None;
    }
    let [created, updated, replaced, pruned] = children.map(|keys| names(keys));
    Some(Box::new(Wrote { created, updated, replaced, pruned, metadata, status }))
}

fn names(keys: &[ObjectKey]) -> Names {
    let shown = keys.iter().take(NAMED).map(|key| key.to_string().into()).collect();
    Names { shown, total: keys.len() }
}

fn cut(text: &str) -> Box<str> {
    if text.len() <= TEXT {
        return text.into();
    }
    format!("{}… (cut)", &text[..text.floor_char_boundary(TEXT)]).into()
}
