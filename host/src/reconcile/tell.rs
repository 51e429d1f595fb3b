//! Stage 4: the status is written, and what became of it noted.

use super::{Error, Pass, Reconciler, verdict};
use crate::{
    act::status,
    object::Object,
    observe::client::Answer,
    report::{Report, StatusWrite},
};
use std::{
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

impl Reconciler {
    /// What a failed pass has to say never waits.
    pub(super) async fn write_status(
        &self,
        pass: &Pass,
        desired: &status::Desired,
        is_failed: bool,
        report: &mut Report,
    ) {
        let (plugin, key) = (&pass.plugin, &pass.parent.key);
        if !plugin.manifest.status {
            return;
        }
        let (own_types, is_new) = plugin.condition_types.note(&desired.conditions);
        let rest = if is_failed { Duration::ZERO } else { self.pace().rest(&pass.reference, Instant::now()) };
        let refused = plugin.shortfalls.refusal(key);
        let writer = status::Writer {
            client: &self.client,
            cache: &self.cache,
            kind: &plugin.parent_kind,
            manager: &plugin.manager,
            own_types: &own_types,
            refused: refused.as_deref(),
            rest,
            now: &self.clock.wall(),
        };
        let written = status::write(writer, &self.current_parent(pass), desired).await;
        self.metrics.status(&plugin.name, &written);
        // A failed pass says nothing of what its plan would hold.
        let is_told =
            desired.fields.is_some() && plugin.shortfalls.note(key, written.shortfalls, written.refusal);
        let is_kind_outdated =
            written.result.as_ref().is_err_and(|error| error.answer == Answer::KindNotFound);
        if is_kind_outdated {
            self.discovery.ask_again(&key.gvk);
        }
        if is_told || is_new || is_kind_outdated {
            self.pending.add(&plugin.name);
        }
        match written.result {
            Ok(status) => {
                report.status = status;
                match status {
                    StatusWrite::Written => self.pace().wrote(&pass.reference, Instant::now()),
                    StatusWrite::Deferred => report.look_within(rest),
                    StatusWrite::LeftAlone | StatusWrite::Unchanged | StatusWrite::Failed => {}
                }
            }
            Err(error) => {
                let error = Error::Status(error);
                self.doubts.note(&pass.reference, &error);
                let verdict = verdict::of(&error);
                report.status = StatusWrite::Failed;
                report.outcome = verdict.outcome;
                report.failure.get_or_insert((verdict.reason, verdict.message));
            }
        }
    }

    fn pace(&self) -> MutexGuard<'_, status::Pace> {
        // At worst a status is written a second early.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parent with this pass's own writes to it, as long as it is the same object.
    pub(super) fn current_parent(&self, pass: &Pass) -> Arc<Object> {
        let key = &pass.parent.key;
        let snapshot = self.cache.snapshot();
        let current = snapshot.get(&pass.plugin.parents, key.namespace.as_deref(), &key.name);
        current.filter(|current| current.uid == pass.parent.uid).unwrap_or(&pass.parent).clone()
    }
}
