//! The conditions of a `Plugin`, in words an author can act on.
//!
//! Never: I/O, clocks.

use super::{Candidate, Known, say::State};
use crate::{
    decide::plan::{Condition, ConditionStatus},
    plugins::{ActivePlugin, load::Version, probation::FIRST_WAVE, resource::RolloutStrategy, source::short},
    report::Reason,
};
use std::fmt::Write as _;

pub(super) fn ready(state: &State, known: &Known, in_force: Option<&ActivePlugin>) -> Condition {
    let (status, reason, message) = match state {
        State::Serving { has_source } => {
            let version = known.version.as_ref().map(describe).unwrap_or_default();
            let gone = if *has_source { "" } else { ", though its ConfigMap is gone" };
            (ConditionStatus::True, Reason::Active, format!("{version} serves{gone}"))
        }
        State::Nothing => match (&known.refused, &known.overruled, &known.candidate) {
            (Some(refused), ..) => (ConditionStatus::False, refused.reason, refused.message.clone()),
            (None, Some((reason, message)), _) => (ConditionStatus::False, *reason, message.clone()),
            (None, None, Some(candidate)) => {
                (ConditionStatus::False, Reason::AwaitingApproval, awaiting(candidate))
            }
            (None, None, None) => {
                (ConditionStatus::False, Reason::Syncing, "the component is being loaded".to_owned())
            }
        },
        State::Gone => (
            ConditionStatus::False,
            Reason::SourceMissing,
            "its ConfigMap is gone: objects and children stay as they are; delete this Plugin to forget it"
                .to_owned(),
        ),
        State::Claimed(winner) => (
            ConditionStatus::False,
            Reason::ParentClaimed,
            format!(
                "the older plugin {winner} writes the status of the same kind; this one takes over when it is gone"
            ),
        ),
        State::Syncing((reason, message)) => {
            let mut message = message.clone();
            if let (Some(serving), Some(version)) = (in_force, &known.version)
                && serving.digest != version.digest
            {
                // Writing to a String cannot fail.
                let _ = write!(message, "; until then {} serves on", self::version(serving));
            }
            (ConditionStatus::False, *reason, message)
        }
        State::Paused => (
            ConditionStatus::False,
            Reason::Paused,
            "switched off by spec.paused: objects and children stay as they are".to_owned(),
        ),
    };
    condition("Ready", status, reason, message)
}

pub(super) fn loaded(state: &State, known: &Known) -> Condition {
    let serves_on = |message: &str| {
        let mut message = message.to_owned();
        if let Some(serving) = &known.version {
            // Writing to a String cannot fail.
            let _ = write!(message, "; {} serves on", describe(serving));
        }
        message
    };
    let (status, reason, message) = match (&known.refused, &known.failed, &known.overruled, &known.content) {
        (Some(refused), ..) => (ConditionStatus::False, refused.reason, serves_on(&refused.message)),
        (None, Some(failed), ..) => (ConditionStatus::False, failed.reason, failed.message.clone()),
        (None, None, Some((reason, message)), _) => (ConditionStatus::False, *reason, serves_on(message)),
        (None, None, None, Some(content)) => {
            (ConditionStatus::True, Reason::Active, format!("the ConfigMap holds {}", describe(content)))
        }
        (None, None, None, None) if matches!(state, State::Gone | State::Serving { has_source: false }) => {
            (ConditionStatus::False, Reason::SourceMissing, serves_on("its ConfigMap is gone"))
        }
        (None, None, None, None) => {
            (ConditionStatus::Unknown, Reason::Syncing, "the component is being loaded".to_owned())
        }
    };
    condition("Loaded", status, reason, message)
}

/// `Progressing`, while a new version is on its way.
pub(super) fn progressing(known: &Known, in_force: Option<&ActivePlugin>) -> Option<Condition> {
    let is_true = |reason, message| Some(condition("Progressing", ConditionStatus::True, reason, message));
    if let Some(candidate) = &known.candidate {
        return match candidate.rollout {
            RolloutStrategy::Canary => {
                let message = format!("{}: {}", describe(&candidate.version), candidate.message);
                is_true(Reason::Canary, message)
            }
            RolloutStrategy::Preview | RolloutStrategy::Automatic => {
                is_true(Reason::AwaitingApproval, awaiting(candidate))
            }
        };
    }
    let plugin = in_force?;
    let probation = plugin.probation.as_ref()?;
    if let Some(objects) = probation.held() {
        return is_true(Reason::Held, held(plugin, objects));
    }
    let (visited, of) = probation.visits();
    let is_under_way = visited < of && of > FIRST_WAVE;
    is_under_way.then(|| {
        let message = format!("{} is on its way: {visited} of {of} objects", version(plugin));
        condition("Progressing", ConditionStatus::True, Reason::RollingOut, message)
    })
}

fn awaiting(candidate: &Candidate) -> String {
    let Candidate { version, message, .. } = candidate;
    format!("{} waits for approval: {message}", describe(version))
}

/// Why a version is held, and what to do.
pub(super) fn held(plugin: &ActivePlugin, objects: usize) -> String {
    format!(
        "{} is held: it would delete children of more objects than a new version may by itself, {objects} of them so \
         far; see which with `oarlock diff {name}`, then `oarlock approve {name}` or `oarlock rollback {name}`",
        version(plugin),
        name = plugin.name
    )
}

/// A version in force, in words.
pub(super) fn version(plugin: &ActivePlugin) -> String {
    format!("version {} ({})", plugin.manifest.version, short(&plugin.digest))
}

pub(super) fn condition(r#type: &str, status: ConditionStatus, reason: Reason, message: String) -> Condition {
    Condition { r#type: r#type.to_owned(), status, reason: reason.as_str().to_owned(), message }
}

fn describe(version: &Version) -> String {
    format!("version {} ({})", version.manifest.version, short(&version.digest))
}
