//! What a ConfigMap holds is taken in: the same as before, a new version, or what is refused.

use super::{Known, Rollout, Terms, config_maps_watch, load, say, source};
use crate::{
    config::Limits,
    manifest::Permissions,
    object::Object,
    plugins::load::Version,
    report::{Reason, chain},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::info;

/// What is not taken, and why.
#[derive(Clone)]
pub(super) struct Refused {
    pub(super) digest: String,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// What the operator allowed then: with something else it is looked at anew.
    under: (Arc<Permissions>, Limits),
    /// When the same content is tried again, as the machine may have been at fault.
    again: Option<Instant>,
    /// How often it has been tried.
    times: u32,
}

/// When content is tried again for the first time; doubled each time.
const TRY_AGAIN: Duration = Duration::from_mins(1);
/// Compiling may take two cores for a minute: no more than a sixtieth of the time for what never succeeds.
const TRY_AGAIN_MAX: Duration = Duration::from_hours(1);

impl Refused {
    /// Of a version that was in force.
    pub(super) fn rolled_back(digest: &str, message: String) -> Self {
        Self {
            digest: digest.to_owned(),
            reason: Reason::RolledBack,
            message,
            under: (Arc::default(), Limits::STANDARD),
            again: None,
            times: 1,
        }
    }
}

/// How long content waits that has failed so often, once or more.
fn try_again_after(times: u32) -> Duration {
    TRY_AGAIN.saturating_mul(2_u32.saturating_pow(times - 1)).min(TRY_AGAIN_MAX)
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
        if let Some(again) = refused.again {
            self.pending.later(name, again - Instant::now());
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
        let under = (allowed.clone(), limits.clone());
        let refusal = |digest: &str, reason, error: &dyn std::error::Error| Refused {
            digest: digest.to_owned(),
            reason,
            message: chain(error),
            under: under.clone(),
            again: None,
            times: 1,
        };
        let snapshot = self.cache.snapshot();
        let namespace = &*self.config.namespace;
        let find = |name: &str| snapshot.get(&config_maps_watch(namespace), Some(namespace), name).cloned();
        let component = source::component(config_map, find, limits.component_bytes).map_err(|error| {
            refusal(&source::digest(config_map.body.as_bytes()), say::source_reason(&error), &error)
        })?;
        if let Some(version) = known.loaded(&component.digest) {
            return match version.manifest.permit(allowed) {
                Ok(_) => Ok(version.clone()),
                Err(error) => Err(refusal(&component.digest, Reason::ManifestInvalid, &error)),
            };
        }
        let before = known.refused.as_ref().filter(|refused| refused.digest == component.digest);
        if let Some(refused) = before
            && refused.under == under
            && refused.again.is_none_or(|again| Instant::now() < again)
        {
            return Err(refused.clone());
        }
        let times = before.map_or(0, |before| before.times) + 1;
        load::version(&self.engine, component, limits, allowed).await.map_err(|(digest, error)| {
            let again = error.is_transient().then(|| Instant::now() + try_again_after(times));
            Refused { again, times, ..refusal(&digest, error.reason(), &error) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_fails_again_and_again_is_tried_ever_more_rarely() {
        let minutes = |times| try_again_after(times).as_secs() / 60;
        assert_eq!([1, 2, 3, 6, 7, 8, 1_000].map(minutes), [1, 2, 4, 32, 60, 60, 60]);
    }
}
