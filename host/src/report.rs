//! What one reconcile did and why, and the closed list of reasons that people and programs see.
//!
//! Never: I/O, clocks.

use crate::{decide::stability::Unstable, object::ObjectKey, observe::reads::Why};
use std::{any::Any, fmt, time::Duration};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// Reasons of conditions and events, and label values of metrics: one closed list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[doc = $doc])+ $name),+ }

        impl Reason {
            /// Every reason, in the order they are documented.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The word as it stands in conditions, events and metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }
        }
    };
}

reasons! {
    /// All children are ready and everything that was planned is in place.
    ChildrenReady,
    /// At least one child is on its way.
    ChildrenProgressing,
    /// At least one child will not get ready by itself.
    ChildFailed,
    /// The object is being deleted and something is still to go.
    Deleting,
    /// The guest panicked or trapped.
    GuestTrapped,
    /// The guest used up its fuel.
    FuelExhausted,
    /// The guest's call took longer than its wall time.
    DeadlineExceeded,
    /// The guest asked for more memory than it may have.
    MemoryExceeded,
    /// The guest answered with more than it may.
    OutputTooLarge,
    /// The plan has more children, conditions or events than it may; nothing of it was applied.
    PlanTooLarge,
    /// The plan breaks a rule; nothing of it was applied.
    InvalidPlan,
    /// The guest failed and says that trying again can help.
    GuestFailed,
    /// A child is refused by the API server: the plugin or the object must change.
    ChildInvalid,
    /// A child may not be changed as planned; it could be deleted and created anew.
    ChildImmutable,
    /// Somebody else sets the same field of a child; the host lets go of it, and tries again now and then.
    FieldContested,
    /// A child exists already and belongs to somebody else.
    ChildNotOwned,
    /// The API server refuses because a right is missing.
    Forbidden,
    /// Quota, admission or policy refuses a child.
    ChildRefused,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// A kind is not served by the API server.
    KindMissing,
    /// A kind exists but may not be listed and watched.
    KindForbidden,
    /// The API server could not be reached, or could not serve; tried again with back-off.
    ApiUnavailable,
    /// Somebody else wrote at the same time; tried again.
    Conflict,
    /// The host itself failed on this object; the details are in its log.
    HostFault,
    /// The plugin's answer never settles; it is called less often until it does.
    PlanUnstable,

    /// A plugin: checked, compiled, in force.
    Active,
    /// A plugin: its kinds are being listed.
    Syncing,
    /// A plugin: switched off by its `Plugin`.
    Paused,
    /// A plugin: its ConfigMap is gone.
    SourceMissing,
    /// A plugin: the ConfigMap has no `*.wasm` entry, or more than one.
    NoComponent,
    /// A plugin: the entry cannot be decoded.
    SourceInvalid,
    /// A plugin: parts of its component are not there yet.
    SourceIncomplete,
    /// A plugin: the bytes are no WebAssembly, or cut off.
    NotWasm,
    /// A plugin: a core module where a component is expected.
    NotComponent,
    /// A plugin: exports or imports are not those of this host's contract.
    ContractMismatch,
    /// A plugin: larger than allowed.
    TooLarge,
    /// A plugin: the manifest cannot be read or asks for too much.
    ManifestInvalid,
    /// A plugin: compiling failed.
    CompileFailed,
    /// A plugin: compiling took longer than it may.
    CompileTimeExceeded,
    /// A plugin: compiling most likely needs more memory than it may have.
    CompileMemoryExceeded,
    /// A plugin: the first call of `describe` failed.
    SmokeTestFailed,
    /// A plugin: an older plugin writes the status of the same parent kind.
    ParentClaimed,
    /// A plugin: the parent kind has no status subresource, or takes not all of the status.
    StatusUnsupported,
    /// A plugin: a new version is on its way to its objects.
    RollingOut,
    /// A plugin: a new version waits until somebody has approved it.
    AwaitingApproval,
    /// A plugin: a new version is tried on a part of the objects.
    Canary,
    /// A plugin: a new version would delete children of more objects than it may by itself.
    Held,
    /// A plugin: a version failed on objects that the one before handles, which serves again.
    RolledBack,
    /// A plugin: the source holds another version than the one that its `Plugin` allows.
    DigestMismatch,
    /// A plugin: an earlier version that is asked for is not kept.
    VersionMissing,

    /// An event: children were created.
    Created,
    /// An event: children were changed.
    Updated,
    /// An event: children were deleted to be created anew.
    Replaced,
    /// An event: children were deleted because they are no longer planned.
    Pruned,
    /// An event: the plugin's new version serves.
    Swapped,
    /// An event: a new version was refused.
    Refused,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a request was enqueued: for people, never for logic (rule R1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trigger {
    /// The parent was created or its content changed.
    Parent,
    /// The parent's status was changed by somebody else.
    ParentStatus,
    /// A child changed.
    Child,
    /// An object that the guest read changed.
    Read,
    /// A plugin version came into force.
    Plugin,
    /// The guest asked for it, or a retry is due.
    Requeue,
    /// The host started, or a watch was listed anew.
    Listed,
}

impl Trigger {
    /// For logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parent => "parent",
            Self::ParentStatus => "parent_status",
            Self::Child => "child",
            Self::Read => "read",
            Self::Plugin => "plugin",
            Self::Requeue => "requeue",
            Self::Listed => "listed",
        }
    }
}

