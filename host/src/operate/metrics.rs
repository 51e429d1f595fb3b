//! Prometheus families, all of them, and what counts them.
//!
//! Label values are names of plugins, kinds, and words of closed lists; never an object, a namespace or a
//! message. Every series with values of closed lists exists before there is something to count: from the start,
//! or from a plugin's activation or a watch's start on. So the first increment is seen as one. What is kept of a
//! plugin goes with it, so the number of series is bounded.

mod labels;
#[cfg(test)]
mod tests;

use crate::{
    act::{apply::Applied, status::Written},
    config::Limits,
    decide::guest::Trace,
    observe::{
        client::Answer,
        watch::{Counts, WatchKey, WatchState},
    },
    report::{Report, StatusWrite},
};
use jiff::Timestamp;
use labels::{
    ANSWERS, APPLY_RESULTS, Build, KindState, MEMO_RESULTS, OK, OfKind, OfPlugin, PluginReason, PluginResult,
    PluginState, PluginUse, PluginVersion, RECONCILE_RESULTS, Request, STATUS_RESULTS, VERBS, WATCH_STATES,
    guest_failures, is_guest_failure, reconcile_result, usable, used, watch_state,
};
use prometheus_client::{
    encoding::text,
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};
use std::{
    collections::BTreeMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

/// Waiting requests by plugin, due and delayed: what the queue's `depth` returns.
pub type Depth = BTreeMap<Arc<str>, (usize, usize)>;

/// From 0.1 ms, a pass that the memo answers, to 26 s, one that waits for a slow API server.
fn pass_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 4.0, 10))
}

