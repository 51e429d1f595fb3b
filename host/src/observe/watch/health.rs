//! What a watch does next, after each step.
//!
//! In: how a step ended. Out: the next step, how long to wait before it, and what to report.
//! Never: I/O, clocks.

use super::WatchState;
use crate::{
    object::ResourceVersion,
    observe::client::{Answer, Error},
};
use std::time::Duration;

/// Bookmarks come about once a minute: a connection that says nothing for longer is dead.
const SILENCE: Duration = Duration::from_secs(75);
/// How long one watch lasts, before jitter: the API server ends it then, and connections spread over its
/// replicas again.
const WATCH_SECONDS: u32 = 280;
/// How much later than asked for the end of a watch may come.
const END_SLACK: u32 = 15;
/// A watch that the server closes earlier than this was not worth opening: the next one waits.
const QUICK: Duration = Duration::from_secs(5);
/// Silences in a row, without a single bookmark ever, after which the server is taken to send none.
const SILENCES_WITHOUT_BOOKMARKS: u32 = 3;
/// Failures in a row before a watch that has been listed counts as failing: an API server that restarts is no
/// news.
const TOLERATED: u32 = 3;

/// First and longest wait after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Waits for a kind that is not served: it may be on its way (a CRD among the children), or never come.
const MISSING: [u64; 5] = [1, 2, 5, 15, 30];
/// Waits for a right that is missing: somebody has to give it. The first are short: an API server that has just
/// started refuses until it has read its roles.
const FORBIDDEN: [u64; 6] = [1, 2, 4, 10, 20, 30];
/// Refusals in a row before a watch that has been listed counts as forbidden, for the same reason: 7 s.
const REFUSALS_TOLERATED: usize = 3;
/// The longest `Retry-After` that is honoured: a wrong one must not stop a watch for good.
const RETRY_AFTER: Duration = Duration::from_mins(2);

/// A step, with the version it starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// List completely, from the first page on.
    List,
    /// After a failure: ask how far the API server is, as its history may have gone backwards.
    Probe(ResourceVersion),
    /// Watch.
    Follow(ResourceVersion),
}

/// How a step ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Listed up to this version, and mirrored.
    Listed(ResourceVersion),
    /// The API server is at this version or after it.
    Reachable(ResourceVersion),
    /// The API server is at an older version than this watch was, or gave a bookmark that is.
    OtherHistory,
    /// The API server ended the watch after this time.
    Closed(ResourceVersion, Duration),
    /// What the watch has is not believed any more.
    Doubted,
    /// The watch said nothing for too long.
    Silent(ResourceVersion),
    /// The step failed; with where the next watch would have gone on.
    Failed(Option<ResourceVersion>, Error),
}

/// What follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) state: State,
    pub(super) wait: Duration,
    pub(super) report: Option<WatchState>,
    /// The kind is not served any more: what is kept of it is worthless.
    pub(super) vanished: bool,
}

impl Next {
    fn now(state: State) -> Self {
        Self { state, wait: Duration::ZERO, report: None, vanished: false }
    }
}

/// What is remembered from step to step.
pub(super) struct Health {
    rng: fastrand::Rng,
    listed: bool,
    failures: u32,
    expired: u32,
    missing: usize,
    forbidden: usize,
    silences: u32,
    bookmarks: bool,
}

