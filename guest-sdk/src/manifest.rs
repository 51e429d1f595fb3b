//! What a plugin declares about itself.

use serde::Serialize;
use serde_json::Value;

use crate::ObjectKind;

/// What a plugin reconciles, makes and reads; the host allows nothing else.
#[derive(Clone, Debug)]
pub struct Manifest {
    name: Option<String>,
    version: Option<String>,
    parent: Selection,
    children: Vec<ObjectKind>,
    reads: Vec<Selection>,
    finalizes: bool,
    status: bool,
    crds: Vec<Value>,
}

impl Manifest {
    /// A plugin that reconciles the objects of one kind.
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            name: None,
            version: None,
            parent: Selection::new(api_version, kind),
            children: Vec::new(),
            reads: Vec::new(),
            finalizes: false,
            status: true,
            crds: Vec::new(),
        }
    }

    /// Another name than the crate's.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Another version than the crate's.
    pub fn version(self, version: impl Into<String>) -> Self {
        Self { version: Some(version.into()), ..self }
    }

    /// Reconciles only the objects with these labels, in the notation of `kubectl -l`.
    pub fn labels(self, selector: impl Into<String>) -> Self {
        Self { parent: self.parent.labels(selector), ..self }
    }

    /// Reconciles only the objects of one namespace.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        Self { parent: self.parent.namespace(namespace), ..self }
    }

    /// Adds the kinds of the children, as `(apiVersion, kind)`.
    pub fn children<K: Into<ObjectKind>>(mut self, kinds: impl IntoIterator<Item = K>) -> Self {
        self.children.extend(kinds.into_iter().map(Into::into));
        self
    }

    /// Adds what [`Reads::get`](crate::Reads::get) and [`Reads::list`](crate::Reads::list) may read: a
    /// [`Selection`], or `(apiVersion, kind)` for all objects of a kind.
    ///
    /// The host keeps what is declared here in memory, so select as little as the plugin needs.
    pub fn reads<S: Into<Selection>>(mut self, selections: impl IntoIterator<Item = S>) -> Self {
        self.reads.extend(selections.into_iter().map(Into::into));
        self
    }

    /// Calls [`Reconciler::finalize`](crate::Reconciler::finalize) before an object goes.
    pub fn finalizes(self) -> Self {
        Self { finalizes: true, ..self }
    }

    /// Leaves the parent's status alone, for a plugin that only adds children to somebody else's kind.
    pub fn without_status(self) -> Self {
        Self { status: false, ..self }
    }

    /// Adds `CustomResourceDefinition` objects to install, where the operator allows it.
    pub fn crds(mut self, crds: impl IntoIterator<Item = Value>) -> Self {
        self.crds.extend(crds);
        self
    }

    pub(crate) fn to_json(&self, name: &str, version: &str) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Json {
            name: self.name.as_deref().unwrap_or(name),
            version: self.version.as_deref().unwrap_or(version),
            parent: self.parent.to_json(),
            children: self.children.iter().map(kind_to_json).collect(),
            reads: self.reads.iter().map(Selection::to_json).collect(),
            finalizes: self.finalizes,
            status: self.status,
            crds: &self.crds,
        })
    }
}

/// The declared kinds, for the reads of native tests.
#[cfg(not(target_arch = "wasm32"))]
impl Manifest {
    pub(crate) fn parent_selection(&self) -> &Selection {
        &self.parent
    }

    pub(crate) fn child_kinds(&self) -> &[ObjectKind] {
        &self.children
    }

    pub(crate) fn read_selections(&self) -> &[Selection] {
        &self.reads
    }
}

/// Objects of one kind, perhaps only those with some labels or in one namespace.
#[derive(Clone, Debug)]
pub struct Selection {
    pub(crate) kind: ObjectKind,
    pub(crate) label_selector: Option<String>,
    pub(crate) namespace: Option<String>,
}

impl Selection {
    /// All objects of a kind.
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        let kind = ObjectKind { api_version: api_version.into(), kind: kind.into() };
        Self { kind, label_selector: None, namespace: None }
    }

    /// Only those with these labels, in the notation of `kubectl -l`.
    pub fn labels(self, selector: impl Into<String>) -> Self {
        Self { label_selector: Some(selector.into()), ..self }
    }

    /// Only those in this namespace. A plugin of namespaced parents reads in the parent's namespace anyway.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    fn to_json(&self) -> SelectionJson<'_> {
        SelectionJson {
            label_selector: self.label_selector.as_deref(),
            namespace: self.namespace.as_deref(),
            ..kind_to_json(&self.kind)
        }
    }
}

impl From<(&str, &str)> for Selection {
    fn from((api_version, kind): (&str, &str)) -> Self {
        Self::new(api_version, kind)
    }
}

impl From<(&str, &str)> for ObjectKind {
    fn from((api_version, kind): (&str, &str)) -> Self {
        Self { api_version: api_version.to_owned(), kind: kind.to_owned() }
    }
}

/// The manifest as the host reads it.
#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    version: &'a str,
    parent: SelectionJson<'a>,
    children: Vec<SelectionJson<'a>>,
    reads: Vec<SelectionJson<'a>>,
    finalizes: bool,
    status: bool,
    crds: &'a [Value],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SelectionJson<'a> {
    api_version: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

fn kind_to_json(kind: &ObjectKind) -> SelectionJson<'_> {
    SelectionJson { api_version: &kind.api_version, kind: &kind.kind, label_selector: None, namespace: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn manifest_takes_name_and_version_of_the_crate_unless_set() {
        let manifest = Manifest::new("example.com/v1", "Site").children([("v1", "Service")]);
        let expected = concat!(
            r#"{"name":"site","version":"1.2.3","parent":{"apiVersion":"example.com/v1","kind":"Site"},"#,
            r#""children":[{"apiVersion":"v1","kind":"Service"}],"reads":[],"finalizes":false,"status":true,"crds":[]}"#,
        );
        assert_eq!(manifest.to_json("site", "1.2.3").unwrap(), expected);
    }

    #[test]
    fn manifest_says_everything_it_was_told() {
        let json = Manifest::new("example.com/v1", "Site")
            .name("other")
            .version("9")
            .labels("team=web")
            .namespace("web")
            .reads([Selection::new("v1", "ConfigMap").labels("app").namespace("shared")])
            .reads([("v1", "Secret")])
            .finalizes()
            .without_status()
            .crds([json!({"kind": "CustomResourceDefinition"})])
            .to_json("site", "1.2.3")
            .unwrap();
        let expected = json!({
            "name": "other",
            "version": "9",
            "parent": {
                "apiVersion": "example.com/v1", "kind": "Site", "labelSelector": "team=web", "namespace": "web",
            },
            "children": [],
            "reads": [
                {"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": "app", "namespace": "shared"},
                {"apiVersion": "v1", "kind": "Secret"},
            ],
            "finalizes": true,
            "status": false,
            "crds": [{"kind": "CustomResourceDefinition"}],
        });
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), expected);
    }
}
