//! What stands in a status and what should stand there become the body of one apply, or nothing.
//!
//! Never: I/O, clocks.

use super::{
    Desired, Patch,
    declared::{condition_fields, prune},
};
use crate::{
    act::{
        identity,
        owned::{self, Step},
    },
    decide::plan::Condition,
    object::Object,
    observe::discovery::{ConditionList, StatusSchema},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Conditions that the host itself sets for every plugin.
const HOST_TYPES: [&str; 3] = ["Ready", "Reconciling", "Stalled"];
/// Those of them that are there only while true: a pass that does not say them says that they are over.
const LEVELS: [&str; 2] = ["Reconciling", "Stalled"];
pub(super) const CONDITIONS: &str = "conditions";
pub(super) const OBSERVED_GENERATION: &str = "observedGeneration";

/// Merges what should be said, and the schema declares, with what stands there: `None` if only times would differ.
///
/// `lastTransitionTime` moves only when a condition's status changes. Which conditions are this plugin's is
/// read from its field manager's entry where the list is a map; where it is atomic, they are those of `own_types`
/// and of the host.
pub fn merge(
    parent: &Object,
    desired: &Desired,
    schema: &StatusSchema,
    manager: &str,
    own_types: &[String],
    now: &str,
) -> Option<Patch> {
    // The API server wrote it; what is no JSON all the same is written anew.
    let live: Value =
        parent.status.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let owned = owned::of(parent, manager, true);
    let owned = owned::member(&owned, "status").unwrap_or(&Value::Null);
    let standing = match owned::part(&live, owned) {
        Some(Value::Object(standing)) => standing,
        Some(_) | None => Map::new(),
    };

    let mut status = match &desired.fields {
        Some(fields) => fields.clone(),
        None => standing.clone(),
    };
    let is_declared = |name: &str| schema.fields.member(name).is_some();
    status.retain(|name, _| !matches!(&**name, CONDITIONS | OBSERVED_GENERATION) && is_declared(name));
    if is_declared(OBSERVED_GENERATION) {
        status.insert(OBSERVED_GENERATION.to_owned(), Value::from(desired.observed_generation));
    }
    let said = said(&live, desired, schema, now);
    let tells_news = tells_news(&said, &status, &live);
    let (conditions, before) = match schema.conditions {
        None => (Vec::new(), &[][..]),
        Some(ConditionList::Map) => {
            let before = elements(standing.get(CONDITIONS));
            (own_conditions(said, &standing, owned, desired, own_types), before)
        }
        Some(ConditionList::Atomic) => {
            (all_conditions(said, &live, desired, own_types), elements(live.get(CONDITIONS)))
        }
    };
    let goes = |one: &Value| type_of(one).is_some_and(|one| find(&conditions, one).is_none());
    let is_urgent = tells_news || before.iter().any(goes);
    // A map is told with the other fields below, as each condition has its owner.
    let is_atomic = schema.conditions == Some(ConditionList::Atomic);
    let is_same_list = !is_atomic || conditions == before;
    if !conditions.is_empty() {
        status.insert(CONDITIONS.to_owned(), Value::Array(conditions));
    }
    let mut status = Value::Object(status);
    if is_same_list && same_members(&status, &standing, &live, owned, |name| name != CONDITIONS || !is_atomic)
    {
        return None;
    }

    owned::leave_out_emptied(&mut status, owned);
    let mut body = identity(parent);
    if is_atomic {
        body["metadata"]["resourceVersion"] = Value::from(parent.version.as_str());
    }
    // An empty status would be refused as null where it had fields before.
    if status.as_object().is_some_and(|status| !status.is_empty()) {
        body["status"] = status;
    }
    Some(Patch { body, is_urgent })
}

/// Whether somebody waits for it (rule S6): a condition appears or has another status, or it speaks of another
/// generation than what stands there.
fn tells_news(said: &[Value], status: &Map<String, Value>, live: &Value) -> bool {
    let before = elements(live.get(CONDITIONS));
    let is_new = |one: &Value| {
        let before = type_of(one).and_then(|one| find(before, one));
        before.is_none_or(|before| {
            ["status", OBSERVED_GENERATION].iter().any(|name| one.get(name) != before.get(name))
        })
    };
    said.iter().any(is_new)
        || status.get(OBSERVED_GENERATION).is_some_and(|now| live.get(OBSERVED_GENERATION) != Some(now))
}

pub(super) fn elements(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn type_of(condition: &Value) -> Option<&str> {
    condition.get("type")?.as_str()
}

fn find<'a>(conditions: &'a [Value], r#type: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| type_of(condition) == Some(r#type))
}

/// The conditions to set, as they are stored.
fn said(live: &Value, desired: &Desired, schema: &StatusSchema, now: &str) -> Vec<Value> {
    let live = elements(live.get(CONDITIONS));
    let fields = condition_fields(schema);
    let mut types = BTreeSet::new();
    desired
        .conditions
        .iter()
        // The list is a map: a second one would make the API server refuse all of them.
        .filter(|condition| types.insert(&*condition.r#type))
        .map(|condition| {
            let Condition { r#type, status, reason, message } = condition.clone().within_limits();
            let since = find(live, &r#type)
                .filter(|before| before.get("status").and_then(Value::as_str) == Some(status.as_str()))
                .and_then(|before| before.get("lastTransitionTime")?.as_str())
                .filter(|time| !time.is_empty())
                .unwrap_or(now);
            let mut condition = json!({
                "type": r#type,
                "status": status.as_str(),
                "reason": reason,
                "message": message,
                "lastTransitionTime": since,
                "observedGeneration": desired.observed_generation,
            });
            if let Some(fields) = fields {
                prune(&mut condition, fields, "", &mut BTreeSet::new());
            }
            condition
        })
        .collect()
}

/// For a list that is a map: ours alone. Those of others are theirs to the API server too.
fn own_conditions(
    mut said: Vec<Value>,
    standing: &Map<String, Value>,
    owned: &Value,
    desired: &Desired,
    own_types: &[String],
) -> Vec<Value> {
    if desired.keep_other_own {
        // The list has been atomic when we wrote it: whose is what is not known from the owner.
        let was_atomic = owned::member(owned, CONDITIONS).is_some_and(owned::is_leaf);
        let kept = elements(standing.get(CONDITIONS)).iter().filter(|condition| {
            type_of(condition).is_some_and(|one| {
                find(&said, one).is_none()
                    && !LEVELS.contains(&one)
                    && (!was_atomic || is_own(one, own_types))
            })
        });
        let kept: Vec<Value> = kept.cloned().collect();
        said.extend(kept);
    }
    said
}

/// For a list that is one value: everybody's, each where it stood.
fn all_conditions(mut said: Vec<Value>, live: &Value, desired: &Desired, own_types: &[String]) -> Vec<Value> {
    let mut all = Vec::new();
    for condition in elements(live.get(CONDITIONS)) {
        let r#type = type_of(condition).unwrap_or_default();
        if let Some(at) = said.iter().position(|said| type_of(said) == Some(r#type)) {
            all.push(said.remove(at));
        } else if !is_own(r#type, own_types) || desired.keep_other_own && !LEVELS.contains(&r#type) {
            all.push(condition.clone());
        }
    }
    all.append(&mut said);
    all
}

fn is_own(r#type: &str, own_types: &[String]) -> bool {
    HOST_TYPES.contains(&r#type) || own_types.iter().any(|own| own == r#type)
}

/// Whether what is ours of the live object is what should be: nothing missing, nothing left over, nothing that
/// somebody else has written since.
fn same_members(
    desired: &Value,
    standing: &Map<String, Value>,
    live: &Value,
    owned: &Value,
    told: impl Fn(&str) -> bool,
) -> bool {
    let Value::Object(desired) = desired else { return false };
    let left_over = standing.keys().any(|name| told(name) && !desired.contains_key(name));
    !left_over
        && desired
            .iter()
            .filter(|(name, _)| told(name))
            .all(|(name, value)| same(value, standing.get(name), live.get(name), owned::member(owned, name)))
}

fn same(desired: &Value, standing: Option<&Value>, live: Option<&Value>, node: Option<&Value>) -> bool {
    let (Some(standing), Some(node)) = (standing, node) else {
        // An empty list that merges has no owner.
        return is_empty(desired) && live.is_some_and(|live| live == desired);
    };
    if owned::is_leaf(node) {
        return same_value(desired, standing);
    }
    match (desired, standing) {
        (Value::Object(_), Value::Object(standing)) => {
            same_members(desired, standing, live.unwrap_or(&Value::Null), node, |_| true)
        }
        (Value::Array(desired), Value::Array(standing)) => {
            // Of a map or a set: whatever the order.
            desired.len() == standing.len()
                && desired.iter().all(|desired| {
                    let step = owned::elements(node).find(|(step, _)| step.names(desired) == Some(0));
                    let Some((step, node)) = step else { return false };
                    let standing = standing.iter().find(|standing| step.names(standing) == Some(0));
                    match step {
                        Step::Item(_) => standing.is_some(),
                        Step::Key(_) => same(desired, standing, standing, Some(node)),
                    }
                })
        }
        _ => false,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Equal as the API server stores it: it writes the number 1.0 as 1.
fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same_value(a, b)))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Number(number), Value::Number(other)) if number.is_f64() != other.is_f64() => {
            number.as_f64() == other.as_f64()
        }
        _ => a == b,
    }
}
