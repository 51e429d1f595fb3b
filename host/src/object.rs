//! The words everything else speaks: kinds, keys, and objects as the cache keeps them.
//!
//! An object stays JSON text. `body` and `status` are kept apart, each with its content hash, so that a status
//! write does not look like a change of the object; `managedFields` and `resourceVersion` are taken out of the
//! text, as no reader needs them and each write changes them.
//! Never: I/O, clocks.

mod decode;
mod selector;

pub use selector::{ParseSelectorError, Selector};

use std::{collections::BTreeMap, fmt, sync::Arc};

/// Label on children: the name of the plugin that asked for them.
pub const LABEL_OWNED_BY: &str = "oarlock.dev/owned-by";
/// Label on children: the uid of the parent.
pub const LABEL_PARENT: &str = "oarlock.dev/parent";
/// Label on children: two digits from the parent's uid, for splitting work over replicas.
pub const LABEL_SHARD: &str = "oarlock.dev/shard";
/// Annotation on children: version and hash of the desired object that was applied last.
pub const ANNOTATION_APPLIED: &str = "oarlock.dev/applied";
/// Annotation on children: how one that exists is changed; an option of the plan.
pub const ANNOTATION_UPDATE: &str = "oarlock.dev/update";
/// Label on ConfigMaps: `true` on one that is a plugin's source, `part` on one that holds a part of it.
pub const LABEL_PLUGIN: &str = "oarlock.dev/plugin";
/// Label on ConfigMaps that hold a part: the name of the source.
pub const LABEL_PART_OF: &str = "oarlock.dev/part-of";
/// On a parent: `true` has it and its children left as they are.
pub const ANNOTATION_PAUSED: &str = "oarlock.dev/paused";
/// Annotation on children: after which others it comes, and before which it goes; an option of the plan.
pub const ANNOTATION_WAVE: &str = "oarlock.dev/wave";
/// Label on objects of others of which a plan owns fields.
pub const LABEL_FIELDS: &str = "oarlock.dev/fields";
/// Prefix of the annotations on such objects: the uid of the parent follows, whose plan it is.
pub const ANNOTATION_FIELDS_PREFIX: &str = "oarlock.dev/fields-";
/// Prefix of every label, annotation and finalizer of the host.
pub const PREFIX: &str = "oarlock.dev/";
/// Prefix of the host's field managers; the plugin's name follows.
pub const FIELD_MANAGER_PREFIX: &str = "oarlock/";

/// The field manager of a plugin.
pub fn field_manager(plugin: &str) -> String {
    format!("{FIELD_MANAGER_PREFIX}{plugin}")
}

/// Group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// API group; empty for the core group.
    pub group: Arc<str>,
    /// Version, such as `v1`.
    pub version: Arc<str>,
    /// Kind, such as `Deployment`.
    pub kind: Arc<str>,
}

impl Gvk {
    /// From `apiVersion` (`v1`, `apps/v1`) and `kind`.
    pub fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Whether its objects define kinds.
    pub fn is_definition(&self) -> bool {
        (&*self.group, &*self.kind) == ("apiextensions.k8s.io", "CustomResourceDefinition")
    }

    /// How the permissions of a `Plugin` call it, in whatever version: `Secret`, `Deployment.apps`.
    pub fn permission_name(&self) -> String {
        match &*self.group {
            "" => self.kind.to_string(),
            group => format!("{}.{group}", self.kind),
        }
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

impl fmt::Display for Gvk {
    /// As people say it: `Deployment (apps/v1)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind, self.api_version())
    }
}

/// Names one object in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its kind.
    pub gvk: Gvk,
    /// Its namespace; `None` for a cluster-scoped object.
    pub namespace: Option<Arc<str>>,
    /// Its name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// What tells objects apart: versions of one kind show the same object.
    pub fn identity(&self) -> (&str, &str, Option<&str>, &str) {
        (&self.gvk.group, &self.gvk.kind, self.namespace.as_deref(), &self.name)
    }
}

impl fmt::Display for ObjectKey {
    /// `Deployment demo/blog`, or `Namespace demo`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.gvk.kind, self.name),
            None => write!(f, "{} {}", self.gvk.kind, self.name),
        }
    }
}

