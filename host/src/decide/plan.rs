//! A guest's answer becomes a [`Plan`]: the only constructor is validation.
//!
//! Never: I/O, clocks, wasm.

mod child;
mod error;
mod options;
#[cfg(test)]
mod tests;
mod text;

pub use error::Error;
pub use options::{Options, Update, wave};
pub use text::cut;

use crate::{
    config::Limits,
    manifest::{Access, Manifest},
    object::{Gvk, ObjectKey, PREFIX},
    observe::reads::Sources,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The shortest `requeue-after`: below, a plan that asks for itself would keep a worker busy all the time.
const MIN_REQUEUE: Duration = Duration::from_millis(100);
/// The deepest nesting that is read. `serde_json` refuses the next level, with a text that names no remedy.
const MAX_DEPTH: usize = 127;

/// The guest's answer as it crossed the boundary, within the limit of bytes and otherwise unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawPlan {
    /// Children as JSON text.
    pub children: Vec<String>,
    /// The status as JSON text.
    pub status: Option<String>,
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// Labels and annotations for the parent, as JSON text.
    pub metadata: Option<String>,
    /// Events.
    pub events: Vec<Event>,
    /// Milliseconds.
    pub requeue_after: Option<u32>,
}

impl RawPlan {
    /// Bytes of all its text.
    pub fn text_len(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let conditions = self.conditions.iter().flat_map(|one| [&one.r#type, &one.reason, &one.message]);
        let events = self.events.iter().flat_map(|one| [&one.reason, &one.note]);
        let texts = self.children.iter().chain(conditions).chain(events);
        texts.map(String::len).sum::<usize>() + optional(&self.status) + optional(&self.metadata)
    }
}

/// `True`, `False` or `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell.
    Unknown,
}

impl ConditionStatus {
    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition without what the host adds (`lastTransitionTime`, `observedGeneration`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// Its type.
    pub r#type: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// An event about the parent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Whether it is a warning.
    pub warning: bool,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub note: String,
}

/// The guest says that there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// Whether trying again can help.
    pub transient: bool,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// A desired child.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Kind, namespace (the parent's where the guest left it out) and name.
    pub key: ObjectKey,
    /// The object without nulls, with its namespace, and with those options that people should find on it.
    pub object: serde_json::Map<String, serde_json::Value>,
    /// How it is applied.
    pub options: Options,
}

/// What should be there, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The children, in the order in which they are applied: what others need comes first (rule A7).
    pub children: Vec<Child>,
    /// The status without conditions.
    pub status: serde_json::Map<String, serde_json::Value>,
    /// The conditions, in the guest's order; types are unique.
    pub conditions: Vec<Condition>,
    /// Labels to own on the parent.
    pub labels: BTreeMap<String, String>,
    /// Annotations to own on the parent.
    pub annotations: BTreeMap<String, String>,
    /// Events to record when the plan is new.
    pub events: Vec<Event>,
    /// Look again after this time.
    pub requeue_after: Option<Duration>,
}

/// Labels and annotations for the parent, as the guest gives them; null means absent.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MetadataJson {
    labels: Option<BTreeMap<String, Option<String>>>,
    annotations: Option<BTreeMap<String, Option<String>>>,
}

