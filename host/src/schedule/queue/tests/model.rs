//! The queue against a model of it: a flat list, searched from end to end each time.
//!
//! The model says exactly what comes out, so that what is generated next can follow from it. What users rely on is
//! judged apart, in `promises`: from what has happened alone, and by the words of the rules.

mod promises;

use super::*;
use promises::Promises;
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

const PLUGINS: [&str; 3] = ["a", "b", "c"];
const NAMES: [&str; 4] = ["0", "1", "2", "3"];
const TRIGGERS: [Trigger; 7] = [
    Trigger::Parent,
    Trigger::ParentStatus,
    Trigger::Child,
    Trigger::Read,
    Trigger::Plugin,
    Trigger::Requeue,
    Trigger::Listed,
];

/// A parent, short enough to be read in a list of steps: its plugin, and its name.
type Short = (&'static str, &'static str);

fn shorts() -> impl Iterator<Item = Short> {
    PLUGINS.into_iter().flat_map(|plugin| NAMES.into_iter().map(move |name| (plugin, name)))
}

fn long((plugin, name): Short) -> ParentRef {
    key(plugin, name)
}

#[derive(Clone, Debug)]
enum Step {
    Add(Short, Trigger),
    Take,
    Finish(Short, Outcome, Option<Duration>),
    Pass(Duration),
    Forget(&'static str),
}

#[derive(Clone, Debug)]
struct Model {
    seed: u64,
    now: Now,
    /// What is not at rest.
    keys: BTreeMap<Short, Key>,
    /// Who had the last turn.
    last: &'static str,
    /// Edits of a plugin that have passed its oldest resync.
    passed: BTreeMap<&'static str, u32>,
    /// How many have stood in line.
    lined_up: u64,
    /// What the last step took.
    taken: Option<Request>,
}

#[derive(Clone, Debug)]
struct Key {
    place: Place,
    /// When it is due, unless it is in flight.
    due: Now,
    /// After a failure, when it may be tried again at the earliest: because of an edit, because of another input.
    failed: Option<(Now, Now)>,
    triggers: BTreeSet<Trigger>,
    failures: BTreeMap<Fault, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// In the line of its plugin.
    Line(u64),
    /// It waits for its time.
    Parked,
    InFlight {
        forgotten: bool,
    },
}

impl Key {
    fn is_edit(&self) -> bool {
        self.triggers.iter().copied().any(is_edit)
    }

    fn look(&self) -> Look {
        let until = self.due;
        let waits = match (self.place, self.failed) {
            (Place::InFlight { .. }, _) => Waits::Result,
            (Place::Line(_), _) => Waits::Worker { since: self.due },
            (Place::Parked, None) => Waits::Requeue { until },
            (Place::Parked, Some(_)) => Waits::BackOff { until },
        };
        Look { waits, triggers: self.triggers.clone(), failures: self.failures.values().sum() }
    }
}

impl Model {
    fn in_flight(&self) -> impl Iterator<Item = Short> {
        let in_flight = self.keys.iter().filter(|(_, key)| matches!(key.place, Place::InFlight { .. }));
        in_flight.map(|(parent, _)| *parent)
    }

    fn in_line(&self) -> impl Iterator<Item = (Short, &Key, u64)> {
        self.keys.iter().filter_map(|(parent, key)| match key.place {
            Place::Line(place) => Some((*parent, key, place)),
            Place::Parked | Place::InFlight { .. } => None,
        })
    }

    fn parked(&self) -> impl Iterator<Item = (Now, Short)> {
        let parked = self.keys.iter().filter(|(_, key)| key.place == Place::Parked);
        parked.map(|(parent, key)| (key.due, *parent))
    }

    /// Puts a key in line if it is due.
    fn line_up(&mut self, parent: Short) {
        let key = self.keys.get_mut(&parent).unwrap();
        key.place = Place::Parked;
        if key.due <= self.now {
            self.lined_up += 1;
            key.place = Place::Line(self.lined_up);
        }
    }

    fn add(&mut self, parent: Short, trigger: Trigger) {
        let now = self.now;
        let at_rest = Key {
            place: Place::Parked,
            due: now,
            failed: None,
            triggers: BTreeSet::new(),
            failures: BTreeMap::new(),
        };
        let key = self.keys.entry(parent).or_insert(at_rest);
        key.triggers.insert(trigger);
        if is_input(trigger) {
            key.failures.clear();
        }
        let soonest = match key.failed {
            None => now,
            Some((edited, _)) if is_edited(trigger) => edited,
            Some((_, not_before)) if is_input(trigger) => not_before,
            Some(_) => key.due,
        };
        let is_due = key.failed.is_none() || is_input(trigger);
        if key.place == Place::Parked && is_due {
            key.due = key.due.min(soonest.max(now));
            self.line_up(parent);
        }
    }

