//! What the schema makes of two values: what is in them, how they differ, and what they are together.

use super::set::{Set, shown};
use crate::schema::{At, Form, List, Scalar};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What is there, to its owners.
enum View<'a> {
    /// One value.
    Leaf,
    Members(Option<&'a Map<String, Value>>),
    Items(&'a [Value], &'a List),
}

/// A value that is null may be anything, and has nothing below.
fn view<'a>(at: At<'a>, value: &'a Value) -> View<'a> {
    match (at.shape(), value) {
        (Form::Any { atomic: false } | Form::Object { atomic: false, .. }, Value::Object(members)) => {
            View::Members(Some(members))
        }
        (Form::Object { atomic: false, .. }, _) => View::Members(None),
        (Form::List { list: list @ (List::Map(_) | List::Set), .. }, value) => {
            View::Items(value.as_array().map_or(&[], Vec::as_slice), list)
        }
        _ => View::Leaf,
    }
}

/// What tells an item from its siblings: `k:{"name":"a"}`, `v:"a"`.
fn element(at: At<'_>, list: &List, item: &Value) -> Result<String, String> {
    let List::Map(keys) = list else {
        return Ok(format!("v:{item}"));
    };
    let Value::Object(members) = item else {
        return Err("associative list with keys may not have non-map elements".into());
    };
    let mut found = BTreeMap::new();
    for key in keys {
        let default = at.items().declared(key).and_then(|(_, member)| member.default.as_ref());
        if let Some(value) = members.get(&**key).or(default) {
            found.insert(&**key, value);
        }
    }
    // A key that is missing is for validation to refuse, if there is any at all.
    if found.is_empty() {
        let keys = keys.join(", ");
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{keys:?}]"
        ));
    }
    Ok(format!("k:{}", json!(found)))
}

/// The items with what tells them apart; what has no key is passed over, as it cannot be owned.
fn elements<'a>(at: At<'_>, list: &List, items: &'a [Value]) -> Vec<(String, &'a Value)> {
    items.iter().filter_map(|item| Some((element(at, list, item).ok()?, item))).collect()
}

/// All fields of a value that whoever applies it owns.
pub(super) fn fields(at: At<'_>, value: &Value) -> Set {
    let mut set = Set::default();
    match view(at, value) {
        View::Leaf => set.owned = true,
        View::Members(members) => {
            for (name, value) in members.into_iter().flatten() {
                let declared = at.declared(name).map(|(at, _)| at);
                let Some(at) = declared.or_else(|| at.others()) else { continue };
                let mut below = fields(at, value);
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                below.owned |= is_empty || declared.is_none();
                set.put_field(name, below);
            }
        }
        View::Items(items, list) => {
            for (element, item) in elements(at, list, items) {
                let mut below = fields(at.items(), item);
                below.owned = true;
                set.put_item(&element, below);
            }
        }
    }
    set
}

/// What is wrong with a value that is to be applied: fields that no schema declares, values of another type, items
/// that cannot be told apart.
pub(super) fn problems(at: At<'_>, value: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(expected) = mismatch(at, value) {
        found.push(format!("{path}: expected {expected}, got {}", shown_value(at, value)));
        return;
    }
    match view(at, value) {
        View::Leaf => {
            if let (Form::List { .. }, Value::Array(items)) = (at.shape(), value) {
                for (index, item) in items.iter().enumerate() {
                    problems(at.items(), item, &format!("{path}[{index}]"), found);
                }
            }
            if let (Form::Object { .. }, Value::Object(members)) = (at.shape(), value) {
                member_problems(at, members, path, found);
            }
        }
        View::Members(members) => {
            if let Some(members) = members {
                member_problems(at, members, path, found);
            }
        }
        View::Items(items, list) => {
            let mut seen = BTreeSet::new();
            for (index, item) in items.iter().enumerate() {
                match element(at, list, item) {
                    Ok(element) => {
                        problems(at.items(), item, &format!("{path}{}", shown(&element)), found);
                        if seen.contains(&element) {
                            found.push(format!("{path}: duplicate entries for key {}", shown(&element)));
                        }
                        seen.insert(element);
                    }
                    Err(why) => found.push(format!("{path}: element {index}: {why}")),
                }
            }
        }
    }
}

