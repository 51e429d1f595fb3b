//! Answers the reads of one call from the objects of a `Cluster`, under the rules of the host.

use std::cell::RefCell;

use serde_json::Value;

use super::{fields, selector::Selector};
use crate::bindings::oarlock::plugin::types::ReadError;
use crate::{Manifest, ObjectKind, ObservedChild, Readiness, Selection};

/// One thing a plugin read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// One object.
    Get {
        /// Its kind.
        kind: String,
        /// The namespace asked for; `None` means the parent's.
        namespace: Option<String>,
        /// Its name.
        name: String,
    },
    /// The objects of a kind.
    List {
        /// Their kind.
        kind: String,
        /// The namespace asked for; `None` means the parent's.
        namespace: Option<String>,
        /// The label selector asked for; `None` means all.
        label_selector: Option<String>,
    },
    /// The children.
    Children,
    /// The parent's status.
    PreviousStatus,
    /// The time.
    Now,
}

/// What one call sees; an empty one outside of tests.
#[derive(Debug, Default)]
pub(crate) struct World {
    selections: Vec<(Selection, Selector)>,
    namespace: Option<String>,
    status: Option<Value>,
    objects: Vec<Value>,
    children: Vec<ObservedChild>,
    now: String,
    records: RefCell<Vec<Read>>,
}

impl World {
    pub(crate) fn new(
        manifest: &Manifest,
        parent: &Value,
        objects: &[Value],
        children: &[(String, String, Readiness)],
        now: &str,
    ) -> Self {
        let namespace = parent["metadata"]["namespace"].as_str().map(str::to_owned);
        let mut children: Vec<_> = children
            .iter()
            .map(|(kind, name, readiness)| {
                let declared = manifest.child_kinds().iter().find(|declared| declared.kind == *kind);
                ObservedChild {
                    api_version: declared
                        .unwrap_or_else(|| panic!("child {kind} {name}: the manifest declares no such kind"))
                        .api_version
                        .clone(),
                    kind: kind.clone(),
                    namespace: namespace.clone(),
                    name: name.clone(),
                    readiness: readiness.clone(),
                }
            })
            .collect();
        children.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
        let mut objects: Vec<_> = objects.iter().map(|object| without(object, &[])).collect();
        objects.sort_by(|a, b| identity(a).cmp(&identity(b)));
        Self {
            selections: manifest.read_selections().iter().map(with_selector).collect(),
            status: parent.get("status").cloned(),
            namespace,
            objects,
            children,
            now: now.to_owned(),
            records: RefCell::default(),
        }
    }

    pub(crate) fn into_records(self) -> Vec<Read> {
        self.records.into_inner()
    }

    fn record(&self, read: Read) {
        self.records.borrow_mut().push(read);
    }

    pub(crate) fn get(
        &self,
        kind: &ObjectKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<String>, ReadError> {
        self.record(Read::Get {
            kind: kind.kind.clone(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        });
        let found = self.visible(kind, namespace)?.find(|object| object["metadata"]["name"] == name);
        Ok(found.map(Value::to_string))
    }

    pub(crate) fn list(
        &self,
        kind: &ObjectKind,
        namespace: Option<&str>,
        label_selector: Option<&str>,
    ) -> Result<Vec<String>, ReadError> {
        self.record(Read::List {
            kind: kind.kind.clone(),
            namespace: namespace.map(str::to_owned),
            label_selector: label_selector.map(str::to_owned),
        });
        let visible = self.visible(kind, namespace)?;
        let selector = Selector::parse(label_selector.unwrap_or_default()).map_err(ReadError::Invalid)?;
        Ok(visible.filter(|object| selector.matches(object)).map(Value::to_string).collect())
    }

    #[expect(clippy::unnecessary_wraps, reason = "as the imports of a component")]
    pub(crate) fn children(&self) -> Result<Vec<ObservedChild>, ReadError> {
        self.record(Read::Children);
        Ok(self.children.clone())
    }

    pub(crate) fn previous_status(&self) -> Option<String> {
        self.record(Read::PreviousStatus);
        self.status.as_ref().map(Value::to_string)
    }

    pub(crate) fn now(&self) -> String {
        self.record(Read::Now);
        self.now.clone()
    }

    /// The objects of a kind that the manifest lets the plugin see, in one namespace.
    fn visible<'a>(
        &'a self,
        kind: &'a ObjectKind,
        namespace: Option<&'a str>,
    ) -> Result<impl Iterator<Item = &'a Value>, ReadError> {
        let text = format!("{} ({})", kind.kind, kind.api_version);
        let declared: Vec<_> =
            self.selections.iter().filter(|(selection, _)| selection.kind == *kind).collect();
        if declared.is_empty() {
            return Err(ReadError::Denied(format!("the manifest does not declare {text} under reads")));
        }
        let own = self.namespace.as_deref();
        if let (Some(own), Some(asked)) = (own, namespace) {
            if own != asked {
                return Err(ReadError::Denied(format!("{text} is outside of the parent's namespace {own}")));
            }
        }
        let namespace = namespace.or(own);
        Ok(self.objects.iter().filter(move |object| {
            // A cluster-scoped object is in no namespace and seen from all of them.
            let found = object["metadata"]["namespace"].as_str();
            let is_in = |wanted: Option<&str>| found.is_none() || wanted.is_none() || found == wanted;
            is_of_kind(object, kind)
                && is_in(namespace)
                && declared.iter().any(|(selection, labels)| {
                    is_in(selection.namespace.as_deref()) && labels.matches(object)
                })
        }))
    }
}

fn with_selector(selection: &Selection) -> (Selection, Selector) {
    let selector = Selector::parse(selection.label_selector.as_deref().unwrap_or_default());
    (selection.clone(), selector.unwrap_or_else(|error| panic!("manifest: {error}")))
}

fn is_of_kind(object: &Value, kind: &ObjectKind) -> bool {
    object["apiVersion"] == *kind.api_version && object["kind"] == *kind.kind
}

/// What makes two objects the same one: apiVersion, kind, namespace, name; absent parts are empty.
pub(crate) fn identity(object: &Value) -> [&str; 4] {
    [
        object["apiVersion"].as_str().unwrap_or_default(),
        object["kind"].as_str().unwrap_or_default(),
        object["metadata"]["namespace"].as_str().unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default(),
    ]
}

/// The object as plugins get it: without what only the API server needs, and without the given top-level fields.
pub(crate) fn without(object: &Value, names: &[&str]) -> Value {
    let mut object = fields(object);
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    object.retain(|name, _| !names.contains(&name.as_str()));
    Value::Object(object)
}
