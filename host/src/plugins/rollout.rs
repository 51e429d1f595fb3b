//! From a labelled ConfigMap to the version in force, and what its `Plugin` says about it (rules P1 to P3, P5).
//!
//! One task settles one plugin at a time: content that changes ten times while one version compiles is
//! compiled once more, not ten times. A version that is refused changes nothing: the last good one serves on.

mod activate;
mod choice;
mod choose;
mod claims;
mod conditions;
mod degraded;
mod end;
mod history;
mod kinds;
mod known;
mod obstacle;
mod pending;
mod recorded;
mod say;
mod serve;
pub(crate) mod settings;
mod taken;
mod trial;

pub(crate) use history::stored_name;
pub use pending::Pending;

use end::Ended;
use known::{Candidate, Known};
use obstacle::{Failing, steady};
use serve::Terms;
use taken::Refused;

use super::{Registry, load, source};
use crate::{
    act::events::Events,
    clock::Clock,
    config::Config,
    decide::guest::engine::Engine,
    dispatch::Dispatch,
    object::{Gvk, LABEL_PART_OF, LABEL_PLUGIN, Object, ObjectKey},
    observe::{
        cache::Cache,
        client::{self, Client, Scope},
        discovery::Discovery,
        reads::Memos,
        watch::{WatchKey, Watches},
    },
    operate::metrics::Metrics,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tracing::warn;

/// How long after a failed request a plugin is looked at again.
const RETRY: Duration = Duration::from_secs(5);

/// The kind of `Plugin`.
pub fn plugin_gvk() -> Gvk {
    Gvk::new("oarlock.dev/v1alpha1", "Plugin")
}

/// The watch of `Plugin` resources.
pub fn plugins_watch() -> WatchKey {
    WatchKey { gvk: plugin_gvk(), scope: Scope::default() }
}

/// The watch of ConfigMaps that hold plugins, and parts of them.
pub fn config_maps_watch(namespace: &str) -> WatchKey {
    WatchKey {
        gvk: Gvk::new("v1", "ConfigMap"),
        scope: Scope {
            namespace: Some(namespace.to_owned()),
            label_selector: Some(format!("{LABEL_PLUGIN} in (part,true)")),
        },
    }
}

/// The name of the source that a ConfigMap is, or is a part of.
pub fn source_name(config_map: &Object) -> Arc<str> {
    let part_of = config_map.labels.get(LABEL_PART_OF).filter(|_| !is_source(config_map));
    part_of.map_or_else(|| config_map.key.name.clone(), |name| (**name).into())
}

fn is_source(config_map: &Object) -> bool {
    config_map.labels.get(LABEL_PLUGIN).is_some_and(|value| value == "true")
}

/// Everything that settling a plugin touches.
pub struct Rollout {
    /// The time.
    pub clock: Clock,
    /// Flags and limits.
    pub config: Arc<Config>,
    /// The way to the API server.
    pub client: Client,
    /// Kinds.
    pub discovery: Arc<Discovery>,
    /// Objects.
    pub cache: Arc<Cache>,
    /// Watches, started for a plugin's kinds.
    pub watches: Arc<Watches>,
    /// Plans, forgotten with their plugin.
    pub memos: Arc<Memos>,
    /// The queue.
    pub dispatch: Arc<Dispatch>,
    /// What is in force.
    pub registry: Arc<Registry>,
    /// The sandbox.
    pub engine: Engine,
    /// Events about plugins.
    pub events: Arc<Events>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// What to look at.
    pub pending: Arc<Pending>,
}

/// Why a plugin could not be settled now: an answer of the API server. It is looked at again.
type Error = client::Error;

impl Rollout {
    /// Settles plugins until `stop`; never returns an error: what goes wrong is said in the `Plugin` or the log.
    pub async fn run(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut known: BTreeMap<Arc<str>, Known> = BTreeMap::new();
        loop {
            let names = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                names = self.pending.take() => names,
            };
            let snapshot = self.cache.snapshot();
            let config_maps = config_maps_watch(&self.config.namespace);
            if !snapshot.is_synced(&config_maps) || !snapshot.is_synced(&plugins_watch()) {
                // Listing them ends with a change of state, which brings us back here.
                continue;
            }
            let names = if let Some(names) = names {
                self.with_users(names)
            } else {
                let sources = snapshot.list(&config_maps, None).filter(|config_map| is_source(config_map));
                let found = sources.chain(snapshot.list(&plugins_watch(), None));
                found.map(|object| object.key.name.clone()).chain(known.keys().cloned()).collect()
            };
            for name in names {
                let settle = self.settle(&name, &mut known);
                let settled = tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => return,
                    settled = settle => settled,
                };
                if let Err(error) = settled {
                    warn!(
                        plugin = &*name,
                        error = &error as &dyn std::error::Error,
                        "plugin is looked at again"
                    );
                    self.pending.later(&name, error.retry_after.unwrap_or(RETRY));
                }
            }
        }
    }

    /// With the plugins whose source is a ConfigMap of another name.
    fn with_users(&self, mut names: BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let snapshot = self.cache.snapshot();
        let users = snapshot.list(&plugins_watch(), None);
        let users = users.filter(|plugin| names.contains(&*settings::source(plugin)));
        let users: Vec<_> = users.map(|plugin| plugin.key.name.clone()).collect();
        names.extend(users);
        names
    }

    async fn settle(&self, name: &Arc<str>, all: &mut BTreeMap<Arc<str>, Known>) -> Result<(), Error> {
        let settings = self.cache.snapshot().get(&plugins_watch(), None, name).cloned();
        let source =
            self.source(settings.as_deref().map_or_else(|| name.to_string(), settings::source).as_str());
        let settings = match (settings, &source) {
            (Some(settings), Some(_)) => settings,
            // What an operator has made stands for itself; what was made here goes with its ConfigMap (rule D4).
            (Some(settings), None) if !settings.is_terminating() && !settings::is_made_here(&settings) => {
                settings
            }
            (None, Some(_)) if !self.is_used(name) => self.create(name).await?,
            _ => return self.end(name, all).await,
        };
        if settings.is_terminating() {
            // It is made anew once it is gone, which is a change.
            return Ok(());
        }
        let terms = Terms::of(&self.config.limits, &settings);
        let known = all.entry(name.clone()).or_default();
        known.remember(&settings);
        if let Some(config_map) = &source {
            known.created = config_map.created.clone();
            let taken = self.take_in(known, config_map, &terms).await;
            if self.source(&config_map.key.name).is_none_or(|source| source.body_hash != config_map.body_hash)
            {
                // Loading takes its time. What came meanwhile is looked at next; what it replaces must not serve first.
                return Ok(());
            }
            match taken {
                Ok(version) => (known.content, known.refused) = (Some(version), None),
                Err(refused) => {
                    known.content = None;
                    self.refuse(name, known, refused, &settings, config_map);
                }
            }
        } else {
            (known.content, known.refused) = (None, None);
        }
        self.choose(name, known, &settings, &terms).await?;
        // What was allowed when it came into force may not be any more, and what was not may be now.
        if let Some(version) = known.version.take() {
            known.version = version.permitted(&terms.allowed);
            if known.version.is_none() {
                self.deactivate(name, all);
            }
        }
        let known = all.entry(name.clone()).or_default();
        if known.version.is_none() {
            let state = if source.is_some() { say::State::Nothing } else { say::State::Gone };
            return self.say(name, &settings, known, None, &state).await;
        }
        // The older of two plugins that write the status of one parent kind wins (rule P5).
        if let Some(winner) = claims::older_claim(name, all) {
            self.deactivate(name, all);
            if let Some(known) = all.get_mut(name) {
                self.release_ended(known).await?;
            }
            return self.say(name, &settings, &all[name], None, &say::State::Claimed(winner)).await;
        }
        if let Some(loser) = claims::younger_in_force(name, all, &self.registry) {
            self.deactivate(&loser, all);
        }
        self.serve(name, all, settings, terms, source.as_deref()).await
    }

    /// A ConfigMap that holds a component, unless it is on its way out.
    fn source(&self, name: &str) -> Option<Arc<Object>> {
        let snapshot = self.cache.snapshot();
        let namespace = &self.config.namespace;
        let found = snapshot.get(&config_maps_watch(namespace), Some(namespace), name);
        found.filter(|config_map| is_source(config_map) && !config_map.is_terminating()).cloned()
    }

    /// Whether a ConfigMap is the source of a plugin of another name: then it is none by itself.
    fn is_used(&self, config_map: &str) -> bool {
        let snapshot = self.cache.snapshot();
        snapshot.list(&plugins_watch(), None).any(|plugin| settings::source(plugin) == config_map)
    }

    /// Makes the `Plugin` of a bare ConfigMap.
    async fn create(&self, name: &str) -> Result<Arc<Object>, Error> {
        let kind = self.discovery.kind(&plugin_gvk()).await?;
        let key = ObjectKey { gvk: plugin_gvk(), namespace: None, name: name.into() };
        let body = serde_json::json!({
            "apiVersion": plugin_gvk().api_version(), "kind": "Plugin",
            "metadata": {"name": name, "annotations": {settings::MADE_HERE: "true"}}, "spec": {},
        });
        let apply =
            client::Apply { manager: say::MANAGER, force: false, status: false, body: &body.to_string() };
        let object = self.client.apply(&kind, &key, apply).await?;
        self.cache.wrote(object.clone());
        Ok(Arc::new(object))
    }
}
