//! A set of fields, as `managedFields` has it.

use crate::schema::At;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Fields of an object: of this value, whether it is one itself, and what is below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) owned: bool,
    /// Below members, by name.
    fields: BTreeMap<Box<str>, Set>,
    /// Below items of a list, by what tells them apart: `k:{"name":"a"}`, `v:"a"`.
    items: BTreeMap<Box<str>, Set>,
}

impl Set {
    /// Below these members, each whole.
    pub(super) fn of(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let mut at = &mut set;
            for name in *path {
                at = at.fields.entry((*name).into()).or_default();
            }
            at.owned = true;
        }
        set
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.owned && self.fields.is_empty() && self.items.is_empty()
    }

    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        self.fields.get(name)
    }

    pub(super) fn item(&self, element: &str) -> Option<&Self> {
        self.items.get(element)
    }

    pub(super) fn put_field(&mut self, name: &str, below: Self) {
        if !below.is_empty() {
            self.fields.insert(name.into(), below);
        }
    }

    pub(super) fn put_item(&mut self, element: &str, below: Self) {
        if !below.is_empty() {
            self.items.insert(element.into(), below);
        }
    }

    /// Adds all of the other.
    pub(super) fn join(&mut self, other: &Self) {
        self.owned |= other.owned;
        for (of, by) in [(&mut self.fields, &other.fields), (&mut self.items, &other.items)] {
            for (name, below) in by {
                match of.get_mut(name) {
                    Some(known) => known.join(below),
                    None => drop(of.insert(name.clone(), below.clone())),
                }
            }
        }
    }

    /// Removes all of the other. What is below a removed field stays.
    pub(super) fn subtract(&mut self, other: &Self) {
        self.owned &= !other.owned;
        self.each(other, Set::subtract);
    }

    /// Removes all of the other, and what is below.
    pub(super) fn subtract_whole(&mut self, other: &Self) {
        if other.owned {
            *self = Self::default();
        } else {
            self.each(other, Set::subtract_whole);
        }
    }

    fn each(&mut self, other: &Self, remove: impl Fn(&mut Self, &Self)) {
        for (of, by) in [(&mut self.fields, &other.fields), (&mut self.items, &other.items)] {
            for (name, below) in by {
                if let Some(known) = of.get_mut(name) {
                    remove(known, below);
                    if known.is_empty() {
                        of.remove(name);
                    }
                }
            }
        }
    }

    /// What is in both.
    pub(super) fn common(&self, other: &Self) -> Self {
        let mut both = Self { owned: self.owned && other.owned, ..Self::default() };
        for (name, below) in &self.fields {
            if let Some(other) = other.fields.get(name) {
                both.put_field(name, below.common(other));
            }
        }
        for (element, below) in &self.items {
            if let Some(other) = other.items.get(element) {
                both.put_item(element, below.common(other));
            }
        }
        both
    }

    /// Whether all of it is in the other.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        (!self.owned || other.owned)
            && self
                .fields
                .iter()
                .all(|(name, below)| other.field(name).is_some_and(|other| below.is_within(other)))
            && self
                .items
                .iter()
                .all(|(name, below)| other.item(name).is_some_and(|other| below.is_within(other)))
    }

    /// Makes every declared member on the way to a field a field itself.
    pub(super) fn with_declared(mut self, at: At<'_>) -> Self {
        for (name, below) in &mut self.fields {
            let declared = at.declared(name).map(|(at, _)| at);
            if let Some(at) = declared.or_else(|| at.others()) {
                *below = std::mem::take(below).with_declared(at);
            }
            below.owned |= declared.is_some();
        }
        for below in self.items.values_mut() {
            *below = std::mem::take(below).with_declared(at.items());
        }
        self
    }

    /// As `fieldsV1` has it.
    pub(super) fn to_json(&self) -> Value {
        let fields = self.fields.iter().map(|(name, below)| (format!("f:{name}"), below.to_json()));
        let items = self.items.iter().map(|(element, below)| (element.to_string(), below.to_json()));
        let mut json: Map<String, Value> = fields.chain(items).collect();
        if self.owned && !json.is_empty() {
            json.insert(".".into(), json!({}));
        }
        Value::Object(json)
    }

    /// From `fieldsV1`.
    pub(super) fn from_json(json: &Value) -> Self {
        let mut set = Self::below(json);
        set.owned = json.get(".").is_some();
        set
    }

    fn below(json: &Value) -> Self {
        let members = json.as_object().into_iter().flatten();
        let mut set = Self::default();
        for (name, below) in members {
            let mut inner = Self::below(below);
            inner.owned = below.as_object().is_some_and(|below| below.is_empty() || below.contains_key("."));
            match name.strip_prefix("f:") {
                Some(field) => drop(set.fields.insert(field.into(), inner)),
                None if name == "." => {}
                None => drop(set.items.insert(name.as_str().into(), inner)),
            }
        }
        set
    }

    /// The paths of the fields, as messages have them: `.spec.containers[name="a"].image`.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.add_paths("", &mut paths);
        paths
    }

    fn add_paths(&self, path: &str, paths: &mut Vec<String>) {
        if self.owned {
            paths.push(path.to_owned());
        }
        for (name, below) in &self.fields {
            below.add_paths(&format!("{path}.{name}"), paths);
        }
        for (element, below) in &self.items {
            below.add_paths(&format!("{path}{}", shown(element)), paths);
        }
    }
}

/// An item of a list, as messages have it: `[name="a"]`, `[="a"]`.
pub(super) fn shown(element: &str) -> String {
    let (kind, json) = element.split_at(2);
    match serde_json::from_str(json) {
        Ok(Value::Object(keys)) if kind == "k:" => {
            let keys: Vec<_> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        _ => format!("[={json}]"),
    }
}
