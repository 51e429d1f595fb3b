//! A plugin ends: out of force, its watches and finalizers released, its objects left as they are (rule D4).

use super::{Error, Known, Rollout, plugins_watch, say};
use crate::{
    decide::finalizer,
    observe::{client::Answer, watch::WatchKey},
    plugins::ActivePlugin,
};
use std::{collections::BTreeMap, sync::Arc};
use tracing::{info, warn};

impl Rollout {
    /// The ConfigMap is gone: the plugin ends, its objects stay as they are (rule D4).
    pub(super) async fn end(
        &self,
        name: &Arc<str>,
        all: &mut BTreeMap<Arc<str>, Known>,
    ) -> Result<(), Error> {
        self.deactivate(name, all);
        if let Some(known) = all.get_mut(name) {
            self.release_ended(known).await?;
        }
        all.remove(name);
        let snapshot = self.cache.snapshot();
        match snapshot.get(&plugins_watch(), None, name) {
            Some(settings) if !settings.is_terminating() => {
                self.say(name, settings, &Known::default(), None, &say::State::Gone).await
            }
            _ => Ok(()),
        }
    }

    /// Takes a plugin out of force, and lets those take over that stood back for it. Its finalizers are released
    /// afterwards: see [`Rollout::release_ended`].
    pub(super) fn deactivate(&self, name: &Arc<str>, all: &mut BTreeMap<Arc<str>, Known>) {
        let removed = self.registry.remove(name);
        let known = all.entry(name.clone()).or_default();
        for watch in std::mem::take(&mut known.watches) {
            self.release(name, &watch);
        }
        known.synced = false;
        let Some(removed) = removed else { return };
        info!(plugin = &**name, "plugin no longer in force");
        known.ended.push(removed);
        self.dispatch.forget_plugin(name);
        self.memos.forget_plugin(name);
        self.metrics.plugin_inactive(name);
        self.pending.add_all();
    }

    pub(super) fn release(&self, name: &str, watch: &WatchKey) {
        self.watches.release(name, watch);
        if self.watches.state(watch).is_none() {
            self.metrics.watch_gone(watch);
        }
    }

    /// Rule D4: objects must not wait for a version that is no longer in force. What it may have left is kept
    /// until all of it is released, so that an error is only a delay.
    pub(super) async fn release_ended(&self, known: &mut Known) -> Result<(), Error> {
        while let Some(plugin) = known.ended.last() {
            match self.release_finalizers(plugin).await {
                Ok(()) => {}
                // Its rights, or its kind, went with it: nothing that could be released is in reach.
                Err(error) if matches!(error.answer, Answer::Forbidden | Answer::KindNotFound) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(plugin = &*plugin.name, error, "finalizers cannot be released");
                }
                Err(error) => return Err(error),
            }
            known.ended.pop();
        }
        Ok(())
    }

    /// Asks the API server, as the cache may lag, and looks again until no object carries the finalizer.
    async fn release_finalizers(&self, plugin: &ActivePlugin) -> Result<(), Error> {
        loop {
            let mut carriers = 0;
            let mut next = None;
            loop {
                let page =
                    self.client.list(&plugin.parent_kind, &plugin.parents.scope, next.as_deref()).await?;
                for parent in &page.objects {
                    let Some(patch) = finalizer::remove_patch(parent, &plugin.name) else { continue };
                    carriers += 1;
                    match self.client.json_patch(&plugin.parent_kind, &parent.key, &patch).await {
                        Ok(object) => drop(self.cache.wrote(object)),
                        // Somebody else wrote to it, or it is gone: the next look tells.
                        Err(error) if is_race(&error.answer) => {}
                        Err(error) => return Err(error),
                    }
                }
                next = page.next;
                if next.is_none() {
                    break;
                }
            }
            if carriers == 0 {
                return Ok(());
            }
        }
    }
}

fn is_race(answer: &Answer) -> bool {
    matches!(answer, Answer::VersionConflict | Answer::UidMismatch | Answer::NotFound)
}
