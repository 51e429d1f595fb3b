use super::*;
use crate::{
    decide::plan::Options,
    decide::{
        Unplanned,
        plan::{Child, Condition, ConditionStatus, Failure, Plan},
    },
    object::{Gvk, ObjectKey},
    observe::reads::{Planned, Read},
};
use proptest::prelude::*;
use serde_json::{Value, json};

const LIMIT: usize = 10;

fn parent(name: &str) -> ParentRef {
    let gvk = Gvk::new("cases.example.com/v1", "Widget");
    ParentRef {
        plugin: "widget".into(),
        parent: ObjectKey { gvk, namespace: Some("demo".into()), name: name.into() },
    }
}

fn child(kind: &str, name: &str, content: Value) -> Child {
    let key = ObjectKey { gvk: Gvk::new("v1", kind), namespace: Some("demo".into()), name: name.into() };
    let Value::Object(object) = content else { panic!("an object") };
    Child { key, object, options: Options::default() }
}

fn members(value: Value) -> serde_json::Map<String, Value> {
    let Value::Object(members) = value else { panic!("an object") };
    members
}

#[expect(clippy::unnecessary_wraps, reason = "what a guest says is a plan or none")]
fn planned(plan: Plan) -> Answer {
    Ok(Planned { plan: Arc::new(plan), done: false })
}

fn with_status(status: Value) -> Answer {
    planned(Plan { status: members(status), ..Plan::default() })
}

fn with_children(children: Vec<Child>) -> Answer {
    planned(Plan { children, ..Plan::default() })
}

fn with_condition(r#type: &str, message: &str) -> Answer {
    let condition = Condition {
        r#type: r#type.to_owned(),
        status: ConditionStatus::True,
        reason: "Ok".to_owned(),
        message: message.to_owned(),
    };
    planned(Plan { conditions: vec![condition], ..Plan::default() })
}

fn with_label(value: &str) -> Answer {
    let labels = [("example.com/a".to_owned(), value.to_owned())].into();
    planned(Plan { labels, ..Plan::default() })
}

fn failed(message: &str, transient: bool) -> Answer {
    let failure = Failure { transient, reason: "Broken".to_owned(), message: message.to_owned() };
    Err(Arc::new(Unplanned::Failure(failure)))
}

fn counted(count: u64) -> Answer {
    with_status(json!({"count": count}))
}

fn read(name: &str) -> Why {
    let watch = crate::observe::watch::WatchKey {
        gvk: Gvk::new("v1", "ConfigMap"),
        scope: crate::observe::client::Scope::default(),
    };
    Why::Reads(vec![Read::Get { watch, namespace: Some("demo".into()), name: name.into() }])
}

