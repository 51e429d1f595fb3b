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
        known: &mut Known,
        config_map: &Object,
        limits: &Limits,
        allowed: &Arc<Permissions>,
    ) -> Result<(), Refused> {
        let under = (allowed.clone(), limits.clone());
        let refusal = |digest: &str, reason, error: &dyn std::error::Error| Refused {
            digest: digest.to_owned(),
            reason,
            message: chain(error),
            under: under.clone(),
            again: None,
            times: 1,
        };
        let component = source::component(config_map, limits.component_bytes).map_err(|error| {
            refusal(&source::digest(config_map.body.as_bytes()), say::source_reason(&error), &error)
        })?;
        if let Some(version) = &known.version
            && *version.digest == *component.digest
        {
            known.refused = None;
            let permitted = version.manifest.permit(allowed);
            return permitted
                .map(drop)
                .map_err(|error| refusal(&component.digest, Reason::ManifestInvalid, &error));
        }
        let before = known.refused.as_ref().filter(|refused| refused.digest == component.digest);
        if let Some(refused) = before
            && refused.under == under
            && refused.again.is_none_or(|again| Instant::now() < again)
        {
            return Err(refused.clone());
        }
        let seen = Instant::now();
        let times = before.map_or(0, |before| before.times) + 1;
        let loaded = load::version(&self.engine, &component, limits, allowed).await;
        known.version = Some(loaded.map_err(|error| {
            let again = error.is_transient().then(|| Instant::now() + try_again_after(times));
            Refused { again, times, ..refusal(&component.digest, error.reason(), &error) }
        })?);
        known.seen = Some(seen);
        known.refused = None;
        Ok(())
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
