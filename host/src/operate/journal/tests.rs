use super::*;
use crate::{
    object::Gvk,
    observe::reads::Why,
    report::{Outcome, Seen},
};

fn parent(name: &str) -> ParentRef {
    let parent = ObjectKey {
        gvk: Gvk::new("demo.example.com/v1", "Widget"),
        namespace: Some("demo".into()),
        name: name.into(),
    };
    ParentRef { plugin: "widget".into(), parent }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn child(name: &str) -> ObjectKey {
    ObjectKey { gvk: Gvk::new("v1", "ConfigMap"), namespace: Some("demo".into()), name: name.into() }
}

/// A pass over `name` that looked at an object with this uid and did nothing.
fn quiet(name: &str, uid: &str) -> Report {
    let parent = parent(name);
    let seen = Some(Seen { uid: uid.into(), generation: 1, digest: "aa".into() });
    let outcome = Outcome::Done;
    Report { seen, outcome, ..Report::new(&parent.plugin, &parent.parent) }
}

fn failed(reason: Reason, message: &str) -> Report {
    Report { failure: Some((reason, message.to_owned())), ..quiet("w", "u") }
}

fn record(journal: &Journal, report: &Report, trigger: Trigger, second: i64) {
    let parent = ParentRef { plugin: report.plugin.clone(), parent: report.parent.clone() };
    let triggers = BTreeSet::from([trigger]);
    let request = Request { parent, triggers, attempt: 0, since: Duration::ZERO };
    journal.record(&request, report, at(second), Duration::from_millis(second as u64));
}

fn entries(journal: &Journal, name: &str) -> Vec<Entry> {
    journal.of(&parent(name)).map(|record| record.entries.into()).unwrap_or_default()
}

#[test]
fn passes_that_come_to_nothing_are_folded_into_a_count() {
    let journal = Journal::default();
    let created =
        Report { created: vec![child("a")], status: StatusWrite::Written, ..called(quiet("w", "u")) };
    record(&journal, &created, Trigger::Parent, 1);
    record(&journal, &quiet("w", "u"), Trigger::Child, 2);
    record(&journal, &called(quiet("w", "u")), Trigger::Read, 3);
    record(&journal, &quiet("w", "u"), Trigger::Child, 4);
    let record = journal.of(&parent("w")).unwrap();
    assert_eq!((record.checked, record.changed), (at(4), Some(at(1))));
    let [quiet, created] = &*entries(&journal, "w") else { panic!("{record:?}") };
    assert_eq!((quiet.first, quiet.last, quiet.passes, quiet.calls), (at(2), at(4), 3, 1));
    assert_eq!(quiet.took, Duration::from_millis(4));
    assert_eq!(quiet.triggers, BTreeSet::from([Trigger::Child, Trigger::Read]));
    assert!(quiet.why.is_some() && quiet.wrote.is_none());
    let wrote = created.wrote.as_ref().unwrap();
    assert_eq!((&*wrote.created.shown, wrote.status), (&["ConfigMap demo/a".into()][..], true));
    assert_eq!((created.passes, created.calls, wrote.updated.total), (1, 1, 0));
}

#[test]
fn retries_that_fail_for_one_reason_are_folded_with_the_last_message() {
    let journal = Journal::default();
    let told = Report { status: StatusWrite::Written, ..failed(Reason::GuestFailed, "try 0") };
    record(&journal, &told, Trigger::Parent, 1);
    for second in 2..6 {
        record(&journal, &failed(Reason::GuestFailed, &format!("try {second}")), Trigger::Requeue, second);
    }
    record(&journal, &failed(Reason::ApiUnavailable, "gone"), Trigger::Requeue, 6);
    record(&journal, &quiet("w", "u"), Trigger::Requeue, 7);
    let said: Vec<_> = entries(&journal, "w")
        .iter()
        .map(|entry| {
            (entry.passes, entry.failure.as_ref().map(|(reason, message)| (*reason, message.to_string())))
        })
        .collect();
    let because = |reason, message: &str| Some((reason, message.to_owned()));
    let expected = [
        (1, None),
        (1, because(Reason::ApiUnavailable, "gone")),
        (4, because(Reason::GuestFailed, "try 5")),
        (1, because(Reason::GuestFailed, "try 0")),
    ];
    assert_eq!(said, expected);
}

#[test]
fn journal_is_bounded() {
    let journal = Journal { capacity: 3, inner: Mutex::default() };
    let many = (0..20).map(|index| child(&format!("c{index}"))).collect();
    let large = Report { pruned: many, ..failed(Reason::ChildInvalid, &"ä".repeat(TEXT)) };
    for second in 0..20 {
        record(&journal, &large, Trigger::Parent, second);
    }
    let entries_of_w = entries(&journal, "w");
    assert_eq!((entries_of_w.len(), entries_of_w[0].last, entries_of_w[7].last), (ENTRIES, at(19), at(12)));
    let pruned = &entries_of_w[0].wrote.as_ref().unwrap().pruned;
    assert_eq!((pruned.shown.len(), pruned.total), (NAMED, 20));
    let message = &entries_of_w[0].failure.as_ref().unwrap().1;
    assert!(message.len() < TEXT + 20 && message.ends_with("… (cut)"), "{message}");

    // Whoever was checked least recently goes first.
    for (second, name) in [(30, "a"), (31, "b"), (32, "w"), (33, "c"), (34, "w"), (35, "d")] {
        record(&journal, &quiet(name, "u"), Trigger::Listed, second);
    }
    let kept = ["a", "b", "c", "d", "w"].map(|name| entries(&journal, name).len());
    assert_eq!(kept, [0, 0, 1, 1, ENTRIES]);
    let inner = journal.lock();
    assert_eq!((inner.records.len(), inner.order.len()), (3, 3));
}

#[test]
fn object_of_the_same_name_begins_anew() {
    let journal = Journal::default();
    record(&journal, &Report { status: StatusWrite::Written, ..quiet("w", "old") }, Trigger::Parent, 1);
    record(&journal, &quiet("w", "new"), Trigger::Parent, 2);
    let found = journal.of(&parent("w")).unwrap();
    assert_eq!((&*found.uid, found.changed, found.entries.len()), ("new", None, 1));
}

#[test]
fn pass_that_looked_at_nothing_leaves_no_trace() {
    let journal = Journal::default();
    record(&journal, &Report { seen: None, ..quiet("w", "u") }, Trigger::Parent, 1);
    assert_eq!(journal.of(&parent("w")), None);
    let unseen = Report { seen: None, ..failed(Reason::HostFault, "it panicked") };
    record(&journal, &unseen, Trigger::Parent, 2);
    assert_eq!(journal.of(&parent("w")), None);

    // Once the object is known, a failure is told though it came before the look.
    record(&journal, &quiet("w", "u"), Trigger::Parent, 3);
    record(&journal, &unseen, Trigger::Child, 4);
    record(&journal, &Report { seen: None, ..quiet("w", "u") }, Trigger::Parent, 5);
    let [fault, _] = &*entries(&journal, "w") else { panic!("two entries") };
    assert_eq!((fault.last, &*fault.digest, fault.generation), (at(4), "aa", 1));
    assert_eq!(fault.failure, Some((Reason::HostFault, "it panicked".into())));
}

fn called(report: Report) -> Report {
    Report { why: Some(Why::First), ..report }
}
