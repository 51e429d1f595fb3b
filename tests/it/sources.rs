//! Components in parts: whole or not at all (rule P1).

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use oarlock_tests::host;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, digest, oarlock, says, string, text};

const HOST_NAMESPACE: &str = host::NAMESPACE;

/// A component with so many bytes of noise in a section that nobody reads: two megabytes that do not compress.
fn large(component: &str, seed: u64) -> Result<Vec<u8>> {
    let mut bytes = host::component(component)?;
    let mut noise = seed;
    let section: Vec<u8> = b"\x05noise"
        .iter()
        .copied()
        .chain(std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        }))
        .take(2_000_000)
        .collect();
    bytes.push(0);
    let mut length = section.len();
    while length > 0x7f {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(section);
    Ok(bytes)
}

fn config_maps(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client.clone(), HOST_NAMESPACE)
}

/// Puts ConfigMaps there as they are.
async fn put(world: &World, objects: &[Value]) -> Result<()> {
    for object in objects {
        let params = PatchParams::apply("test").force();
        config_maps(world).patch(string(object, "/metadata/name"), &params, &Patch::Apply(object)).await?;
    }
    Ok(())
}

async fn until_serves(world: &World, component: &[u8]) -> Result<Value> {
    let digest = digest(component);
    world
        .until("Plugin", "widget", "the component is in force", |plugin| {
            says(plugin, "Ready", "True", "Active")?;
            says(plugin, "Loaded", "True", "Active")?;
            ensure!(plugin["status"]["active"]["digest"] == *digest, "{}", plugin["status"]["active"]);
            Ok(())
        })
        .await
}

/// The parts of the plugin's uploads that are there.
async fn parts(world: &World) -> Result<Vec<String>> {
    let params = ListParams::default().labels("oarlock.dev/part-of=widget");
    let found = config_maps(world).list_metadata(&params).await?;
    Ok(found.items.into_iter().filter_map(|part| part.metadata.name).collect())
}

#[tokio::test]
async fn large_component_is_pushed_in_parts_and_served_also_after_a_restart() -> Result<()> {
    let lab = Lab::enter("sources-pushed").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    let folder = tempfile::tempdir()?;
    let push = |component: &[u8]| -> Result<()> {
        let file = folder.path().join("widget.wasm");
        std::fs::write(&file, component)?;
        let pushed = oarlock(world.plane, ["push".as_ref(), file.as_os_str()])?;
        ensure!(pushed.status.success() && text(&pushed).contains("Ready"), "{}", text(&pushed));
        Ok(())
    };
    let (first, second) = (large("widget", 1)?, large("widget-v2", 2)?);
    push(&first)?;
    until_serves(world, &first).await?;
    let old = parts(world).await?;
    ensure!(old.len() == 3, "{old:?}");
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;

    push(&second)?;
    until_serves(world, &second).await?;
    let new = parts(world).await?;
    ensure!(new.len() == 3 && !new.iter().any(|part| old.contains(part)), "{old:?}, then {new:?}");
    running.stop().await?;
    let running = lab.host().await?;
    world.merge("Widget", "w1", json!({"spec": {"text": "two"}})).await?;
    world
        .until("ConfigMap", "w1-cm", "is what the second version says", |child| {
            ensure!(child["data"] == json!({"text": "two", "version": "2"}), "{}", child["data"]);
            Ok(())
        })
        .await?;

    // The one before is kept in parts as well; and a small one leaves none behind.
    let back = oarlock(world.plane, ["rollback", "widget"])?;
    ensure!(back.status.success(), "{}", text(&back));
    let small = host::component("widget")?;
    push(&small)?;
    until_serves(world, &small).await?;
    ensure!(parts(world).await?.is_empty(), "parts are left");
    running.stop().await
}

#[tokio::test]
async fn half_an_upload_is_never_served_in_whatever_order_it_comes() -> Result<()> {
    let lab = Lab::enter("sources-parts").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let serves = host::component("widget")?;
    let component = large("widget-v2", 3)?;
    let packed = oarlock::plugins::source::pack("widget", &component)?;
    let (source, parts) = packed.split_last().unwrap();

    // The list comes first, then all parts but one.
    config_maps(world).delete("widget", &DeleteParams::default()).await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "SourceMissing"]).await?;
    world.source("widget", &[("plugin.wasm", &serves)]).await?;
    until_serves(world, &serves).await?;
    let replaced = json!({
        "metadata": {"labels": source["metadata"]["labels"]}, "data": source["data"], "binaryData": null,
    });
    config_maps(world).patch("widget", &PatchParams::default(), &Patch::Merge(&replaced)).await?;
    put(world, &parts[1..]).await?;
    let missing = string(&parts[0], "/metadata/name");
    let plugin = world
        .until("Plugin", "widget", "a part is missing", |plugin| {
            says(plugin, "Loaded", "False", "SourceIncomplete")?;
            let message = string(condition(plugin, "Loaded").unwrap(), "/message").to_owned();
            ensure!(
                message.contains(missing) && message.matches("widget.wasm.zst.").count() == 1,
                "{message}"
            );
            Ok(())
        })
        .await?;
    says(&plugin, "Ready", "True", "Active")?;
    assert_eq!(string(&plugin, "/status/active/digest"), digest(&serves));

    // A damaged one is no better than none; the right one completes it.
    let mut damaged = parts[0].clone();
    damaged["binaryData"]["widget.wasm.zst.0"] = "AAAA".into();
    put(world, &[damaged]).await?;
    let plugin = world.until_says("Plugin", "widget", ["Loaded", "False", "SourceInvalid"]).await?;
    assert_eq!(string(&plugin, "/status/active/digest"), digest(&serves));
    put(world, &parts[..1]).await?;
    until_serves(world, &component).await?;

    // One that goes afterwards is missed, and what serves goes on; also in a host that starts anew.
    config_maps(world).delete(missing, &DeleteParams::default()).await?;
    world.until_says("Plugin", "widget", ["Loaded", "False", "SourceIncomplete"]).await?;
    running.stop().await?;
    let running = lab.host().await?;
    world.merge("Widget", "w1", json!({"spec": {"text": "two"}})).await?;
    world
        .until("ConfigMap", "w1-cm", "is what the version in force says", |child| {
            ensure!(child["data"] == json!({"text": "two", "version": "2"}), "{}", child["data"]);
            Ok(())
        })
        .await?;
    world.until_says("Plugin", "widget", ["Loaded", "False", "SourceIncomplete"]).await?;
    let all = ListParams::default().labels("oarlock.dev/part-of=widget");
    config_maps(world).delete_collection(&DeleteParams::default(), &all).await?;
    running.stop().await
}
