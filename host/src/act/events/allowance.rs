//! How many events may be written: whoever has something new to say at each pass must not push out the events
//! that matter (B059).
//!
//! Never: I/O; the time is an argument.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};
use tokio::time::Instant;

/// Events that are counted as one: ten writes in ten minutes, enough to see that it goes on.
const ALIKE: Rate = Rate { burst: 5, interval: Duration::from_mins(2) };
/// All events about one object: several passes that name what they did, then one a minute.
const OF_OBJECT: Rate = Rate { burst: 25, interval: Duration::from_mins(1) };
/// Entries before those without effect are dropped.
const TIDY_AT: usize = 4_096;

/// So many at once, then one per interval.
#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    interval: Duration,
}

/// Who has written how much lately. An entry has an effect for half an hour at most, so what is written in that
/// time bounds them.
#[derive(Default)]
pub(super) struct Allowance {
    /// When the burst would be whole again.
    whole_at: HashMap<u64, Instant>,
    tidy_at: usize,
}

impl Allowance {
    /// Whether one more event may be written now: `object` and `series` tell whom it is about, and which events
    /// are counted as one with it.
    pub(super) fn take(&mut self, object: impl Hash, series: impl Hash, now: Instant) -> bool {
        if self.whole_at.len() >= self.tidy_at.max(TIDY_AT) {
            self.whole_at.retain(|_, whole_at| *whole_at > now);
            self.tidy_at = 2 * self.whole_at.len();
        }
        self.take_one((&object, series), ALIKE, now) && self.take_one(object, OF_OBJECT, now)
    }

    fn take_one(&mut self, key: impl Hash, rate: Rate, now: Instant) -> bool {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let whole_at = self.whole_at.entry(hasher.finish()).or_insert(now);
        let from = now.max(*whole_at);
        let is_left = from - now <= rate.interval * (rate.burst - 1);
        if is_left {
            *whole_at = from + rate.interval;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `tries` at this time may be written.
    fn taken(allowance: &mut Allowance, object: &str, series: &str, now: Instant, tries: usize) -> usize {
        (0..tries).filter(|_| allowance.take(object, series, now)).count()
    }

    #[test]
    fn events_alike_are_written_a_few_times_and_then_now_and_then() {
        let (mut allowance, start) = (Allowance::default(), Instant::now());
        let mut at = |seconds: u64, tries| {
            taken(&mut allowance, "w1", "Flaky", start + Duration::from_secs(seconds), tries)
        };
        assert_eq!(at(0, 100), 5);
        assert_eq!(at(119, 100), 0);
        assert_eq!(at(120, 100), 1);
        assert_eq!((121..=600).map(|second| at(second, 1)).sum::<usize>(), 4);
        // After a quiet time it is all there again.
        assert_eq!(at(1_800, 100), 5);
    }

    #[test]
    fn events_of_one_object_take_nothing_from_another() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        let reasons = (0..100).map(|n| format!("Attempt{n}"));
        assert_eq!(reasons.map(|reason| taken(&mut allowance, "w1", &reason, now, 1)).sum::<usize>(), 25);
        assert_eq!(taken(&mut allowance, "w2", "Attempt1", now, 100), 5);
    }

    #[test]
    fn entries_without_effect_are_dropped() {
        let (mut allowance, start) = (Allowance::default(), Instant::now());
        for n in 0..TIDY_AT {
            assert!(allowance.take(n, "Created", start));
        }
        assert!(allowance.whole_at.len() >= TIDY_AT);
        assert!(allowance.take("w1", "Created", start + Duration::from_hours(1)));
        assert_eq!(allowance.whole_at.len(), 2);
    }
}
