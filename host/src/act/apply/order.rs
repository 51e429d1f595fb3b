//! Which children come after which: waves, and within a wave what others need first (rule A7).
//!
//! Never: I/O, clocks.

use super::{Done, Error, Look, decision::Decision};
use crate::{
    decide::{
        plan::{Child, Plan, rank},
        readiness::{Readiness, readiness},
    },
    object::{Gvk, ObjectKey},
};

/// Where a child stands: its wave, then its rank.
pub(super) fn of(child: &Child) -> (i32, u8) {
    (child.options.wave, rank(&child.key.gvk))
}

/// Whether a plan has the definition of this kind among its children.
pub(super) fn brings(plan: &Plan, gvk: &Gvk) -> bool {
    let defines = |child: &Child| {
        let at = |pointer: [&str; 2]| child.object.get("spec")?.get(pointer[0])?.get(pointer[1])?.as_str();
        let group = child.object.get("spec").and_then(|spec| spec.get("group")?.as_str());
        child.key.gvk.is_definition() && group == Some(&gvk.group) && at(["names", "kind"]) == Some(&gvk.kind)
    };
    plan.children.iter().any(defines)
}

/// Closes behind children that are not ready: nothing that comes after them is changed meanwhile.
#[derive(Default)]
pub(super) struct Gate {
    wave: Option<i32>,
    /// Whether there is a wave after the first.
    has_waves: bool,
    /// The first child of this wave that is not ready.
    unready: Option<ObjectKey>,
    /// What those behind it wait for.
    closed: Option<String>,
}

impl Gate {
    pub(super) fn of(plan: &Plan) -> Self {
        Self { has_waves: plan.has_waves(), ..Self::default() }
    }

    /// The next children are of this wave.
    pub(super) fn enter(&mut self, wave: i32) {
        let Some(before) = self.wave.replace(wave).filter(|before| *before != wave) else { return };
        if let Some(child) = self.unready.take() {
            let why = || format!("comes after wave {before}, which waits for {child}");
            self.closed.get_or_insert_with(why);
        }
    }

    /// Holds what was to be changed, if the gate is closed.
    pub(super) fn hold(&self, looks: &mut [Result<Look<'_>, Error>]) {
        let Some(why) = &self.closed else { return };
        for look in looks.iter_mut().flatten() {
            if matches!(look.decision, Decision::Apply(_) | Decision::Ask(_) | Decision::Restore) {
                look.decision = Decision::Hold(why.clone());
            }
        }
    }

    /// A child is as it is after this pass.
    pub(super) fn passed(&mut self, child: &Child, result: &Result<Done, Error>) {
        let is_definition = child.key.gvk.is_definition();
        // Telling readiness parses the child.
        if !is_definition && !self.has_waves {
            return;
        }
        let is_ready = match result {
            Ok(
                Done::Created(live)
                | Done::Updated(live)
                | Done::Tried(live, _)
                | Done::Unchanged(Some(live)),
            ) => readiness(live) == Readiness::Ready,
            Ok(Done::Unchanged(None) | Done::Replaced(_) | Done::Awaited | Done::Held(_)) | Err(_) => false,
        };
        if is_ready {
            return;
        }
        if is_definition {
            self.closed.get_or_insert_with(|| format!("comes after {} is established", child.key));
        }
        self.unready.get_or_insert_with(|| child.key.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decide::plan::Options, object::Object};
    use serde_json::json;
    use std::sync::Arc;

    fn child(kind: &str, name: &str, wave: i32) -> Child {
        let api_version = if kind == "CustomResourceDefinition" { "apiextensions.k8s.io/v1" } else { "v1" };
        let spec = json!({"spec": {"group": "cases.example.com", "names": {"kind": "Gadget"}}});
        Child {
            key: ObjectKey { gvk: Gvk::new(api_version, kind), namespace: None, name: name.into() },
            object: spec.as_object().unwrap().clone(),
            options: Options { wave, ..Options::default() },
        }
    }

    fn live(child: &Child, is_ready: bool) -> Arc<Object> {
        let status = if is_ready { "True" } else { "False" };
        let object = json!({
            "metadata": {"name": &*child.key.name, "uid": "u"},
            "status": {"conditions": [{"type": "Established", "status": status}, {"type": "Ready", "status": status}]},
        });
        Arc::new(Object::decode(&child.key.gvk, &object.to_string()).unwrap())
    }

    /// What those behind the children wait for.
    fn behind(passed: &[(&Child, Result<Done, Error>)], next: i32) -> Option<String> {
        let mut gate = Gate { has_waves: true, ..Gate::default() };
        for (child, result) in passed {
            gate.enter(child.options.wave);
            gate.passed(child, result);
        }
        gate.enter(next);
        gate.closed
    }

    #[test]
    fn later_wave_waits_for_every_child_of_the_earlier_ones() {
        let (a, b, c) = (child("Widget", "a", 0), child("Widget", "b", 0), child("Widget", "c", 1));
        let ready = |child: &Child| Done::Unchanged(Some(live(child, true)));
        let after =
            |child: &str, wave: i32| Some(format!("comes after wave {wave}, which waits for Widget {child}"));
        assert_eq!(behind(&[], 0), None);
        assert_eq!(behind(&[(&a, Ok(ready(&a))), (&b, Ok(Done::Created(live(&b, true))))], 1), None);
        assert_eq!(
            behind(&[(&a, Ok(ready(&a))), (&b, Ok(Done::Updated(live(&b, false))))], 0),
            None,
            "same wave"
        );
        for unready in [
            Ok(Done::Created(live(&b, false))),
            Ok(Done::Unchanged(Some(live(&b, false)))),
            Ok(Done::Unchanged(None)),
            Ok(Done::Replaced(live(&b, true))),
            Ok(Done::Awaited),
            Ok(Done::Held(String::new())),
            Err(Error::NotOwned { child: b.key.clone(), owner: String::new() }),
        ] {
            assert_eq!(behind(&[(&a, Ok(ready(&a))), (&b, unready)], 1), after("b", 0));
        }
        // The first that is not ready, also for waves further on.
        let all = [(&a, Ok(Done::Awaited)), (&c, Ok(Done::Held(String::new())))];
        assert_eq!(behind(&all, 2), after("a", 0));
        let all = [(&a, Ok(ready(&a))), (&c, Ok(Done::Awaited))];
        assert_eq!(behind(&all, 2), after("c", 1));
    }

    #[test]
    fn all_wait_for_a_definition_also_in_its_wave() {
        let definition = child("CustomResourceDefinition", "gadgets", 0);
        let created = |is_ready| [(&definition, Ok(Done::Created(live(&definition, is_ready))))];
        let expected = "comes after CustomResourceDefinition gadgets is established".to_owned();
        assert_eq!(behind(&created(false), 0), Some(expected));
        assert_eq!(behind(&created(true), 0), None);
    }

    #[test]
    fn plan_brings_the_kinds_that_it_defines() {
        let plan =
            Plan { children: vec![child("CustomResourceDefinition", "gadgets", 0)], ..Plan::default() };
        assert!(brings(&plan, &Gvk::new("cases.example.com/v1", "Gadget")));
        assert!(!brings(&plan, &Gvk::new("cases.example.com/v1", "Widget")));
        assert!(!brings(&plan, &Gvk::new("example.com/v1", "Gadget")));
        let other = Plan { children: vec![child("Widget", "gadgets", 0)], ..Plan::default() };
        assert!(!brings(&other, &Gvk::new("cases.example.com/v1", "Gadget")));
    }
}
