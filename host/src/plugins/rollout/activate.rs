//! A version comes into force, or how it stands there changes; its parents are planned again.

use super::Rollout;
use crate::{observe::reads::ParentRef, plugins::ActivePlugin, report::Trigger};
use tracing::info;

impl Rollout {
    /// Puts a version in force if it differs from what serves, and has its parents planned.
    pub(super) fn activate(&self, plugin: ActivePlugin, serving: Option<&ActivePlugin>, synced: bool) {
        let name = plugin.name.clone();
        let permitted_otherwise =
            serving.is_some_and(|serving| serving.manifest.permissions != plugin.manifest.permissions);
        let changed = serving.is_none_or(|serving| {
            serving.digest != plugin.digest
                || serving.paused != plugin.paused
                || serving.limits != plugin.limits
                || permitted_otherwise
                || serving.parent_kind != plugin.parent_kind
                // Approved: what was held back is not any more.
                || serving.probation.is_some() && plugin.probation.is_none()
        });
        let moved = serving.is_none_or(|serving| {
            // With their scopes: a kind may be deleted and come back with another.
            (&serving.parents, &serving.sources) != (&plugin.parents, &plugin.sources)
        });
        let obstructed = serving.is_some_and(|serving| serving.obstacle != plugin.obstacle);
        let tried = |plugin: &ActivePlugin| {
            plugin.trial.as_ref().map(|trial| (trial.part.clone(), trial.plugin.digest.clone()))
        };
        let before = serving.and_then(tried);
        let retried = serving.is_some() && tried(&plugin) != before;
        let is_new = serving.is_none_or(|serving| serving.digest != plugin.digest);
        // A new version comes to its objects wave by wave; those that were tried with another come back at once.
        let in_waves = is_new && plugin.probation.is_some();
        let parents = plugin.parents.clone();
        if changed || moved {
            info!(
                plugin = &*name,
                digest = &*plugin.digest,
                version = plugin.manifest.version,
                "version in force"
            );
            self.metrics.plugin_active(
                &plugin.name,
                &plugin.manifest.version,
                &plugin.digest,
                &plugin.limits,
            );
        }
        if moved || permitted_otherwise {
            // A kind that comes back may have another scope, and plans were checked against the one before; as they
            // were against what was permitted.
            self.memos.forget_plugin(&name);
        }
        if changed || moved || obstructed || retried {
            self.registry.activate(plugin);
        }
        if (changed || moved || obstructed || synced) && !in_waves || retried && before.is_some() {
            let snapshot = self.cache.snapshot();
            let trigger = if changed { Trigger::Plugin } else { Trigger::Listed };
            self.dispatch.add(
                snapshot
                    .list(&parents, None)
                    .map(|parent| (ParentRef { plugin: name.clone(), parent: parent.key.clone() }, trigger)),
            );
        }
    }
}
