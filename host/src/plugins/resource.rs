//! The `Plugin` resource: settings for a plugin, and what the host says of it.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A plugin's settings. The host makes one for every labelled ConfigMap; what an operator sets here stays.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[kube(
    group = "oarlock.dev",
    version = "v1alpha1",
    kind = "Plugin",
    plural = "plugins",
    shortname = "plug",
    status = "PluginStatus",
    doc = "A plugin: one WASM component that decides for one kind of object.",
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".status.active.version"}"#,
    printcolumn = r#"{"name": "Digest", "type": "string", "jsonPath": ".status.active.shortDigest"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name": "Parent", "type": "string", "jsonPath": ".status.active.parent"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PluginSpec {
    /// Switches the plugin off: its objects stay as they are until this is false again.
    #[serde(default)]
    pub paused: bool,
    /// Where its component is; absent means the ConfigMap of the plugin's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PluginSource>,
    /// The only version that may come into force, by sha256 of its component: any other content is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(sha256:)?[0-9a-f]{64}$"))]
    pub digest: Option<String>,
    /// How a new version comes into force.
    #[serde(default)]
    pub rollout: RolloutStrategy,
    /// Which objects a new version is tried on first, with `rollout: Canary`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The version that an operator has approved, by sha256 of its component: no preview, trial, failure or budget
    /// holds it back. `oarlock approve` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(sha256:)?[0-9a-f]{64}$"))]
    pub approved: Option<String>,
    /// An earlier version, as long as the source holds the one that it replaces. `oarlock rollback` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// Earlier versions that are kept, to go back to; 3 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub history_limit: Option<i32>,
    /// What its calls may use; absent means the host's standard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PluginLimits>,
    /// What it may do, of what its manifest declares and beyond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<PluginPermissions>,
}

/// Where a plugin's component is.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginSource {
    /// A ConfigMap in the host's namespace with the label `oarlock.dev/plugin`.
    pub config_map: String,
}

/// How a new version comes into force.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum RolloutStrategy {
    /// At once, on a few objects first and then on ever more.
    #[default]
    Automatic,
    /// When somebody has approved it; until then the `Plugin` says what it would change.
    Preview,
    /// On the objects that `canary` selects, and on all others when it has done well there for a time.
    Canary,
}

/// Which objects a new version is tried on first, and for how long. Without a selector or a percentage it is a tenth.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// So many of 100 objects, always the same ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub percent: Option<i32>,
    /// Objects with these labels, such as `stage=test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// How long it has to do well, in seconds; 600 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub seconds: Option<i32>,
}

/// An earlier version in the place of another.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// sha256 of the component that is replaced. Once the source holds another, this is without effect.
    pub from: String,
    /// sha256 of the component in force instead: one of `status.history`.
    pub to: String,
}

/// What a plugin may do, of what its manifest declares and beyond.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginPermissions {
    /// The only kinds that its manifest may declare under `reads`; absent means all. With `namespaces`, they are read
    /// there and nowhere else, which may be beyond the parent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind"]))]
    pub read: Option<Vec<KindPermission>>,
    /// The only kinds that its manifest may declare under `children`; absent means all. With `namespaces`, they are
    /// written there only, and still in no other namespace than the parent's where that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind"]))]
    pub write: Option<Vec<KindPermission>>,
    /// Whether its plans may take over objects that exist already (`oarlock.dev/adopt`).
    #[serde(default)]
    pub adopt: bool,
    /// Kinds that give rights over the cluster and that its manifest may declare all the same, each by kind and
    /// group: `Secret`, `CustomResourceDefinition.apiextensions.k8s.io`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub sensitive_kinds: Vec<String>,
}

