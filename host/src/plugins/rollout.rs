//! From a labelled ConfigMap to the version in force, and what its `Plugin` says about it (rules P1 to P3, P5).
//!
//! One task settles one plugin at a time: content that changes ten times while one version compiles is
//! compiled once more, not ten times. A version that is refused changes nothing: the last good one serves on.

mod activate;
mod claims;
mod degraded;
mod end;
mod kinds;
mod obstacle;
mod pending;
mod say;
mod settings;
mod taken;

pub use pending::Pending;

use end::Ended;
use obstacle::{Failing, steady};
use taken::Refused;

use super::{
    ActivePlugin, ConditionTypes, FieldKinds, Registry,
    load::{self, Version},
    selection_watch,
    shortfalls::Shortfalls,
    source,
};
use crate::{
    act::events::Events,
    clock::Clock,
    config::{Config, Limits},
    decide::guest::engine::Engine,
    dispatch::Dispatch,
    manifest::Manifest,
    object::{Gvk, Object, ObjectKey, field_manager},
    observe::{
        cache::Cache,
        client::{self, Client, Scope},
        discovery::Discovery,
        reads::Memos,
        watch::{WatchKey, Watches},
    },
    operate::metrics::Metrics,
    report::Reason,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use tracing::warn;

/// The label that makes a ConfigMap a plugin.
pub const LABEL_PLUGIN: &str = "oarlock.dev/plugin";
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

/// The watch of ConfigMaps that are plugins.
pub fn config_maps_watch(namespace: &str) -> WatchKey {
    WatchKey {
        gvk: Gvk::new("v1", "ConfigMap"),
        scope: Scope {
            namespace: Some(namespace.to_owned()),
            label_selector: Some(format!("{LABEL_PLUGIN}=true")),
        },
    }
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

/// What is known of one plugin between two looks.
#[derive(Default)]
struct Known {
    /// When its ConfigMap was created: the older of two plugins for one parent kind wins (rule P5).
    created: Box<str>,
    /// The last version that was accepted.
    version: Option<Version>,
    /// The content that was refused: not tried again until it changes.
    refused: Option<Refused>,
    /// The watches it wants.
    watches: BTreeSet<WatchKey>,
    /// Whether all of them had been listed at the last look.
    synced: bool,
    /// How often what they have had been doubted by then.
    doubts: u64,
    /// See [`ActivePlugin::condition_types`].
    condition_types: Arc<ConditionTypes>,
    /// See [`ActivePlugin::field_kinds`].
    field_kinds: Arc<FieldKinds>,
    /// See [`ActivePlugin::shortfalls`]; of the version in force.
    shortfalls: Arc<Shortfalls>,
    /// When its parents began to be planned.
    begun: Option<Instant>,
    /// When the content of `version` was first looked at, until it is in force.
    seen: Option<Instant>,
    /// Which of its watches fail, and since when.
    failing: Failing,
    /// Versions that are no longer in force and may have left finalizers on their parents.
    ended: Vec<Ended>,
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
            let names = names.unwrap_or_else(|| {
                let found = snapshot.list(&config_maps, None).chain(snapshot.list(&plugins_watch(), None));
                found.map(|object| object.key.name.clone()).chain(known.keys().cloned()).collect()
            });
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

    async fn settle(&self, name: &Arc<str>, all: &mut BTreeMap<Arc<str>, Known>) -> Result<(), Error> {
        let Some(config_map) = self.source(name) else { return self.end(name, all).await };
        let settings = match self.cache.snapshot().get(&plugins_watch(), None, name) {
            Some(settings) => settings.clone(),
            None => self.create(name).await?,
        };
        if settings.is_terminating() {
            // It is made anew once it is gone, which is a change.
            return Ok(());
        }
        let spec = settings::spec(&settings);
        let limits = settings::limits(&self.config.limits, &spec);
        let known = all.entry(name.clone()).or_default();
        known.created = config_map.created.clone();
        let allowed = settings::permissions(&spec);
        let taken = self.take_in(known, &config_map, &limits, &allowed).await;
        if self.source(name).is_none_or(|source| source.body_hash != config_map.body_hash) {
            // Loading takes its time. What came meanwhile is looked at next; what it replaces must not serve first.
            return Ok(());
        }
        if let Err(refused) = taken {
            self.refuse(name, known, refused, &settings, &config_map);
        }
        // What was allowed when it came into force may not be any more, and what was not may be now.
        if let Some(version) = &mut known.version {
            if let Ok(manifest) = version.manifest.permit(&allowed) {
                version.manifest = Arc::new(manifest);
            } else {
                known.version = None;
                self.deactivate(name, all);
            }
        }
        let known = all.entry(name.clone()).or_default();
        let Some(manifest) = known.version.as_ref().map(|version| version.manifest.clone()) else {
            return self.say(name, &settings, known, None, &say::State::Nothing).await;
        };
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
        self.serve(name, all, manifest, &config_map, settings, spec.paused, limits).await
    }

    /// A plugin's ConfigMap, unless it is on its way out.
    fn source(&self, name: &str) -> Option<Arc<Object>> {
        let snapshot = self.cache.snapshot();
        let namespace = &self.config.namespace;
        let found = snapshot.get(&config_maps_watch(namespace), Some(namespace), name);
        found.filter(|config_map| !config_map.is_terminating()).cloned()
    }

    /// Puts the version that was taken in in force, once everything it needs is there.
    #[allow(clippy::too_many_arguments, reason = "one step of `settle`, which has all of these")]
    async fn serve(
        &self,
        name: &Arc<str>,
        all: &mut BTreeMap<Arc<str>, Known>,
        manifest: Arc<Manifest>,
        config_map: &Object,
        settings: Arc<Object>,
        paused: bool,
        limits: Limits,
    ) -> Result<(), Error> {
        let kinds = say::kinds(&settings, &manifest);
        self.doubt(name);
        let known = all.entry(name.clone()).or_default();
        known.field_kinds.add(say::from_texts(&say::recorded(&settings).field_kinds));
        let field_kinds = known.field_kinds.all();
        let resolved = self.resolve(name, &manifest, &kinds, &field_kinds).await?;
        let known = all.entry(name.clone()).or_default();
        let unwanted = self.acquire(name, known, &resolved.watches);

        let snapshot = self.cache.snapshot();
        let needed = resolved.watches.difference(&resolved.brought);
        let unsynced: Vec<_> = needed.filter(|watch| !snapshot.is_synced(watch)).collect();
        let doubts = snapshot.doubts(&resolved.watches);
        let serving = self.registry.now().plugins.get(name).cloned();
        self.note_failing(name, known);
        let needed = resolved.watches.difference(&resolved.brought);
        let settled = needed.filter(|watch| !resolved.returning.contains(*watch));
        let of_watches = || self.obstacle(&known.failing, settled, &manifest);
        let obstacle = resolved.obstacle.or_else(of_watches);
        let is_ready = unsynced.is_empty() && obstacle.is_none();
        let waits_for = obstacle.clone().unwrap_or_else(|| self.waits_for(&unsynced, &manifest));
        known.begin(serving.as_deref(), is_ready, &settings);
        if let (Some((parent_kind, sources)), Some(version)) = (resolved.ready, &known.version)
            && (is_ready || gives_way(serving.as_deref(), version))
        {
            // Before the first write: where that may be found must outlive this process (A6).
            let recorded = say::recorded(&settings);
            let is_parent_recorded =
                recorded.active.and_then(|active| active.parent()).as_ref() == Some(&manifest.parent.gvk);
            let are_kinds_recorded =
                kinds.len() <= recorded.kinds.len() && field_kinds.len() <= recorded.field_kinds.len();
            if !is_parent_recorded || !are_kinds_recorded {
                self.record(&settings, version, &kinds, &field_kinds).await?;
            }
            let parents = selection_watch(&manifest.parent);
            let active = ActivePlugin {
                name: name.clone(),
                digest: version.digest.clone(),
                manager: field_manager(name),
                guest: version.guest.clone(),
                limits,
                parents: parents.clone(),
                parent_kind,
                sources: Arc::new(sources),
                paused,
                obstacle: steady(obstacle, serving.as_ref().and_then(|serving| serving.obstacle.as_ref())),
                condition_types: known.condition_types.clone(),
                field_kinds: known.field_kinds.clone(),
                shortfalls: known.shortfalls.clone(),
                manifest,
            };
            let swapped = serving.as_ref().is_some_and(|serving| serving.digest != active.digest);
            let said = swapped.then(|| say::swapped(&active, config_map));
            let is_anew = !known.synced || known.doubts != doubts;
            self.activate(active, serving.as_deref(), is_ready && is_anew);
            if let Some(said) = said {
                self.events.publish(&settings, &said);
            }
            // Parents of another kind are nobody's any more.
            let ended = serving.filter(|serving| serving.parents != parents);
            known.ended.extend(ended.map(|serving| Ended::of(&serving)));
            if let Some(seen) = known.seen.take() {
                self.metrics.plugin_swapped(seen.elapsed());
            }
            for watch in unwanted {
                self.release(name, &watch);
                known.watches.remove(&watch);
            }
        } else if let Some(serving) = serving {
            self.note_obstacle(&known.failing, &serving);
        }
        known.synced = is_ready;
        if is_ready {
            known.doubts = doubts;
        }
        self.look_again(name, &settings, known);
        self.release_ended(known).await?;
        let state = match (paused, is_ready) {
            (true, _) => say::State::Paused,
            (false, true) => say::State::Serving,
            // The first list takes a moment: what a start finds said already stands until it is known better.
            (false, false) if waits_for.0 == Reason::Syncing && settings.status.is_some() => return Ok(()),
            (false, false) => say::State::Syncing(waits_for),
        };
        let settings = self.current(&settings);
        self.say(name, &settings, known, Some(&kinds), &state).await
    }

    /// Begins the watches that a plugin wants; those it has and does not want any more.
    fn acquire(&self, name: &str, known: &mut Known, wanted: &BTreeSet<WatchKey>) -> Vec<WatchKey> {
        for watch in wanted.difference(&known.watches) {
            self.watches.acquire(name, watch);
        }
        let unwanted = known.watches.difference(wanted).cloned().collect();
        known.watches.extend(wanted.iter().cloned());
        unwanted
    }

    /// The plugin's `Plugin`, as the cache has it by now: own writes are in it.
    fn current(&self, settings: &Arc<Object>) -> Arc<Object> {
        let snapshot = self.cache.snapshot();
        snapshot.get(&plugins_watch(), None, &settings.key.name).unwrap_or(settings).clone()
    }

    /// Makes the `Plugin` of a bare ConfigMap.
    async fn create(&self, name: &str) -> Result<Arc<Object>, Error> {
        let kind = self.discovery.kind(&plugin_gvk()).await?;
        let key = ObjectKey { gvk: plugin_gvk(), namespace: None, name: name.into() };
        let body = serde_json::json!({
            "apiVersion": plugin_gvk().api_version(), "kind": "Plugin",
            "metadata": {"name": name}, "spec": {},
        });
        let apply =
            client::Apply { manager: say::MANAGER, force: false, status: false, body: &body.to_string() };
        let object = self.client.apply(&kind, &key, apply).await?;
        self.cache.wrote(object.clone());
        Ok(Arc::new(object))
    }
}

/// What serves goes on until everything the new version needs is there, unless it is the same or never served.
fn gives_way(serving: Option<&ActivePlugin>, to: &Version) -> bool {
    serving.is_none_or(|serving| serving.digest == to.digest || !serving.is_complete())
}
