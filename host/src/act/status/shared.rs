//! Conditions of ours that go, and that somebody else shares.
//!
//! Whoever has forced a condition of ours owns what we have not changed back since, its type at least. An apply
//! that leaves the condition out then takes off only our part, and what is left over is no valid condition: the API
//! server refuses the whole status, for ever. A patch of the list takes it off for everybody.
//! Never: I/O, clocks.

use super::merge::{CONDITIONS, elements};
use crate::{act::owned, object::Object};
use serde_json::{Value, json};

/// Whether an apply of this body would take off conditions that are the manager's.
pub(super) fn has_going(parent: &Object, manager: &str, body: &Value) -> bool {
    take_off(parent, manager, body).is_some()
}

/// The JSON patch that takes them off the status as it stands here, and no other; `None` if there are none.
pub(super) fn take_off(parent: &Object, manager: &str, body: &Value) -> Option<String> {
    let owned = owned::of(parent, manager, true);
    let owned = owned::member(owned::member(&owned, "status")?, CONDITIONS)?;
    let live: Value = serde_json::from_str(parent.status.as_deref()?).ok()?;
    let kept = elements(body.pointer("/status/conditions"));
    let goes = |one: &Value| {
        let is_ours = owned::elements(owned).any(|(step, _)| step.names(one) == Some(0));
        is_ours && !kept.iter().any(|kept| kept["type"] == one["type"])
    };
    let going = elements(live.get(CONDITIONS)).iter().enumerate().filter(|(_, one)| goes(one));
    // From the end on: a removal moves what comes after it.
    let mut patch: Vec<_> = going
        .map(|(at, _)| json!({"op": "remove", "path": format!("/status/conditions/{at}")}))
        .rev()
        .collect();
    if patch.is_empty() {
        return None;
    }
    // The places are those of this version.
    patch.insert(
        0,
        json!({"op": "add", "path": "/metadata/resourceVersion", "value": parent.version.as_str()}),
    );
    Some(Value::Array(patch).to_string())
}
