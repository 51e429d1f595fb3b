//! What a plugin declares, and the one check of what it may do (rule Z1).
//!
//! Never: I/O. Whether a kind is namespaced comes from discovery, as an argument.

mod authority;
#[cfg(test)]
mod tests;

pub use authority::{Access, Denied, Namespaces, Permissions};

use crate::object::{Gvk, Selector};
use serde::Deserialize;
use std::{collections::BTreeSet, sync::Arc};

/// The manifest, as `describe` returns it.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The plugin's own name, for people.
    pub name: String,
    /// The plugin's version, for people; identity is the digest.
    pub version: String,
    /// The kind it reconciles.
    pub parent: Selection,
    /// Kinds it may ask for as children.
    pub children: BTreeSet<Gvk>,
    /// Kinds it may read.
    pub reads: Vec<Selection>,
    /// Whether `finalize` is called before an object goes.
    pub finalizes: bool,
    /// Whether it owns the parent's status.
    pub status: bool,
    /// CRDs it brings along; installed only where the operator allows it.
    pub crds: Vec<serde_json::Value>,
    /// What the operator lets it do of that, and beyond.
    pub permissions: Arc<Permissions>,
}

/// Objects of a kind, narrowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The kind.
    pub gvk: Gvk,
    /// Only objects with these labels.
    pub label_selector: Option<Selector>,
    /// Only objects in this namespace.
    pub namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ManifestJson {
    name: String,
    version: String,
    parent: SelectionJson,
    #[serde(default)]
    children: Vec<KindJson>,
    #[serde(default)]
    reads: Vec<SelectionJson>,
    #[serde(default)]
    finalizes: bool,
    #[serde(default = "yes")]
    status: bool,
    #[serde(default)]
    crds: Vec<serde_json::Value>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KindJson {
    api_version: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SelectionJson {
    api_version: String,
    kind: String,
    label_selector: Option<String>,
    namespace: Option<String>,
}

/// Why a manifest is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not JSON, a field is missing, or one is unknown.
    #[error("the manifest that describe() returns cannot be read")]
    Json(#[source] serde_json::Error),
    /// Two entries for one kind.
    #[error(
        "the manifest has {gvk} twice under reads; a plugin reads one selection of a kind: name it once, with a \
         selector that covers both"
    )]
    ReadTwice {
        /// The kind.
        gvk: Gvk,
    },
    /// A label selector is malformed.
    #[error("the manifest's label selector for {gvk} is malformed")]
    Selector {
        /// The kind it stands at.
        gvk: Gvk,
        /// What is wrong.
        #[source]
        source: crate::object::ParseSelectorError,
    },
    /// apiVersion or kind is empty.
    #[error("the manifest names a kind without apiVersion or kind in {section}")]
    EmptyKind {
        /// `parent`, `children` or `reads`.
        section: &'static str,
    },
    /// No plugin may touch this kind.
    #[error("the manifest asks for {gvk}, which belongs to the host")]
    HostKind {
        /// The kind.
        gvk: Gvk,
    },
    /// The operator has not allowed this kind.
    #[error(
        "the manifest asks for {gvk} under {section}, which is off unless the operator allows it: add {name:?} to \
         spec.permissions.sensitiveKinds of the Plugin"
    )]
    KindNotAllowed {
        /// The kind.
        gvk: Gvk,
        /// `parent`, `children` or `reads`.
        section: &'static str,
        /// How the switch is called: `Secret`, `ClusterRole.rbac.authorization.k8s.io`.
        name: String,
    },
    /// The operator's list of kinds leaves this one out.
    #[error(
        "the manifest asks for {gvk} under {section}, which spec.permissions.{list} of the Plugin leaves out: add \
         \"kind: {name}\" there, or take it out of the manifest"
    )]
    KindNotPermitted {
        /// The kind.
        gvk: Gvk,
        /// `children` or `reads`.
        section: &'static str,
        /// `write` or `read`.
        list: &'static str,
        /// How the list calls it: `Deployment.apps`.
        name: String,
    },
}

impl Manifest {
    /// Reads and checks the JSON that `describe` returned.
    ///
    /// # Errors
    /// Unknown fields, malformed selectors, kinds that no plugin may touch (rule Z3).
    pub fn parse(json: &str) -> Result<Self, Error> {
        let raw: ManifestJson = serde_json::from_str(json).map_err(Error::Json)?;
        let manifest = Self {
            name: raw.name,
            version: raw.version,
            parent: selection("parent", raw.parent)?,
            children: raw
                .children
                .into_iter()
                .map(|kind| gvk("children", &kind.api_version, &kind.kind))
                .collect::<Result<_, _>>()?,
            reads: raw.reads.into_iter().map(|read| selection("reads", read)).collect::<Result<_, _>>()?,
            finalizes: raw.finalizes,
            status: raw.status,
            crds: raw.crds,
            permissions: Arc::default(),
        };
        let mut reads = BTreeSet::new();
        if let Some(read) = manifest.reads.iter().find(|read| !reads.insert(&read.gvk)) {
            return Err(Error::ReadTwice { gvk: read.gvk.clone() });
        }
        let kinds = manifest.kinds().find(|(_, gvk)| &*gvk.group == "oarlock.dev");
        if let Some((_, gvk)) = kinds {
            return Err(Error::HostKind { gvk: gvk.clone() });
        }
        Ok(manifest)
    }
}

impl Manifest {
    /// Every kind that it declares, with where.
    fn kinds(&self) -> impl Iterator<Item = (&'static str, &Gvk)> {
        let children = self.children.iter().map(|gvk| ("children", gvk));
        let reads = self.reads.iter().map(|read| ("reads", &read.gvk));
        std::iter::once(("parent", &self.parent.gvk)).chain(children).chain(reads)
    }

    /// Whether its plans may bring kinds along, which are not served before.
    pub fn brings_kinds(&self) -> bool {
        self.children.iter().any(Gvk::is_definition)
    }
}

fn gvk(section: &'static str, api_version: &str, kind: &str) -> Result<Gvk, Error> {
    if api_version.is_empty() || kind.is_empty() {
        return Err(Error::EmptyKind { section });
    }
    Ok(Gvk::new(api_version, kind))
}

fn selection(section: &'static str, json: SelectionJson) -> Result<Selection, Error> {
    let gvk = gvk(section, &json.api_version, &json.kind)?;
    let label_selector = json
        .label_selector
        .map(|text| Selector::parse(&text))
        .transpose()
        .map_err(|source| Error::Selector { gvk: gvk.clone(), source })?;
    Ok(Selection { gvk, label_selector, namespace: json.namespace })
}
