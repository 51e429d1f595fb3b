//! Hostile plugins beside a good one: each is told what is wrong, and nobody else notices.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use oarlock_tests::host::{self, Host};
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, says, string};

/// Objects of the good plugin, all of them edited in each round.
const SITES: usize = 50;
/// Edits under way at once.
const AT_ONCE: usize = 8;
/// The 99th percentile of edits beside hostile plugins by that of edits without. Without, it is some hundred
/// milliseconds; a guest that uses all of its fuel takes a core for about a second, of which there may be two.
const SLOWER: f64 = 20.0;
/// What hostile plugins may make of the host's memory: two calls with 64 MiB each, their answers, and two of
/// everything for what is freed late.
const MORE_MEBIBYTES: u64 = 384;

/// What `spec.mode` of a Widget does: the reason it ends with, and words of its message.
const CALLS: [(&str, [&str; 2]); 21] = [
    ("loop", ["FuelExhausted", "used all of its 2000000000 units of fuel"]),
    ("recurse", ["GuestTrapped", "call stack exhausted"]),
    ("recurse-data", ["GuestTrapped", "the guest trapped: "]),
    ("panic", ["GuestTrapped", "size must be >= 1, got 0"]),
    ("grow", ["MemoryExceeded", "bytes of memory, a call may have 67108864"]),
    ("grow-spin", ["MemoryExceeded", "bytes of memory, a call may have 67108864"]),
    ("big-output", ["OutputTooLarge", "more than 8388608 bytes"]),
    ("many-children", ["OutputTooLarge", "more than 8388608 bytes"]),
    ("many-events", ["PlanTooLarge", "10000 events, at most 32 are allowed"]),
    ("many-reads", ["ReadExhausted", "1001 different reads, at most 1000 are allowed"]),
    ("same-read", ["ReadExhausted", "bytes of reads, at most 33554432 are allowed"]),
    ("deep", ["InvalidPlan", "nested deeper than 127 levels"]),
    ("bad-json", ["InvalidPlan", "child 0 cannot be read"]),
    ("no-name", ["InvalidPlan", "metadata.generateName"]),
    ("undeclared-kind", ["InvalidPlan", "does not declare Secret (v1) under children"]),
    ("other-namespace", ["InvalidPlan", "outside of the parent's namespace"]),
    ("foreign-label", ["InvalidPlan", "oarlock.dev/owned-by, which belongs to the host"]),
    ("read-undeclared", ["ReadDenied", "does not declare Secret (v1) under reads"]),
    ("read-elsewhere", ["ReadDenied", "outside of the parent's namespace"]),
    ("permanent", ["Broken", "told to fail for good"]),
    ("no-such-mode", ["UnknownMode", "no-such-mode"]),
];

/// Components that are never in force: the reason, and words of the message.
const LOADS: [(&str, [&str; 2]); 10] = [
    ("describe-loops", ["SmokeTestFailed", "used all of its 2000000000 units of fuel"]),
    ("describe-panics", ["SmokeTestFailed", "no manifest today"]),
    ("start-loops", ["SmokeTestFailed", "used all of its 2000000000 units of fuel"]),
    ("huge-memory", ["SmokeTestFailed", "asked for 1073741824 bytes of memory, a call may have 67108864"]),
    ("bad-manifest", ["ManifestInvalid", "owns"]),
    ("no-exports", ["ContractMismatch", "does not export describe"]),
    ("old-contract", ["ContractMismatch", "oarlock:plugin@0.0.9"]),
    ("many-functions", ["TooLarge", "functions, at most 200000 are allowed"]),
    ("many-exports", ["TooLarge", "1000000 imports and exports, at most 10000 are allowed"]),
    ("random", ["NotWasm", "not WebAssembly"]),
];

/// The bytes of a component; some are made here, as no toolchain would.
fn component(name: &str) -> Result<Vec<u8>> {
    match name {
        // Modules whose sections say that they have a million of something, and end there.
        "many-functions" => Ok(claiming(b"\x03\x03\xc0\x84\x3d\x0a\x03\xc0\x84\x3d")),
        "many-exports" => Ok(claiming(b"\x07\x03\xc0\x84\x3d")),
        "random" => Ok((0..=255_u8).rev().cycle().take(10_000).collect()),
        name => host::component(name),
    }
}

/// A component with one module of these sections.
fn claiming(sections: &[u8]) -> Vec<u8> {
    let module = [b"\0asm\x01\0\0\0", sections].concat();
    [b"\0asm\x0d\0\x01\0\x01", &[module.len() as u8][..], &module].concat()
}

