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

    /// The kinds that an operator has to allow before this is in force, as the switches are called.
    pub fn sensitive_kinds(&self) -> BTreeSet<String> {
        self.switches().map(|(_, _, name)| name).collect()
    }

    fn switches(&self) -> impl Iterator<Item = (&'static str, &Gvk, String)> {
        // What is in a Secret of its own the plugin knows already.
        let is_own_secret = |section: &str, gvk: &Gvk| {
            section == "children" && gvk.group.is_empty() && &*gvk.kind == "Secret"
        };
        let sensitive =
            self.kinds().filter(move |(section, gvk)| is_sensitive(gvk) && !is_own_secret(section, gvk));
        sensitive.map(|(section, gvk)| {
            let name = match &*gvk.group {
                "" => gvk.kind.to_string(),
                group => format!("{}.{group}", gvk.kind),
            };
            (section, gvk, name)
        })
    }

    /// Checks the kinds against what the operator allows (rule Z4).
    ///
    /// # Errors
    /// The first that is not allowed.
    pub fn permit(&self, allowed: &[String]) -> Result<(), Error> {
        match self.switches().find(|(_, _, name)| !allowed.contains(name)) {
            Some((section, gvk, name)) => Err(Error::KindNotAllowed { gvk: gvk.clone(), section, name }),
            None => Ok(()),
        }
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

/// Kinds whose content or whose writing gives rights over the cluster (rule Z4): off, until the operator switches
/// them on one by one.
fn is_sensitive(gvk: &Gvk) -> bool {
    match (&*gvk.group, &*gvk.kind) {
        ("", kind) => matches!(kind, "Secret" | "Node"),
        (
            "rbac.authorization.k8s.io"
            | "admissionregistration.k8s.io"
            | "apiregistration.k8s.io"
            | "apiextensions.k8s.io"
            | "authentication.k8s.io"
            | "certificates.k8s.io",
            _,
        ) => true,
        _ => false,
    }
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
    /// Outside of the namespace to which the manifest narrows the kind: what is there is not known.
    #[error(
        "{what} in {asked} is outside of namespace {namespace}, to which the manifest narrows it under reads"
    )]
    OutsideOfSelection {
        /// The kind.
        what: String,
        /// What was asked for.
        asked: String,
        /// What the manifest says.
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
                let Some(read) = self.reads.iter().find(|read| read.gvk == *gvk) else {
                    return Err(Denied::Undeclared { gvk: gvk.clone(), section: "reads" });
                };
                if let Some(narrowed) = read.namespace.as_deref()
                    && namespaced
                    && namespace != Some(narrowed)
                {
                    return Err(Denied::OutsideOfSelection {
                        what: gvk.to_string(),
                        asked: namespace
                            .map_or("all namespaces".to_owned(), |asked| format!("namespace {asked}")),
                        namespace: narrowed.to_owned(),
                    });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(reads: &str) -> Result<Manifest, Error> {
        let parent = r#"{"apiVersion": "v1", "kind": "Namespace"}"#;
        Manifest::parse(&format!(
            r#"{{"name": "p", "version": "1", "parent": {parent}, "reads": [{reads}]}}"#
        ))
    }

    #[test]
    fn kind_is_read_by_one_selection() {
        let one = r#"{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}"#;
        let other = r#"{"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": "b"}"#;
        let error = parse(&format!("{one}, {other}")).unwrap_err();
        assert!(
            error.to_string().starts_with("the manifest has ConfigMap (v1) twice under reads"),
            "{error}"
        );
        assert!(parse(one).is_ok() && parse(other).is_ok());
    }

    #[test]
    fn read_outside_of_the_narrowed_namespace_is_refused_not_empty() {
        let manifest = parse(r#"{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}"#).unwrap();
        let parent = ObjectKey { gvk: Gvk::new("v1", "Namespace"), namespace: None, name: "n".into() };
        let read = |namespace| {
            let gvk = &Gvk::new("v1", "ConfigMap");
            let access = Access::Read { gvk, namespace, namespaced: true };
            manifest.check("host", &parent, access).map_err(|denied| denied.to_string())
        };
        assert_eq!(read(Some("a")), Ok(()));
        for (asked, named) in [(Some("b"), "namespace b"), (None, "all namespaces")] {
            let expected = format!(
                "ConfigMap (v1) in {named} is outside of namespace a, to which the manifest narrows it under reads"
            );
            assert_eq!(read(asked), Err(expected));
        }
    }
}
