//! What becomes of an object before its defaults: unknown fields are dropped or refused, wrong types are refused.

use super::{At, Form, Kind, node::Scalar};
use crate::refusal::Refusal;
use serde_json::Value;

pub(super) fn decode(kind: &Kind, object: &mut Value, strict: bool) -> Result<(), Refusal> {
    let mut walk = Walk { unknown: Vec::new(), wrong: None, is_custom: kind.is_custom() };
    let metadata = object.get_mut("metadata");
    if let (Some(metadata), Some((at, _)), true) =
        (metadata, kind.root().declared("metadata"), kind.is_custom())
    {
        // It is a built-in kind's, in every object.
        let mut of_metadata = Walk { is_custom: false, ..Walk::default() };
        of_metadata.value(at, metadata, "metadata");
        walk.unknown = of_metadata.unknown;
        walk.wrong = of_metadata.wrong;
    }
    walk.value(kind.root(), object, "");
    let refused = |what: String| {
        let (kind, version) = (&kind.kind, &kind.version);
        let message = format!("{kind} in version {version:?} cannot be handled as a {kind}: {what}");
        Err(Refusal::new(400, "BadRequest", message))
    };
    if let Some(wrong) = walk.wrong {
        return refused(wrong);
    }
    if strict && !walk.unknown.is_empty() {
        let told: Vec<_> = walk.unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
        return refused(format!("strict decoding error: {}", told.join(", ")));
    }
    Ok(())
}

/// Drops the nulls of a custom kind that may not be null: who sends one means that there is no value.
pub(super) fn drop_nulls(at: At<'_>, value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, value| {
                !value.is_null() || at.declared(name).is_none_or(|(at, _)| at.rules.nullable)
            });
            for (name, value) in members {
                if let Some(at) = at.member(name) {
                    drop_nulls(at, value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls(at.items(), item)),
        _ => {}
    }
}

#[derive(Default)]
struct Walk {
    unknown: Vec<String>,
    wrong: Option<String>,
    is_custom: bool,
}

impl Walk {
    fn value(&mut self, at: At<'_>, value: &mut Value, path: &str) {
        if !self.is_custom {
            self.check(at, value, path);
        }
        match value {
            Value::Object(members) => {
                let mut dropped = Vec::new();
                for (name, value) in &mut *members {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    match at.member(name) {
                        Some(below) => {
                            self.value(below, value, &path);
                            if !self.is_custom && !is_kept(at, name, value, &path) {
                                dropped.push(name.clone());
                            }
                            if !self.is_custom && value.is_null() && is_text(below) {
                                *value = "".into();
                            }
                        }
                        None if matches!(at.shape(), Form::Object { .. }) => {
                            self.unknown.push(path);
                            dropped.push(name.clone());
                        }
                        None => {}
                    }
                }
                for name in dropped {
                    members.remove(&name);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.value(at.items(), item, &format!("{path}[{index}]"));
                }
            }
            _ => {}
        }
    }

    /// A built-in kind's value has the type of its field.
    fn check(&mut self, at: At<'_>, value: &Value, path: &str) {
        let (fits, wanted) = match at.shape() {
            Form::Any { .. } => (true, ""),
            Form::Scalar(Scalar::String) => (value.is_string(), "string"),
            Form::Scalar(Scalar::Boolean) => (value.is_boolean(), "bool"),
            Form::Scalar(Scalar::Integer) => (value.is_i64() || value.is_u64(), "int32"),
            Form::Scalar(Scalar::Number) => (value.is_number(), "float64"),
            Form::Scalar(Scalar::Either) => (value.is_string() || value.is_number(), "string"),
            Form::Object { .. } => (value.is_object(), "map"),
            Form::List { .. } => (value.is_array(), "slice"),
        };
        if !fits && !value.is_null() && self.wrong.is_none() {
            let given = match value {
                Value::Bool(_) => "bool",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Null | Value::Object(_) => "object",
            };
            self.wrong =
                Some(format!("json: cannot unmarshal {given} into Go struct field .{path} of type {wanted}"));
        }
    }
}

fn is_text(at: At<'_>) -> bool {
    matches!(at.shape(), Form::Scalar(Scalar::String))
}

/// Zero and `false` are not kept in these, unlike in those in which being absent means something else.
const EMPTY_IF_ZERO: [&str; 13] = [
    "count",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "minReadySeconds",
    "nodePort",
    "paused",
    "publishNotReadyAddresses",
    "readOnly",
    "stdin",
    "tty",
];
/// In these, an empty text means something.
const KEPT_IF_EMPTY: [&str; 2] = ["storageClassName", "type"];

/// Whether a built-in kind's field is written with this value.
fn is_kept(parent: At<'_>, name: &str, value: &Value, path: &str) -> bool {
    let Some((at, member)) = parent.declared(name) else {
        // An entry of a map stays, whatever it is.
        return !value.is_null() || parent.others().is_some_and(is_text);
    };
    let is_plain =
        member.default.is_none() && !parent.rules.required.iter().any(|required| **required == *name);
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty() || !is_plain,
        Value::Object(members) => {
            !members.is_empty() || !matches!(at.shape(), Form::Object { members, .. } if members.is_empty())
        }
        Value::String(text) => !text.is_empty() || !is_plain || KEPT_IF_EMPTY.contains(&name),
        Value::Bool(_) | Value::Number(_) => {
            let is_zero = *value == false || *value == 0;
            !is_zero
                || !is_plain
                || !(EMPTY_IF_ZERO.contains(&name) || path.starts_with("status.") && *value == 0)
        }
    }
}
