//! The parent's status: what the schema takes of it, merged with what stands there (both pure), then written if
//! something differs (rules S1 to S8).

mod declared;
mod merge;
mod pace;
mod refused;
mod shared;
#[cfg(test)]
mod tests;

pub use merge::merge;
pub use pace::Pace;
pub use refused::Refusal;

use crate::{
    decide::plan::Condition,
    object::Object,
    observe::{
        cache::Cache,
        client::{self, Answer, Client},
        discovery::{Kind, StatusSchema},
    },
    report::StatusWrite,
};
use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

/// Attempts at writing an atomic list of conditions. Each loses only if somebody wrote in the milliseconds since
/// the last read; whoever loses them all comes again through the queue.
const ATTEMPTS: u32 = 5;
/// The wait before the second attempt; doubled before each one after.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Refusals of a status that are answered by leaving out what they name: one for its types, one for its values.
const REFUSALS: u32 = 2;

/// What the status should say.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Fields beside conditions; `None` keeps those that stand (a failed pass tells nothing about them).
    pub fields: Option<serde_json::Map<String, serde_json::Value>>,
    /// Conditions to set.
    pub conditions: Vec<Condition>,
    /// Whether conditions of this plugin that are not in `conditions` stay (a failed pass) or go.
    pub keep_other_own: bool,
    /// The generation that the guest saw.
    pub observed_generation: i64,
}

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// The body of the server-side apply.
    pub body: serde_json::Value,
    /// Whether it is a transition of a condition or about a new generation, which nobody should have to wait for.
    pub is_urgent: bool,
}

/// A field that a status should have and cannot (rule S8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Such as `status.list[*].name`.
    pub path: String,
    /// Why the API server refuses what should stand there; `None` where the schema has no such field.
    pub refusal: Option<String>,
}

/// Whose status is written, and how.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    /// The way to the API server.
    pub client: &'a Client,
    /// What is there; learns of the write.
    pub cache: &'a Cache,
    /// The parent's kind; its status is left alone without the status subresource.
    pub kind: &'a Kind,
    /// The field manager.
    pub manager: &'a str,
    /// Types of conditions that are the manager's where the list does not tell.
    pub own_types: &'a [String],
    /// What was refused of this parent's status before.
    pub refused: Option<&'a Refusal>,
    /// How long a write that is not urgent has to wait.
    pub rest: Duration,
    /// The time now, in RFC 3339.
    pub now: &'a str,
}

/// What became of a status.
#[derive(Debug)]
pub struct Written {
    /// The request's error after the last attempt; `Answer::UidMismatch` if the parent has been deleted meanwhile.
    pub result: Result<StatusWrite, client::Error>,
    /// Versions that turned out to be outdated.
    pub conflicts: u32,
    /// Requests that were refused for what they hold.
    pub refusals: u32,
    /// What the API server refused, now or before; to be handed in with the next write.
    pub refusal: Option<Refusal>,
    /// Every field that it should have and has not.
    pub shortfalls: Vec<Shortfall>,
}

/// Merges and writes. On a conflict of an atomic list it reads again, merges again, and tries again a few times;
/// what the API server refuses is left out, once and from then on.
pub async fn write(writer: Writer<'_>, parent: &Object, desired: &Desired) -> Written {
    let mut written = Written {
        result: Ok(StatusWrite::LeftAlone),
        conflicts: 0,
        refusals: 0,
        refusal: None,
        shortfalls: Vec::new(),
    };
    let Some(schema) = &writer.kind.status else { return written };
    let (desired, undeclared) = declared::declared(desired, schema);
    let is_about_this = |refused: &&Refusal| refused.is_of(refused::identity(&desired, schema));
    written.refusal = writer.refused.filter(is_about_this).cloned();
    written.result = attempts(writer, schema, parent, &desired, &mut written).await;
    let undeclared = undeclared.into_iter().map(|path| Shortfall { path, refusal: None });
    let refused = written.refusal.iter().flat_map(|refusal| refusal.shortfalls.iter().cloned());
    written.shortfalls = undeclared.chain(refused).collect();
    written
}

