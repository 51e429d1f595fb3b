//! One pass over one parent: snapshot, plan, apply, status, report.
//!
//! The stages are libraries; only this file knows their order, counts, and records events. Every error of a
//! stage becomes a reason, a message and an outcome in `verdict`, and nowhere else.

mod conclude;
mod verdict;

pub use verdict::Error;

use crate::{
    act::{
        apply,
        events::Events,
        prune::{self, Complete},
        status,
    },
    clock,
    config::Config,
    decide::{
        Unplanned,
        finalizer::{self, Phase},
        guest::{Function, LogLine},
        plan::Plan,
    },
    object::Object,
    observe::{
        cache::{Cache, Snapshot},
        client::{self, Client},
        discovery::Discovery,
        reads::{Memo, Memos, ParentRef, View},
    },
    operate::metrics::Metrics,
    plugins::{ActivePlugin, Registry},
    report::{Outcome, Report},
    schedule::queue::Request,
};
use std::sync::Arc;
use tracing::{Instrument, info_span, warn};

/// What reconciling needs.
pub struct Reconciler {
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
    /// Events about parents.
    pub events: Arc<Events>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
}

/// One pass: a version of a plugin, a parent, a moment.
struct Pass {
    plugin: Arc<ActivePlugin>,
    parent: Arc<Object>,
    snapshot: Snapshot,
    reference: ParentRef,
}

