//! Guests that do their worst, each in its own way: told by the right reason, and no harm to anybody else.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oarlock_tests::host::Host;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, says, string};

/// What an object's plugin does, and what is told: the reason, and words of the message.
const MODES: [(&str, &str, &str); 15] = [
    ("loop", "FuelExhausted", "fuel"),
    ("recurse", "GuestTrapped", "call stack exhausted"),
    ("recurse-data", "GuestTrapped", ""),
    ("grow", "MemoryExceeded", "bytes of memory"),
    ("grow-spin", "MemoryExceeded", "bytes of memory"),
    ("big-output", "OutputTooLarge", "bytes"),
    ("many-children", "", ""),
    ("deep", "InvalidPlan", "nested"),
    ("many-reads", "", "reads"),
    ("many-events", "InvalidPlan", "events"),
    ("bad-json", "InvalidPlan", ""),
    ("undeclared-kind", "InvalidPlan", "Secret"),
    ("other-namespace", "InvalidPlan", "namespace"),
    ("foreign-label", "InvalidPlan", "oarlock.dev/owned-by"),
    ("panic", "GuestTrapped", "size must be >= 1, got 0"),
];
const HEALTHY: usize = 50;
const EDITS: usize = 60;
/// How much longer an edit may take beside them: fifteen hostile objects share the workers with it, and each of their
/// calls ends at a limit.
const RATIO: u32 = 10;
/// Below this, two runs differ by chance.
const FLOOR: Duration = Duration::from_secs(1);

/// The time from an edit of a healthy object to its child, for so many edits one after the other, sorted.
async fn times(world: &World, round: &str) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for edit in 0..EDITS {
        let (name, image) = (format!("site-{}", edit % HEALTHY), format!("nginx:{round}-{edit}"));
        let begun = Instant::now();
        world.merge("Website", &name, json!({"spec": {"image": image}})).await?;
        world
            .until("Deployment", &name, &image, |deployment| {
                let found = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
                ensure!(*found == *image, "{found}");
                Ok(())
            })
            .await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

fn p99(times: &[Duration]) -> Duration {
    times[(times.len() * 99 / 100).min(times.len() - 1)]
}

fn resident(host: &Host) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.split_whitespace().next().context("no figure")?.parse::<u64>()? << 10)
}

/// Rules P3 and P7.
#[tokio::test]
async fn guests_that_do_their_worst_are_told_apart_and_harm_nobody() -> Result<()> {
    let lab = Lab::enter("hostile").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("website", "website").await?;
    world.plugin("widget", "widget").await?;
    // The limits of one plugin: so that a loop ends soon.
    world.merge("Plugin", "widget", json!({"spec": {"limits": {"fuelMillions": 500}}})).await?;
    let sites = (0..HEALTHY).map(|number| (format!("site-{number}"), json!({"image": "nginx:0"})));
    world.set_all("Website", sites).await?;
    for number in 0..HEALTHY {
        world.until_says("Website", &format!("site-{number}"), ["Ready", "True", "ChildrenReady"]).await?;
    }
    let alone = p99(&times(world, "alone").await?);
    let before = resident(&host)?;

    for (mode, ..) in MODES {
        world.set("Widget", mode, json!({"mode": mode, "size": 0, "text": "0"})).await?;
    }
    // They are called again and again while the others are edited.
    let provoke = async {
        for round in 1..=20 {
            for (mode, ..) in MODES {
                world.merge("Widget", mode, json!({"spec": {"text": round.to_string()}})).await?;
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    let (beside, ()) = tokio::try_join!(times(world, "beside"), provoke)?;
    let beside = p99(&beside);
    ensure!(beside < (alone * RATIO).max(FLOOR), "p99 is {alone:?} alone, and {beside:?} beside them");

    for (mode, reason, words) in MODES {
        world
            .until("Widget", mode, "its failure is told", |widget| {
                let ready = condition(widget, "Ready").context("no condition Ready")?;
                ensure!(ready["observedGeneration"] == widget["metadata"]["generation"], "not of this one");
                ensure!(ready["status"] == "False", "{ready}");
                let (found, message) = (string(ready, "/reason"), string(ready, "/message"));
                ensure!(reason.is_empty() || found == reason, "{found}: {message}");
                ensure!(message.contains(words), "{found}: {message}");
                Ok(())
            })
            .await?;
    }
    host.check_running()?;
    // Memory is as many calls at the same time as there are workers, each within its limits.
    let grown = resident(&host)?.saturating_sub(before);
    ensure!(grown < 8 * (64 << 20), "{} MiB more than before", grown >> 20);
    for number in 0..HEALTHY {
        let site: Value = world.get("Website", &format!("site-{number}")).await?;
        says(&site, "Ready", "True", "ChildrenReady")
            .or_else(|_| says(&site, "Ready", "False", "ChildrenProgressing"))?;
    }
    host.stop().await
}