async fn attempts(
    writer: Writer<'_>,
    schema: &StatusSchema,
    parent: &Object,
    desired: &Desired,
    written: &mut Written,
) -> Result<StatusWrite, client::Error> {
    let Writer { client, cache, kind, manager, own_types, now, .. } = writer;
    let mut current = Cow::Borrowed(parent);
    let mut is_taken_off = false;
    loop {
        let rest = match &written.refusal {
            Some(refusal) if refusal.is_whole => {
                return Ok(if written.refusals == 0 { StatusWrite::Unchanged } else { StatusWrite::Failed });
            }
            Some(refusal) => Cow::Owned(refusal.rest(desired)),
            None => Cow::Borrowed(desired),
        };
        let Some(patch) = merge(&current, &rest, schema, manager, own_types, now) else {
            return Ok(StatusWrite::Unchanged);
        };
        if !patch.is_urgent && !writer.rest.is_zero() {
            return Ok(StatusWrite::Deferred);
        }
        let apply = client::Apply { manager, force: true, status: true, body: &patch.body.to_string() };
        let error = match client.apply(kind, &parent.key, apply).await {
            Ok(object) => {
                let is_same = object.uid == parent.uid;
                drop(cache.wrote(object));
                // The API server does not look at the uid of a status: it has gone to a new object of the name,
                // whose own pass puts it right.
                return if is_same { Ok(StatusWrite::Written) } else { Err(replaced(parent)) };
            }
            Err(error) => error,
        };
        match &error.answer {
            Answer::Invalid(_) if !is_taken_off && shared::has_going(&current, manager, &patch.body) => {
                is_taken_off = true;
                let fresh = client.get(kind, &parent.key).await?;
                let fresh = fresh.filter(|fresh| fresh.uid == parent.uid).ok_or_else(|| replaced(parent))?;
                let object = match shared::take_off(&fresh, manager, &patch.body) {
                    Some(patch) => client.json_patch_status(kind, &parent.key, &patch).await?,
                    None => fresh,
                };
                drop(cache.wrote(object.clone()));
                current = Cow::Owned(object);
            }
            Answer::Invalid(paths) => {
                written.refusals += 1;
                let refusal =
                    written.refusal.get_or_insert_with(|| Refusal::new(refused::identity(desired, schema)));
                refusal.add(paths, &error.message, &patch.body["status"], &rest);
                refusal.is_whole |= written.refusals > REFUSALS;
            }
            Answer::VersionConflict => {
                written.conflicts += 1;
                if written.conflicts == ATTEMPTS {
                    return Err(error);
                }
                tokio::time::sleep(wait(parent, written.conflicts)).await;
                current = Cow::Owned(fresh(client, kind, parent).await?);
            }
            // Also the answer where the object is there, and its kind has no status subresource any more.
            Answer::NotFound => {
                fresh(client, kind, parent).await?;
                return Err(client::Error { answer: Answer::KindNotFound, ..error });
            }
            _ => return Err(error),
        }
    }
}

/// The parent as it is now, if it is there.
async fn fresh(client: &Client, kind: &Kind, parent: &Object) -> Result<Object, client::Error> {
    let fresh = client.get(kind, &parent.key).await?;
    fresh.filter(|fresh| fresh.uid == parent.uid).ok_or_else(|| replaced(parent))
}

fn replaced(parent: &Object) -> client::Error {
    client::Error {
        verb: "patch",
        target: format!("the status of {}", parent.key),
        answer: Answer::UidMismatch,
        message: "it has been deleted meanwhile".to_owned(),
        retry_after: None,
    }
}

/// Doubling, with half of it as jitter, so that two writers do not meet again; repeatable, as simulations are.
fn wait(parent: &Object, attempt: u32) -> Duration {
    let mut hasher = DefaultHasher::new();
    (&parent.uid, parent.version.as_str(), attempt).hash(&mut hasher);
    let full = FIRST_WAIT * 2_u32.pow(attempt - 1);
    full / 2 + (full / 2).mul_f64(f64::from(hasher.finish() as u32) / f64::from(u32::MAX))
}
