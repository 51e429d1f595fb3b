//! Server-side apply of the planned children: owned, labelled, skipped when unchanged (rules A1 to A4, A6, A7).

mod desired;
#[cfg(test)]
mod tests;

pub use desired::desired;

use super::{drift, identity, owned};
use crate::{
    decide::plan::{Child, Plan, rank},
    object::{ANNOTATION_APPLIED, FIELD_MANAGER_PREFIX, LABEL_OWNED_BY, LABEL_PARENT, Object, ObjectKey},
    observe::{
        cache::{Cache, Snapshot},
        client::{self, Answer, Client},
        discovery::{Discovery, Kind},
        reads::Sources,
    },
};
use futures::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;

/// Children of one plan that are applied at the same time: enough to hide the way to the API server, too few for
/// one parent to keep others from it.
const AT_ONCE: usize = 4;

/// What applying needs beside the plan.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The way to the API server.
    pub client: &'a Client,
    /// Kinds.
    pub discovery: &'a Discovery,
    /// Takes the responses.
    pub cache: &'a Cache,
    /// The moment that the plan was made in.
    pub snapshot: &'a Snapshot,
    /// Where children are watched.
    pub sources: &'a Sources,
    /// The plugin's name.
    pub plugin: &'a str,
    /// The parent.
    pub parent: &'a Object,
}

/// What happened to the children of one plan.
#[derive(Debug, Default)]
pub struct Applied {
    /// Created.
    pub created: Vec<ObjectKey>,
    /// Changed.
    pub updated: Vec<ObjectKey>,
    /// Needed no write.
    pub unchanged: usize,
    /// Being deleted, to be created again once they are gone: the pass is not complete.
    pub awaited: Vec<ObjectKey>,
    /// Not applied, each with why; the others were applied all the same.
    pub failed: Vec<(ObjectKey, Error)>,
    /// What was created and changed, as the API server answered.
    pub written: Vec<Arc<Object>>,
}

impl Applied {
    /// Whether every child of the plan is in place: what pruning asks for (rule A6).
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.awaited.is_empty()
    }
}

/// Why one child is not applied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It exists and is not ours (rule A4).
    #[error("{child} exists already and {owner}")]
    NotOwned {
        /// The child.
        child: ObjectKey,
        /// `belongs to Deployment web`, or `has no owner`, with what to do.
        owner: String,
    },
    /// The kind cannot be resolved.
    #[error("{child} cannot be applied")]
    Kind {
        /// The child.
        child: ObjectKey,
        /// Why.
        #[source]
        source: client::Error,
    },
    /// Looking whether it exists failed.
    #[error("cannot tell whether {child} exists")]
    Peek {
        /// The child.
        child: ObjectKey,
        /// Why.
        #[source]
        source: client::Error,
    },
    /// The API server refused, or its answer is unknown. `Answer::UidMismatch`: the object that was to be changed
    /// has been deleted meanwhile, which takes a fresh look (rule A6).
    #[error("{child} was not applied")]
    Apply {
        /// The child.
        child: ObjectKey,
        /// Why.
        #[source]
        source: client::Error,
    },
}

/// What happened to one child.
enum Done {
    Created(Arc<Object>),
    Updated(Arc<Object>),
    Unchanged,
    Awaited,
}

/// Applies the children of a plan, in its order; one bad child does not stop its siblings.
///
/// Children that do not need each other go at the same time, a few at once.
pub async fn children(context: Context<'_>, plan: &Plan) -> Applied {
    let mut applied = Applied::default();
    let ranks = plan.children.chunk_by(|a, b| rank(&a.key.gvk) == rank(&b.key.gvk));
    for batch in ranks.flat_map(|rank| rank.chunks(AT_ONCE)) {
        let results = join_all(batch.iter().map(|one| child(context, one))).await;
        for (Child { key, .. }, result) in batch.iter().zip(results) {
            match result {
                Ok(Done::Created(object)) => {
                    applied.created.push(key.clone());
                    applied.written.push(object);
                }
                Ok(Done::Updated(object)) => {
                    applied.updated.push(key.clone());
                    applied.written.push(object);
                }
                Ok(Done::Unchanged) => applied.unchanged += 1,
                Ok(Done::Awaited) => applied.awaited.push(key.clone()),
                Err(error) => applied.failed.push((key.clone(), error)),
            }
        }
    }
    applied
}

