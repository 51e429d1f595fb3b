//! Labels and annotations that a plan owns on the parent itself.

use super::Context;
use crate::{
    act::{identity, owned},
    decide::plan::Plan,
    object::{Object, field_manager},
    observe::{client, discovery::Kind},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// Applies labels and annotations that the plan owns on the parent itself; true if that took a write.
///
/// # Errors
/// The request's error; `Answer::UidMismatch` if the parent has been deleted meanwhile.
pub async fn metadata(context: Context<'_>, kind: &Arc<Kind>, plan: &Plan) -> Result<bool, client::Error> {
    let Context { client, cache, plugin, parent, .. } = context;
    let manager = field_manager(plugin);
    let Some(body) = metadata_request(parent, plan, &manager) else { return Ok(false) };
    let apply = client::Apply { manager: &manager, force: true, status: false, body: &body.to_string() };
    let object = client.apply(kind, &parent.key, apply).await?;
    drop(cache.wrote(object));
    Ok(true)
}

/// The apply of the parent's metadata; `None` if it has and owns just what the plan says.
pub(super) fn metadata_request(parent: &Object, plan: &Plan, manager: &str) -> Option<Value> {
    let owned = owned::of(parent, manager, false);
    let owned = owned::member(&owned, "metadata").unwrap_or(&Value::Null);
    let is_owned =
        |field: &str| owned::member(owned, field).is_some_and(|node| owned::members(node).next().is_some());
    let parts = [("labels", &plan.labels), ("annotations", &plan.annotations)];
    if parts.iter().all(|(field, wanted)| wanted.is_empty() && !is_owned(field)) {
        return None;
    }
    // Annotations of others are in the body only; the API server wrote it, so it is read.
    let live: Value = serde_json::from_str(&parent.body).unwrap_or_default();
    let stands = |(field, wanted): &(&str, &BTreeMap<String, String>)| {
        let node = owned::member(owned, field).unwrap_or(&Value::Null);
        wanted.iter().all(|(name, value)| {
            live["metadata"][field][name] == **value && owned::member(node, name).is_some()
        }) && owned::members(node).all(|(name, _)| wanted.contains_key(name))
    };
    if parts.iter().all(stands) {
        return None;
    }
    let mut body = identity(parent);
    for (field, wanted) in parts.iter().filter(|(_, wanted)| !wanted.is_empty()) {
        body["metadata"][field] = json!(wanted);
    }
    Some(body)
}
