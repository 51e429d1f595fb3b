//! What comes after what: kinds that others need, and `oarlock.dev/wave`.

use anyhow::{Context, Result, ensure};
use oarlock_tests::host;
use serde_json::{Value, json};

use crate::world::{Lab, REPOSITORY, World, condition, grant, kubectl, shared_host, string};

fn in_wave(mut child: Value, wave: i32) -> Value {
    child["metadata"]["annotations"]["oarlock.dev/wave"] = wave.to_string().into();
    child
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// One that gets ready, or that no node takes.
fn deployment(name: &str, is_schedulable: bool) -> Value {
    let selector = if is_schedulable { json!({}) } else { json!({"cases.example.com/none": "true"}) };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"nodeSelector": selector, "containers": [{"name": "web", "image": "x"}]},
            },
        },
    })
}

async fn is_there(world: &World, kind: &str, name: &str) -> Result<bool> {
    Ok(world.find(kind, name).await?.is_some())
}

fn message(object: &Value, r#type: &str) -> String {
    condition(object, r#type).map(|found| string(found, "/message").to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn later_wave_waits_on_the_way_up_and_goes_first_on_the_way_down() -> Result<()> {
    let world = World::new("order-waves").await?;
    shared_host().await?;
    let plan = |is_schedulable| {
        json!({"children": [
            in_wave(config_map("last"), 2), in_wave(config_map("middle"), 1), deployment("first", is_schedulable),
        ]})
    };
    world.set_plan("w1", plan(false)).await?;
    let widget = world
        .until("Widget", "w1", "says what the waves wait for", |widget| {
            let message = message(widget, "Reconciling");
            let why = "ConfigMap order-waves/middle: comes after wave 0, which waits for Deployment order-waves/first";
            ensure!(message.contains(why), "{message}");
            Ok(())
        })
        .await?;
    assert_eq!(
        widget["metadata"]["finalizers"],
        json!(["oarlock.dev/widget"]),
        "the way down has an order too"
    );
    for name in ["middle", "last"] {
        assert!(!is_there(&world, "ConfigMap", name).await?, "{name}");
    }
    world.set_plan("w1", plan(true)).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    for name in ["middle", "last"] {
        assert!(is_there(&world, "ConfigMap", name).await?, "{name}");
    }

    // The highest is kept by somebody: the others stay until it is gone.
    world.merge("ConfigMap", "last", json!({"metadata": {"finalizers": ["cases.example.com/hold"]}})).await?;
    world.delete("Widget", "w1").await?;
    world
        .until("Widget", "w1", "says what its end waits for", |widget| {
            let message = message(widget, "Ready");
            let why = "Deployment order-waves/first: is deleted after wave 2 is gone, which waits for ConfigMap \
                       order-waves/last";
            ensure!(message.contains(why), "{message}");
            Ok(())
        })
        .await?;
    assert!(!string(&world.get("ConfigMap", "last").await?, "/metadata/deletionTimestamp").is_empty());
    for (kind, name) in [("ConfigMap", "middle"), ("Deployment", "first")] {
        let found = world.get(kind, name).await?;
        ensure!(found["metadata"].get("deletionTimestamp").is_none(), "{found}");
    }
    world.merge("ConfigMap", "last", json!({"metadata": {"finalizers": null}})).await?;
    world.until_gone("Widget", "w1").await?;
    for (kind, name) in [("ConfigMap", "last"), ("ConfigMap", "middle"), ("Deployment", "first")] {
        world.until_gone(kind, name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn waves_that_are_no_longer_planned_go_in_order_and_the_finalizer_with_them() -> Result<()> {
    let world = World::new("order-dropped").await?;
    shared_host().await?;
    let all = [in_wave(config_map("high"), 5), in_wave(config_map("low"), 1), config_map("kept")];
    world.set_plan("w1", json!({"children": all})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.merge("ConfigMap", "high", json!({"metadata": {"finalizers": ["cases.example.com/hold"]}})).await?;
    world.set_plan("w1", json!({"children": [config_map("kept")]})).await?;
    world
        .until("ConfigMap", "high", "is being deleted", |found| {
            ensure!(found["metadata"].get("deletionTimestamp").is_some(), "{}", found["metadata"]);
            Ok(())
        })
        .await?;
    let widget = world
        .until("Widget", "w1", "says what is still to go", |widget| {
            let message = message(widget, "Reconciling");
            ensure!(
                message.contains("ConfigMap order-dropped/low: is deleted after wave 5 is gone"),
                "{message}"
            );
            Ok(())
        })
        .await?;
    assert_eq!(widget["metadata"]["finalizers"], json!(["oarlock.dev/widget"]));
    assert!(world.get("ConfigMap", "low").await?["metadata"].get("deletionTimestamp").is_none());
    world.merge("ConfigMap", "high", json!({"metadata": {"finalizers": null}})).await?;
    for name in ["high", "low"] {
        world.until_gone("ConfigMap", name).await?;
    }
    world
        .until("Widget", "w1", "has no finalizer any more", |widget| {
            ensure!(widget["metadata"].get("finalizers").is_none(), "{}", widget["metadata"]);
            Ok(())
        })
        .await?;
    assert!(is_there(&world, "ConfigMap", "kept").await?);
    Ok(())
}

// B035.
#[tokio::test]
async fn definition_namespace_and_their_users_come_in_one_plan() -> Result<()> {
    let lab = Lab::enter("order-kinds").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    grant(world.plane, "widget-cluster")?;
    kubectl(world.plane, ["delete", "crd", "gadgets.cases.example.com", "--ignore-not-found"], None)?;
    let definition = std::fs::read_to_string(format!("{REPOSITORY}/tests/guests/widget/gadget.yaml"))?;
    let definition =
        kubectl(world.plane, ["create", "--dry-run=client", "-o", "json", "-f", "-"], Some(&definition))?;
    let definition: Value = serde_json::from_str(&definition)?;
    let component = host::component("widget-cluster")?;
    world.source("cluster", &[("plugin.wasm", &component)]).await?;
    let plugin = world
        .until("Plugin", "cluster", "is refused until the operator allows it", |plugin| {
            let refused = &plugin["status"]["refused"];
            ensure!(refused["reason"] == "ManifestInvalid", "{refused}");
            Ok(())
        })
        .await?;
    let switch = "CustomResourceDefinition.apiextensions.k8s.io";
    let said = string(&plugin, "/status/refused/message");
    assert!(said.contains(switch) && said.contains("spec.permissions.sensitiveKinds"), "{said}");
    world.merge("Plugin", "cluster", json!({"spec": {"permissions": {"sensitiveKinds": [switch]}}})).await?;
    world.until_says("Plugin", "cluster", ["Ready", "True", "Active"]).await?;

    let gadget = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": {"name": "g", "namespace": "order-new"},
        "spec": {"size": 1},
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "order-new"}});
    let plan = json!({"children": [gadget, namespace, definition]});
    world.set("ClusterWidget", "c1", json!({"plan": plan})).await?;
    let seen = std::cell::RefCell::new(Vec::new());
    world
        .until("ClusterWidget", "c1", "has them all", |parent| {
            let ready = condition(parent, "Ready").context("no Ready")?;
            seen.borrow_mut()
                .push((string(ready, "/reason").to_owned(), string(ready, "/message").to_owned()));
            ensure!(ready["status"] == "True", "{ready}");
            Ok(())
        })
        .await?;
    let seen = seen.into_inner();
    let is_progress =
        |(reason, _): &(String, String)| ["ChildrenProgressing", "ChildrenReady"].contains(&&**reason);
    assert!(seen.iter().all(is_progress), "{seen:?}");
    kubectl(world.plane, ["get", "gadget", "g", "-n", "order-new"], None)?;

    // The switch is taken back: out of force, and everything stays.
    world.merge("Plugin", "cluster", json!({"spec": {"permissions": null}})).await?;
    world.until_says("Plugin", "cluster", ["Ready", "False", "ManifestInvalid"]).await?;
    kubectl(world.plane, ["get", "gadget", "g", "-n", "order-new"], None)?;
    world.merge("Plugin", "cluster", json!({"spec": {"permissions": {"sensitiveKinds": [switch]}}})).await?;
    world.until_says("Plugin", "cluster", ["Ready", "True", "Active"]).await?;
    world.delete("ClusterWidget", "c1").await?;
    world.until_gone("ClusterWidget", "c1").await?;
    world
        .eventually("the definition goes with its parent", async || {
            let listed = kubectl(
                world.plane,
                ["get", "crd", "gadgets.cases.example.com", "--ignore-not-found"],
                None,
            )?;
            ensure!(listed.is_empty(), "{listed}");
            Ok(())
        })
        .await?;
    world.delete_plugin("cluster").await?;
    host.stop().await
}
