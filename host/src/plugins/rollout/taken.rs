//! What a ConfigMap holds is taken in: the same as before, a new version, or what is refused.

use super::{Known, Rollout, load, say, source};
use crate::{
    config::Limits,
    manifest::Permissions,
    object::Object,
    report::{Reason, chain},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::info;

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
        known: &mut Known,
        config_map: &Object,
        limits: &Limits,
        allowed: &Arc<Permissions>,
    ) -> Result<(), Refused> {
        let component = source::component(config_map, limits.component_bytes).map_err(|error| Refused {
            digest: source::digest(config_map.body.as_bytes()),
            reason: say::source_reason(&error),
            message: chain(&error),
            allowed: allowed.clone(),
            transient: false,
        })?;
        if let Some(version) = &known.version
            && *version.digest == *component.digest
        {
            known.refused = None;
            return version.manifest.permit(allowed).map(drop).map_err(|error| Refused {
                digest: component.digest.clone(),
                reason: Reason::ManifestInvalid,
                message: chain(&error),
                allowed: allowed.clone(),
                transient: false,
            });
        }
        if let Some(refused) = &known.refused
            && refused.digest == component.digest
            && refused.allowed == *allowed
            && !refused.transient
        {
            return Err(refused.clone());
        }
        let seen = Instant::now();
        let version =
            load::version(&self.engine, &component, limits, allowed).await.map_err(|error| Refused {
                digest: component.digest.clone(),
                reason: error.reason(),
                message: chain(&error),
                allowed: allowed.clone(),
                transient: error.is_transient(),
            })?;
        known.version = Some(version);
        known.seen = Some(seen);
        known.refused = None;
        Ok(())
    }
}
