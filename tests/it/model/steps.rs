//! What happens in one run, made up from a seed.

use std::fmt::{self, Debug, Formatter};
use std::time::Duration;

use fastrand::Rng;
use oarlock_sim::scenario::config_maps;
use oarlock_tests::proxy::{Fault, Rule};
use serde_json::{Value, json};

/// Steps in one run: with pauses and faults about six seconds.
const COUNT: usize = 50;

/// Widgets whose plan is written out in their spec: `ConfigMap`s (the second comes in a later wave, the third is
/// immutable and replaced), a condition, a field of the status.
pub(super) const SCRIPTED: [&str; 2] = ["script-a", "script-b"];
/// A Widget with a Service whose readiness is up to the test.
pub(super) const SERVICE: &str = "service";
/// A Widget of the ordinary kind, which also fails.
pub(super) const PLAIN: &str = "plain";
/// A Widget that copies the `ConfigMap` [`SOURCE`].
pub(super) const READS: &str = "reads";
/// What [`READS`] reads.
pub(super) const SOURCE: &str = "src";

/// A `ClusterWidget`, which is another plugin's: it reads the same as [`READS`].
pub(super) const FLEET: &str = "fleet";
/// What [`READS`] and [`FLEET`] list, while they have the label.
pub(super) const PICKS: [&str; 3] = ["pick-0", "pick-1", "pick-2"];

/// All parents.
pub(super) const PARENTS: [&str; 6] = [SCRIPTED[0], SCRIPTED[1], SERVICE, PLAIN, READS, FLEET];

/// The kind of a parent.
pub(super) fn kind(parent: &str) -> &'static str {
    if parent == FLEET { "ClusterWidget" } else { "Widget" }
}

/// The plugin that reconciles a parent.
pub(super) fn plugin(parent: &str) -> &'static str {
    if parent == FLEET { "cluster" } else { "widget" }
}

/// The namespace of a run.
pub(super) fn namespace(seed: u64) -> String {
    format!("model-{seed}")
}

/// The spec of a Widget.
#[derive(Clone)]
pub(super) struct Spec(pub(super) Value);

