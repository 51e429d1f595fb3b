//! Server-side apply of the planned children: owned, labelled, skipped when unchanged (rules A1 to A4, A6 to A8).

mod change;
pub(super) mod decision;
mod desired;
mod order;
pub mod parent;
mod rolling;
#[cfg(test)]
mod tests;

use super::contested::{Contests, Told};
use crate::{
    decide::plan::{Child, Plan},
    object::{Object, ObjectKey},
    observe::{
        cache::{Cache, Snapshot},
        client::{self, Client},
        discovery::{Discovery, Kind},
        reads::Sources,
    },
};
use decision::Decision;
pub(super) use desired::hash;
use futures::future::join_all;
use std::{sync::Arc, time::Instant};

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
    /// Children that others fight over.
    pub contests: &'a Contests,
    /// The time.
    pub now: Instant,
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
    /// Deleted, to be created anew once they are gone.
    pub replaced: Vec<Arc<Object>>,
    /// Being deleted, to be created again once they are gone: the pass is not complete.
    pub awaited: Vec<ObjectKey>,
    /// Left as they are until others are ready, each with what it waits for: the pass is not complete.
    pub held: Vec<(ObjectKey, String)>,
    /// Not applied, each with why; the others were applied all the same.
    pub failed: Vec<(ObjectKey, Error)>,
    /// What was created and changed, as the API server answered.
    pub written: Vec<Arc<Object>>,
}

impl Applied {
    /// Whether every child of the plan is in place: what pruning asks for (rule A6).
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.awaited.is_empty() && self.held.is_empty() && self.replaced.is_empty()
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
    /// The API server does not allow the change, and would take the object as a new one.
    #[error(
        "{child} cannot be changed as planned; set oarlock.dev/update: replace on the planned child to have it deleted and created anew"
    )]
    Immutable {
        /// The child.
        child: ObjectKey,
        /// The API server's words, with the fields.
        #[source]
        source: client::Error,
    },
    /// Another manager sets the same fields (rule A5).
    #[error("{child} is changed by others each time: {}; only one of the two can set a field", .told.words)]
    Contested {
        /// The child.
        child: ObjectKey,
        /// Who sets what.
        told: Told,
    },
    /// It was to be deleted and created anew.
    #[error("{child} was not deleted, to be created anew")]
    Replace {
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

/// One child and what was found of it.
struct Look<'a> {
    child: &'a Child,
    /// `None` while it is not served.
    kind: Option<Arc<Kind>>,
    live: Option<Arc<Object>>,
    decision: Decision,
    /// It is tried once more to take it from others.
    told: Option<Told>,
    way: Way,
}

/// How a child is applied.
struct Way {
    /// The field manager.
    manager: String,
    /// Whether fields are taken from others.
    force: bool,
    /// The annotation that tells the content by its hash.
    mark: String,
}

/// What happened to one child.
enum Done {
    Created(Arc<Object>),
    Updated(Arc<Object>),
    Unchanged(Option<Arc<Object>>),
    /// Changed, though others will change it too.
    Tried(Arc<Object>, Told),
    Replaced(Arc<Object>),
    Awaited,
    Held(String),
}

/// Applies the children of a plan, in its order; one bad child does not stop its siblings.
///
/// Children that do not need each other go at the same time, a few at once. What is to be changed is held while what
/// it comes after is not ready: a kind's definition, or a lower wave (rule A7).
pub async fn children(context: Context<'_>, plan: &Plan) -> Applied {
    let mut applied = Applied::default();
    let mut gate = order::Gate::of(plan);
    for rank in plan.children.chunk_by(|a, b| order::of(a) == order::of(b)) {
        gate.enter(order::of(&rank[0]).0);
        let mut looks = Vec::with_capacity(rank.len());
        for batch in rank.chunks(AT_ONCE) {
            looks.extend(join_all(batch.iter().map(|child| change::look(context, plan, child))).await);
        }
        gate.hold(&mut looks);
        rolling::hold(rank, &mut looks);
        let mut looks = looks.into_iter();
        for batch in rank.chunks(AT_ONCE) {
            let doing = looks.by_ref().take(batch.len()).map(async |look| change::make(context, look?).await);
            for (child, result) in batch.iter().zip(join_all(doing).await) {
                gate.passed(child, &result);
                applied.add(&child.key, result);
            }
        }
    }
    applied
}

impl Applied {
    fn add(&mut self, key: &ObjectKey, result: Result<Done, Error>) {
        let key = || key.clone();
        match result {
            Ok(Done::Created(object)) => {
                self.created.push(key());
                self.written.push(object);
            }
            Ok(Done::Updated(object)) => {
                self.updated.push(key());
                self.written.push(object);
            }
            Ok(Done::Tried(object, told)) => {
                self.updated.push(key());
                self.written.push(object);
                self.failed.push((key(), Error::Contested { child: key(), told }));
            }
            Ok(Done::Unchanged(_)) => self.unchanged += 1,
            Ok(Done::Replaced(object)) => self.replaced.push(object),
            Ok(Done::Awaited) => self.awaited.push(key()),
            Ok(Done::Held(why)) => self.held.push((key(), why)),
            Err(error) => self.failed.push((key(), error)),
        }
    }
}
