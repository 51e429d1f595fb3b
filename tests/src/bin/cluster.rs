//! Starts and stops a control plane for people: `dev cluster up|down|kubeconfig` calls this.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use oarlock_tests::cluster;

#[derive(Parser)]
#[command(about = "A real Kubernetes control plane on loopback ports")]
struct Args {
    /// Where its keys, kubeconfigs, logs and data are.
    #[arg(long)]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start it; it runs until `down`. Nothing happens when it runs already.
    Up,
    /// Stop it and forget everything in it.
    Down,
    /// Print the path of its administrator's kubeconfig.
    Kubeconfig,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(Args { dir, command }: Args) -> Result<()> {
    match command {
        Command::Up => {
            let start = Instant::now();
            let kubeconfig = cluster::up(&dir).await?;
            say(&format!("The control plane is up ({:.1} s).", start.elapsed().as_secs_f32()));
            say(&format!("export KUBECONFIG={}", kubeconfig.display()));
        }
        Command::Down => {
            let was_up = cluster::down(&dir).await?;
            say(if was_up { "The control plane is down." } else { "No control plane was up." });
        }
        Command::Kubeconfig => match cluster::kubeconfig(&dir) {
            Some(kubeconfig) => say(&kubeconfig.display().to_string()),
            None => bail!("no control plane is up in {}; start one with `./dev cluster up`", dir.display()),
        },
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a command's answer goes to its standard output")]
fn say(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "and its complaint to standard error")]
fn complain(line: &str) {
    eprintln!("{line}");
}
