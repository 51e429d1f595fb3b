//! Why an answer is no plan, in words for the plugin's author.

use super::MAX_DEPTH;
use crate::{
    manifest::Denied,
    object::{Gvk, ObjectKey},
};

/// Why an answer is no plan. The text is for the plugin's author.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A child is no JSON object.
    #[error("child {index} cannot be read")]
    ChildJson {
        /// Its place in the list, from 0.
        index: usize,
        /// What serde says.
        #[source]
        source: serde_json::Error,
    },
    /// More nesting than any object has: most likely a value that contains itself.
    #[error("the plan's {what} is nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// `child 3`, `status` or `metadata`.
        what: String,
    },
    /// A child without apiVersion, kind or metadata.name.
    #[error("child {index}{named} has no {field}")]
    ChildField {
        /// Its place in the list, from 0.
        index: usize,
        /// Its kind where known, with a blank before it.
        named: String,
        /// The missing field, with a remedy.
        field: &'static str,
    },
    /// A field of a child has another type than the host has to rely on, or is no name at all.
    #[error("child {index}{named}: {field} must be {expected}")]
    ChildType {
        /// Its place in the list, from 0.
        index: usize,
        /// Its kind where known, with a blank before it.
        named: String,
        /// The path of the field.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A field of a child's metadata that is not the plan's to set.
    #[error("{child} sets {field}, which {reason}; leave it out")]
    ChildMetadata {
        /// The child.
        child: ObjectKey,
        /// The path of the field.
        field: &'static str,
        /// Who sets it, and why nobody else may.
        reason: &'static str,
    },
    /// A namespace on a child whose kind has none.
    #[error(
        "{child} names the namespace {namespace}, but its kind is cluster-scoped; leave the namespace out"
    )]
    ClusterScoped {
        /// The child, without the namespace.
        child: ObjectKey,
        /// The namespace.
        namespace: String,
    },
    /// The same child twice.
    #[error("{child} is planned twice")]
    Twice {
        /// The child.
        child: ObjectKey,
    },
    /// The parent as its own child.
    #[error("{child} is planned as its own child; own its labels and annotations with the plan's metadata")]
    IsParent {
        /// The parent.
        child: ObjectKey,
    },
    /// The plugin may not ask for this child.
    #[error("{child} is not allowed")]
    Denied {
        /// The child.
        child: ObjectKey,
        /// Why.
        #[source]
        source: Box<Denied>,
    },
    /// An object of a kind that is allowed, with content that gives rights over the cluster (rule Z4).
    #[error("{object} has {what}, which plugins may not write")]
    Sensitive {
        /// The child, or the parent.
        object: ObjectKey,
        /// The content.
        what: String,
    },
    /// A label or annotation of the host on a child, or an option that does not exist.
    #[error(
        "{child} carries {name}, which belongs to the host; options are the annotations oarlock.dev/adopt, \
         oarlock.dev/update, oarlock.dev/wave and oarlock.dev/ownership"
    )]
    Reserved {
        /// The child.
        child: ObjectKey,
        /// The label or annotation.
        name: String,
    },
    /// An option with a value that it does not have.
    #[error("{child} sets {name} to {value:?}; it takes {}", super::options::takes(name))]
    OptionValue {
        /// The child.
        child: ObjectKey,
        /// The annotation.
        name: &'static str,
        /// The value.
        value: String,
    },
    /// An option that is planned for, and would silently do nothing.
    #[error("{child} asks for {name}, which this version of the host does not implement yet")]
    OptionUnsupported {
        /// The child.
        child: ObjectKey,
        /// The annotation.
        name: String,
    },
    /// A kind whose scope is not known.
    #[error("{gvk} is not being watched")]
    UnknownKind {
        /// The kind.
        gvk: Gvk,
    },
    /// Status or metadata is no JSON object of the expected shape.
    #[error("the plan's {field} cannot be read")]
    Json {
        /// `status` or `metadata`.
        field: &'static str,
        /// What serde says.
        #[source]
        source: serde_json::Error,
    },
    /// Conditions belong in `conditions`.
    #[error("the plan's status has {field}, which the host writes; leave it out")]
    StatusField {
        /// `conditions` or `observedGeneration`.
        field: &'static str,
    },
    /// The plugin said that it leaves the status alone.
    #[error(
        "the plan sets status or conditions, but the manifest says that the plugin leaves the status alone"
    )]
    StatusUndeclared,
    /// The same condition twice, or one without a type.
    #[error("condition {type:?} is given twice, or its type is no valid name")]
    Condition {
        /// The type.
        r#type: String,
    },
    /// Too many of something.
    #[error("the plan has {count} {what}, at most {limit} are allowed")]
    TooMany {
        /// `children`, `conditions` or `events`.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many may be.
        limit: usize,
    },
    /// A label or annotation for the parent that the host owns.
    #[error("the plan's metadata sets {name} on the parent, which belongs to the host")]
    ReservedMetadata {
        /// The label or annotation.
        name: String,
    },
}
