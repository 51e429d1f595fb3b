//! `./dev sim`: runs seeds, prints what fails.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what it prints is what it is for")]

use anyhow::{Result, bail};
use clap::Parser;
use oarlock_sim::{examine::examine, scenario::Scenario, shrink::shrink, simulation::Setting, trace};
use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

/// Runs the host in simulated clusters under faults; each seed is one history.
#[derive(Parser)]
#[command(name = "./dev sim")]
struct Args {
    /// How many seeds are run
    #[arg(long, default_value_t = 200, value_name = "N")]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    from: u64,
    /// Only this seed
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Print every request of the run
    #[arg(long, requires = "seed")]
    trace: bool,
    /// How many runs at the same time; by default one for each processor
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Where compiled components are kept
    #[arg(long, env = "OARLOCK_SIM_CACHE", value_name = "DIR")]
    cache_dir: PathBuf,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Ok(filter) = std::env::var("RUST_LOG") {
        // Of a run in which time is simulated, the host's own lines in their order say most.
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stderr).init();
    }
    let setting = Setting::new(&args.cache_dir)?;
    if let Some(seed) = args.seed {
        return one(&setting, seed, args.trace);
    }
    let started = Instant::now();
    let end = args.from + args.seeds;
    let next = AtomicU64::new(args.from);
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let mut failed: Vec<(u64, String)> = thread::scope(|scope| {
        let worker = || {
            let mut failed = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return Ok(failed);
                }
                if let Some(failure) = examine(&setting, &Scenario::of(seed))?.failure {
                    eprintln!("seed {seed} fails: {failure}");
                    failed.push((seed, failure.to_string()));
                }
            }
        };
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        let results = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a run panicked; its text is above"),
        });
        results.collect::<Result<Vec<_>>>().map(|failed| failed.concat())
    })?;
    failed.sort();
    println!("{} seeds in {:.0?}, {} fail", args.seeds, started.elapsed(), failed.len());
    let Some((seed, _)) = failed.first() else { return Ok(ExitCode::SUCCESS) };
    one(&setting, *seed, true)
}

/// Runs one seed; if it fails, shrinks it and says what happens.
fn one(setting: &Setting, seed: u64, is_traced: bool) -> Result<ExitCode> {
    let scenario = Scenario::of(seed);
    let ran = examine(setting, &scenario)?;
    let Some(failure) = &ran.failure else {
        if is_traced {
            for line in trace::lines(&ran) {
                println!("{line}");
            }
        }
        println!("seed {seed}: {} requests, all is well", ran.records.len());
        return Ok(ExitCode::SUCCESS);
    };
    println!("seed {seed} fails: {failure}");
    let (small, ran) = shrink(setting, &scenario, ran)?;
    println!("shrunk from {} to {} steps:", scenario.steps.len(), small.steps.len());
    for step in &small.steps {
        println!("  {:?} later: {:?}", step.after, step.action);
    }
    if is_traced {
        for line in trace::shortened(&ran) {
            println!("{line}");
        }
    }
    if let Some(failure) = &ran.failure {
        println!("seed {seed} fails, shrunk: {failure}");
    }
    Ok(ExitCode::FAILURE)
}
