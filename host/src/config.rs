//! Flags and limits, parsed once; every limit with its reason.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// How this host runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The namespace whose labelled ConfigMaps are plugins.
    pub namespace: String,
    /// Reconciles at the same time; below the guest pool's size.
    pub workers: usize,
    /// Where compiled code is kept between starts.
    pub cache_dir: PathBuf,
    /// Where `/metrics`, `/livez`, `/readyz` and `/explain` are served.
    pub admin: SocketAddr,
    /// About how often each watch is compared with what there is.
    pub audit_interval: Duration,
    /// What plugins may use unless their `Plugin` says otherwise.
    pub limits: Limits,
}

/// What one plugin may use. Each limit has a metric and a message that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of a component, decompressed. Rust guests have 50 to 150 KB, `QuickJS` 1.6 MB; above, compiling
    /// takes seconds.
    pub component_bytes: usize,
    /// Functions of a component, those of nested modules too. A Rust guest has a thousand, an interpreter thirty
    /// thousand; beyond, compiling is a matter of minutes.
    pub functions: usize,
    /// Code of one function: compiling takes more than linear time of it.
    pub function_bytes: usize,
    /// Modules of a component: a guest with an adapter has four.
    pub modules: usize,
    /// Modules and components in components, one in the other.
    pub nesting: usize,
    /// Imports and exports of a component, those of nested modules too. A guest with WASI has some hundreds.
    pub names: usize,
    /// Linear memory of one call, all memories together.
    pub memory_bytes: usize,
    /// Fuel of one call: deterministic, about 12 G units a second on a current core. A reconcile of a 4 KB
    /// object takes 0.3 M.
    pub fuel: u64,
    /// Wall time of one call, so that a starved machine cannot hold a worker for ever.
    pub deadline: Duration,
    /// All text of one answer together; checked before it is parsed.
    pub output_bytes: usize,
    /// Children of one plan.
    pub children: usize,
    /// Conditions of one plan. With messages as long as they may be, this many come near the 1.5 MiB that etcd
    /// takes for one object; people read a handful.
    pub conditions: usize,
    /// Events of one plan.
    pub events: usize,
    /// Log text of one call; the rest is dropped and counted.
    pub log_bytes: usize,
    /// Log lines of one call: each is an entry in the host's log, whatever its length.
    pub log_lines: usize,
    /// Reads of one call: each is a subscription that the host keeps.
    pub reads: usize,
    /// Text handed to the guest by the reads of one call.
    pub read_bytes: usize,
    /// Plans for one parent within a minute that differ from the one before though nothing did but the time and
    /// the plugin's own writes; one with other children counts twice. A guest that settles needs two or three.
    pub unsettled_plans: usize,
    /// Wall time for compiling a component, in a child process.
    pub compile_time: Duration,
    /// Address space for compiling a component, in a child process.
    pub compile_memory_bytes: u64,
}

impl Limits {
    /// What applies where nobody said otherwise.
    pub const STANDARD: Self = Self {
        component_bytes: 16 << 20,
        functions: 200_000,
        function_bytes: 1 << 20,
        modules: 64,
        nesting: 8,
        names: 10_000,
        memory_bytes: 64 << 20,
        fuel: 2_000_000_000,
        deadline: Duration::from_secs(5),
        output_bytes: 8 << 20,
        children: 1_000,
        conditions: 64,
        events: 32,
        log_bytes: 64 << 10,
        log_lines: 1_000,
        reads: 1_000,
        read_bytes: 32 << 20,
        unsettled_plans: 10,
        compile_time: Duration::from_mins(1),
        compile_memory_bytes: 4 << 30,
    };
}