    fn take(&mut self) -> Option<Request> {
        let mut overdue: Vec<_> = self.parked().filter(|(due, _)| *due <= self.now).collect();
        overdue.sort();
        for (_, parent) in overdue {
            self.keys.get_mut(&parent).unwrap().triggers.insert(Trigger::Requeue);
            self.line_up(parent);
        }
        let flying = |plugin: &str| self.in_flight().filter(|parent| parent.0 == plugin).count();
        let waiting = self.in_line().map(|((plugin, _), ..)| plugin);
        let plugin = waiting.min_by_key(|plugin| (flying(plugin), *plugin <= self.last, *plugin))?;
        let of_plugin = || self.in_line().filter(|((of, _), ..)| *of == plugin);
        let first =
            |edits: bool| of_plugin().filter(|(_, key, _)| key.is_edit() == edits).min_by_key(|at| at.2);
        let passed = self.passed.get(plugin).copied().unwrap_or_default();
        let (next, passed) = match (first(true), first(false)) {
            (Some(edit), None) => (edit, passed),
            (Some(edit), Some(_)) if passed < EDITS_PER_RESYNC => (edit, passed + 1),
            (_, resync) => (resync?, 0),
        };
        let parent = next.0;
        let is_last = of_plugin().count() == 1;
        // With nothing in line the plugin has no resync that could have been passed.
        self.passed.insert(plugin, if is_last { 0 } else { passed });
        self.last = plugin;
        let key = self.keys.get_mut(&parent).unwrap();
        key.place = Place::InFlight { forgotten: false };
        key.failed = None;
        let (triggers, attempt) = (std::mem::take(&mut key.triggers), key.failures.values().sum());
        Some(Request { parent: long(parent), triggers, attempt, since: key.due })
    }

    fn finish(&mut self, parent: Short, outcome: Outcome, look_again: Option<Duration>) {
        let (now, seed) = (self.now, self.seed);
        let key = self.keys.get_mut(&parent).unwrap();
        let is_forgotten = key.place == Place::InFlight { forgotten: true };
        let look_again = look_again.filter(|_| !is_forgotten).map(|after| now + after);
        let asked = |ask: fn(Trigger) -> bool| key.triggers.iter().copied().any(ask);
        let due = match outcome {
            Outcome::Retry { fault, not_before } if !is_forgotten => {
                let not_before = now + not_before.unwrap_or_default();
                let edited = if fault == Fault::Plugin { now } else { not_before };
                let (is_edited, is_changed) = (asked(is_edited), asked(is_input));
                let count = key.failures.entry(fault).or_default();
                *count += 1;
                let again = now + back_off(seed, &long(parent), *count);
                let again = not_before.max(look_again.unwrap_or(again).min(again));
                key.failed = Some((edited, not_before));
                Some(if is_edited {
                    edited
                } else if is_changed {
                    not_before
                } else {
                    again
                })
            }
            _ => {
                key.failures.clear();
                if key.triggers.is_empty() { look_again } else { Some(now) }
            }
        };
        match due {
            Some(due) => {
                key.due = due;
                self.line_up(parent);
            }
            None => drop(self.keys.remove(&parent)),
        }
    }

    fn forget(&mut self, plugin: &str) {
        self.passed.remove(plugin);
        self.keys.retain(|parent, key| {
            if parent.0 != plugin {
                return true;
            }
            key.triggers.clear();
            let is_in_flight = matches!(key.place, Place::InFlight { .. });
            key.place = Place::InFlight { forgotten: true };
            is_in_flight
        });
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        let empty = |seed| Self {
            seed,
            now: ms(0),
            keys: BTreeMap::new(),
            last: "",
            passed: BTreeMap::new(),
            lined_up: 0,
            taken: None,
        };
        any::<u64>().prop_map(empty).boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        let parent = prop::sample::select(shorts().collect::<Vec<_>>());
        let add = (parent, prop::sample::select(&TRIGGERS[..]))
            .prop_map(|(parent, trigger)| Step::Add(parent, trigger));
        // The moments at which something becomes due, and those just before.
        let times =
            model.parked().filter_map(|(due, _)| due.checked_sub(model.now)).filter(|time| *time > ms(0));
        let edges: Vec<_> = times
            .flat_map(|time| [time, time.saturating_sub(Duration::from_nanos(1))])
            .chain([ms(1)])
            .collect();
        let pass = prop_oneof![prop::sample::select(edges), (0..3_000_u64).prop_map(ms)].prop_map(Step::Pass);
        let forget = prop::sample::select(&PLUGINS[..]).prop_map(Step::Forget);
        let others = prop_oneof![8 => add, 8 => Just(Step::Take), 4 => pass, 1 => forget];
        let in_flight: Vec<_> = model.in_flight().collect();
        if in_flight.is_empty() {
            return others.boxed();
        }
        let after = || prop::option::of((0..2_000_u64).prop_map(ms));
        let fault = prop::sample::select(&[Fault::Api, Fault::Plugin, Fault::Conflict][..]);
        let outcome = prop_oneof![
            Just(Outcome::Done),
            Just(Outcome::Wait),
            (fault, after()).prop_map(|(fault, not_before)| Outcome::Retry { fault, not_before }),
        ];
        let finish = (prop::sample::select(in_flight), outcome, after())
            .prop_map(|(parent, outcome, look_again)| Step::Finish(parent, outcome, look_again));
        prop_oneof![21 => others, 6 => finish].boxed()
    }

