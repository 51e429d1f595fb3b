//! The parent's status: conditions merged (pure), then written if something differs (rules S1 to S5, S7).

mod merge;
#[cfg(test)]
mod tests;

pub use merge::merge;

use crate::{
    decide::plan::Condition,
    object::Object,
    observe::{
        cache::Cache,
        client::{self, Answer, Client},
        discovery::Kind,
    },
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
    /// Fields of the plan that the schema does not have; left out of the body (rule S8).
    pub undeclared: Vec<String>,
}

/// Merges and writes; on a conflict of an atomic list reads again, merges again, and tries again a few times.
/// True if it took a write; the undeclared fields beside it, also when nothing had to be written. A kind without
/// status subresource is never written, and `status` itself undeclared.
///
/// # Errors
/// The request's error after the last attempt; `Answer::UidMismatch` if the parent has been deleted meanwhile.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one fact of the pass, and nothing else needs them together"
)]
pub async fn write(
    client: &Client,
    cache: &Cache,
    kind: &Kind,
    parent: &Object,
    desired: &Desired,
    manager: &str,
    own_types: &[String],
    now: &str,
) -> Result<(bool, Vec<String>), client::Error> {
    let Some(schema) = &kind.status else { return Ok((false, vec!["status".to_owned()])) };
    let undeclared = merge::undeclared(desired, schema);
    let mut current = Cow::Borrowed(parent);
    let mut attempt = 1;
    loop {
        let Some(patch) = merge(&current, desired, schema, manager, own_types, now) else {
            return Ok((false, undeclared));
        };
        let apply = client::Apply { manager, force: true, status: true, body: &patch.body.to_string() };
        let error = match client.apply(kind, &parent.key, apply).await {
            Ok(object) => {
                let is_same = object.uid == parent.uid;
                drop(cache.wrote(object));
                // The API server does not look at the uid of a status: it has gone to a new object of the name,
                // whose own pass puts it right.
                return if is_same { Ok((true, undeclared)) } else { Err(replaced(parent)) };
            }
            Err(error) => error,
        };
        if error.answer != Answer::VersionConflict || attempt == ATTEMPTS {
            return Err(error);
        }
        tokio::time::sleep(wait(parent, attempt)).await;
        attempt += 1;
        match client.get(kind, &parent.key).await? {
            Some(fresh) if fresh.uid == parent.uid => current = Cow::Owned(fresh),
            Some(_) | None => return Err(replaced(parent)),
        }
    }
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
