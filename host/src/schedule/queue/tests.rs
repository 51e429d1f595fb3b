mod model;

use super::*;
use crate::object::{Gvk, ObjectKey};

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

const DONE: Outcome = Outcome::Done;
const FAILED: Outcome = Outcome::Retry { fault: Fault::Plugin, not_before: None };

/// Takes what is due and names it.
fn take(queue: &mut Queue, now: Now) -> Option<String> {
    queue.take(now).map(|request| format!("{}/{}", request.parent.plugin, request.parent.parent.name))
}

/// Takes and finishes until nothing is due any more.
fn drain(queue: &mut Queue, now: Now) -> Vec<String> {
    std::iter::from_fn(|| {
        let request = queue.take(now)?;
        queue.finish(&request.parent, DONE, None, now);
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
    queue.finish(&key("p", "a"), Outcome::Wait, None, ms(6));
    assert_eq!(queue.next_due(), Some(Now::ZERO));
    assert_eq!(queue.take(ms(6)).unwrap().triggers, BTreeSet::from([Trigger::Read]));
    queue.finish(&key("p", "a"), Outcome::Wait, None, ms(7));
    assert_eq!((queue.take(secs(1_000)), queue.next_due()), (None, None));
    assert!(queue.slots.is_empty() && queue.in_flight.is_empty());
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
        queue.finish(&request.parent, Outcome::Retry { fault, not_before: None }, None, now);
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
        queue.finish(&request.parent, parked, None, ms(0));
        queue.add(key("p", "a"), Trigger::Child, secs(1));
        assert_eq!(queue.next_due(), Some(secs(10)));
        assert_eq!(queue.take(ms(9_999)), None);
        assert!(queue.take(secs(10)).is_some());
    }
    let mut queue = Queue::new(0);
    queue.add(key("p", "a"), Trigger::Parent, ms(0));
    queue.take(ms(0));
    let for_ever = Outcome::Retry { fault: Fault::Api, not_before: Some(Duration::MAX) };
    queue.finish(&key("p", "a"), for_ever, None, secs(1));
    assert_eq!(queue.next_due(), Some(Duration::MAX));
}

#[test]
fn failed_key_is_looked_at_when_its_plan_wants_it_at_the_latest() {
    let after = |failures: u32, not_before: Option<Duration>, look_again| {
        let mut queue = Queue::new(0);
        queue.add(key("p", "a"), Trigger::Parent, ms(0));
        let mut now = ms(0);
        for failed in 1..=failures {
            now = queue.next_due().unwrap().max(now);
            queue.take(now).unwrap();
            let (not_before, look_again) =
                if failed == failures { (not_before, look_again) } else { (None, None) };
            let outcome = Outcome::Retry { fault: Fault::Api, not_before };
            queue.finish(&key("p", "a"), outcome, look_again, now);
        }
        queue.next_due().unwrap().saturating_sub(now)
    };
    assert!(after(20, None, None) >= LONGEST_BACKOFF * 3 / 4);
    assert_eq!(after(20, None, Some(secs(30))), secs(30));
    assert!(after(1, None, Some(secs(30))) <= FIRST_BACKOFF);
    // What the API server asks for goes before what the guest does.
    assert_eq!(after(20, Some(secs(40)), Some(secs(30))), secs(40));
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
            queue.finish(&request.parent, DONE, Some(secs(20)), secs(now));
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
            queue.finish(&request.parent, outcome, None, ms(0));
        }
    }
    queue.add(key("p", "flies"), Trigger::Child, ms(0));
    queue.add(key("p", "due"), Trigger::Parent, ms(0));
    queue.add(key("q", "due"), Trigger::Parent, ms(0));
    assert_eq!(queue.depth(), BTreeMap::from([("p".into(), (1, 1)), ("q".into(), (1, 0))]));
    queue.forget_plugin("p");
    assert_eq!(queue.depth(), BTreeMap::from([("q".into(), (1, 0))]));
    queue.finish(&key("p", "flies"), FAILED, None, ms(1));
    assert_eq!(take(&mut queue, secs(1_000)).as_deref(), Some("q/due"));
    assert_eq!(take(&mut queue, secs(1_000)), None);
    assert_eq!(queue.slots.len(), 1);
    // Back in force while an old call still runs: what is new is not lost with it.
    queue.add(key("p", "back"), Trigger::Plugin, secs(1_000));
    queue.take(secs(1_000));
    queue.forget_plugin("p");
    queue.add(key("p", "back"), Trigger::Plugin, secs(1_000));
    queue.finish(&key("p", "back"), FAILED, None, secs(1_000));
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
    queue.finish(&key, DONE, None, ms(4));
    queue.take(ms(4)).unwrap();
    queue.finish(&key, Outcome::Retry { fault: Fault::Api, not_before: Some(secs(7)) }, None, secs(1));
    assert_eq!(queue.look(&key), look(Waits::BackOff { until: secs(8) }, &[], 1));
    queue.take(secs(8)).unwrap();
    queue.finish(&key, DONE, Some(secs(2)), secs(9));
    assert_eq!(queue.look(&key), look(Waits::Requeue { until: secs(11) }, &[], 0));
    assert_eq!(queue.take(secs(11)).unwrap().triggers, BTreeSet::from([Trigger::Requeue]));
}

