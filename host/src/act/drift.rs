//! Does a live object still hold what was applied?
//!
//! By ownership, not by value. Whoever changes or removes a field of ours becomes its owner, and we stop being one;
//! a field that is still ours has what the API server made of our value. So nothing has to be known about how it
//! writes quantities, which empties and zeros it drops, what it defaults, and how lists merge; and a webhook that
//! rewrites a field at each apply does not look like somebody else's change at each pass.
//! What the live object has beyond that is somebody else's.
//! Never: I/O, clocks.

#[cfg(test)]
mod tests;

use super::owned::{self, Step};
use crate::object::Object;
use serde_json::Value;
use std::borrow::Cow;

/// Fields of every object that have no owner, or are looked at apart.
const NOT_OWNED: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// Fields of `metadata` that have one; the others do not, and cannot change.
const OWNED_METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// The first path, such as `spec.template.spec.containers[web].image`, where `live` does not hold what the
/// manager applied as `desired`; `None` if it holds everything.
pub fn first_difference(desired: &Value, live: &Object, manager: &str) -> Option<String> {
    let node = owned::of(live, manager, false);
    // Only to tell how an empty list stands, as one that merges has no node.
    let body = has_empties(desired).then(|| serde_json::from_str::<Value>(&live.body).unwrap_or_default());
    let below =
        |desired: &Value, names: &dyn Fn(&str) -> bool, node: Option<&Value>, live: Option<&Value>| {
            let mut members = desired.as_object()?.iter().filter(|(name, _)| names(name));
            members.find_map(|(name, value)| {
                let node = node.and_then(|node| owned::member(node, name));
                lost(value, node, live.and_then(|live| live.get(name))).map(|path| join(name, &path))
            })
        };
    let metadata = || {
        let (node, live) =
            (owned::member(&node, "metadata"), body.as_ref().and_then(|body| body.get("metadata")));
        let path = below(desired.get("metadata")?, &|name| OWNED_METADATA.contains(&name), node, live)?;
        Some(join("metadata", &path))
    };
    below(desired, &|name| !NOT_OWNED.contains(&name), Some(&node), body.as_ref()).or_else(metadata)
}

/// The path below a value that is not ours any more; empty if it is the value itself.
fn lost(desired: &Value, node: Option<&Value>, live: Option<&Value>) -> Option<String> {
    let here = Some(String::new());
    let Some(node) = node else {
        return match desired {
            // No element, so nothing to own: holds unless somebody filled it.
            Value::Array(elements) if elements.is_empty() => {
                live.is_some_and(|live| live.as_array().is_none_or(|live| !live.is_empty())).then(String::new)
            }
            Value::Object(members) if members.is_empty() => {
                live.is_none_or(|live| !live.is_object()).then(String::new)
            }
            _ => here,
        };
    };
    if owned::is_leaf(node) {
        return None;
    }
    match desired {
        Value::Object(members) => members.iter().find_map(|(name, value)| {
            lost(value, owned::member(node, name), live.and_then(|live| live.get(name)))
                .map(|path| join(name, &path))
        }),
        Value::Array(elements) => lost_element(elements, node, live),
        // Owned in parts, so it is not the scalar that we applied.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => here,
    }
}

fn lost_element(desired: &[Value], node: &Value, live: Option<&Value>) -> Option<String> {
    let mut free: Vec<(Step, &Value)> = owned::elements(node).collect();
    // Those that name their whole key choose first: a port without a protocol takes what is left.
    let mut desired: Vec<&Value> = desired.iter().collect();
    desired.sort_by_key(|element| free.iter().filter_map(|(step, _)| step.names(element)).min());
    desired.into_iter().find_map(|element| {
        let at = (0..free.len()).min_by_key(|at| free[*at].0.names(element).unwrap_or(usize::MAX));
        let Some(at) = at.filter(|at| free[*at].0.names(element).is_some()) else {
            return Some(format!("[{}]", label(element)));
        };
        let (step, node) = free.swap_remove(at);
        let live = live
            .and_then(Value::as_array)
            .and_then(|live| live.iter().find(|live| step.names(live) == Some(0)));
        lost(element, Some(node), live).map(|path| join(&format!("[{}]", label(element)), &path))
    })
}

/// How people tell an element: by its name, or the first text or number that it has.
fn label(element: &Value) -> Cow<'_, str> {
    let said = match element {
        Value::Object(members) => {
            members.get("name").or_else(|| members.values().find(|value| is_short(value)))
        }
        scalar => Some(scalar),
    };
    match said {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(value) => Cow::Owned(value.to_string()),
        None => Cow::Borrowed("…"),
    }
}

fn is_short(value: &Value) -> bool {
    value.is_string() || value.is_number()
}

fn join(name: &str, below: &str) -> String {
    let dot = if below.is_empty() || below.starts_with('[') { "" } else { "." };
    format!("{name}{dot}{below}")
}

fn has_empties(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty() || members.values().any(has_empties),
        Value::Array(elements) => elements.is_empty() || elements.iter().any(has_empties),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
