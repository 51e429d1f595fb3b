//! One pass over one parent: snapshot, plan, apply, status, report.
//!
//! The stages are libraries; only this file knows their order, counts, and records events. Every error of a
//! stage becomes a reason, a message and an outcome in `verdict`, and nowhere else.

mod apply;
mod conclude;
mod doubt;
mod finalize;
mod plan;
mod probation;
mod several;
mod tell;
mod verdict;

pub use doubt::Doubts;
pub use verdict::Error;

use crate::{
    act::{contested::Contests, events::Events, status},
    clock::Clock,
    config::Config,
    decide::{
        finalizer::{self, Phase},
        guest::Function,
        plan::Plan,
        stability::Stability,
    },
    object::{ANNOTATION_PAUSED, Object, ObjectKey},
    observe::{
        cache::{Cache, Snapshot},
        client::Client,
        discovery::Discovery,
        reads::{Memos, ParentRef, Planned},
    },
    operate::metrics::Metrics,
    plugins::{ActivePlugin, Registry, rollout::Pending},
    report::{Fault, Outcome, Reason, Report, Seen},
    schedule::queue::Request,
};
use std::sync::{Arc, Mutex};
use tracing::{Instrument, info_span};

/// What an object that is paused says of itself.
const PAUSED: &str =
    "the annotation oarlock.dev/paused holds it: it and its children stay as they are until it is gone";

/// Whether somebody has asked to leave an object as it is.
fn is_paused(parent: &Object) -> bool {
    parent.annotations.get(ANNOTATION_PAUSED).is_some_and(|value| value == "true")
}

/// What reconciling needs.
pub struct Reconciler {
    /// The time.
    pub clock: Clock,
    /// Flags and limits.
    pub config: Arc<Config>,
    /// The way to the API server.
    pub client: Client,
    /// Kinds.
    pub discovery: Arc<Discovery>,
    /// Objects.
    pub cache: Arc<Cache>,
    /// Plans and what they depend on.
    pub memos: Arc<Memos>,
    /// What is in force.
    pub registry: Arc<Registry>,
    /// Plugins to look at: what a status lacks is said there.
    pub pending: Arc<Pending>,
    /// When statuses were written.
    pub pace: Mutex<status::Pace>,
    /// Events about parents.
    pub events: Arc<Events>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Plans that do not settle.
    pub stability: Mutex<Stability>,
    /// Children that others fight over.
    pub contests: Contests,
    /// Writes whose outcome is unknown.
    pub doubts: Doubts,
}

/// One pass: a version of a plugin, a parent, a moment.
struct Pass {
    plugin: Arc<ActivePlugin>,
    parent: Arc<Object>,
    snapshot: Snapshot,
    /// The same moment with this pass's own writes of children on top.
    after: Snapshot,
    reference: ParentRef,
    /// How often in a row it has failed before.
    attempt: u32,
    /// Children that are left as they are until others are ready, each with what it waits for.
    held: Vec<(ObjectKey, String)>,
}

impl Pass {
    fn seen(&self) -> Seen {
        Seen {
            uid: self.parent.uid.clone(),
            generation: self.parent.generation,
            digest: self.plugin.digest.clone(),
        }
    }
}

impl Reconciler {
    /// One pass over the parent of a request.
    pub async fn reconcile(&self, request: &Request) -> Report {
        let ParentRef { plugin, parent } = &request.parent;
        let triggers: Vec<_> = request.triggers.iter().map(|trigger| trigger.as_str()).collect();
        let span = info_span!("reconcile", plugin = &**plugin, object = %parent, triggers = ?triggers);
        self.pass(request).instrument(span).await
    }

    async fn pass(&self, request: &Request) -> Report {
        let mut report = Report::new(&request.parent.plugin, &request.parent.parent);
        if let Err(error) = self.settle_doubts(&request.parent).await {
            let verdict = verdict::of(&Error::Doubt(error));
            report.outcome = verdict.outcome;
            report.failure = Some((verdict.reason, verdict.message));
            return report;
        }
        let Some(mut pass) = self.snapshot(request) else { return report };
        report.seen = Some(pass.seen());
        let phase = finalizer::phase(&pass.parent, &pass.plugin.name, pass.plugin.manifest.finalizes);
        if phase == Phase::Gone {
            self.forget(&pass.plugin, &pass.reference);
            return report;
        }
        if let Some(obstacle) = &pass.plugin.obstacle {
            self.tell_unknown(&pass, obstacle, &mut report).await;
            return report;
        }
        if is_paused(&pass.parent) {
            let paused = (Reason::Paused, PAUSED.to_owned());
            self.tell_unknown(&pass, &paused, &mut report).await;
            self.note_visit(&pass, false);
            return report;
        }
        let function = match phase {
            Phase::Gone | Phase::Finalize => Function::Finalize,
            Phase::Reconcile { add_finalizer: false } => Function::Reconcile,
            Phase::Reconcile { add_finalizer: true } => {
                self.add_finalizer(&pass, &mut report).await;
                return report;
            }
        };
        let planned = match function {
            // An earlier version finalized, or it is bound for what the host itself has to undo.
            Function::Finalize if !pass.plugin.manifest.finalizes => {
                Ok(Planned { plan: Arc::default(), done: true })
            }
            function => self.plan(&pass, function, &mut report).await,
        };
        let result = match planned {
            Ok(planned) => {
                let is_bound = finalizer::is_carried(&pass.parent, &pass.plugin.name);
                if function == Function::Reconcile && planned.plan.needs_finalizer() && !is_bound {
                    self.add_finalizer(&pass, &mut report).await;
                    return report;
                }
                let result = self.apply(&mut pass, &planned, &mut report).await;
                // What is left to do is the host's now.
                let is_done = planned.done && pass.held.is_empty();
                (Some(planned.plan.clone()), result.map(|()| is_done))
            }
            Err(error) => (None, Err(error)),
        };
        let is_complete = matches!(result, (_, Ok(_))) && pass.held.is_empty();
        self.conclude(&pass, function, result, &mut report).await;
        self.note_visit(&pass, is_complete);
        report
    }