#[test]
fn key_has_been_due_since_its_back_off_was_ended_and_not_since_it_failed() {
    for (trigger, fault) in [(Trigger::Child, Fault::Api), (Trigger::Parent, Fault::Plugin)] {
        let mut queue = Queue::new(0);
        queue.add(key("p", "a"), Trigger::Parent, secs(0));
        for _ in 0..20 {
            let request = queue.take(queue.next_due().unwrap()).unwrap();
            let failed = Outcome::Retry { fault, not_before: None };
            queue.finish(&request.parent, failed, None, secs(1) + request.since);
        }
        let until = queue.next_due().unwrap();
        let changed = until.checked_sub(secs(60)).unwrap();
        queue.add(key("p", "a"), trigger, changed);
        assert_eq!(queue.take(until).unwrap().since, changed, "{trigger:?}");
    }
}

#[test]
fn finish_of_a_key_that_is_not_in_flight_changes_nothing() {
    let mut queue = Queue::new(0);
    queue.finish(&key("p", "a"), FAILED, None, ms(0));
    queue.add(key("p", "a"), Trigger::Parent, ms(0));
    queue.finish(&key("p", "a"), DONE, None, ms(0));
    assert!(queue.take(ms(0)).is_some());
}

/// Workers that take what is due, each for as long as its pass lasts. The times at which each key was taken.
fn work(
    queue: &mut Queue,
    workers: usize,
    until: Now,
    pass: impl Fn(&ParentRef) -> (Duration, Outcome),
) -> BTreeMap<String, Vec<Now>> {
    let mut taken: BTreeMap<String, Vec<Now>> = BTreeMap::new();
    let mut busy: BTreeSet<(Now, ParentRef)> = BTreeSet::new();
    let mut now = ms(0);
    loop {
        while busy.first().is_some_and(|(ends, _)| *ends <= now) {
            let (_, parent) = busy.pop_first().unwrap();
            queue.finish(&parent, pass(&parent).1, None, now);
        }
        while busy.len() < workers
            && let Some(request) = queue.take(now)
        {
            let ParentRef { plugin, parent } = &request.parent;
            taken.entry(format!("{plugin}/{}", parent.name)).or_default().push(now);
            busy.insert((now + pass(&request.parent).0, request.parent));
        }
        let free = queue.next_due().filter(|_| busy.len() < workers);
        let next = busy.first().map(|(ends, _)| *ends).into_iter().chain(free).min();
        match next.filter(|next| *next <= until) {
            Some(next) => now = next.max(now),
            None => return taken,
        }
    }
}

