//! Every error of a stage becomes a reason, a message and an outcome here.

use crate::{
    act::apply,
    decide::{
        Unplanned,
        guest::CallError,
        plan::{Condition, ConditionStatus},
    },
    object::ObjectKey,
    observe::client::{self, Answer},
    report::{Fault, Outcome, Reason, chain},
};
use std::{sync::Arc, time::Duration};

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
    /// The status was not written.
    #[error("the status was not written")]
    Status(#[source] client::Error),
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
}

impl Verdict {
    /// The reason as it stands in conditions and events.
    pub(super) fn word(&self) -> &str {
        self.own_word.as_deref().unwrap_or(self.reason.as_str())
    }

    /// `Ready=False`, and `Reconciling` while it is tried again or `Stalled` while it is not (kstatus).
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let beside = match self.outcome {
            Outcome::Retry { .. } => "Reconciling",
            Outcome::Wait | Outcome::Done { .. } => "Stalled",
        };
        [("Ready", ConditionStatus::False), (beside, ConditionStatus::True)]
            .map(|(r#type, status)| Condition {
                r#type: r#type.to_owned(),
                status,
                reason: self.word().to_owned(),
                message: self.message.clone(),
            })
            .into()
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
                    reason: Reason::GuestFailed,
                    own_word,
                    message: failure.message.clone(),
                    outcome,
                };
            }
            // The same input gives the same answer: called again when an input or the plugin changes.
            Unplanned::Plan(_) => (Reason::InvalidPlan, Outcome::Wait),
        },
        Error::Apply(failed) => return of_children(failed),
        Error::Metadata(error) | Error::Prune(error) | Error::Finalizer(error) | Error::Status(error) => {
            of_answer(error)
        }
    };
    Verdict { reason, own_word: None, message: chain(error), outcome }
}

fn of_call(error: &CallError) -> (Reason, Outcome) {
    match error {
        // Calls are deterministic: none of these goes away by trying again.
        CallError::Trapped { .. } => (Reason::GuestTrapped, Outcome::Wait),
        CallError::Fuel { .. } => (Reason::FuelExhausted, Outcome::Wait),
        CallError::Memory { .. } => (Reason::MemoryExceeded, Outcome::Wait),
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
    let verdicts: Vec<_> = failed.iter().map(|(_, error)| (of_child(error), chain(error))).collect();
    let worst = verdicts.iter().find(|((_, outcome), _)| !is_api_fault(*outcome)).or(verdicts.first());
    let reason = worst.map_or(Reason::HostFault, |((reason, _), _)| *reason);
    let soonest = verdicts.iter().map(|((_, outcome), _)| *outcome).min_by_key(|outcome| patience(*outcome));
    let messages: Vec<_> = verdicts.iter().map(|(_, message)| message.as_str()).collect();
    Verdict {
        reason,
        own_word: None,
        message: messages.join("; "),
        outcome: soonest.unwrap_or(retry(Fault::Api)),
    }
}

fn is_api_fault(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Retry { fault: Fault::Api | Fault::Conflict, .. })
}

fn patience(outcome: Outcome) -> Duration {
    match outcome {
        Outcome::Retry { not_before, .. } => not_before.unwrap_or_default(),
        Outcome::Wait | Outcome::Done { .. } => Duration::MAX,
    }
}

fn of_child(error: &apply::Error) -> (Reason, Outcome) {
    match error {
        apply::Error::NotOwned { .. } => {
            (Reason::ChildNotOwned, Outcome::Retry { fault: Fault::Plugin, not_before: Some(PATIENCE) })
        }
        apply::Error::Kind { source, .. }
        | apply::Error::Peek { source, .. }
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