impl Health {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            listed: false,
            failures: 0,
            expired: 0,
            missing: 0,
            forbidden: 0,
            silences: 0,
            bookmarks: false,
        }
    }

    /// How many seconds the next watch should last, and how long it may be silent.
    pub(super) fn patience(&mut self) -> (u32, Duration) {
        let seconds = WATCH_SECONDS + self.rng.u32(0..20);
        let silence = if self.sends_no_bookmarks() {
            Duration::from_secs((seconds + END_SLACK).into())
        } else {
            SILENCE
        };
        (seconds, silence)
    }

    /// Whether the server is taken to send no bookmarks.
    pub(super) fn sends_no_bookmarks(&self) -> bool {
        !self.bookmarks && self.silences >= SILENCES_WITHOUT_BOOKMARKS
    }

    /// A watch is open: the way to the API server works, and it may be used.
    pub(super) fn opened(&mut self) {
        (self.failures, self.missing, self.forbidden) = (0, 0, 0);
    }

    /// An item came: the version that the watch started from is one that the API server still has.
    pub(super) fn delivered(&mut self, is_bookmark: bool) {
        self.expired = 0;
        self.bookmarks |= is_bookmark;
    }

    pub(super) fn after(&mut self, outcome: Outcome) -> Next {
        match outcome {
            Outcome::Listed(version) => {
                // Whether it can be followed too is known when the watch is open: that ends the other counts.
                self.failures = 0;
                self.listed = true;
                Next::now(State::Follow(version))
            }
            Outcome::OtherHistory => Next::now(State::List),
            Outcome::Doubted => Next { report: Some(WatchState::Listing), ..Next::now(State::List) },
            Outcome::Closed(version, lasted) if lasted < QUICK => {
                Next { wait: self.back_off(0), ..Next::now(State::Follow(version)) }
            }
            Outcome::Reachable(version) | Outcome::Closed(version, _) => Next::now(State::Follow(version)),
            Outcome::Silent(version) => {
                self.silences += 1;
                Next::now(State::Probe(version))
            }
            Outcome::Failed(from, error) => self.after_failure(from, &error),
        }
    }

    fn after_failure(&mut self, from: Option<ResourceVersion>, error: &Error) -> Next {
        let resume = from.map_or(State::List, State::Probe);
        match error.answer {
            // Every watch and every list can expire once. Twice without an item in between, something is wrong.
            Answer::Expired => {
                self.expired += 1;
                let wait = if self.expired == 1 { Duration::ZERO } else { self.back_off(self.expired - 2) };
                Next { report: self.is_news(self.expired, error), ..Next { wait, ..Next::now(State::List) } }
            }
            Answer::KindNotFound => {
                self.listed = false;
                let wait = self.jitter(nth(&MISSING, self.missing));
                self.missing += 1;
                Next {
                    state: State::List,
                    wait,
                    report: Some(WatchState::Missing(error.message.clone())),
                    vanished: true,
                }
            }
            Answer::Forbidden | Answer::Denied | Answer::QuotaExceeded | Answer::NamespaceTerminating => {
                let wait = self.jitter(nth(&FORBIDDEN, self.forbidden));
                self.forbidden += 1;
                let is_news = !self.listed || self.forbidden > REFUSALS_TOLERATED;
                let report = is_news.then(|| WatchState::Forbidden(error.message.clone()));
                Next { state: resume, wait, report, vanished: false }
            }
            Answer::VersionConflict
            | Answer::UidMismatch
            | Answer::FieldConflict(_)
            | Answer::AlreadyExists
            | Answer::Unauthorized
            | Answer::NotFound
            | Answer::Invalid(_)
            | Answer::TooLarge
            | Answer::TooManyRequests
            | Answer::Unavailable
            | Answer::Timeout
            | Answer::Connection
            | Answer::Undecodable
            | Answer::GateClosed => {
                let wait =
                    self.back_off(self.failures).max(error.retry_after.unwrap_or_default().min(RETRY_AFTER));
                self.failures += 1;
                Next { state: resume, wait, report: self.is_news(self.failures, error), vanished: false }
            }
        }
    }

    fn is_news(&self, failures: u32, error: &Error) -> Option<WatchState> {
        (!self.listed || failures >= TOLERATED).then(|| WatchState::Failing(error.to_string()))
    }

    /// Doubles with every failure before.
    fn back_off(&mut self, before: u32) -> Duration {
        let (first, longest) = BACKOFF;
        self.jitter(first.saturating_mul(1 << before.min(16)).min(longest))
    }

    /// Between three quarters and all of it, so that watches that failed together do not come back together.
    fn jitter(&mut self, wait: Duration) -> Duration {
        wait.mul_f64(0.75 + self.rng.f64() / 4.0)
    }
}

