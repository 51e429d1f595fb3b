//! Prometheus families, all of them, and what counts them.
//!
//! Label values are names of plugins, kinds, and words of closed lists; never an object, a namespace or a
//! message. What is kept of a plugin goes with it, so the number of series is bounded.

mod labels;
#[cfg(test)]
mod tests;

use crate::{
    act::apply::Applied,
    observe::{
        client::Answer,
        watch::{Counts, WatchKey, WatchState},
    },
    report::{Reason, Report},
};
use labels::{
    APPLY_RESULTS, Build, KindState, MEMO_RESULTS, OfKind, OfPlugin, PluginReason, PluginResult, PluginState,
    PluginVersion, RECONCILE_RESULTS, Request, WATCH_STATES, answer_result, is_guest_failure,
    reconcile_result, watch_state,
};
use prometheus_client::{
    encoding::text,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Waiting requests by plugin, due and delayed: what the queue's `depth` returns.
pub type Depth = BTreeMap<Arc<str>, (usize, usize)>;

/// From 0.1 ms, a pass that the memo answers, to 26 s, one that waits for a slow API server.
fn pass_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 4.0, 10))
}

/// From 10 µs, the fastest guests, to 10 s, twice the standard limit.
fn call_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_01, 4.0, 11))
}

/// Everything that is counted; one for the host.
pub struct Metrics {
    registry: Mutex<Registry>,
    /// Plugins in force, so that the series of an older version can go.
    plugins: Mutex<BTreeMap<String, PluginVersion>>,
    /// The state that each watch is counted in.
    watches: Mutex<BTreeMap<WatchKey, &'static str>>,
    reconciles: Family<PluginResult, Counter>,
    reconcile_seconds: Histogram,
    guest_seconds: Family<OfPlugin, Histogram>,
    guest_fuel: Family<OfPlugin, Counter>,
    guest_failures: Family<PluginReason, Counter>,
    memos: Family<PluginResult, Counter>,
    queue_depth: Family<PluginState, Gauge>,
    queue_wait_seconds: Histogram,
    applied: Family<PluginResult, Counter>,
    status_writes: Family<OfPlugin, Counter>,
    watch_restarts: Family<OfKind, Counter>,
    watch_states: Family<KindState, Gauge>,
    plugin_info: Family<PluginVersion, Gauge>,
    swap_seconds: Histogram,
    api_requests: Family<Request, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("oarlock")),
            plugins: Mutex::default(),
            watches: Mutex::default(),
            reconciles: Family::default(),
            reconcile_seconds: pass_seconds(),
            guest_seconds: Family::new_with_constructor(call_seconds),
            guest_fuel: Family::default(),
            guest_failures: Family::default(),
            memos: Family::default(),
            queue_depth: Family::default(),
            queue_wait_seconds: pass_seconds(),
            applied: Family::default(),
            status_writes: Family::default(),
            watch_restarts: Family::default(),
            watch_states: Family::default(),
            plugin_info: Family::default(),
            swap_seconds: pass_seconds(),
            api_requests: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&self) {
        let mut registry = lock(&self.registry);
        let r = &mut *registry;
        // Counters get their `_total` from the encoder.
        r.register("reconcile", "Passes over a parent, by what the queue did next", self.reconciles.clone());
        r.register("reconcile_duration_seconds", "Time of a pass", self.reconcile_seconds.clone());
        r.register("guest_call_duration_seconds", "Time of a guest's call", self.guest_seconds.clone());
        r.register("guest_fuel", "Fuel used by a guest's calls", self.guest_fuel.clone());
        r.register("guest_failures", "Calls without a valid plan, by reason", self.guest_failures.clone());
        r.register("memo", "Passes that needed no call, and those that did", self.memos.clone());
        r.register(
            "queue_depth",
            "Requests that are due, and that wait for their time",
            self.queue_depth.clone(),
        );
        r.register(
            "queue_wait_seconds",
            "Time a due request waited for a worker",
            self.queue_wait_seconds.clone(),
        );
        r.register("apply", "Children, by what was done with them", self.applied.clone());
        r.register("status_writes", "Writes of a parent's status", self.status_writes.clone());
        r.register("watch_restarts", "Watches that were opened again", self.watch_restarts.clone());
        r.register("watch_state", "Watches of a kind in a state", self.watch_states.clone());
        r.register("plugin_info", "The versions in force", self.plugin_info.clone());
        r.register(
            "plugin_swap_seconds",
            "Time from new content to its version in force",
            self.swap_seconds.clone(),
        );
        r.register(
            "api_requests",
            "Requests to the API server, by verb and answer",
            self.api_requests.clone(),
        );
        r.register(
            "build",
            "The version of this host",
            Info::new(Build { version: env!("CARGO_PKG_VERSION") }),
        );
    }

    /// A pass is over.
    pub fn reconciled(&self, report: &Report, duration: Duration) {
        let result = reconcile_result(report.outcome);
        count(&self.reconciles, &report.plugin, result, 1);
        self.reconcile_seconds.observe(duration.as_secs_f64());
        count(&self.applied, &report.plugin, "pruned", report.pruned.len());
        if let Some((reason, _)) = &report.failure
            && is_guest_failure(*reason)
        {
            let labels = PluginReason { plugin: report.plugin.to_string(), reason: reason.as_str() };
            self.guest_failures.get_or_create(&labels).inc();
        }
    }

    /// A pass ended in a panic.
    pub fn panicked(&self, plugin: &str) {
        count(&self.reconciles, plugin, "panic", 1);
    }

    /// A request was due for so long before a worker took it.
    pub fn waited(&self, time: Duration) {
        self.queue_wait_seconds.observe(time.as_secs_f64());
    }

    /// The memo was asked for a plan.
    pub fn memo(&self, plugin: &str, hit: bool) {
        count(&self.memos, plugin, if hit { "hit" } else { "miss" }, 1);
    }

    /// A guest was called.
    pub fn guest_call(&self, plugin: &str, duration: Duration, fuel: u64) {
        let labels = of_plugin(plugin);
        self.guest_seconds.get_or_create(&labels).observe(duration.as_secs_f64());
        self.guest_fuel.get_or_create(&labels).inc_by(fuel);
    }

    /// The children of a plan were applied, or not.
    pub fn applied(&self, plugin: &str, applied: &Applied) {
        count(&self.applied, plugin, "created", applied.created.len());
        count(&self.applied, plugin, "updated", applied.updated.len());
        count(&self.applied, plugin, "unchanged", applied.unchanged);
        count(&self.applied, plugin, "awaited", applied.awaited.len());
        count(&self.applied, plugin, "failed", applied.failed.len());
    }

    /// A parent's status was written.
    pub fn status_written(&self, plugin: &str) {
        self.status_writes.get_or_create(&of_plugin(plugin)).inc();
    }

    /// A watch is in another state.
    pub fn watch_state(&self, watch: &WatchKey, state: &WatchState) {
        let state = watch_state(state);
        let mut watches = lock(&self.watches);
        if let Some(before) = watches.insert(watch.clone(), state) {
            self.watches_in(watch, before).dec();
        }
        self.watches_in(watch, state).inc();
    }

    /// Nobody wants a watch any more.
    pub fn watch_gone(&self, watch: &WatchKey) {
        let mut watches = lock(&self.watches);
        let Some(before) = watches.remove(watch) else { return };
        self.watches_in(watch, before).dec();
        if !watches.keys().any(|other| other.gvk == watch.gvk) {
            let kind = watch.gvk.to_string();
            self.watch_restarts.remove(&OfKind { kind: kind.clone() });
            for state in WATCH_STATES {
                self.watch_states.remove(&KindState { kind: kind.clone(), state });
            }
        }
    }

    fn watches_in(&self, watch: &WatchKey, state: &'static str) -> Gauge {
        self.watch_states.get_or_create_owned(&KindState { kind: watch.gvk.to_string(), state })
    }

    /// How often watches have been opened so far; asked at each scrape.
    pub fn watches_counted(&self, counts: &[(WatchKey, Counts)]) {
        let mut restarts: BTreeMap<String, u64> = BTreeMap::new();
        for (watch, counts) in counts {
            // The first opening is no restart.
            *restarts.entry(watch.gvk.to_string()).or_default() += counts.watches.saturating_sub(1);
        }
        for (kind, restarts) in restarts {
            let counter = self.watch_restarts.get_or_create_owned(&OfKind { kind });
            // A counter never goes back, though a watch that ended takes its count along.
            counter.inc_by(restarts.saturating_sub(counter.get()));
        }
    }

    /// A request to the API server was answered. `verb` is one of the client's.
    pub fn api_request(&self, verb: &'static str, answer: Result<(), &Answer>) {
        let result = answer.map_or_else(answer_result, |()| "ok");
        self.api_requests.get_or_create(&Request { verb, result }).inc();
    }

    /// A version of a plugin is in force.
    pub fn plugin_active(&self, plugin: &str, version: &str, digest: &str) {
        let labels = PluginVersion {
            plugin: plugin.to_owned(),
            version: version.to_owned(),
            digest: digest.to_owned(),
        };
        let mut plugins = lock(&self.plugins);
        if let Some(before) = plugins.insert(plugin.to_owned(), labels.clone()) {
            self.plugin_info.remove(&before);
        }
        self.plugin_info.get_or_create(&labels).set(1);
    }

    /// So long after its content was seen, a version was in force.
    pub fn plugin_swapped(&self, time: Duration) {
        self.swap_seconds.observe(time.as_secs_f64());
    }

    /// A plugin is no longer in force: what was counted for it goes.
    pub fn plugin_inactive(&self, plugin: &str) {
        if let Some(labels) = lock(&self.plugins).remove(plugin) {
            self.plugin_info.remove(&labels);
        }
        let labels = of_plugin(plugin);
        self.guest_seconds.remove(&labels);
        self.guest_fuel.remove(&labels);
        self.status_writes.remove(&labels);
        let results = |family: &Family<PluginResult, Counter>, results: &[&'static str]| {
            for result in results {
                family.remove(&PluginResult { plugin: plugin.to_owned(), result });
            }
        };
        results(&self.reconciles, &RECONCILE_RESULTS);
        results(&self.memos, &MEMO_RESULTS);
        results(&self.applied, &APPLY_RESULTS);
        for reason in Reason::ALL {
            self.guest_failures.remove(&PluginReason { plugin: plugin.to_owned(), reason: reason.as_str() });
        }
    }

    /// All of it, as text in the format of `OpenMetrics`.
    pub fn render(&self, depth: &Depth) -> String {
        // Held to the end: one scrape at a time, as each sets the depths.
        let registry = lock(&self.registry);
        self.queue_depth.clear();
        for (plugin, (due, delayed)) in depth {
            for (state, count) in [("due", *due), ("delayed", *delayed)] {
                self.queue_depth
                    .get_or_create(&PluginState { plugin: plugin.to_string(), state })
                    .set(count as i64);
            }
        }
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("writing to a string does not fail");
        text
    }
}

fn of_plugin(plugin: &str) -> OfPlugin {
    OfPlugin { plugin: plugin.to_owned() }
}

fn count(family: &Family<PluginResult, Counter>, plugin: &str, result: &'static str, by: usize) {
    if by > 0 {
        family.get_or_create(&PluginResult { plugin: plugin.to_owned(), result }).inc_by(by as u64);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A figure that is off by one is better than a host that stops counting.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
