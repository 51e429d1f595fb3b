//! Versions that come, go and change places while they are being loaded: what serves is always one of them, whole.

use anyhow::{Result, ensure};
use oarlock_tests::host::{self, Host, Options};
use serde_json::{Value, json};

use crate::world::{Lab, World, digest, says, string};

/// A host that has compiled nothing yet, so that loading takes its time.
async fn start(lab: &Lab, cache: &tempfile::TempDir) -> Result<Host> {
    let options = Options { cache_dir: cache.path().to_owned(), ..Options::standard(lab.world.plane) };
    let host = Host::start(lab.world.plane, &options)?;
    host.ready().await?;
    Ok(host)
}

/// The child as it was made, whoever looks at it since.
async fn child(world: &World, name: &str) -> Result<Value> {
    world.get("ConfigMap", name).await
}

/// F70: the source goes, or is put back, before what it was is loaded.
#[tokio::test]
async fn source_that_goes_while_it_is_loaded_never_serves_and_one_put_back_does() -> Result<()> {
    let lab = Lab::enter("swaps-gone").await?;
    let world = &lab.world;
    let cache = tempfile::tempdir()?;
    let host = start(&lab, &cache).await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    let (first, second) = (host::component("widget")?, host::component("widget-v2")?);
    let before = child(world, "w1-cm").await?;

    // Another version, which is taken back before anybody can have compiled it.
    world.source("widget", &[("plugin.wasm", &second)]).await?;
    world.source("widget", &[("plugin.wasm", &first)]).await?;
    world.plugin("widget", "widget").await?;
    world.until_at_rest().await?;
    assert_eq!(child(world, "w1-cm").await?, before);

    // Another version, whose source goes.
    world.source("widget", &[("plugin.wasm", &second)]).await?;
    world.delete_source("widget").await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "SourceMissing"]).await?;
    world.merge("Widget", "w1", json!({"spec": {"text": "two"}})).await?;
    world.until_at_rest().await?;
    assert_eq!(child(world, "w1-cm").await?, before, "nobody serves");

    world.plugin("widget", "widget-v2").await?;
    world
        .until("ConfigMap", "w1-cm", "is of the version that came back", |child| {
            ensure!(child["data"] == json!({"text": "two", "version": "2"}), "{}", child["data"]);
            Ok(())
        })
        .await?;
    assert_eq!(child(world, "w1-cm").await?["metadata"]["uid"], before["metadata"]["uid"]);
    host.stop().await
}

/// F73: two plugins exchange their components, and take them back.
#[tokio::test]
async fn plugins_that_exchange_their_components_are_what_their_digests_say_and_lose_nothing() -> Result<()> {
    let lab = Lab::enter("swaps-exchanged").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.plugin("website", "website").await?;
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    world.set("Website", "blog", json!({"image": "nginx:1"})).await?;
    let until = async |status: &str, reason: &str| -> Result<()> {
        world.until_says("Widget", "w1", ["Ready", status, reason]).await?;
        world.until_says("Website", "blog", ["Ready", status, reason]).await?;
        world.until_at_rest().await
    };
    until("True", "ChildrenReady").await?;
    let uids = async || -> Result<Vec<String>> {
        let mut uids = Vec::new();
        for (kind, name) in [("ConfigMap", "w1-cm"), ("Deployment", "blog"), ("Service", "blog")] {
            uids.push(string(&world.get(kind, name).await?, "/metadata/uid").to_owned());
        }
        Ok(uids)
    };
    let before = uids().await?;

    let [widget, website] = ["widget", "website"].map(|name| host::component(name).unwrap());
    // A child belongs to the plugin of a name, whatever its component does (A4).
    for (one, other, status, reason) in
        [(&website, &widget, "False", "ChildNotOwned"), (&widget, &website, "True", "ChildrenReady")]
    {
        world.source("widget", &[("plugin.wasm", one)]).await?;
        world.source("website", &[("plugin.wasm", other)]).await?;
        for (name, component) in [("widget", one), ("website", other)] {
            world
                .until("Plugin", name, "serves what its ConfigMap has", |plugin| {
                    says(plugin, "Ready", "True", "Active")?;
                    ensure!(
                        plugin["status"]["active"]["digest"] == *digest(component),
                        "{}",
                        plugin["status"]
                    );
                    Ok(())
                })
                .await?;
        }
        until(status, reason).await?;
        assert_eq!(uids().await?, before, "nothing was deleted or made anew");
    }
    host.stop().await
}
