//! Writes of children.

use super::{BELIEVED, Judge, Parent, Planned, UNDER_WAY};
use crate::{
    api::{Change, Record},
    rest,
};
use anyhow::{Context, Result, ensure};
use oarlock::object::{ANNOTATION_UPDATE, LABEL_OWNED_BY, LABEL_PARENT};
use serde_json::Value;

impl Judge {
    /// Whose child it is, by its label.
    fn parent_of(&self, object: &Value) -> Result<&Parent> {
        let uid =
            object["metadata"]["labels"][LABEL_PARENT].as_str().context("it has no label of a parent")?;
        self.parents.get(uid).with_context(|| format!("{uid} is no parent"))
    }

    /// An apply: of a child that some plan has, for a parent that there is, and nothing of anybody else.
    pub(super) fn check_apply(
        &self,
        record: &Record,
        change: &Change,
        before: Option<&Value>,
        after: &Value,
    ) -> Result<()> {
        let parent = self.parent_of(after)?;
        let (resource, name) = (&*change.resource, &change.key.1);
        let key = (resource.to_owned(), name.clone());
        if before.is_none() {
            // S3: what was deleted is not made again for a parent that is gone.
            let is_late = parent.deleted.is_some_and(|deleted| record.at > deleted + BELIEVED);
            ensure!(!is_late, "made for a parent that is gone");
        }
        let is_planned = parent.plans.iter().any(|plan| plan.children(&parent.name).contains_key(&key));
        ensure!(is_planned, "no plan of {} has it", parent.name);
        if let Some(before) = before {
            check_others(resource, before, after)?;
        }
        // S2: the host acts on what it has seen, or on what came later, never on what came before.
        let told = rest::told(resource, after);
        let is_new = before.is_none_or(|before| rest::told(resource, before)["text"] != told["text"]);
        if parent.is_scripted() && is_new {
            let says = |plan: &&Planned| {
                let planned = plan.children(&parent.name);
                planned.get(&key).is_some_and(|planned| planned["text"] == told["text"])
            };
            ensure!(
                parent.possible().any(|plan| says(&plan)),
                "it says {}, which is from before generation {}, which the host has seen",
                told["text"],
                parent.floor
            );
        }
        Ok(())
    }

    /// A delete: of exactly what was ours, and is not planned, or is replaced.
    pub(super) fn check_delete(&self, record: &Record, change: &Change, before: &Value) -> Result<()> {
        let parent = self.parent_of(before)?;

        let owners = before["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let uid = &before["metadata"]["labels"][LABEL_PARENT];
        let is_touched = self.touched.is_some_and(|touched| record.at < touched + UNDER_WAY);
        // Whoever took the owner off may not have been heard of.
        let is_owned = owners.into_iter().any(|owner| owner["uid"] == *uid);
        let is_believed = self.touched.is_some_and(|touched| record.at < touched + BELIEVED);
        ensure!(is_owned || is_believed, "its parent does not own it");
        let is_labelled = before["metadata"]["labels"][LABEL_OWNED_BY].is_string();
        ensure!(is_labelled || is_believed, "it is not labelled as ours");
        if parent.deleted.is_some() || self.is_fewer {
            return Ok(());
        }
        let is_replaced = before["metadata"]["annotations"][ANNOTATION_UPDATE] == "replace";
        if is_replaced {
            return Ok(());
        }
        let key = (change.resource.to_string(), change.key.1.clone());
        let lacking: Vec<_> =
            parent.possible().filter(|plan| !plan.children(&parent.name).contains_key(&key)).collect();
        // S2: decided on a view that is not older than the host's own last write.
        ensure!(!lacking.is_empty(), "every plan since generation {} has it", parent.floor);
        // S4: everything that the plan has is in place, unless somebody has just touched it.
        if is_touched {
            return Ok(());
        }
        let is_in_place = |plan: &&&Planned| {
            plan.children(&parent.name).iter().all(|((resource, name), told)| {
                let namespace = &change.key.0;
                let child = self.objects.get(&(resource.clone(), (namespace.clone(), name.clone())));
                child.is_some_and(|child| {
                    told.is_null() || rest::told(resource, child)["text"] == told["text"]
                })
            })
        };
        ensure!(
            lacking.iter().any(|plan| is_in_place(&plan)),
            "pruned before the rest of the plan is in place"
        );
        Ok(())
    }

    pub(super) fn learn_child(&mut self, record: &Record, change: &Change, is_host: bool) {
        let object = change.object();
        let Some(uid) = object["metadata"]["labels"][LABEL_PARENT].as_str() else {
            // Read by guests, perhaps.
            if !is_host {
                self.disturbed.extend(self.parents.keys().cloned());
            }
            return;
        };
        if !is_host {
            self.touched = Some(record.at);
            self.disturbed.insert(uid.to_owned());
            return;
        }
        let key = (change.resource.to_string(), change.key.1.clone());
        let Some(parent) = self.parents.get_mut(uid) else { return };
        let told = rest::told(&change.resource, object);
        if parent.is_scripted() && change.after.is_some() {
            let says = |plan: &&Planned| {
                let planned = plan.children(&parent.name);
                planned.get(&key).is_some_and(|planned| planned["text"] == told["text"])
            };
            let seen = parent.plans.iter().filter(says).map(|plan| plan.generation).max();
            parent.floor = parent.floor.max(seen.unwrap_or_default());
        }
    }
}

/// S6: what is somebody else's in a child stays as it is.
fn check_others(resource: &str, before: &Value, after: &Value) -> Result<()> {
    ensure!(before["metadata"]["uid"] == after["metadata"]["uid"], "another object of the name");
    ensure!(before["metadata"]["finalizers"] == after["metadata"]["finalizers"], "its finalizers changed");
    let is_ours = |name: &str| {
        matches!(name, "text" | "version" | "names" | "mutated") || name.contains("oarlock.dev/")
    };
    let parts = [&["data"][..], &["metadata", "annotations"], &["metadata", "labels"]];
    for part in parts {
        let of = |object: &Value| part.iter().fold(object.clone(), |at, name| at[name].clone());
        let (was, is) = (of(before), of(after));
        for (name, value) in was.as_object().into_iter().flatten() {
            ensure!(
                is_ours(name) || is[name] == *value,
                "{}.{name} of {resource} is somebody else's",
                part.join(".")
            );
        }
    }
    Ok(())
}
