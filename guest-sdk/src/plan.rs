//! What a plugin answers with.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::bindings::oarlock::plugin::types;
use crate::{Condition, ConditionStatus, Event, EventType};

/// Everything that should be, as one whole: what a plan leaves out, the host removes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The objects that should exist.
    pub children: Vec<Child>,
    /// The parent's status without conditions, a JSON object; `None` for no field.
    pub status: Option<Value>,
    /// The parent's conditions. The host adds times, generations, and `Ready` if it is not among them.
    pub conditions: Vec<Condition>,
    /// Labels and annotations to own on the parent itself.
    pub metadata: Metadata,
    /// Kubernetes Events about the parent.
    pub events: Vec<Event>,
    /// Call again after this long, whatever else happens. Milliseconds count; 49 days is the longest.
    pub requeue_after: Option<Duration>,
}

impl From<Plan> for types::Plan {
    fn from(plan: Plan) -> Self {
        Self {
            children: plan.children.into_iter().map(|child| child.json).collect(),
            status: plan.status.as_ref().map(to_text),
            conditions: plan.conditions,
            metadata: plan.metadata.to_json(),
            events: plan.events,
            requeue_after: plan
                .requeue_after
                .map(|after| u32::try_from(after.as_millis()).unwrap_or(u32::MAX)),
        }
    }
}

/// The plan of an object that is being deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Teardown {
    /// What should still be there.
    pub plan: Plan,
    /// True when nothing is left to do and the object may go.
    pub done: bool,
}

impl Teardown {
    /// Nothing should be there any more and the object may go.
    pub fn done() -> Self {
        Self { plan: Plan::default(), done: true }
    }

    /// The object has to stay for now, with this plan.
    pub fn waiting(plan: Plan) -> Self {
        Self { plan, done: false }
    }
}

impl From<Teardown> for types::Teardown {
    fn from(teardown: Teardown) -> Self {
        Self { plan: teardown.plan.into(), done: teardown.done }
    }
}

/// How a child that exists is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// By server-side apply; a change that the API server does not allow is told in the conditions.
    Apply,
    /// The same, but where the API server does not allow a change the child is deleted and created anew.
    Replace,
    /// Not at all: its new content comes when somebody deletes it.
    OnDelete,
    /// As `Replace`, one child of its kind at a time, the next when all others are ready.
    Rolling,
}

impl Update {
    fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Replace => "replace",
            Self::OnDelete => "on-delete",
            Self::Rolling => "rolling",
        }
    }
}

/// One object that should exist, with the fields the plugin owns.
///
/// The host fills in the parent's namespace, owner reference and its own labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    json: String,
}

impl Child {
    /// A typed object that serializes with its `apiVersion` and `kind`, as those of `k8s-openapi` do.
    ///
    /// # Errors
    ///
    /// If the object cannot be JSON.
    pub fn new(object: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_string(object).map(|json| Self { json })
    }

    /// The object as JSON text.
    pub fn as_json(&self) -> &str {
        &self.json
    }

    /// Takes over an object of this name that exists already. The operator has to permit it, by
    /// `spec.permissions.adopt` of the `Plugin`.
    pub fn adopt(self) -> Self {
        self.annotate("oarlock.dev/adopt", "true")
    }

    /// How this child is changed once it exists; `Update::Apply` unless said otherwise.
    pub fn update(self, update: Update) -> Self {
        self.annotate("oarlock.dev/update", update.as_str())
    }

    /// Applied when all children of lower waves are ready, and deleted before they are; 0 unless said otherwise.
    pub fn wave(self, wave: i32) -> Self {
        self.annotate("oarlock.dev/wave", &wave.to_string())
    }

    /// Owns only these fields, of an object that exists already and stays somebody else's.
    pub fn fields_only(self) -> Self {
        self.annotate("oarlock.dev/ownership", "fields")
    }

    /// Options are rare, so reading the text back is cheaper than keeping every child as a tree.
    fn annotate(self, key: &str, value: &str) -> Self {
        let Ok(Value::Object(mut object)) = serde_json::from_str(&self.json) else { return self };
        let mut field = &mut object;
        for name in ["metadata", "annotations"] {
            let inner = field.entry(name).or_insert(Value::Null);
            if inner.is_null() {
                *inner = Value::Object(Map::new());
            }
            // Something that is not an object is the host's to refuse, by its path.
            let Value::Object(inner) = inner else { return self };
            field = inner;
        }
        field.insert(key.to_owned(), value.into());
        Self::from(Value::Object(object))
    }
}

impl From<Value> for Child {
    fn from(object: Value) -> Self {
        Self { json: to_text(&object) }
    }
}

/// Labels and annotations of the parent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// Labels to own.
    pub labels: BTreeMap<String, String>,
    /// Annotations to own.
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    fn to_json(&self) -> Option<String> {
        let is_empty = self.labels.is_empty() && self.annotations.is_empty();
        (!is_empty).then(|| to_text(self))
    }
}

/// `Value::to_string` goes through `fmt` and takes longer.
fn to_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings, maps of strings and JSON values can be JSON")
}

impl Condition {
    /// A condition whose status is a `bool`, or [`ConditionStatus::Unknown`].
    ///
    /// `reason` is one CamelCase word for programs, `message` a sentence for people.
    pub fn new(
        type_: impl Into<String>,
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { type_: type_.into(), status: status.into(), reason: reason.into(), message: message.into() }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

impl Event {
    /// An Event for information.
    pub fn normal(reason: impl Into<String>, note: impl Into<String>) -> Self {
        Self { type_: EventType::Normal, reason: reason.into(), note: note.into() }
    }

    /// An Event about something that needs attention.
    pub fn warning(reason: impl Into<String>, note: impl Into<String>) -> Self {
        Self { type_: EventType::Warning, reason: reason.into(), note: note.into() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn annotations(child: &Child) -> Value {
        serde_json::from_str::<Value>(child.as_json()).unwrap()["metadata"]["annotations"].clone()
    }

    #[test]
    fn child_options_become_annotations() {
        let child = Child::from(json!({"metadata": {"name": "a"}})).adopt().update(Update::OnDelete).wave(-1);
        let expected =
            json!({"oarlock.dev/adopt": "true", "oarlock.dev/update": "on-delete", "oarlock.dev/wave": "-1"});
        assert_eq!(annotations(&child), expected);
    }

    #[test]
    fn child_options_keep_other_annotations() {
        let child = Child::from(json!({"metadata": {"annotations": {"a": "b"}}})).adopt();
        assert_eq!(annotations(&child), json!({"a": "b", "oarlock.dev/adopt": "true"}));
    }

    #[test]
    fn child_that_is_not_an_object_stays_as_it_is() {
        for json in [json!(1), json!({"metadata": 1}), json!({"metadata": {"annotations": []}})] {
            assert_eq!(Child::from(json.clone()).adopt(), Child::from(json));
        }
    }

    #[test]
    fn requeue_after_is_clamped_to_the_contract() {
        let after = |duration| types::Plan::from(Plan { requeue_after: Some(duration), ..Plan::default() });
        assert_eq!(after(Duration::from_secs(2)).requeue_after, Some(2_000));
        assert_eq!(after(Duration::MAX).requeue_after, Some(u32::MAX));
    }

    #[test]
    fn metadata_is_absent_when_empty() {
        assert_eq!(Metadata::default().to_json(), None);
        let metadata = Metadata { labels: [("a".to_owned(), "b".to_owned())].into(), ..Metadata::default() };
        assert_eq!(metadata.to_json().unwrap(), r#"{"labels":{"a":"b"},"annotations":{}}"#);
    }
}
