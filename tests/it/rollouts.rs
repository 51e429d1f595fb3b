//! New versions on their way to all objects, and back (rules P2, P3 and P6).

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use oarlock_tests::{host, throughout};
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, digest, oarlock, says, string, text};

/// The digest of a test component.
fn digest_of(component: &str) -> Result<String> {
    Ok(digest(&host::component(component)?))
}

/// Widgets of these names, all served.
async fn widgets(world: &World, names: &[String]) -> Result<()> {
    world.set_all("Widget", names.iter().map(|name| (name.clone(), json!({"text": "one"})))).await?;
    for name in names {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    Ok(())
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("w{number:02}")).collect()
}

async fn push(world: &World, component: &str) -> Result<()> {
    world.source("widget", &[("plugin.wasm", &host::component(component)?)]).await
}

/// Waits until a version is in force, and the `Plugin` says this of its `Progressing`; "" that there is none.
async fn until_progressing(world: &World, component: &str, reason: &str) -> Result<Value> {
    let digest = digest_of(component)?;
    let what = format!("{component} is in force, and Progressing is {reason:?}");
    world
        .until("Plugin", "widget", &what, |plugin| {
            ensure!(plugin["status"]["active"]["digest"] == *digest, "{}", plugin["status"]["active"]);
            let progressing = condition(plugin, "Progressing");
            let found = progressing.map(|progressing| string(progressing, "/reason")).unwrap_or_default();
            ensure!(found == reason, "{progressing:?}");
            Ok(())
        })
        .await
}

/// The versions that the children are of.
async fn versions(world: &World, names: &[String]) -> Result<Vec<String>> {
    let mut versions = Vec::new();
    for name in names {
        let child = world.find("ConfigMap", &format!("{name}-cm")).await?;
        versions.push(match child {
            None => "none".to_owned(),
            Some(child) if child["data"]["version"] == "2" => "2".to_owned(),
            Some(_) => "1".to_owned(),
        });
    }
    Ok(versions)
}

async fn until_versions(world: &World, names: &[String], wanted: &[&str]) -> Result<()> {
    world
        .eventually("the children are of the right versions", async || {
            let found = versions(world, names).await?;
            ensure!(found == wanted, "{found:?}, not {wanted:?}");
            Ok(())
        })
        .await
}

/// P3: what fails on objects that the version before handles serves for a moment, and never again by itself.
#[tokio::test]
async fn version_that_fails_where_the_one_before_does_not_is_taken_back_for_good() -> Result<()> {
    let lab = Lab::enter("rollouts-failing").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let names = names(3);
    widgets(world, &names).await?;
    // One that no version handles is nobody's fault.
    world.set("Widget", "odd", json!({"mode": "panic"})).await?;
    world.until_says("Widget", "odd", ["Ready", "False", "GuestTrapped"]).await?;
    let before = world.get("ConfigMap", "w00-cm").await?;

    push(world, "widget-failing").await?;
    let told = async |host: &host::Host| -> Result<()> {
        let (failing, good) = (digest_of("widget-failing")?, digest_of("widget")?);
        let plugin = world
            .until("Plugin", "widget", "the version that failed was taken back", |plugin| {
                says(plugin, "Loaded", "False", "RolledBack")?;
                says(plugin, "Ready", "True", "Active")?;
                ensure!(plugin["status"]["refused"]["digest"] == *failing, "{}", plugin["status"]);
                ensure!(plugin["status"]["active"]["digest"] == *good, "{}", plugin["status"]["active"]);
                Ok(())
            })
            .await?;
        let message = string(condition(&plugin, "Loaded").unwrap(), "/message");
        ensure!(message.contains("oarlock approve widget") && message.contains("w0"), "{message}");
        for name in &names {
            world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
        }
        host.check_running()
    };
    told(&running).await?;
    world.until_told("Plugin", "widget", ["Warning", "RolledBack", "failed on"]).await?;
    let rollbacks = running.metrics().await?.sum("oarlock_plugin_rollbacks_total", &[]);
    ensure!((rollbacks - 1.0).abs() < 0.1, "{rollbacks} versions were taken back");
    running.stop().await?;

    // A host that starts knows it, and has the good version though the ConfigMap holds the other.
    let running = lab.host().await?;
    told(&running).await?;
    world.merge("Widget", "w00", json!({"spec": {"text": "two"}})).await?;
    world
        .until("ConfigMap", "w00-cm", "is what the good version says", |child| {
            ensure!(child["data"] == json!({"text": "two"}), "{}", child["data"]);
            ensure!(child["metadata"]["uid"] == before["metadata"]["uid"], "it is another one");
            Ok(())
        })
        .await?;

    // Whoever insists gets it; and what is pushed next is judged anew.
    let approved = oarlock(world.plane, ["approve", "widget"])?;
    ensure!(approved.status.success(), "{}", text(&approved));
    world.until_says("Widget", "w00", ["Ready", "False", "GuestTrapped"]).await?;
    world.plugin("widget", "widget-v2").await?;
    until_versions(world, &names, &["2", "2", "2"]).await?;

    // Of an object that is newer than a version nobody knows how the one before would have done.
    world.delete("Widget", "odd").await?;
    world.plugin("widget", "widget-fewer").await?;
    until_versions(world, &names, &["none"; 3]).await?;
    world.plugin("widget", "widget-v2").await?;
    until_versions(world, &names, &["2", "2", "2"]).await?;
    world.set("Widget", "new", json!({"mode": "panic"})).await?;
    world.until_says("Widget", "new", ["Ready", "False", "GuestTrapped"]).await?;
    world.until_at_rest().await?;
    let plugin = world.get("Plugin", "widget").await?;
    assert_eq!(string(&plugin, "/status/active/digest"), digest_of("widget-v2")?);
    running.stop().await
}