/// A plan, and whether the guest says that nothing is left to do (while the parent is being deleted).
struct Planned {
    plan: Arc<Plan>,
    done: bool,
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
        let Some(pass) = self.snapshot(&request.parent) else { return report };
        let function = match finalizer::phase(&pass.parent, &pass.plugin.name, pass.plugin.manifest.finalizes)
        {
            Phase::Gone => {
                self.memos.forget(&pass.reference);
                return report;
            }
            Phase::Finalize => Function::Finalize,
            Phase::Reconcile { add_finalizer } => {
                if add_finalizer {
                    return self.add_finalizer(&pass, report).await;
                }
                Function::Reconcile
            }
        };
        let result = match self.plan(&pass, function, &mut report).await {
            Ok(planned) => self.apply(&pass, &planned, &mut report).await.map_or_else(
                |error| (Some(planned.plan.clone()), Err(error)),
                |()| (Some(planned.plan.clone()), Ok(planned.done)),
            ),
            Err(error) => (None, Err(error)),
        };
        self.conclude(&pass, function, result, &mut report).await;
        report
    }

    /// Stage 1: the parent and everything that may be read, as of one moment; nothing before every kind of the
    /// plugin has been listed (rule R4).
    fn snapshot(&self, reference: &ParentRef) -> Option<Pass> {
        let plugin = self.registry.now().plugins.get(&reference.plugin)?.clone();
        let snapshot = self.cache.snapshot();
        if plugin.paused || !plugin.watches().all(|watch| snapshot.is_synced(watch)) {
            // Resuming, and the end of the list, plan every parent again.
            return None;
        }
        let key = &reference.parent;
        let Some(parent) = snapshot.get(&plugin.parents, key.namespace.as_deref(), &key.name).cloned() else {
            self.memos.forget(reference);
            return None;
        };
        Some(Pass { plugin, parent, snapshot, reference: reference.clone() })
    }

    /// Before anything is applied (rule D1). The write's response is a change of the parent: it comes again.
    async fn add_finalizer(&self, pass: &Pass, mut report: Report) -> Report {
        let patch = finalizer::add_patch(&pass.parent, &pass.plugin.name);
        match self.client.json_patch(&pass.plugin.parent_kind, &pass.parent.key, &patch).await {
            Ok(object) => {
                let in_force = self.registry.now();
                let is_wanted =
                    in_force.plugins.get(&pass.plugin.name).is_some_and(|now| now.manifest.finalizes);
                let undo = finalizer::remove_patch(&object, &pass.plugin.name).filter(|_| !is_wanted);
                drop(self.cache.wrote(object));
                // The plugin ended meanwhile, and may have looked for finalizers before this one was there.
                if let Some(undo) = undo {
                    self.patch_finalizer(pass, &undo, &mut report).await;
                }
            }
            Err(error) => fail(&mut report, error),
        }
        report
    }

    async fn patch_finalizer(&self, pass: &Pass, patch: &str, report: &mut Report) {
        match self.client.json_patch(&pass.plugin.parent_kind, &pass.parent.key, patch).await {
            Ok(object) => drop(self.cache.wrote(object)),
            Err(error) => fail(report, error),
        }
    }

    /// Stage 2: the memo's plan if no read changed, else the guest's answer, checked.
    async fn plan(&self, pass: &Pass, function: Function, report: &mut Report) -> Result<Planned, Error> {
        let plugin = &pass.plugin;
        let view = self.view(pass);
        if function == Function::Reconcile
            && let Some(planned) = self.memos.valid(&pass.reference, &plugin.digest, &view)
        {
            self.metrics.memo(&plugin.name, true);
            return planned.map(|plan| Planned { plan, done: false }).map_err(Error::Unplanned);
        }
        self.metrics.memo(&plugin.name, false);
        report.called = true;
        let (called, trace) = match plugin.guest.call(function, view, &plugin.limits).await {
            Ok(called) => (Ok(called.answer), called.trace),
            Err((error, trace)) => (Err(error), trace),
        };
        report.fuel = trace.fuel;
        self.metrics.guest_call(&plugin.name, trace.duration, trace.fuel);
        log_lines(&trace.logs, trace.logs_dropped);
        let checked = called.map_err(Unplanned::Call).and_then(|answer| answer.map_err(Unplanned::Failure));
        let checked = checked.and_then(|(raw, done)| {
            let (parent, manifest) = (&pass.parent.key, &plugin.manifest);
            let plan =
                Plan::check(raw, parent, manifest, &plugin.sources, &self.config.namespace, &plugin.limits);
            plan.map(|plan| (Arc::new(plan), done)).map_err(Unplanned::Plan)
        });
        let (planned, done) = match checked {
            Ok((plan, done)) => (Ok(plan), done),
            Err(unplanned) => (Err(Arc::new(unplanned)), false),
        };
        let subscribed = if planned.as_ref().is_err_and(|unplanned| unplanned.is_transient()) {
            self.memos.record_reads(&pass.reference, &trace.reads)
        } else {
            let parent = (pass.parent.uid.clone(), pass.parent.body_hash);
            let memo = Memo {
                digest: plugin.digest.clone(),
                parent,
                reads: trace.reads.into(),
                plan: planned.clone(),
            };
            self.memos.record(&pass.reference, memo)
        };
        report.outdated = subscribed.is_outdated(&self.cache.snapshot());
        planned.map(|plan| Planned { plan, done }).map_err(Error::Unplanned)
    }

    fn view(&self, pass: &Pass) -> View {
        let plugin = &pass.plugin;
        View::new(
            pass.snapshot.clone(),
            pass.parent.clone(),
            plugin.manifest.clone(),
            plugin.sources.clone(),
            self.config.namespace.as_str().into(),
            clock::wall().into(),
            (plugin.limits.reads, plugin.limits.read_bytes),
        )
    }

    /// Stage 3: children by server-side apply, then prune, only after all of them are in place (rule A6).
    async fn apply(&self, pass: &Pass, planned: &Planned, report: &mut Report) -> Result<(), Error> {
        let context = apply::Context {
            client: &self.client,
            discovery: &self.discovery,
            cache: &self.cache,
            snapshot: &pass.snapshot,
            sources: &pass.plugin.sources,
            plugin: &pass.plugin.name,
            parent: &pass.parent,
        };
        let metadata = apply::parent_metadata(context, &pass.plugin.parent_kind, &planned.plan).await;
        let applied = apply::children(context, &planned.plan).await;
        self.metrics.applied(&pass.plugin.name, &applied);
        let pruned = match Complete::proven(&planned.plan, &applied) {
            Some(complete) => prune::children(context, complete).await,
            None => (Vec::new(), None),
        };
        report.created = applied.created;
        report.updated = applied.updated;
        report.unchanged = applied.unchanged;
        report.pruned = pruned.0;
        if !applied.failed.is_empty() {
            return Err(Error::Apply(applied.failed));
        }
        metadata.map_err(Error::Metadata)?;
        pruned.1.map_or(Ok(()), |error| Err(Error::Prune(error)))
    }

    /// Stages 4 and 5: the status says what came of it, then events and metrics.
    async fn conclude(
        &self,
        pass: &Pass,
        function: Function,
        (plan, result): (Option<Arc<Plan>>, Result<bool, Error>),
        report: &mut Report,
    ) {
        let failed = result.as_ref().err().map(verdict::of);
        report.outcome = failed.as_ref().map_or_else(
            || Outcome::Done { requeue_after: plan.as_ref().and_then(|plan| plan.requeue_after) },
            |verdict| verdict.outcome,
        );
        report.failure = failed.as_ref().map(|verdict| (verdict.reason, verdict.message.clone()));
        if function == Function::Finalize && matches!(result, Ok(true)) {
            self.release(pass, report).await;
            return;
        }
        let desired = self.desired_status(pass, function, plan.as_deref(), failed.as_ref());
        self.write_status(pass, &desired, report).await;
        self.record_events(pass, plan.as_deref(), failed.as_ref(), report);
    }

    /// Nothing is left to do: the finalizer goes, and the object with it (rule D2).
    async fn release(&self, pass: &Pass, report: &mut Report) {
        let Some(patch) = finalizer::remove_patch(&pass.parent, &pass.plugin.name) else { return };
        self.patch_finalizer(pass, &patch, report).await;
    }

    async fn write_status(&self, pass: &Pass, desired: &status::Desired, report: &mut Report) {
        if !pass.plugin.manifest.status {
            return;
        }
        let (kind, manager) = (&pass.plugin.parent_kind, &pass.plugin.manager);
        let parent = self.current_parent(pass);
        let own = pass.plugin.condition_types.note(&desired.conditions);
        let written =
            status::write(&self.client, &self.cache, kind, &parent, desired, manager, &own, &clock::wall())
                .await;
        match written {
            Ok((written, undeclared)) => {
                report.status_written = written;
                if written {
                    self.metrics.status_written(&pass.plugin.name);
                    if !undeclared.is_empty() {
                        warn!(fields = ?undeclared, "the parent's schema has no such status fields, they are left out");
                    }
                }
            }
            Err(error) => {
                let verdict = verdict::of(&Error::Status(error));
                report.outcome = verdict.outcome;
                report.failure.get_or_insert((verdict.reason, verdict.message));
            }
        }
    }

    /// The parent with this pass's own writes to it, as long as it is the same object.
    fn current_parent(&self, pass: &Pass) -> Arc<Object> {
        let key = &pass.parent.key;
        let snapshot = self.cache.snapshot();
        let current = snapshot.get(&pass.plugin.parents, key.namespace.as_deref(), &key.name);
        current.filter(|current| current.uid == pass.parent.uid).unwrap_or(&pass.parent).clone()
    }
}

fn fail(report: &mut Report, error: client::Error) {
    let verdict = verdict::of(&Error::Finalizer(error));
    report.outcome = verdict.outcome;
    report.failure = Some((verdict.reason, verdict.message));
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
