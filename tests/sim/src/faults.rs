//! Faults between a host and its API server: what there are, and which requests they happen to.
//!
//! The fault proxy of the integration tests and the simulator share them, so a fault has one name and one meaning in
//! both. What is decided by chance is drawn from one seed, in the order in which requests come.

mod client;
mod stream;

pub use client::{Crash, Link, reason};
pub use stream::{Passed, Watch};

use crate::api::Asked;
use bytes::Bytes;
use fastrand::Rng;
use http::Response;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// What happens to a request, or to a watch that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request waits before it is forwarded.
    Delay(Duration),
    /// It is answered with a status and not forwarded: 403 and 409 with the reasons that the API server gives,
    /// 429 or 503 perhaps with `Retry-After`, 410 at the start of a watch.
    Answer {
        /// The HTTP status.
        code: u16,
        /// `Retry-After`, in seconds.
        retry_after: Option<u32>,
    },
    /// It is forwarded, and answered with this status whatever the API server said: 504.
    AnswerAfter(u16),
    /// The connection is reset, and the request not forwarded.
    DropBefore,
    /// The request is forwarded, and the connection reset instead of the answer.
    DropAfter,
    /// The request is neither forwarded nor answered; its connection stays open.
    HangBefore,
    /// The request is forwarded, and not answered; its connection stays open.
    HangAfter,
    /// Gets and lists are answered as the first one of the same path, query and form was since the rule stands.
    Stale,
    /// Lists are answered as if there were no objects.
    Empty,
    /// A watch, also one that is open already, delivers nothing, and its connection stays open.
    Freeze,
    /// The connection of a watch, also of one that is open already, is reset after this time.
    Cut(Duration),
    /// A watch, also one that is open already, delivers everything so much later.
    Lag(Duration),
    /// A watch, also one that is open already, loses so many of a hundred events and says nothing; its bookmarks
    /// come.
    Lose(u8),
    /// A watch, also one that is open already, delivers so many of a hundred events twice.
    Duplicate(u8),
    /// A watch, also one that is open already, delivers so many of a hundred events after the next one.
    Reorder(u8),
}

impl Fault {
    /// Whether it happens to an open watch, not to a request.
    pub fn is_about_streams(self) -> bool {
        matches!(
            self,
            Self::Freeze
                | Self::Cut(_)
                | Self::Lag(_)
                | Self::Lose(_)
                | Self::Duplicate(_)
                | Self::Reorder(_)
        )
    }
}

/// A list without its objects, for [`Fault::Empty`]; what is no list stays as it is.
pub fn emptied(list: &[u8]) -> Vec<u8> {
    let Ok(mut list) = serde_json::from_slice::<Value>(list) else { return list.to_vec() };
    if list["items"].is_array() {
        list["items"] = Value::Array(Vec::new());
        if let Some(metadata) = list["metadata"].as_object_mut() {
            metadata.retain(|name, _| name == "resourceVersion");
        }
    }
    list.to_string().into_bytes()
}

/// Which requests a fault happens to.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Any of `get`, `list`, `watch`, `create`, `update`, `apply`, `patch`, `delete`, `deletecollection`; where
    /// there are none, all. Server-side applies are no `patch` here, as nothing else tells the two apart.
    pub verbs: &'static [&'static str],
    /// The plural; where it is empty, all.
    pub resource: &'static str,
    /// For example `status`; empty for the object itself; `None` for any.
    pub subresource: Option<&'static str>,
    /// `None` for any.
    pub namespace: Option<String>,
    /// `None` for any.
    pub name: Option<String>,
    /// So many that fit are let through first.
    pub skip: usize,
    /// So many that fit are let through in each second after that; `None` for none.
    pub per_second: Option<usize>,
    /// How often it happens; `None` for always.
    pub times: Option<usize>,
    /// How likely it happens, from 0 to 1; decided once per request and once per watch.
    pub probability: f64,
    /// What happens.
    pub fault: Fault,
}

