//! Plugins that have a say when their objects go.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::api::{Patch, PatchParams};
use oarlock_tests::{eventually, throughout};
use serde_json::{Value, json};

use crate::world::{DEADLINE, Lab, World, says};

const FINALIZER: &str = "oarlock.dev/widget";

/// Rules D1, D2.
#[tokio::test]
async fn object_waits_for_its_plugin_and_goes_when_it_is_done() -> Result<()> {
    let lab = Lab::enter("deletion").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget-finalizes").await?;
    world.set("Widget", "w1", json!({"text": "hi", "finalize": "wait"})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(widget["metadata"]["finalizers"], json!([FINALIZER]));

    world.delete("Widget", "w1").await?;
    world.until("ConfigMap", "w1-bye", "is planned while the object goes", |_| Ok(())).await?;
    world
        .until("Widget", "w1", "says that it is going", |widget| {
            ensure!(widget["metadata"]["finalizers"] == json!([FINALIZER]), "{}", widget["metadata"]);
            says(widget, "Ready", "False", "Deleting")
        })
        .await?;
    world.until_gone("ConfigMap", "w1-cm").await?;
    world.merge("Widget", "w1", json!({"metadata": {"annotations": {"release": "true"}}})).await?;
    world.until_gone("Widget", "w1").await?;
    world.until_gone("ConfigMap", "w1-bye").await?;

    // Rule D4, B020: a plugin that is gone keeps nobody.
    world.set("Widget", "w2", json!({"text": "hi", "finalize": "wait"})).await?;
    world.until_says("Widget", "w2", ["Ready", "True", "ChildrenReady"]).await?;
    world.delete_plugin("widget").await?;
    world
        .until("Widget", "w2", "is free", |widget| {
            ensure!(widget["metadata"]["finalizers"].is_null(), "{}", widget["metadata"]);
            Ok(())
        })
        .await?;
    world.get("ConfigMap", "w2-cm").await?;
    world.delete("Widget", "w2").await?;
    world.until_gone("Widget", "w2").await?;
    host.stop().await
}

/// B019.
#[tokio::test]
async fn object_that_is_going_already_gets_neither_finalizer_nor_children() -> Result<()> {
    let lab = Lab::enter("deletion-late").await?;
    let world = &lab.world;
    let held = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget",
        "metadata": {"name": "w1", "finalizers": ["x.example.org/hold"]}, "spec": {"text": "hi"},
    });
    world.apply(&held, "tests").await?;
    world.delete("Widget", "w1").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let host = lab.host().await?;
    world.plugin("widget", "widget-finalizes").await?;
    world.set("Widget", "w2", json!({"text": "later"})).await?;
    world.until_says("Widget", "w2", ["Ready", "True", "ChildrenReady"]).await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    assert!(writes.iter().all(|write| !write.contains("w1")), "{writes:?}");
    world.merge("Widget", "w1", json!({"metadata": {"finalizers": null}})).await?;
    world.until_gone("Widget", "w1").await?;
    host.stop().await
}

/// B022: the host is not in the way of a namespace that goes.
#[tokio::test]
async fn namespace_goes_with_what_is_in_it() -> Result<()> {
    let lab = Lab::enter("deletion-namespace").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget-finalizes").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.delete("Namespace", "deletion-namespace").await?;
    world.until_gone("Namespace", "deletion-namespace").await?;
    host.stop().await
}

