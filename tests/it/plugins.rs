//! The life of a plugin beside its versions: settings, rivals, and a source that goes.

use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_tests::host;
use oarlock_tests::throughout;
use serde_json::json;

use crate::world::{Lab, World, condition, string};

async fn no_child(world: &World, name: &str) -> Result<()> {
    throughout(Duration::from_secs(1), "nothing is done for it", async || {
        ensure!(world.find("ConfigMap", name).await?.is_none(), "{name} is there");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

#[tokio::test]
async fn paused_plugin_leaves_everything_until_it_is_resumed() -> Result<()> {
    let lab = Lab::enter("plugins-paused").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;

    world.merge("Plugin", "widget", json!({"spec": {"paused": true}})).await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "Paused"]).await?;
    world.set("Widget", "w2", json!({"text": "later"})).await?;
    no_child(world, "w2-cm").await?;
    world.get("ConfigMap", "w1-cm").await?;

    world.merge("Plugin", "widget", json!({"spec": {"paused": false}})).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    world.until_says("Widget", "w2", ["Ready", "True", "ChildrenReady"]).await?;
    host.stop().await
}

/// Rule P7.
#[tokio::test]
async fn limits_of_a_plugin_hold_and_can_be_raised() -> Result<()> {
    let lab = Lab::enter("plugins-limits").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.merge("Plugin", "widget", json!({"spec": {"limits": {"fuelMillions": 10}}})).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    world.set("Widget", "w1", json!({"mode": "loop"})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "FuelExhausted"]).await?;
    let message = string(condition(&widget, "Ready").unwrap(), "/message");
    assert!(message.contains("fuel"), "{message}");

    world
        .merge("Plugin", "widget", json!({"spec": {"limits": {"fuelMillions": null, "memoryMebibytes": 1}}}))
        .await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    world.set("Widget", "w2", json!({"mode": "grow"})).await?;
    world.until_says("Widget", "w2", ["Ready", "False", "MemoryExceeded"]).await?;
    host.stop().await
}

/// Rule P5.
#[tokio::test]
async fn older_of_two_plugins_for_one_kind_wins_until_it_goes() -> Result<()> {
    let lab = Lab::enter("plugins-rivals").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    // Times of creation have whole seconds.
    throughout(Duration::from_millis(1_100), "time passes", async || Ok::<_, anyhow::Error>(())).await?;
    world.source("rival", &[("plugin.wasm", &host::component("widget-v2")?)]).await?;
    let rival = world.until_says("Plugin", "rival", ["Ready", "False", "ParentClaimed"]).await?;
    let message = string(condition(&rival, "Ready").unwrap(), "/message");
    assert!(message.contains("widget"), "{message}");
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("ConfigMap", "w1-cm").await?["data"], json!({"text": "hi"}));

    world.delete_plugin("widget").await?;
    world.until_says("Plugin", "rival", ["Ready", "True", "Active"]).await?;
    // The child is still the first one's: it is not taken over silently.
    world.until_says("Widget", "w1", ["Ready", "False", "ChildNotOwned"]).await?;
    world.set("Widget", "w2", json!({"text": "ho"})).await?;
    world.until_says("Widget", "w2", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("ConfigMap", "w2-cm").await?["data"], json!({"text": "ho", "version": "2"}));
    world.delete_plugin("rival").await?;
    host.stop().await
}

/// Rule D4.
#[tokio::test]
async fn plugin_without_its_source_is_told_and_comes_back_without_a_write() -> Result<()> {
    let lab = Lab::enter("plugins-source").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_told("Widget", "w1", ["Created", "w1-cm", ""]).await?;

    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.delete_source("widget").await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "SourceMissing"]).await?;
    world.set("Widget", "w2", json!({"text": "later"})).await?;
    no_child(world, "w2-cm").await?;
    world.plugin("widget", "widget").await?;
    world.until_says("Widget", "w2", ["Ready", "True", "ChildrenReady"]).await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    assert!(writes.iter().all(|write| !write.contains("w1")), "{writes:?}");
    host.stop().await
}

/// What the host says of a plugin outlives somebody who writes there.
#[tokio::test]
async fn status_of_a_plugin_is_put_right_when_somebody_wipes_it() -> Result<()> {
    let lab = Lab::enter("plugins-status").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let wipe =
        kube::api::Patch::Json::<()>(serde_json::from_value(json!([{"op": "remove", "path": "/status"}]))?);
    world.api("Plugin").patch_status("widget", &kube::api::PatchParams::default(), &wipe).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    let plugin = world.get("Plugin", "widget").await?;
    assert!(!plugin["status"]["kinds"].as_array().is_none_or(Vec::is_empty), "{}", plugin["status"]);
    host.stop().await
}
