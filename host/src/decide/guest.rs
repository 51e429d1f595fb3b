//! The sandbox: runs a plugin's component, one fresh instance per call.
//!
//! Only this file and its folder name wasmtime. In: component bytes, then calls with a [`View`]. Out: raw
//! answers, within every limit, or an error told apart by type.

pub mod code_cache;
pub mod compile;
pub mod engine;
pub mod inspect;

mod bindings;
mod imports;

use super::plan::{Failure, RawPlan};
use crate::{
    config::Limits,
    observe::reads::{Recorded, View},
};
use bindings::{Plugin, PluginPre};
use imports::{Logs, State};
use std::time::Duration;
use tokio::time::Instant;
use wasmtime::{Store, Trap, component::Component};

/// The text of a trap's stack: enough for the frames that matter.
const TRACE_BYTES: usize = 4_000;

/// A loaded component, ready to be called.
#[derive(Clone)]
pub struct Guest {
    engine: engine::Engine,
    pre: PluginPre<State>,
}

/// Which function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `reconcile`.
    Reconcile,
    /// `finalize`.
    Finalize,
}

/// What came back from a call.
#[derive(Debug)]
pub struct Called {
    /// The answer: a plan, with `done` for `finalize`; or the guest's own failure.
    pub answer: Result<(RawPlan, bool), Failure>,
    /// What the call cost and left behind.
    pub trace: Trace,
}

/// What a call cost and left behind, also when it failed.
#[derive(Debug, Default)]
pub struct Trace {
    /// What was read.
    pub reads: Vec<Recorded>,
    /// Fuel used.
    pub fuel: u64,
    /// The most memory it had, in bytes.
    pub memory: usize,
    /// Text of the answer, in bytes.
    pub output: usize,
    /// Wall time.
    pub duration: Duration,
    /// Lines the guest wrote, within the limit.
    pub logs: Vec<LogLine>,
    /// Bytes of log text that were dropped.
    pub logs_dropped: usize,
}

/// One line of a guest's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How important.
    pub level: tracing::Level,
    /// The text.
    pub message: String,
}

/// A growth of memory that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// `bytes of memory` or `elements of a table`.
    pub what: &'static str,
    /// What the guest would have had.
    pub asked: usize,
    /// What it may have.
    pub limit: usize,
}

/// Why a call has no answer: the guest's fault, told apart by type.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It panicked or hit a trap. `said` is the panic's text, or the last lines it logged.
    #[error("the guest trapped: {said}")]
    Trapped {
        /// What it said last, or the trap's name.
        said: String,
        /// The trap with its stack of guest functions.
        trace: String,
    },
    /// It used up its fuel.
    #[error("the guest used all of its {limit} units of fuel")]
    Fuel {
        /// The limit.
        limit: u64,
    },
    /// It took too long.
    #[error("the guest took longer than {limit:?}")]
    Deadline {
        /// The limit.
        limit: Duration,
    },
    /// A refused growth of memory came before the trap.
    #[error("the guest asked for {} {}, a call may have {}", .0.asked, .0.what, .0.limit)]
    Memory(Growth),
    /// Its answer was too large, or what it handed over in one call of an import.
    #[error("the guest answered, or asked, with more than {limit} bytes at once")]
    Output {
        /// The limit.
        limit: usize,
    },
    /// The pool is exhausted, or wasmtime failed: the host's fault.
    #[error("the host cannot run the guest: {0}")]
    Host(String),
}

