//! Compiles a component in a child process with limits on time and memory.
//!
//! A compiler is no sandbox: what makes it use all memory, or loop, takes its process with it, and here that is
//! not the host's. The child is this program, called with `compile`: settings in one line and the component on
//! stdin, compiled code with a checksum in front on stdout.

mod confine;

use super::{
    engine::{Compiler, Engine, Reservation, settings},
    one_line,
};
use crate::config::Limits;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use sha2::{Digest, Sha256};
use std::{
    io::{self, BufRead, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
};

/// The child's only argument.
pub const COMMAND: &str = "compile";

/// Threads of one compilation: some, so that it ends soon; few, as reconciles go on meanwhile.
const THREADS: u32 = 2;
/// Compiled code is about three times the component; the rest is for very small ones.
const MAX_GROWTH: usize = 8;
const MIN_OUTPUT_BYTES: usize = 8 << 20;
/// What a compiler has to say.
const MESSAGE_BYTES: usize = 4 << 10;
const CHECKSUM_BYTES: usize = 32;

/// Why compiling failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It took too long.
    #[error("compiling the component took longer than {limit:?}; make it smaller")]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// A signal ended it: with so little memory, that is how it usually ends.
    #[error(
        "compiling the component was ended by signal {signal}; most likely it needs more than {memory} bytes of memory; make it smaller"
    )]
    Killed {
        /// The signal.
        signal: i32,
        /// The limit of memory.
        memory: u64,
    },
    /// The compiler refuses the component.
    #[error("the component cannot be compiled: {message}")]
    Failed {
        /// What the compiler says.
        message: String,
    },
    /// There is no child: the host's fault.
    #[error("cannot start the compiler")]
    Spawn(#[source] io::Error),
    /// What came back is not compiled code: the host's fault.
    #[error("the compiler did not return compiled code")]
    Garbage,
}

/// Compiles a component for this engine.
pub(super) async fn compile(engine: &Engine, bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, Error> {
    let program = match &engine.0.compiler {
        Compiler::Program(program) => program,
        Compiler::Here(_) => {
            let failed =
                |source: wasmtime::Error| Error::Failed { message: one_line(&format!("{source:#}")) };
            return engine.wasmtime().precompile_component(bytes).map_err(failed);
        }
    };
    // The semaphore is never closed; a closed one would mean that nobody waits.
    let _permit = engine.0.compiles.acquire().await.ok();
    let mut child = Command::new(program)
        .arg(COMMAND)
        // Nothing of the host's surroundings is of use to a compiler. The child itself gives up the rest.
        .env_clear()
        .current_dir("/")
        .env("RAYON_NUM_THREADS", THREADS.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(Error::Spawn)?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(Error::Garbage);
    };
    let settings = Settings::new(engine.0.reservation, limits).to_line();
    let max = CHECKSUM_BYTES + (bytes.len().saturating_mul(MAX_GROWTH)).max(MIN_OUTPUT_BYTES);
    let work = async {
        let write = async move {
            stdin.write_all(settings.as_bytes()).await?;
            stdin.write_all(bytes).await
        };
        // The child may end before it has read everything: its exit status says why, not the broken pipe.
        let (_, output, message, status) =
            tokio::join!(write, read_up_to(stdout, max), read_up_to(stderr, MESSAGE_BYTES), child.wait());
        Ok::<_, io::Error>((output?, message?, status?))
    };
    let Ok(done) = tokio::time::timeout(limits.compile_time, work).await else {
        // The child is killed when it is dropped, here, and reaped by the runtime.
        return Err(Error::TimedOut { limit: limits.compile_time });
    };
    let (output, message, status) = done.map_err(Error::Spawn)?;
    if output.len() > max {
        return Err(Error::Garbage);
    }
    check_status(status, &message, limits)?;
    let Some((checksum, code)) = output.split_first_chunk::<CHECKSUM_BYTES>() else {
        return Err(Error::Garbage);
    };
    let is_component = wasmtime::Engine::detect_precompiled(code) == Some(wasmtime::Precompiled::Component);
    if !is_component || Sha256::digest(code)[..] != checksum[..] {
        return Err(Error::Garbage);
    }
    Ok(code.to_vec())
}

/// Reads to the end, or one byte more than `max`; then the pipe is closed, and a child that goes on gets an error.
async fn read_up_to(pipe: impl tokio::io::AsyncRead + Unpin, max: usize) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    pipe.take(max as u64 + 1).read_to_end(&mut read).await?;
    Ok(read)
}

