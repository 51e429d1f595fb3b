//! What happens in one run, made up from a seed.
//!
//! A step is data: a scenario can be printed, and shrunk by leaving steps out.

mod specs;

pub use specs::{FLEET, KINDS, PARENTS, PICKS, PLAIN, READS, SCRIPTED, SOURCE, config_maps, kind, resource};

use crate::faults::{Crash, Fault, Rule};
use fastrand::Rng;
use serde_json::Value;
use std::time::Duration;

/// Steps in one run, unless its seed says fewer.
const STEPS: usize = 40;

/// One thing that happens, and how long after the one before.
#[derive(Clone, Debug)]
pub struct Step {
    /// How long after.
    pub after: Duration,
    /// What.
    pub action: Action,
}

/// Something that happens. Its texts are unique in a run, so that each tells where it came from.
#[derive(Clone, Debug)]
pub enum Action {
    /// A parent gets this spec, and is made if it is not there.
    Edit {
        /// Its name.
        parent: &'static str,
        /// The spec.
        spec: Value,
    },
    /// A parent is deleted.
    Delete {
        /// Its name.
        parent: &'static str,
    },
    /// A parent is deleted and made anew at once.
    Recreate {
        /// Its name.
        parent: &'static str,
        /// The spec of the new one.
        spec: Value,
    },
    /// Somebody does something to a child.
    Child {
        /// Its resource.
        resource: &'static str,
        /// Its name.
        name: String,
        /// What.
        hand: Hand,
        /// A text of its own.
        text: String,
    },
    /// Somebody does something to the status of a parent.
    Status {
        /// Its name.
        parent: &'static str,
        /// What.
        claim: Claim,
        /// A text of its own.
        text: String,
    },
    /// What parents read by name changes, or goes.
    Source {
        /// The new text.
        text: Option<String>,
    },
    /// What parents list by label changes, with the label or without; or it goes.
    Pick {
        /// Its name.
        name: &'static str,
        /// Whether it has the label.
        is_picked: bool,
        /// The new text.
        text: Option<String>,
    },
    /// A plugin's component is replaced, perhaps by one that is no good.
    Swap {
        /// The name of the component.
        component: &'static str,
    },
    /// The host dies, after so many turns of its tasks, and is started again.
    Kill {
        /// Turns.
        turns: u8,
    },
    /// The host dies of one of its next writes, and is started again.
    Crash(Crash),
    /// The host is told to stop, and is started again.
    Stop,
    /// A fault begins.
    Inject(Rule),
    /// All faults end.
    Mend,
    /// The API server forgets the log of changes.
    Compact,
    /// The API server drops all connections.
    Disconnect,
    /// The API server answers a watch that is too old with an HTTP status, or with an event.
    ExpiryAsStatus(bool),
    /// Something else is written in the cluster: versions go on.
    Advance(u64),
    /// etcd is backed up.
    Backup,
    /// etcd is restored from the last backup: everything is as it was then, versions too.
    Restore,
    /// The host loses a right.
    Forbid(&'static str),
    /// It gets all of them back.
    Allow,
    /// A policy denies writes of children.
    Deny {
        /// Their resource.
        resource: &'static str,
        /// For people.
        text: String,
    },
    /// A policy sets an annotation in every child of a resource.
    Mutate {
        /// The resource.
        resource: &'static str,
    },
    /// No policy is left.
    NoPolicies,
    /// So many objects of a resource are allowed.
    Quota {
        /// The resource.
        resource: &'static str,
        /// How many.
        count: usize,
    },
    /// No quota is left.
    NoQuota,
    /// The clock on the wall jumps.
    Jump {
        /// By so many seconds.
        seconds: i64,
    },
}

/// What somebody does to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Edits what is ours.
    Edit,
    /// Adds what is theirs.
    Add,
    /// Removes the label that it is found by.
    Strip,
    /// Removes its owner references.
    Disown,
    /// Deletes it.
    Delete,
    /// Deletes it, and holds it by a finalizer until the end of all faults.
    Hold,
    /// Deletes it, and makes one of its name that is theirs until the end of all faults.
    Squat,
}