/// Why a component is not loaded; each text tells its author what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Structure, contract, size: see [`inspect`].
    #[error(transparent)]
    Inspect(#[from] inspect::Error),
    /// Compiling failed or took too much.
    #[error(transparent)]
    Compile(#[from] compile::Error),
    /// It cannot be linked.
    #[error("the component cannot be linked: {0}")]
    Link(String),
    /// `describe` failed.
    #[error("describe() failed")]
    Describe(#[source] CallError),
}

impl Guest {
    /// Loads a component: from the code cache, else compiled in a child process; linked; not yet called.
    ///
    /// `digest` is the sha256 of `bytes` in lower-case hex. What the cache holds was inspected before it was
    /// compiled, so a restart does neither.
    ///
    /// # Errors
    /// What stands against it; see [`LoadError`].
    pub async fn load(
        engine: &engine::Engine,
        digest: &str,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Self, LoadError> {
        inspect::check_size(bytes, limits)?;
        let kept = engine.kept(digest);
        let component = if let Some(component) = kept.or(code_cache::load(engine, digest).await) {
            component
        } else {
            inspect::inspect_apart(engine, bytes, limits).await?;
            let code = compile::compile(engine, bytes, limits).await?;
            code_cache::store_and_load(engine, digest, code).await.map_err(LoadError::Link)?
        };
        engine.keep(digest, &component);
        Self::link(engine, &component)
    }

    fn link(engine: &engine::Engine, component: &Component) -> Result<Self, LoadError> {
        let linker = if imports_wasi(engine, component) { &engine.0.wasi } else { &engine.0.plain };
        let pre = linker
            .instantiate_pre(component)
            .and_then(PluginPre::new)
            .map_err(|source| LoadError::Link(one_line(&format!("{source:#}"))))?;
        Ok(Self { engine: engine.clone(), pre })
    }

    /// Calls `describe`: the smoke test, and the manifest as JSON.
    ///
    /// # Errors
    /// The guest's fault.
    pub async fn describe(&self, limits: &Limits) -> Result<String, CallError> {
        self.run(None, limits, async |plugin, store| plugin.call_describe(store).await).await.0
    }

    /// Calls `reconcile` or `finalize` with the view's parent, in a fresh instance.
    ///
    /// # Errors
    /// The guest's fault, with what the call had read before: it is called again when one of that changes.
    pub async fn call(
        &self,
        function: Function,
        view: View,
        limits: &Limits,
    ) -> Result<Called, (CallError, Trace)> {
        if !self.engine.is_simulated() {
            return self.call_once(function, view, limits).await;
        }
        let first = self.call_once(function, view.clone(), limits).await;
        let second = self.call_once(function, view, limits).await;
        let [told, again] = [&first, &second].map(told);
        assert_eq!(told, again, "a call that is made again comes to something else");
        second
    }

    async fn call_once(
        &self,
        function: Function,
        view: View,
        limits: &Limits,
    ) -> Result<Called, (CallError, Trace)> {
        let object = view.parent.body.clone();
        let (answer, mut trace) = self
            .run(Some(view), limits, async move |plugin, store| {
                Ok(match function {
                    Function::Reconcile => {
                        let answer = plugin.call_reconcile(store, &object).await?;
                        answer.map(|plan| (plan.into(), false)).map_err(Failure::from)
                    }
                    Function::Finalize => {
                        let answer = plugin.call_finalize(store, &object).await?;
                        answer.map(|teardown| (teardown.plan.into(), teardown.done)).map_err(Failure::from)
                    }
                })
            })
            .await;
        match answer {
            Ok(answer) => {
                trace.output = answer.as_ref().map_or(0, |(plan, _): &(RawPlan, _)| plan.text_len());
                Ok(Called { answer, trace })
            }
            Err(error) => {
                if matches!(error, CallError::Output { .. }) {
                    trace.output = limits.output_bytes;
                }
                Err((error, trace))
            }
        }
    }

    /// One call in a store of its own, within every limit. Whatever happens, the store is dropped: nothing of one
    /// call reaches the next.
    async fn run<R>(
        &self,
        view: Option<View>,
        limits: &Limits,
        call: impl AsyncFnOnce(&Plugin, &mut Store<State>) -> wasmtime::Result<R>,
    ) -> (Result<R, CallError>, Trace) {
        let Ok(_permit) = self.engine.0.calls.acquire().await else {
            return (Err(CallError::Host("the engine is closed".into())), Trace::default());
        };
        let started = Instant::now();
        let mut store = Store::new(&self.engine.0.wasmtime, State::new(view, limits));
        let answer = match meter(&mut store, limits) {
            Ok(()) => tokio::time::timeout(limits.deadline, async {
                let plugin = self.pre.instantiate_async(&mut store).await.map_err(Unanswered::Instantiate)?;
                call(&plugin, &mut store).await.map_err(Unanswered::Call)
            })
            .await
            .unwrap_or(Err(Unanswered::Deadline)),
            Err(error) => Err(Unanswered::Instantiate(error)),
        };
        let fuel = limits.fuel - store.get_fuel().unwrap_or(limits.fuel);
        let state = store.into_data();
        let (memory, refused) = (state.memory.used, state.memory.refused);
        let (reads, mut logs) = state.finish();
        logs.close();
        let answer = answer.map_err(|unanswered| explain(&unanswered, refused, &logs, limits));
        let duration = started.elapsed();
        let output = 0;
        (
            answer,
            Trace { reads, fuel, memory, output, duration, logs: logs.lines, logs_dropped: logs.dropped },
        )
    }
}

/// All that a call comes to but the time it takes.
fn told(result: &Result<Called, (CallError, Trace)>) -> String {
    let (answer, trace) = match result {
        Ok(called) => (format!("{:?}", called.answer), &called.trace),
        Err((error, trace)) => (format!("{error:?}"), trace),
    };
    format!("{answer} {:?} {} {:?}", trace.reads, trace.fuel, trace.logs)
}

fn imports_wasi(engine: &engine::Engine, component: &Component) -> bool {
    component.component_type().imports(&engine.0.wasmtime).any(|(name, _)| name.starts_with("wasi:"))
}

fn meter(store: &mut Store<State>, limits: &Limits) -> wasmtime::Result<()> {
    store.limiter(|state| &mut state.memory);
    store.set_fuel(limits.fuel)?;
    store.fuel_async_yield_interval(Some(engine::YIELD_INTERVAL))?;
    // Bounds what the host copies out of the guest, before it does: an answer, or the arguments of an import.
    store.set_hostcall_fuel(limits.output_bytes);
    store.set_max_component_handles(engine::HANDLES);
    Ok(())
}

/// Where a call ended without an answer.
enum Unanswered {
    Instantiate(wasmtime::Error),
    Call(wasmtime::Error),
    Deadline,
}

/// Says whose fault it was, by the types of wasmtime's errors.
fn explain(unanswered: &Unanswered, refused: Option<Growth>, logs: &Logs, limits: &Limits) -> CallError {
    // What a guest does without the memory it asked for differs (it traps, spins, recurses); the cause does not.
    if let Some(growth) = refused {
        return CallError::Memory(growth);
    }
    let (error, in_call) = match unanswered {
        Unanswered::Deadline => return CallError::Deadline { limit: limits.deadline },
        Unanswered::Instantiate(error) => (error, false),
        Unanswered::Call(error) => (error, true),
    };
    let trap = error.downcast_ref::<Trap>();
    if trap == Some(&Trap::OutOfFuel) {
        return CallError::Fuel { limit: limits.fuel };
    }
    if trap.is_none() && (!in_call || is_host_fault(error)) {
        return CallError::Host(one_line(&format!("{error:#}")));
    }
    if trap.is_none() && is_too_much(error) {
        return CallError::Output { limit: limits.output_bytes };
    }
    CallError::Trapped {
        said: said(error, trap, logs),
        trace: cut(&format!("{error:?}"), TRACE_BYTES).to_owned(),
    }
}

fn is_host_fault(error: &wasmtime::Error) -> bool {
    error.is::<wasmtime::PoolConcurrencyLimitError>()
        || error.is::<wasmtime::OutOfMemory>()
        || error.is::<std::io::Error>()
}

/// Whether the guest handed over more than `set_hostcall_fuel` allows. The type of that error is private to
/// wasmtime, so it is told by exclusion: everything else that can go wrong in a call is a trap, an exit, a
/// message, malformed text, or a handle that is none. A test fails if this ever changes.
fn is_too_much(error: &wasmtime::Error) -> bool {
    !(error.is::<String>()
        || error.is::<&'static str>()
        || error.is::<std::str::Utf8Error>()
        || error.is::<std::char::DecodeUtf16Error>()
        || error.is::<wasmtime_wasi::ResourceTableError>()
        || error.is::<wasmtime_wasi::I32Exit>())
}

/// What the guest said last, and why it ended where that says more than that it gave up.
fn said(error: &wasmtime::Error, trap: Option<&Trap>, logs: &Logs) -> String {
    let why = match trap {
        Some(trap) => trap.to_string().trim_start_matches("wasm trap: ").to_owned(),
        None => one_line(&error.root_cause().to_string()),
    };
    let said = match (logs.last_words(), trap) {
        ("", _) => why,
        (words, Some(Trap::UnreachableCodeReached)) => words.to_owned(),
        (words, _) => format!("{why}, after: {words}"),
    };
    cut(&said, imports::LAST_WORDS_BYTES).to_owned()
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