/// The nth wait; the last one for good.
fn nth(waits: &[u64], number: usize) -> Duration {
    Duration::from_secs(waits[number.min(waits.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64) -> ResourceVersion {
        ResourceVersion::new(&number.to_string())
    }

    fn failed(from: Option<u64>, answer: Answer) -> Outcome {
        let error = Error {
            verb: "watch",
            target: "Widget".into(),
            answer,
            message: "why".into(),
            retry_after: None,
        };
        Outcome::Failed(from.map(version), error)
    }

    fn closed(seconds: u64) -> Outcome {
        Outcome::Closed(version(7), Duration::from_secs(seconds))
    }

    fn missing() -> WatchState {
        WatchState::Missing("why".into())
    }

    fn forbidden() -> WatchState {
        WatchState::Forbidden("why".into())
    }

    fn failing() -> WatchState {
        WatchState::Failing("cannot watch Widget: why".into())
    }

    /// Steps in a row; each with the state that follows, the longest wait in seconds (at least three quarters
    /// of it must be waited), and what is reported.
    #[track_caller]
    fn check(listed: bool, steps: Vec<(Outcome, State, u64, Option<WatchState>)>) {
        let mut health = Health::new(1);
        if listed {
            health.after(Outcome::Listed(version(1)));
        }
        for (number, (outcome, state, seconds, report)) in steps.into_iter().enumerate() {
            let next = health.after(outcome);
            let wait = Duration::from_secs(seconds);
            assert_eq!((&next.state, &next.report), (&state, &report), "step {number}");
            assert!(next.wait <= wait && next.wait >= wait.mul_f64(0.75), "step {number}: {:?}", next.wait);
            assert_eq!(next.vanished, matches!(report, Some(WatchState::Missing(_))), "step {number}");
        }
    }

    #[test]
    fn watch_resumes_at_once_when_the_server_ends_it() {
        let follow = || State::Follow(version(7));
        check(true, vec![(closed(290), follow(), 0, None), (closed(290), follow(), 0, None)]);
        // Not if it does so all the time.
        check(true, vec![(closed(0), follow(), 1, None), (closed(0), follow(), 1, None)]);
    }

    #[test]
    fn watch_asks_for_the_history_before_it_resumes_after_a_failure() {
        let probe = || State::Probe(version(7));
        let cut = || failed(Some(7), Answer::Connection);
        check(
            true,
            vec![
                (cut(), probe(), 1, None),
                (Outcome::Reachable(version(7)), State::Follow(version(7)), 0, None),
                (cut(), probe(), 2, None),
                (cut(), probe(), 4, Some(failing())),
                (cut(), probe(), 8, Some(failing())),
                (cut(), probe(), 16, Some(failing())),
                (cut(), probe(), 30, Some(failing())),
                (cut(), probe(), 30, Some(failing())),
                (Outcome::OtherHistory, State::List, 0, None),
                (Outcome::Listed(version(3)), State::Follow(version(3)), 0, None),
                (cut(), probe(), 1, None),
            ],
        );
        check(true, vec![(Outcome::Silent(version(7)), probe(), 0, None)]);
    }

    #[test]
    fn watch_lists_again_when_its_version_expired() {
        let expired = || failed(Some(7), Answer::Expired);
        let listed = || (Outcome::Listed(version(7)), State::Follow(version(7)), 0, None);
        check(
            true,
            vec![
                (expired(), State::List, 0, None),
                listed(),
                (expired(), State::List, 1, None),
                listed(),
                (expired(), State::List, 2, Some(failing())),
                listed(),
                (expired(), State::List, 4, Some(failing())),
            ],
        );
    }

    #[test]
    fn watch_reports_at_once_that_its_first_list_fails() {
        check(false, vec![(failed(None, Answer::Unavailable), State::List, 1, Some(failing()))]);
    }

    #[test]
    fn missing_kind_is_tried_quickly_at_first() {
        let gone = || failed(Some(7), Answer::KindNotFound);
        let steps = [1, 2, 5, 15, 30, 30].map(|seconds| (gone(), State::List, seconds, Some(missing())));
        check(true, steps.into());
    }

    #[test]
    fn missing_right_is_tried_slowly() {
        let steps = [1, 2, 4, 10, 20, 30, 30]
            .map(|seconds| (failed(None, Answer::Forbidden), State::List, seconds, Some(forbidden())));
        check(false, steps.into());
    }

    #[test]
    fn watch_that_worked_is_forbidden_only_once_refusals_persist() {
        let refused = || failed(Some(7), Answer::Forbidden);
        let resume = || State::Probe(version(7));
        let reachable = || (Outcome::Reachable(version(7)), State::Follow(version(7)), 0, None);
        check(
            true,
            vec![
                (refused(), resume(), 1, None),
                // It may ask, and may not watch: that is one failure, too.
                reachable(),
                (refused(), resume(), 2, None),
                (refused(), resume(), 4, None),
                (refused(), resume(), 10, Some(forbidden())),
                (refused(), resume(), 20, Some(forbidden())),
            ],
        );
    }

    #[test]
    fn retry_after_is_honoured_within_reason() {
        for (seconds, expected) in [(0, 1), (10, 10), (100_000, 120)] {
            let Outcome::Failed(from, error) = failed(Some(7), Answer::TooManyRequests) else {
                unreachable!()
            };
            let error = Error { retry_after: Some(Duration::from_secs(seconds)), ..error };
            let wait = Health::new(1).after(Outcome::Failed(from, error)).wait;
            assert!(
                wait <= Duration::from_secs(expected) && wait >= Duration::from_millis(750 * expected),
                "{wait:?}"
            );
        }
    }

    #[test]
    fn open_watch_ends_the_back_off() {
        let mut health = Health::new(1);
        for _ in 0..5 {
            health.after(failed(Some(7), Answer::Connection));
        }
        health.opened();
        assert!(health.after(failed(Some(7), Answer::Connection)).wait <= Duration::from_secs(1));
    }

    #[test]
    fn server_without_bookmarks_gets_the_whole_time_of_a_watch() {
        let silent = |health: &mut Health| drop(health.after(Outcome::Silent(version(1))));
        let (mut without, mut with) = (Health::new(1), Health::new(1));
        with.delivered(true);
        without.delivered(false);
        for _ in 0..SILENCES_WITHOUT_BOOKMARKS {
            assert_eq!(without.patience().1, SILENCE);
            silent(&mut without);
            silent(&mut with);
        }
        let (seconds, silence) = without.patience();
        assert!((280..300).contains(&seconds) && silence > Duration::from_secs(seconds.into()));
        assert_eq!(with.patience().1, SILENCE);
    }
}
