//! The contract of wit/ as Rust, generated; and its answers as the host's own types.

use crate::decide::plan::{Condition, ConditionStatus, Event, Failure, RawPlan};

#[allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]
mod generated {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "plugin",
        // Reads are answered at once, but a guest that asks for ever has to give way between two of them.
        imports: { default: async },
        exports: { default: async },
    });
}

pub(super) use generated::{
    Plugin, PluginPre,
    oarlock::plugin::{children, clock, cluster, log, previous, types},
};

impl From<types::Plan> for RawPlan {
    fn from(plan: types::Plan) -> Self {
        Self {
            children: plan.children,
            status: plan.status,
            conditions: plan.conditions.into_iter().map(Condition::from).collect(),
            metadata: plan.metadata,
            events: plan.events.into_iter().map(Event::from).collect(),
            requeue_after: plan.requeue_after,
        }
    }
}

impl From<types::Condition> for Condition {
    fn from(condition: types::Condition) -> Self {
        let status = match condition.status {
            types::ConditionStatus::True => ConditionStatus::True,
            types::ConditionStatus::False => ConditionStatus::False,
            types::ConditionStatus::Unknown => ConditionStatus::Unknown,
        };
        Self { r#type: condition.type_, status, reason: condition.reason, message: condition.message }
    }
}

impl From<types::Event> for Event {
    fn from(event: types::Event) -> Self {
        let warning = matches!(event.type_, types::EventType::Warning);
        Self { warning, reason: event.reason, note: event.note }
    }
}

impl From<types::Failure> for Failure {
    fn from(failure: types::Failure) -> Self {
        let transient = matches!(failure.kind, types::FailureKind::Transient);
        Self { transient, reason: failure.reason, message: failure.message }
    }
}
