//! What a pass comes to, in words: conditions and events.

use super::{Pass, Reconciler, verdict};
use crate::{
    act::{events, status},
    decide::{
        guest::Function,
        plan::{Condition, ConditionStatus, Plan},
        readiness::{Readiness, readiness},
    },
    object::ObjectKey,
    report::{Reason, Report},
};
use tracing::debug;

/// Children that have an event of their own; what else a pass does is told in one.
const NAMED: usize = 8;

impl Reconciler {
    pub(super) fn desired_status(
        &self,
        pass: &Pass,
        function: Function,
        plan: Option<&Plan>,
        failed: Option<&verdict::Verdict>,
    ) -> status::Desired {
        let mut conditions = plan.map(|plan| plan.conditions.clone()).unwrap_or_default();
        let said = |conditions: &[Condition], r#type: &str| conditions.iter().any(|one| one.r#type == r#type);
        let host = match (failed, plan) {
            (Some(verdict), _) => verdict.conditions(),
            (None, Some(plan)) if !said(&conditions, "Ready") => self.health(pass, function, plan),
            (None, _) => Vec::new(),
        };
        for condition in host {
            if failed.is_some() {
                // What failed is a fact of this pass, whatever the plan hoped for.
                conditions.retain(|own| own.r#type != condition.r#type);
                conditions.push(condition);
            } else if !said(&conditions, &condition.r#type) {
                conditions.push(condition);
            }
        }
        status::Desired {
            fields: plan.map(|plan| plan.status.clone()),
            conditions,
            keep_other_own: plan.is_none(),
            observed_generation: pass.parent.generation,
        }
    }

    /// `Ready`, and `Reconciling` or `Stalled` while true, from the children's readiness (rule S5, kstatus).
    fn health(&self, pass: &Pass, function: Function, plan: &Plan) -> Vec<Condition> {
        // Own writes of this pass are in the cache by now.
        let snapshot = self.cache.snapshot();
        let mut waiting = Vec::new();
        let mut failing = Vec::new();
        for child in &plan.children {
            let watch = pass.plugin.sources.children.get(&child.key.gvk).map(|(watch, _)| watch);
            let live =
                watch.and_then(|watch| snapshot.get(watch, child.key.namespace.as_deref(), &child.key.name));
            match live.map(|live| readiness(live)) {
                Some(Readiness::Ready) => {}
                Some(Readiness::Progressing(why)) => waiting.push(format!("{}: {why}", child.key)),
                Some(Readiness::Failed(why)) => failing.push(format!("{}: {why}", child.key)),
                Some(Readiness::Terminating) => waiting.push(format!("{}: is being deleted", child.key)),
                None => waiting.push(format!("{}: is not there yet", child.key)),
            }
        }
        if function == Function::Finalize {
            let message = "the plugin is cleaning up before the object goes".to_owned();
            return vec![verdict::condition("Ready", ConditionStatus::False, Reason::Deleting, message)];
        }
        if !failing.is_empty() {
            let message = failing.join("; ");
            return vec![
                verdict::condition("Ready", ConditionStatus::False, Reason::ChildFailed, message.clone()),
                verdict::condition("Stalled", ConditionStatus::True, Reason::ChildFailed, message),
            ];
        }
        if !waiting.is_empty() {
            let message = waiting.join("; ");
            return vec![
                verdict::condition(
                    "Ready",
                    ConditionStatus::False,
                    Reason::ChildrenProgressing,
                    message.clone(),
                ),
                verdict::condition(
                    "Reconciling",
                    ConditionStatus::True,
                    Reason::ChildrenProgressing,
                    message,
                ),
            ];
        }
        let message = match plan.children.len() {
            0 => "no children are planned".to_owned(),
            1 => "the one child is ready".to_owned(),
            count => format!("all {count} children are ready"),
        };
        vec![verdict::condition("Ready", ConditionStatus::True, Reason::ChildrenReady, message)]
    }

    pub(super) fn record_events(
        &self,
        pass: &Pass,
        plan: Option<&Plan>,
        failed: Option<&verdict::Verdict>,
        report: &Report,
    ) {
        let mut recorded = Vec::new();
        for (reason, action, keys) in [
            (Reason::Created, "Create", &report.created),
            (Reason::Updated, "Update", &report.updated),
            (Reason::Pruned, "Delete", &report.pruned),
        ] {
            let rest = keys.len().saturating_sub(NAMED);
            recorded.extend(keys.iter().take(NAMED).enumerate().map(|(index, key)| {
                let more =
                    if rest > 0 && index + 1 == NAMED { format!(" and {rest} more") } else { String::new() };
                event(false, reason.as_str(), action, format!("{key}{more}"), Some(key))
            }));
        }
        // A failure is told when it is new: when it changed what the status says, or where there is no status.
        if let Some(verdict) = failed
            && (report.status_written || !pass.plugin.manifest.status)
        {
            recorded.push(event(true, verdict.word(), "Reconcile", verdict.message.clone(), None));
        }
        if let Some(plan) = plan
            && report.called
        {
            let own = plan.events.iter();
            recorded
                .extend(own.map(|own| event(own.warning, &own.reason, "Reconcile", own.note.clone(), None)));
        }
        for event in recorded {
            self.events.publish(&pass.parent, &event);
        }
        debug!(
            called = report.called,
            created = report.created.len(),
            updated = report.updated.len(),
            pruned = report.pruned.len(),
            unchanged = report.unchanged,
            status_written = report.status_written,
            "reconciled"
        );
    }
}

fn event(
    warning: bool,
    reason: &str,
    action: &'static str,
    note: String,
    related: Option<&ObjectKey>,
) -> events::Event {
    let related = related.map(|key| (key.clone(), None));
    events::Event { warning, reason: reason.to_owned(), action, note, related }
}
