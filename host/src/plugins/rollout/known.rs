//! What is known of one plugin between two looks.

use super::{Ended, Failing, Refused};
use crate::{
    observe::watch::WatchKey,
    plugins::{
        ConditionTypes, FieldKinds,
        load::Version,
        resource::{EarlierVersion, RolloutStrategy},
        shortfalls::Shortfalls,
    },
    report::Reason,
};
use std::{collections::BTreeSet, sync::Arc};
use tokio::time::Instant;

/// What is known of one plugin between two looks.
#[derive(Default)]
pub(super) struct Known {
    /// When its ConfigMap was created: the older of two plugins for one parent kind wins (rule P5).
    pub(super) created: Box<str>,
    /// What the source holds, if it was accepted.
    pub(super) content: Option<Version>,
    /// The version that is to be in force.
    pub(super) version: Option<Version>,
    /// Whether an operator has named that version: nothing holds it back.
    pub(super) is_approved: bool,
    /// The version before it, while it is on probation.
    pub(super) before: Option<Version>,
    /// The content, while it waits for somebody or is tried on a part of the objects.
    pub(super) candidate: Option<Candidate>,
    /// The content that was refused: not tried again until it changes.
    pub(super) refused: Option<Refused>,
    /// The version that failed and was taken back: not tried again unless somebody approves it.
    pub(super) failed: Option<Refused>,
    /// Why the source does not decide what is in force.
    pub(super) overruled: Option<(Reason, String)>,
    /// The versions in force before that are kept, the latest first; `None` before the first look.
    pub(super) history: Option<Vec<EarlierVersion>>,
    /// The watches it wants.
    pub(super) watches: BTreeSet<WatchKey>,
    /// Whether all of them had been listed at the last look.
    pub(super) synced: bool,
    /// How often what they have had been doubted by then.
    pub(super) doubts: u64,
    /// See [`crate::plugins::ActivePlugin::condition_types`].
    pub(super) condition_types: Arc<ConditionTypes>,
    /// See [`crate::plugins::ActivePlugin::field_kinds`].
    pub(super) field_kinds: Arc<FieldKinds>,
    /// See [`crate::plugins::ActivePlugin::shortfalls`]; of the version in force.
    pub(super) shortfalls: Arc<Shortfalls>,
    /// When its parents began to be planned.
    pub(super) begun: Option<Instant>,
    /// When the version in force came into force, and whether all its objects have been planned by it since.
    pub(super) in_force: Option<(Instant, bool)>,
    /// Which of its watches fail, and since when.
    pub(super) failing: Failing,
    /// Versions that are no longer in force and may have left finalizers on their parents.
    pub(super) ended: Vec<Ended>,
}

/// Content that waits for somebody, or is tried on a part of the objects.
pub(super) struct Candidate {
    pub(super) version: Version,
    pub(super) rollout: RolloutStrategy,
    /// Since when it has planned all of its part.
    pub(super) since: Option<Instant>,
    /// Whether it has done well there for long enough.
    pub(super) is_proven: bool,
    /// Whether `message` is what it would change.
    pub(super) is_previewed: bool,
    /// What it would change, or does so far.
    pub(super) message: String,
}

impl Known {
    /// A version that is loaded.
    pub(super) fn loaded(&self, digest: &str) -> Option<&Version> {
        let candidate = self.candidate.as_ref().map(|candidate| &candidate.version);
        let all = [self.content.as_ref(), self.version.as_ref(), self.before.as_ref(), candidate];
        all.into_iter().flatten().find(|version| *version.digest == *digest)
    }
}