    /// A pass over the parent of a request panicked: told as any other failure is.
    pub async fn panicked(&self, request: &Request, said: &str) -> Report {
        let mut report = Report::new(&request.parent.plugin, &request.parent.parent);
        report.outcome = Outcome::Retry { fault: Fault::Api, not_before: None };
        if let Some(pass) = self.snapshot(request) {
            report.seen = Some(pass.seen());
            let failed = Err(Error::Panicked(said.to_owned()));
            self.conclude(&pass, Function::Reconcile, (None, failed), &mut report).await;
            self.note_visit(&pass, false);
        }
        report
    }

    /// Stage 1: the parent and everything that may be read, as of one moment; nothing before every kind of the
    /// plugin has been listed (rule R4), unless one of them cannot be, which the parent is told.
    fn snapshot(&self, request: &Request) -> Option<Pass> {
        let reference = &request.parent;
        let plugin = self.registry.now().plugins.get(&reference.plugin)?.clone();
        let snapshot = self.cache.snapshot();
        let is_listed = match &plugin.obstacle {
            Some(_) => snapshot.is_synced(&plugin.parents),
            None => plugin.watches().all(|watch| snapshot.is_synced(watch)),
        };
        if plugin.paused || !is_listed {
            // Resuming, and the end of the list, plan every parent again.
            return None;
        }
        let key = &reference.parent;
        let Some(parent) = snapshot.get(&plugin.parents, key.namespace.as_deref(), &key.name).cloned() else {
            self.forget(&plugin, reference);
            return None;
        };
        let plugin = match plugin.of(&parent) {
            tried if Arc::ptr_eq(tried, &plugin) => plugin,
            tried => tried.clone(),
        };
        let (after, reference) = (snapshot.clone(), reference.clone());
        let attempt = request.attempt;
        Some(Pass { plugin, parent, snapshot, after, reference, attempt, held: Vec::new() })
    }

    /// What is kept of a parent goes with it.
    fn forget(&self, plugin: &ActivePlugin, reference: &ParentRef) {
        self.memos.forget(reference);
        for version in plugin.versions() {
            if version.probation.as_ref().is_some_and(|probation| probation.forget(&reference.parent)) {
                self.pending.add(&plugin.name);
            }
        }
        if plugin.shortfalls.forget(&reference.parent) {
            self.pending.add(&plugin.name);
        }
    }

    /// Stages 4 and 5: the status says what came of it, then events and metrics.
    async fn conclude(
        &self,
        pass: &Pass,
        function: Function,
        (plan, result): (Option<Arc<Plan>>, Result<bool, Error>),
        report: &mut Report,
    ) {
        let is_over = function == Function::Finalize && matches!(result, Ok(true));
        let result = match result {
            Ok(true) if is_over => self.release(pass, report).await.map(|()| true).map_err(Error::Finalizer),
            result => result,
        };
        if let Err(error) = &result {
            self.doubts.note(&pass.reference, error);
        }
        let failed = result.as_ref().err().map(verdict::of);
        report.outcome = failed.as_ref().map_or(Outcome::Done, |verdict| verdict.outcome);
        if report.outcome == Outcome::Wait {
            // It failed for good: time does not help.
            report.look_again = None;
        }
        if let Some(look_again) = report.unstable.as_ref().map(|unstable| unstable.look_again) {
            report.look_within(look_again);
        }
        report.failure = failed.as_ref().map(|verdict| (verdict.reason, verdict.message.clone()));
        if is_over && result.is_ok() {
            return;
        }
        let is_overtaken = self.take_in_own_writes(pass, report);
        let desired = if is_overtaken && failed.is_none() && report.why.is_some() && !report.is_echo {
            // It speaks of the children as they were before this pass changed them, which would be told as the new
            // generation's: the guest is asked again first. Once, so that one that never settles has a status.
            report.outdated = true;
            None
        } else {
            let unstable = report.unstable.clone();
            self.desired_status(pass, function, plan.as_deref(), failed.as_ref(), unstable.as_ref())
        };
        if let Some(desired) = &desired {
            self.write_status(pass, desired, failed.is_some(), report).await;
            self.take_in_own_writes(pass, report);
        }
        self.record_events(pass, plan.as_deref(), failed.filter(|_| desired.is_some()).as_ref(), report);
    }
}
