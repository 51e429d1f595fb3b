//! Random sequences against a real API server, through a proxy that injects faults.
//!
//! Two plugins run, each with a parent kind of its own, and read the same `ConfigMap`s, by name and by label.
//! A seed becomes a list of steps: edits in bursts, also of what is read, somebody else's hands in statuses and
//! children, swaps of a plugin, kills of the host, faults of network and API server. Afterwards the faults end, and
//! every object must be what its spec and its reads say, nothing may be left over, nothing may be written any more, and
//! the history of all objects, as a watch of our own saw it, must hold at every moment what readers rely on (`history`).
//!
//! `OARLOCK_SEEDS=50` runs the seeds from 0 to 49, `OARLOCK_SEED=7` only that one.

use std::env;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oarlock_tests::host::{Host, Options};
use oarlock_tests::proxy::Proxy;
use oarlock_tests::throughout;

use self::actor::Actor;
use self::history::History;
use crate::world::Lab;

mod actor;
mod expected;
mod history;
mod steps;

/// What CI runs: about 20 s each. Chosen as those that together take all steps.
const SEEDS: [u64; 3] = [1, 2, 3];

/// For how long nothing may be written at the end.
const QUIET: Duration = Duration::from_secs(10);

#[tokio::test]
async fn objects_end_as_their_specs_say_whatever_happened() -> Result<()> {
    let mut failures = Vec::new();
    for seed in seeds()? {
        if let Err(failure) = run(seed).await {
            failures.push(format!("{failure:?}"));
        }
    }
    ensure!(failures.is_empty(), "{} seeds fail:\n{}", failures.len(), failures.join("\n\n"));
    Ok(())
}

fn seeds() -> Result<Vec<u64>> {
    if let Ok(seed) = env::var("OARLOCK_SEED") {
        return Ok(vec![seed.parse().context("OARLOCK_SEED is no number")?]);
    }
    match env::var("OARLOCK_SEEDS") {
        Ok(count) => Ok((0..count.parse().context("OARLOCK_SEEDS is no number")?).collect()),
        Err(_) => Ok(SEEDS.to_vec()),
    }
}

/// One seed: the steps, then everything that must hold.
async fn run(seed: u64) -> Result<()> {
    let steps = steps::steps(seed);
    let mut done = 0;
    let ran = attempt(seed, &steps, &mut done).await;
    ran.with_context(|| {
        let mut story = format!("OARLOCK_SEED={seed}; the steps were\n");
        for (number, step) in steps.iter().enumerate().take(done + 1) {
            let _ = writeln!(story, "{number:3} {step:?}");
        }
        story
    })
}

async fn attempt(seed: u64, steps: &[steps::Step], done: &mut usize) -> Result<()> {
    let lab = Lab::enter(&steps::namespace(seed)).await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, seed).await?;
    let options = Options { kubeconfig: proxy.kubeconfig(), ..Options::standard(world.plane) };
    let history = History::watch(world).await?;
    let mut host = Host::start(world.plane, &options)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    world.cluster_plugin().await?;

    let mut actor = Actor::new(world, &proxy);
    for step in steps {
        match step {
            steps::Step::Kill => {
                host.kill()?;
                host = Host::start(world.plane, &options)?;
            }
            steps::Step::Stop => {
                // One that has hardly started may not listen yet: then it was a kill.
                drop(host.stop().await);
                host = Host::start(world.plane, &options)?;
            }
            step => actor.take(step).await?,
        }
        host.check_running()?;
        *done += 1;
    }
    proxy.clear();

    let mut audit = world.plane.audit().await?;
    actor.settled().await?;
    // What is merged into one write a second may still come: the last message, not another state.
    world
        .eventually("no write for three seconds", async || {
            let mut audit = world.plane.audit().await?;
            let from = audit.mark().await?;
            throughout(Duration::from_secs(3), "time passes", async || Ok::<_, anyhow::Error>(())).await?;
            let to = audit.mark().await?;
            let writes = world.host_writes(&audit, from, to);
            ensure!(writes.is_empty(), "{writes:?}");
            Ok(())
        })
        .await?;
    let from = audit.mark().await?;
    throughout(QUIET, "everything is as it should be", async || actor.check().await).await?;
    let to = audit.mark().await?;
    let writes: Vec<_> =
        audit.writes_by(world.plane.user_host(), from, to).into_iter().map(crate::world::say).collect();
    ensure!(writes.is_empty(), "written at rest: {writes:?}");

    host.check_running()?;
    let history = history.end(world).await?;
    history::check(&history, actor.told())?;
    host.stop().await
}
