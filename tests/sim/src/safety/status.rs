//! Writes of a parent's status.

use super::{Judge, Parent};
use crate::{
    api::text,
    rest::{self, condition},
    world::NAMESPACE,
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::sync::Arc;

/// Conditions that are ours, and nobody else's.
const OURS: [&str; 4] = ["Ready", "Reconciling", "Stalled", "Synced"];

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["conditions"].as_array().into_iter().flatten()
}

impl Judge {
    /// S7: conditions and generation belong together, times move with the status alone, what others say stays.
    pub(super) fn check_status(&self, before: &Arc<Value>, after: &Arc<Value>) -> Result<()> {
        let uid = text(after, "/metadata/uid");
        if before["status"] == after["status"] {
            return Ok(());
        }
        let generation = after["metadata"]["generation"].as_i64();
        let observed = |object: &Value| object["status"]["observedGeneration"].as_i64();
        ensure!(observed(after) <= generation, "a generation from the future");
        // A host that has just started knows only what it is answered.
        let is_answered_old = self.is_stale && self.starts > 1;
        ensure!(is_answered_old || observed(before) <= observed(after), "the observed generation went back");
        for was in conditions(before) {
            let kind = text(was, "/type");
            if !OURS.contains(&kind) {
                ensure!(condition(after, kind) == Some(was), "the condition {kind} is somebody else's");
            }
        }
        // What the host may have seen last: the latest of others may not have reached it.
        let seen = self.seen.get(uid).map_or(&[][..], Vec::as_slice);
        for is in conditions(after) {
            let kind = text(is, "/type");
            ensure!(is["observedGeneration"].as_i64() <= generation, "{kind}: a generation from the future");
            let Some(was) = condition(before, kind).filter(|was| *was != is) else { continue };
            let is_same = |version: &Arc<Value>| {
                condition(version, kind).is_some_and(|one| one["status"] == is["status"])
            };
            let has_time = |version: &Arc<Value>| {
                condition(version, kind)
                    .is_some_and(|one| one["lastTransitionTime"] == is["lastTransitionTime"])
            };
            let is_known = was["lastTransitionTime"] == is["lastTransitionTime"] || seen.iter().any(has_time);
            if OURS.contains(&kind) && !self.is_stale && seen.iter().all(is_same) {
                ensure!(is_known, "{kind}: the time moved without the status");
            }
        }
        match self.parents.get(uid) {
            Some(parent) => self.check_reader(parent, uid, after),
            None => Ok(()),
        }
    }

    /// Whoever finds `Ready` in a status of this generation relies on the children being those of this generation.
    fn check_reader(&self, parent: &Parent, uid: &str, after: &Value) -> Result<()> {
        let generation = after["metadata"]["generation"].as_i64();
        let is_ready = condition(after, "Ready").is_some_and(|ready| ready["status"] == "True");
        let is_current = after["status"]["observedGeneration"].as_i64() == generation;
        if !is_ready
            || !is_current
            || !parent.is_scripted()
            || self.disturbed.contains(uid)
            || self.is_fewer
            || self.is_stale
        {
            return Ok(());
        }
        let plan = parent.plans.iter().rev().find(|plan| Some(plan.generation) == generation);
        let plan = plan.context("no plan of this generation")?;
        if let Some(note) = plan.spec.pointer("/plan/status/note") {
            ensure!(after["status"]["note"] == *note, "Ready with a note that is not {note}");
        }
        let planned = plan.children(&parent.name);
        for ((resource, name), told) in &planned {
            let key = (resource.clone(), (NAMESPACE.to_owned(), name.clone()));
            let child = self.objects.get(&key).with_context(|| format!("Ready without {name}"))?;
            let is = rest::told(resource, child);
            ensure!(
                is["text"] == told["text"],
                "Ready, and {name} says {}, not {}",
                is["text"],
                told["text"]
            );
        }
        for ((resource, (_, name)), object) in &self.objects {
            let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let is_ours = owners.into_iter().any(|owner| owner["uid"] == uid)
                && object["metadata"]["labels"][oarlock::object::LABEL_OWNED_BY].is_string();
            let is_going = !object["metadata"]["deletionTimestamp"].is_null();
            ensure!(
                !is_ours || is_going || planned.contains_key(&(resource.clone(), name.clone())),
                "Ready, and {name}, which is not planned, is there"
            );
        }
        Ok(())
    }
}
