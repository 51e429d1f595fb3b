//! When a status may be written again: bursts are merged (rule S6).
//!
//! Never: I/O, clocks.

use crate::observe::reads::ParentRef;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// So long after a status was written, one that is neither a transition nor about a new generation waits. People
/// and tools look once a second at best; etcd keeps every write.
const INTERVAL: Duration = Duration::from_secs(1);

/// The statuses written within the last second; nothing is kept of others.
#[derive(Debug, Default)]
pub struct Pace {
    last: BTreeMap<ParentRef, Instant>,
    /// Every write, oldest first.
    order: VecDeque<(Instant, ParentRef)>,
}

impl Pace {
    /// How long a status has to wait; zero if it may be written now.
    pub fn rest(&mut self, parent: &ParentRef, now: Instant) -> Duration {
        self.forget(now);
        self.last.get(parent).map_or(Duration::ZERO, |last| (*last + INTERVAL).saturating_duration_since(now))
    }

    /// A status has been written.
    pub fn wrote(&mut self, parent: &ParentRef, now: Instant) {
        self.forget(now);
        self.last.insert(parent.clone(), now);
        self.order.push_back((now, parent.clone()));
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, parent)) = self.order.pop_front_if(|(at, _)| *at + INTERVAL <= now) {
            // A later write has its own entry.
            if self.last.get(&parent) == Some(&at) {
                self.last.remove(&parent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Gvk, ObjectKey};

    fn parent(name: &str) -> ParentRef {
        let parent = ObjectKey { gvk: Gvk::new("v1", "Widget"), namespace: None, name: name.into() };
        ParentRef { plugin: "widget".into(), parent }
    }

    #[test]
    fn status_rests_for_an_interval_after_its_last_write() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.rest(&parent("a"), start), Duration::ZERO);
        pace.wrote(&parent("a"), start);
        assert_eq!(pace.rest(&parent("a"), at(300)), Duration::from_millis(700));
        assert_eq!(pace.rest(&parent("b"), at(300)), Duration::ZERO);
        // A transition does not wait, and the next write does from then on.
        pace.wrote(&parent("a"), at(400));
        assert_eq!(pace.rest(&parent("a"), at(1_000)), Duration::from_millis(400));
        assert_eq!(pace.rest(&parent("a"), at(1_400)), Duration::ZERO);
    }

    #[test]
    fn nothing_is_kept_for_longer_than_an_interval() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        (0..100).for_each(|n: u32| pace.wrote(&parent(&n.to_string()), start));
        for n in 0..100 {
            pace.wrote(&parent("often"), start + Duration::from_millis(n));
        }
        assert_eq!((pace.last.len(), pace.order.len()), (101, 200));
        pace.rest(&parent("often"), start + INTERVAL + Duration::from_millis(50));
        assert_eq!((pace.last.len(), pace.order.len()), (1, 49));
        pace.rest(&parent("often"), start + 2 * INTERVAL);
        assert_eq!((pace.last.len(), pace.order.len()), (0, 0));
    }
}
