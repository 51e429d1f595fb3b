//! Guests that wake themselves: those that settle are let be, the others are limited and named (rule R6).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use oarlock_tests::host::Host;
use oarlock_tests::throughout;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, says, string};

/// Modes that never settle, each with what its condition names.
const UNSTABLE: [(&str, &str); 5] = [
    ("previous", "status.note went from \""),
    ("clock-name", "children went from ConfigMap loops/clock-name-"),
    ("flip", "children[Service loops/flip].spec.ports went from [{\""),
    ("own-child", "children[ConfigMap loops/own-child-cm].data.text went from \""),
    ("own-annotation", "metadata.annotations[\"cases.example.com/count\"] went from "),
];

fn is_unstable(widget: &Value, path: &str) -> Result<()> {
    says(widget, "Reconciling", "True", "PlanUnstable")?;
    says(widget, "Ready", "True", "ChildrenReady")?;
    let message = string(condition(widget, "Reconciling").unwrap(), "/message");
    ensure!(message.contains(path), "{message}");
    Ok(())
}

/// Rule R6.
#[tokio::test]
async fn plan_that_never_settles_is_limited_and_its_path_named_until_it_is_mended() -> Result<()> {
    let world = World::new("loops").await?;
    for (mode, _) in UNSTABLE {
        world.set("Widget", mode, json!({"mode": mode})).await?;
    }
    world.set("Widget", "calm", json!({"text": "one"})).await?;
    for (mode, path) in UNSTABLE {
        world.until("Widget", mode, "is said to be unstable", |widget| is_unstable(widget, path)).await?;
        world.until_told("Widget", mode, ["Warning", "PlanUnstable", path]).await?;
    }

    // The others are served, and so are edits of the unstable ones.
    world.set("Widget", "calm", json!({"text": "two"})).await?;
    world
        .until("ConfigMap", "calm-cm", "has the new text", |config_map| {
            ensure!(config_map["data"]["text"] == "two", "{}", config_map["data"]);
            Ok(())
        })
        .await?;
    for (mode, _) in UNSTABLE {
        world.set("Widget", mode, json!({"mode": "normal", "text": "mended"})).await?;
        world
            .until("Widget", mode, "has settled", |widget| {
                says(widget, "Ready", "True", "ChildrenReady")?;
                says(widget, "Synced", "True", "Written")?;
                ensure!(condition(widget, "Reconciling").is_none(), "{}", widget["status"]);
                Ok(())
            })
            .await?;
    }
    Ok(())
}