/// Edits every site and waits until each edit is in its Deployment; how long each took.
async fn edit_all(world: &World, round: usize) -> Result<Vec<f64>> {
    let edit = |number: usize| async move {
        let (name, image) = (format!("s{number}"), format!("nginx:{round}"));
        let began = Instant::now();
        world.merge("Website", &name, json!({"spec": {"image": image}})).await?;
        let applied = |child: &Value| {
            let applied = string(child, "/spec/template/spec/containers/0/image");
            ensure!(applied == image, "{applied}");
            Ok(())
        };
        world.until("Deployment", &name, "has the edit", applied).await?;
        anyhow::Ok(began.elapsed().as_secs_f64())
    };
    stream::iter((0..SITES).map(edit)).buffer_unordered(AT_ONCE).try_collect().await
}

fn p99(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() * 99 / 100]
}

/// The most memory that the host has had so far, in MiB.
fn peak_mebibytes(host: &Host) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kibibytes: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes >> 10)
}

fn tells(object: &Value, [reason, words]: [&str; 2]) -> Result<()> {
    says(object, "Ready", "False", reason)?;
    let told = string(condition(object, "Ready").unwrap(), "/message");
    ensure!(told.contains(words), "{told}");
    Ok(())
}

#[tokio::test]
async fn hostile_plugins_are_told_and_nobody_else_notices() -> Result<()> {
    let lab = Lab::enter("hostile").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("website", "website").await?;
    world.plugin("widget", "widget").await?;
    let site = json!({"image": "nginx:0", "replicas": 0});
    let sites = (0..SITES).map(|number| (format!("s{number}"), site.clone()));
    world.set_all("Website", sites).await?;
    edit_all(world, 0).await?;
    let before = peak_mebibytes(&host)?;
    let (mut quiet, mut beside) = (Vec::new(), Vec::new());
    for (round, (mode, told)) in CALLS.into_iter().enumerate() {
        if round % 4 == 0 {
            quiet.extend(edit_all(world, 2 * round + 1).await?);
        }
        // For half of the workers.
        let names = ["a", "b"].map(|name| format!("{mode}-{name}"));
        let attack = async {
            world.set_all("Widget", names.clone().map(|name| (name, json!({"mode": mode})))).await?;
            for name in &names {
                world.until("Widget", name, told[0], |widget| tells(widget, told)).await?;
            }
            anyhow::Ok(())
        };
        let ((), times) = tokio::try_join!(attack, edit_all(world, 2 * round + 2))?;
        beside.extend(times);
        for name in &names {
            world.delete("Widget", name).await?;
        }
    }
    for (round, (name, told)) in LOADS.into_iter().enumerate() {
        let attack = async {
            world.source("rival", &[("plugin.wasm", &component(name)?)]).await?;
            world.until("Plugin", "rival", told[0], |plugin| tells(plugin, told)).await.map(drop)
        };
        let ((), times) = tokio::try_join!(attack, edit_all(world, 1_000 + round))?;
        beside.extend(times);
    }
    let (beside, quiet) = (p99(beside), p99(quiet));
    ensure!(beside < SLOWER * quiet, "edits took {beside} s beside hostile plugins, and {quiet} s without");
    let after = peak_mebibytes(&host)?;
    ensure!(after < before + MORE_MEBIBYTES, "the host had {before} MiB before, and {after} MiB meanwhile");
    // What a guest said last is told where people look.
    world.set("Widget", "panics", json!({"mode": "panic"})).await?;
    world.until_told("Widget", "panics", ["Warning", "GuestTrapped", "size must be >= 1, got 0"]).await?;
    let metrics = host.metrics().await?;
    let used =
        |family: &str, r#use: &str| metrics.sum(family, &["plugin=\"widget\"", &format!("use=\"{use}\"")]);
    for (r#use, limit) in [("fuel", 2e9), ("memory_bytes", 67_108_864.0), ("output_bytes", 8_388_608.0)] {
        let (peak, told) = (used("oarlock_guest_peak", r#use), used("oarlock_guest_limit", r#use));
        ensure!((told - limit).abs() < 0.5, "{use}: {told}");
        ensure!(peak > 0.9 * limit && peak <= limit, "{use}: {peak} of {limit}");
    }
    world.delete_plugin("rival").await?;
    host.stop().await
}

/// Log lines are dropped and not the call; nothing of a plan that was refused is in the cluster.
#[tokio::test]
async fn flood_of_log_lines_costs_the_lines() -> Result<()> {
    let world = World::new("hostile-logs").await?;
    world.set("Widget", "w1", json!({"mode": "many-logs", "text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let log = fs::read_to_string(world.plane.dir().join("oarlock.log"))?;
    let lines = log.lines().filter(|line| line.contains("of a hundred thousand")).count();
    ensure!((1..=2_000).contains(&lines), "{lines} lines");
    crate::world::shared_host().await?.check_running()?;
    oarlock_tests::eventually(Duration::from_secs(10), "it still serves", async || {
        crate::world::shared_host().await?.metrics().await
    })
    .await
    .map(drop)
}
