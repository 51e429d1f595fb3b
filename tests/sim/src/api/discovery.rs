//! What is served, and its schemas.

use super::{State, no_page, place, text};
use crate::{
    refusal::Refusal,
    schema::{self, Kind},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

/// `api/v1`, `apis/apps/v1`, and the document.
type Documents = BTreeMap<String, Arc<Document>>;

/// A schema document as it is published.
struct Document {
    hash: String,
    text: String,
}

/// The schemas that are published: those of definitions come later than their kinds.
#[derive(Clone)]
pub(super) struct Published(Documents);

/// Those of the built-in kinds, made once.
static BUILTIN: LazyLock<Documents> = LazyLock::new(|| documents(&schema::builtin()));

impl Default for Published {
    fn default() -> Self {
        Self(BUILTIN.clone())
    }
}

fn documents(kinds: &[Arc<Kind>]) -> Documents {
    let mut groups: BTreeMap<String, Vec<Arc<Kind>>> = BTreeMap::new();
    for kind in kinds {
        groups.entry(path(kind)).or_default().push(Arc::clone(kind));
    }
    let made = groups.into_iter().map(|(path, kinds)| {
        let text = schema::document(&kinds).to_string();
        // FNV-1a: it only has to differ where the text does.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (path, Arc::new(Document { hash: format!("{hash:016X}"), text }))
    });
    made.collect()
}

/// `api/v1`, `apis/apps/v1`.
fn path(kind: &Kind) -> String {
    let root = if kind.group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", kind.api_version())
}

impl State {
    /// Reads which kinds the stored definitions define: one that is established is served.
    pub(super) fn read_definitions(&mut self) {
        self.kinds.retain(|_, kind| !kind.is_custom());
        for definition in self.store.objects("customresourcedefinitions.apiextensions.k8s.io").values() {
            if !is_established(definition) {
                continue;
            }
            // One that defines nothing was never established.
            let kinds = schema::of_crd(definition).unwrap_or_default();
            self.kinds.extend(kinds.into_iter().map(|kind| (place(&kind), kind)));
        }
    }

    /// Publishes the schemas of what is served now.
    pub(super) fn publish(&mut self) {
        let custom: Vec<_> = self.kinds.values().filter(|kind| kind.is_custom()).cloned().collect();
        self.published = Published::default();
        self.published.0.extend(documents(&custom));
    }

    /// A document about the server itself.
    pub(super) fn document(&self, path: &str) -> Result<String, Refusal> {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        match parts.as_slice() {
            ["version"] => Ok(json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0"}).to_string()),
            ["healthz" | "livez" | "readyz"] => Ok("ok".to_owned()),
            ["api"] => Ok(json!({"kind": "APIVersions", "versions": ["v1"]}).to_string()),
            ["apis"] => Ok(self.groups().to_string()),
            ["api", version] => self.resources("", version),
            ["apis", group, version] => self.resources(group, version),
            ["openapi", "v3"] => {
                let paths: BTreeMap<_, _> = self
                    .published
                    .0
                    .iter()
                    .map(|(path, document)| {
                        let url = format!("/openapi/v3/{path}?hash={}", document.hash);
                        (path, json!({"serverRelativeURL": url}))
                    })
                    .collect();
                Ok(json!({"paths": paths}).to_string())
            }
            ["openapi", "v3", rest @ ..] => {
                let document = self.published.0.get(&rest.join("/"));
                document.map(|document| document.text.clone()).ok_or_else(no_page)
            }
            _ => Err(no_page()),
        }
    }

    fn groups(&self) -> Value {
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for kind in self.kinds.values().filter(|kind| !kind.group.is_empty()) {
            let known = versions.entry(&kind.group).or_default();
            if !known.contains(&&*kind.version) {
                known.push(&kind.version);
            }
        }
        let groups: Vec<_> = versions
            .into_iter()
            .map(|(group, versions)| {
                let told = |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
                let told: Vec<_> = versions.iter().map(told).collect();
                json!({"name": group, "versions": told, "preferredVersion": told[0]})
            })
            .collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    fn resources(&self, group: &str, version: &str) -> Result<String, Refusal> {
        const VERBS: [&str; 8] =
            ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let mut resources = Vec::new();
        for kind in self.kinds.values().filter(|kind| kind.group == group && kind.version == version) {
            resources.push(json!({
                "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": VERBS,
            }));
            if kind.status {
                resources.push(json!({
                    "name": format!("{}/status", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                    "kind": kind.kind, "verbs": ["get", "patch", "update"],
                }));
            }
        }
        if resources.is_empty() {
            return Err(no_page());
        }
        let place = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": place, "resources": resources,
        });
        Ok(list.to_string())
    }
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|condition| text(condition, "/type") == "Established" && text(condition, "/status") == "True")
}
