//! Wiring: builds every part, connects them, runs until told to stop, and stops in order.

mod changes;
mod upkeep;
mod worker;

use crate::{
    act::{contested::Contests, events::Events},
    clock::Clock,
    config::Config,
    decide::guest::engine::Engine,
    dispatch::Dispatch,
    observe::{
        cache::{Cache, OnChange},
        client::Client,
        discovery::Discovery,
        reads::Memos,
        watch::{OnState, WatchKey, WatchState, Watches},
    },
    operate::{
        admin,
        explain::{Explain, Explanation, Problem, Question},
        journal::Journal,
        metrics::Metrics,
    },
    plugins::{
        Registry,
        rollout::{Pending, Rollout, config_maps_watch, plugins_watch},
    },
    reconcile::{Doubts, Reconciler},
};
use changes::Changes;
use fastrand::Rng;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tracing::{error, info, warn};

/// How long reconciles in flight may take to end once the host is told to stop; below the kubelet's 30 s.
const GRACE: Duration = Duration::from_secs(5);

/// Why the host cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sandbox.
    #[error("the sandbox cannot be set up")]
    Engine(#[source] crate::decide::guest::engine::Error),
    /// The admin endpoint.
    #[error("cannot serve metrics and health on {address}; choose another with --admin")]
    Admin {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// What a host is made of that differs between a cluster and a simulation.
pub struct Parts {
    /// Flags and limits.
    pub config: Config,
    /// The way to the API server.
    pub client: Client,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The sandbox.
    pub engine: Engine,
    /// The time that people read.
    pub clock: Clock,
    /// Of everything that is left to chance: waits.
    pub seed: u64,
}

/// Runs the host until `stop` resolves.
///
/// # Errors
/// Only what stands against starting; afterwards everything that goes wrong is retried and said.
pub async fn run(
    config: Config,
    client: Client,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let address = config.admin;
    let engine = Engine::new(&config).map_err(Error::Engine)?;
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Admin { address, source })?;
    // Waits must differ between replicas and starts.
    let seed = fastrand::u64(..);
    let running = start(Parts { config, client, metrics, engine, clock: Clock::System, seed });
    let admin = running.serve(listener);
    info!(%address, "metrics, health and explanations are served");
    stop.await;
    info!("stopping");
    running.stop().await;
    if let Err(error) = admin.await {
        error!(%error, "the admin endpoint ended with a panic");
    }
    info!("stopped");
    Ok(())
}

/// A host that runs. Dropping it ends all of its tasks at their next wait, as a crash does.
pub struct Running {
    stopping: watch::Sender<bool>,
    // The tasks, in the order in which they end.
    workers: JoinSet<()>,
    rollout: JoinSet<()>,
    upkeep: JoinSet<()>,
    watches: Arc<Watches>,
    events: JoinSet<()>,
    metrics: Arc<Metrics>,
    explain: Arc<Explain>,
    namespace: String,
}

/// Starts a host.
pub fn start(parts: Parts) -> Running {
    let Parts { config, client, metrics, engine, clock, seed } = parts;
    let mut chance = Rng::with_seed(seed);
    let config = Arc::new(config);
    let registry = Arc::new(Registry::default());
    let memos = Arc::new(Memos::default());
    let pending = Arc::new(Pending::default());
    let dispatch = Arc::new(Dispatch::new(chance.u64(..)));
    let changes = Changes {
        registry: registry.clone(),
        memos: memos.clone(),
        pending,
        dispatch,
        config: config.clone(),
    };
    let changes = Arc::new(changes);
    let on_change: OnChange = {
        let changes = changes.clone();
        Arc::new(move |all| all.iter().for_each(|change| changes.changed(change)))
    };
    let cache = Arc::new(Cache::new(on_change.clone()));
    let discovery = Arc::new(Discovery::new(client.clone()));
    let on_state: OnState = {
        let (changes, metrics) = (changes.clone(), metrics.clone());
        Arc::new(move |watch, state| changes.state_changed(&metrics, watch, state))
    };
    let watches = Arc::new(Watches::new(
        client.clone(),
        discovery.clone(),
        cache.clone(),
        on_change,
        on_state,
        chance.u64(..),
    ));
    let (events, events_task) = Events::new(&client);
    let events = Arc::new(events);
    let (stopping, stopped) = watch::channel(false);
    let journal = Arc::new(Journal::default());
    let explain = Arc::new(Explain {
        clock: clock.clone(),
        registry: registry.clone(),
        cache: cache.clone(),
        memos: memos.clone(),
        dispatch: changes.dispatch.clone(),
        journal: journal.clone(),
    });

    for key in [config_maps_watch(&config.namespace), plugins_watch()] {
        watches.acquire("oarlock", &key);
    }
    let rollout = Rollout {
        clock: clock.clone(),
        config: config.clone(),
        client: client.clone(),
        discovery: discovery.clone(),
        cache: cache.clone(),
        watches: watches.clone(),
        memos: memos.clone(),
        dispatch: changes.dispatch.clone(),
        registry: registry.clone(),
        engine,
        events: events.clone(),
        metrics: metrics.clone(),
        pending: changes.pending.clone(),
    };
    let upkeep = JoinSet::from_iter([upkeep::run(&rollout, stopped.clone())]);
    let rollout = JoinSet::from_iter([rollout.run(stopped.clone())]);
    let reconciler = Arc::new(Reconciler {
        clock,
        config: config.clone(),
        client,
        discovery,
        cache,
        memos,
        registry,
        pending: changes.pending.clone(),
        pace: Mutex::default(),
        events,
        metrics: metrics.clone(),
        stability: Mutex::default(),
        contests: Contests::default(),
        doubts: Doubts::default(),
    });
    let worker =
        |_| worker::run(reconciler.clone(), changes.dispatch.clone(), journal.clone(), stopped.clone());
    let workers = (0..config.workers).map(worker).collect();
    info!(namespace = config.namespace, workers = config.workers, "host runs");
    let namespace = config.namespace.clone();
    let events = JoinSet::from_iter([events_task]);
    Running { stopping, workers, rollout, upkeep, watches, events, metrics, explain, namespace }
}

impl Running {
    /// What is known of an object.
    ///
    /// # Errors
    /// There is no such kind or object here; with what to do about it.
    pub fn explain(&self, question: &Question) -> Result<Explanation, Problem> {
        self.explain.answer(question)
    }

    /// Serves metrics, health and explanations until the host is told to stop.
    fn serve(&self, listener: TcpListener) -> JoinHandle<()> {
        let ready = {
            let (cache, watches) = (self.explain.cache.clone(), self.watches.clone());
            let needed = [config_maps_watch(&self.namespace), plugins_watch()];
            move || {
                let snapshot = cache.snapshot();
                let unsynced = needed.iter().find(|watch| !snapshot.is_synced(watch));
                unsynced.map_or(Ok(()), |watch| Err(waits_for(watch, watches.state(watch).as_ref())))
            }
        };
        let depth = {
            let (dispatch, watches, metrics) =
                (self.explain.dispatch.clone(), self.watches.clone(), self.metrics.clone());
            move || {
                metrics.watches_counted(&watches.counts());
                dispatch.depth()
            }
        };
        let explain = self.explain.clone();
        let explain = move |question: &Question| explain.answer(question);
        admin::serve(listener, self.metrics.clone(), ready, depth, explain, self.stopping.subscribe())
    }

    /// Ends the tasks in order: what is in flight is finished, unless it takes too long.
    pub async fn stop(self) {
        let Self { stopping, mut workers, rollout, upkeep, watches, events, explain, .. } = self;
        // Nobody is left to receive it only if everything has ended already.
        let _ = stopping.send(true);
        if timeout(GRACE, ended("worker", &mut workers)).await.is_err() {
            warn!("reconciles still in flight are dropped; a restart plans them again");
            workers.shutdown().await;
        }
        for (task, mut set) in [("rollout", rollout), ("upkeep", upkeep)] {
            ended(task, &mut set).await;
        }
        watches.stop().await;
        drop(explain);
        // Everyone who records events is gone by now: the last ones are written, and the task ends.
        let mut events = events;
        if timeout(GRACE, ended("events", &mut events)).await.is_err() {
            warn!("events that were still to be written are dropped");
        }
    }
}

/// Waits until all of a kind have ended.
async fn ended(task: &'static str, tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            error!(task, %error, "a task ended with a panic");
        }
    }
}

/// What the host itself waits for, with what to do.
fn waits_for(watch: &WatchKey, state: Option<&WatchState>) -> String {
    let gvk = &watch.gvk;
    match state {
        Some(WatchState::Missing(_)) => {
            format!("{gvk} is not served by the API server; apply its CRD, as in deploy/")
        }
        Some(WatchState::Forbidden(why)) => {
            format!("{gvk} may not be listed and watched: {why}; give the host its rights, as in deploy/")
        }
        Some(WatchState::Failing(why)) => format!("{gvk} cannot be listed: {why}"),
        Some(WatchState::Listing | WatchState::Live) | None => format!("{gvk} is being listed"),
    }
}