/// P6: a version that drops children goes ten objects far, and no further before somebody says so.
#[tokio::test]
async fn version_that_drops_children_of_many_objects_is_held_until_it_is_approved() -> Result<()> {
    let lab = Lab::enter("rollouts-held").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let names = names(14);
    widgets(world, &names).await?;

    push(world, "widget-fewer").await?;
    let plugin = until_progressing(world, "widget-fewer", "Held").await?;
    let message = string(condition(&plugin, "Progressing").unwrap(), "/message");
    ensure!(message.contains("oarlock approve widget"), "{message}");
    world.until_told("Plugin", "widget", ["Warning", "Held", "oarlock approve widget"]).await?;
    let left = async || -> Result<usize> {
        Ok(versions(world, &names).await?.iter().filter(|version| *version != "none").count())
    };
    let held = async || {
        throughout(Duration::from_secs(2), "four keep their children", async || {
            let left = left().await?;
            ensure!(left == 4, "{left} have theirs");
            Ok::<_, anyhow::Error>(())
        })
        .await
    };
    let used_up = async || {
        let left = left().await?;
        ensure!(left == 4, "{left} have theirs");
        Ok(())
    };
    world.eventually("the budget is used up", used_up).await?;
    held().await?;
    running.kill()?;
    let running = lab.host().await?;
    until_progressing(world, "widget-fewer", "Held").await?;
    held().await?;

    let approved = oarlock(world.plane, ["approve", "widget", "--digest", &digest_of("widget-fewer")?])?;
    ensure!(approved.status.success(), "{}", text(&approved));
    until_progressing(world, "widget-fewer", "").await?;
    until_versions(world, &names, &["none"; 14]).await?;

    // Back to the version before: what was deleted is made anew.
    let back = oarlock(world.plane, ["rollback", "widget"])?;
    ensure!(back.status.success(), "{}", text(&back));
    until_versions(world, &names, &["1"; 14]).await?;
    running.stop().await?;
    let running = lab.host().await?;
    until_progressing(world, "widget", "").await?;
    world.until_at_rest().await?;
    until_versions(world, &names, &["1"; 14]).await?;
    // It holds for the version that it replaced, not for the next one.
    world.plugin("widget", "widget-v2").await?;
    until_versions(world, &names, &["2"; 14]).await?;
    running.stop().await
}