    fn preconditions(model: &Self, step: &Step) -> bool {
        match step {
            Step::Finish(parent, ..) => model.in_flight().any(|in_flight| in_flight == *parent),
            Step::Add(..) | Step::Take | Step::Pass(_) | Step::Forget(_) => true,
        }
    }

    fn apply(mut model: Self, step: &Step) -> Self {
        model.taken = None;
        match step {
            Step::Add(parent, trigger) => model.add(*parent, *trigger),
            Step::Take => model.taken = model.take(),
            Step::Finish(parent, outcome, look_again) => model.finish(*parent, *outcome, *look_again),
            Step::Pass(time) => model.now += *time,
            Step::Forget(plugin) => model.forget(plugin),
        }
        model
    }
}

struct Tested {
    queue: Queue,
    promises: Promises,
}

impl StateMachineTest for Tested {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(model: &Model) -> Self {
        Self { queue: Queue::new(model.seed), promises: Promises::default() }
    }

    fn apply(mut tested: Self, model: &Model, step: Step) -> Self {
        let Self { queue, promises } = &mut tested;
        let now = model.now;
        match step {
            Step::Add(parent, trigger) => {
                queue.add(long(parent), trigger, now);
                promises.added(long(parent), trigger, now);
            }
            Step::Take => {
                let waiting = queue.depth();
                let taken = queue.take(now);
                promises.took(taken.as_ref(), &waiting, now);
                assert_eq!(taken, model.taken);
            }
            Step::Finish(parent, outcome, look_again) => {
                queue.finish(&long(parent), outcome, look_again, now);
                promises.finished(&long(parent), outcome, look_again, now);
            }
            Step::Pass(_) => {}
            Step::Forget(plugin) => {
                queue.forget_plugin(plugin);
                promises.forgot(plugin);
            }
        }
        tested
    }

    fn check_invariants(Self { queue, promises }: &Self, model: &Model) {
        let mut depth: BTreeMap<Arc<str>, (usize, usize)> = BTreeMap::new();
        for parent in shorts() {
            let key = model.keys.get(&parent);
            assert_eq!(queue.look(&long(parent)), key.map(Key::look), "{parent:?}");
            match key.map(|key| key.place) {
                Some(Place::Line(_)) => depth.entry(parent.0.into()).or_default().0 += 1,
                Some(Place::Parked) => depth.entry(parent.0.into()).or_default().1 += 1,
                Some(Place::InFlight { .. }) | None => {}
            }
        }
        assert_eq!(queue.depth(), depth);
        let due = model.in_line().map(|_| ms(0)).chain(model.parked().map(|(due, _)| due)).min();
        assert_eq!(queue.next_due(), due);
        promises.are_kept(queue, model.now);
        assert!(
            queue.lanes.values().all(|lane| !lane.is_empty()) && !queue.in_flight.values().any(|n| *n == 0)
        );
    }

    /// Once time has passed and workers are free, whatever is owed comes out, and nothing is left.
    fn teardown(Self { mut queue, mut promises }: Self, model: Model) {
        for parent in model.in_flight().map(long) {
            queue.finish(&parent, DONE, None, model.now);
            promises.finished(&parent, DONE, None, model.now);
        }
        let now = model.now + LONGEST_BACKOFF + secs(10);
        loop {
            let waiting = queue.depth();
            let taken = queue.take(now);
            promises.took(taken.as_ref(), &waiting, now);
            let Some(Request { parent, .. }) = taken else { break };
            queue.finish(&parent, Outcome::Wait, None, now);
            promises.finished(&parent, Outcome::Wait, None, now);
        }
        promises.owe_nothing();
        assert!(queue.slots.is_empty() && queue.lanes.is_empty() && queue.delayed.is_empty());
        assert!(queue.in_flight.is_empty());
    }
}

prop_state_machine! {
    #[test]
    fn queue_keeps_its_guarantees(sequential 1..120 => Tested);
}
