//! Stage 2: the plan, from the memo or from the guest; and which of its reasons were its own doing.

use super::{Error, Pass, Reconciler};
use crate::{
    act::events,
    decide::{
        guest::{Function, LogLine},
        stability::{Stability, Unstable},
    },
    object::Object,
    observe::{
        cache::Snapshot,
        reads::{Answer, Check, Memo, Planned, View},
    },
    report::{Reason, Report, StatusWrite},
};
use std::{
    sync::{Arc, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tracing::warn;

impl Reconciler {
    /// Stage 2: the memo's plan if no read changed, else the guest's answer, checked.
    pub(super) async fn plan(
        &self,
        pass: &Pass,
        function: Function,
        report: &mut Report,
    ) -> Result<Planned, Error> {
        let plugin = &pass.plugin;
        let view = self.view(pass, pass.snapshot.clone(), pass.parent.clone());
        let (why, standing) = match self.memos.check(&pass.reference, &plugin.digest, &view) {
            Check::Valid(answer, called) => {
                self.metrics.memo(&plugin.name, true);
                report.unstable = self.stability().look(&pass.reference, now());
                report.look_again = look_again(&answer, called);
                return answer.map_err(Error::Unplanned);
            }
            Check::Call { why, standing } => (why, standing),
        };
        if let Some(standing) = &standing
            && let Some(unstable) = self.limit(pass)
        {
            report.unstable = Some(unstable);
            report.look_again = look_again(standing, now());
            return standing.clone().map_err(Error::Unplanned);
        }
        self.metrics.memo(&plugin.name, false);
        let asked = now();
        let (planned, trace) = plugin.ask(function, view).await;
        report.fuel = trace.fuel;
        self.metrics.guest_call(&plugin.name, &trace);
        log_lines(&trace.logs, trace.logs_dropped);
        if let Err(unplanned) = &planned {
            self.compare(pass, function, unplanned).await;
        }
        let answer = planned.map_err(Arc::new);
        let memo = Memo {
            digest: plugin.digest.clone(),
            parent: (pass.parent.uid.clone(), pass.parent.body_hash),
            reads: trace.reads.into(),
            answer: answer.clone(),
            called: asked,
        };
        let subscribed = self.memos.record(&pass.reference, memo);
        report.outdated = subscribed.is_outdated(&self.cache.snapshot());
        {
            let mut stability = self.stability();
            stability.called(&pass.reference, &why, standing.as_ref(), &answer, now());
            report.unstable = stability.look(&pass.reference, now());
        }
        report.look_again = look_again(&answer, asked);
        report.why = Some(why);
        report.is_echo = standing.is_some();
        answer.map_err(Error::Unplanned)
    }

    /// Whether the last answer stands, as the guest does not settle (rule R6); the first time it is an event.
    fn limit(&self, pass: &Pass) -> Option<Unstable> {
        let plugin = &pass.plugin;
        let unstable = self.stability().limit(&pass.reference, plugin.limits.unsettled_plans, now())?;
        self.metrics.plan_limited(&plugin.name);
        if unstable.begins {
            let event = events::Event {
                warning: true,
                reason: Reason::PlanUnstable.as_str().to_owned(),
                action: "Reconcile",
                note: unstable.message.to_string(),
                related: None,
            };
            self.events.publish(&pass.parent, &event);
        }
        Some(unstable)
    }

    fn stability(&self) -> MutexGuard<'_, Stability> {
        // At worst a mark is missing after a panic.
        self.stability.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells apart what the guest will see because of this pass and what because of others. True if its answer was
    /// about objects that are no longer as it saw them.
    pub(super) fn take_in_own_writes(&self, pass: &Pass, report: &Report) -> bool {
        let of_children = [&report.created, &report.updated, &report.replaced, &report.pruned]
            .iter()
            .any(|keys| !keys.is_empty());
        let of_parent = report.status == StatusWrite::Written || report.metadata_written;
        if !of_children && !of_parent {
            return false;
        }
        // With another generation somebody else has changed it too.
        let current = Some(self.current_parent(pass))
            .filter(|current| of_parent && current.generation == pass.parent.generation);
        let view = self.view(pass, pass.after.clone(), current.unwrap_or_else(|| pass.parent.clone()));
        self.memos.wrote(&pass.reference, &view)
    }

    fn view(&self, pass: &Pass, snapshot: Snapshot, parent: Arc<Object>) -> View {
        pass.plugin.view(snapshot, parent, &self.config.namespace, &self.clock.wall())
    }
}

/// When the guest wants to be asked again; one that failed has no say in it.
fn look_again(answer: &Answer, called: Instant) -> Option<Duration> {
    answer.as_ref().ok()?.plan.look_again(now().saturating_duration_since(called))
}

/// For what is counted from then on, or within a window.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What the guest said, with plugin and object attached by the span.
fn log_lines(lines: &[LogLine], dropped: usize) {
    for line in lines {
        let message = &*line.message;
        match line.level {
            tracing::Level::ERROR => tracing::error!(target: "guest", message),
            tracing::Level::WARN => tracing::warn!(target: "guest", message),
            tracing::Level::INFO => tracing::info!(target: "guest", message),
            _ => tracing::debug!(target: "guest", message),
        }
    }
    if dropped > 0 {
        warn!(bytes = dropped, "the guest logged more than it may, the rest was dropped");
    }
}