/// What somebody does to a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Forces one of our conditions to another status.
    Flip,
    /// Empties it.
    Wipe,
    /// Replaces our conditions by their own idea, with PUT.
    Put,
    /// Another controller's own condition.
    Audit,
    /// Another controller withdraws what it said.
    Withdraw,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What everything that is left to chance is drawn from.
    pub seed: u64,
    /// What happens.
    pub steps: Vec<Step>,
    /// Whether each step of users waits until the one before has come to rest: then children come and go exactly as
    /// often as without faults.
    pub is_paced: bool,
}

impl Action {
    /// Whether it is a fault or a crash: something without which the run must come to the same.
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Kill { .. }
                | Self::Crash(_)
                | Self::Stop
                | Self::Inject(_)
                | Self::Mend
                | Self::Compact
                | Self::Disconnect
                | Self::ExpiryAsStatus(_)
                | Self::Advance(_)
                | Self::Jump { .. }
        )
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice { rng: Rng::with_seed(seed), texts: 0 };
        let is_paced = dice.rng.u8(..3) == 0;
        let count = dice.rng.usize(STEPS / 4..STEPS);
        let mut steps = vec![Dice::at_once(Action::Source { text: Some("t0".to_owned()) })];
        for parent in PARENTS {
            if dice.rng.u8(..4) > 0 {
                let spec = dice.spec(parent);
                steps.push(Dice::at_once(Action::Edit { parent, spec }));
            }
        }
        while steps.len() < count {
            let action = dice.action(is_paced);
            let after = dice.moment();
            steps.push(Step { after, action });
        }
        Self { seed, steps, is_paced }
    }

    /// The same without faults and crashes.
    pub fn without_faults(&self) -> Self {
        let steps = self.steps.iter().filter(|step| !step.action.is_fault()).cloned().collect();
        Self { steps, ..self.clone() }
    }
}

/// Chance, in the form that scenarios need.
struct Dice {
    rng: Rng,
    texts: u32,
}

