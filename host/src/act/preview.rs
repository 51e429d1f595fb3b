//! What applying a plan would change, told without a write.

use super::{apply::decision, fields, prune, watch_of};
use crate::{
    decide::plan::Plan,
    object::{Object, ObjectKey, field_manager},
    observe::{
        cache::Snapshot,
        client::{Answer, Error},
        discovery::Discovery,
        reads::Sources,
    },
};
use serde_json::Value;
use std::sync::Arc;

/// What would become of the children of one plan. Those that need no write are left out.
#[derive(Debug, Default)]
pub struct Children {
    /// Created.
    pub added: Vec<ObjectKey>,
    /// Changed.
    pub changed: Vec<Changed>,
    /// Deleted, once all others are in place.
    pub removed: Vec<ObjectKey>,
    /// Not applied, each with why.
    pub refused: Vec<(ObjectKey, String)>,
}

/// A child that would be changed.
#[derive(Debug)]
pub struct Changed {
    /// As it is.
    pub live: Arc<Object>,
    /// What would be applied.
    pub body: Value,
    /// By which field manager.
    pub manager: String,
}

/// Compares a plan with what is there, as far as the host watches it: what somebody took the host's label off is told
/// as added.
///
/// # Errors
/// The API server's kinds cannot be read; one that it does not serve is no error.
pub async fn children(
    discovery: &Discovery,
    snapshot: &Snapshot,
    sources: &Sources,
    parent: &Object,
    plan: &Plan,
) -> Result<Children, Error> {
    let plugin = &*sources.plugin;
    let mut told = Children::default();
    for child in &plan.children {
        let key = &child.key;
        let kind = match discovery.kind(&key.gvk).await {
            Ok(kind) => kind,
            Err(error) if error.answer == Answer::KindNotFound => {
                told.refused.push((key.clone(), error.to_string()));
                continue;
            }
            Err(error) => return Err(error),
        };
        let live = watch_of(sources, child)
            .and_then(|watch| snapshot.get(watch, key.namespace.as_deref(), &key.name));
        let changed = |body, manager| live.cloned().map(|live| Changed { live, body, manager });
        if child.options.fields {
            if let fields::Decision::Apply { body, .. } =
                fields::decide(child, &kind, live.map(|live| &**live), plugin, parent)
            {
                told.changed.extend(changed(body, fields::manager(plugin, &parent.uid)));
            }
            continue;
        }
        match decision::of(child, &kind, live.map(|live| &**live), plugin, parent) {
            decision::Decision::Apply(body) => match changed(body, field_manager(plugin)) {
                Some(changed) => told.changed.push(changed),
                None => told.added.push(key.clone()),
            },
            decision::Decision::Refuse(owner) => {
                told.refused.push((key.clone(), format!("it exists already and {owner}")));
            }
            decision::Decision::Nothing
            | decision::Decision::Await
            | decision::Decision::Hold(_)
            | decision::Decision::Leave(_)
            | decision::Decision::Ask(_)
            | decision::Decision::Restore => {}
        }
    }
    let unplanned = prune::unplanned_in(snapshot, sources, plan, parent);
    told.removed = unplanned.into_iter().map(|object| object.key.clone()).collect();
    Ok(told)
}
