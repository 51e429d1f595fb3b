//! Why there is no plan.

use crate::bindings::oarlock::plugin::types::ReadError;
use crate::{Failure, FailureKind};

impl Failure {
    /// A failure that may go away by itself: the host tries again, with back-off.
    ///
    /// `reason` is one CamelCase word for programs, `message` a sentence for people.
    pub fn transient(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Transient, reason: reason.into(), message: message.into() }
    }

    /// A failure that stays until an input or the plugin changes: the host does not try again before.
    ///
    /// `reason` is one CamelCase word for programs, `message` a sentence for people.
    pub fn permanent(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Permanent, reason: reason.into(), message: message.into() }
    }
}

/// Permanent, with reason `InvalidJson`: the same values would fail again.
impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::permanent("InvalidJson", error.to_string())
    }
}

/// Permanent, with reason `ReadDenied`, `ReadInvalid` or `ReadExhausted`.
impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Denied(message) => Self::permanent("ReadDenied", message),
            ReadError::Invalid(message) => Self::permanent("ReadInvalid", message),
            ReadError::Exhausted(message) => Self::permanent("ReadExhausted", message),
        }
    }
}
