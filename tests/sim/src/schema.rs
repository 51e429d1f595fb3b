//! The kinds an API server serves, and what it does to an object of each before it is stored.
//!
//! The schemas of the built-in kinds are the real API server's own documents (`tests/sim/schemas`, trimmed); those of
//! the others come from their CRDs.

mod builtin;
mod crd;
mod decode;
mod default;
mod document;
mod metadata;
mod node;
mod pattern;
mod prepare;
mod validate;

pub use builtin::builtin;
pub use crd::of_crd;
pub use document::{document, trim};
pub(crate) use node::{At, Form, List, Scalar};

use crate::refusal::Refusal;
use node::Schema;
use serde_json::Value;
use std::sync::Arc;

/// One served kind in one version.
#[derive(Clone, Debug)]
pub struct Kind {
    /// `apps`; empty for the core group.
    pub group: String,
    /// `v1`.
    pub version: String,
    /// `Deployment`.
    pub kind: String,
    /// `deployments`.
    pub plural: String,
    /// `deployment`.
    pub singular: String,
    /// `DeploymentList`.
    pub list_kind: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether it has the `status` subresource.
    pub status: bool,
    /// Whether `metadata.generation` is kept.
    pub generation: bool,
    schema: Arc<Schema>,
    source: Source,
}

/// What a kind's schema was made from.
#[derive(Clone, Debug)]
enum Source {
    /// The document of its group's version.
    Builtin(&'static Value),
    /// The schema in its CRD.
    Custom(Arc<Value>),
}

impl Kind {
    /// `apps/v1`, `v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`, as in messages.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Drops what the schema does not declare, or with `strict` refuses it, and refuses values of a wrong type.
    pub fn decode(&self, object: &mut Value, strict: bool) -> Result<(), Refusal> {
        decode::decode(self, object, strict)
    }

    /// What becomes of an object that is sent as a whole, unlike one that is applied: a custom kind loses the nulls
    /// that may not be null, and a Secret has data only.
    pub fn normalize(&self, object: &mut Value) {
        if self.is_custom() {
            decode::drop_nulls(self.root(), object);
        } else if self.kind == "Secret" {
            prepare::encode_string_data(object);
        }
    }

    /// Adds the defaults: those in the schema, and those that the API server's code gives to a built-in kind.
    pub fn default(&self, object: &mut Value) {
        default::default(self, object);
    }

    /// What comes after the fields are tracked: takes back what a write of this subresource may not change, and adds
    /// what nobody owns: what the API server's strategies and own admission plugins add, but no cluster IP.
    pub fn prepare(&self, before: Option<&Value>, object: &mut Value, subresource: &str) {
        prepare::prepare(self, before, object, subresource);
    }

    /// What makes an object invalid. With `before` it is an update, and some fields may not change.
    pub fn validate(&self, before: Option<&Value>, after: &Value) -> Result<(), Refusal> {
        validate::validate(self, before, after)
    }

    /// Whether a CRD defines it.
    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.source, Source::Custom(_))
    }

    /// The object that a write without a live one starts from.
    pub(crate) fn empty(&self) -> Value {
        default::empty(self)
    }

    /// What a write of this subresource (or, if empty, of the object itself) leaves as it is, whatever it says.
    pub(crate) fn ignored(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match (subresource, &*self.kind) {
            ("", _) if self.status => &[&["status"]],
            ("", _) => &[],
            (_, "Deployment") => &[&["spec"], &["metadata", "labels"]],
            (_, "CustomResourceDefinition") => &[&["spec"], &["metadata"]],
            (_, "Pod") => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
            _ if self.is_custom() => &[&["spec"], &["metadata"]],
            _ => &[&["spec"]],
        }
    }

    pub(crate) fn root(&self) -> At<'_> {
        self.schema.root()
    }
}