/// B038 (b): a name that is another at each call.
#[tokio::test]
async fn unstable_names_make_few_children() -> Result<()> {
    let world = World::new("loops-names").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let start = Instant::now();
    world.set("Widget", "w1", json!({"mode": "clock-name"})).await?;
    world
        .until("Widget", "w1", "is said to be unstable", |widget| {
            says(widget, "Reconciling", "True", "PlanUnstable")
        })
        .await?;
    throughout(Duration::from_secs(10), "at most two children live", async || {
        let children = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;
        ensure!(children.len() <= 2, "{} children", children.len());
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let created =
        writes.iter().filter(|write| write.starts_with("patch configmaps") && write.ends_with("201"));
    // The first is none of the guest's own doing; the others count twice of the ten in each minute.
    let allowed = 1 + 5 * (1 + start.elapsed().as_secs() as usize / 60);
    let created = created.count();
    assert!((2..=allowed).contains(&created), "{created} created in {:?}: {writes:?}", start.elapsed());
    Ok(())
}

/// B038 (a): what changes with each write is not shown to a guest.
#[tokio::test]
async fn name_from_the_resource_version_settles() -> Result<()> {
    let world = World::new("loops-version").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set("Widget", "w1", json!({"mode": "version-name"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    throughout(Duration::from_secs(2), "the one child is there", async || {
        world.get("ConfigMap", "w1-none").await.map(drop)
    })
    .await?;
    let to = audit.mark().await?;
    let mut writes = world.host_writes(&audit, from, to);
    writes.retain(|write| !write.contains(" events"));
    assert_eq!(writes, ["patch configmaps w1-none 201", "patch widgets/status w1 200"]);
    Ok(())
}

/// B011, without the delay: a guest that repeats the children it sees sees those that it asked for.
#[tokio::test]
async fn guest_that_repeats_its_children_makes_no_second_one() -> Result<()> {
    let world = World::new("loops-repeat").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set("Widget", "w1", json!({"mode": "repeat", "size": 1})).await?;
    for touch in 1..=15 {
        let annotations = json!({"metadata": {"annotations": {"touch": touch.to_string()}}});
        world.merge("Widget", "w1", annotations).await?;
    }
    world.set("Widget", "w1", json!({"mode": "repeat", "size": 1, "text": "last"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world
        .eventually("the one child has the last text", async || {
            let children = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;
            let texts: Vec<_> = children.iter().map(|child| child["data"]["text"].clone()).collect();
            ensure!(texts == ["last"], "{texts:?}");
            Ok(())
        })
        .await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let created =
        writes.iter().filter(|write| write.starts_with("patch configmaps") && write.ends_with("201"));
    assert_eq!(created.count(), 1, "{writes:?}");
    assert!(!writes.iter().any(|write| write.starts_with("delete ")), "{writes:?}");
    Ok(())
}

/// B002: called ten times with nothing new to say, then with another status of its condition.
#[tokio::test]
async fn guest_that_is_called_by_the_clock_writes_what_is_new_only() -> Result<()> {
    let world = World::new("loops-stamp").await?;
    let mut audit = world.plane.audit().await?;
    let time =
        |widget: &Value| string(condition(widget, "Stamped").unwrap(), "/lastTransitionTime").to_owned();
    let mut times = Vec::new();
    for status in ["True", "False"] {
        let from = audit.mark().await?;
        world.set("Widget", "w1", json!({"mode": "stamp", "text": status})).await?;
        let first = world.until_says("Widget", "w1", ["Stamped", status, "Ok"]).await?;
        throughout(Duration::from_millis(3_300), "the condition stands as it is", async || {
            let widget = world.get("Widget", "w1").await?;
            ensure!(time(&widget) == time(&first), "{}", widget["status"]);
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        let to = audit.mark().await?;
        let writes = world.host_writes(&audit, from, to);
        let writes = writes.iter().filter(|write| write.contains("/status")).count();
        assert_eq!(writes, 1, "{status}");
        times.push(time(&first));
    }
    assert!(times[0] < times[1], "{times:?}");
    Ok(())
}

async fn calls(host: &Host) -> Result<f64> {
    let metrics = host.metrics().await?;
    Ok(metrics.sum("oarlock_memo_total", &["plugin=\"widget\"", "result=\"miss\""]))
}

/// Neither the host's own writes of a status nor anybody else's call a guest that does not read it; one that does
/// is called while it changes.
#[tokio::test]
async fn write_of_the_status_calls_only_a_guest_that_reads_it() -> Result<()> {
    let lab = Lab::enter("loops-status").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert!((calls(&host).await? - 1.0).abs() < f64::EPSILON, "{} calls", calls(&host).await?);
    for note in ["a", "b", "c"] {
        let status = json!({"status": {"note": note}});
        world.api("Widget").patch_status("w1", &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    let lost = json!({"status": {"conditions": null}});
    world.api("Widget").patch_status("w1", &PatchParams::default(), &Patch::Merge(lost)).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert!((calls(&host).await? - 1.0).abs() < f64::EPSILON, "{} calls", calls(&host).await?);

    let mut audit = world.plane.audit().await?;
    world.set("Widget", "w2", json!({"mode": "settles", "size": 3})).await?;
    world
        .until("Widget", "w2", "has counted", |widget| {
            ensure!(widget["status"]["note"] == "3", "{}", widget["status"]);
            says(widget, "Ready", "True", "ChildrenReady")
        })
        .await?;
    // The call that finds nothing new is still to come, after the write that was waited for.
    let settled = world
        .eventually("no call is made for a while", async || {
            let before = calls(&host).await?;
            throughout(Duration::from_secs(2), "no call is made", async || {
                let calls = calls(&host).await?;
                ensure!((calls - before).abs() < f64::EPSILON, "{calls} calls after {before}");
                Ok::<_, anyhow::Error>(())
            })
            .await?;
            Ok(before)
        })
        .await?;
    assert!((5.0..=7.0).contains(&settled), "{settled} calls: one, and one for each number, and a last one");
    let from = audit.mark().await?;
    throughout(Duration::from_secs(1), "the host runs", async || host.check_running()).await?;
    let to = audit.mark().await?;
    assert_eq!(world.host_writes(&audit, from, to), [""; 0]);
    let widget = world.get("Widget", "w2").await?;
    assert!(condition(&widget, "Reconciling").is_none(), "{}", widget["status"]);
    host.stop().await
}
