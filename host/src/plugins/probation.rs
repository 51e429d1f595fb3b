//! A new version on its first objects: how many it has planned, failed on, and would delete children of (rules P3 and
//! P6).
//!
//! An object's own trial ends with its first complete pass. The version's ends when all objects that were there have
//! had one and nothing went wrong for a time; until then the version before stays loaded, to be asked and to go back to.
//!
//! Never: I/O, clocks.

use crate::{
    object::{Object, ObjectKey},
    plugins::ActivePlugin,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Objects that a new version is tried on first; then on twice as many, and so on.
pub const FIRST_WAVE: usize = 10;
/// Objects of which it may delete children before somebody has to approve, however few there are.
const FEW: usize = 10;
/// The part of all objects that is few enough.
const PART: usize = 20;
/// Failures that are named.
const NAMED: usize = 3;

/// What is known of a version on probation.
pub struct Probation {
    /// The version that it replaces, if that was for the same kind.
    pub before: Option<Arc<ActivePlugin>>,
    /// The objects that there were when it came, by uid: of later ones nobody knows how that version would have done.
    existing: BTreeSet<Arc<str>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many objects there are.
    parents: usize,
    /// Those that it has been told to plan and has not.
    wave: BTreeSet<ObjectKey>,
    /// Those that it has planned at least once, whatever came of it.
    visited: BTreeSet<ObjectKey>,
    /// Those that had a complete pass.
    passed: BTreeSet<ObjectKey>,
    /// Those that it failed on and that the version before handles.
    failures: BTreeMap<ObjectKey, String>,
    /// Those of which it has deleted children, or was about to.
    pruning: BTreeSet<ObjectKey>,
    /// Those of which it would delete children and must not.
    held: BTreeSet<ObjectKey>,
    /// Nothing more may be deleted.
    exhausted: bool,
    /// Whether that was told.
    is_told: bool,
}

impl Probation {
    /// Begins, with the objects that there are. `exhausted`: it was held before the host started anew.
    pub fn new<'a>(
        before: Option<Arc<ActivePlugin>>,
        objects: impl IntoIterator<Item = &'a Arc<Object>>,
        exhausted: bool,
    ) -> Self {
        let existing = objects.into_iter().map(|object| object.uid.clone()).collect();
        Self {
            before,
            existing,
            state: Mutex::new(State { exhausted, is_told: exhausted, ..State::default() }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // At worst one object is counted too few.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next objects to plan, of all there are: none while the wave before is not through, twice as many as have
    /// been visited afterwards. Whether all have been visited.
    pub fn next_wave(&self, parents: &BTreeSet<ObjectKey>) -> (Vec<ObjectKey>, bool) {
        let mut state = self.lock();
        state.parents = parents.len();
        state.wave.retain(|parent| parents.contains(parent));
        if !state.wave.is_empty() {
            return (Vec::new(), false);
        }
        let unvisited = parents.iter().filter(|parent| !state.visited.contains(parent));
        let size = state.visited.len().max(FIRST_WAVE);
        let wave: Vec<_> = unvisited.take(size).cloned().collect();
        state.wave.extend(wave.iter().cloned());
        let is_over = wave.is_empty();
        (wave, is_over)
    }

    /// A pass over an object is over. True if the wave is through with it.
    pub fn visited(&self, parent: &ObjectKey) -> bool {
        let mut state = self.lock();
        state.visited.insert(parent.clone());
        state.wave.remove(parent) && state.wave.is_empty()
    }

    /// Nothing is left to do for an object: from now on what it does there is not because it is new.
    pub fn passed(&self, parent: &ObjectKey) {
        let mut state = self.lock();
        if !state.passed.contains(parent) {
            state.passed.insert(parent.clone());
        }
    }

    /// Whether the version before has had this object, so that a failure on it counts.
    pub fn judges(&self, parent: &Object) -> bool {
        self.existing.contains(&parent.uid)
    }

    /// It failed on an object that the version before handles. True if it is too many now.
    pub fn failed(&self, parent: &ObjectKey, why: String) -> bool {
        let mut state = self.lock();
        state.failures.insert(parent.clone(), why);
        is_failing(&state)
    }

    /// What it failed on, if that is too much: on one object in twenty, and at least on one.
    pub fn verdict(&self) -> Option<String> {
        let state = self.lock();
        is_failing(&state).then(|| {
            let named: Vec<_> =
                state.failures.iter().take(NAMED).map(|(parent, why)| format!("{parent}: {why}")).collect();
            let count = state.failures.len();
            let more = match count - named.len() {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            format!("failed on {count} of {} objects: {}{more}", state.parents, named.join("; "))
        })
    }

    /// Whether it may delete children of an object that has had no complete pass yet: for few objects, yes; for one
    /// more, somebody has to approve.
    pub fn may_prune(&self, parent: &ObjectKey) -> bool {
        let mut state = self.lock();
        if state.passed.contains(parent) || state.pruning.contains(parent) {
            return true;
        }
        if state.exhausted || state.pruning.len() >= budget(state.parents) {
            state.exhausted = true;
            state.held.insert(parent.clone());
            return false;
        }
        state.pruning.insert(parent.clone());
        true
    }

    /// How many objects it has planned at least once, of how many.
    pub fn visits(&self) -> (usize, usize) {
        let state = self.lock();
        (state.visited.len().min(state.parents), state.parents)
    }

    /// Of how many objects it would delete children and must not, while it is held.
    pub fn held(&self) -> Option<usize> {
        let state = self.lock();
        state.exhausted.then_some(state.held.len())
    }

    /// Whether it is held and nobody has been told; once.
    pub fn is_newly_held(&self) -> bool {
        let mut state = self.lock();
        let is_new = state.exhausted && !state.is_told;
        state.is_told |= is_new;
        is_new
    }

    /// An object is gone. True if the wave is through with it.
    pub fn forget(&self, parent: &ObjectKey) -> bool {
        let mut state = self.lock();
        state.held.remove(parent);
        state.failures.remove(parent);
        state.wave.remove(parent) && state.wave.is_empty()
    }
}

fn is_failing(state: &State) -> bool {
    state.failures.len() >= (state.parents / PART).max(1)
}

/// Of so many objects a new version may delete children by itself.
pub fn budget(parents: usize) -> usize {
    FEW.max(parents / PART)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;

    fn key(number: usize) -> ObjectKey {
        let gvk = Gvk::new("demo/v1", "Site");
        ObjectKey { gvk, namespace: Some("demo".into()), name: format!("s{number:04}").into() }
    }

    fn probation(parents: usize) -> (Probation, BTreeSet<ObjectKey>) {
        let probation = Probation::new(None, [], false);
        let all = (0..parents).map(key).collect();
        (probation, all)
    }

    #[test]
    fn waves_double_and_end_with_every_object_once() {
        let (probation, all) = probation(95);
        let (mut sizes, mut seen) = (Vec::new(), BTreeSet::new());
        loop {
            let (wave, is_over) = probation.next_wave(&all);
            if is_over {
                break;
            }
            sizes.push(wave.len());
            assert_eq!(probation.next_wave(&all), (Vec::new(), false), "the wave is not through");
            for (at, parent) in wave.iter().enumerate() {
                assert_eq!(probation.visited(parent), at + 1 == wave.len());
                assert!(seen.insert(parent.clone()));
            }
        }
        assert_eq!((sizes, seen.len()), (vec![10, 10, 20, 40, 15], 95));
    }

    #[test]
    fn object_that_goes_does_not_hold_up_its_wave() {
        let (probation, mut all) = probation(2);
        assert_eq!(probation.next_wave(&all).0.len(), 2);
        assert!(!probation.visited(&key(0)));
        all.remove(&key(1));
        assert!(probation.forget(&key(1)));
        assert_eq!(probation.next_wave(&all), (Vec::new(), true));
    }

    #[test]
    fn one_failure_in_twenty_is_too_much_and_one_of_few_as_well() {
        for (parents, tolerated) in [(1, 0), (39, 0), (40, 1), (100, 4)] {
            let (probation, all) = probation(parents);
            probation.next_wave(&all);
            for number in 0..tolerated {
                assert!(!probation.failed(&key(number), "trapped".to_owned()), "{parents}");
                assert_eq!(probation.verdict(), None);
            }
            assert!(probation.failed(&key(tolerated), "trapped".to_owned()), "{parents}");
            let verdict = probation.verdict().unwrap();
            let expected = format!("failed on {} of {parents} objects: ", tolerated + 1);
            assert!(verdict.starts_with(&expected), "{verdict}");
        }
    }

    #[test]
    fn children_of_few_objects_go_and_the_rest_waits() {
        for (parents, few) in [(5, 10), (200, 10), (400, 20)] {
            let (probation, all) = probation(parents);
            probation.next_wave(&all);
            for number in 0..few {
                assert!(probation.may_prune(&key(number)));
                assert!(probation.may_prune(&key(number)), "counted once");
            }
            assert_eq!(probation.held(), None);
            assert!(!probation.may_prune(&key(few)));
            assert!(probation.may_prune(&key(0)), "what was begun is ended");
            assert_eq!(probation.held(), Some(1));
            assert_eq!([probation.is_newly_held(), probation.is_newly_held()], [true, false]);
            // What an edit drops later is not because the version is new.
            probation.passed(&key(few + 1));
            assert!(probation.may_prune(&key(few + 1)));
        }
        let held = Probation::new(None, [], true);
        assert!(!held.may_prune(&key(0)), "it was held before a restart");
    }
}