/// An error with its causes, in one line: each level once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Transparent errors repeat their source; once is enough.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// What a panic said, if it said something.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// What the queue does next with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is in place.
    Done,
    /// Nothing to do before an input or the plugin changes: a guest's own fault, or the object is gone.
    Wait,
    /// Try again with back-off.
    Retry {
        /// Whose fault it was: counted apart (rule R5).
        fault: Fault,
        /// Not before this time has passed (`Retry-After`).
        not_before: Option<Duration>,
    },
}

/// Whose fault a retry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The API server: unreachable, overloaded, refusing for now.
    Api,
    /// The plugin: it failed, trapped, or asked for what cannot be.
    Plugin,
    /// Nobody: somebody else wrote at the same time.
    Conflict,
}

/// What became of the parent's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatusWrite {
    /// Not looked at: not this plugin's to write, without the status subresource, or the pass ended before.
    LeftAlone,
    /// Written.
    Written,
    /// It stands already.
    Unchanged,
    /// It was written a moment ago, and is looked at again when it may be (rule S6).
    Deferred,
    /// It could not be written.
    Failed,
}

impl StatusWrite {
    /// For logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeftAlone => "left_alone",
            Self::Written => "written",
            Self::Unchanged => "unchanged",
            Self::Deferred => "deferred",
            Self::Failed => "failed",
        }
    }
}

/// The moment and the logic of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The parent's uid.
    pub uid: std::sync::Arc<str>,
    /// Its generation.
    pub generation: i64,
    /// The plugin's version: the digest of its component.
    pub digest: std::sync::Arc<str>,
}

/// What one reconcile did.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plugin.
    pub plugin: std::sync::Arc<str>,
    /// The parent.
    pub parent: ObjectKey,
    /// What was looked at; `None` if nothing was: the parent is gone, or the plugin paused or not ready.
    pub seen: Option<Seen>,
    /// Why the guest was called; `None`: it was not, as the memo answered.
    pub why: Option<Why>,
    /// Whether the guest was called for nothing but what the pass before this one wrote, and the time.
    pub is_echo: bool,
    /// What there is to say of a plan that does not settle (rule R6).
    pub unstable: Option<Unstable>,
    /// Fuel the call took.
    pub fuel: u64,
    /// Children created.
    pub created: Vec<ObjectKey>,
    /// Children changed.
    pub updated: Vec<ObjectKey>,
    /// Children deleted.
    pub pruned: Vec<ObjectKey>,
    /// Children deleted, to be created anew.
    pub replaced: Vec<ObjectKey>,
    /// Children that needed no write.
    pub unchanged: usize,
    /// What became of the status.
    pub status: StatusWrite,
    /// Whether the parent's own labels, annotations or finalizers were written.
    pub metadata_written: bool,
    /// What went wrong, if anything: reason and message as in the `Ready` condition.
    pub failure: Option<(Reason, String)>,
    /// Whether something that the guest read has changed while it ran: look again.
    pub outdated: bool,
    /// What the queue does next.
    pub outcome: Outcome,
    /// Look again after this time at the latest, whatever the outcome: the guest asked for it, or the host has
    /// something left to say.
    pub look_again: Option<Duration>,
}

impl Report {
    /// Nothing done yet, nothing to do before an input changes.
    pub fn new(plugin: &std::sync::Arc<str>, parent: &ObjectKey) -> Self {
        Self {
            plugin: plugin.clone(),
            parent: parent.clone(),
            seen: None,
            why: None,
            is_echo: false,
            unstable: None,
            fuel: 0,
            created: Vec::new(),
            updated: Vec::new(),
            pruned: Vec::new(),
            replaced: Vec::new(),
            unchanged: 0,
            status: StatusWrite::LeftAlone,
            metadata_written: false,
            failure: None,
            outdated: false,
            outcome: Outcome::Wait,
            look_again: None,
        }
    }

    /// Look again after this time, if not before.
    pub fn look_within(&mut self, time: Duration) {
        self.look_again = Some(self.look_again.map_or(time, |after| after.min(time)));
    }
}