impl Rule {
    /// A fault that happens to every request, or to every watch.
    pub fn every(fault: Fault) -> Self {
        Self {
            verbs: &[],
            resource: "",
            subresource: None,
            namespace: None,
            name: None,
            skip: 0,
            per_second: None,
            times: None,
            probability: 1.0,
            fault,
        }
    }

    fn is_about(&self, asked: &Asked) -> bool {
        let is_possible = match self.fault {
            Fault::Stale => asked.verb == "get" || asked.verb == "list",
            Fault::Empty => asked.verb == "list",
            fault => !fault.is_about_streams() || asked.verb == "watch",
        };
        is_possible
            && (self.verbs.is_empty() || self.verbs.contains(&&*asked.verb))
            && (self.resource.is_empty() || self.resource == asked.resource)
            && self.subresource.is_none_or(|subresource| subresource == asked.subresource)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == asked.namespace)
            && self.name.as_ref().is_none_or(|name| *name == asked.name)
    }
}

/// A request that came through, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What it was about.
    pub asked: Asked,
    /// What was done to it; of several faults of a watch the last.
    pub fault: Option<Fault>,
    /// What the API server answered; `None` while it has not, or where it was not asked.
    pub code: Option<u16>,
}

impl Deref for Seen {
    type Target = Asked;

    fn deref(&self) -> &Asked {
        &self.asked
    }
}

/// A rule that stands until this is dropped, or [`Rules::clear`] is called.
#[derive(Debug)]
#[must_use = "the rule ends when this is dropped"]
pub struct Standing {
    id: u64,
    rules: Rules,
}

impl Standing {
    /// How many requests and watches it happened to.
    pub fn hits(&self) -> usize {
        self.rules.state().rules.get(&self.id).map_or(0, |entry| entry.hits)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.rules.state().rules.remove(&self.id);
        self.rules.0.changed.notify_waiters();
    }
}

