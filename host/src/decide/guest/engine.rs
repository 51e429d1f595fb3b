//! The one wasmtime engine of the process, with its pool.
//!
//! In: how many calls run at the same time. Out: an engine that gives every call a fresh instance within
//! microseconds, and never more instances than the pool holds.

use super::{code_cache::CodeCache, imports, imports::State};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;
use wasmtime::{
    Config, InstanceAllocationStrategy, PoolingAllocationConfig,
    component::{Component, Linker},
};

/// Fuel between two points where a call gives way to other tasks: about a millisecond, so that a long call
/// neither holds a worker nor outlives its deadline.
pub(super) const YIELD_INTERVAL: u64 = 10_000_000;
/// Handles of a store. Only WASI uses any, and a guest with a stream for each of its outputs has three.
pub(super) const HANDLES: usize = 1_000;

/// A component is untrusted structure: without these caps it may ask for as many parts as it likes. Rust
/// guests have one memory and four core instances, `QuickJS` three memories.
const CORE_INSTANCES: u32 = 64;
const MEMORIES: u32 = 4;
const TABLES: u32 = 16;
/// Interpreters need about 100,000 elements.
pub(super) const TABLE_ELEMENTS: usize = 100_000;
/// Metadata of one instance; interpreters with thousands of functions need some.
const INSTANCE_BYTES: usize = 16 << 20;

/// What a call of an SDK guest dirties (stack of 64 KiB, data, arena) is cleared by hand rather than given back
/// to the system: no system call and no page fault per call.
const MEMORY_RESIDENT: usize = 256 << 10;
const TABLE_RESIDENT: usize = 64 << 10;

/// Slots of the pool above the number of calls: the pool fails where the semaphore waits.
const SPARE: u32 = 2;

/// Components compiled at the same time: compiling takes a core and hundreds of megabytes, and reconciles of
/// other plugins go on meanwhile.
const COMPILES: usize = 2;

/// How much address space each memory gets. Compiled code depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// 4 GiB, so that the processor checks bounds.
    Full,
    /// 256 MiB with checks in the code, where a limit on the address space forbids more.
    Small,
    /// As it grows and without a pool, where even that is too much.
    None,
}

impl Reservation {
    const ALL: [Self; 3] = [Self::Full, Self::Small, Self::None];
    const SMALL_BYTES: usize = 256 << 20;

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Small => "small",
            Self::None => "none",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reservation| reservation.as_str() == text)
    }
}

/// What compiles a component, and whether the rest of what takes long goes to a thread of its own.
#[derive(Debug)]
pub(super) enum Compiler {
    /// A program, called with `compile`: within limits, and not in this process.
    Program(PathBuf),
    /// This very task, see [`Engine::simulated`]. What it has loaded, by digest.
    Here(Mutex<BTreeMap<String, Component>>),
}

/// The engine, its pool, its linkers and its code cache.
#[derive(Clone)]
pub struct Engine(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) wasmtime: wasmtime::Engine,
    /// With the contract's imports only.
    pub(super) plain: Linker<State>,
    /// With the sealed WASI too.
    pub(super) wasi: Linker<State>,
    /// One permit per running call.
    pub(super) calls: Semaphore,
    pub(super) compiles: Semaphore,
    pub(super) reservation: Reservation,
    /// What compiles.
    pub(super) compiler: Compiler,
    pub(super) codes: Option<CodeCache>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("reservation", &self.0.reservation).finish_non_exhaustive()
    }
}

/// Why there is no engine: nothing can run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// wasmtime refuses its settings, or the system gives too little address space.
    #[error("cannot set up the sandbox for {calls} calls at the same time: {message}")]
    Setup {
        /// How many calls it was for.
        calls: usize,
        /// What wasmtime says.
        message: String,
    },
    /// Where this program lies is not known.
    #[error("cannot tell which program is running, so it cannot be called to compile")]
    Compiler(#[source] std::io::Error),
}

impl Engine {
    /// Makes the engine of a host: a call for each worker, and this program itself as the compiler.
    ///
    /// # Errors
    /// wasmtime cannot run here at all.
    pub fn new(config: &crate::config::Config) -> Result<Self, Error> {
        let compiler = std::env::current_exe().map_err(Error::Compiler)?;
        Self::with(config.workers, Some(&config.cache_dir), compiler)
    }

    /// Makes an engine for `calls` calls at the same time.
    ///
    /// Compiled code is kept in a folder of its own under `cache_dir`; without one, and where that folder cannot
    /// be used, every load compiles. `compiler` is the program called with `compile` as its only argument.
    ///
    /// # Errors
    /// wasmtime cannot run here at all.
    pub fn with(calls: usize, cache_dir: Option<&Path>, compiler: PathBuf) -> Result<Self, Error> {
        Self::assemble(calls, cache_dir, Compiler::Program(compiler))
    }