fn member_problems(at: At<'_>, members: &Map<String, Value>, path: &str, found: &mut Vec<String>) {
    for (name, value) in members {
        let path = format!("{path}.{name}");
        match at.member(name) {
            Some(at) => problems(at, value, &path, found),
            None => return found.push(format!("{path}: field not declared in schema")),
        }
    }
}

fn mismatch(at: At<'_>, value: &Value) -> Option<&'static str> {
    if value.is_null() {
        return None;
    }
    let (fits, expected) = match at.shape() {
        Form::Any { .. } => (true, ""),
        Form::Scalar(Scalar::String) => (value.is_string(), "string"),
        Form::Scalar(Scalar::Boolean) => (value.is_boolean(), "boolean"),
        Form::Scalar(Scalar::Integer | Scalar::Number) => (value.is_number(), "numeric (int or float)"),
        Form::Scalar(Scalar::Either) => (!value.is_object() && !value.is_array(), "scalar"),
        Form::Object { .. } => (value.is_object(), "map"),
        Form::List { .. } => (value.is_array(), "list"),
    };
    (!fits).then_some(expected)
}

/// As the API server's messages have it, which is as its parts are in memory.
fn shown_value(at: At<'_>, value: &Value) -> String {
    fn plain(value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Array(items) => {
                format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" "))
            }
            Value::Object(members) => {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("{name}:{}", plain(value))).collect();
                format!("map[{}]", members.join(" "))
            }
            other => other.to_string(),
        }
    }
    match (at.shape(), value) {
        (Form::Scalar(Scalar::Integer | Scalar::Number), Value::String(_)) => "string".to_owned(),
        (Form::Scalar(_), _) => format!("&value.valueUnstructured{{Value:{}}}", plain(value)),
        _ => format!("&{{{}}}", plain(value)),
    }
}

/// The fields in which two values differ.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) added: Set,
    pub(super) removed: Set,
    pub(super) modified: Set,
}

impl Difference {
    fn put_field(&mut self, name: &str, below: Self) {
        self.added.put_field(name, below.added);
        self.removed.put_field(name, below.removed);
        self.modified.put_field(name, below.modified);
    }

    fn put_item(&mut self, element: &str, below: Self) {
        self.added.put_item(element, below.added);
        self.removed.put_item(element, below.removed);
        self.modified.put_item(element, below.modified);
    }
}

/// How the one differs from the other; a value that is not there differs in all there is.
pub(super) fn compare(at: At<'_>, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut difference = Difference::default();
    compare_below(at, old, new, &mut difference);
    difference.added.owned |= old.is_none() && new.is_some();
    difference.removed.owned |= new.is_none() && old.is_some();
    difference
}

fn compare_below(at: At<'_>, old: Option<&Value>, new: Option<&Value>, difference: &mut Difference) {
    // Null takes the form of what it is compared with.
    let views = [old, new].map(|value| value.map(|value| view(at, value)));
    let members = |value: Option<&'_ Value>| {
        value.and_then(Value::as_object).as_ref().is_some_and(|members| !members.is_empty())
    };
    let items = |value: Option<&'_ Value>| {
        value.and_then(Value::as_array).as_ref().is_some_and(|items| !items.is_empty())
    };
    let mut is_leaf = true;
    if views.iter().flatten().any(|view| matches!(view, View::Members(_))) && (members(old) || members(new)) {
        let empty = Map::new();
        let [was, is] = [old, new].map(|value| value.and_then(Value::as_object).unwrap_or(&empty));
        let gone = was.keys().filter(|name| !is.contains_key(*name));
        for name in is.keys().chain(gone) {
            if let Some(at) = at.member(name) {
                difference.put_field(name, compare(at, was.get(name), is.get(name)));
            }
        }
        // Only a value without a schema may have been an object and be none now.
        is_leaf = old.zip(new).is_some_and(|(old, new)| {
            [old, new].into_iter().any(|value| !value.is_object() && !value.is_null())
        });
    } else if let Form::List { list: list @ (List::Set | List::Map(_)), .. } = at.shape()
        && (items(old) || items(new))
    {
        let [was, is] =
            [old, new].map(|value| value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice));
        let [was, is] =
            [was, is].map(|items| elements(at, list, items).into_iter().collect::<BTreeMap<_, _>>());
        let gone = was.keys().filter(|element| !is.contains_key(*element));
        for element in is.keys().chain(gone) {
            difference
                .put_item(element, compare(at.items(), was.get(element).copied(), is.get(element).copied()));
        }
        is_leaf = false;
    }
    if is_leaf && let (Some(old), Some(new)) = (old, new) {
        difference.modified.owned = !is_equal(old, new);
    }
}

