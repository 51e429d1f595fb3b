//! What a plugin declares, and the one check of what it may do (rule Z1).
//!
//! Never: I/O. Whether a kind is namespaced comes from discovery, as an argument.

use crate::object::{Gvk, ObjectKey, Selector};
use serde::Deserialize;
use std::{collections::BTreeSet, fmt};

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
    /// No plugin may write this kind.
    #[error("the manifest asks for children of kind {gvk}, which plugins may not write{remedy}")]
    ChildKindRefused {
        /// The kind.
        gvk: Gvk,
        /// What to do, starting with `;`, or nothing.
        remedy: &'static str,
    },
    /// No plugin may read this kind.
    #[error("the manifest asks to read {gvk}, which is off unless the operator switches it on")]
    ReadKindRefused {
        /// The kind.
        gvk: Gvk,
    },
}

impl Manifest {
    /// Reads and checks the JSON that `describe` returned.
    ///
    /// # Errors
    /// Unknown fields, malformed selectors, kinds that no plugin may touch (rules Z3, Z4).
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
        };
        for gvk in &manifest.children {
            refuse_child_kind(gvk)?;
        }
        for Selection { gvk, .. } in manifest.reads.iter().chain([&manifest.parent]) {
            if is_sensitive(gvk) {
                return Err(Error::ReadKindRefused { gvk: gvk.clone() });
            }
        }
        Ok(manifest)
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

/// Kinds whose content or whose writing gives rights over the cluster (rule Z4): off, until an operator can
/// switch them on one by one.
fn is_sensitive(gvk: &Gvk) -> bool {
    match (&*gvk.group, &*gvk.kind) {
        ("", kind) => matches!(kind, "Secret" | "Node"),
        (
            "rbac.authorization.k8s.io"
            | "admissionregistration.k8s.io"
            | "apiregistration.k8s.io"
            | "apiextensions.k8s.io"
            | "authentication.k8s.io"
            | "certificates.k8s.io"
            | "oarlock.dev",
            _,
        ) => true,
        _ => false,
    }
}

fn refuse_child_kind(gvk: &Gvk) -> Result<(), Error> {
    if &*gvk.group == "oarlock.dev" {
        return Err(Error::ChildKindRefused { gvk: gvk.clone(), remedy: "" });
    }
    if is_sensitive(gvk) && !(gvk.group.is_empty() && &*gvk.kind == "Secret") {
        return Err(Error::ChildKindRefused {
            gvk: gvk.clone(),
            remedy: "; it is off unless the operator switches it on",
        });
    }
    Ok(())
}

/// Something a plugin wants to do for one parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access<'a> {
    /// Read objects of a kind; `namespace` as asked for, `None` for all or for a cluster-scoped kind.
    Read {
        /// The kind.
        gvk: &'a Gvk,
        /// The namespace.
        namespace: Option<&'a str>,
        /// From discovery.
        namespaced: bool,
    },
    /// Write (create, update or delete) one child.
    Write {
        /// The child.
        child: &'a ObjectKey,
        /// From discovery.
        namespaced: bool,
    },
}

/// Why something is not allowed, in words for the plugin's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The manifest does not declare the kind.
    #[error("the manifest does not declare {gvk} under {section}")]
    Undeclared {
        /// The kind.
        gvk: Gvk,
        /// `children` or `reads`.
        section: &'static str,
    },
    /// Another namespace than the parent's (rule Z2).
    #[error("{what} is outside of the parent's namespace {namespace}")]
    OtherNamespace {
        /// What was asked for.
        what: String,
        /// The parent's namespace.
        namespace: String,
    },
    /// A cluster-scoped child of a namespaced parent (rule Z2).
    #[error("{what} is cluster-scoped, its parent is in namespace {namespace}")]
    ClusterScoped {
        /// What was asked for.
        what: String,
        /// The parent's namespace.
        namespace: String,
    },
    /// The host's own namespace (rule Z3).
    #[error("{what} is in the host's namespace {namespace}, where plugins may not write")]
    HostNamespace {
        /// What was asked for.
        what: String,
        /// The host's namespace.
        namespace: String,
    },
}

impl Manifest {
    /// The one authority check: may this plugin do that for this parent (rules Z1 to Z3)?
    ///
    /// # Errors
    /// What stands against it.
    pub fn check(&self, host_namespace: &str, parent: &ObjectKey, access: Access<'_>) -> Result<(), Denied> {
        let (namespace, namespaced, what): (_, _, &dyn fmt::Display) = match access {
            Access::Read { gvk, namespace, namespaced } => {
                if !self.reads.iter().any(|read| read.gvk == *gvk) {
                    return Err(Denied::Undeclared { gvk: gvk.clone(), section: "reads" });
                }
                (namespace, namespaced, gvk as _)
            }
            Access::Write { child, namespaced } => {
                if !self.children.contains(&child.gvk) {
                    return Err(Denied::Undeclared { gvk: child.gvk.clone(), section: "children" });
                }
                if child.namespace.as_deref() == Some(host_namespace) {
                    return Err(Denied::HostNamespace {
                        what: child.to_string(),
                        namespace: host_namespace.to_owned(),
                    });
                }
                (child.namespace.as_deref(), namespaced, child as _)
            }
        };
        let Some(parent_namespace) = parent.namespace.as_deref() else { return Ok(()) };
        if namespaced {
            if namespace != Some(parent_namespace) {
                return Err(Denied::OtherNamespace {
                    what: what.to_string(),
                    namespace: parent_namespace.to_owned(),
                });
            }
        } else if matches!(access, Access::Write { .. }) {
            return Err(Denied::ClusterScoped {
                what: what.to_string(),
                namespace: parent_namespace.to_owned(),
            });
        }
        Ok(())
    }
}
