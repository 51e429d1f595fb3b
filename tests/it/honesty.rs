//! Whether the in-memory API server is honest: random sequences of requests, run against it and against the real one,
//! must be answered alike: status, reason, causes, and the object apart from uids, versions and times.
//!
//! A sequence that is answered otherwise is shrunk and printed as JSON; put into a file in `honesty/`, it is run from
//! then on. `OARLOCK_SEEDS=1000` runs so many seeds, `OARLOCK_SEED=7` only that one.

use std::env;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use oarlock_sim::api::{Policy, Verdict};
use oarlock_tests::cluster::ControlPlane;

use self::ops::{Op, config_maps, sequence};
use self::sides::{Memory, Real, Side};

mod ops;
mod sides;

/// What CI runs: some 30 operations each.
const SEEDS: u64 = 48;
/// Sequences at the same time.
const WIDTH: usize = 4;

/// Where two sides differ: after which operation, and how.
#[derive(Debug)]
struct Difference {
    at: usize,
    memory: String,
    real: String,
}

/// Runs a sequence on both sides, in a namespace of this name.
async fn run(
    plane: &ControlPlane,
    namespace: &str,
    ops: &[Op],
    lie: Option<Policy>,
) -> Result<Option<Difference>> {
    let mut memory = Memory::new(namespace, lie)?;
    let mut real = Real::new(plane, namespace).await?;
    let mut difference = None;
    for (at, op) in ops.iter().enumerate() {
        let (told, truth) = (memory.take(op).await?, real.take(op).await?);
        if told != truth {
            difference = Some(Difference { at, memory: told.to_string(), real: truth.to_string() });
            break;
        }
    }
    if difference.is_none() {
        let (told, truth) = (memory.events().await?, real.events().await?);
        let first = told.iter().zip(&truth).position(|(told, truth)| told != truth);
        let first = first.or((told.len() != truth.len()).then_some(told.len().min(truth.len())));
        if let Some(first) = first {
            let nth = |events: &[String]| events.get(first).cloned().unwrap_or_default();
            difference = Some(Difference { at: ops.len(), memory: nth(&told), real: nth(&truth) });
        }
    }
    real.end().await?;
    Ok(difference)
}

/// Leaves out what the difference does not need.
async fn shrunk(
    plane: &ControlPlane,
    name: &str,
    ops: Vec<Op>,
    lie: Option<&Policy>,
) -> Result<(Vec<Op>, Difference)> {
    let mut tries = 0;
    let mut best = ops;
    let again =
        async |ops: &[Op], number: usize| run(plane, &format!("{name}-{number}"), ops, lie.cloned()).await;
    let mut difference = again(&best, tries).await?.context("it differs no more")?;
    best.truncate(difference.at + 1);
    let mut at = best.len();
    while at > 0 {
        at -= 1;
        let mut smaller = best.clone();
        smaller.remove(at);
        tries += 1;
        if let Some(found) = again(&smaller, tries).await? {
            (best, difference) = (smaller, found);
            at = at.min(best.len());
        }
    }
    Ok((best, difference))
}

async fn check(plane: &ControlPlane, name: &str, ops: Vec<Op>) -> Result<()> {
    if run(plane, name, &ops, None).await?.is_none() {
        return Ok(());
    }
    let (ops, Difference { memory, real, .. }) = shrunk(plane, name, ops, None).await?;
    let told = serde_json::to_string(&ops)?;
    anyhow::bail!("{name} is answered otherwise:\n  in memory {memory}\n  really    {real}\n{told}")
}

fn seeds() -> Result<Vec<u64>> {
    if let Ok(seed) = env::var("OARLOCK_SEED") {
        return Ok(vec![seed.parse().context("OARLOCK_SEED is no number")?]);
    }
    let count =
        env::var("OARLOCK_SEEDS").ok().map(|count| count.parse().context("OARLOCK_SEEDS is no number"));
    Ok((0..count.transpose()?.unwrap_or(SEEDS)).collect())
}

#[tokio::test]
async fn random_sequences_are_answered_as_by_the_real_api_server() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let runs = seeds()?.into_iter().map(|seed| async move {
        let name = format!("honest-{seed}");
        Ok::<_, anyhow::Error>(check(plane, &name, sequence(seed)).await.err())
    });
    let failures: Vec<_> = stream::iter(runs).buffer_unordered(WIDTH).try_collect().await?;
    let failures: Vec<_> = failures.into_iter().flatten().map(|failure| format!("{failure:#}")).collect();
    ensure!(failures.is_empty(), "{} sequences:\n{}", failures.len(), failures.join("\n\n"));
    Ok(())
}

#[tokio::test]
async fn what_was_once_answered_otherwise_is_not_any_more() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let recorded = include_str!("honesty/recorded.json");
    let sequences: Vec<Vec<Op>> = serde_json::from_str(recorded)?;
    for (number, ops) in sequences.into_iter().enumerate() {
        check(plane, &format!("honest-again-{number}"), ops).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_lie_is_found_and_shrunk_to_the_request_that_it_is_about() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let lie = Policy {
        name: "lie".into(),
        resource: "configmaps".into(),
        prefix: String::new(),
        verdict: Verdict::Set("/metadata/annotations/lie".into(), "yes".into()),
    };
    let name = "honest-lie";
    let found = run(plane, name, &config_maps(3), Some(lie.clone())).await?;
    ensure!(found.is_some(), "the lie is not found");
    let (ops, difference) = shrunk(plane, "honest-lie-shrunk", config_maps(3), Some(&lie)).await?;
    ensure!(ops.len() == 1 && difference.memory.contains("lie"), "{ops:?} {difference:?}");
    Ok(())
}