/// A kind that a plugin may read or write.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KindPermission {
    /// Kind and group, in whatever version: `ConfigMap`, `Deployment.apps`.
    #[schemars(
        length(max = 317),
        regex(pattern = r"^[A-Z][A-Za-z0-9]*(\.[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")
    )]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!self.endsWith('.oarlock.dev')",
        "message": "kinds of oarlock.dev belong to the host; no plugin may read or write them",
    }]))]
    pub kind: String,
    /// Namespaces; `.` is the parent's own. Absent means the parent's own, and all for parents that are in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 256),
        inner(length(max = 63), regex(pattern = r"^(\.|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$"))
    )]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Option<Vec<String>>,
}

/// What the calls of a plugin may use.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginLimits {
    /// Linear memory of one call, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub memory_mebibytes: Option<i32>,
    /// Fuel of one call, in millions of units; a reconcile of a 4 KB object takes about 0.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub fuel_millions: Option<i32>,
    /// Wall time of one call, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 600_000))]
    pub deadline_milliseconds: Option<i32>,
    /// Text of one answer, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub output_mebibytes: Option<i32>,
    /// Children of one plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub children: Option<i32>,
    /// Different reads of one call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub reads: Option<i32>,
    /// Text handed over by the reads of one call, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub read_mebibytes: Option<i32>,
}

/// What the host says of a plugin.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// The generation of the settings that this speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: a version is in force and all its kinds are watched. `Loaded`: the ConfigMap holds a version that
    /// was accepted. `Progressing`, only while true: a new version is on its way to its objects, or waits for
    /// somebody. `Degraded`, only while true: the status of its parents cannot be written, or not all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<PluginCondition>,
    /// sha256 of the component that the source holds, if it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<String>,
    /// The version in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveVersion>,
    /// The version that stands in the ConfigMap and is not, or not wholly, in force yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<CandidateVersion>,
    /// Versions that were in force before and are kept, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<EarlierVersion>,
    /// What it watches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watches: Vec<WatchedKind>,
    /// The content that stands in the ConfigMap and was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedVersion>,
    /// Types of conditions that the plugin ever set, where the parent's schema has them in one list that does not
    /// tell whose each is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub condition_types: Vec<String>,
    /// Kinds that the plugin ever applied, as `apiVersion kind`: where its children may be found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Kinds of whose objects the plugin ever owned fields, as `apiVersion kind`: where these may be found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub field_kinds: Vec<String>,
}

/// A condition, as in the Kubernetes API conventions.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The generation it speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    pub last_transition_time: String,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// A version in force.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ActiveVersion {
    /// sha256 of the component.
    pub digest: String,
    /// Its first twelve digits, for tables.
    pub short_digest: String,
    /// The version that the manifest states.
    pub version: String,
    /// The kind it reconciles: `Website (demo.oarlock.dev/v1)`.
    pub parent: String,
    /// Whether it has gone through its probation: it has planned all its objects, and did well for a time.
    #[serde(default)]
    pub settled: bool,
}

/// A version that is not, or not wholly, in force yet.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CandidateVersion {
    /// sha256 of the component.
    pub digest: String,
    /// Its first twelve digits, for tables.
    pub short_digest: String,
    /// The version that the manifest states.
    pub version: String,
    /// How it comes into force.
    pub rollout: RolloutStrategy,
    /// What it would change, or what it does so far.
    pub message: String,
}

/// A version that was in force before and is kept.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EarlierVersion {
    /// sha256 of the component.
    pub digest: String,
    /// The version that the manifest states.
    pub version: String,
}

/// A kind that is watched for a plugin.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WatchedKind {
    /// As `apiVersion kind`.
    pub kind: String,
    /// Narrowed to one namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Narrowed by labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// `Live`, `Listing`, `Missing`, `Forbidden` or `Failing`.
    pub state: String,
}

/// Content that was refused.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RefusedVersion {
    /// sha256 of the component; of the ConfigMap's content where there is none.
    pub digest: String,
    /// One CamelCase word.
    pub reason: String,
    /// What is wrong, and what to do.
    pub message: String,
}
