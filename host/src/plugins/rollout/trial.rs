//! New versions on their way to all objects: wave by wave, or on a part of them first (rule P3).

use super::{Error, Known, Rollout, Terms, say, settings};
use crate::{
    object::{Object, ObjectKey},
    observe::reads::ParentRef,
    plugins::{
        ActivePlugin, Trial,
        preview::{Preview, Summary},
        probation::Probation,
        resource::RolloutStrategy,
    },
    report::{Reason, Trigger},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::info;

/// How long a new version may still be taken back by itself, after all objects have been planned by it.
const PROBATION: Duration = Duration::from_mins(10);
/// Objects that a preview looks at: others' plugins wait meanwhile, and it says enough. `oarlock diff` looks at all.
const PREVIEWED: usize = 500;
/// How long a canary has to do well unless the `Plugin` says otherwise.
const CANARY: Duration = Duration::from_mins(10);

impl Rollout {
    /// The version that is tried beside the one in force, if it can be. Of one that waits for approval only what it
    /// would change is told.
    pub(super) async fn trial(
        &self,
        known: &mut Known,
        tried: Option<ActivePlugin>,
        active: &ActivePlugin,
        serving: Option<&ActivePlugin>,
        terms: &Terms,
    ) -> Result<Option<Trial>, Error> {
        let Some(candidate) = known.candidate.as_mut() else { return Ok(None) };
        let Some(mut plugin) = tried else {
            "it waits for its kinds".clone_into(&mut candidate.message);
            return Ok(None);
        };
        let snapshot = self.cache.snapshot();
        if !plugin.watches().all(|watch| snapshot.is_synced(watch)) {
            "its kinds are being listed".clone_into(&mut candidate.message);
            return Ok(None);
        }
        if candidate.rollout == RolloutStrategy::Preview {
            if !candidate.is_previewed {
                candidate.message = self.preview(&plugin).await?;
                candidate.is_previewed = true;
            }
            return Ok(None);
        }
        if plugin.parents != active.parents {
            "its objects are others than those of the version in force, so it cannot be tried on a part of them"
                .clone_into(&mut candidate.message);
            return Ok(None);
        }
        let part = match settings::part(&terms.spec.canary.clone().unwrap_or_default()) {
            Ok(part) => part,
            Err(error) => {
                candidate.message = format!("spec.canary.labelSelector is malformed: {error}");
                return Ok(None);
            }
        };
        let standing = serving.and_then(|serving| serving.trial.as_ref());
        let standing = standing.filter(|trial| trial.plugin.digest == plugin.digest);
        plugin.probation = if let Some(trial) = standing {
            trial.plugin.probation.clone()
        } else {
            let before = ActivePlugin { probation: None, trial: None, ..active.clone() };
            let objects = snapshot.list(&plugin.parents, None);
            Some(Arc::new(Probation::new(Some(Arc::new(before)), objects, false)))
        };
        Ok(Some(Trial { part, plugin: Arc::new(plugin) }))
    }

    /// What a version would change, in words.
    async fn preview(&self, plugin: &ActivePlugin) -> Result<String, Error> {
        let snapshot = self.cache.snapshot();
        let mut summary = Summary::default();
        let all = snapshot.list(&plugin.parents, None).count();
        for parent in snapshot.list(&plugin.parents, None).take(PREVIEWED) {
            let (namespace, now) = (&self.config.namespace, self.clock.wall());
            let preview = Preview::of(plugin, &self.discovery, &snapshot, parent, namespace, &now).await?;
            summary.add(&parent.key, &preview);
        }
        let rest = if all > PREVIEWED {
            format!("; {} more were not looked at", all - PREVIEWED)
        } else {
            String::new()
        };
        Ok(format!("{summary}{rest}"))
    }

    /// Has the next wave of objects planned, and ends what has gone well for long enough.
    pub(super) fn progress(&self, name: &Arc<str>, known: &mut Known, settings: &Object, terms: &Terms) {
        let Some(active) = self.registry.now().plugins.get(name).cloned() else { return };
        if active.paused || active.versions().all(|version| version.probation.is_none()) {
            return;
        }
        let snapshot = self.cache.snapshot();
        let is_tried = |parent: &Arc<Object>| !Arc::ptr_eq(active.of(parent), &active);
        let (tried, rest): (Vec<_>, Vec<_>) =
            snapshot.list(&active.parents, None).partition(|one| is_tried(one));
        let [tried, rest] = [tried, rest]
            .map(|parents| parents.iter().map(|parent| parent.key.clone()).collect::<BTreeSet<ObjectKey>>());
        if let Some(trial) = &active.trial {
            self.progress_trial(name, known, trial, &tried, terms);
        }
        for version in active.versions() {
            let probation = version.probation.as_ref();
            if let Some(objects) =
                probation.filter(|probation| probation.is_newly_held()).and_then(|one| one.held())
            {
                let event = say::warning(Reason::Held, "Hold", say::held(version, objects));
                self.events.publish(settings, &event);
            }
        }
        let Some(probation) = &active.probation else { return };
        let is_through = self.next_wave(name, probation, &rest);
        let Some((since, is_planned)) = &mut known.in_force else { return };
        if !is_through || probation.held().is_some() || probation.verdict().is_some() {
            return;
        }
        if !*is_planned {
            *is_planned = true;
            self.metrics.plugin_rolled_out(since.elapsed());
        }
        // Without another one to go back to, time tells nothing.
        let time = if probation.before.is_some() { PROBATION } else { Duration::ZERO };
        let left = time.saturating_sub(since.elapsed());
        if !left.is_zero() {
            self.pending.later(name, left);
            return;
        }
        info!(plugin = &**name, digest = &*active.digest, "version settled");
        known.before = None;
        self.registry.activate(ActivePlugin { probation: None, ..(*active).clone() });
        // The watches of the version before are let go of.
        self.pending.add(name);
    }

    fn progress_trial(
        &self,
        name: &Arc<str>,
        known: &mut Known,
        trial: &Trial,
        parents: &BTreeSet<ObjectKey>,
        terms: &Terms,
    ) {
        let (Some(probation), Some(candidate)) = (&trial.plugin.probation, &mut known.candidate) else {
            return;
        };
        let is_through = self.next_wave(name, probation, parents);
        candidate.message = format!("it is tried on {} of the objects", parents.len());
        if let Some(objects) = probation.held() {
            candidate.message = say::held(&trial.plugin, objects);
            return;
        }
        if !is_through || candidate.is_proven {
            return;
        }
        let since = *candidate.since.get_or_insert_with(Instant::now);
        let seconds = terms.spec.canary.as_ref().and_then(|canary| canary.seconds);
        let time =
            seconds.map_or(CANARY, |seconds| Duration::from_secs(seconds.max(1).unsigned_abs().into()));
        let left = time.saturating_sub(since.elapsed());
        if left.is_zero() {
            candidate.is_proven = true;
            self.pending.add(name);
        } else {
            self.pending.later(name, left);
        }
    }

    /// Whether there is none left.
    fn next_wave(&self, name: &Arc<str>, probation: &Probation, parents: &BTreeSet<ObjectKey>) -> bool {
        let (wave, is_over) = probation.next_wave(parents);
        let requests = wave.into_iter().map(|parent| ParentRef { plugin: name.clone(), parent });
        self.dispatch.add(requests.map(|parent| (parent, Trigger::Plugin)));
        is_over
    }
}