#[tokio::test]
async fn version_waits_for_approval_where_the_operator_wants_to_look_first() -> Result<()> {
    let lab = Lab::enter("rollouts-preview").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let names = names(2);
    widgets(world, &names).await?;
    world.merge("Plugin", "widget", json!({"spec": {"rollout": "Preview"}})).await?;
    push(world, "widget-v2").await?;
    until_progressing(world, "widget", "AwaitingApproval").await?;
    running.kill()?;
    let running = lab.host().await?;
    let plugin = until_progressing(world, "widget", "AwaitingApproval").await?;
    assert_eq!(string(&plugin, "/status/candidate/digest"), digest_of("widget-v2")?);
    assert_eq!(versions(world, &names).await?, ["1", "1"]);
    let refused = oarlock(world.plane, ["approve", "widget", "--digest", "0000"])?;
    ensure!(!refused.status.success() && text(&refused).contains("not 0000"), "{}", text(&refused));
    let approved = oarlock(world.plane, ["approve", "widget"])?;
    ensure!(approved.status.success(), "{}", text(&approved));
    until_versions(world, &names, &["2", "2"]).await?;
    until_progressing(world, "widget-v2", "").await?;
    running.stop().await
}

#[tokio::test]
async fn canary_is_tried_on_its_part_and_promoted_or_taken_back() -> Result<()> {
    let lab = Lab::enter("rollouts-canary").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let names = names(4);
    widgets(world, &names).await?;
    for name in &names[..2] {
        world.merge("Widget", name, json!({"metadata": {"labels": {"stage": "test"}}})).await?;
    }
    let canary = json!({"labelSelector": "stage=test", "seconds": 3600});
    world.merge("Plugin", "widget", json!({"spec": {"rollout": "Canary", "canary": canary}})).await?;

    push(world, "widget-v2").await?;
    until_versions(world, &names, &["2", "2", "1", "1"]).await?;
    until_progressing(world, "widget", "Canary").await?;
    // Edits too go to the version of their object's part, and an object may change sides.
    world.merge("Widget", "w01", json!({"metadata": {"labels": {"stage": null}}})).await?;
    until_versions(world, &names, &["2", "1", "1", "1"]).await?;
    world.merge("Widget", "w02", json!({"metadata": {"labels": {"stage": "test"}}})).await?;
    until_versions(world, &names, &["2", "1", "2", "1"]).await?;
    world.until_at_rest().await?;

    // One that fails there is taken back, and the rest never hears of it.
    push(world, "widget-failing").await?;
    world.until_says("Plugin", "widget", ["Loaded", "False", "RolledBack"]).await?;
    until_versions(world, &names, &["1"; 4]).await?;
    for name in &names {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }

    // After a time without faults it is promoted.
    world.merge("Plugin", "widget", json!({"spec": {"canary": {"seconds": 2}}})).await?;
    push(world, "widget-v2").await?;
    until_versions(world, &names, &["2"; 4]).await?;
    until_progressing(world, "widget-v2", "").await?;
    running.stop().await
}

/// A `Plugin` that an operator has written is no shadow of its ConfigMap.
#[tokio::test]
async fn operators_plugin_names_its_source_its_version_and_outlives_both() -> Result<()> {
    let lab = Lab::enter("rollouts-operators").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    let plugin = |digest: &str| {
        json!({
            "apiVersion": "oarlock.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": "widget"},
            "spec": {"source": {"configMap": "rival"}, "digest": digest},
        })
    };
    world.apply(&plugin(&format!("sha256:{}", digest_of("widget")?)), "operator").await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "SourceMissing"]).await?;
    world.source("rival", &[("plugin.wasm", &host::component("widget-v2")?)]).await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "DigestMismatch"]).await?;
    world.source("rival", &[("plugin.wasm", &host::component("widget")?)]).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    assert!(world.find("Plugin", "rival").await?.is_none(), "its source is no plugin of its own");
    let names = names(1);
    widgets(world, &names).await?;

    world.source("rival", &[("plugin.wasm", &host::component("widget-v2")?)]).await?;
    world.until_says("Plugin", "widget", ["Loaded", "False", "DigestMismatch"]).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    world.delete_source("rival").await?;
    world.until_says("Plugin", "widget", ["Loaded", "False", "SourceMissing"]).await?;
    running.stop().await?;
    let running = lab.host().await?;
    world.merge("Widget", "w00", json!({"spec": {"text": "two"}})).await?;
    world
        .until("ConfigMap", "w00-cm", "is what the version says that is kept", |child| {
            ensure!(child["data"] == json!({"text": "two"}), "{}", child["data"]);
            Ok(())
        })
        .await?;
    world.until_says("Plugin", "widget", ["Loaded", "False", "SourceMissing"]).await?;
    world.delete_plugin("widget").await?;
    running.stop().await
}