impl Debug for Spec {
    /// As JSON, which is shorter.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One thing that happens. Its texts are unique in a run, so that each tells where it came from, and no write
/// changes nothing: the version it answers with would be somebody else's.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// The spec is changed, several times at once.
    Edit { widget: &'static str, specs: Vec<Spec> },
    /// Deleted, and made anew with this spec.
    Recreate { widget: &'static str, spec: Spec },
    /// Somebody forces one of our conditions to another status.
    Flip { widget: &'static str, r#type: &'static str, text: String },
    /// Somebody empties the status.
    Wipe { widget: &'static str },
    /// Somebody replaces our conditions by their own idea, with PUT.
    Put { widget: &'static str, text: String },
    /// Another controller's own condition, and its own field where the plan has none.
    Audit { widget: &'static str, status: &'static str, text: String },
    /// Another controller withdraws what it said.
    Withdraw { widget: &'static str },
    /// Somebody edits what is ours in a child.
    EditChild { name: String, text: String },
    /// Somebody adds what is theirs to a child.
    AddToChild { name: String, text: String },
    /// Somebody removes the label that we find it by.
    StripChild { name: String, text: String },
    /// Somebody removes its owner references.
    DisownChild { name: String, text: String },
    /// Somebody deletes a child.
    DeleteChild { name: String },
    /// The Service says this of itself: `Reconciling`, `Stalled`, or what means nothing.
    Service { r#type: &'static str, text: String },
    /// What [`READS`] and [`FLEET`] read changes, or goes.
    Source { text: Option<String> },
    /// One of [`PICKS`] changes, with the label that it is listed by or without; or it goes.
    Pick { name: &'static str, is_picked: bool, text: Option<String> },
    /// This component is pushed.
    Swap { component: &'static str },
    /// The host is killed and started again.
    Kill,
    /// The host is stopped and started again.
    Stop,
    /// A fault begins.
    Inject { rule: Rule },
    /// All faults end.
    Mend,
    /// A moment passes.
    Pause(Duration),
}

/// The steps of a seed.
pub(super) fn steps(seed: u64) -> Vec<Step> {
    let mut dice = Dice { rng: Rng::with_seed(seed), texts: 0, namespace: namespace(seed) };
    let mut steps = vec![Step::Source { text: Some(dice.text()) }];
    steps.extend(PARENTS.map(|widget| Step::Edit { widget, specs: vec![dice.spec(widget)] }));
    while steps.len() < COUNT {
        let step = dice.step();
        steps.push(step);
        if dice.rng.u8(..10) < 4 {
            steps.push(Step::Pause(Duration::from_millis(dice.rng.u64(1..500))));
        }
    }
    steps
}

struct Dice {
    rng: Rng,
    texts: u32,
    namespace: String,
}

impl Dice {
    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())].clone()
    }

    fn text(&mut self) -> String {
        self.texts += 1;
        format!("t{}", self.texts)
    }

    fn widget(&mut self) -> &'static str {
        self.one(&PARENTS)
    }

    fn step(&mut self) -> Step {
        let widget = self.widget();
        let text = self.text();
        match self.rng.u8(..100) {
            0..25 => {
                let count = if self.rng.bool() { 1 } else { self.rng.usize(2..6) };
                Step::Edit { widget, specs: (0..count).map(|_| self.spec(widget)).collect() }
            }
            25..28 => Step::Recreate { widget, spec: self.spec(widget) },
            28..36 => Step::Flip { widget, r#type: self.one(&["Ready", "Synced"]), text },
            36..40 => Step::Wipe { widget },
            40..43 => Step::Put { widget, text },
            43..49 => Step::Audit { widget, status: self.one(&["True", "False", "Unknown"]), text },
            49..51 => Step::Withdraw { widget },
            51..57 => Step::EditChild { name: self.child(), text },
            57..60 => Step::AddToChild { name: self.child(), text },
            60..62 => Step::StripChild { name: self.child(), text },
            62..64 => Step::DisownChild { name: self.child(), text },
            64..67 => Step::DeleteChild { name: self.child() },
            67..69 => Step::Service { r#type: self.one(&["Told", "Reconciling", "Stalled"]), text },
            69..71 => Step::Source { text: (self.rng.u8(..4) > 0).then_some(text) },
            71..74 => {
                let text = (self.rng.u8(..4) > 0).then_some(text);
                Step::Pick { name: self.one(&PICKS), is_picked: self.rng.bool(), text }
            }
            74..77 => Step::Swap { component: self.one(&["widget", "widget-v2"]) },
            77..80 => Step::Kill,
            80..82 => Step::Stop,
            82..95 => Step::Inject { rule: self.rule() },
            _ => Step::Mend,
        }
    }

    /// The name of a child that there may be.
    fn child(&mut self) -> String {
        let scripted = self.one(&SCRIPTED);
        match self.rng.u8(..6) {
            0 => format!("{PLAIN}-cm"),
            1 => format!("{READS}-cm"),
            2 => format!("{FLEET}-cm"),
            _ => format!("{scripted}-{}", self.rng.u8(..3)),
        }
    }

    fn spec(&mut self, widget: &'static str) -> Spec {
        let text = self.text();
        Spec(match widget {
            SERVICE => json!({"plan": {"children": [
                {"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("{SERVICE}-svc"), "annotations": {"text": text}},
                 "spec": {"ports": [{"port": 80}], "selector": {"app": "none"}}},
            ], "status": {"note": text}}}),
            PLAIN => {
                let mode = self.one(&["normal", "normal", "normal", "transient", "permanent", "panic"]);
                json!({"mode": mode, "text": text})
            }
            READS => json!({"mode": "reads", "read": SOURCE, "selector": "pick=yes", "text": text}),
            FLEET => json!({
                "mode": "reads", "read": SOURCE, "selector": "pick=yes", "text": text, "namespace": self.namespace,
            }),
            _ => {
                let children = config_maps(&mut self.rng, widget, &text);
                let mut plan = json!({"children": children, "status": {"note": text}});
                if self.rng.u8(..4) > 0 {
                    let status = self.one(&["True", "False", "Unknown"]);
                    plan["conditions"] =
                        json!([{"type": "Synced", "status": status, "reason": "Told", "message": text}]);
                }
                json!({"plan": plan})
            }
        })
    }

    fn rule(&mut self) -> Rule {
        let soon = Duration::from_millis(self.rng.u64(1..500));
        let answer = |code, retry_after| Fault::Answer { code, retry_after };
        let fault = self.one(&[
            answer(409, None),
            answer(429, Some(1)),
            answer(500, None),
            answer(503, None),
            Fault::AnswerAfter(504),
            Fault::AnswerAfter(500),
            Fault::DropBefore,
            Fault::DropAfter,
            Fault::DropAfter,
            Fault::Delay(soon),
            Fault::Cut(soon),
            Fault::Lag(soon * 4),
            Fault::Freeze,
        ]);
        let every = Rule::every(fault);
        let about_watches = matches!(fault, Fault::Cut(_) | Fault::Lag(_) | Fault::Freeze);
        let times = if self.rng.bool() { Some(self.rng.usize(1..6)) } else { None };
        let probability = self.one(&[0.2, 0.5, 1.0]);
        let every = Rule { times, probability, ..every };
        if about_watches {
            return Rule { resource: self.one(&["", "widgets", "configmaps", "services"]), ..every };
        }
        match self.rng.u8(..8) {
            0..4 => Rule { verbs: &["apply"], resource: "widgets", subresource: Some("status"), ..every },
            4 | 5 => Rule { verbs: &["apply"], resource: "configmaps", ..every },
            6 => Rule { verbs: &["delete"], resource: "configmaps", ..every },
            _ => Rule { verbs: &["apply", "patch", "get", "list", "watch"], probability: 0.2, ..every },
        }
    }
}

#[test]
fn seed_decides_the_steps() {
    let text = |seed| format!("{:?}", steps(seed));
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}
