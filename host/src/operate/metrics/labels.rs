//! Labels and the closed lists of their values.

use crate::{
    config::Limits,
    decide::guest::Trace,
    observe::watch::WatchState,
    report::{Fault, Outcome, Reason, StatusWrite},
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
pub(super) struct PluginUse {
    pub(super) plugin: String,
    pub(super) r#use: &'static str,
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

/// The verbs of the client.
pub(super) const VERBS: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
/// A request that went well.
pub(super) const OK: &str = "ok";
pub(super) const RECONCILE_RESULTS: [&str; 6] =
    ["done", "wait", "retry_api", "retry_plugin", "retry_conflict", "panic"];
pub(super) const APPLY_RESULTS: [&str; 8] =
    ["created", "updated", "unchanged", "replaced", "awaited", "held", "failed", "pruned"];
pub(super) const MEMO_RESULTS: [&str; 2] = ["hit", "miss"];
/// A status that is left alone is not counted.
pub(super) const STATUS_RESULTS: [&str; 4] = [
    StatusWrite::Written.as_str(),
    StatusWrite::Unchanged.as_str(),
    StatusWrite::Deferred.as_str(),
    StatusWrite::Failed.as_str(),
];
/// The rows of the table of answers.
pub(super) const ANSWERS: [&str; 20] = [
    "version_conflict",
    "uid_mismatch",
    "field_conflict",
    "already_exists",
    "unauthorized",
    "forbidden",
    "quota_exceeded",
    "denied",
    "namespace_terminating",
    "not_found",
    "kind_not_found",
    "expired",
    "invalid",
    "too_large",
    "too_many_requests",
    "unavailable",
    "timeout",
    "connection",
    "undecodable",
    "gate_closed",
];
pub(super) const WATCH_STATES: [&str; 5] = ["listing", "live", "missing", "forbidden", "failing"];

/// What a call uses of what it may.
pub(super) fn used(trace: &Trace) -> [(&'static str, f64); 4] {
    [
        ("fuel", trace.fuel as f64),
        ("memory_bytes", trace.memory as f64),
        ("seconds", trace.duration.as_secs_f64()),
        ("output_bytes", trace.output as f64),
    ]
}

/// The limits of [`used`], in its order.
pub(super) fn usable(limits: &Limits) -> [(&'static str, f64); 4] {
    used(&Trace {
        fuel: limits.fuel,
        memory: limits.memory_bytes,
        duration: limits.deadline,
        output: limits.output_bytes,
        ..Trace::default()
    })
}

pub(super) fn reconcile_result(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
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

/// The reasons of failures that are the guest's.
pub(super) fn guest_failures() -> impl Iterator<Item = &'static str> {
    Reason::ALL.iter().filter(|reason| is_guest_failure(**reason)).map(|reason| reason.as_str())
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
            | Reason::PlanTooLarge
            | Reason::InvalidPlan
            | Reason::GuestFailed
    )
}
