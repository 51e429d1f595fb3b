//! What a field manager owns of an object: the tree that the API server keeps in `managedFields`.
//!
//! A node is `{}` where the value as a whole is owned. Else it has a member per owned part: `f:<name>` of an
//! object, `k:{"name":"web"}` of a list that merges by key, `v:"a"` of a list that is a set; and `.` for the value
//! itself. This tree is the only exact answer to two questions: how does a list of any kind merge, and did
//! somebody else write a field after us?
//! Never: I/O, clocks.

use crate::object::Object;
use serde_json::{Map, Value};

/// What the manager owns of the object, or of its status subresource; null if nothing.
pub(super) fn of(object: &Object, manager: &str, status: bool) -> Value {
    let mut owned = Value::Null;
    for entry in
        object.owned_fields.iter().filter(|entry| *entry.manager == *manager && entry.status == status)
    {
        // The API server wrote it; what is no JSON all the same owns nothing.
        merge(&mut owned, serde_json::from_str(&entry.fields).unwrap_or_default());
    }
    owned
}

/// One manager has an entry per operation and version.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, node) in from {
                merge(into.entry(name).or_insert(Value::Null), node);
            }
        }
        (into, from) => {
            if into.is_null() {
                *into = from;
            }
        }
    }
}

/// Whether the value is owned as a whole.
pub(super) fn is_leaf(node: &Value) -> bool {
    node.as_object().is_some_and(Map::is_empty)
}

/// The node of a member of an object.
pub(super) fn member<'a>(node: &'a Value, name: &str) -> Option<&'a Value> {
    node.get(format!("f:{name}"))
}

/// The owned members of an object, by name.
pub(super) fn members(node: &Value) -> impl Iterator<Item = (&str, &Value)> {
    node.as_object().into_iter().flatten().filter_map(|(step, node)| Some((step.strip_prefix("f:")?, node)))
}

/// One owned element of a list.
#[derive(Clone, PartialEq)]
pub(super) enum Step {
    /// Of a list that merges by key: the members that tell elements apart.
    Key(Map<String, Value>),
    /// Of a set.
    Item(Value),
}

impl Step {
    /// Whether this names that element. Members of the key that an element leaves out are defaulted by the API
    /// server, such as a port's protocol: so many of them had to be guessed.
    pub(super) fn names(&self, element: &Value) -> Option<usize> {
        match self {
            Self::Item(item) => (item == element).then_some(0),
            Self::Key(key) => key.iter().try_fold(0, |guessed, (name, value)| match element.get(name) {
                Some(given) => (given == value).then_some(guessed),
                None => Some(guessed + 1),
            }),
        }
    }
}

/// The owned elements of a list.
pub(super) fn elements(node: &Value) -> impl Iterator<Item = (Step, &Value)> {
    node.as_object().into_iter().flatten().filter_map(|(step, node)| {
        let step = match step.split_at_checked(2)? {
            ("k:", key) => Step::Key(serde_json::from_str(key).ok()?),
            ("v:", item) => Step::Item(serde_json::from_str(item).ok()?),
            _ => return None,
        };
        Some((step, node))
    })
}

/// The part of a live value that is owned, in the live order; `None` if nothing of it is.
pub(super) fn part(live: &Value, node: &Value) -> Option<Value> {
    if is_leaf(node) {
        return Some(live.clone());
    }
    match live {
        Value::Object(live) => {
            let parts: Map<String, Value> = members(node)
                .filter_map(|(name, node)| Some((name.to_owned(), part(live.get(name)?, node)?)))
                .collect();
            (!parts.is_empty() || node.get(".").is_some()).then_some(Value::Object(parts))
        }
        Value::Array(live) => {
            let owned: Vec<_> = elements(node).collect();
            let parts = live.iter().filter_map(|element| {
                let (_, node) = owned.iter().find(|(step, _)| step.names(element) == Some(0))?;
                part(element, node)
            });
            Some(Value::Array(parts.collect()))
        }
        // A scalar is owned as a whole or not at all.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Takes empty objects out of what is to be applied where the manager owns parts of what stands there.
///
/// The API server takes the parts away, is left with null instead of the empty object, and refuses the whole
/// apply. Left out, the object goes; the pass after that finds it missing and applies it as empty.
pub(super) fn leave_out_emptied(desired: &mut Value, node: &Value) {
    match desired {
        Value::Object(desired) => desired.retain(|name, value| {
            let Some(node) = member(node, name) else { return true };
            let is_emptied = value.as_object().is_some_and(Map::is_empty) && !is_leaf(node);
            leave_out_emptied(value, node);
            !is_emptied
        }),
        Value::Array(desired) => {
            let owned: Vec<_> = elements(node).collect();
            for element in desired {
                if let Some((_, node)) = owned.iter().find(|(step, _)| step.names(element).is_some()) {
                    leave_out_emptied(element, node);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn part_is_what_is_owned_and_nothing_else() {
        let live = json!({
            "whole": {"a": [1]}, "object": {"mine": 1, "theirs": 2}, "foreign": true,
            "list": [{"name": "a", "x": 1, "y": 2}, {"name": "b"}], "set": ["p", "q"], "big": u64::MAX,
        });
        let node = json!({
            "f:whole": {}, "f:object": {"f:mine": {}}, "f:gone": {}, "f:big": {},
            "f:list": {r#"k:{"name":"a"}"#: {".": {}, "f:name": {}, "f:y": {}}}, "f:set": {r#"v:"q""#: {}},
        });
        let expected = json!({
            "whole": {"a": [1]}, "object": {"mine": 1}, "list": [{"name": "a", "y": 2}], "set": ["q"],
            "big": u64::MAX,
        });
        assert_eq!(part(&live, &node), Some(expected));
        assert_eq!(part(&live, &json!({"f:foreign": {"f:x": {}}})), None);
    }

    #[test]
    fn emptied_objects_are_left_out_where_parts_of_them_are_owned() {
        let node = json!({
            "f:emptied": {"f:a": {}}, "f:still": {}, "f:in": {"f:deep": {".": {}, "f:a": {}}},
            "f:list": {r#"k:{"name":"a"}"#: {"f:o": {"f:x": {}}}},
        });
        let mut desired = json!({
            "emptied": {}, "still": {}, "new": {}, "in": {"deep": {}}, "list": [{"name": "a", "o": {}}],
        });
        leave_out_emptied(&mut desired, &node);
        assert_eq!(desired, json!({"still": {}, "new": {}, "in": {}, "list": [{"name": "a"}]}));
    }
}
