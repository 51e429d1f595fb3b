//! A plugin beside a cluster: loaded in this process as a host does it, with the objects that it would see. Nothing is
//! written.

use super::{
    Failure,
    cluster::{Ask, Cluster},
    push::default_name,
};
use crate::{
    clock::Clock,
    decide::guest::engine::Engine,
    object::{Gvk, Object, ObjectKey, field_manager},
    observe::{
        cache::{Cache, Snapshot},
        client::Client,
        discovery::{Discovery, Kind},
        reads::Sources,
        watch::WatchKey,
    },
    plugins::{
        ActivePlugin, children_watch, fields_watch,
        load::{self, Version},
        rollout::{plugin_gvk, settings, stored_name},
        selection_watch,
        source::{self, Component},
    },
    report::chain,
};
use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

/// A version of a plugin, and the moment that it sees.
pub(super) struct Live {
    /// The version.
    pub(super) plugin: Arc<ActivePlugin>,
    /// What it would see.
    pub(super) snapshot: Snapshot,
    /// Kinds.
    pub(super) discovery: Discovery,
    /// The host's namespace.
    pub(super) namespace: String,
    /// The time, for the whole of it.
    pub(super) now: String,
}

/// Which version.
#[derive(Clone, Copy)]
pub(super) enum From<'a> {
    /// A file, as if it were pushed under this name; that of the file if absent. Or a plugin's name: what its source
    /// holds.
    FileOrSource(&'a str, Option<&'a str>),
    /// The version of a plugin that is in force.
    InForce(&'a str),
}

impl From<'_> {
    fn plugin(self) -> anyhow::Result<Arc<str>> {
        Ok(match self {
            Self::FileOrSource(_, Some(name)) | Self::InForce(name) => name.into(),
            Self::FileOrSource(from, None) if Path::new(from).is_file() => {
                default_name(Path::new(from))?.into()
            }
            Self::FileOrSource(from, None) => from.into(),
        })
    }

    async fn component(
        self,
        cluster: &Cluster,
        namespace: &str,
        settings: &Object,
        limit: usize,
    ) -> anyhow::Result<Component> {
        let name = &settings.key.name;
        match self {
            Self::FileOrSource(file, _) if Path::new(file).is_file() => {
                let bytes = fs::read(file).with_context(|| format!("cannot read {file}"))?;
                Ok(Component { entry: file.to_owned(), digest: source::digest(&bytes), bytes })
            }
            Self::FileOrSource(..) => uploaded(cluster, namespace, &settings::source(settings), limit).await,
            Self::InForce(_) => {
                let Some(active) = settings::active(settings) else {
                    bail!(Failure::new(
                        format!("no version of {name} is in force"),
                        format!("see why: oarlock get plugins {name} -o wide"),
                    ));
                };
                let held = uploaded(cluster, namespace, &settings::source(settings), limit).await;
                match held {
                    Ok(component) if component.digest == active => Ok(component),
                    // The source has moved on: the host keeps what is in force.
                    _ => uploaded(cluster, namespace, &stored_name(name, &active), limit).await,
                }
            }
        }
    }
}

impl Live {
    /// Loads a version, and lists what it may read and has made; with the component's bytes.
    ///
    /// # Errors
    /// It cannot be loaded, or something may not be listed.
    pub(super) async fn load(
        cluster: &Cluster,
        namespace: &str,
        from: From<'_>,
    ) -> anyhow::Result<(Self, Vec<u8>)> {
        let name = from.plugin()?;
        let settings = settings_of(cluster, &name).await?;
        let terms = settings::spec(&settings);
        let limits = settings::limits(&crate::config::Limits::STANDARD, &terms);
        let component = from.component(cluster, namespace, &settings, limits.component_bytes).await?;
        let bytes = component.bytes.clone();
        let compiler = std::env::current_exe().context("cannot tell which program this is")?;
        let engine = Engine::with(1, None, compiler)?;
        let allowed = settings::permissions(&terms);
        let version = load::version(&engine, component, &limits, &allowed).await;
        let version = version.map_err(|(_, error)| {
            Failure::new(chain(&error), "`oarlock check FILE` tells more of a component".to_owned())
        })?;

        let client = Client::new(cluster.client.clone());
        let discovery = Discovery::new(client.clone());
        let (parent_kind, sources) = resolve(&discovery, &name, &version, &settings).await?;
        let parents = selection_watch(&version.manifest.parent);
        let Version { digest, manifest, guest, .. } = version;
        let plugin = ActivePlugin {
            manager: field_manager(&name),
            name,
            digest,
            manifest,
            guest,
            limits,
            parents,
            parent_kind,
            sources: Arc::new(sources),
            paused: false,
            obstacle: None,
            condition_types: Arc::default(),
            field_kinds: Arc::default(),
            shortfalls: Arc::default(),
            probation: None,
            trial: None,
        };
        let cache = Cache::new(Arc::new(|_| {}));
        for watch in plugin.watches() {
            list(&client, &discovery, &cache, watch).await?;
        }
        let (snapshot, namespace, now) = (cache.snapshot(), namespace.to_owned(), Clock::System.wall());
        Ok((Self { plugin: Arc::new(plugin), snapshot, discovery, namespace, now }, bytes))
    }
}

