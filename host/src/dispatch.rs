//! Drives the queue: gives it the time, wakes workers, and lets them sleep until something is due.

use crate::{
    observe::reads::ParentRef,
    report::{Outcome, Trigger},
    schedule::queue::{Look, Now, Queue, Request},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// The queue with its clock.
pub struct Dispatch {
    queue: Mutex<Queue>,
    start: Instant,
    wake: Notify,
}

impl Dispatch {
    /// An empty queue; `seed` makes its jitter repeatable.
    pub fn new(seed: u64) -> Self {
        Self { queue: Mutex::new(Queue::new(seed)), start: Instant::now(), wake: Notify::new() }
    }

    /// The queue's time.
    pub fn now(&self) -> Now {
        self.start.elapsed()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The queue holds no invariant across calls that a panic could break half-way.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds requests and wakes workers.
    pub fn add(&self, requests: impl IntoIterator<Item = (ParentRef, Trigger)>) {
        let now = self.now();
        let mut added = 0;
        {
            let mut queue = self.queue();
            for (parent, trigger) in requests {
                queue.add(parent, trigger, now);
                added += 1;
            }
        }
        if added > 0 {
            // One worker is enough: whoever takes a request wakes the next.
            self.wake.notify_one();
        }
    }

    /// The next request; waits until one is due. Dropping the future loses nothing.
    pub async fn take(&self) -> Request {
        loop {
            let due = {
                let now = self.now();
                let mut queue = self.queue();
                if let Some(request) = queue.take(now) {
                    drop(queue);
                    self.wake.notify_one();
                    return request;
                }
                queue.next_due()
            };
            match due {
                Some(due) => {
                    tokio::select! {
                        biased;
                        () = self.wake.notified() => {}
                        () = tokio::time::sleep_until(self.start + due) => {}
                    }
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// Reports what a request came to, and when to look again at the latest.
    pub fn finish(&self, parent: &ParentRef, outcome: Outcome, look_again: Option<Duration>) {
        let now = self.now();
        self.queue().finish(parent, outcome, look_again, now);
        self.wake.notify_one();
    }

    /// Forgets a plugin's requests.
    pub fn forget_plugin(&self, plugin: &str) {
        self.queue().forget_plugin(plugin);
    }

    /// How a parent stands in the queue; `None` if it is at rest.
    pub fn look(&self, parent: &ParentRef) -> Option<Look> {
        self.queue().look(parent)
    }

    /// Waiting requests by plugin: due and delayed.
    pub fn depth(&self) -> BTreeMap<Arc<str>, (usize, usize)> {
        self.queue().depth()
    }
}
