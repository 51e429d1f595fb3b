//! Every error of a stage becomes a reason, a message and an outcome here.

#[cfg(test)]
mod tests;

use super::several;
use crate::{
    act::apply,
    decide::{
        Unplanned,
        guest::CallError,
        plan::{self, Condition, ConditionStatus},
    },
    object::ObjectKey,
    observe::client::{self, Answer},
    report::{Fault, Outcome, Reason, chain},
};
use std::{sync::Arc, time::Duration};

/// Retries that take about 150 ms together: what is over by then was no news.
const QUICK_RETRIES: u32 = 5;
/// A longer wait before the next retry is none of these.
const QUICK: Duration = Duration::from_secs(1);
/// What only a person, or another object's change, can mend is tried again no more often than this.
const PATIENCE: Duration = Duration::from_secs(10);

/// What can go wrong in one pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The guest gave no plan.
    #[error(transparent)]
    Unplanned(Arc<Unplanned>),
    /// Children that were not applied; their siblings were.
    #[error("{} of the children are not applied", .0.len())]
    Apply(Vec<(ObjectKey, apply::Error)>),
    /// Labels and annotations of the parent were not applied.
    #[error("labels and annotations of the object were not applied")]
    Metadata(#[source] client::Error),
    /// A child that is no longer planned was not deleted.
    #[error("a child that is no longer planned was not deleted")]
    Prune(#[source] client::Error),
    /// The finalizer was not changed.
    #[error("the finalizer was not changed")]
    Finalizer(#[source] client::Error),
    /// It cannot be read what became of an earlier write.
    #[error("it is not known what became of an earlier write")]
    Doubt(#[source] client::Error),
    /// The status was not written.
    #[error("the status was not written")]
    Status(#[source] client::Error),
    /// The pass panicked.
    #[error("the host failed on this object: {0}")]
    Panicked(String),
}

/// What an error comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The reason, for metrics; also of conditions and events unless the guest gave its own.
    pub(super) reason: Reason,
    /// The guest's own word.
    pub(super) own_word: Option<String>,
    /// The message of conditions and events.
    pub(super) message: String,
    /// What the queue does.
    pub(super) outcome: Outcome,
    /// Whose failure it is.
    pub(super) blame: Blame,
}

/// Whose failure it is, and so what it says about the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blame {
    /// The API server's, or a race's: nothing of the plan is known to be wrong, so what stands still holds.
    Api,
    /// The host's own: it may be over with the next try, but it says that something was not done.
    Host,
    /// The plan's, the guest's, or that of somebody's rights and policies.
    Object,
}

/// What a failed pass says in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// Nothing yet: it is tried again within milliseconds, and conditions must not flap.
    Nothing,
    /// `Ready` stays as it is, `Reconciling` says what is in the way.
    Beside,
    /// `Ready` says it.
    Ready,
}

impl Verdict {
    fn new(reason: Reason, message: String, outcome: Outcome) -> Self {
        Self { reason, own_word: None, message, outcome, blame: blame(reason, outcome) }
    }

    /// The reason as it stands in conditions and events.
    pub(super) fn word(&self) -> &str {
        self.own_word.as_deref().unwrap_or(self.reason.as_str())
    }

    /// What is told after so many failures in a row before this one. `holds`: a `Ready` condition stands that is
    /// about the generation this pass has seen, and every child that is planned is there and ready as far as one
    /// sees; of any other nobody may conclude anything.
    pub(super) fn telling(&self, attempt: u32, holds: bool) -> Telling {
        let is_quick = match self.outcome {
            Outcome::Retry { not_before, .. } => {
                attempt < QUICK_RETRIES && not_before.unwrap_or_default() <= QUICK
            }
            Outcome::Wait | Outcome::Done => false,
        };
        match self.blame {
            Blame::Api | Blame::Host if is_quick => Telling::Nothing,
            Blame::Api if holds => Telling::Beside,
            Blame::Api | Blame::Host | Blame::Object => Telling::Ready,
        }
    }

    /// `Ready`, unless it stays as it is; and `Reconciling` while it is tried again or `Stalled` while it is not
    /// (kstatus).
    pub(super) fn conditions(&self, telling: Telling) -> Vec<Condition> {
        let beside = match self.outcome {
            Outcome::Retry { .. } => "Reconciling",
            Outcome::Wait | Outcome::Done => "Stalled",
        };
        let ready = match self.reason {
            // As when the watch notices it: what cannot be seen is not known.
            Reason::KindMissing => ConditionStatus::Unknown,
            _ => ConditionStatus::False,
        };
        let conditions = match telling {
            Telling::Nothing => Vec::new(),
            Telling::Beside => vec![(beside, ConditionStatus::True)],
            Telling::Ready => vec![("Ready", ready), (beside, ConditionStatus::True)],
        };
        let say = |(r#type, status): (&str, _)| Condition {
            r#type: r#type.to_owned(),
            status,
            reason: self.word().to_owned(),
            message: self.message.clone(),
        };
        conditions.into_iter().map(say).collect()
    }
}

pub(super) fn condition(r#type: &str, status: ConditionStatus, reason: Reason, message: String) -> Condition {
    Condition { r#type: r#type.to_owned(), status, reason: reason.as_str().to_owned(), message }
}

/// The one place where an error becomes a reason and an outcome.
pub(super) fn of(error: &Error) -> Verdict {
    let (reason, outcome) = match error {
        Error::Unplanned(unplanned) => match &**unplanned {
            Unplanned::Call(error) => of_call(error),
            Unplanned::Failure(failure) => {
                let outcome = if failure.transient { retry(Fault::Plugin) } else { Outcome::Wait };
                let own_word = Some(failure.reason.clone()).filter(|word| !word.is_empty());
                return Verdict {
                    own_word,
                    ..Verdict::new(Reason::GuestFailed, failure.message.clone(), outcome)
                };
            }
            // The same input gives the same answer: called again when an input or the plugin changes.
            Unplanned::Plan(plan::Error::TooMany { .. }) => (Reason::PlanTooLarge, Outcome::Wait),
            Unplanned::Plan(_) => (Reason::InvalidPlan, Outcome::Wait),
        },
        Error::Apply(failed) => return of_children(failed),
        Error::Metadata(error)
        | Error::Prune(error)
        | Error::Finalizer(error)
        | Error::Doubt(error)
        | Error::Status(error) => of_answer(error),
        Error::Panicked(_) => (Reason::HostFault, retry(Fault::Api)),
    };
    Verdict::new(reason, chain(error), outcome)
}

fn blame(reason: Reason, outcome: Outcome) -> Blame {
    match (reason, outcome) {
        (
            Reason::ApiUnavailable | Reason::Conflict,
            Outcome::Retry { fault: Fault::Api | Fault::Conflict, .. },
        ) => Blame::Api,
        (Reason::HostFault, _) => Blame::Host,
        _ => Blame::Object,
    }
}

fn of_call(error: &CallError) -> (Reason, Outcome) {
    match error {
        // Calls are deterministic: none of these goes away by trying again.
        CallError::Trapped { .. } => (Reason::GuestTrapped, Outcome::Wait),
        CallError::Fuel { .. } => (Reason::FuelExhausted, Outcome::Wait),
        CallError::Memory(_) => (Reason::MemoryExceeded, Outcome::Wait),
        CallError::Output { .. } => (Reason::OutputTooLarge, Outcome::Wait),
        // Wall time also passes on a starved machine.
        CallError::Deadline { .. } => {
            (Reason::DeadlineExceeded, Outcome::Retry { fault: Fault::Plugin, not_before: Some(PATIENCE) })
        }
        CallError::Host(_) => (Reason::HostFault, retry(Fault::Api)),
    }
}

/// Several children may fail for several reasons: the message names them all, the first that will not heal by
/// itself gives the reason, and the soonest retry the outcome.
fn of_children(failed: &[(ObjectKey, apply::Error)]) -> Verdict {
    let of_one = |error| {
        let (reason, outcome) = of_child(error);
        Verdict::new(reason, chain(error), outcome)
    };
    let verdicts: Vec<_> = failed.iter().map(|(_, error)| of_one(error)).collect();
    let messages =
        failed.iter().zip(&verdicts).map(|((key, _), verdict)| (key.to_string(), verdict.message.clone()));
    let message = several::message(messages.collect());
    let soonest = verdicts.iter().map(|verdict| verdict.outcome).min_by_key(|outcome| patience(*outcome));
    // The first of the worst.
    let worst = verdicts.iter().rev().max_by_key(|verdict| verdict.blame);
    let (reason, blame) =
        worst.map_or((Reason::HostFault, Blame::Host), |verdict| (verdict.reason, verdict.blame));
    let outcome = soonest.unwrap_or(retry(Fault::Api));
    Verdict { blame, ..Verdict::new(reason, message, outcome) }
}

fn patience(outcome: Outcome) -> Duration {
    match outcome {
        Outcome::Retry { not_before, .. } => not_before.unwrap_or_default(),
        Outcome::Wait | Outcome::Done => Duration::MAX,
    }
}

fn of_child(error: &apply::Error) -> (Reason, Outcome) {
    match error {
        apply::Error::NotOwned { .. } => {
            (Reason::ChildNotOwned, Outcome::Retry { fault: Fault::Plugin, not_before: Some(PATIENCE) })
        }
        apply::Error::Contested { told, .. } => {
            let not_before = Some(told.look_again.min(PATIENCE));
            (Reason::FieldContested, Outcome::Retry { fault: Fault::Plugin, not_before })
        }
        apply::Error::Immutable { .. } => {
            (Reason::ChildImmutable, Outcome::Retry { fault: Fault::Plugin, not_before: Some(PATIENCE) })
        }
        apply::Error::Kind { source, .. }
        | apply::Error::Peek { source, .. }
        | apply::Error::Replace { source, .. }
        | apply::Error::Apply { source, .. } => of_answer(source),
    }
}

fn of_answer(error: &client::Error) -> (Reason, Outcome) {
    let patient = |reason, fault| (reason, Outcome::Retry { fault, not_before: Some(PATIENCE) });
    match &error.answer {
        Answer::VersionConflict | Answer::UidMismatch | Answer::AlreadyExists => {
            (Reason::Conflict, retry(Fault::Conflict))
        }
        Answer::FieldConflict(_) => patient(Reason::Conflict, Fault::Plugin),
        Answer::Unauthorized | Answer::Forbidden => patient(Reason::Forbidden, Fault::Api),
        Answer::QuotaExceeded | Answer::Denied => patient(Reason::ChildRefused, Fault::Plugin),
        // Final for this object: the namespace takes it along.
        Answer::NamespaceTerminating => (Reason::NamespaceTerminating, Outcome::Wait),
        Answer::NotFound | Answer::Expired => (Reason::Conflict, retry(Fault::Conflict)),
        Answer::KindNotFound => patient(Reason::KindMissing, Fault::Api),
        Answer::Invalid(_) | Answer::TooLarge => patient(Reason::ChildInvalid, Fault::Plugin),
        Answer::TooManyRequests
        | Answer::Unavailable
        | Answer::Timeout
        | Answer::Connection
        | Answer::Undecodable => {
            (Reason::ApiUnavailable, Outcome::Retry { fault: Fault::Api, not_before: error.retry_after })
        }
        Answer::GateClosed => (Reason::ApiUnavailable, retry(Fault::Api)),
    }
}

fn retry(fault: Fault) -> Outcome {
    Outcome::Retry { fault, not_before: None }
}
