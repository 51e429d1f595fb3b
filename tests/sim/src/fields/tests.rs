//! Histories recorded from a real API server, and the same here.

use super::*;
use crate::schema::{builtin, of_crd};
use serde::Deserialize;
use std::sync::Arc;

/// What was done to one object, and what the API server said each time. Times are the numbers of steps.
#[derive(Deserialize)]
struct Case {
    what: String,
    kind: String,
    name: String,
    steps: Vec<Step>,
    results: Vec<Value>,
}

#[derive(Deserialize)]
struct Step {
    op: Op,
    manager: String,
    #[serde(default)]
    sub: String,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    strict: bool,
    body: Value,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Op {
    Create,
    Update,
    Merge,
    Apply,
}

/// What the API server does around schemas and fields, for one object.
fn write(
    kind: &Kind,
    live: Option<&Value>,
    case: &Case,
    step: &Step,
    index: usize,
) -> Result<Value, Refusal> {
    let time = format!("2030-01-01T00:00:{index:02}Z");
    let write = Write { manager: &step.manager, subresource: &step.sub, time: &time };
    let not_found = || {
        let message = format!("{} {:?} not found", kind.qualified(), case.name);
        Refusal::new(404, "NotFound", message)
    };
    let mut body = step.body.clone();
    let is_patch = step.op == Op::Merge;
    let mut object = match step.op {
        Op::Create if live.is_some() => {
            let message = format!("{} {:?} already exists", kind.qualified(), case.name);
            return Err(Refusal::new(409, "AlreadyExists", message));
        }
        Op::Create => body,
        Op::Update => {
            live.ok_or_else(not_found)?;
            body
        }
        Op::Merge => {
            let mut object = live.ok_or_else(not_found)?.clone();
            json_patch::merge(&mut object, &body);
            object
        }
        Op::Apply => {
            if live.is_none() && !step.sub.is_empty() {
                return Err(not_found());
            }
            if kind.namespaced {
                body["metadata"]["namespace"] = "NS".into();
            }
            apply(kind, live, &step.body, &write, step.force)?
        }
    };
    if kind.namespaced {
        object["metadata"]["namespace"] = "NS".into();
    }
    object["metadata"]["uid"] = "u".into();
    kind.decode(&mut object, step.strict && step.op != Op::Apply).map_err(|refusal| {
        let why = Cause { reason: "FieldValueInvalid".into(), message: String::new(), field: "patch".into() };
        if is_patch { Refusal::new(422, "Invalid", "").because(vec![why]) } else { refusal }
    })?;
    if step.op != Op::Apply {
        kind.normalize(&mut object);
    }
    kind.default(&mut object);
    if step.op != Op::Apply {
        // Before the reset, as in the API server: it makes no difference.
        track(kind, live, &mut object, &write);
    }
    kind.prepare(live, &mut object, &step.sub);
    kind.default(&mut object);
    object["metadata"]["generation"] =
        live.map_or(Value::Null, |live| live["metadata"]["generation"].clone());
    if kind.generation && live.is_none_or(|live| live["spec"] != object["spec"]) {
        let generation = live.and_then(|live| live["metadata"]["generation"].as_u64()).unwrap_or_default();
        object["metadata"]["generation"] = (generation + 1).into();
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, value| !value.is_null() && name != "uid");
    }
    kind.validate(live, &object)?;
    if let Some(live) = live.filter(|live| is_same(live, &object)) {
        return Ok(live.clone());
    }
    Ok(object)
}

fn told(result: Result<Value, Refusal>) -> Value {
    match result {
        Ok(object) => json!({"code": 200, "object": object}),
        Err(refusal) => {
            let status = refusal.status(&crate::refusal::About::default());
            let causes = status["details"].get("causes").cloned().unwrap_or_else(|| json!([]));
            json!({"code": refusal.code, "reason": refusal.reason, "message": refusal.message, "causes": causes})
        }
    }
}

/// What is compared: of refusals the code, the reason, and what each cause is and is about; of conflicts all, as that
/// is where their fields and managers are. What follows from a uid is masked.
fn compared(mut result: Value) -> Value {
    mask(&mut result);
    let is_conflict = result["code"] == 409;
    if let Some(causes) = result["causes"].as_array_mut() {
        for cause in causes.iter_mut().filter(|_| !is_conflict) {
            cause["message"] = Value::Null;
        }
        causes.sort_by_key(Value::to_string);
    }
    if result["code"] != 200 && !is_conflict {
        result["message"] = Value::Null;
    }
    result
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if name.ends_with("controller-uid") {
                    *value = "u".into();
                }
                mask(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

/// Where two values differ.
fn difference(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                match (a.get(name), b.get(name)) {
                    (Some(a), Some(b)) => difference(&format!("{path}/{name}"), a, b, found),
                    (Some(a), None) => found.push(format!("{path}/{name}: only here: {a}")),
                    (None, Some(b)) => found.push(format!("{path}/{name}: only there: {b}")),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                difference(&format!("{path}/{index}"), a, b, found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(format!("{path}: here {a}, there {b}")),
    }
}

fn kind(name: &str) -> Arc<Kind> {
    let crd = serde_json::from_str(include_str!("thing.json")).unwrap();
    let kinds = builtin().into_iter().chain(of_crd(&crd).unwrap());
    kinds.into_iter().find(|kind| kind.kind == name).unwrap()
}

#[test]
fn writes_do_what_the_api_server_does() {
    let path = std::env::var("OARLOCK_CASES").ok();
    let text = path
        .map_or_else(|| include_str!("cases.json").to_owned(), |path| std::fs::read_to_string(path).unwrap());
    let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
    let mut wrong = Vec::new();
    for case in cases {
        let kind = kind(&case.kind);
        let mut live = None;
        for (index, (step, expected)) in case.steps.iter().zip(&case.results).enumerate() {
            let result = told(write(&kind, live.as_ref(), &case, step, index));
            let mut found = Vec::new();
            difference("", &compared(result), &compared(expected.clone()), &mut found);
            if !found.is_empty() {
                wrong.push(format!(
                    "{} ({}), step {index}:\n    {}",
                    case.what,
                    case.kind,
                    found.join("\n    ")
                ));
            }
            // Each step is judged by itself.
            live = expected.get("object").cloned().or(live);
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
