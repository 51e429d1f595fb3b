//! The commands, one file each: parsed, started, and what went wrong said once.

pub mod build;
pub mod check;
pub mod cluster;
pub mod completion;
pub mod diff;
pub mod explain;
pub mod get;
mod live;
pub mod push;
pub mod record;
pub mod run;
pub mod steer;

pub use cluster::Connection;

use crate::{decide::guest::compile, operate::log};
use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _};
use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

/// Where the host runs unless told otherwise, as in `deploy/`.
pub const NAMESPACE: &str = "oarlock-system";

/// Runs Kubernetes controllers whose logic is a WASM component
#[derive(clap::Parser, Debug)]
#[command(name = "oarlock", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Run the host
    Run(run::Args),
    /// Build a plugin from its crate
    Build(build::Args),
    /// Check a plugin's file as a host would
    Check(check::Args),
    /// Put a plugin into the cluster, and wait until it is in force
    Push(push::Args),
    /// Show what is in the cluster
    Get(get::Args),
    /// Show what a version of a plugin would change, and change nothing
    Diff(diff::Args),
    /// Keep a call of a plugin, with everything that it saw
    Record(record::Args),
    /// Make a recorded call again, and tell whether it comes to the same
    Replay(record::ReplayArgs),
    /// Let a version of a plugin go on that waits, was held, or was taken back
    Approve(steer::Approve),
    /// Put an earlier version of a plugin in force
    Rollback(steer::Rollback),
    /// Switch a plugin off: its objects stay as they are
    Pause(steer::Named),
    /// Switch a plugin on again
    Resume(steer::Named),
    /// Tell what the host does with an object, and why
    Explain(explain::Args),
    /// Print a script that completes commands in a shell
    Completion(completion::Args),
    /// Compile a component: the host's own child process
    #[command(name = compile::COMMAND, hide = true)]
    Compile,
}

/// What went wrong in one line, and what to do about it: context of an error.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    /// What went wrong.
    pub what: String,
    /// What to do.
    pub help: String,
}

impl Failure {
    /// From two texts.
    pub fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into() }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let matches = command(args.first().map(OsString::as_os_str)).try_get_matches_from(&args);
    match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => start(cli).unwrap_or_else(|error| said(&error)),
        Err(error) => {
            // Help and version are such errors as well. Where they cannot be printed, nobody reads.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

/// The command line; called by kubectl, it is named as people call it then.
fn command(called_as: Option<&OsStr>) -> clap::Command {
    let is_kubectls =
        called_as.is_some_and(|name| Path::new(name).file_stem() == Some("kubectl-oarlock".as_ref()));
    if is_kubectls { Cli::command().bin_name("kubectl oarlock") } else { Cli::command() }
}

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { connection, command } = cli;
    // Lasts as long as the command.
    let _log = match command {
        // The child limits itself before anything else, and has threads of its own.
        Command::Compile => return Ok(compile::child_main()),
        // Logs as its own arguments say.
        Command::Run(_) => None,
        _ => {
            let filter = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
            // What kube logs of a failed request is told as the command's error.
            Some(log::start(&filter.unwrap_or_else(|| "warn,kube_client=off".to_owned()))?)
        }
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    runtime.block_on(async {
        match command {
            Command::Run(args) => run::run(args, &connection).await,
            Command::Build(args) => build::run(args).await,
            Command::Check(args) => check::run(args).await,
            Command::Push(args) => push::run(args, &connection).await,
            Command::Get(args) => get::run(args, &connection).await,
            Command::Diff(args) => diff::run(args, &connection).await,
            Command::Record(args) => record::record(args, &connection).await,
            Command::Replay(args) => record::replay(args).await,
            Command::Approve(args) => steer::approve(args, &connection).await,
            Command::Rollback(args) => steer::rollback(args, &connection).await,
            Command::Pause(named) => steer::pause(named, true, &connection).await,
            Command::Resume(named) => steer::pause(named, false, &connection).await,
            Command::Explain(args) => explain::run(args, &connection).await,
            Command::Completion(args) => completion::run(&args),
            Command::Compile => Ok(compile::child_main()),
        }
    })
}

/// Says why a command failed.
fn said(error: &anyhow::Error) -> ExitCode {
    let is_unread = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    // `oarlock get plugins | head -1`: whoever reads has enough.
    if !error.chain().any(is_unread) {
        let _ = io::stderr().write_all(describe(error).as_bytes());
    }
    ExitCode::FAILURE
}

/// An error, its causes, and what to do, each in a line.
fn describe(error: &anyhow::Error) -> String {
    let mut last = error.to_string();
    let mut text = format!("error: {last}\n");
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Transparent errors repeat their source; once is enough.
        if !last.ends_with(&cause) {
            let _ = writeln!(text, "caused by: {cause}");
        }
        last = cause;
    }
    if let Some(Failure { help, .. }) = error.downcast_ref() {
        let _ = writeln!(text, "help: {help}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_names_the_command_as_it_was_called() {
        for (called_as, usage) in [
            ("oarlock", "Usage: oarlock push [OPTIONS] <FILE|DIR>"),
            ("/usr/bin/kubectl-oarlock", "Usage: kubectl oarlock push [OPTIONS] <FILE|DIR>"),
        ] {
            let error = command(Some(called_as.as_ref()))
                .try_get_matches_from([called_as, "push", "--help"])
                .unwrap_err();
            assert!(error.to_string().contains(usage), "{error}");
        }
    }

    #[test]
    fn connection_may_be_named_before_and_after_the_command() {
        for args in [
            ["oarlock", "-n", "ns", "--context=c", "get", "plugins"],
            ["oarlock", "get", "plugins", "--namespace=ns", "--context", "c"],
        ] {
            let matches = command(None).try_get_matches_from(args).unwrap();
            let cli = Cli::from_arg_matches(&matches).unwrap();
            let connection = cli.connection;
            assert_eq!((&*connection.host_namespace(), connection.context.as_deref()), ("ns", Some("c")));
        }
    }

    #[test]
    fn error_is_told_with_its_causes_and_what_to_do() {
        let error = anyhow::anyhow!("connection refused")
            .context(anyhow::anyhow!("request failed: connection refused"))
            .context(Failure::new("cannot reach the cluster", "start it"))
            .context("cannot push website");
        let expected = "error: cannot push website\n\
            caused by: cannot reach the cluster\n\
            caused by: request failed: connection refused\n\
            help: start it\n";
        assert_eq!(describe(&error), expected);
    }
}
