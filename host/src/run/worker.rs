//! Takes requests, has them reconciled, and tells the queue what came of it.

use crate::{
    dispatch::Dispatch,
    observe::reads::ParentRef,
    operate::journal::Journal,
    reconcile::Reconciler,
    report::{Fault, Outcome, Reason, Report, Trigger, panic_text},
};
use futures::FutureExt as _;
use std::{panic::AssertUnwindSafe, sync::Arc};
use tokio::sync::watch;
use tracing::{error, warn};

/// Takes requests until told to stop; a panic in one reconcile is that request's fault, not the worker's end.
pub(super) async fn run(
    reconciler: Arc<Reconciler>,
    dispatch: Arc<Dispatch>,
    journal: Arc<Journal>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let request = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return,
            request = dispatch.take() => request,
        };
        let (began, started) = (reconciler.clock.now(), tokio::time::Instant::now());
        reconciler.metrics.waited(&request.parent.plugin, dispatch.now().saturating_sub(request.since));
        let report = match AssertUnwindSafe(reconciler.reconcile(&request)).catch_unwind().await {
            Ok(report) => {
                if let Some((reason, message)) = &report.failure {
                    warn!(
                        plugin = &*report.plugin, object = %report.parent, reason = reason.as_str(), message,
                        attempt = request.attempt, "reconcile failed"
                    );
                }
                let took = started.elapsed();
                reconciler.metrics.reconciled(&report, took, began);
                journal.record(&request, &report, began, took);
                if report.outdated {
                    // While it is in flight: it is taken again at once.
                    dispatch.add([(request.parent.clone(), Trigger::Read)]);
                }
                report
            }
            Err(panic) => {
                let ParentRef { plugin, parent } = &request.parent;
                let (reason, said) = (Reason::HostFault.as_str(), panic_text(&*panic));
                error!(plugin = &**plugin, object = %parent, reason, panic = said, "reconcile panicked");
                reconciler.metrics.panicked(plugin);
                // What panicked may do so again while it is told.
                let told = AssertUnwindSafe(reconciler.panicked(&request, said)).catch_unwind().await;
                let report = told.unwrap_or_else(|_| Report {
                    outcome: Outcome::Retry { fault: Fault::Api, not_before: None },
                    ..Report::new(plugin, parent)
                });
                journal.record(&request, &report, began, started.elapsed());
                report
            }
        };
        dispatch.finish(&request.parent, report.outcome, report.look_again);
    }
}
