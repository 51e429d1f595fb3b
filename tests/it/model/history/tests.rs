//! A history that is right passes, and each wrong one is told.

use serde_json::{Value, json};

use super::super::actor::Told;
use super::{Version, check};

const BEFORE: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-01T01:00:00Z";

fn says(r#type: &str, status: &str, text: &str, since: &str, generation: i64) -> Value {
    json!({
        "type": r#type, "status": status, "reason": "Told", "message": text, "lastTransitionTime": since,
        "observedGeneration": generation,
    })
}

fn widget(generation: i64, written: &str, status: &Value) -> Value {
    json!({
        "kind": "Widget",
        "metadata": {
            "name": "script-a", "uid": "w", "generation": generation,
            "managedFields": [{"manager": "oarlock/widget", "subresource": "status", "time": written}],
        },
        "status": status,
    })
}

fn child(text: &str) -> Value {
    json!({
        "kind": "ConfigMap", "data": {"text": text},
        "metadata": {
            "name": "c", "uid": "c", "labels": {"oarlock.dev/owned-by": "widget"},
            "ownerReferences": [{"uid": "w"}],
        },
    })
}

fn spec(text: &str) -> Value {
    let child = json!({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"text": text}});
    json!({"plan": {
        "children": [child], "status": {"note": text},
        "conditions": [{"type": "Synced", "status": "True", "message": text}],
    }})
}

fn status(text: &str, generation: i64, since: &str) -> Value {
    let conditions =
        [says("Ready", "True", "", BEFORE, generation), says("Synced", "True", text, since, generation)];
    json!({"observedGeneration": generation, "note": text, "conditions": conditions})
}

/// The history of an edit: the child, the status, the spec (by the test), the child, the status.
fn edit() -> Vec<Value> {
    vec![
        child("one"),
        widget(1, BEFORE, &status("one", 1, BEFORE)),
        widget(2, BEFORE, &status("one", 1, BEFORE)),
        child("two"),
        widget(2, NOW, &status("two", 2, BEFORE)),
    ]
}

/// What a check of these objects says, where the test wrote version 2 and those of `foreign`.
fn verdict(objects: &[Value], foreign: &[u64]) -> String {
    let number =
        |(number, object): (u64, &Value)| Version { number, is_deleted: false, object: object.clone() };
    let versions: Vec<_> = (0..).zip(objects).map(number).collect();
    let uid = "w".to_owned();
    let told = Told {
        writes: foreign.iter().copied().chain([2]).collect(),
        specs: [((uid.clone(), 1), spec("one")), ((uid, 2), spec("two"))].into(),
        deleted: [].into(),
    };
    check(&versions, &told).map_or_else(|error| error.root_cause().to_string(), |()| String::new())
}

fn check_verdict(change: impl FnOnce(&mut Vec<Value>), foreign: &[u64], told: &str) {
    let mut objects = edit();
    change(&mut objects);
    let said = verdict(&objects, foreign);
    assert!(said.contains(told) && said.is_empty() == told.is_empty(), "{said:?} is not about {told:?}");
}

#[test]
fn right_history_passes() {
    check_verdict(|_| {}, &[], "");
    // Somebody else's edit of the child is not the host's.
    check_verdict(|objects| objects.insert(4, child("else")), &[4], "");
}

#[test]
fn times_that_move_alone_are_told() {
    check_verdict(
        |objects| objects[4] = widget(2, NOW, &status("two", 2, NOW)),
        &[],
        "the time moved without",
    );
    let flipped = |since| {
        move |objects: &mut Vec<Value>| {
            let mut status = status("two", 2, BEFORE);
            status["conditions"][0] = says("Ready", "False", "", since, 2);
            objects[4] = widget(2, NOW, &status);
        }
    };
    check_verdict(flipped(NOW), &[], "");
    check_verdict(flipped(BEFORE), &[], "not that of the change");
}

#[test]
fn generations_that_mislead_are_told() {
    check_verdict(|objects| objects[4] = widget(2, NOW, &status("two", 3, BEFORE)), &[], "from the future");
    check_verdict(|objects| objects.push(widget(2, NOW, &status("one", 1, BEFORE))), &[], "went back");
}

#[test]
fn ready_that_is_about_another_generation_is_told() {
    check_verdict(|objects| objects[3] = child("one"), &[], "Ready, and c has");
    check_verdict(|objects| objects[4]["status"]["note"] = "one".into(), &[], "note");
    check_verdict(
        |objects| objects[4]["status"]["conditions"][1]["message"] = "one".into(),
        &[],
        "another generation's",
    );
    let left_over = |objects: &mut Vec<Value>| {
        objects[0]["metadata"]["name"] = "left-over".into();
        objects[0]["metadata"]["uid"] = "left-over".into();
        objects[1]["status"]["observedGeneration"] = 0.into();
    };
    check_verdict(left_over, &[], "left-over, which is not planned");
}

#[test]
fn faults_of_the_api_server_are_not_those_of_the_object() {
    let failed = |objects: &mut Vec<Value>| {
        let mut status = status("two", 2, BEFORE);
        status["conditions"][0] = says("Ready", "False", "", NOW, 2);
        status["conditions"][0]["reason"] = "ApiUnavailable".into();
        objects.push(widget(2, NOW, &status));
    };
    check_verdict(failed, &[], "because the API server failed");
    let touched = |objects: &mut Vec<Value>| {
        objects.push(child("else"));
        failed(objects);
    };
    check_verdict(touched, &[5], "");
}

#[test]
fn what_is_somebody_elses_is_theirs() {
    let theirs = |objects: &mut Vec<Value>| {
        let checked = says("Checked", "True", "", BEFORE, 1);
        objects[2]["status"]["conditions"].as_array_mut().unwrap().push(checked);
    };
    check_verdict(theirs, &[], "of somebody else is gone");
}

#[test]
fn needless_writes_are_told() {
    check_verdict(|objects| objects.push(objects[4].clone()), &[], "changes nothing");
    check_verdict(|objects| objects.push(objects[4].clone()), &[5], "");
}
