//! Takes requests, has them reconciled, and tells the queue what came of it.

use crate::{
    dispatch::Dispatch,
    observe::reads::ParentRef,
    reconcile::Reconciler,
    report::{Fault, Outcome, Reason, Trigger},
};
use futures::FutureExt as _;
use std::{panic::AssertUnwindSafe, sync::Arc};
use tokio::sync::watch;
use tracing::{error, warn};

/// Takes requests until told to stop; a panic in one reconcile is that request's fault, not the worker's end.
pub(super) async fn run(
    reconciler: Arc<Reconciler>,
    dispatch: Arc<Dispatch>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let request = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return,
            request = dispatch.take() => request,
        };
        let started = tokio::time::Instant::now();
        reconciler.metrics.waited(dispatch.now().saturating_sub(request.since));
        let outcome = if let Ok(report) =
            AssertUnwindSafe(reconciler.reconcile(&request)).catch_unwind().await
        {
            if let Some((reason, message)) = &report.failure {
                warn!(
                    plugin = &*report.plugin, object = %report.parent, reason = reason.as_str(), message,
                    attempt = request.attempt, "reconcile failed"
                );
            }
            reconciler.metrics.reconciled(&report, started.elapsed());
            if report.outdated {
                // While it is in flight: it is taken again at once.
                dispatch.add([(request.parent.clone(), Trigger::Read)]);
            }
            report.outcome
        } else {
            let ParentRef { plugin, parent } = &request.parent;
            error!(plugin = &**plugin, object = %parent, reason = Reason::HostFault.as_str(), "reconcile panicked");
            reconciler.metrics.panicked(plugin);
            Outcome::Retry { fault: Fault::Api, not_before: None }
        };
        dispatch.finish(&request.parent, outcome);
    }
}