#[test]
fn edit_ends_the_wait_for_somebody_to_mend_it() {
    for (fault, due) in [(Fault::Plugin, secs(3)), (Fault::Api, secs(11)), (Fault::Conflict, secs(11))] {
        let failed = Outcome::Retry { fault, not_before: Some(secs(10)) };
        let mut queue = Queue::new(0);
        queue.add(key("p", "a"), Trigger::Parent, secs(0));
        queue.take(secs(1)).unwrap();
        queue.finish(&key("p", "a"), failed, None, secs(1));
        queue.add(key("p", "a"), Trigger::Child, secs(2));
        assert_eq!(queue.take(secs(2)), None, "a child is no edit");
        queue.add(key("p", "a"), Trigger::Parent, secs(3));
        assert_eq!(queue.take(secs(3)).is_some(), due == secs(3), "{fault:?}");
        assert_eq!(queue.take(secs(11)).is_some(), due == secs(11), "{fault:?}");
        // The same for one that comes while it fails.
        queue.add(key("p", "a"), Trigger::Parent, secs(12));
        queue.finish(&key("p", "a"), failed, None, secs(13));
        assert_eq!(queue.take(secs(13)).is_some(), fault == Fault::Plugin, "{fault:?}");
    }
}

#[test]
fn ten_thousand_parents_do_not_wait_for_one_that_fails() {
    for outcome in [FAILED, Outcome::Retry { fault: Fault::Api, not_before: Some(secs(1)) }] {
        let mut queue = Queue::new(7);
        let names: Vec<_> = (0..10_000).map(|name| name.to_string()).collect();
        for name in &names {
            queue.add(key("p", name), Trigger::Listed, ms(0));
        }
        let pass = |parent: &ParentRef| (ms(1), if &*parent.parent.name == "5000" { outcome } else { DONE });
        let mut taken = work(&mut queue, 4, secs(60), pass);
        let failed = taken.remove("p/5000").unwrap();
        // Doubling: a dozen turns in a minute, not a worker that waits.
        assert!((4..=60).contains(&failed.len()), "{failed:?}");
        assert_eq!(taken.len(), names.len() - 1);
        assert!(taken.values().all(|times| times.len() == 1));
        let last = taken.values().flatten().max().unwrap();
        assert!(*last <= ms(10_000 / 4 + failed.len() as u64), "the last was taken at {last:?}");
    }
}

#[test]
fn plugin_of_slow_calls_leaves_the_others_their_share_of_the_workers() {
    let mut queue = Queue::new(0);
    for name in 0..1_000 {
        for plugin in ["slow", "slower", "quick"] {
            queue.add(key(plugin, &name.to_string()), Trigger::Listed, ms(0));
        }
    }
    let call = |parent: &ParentRef| match &*parent.plugin {
        "slow" => secs(4),
        "slower" => secs(5),
        _ => ms(1),
    };
    let taken = work(&mut queue, 4, secs(20), |parent| (call(parent), DONE));
    let last = taken.iter().filter(|(key, _)| key.starts_with("quick/")).map(|(_, times)| times[0]).max();
    assert_eq!(taken.keys().filter(|key| key.starts_with("quick/")).count(), 1_000);
    assert!(last.unwrap() <= secs(1), "the last of the quick ones was taken at {last:?}");
    // And once those have nothing to do, nothing is kept free for them.
    let slow = taken.iter().filter(|(key, _)| !key.starts_with("quick/"));
    assert!(slow.count() >= 4 * 20 / 5, "{:?}", taken.len());
}

#[test]
fn edit_is_next_when_a_worker_is_free_though_all_of_them_were_taken() {
    let mut queue = Queue::new(0);
    for name in 0..100 {
        queue.add(key("slow", &name.to_string()), Trigger::Parent, ms(0));
    }
    for _ in 0..4 {
        queue.take(ms(0)).unwrap();
    }
    queue.add(key("calm", "1"), Trigger::Parent, ms(1));
    queue.finish(&key("slow", "2"), DONE, None, ms(2));
    assert_eq!(take(&mut queue, ms(2)).as_deref(), Some("calm/1"));
    assert_eq!(take(&mut queue, ms(2)).as_deref(), Some("slow/4"));
}
