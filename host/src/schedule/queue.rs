//! One slot per (plugin, parent): what to look at next.
//!
//! A pure state machine: `now` is an argument, nothing waits. Guarantees: one request in flight per key;
//! nothing added is lost; the plugin with the fewest in flight goes first, and those with as many take turns;
//! edits by people go before resyncs, which age; a failed key backs off, 5 ms doubling to 5 min with jitter, and is
//! reset at once when an input changes.
//! Never: I/O, clocks, wasm.

#[cfg(test)]
mod tests;

use crate::{
    observe::reads::ParentRef,
    report::{Fault, Outcome, Trigger},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    ops::Bound,
    sync::Arc,
    time::Duration,
};
use xxhash_rust::xxh3::Xxh3;

/// Time since the start of the host: the queue knows no other.
pub type Now = Duration;

/// The first retry: a conflict is over by then.
const FIRST_BACKOFF: Duration = Duration::from_millis(5);
/// The longest: what is mended meanwhile should not wait for a coffee break.
const LONGEST_BACKOFF: Duration = Duration::from_mins(5);
/// So many edits of a plugin may pass its oldest resync. A resync of thousands then takes a fifth of the turns
/// at least, and an edit waits for one of them at most.
const EDITS_PER_RESYNC: u32 = 4;

/// What a worker takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which parent of which plugin.
    pub parent: ParentRef,
    /// Why, for people.
    pub triggers: BTreeSet<Trigger>,
    /// How often in a row it has failed before.
    pub attempt: u32,
    /// Since when it has been due: the time from then on is what it had to wait for a worker.
    pub since: Now,
}

/// How a key stands in the queue, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// What it waits for.
    pub waits: Waits,
    /// Why it is there; of a key in flight, what was added meanwhile.
    pub triggers: BTreeSet<Trigger>,
    /// How often in a row it has failed.
    pub failures: u32,
}

/// What a key in the queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Its result: a worker has it.
    Result,
    /// A worker: it has been due since then.
    Worker {
        /// Since when.
        since: Now,
    },
    /// The time that its last result asked for, unless something changes before.
    Requeue {
        /// Until when.
        until: Now,
    },
    /// The end of its back-off, unless an input changes before.
    BackOff {
        /// Until when.
        until: Now,
    },
}

/// The queue.
pub struct Queue {
    seed: u64,
    slots: BTreeMap<ParentRef, Slot>,
    /// Plugins with something due; none of them is empty.
    lanes: BTreeMap<Arc<str>, Lane>,
    /// Who had the last turn; of those with equal rights to the next, the next by name has it.
    last: Arc<str>,
    /// Requests in flight by plugin; none of them is zero.
    in_flight: BTreeMap<Arc<str>, usize>,
    /// What waits for its time.
    delayed: BTreeSet<(Now, ParentRef)>,
    /// Counts what was queued: first in, first out.
    order: u64,
}

/// A key that is waiting or in flight; a key at rest has no slot.
struct Slot {
    state: State,
    /// Why it waits; of a key in flight, what was added meanwhile.
    triggers: BTreeSet<Trigger>,
    /// Failures since the last success or change of an input, by whose fault they were (rule R5).
    failures: BTreeMap<Fault, u32>,
}

#[derive(Clone, Copy)]
enum State {
    /// In its plugin's lane; left by `take`.
    Queued { is_edit: bool, order: u64, since: Now },
    /// Left by `finish`. `forgotten`: its plugin was, so that its outcome means nothing any more.
    InFlight { forgotten: bool },
    /// Among the delayed; left when its time has come, or earlier by a trigger.
    Delayed { until: Now, why: Delay },
}

#[derive(Clone, Copy)]
enum Delay {
    /// The last result asked for it; every trigger ends it, and the result that follows sets the next.
    Timer,
    /// A failure; a changed input ends it, but not before it may be tried again: what a person edited may mend it, so
    /// that then is earlier.
    BackOff { not_before: Now, edited: Now },
}

/// What is due of one plugin, by order.
#[derive(Default)]
struct Lane {
    edits: BTreeMap<u64, ParentRef>,
    resyncs: BTreeMap<u64, ParentRef>,
    /// Edits that have passed the oldest resync.
    passed: u32,
}

/// Whether this goes first: somebody changed something or waits for it. The others come in thousands.
fn is_edit(trigger: Trigger) -> bool {
    match trigger {
        Trigger::Parent | Trigger::ParentStatus | Trigger::Child | Trigger::Read | Trigger::Requeue => true,
        Trigger::Plugin | Trigger::Listed => false,
    }
}

/// Whether a person has changed the object or the plugin.
fn is_edited(trigger: Trigger) -> bool {
    matches!(trigger, Trigger::Parent | Trigger::Plugin)
}