/// The `Plugin`, or one without settings if there is none.
async fn settings_of(cluster: &Cluster, name: &str) -> anyhow::Result<Object> {
    let ask = Ask { verb: "get", resource: "plugins.oarlock.dev", namespace: None };
    let found = cluster.ask(ask, cluster.plugins().get_opt(name)).await?;
    let text = match found {
        Some(plugin) => serde_json::to_string(&plugin)?,
        None => serde_json::json!({"metadata": {"name": name}}).to_string(),
    };
    Object::decode(&plugin_gvk(), &text).context("the Plugin cannot be read")
}

/// The component that a ConfigMap holds.
async fn uploaded(cluster: &Cluster, namespace: &str, name: &str, limit: usize) -> anyhow::Result<Component> {
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let ask = Ask { verb: "get", resource: "configmaps", namespace: Some(namespace) };
    let get = async |name: &str| -> anyhow::Result<Option<Object>> {
        let found = cluster.ask(ask, config_maps.get_opt(name)).await?;
        let decode = |found: &ConfigMap| {
            Ok(Object::decode(&Gvk::new("v1", "ConfigMap"), &serde_json::to_string(found)?)?)
        };
        found.as_ref().map(decode).transpose()
    };
    let Some(source) = get(name).await? else {
        bail!(Failure::new(
            format!("there is neither a file {name} nor a ConfigMap {namespace}/{name}"),
            "name a component's file, or a plugin: oarlock get plugins",
        ));
    };
    let mut parts = BTreeMap::new();
    for name in source::needed(&source) {
        if let Some(part) = get(&name).await? {
            parts.insert(name, Arc::new(part));
        }
    }
    let found = source::component(&source, |name| parts.get(name).cloned(), limit);
    found.with_context(|| format!("ConfigMap {namespace}/{name} holds no component"))
}

/// The parent kind, and where the others are; those that its children of earlier versions may be of, too.
async fn resolve(
    discovery: &Discovery,
    name: &Arc<str>,
    version: &Version,
    settings: &Object,
) -> anyhow::Result<(Arc<Kind>, Sources)> {
    let manifest = &version.manifest;
    let mut sources = Sources::new(name.clone());
    let recorded = settings::recorded_kinds(settings);
    for gvk in manifest.children.iter().chain(&recorded.kinds) {
        // What is not served has no objects.
        if let Ok(kind) = discovery.kind(gvk).await {
            sources.children.insert(gvk.clone(), (children_watch(gvk), kind.namespaced));
        }
    }
    for gvk in recorded.field_kinds {
        sources.fields.insert(gvk.clone(), fields_watch(&gvk));
    }
    for read in &manifest.reads {
        let kind = discovery.kind(&read.gvk).await?;
        sources.reads.insert(read.gvk.clone(), (selection_watch(read), kind.namespaced));
    }
    Ok((discovery.kind(&manifest.parent.gvk).await?, sources))
}

async fn list(client: &Client, discovery: &Discovery, cache: &Cache, watch: &WatchKey) -> anyhow::Result<()> {
    let kind = discovery.kind(&watch.gvk).await?;
    let (mut objects, mut next) = (Vec::new(), None);
    loop {
        let page = client.list(&kind, &watch.scope, next.as_deref()).await?;
        objects.extend(page.objects);
        next = page.next;
        if next.is_none() {
            cache.open(watch);
            cache.replace(watch, objects, &page.version);
            return Ok(());
        }
    }
}

/// Whether somebody who writes `namespace/name`, or the name alone, may mean this object.
pub(super) fn is_named(key: &ObjectKey, object: &str) -> bool {
    object == place(key) || !object.contains('/') && *object == *key.name
}

/// `namespace/name`, or the name alone.
pub(super) fn place(key: &ObjectKey) -> String {
    match &key.namespace {
        Some(namespace) => format!("{namespace}/{}", key.name),
        None => key.name.to_string(),
    }
}
