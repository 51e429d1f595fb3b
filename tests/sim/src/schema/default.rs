//! The defaults of an object.

mod builtin;

use super::{At, Form, Kind};
use serde_json::{Map, Value, json};

/// Those in the schema, and those that the API server's code gives to a built-in kind.
pub(super) fn default(kind: &Kind, object: &mut Value) {
    if !kind.is_custom() {
        builtin::default(&kind.kind, object);
    }
    structural(kind.root(), object);
}

fn structural(at: At<'_>, value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, below, member) in at.members() {
                if let Some(default) = &member.default {
                    let is_missing =
                        members.get(name).is_none_or(|value| value.is_null() && !below.rules.nullable);
                    if is_missing {
                        members.insert(name.to_owned(), default.clone());
                    }
                }
            }
            for (name, value) in members {
                if let Some(at) = at.member(name) {
                    structural(at, value);
                }
            }
        }
        Value::Array(items) if matches!(at.shape(), Form::List { .. }) => {
            for item in items {
                structural(at.items(), item);
            }
        }
        _ => {}
    }
}

/// The object that a write without a live one starts from: a built-in kind's has every part that is never absent.
pub(super) fn empty(kind: &Kind) -> Value {
    let mut object = if kind.is_custom() { json!({}) } else { empty_value(kind.root()) };
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.as_str().into();
    object
}

fn empty_value(at: At<'_>) -> Value {
    let mut members = Map::new();
    for (name, below, member) in at.members() {
        let is_required = at.rules.required.iter().any(|required| **required == *name);
        match &member.default {
            Some(Value::Object(_)) => drop(members.insert(name.to_owned(), empty_value(below))),
            Some(default) => drop(members.insert(name.to_owned(), default.clone())),
            None if is_required => drop(members.insert(name.to_owned(), Value::Null)),
            None => {}
        }
    }
    Value::Object(members)
}