async fn child(context: Context<'_>, child: &Child) -> Result<Done, Error> {
    let Context { client, discovery, cache, snapshot, sources, plugin, parent } = context;
    let key = || child.key.clone();
    let kind = discovery.kind(&child.key.gvk).await.map_err(|source| Error::Kind { child: key(), source })?;
    let (body, applied) = desired(child, &kind, plugin, parent);
    let mirrored = sources
        .children
        .get(&child.key.gvk)
        .and_then(|(watch, _)| snapshot.get(watch, child.key.namespace.as_deref(), &child.key.name).cloned());
    let live = match mirrored {
        Some(live) => Some(live),
        // The mirror has what carries our label: somebody may have taken it off (F12), or it is not ours.
        None => client
            .peek(&kind, &child.key)
            .await
            .map_err(|source| Error::Peek { child: key(), source })?
            .map(Arc::new),
    };
    let manager = format!("{FIELD_MANAGER_PREFIX}{plugin}");
    match decide(child, &body, &applied, live.as_deref(), plugin, parent) {
        Decision::Nothing => return Ok(Done::Unchanged),
        Decision::Await => return Ok(Done::Awaited),
        Decision::Refuse(owner) => return Err(Error::NotOwned { child: key(), owner }),
        Decision::Apply => {}
    }
    let body = request(body, live.as_deref(), &manager).to_string();
    // Nothing is there to take fields from: whoever comes in between keeps them, and is found at the next pass.
    let force = live.is_some();
    let apply = client::Apply { manager: &manager, force, status: false, body: &body };
    match client.apply(&kind, &child.key, apply).await {
        Ok(object) => {
            let object = Arc::new(object);
            drop(cache.wrote(Arc::clone(&object)));
            Ok(if live.is_some() { Done::Updated(object) } else { Done::Created(object) })
        }
        Err(source) => {
            if source.answer == Answer::KindNotFound {
                discovery.forget(&child.key.gvk);
            }
            Err(Error::Apply { child: key(), source })
        }
    }
}

/// What to do with one child.
#[derive(Debug, PartialEq)]
enum Decision {
    /// It holds what was applied.
    Nothing,
    /// It is being deleted.
    Await,
    /// It is not ours; whose it is, and what to do.
    Refuse(String),
    /// Create or change it.
    Apply,
}

fn decide(
    child: &Child,
    body: &Value,
    applied: &str,
    live: Option<&Object>,
    plugin: &str,
    parent: &Object,
) -> Decision {
    let Some(live) = live else { return Decision::Apply };
    if let Some(owner) = not_ours(live, plugin, parent, child.adopt) {
        return Decision::Refuse(owner);
    }
    if live.is_terminating() {
        return Decision::Await;
    }
    let manager = format!("{FIELD_MANAGER_PREFIX}{plugin}");
    let is_applied = live.annotations.get(ANNOTATION_APPLIED).is_some_and(|hash| hash == applied);
    if is_applied && drift::first_difference(body, live, &manager).is_none() {
        return Decision::Nothing;
    }
    Decision::Apply
}

/// Whose an object is, if it is not ours to change (rule A4).
fn not_ours(live: &Object, plugin: &str, parent: &Object, adopt: bool) -> Option<String> {
    const REMEDY: &str = r#"set oarlock.dev/adopt: "true" on the planned child to take it over"#;
    match live.controller() {
        Some(owner) if owner.uid != parent.uid => {
            // An object has one controller: nothing that we could set would take it over.
            Some(format!("belongs to {} {}", owner.gvk.kind, owner.name))
        }
        _ if adopt => None,
        Some(_) => match live.labels.get(LABEL_OWNED_BY) {
            Some(other) if other != plugin => Some(format!("belongs to plugin {other}; {REMEDY}")),
            // Without the label: somebody took it off (F12).
            Some(_) | None => None,
        },
        // Somebody took the owner reference off what we applied. Labels alone prove nothing: anyone can set them.
        None if live.labels.get(LABEL_PARENT).is_some_and(|uid| **uid == *parent.uid)
            && !owned::of(live, &format!("{FIELD_MANAGER_PREFIX}{plugin}"), false).is_null() =>
        {
            None
        }
        None => Some(format!("has no owner; {REMEDY}")),
    }
}

/// The body of the apply: never for another object than the one it was decided on (rule A6).
fn request(mut body: Value, live: Option<&Object>, manager: &str) -> Value {
    if let Some(live) = live {
        owned::leave_out_emptied(&mut body, &owned::of(live, manager, false));
        body["metadata"]["uid"] = Value::from(&*live.uid);
    }
    body
}

/// Applies labels and annotations that the plan owns on the parent itself; true if that took a write.
///
/// # Errors
/// The request's error; `Answer::UidMismatch` if the parent has been deleted meanwhile.
pub async fn parent_metadata(
    context: Context<'_>,
    kind: &Arc<Kind>,
    plan: &Plan,
) -> Result<bool, client::Error> {
    let Context { client, cache, plugin, parent, .. } = context;
    let manager = format!("{FIELD_MANAGER_PREFIX}{plugin}");
    let Some(body) = metadata_request(parent, plan, &manager) else { return Ok(false) };
    let apply = client::Apply { manager: &manager, force: true, status: false, body: &body.to_string() };
    let object = client.apply(kind, &parent.key, apply).await?;
    drop(cache.wrote(object));
    Ok(true)
}

/// The apply of the parent's metadata; `None` if it has and owns just what the plan says.
fn metadata_request(parent: &Object, plan: &Plan, manager: &str) -> Option<Value> {
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
    let stands = |(field, wanted): &(&str, &std::collections::BTreeMap<String, String>)| {
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