/// Whether this is a reason to forget earlier failures. A changed status is none: a failing reconcile writes
/// its own, and would wake itself for ever.
fn is_input(trigger: Trigger) -> bool {
    match trigger {
        Trigger::Parent | Trigger::Child | Trigger::Read | Trigger::Plugin | Trigger::Listed => true,
        Trigger::ParentStatus | Trigger::Requeue => false,
    }
}

impl Queue {
    /// Empty. `seed` makes the jitter of back-offs repeatable.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            slots: BTreeMap::new(),
            lanes: BTreeMap::new(),
            last: "".into(),
            in_flight: BTreeMap::new(),
            delayed: BTreeSet::new(),
            order: 0,
        }
    }

    /// Something happened: look at this parent. Resets its back-off unless the trigger is a requeue or a
    /// change of its status.
    pub fn add(&mut self, parent: ParentRef, trigger: Trigger, now: Now) {
        let Some(slot) = self.slots.get_mut(&parent) else {
            let state = State::InFlight { forgotten: false };
            let slot = Slot { state, triggers: BTreeSet::from([trigger]), failures: BTreeMap::new() };
            self.slots.insert(parent.clone(), slot);
            return self.place(parent, now, Delay::Timer, now);
        };
        slot.triggers.insert(trigger);
        if is_input(trigger) {
            slot.failures.clear();
        }
        match slot.state {
            State::InFlight { .. } => {}
            State::Queued { is_edit: was_edit, order, since } => {
                if is_edit(trigger) && !was_edit {
                    slot.state = State::Queued { is_edit: true, order, since };
                    let lane = self.lanes.entry(Arc::clone(&parent.plugin)).or_default();
                    lane.resyncs.remove(&order);
                    lane.edits.insert(order, parent);
                }
            }
            State::Delayed { until, why } => {
                let soonest = match why {
                    Delay::Timer => now,
                    Delay::BackOff { edited, .. } if is_edited(trigger) => edited,
                    Delay::BackOff { not_before, .. } if is_input(trigger) => not_before,
                    Delay::BackOff { .. } => return,
                };
                self.delayed.remove(&(until, parent.clone()));
                // Until now it had not been due: nobody has kept it waiting.
                self.place(parent, soonest.max(now).min(until), why, now);
            }
        }
    }

    /// The next request that is due, with its key marked as in flight.
    ///
    /// Calls differ in length: a plugin of slow ones that had every second turn would soon have all workers. So the
    /// fewest in flight decide, and a plugin that has none waits for one turn of each other at most.
    pub fn take(&mut self, now: Now) -> Option<Request> {
        while self.delayed.first().is_some_and(|(until, _)| *until <= now) {
            let Some((until, parent)) = self.delayed.pop_first() else { break };
            self.slot(&parent).triggers.insert(Trigger::Requeue);
            self.place(parent, until, Delay::Timer, now);
        }
        let (after_last, up_to_last) = (
            (Bound::Excluded(&*self.last), Bound::Unbounded),
            (Bound::Unbounded, Bound::Included(&*self.last)),
        );
        let in_turn = self.lanes.range::<str, _>(after_last).chain(self.lanes.range::<str, _>(up_to_last));
        // Of equal ones the first.
        let next = in_turn.min_by_key(|(plugin, _)| self.in_flight.get(*plugin));
        let plugin = Arc::clone(next?.0);
        let lane = self.lanes.get_mut(&plugin)?;
        let parent = lane.pop()?;
        if lane.is_empty() {
            self.lanes.remove(&plugin);
        }
        *self.in_flight.entry(Arc::clone(&plugin)).or_default() += 1;
        self.last = plugin;
        let slot = self.slot(&parent);
        let since = match std::mem::replace(&mut slot.state, State::InFlight { forgotten: false }) {
            State::Queued { since, .. } => since,
            State::InFlight { .. } | State::Delayed { .. } => now,
        };
        let (triggers, attempt) = (std::mem::take(&mut slot.triggers), slot.failures.values().sum());
        Some(Request { parent, triggers, attempt, since })
    }

    /// When the next delayed request is due; zero if something is due already, `None` if nothing waits.
    pub fn next_due(&self) -> Option<Now> {
        if self.lanes.is_empty() { self.delayed.first().map(|(until, _)| *until) } else { Some(Now::ZERO) }
    }

    /// A worker is done with a key. What was added meanwhile is due at once; the newest result alone says when
    /// to look again. That is the latest for a failed key too, which may not have to wait for its back-off then.
    pub fn finish(&mut self, parent: &ParentRef, outcome: Outcome, look_again: Option<Duration>, now: Now) {
        let Some(slot) = self.slots.get_mut(parent) else { return };
        let State::InFlight { forgotten } = slot.state else { return };
        if let Some(count) = self.in_flight.get_mut(&parent.plugin) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&parent.plugin);
            }
        }
        let (outcome, look_again) = if forgotten { (Outcome::Wait, None) } else { (outcome, look_again) };
        let look_again = look_again.map(|after| now.saturating_add(after));
        let next = match outcome {
            Outcome::Done | Outcome::Wait if !slot.triggers.is_empty() => Some((now, Delay::Timer)),
            Outcome::Done | Outcome::Wait => look_again.map(|due| (due, Delay::Timer)),
            Outcome::Retry { fault, not_before } => {
                let failures = slot.failures.entry(fault).or_default();
                *failures = failures.saturating_add(1);
                let not_before = now.saturating_add(not_before.unwrap_or_default());
                // The API server says itself when it may be asked; the other waits are for a change to come.
                let edited = if fault == Fault::Plugin { now } else { not_before };
                let due = if slot.triggers.iter().copied().any(is_edited) {
                    edited
                } else if slot.triggers.iter().copied().any(is_input) {
                    not_before
                } else {
                    let back_off = now.saturating_add(back_off(self.seed, parent, *failures));
                    not_before.max(look_again.map_or(back_off, |due| due.min(back_off)))
                };
                Some((due, Delay::BackOff { not_before, edited }))
            }
        };
        if !matches!(outcome, Outcome::Retry { .. }) {
            slot.failures.clear();
        }
        match next {
            None => drop(self.slots.remove(parent)),
            Some((due, why)) => self.place(parent.clone(), due, why, now),
        }
    }

    /// Forgets every waiting request of a plugin; what is in flight ends as `Wait`.
    pub fn forget_plugin(&mut self, plugin: &str) {
        self.lanes.remove(plugin);
        self.delayed.retain(|(_, parent)| *parent.plugin != *plugin);
        self.slots.retain(|parent, slot| {
            if *parent.plugin != *plugin {
                return true;
            }
            slot.triggers.clear();
            let is_in_flight = matches!(slot.state, State::InFlight { .. });
            slot.state = State::InFlight { forgotten: true };
            is_in_flight
        });
    }

    /// Waiting requests, due or delayed, by plugin: `(due, delayed)`.
    pub fn depth(&self) -> BTreeMap<Arc<str>, (usize, usize)> {
        let mut depth: BTreeMap<_, (usize, usize)> = BTreeMap::new();
        for (parent, slot) in &self.slots {
            let (due, delayed) = match slot.state {
                State::Queued { .. } => (1, 0),
                State::Delayed { .. } => (0, 1),
                State::InFlight { .. } => continue,
            };
            let of_plugin = depth.entry(Arc::clone(&parent.plugin)).or_default();
            *of_plugin = (of_plugin.0 + due, of_plugin.1 + delayed);
        }
        depth
    }

    /// How a key stands; `None` if it is at rest.
    pub fn look(&self, parent: &ParentRef) -> Option<Look> {
        let slot = self.slots.get(parent)?;
        let waits = match slot.state {
            State::InFlight { .. } => Waits::Result,
            State::Queued { since, .. } => Waits::Worker { since },
            State::Delayed { until, why: Delay::Timer } => Waits::Requeue { until },
            State::Delayed { until, why: Delay::BackOff { .. } } => Waits::BackOff { until },
        };
        Some(Look { waits, triggers: slot.triggers.clone(), failures: slot.failures.values().sum() })
    }

    fn slot(&mut self, parent: &ParentRef) -> &mut Slot {
        self.slots.get_mut(parent).expect("every key in a lane or among the delayed has a slot")
    }

    /// Puts a key that is nowhere else into its lane or among the delayed.
    fn place(&mut self, parent: ParentRef, due: Now, why: Delay, now: Now) {
        if due > now {
            self.slot(&parent).state = State::Delayed { until: due, why };
            self.delayed.insert((due, parent));
            return;
        }
        self.order += 1;
        let order = self.order;
        let slot = self.slot(&parent);
        let is_edit = slot.triggers.iter().copied().any(is_edit);
        slot.state = State::Queued { is_edit, order, since: due };
        let lane = self.lanes.entry(Arc::clone(&parent.plugin)).or_default();
        if is_edit { &mut lane.edits } else { &mut lane.resyncs }.insert(order, parent);
    }
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.resyncs.is_empty()
    }

    fn pop(&mut self) -> Option<ParentRef> {
        if self.edits.is_empty() || self.passed >= EDITS_PER_RESYNC && !self.resyncs.is_empty() {
            self.passed = 0;
            return self.resyncs.pop_first().map(|(_, parent)| parent);
        }
        if !self.resyncs.is_empty() {
            self.passed += 1;
        }
        self.edits.pop_first().map(|(_, parent)| parent)
    }
}

/// The delay after so many failures in a row: doubling, and up to a quarter shorter, so that keys that failed
/// together do not come back together.
fn back_off(seed: u64, parent: &ParentRef, failures: u32) -> Duration {
    let full = FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(LONGEST_BACKOFF);
    let mut hasher = Xxh3::with_seed(seed);
    (parent, failures).hash(&mut hasher);
    full.saturating_sub(full / 4 * (hasher.finish() % 1024) as u32 / 1024)
}
