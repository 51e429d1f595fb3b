//! What a ConfigMap holds is taken in: the same as before, a new version, or what is refused.

use super::{Known, Rollout, Terms, config_maps_watch, load, say, source};
use crate::{
    manifest::Permissions,
    object::Object,
    plugins::load::Version,
    report::{Reason, chain},
};
use std::{sync::Arc, time::Duration};
use tracing::info;

/// What is not taken, and why.
#[derive(Clone)]
pub(super) struct Refused {
    pub(super) digest: String,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// What the operator allowed then: with something else it is looked at anew.
    allowed: Arc<Permissions>,
    /// Whether the same content is tried again.
    transient: bool,
}

impl Refused {
    /// Of a version that was in force.
    pub(super) fn rolled_back(digest: &str, message: String) -> Self {
        let digest = digest.to_owned();
        Self { digest, reason: Reason::RolledBack, message, allowed: Arc::default(), transient: false }
    }
}

impl Rollout {
    /// Remembers a refusal, and tells of it when it is new.
    pub(super) fn refuse(
        &self,
        name: &Arc<str>,
        known: &mut Known,
        refused: Refused,
        settings: &Object,
        config_map: &Object,
    ) {
        if known.refused.as_ref().is_none_or(|before| before.digest != refused.digest) {
            let reason = refused.reason.as_str();
            info!(plugin = &**name, reason, message = refused.message, "version refused");
            self.events.publish(settings, &say::refused(&refused, config_map));
        }
        if refused.transient {
            self.pending.later(name, Duration::from_mins(1));
        }
        known.refused = Some(refused);
    }

    /// Takes in what the ConfigMap holds now: the same as before, a new version, or a refusal.
    pub(super) async fn take_in(
        &self,
        known: &Known,
        config_map: &Object,
        Terms { limits, allowed, .. }: &Terms,
    ) -> Result<Version, Refused> {
        let refused = |digest: &str, reason, message| Refused {
            digest: digest.to_owned(),
            reason,
            message,
            allowed: allowed.clone(),
            transient: false,
        };
        let snapshot = self.cache.snapshot();
        let namespace = &*self.config.namespace;
        let find = |name: &str| snapshot.get(&config_maps_watch(namespace), Some(namespace), name).cloned();
        let component = source::component(config_map, find, limits.component_bytes).map_err(|error| {
            let digest = source::digest(config_map.body.as_bytes());
            refused(&digest, say::source_reason(&error), chain(&error))
        })?;
        if let Some(version) = known.loaded(&component.digest) {
            return match version.manifest.permit(allowed) {
                Ok(_) => Ok(version.clone()),
                Err(error) => Err(refused(&component.digest, Reason::ManifestInvalid, chain(&error))),
            };
        }
        if let Some(refused) = &known.refused
            && refused.digest == component.digest
            && refused.allowed == *allowed
            && !refused.transient
        {
            return Err(refused.clone());
        }
        load::version(&self.engine, component, limits, allowed).await.map_err(|(digest, error)| Refused {
            transient: error.is_transient(),
            ..refused(&digest, error.reason(), chain(&error))
        })
    }
}