impl Plan {
    /// Checks a guest's answer for one parent.
    ///
    /// Nulls are dropped (B004: the API server drops them too), reasons and messages are brought within the
    /// API's limits (rule S7), children are put in the order of rule A7.
    ///
    /// # Errors
    /// The first thing that is wrong; nothing of the plan is applied then.
    pub fn check(
        raw: RawPlan,
        parent: &ObjectKey,
        manifest: &Manifest,
        sources: &Sources,
        host_namespace: &str,
        limits: &Limits,
    ) -> Result<Self, Error> {
        for (what, count, limit) in [
            ("children", raw.children.len(), limits.children),
            ("conditions", raw.conditions.len(), limits.conditions),
            ("events", raw.events.len(), limits.events),
        ] {
            if count > limit {
                return Err(Error::TooMany { what, count, limit });
            }
        }
        if !manifest.status && (raw.status.is_some() || !raw.conditions.is_empty()) {
            return Err(Error::StatusUndeclared);
        }
        let brought = child::Brought::by(&raw.children, manifest);
        let children = raw
            .children
            .iter()
            .enumerate()
            .map(|(index, text)| {
                child::check(index, text, parent, manifest, sources, &brought, host_namespace)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let (labels, annotations) = check_metadata(parent, raw.metadata.as_deref())?;
        if !labels.is_empty() || !annotations.is_empty() {
            manifest
                .check(host_namespace, parent, Access::WriteParent)
                .map_err(|source| Error::Denied { child: parent.clone(), source: Box::new(source) })?;
        }
        Ok(Self {
            children: child::in_order(children)?,
            status: check_status(raw.status.as_deref())?,
            conditions: check_conditions(raw.conditions)?,
            labels,
            annotations,
            events: raw.events.into_iter().map(Event::within_limits).collect(),
            requeue_after: raw
                .requeue_after
                .map(|millis| Duration::from_millis(millis.into()).max(MIN_REQUEUE)),
        })
    }

    /// What is left of the time after which the guest wants to be asked again, so long after it was asked.
    ///
    /// It begins anew when it is over: what comes from the memo in between puts nothing off.
    pub fn look_again(&self, since_call: Duration) -> Option<Duration> {
        let after = self.requeue_after?.max(MIN_REQUEUE);
        Some(after.saturating_sub(Duration::from_nanos((since_call.as_nanos() % after.as_nanos()) as u64)))
    }
}

impl Plan {
    /// Whether its parent needs the finalizer whatever the manifest says: there is something to undo that the garbage
    /// collector does not know of (rule D1), an order or fields of others' objects.
    pub fn needs_finalizer(&self) -> bool {
        self.has_waves() || self.children.iter().any(|child| child.options.fields)
    }

    /// Whether its children come in more than one wave.
    pub fn has_waves(&self) -> bool {
        let mut waves = self.children.iter().map(|child| child.options.wave);
        let first = waves.next();
        waves.any(|wave| Some(wave) != first)
    }
}

/// Where a child stands in the order of rule A7: lower goes first, equal ones do not need each other.
pub fn rank(gvk: &Gvk) -> u8 {
    child::rank(gvk)
}

/// Parses JSON text that is not nested too deep for it.
fn parse<T: DeserializeOwned>(
    text: &str,
    what: impl FnOnce() -> String,
    unreadable: impl FnOnce(serde_json::Error) -> Error,
) -> Result<T, Error> {
    if text::depth(text) > MAX_DEPTH {
        return Err(Error::TooDeep { what: what() });
    }
    serde_json::from_str(text).map_err(unreadable)
}

/// Takes nulls out, at any depth: the API server takes null for absent.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(without_nulls);
        }
        Value::Array(elements) => {
            elements.retain(|element| !element.is_null());
            elements.iter_mut().for_each(without_nulls);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_status(text: Option<&str>) -> Result<Map<String, Value>, Error> {
    let Some(text) = text else { return Ok(Map::new()) };
    let unreadable = |source| Error::Json { field: "status", source };
    let mut status: Option<Map<String, Value>> = parse(text, || "status".to_owned(), unreadable)?;
    let mut status = status.take().unwrap_or_default();
    status.retain(|_, field| !field.is_null());
    status.values_mut().for_each(without_nulls);
    match ["conditions", "observedGeneration"].into_iter().find(|field| status.contains_key(*field)) {
        Some(field) => Err(Error::StatusField { field }),
        None => Ok(status),
    }
}

fn check_conditions(conditions: Vec<Condition>) -> Result<Vec<Condition>, Error> {
    let mut types = BTreeSet::new();
    for Condition { r#type, .. } in &conditions {
        if !text::is_condition_type(r#type) || !types.insert(r#type.as_str()) {
            return Err(Error::Condition { r#type: cut(r#type, 64) });
        }
    }
    Ok(conditions.into_iter().map(Condition::within_limits).collect())
}

type Strings = BTreeMap<String, String>;

fn check_metadata(parent: &ObjectKey, text: Option<&str>) -> Result<(Strings, Strings), Error> {
    let Some(text) = text else { return Ok(<_>::default()) };
    let unreadable = |source| Error::Json { field: "metadata", source };
    let metadata: Option<MetadataJson> = parse(text, || "metadata".to_owned(), unreadable)?;
    let MetadataJson { labels, annotations } = metadata.unwrap_or_default();
    let given = |map: Option<BTreeMap<String, Option<String>>>| -> Strings {
        map.unwrap_or_default().into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    };
    let (labels, annotations) = (given(labels), given(annotations));
    child::check_labels(parent, labels.keys())?;
    match labels.keys().chain(annotations.keys()).find(|name| name.starts_with(PREFIX)) {
        Some(name) => Err(Error::ReservedMetadata { name: name.clone() }),
        None => Ok((labels, annotations)),
    }
}