impl Dice {
    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())].clone()
    }

    fn text(&mut self) -> String {
        self.texts += 1;
        format!("t{}", self.texts)
    }

    fn at_once(action: Action) -> Step {
        Step { after: Duration::ZERO, action }
    }

    /// Between two steps: often none or little, sometimes longer than any patience of the host.
    fn moment(&mut self) -> Duration {
        let longest = self.one(&[0, 20_000, 200_000, 200_000, 2_000_000, 2_000_000, 30_000_000, 120_000_000]);
        Duration::from_micros(self.rng.u64(0..=longest))
    }

    fn action(&mut self, is_paced: bool) -> Action {
        let parent = self.one(&PARENTS);
        let text = self.text();
        match self.rng.u8(..100) {
            0..24 => Action::Edit { parent, spec: self.spec(parent) },
            24..27 => Action::Delete { parent },
            27..30 => Action::Recreate { parent, spec: self.spec(parent) },
            30..38 => {
                let (resource, name) = self.child();
                let hands = [
                    Hand::Edit,
                    Hand::Edit,
                    Hand::Add,
                    Hand::Strip,
                    Hand::Disown,
                    Hand::Delete,
                    Hand::Hold,
                    Hand::Squat,
                ];
                // The last two would keep a world from coming to rest.
                let hands = if is_paced { &hands[..6] } else { &hands[..] };
                Action::Child { resource, name, hand: self.one(hands), text }
            }
            38..44 => {
                let claims =
                    [Claim::Flip, Claim::Flip, Claim::Wipe, Claim::Put, Claim::Audit, Claim::Withdraw];
                Action::Status { parent, claim: self.one(&claims), text }
            }
            44..47 => Action::Source { text: (self.rng.u8(..4) > 0).then_some(text) },
            47..50 => {
                let text = (self.rng.u8(..4) > 0).then_some(text);
                Action::Pick { name: self.one(&PICKS), is_picked: self.rng.bool(), text }
            }
            50..54 => {
                let components = if is_paced { &specs::COMPONENTS[..6] } else { &specs::COMPONENTS[..] };
                Action::Swap { component: self.one(components) }
            }
            54..60 => Action::Kill { turns: self.rng.u8(..60) },
            60..65 => {
                let number = self.rng.usize(1..8);
                Action::Crash(if self.rng.bool() { Crash::Before(number) } else { Crash::After(number) })
            }
            65..67 => Action::Stop,
            67..82 => Action::Inject(self.rule()),
            82..86 => Action::Mend,
            86..88 => Action::Compact,
            88..90 => Action::Disconnect,
            90 => Action::ExpiryAsStatus(self.rng.bool()),
            91 => Action::Advance(self.rng.u64(1..1000)),
            92 => Action::Jump { seconds: self.one(&[-3600, -5, 5, 3600]) },
            // What changes the world for good, and so the counts too.
            _ if is_paced => Action::Mend,
            93 => Action::Backup,
            94 => Action::Restore,
            95 => Action::Forbid(self.one(&specs::RIGHTS)),
            96 => Action::Allow,
            97 => match self.rng.u8(..3) {
                0 => Action::Deny { resource: self.one(&KINDS), text },
                1 => Action::Mutate { resource: self.one(&KINDS) },
                _ => Action::NoPolicies,
            },
            98 => Action::Quota { resource: self.one(&KINDS), count: self.rng.usize(..4) },
            _ => Action::NoQuota,
        }
    }

    fn rule(&mut self) -> Rule {
        let soon = Duration::from_millis(self.rng.u64(1..3_000));
        let answer = |code, retry_after| Fault::Answer { code, retry_after };
        let percent = self.rng.u8(5..60);
        let fault = self.one(&[
            answer(403, None),
            answer(409, None),
            answer(429, Some(2)),
            answer(500, None),
            answer(503, Some(1)),
            answer(410, None),
            Fault::AnswerAfter(504),
            Fault::AnswerAfter(500),
            Fault::DropBefore,
            Fault::DropAfter,
            Fault::DropAfter,
            Fault::HangBefore,
            Fault::HangAfter,
            Fault::Stale,
            Fault::Delay(soon),
            Fault::Delay(soon * 4),
            Fault::Cut(soon),
            Fault::Lag(soon * 4),
            Fault::Freeze,
            Fault::Lose(percent),
            Fault::Duplicate(percent),
            Fault::Reorder(percent),
        ]);
        let times = if self.rng.bool() { Some(self.rng.usize(1..6)) } else { None };
        let probability = self.one(&[0.2, 0.5, 1.0]);
        let every = Rule { times, probability, ..Rule::every(fault) };
        let resource = self.one(&["", "widgets", "configmaps", "services", "deployments", "plugins"]);
        if fault.is_about_streams() {
            return Rule { resource, ..every };
        }
        match fault {
            Fault::Stale => Rule { verbs: &["list", "get"], resource, ..every },
            Fault::Answer { code: 410, .. } => Rule { verbs: &["watch", "list"], resource, ..every },
            _ => match self.rng.u8(..6) {
                0 | 1 => {
                    Rule { verbs: &["apply"], resource: "widgets", subresource: Some("status"), ..every }
                }
                2 => Rule { verbs: &["apply"], resource, ..every },
                3 => Rule { verbs: &["delete"], resource, ..every },
                4 => Rule { verbs: &["get", "list", "watch"], resource, ..every },
                _ => Rule { probability: 0.3, ..every },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_steps() {
        let text = |seed| format!("{:?}", Scenario::of(seed));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn seeds_take_every_kind_of_step() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..300 {
            for step in Scenario::of(seed).steps {
                let text = format!("{:?}", step.action);
                kinds.insert(text.split([' ', '(']).next().unwrap().to_owned());
            }
        }
        assert_eq!(kinds.len(), 27, "{kinds:?}");
    }
}
