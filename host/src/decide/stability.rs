//! Notices plans that never settle (rule R6): a guest that is called for what it did itself, and answers
//! otherwise each time.
//!
//! In: each call, why it was made, and the answers before and after. Out: whether the guest may be called once
//! more for its own doing, and what to say of one that may not.
//! Never: I/O, clocks, wasm.

mod difference;
#[cfg(test)]
mod tests;

use crate::observe::reads::{Answer, ParentRef, Why};
use difference::Difference;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

/// How far back is looked. People read a condition, and look at what it names, within about a minute.
pub const WINDOW: Duration = Duration::from_mins(1);
/// So much a reason from outside forgives: what it sets going needs a few rounds to settle, as a child that was
/// changed is on its way at first, and the status tells so.
const FORGIVEN: usize = 3;
/// Parents that are kept before those are sought that have settled meanwhile.
const FEW: usize = 64;

/// The plans of late that differ from the one before for no reason from outside, by parent.
///
/// A parent whose plans settle is not in here, or leaves within the window.
#[derive(Default)]
pub struct Stability {
    trails: HashMap<ParentRef, Trail>,
    /// How many there were after those that had settled were last taken out.
    unsettled: usize,
}

/// What one parent's plans did of late.
#[derive(Default)]
struct Trail {
    /// When a plan differed, oldest first; one whose set of children differed is in here twice.
    marks: VecDeque<Instant>,
    /// The last difference.
    last: Option<Difference>,
    /// What is said since the guest was not called for the first time.
    said: Option<Said>,
}

struct Said {
    /// Stays while the path does: other values alone are no reason to write a status.
    path: String,
    message: Arc<str>,
}

/// What there is to say of a parent whose plans do not settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstable {
    /// Whose fault it is, and what keeps changing.
    pub message: Arc<str>,
    /// After this time things may stand otherwise.
    pub look_again: Duration,
    /// Whether this is the first time.
    pub begins: bool,
}

impl Stability {
    /// Whether the guest is not to be called, as nothing but its own doing differs and `limit` of its plans in
    /// the window did; then the last answer stands.
    pub fn limit(&mut self, parent: &ParentRef, limit: usize, now: Instant) -> Option<Unstable> {
        let trail = self.trails.get_mut(parent)?;
        trail.expire(now);
        let over = trail.marks.len().checked_sub(limit)?;
        // The one whose end makes room.
        let free = trail.marks.get(over).map_or(WINDOW, |mark| until_end(*mark, now));
        let begins = trail.said.is_none();
        trail.say();
        trail.unstable(free, begins)
    }

    /// A call was made for this reason; `before` is the answer that stood, if nothing but the guest's own doing
    /// was the reason.
    pub fn called(
        &mut self,
        parent: &ParentRef,
        why: &Why,
        before: Option<&Answer>,
        after: &Answer,
        now: Instant,
    ) {
        let Some(before) = before else { return self.called_from_outside(parent, why) };
        let Some(difference) = difference::between(before, after) else { return };
        if !self.trails.contains_key(parent) {
            self.make_room(now);
        }
        let trail = self.trails.entry(parent.clone()).or_default();
        trail.expire(now);
        trail.marks.extend(std::iter::repeat_n(now, if difference.of_children { 2 } else { 1 }));
        if trail.said.as_ref().is_some_and(|said| said.path != difference.path) {
            trail.said = Some(difference.say());
        }
        trail.last = Some(difference);
    }

    /// What is still to be said, whoever answered: as long as there was a difference within the window.
    pub fn look(&mut self, parent: &ParentRef, now: Instant) -> Option<Unstable> {
        let trail = self.trails.get_mut(parent)?;
        trail.expire(now);
        let Some(newest) = trail.marks.back() else {
            self.trails.remove(parent);
            return None;
        };
        let settled = until_end(*newest, now);
        trail.unstable(settled, false)
    }

    fn called_from_outside(&mut self, parent: &ParentRef, why: &Why) {
        let Some(trail) = self.trails.get_mut(parent) else { return };
        match why {
            // Another object or another plugin: what was before says nothing about it.
            Why::First | Why::Version | Why::Parent => drop(self.trails.remove(parent)),
            Why::Reads(_) | Why::Retry => drop(trail.marks.drain(..FORGIVEN.min(trail.marks.len()))),
        }
    }

    /// Takes out what has settled or is gone, when there is as much again.
    fn make_room(&mut self, now: Instant) {
        if self.trails.len() >= FEW.max(2 * self.unsettled) {
            self.trails.retain(|_, trail| {
                trail.expire(now);
                !trail.marks.is_empty()
            });
            self.unsettled = self.trails.len();
        }
    }
}

impl Trail {
    fn expire(&mut self, now: Instant) {
        while self.marks.front().is_some_and(|mark| until_end(*mark, now).is_zero()) {
            self.marks.pop_front();
        }
    }

    fn say(&mut self) {
        if self.said.is_none() {
            self.said = self.last.as_ref().map(Difference::say);
        }
    }

    fn unstable(&self, look_again: Duration, begins: bool) -> Option<Unstable> {
        let message = Arc::clone(&self.said.as_ref()?.message);
        Some(Unstable { message, look_again, begins })
    }
}

/// How long a mark counts from now on.
fn until_end(mark: Instant, now: Instant) -> Duration {
    WINDOW.saturating_sub(now.saturating_duration_since(mark))
}