#[test]
fn difference_is_the_first_that_is_written() {
    let config_map = |n: u32| child("ConfigMap", "a", json!({"data": {"n": n.to_string()}}));
    let named = |name: &str| child("ConfigMap", name, json!({}));
    let secret = |value: &str| child("Secret", "s", json!({"data": {"token": value}}));
    let long = "x".repeat(100);
    for (before, after, expected) in [
        (counted(7), counted(7), ""),
        (counted(7), counted(8), "status.count went from 7 to 8"),
        (with_status(json!({})), counted(8), "status.count went from absent to 8"),
        (
            with_status(json!({"a": {"list": [1, {"b": "x"}]}})),
            with_status(json!({"a": {"list": [1, {"b": "y"}]}})),
            r#"status.a.list[1].b went from "x" to "y""#,
        ),
        (
            with_status(json!({"list": ["x", "y"]})),
            with_status(json!({"list": ["y", "x"]})),
            r#"status.list went from ["x","y"] to ["y","x"]"#,
        ),
        (
            with_status(json!({"list": [1]})),
            with_status(json!({"list": [1, 2]})),
            "status.list went from [1] to [1,2]",
        ),
        (
            with_children(vec![config_map(1)]),
            with_children(vec![config_map(2)]),
            r#"children[ConfigMap demo/a].data.n went from "1" to "2""#,
        ),
        (
            with_children(vec![named("a"), named("b")]),
            with_children(vec![named("b"), named("c")]),
            "children went from ConfigMap demo/a to ConfigMap demo/c",
        ),
        (
            with_children(vec![named("a")]),
            with_children(vec![named("a"), named("b")]),
            "children went from none more to ConfigMap demo/b",
        ),
        // Applied in another order, the same objects come of it.
        (with_children(vec![named("a"), named("b")]), with_children(vec![named("b"), named("a")]), ""),
        (
            with_children(vec![secret("c2VjcmV0")]),
            with_children(vec![secret("b3RoZXI=")]),
            "children[Secret demo/s].data.token changed",
        ),
        (with_condition("Ok", "a"), with_condition("Ok", "b"), "conditions[Ok].message went from a to b"),
        (with_condition("A", "a"), with_condition("B", "a"), "conditions[A] went from True to absent"),
        (counted(1), with_condition("B", "a"), "status.count went from 1 to absent"),
        (planned(Plan::default()), with_condition("B", "a"), "conditions[B] went from absent to True"),
        (with_label("a"), with_label("b"), r#"metadata.labels["example.com/a"] went from a to b"#),
        (failed("1", false), failed("2", false), "the failure's message went from 1 to 2"),
        (failed("1", true), failed("2", true), ""),
        (failed("1", false), counted(1), "the answer went from failure: 1 to a plan"),
        (counted(1), failed("1", true), "the answer went from a plan to failure: 1"),
        (
            with_label("a"),
            with_label(&long),
            r#"metadata.labels["example.com/a"] went from a to xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… (cut)"#,
        ),
        // Events and the next look are not written where they differ alone.
        (
            planned(Plan { requeue_after: Some(Duration::from_secs(1)), ..Plan::default() }),
            planned(Plan::default()),
            "",
        ),
    ] {
        let said = difference::between(&before, &after).map_or_else(String::new, |difference| {
            let message = difference.say().message;
            let change = message.strip_prefix("the plugin's answer never settles: ").unwrap();
            change.split(" though ").next().unwrap().to_owned()
        });
        assert_eq!(said, expected);
    }
}

/// A guest and what there is to say of it.
struct Guest {
    stability: Stability,
    now: Instant,
    answer: Answer,
    calls: usize,
    begun: usize,
    said: Option<Unstable>,
}

impl Guest {
    fn new() -> Self {
        let (stability, now) = (Stability::default(), Instant::now());
        Self { stability, now, answer: counted(0), calls: 0, begun: 0, said: None }
    }

    fn after(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    /// A pass in which nothing differs but the guest's own doing.
    fn own(&mut self, answer: Answer) -> &mut Self {
        let key = parent("w1");
        if let Some(unstable) = self.stability.limit(&key, LIMIT, self.now) {
            self.begun += usize::from(unstable.begins);
            self.said = Some(unstable);
            return self;
        }
        self.call(&read("own"), true, answer)
    }

    fn outside(&mut self, why: &Why, answer: Answer) -> &mut Self {
        self.call(why, false, answer)
    }

    fn call(&mut self, why: &Why, own: bool, answer: Answer) -> &mut Self {
        let before = own.then_some(&self.answer);
        self.stability.called(&parent("w1"), why, before, &answer, self.now);
        self.calls += 1;
        self.answer = answer;
        self.valid()
    }

    /// A pass that the memo answers.
    fn valid(&mut self) -> &mut Self {
        self.said = self.stability.look(&parent("w1"), self.now);
        self
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn guest_that_counts_is_called_ten_times_a_minute() {
    let mut guest = Guest::new();
    for count in 1..=12_000 {
        guest.own(counted(count)).after(Duration::from_millis(50));
    }
    // Ten minutes.
    assert!((95..=105).contains(&guest.calls), "{} calls", guest.calls);
    assert_eq!(guest.begun, 1, "it is told once");
    let said = guest.said.unwrap();
    assert!(said.message.contains("status.count went from 9 to 10"), "{}", said.message);
}

#[test]
fn guest_with_a_new_name_each_time_makes_five_children_a_minute() {
    let mut guest = Guest::new();
    let named = |name: usize| with_children(vec![child("ConfigMap", &format!("c{name}"), json!({}))]);
    guest.outside(&Why::First, named(0));
    for name in 1..=59 {
        guest.own(named(name)).after(Duration::from_secs(1));
    }
    assert_eq!(guest.calls, 6);
}

#[test]
fn limited_guest_is_looked_at_when_it_may_be_called_again() {
    let mut guest = Guest::new();
    for count in 1..=11 {
        guest.own(counted(count)).after(Duration::from_secs(1));
    }
    assert_eq!(guest.calls, 10);
    // The first difference was 11 s ago; the pass was 1 s ago.
    assert_eq!(guest.said.as_ref().unwrap().look_again, Duration::from_secs(50));
    guest.after(Duration::from_secs(49)).own(counted(12));
    assert_eq!(guest.calls, 11);
}

#[test]
fn what_is_said_goes_when_the_plan_has_settled() {
    let mut guest = Guest::new();
    for count in 1..=11 {
        guest.own(counted(count)).after(MILLISECOND);
    }
    guest.after(Duration::from_secs(30)).valid();
    let said = guest.said.clone().unwrap();
    assert!(!said.begins);
    assert!(said.look_again <= Duration::from_secs(30), "{said:?}");
    let rest = said.look_again;
    guest.after(rest).valid();
    assert_eq!(guest.said, None);
    assert!(guest.stability.trails.is_empty());
}

#[test]
fn what_is_said_does_not_go_and_come_while_the_window_frees() {
    let mut guest = Guest::new();
    for count in 1..=100 {
        guest.own(counted(count)).after(MILLISECOND);
    }
    // All ten end at about the same time.
    guest.after(WINDOW);
    for count in 101..=200 {
        guest.own(counted(count)).after(MILLISECOND);
        assert!(guest.said.is_some(), "{count}");
    }
    assert_eq!(guest.begun, 1);
}

#[test]
fn message_stays_while_the_path_does() {
    let mut guest = Guest::new();
    for count in 1..=11 {
        guest.own(counted(count)).after(MILLISECOND);
    }
    let message = guest.said.clone().unwrap().message;
    guest.after(WINDOW).own(counted(12));
    assert_eq!(guest.said.as_ref().unwrap().message, message);
    guest.own(with_label("a"));
    guest.own(with_label("b"));
    let message = guest.said.clone().unwrap().message;
    assert!(message.contains("metadata.labels"), "{message}");
}

#[test]
fn edit_and_new_version_start_anew() {
    for why in [Why::First, Why::Version, Why::Parent] {
        let mut guest = Guest::new();
        for count in 1..=11 {
            guest.own(counted(count)).after(MILLISECOND);
        }
        guest.outside(&why, counted(12));
        assert_eq!(guest.said, None, "{why}");
        assert!(guest.stability.trails.is_empty(), "{why}");
    }
}

#[test]
fn limited_guest_is_called_for_a_reason_from_outside() {
    let mut guest = Guest::new();
    for count in 1..=11 {
        guest.own(counted(count)).after(MILLISECOND);
    }
    guest.outside(&read("theirs"), counted(12));
    assert_eq!(guest.calls, 11);
    assert!(guest.said.is_some(), "it has not settled by that");
    // A few rounds that may follow from it, and no more.
    for count in 13..=30 {
        guest.own(counted(count)).after(MILLISECOND);
    }
    assert_eq!(guest.calls, 11 + FORGIVEN);
    assert_eq!(guest.begun, 1);
}

#[test]
fn parents_that_have_settled_are_not_kept() {
    let mut stability = Stability::default();
    let mut now = Instant::now();
    for index in 0..10_000 {
        now += Duration::from_secs(1);
        let key = parent(&format!("w{index}"));
        stability.called(&key, &read("own"), Some(&counted(1)), &counted(2), now);
        assert!(stability.trails.len() <= 2 * FEW, "{} are kept", stability.trails.len());
    }
}

/// What happens around a guest that settles after each change.
#[derive(Clone, Debug)]
enum Step {
    Edit,
    /// What somebody else did: a read, or the readiness of a child.
    Outside,
    /// The guest's own writes call it, with another plan once or a few times.
    Settle(usize),
    Wait(u64),
}

proptest! {
    #[test]
    fn guest_that_settles_is_never_limited(steps in prop::collection::vec(prop_oneof![
        Just(Step::Edit),
        Just(Step::Outside),
        (0..=FORGIVEN).prop_map(Step::Settle),
        (0..5_000_u64).prop_map(Step::Wait),
    ], 0..300)) {
        let mut guest = Guest::new();
        let (mut count, mut rounds) = (0, 0);
        for step in steps {
            count += 1;
            match step {
                Step::Edit => {
                    guest.outside(&Why::Parent, counted(count));
                    rounds = FORGIVEN;
                }
                Step::Outside => {
                    guest.outside(&read("theirs"), counted(count));
                    rounds = FORGIVEN;
                }
                Step::Settle(steps) => for _ in 0..steps.min(rounds) {
                    count += 1;
                    rounds -= 1;
                    guest.own(counted(count));
                },
                Step::Wait(milliseconds) => { guest.after(Duration::from_millis(milliseconds)); }
            }
            let same = guest.answer.clone();
            guest.own(same);
            prop_assert_eq!(guest.begun, 0);
            prop_assert_eq!(guest.said.clone(), None);
        }
    }

    #[test]
    fn guest_that_never_settles_is_called_no_more_than_its_limit(
        gaps in prop::collection::vec(0..2_000_u64, 1..400),
        of_children in any::<bool>(),
    ) {
        let mut guest = Guest::new();
        let mut changes: Vec<Instant> = Vec::new();
        for (count, gap) in gaps.into_iter().enumerate() {
            let before = guest.calls;
            let answer = if of_children {
                with_children(vec![child("ConfigMap", &format!("c{count}"), json!({}))])
            } else {
                counted(count as u64 + 1)
            };
            guest.own(answer);
            if guest.calls > before {
                changes.push(guest.now);
            }
            guest.after(Duration::from_millis(gap));
        }
        let most = if of_children { LIMIT / 2 } else { LIMIT };
        for (index, start) in changes.iter().enumerate() {
            let within = changes[index..].iter().filter(|time| **time < *start + WINDOW).count();
            prop_assert!(within <= most, "{within} within a minute");
        }
    }
}
