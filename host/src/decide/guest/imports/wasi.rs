//! The sealed WASI of ordinary toolchains: nothing to reach, nothing to learn.
//!
//! No files, no network, no environment, no arguments; randomness with a fixed seed; the clocks stand still at
//! the time of the call; stdout and stderr become log lines. Components without WASI do not pay for it.

use super::{
    EPOCH, State,
    logs::{self, Logs, Output},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use std::time::Duration;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::{
    Deterministic, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView,
    cli::{IsTerminal, StdoutStream, WasiCli, WasiCliView},
    filesystem::{WasiFilesystem, WasiFilesystemView},
    p2::{DynPollable, OutputStream, Pollable, StreamError, StreamResult, bindings},
    random::WasiRandom,
};
use wasmtime_wasi_io::{async_trait, bindings::wasi::io::poll, bytes::Bytes};

/// Any seed does, as long as it stays: a plan must not depend on chance.
const SEED: &[u8] = b"The same bytes in every call: a plan is a pure function of what the guest read.";

/// What one question to WASI may take. None of them uses fuel, so each has to be short.
const RANDOM_BYTES: u64 = 4 << 10;
const WRITE_BYTES: usize = 4 << 10;
const POLLED: usize = 64;
const RESOURCES: usize = super::super::engine::HANDLES;

/// WASI as one call sees it.
pub(super) struct Sealed {
    context: WasiCtx,
    table: ResourceTable,
    time_read: Arc<AtomicBool>,
}

impl Sealed {
    fn new(now: &str, logs: &Arc<Mutex<Logs>>) -> Self {
        let time_read = Arc::new(AtomicBool::new(false));
        let output = |output| Capture { output, logs: logs.clone() };
        let mut builder = WasiCtx::builder();
        builder
            .stdout(output(Output::Stdout))
            .stderr(output(Output::Stderr))
            .secure_random(Deterministic::new(SEED.to_vec()))
            .insecure_random(Deterministic::new(SEED.to_vec()))
            .insecure_random_seed(0)
            .max_random_size(RANDOM_BYTES)
            .wall_clock(Stopped { now: since_epoch(now), time_read: time_read.clone() })
            .monotonic_clock(Still)
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false);
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES);
        Self { context: builder.build(), table, time_read }
    }

    pub(super) fn was_time_read(&self) -> bool {
        self.time_read.load(Relaxed)
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let now = self.view.as_ref().map_or(EPOCH, |view| &view.now);
        let sealed = self.wasi.get_or_insert_with(|| Box::new(Sealed::new(now, &self.logs)));
        WasiCtxView { ctx: &mut sealed.context, table: &mut sealed.table }
    }
}

/// The contract's imports and the sealed WASI. Sockets are not even linked.
pub(in super::super) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<State>> {
    use bindings::{cli, filesystem, random};
    let mut linker = super::contract_linker(engine)?;
    let to = &mut linker;
    wasmtime_wasi::p2::add_to_linker_proxy_interfaces_async(to)?;
    random::insecure::add_to_linker::<State, WasiRandom>(to, |state| random_of(state))?;
    random::insecure_seed::add_to_linker::<State, WasiRandom>(to, |state| random_of(state))?;
    cli::exit::add_to_linker::<State, WasiCli>(to, State::cli)?;
    cli::environment::add_to_linker::<State, WasiCli>(to, State::cli)?;
    cli::terminal_input::add_to_linker::<State, WasiCli>(to, State::cli)?;
    cli::terminal_output::add_to_linker::<State, WasiCli>(to, State::cli)?;
    cli::terminal_stdin::add_to_linker::<State, WasiCli>(to, State::cli)?;
    cli::terminal_stdout::add_to_linker::<State, WasiCli>(to, State::cli)?;
    cli::terminal_stderr::add_to_linker::<State, WasiCli>(to, State::cli)?;
    filesystem::types::add_to_linker::<State, WasiFilesystem>(to, State::filesystem)?;
    filesystem::preopens::add_to_linker::<State, WasiFilesystem>(to, State::filesystem)?;
    to.allow_shadowing(true);
    poll::add_to_linker::<State, HasPoll>(to, |state| Poll(state.ctx().table))?;
    Ok(linker)
}

fn random_of(state: &mut State) -> &mut wasmtime_wasi::random::WasiRandomCtx {
    state.ctx().ctx.random()
}

struct HasPoll;

impl HasData for HasPoll {
    type Data<'a> = Poll<'a>;
}

/// `wasi:io/poll` that gives way to other tasks and takes no long lists: polling what is always ready costs a
/// guest no fuel.
struct Poll<'a>(&'a mut ResourceTable);

impl poll::Host for Poll<'_> {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        if pollables.len() > POLLED {
            wasmtime::bail!("a guest may poll {POLLED} things at once, not {}", pollables.len());
        }
        tokio::task::yield_now().await;
        poll::Host::poll(self.0, pollables).await
    }
}

impl poll::HostPollable for Poll<'_> {
    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        poll::HostPollable::ready(self.0, pollable).await
    }

    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        tokio::task::yield_now().await;
        poll::HostPollable::block(self.0, pollable).await
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        poll::HostPollable::drop(self.0, pollable)
    }
}

/// Stdout or stderr.
#[derive(Clone)]
struct Capture {
    output: Output,
    logs: Arc<Mutex<Logs>>,
}

impl IsTerminal for Capture {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Capture {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        // Used by WASI 0.3 only, which is not linked.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Pollable for Capture {
    async fn ready(&mut self) {}
}

impl OutputStream for Capture {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if bytes.len() > WRITE_BYTES {
            return Err(StreamError::trap("more was written than the stream said it would take"));
        }
        logs::lock(&self.logs).output(self.output, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}

/// The time of the call. Asking for it is a read.
struct Stopped {
    now: Duration,
    time_read: Arc<AtomicBool>,
}

impl HostWallClock for Stopped {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        self.time_read.store(true, Relaxed);
        self.now
    }
}

/// No time passes during a call.
struct Still;

impl HostMonotonicClock for Still {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        0
    }
}

/// The host gives the time of a call as RFC 3339; what it does not understand, and what was before 1970, is 1970.
fn since_epoch(now: &str) -> Duration {
    let time = now.parse::<jiff::Timestamp>().unwrap_or_default();
    Duration::try_from(time.duration_since(jiff::Timestamp::UNIX_EPOCH)).unwrap_or_default()
}
