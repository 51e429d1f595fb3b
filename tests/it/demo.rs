//! What the demo shows, step by step.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::api::{WatchEvent, WatchParams};
use oarlock_tests::host;
use serde_json::json;

use crate::world::{DEADLINE, World, condition, digest, kubectl, says, shared_host, string, website};

#[tokio::test]
async fn labelled_config_map_becomes_a_ready_plugin() -> Result<()> {
    let world = World::new("demo-plugin").await?;
    let _turn = website(&world, "website").await?;
    kubectl(world.plane, ["wait", "plugin/website", "--for=condition=Ready", "--timeout=60s"], None)?;
    let mut plugin = world.get("Plugin", "website").await?;
    let digest = digest(&host::component("website")?);
    // It may have been swapped a moment ago.
    let active = plugin["status"]["active"].as_object_mut().unwrap();
    ensure!(active.remove("settled").is_some_and(|settled| settled.is_boolean()), "{active:?}");
    assert_eq!(
        plugin["status"]["active"],
        json!({
            "digest": digest, "shortDigest": digest[..12], "version": "0.1.0",
            "parent": "Website (demo.oarlock.dev/v1)",
        })
    );
    assert!(plugin["status"]["refused"].is_null(), "{}", plugin["status"]);
    let kinds = plugin["status"]["kinds"].as_array().unwrap();
    assert!(kinds.contains(&"apps/v1 Deployment".into()), "{kinds:?}");
    let table = kubectl(world.plane, ["get", "plugin", "website"], None)?;
    for cell in ["website", "0.1.0", &digest[..12], "True", "Active"] {
        assert!(table.contains(cell), "no {cell} in\n{table}");
    }
    Ok(())
}

#[tokio::test]
async fn website_gets_children_and_goes_from_progressing_to_available() -> Result<()> {
    let world = World::new("demo-create").await?;
    let _turn = website(&world, "website").await?;
    let params = WatchParams::default().fields("metadata.name=blog").timeout(100);
    let versions = world.api("Website").watch(&params, "0").await?.boxed();
    world.set("Website", "blog", json!({"image": "nginx:1.29", "replicas": 2})).await?;

    let seen = tokio::time::timeout(DEADLINE, conditions_until_available(versions));
    let Ok(seen) = seen.await else {
        // Fails, and explains.
        world.until_says("Website", "blog", ["Available", "True", "Serving"]).await?;
        return Ok(());
    };
    let seen = seen?;
    assert!(seen.iter().any(|seen| seen == "Available=False Progressing=True"), "{seen:?}");

    for condition in ["Available", "Ready"] {
        let wait = format!("--for=condition={condition}");
        kubectl(world.plane, ["-n", "demo-create", "wait", "website/blog", &wait, "--timeout=60s"], None)?;
    }
    let site = world.until("Website", "blog", "all is well", |site| {
        says(site, "Ready", "True", "ChildrenReady")?;
        ensure!(site["status"]["readyReplicas"] == 2, "{}", site["status"]);
        ensure!(site["status"]["address"] == "blog.demo-create.svc", "{}", site["status"]);
        ensure!(condition(site, "Reconciling").is_none(), "{}", site["status"]);
        ensure!(condition(site, "Stalled").is_none(), "{}", site["status"]);
        says(site, "Progressing", "False", "Settled")
    });
    let site = site.await?;
    for kind in ["Deployment", "Service"] {
        let child = world.get(kind, "blog").await?;
        assert_eq!(
            child["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "demo.oarlock.dev/v1", "kind": "Website", "name": "blog",
                "uid": site["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
            }])
        );
        let labels = &child["metadata"]["labels"];
        assert_eq!(labels["oarlock.dev/owned-by"], "website");
        assert_eq!(labels["oarlock.dev/parent"], site["metadata"]["uid"]);
        assert!(string(&child, "/metadata/annotations/oarlock.dev~1applied").starts_with("v1:"), "{child}");
        let manager = &child["metadata"]["managedFields"][0];
        assert_eq!(
            (&manager["manager"], &manager["operation"]),
            (&"oarlock/website".into(), &"Apply".into())
        );
    }
    assert_eq!(world.list("Pod", None).await?.len(), 2);
    world.until_told("Website", "blog", ["Normal Created", "Deployment", "demo-create/blog"]).await?;
    world.until_told("Website", "blog", ["Normal Created", "Service", "demo-create/blog"]).await?;
    let events = world.events("Website", "blog").await?;
    assert!(events.iter().all(|event| event.starts_with("Normal")), "{events:?}");
    Ok(())
}

/// What the status said, version by version, without repeats.
async fn conditions_until_available<E: std::error::Error + Send + Sync + 'static>(
    mut versions: impl StreamExt<Item = Result<WatchEvent<kube::api::DynamicObject>, E>> + Unpin,
) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    while let Some(event) = versions.try_next().await? {
        let (WatchEvent::Added(site) | WatchEvent::Modified(site)) = event else { continue };
        let site = serde_json::to_value(site)?;
        let status = |r#type| condition(&site, r#type).map_or("", |found| string(found, "/status"));
        let now = format!("Available={} Progressing={}", status("Available"), status("Progressing"));
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        if status("Available") == "True" {
            break;
        }
    }
    Ok(seen)
}

