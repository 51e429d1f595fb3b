use super::*;
use crate::object::{Gvk, ObjectKey};
use proptest::prelude::*;

fn key(plugin: &str, name: &str) -> ParentRef {
    let parent = ObjectKey { gvk: Gvk::new("v1", "Widget"), namespace: None, name: name.into() };
    ParentRef { plugin: plugin.into(), parent }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const DONE: Outcome = Outcome::Done { requeue_after: None };
const FAILED: Outcome = Outcome::Retry { fault: Fault::Plugin, not_before: None };

/// Takes what is due and names it.
fn take(queue: &mut Queue, now: Now) -> Option<String> {
    queue.take(now).map(|request| format!("{}/{}", request.parent.plugin, request.parent.parent.name))
}

/// Takes and finishes until nothing is due any more.
fn drain(queue: &mut Queue, now: Now) -> Vec<String> {
    std::iter::from_fn(|| {
        let request = queue.take(now)?;
        queue.finish(&request.parent, DONE, now);
        Some(format!("{}/{}", request.parent.plugin, request.parent.parent.name))
    })
    .collect()
}

#[test]
fn queue_holds_a_key_while_it_is_in_flight_and_gives_it_again_if_something_came() {
    let mut queue = Queue::new(0);
    queue.add(key("p", "a"), Trigger::Parent, ms(1));
    queue.add(key("p", "a"), Trigger::Child, ms(2));
    let request = queue.take(ms(3)).unwrap();
    assert_eq!(request.triggers, BTreeSet::from([Trigger::Parent, Trigger::Child]));
    assert_eq!((request.attempt, request.since), (0, ms(1)));
    queue.add(key("p", "a"), Trigger::Read, ms(4));
    assert_eq!(queue.take(ms(5)), None);
    queue.finish(&key("p", "a"), Outcome::Wait, ms(6));
    assert_eq!(queue.next_due(), Some(Now::ZERO));
    assert_eq!(queue.take(ms(6)).unwrap().triggers, BTreeSet::from([Trigger::Read]));
    queue.finish(&key("p", "a"), Outcome::Wait, ms(7));
    assert_eq!((queue.take(secs(1_000)), queue.next_due()), (None, None));
    assert!(queue.slots.is_empty());
}

#[test]
fn plugins_take_turns_whatever_they_have_to_do() {
    let mut queue = Queue::new(0);
    for name in ["1", "2", "3", "4"] {
        queue.add(key("busy", name), Trigger::Parent, ms(0));
    }
    queue.add(key("calm", "1"), Trigger::Listed, ms(0));
    queue.add(key("idle", "1"), Trigger::Listed, ms(0));
    let taken = drain(&mut queue, ms(0));
    assert_eq!(taken, ["busy/1", "calm/1", "idle/1", "busy/2", "busy/3", "busy/4"]);
}

#[test]
fn edits_go_before_resyncs_which_do_not_starve() {
    let mut queue = Queue::new(0);
    for name in ["r1", "r2", "r3"] {
        queue.add(key("p", name), Trigger::Listed, ms(0));
    }
    for name in 0..9 {
        queue.add(key("p", &format!("e{name}")), Trigger::Child, ms(0));
    }
    // A resync that becomes an edit keeps its place in time.
    queue.add(key("p", "r3"), Trigger::Parent, ms(0));
    let taken = drain(&mut queue, ms(0)).join(" ").replace("p/", "");
    assert_eq!(taken, "r3 e0 e1 e2 r1 e3 e4 e5 e6 r2 e7 e8");
}

#[test]
fn back_off_doubles_up_to_its_cap_and_is_repeatable() {
    let of = |seed, failures| back_off(seed, &key("p", "a"), failures);
    for (failures, full) in
        [(1, ms(5)), (2, ms(10)), (3, ms(20)), (16, ms(163_840)), (17, secs(300)), (u32::MAX, secs(300))]
    {
        let delays: BTreeSet<_> = (0..100).map(|seed| of(seed, failures)).collect();
        assert!(delays.len() > 50, "{failures}: {delays:?}");
        assert!(delays.iter().all(|delay| (full * 3 / 4..=full).contains(delay)), "{failures}: {delays:?}");
        assert_eq!(of(7, failures), of(7, failures));
    }
}

#[test]
fn failures_are_counted_by_fault_until_an_input_changes() {
    let mut queue = Queue::new(0);
    let mut now = ms(0);
    queue.add(key("p", "a"), Trigger::Parent, now);
    let mut fail = |queue: &mut Queue, fault| {
        now = queue.next_due().unwrap().max(now);
        let request = queue.take(now).unwrap();
        queue.finish(&request.parent, Outcome::Retry { fault, not_before: None }, now);
        (request.attempt, queue.next_due().unwrap_or_default().saturating_sub(now) * 4 / 3)
    };
    for (fault, attempt, at_least) in [
        (Fault::Plugin, 0, ms(5)),
        (Fault::Plugin, 1, ms(10)),
        (Fault::Api, 2, ms(5)),
        (Fault::Plugin, 3, ms(20)),
        (Fault::Conflict, 4, ms(5)),
        (Fault::Api, 5, ms(10)),
    ] {
        let (attempts, delay) = fail(&mut queue, fault);
        assert_eq!(attempts, attempt);
        assert!(delay >= at_least && delay <= at_least * 4 / 3, "{delay:?} for {at_least:?}");
    }
    // The host's own status write does not end the back-off; an edit does.
    queue.add(key("p", "a"), Trigger::ParentStatus, now);
    assert_eq!(queue.take(now), None);
    queue.add(key("p", "a"), Trigger::Requeue, now);
    assert_eq!(queue.take(now), None);
    queue.add(key("p", "a"), Trigger::Parent, now);
    assert_eq!(queue.take(now).unwrap().attempt, 0);
    assert!(queue.delayed.is_empty());
}

#[test]
fn retry_after_is_kept_even_when_an_input_changes() {
    let parked = Outcome::Retry { fault: Fault::Api, not_before: Some(secs(10)) };
    for add_in_flight in [true, false] {
        let mut queue = Queue::new(0);
        queue.add(key("p", "a"), Trigger::Parent, ms(0));
        let request = queue.take(ms(0)).unwrap();
        if add_in_flight {
            queue.add(key("p", "a"), Trigger::Parent, ms(0));
        }
        queue.finish(&request.parent, parked, ms(0));
        queue.add(key("p", "a"), Trigger::Child, secs(1));
        assert_eq!(queue.next_due(), Some(secs(10)));
        assert_eq!(queue.take(ms(9_999)), None);
        assert!(queue.take(secs(10)).is_some());
    }
    let mut queue = Queue::new(0);
    queue.add(key("p", "a"), Trigger::Parent, ms(0));
    queue.take(ms(0));
    let for_ever = Outcome::Retry { fault: Fault::Api, not_before: Some(Duration::MAX) };
    queue.finish(&key("p", "a"), for_ever, secs(1));
    assert_eq!(queue.next_due(), Some(Duration::MAX));
}

#[test]
fn requeue_after_is_set_by_the_newest_result_and_never_doubled() {
    // B053: the guest asks for 20 s each time, the object is touched at 5 s.
    let mut queue = Queue::new(0);
    queue.add(key("p", "a"), Trigger::Parent, secs(0));
    let mut calls = Vec::new();
    for now in 0..=65 {
        if now == 5 {
            queue.add(key("p", "a"), Trigger::Parent, secs(now));
        }
        if let Some(request) = queue.take(secs(now)) {
            calls.push((now, request.triggers.into_iter().collect::<Vec<_>>()));
            queue.finish(&request.parent, Outcome::Done { requeue_after: Some(secs(20)) }, secs(now));
        }
    }
    let (touched, due) = (|| vec![Trigger::Parent], || vec![Trigger::Requeue]);
    assert_eq!(calls, [(0, touched()), (5, touched()), (25, due()), (45, due()), (65, due())]);
    assert_eq!(queue.delayed.len(), 1);
}

#[test]
fn forgotten_plugin_has_nothing_left_but_what_is_in_flight() {
    let mut queue = Queue::new(0);
    for (name, outcome) in [("failed", Some(FAILED)), ("flies", None)] {
        queue.add(key("p", name), Trigger::Parent, ms(0));
        let request = queue.take(ms(0)).unwrap();
        if let Some(outcome) = outcome {
            queue.finish(&request.parent, outcome, ms(0));
        }
    }
    queue.add(key("p", "flies"), Trigger::Child, ms(0));
    queue.add(key("p", "due"), Trigger::Parent, ms(0));
    queue.add(key("q", "due"), Trigger::Parent, ms(0));
    assert_eq!(queue.depth(), BTreeMap::from([("p".into(), (1, 1)), ("q".into(), (1, 0))]));
    queue.forget_plugin("p");
    assert_eq!(queue.depth(), BTreeMap::from([("q".into(), (1, 0))]));
    queue.finish(&key("p", "flies"), FAILED, ms(1));
    assert_eq!(take(&mut queue, secs(1_000)).as_deref(), Some("q/due"));
    assert_eq!(take(&mut queue, secs(1_000)), None);
    assert_eq!(queue.slots.len(), 1);
    // Back in force while an old call still runs: what is new is not lost with it.
    queue.add(key("p", "back"), Trigger::Plugin, secs(1_000));
    queue.take(secs(1_000));
    queue.forget_plugin("p");
    queue.add(key("p", "back"), Trigger::Plugin, secs(1_000));
    queue.finish(&key("p", "back"), FAILED, secs(1_000));
    assert_eq!(take(&mut queue, secs(1_000)).as_deref(), Some("p/back"));
}

#[test]
fn look_tells_what_a_key_waits_for_and_changes_nothing() {
    let mut queue = Queue::new(0);
    let key = key("p", "a");
    assert_eq!(queue.look(&key), None);
    let look = |waits, triggers: &[Trigger], failures| {
        Some(Look { waits, triggers: triggers.iter().copied().collect(), failures })
    };
    queue.add(key.clone(), Trigger::Parent, ms(1));
    assert_eq!(queue.look(&key), look(Waits::Worker { since: ms(1) }, &[Trigger::Parent], 0));
    queue.take(ms(2)).unwrap();
    queue.add(key.clone(), Trigger::Child, ms(3));
    assert_eq!(queue.look(&key), look(Waits::Result, &[Trigger::Child], 0));
    queue.finish(&key, DONE, ms(4));
    queue.take(ms(4)).unwrap();
    queue.finish(&key, Outcome::Retry { fault: Fault::Api, not_before: Some(secs(7)) }, secs(1));
    assert_eq!(queue.look(&key), look(Waits::BackOff { until: secs(8) }, &[], 1));
    queue.take(secs(8)).unwrap();
    queue.finish(&key, Outcome::Done { requeue_after: Some(secs(2)) }, secs(9));
    assert_eq!(queue.look(&key), look(Waits::Requeue { until: secs(11) }, &[], 0));
    assert_eq!(queue.take(secs(11)).unwrap().triggers, BTreeSet::from([Trigger::Requeue]));
}

#[test]
fn finish_of_a_key_that_is_not_in_flight_changes_nothing() {
    let mut queue = Queue::new(0);
    queue.finish(&key("p", "a"), FAILED, ms(0));
    queue.add(key("p", "a"), Trigger::Parent, ms(0));
    queue.finish(&key("p", "a"), DONE, ms(0));
    assert!(queue.take(ms(0)).is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Add(usize, usize, Trigger),
    Take,
    Finish(usize, Outcome),
    Pass(u64),
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let triggers = [
        Trigger::Parent,
        Trigger::ParentStatus,
        Trigger::Child,
        Trigger::Read,
        Trigger::Plugin,
        Trigger::Requeue,
        Trigger::Listed,
    ];
    let after = || prop::option::of((0..2_000_u64).prop_map(ms));
    let fault = prop::sample::select(&[Fault::Api, Fault::Plugin, Fault::Conflict][..]);
    let outcome = prop_oneof![
        after().prop_map(|requeue_after| Outcome::Done { requeue_after }),
        Just(Outcome::Wait),
        (fault, after()).prop_map(|(fault, not_before)| Outcome::Retry { fault, not_before }),
    ];
    prop_oneof![
        8 => (0..3_usize, 0..4_usize, prop::sample::select(triggers.to_vec()))
            .prop_map(|(plugin, name, trigger)| Step::Add(plugin, name, trigger)),
        8 => Just(Step::Take),
        6 => (0..12_usize, outcome).prop_map(|(index, outcome)| Step::Finish(index, outcome)),
        4 => (0..3_000_u64).prop_map(Step::Pass),
        1 => (0..3_usize).prop_map(Step::Forget),
    ]
}

proptest! {
    #[test]
    fn queue_keeps_its_guarantees(steps in prop::collection::vec(step(), 1..120), seed in any::<u64>()) {
        let plugins = ["a", "b", "c"];
        let mut queue = Queue::new(seed);
        let mut now = ms(0);
        let mut in_flight: Vec<ParentRef> = Vec::new();
        // What must still come out; and the earliest time at which it may.
        let mut owed: BTreeSet<ParentRef> = BTreeSet::new();
        let mut earliest: BTreeMap<ParentRef, Now> = BTreeMap::new();
        let mut input_in_flight: BTreeSet<ParentRef> = BTreeSet::new();
        let mut not_before: BTreeMap<ParentRef, Now> = BTreeMap::new();
        // Turns of others since a plugin began to wait for its own.
        let mut turns: BTreeMap<(Arc<str>, Arc<str>), u32> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(plugin, name, trigger) => {
                    let key = key(plugins[plugin], &name.to_string());
                    queue.add(key.clone(), trigger, now);
                    if is_input(trigger) {
                        earliest.remove(&key);
                        input_in_flight.insert(key.clone());
                    }
                    owed.insert(key);
                }
                Step::Take => {
                    let waiting = queue.depth();
                    let Some(request) = queue.take(now) else {
                        prop_assert!(waiting.values().all(|(due, _)| *due == 0));
                        prop_assert!(queue.next_due().is_none_or(|due| due > now));
                        continue;
                    };
                    let key = request.parent;
                    prop_assert!(!in_flight.contains(&key), "{key:?} twice in flight");
                    for bound in [&mut earliest, &mut not_before] {
                        let bound = bound.remove(&key).unwrap_or_default();
                        prop_assert!(now >= bound, "{key:?} at {now:?}, not before {bound:?}");
                    }
                    prop_assert!(request.since <= now);
                    for (plugin, _) in waiting.iter().filter(|(plugin, (due, _))| *due > 0 && **plugin != key.plugin) {
                        let turns = turns.entry((plugin.clone(), key.plugin.clone())).or_default();
                        *turns += 1;
                        prop_assert!(*turns <= 1, "{plugin} waits for a second turn of {}", key.plugin);
                    }
                    turns.retain(|(waits, _), _| *waits != key.plugin);
                    owed.remove(&key);
                    input_in_flight.remove(&key);
                    in_flight.push(key);
                }
                Step::Finish(index, outcome) => {
                    if in_flight.is_empty() { continue; }
                    let key = in_flight.remove(index % in_flight.len());
                    let forgotten = matches!(queue.slots[&key].state, State::InFlight { forgotten: true });
                    queue.finish(&key, outcome, now);
                    if forgotten { continue; }
                    match outcome {
                        Outcome::Done { requeue_after: Some(after) } => {
                            if !owed.contains(&key) {
                                prop_assert!(queue.delayed.contains(&(now + after, key.clone())) || after.is_zero());
                            }
                            owed.insert(key);
                        }
                        Outcome::Done { requeue_after: None } | Outcome::Wait => {
                            prop_assert_eq!(queue.slots.contains_key(&key), owed.contains(&key));
                        }
                        Outcome::Retry { not_before: after, .. } => {
                            not_before.insert(key.clone(), now + after.unwrap_or_default());
                            if !input_in_flight.contains(&key) {
                                earliest.insert(key.clone(), now + FIRST_BACKOFF * 3 / 4);
                            }
                            owed.insert(key);
                        }
                    }
                }
                Step::Pass(time) => now += ms(time),
                Step::Forget(plugin) => {
                    queue.forget_plugin(plugins[plugin]);
                    owed.retain(|key| &*key.plugin != plugins[plugin]);
                    for bounds in [&mut earliest, &mut not_before] {
                        bounds.retain(|key, _| &*key.plugin != plugins[plugin]);
                    }
                    input_in_flight.retain(|key| &*key.plugin != plugins[plugin]);
                    turns.retain(|(waits, _), _| &**waits != plugins[plugin]);
                }
            }
        }
        for key in in_flight.drain(..) {
            queue.finish(&key, DONE, now);
        }
        now += LONGEST_BACKOFF + secs(10);
        while let Some(request) = queue.take(now) {
            owed.remove(&request.parent);
            queue.finish(&request.parent, Outcome::Wait, now);
        }
        prop_assert!(owed.is_empty(), "never taken: {owed:?}");
        prop_assert!(queue.slots.is_empty() && queue.lanes.is_empty() && queue.delayed.is_empty());
    }
}
