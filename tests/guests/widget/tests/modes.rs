//! The modes that a host test reads an answer from.

use oarlock_sdk::testing::{Cluster, Outcome};
use oarlock_sdk::{ConditionStatus, Failure, Readiness};
use serde_json::{Value, json};
use widget::Widgets;

fn cluster(spec: &Value) -> Cluster {
    Cluster::from_yaml("{apiVersion: v1, kind: ConfigMap, metadata: {name: src, namespace: demo}, data: {a: b}}").with(
        json!({
            "apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": "w1", "namespace": "demo"},
            "spec": spec, "status": {"note": "4"},
        }),
    )
}

fn run(spec: &Value) -> Result<Outcome, Failure> {
    cluster(spec).child("ConfigMap", "w1-cm", Readiness::Ready).reconcile::<Widgets>("demo", "w1")
}

#[test]
fn normal_writes_the_text_into_one_config_map() {
    let outcome = run(&json!({"text": "hi", "color": "of no interest"})).unwrap();
    assert_eq!(outcome.child("ConfigMap", "w1-cm")["data"]["text"], "hi");
    assert_eq!(outcome.condition("Synced").status, ConditionStatus::True);
}

#[test]
fn reads_copies_one_config_map_and_names_the_others() {
    let outcome = run(&json!({"mode": "reads", "read": "src"})).unwrap();
    assert_eq!(outcome.child("ConfigMap", "w1-cm")["data"], json!({"a": "b", "names": "src"}));
}

#[test]
fn modes_with_a_note_put_what_they_read_into_it() {
    for (mode, note) in
        [("previous", "5"), ("clock", "2026-01-01T00:00:00Z"), ("children", "ConfigMap w1-cm is ready")]
    {
        assert_eq!(run(&json!({"mode": mode})).unwrap().plan.status, Some(json!({"note": note})), "{mode}");
    }
}

#[test]
fn modes_that_wake_themselves_answer_by_what_they_answered() {
    let child = |mode: &str, kind: &str, name: &str| -> Value {
        run(&json!({"mode": mode})).unwrap().child(kind, name)
    };
    assert_eq!(run(&json!({"mode": "settles", "size": 3})).unwrap().plan.status, Some(json!({"note": "3"})));
    assert_eq!(child("clock-name", "ConfigMap", "w1-2026-01-01t00-00-00z")["data"]["text"], "");
    assert_eq!(child("version-name", "ConfigMap", "w1-none")["data"]["text"], "");
    assert_eq!(child("own-child", "ConfigMap", "w1-cm")["data"]["text"], "1");
    assert_eq!(child("flip", "Service", "w1")["spec"]["ports"][0]["name"], "a");
    let annotations = run(&json!({"mode": "own-annotation"})).unwrap().plan.metadata.annotations;
    assert_eq!(annotations["cases.example.com/count"], "1");
    assert_eq!(run(&json!({"mode": "stamp"})).unwrap().condition("Stamped").status, ConditionStatus::True);
}

#[test]
fn a_script_is_the_plan() {
    let outcome = run(&json!({"mode": "panic", "plan": {
        "children": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}],
        "status": {"note": "n"},
        "conditions": [{"type": "Ready", "status": "False", "reason": "Told"}],
        "labels": {"a": "b"},
        "events": [{"type": "Warning", "reason": "Told"}],
        "requeueAfterMs": 20,
    }}))
    .unwrap();
    outcome.child("ConfigMap", "c");
    assert_eq!(outcome.condition("Ready").status, ConditionStatus::False);
    assert_eq!(outcome.plan.metadata.labels["a"], "b");
    assert_eq!(outcome.plan.events[0].reason, "Told");
    assert_eq!(outcome.plan.requeue_after.unwrap().as_millis(), 20);
}

#[test]
fn repeat_keeps_what_is_there_and_adds_what_is_missing() {
    let outcome = run(&json!({"mode": "repeat", "size": 1})).unwrap();
    outcome.child("ConfigMap", "w1-cm");
    assert_eq!(outcome.plan.children.len(), 1);
    let outcome = run(&json!({"mode": "repeat", "size": 2})).unwrap();
    outcome.child("ConfigMap", "w1-cm");
    outcome.child("ConfigMap", "w1-0");
}

#[test]
fn unknown_modes_are_refused() {
    assert_eq!(run(&json!({"mode": "lopo"})).unwrap_err().message, "no mode `lopo`");
}

#[test]
fn finalize_waits_until_released() {
    let outcome = cluster(&json!({"finalize": "wait"})).finalize::<Widgets>("demo", "w1").unwrap();
    assert!(!outcome.done);
    outcome.child("ConfigMap", "w1-bye");
    assert!(cluster(&json!({})).finalize::<Widgets>("demo", "w1").unwrap().done);
}
