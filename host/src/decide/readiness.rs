//! How far an object is, by the rules of kstatus.
//!
//! Where the rules differ, it is because a plan waits for what it asked for, and because nothing here may depend on
//! the time; docs/conditions.md has the list.
//! Never: I/O, clocks, wasm.

mod kinds;
#[cfg(test)]
mod tests;

use crate::object::Object;
use serde::Deserialize;
use std::borrow::Cow;

/// How far an object is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// It does what it is for.
    Ready,
    /// On its way; what is awaited.
    Progressing(String),
    /// It will not get there by itself; why.
    Failed(String),
    /// It is being deleted.
    Terminating,
}

/// What the rules for any kind need of a status.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status<'a> {
    observed_generation: Option<i64>,
    #[serde(borrow)]
    conditions: Option<Vec<Condition<'a>>>,
}

/// One condition. Kinds that predate the conventions leave fields out.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Condition<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow)]
    reason: Cow<'a, str>,
    #[serde(borrow)]
    message: Cow<'a, str>,
    observed_generation: Option<i64>,
}

impl Condition<'_> {
    /// Its message, or what else says most.
    fn text(&self) -> String {
        let texts = [&*self.message, &*self.reason, &*self.r#type];
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_owned()
    }
}

/// Finds a condition by type.
fn find<'a, 'c>(conditions: &'a [Condition<'c>], r#type: &str) -> Option<&'a Condition<'c>> {
    conditions.iter().find(|condition| condition.r#type == r#type)
}

/// Finds a condition by type that is `True`.
fn holds<'a, 'c>(conditions: &'a [Condition<'c>], r#type: &str) -> Option<&'a Condition<'c>> {
    find(conditions, r#type).filter(|condition| condition.status == "True")
}

/// Tells how far an object is, from its generation, its status and its conditions.
pub fn readiness(object: &Object) -> Readiness {
    if object.is_terminating() {
        return Readiness::Terminating;
    }
    // A status of another shape than the conventions' says nothing by them.
    let status: Status<'_> =
        object.status.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_behind = |observed: Option<i64>| {
        object.generation != 0 && observed.is_some_and(|observed| observed != object.generation)
    };
    let behind = || Readiness::Progressing("its controller has not seen the last change yet".to_owned());
    if is_behind(status.observed_generation) {
        return behind();
    }
    // Of a kind whose status does not tell, the condition may.
    let current = |condition: &Condition<'_>| !is_behind(condition.observed_generation);
    if let Some(stalled) = holds(conditions, "Stalled").filter(|one| current(one)) {
        return Readiness::Failed(stalled.text());
    }
    if let Some(reconciling) = holds(conditions, "Reconciling").filter(|one| current(one)) {
        return Readiness::Progressing(reconciling.text());
    }
    if let Some(readiness) = kinds::readiness(object, status.observed_generation.is_some(), conditions) {
        return readiness;
    }
    match find(conditions, "Ready") {
        Some(ready) if !current(ready) => behind(),
        Some(ready) if ready.status != "True" => Readiness::Progressing(ready.text()),
        // Without any sign of a controller there is nothing to wait for.
        Some(_) | None => Readiness::Ready,
    }
}
