//! Two managers that set one field in turn (rule A5): noticed after a few rounds, then asked for names, left alone,
//! and tried again ever more rarely.
//!
//! In: which content a child was given, and whether it still holds it. Out: whether it may be taken by force once
//! more. A round is an apply of content that the same object was given before, whoever took it away.
//! Never: I/O, clocks, wasm.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How far back is looked: whoever sets a field every other minute is noticed too.
const WINDOW: Duration = Duration::from_mins(10);
/// Rounds within the window that are taken for accidents, such as somebody trying something out.
const ROUNDS: usize = 5;
/// The first and the longest wait between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));
/// So long a child must hold its content after a try before it counts as left alone.
const HOLD: Duration = Duration::from_secs(15);
/// Children that are kept before those are sought that nobody fights over.
const FEW: usize = 256;

/// What is known of children that were changed lately, by uid: one field manager has each of them once.
#[derive(Default)]
pub struct Contests(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    children: HashMap<Child, Trail>,
    /// How many there were after the others were last taken out.
    kept: usize,
}

/// The field manager and the child's uid.
type Child = (Arc<str>, Arc<str>);

/// What one child was given of late.
struct Trail {
    /// The hash of the content; with another one, what was before says nothing.
    content: String,
    /// When it was given, oldest first.
    given: VecDeque<Instant>,
    contest: Option<Contest>,
}

/// It is being fought over.
struct Contest {
    /// Who sets what, in the API server's words; `None` until it has been asked.
    words: Option<Arc<str>>,
    tries: u32,
    next_try: Instant,
}

/// What may be done with a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nobody fights over it: it is applied if it differs.
    Fine,
    /// It is applied once more, and told of all the same.
    Try(Told),
    /// It is applied without force, which tells who is in the way.
    Ask,
    /// It is left as it is.
    Leave(Told),
}

/// What there is to tell of a child that is fought over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Who sets what.
    pub words: Arc<str>,
    /// After this time things may stand otherwise.
    pub look_again: Duration,
}

impl Contests {
    /// How it stands with a child that is to hold this content, and does or does not.
    pub(super) fn look(
        &self,
        manager: &str,
        uid: &Arc<str>,
        content: &str,
        differs: bool,
        now: Instant,
    ) -> Standing {
        let mut inner = self.lock();
        let child = (Arc::from(manager), Arc::clone(uid));
        let Some(trail) = inner.children.get_mut(&child).filter(|trail| trail.content == content) else {
            return Standing::Fine;
        };
        trail.expire(now);
        let Some(last) = trail.given.back().copied() else {
            inner.children.remove(&child);
            return Standing::Fine;
        };
        let Some(fight) = &trail.contest else {
            // The first time is no round.
            if !differs || trail.given.len() <= ROUNDS {
                return Standing::Fine;
            }
            trail.contest = Some(Contest { words: None, tries: 0, next_try: now });
            return Standing::Ask;
        };
        let left = |until: Instant| until.saturating_duration_since(now);
        let Some(words) = fight.words.clone() else {
            return if differs { Standing::Ask } else { Standing::Fine };
        };
        match differs {
            true if fight.next_try <= now => Standing::Try(Told { words, look_again: HOLD }),
            true => Standing::Leave(Told { words, look_again: left(fight.next_try) }),
            false if last + HOLD <= now => {
                inner.children.remove(&child);
                Standing::Fine
            }
            false => Standing::Leave(Told { words, look_again: left(last + HOLD) }),
        }
    }

    /// A child was given this content.
    pub(super) fn gave(&self, manager: &str, uid: &Arc<str>, content: &str, now: Instant) {
        let mut inner = self.lock();
        let child = (Arc::from(manager), Arc::clone(uid));
        if !inner.children.contains_key(&child) {
            inner.make_room(now);
        }
        let fresh = || Trail { content: content.to_owned(), given: VecDeque::new(), contest: None };
        let trail = inner.children.entry(child).or_insert_with(fresh);
        if trail.content != content {
            *trail = fresh();
        }
        trail.expire(now);
        // No more are needed to tell.
        if trail.given.len() > ROUNDS {
            trail.given.pop_front();
        }
        trail.given.push_back(now);
        if let Some(contest) = &mut trail.contest {
            contest.tries = contest.tries.saturating_add(1);
            contest.next_try = now + wait(contest.tries);
        }
    }