/// A hash of content: equal content, equal hash. Not for secrets and not stable across versions of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(u128);

impl ContentHash {
    /// Hashes one piece of text.
    pub fn of(text: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(text))
    }

    /// Hashes a sequence; its order and its boundaries count.
    pub fn of_all(parts: impl IntoIterator<Item = ContentHash>) -> Self {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for ContentHash(part) in parts {
            hasher.update(&part.to_le_bytes());
        }
        Self(hasher.digest128())
    }
}

/// A resourceVersion. Integers of one kind are comparable (KEP-5504); anything else only for equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceVersion {
    text: Box<str>,
    number: Option<u64>,
}

impl ResourceVersion {
    /// Reads the text of `metadata.resourceVersion`.
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), number: text.parse().ok() }
    }

    /// As the API server wrote it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether this is certainly older than `other`. Versions that are no integers are never older: the order
    /// of delivery is trusted then.
    pub fn is_older_than(&self, other: &Self) -> bool {
        matches!((self.number, other.number), (Some(a), Some(b)) if a < b)
    }
}

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerReference {
    /// The owner's kind.
    pub gvk: Gvk,
    /// The owner's name.
    pub name: Box<str>,
    /// The owner's uid.
    pub uid: Arc<str>,
    /// Whether it is the one that controls the object.
    pub controller: bool,
}

/// The fields that one of the host's field managers owns: an entry of `metadata.managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedFields {
    /// The manager, `oarlock/<plugin>`.
    pub manager: Box<str>,
    /// Whether these are fields of the status subresource.
    pub status: bool,
    /// The fields, as the API server writes them (`fieldsV1`).
    pub fields: Box<str>,
}

/// One object as the cache keeps it.
#[derive(Clone, Debug)]
pub struct Object {
    /// Kind, namespace and name.
    pub key: ObjectKey,
    /// Its uid.
    pub uid: Arc<str>,
    /// The version this is.
    pub version: ResourceVersion,
    /// `metadata.generation`; 0 for kinds without one.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Box<str>,
    /// `metadata.deletionTimestamp`: set while the object is being deleted.
    pub deleted: Option<Box<str>>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The host's own annotations and options (`oarlock.dev/…`); others stay in the body only.
    pub annotations: BTreeMap<String, String>,
    /// Its owners.
    pub owners: Box<[OwnerReference]>,
    /// Its finalizers.
    pub finalizers: Box<[Box<str>]>,
    /// What the host's own field managers own of it.
    pub owned_fields: Box<[OwnedFields]>,
    /// The JSON text without status, managedFields and resourceVersion.
    pub body: Arc<str>,
    /// The JSON text of the status.
    pub status: Option<Arc<str>>,
    /// Hash of `body`.
    pub body_hash: ContentHash,
    /// Hash of `status`; that of nothing where there is none.
    pub status_hash: ContentHash,
}

impl Object {
    /// Decodes one object as the API server sends it.
    ///
    /// `gvk` completes items of lists, which come without apiVersion and kind.
    ///
    /// # Errors
    /// The text is no JSON object, or has no `metadata.name`.
    pub fn decode(gvk: &Gvk, text: &str) -> Result<Self, DecodeError> {
        decode::decode(gvk, text)
    }

    /// The whole object as JSON text: body and status together.
    pub fn to_json(&self) -> String {
        match &self.status {
            None => self.body.to_string(),
            // `body` is a JSON object and so ends in `}` and, having metadata, is not empty.
            Some(status) => format!(r#"{},"status":{status}}}"#, &self.body[..self.body.len() - 1]),
        }
    }

    /// The owner that controls it.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owners.iter().find(|owner| owner.controller)
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.deleted.is_some()
    }
}

/// Why text is no object.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON, or not an object.
    #[error("cannot decode an object of kind {gvk}")]
    Json {
        /// The kind that was expected.
        gvk: Gvk,
        /// What serde says.
        #[source]
        source: serde_json::Error,
    },
    /// Without a name it cannot be kept.
    #[error("an object of kind {gvk} has no metadata.name")]
    NoName {
        /// The kind that was expected.
        gvk: Gvk,
    },
}
