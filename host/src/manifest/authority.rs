//! What a plugin may do: declared ∩ permitted by the operator (rules Z1 to Z4). The rights of the host's identity
//! come third, from the API server.

use super::{Error, Manifest};
use crate::object::{Gvk, ObjectKey};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// Stands in a list of namespaces for the parent's own.
const OWN: &str = ".";

/// What the operator lets a plugin do. The standard: what its manifest declares, within rules Z2 and Z4.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The only kinds it may read, as [`Gvk::permission_name`] calls them; `None`: all that it declares.
    pub read: Option<BTreeMap<String, Namespaces>>,
    /// The only kinds it may write.
    pub write: Option<BTreeMap<String, Namespaces>>,
    /// Whether its plans may take over objects that exist already.
    pub adopt: bool,
    /// Kinds that give rights over the cluster and that it may declare all the same (rule Z4).
    pub sensitive_kinds: BTreeSet<String>,
}

/// Where a kind may be read or written; `None`: as rule Z2 has it.
pub type Namespaces = Option<BTreeSet<String>>;

impl Permissions {
    fn of(&self, list: &'static str) -> Option<&BTreeMap<String, Namespaces>> {
        if list == "read" { self.read.as_ref() } else { self.write.as_ref() }
    }

    /// Where a kind may be used; an error if it may not be at all.
    fn namespaces(&self, list: &'static str, gvk: &Gvk) -> Result<Option<&BTreeSet<String>>, Denied> {
        let Some(kinds) = self.of(list) else { return Ok(None) };
        let Some(namespaces) = kinds.get(&gvk.permission_name()) else {
            return Err(Denied::NotPermitted { gvk: gvk.clone(), list });
        };
        Ok(namespaces.as_ref())
    }
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

impl Manifest {
    /// The kinds that an operator has to allow before this is in force, as the switches are called.
    pub fn sensitive_kinds(&self) -> BTreeSet<String> {
        self.switches().map(|(_, gvk)| gvk.permission_name()).collect()
    }

    fn switches(&self) -> impl Iterator<Item = (&'static str, &Gvk)> {
        // What is in a Secret of its own the plugin knows already.
        let is_own_secret = |section: &str, gvk: &Gvk| {
            section == "children" && gvk.group.is_empty() && &*gvk.kind == "Secret"
        };
        self.kinds().filter(move |(section, gvk)| is_sensitive(gvk) && !is_own_secret(section, gvk))
    }

    /// The manifest under what the operator allows: every check from now on is against both.
    ///
    /// # Errors
    /// The first kind that it declares and may not have.
    pub fn permit(&self, permissions: &Arc<Permissions>) -> Result<Self, Error> {
        let is_off = |(_, gvk): &(_, &Gvk)| !permissions.sensitive_kinds.contains(&gvk.permission_name());
        if let Some((section, gvk)) = self.switches().find(is_off) {
            return Err(Error::KindNotAllowed { gvk: gvk.clone(), section, name: gvk.permission_name() });
        }
        for (section, gvk) in self.kinds() {
            let list = match section {
                "children" => "write",
                "reads" => "read",
                // What it reconciles is what it is for.
                _ => continue,
            };
            if permissions.namespaces(list, gvk).is_err() {
                let name = gvk.permission_name();
                return Err(Error::KindNotPermitted { gvk: gvk.clone(), section, list, name });
            }
        }
        Ok(Self { permissions: permissions.clone(), ..self.clone() })
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
        /// Whether it is to be taken over if somebody else made it.
        adopt: bool,
    },
    /// Write labels or annotations of the parent itself.
    WriteParent,
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
    /// The operator's list leaves the kind out.
    #[error("spec.permissions.{list} of the Plugin leaves {gvk} out")]
    NotPermitted {
        /// The kind.
        gvk: Gvk,
        /// `read` or `write`.
        list: &'static str,
    },
    /// The operator's list has the kind, with other namespaces.
    #[error(
        "{what} is outside of the namespaces that spec.permissions.{list} of the Plugin gives for the kind: {allowed}"
    )]
    NamespaceNotPermitted {
        /// What was asked for.
        what: String,
        /// `read` or `write`.
        list: &'static str,
        /// The namespaces there.
        allowed: String,
    },
    /// Another namespace than the parent's (rule Z2).
    #[error("{what} is outside of the parent's namespace {namespace}{remedy}")]
    OtherNamespace {
        /// What was asked for.
        what: String,
        /// The parent's namespace.
        namespace: String,
        /// Who could allow it, if anybody.
        remedy: &'static str,
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
    /// The host's own namespace, or something in it (rule Z3).
    #[error("{what} is {in}the host's namespace {namespace}, where plugins may not write")]
    HostNamespace {
        /// What was asked for.
        what: String,
        /// `in `, unless it is that namespace.
        r#in: &'static str,
        /// The host's namespace.
        namespace: String,
    },
    /// What exists already may not be taken over.
    #[error(
        "{what} is to be adopted (oarlock.dev/adopt), which is off unless the operator allows it: set \
         spec.permissions.adopt of the Plugin to true, or leave the annotation out"
    )]
    Adopt {
        /// The child.
        what: String,
    },
}

