//! What a change of the cache, or of a watch's state, sets going.

use crate::{
    config::Config,
    dispatch::Dispatch,
    object::Object,
    observe::{
        cache::Change,
        reads::Memos,
        watch::{WatchKey, WatchState},
    },
    operate::metrics::Metrics,
    plugins::{
        Registry,
        rollout::{Pending, config_maps_watch, plugins_watch, source_name},
    },
    schedule::enqueue,
};
use std::sync::Arc;
use tracing::error;

/// Where changes go: to the queue, and to the rollout if it is about a plugin.
pub(super) struct Changes {
    pub(super) registry: Arc<Registry>,
    pub(super) memos: Arc<Memos>,
    pub(super) pending: Arc<Pending>,
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) config: Arc<Config>,
}

impl Changes {
    pub(super) fn changed(&self, change: &Change) {
        let is_source = change.watch == config_maps_watch(&self.config.namespace);
        if is_source || change.watch == plugins_watch() {
            // The status too: what somebody else wrote there is put right.
            let content = |object: &Option<Arc<Object>>| {
                object.as_ref().map(|object| (object.body_hash, object.status_hash))
            };
            if content(&change.before) != content(&change.after)
                && let Some(object) = change.after.as_ref().or(change.before.as_ref())
            {
                let name = if is_source { source_name(object) } else { object.key.name.clone() };
                self.pending.add(&name);
            }
        }
        let in_force = self.registry.now();
        self.dispatch.add(enqueue::requests(change, &in_force.subscriptions, &self.memos));
    }

    pub(super) fn state_changed(&self, metrics: &Metrics, watch: &WatchKey, state: &WatchState) {
        metrics.watch_state(watch, state);
        if *watch == plugins_watch() && matches!(state, WatchState::Missing(_)) {
            error!("the CRD plugins.oarlock.dev is missing; apply it: kubectl apply --server-side -k deploy");
        }
        self.pending.add_all();
    }
}