fn check_status(status: ExitStatus, message: &[u8], limits: &Limits) -> Result<(), Error> {
    match (status.signal(), status.success()) {
        (_, true) => Ok(()),
        (Some(signal), _) if signal == Signal::XCPU.as_raw() => {
            Err(Error::TimedOut { limit: limits.compile_time })
        }
        (Some(signal), _) => Err(Error::Killed { signal, memory: limits.compile_memory_bytes }),
        (None, false) => {
            let message = one_line(&String::from_utf8_lossy(message));
            Err(Error::Failed { message: if message.is_empty() { status.to_string() } else { message } })
        }
    }
}

/// What the child has to know, in one line.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    reservation: Reservation,
    memory_bytes: u64,
    cpu_seconds: u64,
}

impl Settings {
    fn new(reservation: Reservation, limits: &Limits) -> Self {
        // Each thread may use the whole time; the parent watches the clock on the wall.
        let cpu_seconds = (limits.compile_time.as_secs() + 1) * u64::from(THREADS);
        Self { reservation, memory_bytes: limits.compile_memory_bytes, cpu_seconds }
    }

    fn to_line(&self) -> String {
        format!("{} {} {}\n", self.reservation.as_str(), self.memory_bytes, self.cpu_seconds)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let settings = Self {
            reservation: Reservation::parse(words.next()?)?,
            memory_bytes: words.next()?.parse().ok()?,
            cpu_seconds: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(settings)
    }
}

/// The child's side: what the hidden command `oarlock compile` does.
pub fn child_main() -> ExitCode {
    let confined = confine::confine().map_err(|source| format!("cannot confine the compiler: {source}"));
    match confined.and_then(|()| child(&mut io::stdin().lock(), &mut io::stdout().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // With stderr closed, nobody listens.
            let _ = writeln!(io::stderr(), "{message}");
            ExitCode::FAILURE
        }
    }
}

fn child(input: &mut impl BufRead, output: &mut impl Write) -> Result<(), String> {
    let mut line = String::new();
    input.take(200).read_line(&mut line).map_err(|source| format!("cannot read the settings: {source}"))?;
    let Some(Settings { reservation, memory_bytes, cpu_seconds }) = Settings::parse(&line) else {
        return Err(
            "this command is for the host itself: `oarlock check` tells whether a component compiles".into(),
        );
    };
    for (resource, limit) in [(Resource::As, memory_bytes), (Resource::Cpu, cpu_seconds), (Resource::Core, 0)]
    {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        setrlimit(resource, limit).map_err(|source| format!("cannot limit the compiler: {source}"))?;
    }
    let mut component = Vec::new();
    input.read_to_end(&mut component).map_err(|source| format!("cannot read the component: {source}"))?;
    let engine = wasmtime::Engine::new(&settings(reservation)).map_err(|source| format!("{source:#}"))?;
    let code = engine.precompile_component(&component).map_err(|source| one_line(&format!("{source:#}")))?;
    let written = output.write_all(&Sha256::digest(&code)).and_then(|()| output.write_all(&code));
    written.and_then(|()| output.flush()).map_err(|source| format!("cannot write the code: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        for reservation in [Reservation::Full, Reservation::Small, Reservation::None] {
            let settings = Settings::new(reservation, &Limits::STANDARD);
            assert_eq!(Settings::parse(&settings.to_line()), Some(settings));
        }
        for line in ["", "full", "full 1", "full 1 x", "full 1 2 3", "half 1 2"] {
            assert_eq!(Settings::parse(line), None, "{line}");
        }
    }

    #[test]
    fn child_says_what_to_do_when_a_person_calls_it() {
        let error = child(&mut &b"hello\n"[..], &mut Vec::new()).expect_err("no settings");
        assert!(error.contains("oarlock check"), "{error}");
    }
}
