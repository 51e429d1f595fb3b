//! What should be there: the guest's answer, checked.

pub mod finalizer;
pub mod guest;
pub mod plan;
pub mod readiness;
pub mod stability;

/// Why a call gave no plan: the guest's own fault, or its word that it cannot decide.
#[derive(Debug, thiserror::Error)]
pub enum Unplanned {
    /// It did not answer.
    #[error(transparent)]
    Call(guest::CallError),
    /// It says that there is no plan.
    #[error("{}", .0.message)]
    Failure(plan::Failure),
    /// Its answer is no plan.
    #[error(transparent)]
    Plan(plan::Error),
}

impl Unplanned {
    /// Whether the same inputs can give another answer: the guest says so, or the machine was at fault.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Failure(failure) => failure.transient,
            Self::Call(guest::CallError::Deadline { .. } | guest::CallError::Host(_)) => true,
            Self::Call(_) | Self::Plan(_) => false,
        }
    }
}
