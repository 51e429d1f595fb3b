//! The wall clock, for what people read: condition times, the explain log and the guest's `clock.now`. All else
//! counts on tokio's monotonic time.

use jiff::{SignedDuration, Timestamp};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use tokio::time::Instant;

/// A clock; clones show the same time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's.
    System,
    /// One that goes as tokio's time does, which a simulation pauses, and that jumps when it is told to.
    Simulated(Arc<Simulated>),
}

/// See [`Clock::Simulated`].
#[derive(Debug)]
pub struct Simulated {
    start: Timestamp,
    since: Instant,
    offset_seconds: AtomicI64,
}

impl Clock {
    /// A simulated clock that shows this time now.
    pub fn simulated(start: Timestamp) -> Self {
        Self::Simulated(Arc::new(Simulated {
            start,
            since: Instant::now(),
            offset_seconds: AtomicI64::new(0),
        }))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Simulated(clock) => {
                let offset = SignedDuration::from_secs(clock.offset_seconds.load(Ordering::Relaxed));
                clock.start + clock.since.elapsed() + offset
            }
        }
    }

    /// The time as RFC 3339 in UTC with whole seconds, as Kubernetes writes it.
    pub fn wall(&self) -> String {
        self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Puts a simulated clock forward, or back; the system's is not ours to move.
    pub fn jump(&self, seconds: i64) {
        if let Self::Simulated(clock) = self {
            clock.offset_seconds.fetch_add(seconds, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_simulated_clock_goes_with_paused_time_and_jumps() {
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(clock.wall(), "2026-01-01T00:01:30Z");
        clock.clone().jump(-3600);
        assert_eq!(clock.wall(), "2025-12-31T23:01:30Z");
    }
}
