//! Wiring: builds every part, connects them, runs until told to stop, and stops in order.

mod changes;
mod upkeep;
mod worker;

use crate::{
    act::{contested::Contests, events::Events},
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
        explain::{Explain, Question},
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
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle, JoinSet},
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
    let running = start(config, client, metrics).await?;
    stop.await;
    info!("stopping");
    running.stop().await;
    info!("stopped");
    Ok(())
}

/// The tasks of a host that runs, in the order in which they end.
struct Running {
    stopping: watch::Sender<bool>,
    workers: JoinSet<()>,
    rollout: JoinHandle<()>,
    upkeep: JoinHandle<()>,
    watches: Arc<Watches>,
    events: JoinHandle<()>,
    admin: JoinHandle<()>,
}

async fn start(config: Config, client: Client, metrics: Arc<Metrics>) -> Result<Running, Error> {
    let config = Arc::new(config);
    let engine = Engine::new(&config).map_err(Error::Engine)?;
    let registry = Arc::new(Registry::default());
    let memos = Arc::new(Memos::default());
    let pending = Arc::new(Pending::default());
    // Jitter must differ between replicas and starts, not within a test's history: the start time will do.
    let dispatch = Arc::new(Dispatch::new(jiff::Timestamp::now().as_nanosecond() as u64));
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
    let watches =
        Arc::new(Watches::new(client.clone(), discovery.clone(), cache.clone(), on_change, on_state));
    let (events, events_task) = Events::start(&client);
    let events = Arc::new(events);
    let (stopping, stopped) = watch::channel(false);

    let ready = {
        let (cache, watches, namespace) = (cache.clone(), watches.clone(), config.namespace.clone());
        move || {
            let snapshot = cache.snapshot();
            let needed = [config_maps_watch(&namespace), plugins_watch()];
            let unsynced = needed.iter().find(|watch| !snapshot.is_synced(watch));
            unsynced.map_or(Ok(()), |watch| Err(waits_for(watch, watches.state(watch).as_ref())))
        }
    };
    let depth = {
        let (dispatch, watches, metrics) = (changes.dispatch.clone(), watches.clone(), metrics.clone());
        move || {
            metrics.watches_counted(&watches.counts());
            dispatch.depth()
        }
    };
    let journal = Arc::new(Journal::default());
    let explain = {
        let (registry, cache, memos) = (registry.clone(), cache.clone(), memos.clone());
        let (dispatch, journal) = (changes.dispatch.clone(), journal.clone());
        let explain = Explain { registry, cache, memos, dispatch, journal };
        move |question: &Question| explain.answer(question)
    };
    let admin = admin::serve(config.admin, metrics.clone(), ready, depth, explain, stopped.clone())
        .await
        .map_err(|source| Error::Admin { address: config.admin, source })?;

    for key in [config_maps_watch(&config.namespace), plugins_watch()] {
        watches.acquire("oarlock", &key);
    }
    let rollout = Rollout {
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
    let upkeep = upkeep::start(&rollout, stopped.clone());
    let rollout = tokio::spawn(rollout.run(stopped.clone()));
    let reconciler = Arc::new(Reconciler {
        config: config.clone(),
        client,
        discovery,
        cache,
        memos,
        registry,
        pending: changes.pending.clone(),
        pace: Mutex::default(),
        events,
        metrics,
        stability: Mutex::default(),
        contests: Contests::default(),
        doubts: Doubts::default(),
    });
    let mut workers = JoinSet::new();
    for _ in 0..config.workers {
        let (dispatch, journal) = (changes.dispatch.clone(), journal.clone());
        workers.spawn(worker::run(reconciler.clone(), dispatch, journal, stopped.clone()));
    }
    info!(namespace = config.namespace, admin = %config.admin, workers = config.workers, "host runs");
    Ok(Running { stopping, workers, rollout, upkeep, watches, events: events_task, admin })
}

impl Running {
    async fn stop(mut self) {
        // Nobody is left to receive it only if everything has ended already.
        let _ = self.stopping.send(true);
        let ended = tokio::time::timeout(GRACE, async {
            while let Some(ended) = self.workers.join_next().await {
                said("worker", ended);
            }
        });
        if ended.await.is_err() {
            warn!("reconciles still in flight are dropped; a restart plans them again");
            self.workers.shutdown().await;
        }
        said("rollout", self.rollout.await);
        said("upkeep", self.upkeep.await);
        self.watches.stop().await;
        // Everyone who records events is gone by now: the last ones are written, and the task ends.
        if let Ok(ended) = tokio::time::timeout(GRACE, self.events).await {
            said("events", ended);
        } else {
            warn!("events that were still to be written are dropped");
        }
        said("admin", self.admin.await);
    }
}

fn said(task: &'static str, ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(task, %error, "a task ended with a panic");
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