/// The rules that stand, and what they happened to; clones are the same.
#[derive(Clone, Debug)]
pub struct Rules(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes open watches when rules come and go, in the order in which they came.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    rules: BTreeMap<u64, Entry>,
    /// The number of the last rule.
    last: u64,
    rng: Rng,
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Entry {
    rule: Rule,
    /// How many have been let through, over all and since then.
    skipped: usize,
    spared: (Instant, usize),
    hits: usize,
    since: Instant,
    /// Answers by path and query, for [`Fault::Stale`].
    recorded: BTreeMap<String, Response<Bytes>>,
    stands: bool,
}

/// What rules do to a watch now.
#[derive(Debug, Default)]
struct OnStream {
    frozen: bool,
    lag: Duration,
    cut: Option<Instant>,
    lost_percent: u8,
    doubled_percent: u8,
    late_percent: u8,
}

impl Rules {
    /// No rules yet; probabilities are drawn from the seed.
    pub fn new(seed: u64) -> Self {
        let state = State { rules: BTreeMap::new(), last: 0, rng: Rng::with_seed(seed), seen: Vec::new() };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }))
    }

    /// Sets a rule. Of several that fit a request, the one that was set first and happens, happens alone; a
    /// watch that is open has them all.
    pub fn rule(&self, rule: Rule) -> Standing {
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.rules.insert(id, Entry::new(rule));
        drop(state);
        self.0.changed.notify_waiters();
        Standing { id, rules: self.clone() }
    }

    /// Ends all rules; how often they happened can still be asked.
    pub fn clear(&self) {
        self.state().rules.values_mut().for_each(|entry| entry.stands = false);
        self.0.changed.notify_waiters();
    }

    /// Every request so far, in the order in which they came.
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// Notes a request; its place in [`Rules::seen`], and the rule that happens to it.
    pub fn arrive(&self, asked: &Asked) -> (usize, Option<(u64, Fault)>) {
        let mut state = self.state();
        let State { rules, rng, seen, .. } = &mut *state;
        let mut requests = rules.iter_mut().filter(|(_, entry)| !entry.rule.fault.is_about_streams());
        let happens =
            requests.find_map(|(id, entry)| entry.draw(asked, rng).then_some((*id, entry.rule.fault)));
        seen.push(Seen { asked: asked.clone(), fault: happens.map(|(_, fault)| fault), code: None });
        (seen.len() - 1, happens)
    }

    /// Notes what the API server answered to a request.
    pub fn answered(&self, seen: usize, code: u16) {
        self.state().seen[seen].code = Some(code);
    }

    /// What was recorded of this path and query while a rule stands.
    pub fn recorded(&self, rule: u64, uri: &str) -> Option<Response<Bytes>> {
        self.state().rules.get(&rule)?.recorded.get(uri).cloned()
    }

    /// Records an answer for [`Fault::Stale`].
    pub fn record(&self, rule: u64, uri: String, answer: Response<Bytes>) {
        if let Some(entry) = self.state().rules.get_mut(&rule) {
            entry.recorded.insert(uri, answer);
        }
    }

    /// A number below 100, by chance.
    fn draw_percent(&self) -> u8 {
        self.state().rng.u8(..100)
    }

    /// What happens to a watch that was opened then; `drawn` remembers what was decided about it.
    fn on_stream(
        &self,
        asked: &Asked,
        seen: usize,
        opened: Instant,
        drawn: &mut BTreeMap<u64, bool>,
    ) -> OnStream {
        let mut faults = OnStream::default();
        let mut state = self.state();
        let State { rules, rng, seen: all, .. } = &mut *state;
        for (id, entry) in rules {
            let fault = entry.rule.fault;
            if !entry.stands || !fault.is_about_streams() {
                continue;
            }
            if !*drawn.entry(*id).or_insert_with(|| entry.draw(asked, rng)) {
                continue;
            }
            all[seen].fault = Some(fault);
            match fault {
                Fault::Freeze => faults.frozen = true,
                Fault::Lose(percent) => faults.lost_percent = faults.lost_percent.max(percent),
                Fault::Duplicate(percent) => faults.doubled_percent = faults.doubled_percent.max(percent),
                Fault::Reorder(percent) => faults.late_percent = faults.late_percent.max(percent),
                Fault::Lag(lag) => faults.lag = faults.lag.max(lag),
                Fault::Cut(after) => {
                    let at = opened.max(entry.since) + after;
                    faults.cut = Some(faults.cut.map_or(at, |cut| cut.min(at)));
                }
                _ => {}
            }
        }
        faults
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn new(rule: Rule) -> Self {
        let now = Instant::now();
        Self {
            rule,
            skipped: 0,
            spared: (now, 0),
            hits: 0,
            since: now,
            recorded: BTreeMap::new(),
            stands: true,
        }
    }

    /// Whether it happens, which counts.
    fn draw(&mut self, asked: &Asked, rng: &mut Rng) -> bool {
        let happens = self.stands
            && self.rule.is_about(asked)
            && self.rule.times.is_none_or(|times| self.hits < times)
            && !self.lets_through()
            && rng.f64() < self.rule.probability;
        self.hits += usize::from(happens);
        happens
    }

    fn lets_through(&mut self) -> bool {
        if self.skipped < self.rule.skip {
            self.skipped += 1;
            return true;
        }
        let Some(per_second) = self.rule.per_second else { return false };
        if self.spared.0.elapsed() >= Duration::from_secs(1) {
            self.spared = (Instant::now(), 0);
        }
        self.spared.1 += 1;
        self.spared.1 <= per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(verb: &str) -> Asked {
        Asked {
            verb: verb.to_owned(),
            resource: "pods".to_owned(),
            namespace: "demo".to_owned(),
            name: "p".to_owned(),
            ..Asked::default()
        }
    }

    /// Rules that stand for as long as the second is kept.
    fn standing(all: impl IntoIterator<Item = Rule>) -> (Rules, Vec<Standing>) {
        let rules = Rules::new(7);
        let standing = all.into_iter().map(|rule| rules.rule(rule)).collect();
        (rules, standing)
    }

    #[test]
    fn rule_fits_what_all_its_words_fit() {
        let every = Rule::every(Fault::DropBefore);
        let fits = |rule: Rule| {
            let (rules, _standing) = standing([rule]);
            rules.arrive(&asked("apply")).1.is_some()
        };
        assert!(fits(every.clone()));
        assert!(fits(Rule { verbs: &["get", "apply"], resource: "pods", ..every.clone() }));
        assert!(!fits(Rule { verbs: &["patch"], ..every.clone() }));
        assert!(!fits(Rule { resource: "services", ..every.clone() }));
        assert!(!fits(Rule { subresource: Some("status"), ..every.clone() }));
        assert!(fits(Rule { subresource: Some(""), namespace: Some("demo".to_owned()), ..every.clone() }));
        assert!(!fits(Rule { namespace: Some("other".to_owned()), ..every.clone() }));
        assert!(!fits(Rule { name: Some("q".to_owned()), ..every }));
        assert!(!fits(Rule::every(Fault::Stale)), "only reads can be stale");
    }

    #[test]
    fn rule_happens_as_often_as_it_says_and_then_the_next_does() {
        let conflict = Fault::Answer { code: 409, retry_after: None };
        let first = Rule { times: Some(2), ..Rule::every(Fault::DropAfter) };
        let (rules, all) = standing([first, Rule::every(conflict)]);
        let next = || rules.arrive(&asked("get")).1.map(|(_, fault)| fault);
        assert_eq!(
            [(); 3].map(|()| next()),
            [Some(Fault::DropAfter), Some(Fault::DropAfter), Some(conflict)]
        );
        assert_eq!((all[0].hits(), all[1].hits()), (2, 1));
        assert_eq!(rules.seen().len(), 3);
    }

    #[test]
    fn rule_lets_the_first_through_and_then_so_many_a_second() {
        let hang = |fault, times| Rule { skip: 2, times, ..Rule::every(fault) };
        let (rules, _all) = standing([hang(Fault::HangAfter, Some(1)), hang(Fault::HangBefore, None)]);
        let next = || rules.arrive(&asked("apply")).1.map(|(_, fault)| fault);
        let (after, before) = (Some(Fault::HangAfter), Some(Fault::HangBefore));
        assert_eq!([(); 5].map(|()| next()), [None, None, after, before, before]);

        let (rules, _all) = standing([Rule { per_second: Some(10), ..Rule::every(Fault::DropBefore) }]);
        let pass = || (0..25).filter(|_| rules.arrive(&asked("get")).1.is_none()).count();
        assert_eq!(pass(), 10);
        assert_eq!(pass(), 0);
        rules.state().rules.values_mut().for_each(|entry| entry.spared.0 -= Duration::from_secs(1));
        assert_eq!(pass(), 10);
    }

    #[test]
    fn rule_happens_about_as_likely_as_it_says() {
        let (rules, _all) = standing([Rule { probability: 0.25, ..Rule::every(Fault::DropBefore) }]);
        let hits = (0..1000).filter(|_| rules.arrive(&asked("get")).1.is_some()).count();
        assert!((200..300).contains(&hits), "{hits}");
    }

    #[test]
    fn stream_is_decided_about_once_and_has_all_its_faults() {
        let lag = Duration::from_secs(3);
        let (rules, all) = standing([Rule::every(Fault::Lag(lag)), Rule::every(Fault::Freeze)]);
        let (seen, none) = rules.arrive(&asked("watch"));
        assert!(none.is_none());
        let mut drawn = BTreeMap::new();
        for _ in 0..3 {
            let faults = rules.on_stream(&asked("watch"), seen, Instant::now(), &mut drawn);
            assert!(faults.frozen && faults.lag == lag && faults.cut.is_none());
        }
        assert_eq!(all[0].hits(), 1);
        assert_eq!(rules.seen()[seen].fault, Some(Fault::Freeze));
    }
}