    /// The API server was asked who is in the way of a child; what there is to tell of it from now on.
    pub(super) fn asked(&self, manager: &str, uid: &Arc<str>, words: &str, now: Instant) -> Told {
        let words: Arc<str> = words.into();
        let mut inner = self.lock();
        let contest = inner.children.get_mut(&(Arc::from(manager), Arc::clone(uid)));
        if let Some(contest) = contest.and_then(|trail| trail.contest.as_mut()) {
            contest.words = Some(Arc::clone(&words));
            contest.next_try = now + wait(contest.tries);
        }
        Told { words, look_again: BACKOFF.0 }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // At worst a round is missing after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes out what nobody fights over or what is gone, when there is as much again.
    fn make_room(&mut self, now: Instant) {
        if self.children.len() >= FEW.max(2 * self.kept) {
            self.children.retain(|_, trail| {
                trail.expire(now);
                !trail.given.is_empty()
            });
            self.kept = self.children.len();
        }
    }
}

impl Trail {
    fn expire(&mut self, now: Instant) {
        while self.given.front().is_some_and(|given| now.saturating_duration_since(*given) > WINDOW) {
            self.given.pop_front();
        }
    }
}

/// Doubles with every try.
fn wait(tries: u32) -> Duration {
    let (first, longest) = BACKOFF;
    first.saturating_mul(1 << tries.min(16)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One child that somebody else changes whenever `differs` says so.
    struct Fight {
        contests: Contests,
        uid: Arc<str>,
        now: Instant,
    }

    impl Fight {
        fn new() -> Self {
            Self { contests: Contests::default(), uid: "u1".into(), now: Instant::now() }
        }

        fn look(&self, content: &str, differs: bool) -> Standing {
            self.contests.look("web", &self.uid, content, differs, self.now)
        }

        /// One pass over a child that differs, as the host makes it; whether it was applied.
        fn pass(&self, content: &str) -> bool {
            let gave = || self.contests.gave("web", &self.uid, content, self.now);
            match self.look(content, true) {
                Standing::Fine | Standing::Try(_) => {
                    gave();
                    true
                }
                Standing::Ask => {
                    self.contests.asked("web", &self.uid, "x by y", self.now);
                    false
                }
                Standing::Leave(_) => false,
            }
        }

        fn later(&mut self, time: Duration) {
            self.now += time;
        }
    }

    fn is_told(standing: &Standing) -> bool {
        matches!(standing, Standing::Leave(told) | Standing::Try(told) if &*told.words == "x by y")
    }

    #[test]
    fn field_is_put_back_a_few_times_then_named_and_left_alone() {
        let mut fight = Fight::new();
        for round in 0..=ROUNDS {
            assert!(fight.pass("a"), "round {round}");
            fight.later(Duration::from_millis(10));
        }
        assert_eq!(fight.look("a", true), Standing::Ask);
        assert!(!fight.pass("a"));
        assert!(is_told(&fight.look("a", true)));
        assert!(!fight.pass("a"), "until the next try");
        fight.later(BACKOFF.0);
        assert!(matches!(fight.look("a", true), Standing::Try(_)));
    }

    #[test]
    fn it_is_over_when_the_child_holds_its_content_for_a_while() {
        let mut fight = Fight::new();
        while fight.pass("a") {}
        fight.later(BACKOFF.0);
        assert!(fight.pass("a"), "one try");
        assert!(is_told(&fight.look("a", false)), "it may be taken away in a moment");
        fight.later(HOLD);
        assert_eq!(fight.look("a", false), Standing::Fine);
        // From the beginning.
        assert_eq!(fight.look("a", true), Standing::Fine);
    }

    #[test]
    fn other_content_starts_anew() {
        let fight = Fight::new();
        while fight.pass("a") {}
        assert!(is_told(&fight.look("a", true)));
        assert_eq!(fight.look("b", true), Standing::Fine);
        assert!(fight.pass("b"));
        assert_eq!(fight.look("b", false), Standing::Fine);
    }

    #[test]
    fn what_happens_now_and_then_is_no_fight() {
        let mut fight = Fight::new();
        for _ in 0..100 {
            assert!(fight.pass("a"));
            fight.later(WINDOW / 4);
        }
    }

    #[test]
    fn plugins_are_told_apart() {
        let fight = Fight::new();
        while fight.pass("a") {}
        assert_eq!(fight.contests.look("other", &fight.uid, "a", true, fight.now), Standing::Fine);
    }

    #[test]
    fn children_that_nobody_fights_over_are_forgotten() {
        let mut fight = Fight::new();
        for child in 0..20 * FEW {
            fight.uid = child.to_string().into();
            fight.pass("a");
            fight.later(Duration::from_secs(10));
        }
        assert!(fight.contests.lock().children.len() <= 2 * FEW);
    }

    proptest! {
        /// However somebody fights: few applies at first, then ever fewer.
        #[test]
        fn applies_are_few(steps in proptest::collection::vec(1_u64..60_000, 50..400)) {
            let mut fight = Fight::new();
            let began = fight.now;
            let mut applied = 0_u32;
            for milliseconds in steps {
                applied += u32::from(fight.pass("a"));
                fight.later(Duration::from_millis(milliseconds));
                let windows = (fight.now - began).as_secs() / WINDOW.as_secs() + 1;
                let allowed = windows as u32 * (ROUNDS as u32 + 1) + 8 + (fight.now - began).as_secs() as u32 / 300;
                prop_assert!(applied <= allowed, "{applied} of {allowed}");
            }
        }
    }
}