/// Whether two values are the same: 1 and 1.0 are.
pub(super) fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_equal(a, b)))
        }
        _ => a == b,
    }
}

/// A value with all that is applied to it.
pub(super) fn merge(at: At<'_>, live: Option<&Value>, applied: Option<&Value>) -> Value {
    let Some(applied) = applied else { return live.cloned().unwrap_or_default() };
    let Some(live) = live else { return applied.clone() };
    match (view(at, live), view(at, applied)) {
        (View::Members(live_members), View::Members(members))
            if live_members.is_some_and(|live| !live.is_empty())
                || members.is_some_and(|members| !members.is_empty()) =>
        {
            let mut merged = live_members.cloned().unwrap_or_default();
            for (name, applied) in members.into_iter().flatten() {
                let Some(at) = at.member(name) else { continue };
                let value = merge(at, merged.get(name), Some(applied));
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (View::Items(live_items, list), View::Items(items, _))
            if !live_items.is_empty() || !items.is_empty() =>
        {
            Value::Array(merge_items(at, list, live_items, items))
        }
        // Where the schema does not tell what it is, null is an empty one of what it meets.
        (View::Members(_), View::Leaf) if applied.is_null() => live.clone(),
        _ => applied.clone(),
    }
}

/// The applied items stay in their order; those that are only live stay where they are between the shared ones.
fn merge_items(at: At<'_>, list: &List, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let live = elements(at, list, live);
    let applied = elements(at, list, applied);
    let by_element: BTreeMap<&str, &Value> =
        live.iter().rev().map(|(element, item)| (&**element, *item)).collect();
    let is_applied: BTreeSet<&str> = applied.iter().map(|(element, _)| &**element).collect();
    let mut shared =
        applied.iter().map(|(element, _)| &**element).filter(|element| by_element.contains_key(element));
    let mut next_shared = shared.next();
    let mut live = live.iter().peekable();
    let mut merged = Vec::with_capacity(live.len() + applied.len());
    for (element, item) in &applied {
        while let Some((before, only)) = live.next_if(|(before, _)| Some(&**before) != next_shared) {
            if !is_applied.contains(&**before) {
                merged.push((*only).clone());
            }
        }
        if Some(&**element) == next_shared {
            live.next();
            next_shared = shared.next();
        }
        merged.push(merge(at.items(), by_element.get(&**element).copied(), Some(item)));
    }
    merged.extend(
        live.filter(|(element, _)| !is_applied.contains(&**element)).map(|(_, item)| (*item).clone()),
    );
    merged
}

/// A value without these fields; null where nothing of it is left.
pub(super) fn without(at: At<'_>, value: &Value, fields: &Set) -> Value {
    match view(at, value) {
        View::Members(Some(members)) if !members.is_empty() => {
            let mut left = Map::new();
            for (name, value) in members {
                match fields.field(name) {
                    Some(below) if below.owned => {}
                    Some(below) => {
                        let value = at.member(name).map_or(Value::Null, |at| without(at, value, below));
                        left.insert(name.clone(), value);
                    }
                    None => drop(left.insert(name.clone(), value.clone())),
                }
            }
            if left.is_empty() { Value::Null } else { Value::Object(left) }
        }
        View::Items(items, list) if !items.is_empty() => {
            let mut left = Vec::new();
            for item in items {
                let below = element(at, list, item).ok().and_then(|element| fields.item(&element));
                match below {
                    Some(below) if below.owned => {}
                    Some(below) => left.push(without(at.items(), item, below)),
                    None => left.push(item.clone()),
                }
            }
            if left.is_empty() { Value::Null } else { Value::Array(left) }
        }
        _ => value.clone(),
    }
}