#[tokio::test]
async fn edit_of_the_spec_reaches_the_children() -> Result<()> {
    let world = World::new("demo-edit").await?;
    let _turn = website(&world, "website").await?;
    world.set("Website", "blog", json!({"image": "nginx:1.29"})).await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;

    world.merge("Website", "blog", json!({"spec": {"image": "nginx:1.30", "replicas": 3}})).await?;
    let deployment = world.until("Deployment", "blog", "three pods of the new image", |deployment| {
        ensure!(deployment["spec"]["replicas"] == 3, "{}", deployment["spec"]);
        let image = string(deployment, "/spec/template/spec/containers/0/image");
        ensure!(image == "nginx:1.30", "{image}");
        ensure!(deployment["status"]["updatedReplicas"] == 3, "{}", deployment["status"]);
        Ok(())
    });
    deployment.await?;
    let site = world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(site["metadata"]["generation"], 2);
    world
        .until("Website", "blog", "three ready replicas", |site| {
            ensure!(site["status"]["readyReplicas"] == 3, "{}", site["status"]);
            Ok(())
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn swap_changes_the_children_of_every_website_and_restarts_nothing() -> Result<()> {
    let world = World::new("demo-swap").await?;
    let pid = shared_host().await?.pid();
    let turn = website(&world, "website").await?;
    for name in ["a", "b", "c"] {
        world.set("Website", name, json!({"image": "nginx:1.29"})).await?;
    }
    for name in ["a", "b", "c"] {
        world.until_says("Website", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    drop(turn);

    let _turn = website(&world, "website-v2").await?;
    let plugin = world.get("Plugin", "website").await?;
    assert_eq!(plugin["status"]["active"]["version"], "0.2.0");
    for name in ["a", "b", "c"] {
        world.until("PodDisruptionBudget", name, "is there", |_| Ok(())).await?;
        world
            .until("Deployment", name, "is marked", |deployment| {
                let mark = "/spec/template/metadata/annotations/demo.oarlock.dev~1website";
                ensure!(string(deployment, mark) == "v2", "{}", deployment["spec"]["template"]);
                Ok(())
            })
            .await?;
        world.until_says("Website", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    world.until_told("Plugin", "website", ["Normal Swapped", "0.2.0", "serves"]).await?;
    let host = shared_host().await?;
    host.check_running()?;
    assert_eq!(host.pid(), pid);
    Ok(())
}

#[tokio::test]
async fn broken_component_is_refused_while_the_last_good_one_serves() -> Result<()> {
    let world = World::new("demo-broken").await?;
    let _turn = website(&world, "website-v2").await?;
    world.set("Website", "blog", json!({"image": "nginx:1.29"})).await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    let before = world.get("Plugin", "website").await?;

    let text = b"this is no component\n";
    world.source("website", &[("website.wasm", text)]).await?;
    let plugin = world.until_says("Plugin", "website", ["Loaded", "False", "NotWasm"]).await?;
    says(&plugin, "Ready", "True", "Active")?;
    let message = string(condition(&plugin, "Loaded").unwrap(), "/message");
    assert!(message.contains("WebAssembly") || message.contains("wasm"), "{message}");
    assert!(message.contains("version 0.2.0"), "{message}");
    assert!(message.contains("serves on"), "{message}");
    assert_eq!(plugin["status"]["refused"]["digest"], digest(text));
    assert_eq!(plugin["status"]["refused"]["reason"], "NotWasm");
    assert_eq!(plugin["status"]["active"], before["status"]["active"]);
    world.until_told("Plugin", "website", ["Warning Refused", "WebAssembly", ""]).await?;

    world.merge("Website", "blog", json!({"spec": {"image": "nginx:1.31"}})).await?;
    let served = world.until("Deployment", "blog", "has the new image", |deployment| {
        let image = string(deployment, "/spec/template/spec/containers/0/image");
        ensure!(image == "nginx:1.31", "{image}");
        Ok(())
    });
    served.await?;
    world.get("PodDisruptionBudget", "blog").await?;

    let plugin = world.plugin("website", "website-v2").await?;
    assert!(plugin["status"]["refused"].is_null(), "{}", plugin["status"]);
    Ok(())
}

#[tokio::test]
async fn deleted_website_takes_its_children_along() -> Result<()> {
    let world = World::new("demo-delete").await?;
    let _turn = website(&world, "website-v2").await?;
    world.set("Website", "blog", json!({"image": "nginx:1.29", "replicas": 2})).await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    world.delete("Website", "blog").await?;
    for kind in ["Website", "Deployment", "Service", "PodDisruptionBudget"] {
        world.until_gone(kind, "blog").await?;
    }
    world
        .eventually("no pod is left", async || {
            let pods = world.list("Pod", None).await?;
            ensure!(pods.is_empty(), "{} pods", pods.len());
            Ok(())
        })
        .await?;
    // Nobody brings back what a parent that is gone had.
    oarlock_tests::throughout(Duration::from_secs(2), "no child comes back", async || {
        let children = world.list("Deployment", None).await?;
        ensure!(children.is_empty(), "{children:?}");
        Ok::<_, anyhow::Error>(())
    })
    .await
    .context("after the deletion of its parent")
}
