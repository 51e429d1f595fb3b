//! A new version on its first objects: what it fails on, and what it may not delete (rules P3 and P6).

use super::{Pass, Reconciler};
use crate::{
    decide::{
        Unplanned,
        guest::{CallError, Function},
    },
    plugins::ActivePlugin,
    report::chain,
};
use std::sync::Arc;

impl Reconciler {
    /// A pass over an object is over, with nothing left to do if it is complete.
    pub(super) fn note_visit(&self, pass: &Pass, is_complete: bool) {
        let Some(probation) = &pass.plugin.probation else { return };
        if is_complete {
            probation.passed(&pass.parent.key);
        }
        if probation.visited(&pass.parent.key) {
            self.pending.add(&pass.plugin.name);
        }
    }

    /// A new version failed on an object: if the one before handles it as it is now, that is the version's fault. It is
    /// asked on the same moment, and what it says is not applied.
    pub(super) async fn compare(&self, pass: &Pass, function: Function, unplanned: &Unplanned) {
        let Some(probation) = &pass.plugin.probation else { return };
        let Some(before) = probation.before.as_ref().filter(|_| is_version_fault(unplanned, pass.attempt))
        else {
            return;
        };
        if probation.judges(&pass.parent)
            && before.watches().all(|watch| pass.snapshot.is_synced(watch))
            && self.handles(before, pass, function).await
            && probation.failed(&pass.parent.key, chain(unplanned))
        {
            self.pending.add(&pass.plugin.name);
        }
    }

    async fn handles(&self, before: &Arc<ActivePlugin>, pass: &Pass, function: Function) -> bool {
        if function == Function::Finalize && !before.manifest.finalizes {
            return true;
        }
        let (snapshot, parent) = (pass.snapshot.clone(), pass.parent.clone());
        let view = before.view(snapshot, parent, &self.config.namespace, &self.clock.wall());
        before.ask(function, view).await.0.is_ok()
    }
}

/// Whether it is the version, rather than the object or the machine, that may be at fault.
fn is_version_fault(unplanned: &Unplanned, attempt: u32) -> bool {
    match unplanned {
        // A starved machine passes the deadline as well, once.
        Unplanned::Call(CallError::Deadline { .. }) => attempt > 0,
        Unplanned::Call(CallError::Host(_)) | Unplanned::Failure(_) => false,
        Unplanned::Call(
            CallError::Trapped { .. }
            | CallError::Fuel { .. }
            | CallError::Memory { .. }
            | CallError::Output { .. },
        )
        | Unplanned::Plan(_) => true,
    }
}
