//! What a plugin can ask for. Every answer is part of what the plan depends on.

use std::fmt;

use serde::de::DeserializeOwned;

use crate::{Failure, ObjectKind, ObservedChild, Readiness, object};

/// The imports of a component; an in-memory cluster elsewhere, so that plugins run in native tests.
#[cfg(target_arch = "wasm32")]
type Source = host::Host;
#[cfg(not(target_arch = "wasm32"))]
type Source = crate::testing::World;

/// The reads of one call.
///
/// All of them see one moment, and each is a subscription: the object is planned again when an answer would differ.
#[derive(Debug, Default)]
pub struct Reads {
    pub(crate) source: Source,
}

impl Reads {
    /// One object of the parent's namespace or, of a cluster-scoped kind, of the cluster; `None` if there is none.
    ///
    /// `T` is a typed object or [`serde_json::Value`].
    ///
    /// # Errors
    ///
    /// Permanent: the manifest does not declare the kind (`ReadDenied`), or the object is no `T` (`InvalidObject`).
    pub fn get<T: DeserializeOwned>(
        &self,
        kind: impl Into<ObjectKind>,
        name: &str,
    ) -> Result<Option<T>, Failure> {
        self.get_from(None, &kind.into(), name)
    }

    /// One object of a given namespace, for a cluster-scoped parent; `None` if there is none.
    ///
    /// # Errors
    ///
    /// As for [`Reads::get`]; another namespace than a namespaced parent's is `ReadDenied`.
    pub fn get_in<T: DeserializeOwned>(
        &self,
        namespace: &str,
        kind: impl Into<ObjectKind>,
        name: &str,
    ) -> Result<Option<T>, Failure> {
        self.get_from(Some(namespace), &kind.into(), name)
    }

    /// The objects of a kind in the parent's namespace or, of a cluster-scoped kind, in the cluster, by name.
    ///
    /// `label_selector` is in the notation of `kubectl -l`; empty means all.
    ///
    /// # Errors
    ///
    /// As for [`Reads::get`]; a malformed selector is `ReadInvalid`, too much data `ReadExhausted`.
    pub fn list<T: DeserializeOwned>(
        &self,
        kind: impl Into<ObjectKind>,
        label_selector: &str,
    ) -> Result<Vec<T>, Failure> {
        self.list_from(None, &kind.into(), label_selector)
    }

    /// The objects of a kind in a given namespace, for a cluster-scoped parent, by name.
    ///
    /// # Errors
    ///
    /// As for [`Reads::list`]; another namespace than a namespaced parent's is `ReadDenied`.
    pub fn list_in<T: DeserializeOwned>(
        &self,
        namespace: &str,
        kind: impl Into<ObjectKind>,
        label_selector: &str,
    ) -> Result<Vec<T>, Failure> {
        self.list_from(Some(namespace), &kind.into(), label_selector)
    }

    /// The parent's children that exist now, by readiness and without their bodies.
    ///
    /// # Errors
    ///
    /// If the call has read more than the host allows (`ReadExhausted`).
    pub fn children(&self) -> Result<Children, Failure> {
        Ok(Children(self.source.children()?))
    }

    /// The parent's status as it stands, with its conditions; `None` if there is none yet.
    ///
    /// A plugin that asks is called again after its own status writes.
    ///
    /// # Errors
    ///
    /// Permanent (`InvalidObject`) if the status is no `T`.
    pub fn previous_status<T: DeserializeOwned>(&self) -> Result<Option<T>, Failure> {
        self.source.previous_status().map(|json| parse("status", &json)).transpose()
    }

    /// The time of this call in RFC 3339 and UTC, the same for the whole call.
    ///
    /// A plan that depends on it should ask to be made again, by [`Plan::requeue_after`](crate::Plan::requeue_after).
    pub fn now(&self) -> String {
        self.source.now()
    }

    fn get_from<T: DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        kind: &ObjectKind,
        name: &str,
    ) -> Result<Option<T>, Failure> {
        let json = self.source.get(kind, namespace, name)?;
        json.map(|json| parse(&format!("{} {name}", kind.kind), &json)).transpose()
    }

    fn list_from<T: DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        kind: &ObjectKind,
        label_selector: &str,
    ) -> Result<Vec<T>, Failure> {
        let selector = (!label_selector.is_empty()).then_some(label_selector);
        let list = self.source.list(kind, namespace, selector)?;
        list.iter().map(|json| parse(&kind.kind, json)).collect()
    }
}

fn parse<T: DeserializeOwned>(what: &str, json: &str) -> Result<T, Failure> {
    serde_json::from_str(json).map_err(|error| {
        Failure::permanent("InvalidObject", format!("{what}: {}", object::explain(json, &error)))
    })
}

/// The parent's children that exist now, sorted by kind, namespace and name.
#[derive(Clone, Debug, Default)]
pub struct Children(Vec<ObservedChild>);

impl Children {
    /// One child; `None` if it does not exist.
    pub fn get(&self, kind: &str, name: &str) -> Option<&ObservedChild> {
        self.0.iter().find(|child| child.kind == kind && child.name == name)
    }

    /// How far one child is; one that does not exist yet is progressing.
    pub fn readiness(&self, kind: &str, name: &str) -> Readiness {
        match self.get(kind, name) {
            Some(child) => child.readiness.clone(),
            None => Readiness::Progressing("does not exist yet".to_owned()),
        }
    }

    /// True if there are children and all of them are ready.
    ///
    /// A child that the plan asks for and that does not exist yet is not counted: before the first apply there are
    /// none, and the answer is false. [`Children::readiness`] asks for one by name.
    pub fn all_ready(&self) -> bool {
        !self.0.is_empty() && self.iter().all(|child| child.readiness.is_ready())
    }

    /// The children, sorted by kind, namespace and name.
    pub fn iter(&self) -> std::slice::Iter<'_, ObservedChild> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Children {
    type Item = &'a ObservedChild;
    type IntoIter = std::slice::Iter<'a, ObservedChild>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Readiness {
    /// True if it does what it is for.
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }

    /// True if it will not get there by itself.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

/// A phrase for the message of a condition: `is ready`, `is being deleted`, or what is awaited or went wrong.
impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "is ready",
            Self::Progressing(message) | Self::Failed(message) => message,
            Self::Terminating => "is being deleted",
        })
    }
}

#[cfg(target_arch = "wasm32")]
mod host {
    use crate::bindings::oarlock::plugin::{children, clock, cluster, previous, types::ReadError};
    use crate::{ObjectKind, ObservedChild};

    /// The host's imports.
    #[derive(Debug, Default)]
    pub(crate) struct Host;

    #[allow(clippy::unused_self, reason = "as the in-memory cluster of native builds")]
    impl Host {
        pub(crate) fn get(
            &self,
            kind: &ObjectKind,
            namespace: Option<&str>,
            name: &str,
        ) -> Result<Option<String>, ReadError> {
            cluster::get(kind, namespace, name)
        }

        pub(crate) fn list(
            &self,
            kind: &ObjectKind,
            namespace: Option<&str>,
            label_selector: Option<&str>,
        ) -> Result<Vec<String>, ReadError> {
            cluster::list(kind, namespace, label_selector)
        }

        pub(crate) fn children(&self) -> Result<Vec<ObservedChild>, ReadError> {
            children::list()
        }

        pub(crate) fn previous_status(&self) -> Option<String> {
            previous::status()
        }

        pub(crate) fn now(&self) -> String {
            clock::now()
        }
    }
}
