//! The ConfigMaps of a plugin: written so that half an upload is never taken for a whole one.

use crate::{
    cli::{
        Failure,
        cluster::{Ask, Cluster},
    },
    config::Limits,
    object::{LABEL_PART_OF, LABEL_PLUGIN},
    plugins::source,
};
use anyhow::{Context as _, bail};
use base64::Engine as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const MANAGER: &str = "oarlock-push";
/// Above this a component is compressed: etcd and every watcher carry it.
pub(super) const PLAIN_BYTES: usize = 700_000;

/// What is written for a component.
#[derive(Debug)]
pub(super) struct Upload {
    name: String,
    /// ConfigMaps that the last one names.
    parts: Vec<Value>,
    /// What the ConfigMap of the plugin's name holds.
    pub(super) entry: Entry,
}

/// One entry of a ConfigMap.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// `data` or `binaryData`.
    pub(super) field: &'static str,
    pub(super) key: String,
    content: String,
}

impl Upload {
    /// The component as it is if it is small, else compressed, and in parts if it is large.
    pub(super) fn pack(name: &str, component: &[u8]) -> anyhow::Result<Self> {
        if !component.starts_with(b"\0asm") {
            bail!(Failure::new(
                "the file is no WebAssembly",
                "name a component, or the crate to build it from"
            ));
        }
        let limit = Limits::STANDARD.component_bytes;
        if component.len() > limit {
            bail!(Failure::new(
                format!("the component has {} bytes, and a host takes {limit}", component.len()),
                "make it smaller: opt-level = \"s\", lto = true, strip = true and panic = \"abort\" in the crate's \
                 release profile, and fewer dependencies",
            ));
        }
        let name = name.to_owned();
        if component.len() <= PLAIN_BYTES {
            let content = base64::engine::general_purpose::STANDARD.encode(component);
            let entry = Entry { field: "binaryData", key: format!("{name}.wasm"), content };
            return Ok(Self { name, parts: Vec::new(), entry });
        }
        let mut parts = source::pack(&name, component).context("cannot compress the component")?;
        let source = parts.pop().unwrap_or_default();
        let entry = ["data", "binaryData"].into_iter().find_map(|field| {
            let (key, content) = source[field].as_object()?.iter().next()?;
            Some(Entry { field, key: key.clone(), content: content.as_str()?.to_owned() })
        });
        Ok(Self { name, parts, entry: entry.context("nothing was packed")? })
    }

    /// How many ConfigMaps it takes.
    pub(super) fn len(&self) -> usize {
        self.parts.len() + 1
    }

    /// Writes all of it: what is named by another before that.
    pub(super) async fn send(&self, cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
        let Self { name, parts, entry } = self;
        let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
        let ask = |verb| Ask { verb, resource: "configmaps", namespace: Some(namespace) };
        let live = cluster.ask(ask("get"), config_maps.get_opt(name)).await?;
        let stale =
            live.as_ref().map_or(Ok(Vec::new()), |live| stale_entries(live, namespace, name, entry))?;
        let force = PatchParams::apply(MANAGER).force();
        for part in parts {
            let name = part["metadata"]["name"].as_str().unwrap_or_default();
            cluster.ask(ask("patch"), config_maps.patch(name, &force, &Patch::Apply(part))).await?;
        }
        let labels = json!({ LABEL_PLUGIN: "true" });
        let request = async {
            if stale.is_empty() {
                let body = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": name, "labels": labels},
                    (entry.field): {(&*entry.key): entry.content},
                });
                // Whoever pushes means it: the content is taken over from `kubectl create` as well.
                config_maps.patch(name, &force, &Patch::Apply(body)).await
            } else {
                // Entries of others stay in an apply, and two components are none: here both change in one write.
                let mut body = json!({"metadata": {"labels": labels}, "binaryData": {}, "data": {}});
                body[entry.field][&*entry.key] = entry.content.as_str().into();
                for (field, key) in stale {
                    body[field][key] = Value::Null;
                }
                let params =
                    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                config_maps.patch(name, &params, &Patch::Merge(body)).await
            }
        };
        cluster.ask(ask("patch"), request).await.map(drop)
    }

    /// Removes parts of earlier uploads.
    pub(super) async fn clean_up(&self, cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
        let ask = |verb| Ask { verb, resource: "configmaps", namespace: Some(namespace) };
        let selector = format!("{LABEL_PLUGIN}=part,{LABEL_PART_OF}={}", self.name);
        let params = ListParams::default().labels(&selector);
        for old in cluster.ask(ask("list"), config_maps.list_metadata(&params)).await? {
            let name = old.metadata.name.unwrap_or_default();
            if !self.parts.iter().any(|part| part["metadata"]["name"] == *name) {
                let params = DeleteParams::default();
                match config_maps.delete(&name, &params).await {
                    // Another push was faster.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    deleted => drop(cluster.ask(ask("delete"), async { deleted }).await?),
                }
            }
        }
        Ok(())
    }
}

fn is_component(key: &str) -> bool {
    key == "parts.json" || [".wasm", ".wasm.gz", ".wasm.zst"].iter().any(|ending| key.ends_with(ending))
}

/// Components under another name, by the field they are in. A ConfigMap that is no plugin is left alone.
pub(super) fn stale_entries<'a>(
    live: &'a ConfigMap,
    namespace: &str,
    name: &str,
    entry: &Entry,
) -> anyhow::Result<Vec<(&'static str, &'a str)>> {
    let label = live.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_PLUGIN));
    if label.is_none_or(|value| value != "true") {
        bail!(Failure::new(
            format!("ConfigMap {namespace}/{name} exists already and is no plugin"),
            format!(
                "choose another name with --name, or make it one: kubectl -n {namespace} label configmap {name} {LABEL_PLUGIN}=true"
            ),
        ));
    }
    let data = live.data.iter().flatten().map(|(key, _)| ("data", &**key));
    let binary_data = live.binary_data.iter().flatten().map(|(key, _)| ("binaryData", &**key));
    let is_stale =
        |(field, other): &(&str, &str)| is_component(other) && (*field, *other) != (entry.field, &*entry.key);
    Ok(data.chain(binary_data).filter(is_stale).collect())
}

#[cfg(test)]
impl Entry {
    /// One that holds nothing.
    pub(super) fn named(key: &str) -> Self {
        Self { field: "binaryData", key: key.to_owned(), content: String::new() }
    }
}
