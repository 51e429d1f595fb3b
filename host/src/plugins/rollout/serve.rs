//! The chosen version comes into force, once everything it needs is there.

use super::{Error, Known, Rollout, kinds::Resolved, plugins_watch, say, settings, steady};
use crate::{
    config::Limits,
    manifest::Permissions,
    object::{Gvk, Object, field_manager},
    observe::{discovery::Kind, reads::Sources, watch::WatchKey},
    plugins::{
        ActivePlugin,
        load::Version,
        probation::Probation,
        resource::{EarlierVersion, PluginSpec},
        selection_watch,
    },
    report::Reason,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::time::Instant;

/// What an operator lays down.
pub(super) struct Terms {
    pub(super) spec: PluginSpec,
    pub(super) limits: Limits,
    /// What it may do.
    pub(super) allowed: Arc<Permissions>,
}

impl Terms {
    pub(super) fn of(standard: &Limits, settings: &Object) -> Self {
        let spec = settings::spec(settings);
        let limits = settings::limits(standard, &spec);
        let allowed = settings::permissions(&spec);
        Self { spec, limits, allowed }
    }
}

/// Kinds that the versions of a plugin write.
struct Written {
    kinds: BTreeSet<Gvk>,
    field_kinds: BTreeSet<Gvk>,
}

impl Rollout {
    /// Puts the chosen version in force, with the one that is tried beside it.
    pub(super) async fn serve(
        &self,
        name: &Arc<str>,
        all: &mut BTreeMap<Arc<str>, Known>,
        settings: Arc<Object>,
        terms: Terms,
        source: Option<&Object>,
    ) -> Result<(), Error> {
        self.doubt(name);
        let known = all.entry(name.clone()).or_default();
        let Some(version) = known.version.clone() else { return Ok(()) };
        let manifest = version.manifest.clone();
        let tried = known.candidate.as_ref().map(|candidate| candidate.version.clone());
        let tried = tried.and_then(|version| version.permitted(&terms.allowed));
        let recorded = say::recorded(&settings);
        known.field_kinds.add(say::from_texts(&recorded.field_kinds));
        let written = Written {
            kinds: say::kinds(&recorded, [Some(&version), tried.as_ref()].into_iter().flatten()),
            field_kinds: known.field_kinds.all(),
        };
        let serving = self.registry.now().plugins.get(name).cloned();
        let mut resolved = self.resolve(name, &manifest, &written.kinds, &written.field_kinds).await?;
        let ready = resolved.ready.take();
        let parents = selection_watch(&manifest.parent);
        let before = self.before(name, known, serving.as_ref(), &version, &written, &terms).await?;
        let before = before.filter(|before| before.parents == parents);
        let trial = match &tried {
            Some(tried) => self.prepare(name, known, tried, &written, &terms).await?,
            None => None,
        };
        let others = [before.as_deref(), trial.as_ref()].into_iter().flatten();
        let others: BTreeSet<_> = others.flat_map(ActivePlugin::watches).cloned().collect();
        let unwanted = self.acquire(name, known, &resolved.watches.union(&others).cloned().collect());

        let snapshot = self.cache.snapshot();
        let Resolved { watches, brought, returning, .. } = &resolved;
        let unsynced: Vec<_> =
            watches.difference(brought).filter(|watch| !snapshot.is_synced(watch)).collect();
        let doubts = snapshot.doubts(watches);
        self.note_failing(name, known);
        let settled = watches.difference(brought).filter(|watch| !returning.contains(*watch));
        let of_watches = || self.obstacle(&known.failing, settled, &manifest);
        let obstacle = resolved.obstacle.clone().or_else(of_watches);
        let is_ready = unsynced.is_empty() && obstacle.is_none();
        let waits_for = obstacle.clone().unwrap_or_else(|| self.waits_for(&unsynced, &manifest));
        known.begin(serving.as_deref(), is_ready, &settings);
        if let Some((parent_kind, sources)) = ready
            && (is_ready || gives_way(serving.as_deref(), &version))
        {
            self.record_first(&settings, &recorded, &version, &written).await?;
            let mut active = assemble(name, known, &version, parent_kind, sources, &terms);
            active.obstacle =
                steady(obstacle, serving.as_ref().and_then(|serving| serving.obstacle.as_ref()));
            active.probation =
                self.probation(known, serving.as_deref(), &active, before, &recorded, is_ready);
            active.trial = self.trial(known, trial, &active, serving.as_deref(), &terms).await?;
            let is_other = serving.as_ref().is_none_or(|serving| serving.digest != active.digest);
            let said = serving.as_ref().filter(|_| is_other).map(|_| say::swapped(&active, source));
            let is_anew = !known.synced || known.doubts != doubts;
            self.activate(active, serving.as_deref(), is_ready && is_anew);
            if let Some(said) = said {
                self.events.publish(&settings, &said);
            }
            if is_other {
                known.in_force = Some((Instant::now(), false));
                self.metrics.plugin_swapped(version.seen.elapsed());
                let replaced = serving.as_deref().map(|serving| EarlierVersion {
                    digest: serving.digest.to_string(),
                    version: serving.manifest.version.clone(),
                });
                let replaced =
                    replaced.or_else(|| recorded.earlier()).filter(|one| *one.digest != *version.digest);
                self.note_replaced(name, known, replaced, terms.spec.history_limit).await;
            }
            self.keep(name, known, &settings).await;
            // Parents of another kind are nobody's any more.
            let ended = serving.filter(|serving| serving.parents != parents);
            known.ended.extend(ended.map(|serving| super::Ended::of(&serving)));
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
        self.progress(name, known, &settings, &terms);
        let state = match (terms.spec.paused, is_ready) {
            (true, _) => say::State::Paused,
            (false, true) => say::State::Serving { has_source: source.is_some() },
            // The first list takes a moment: what a start finds said already stands until it is known better.
            (false, false) if waits_for.0 == Reason::Syncing && settings.status.is_some() => return Ok(()),
            (false, false) => say::State::Syncing(waits_for),
        };
        let settings = self.current(&settings);
        self.say(name, &settings, known, Some(&written.kinds), &state).await
    }

    /// Before the first write: where that may be found must outlive this process (A6).
    async fn record_first(
        &self,
        settings: &Object,
        recorded: &say::Recorded,
        version: &Version,
        written: &Written,
    ) -> Result<(), Error> {
        let parent = recorded.active.as_ref().and_then(say::Active::parent);
        let is_parent_recorded = parent.as_ref() == Some(&version.manifest.parent.gvk);
        let are_kinds_recorded = written.kinds.len() <= recorded.kinds.len()
            && written.field_kinds.len() <= recorded.field_kinds.len();
        if is_parent_recorded && are_kinds_recorded {
            return Ok(());
        }
        self.record(settings, version, &written.kinds, &written.field_kinds).await
    }

    /// A version that is not in force, ready to be called.
    async fn prepare(
        &self,
        name: &Arc<str>,
        known: &Known,
        version: &Version,
        written: &Written,
        terms: &Terms,
    ) -> Result<Option<ActivePlugin>, Error> {
        let resolved = self.resolve(name, &version.manifest, &written.kinds, &written.field_kinds).await?;
        let ready = resolved.ready.filter(|_| resolved.obstacle.is_none());
        Ok(ready.map(|(kind, sources)| assemble(name, known, version, kind, sources, terms)))
    }

    /// The version that this one replaces, while that is new.
    async fn before(
        &self,
        name: &Arc<str>,
        known: &Known,
        serving: Option<&Arc<ActivePlugin>>,
        version: &Version,
        written: &Written,
        terms: &Terms,
    ) -> Result<Option<Arc<ActivePlugin>>, Error> {
        match (serving, &known.before) {
            (Some(serving), _) if serving.digest == version.digest => {
                Ok(serving.probation.as_ref().and_then(|probation| probation.before.clone()))
            }
            (Some(serving), Some(before)) if serving.digest == before.digest => Ok(Some(serving.clone())),
            (_, Some(before)) => match before.clone().permitted(&terms.allowed) {
                Some(before) => Ok(self.prepare(name, known, &before, written, terms).await?.map(Arc::new)),
                None => Ok(None),
            },
            (_, None) => Ok(None),
        }
    }

    /// The probation of what comes into force: what is in force already goes on with its own.
    fn probation(
        &self,
        known: &Known,
        serving: Option<&ActivePlugin>,
        to: &ActivePlugin,
        before: Option<Arc<ActivePlugin>>,
        recorded: &say::Recorded,
        is_ready: bool,
    ) -> Option<Arc<Probation>> {
        if known.is_approved {
            return None;
        }
        if let Some(serving) = serving.filter(|serving| serving.digest == to.digest) {
            return serving.probation.clone();
        }
        let was = recorded.active.as_ref().filter(|active| *active.digest == *to.digest);
        // Nothing to compare it with, and nothing to lose.
        let is_first = before.is_none() && is_ready && !self.has_children(to);
        if was.is_some_and(|active| active.settled) || is_first {
            return None;
        }
        let before = before.map(|before| {
            let plain = ActivePlugin { probation: None, trial: None, ..(*before).clone() };
            Arc::new(plain)
        });
        let snapshot = self.cache.snapshot();
        let objects = snapshot.list(&to.parents, None);
        Some(Arc::new(Probation::new(before, objects, was.is_some() && recorded.is_held())))
    }

    /// Whether there are children of this plugin.
    fn has_children(&self, plugin: &ActivePlugin) -> bool {
        let snapshot = self.cache.snapshot();
        let watches: BTreeSet<&WatchKey> = plugin.sources.children.values().map(|(watch, _)| watch).collect();
        let mut children = watches.into_iter().flat_map(|watch| snapshot.list(watch, None));
        children.any(|child| {
            child.labels.get(crate::object::LABEL_OWNED_BY).is_some_and(|owner| **owner == *plugin.name)
        })
    }

    /// The plugin's `Plugin`, as the cache has it by now: own writes are in it.
    fn current(&self, settings: &Arc<Object>) -> Arc<Object> {
        let snapshot = self.cache.snapshot();
        snapshot.get(&plugins_watch(), None, &settings.key.name).unwrap_or(settings).clone()
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
}

/// A version with its kinds, as it would be in force.
fn assemble(
    name: &Arc<str>,
    known: &Known,
    version: &Version,
    parent_kind: Arc<Kind>,
    sources: Sources,
    terms: &Terms,
) -> ActivePlugin {
    ActivePlugin {
        name: name.clone(),
        digest: version.digest.clone(),
        manager: field_manager(name),
        guest: version.guest.clone(),
        limits: terms.limits.clone(),
        parents: selection_watch(&version.manifest.parent),
        parent_kind,
        sources: Arc::new(sources),
        paused: terms.spec.paused,
        obstacle: None,
        condition_types: known.condition_types.clone(),
        field_kinds: known.field_kinds.clone(),
        shortfalls: known.shortfalls.clone(),
        manifest: version.manifest.clone(),
        probation: None,
        trial: None,
    }
}

/// What serves goes on until everything the new version needs is there, unless it is the same or never served.
fn gives_way(serving: Option<&ActivePlugin>, to: &Version) -> bool {
    serving.is_none_or(|serving| serving.digest == to.digest || !serving.is_complete())
}
