//! What the schema takes of a status; the API server would drop the rest, or refuse all of it (rule S8).
//!
//! Never: I/O, clocks.

use super::{
    Desired,
    merge::{CONDITIONS, OBSERVED_GENERATION},
};
use crate::observe::discovery::{Fields, StatusSchema};
use serde_json::Value;
use std::collections::BTreeSet;

/// The part that the schema declares, and the paths of what it does not: `status.a.b`, `status.list[*].x`.
pub(super) fn declared(desired: &Desired, schema: &StatusSchema) -> (Desired, BTreeSet<String>) {
    let mut desired = desired.clone();
    let mut undeclared = BTreeSet::new();
    if let Some(fields) = desired.fields.take() {
        let mut status = Value::Object(fields);
        prune(&mut status, &schema.fields, "status", &mut undeclared);
        desired.fields = status.as_object_mut().map(std::mem::take);
    }
    // These two are the host's; a plan has no say in them.
    let own = [CONDITIONS, OBSERVED_GENERATION].map(|name| format!("status.{name}"));
    undeclared.retain(|path| !own.contains(path));
    if !desired.conditions.is_empty() {
        if schema.conditions.is_none() {
            undeclared.insert(format!("status.{CONDITIONS}"));
        }
        for name in ["type", "status", "reason", "message"] {
            if condition_fields(schema).is_some_and(|fields| fields.member(name).is_none()) {
                undeclared.insert(format!("status.{CONDITIONS}[*].{name}"));
            }
        }
    }
    (desired, undeclared)
}

/// What a condition may hold; `None` where the schema does not say.
pub(super) fn condition_fields(schema: &StatusSchema) -> Option<&Fields> {
    match schema.fields.member(CONDITIONS)? {
        Fields::List(each) => Some(each),
        Fields::Any | Fields::Object { .. } => None,
    }
}

/// Takes out what is not declared, and tells the paths of it.
pub(super) fn prune(value: &mut Value, fields: &Fields, path: &str, undeclared: &mut BTreeSet<String>) {
    match (value, fields) {
        (Value::Object(object), Fields::Object { members, .. }) => object.retain(|name, value| {
            let Some(below) = fields.member(name) else {
                undeclared.insert(format!("{path}.{name}"));
                return false;
            };
            let name = if members.contains_key(&**name) { name } else { "*" };
            prune(value, below, &format!("{path}.{name}"), undeclared);
            true
        }),
        (Value::Array(list), Fields::List(each)) => {
            let path = format!("{path}[*]");
            for element in list {
                prune(element, each, &path, undeclared);
            }
        }
        // Of another type than the schema says: the API server tells.
        _ => {}
    }
}
