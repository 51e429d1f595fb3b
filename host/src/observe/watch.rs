//! One list-and-watch loop per (kind, scope), shared by all plugins, started and stopped at run time.
//!
//! A loop lists completely, mirrors the list, and follows it from its version on. What it does after each step
//! is decided in `health`, without I/O; `follow` only does the steps.

mod audit;
mod follow;
mod health;
#[cfg(test)]
mod tests;

use super::{
    cache::{Cache, Change},
    client::{Client, Scope},
    discovery::Discovery,
};
use crate::object::Gvk;
use fastrand::Rng;
use follow::{Alive, Shared};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinSet},
};

/// Names one watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchKey {
    /// The kind.
    pub gvk: Gvk,
    /// Which of its objects.
    pub scope: Scope,
}

/// How a watch is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchState {
    /// The first list is on its way.
    Listing,
    /// Listed once, and followed since.
    Live,
    /// The kind is not served.
    Missing(String),
    /// Listing or watching is forbidden; which right is missing.
    Forbidden(String),
    /// The API server fails, or cannot be reached; tried again with back-off.
    Failing(String),
}

/// What a watch had to do since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Complete lists.
    pub lists: u64,
    /// Watches that were opened, also to resume.
    pub watches: u64,
    /// Connections that went silent.
    pub silences: u64,
    /// Histories that went backwards (etcd restored from a backup).
    pub other_histories: u64,
    /// Lists of metadata that it was compared with.
    pub audits: u64,
    /// Changes that it had lost, found by these.
    pub lost: u64,
    /// Objects that could not be decoded.
    pub undecodable: u64,
}

/// Receives what changed, from all watches; called from the watches' tasks, so it must not block.
pub type OnChange = Arc<dyn Fn(&[Change]) + Send + Sync>;
/// Is told when a watch's state changes; called from the watches' tasks, so it must not block.
pub type OnState = Arc<dyn Fn(&WatchKey, &WatchState) + Send + Sync>;

/// All watches.
pub struct Watches {
    shared: Arc<Shared>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Makes the waits of each watch repeatable.
    rng: Rng,
    running: BTreeMap<WatchKey, Running>,
    /// Every loop, also those that were told to end.
    tasks: JoinSet<()>,
}

/// A watch that somebody wants.
struct Running {
    users: BTreeSet<String>,
    alive: Arc<Alive>,
    task: AbortHandle,
}

impl Watches {
    /// Watches nothing yet; `seed` makes waits repeatable.
    pub fn new(
        client: Client,
        discovery: Arc<Discovery>,
        cache: Arc<Cache>,
        on_change: OnChange,
        on_state: OnState,
        seed: u64,
    ) -> Self {
        Self {
            shared: Arc::new(Shared { client, discovery, cache, on_change, on_state, doubts: Notify::new() }),
            inner: Mutex::new(Inner {
                rng: Rng::with_seed(seed),
                running: BTreeMap::new(),
                tasks: JoinSet::new(),
            }),
        }
    }

    /// Wants a watch for somebody, by name: the first starts it.
    pub fn acquire(&self, user: &str, key: &WatchKey) {
        let mut inner = self.lock();
        let Inner { rng, running, tasks } = &mut *inner;
        // Loops that have ended since: each catches its own panics, so there is nothing to learn from them.
        while tasks.try_join_next().is_some() {}
        let watch = running.entry(key.clone()).or_insert_with(|| {
            let alive = Arc::new(Alive::new());
            self.shared.cache.open(key);
            let task = tasks.spawn(follow::run(
                Arc::clone(&self.shared),
                key.clone(),
                Arc::clone(&alive),
                rng.u64(..),
            ));
            Running { users: BTreeSet::new(), alive, task }
        });
        watch.users.insert(user.to_owned());
    }

    /// Does not want it any more: the last stops it, and drops its objects from the cache.
    pub fn release(&self, user: &str, key: &WatchKey) {
        let mut inner = self.lock();
        let Some(watch) = inner.running.get_mut(key) else { return };
        watch.users.remove(user);
        if watch.users.is_empty() {
            watch.alive.end(|| self.shared.cache.forget(key));
            watch.task.abort();
            inner.running.remove(key);
        }
    }

    /// A kind is served: if its watch takes it for missing, it need not wait until it would look again. Whether it
    /// does.
    pub fn retry(&self, key: &WatchKey) -> bool {
        let inner = self.lock();
        let missing =
            inner.running.get(key).filter(|watch| matches!(watch.alive.state(), WatchState::Missing(_)));
        missing.inspect(|watch| watch.alive.retry.notify_one()).is_some()
    }

    /// How a watch is doing; `None` if nobody wants it.
    pub fn state(&self, key: &WatchKey) -> Option<WatchState> {
        self.lock().running.get(key).map(|watch| watch.alive.state())
    }

    /// The watches that somebody wants.
    fn wanted(&self) -> Vec<(WatchKey, Arc<Alive>)> {
        self.lock().running.iter().map(|(key, watch)| (key.clone(), Arc::clone(&watch.alive))).collect()
    }

    /// A number below 1, by chance.
    fn draw(&self) -> f64 {
        self.lock().rng.f64()
    }

    /// What each watch had to do, for metrics.
    pub fn counts(&self) -> Vec<(WatchKey, Counts)> {
        self.lock().running.iter().map(|(key, watch)| (key.clone(), watch.alive.counts())).collect()
    }

    /// Ends all watches and awaits their tasks.
    pub async fn stop(&self) {
        let mut tasks = {
            let mut inner = self.lock();
            inner.running.clear();
            std::mem::take(&mut inner.tasks)
        };
        tasks.shutdown().await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
