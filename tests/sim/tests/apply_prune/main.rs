//! Apply, prune, crash: one parent with two children in two kinds, and every order in which a few bad things can
//! happen to them.
//!
//! The search is exhaustive within its bounds. The model is not the host: it shares the host's pure decisions where
//! they are public, and says the rest again. That it looks at the right things is shown by what it finds: each flaw
//! that a host could have breaks the property that forbids it.

#![expect(clippy::unwrap_used, reason = "a test")]

mod check;
mod host;
mod model;
mod world;
mod write;

use model::{Action, Budget, Flaw, Setup};
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::collections::BTreeMap;

const NONE: Budget = Budget { crashes: 0, lost_answers: 0, edits: 0, changes: 0, deletions: 0 };

fn setup(budget: Budget) -> Setup {
    Setup { finalizes: true, flaw: None, budget, declared: 0b11, uids: 8, agrees: false }
}

/// What is broken, each with the shortest way there, one line per action.
fn broken(checker: &impl Checker<Setup>) -> BTreeMap<&'static str, String> {
    let properties = checker.model().properties().into_iter();
    let always = properties.filter(|property| property.expectation == Expectation::Always);
    let found = always.filter_map(|property| Some((property.name, checker.discovery(property.name)?)));
    let lines = |actions: Vec<Action>| actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>();
    found.map(|(name, path)| (name, lines(path.into_actions()).join("\n"))).collect()
}

/// Everything within the bounds is looked at: the properties hold, and what should be met is met.
fn holds(setup: Setup) {
    let checker = setup.checker().spawn_bfs().join();
    if let Some((name, path)) = broken(&checker).pop_first() {
        panic!("{name} is broken by\n{path}");
    }
    for property in checker.model().properties() {
        let is_met =
            property.expectation == Expectation::Always || checker.discovery(property.name).is_some();
        assert!(is_met, "never met in {} states: {}", checker.unique_state_count(), property.name);
    }
}

/// What is broken first.
fn breaks(setup: Setup) -> BTreeMap<&'static str, String> {
    broken(&setup.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join())
}

#[test]
fn one_of_everything_does_no_harm() {
    holds(setup(Budget { crashes: 1, lost_answers: 1, edits: 1, changes: 1, deletions: 1 }));
}

#[test]
fn what_two_people_do_at_once_does_no_harm() {
    holds(setup(Budget { edits: 2, changes: 1, deletions: 1, ..NONE }));
    holds(setup(Budget { crashes: 1, lost_answers: 1, edits: 2, changes: 1, ..NONE }));
}

#[test]
fn kind_that_comes_and_goes_leaves_nothing() {
    let budget = Budget { crashes: 1, lost_answers: 1, changes: 2, deletions: 1, ..NONE };
    holds(Setup { declared: 0b01, ..setup(budget) });
}

#[test]
fn children_go_with_a_parent_that_nobody_finalizes() {
    let budget = Budget { crashes: 1, lost_answers: 1, changes: 1, deletions: 1, ..NONE };
    holds(Setup { finalizes: false, uids: 3, ..setup(budget) });
}

#[test]
fn each_flaw_breaks_what_forbids_it() {
    for (flaw, budget, expected) in [
        (Flaw::PruneEarly, Budget { edits: 1, changes: 1, ..NONE }, "S4"),
        (Flaw::DeleteWithoutUid, Budget { edits: 2, changes: 1, ..NONE }, "S6"),
        (Flaw::ApplyWithoutUid, Budget { edits: 2, ..NONE }, "S3"),
        (Flaw::RecordLate, NONE, "S5"),
        (Flaw::IgnoreDoubt, Budget { lost_answers: 1, changes: 1, ..NONE }, "S2"),
        (Flaw::ListOld, Budget { crashes: 1, lost_answers: 1, changes: 1, ..NONE }, "S2"),
        (Flaw::ReleaseEarly, Budget { deletions: 1, ..NONE }, "D1"),
        (Flaw::ReleaseAny, Budget { lost_answers: 1, deletions: 1, ..NONE }, "S2"),
        (Flaw::TakeAll, Budget { edits: 1, ..NONE }, "S6"),
        (Flaw::AwaitUnseen, Budget { edits: 2, ..NONE }, "L1"),
    ] {
        let broken = breaks(Setup { flaw: Some(flaw), ..setup(budget) });
        assert!(broken.keys().any(|name| name.starts_with(expected)), "{flaw:?} breaks {broken:#?}");
    }
}

/// A limit of the host: server-side apply cannot say that the object must not exist.
#[test]
fn others_object_is_taken_if_it_comes_between_look_and_apply_and_nothing_conflicts() {
    let budget = Budget { edits: 1, ..NONE };
    let broken = breaks(Setup { agrees: true, ..setup(budget) });
    assert_eq!(broken.into_keys().collect::<Vec<_>>(), ["S6 others untouched"]);
}