/// Rule D4: whichever version put the finalizer there, nobody waits for one that is no longer in force.
#[tokio::test]
async fn finalizers_go_with_the_version_that_put_them_there() -> Result<()> {
    let lab = Lab::enter("deletion-swap").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    let finalized = async |name: &str| -> Result<()> {
        world.set("Widget", name, json!({"text": "hi", "finalize": "wait"})).await?;
        let widget = world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
        assert_eq!(widget["metadata"]["finalizers"], json!([FINALIZER]));
        Ok(())
    };
    let free = async |name: &str| -> Result<()> {
        let is_free = |widget: &Value| {
            ensure!(widget["metadata"]["finalizers"].is_null(), "{}", widget["metadata"]);
            Ok(())
        };
        world.until("Widget", name, "is free", is_free).await.map(drop)
    };
    world.plugin("widget", "widget-finalizes").await?;
    finalized("w1").await?;
    // A version that does not finalize leaves it, and its end takes it along.
    world.plugin("widget", "widget").await?;
    world.delete_source("widget").await?;
    free("w1").await?;

    // A version for another kind of parent has nothing to do with these any more.
    world.plugin("widget", "widget-finalizes").await?;
    finalized("w2").await?;
    world.plugin("widget", "website").await?;
    free("w2").await?;
    world.delete_plugin("widget").await?;
    host.stop().await
}

/// Changes the finalizers of a Widget as another controller does: reads them, and writes them if nobody else did.
async fn edit_finalizers(world: &World, name: &str, edit: impl Fn(&mut Vec<String>)) -> Result<()> {
    eventually(DEADLINE, "finalizers are edited", async || -> Result<()> {
        let Some(widget) = world.find("Widget", name).await? else { return Ok(()) };
        let mut finalizers: Vec<String> =
            serde_json::from_value(widget["metadata"]["finalizers"].clone()).unwrap_or_default();
        edit(&mut finalizers);
        let version = &widget["metadata"]["resourceVersion"];
        let metadata = json!({"resourceVersion": version, "finalizers": finalizers});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        world.api("Widget").patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    })
    .await
}

fn finalizers(object: &Value) -> Vec<&str> {
    let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    finalizers.filter_map(Value::as_str).collect()
}

/// B010: 20 objects at once, so that the host meets each at another moment of what others do.
#[tokio::test]
async fn finalizer_is_added_and_removed_beside_others_that_come_and_go() -> Result<()> {
    const X: &str = "a.example.org/x";
    const Y: &str = "b.example.org/y";
    const Z: &str = "c.example.org/z";
    let lab = Lab::enter("deletion-race").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget-finalizes").await?;
    let names: Vec<_> = (0..20).map(|n| format!("w{n}")).collect();
    let add = async |name: &String, finalizer: &str| {
        edit_finalizers(world, name, |finalizers| finalizers.push(finalizer.to_owned())).await
    };
    let remove = async |name: &String, finalizer: &str| {
        edit_finalizers(world, name, |finalizers| finalizers.retain(|other| other != finalizer)).await
    };
    try_join_all(names.iter().map(async |name| {
        world.set("Widget", name, json!({"text": "hi"})).await?;
        for finalizer in [X, Y, Z] {
            add(name, finalizer).await?;
        }
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
        // Each once, ours among them.
        let widget = world.get("Widget", name).await?;
        let mut found = finalizers(&widget);
        found.sort_unstable();
        assert_eq!(found, [X, Y, Z, FINALIZER]);
        anyhow::Ok(())
    }))
    .await?;

    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    try_join_all(names.iter().map(async |name| {
        world.delete("Widget", name).await?;
        remove(name, X).await?;
        remove(name, Z).await
    }))
    .await?;
    for name in &names {
        world
            .until("Widget", name, "has one finalizer, somebody else's", |widget| {
                ensure!(finalizers(widget) == [Y], "{:?}", finalizers(widget));
                Ok(())
            })
            .await?;
    }
    throughout(Duration::from_secs(1), "it stays at that", async || {
        for widget in world.list("Widget", None).await? {
            ensure!(finalizers(&widget) == [Y], "{:?}", finalizers(&widget));
        }
        anyhow::Ok(())
    })
    .await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let removed =
        writes.iter().filter(|write| write.starts_with("patch widgets ") && write.ends_with(" 200")).count();
    assert_eq!(removed, names.len(), "{writes:?}");
    // A race that was lost is nobody's trouble.
    for name in &names {
        let events = world.events("Widget", name).await?;
        ensure!(events.iter().all(|event| !event.starts_with("Warning")), "{events:?}");
        remove(name, Y).await?;
        world.until_gone("Widget", name).await?;
    }
    host.stop().await
}