/// What an operator can do about a read elsewhere.
const READ_REMEDY: &str =
    "; the operator can allow it, by the namespaces in spec.permissions.read of the Plugin";

impl Manifest {
    /// The one authority check: may this plugin do that for this parent (rules Z1 to Z3)?
    ///
    /// # Errors
    /// What stands against it.
    pub fn check(&self, host_namespace: &str, parent: &ObjectKey, access: Access<'_>) -> Result<(), Denied> {
        let own = parent.namespace.as_deref();
        match access {
            Access::Read { gvk, namespace, namespaced } => {
                let Some(read) = self.reads.iter().find(|read| read.gvk == *gvk) else {
                    return Err(Denied::Undeclared { gvk: gvk.clone(), section: "reads" });
                };
                if let Some(narrowed) = read.namespace.as_deref()
                    && namespaced
                    && namespace != Some(narrowed)
                {
                    let (what, asked, namespace) = (gvk.to_string(), place(namespace), narrowed.to_owned());
                    return Err(Denied::OutsideOfSelection { what, asked, namespace });
                }
                let permitted = self.permissions.namespaces("read", gvk)?;
                // A cluster-scoped kind is the same from everywhere.
                if namespaced { check_namespace("read", permitted, own, namespace, gvk) } else { Ok(()) }
            }
            Access::Write { child, namespaced, adopt } => {
                if !self.children.contains(&child.gvk) {
                    return Err(Denied::Undeclared { gvk: child.gvk.clone(), section: "children" });
                }
                check_host(host_namespace, child)?;
                let permitted = self.permissions.namespaces("write", &child.gvk)?;
                if namespaced {
                    check_namespace("write", permitted, own, child.namespace.as_deref(), child)?;
                } else if let Some(namespace) = own {
                    let (what, namespace) = (child.to_string(), namespace.to_owned());
                    return Err(Denied::ClusterScoped { what, namespace });
                }
                if adopt && !self.permissions.adopt {
                    return Err(Denied::Adopt { what: child.to_string() });
                }
                Ok(())
            }
            Access::WriteParent => check_host(host_namespace, parent),
        }
    }
}

/// Whether a namespaced object may be used there: in the namespaces that the operator gives, else in the parent's
/// (rule Z2). A child is never elsewhere than its parent, unless that is in no namespace.
fn check_namespace(
    list: &'static str,
    permitted: Option<&BTreeSet<String>>,
    own: Option<&str>,
    asked: Option<&str>,
    what: &dyn fmt::Display,
) -> Result<(), Denied> {
    let is_own = asked == own;
    if let Some(namespaces) = permitted {
        let is_listed =
            asked.is_some_and(|asked| namespaces.contains(asked) || is_own && namespaces.contains(OWN));
        if !is_listed {
            let named = |name: &String| if name == OWN { "the parent's" } else { name }.to_owned();
            let allowed = namespaces.iter().map(named).collect::<Vec<_>>().join(", ");
            let what = format!("{what} in {}", place(asked));
            return Err(Denied::NamespaceNotPermitted { what, list, allowed });
        }
    }
    match own {
        Some(own) if !is_own && (list == "write" || permitted.is_none()) => Err(Denied::OtherNamespace {
            what: what.to_string(),
            namespace: own.to_owned(),
            remedy: if list == "read" { READ_REMEDY } else { "" },
        }),
        _ => Ok(()),
    }
}

fn place(namespace: Option<&str>) -> String {
    namespace.map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"))
}

/// Nothing is written in the host's namespace, nor on that namespace itself (rule Z3).
fn check_host(host_namespace: &str, object: &ObjectKey) -> Result<(), Denied> {
    let is_namespace = object.gvk.group.is_empty() && &*object.gvk.kind == "Namespace";
    let r#in = if object.namespace.as_deref() == Some(host_namespace) {
        "in "
    } else if is_namespace && *object.name == *host_namespace {
        ""
    } else {
        return Ok(());
    };
    Err(Denied::HostNamespace { what: object.to_string(), r#in, namespace: host_namespace.to_owned() })
}
