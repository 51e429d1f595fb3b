//! What a pass comes to, in words: conditions and events.

use super::{
    Pass, Reconciler, several,
    verdict::{self, Telling},
};
use crate::{
    act::{events, status},
    decide::{
        guest::Function,
        plan::{Child, Condition, ConditionStatus, Plan},
        readiness::{Readiness, readiness},
        stability::Unstable,
    },
    object::{Object, ObjectKey},
    plugins::Obstacle,
    report::{Reason, Report, StatusWrite},
};
use serde::Deserialize;
use std::collections::HashSet;
use tracing::debug;

/// Children that have an event of their own; what else a pass does is told in one.
const NAMED: usize = 8;

impl Reconciler {
    /// What the status should say; `None` if nothing is to be said yet.
    pub(super) fn desired_status(
        &self,
        pass: &Pass,
        function: Function,
        plan: Option<&Plan>,
        failed: Option<&verdict::Verdict>,
        unstable: Option<&Unstable>,
    ) -> Option<status::Desired> {
        let mut conditions = plan.map(|plan| plan.conditions.clone()).unwrap_or_default();
        let mut plan = plan;
        if let Some(verdict) = failed {
            let generation = pass.parent.generation;
            let is_in_place = || match plan {
                Some(plan) => is_true(&self.health(pass, function, plan), "Ready"),
                None => true,
            };
            let holds = is_current(&self.current_parent(pass), generation) && is_in_place();
            let telling = verdict.telling(pass.attempt, holds);
            match telling {
                Telling::Nothing => return None,
                // What stands is the last that is known, also beside `Ready`.
                Telling::Beside => (plan, conditions) = (None, Vec::new()),
                Telling::Ready => {}
            }
            for condition in verdict.conditions(telling) {
                // What failed is a fact of this pass, whatever the plan hoped for.
                conditions.retain(|own| own.r#type != condition.r#type);
                conditions.push(condition);
            }
        } else if let Some(plan) = plan
            && !is_said(&conditions, "Ready")
        {
            for condition in self.health(pass, function, plan) {
                if !is_said(&conditions, &condition.r#type) {
                    conditions.push(condition);
                }
            }
        }
        // Also where the guest speaks for itself: it does not know what waits for whom.
        if failed.is_none() && !pass.held.is_empty() && !is_said(&conditions, "Reconciling") {
            let message = several::message(held(pass));
            let reason = Reason::ChildrenProgressing;
            conditions.push(verdict::condition("Reconciling", ConditionStatus::True, reason, message));
        }
        // What failed weighs more.
        if let Some(unstable) = unstable.filter(|_| failed.is_none()) {
            conditions.retain(|own| own.r#type != "Reconciling");
            let message = unstable.message.to_string();
            conditions.push(verdict::condition(
                "Reconciling",
                ConditionStatus::True,
                Reason::PlanUnstable,
                message,
            ));
        }
        Some(status::Desired {
            fields: plan.map(|plan| plan.status.clone()),
            conditions,
            keep_other_own: plan.is_none(),
            observed_generation: pass.parent.generation,
        })
    }

    /// The plugin lacks a kind: how the parent is cannot be known, and nothing is done about it.
    pub(super) async fn tell_unknown(&self, pass: &Pass, obstacle: &Obstacle, report: &mut Report) {
        let (reason, message) = obstacle;
        let ready = verdict::condition("Ready", ConditionStatus::Unknown, *reason, message.clone());
        let desired = status::Desired {
            fields: None,
            conditions: vec![ready],
            keep_other_own: true,
            observed_generation: pass.parent.generation,
        };
        report.failure = Some((*reason, message.clone()));
        self.write_status(pass, &desired, true, report).await;
    }

    /// `Ready`, and `Reconciling` or `Stalled` while true, from the children's readiness (rule S5, kstatus).
    fn health(&self, pass: &Pass, function: Function, plan: &Plan) -> Vec<Condition> {
        // Own writes of this pass are in the cache by now.
        let snapshot = self.cache.snapshot();
        let (mut waiting, mut failing) = (held(pass), Vec::new());
        let is_held: HashSet<_> = pass.held.iter().map(|(key, _)| key).collect();
        let say = |key: &ObjectKey, what: &str| (key.to_string(), format!("{key}: {what}"));
        // Objects of others are as ready as others have them; one that is missing is held.
        let owned =
            plan.children.iter().filter(|child| !child.options.fields && !is_held.contains(&child.key));
        for Child { key, .. } in owned {
            let watch = pass.plugin.sources.children.get(&key.gvk).map(|(watch, _)| watch);
            let live = watch.and_then(|watch| snapshot.get(watch, key.namespace.as_deref(), &key.name));
            let Some(live) = live else {
                waiting.push(say(key, "is not there yet"));
                continue;
            };
            match readiness(live) {
                Readiness::Ready => {}
                Readiness::Progressing(why) => waiting.push(say(key, &why)),
                Readiness::Failed(why) => failing.push(say(key, &why)),
                Readiness::Terminating => waiting.push(say(key, &going(live))),
            }
        }
        if function == Function::Finalize {
            let mut message = "the plugin is cleaning up before the object goes".to_owned();
            if !pass.held.is_empty() {
                message = format!("{message}; {}", several::message(held(pass)));
            }
            return vec![verdict::condition("Ready", ConditionStatus::False, Reason::Deleting, message)];
        }
        if !failing.is_empty() {
            let message = several::message(failing);
            return vec![
                verdict::condition("Ready", ConditionStatus::False, Reason::ChildFailed, message.clone()),
                verdict::condition("Stalled", ConditionStatus::True, Reason::ChildFailed, message),
            ];
        }
        if !waiting.is_empty() {
            let message = several::message(waiting);
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
            (Reason::Replaced, "Delete", &report.replaced),
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
            && matches!(report.status, StatusWrite::Written | StatusWrite::LeftAlone)
        {
            recorded.push(event(true, verdict.word(), "Reconcile", verdict.message.clone(), None));
        }
        if let Some(plan) = plan
            && report.why.is_some()
        {
            let own = plan.events.iter();
            recorded
                .extend(own.map(|own| event(own.warning, &own.reason, "Reconcile", own.note.clone(), None)));
        }
        for event in recorded {
            self.events.publish(&pass.parent, &event);
        }
        debug!(
            why = report.why.as_ref().map(tracing::field::display),
            created = report.created.len(),
            updated = report.updated.len(),
            replaced = report.replaced.len(),
            pruned = report.pruned.len(),
            unchanged = report.unchanged,
            status = report.status.as_str(),
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

/// What waits for whom.
fn held(pass: &Pass) -> Vec<(String, String)> {
    pass.held.iter().map(|(child, why)| (child.to_string(), format!("{child}: {why}"))).collect()
}

/// That a child is being deleted, and who keeps it.
fn going(child: &Object) -> String {
    match &*child.finalizers.join(", ") {
        "" => "is being deleted".to_owned(),
        finalizers => format!("is being deleted, and waits for its finalizers {finalizers}"),
    }
}

fn is_true(conditions: &[Condition], r#type: &str) -> bool {
    let is_it = |one: &Condition| one.r#type == r#type && one.status == ConditionStatus::True;
    conditions.iter().any(is_it)
}

fn is_said(conditions: &[Condition], r#type: &str) -> bool {
    conditions.iter().any(|condition| condition.r#type == r#type)
}

/// As much of a status as tells which generation its `Ready` is about.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Standing {
    observed_generation: Option<i64>,
    conditions: Vec<StandingCondition>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct StandingCondition {
    r#type: String,
    observed_generation: Option<i64>,
}

/// Whether a `Ready` condition stands and is about this generation. A status that does not tell is not.
fn is_current(parent: &Object, generation: i64) -> bool {
    let status: Standing =
        parent.status.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let ready = status.conditions.iter().find(|condition| condition.r#type == "Ready");
    ready.is_some_and(|ready| ready.observed_generation.or(status.observed_generation) == Some(generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;

    #[test]
    fn only_a_ready_condition_about_this_generation_may_stay() {
        let cases = [
            ("{}", false),
            (r#"{"status": {"observedGeneration": 2}}"#, false),
            (
                r#"{"status": {"observedGeneration": 2, "conditions": [{"type": "Ready", "observedGeneration": 2}]}}"#,
                true,
            ),
            (
                r#"{"status": {"observedGeneration": 2, "conditions": [{"type": "Ready", "observedGeneration": 1}]}}"#,
                false,
            ),
            (
                r#"{"status": {"observedGeneration": 2, "conditions": [{"type": "Other", "observedGeneration": 2}]}}"#,
                false,
            ),
            (r#"{"status": {"observedGeneration": 2, "conditions": [{"type": "Ready"}]}}"#, true),
            (r#"{"status": {"observedGeneration": 1, "conditions": [{"type": "Ready"}]}}"#, false),
            (r#"{"status": {"conditions": [{"type": "Ready"}]}}"#, false),
            (r#"{"status": {"conditions": "odd"}}"#, false),
        ];
        for (text, expected) in cases {
            let mut object: serde_json::Value = serde_json::from_str(text).unwrap();
            object["metadata"] = serde_json::json!({"name": "w", "generation": 2});
            let object = Object::decode(&Gvk::new("v1", "Widget"), &object.to_string()).unwrap();
            assert_eq!(is_current(&object, 2), expected, "{text}");
        }
    }
}