    /// Makes an engine for simulations: nothing leaves the task that calls, as no seed decides when a thread or a
    /// process is done; no limit holds while a component is compiled, so it must be trusted; and every call is made
    /// twice, which must come to the same.
    ///
    /// # Errors
    /// wasmtime cannot run here at all.
    pub fn simulated(calls: usize, cache_dir: &Path) -> Result<Self, Error> {
        Self::assemble(calls, Some(cache_dir), Compiler::Here(Mutex::default()))
    }

    fn assemble(calls: usize, cache_dir: Option<&Path>, compiler: Compiler) -> Result<Self, Error> {
        let calls = calls.max(1);
        let failed = |source: &wasmtime::Error| Error::Setup { calls, message: format!("{source:#}") };
        let (reservation, wasmtime) = allocate(calls).map_err(|source| failed(&source))?;
        let plain = imports::contract_linker(&wasmtime).map_err(|source| failed(&source))?;
        let wasi = imports::wasi_linker(&wasmtime).map_err(|source| failed(&source))?;
        let codes = cache_dir.map(|dir| CodeCache::new(dir, &wasmtime));
        Ok(Self(Arc::new(Inner {
            wasmtime,
            plain,
            wasi,
            calls: Semaphore::new(calls),
            compiles: Semaphore::new(COMPILES),
            reservation,
            compiler,
            codes,
        })))
    }

    /// Whether this is one for simulations.
    pub(super) fn is_simulated(&self) -> bool {
        matches!(self.0.compiler, Compiler::Here(_))
    }

    /// A component that a simulation has loaded before.
    pub(super) fn kept(&self, digest: &str) -> Option<Component> {
        let Compiler::Here(loaded) = &self.0.compiler else { return None };
        loaded.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    /// Keeps a component if this is a simulation: thousands of hosts load the same few.
    pub(super) fn keep(&self, digest: &str, component: &Component) {
        if let Compiler::Here(loaded) = &self.0.compiler {
            let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
            loaded.insert(digest.to_owned(), component.clone());
        }
    }

    /// Does work that takes long on a thread for such work; `None` if it panicked.
    pub async fn apart<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        if self.is_simulated() {
            return Some(work());
        }
        tokio::task::spawn_blocking(work).await.ok()
    }

    /// The engine beneath, as a yardstick for benchmarks: what the same component costs without the host.
    pub fn wasmtime(&self) -> &wasmtime::Engine {
        &self.0.wasmtime
    }
}

/// The engine with the largest reservation that the system grants.
fn allocate(calls: usize) -> wasmtime::Result<(Reservation, wasmtime::Engine)> {
    let mut failure = None;
    for reservation in Reservation::ALL {
        let mut config = settings(reservation);
        if reservation != Reservation::None {
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(reservation, calls)));
        }
        match wasmtime::Engine::new(&config) {
            Ok(engine) => {
                if let Some(error) = failure {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        reservation = reservation.as_str(),
                        "the address space is limited; guests run more slowly"
                    );
                }
                return Ok((reservation, engine));
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| wasmtime::Error::msg("no reservation was tried")))
}

/// Everything that compiled code depends on: the same in the host and in the process that compiles.
pub(super) fn settings(reservation: Reservation) -> Config {
    let mut config = Config::new();
    // Without the component model's own concurrency: it costs, and holds most of the recent defects.
    config.concurrency_support(false);
    // Deterministic: fuel rather than epochs, one bit pattern for NaN, and no instruction that differs between
    // machines.
    config.consume_fuel(true).cranelift_nan_canonicalization(true).wasm_relaxed_simd(false);
    // No guest needs more than 4 GiB.
    config.wasm_memory64(false);
    match reservation {
        Reservation::Full => {}
        Reservation::Small => {
            config.memory_reservation(Reservation::SMALL_BYTES as u64);
        }
        Reservation::None => {
            config.memory_reservation(0).memory_guard_size(64 << 10).memory_reservation_for_growth(4 << 20);
        }
    }
    config
}

fn pool(reservation: Reservation, calls: usize) -> PoolingAllocationConfig {
    let calls = u32::try_from(calls).unwrap_or(u32::MAX).saturating_add(SPARE);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(calls)
        .total_core_instances(calls.saturating_mul(CORE_INSTANCES))
        .total_memories(calls.saturating_mul(MEMORIES))
        .total_tables(calls.saturating_mul(TABLES))
        .total_stacks(calls)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_tables_per_module(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .max_component_instance_size(INSTANCE_BYTES)
        .max_core_instance_size(INSTANCE_BYTES)
        .linear_memory_keep_resident(MEMORY_RESIDENT)
        .table_keep_resident(TABLE_RESIDENT);
    if reservation == Reservation::Small {
        pool.max_memory_size(Reservation::SMALL_BYTES);
    }
    pool
}
