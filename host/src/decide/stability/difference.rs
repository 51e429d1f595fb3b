//! The first place where two answers of a guest differ.

use super::Said;
use crate::{
    decide::plan::{Child, Condition, Plan, cut},
    observe::reads::Answer,
};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    sync::Arc,
};

/// Bytes of a value that are shown: enough to recognise it.
const SHOWN: usize = 64;
/// Bytes of a path that are shown.
const PATH: usize = 512;

/// Where two answers differ, and what stands there.
pub(super) struct Difference {
    /// As in `status.phases[2]` or `children[ConfigMap demo/w1].data.n`.
    pub(super) path: String,
    /// Before and after; not those of Secrets.
    values: Option<(String, String)>,
    /// Whether the children themselves are others, not only what is in them.
    pub(super) of_children: bool,
}

impl Difference {
    fn new(path: impl Into<String>, before: &str, after: &str) -> Self {
        let values = Some((cut(before, SHOWN), cut(after, SHOWN)));
        Self { path: cut(&path.into(), PATH), values, of_children: false }
    }

    pub(super) fn say(&self) -> Said {
        let path = &self.path;
        let change = match &self.values {
            Some((before, after)) => format!("{path} went from {before} to {after}"),
            None => format!("{path} changed"),
        };
        let message = format!(
            "the plugin's answer never settles: {change} though nothing differed but the time and what the \
             plugin wrote itself; until it settles the plugin is called less often"
        );
        Said { path: path.clone(), message: Arc::from(message) }
    }
}

/// Compares what of two answers is written. Events and the time of the next look are not; nor is the order of
/// children and of conditions.
pub(super) fn between(before: &Answer, after: &Answer) -> Option<Difference> {
    match (before, after) {
        (Ok(before), Ok(after)) => between_plans(&before.plan, &after.plan),
        // The back-off bounds what is tried again.
        (Err(before), Err(after)) if before.is_transient() && after.is_transient() => None,
        (Err(before), Err(after)) => {
            let [before, after] = [before, after].map(ToString::to_string);
            (before != after).then(|| Difference::new("the failure's message", &before, &after))
        }
        (Ok(_), Err(failure)) => {
            Some(Difference::new("the answer", "a plan", &format!("failure: {failure}")))
        }
        (Err(failure), Ok(_)) => {
            Some(Difference::new("the answer", &format!("failure: {failure}"), "a plan"))
        }
    }
}

fn between_plans(before: &Plan, after: &Plan) -> Option<Difference> {
    of_children(&before.children, &after.children)
        .or_else(|| of_members("status", &before.status, &after.status))
        .or_else(|| of_conditions(&before.conditions, &after.conditions))
        .or_else(|| of_texts("metadata.labels", &before.labels, &after.labels))
        .or_else(|| of_texts("metadata.annotations", &before.annotations, &after.annotations))
}

fn of_children(before: &[Child], after: &[Child]) -> Option<Difference> {
    if before == after {
        return None;
    }
    let old: HashMap<_, _> = before.iter().map(|child| (&child.key, child)).collect();
    let new: HashMap<_, _> = after.iter().map(|child| (&child.key, child)).collect();
    let only = |these: &[Child], those: &HashMap<_, _>| -> String {
        let names = these.iter().filter(|child| !those.contains_key(&child.key));
        let names: Vec<_> = names.map(|child| child.key.to_string()).collect();
        if names.is_empty() { "none more".to_owned() } else { names.join(", ") }
    };
    if old.len() != new.len() || new.keys().any(|key| !old.contains_key(key)) {
        let (before, after) = (only(before, &new), only(after, &old));
        return Some(Difference { of_children: true, ..Difference::new("children", &before, &after) });
    }
    after.iter().find_map(|child| {
        let path = format!("children[{}]", child.key);
        let found = of_members(&path, &old.get(&child.key)?.object, &child.object)?;
        let is_secret = child.key.gvk.group.is_empty() && &*child.key.gvk.kind == "Secret";
        Some(if is_secret { Difference { values: None, ..found } } else { found })
    })
}

fn of_members(path: &str, before: &Map<String, Value>, after: &Map<String, Value>) -> Option<Difference> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    names.into_iter().find_map(|name| {
        let (before, after) = (before.get(name), after.get(name));
        if before == after { None } else { of_values(member(path, name), before, after) }
    })
}

fn of_values(path: String, before: Option<&Value>, after: Option<&Value>) -> Option<Difference> {
    match (before, after) {
        (Some(before), Some(after)) if before == after => None,
        (Some(Value::Object(before)), Some(Value::Object(after))) => of_members(&path, before, after),
        (Some(Value::Array(old)), Some(Value::Array(new)))
            if old.len() == new.len() && !is_reordered(old, new) =>
        {
            let mut pairs = old.iter().zip(new).enumerate();
            pairs.find_map(|(at, (old, new))| of_values(format!("{path}[{at}]"), Some(old), Some(new)))
        }
        (before, after) => {
            let text = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), ToString::to_string);
            Some(Difference::new(path, &text(before), &text(after)))
        }
    }
}

/// Whether these are the same elements.
fn is_reordered(before: &[Value], after: &[Value]) -> bool {
    let mut counts: HashMap<&Value, isize> = HashMap::new();
    for (values, by) in [(before, 1), (after, -1)] {
        for value in values {
            *counts.entry(value).or_default() += by;
        }
    }
    counts.values().all(|count| *count == 0)
}

fn of_conditions(before: &[Condition], after: &[Condition]) -> Option<Difference> {
    let find =
        |all: &[Condition], one: &Condition| all.iter().find(|other| other.r#type == one.r#type).cloned();
    let gone = before.iter().find(|one| find(after, one).is_none());
    if let Some(gone) = gone {
        return Some(Difference::new(format!("conditions[{}]", gone.r#type), gone.status.as_str(), "absent"));
    }
    after.iter().find_map(|one| {
        let path = format!("conditions[{}]", one.r#type);
        let Some(old) = find(before, one) else {
            return Some(Difference::new(path, "absent", one.status.as_str()));
        };
        let fields = [
            ("status", old.status.as_str(), one.status.as_str()),
            ("reason", &*old.reason, &*one.reason),
            ("message", &*old.message, &*one.message),
        ];
        let (field, old, new) = fields.into_iter().find(|(_, old, new)| old != new)?;
        Some(Difference::new(format!("{path}.{field}"), old, new))
    })
}

fn of_texts(
    path: &str,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Option<Difference> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let name = names.into_iter().find(|name| before.get(*name) != after.get(*name))?;
    let text = |texts: &BTreeMap<String, String>| texts.get(name).cloned();
    let text = |texts| text(texts).unwrap_or_else(|| "absent".to_owned());
    Some(Difference::new(member(path, name), &text(before), &text(after)))
}

/// `path.name`, or `path["a.b/c"]` where the name would be taken for several.
fn member(path: &str, name: &str) -> String {
    let mut path = path.to_owned();
    let is_plain = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    // Writing to a string does not fail.
    let _ = if is_plain { write!(path, ".{name}") } else { write!(path, "[{name:?}]") };
    path
}