#[tokio::test]
async fn paused_object_is_left_as_it_is_and_goes_on_where_it_was() -> Result<()> {
    let lab = Lab::enter("rollouts-paused").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let names = names(2);
    widgets(world, &names).await?;
    world
        .merge("Widget", "w00", json!({"metadata": {"annotations": {"oarlock.dev/paused": "true"}}}))
        .await?;
    world.until_says("Widget", "w00", ["Ready", "Unknown", "Paused"]).await?;
    for name in &names {
        world.merge("Widget", name, json!({"spec": {"text": "two"}})).await?;
    }
    world.delete("ConfigMap", "w00-cm").await?;
    push(world, "widget-v2").await?;
    until_versions(world, &names, &["none", "2"]).await?;
    world.until_at_rest().await?;
    until_versions(world, &names, &["none", "2"]).await?;
    until_progressing(world, "widget-v2", "").await?;
    world.merge("Widget", "w00", json!({"metadata": {"annotations": {"oarlock.dev/paused": null}}})).await?;
    until_versions(world, &names, &["2", "2"]).await?;
    world.until_says("Widget", "w00", ["Ready", "True", "ChildrenReady"]).await?;
    running.stop().await
}

/// Ten swaps while two hundred objects are edited: whoever edited last is obeyed, by the version that came last.
#[tokio::test]
async fn swaps_under_load_lose_no_edit_and_leave_no_object_behind() -> Result<()> {
    let lab = Lab::enter("rollouts-load").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let names: Vec<String> = (0..200).map(|number| format!("w{number:03}")).collect();
    world.set_all("Widget", names.iter().map(|name| (name.clone(), json!({"text": "0"})))).await?;

    let done = AtomicBool::new(false);
    let edits = async {
        let mut round = 0;
        while !done.load(Ordering::Relaxed) {
            round += 1;
            let specs =
                names.iter().step_by(7).map(|name| (name.clone(), json!({"text": round.to_string()})));
            world.set_all("Widget", specs).await?;
        }
        Ok::<_, anyhow::Error>(round)
    };
    let swaps = async {
        for component in ["widget-v2", "widget"].iter().cycle().take(9).chain(["widget-v2"].iter()) {
            world.plugin("widget", component).await?;
        }
        done.store(true, Ordering::Relaxed);
        Ok::<_, anyhow::Error>(())
    };
    let (rounds, ()) = tokio::try_join!(edits, swaps)?;
    ensure!(rounds > 1, "nothing was edited meanwhile");
    world
        .eventually("every child is of the last edit and the last version", async || {
            let children = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;
            ensure!(children.len() == names.len(), "{} children", children.len());
            for child in children {
                let name = string(&child, "/metadata/name").trim_end_matches("-cm");
                let is_edited = names.iter().step_by(7).any(|edited| edited == name);
                let text = if is_edited { rounds.to_string() } else { "0".to_owned() };
                ensure!(child["data"] == json!({"text": text, "version": "2"}), "{name}: {}", child["data"]);
            }
            Ok(())
        })
        .await?;
    running.check_running()?;
    let plugin = until_progressing(world, "widget-v2", "").await?;
    ensure!(plugin["status"]["refused"].is_null(), "{}", plugin["status"]["refused"]);
    // Each of the ten was in force; those that came to all objects before the next are timed.
    let metrics = running.metrics().await?;
    let swaps = metrics.sum("oarlock_plugin_swap_seconds_count", &[]);
    ensure!((swaps - 10.0).abs() < 0.1, "{swaps} versions came into force");
    assert!(metrics.sum("oarlock_plugin_rollout_seconds_count", &[]) >= 1.0);
    running.stop().await
}
