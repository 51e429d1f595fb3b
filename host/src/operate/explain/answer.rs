//! The answer, as it goes over the wire: the host writes it, the command reads it.

use super::text;
use crate::{object, operate::journal};
use serde::{Deserialize, Serialize};

/// The version of this format.
pub(super) const API_VERSION: &str = "oarlock.dev/v1alpha1";
/// Its kind.
pub(super) const KIND: &str = "Explanation";

/// What the host knows of one object. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `oarlock.dev/v1alpha1`.
    pub api_version: String,
    /// `Explanation`.
    pub kind: String,
    /// The host's time of this answer.
    pub now: String,
    /// The object.
    pub object: Object,
    /// The plugins that reconcile it, at least one.
    pub plugins: Vec<Plugin>,
}

/// An object by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its generation, as the host sees it.
    pub generation: i64,
}

/// What one plugin does with the object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plugin {
    /// Its name.
    pub name: String,
    /// The version in force.
    pub version: String,
    /// sha256 of its component.
    pub digest: String,
    /// What its `Plugin` says; absent before it has said anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    /// When the object was last looked at; absent if it was not since the host started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<String>,
    /// When the host last wrote something for it; absent if it did not since the host started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
    /// When it is looked at next.
    pub next: Next,
    /// What it reads, so what it is subscribed to, beside the object itself.
    pub reads: Vec<String>,
    /// How many reads are not named.
    #[serde(default)]
    pub more_reads: usize,
    /// The last passes, newest first.
    pub reconciles: Vec<Reconcile>,
}

/// The condition `Ready` of a `Plugin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    #[serde(default)]
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
}

/// When an object is looked at next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Next {
    /// What that depends on.
    pub when: NextWhen,
    /// Since when it is due, or when it will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What came meanwhile.
    #[serde(default)]
    pub triggers: Vec<String>,
    /// How often in a row it has failed.
    #[serde(default)]
    pub failures: u32,
}

/// What the next pass depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextWhen {
    /// It is being reconciled.
    Now,
    /// It is due, and waits for a worker.
    Due,
    /// At a time that the last pass asked for.
    Requeue,
    /// At the end of its back-off.
    BackOff,
    /// Only on a change: of the object, its children, or something it reads.
    OnChange,
}

/// A pass, or several in a row that wrote nothing and came to the same; then this is the last of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconcile {
    /// When the first of them began.
    pub first: String,
    /// When the last of them began.
    pub last: String,
    /// How many they are.
    pub passes: u32,
    /// In how many the guest was called; otherwise the memo answered.
    pub calls: u32,
    /// How long it took.
    pub milliseconds: f64,
    /// What set it going.
    pub triggers: Vec<String>,
    /// How often in a row it had failed before.
    #[serde(default)]
    pub attempt: u32,
    /// The generation of the object.
    pub generation: i64,
    /// sha256 of the plugin's component.
    pub digest: String,
    /// Why the guest was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Children created.
    #[serde(default)]
    pub created: Written,
    /// Children changed.
    #[serde(default)]
    pub updated: Written,
    /// Children deleted, to be created anew.
    #[serde(default)]
    pub replaced: Written,
    /// Children deleted, as they are no longer planned.
    #[serde(default)]
    pub pruned: Written,
    /// Whether labels, annotations or finalizers of the object were written.
    #[serde(default)]
    pub metadata_written: bool,
    /// Whether its status was written.
    #[serde(default)]
    pub status_written: bool,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReconcileFailure>,
}

/// Children by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// The first of them.
    pub names: Vec<String>,
    /// How many they are in all.
    pub total: usize,
}

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReconcileFailure {
    /// As in the condition `Ready`.
    pub reason: String,
    /// As in the condition `Ready`, cut.
    pub message: String,
}

/// Why there is no explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong.
    pub error: String,
    /// What to do.
    pub help: String,
}

impl From<journal::Entry> for Reconcile {
    fn from(entry: journal::Entry) -> Self {
        let wrote = entry.wrote.unwrap_or_default();
        Self {
            first: text(entry.first),
            last: text(entry.last),
            passes: entry.passes,
            calls: entry.calls,
            milliseconds: entry.took.as_micros() as f64 / 1_000.0,
            triggers: entry.triggers.into_iter().map(|trigger| trigger.as_str().to_owned()).collect(),
            attempt: entry.attempt,
            generation: entry.generation,
            digest: entry.digest.to_string(),
            why: entry.why.map(Into::into),
            created: wrote.created.into(),
            updated: wrote.updated.into(),
            replaced: wrote.replaced.into(),
            pruned: wrote.pruned.into(),
            metadata_written: wrote.metadata,
            status_written: wrote.status,
            failure: entry.failure.map(|(reason, message)| ReconcileFailure {
                reason: reason.as_str().to_owned(),
                message: message.into(),
            }),
        }
    }
}

impl From<journal::Names> for Written {
    fn from(names: journal::Names) -> Self {
        Self { names: names.shown.into_iter().map(Into::into).collect(), total: names.total }
    }
}

/// What a `Plugin` says of itself.
pub(super) fn standing(plugin: &object::Object) -> Option<Standing> {
    #[derive(Deserialize)]
    struct Status {
        #[serde(default)]
        conditions: Vec<Condition>,
    }
    #[derive(Deserialize)]
    struct Condition {
        r#type: String,
        #[serde(flatten)]
        standing: Standing,
    }
    // The schema is ours; what does not fit it was not written by a host.
    let status: Status = serde_json::from_str(plugin.status.as_deref()?).ok()?;
    let ready = status.conditions.into_iter().find(|condition| condition.r#type == "Ready");
    ready.map(|condition| condition.standing)
}
