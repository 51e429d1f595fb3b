//! A plugin ends: out of force, its watches, finalizers and fields of others' objects released, its own objects left
//! as they are (rule D4).

use super::{Error, Known, Rollout, plugins_watch, say};
use crate::{
    act::fields,
    decide::finalizer,
    object::{Gvk, Object},
    observe::{
        client::{Answer, Scope},
        watch::WatchKey,
    },
    plugins::{ActivePlugin, fields_watch},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tracing::{info, warn};

impl Rollout {
    /// The ConfigMap is gone: the plugin ends, its objects stay as they are (rule D4).
    pub(super) async fn end(
        &self,
        name: &Arc<str>,
        all: &mut BTreeMap<Arc<str>, Known>,
    ) -> Result<(), Error> {
        self.deactivate(name, all);
        let snapshot = self.cache.snapshot();
        let settings = snapshot.get(&plugins_watch(), None, name);
        let known = all.entry(name.clone()).or_default();
        // It says what was in force until all of that is released: a host before this one may not have come to it.
        known.ended.extend(settings.and_then(|settings| Ended::recorded(name, settings)));
        self.release_ended(known).await?;
        all.remove(name);
        match settings {
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
        known.ended.push(Ended::of(&removed));
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
        while let Some(ended) = known.ended.last() {
            self.release_fields(ended).await?;
            if let Err(error) = self.release_finalizers(ended).await {
                out_of_reach(&ended.name, error)?;
            }
            known.ended.pop();
        }
        Ok(())
    }

    /// What its plans owned of others' objects is its doing, as its finalizers are: it is given back.
    async fn release_fields(&self, ended: &Ended) -> Result<(), Error> {
        for gvk in &ended.fields {
            if let Err(error) = self.release_fields_of(ended, gvk).await {
                out_of_reach(&ended.name, error)?;
            }
        }
        Ok(())
    }

    async fn release_fields_of(&self, ended: &Ended, gvk: &Gvk) -> Result<(), Error> {
        let kind = self.discovery.kind(gvk).await?;
        let mut next = None;
        loop {
            let page = self.client.list(&kind, &fields_watch(gvk).scope, next.as_deref()).await?;
            for object in &page.objects {
                for uid in fields::holders(object, &ended.name) {
                    let given = fields::give_one_back(&self.client, &kind, object, &ended.name, uid);
                    if let Some(after) = given.await? {
                        drop(self.cache.wrote(after));
                    }
                }
            }
            next = page.next;
            if next.is_none() {
                return Ok(());
            }
        }
    }

    /// Asks the API server, as the cache may lag, and looks again until no object carries the finalizer.
    async fn release_finalizers(&self, ended: &Ended) -> Result<(), Error> {
        let kind = self.discovery.kind(&ended.parents.gvk).await?;
        loop {
            let mut carriers = 0;
            let mut next = None;
            loop {
                let page = self.client.list(&kind, &ended.parents.scope, next.as_deref()).await?;
                for parent in &page.objects {
                    let Some(patch) = finalizer::remove_patch(parent, &ended.name) else { continue };
                    carriers += 1;
                    match self.client.json_patch(&kind, &parent.key, &patch).await {
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

/// What a version that is no longer in force may have left on its parents, and on others' objects.
pub(super) struct Ended {
    name: Arc<str>,
    parents: WatchKey,
    /// Kinds of objects of which it owned fields.
    fields: BTreeSet<Gvk>,
}

impl Ended {
    pub(super) fn of(plugin: &ActivePlugin) -> Self {
        Self { name: plugin.name.clone(), parents: plugin.parents.clone(), fields: plugin.field_kinds.all() }
    }

    /// As its `Plugin` has it; of parents it says only the kind.
    fn recorded(name: &Arc<str>, settings: &Object) -> Option<Self> {
        let recorded = say::recorded(settings);
        let gvk = recorded.active?.parent()?;
        let fields = say::from_texts(&recorded.field_kinds).collect();
        Some(Self { name: name.clone(), parents: WatchKey { gvk, scope: Scope::default() }, fields })
    }
}

/// Rights, or a kind, went with the plugin: nothing that could be released is in reach. Any other error stands.
fn out_of_reach(plugin: &str, error: Error) -> Result<(), Error> {
    if !matches!(error.answer, Answer::Forbidden | Answer::KindNotFound) {
        return Err(error);
    }
    warn!(plugin, error = &error as &dyn std::error::Error, "finalizers or fields cannot be released");
    Ok(())
}

fn is_race(answer: &Answer) -> bool {
    matches!(answer, Answer::VersionConflict | Answer::UidMismatch | Answer::NotFound)
}
