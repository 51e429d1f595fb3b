//! One process of a control plane: started with its log in a file, watched, stopped.
//!
//! Each runs in a process group of its own, so that Ctrl-C in a terminal reaches only whoever started it, and
//! the order of stopping stays ours.
//! A pid file lets a later process stop what an earlier one left running.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};

use crate::eventually;

/// How long a process may take to end after SIGTERM. They need less than a second; a hung one must not hang us.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Lines of a log that go into an error: enough for the reason, not the whole story.
const LOG_TAIL_LINES: usize = 20;

/// Until when a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// It dies with the process that started it, however that one ends.
    Owner,
    /// It runs until it is stopped by its pid file.
    Detached,
}

/// A running process, or one that has ended and was not dropped yet.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    log: PathBuf,
    /// Refers to this very process, also when its number has been given to another one.
    pidfd: OwnedFd,
    /// Absent when an earlier process of ours started it.
    child: Option<Child>,
    lifetime: Lifetime,
}

impl Process {
    /// Starts `program` with its output appended to `dir/name.log` and its number in `dir/name.pid`.
    pub(crate) fn spawn(
        name: &'static str,
        program: &Path,
        args: &[String],
        dir: &Path,
        lifetime: Lifetime,
    ) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open the log {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("cannot share {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(args).current_dir(dir).process_group(0);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        if lifetime == Lifetime::Owner {
            die_with_owner(&mut command);
        }
        let child = spawn_from_lasting_thread(command)
            .with_context(|| format!("cannot start {name} ({})", program.display()))?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .with_context(|| format!("cannot watch {name} (pid {})", child.id()))?;
        let process = Self { name, log, pidfd, child: Some(child), lifetime };
        let pid_file = dir.join(format!("{name}.pid"));
        fs::write(&pid_file, process.id().to_string())
            .with_context(|| format!("cannot write {}", pid_file.display()))?;
        Ok(process)
    }

    /// Finds the process that an earlier one of ours left running in `dir`; `None` when it is gone.
    ///
    /// A pid file may be stale and its number in use by a stranger: every process of ours names `dir` in its
    /// arguments, so one that does not is not ours.
    pub(super) fn find(name: &'static str, dir: &Path) -> Option<Self> {
        let pid = fs::read_to_string(dir.join(format!("{name}.pid"))).ok()?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw)?;
        // Opened before the look at the arguments, so that both are about one process.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments = String::from_utf8_lossy(&arguments);
        let log = dir.join(format!("{name}.log"));
        arguments.contains(&*dir.to_string_lossy()).then_some(Self {
            name,
            log,
            pidfd,
            child: None,
            lifetime: Lifetime::Detached,
        })
    }

    /// Fails when the process has ended, with the last lines it logged.
    pub(crate) fn check_running(&self) -> Result<()> {
        ensure!(!self.has_ended(), "{} has ended; {}", self.name, self.log_tail());
        Ok(())
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Says where the log is and what it says last.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n  ");
        format!("the log of {} ({}) ends with:\n  {tail}", self.name, self.log.display())
    }

    /// Asks the process to end, and ends it by force when it does not in time.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let ended = eventually(STOP_DEADLINE, "the end of the process", async || {
            if self.has_ended() { Ok(()) } else { Err("it runs") }
        });
        if ended.await.is_err() {
            self.kill()?;
        }
        self.reap();
        Ok(())
    }

    /// Asks the process to end and says how it ended; fails when it does not in time, and ends it by force.
    pub(crate) async fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let ended = eventually(STOP_DEADLINE, "the end of the process", async || {
            if self.has_ended() { Ok(()) } else { Err("it runs") }
        });
        if let Err(late) = ended.await {
            self.kill()?;
            return Err(late.context(self.log_tail()));
        }
        let child = self.child.as_mut().context("the process is not a child of this one")?;
        child.wait().with_context(|| format!("cannot tell how {} ended", self.name))
    }

    /// Ends the process at once, as a crash would.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.reap();
        Ok(())
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot signal {}", self.name)),
        }
    }

    fn has_ended(&self) -> bool {
        // A pidfd becomes readable when its process ends.
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
    }

    fn reap(&mut self) {
        if let Some(child) = &mut self.child {
            // Only fails when it has been waited for already.
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Owner {
            // Nobody is left to tell, and the kernel does it when we end.
            let _ = self.kill();
        }
    }
}

#[expect(unsafe_code, reason = "the standard library has no safe way to act between fork and exec")]
fn die_with_owner(command: &mut Command) {
    // SAFETY: the closure runs in the forked child and makes one system call; it neither allocates nor locks.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

type Answer = Sender<io::Result<Child>>;

/// The kernel sends the death signal when the *thread* that forked ends, and test threads end long before the
/// test process does. So one thread, which lasts, starts all processes.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: LazyLock<Sender<(Command, Answer)>> = LazyLock::new(|| {
        let (jobs, queue) = channel::<(Command, Answer)>();
        thread::spawn(move || {
            for (mut command, answer) in queue {
                // The asker waits for the answer, so it is there.
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (answer, child) = channel();
    SPAWNER.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}