/// From 0.1 ms, a worker that was free, to 7 min, more than the longest back-off.
fn wait_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 4.0, 12))
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
    reconcile_seconds: Family<OfPlugin, Histogram>,
    last_success: Family<OfPlugin, Gauge>,
    guest_seconds: Family<OfPlugin, Histogram>,
    guest_fuel: Family<OfPlugin, Counter>,
    guest_peak: Family<PluginUse, Gauge<f64, AtomicU64>>,
    guest_limit: Family<PluginUse, Gauge<f64, AtomicU64>>,
    guest_failures: Family<PluginReason, Counter>,
    memos: Family<PluginResult, Counter>,
    plans_limited: Family<OfPlugin, Counter>,
    queue_depth: Family<PluginState, Gauge>,
    queue_wait_seconds: Family<OfPlugin, Histogram>,
    applied: Family<PluginResult, Counter>,
    status_writes: Family<PluginResult, Counter>,
    status_failures: Family<PluginReason, Counter>,
    status_conflicts: Family<OfPlugin, Counter>,
    watch_restarts: Family<OfKind, Counter>,
    watch_lists: Family<OfKind, Counter>,
    watch_audits: Family<OfKind, Counter>,
    watch_lost: Family<OfKind, Counter>,
    watch_states: Family<KindState, Gauge>,
    kind_changes: Counter,
    plugin_info: Family<PluginVersion, Gauge>,
    swap_seconds: Histogram,
    rollout_seconds: Histogram,
    rollbacks: Counter,
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
            reconcile_seconds: Family::new_with_constructor(pass_seconds),
            last_success: Family::default(),
            guest_seconds: Family::new_with_constructor(call_seconds),
            guest_fuel: Family::default(),
            guest_peak: Family::default(),
            guest_limit: Family::default(),
            guest_failures: Family::default(),
            memos: Family::default(),
            plans_limited: Family::default(),
            queue_depth: Family::default(),
            queue_wait_seconds: Family::new_with_constructor(wait_seconds),
            applied: Family::default(),
            status_writes: Family::default(),
            status_failures: Family::default(),
            status_conflicts: Family::default(),
            watch_restarts: Family::default(),
            watch_lists: Family::default(),
            watch_audits: Family::default(),
            watch_lost: Family::default(),
            watch_states: Family::default(),
            kind_changes: Counter::default(),
            plugin_info: Family::default(),
            swap_seconds: pass_seconds(),
            rollout_seconds: pass_seconds(),
            rollbacks: Counter::default(),
            api_requests: Family::default(),
        };
        for verb in VERBS {
            for result in [OK].into_iter().chain(ANSWERS) {
                begin(&metrics.api_requests, &Request { verb, result });
            }
        }
        metrics.register();
        metrics
    }

    fn register(&self) {
        let mut registry = lock(&self.registry);
        let r = &mut *registry;
        // Counters get their `_total` from the encoder.
        r.register("reconcile", "Passes over a parent, by what the queue did next", self.reconciles.clone());
        r.register("reconcile_duration_seconds", "Time of a pass", self.reconcile_seconds.clone());
        r.register(
            "last_success_timestamp_seconds",
            "When a pass that went well last began, in seconds since 1970; 0: none did so far",
            self.last_success.clone(),
        );
        r.register("guest_call_duration_seconds", "Time of a guest's call", self.guest_seconds.clone());
        r.register("guest_fuel", "Fuel used by a guest's calls", self.guest_fuel.clone());
        r.register(
            "guest_peak",
            "The most that a call used since its version is in force",
            self.guest_peak.clone(),
        );
        r.register("guest_limit", "The most that a call may use", self.guest_limit.clone());
        r.register("guest_failures", "Calls without a valid plan, by reason", self.guest_failures.clone());
        r.register("memo", "Passes that needed no call, and those that did", self.memos.clone());
        r.register(
            "plans_limited",
            "Passes without a call, as the guest's plans do not settle",
            self.plans_limited.clone(),
        );
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
        r.register(
            "status_writes",
            "Looks at a parent's status, by what became of it",
            self.status_writes.clone(),
        );
        r.register(
            "status_update_failures",
            "Statuses that were not written, or not all of them, by answer",
            self.status_failures.clone(),
        );
        r.register(
            "status_conflicts",
            "Writes of a status that met one of somebody else",
            self.status_conflicts.clone(),
        );
        r.register("watch_restarts", "Watches that were opened again", self.watch_restarts.clone());
        r.register("watch_lists", "Complete lists", self.watch_lists.clone());
        r.register("watch_audits", "Comparisons of a watch with what there is", self.watch_audits.clone());
        r.register(
            "watch_lost_changes",
            "Changes that a watch did not deliver, found by a comparison",
            self.watch_lost.clone(),
        );
        r.register("watch_state", "Watches of a kind in a state", self.watch_states.clone());
        r.register(
            "kind_changes",
            "Looks at the API server's schemas that found a kind in use changed",
            self.kind_changes.clone(),
        );
        r.register("plugin_info", "The versions in force", self.plugin_info.clone());
        r.register(
            "plugin_swap_seconds",
            "Time from new content to its version in force",
            self.swap_seconds.clone(),
        );
        r.register(
            "plugin_rollout_seconds",
            "Time from a version in force to all objects planned by it",
            self.rollout_seconds.clone(),
        );
        r.register(
            "plugin_rollbacks",
            "Versions taken back because they failed where the one before does not",
            self.rollbacks.clone(),
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

    /// Holds a plugin in force while something is counted for it; `None` if it ended meanwhile, as what is counted
    /// then would bring its series back.
    fn in_force(&self, plugin: &str) -> Option<MutexGuard<'_, BTreeMap<String, PluginVersion>>> {
        Some(lock(&self.plugins)).filter(|plugins| plugins.contains_key(plugin))
    }

    /// A pass is over that began at this time.
    pub fn reconciled(&self, report: &Report, duration: Duration, began: Timestamp) {
        let Some(_in_force) = self.in_force(&report.plugin) else { return };
        let result = reconcile_result(report.outcome);
        count(&self.reconciles, &report.plugin, result, 1);
        let labels = of_plugin(&report.plugin);
        self.reconcile_seconds.get_or_create(&labels).observe(duration.as_secs_f64());
        if report.seen.is_some() && report.failure.is_none() {
            self.last_success.get_or_create(&labels).set(began.as_second());
        }
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
        let Some(_in_force) = self.in_force(plugin) else { return };
        count(&self.reconciles, plugin, "panic", 1);
    }

    /// A request was due for so long before a worker took it.
    pub fn waited(&self, plugin: &str, time: Duration) {
        let Some(_in_force) = self.in_force(plugin) else { return };
        self.queue_wait_seconds.get_or_create(&of_plugin(plugin)).observe(time.as_secs_f64());
    }

    /// The memo was asked for a plan.
    pub fn memo(&self, plugin: &str, hit: bool) {
        let Some(_in_force) = self.in_force(plugin) else { return };
        count(&self.memos, plugin, if hit { "hit" } else { "miss" }, 1);
    }

    /// A guest was not called, as its plans do not settle.
    pub fn plan_limited(&self, plugin: &str) {
        let Some(_in_force) = self.in_force(plugin) else { return };
        self.plans_limited.get_or_create(&of_plugin(plugin)).inc();
    }

    /// A guest was called.
    pub fn guest_call(&self, plugin: &str, trace: &Trace) {
        let Some(_in_force) = self.in_force(plugin) else { return };
        let labels = of_plugin(plugin);
        self.guest_seconds.get_or_create(&labels).observe(trace.duration.as_secs_f64());
        self.guest_fuel.get_or_create(&labels).inc_by(trace.fuel);
        for (r#use, used) in used(trace) {
            let peak = self.guest_peak.get_or_create_owned(&PluginUse { plugin: plugin.to_owned(), r#use });
            // Nothing else sets it while the plugin is held in force.
            peak.set(peak.get().max(used));
        }
    }

    /// The children of a plan were applied, or not.
    pub fn applied(&self, plugin: &str, applied: &Applied) {
        let Some(_in_force) = self.in_force(plugin) else { return };
        count(&self.applied, plugin, "created", applied.created.len());
        count(&self.applied, plugin, "updated", applied.updated.len());
        count(&self.applied, plugin, "unchanged", applied.unchanged);
        count(&self.applied, plugin, "replaced", applied.replaced.len());
        count(&self.applied, plugin, "awaited", applied.awaited.len());
        count(&self.applied, plugin, "held", applied.held.len());
        count(&self.applied, plugin, "failed", applied.failed.len());
    }

    /// A parent's status was written, or not.
    pub fn status(&self, plugin: &str, written: &Written) {
        let status = written.result.as_ref().map_or(StatusWrite::Failed, |status| *status);
        if status == StatusWrite::LeftAlone {
            return;
        }
        let Some(_in_force) = self.in_force(plugin) else { return };
        count(&self.status_writes, plugin, status.as_str(), 1);
        self.status_conflicts.get_or_create(&of_plugin(plugin)).inc_by(written.conflicts.into());
        let failure = written.result.as_ref().err().map(|error| error.answer.as_str());
        if let Some(reason) = failure.or((written.refusals > 0).then_some("invalid")) {
            self.status_failures.get_or_create(&PluginReason { plugin: plugin.to_owned(), reason }).inc();
        }
    }

    /// A watch is in another state.
    pub fn watch_state(&self, watch: &WatchKey, state: &WatchState) {
        let state = watch_state(state);
        let mut watches = lock(&self.watches);
        if let Some(before) = watches.insert(watch.clone(), state) {
            self.watches_in(watch, before).dec();
        } else {
            for state in WATCH_STATES {
                self.watches_in(watch, state);
            }
            for counter in self.of_watches() {
                begin(counter, &OfKind { kind: watch.gvk.to_string() });
            }
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
            for counter in self.of_watches() {
                counter.remove(&OfKind { kind: kind.clone() });
            }
            for state in WATCH_STATES {
                self.watch_states.remove(&KindState { kind: kind.clone(), state });
            }
        }
    }

    fn watches_in(&self, watch: &WatchKey, state: &'static str) -> Gauge {
        self.watch_states.get_or_create_owned(&KindState { kind: watch.gvk.to_string(), state })
    }

    /// What is counted of each kind's watches.
    fn of_watches(&self) -> [&Family<OfKind, Counter>; 4] {
        [&self.watch_restarts, &self.watch_lists, &self.watch_audits, &self.watch_lost]
    }

    /// What watches had to do so far; asked at each scrape.
    pub fn watches_counted(&self, counts: &[(WatchKey, Counts)]) {
        let mut kinds: BTreeMap<String, [u64; 4]> = BTreeMap::new();
        for (watch, counts) in counts {
            // The first opening is no restart.
            let restarts = counts.watches.saturating_sub(1);
            let all = kinds.entry(watch.gvk.to_string()).or_default();
            for (sum, count) in all.iter_mut().zip([restarts, counts.lists, counts.audits, counts.lost]) {
                *sum += count;
            }
        }
        for (kind, sums) in kinds {
            for (family, sum) in self.of_watches().into_iter().zip(sums) {
                let counter = family.get_or_create_owned(&OfKind { kind: kind.clone() });
                // A counter never goes back, though a watch that ended takes its count along.
                counter.inc_by(sum.saturating_sub(counter.get()));
            }
        }
    }

    /// A kind in use has another schema, or other subresources.
    pub fn kind_changed(&self) {
        self.kind_changes.inc();
    }

    /// A request to the API server was answered. `verb` is one of the client's.
    pub fn api_request(&self, verb: &'static str, answer: Result<(), &Answer>) {
        let result = answer.map_or_else(Answer::as_str, |()| OK);
        self.api_requests.get_or_create(&Request { verb, result }).inc();
    }

    /// A version of a plugin is in force.
    pub fn plugin_active(&self, plugin: &str, version: &str, digest: &str, limits: &Limits) {
        let labels = PluginVersion {
            plugin: plugin.to_owned(),
            version: version.to_owned(),
            digest: digest.to_owned(),
        };
        let mut plugins = lock(&self.plugins);
        if let Some(before) = plugins.insert(plugin.to_owned(), labels.clone()) {
            self.plugin_info.remove(&before);
            if before.digest != digest {
                for labels in Self::uses(plugin) {
                    self.guest_peak.remove(&labels);
                }
            }
        }
        self.plugin_info.get_or_create(&labels).set(1);
        for (labels, (_, limit)) in Self::uses(plugin).zip(usable(limits)) {
            begin(&self.guest_peak, &labels);
            self.guest_limit.get_or_create(&labels).set(limit);
        }
        let labels = of_plugin(plugin);
        begin(&self.reconcile_seconds, &labels);
        begin(&self.queue_wait_seconds, &labels);
        begin(&self.last_success, &labels);
        begin(&self.guest_seconds, &labels);
        begin(&self.guest_fuel, &labels);
        begin(&self.plans_limited, &labels);
        begin(&self.status_conflicts, &labels);
        for (family, results) in self.by_result() {
            for result in results {
                begin(family, &PluginResult { plugin: plugin.to_owned(), result });
            }
        }
        for reason in ANSWERS {
            begin(&self.status_failures, &PluginReason { plugin: plugin.to_owned(), reason });
        }
        for reason in guest_failures() {
            begin(&self.guest_failures, &PluginReason { plugin: plugin.to_owned(), reason });
        }
    }

    /// The labels of what a plugin's calls use.
    fn uses(plugin: &str) -> impl Iterator<Item = PluginUse> {
        used(&Trace::default()).into_iter().map(|(r#use, _)| PluginUse { plugin: plugin.to_owned(), r#use })
    }

    /// What is counted by plugin and result, with all results there are.
    fn by_result(&self) -> [(&Family<PluginResult, Counter>, &'static [&'static str]); 4] {
        [
            (&self.reconciles, &RECONCILE_RESULTS),
            (&self.memos, &MEMO_RESULTS),
            (&self.applied, &APPLY_RESULTS),
            (&self.status_writes, &STATUS_RESULTS),
        ]
    }

    /// So long after its content was seen, a version was in force.
    pub fn plugin_swapped(&self, time: Duration) {
        self.swap_seconds.observe(time.as_secs_f64());
    }

    /// So long after it came into force, a version had planned all objects.
    pub fn plugin_rolled_out(&self, time: Duration) {
        self.rollout_seconds.observe(time.as_secs_f64());
    }

    /// A version was taken back.
    pub fn plugin_rolled_back(&self) {
        self.rollbacks.inc();
    }

    /// A plugin is no longer in force: what was counted for it goes.
    pub fn plugin_inactive(&self, plugin: &str) {
        let mut plugins = lock(&self.plugins);
        if let Some(labels) = plugins.remove(plugin) {
            self.plugin_info.remove(&labels);
        }
        let labels = of_plugin(plugin);
        self.reconcile_seconds.remove(&labels);
        self.queue_wait_seconds.remove(&labels);
        self.last_success.remove(&labels);
        self.guest_seconds.remove(&labels);
        self.guest_fuel.remove(&labels);
        for labels in Self::uses(plugin) {
            self.guest_peak.remove(&labels);
            self.guest_limit.remove(&labels);
        }
        self.plans_limited.remove(&labels);
        self.status_conflicts.remove(&labels);
        for (family, results) in self.by_result() {
            for result in results {
                family.remove(&PluginResult { plugin: plugin.to_owned(), result });
            }
        }
        for reason in ANSWERS {
            self.status_failures.remove(&PluginReason { plugin: plugin.to_owned(), reason });
        }
        for reason in guest_failures() {
            self.guest_failures.remove(&PluginReason { plugin: plugin.to_owned(), reason });
        }
    }

    /// All of it, as text in the format of `OpenMetrics`.
    pub fn render(&self, depth: &Depth) -> String {
        // Held to the end: one scrape at a time, as each sets the depths.
        let registry = lock(&self.registry);
        self.queue_depth.clear();
        let idle: Vec<_> = lock(&self.plugins).keys().map(|plugin| (plugin.clone(), (0, 0))).collect();
        let waiting = depth.iter().map(|(plugin, counts)| (plugin.to_string(), *counts));
        for (plugin, (due, delayed)) in idle.into_iter().chain(waiting) {
            for (state, count) in [("due", due), ("delayed", delayed)] {
                let labels = PluginState { plugin: plugin.clone(), state };
                self.queue_depth.get_or_create(&labels).set(count as i64);
            }
        }
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("writing to a string does not fail");
        text
    }
}

/// Makes a series exist; a new one is zero.
fn begin<L: Clone + Hash + Eq, M, C: MetricConstructor<M>>(family: &Family<L, M, C>, labels: &L) {
    drop(family.get_or_create(labels));
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
