//! Labels and the closed lists of their values.

use crate::{
    observe::{client::Answer, watch::WatchState},
    report::{Fault, Outcome, Reason},
};
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct OfPlugin {
    pub(super) plugin: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct PluginResult {
    pub(super) plugin: String,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct PluginReason {
    pub(super) plugin: String,
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct PluginState {
    pub(super) plugin: String,
    pub(super) state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct PluginVersion {
    pub(super) plugin: String,
    pub(super) version: String,
    pub(super) digest: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct OfKind {
    pub(super) kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct KindState {
    pub(super) kind: String,
    pub(super) state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Request {
    pub(super) verb: &'static str,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Build {
    pub(super) version: &'static str,
}

pub(super) const RECONCILE_RESULTS: [&str; 6] =
    ["done", "wait", "retry_api", "retry_plugin", "retry_conflict", "panic"];
pub(super) const APPLY_RESULTS: [&str; 6] =
    ["created", "updated", "unchanged", "awaited", "failed", "pruned"];
pub(super) const MEMO_RESULTS: [&str; 2] = ["hit", "miss"];
pub(super) const WATCH_STATES: [&str; 5] = ["listing", "live", "missing", "forbidden", "failing"];

pub(super) fn reconcile_result(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done { .. } => "done",
        Outcome::Wait => "wait",
        Outcome::Retry { fault: Fault::Api, .. } => "retry_api",
        Outcome::Retry { fault: Fault::Plugin, .. } => "retry_plugin",
        Outcome::Retry { fault: Fault::Conflict, .. } => "retry_conflict",
    }
}

pub(super) fn watch_state(state: &WatchState) -> &'static str {
    match state {
        WatchState::Listing => "listing",
        WatchState::Live => "live",
        WatchState::Missing(_) => "missing",
        WatchState::Forbidden(_) => "forbidden",
        WatchState::Failing(_) => "failing",
    }
}

pub(super) fn answer_result(answer: &Answer) -> &'static str {
    match answer {
        Answer::VersionConflict => "version_conflict",
        Answer::UidMismatch => "uid_mismatch",
        Answer::FieldConflict(_) => "field_conflict",
        Answer::AlreadyExists => "already_exists",
        Answer::Unauthorized => "unauthorized",
        Answer::Forbidden => "forbidden",
        Answer::QuotaExceeded => "quota_exceeded",
        Answer::Denied => "denied",
        Answer::NamespaceTerminating => "namespace_terminating",
        Answer::NotFound => "not_found",
        Answer::KindNotFound => "kind_not_found",
        Answer::Expired => "expired",
        Answer::Invalid(_) => "invalid",
        Answer::TooLarge => "too_large",
        Answer::TooManyRequests => "too_many_requests",
        Answer::Unavailable => "unavailable",
        Answer::Timeout => "timeout",
        Answer::Connection => "connection",
        Answer::Undecodable => "undecodable",
        Answer::GateClosed => "gate_closed",
    }
}

/// Whether a failure is the guest's: of its code, or of what it answered.
pub(super) fn is_guest_failure(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::GuestTrapped
            | Reason::FuelExhausted
            | Reason::DeadlineExceeded
            | Reason::MemoryExceeded
            | Reason::OutputTooLarge
            | Reason::InvalidPlan
            | Reason::GuestFailed
    )
}
