//! How a child that exists is changed: `oarlock.dev/update`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_tests::throughout;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, shared_host, string};

/// A child with an option.
fn with_update(mut child: Value, update: &str) -> Value {
    child["metadata"]["annotations"]["oarlock.dev/update"] = update.into();
    child
}

fn job(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "work", "image": image}],
        }}},
    })
}

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

fn deployment(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": image}]},
            },
        },
    })
}

async fn ready(world: &World, name: &str) -> Result<Value> {
    world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await
}

async fn uid(world: &World, kind: &str, name: &str) -> Result<String> {
    Ok(string(&world.get(kind, name).await?, "/metadata/uid").to_owned())
}

// B032, with Recreate.
#[tokio::test]
async fn child_that_may_not_be_changed_is_replaced_once_and_its_sibling_changed() -> Result<()> {
    let world = World::new("methods-replace").await?;
    shared_host().await?;
    let plan =
        |image: &str| json!({"children": [with_update(job("j", image), "replace"), config_map("c", image)]});
    world.set_plan("w1", plan("one")).await?;
    ready(&world, "w1").await?;
    let old = uid(&world, "Job", "j").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set_plan("w1", plan("two")).await?;
    world
        .eventually("the job is another, with the new image", async || {
            let job = world.get("Job", "j").await?;
            ensure!(string(&job, "/metadata/uid") != old, "it is still the same");
            ensure!(job.pointer("/spec/template/spec/containers/0/image") == Some(&"two".into()), "{job}");
            Ok(())
        })
        .await?;
    ready(&world, "w1").await?;
    assert_eq!(world.get("ConfigMap", "c").await?["data"]["text"], "two");
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let count = |what: &str| writes.iter().filter(|write| write.contains(what)).count();
    assert_eq!(count("delete jobs"), 1, "{writes:?}");
    world
        .eventually("no pod of the old job is left", async || {
            let pods = world.list("Pod", None).await?;
            let of_old = pods
                .iter()
                .filter(|pod| pod.pointer("/metadata/ownerReferences/0/uid").is_some_and(|uid| *uid == *old));
            ensure!(of_old.count() == 0, "{} pods", pods.len());
            Ok(())
        })
        .await
}

#[tokio::test]
async fn content_that_no_object_may_have_replaces_nothing() -> Result<()> {
    let world = World::new("methods-invalid").await?;
    shared_host().await?;
    let plan = |job: Value| json!({"children": [with_update(job, "replace")]});
    world.set_plan("w1", plan(job("j", "one"))).await?;
    ready(&world, "w1").await?;
    let old = uid(&world, "Job", "j").await?;
    let mut bad = job("j", "two");
    bad["spec"]["template"]["spec"]["restartPolicy"] = "Always".into();
    world.set_plan("w1", plan(bad)).await?;
    let told = world.until_says("Widget", "w1", ["Ready", "False", "ChildInvalid"]).await?;
    let message = string(condition(&told, "Ready").unwrap(), "/message").to_owned();
    assert!(message.contains("Job methods-invalid/j") && message.contains("restartPolicy"), "{message}");
    assert_eq!(uid(&world, "Job", "j").await?, old);
    Ok(())
}

#[tokio::test]
async fn child_that_goes_slowly_is_named_with_who_keeps_it_and_deleted_once() -> Result<()> {
    let world = World::new("methods-kept").await?;
    shared_host().await?;
    let plan =
        |image: &str| json!({"children": [with_update(job("j", image), "replace"), config_map("c", image)]});
    world.set_plan("w1", plan("one")).await?;
    ready(&world, "w1").await?;
    let old = uid(&world, "Job", "j").await?;
    world.merge("Job", "j", json!({"metadata": {"finalizers": ["cases.example.com/hold"]}})).await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set_plan("w1", plan("two")).await?;
    world
        .eventually("the condition names the job and its finalizer", async || {
            let widget = world.get("Widget", "w1").await?;
            let message = condition(&widget, "Reconciling").map(|found| string(found, "/message").to_owned());
            let message = message.unwrap_or_default();
            ensure!(
                message.contains("Job methods-kept/j") && message.contains("cases.example.com/hold"),
                "{message:?}"
            );
            Ok(())
        })
        .await?;
    assert_eq!(world.get("ConfigMap", "c").await?["data"]["text"], "two", "its sibling goes on");
    // Whatever happens to others meanwhile.
    world.merge("ConfigMap", "c", json!({"data": {"text": "edited"}})).await?;
    world
        .until("ConfigMap", "c", "is put back", |found| {
            ensure!(found["data"]["text"] == "two", "{}", found["data"]);
            Ok(())
        })
        .await?;
    let to = audit.mark().await?;
    let deletes: Vec<_> = world
        .host_writes(&audit, from, to)
        .into_iter()
        .filter(|write| write.contains("delete jobs"))
        .collect();
    assert_eq!(deletes.len(), 1, "{deletes:?}");
    world.merge("Job", "j", json!({"metadata": {"finalizers": null}})).await?;
    ready(&world, "w1").await?;
    assert_ne!(uid(&world, "Job", "j").await?, old);
    Ok(())
}

#[tokio::test]
async fn child_that_changes_on_delete_keeps_its_content_until_then() -> Result<()> {
    let world = World::new("methods-on-delete").await?;
    shared_host().await?;
    let plan = |text: &str, other: &str| json!({"children": [with_update(config_map("kept", text), "on-delete"), config_map("other", other)]});
    world.set_plan("w1", plan("one", "one")).await?;
    ready(&world, "w1").await?;
    world.set_plan("w1", plan("two", "two")).await?;
    world
        .until("ConfigMap", "other", "follows the plan", |found| {
            ensure!(found["data"]["text"] == "two", "{}", found["data"]);
            Ok(())
        })
        .await?;
    assert_eq!(world.get("ConfigMap", "kept").await?["data"]["text"], "one");
    ready(&world, "w1").await?;

    // What the host adds is put back, and the content left alone.
    for stripped in [json!({"labels": null}), json!({"ownerReferences": null})] {
        world.merge("ConfigMap", "kept", json!({"metadata": stripped, "data": {"theirs": "x"}})).await?;
        let kept = world
            .until("ConfigMap", "kept", "is labelled and owned again", |found| {
                let metadata = &found["metadata"];
                ensure!(metadata["labels"]["oarlock.dev/owned-by"] == "widget", "{metadata}");
                ensure!(metadata["ownerReferences"][0]["kind"] == "Widget", "{metadata}");
                Ok(())
            })
            .await?;
        assert_eq!(kept["data"], json!({"text": "one", "theirs": "x"}));
    }

    world.delete("ConfigMap", "kept").await?;
    world
        .until("ConfigMap", "kept", "has the new content", |found| {
            ensure!(found["data"] == json!({"text": "two"}), "{}", found["data"]);
            Ok(())
        })
        .await?;
    ready(&world, "w1").await?;
    Ok(())
}

const ROLLING: [&str; 3] = ["r-a", "r-b", "r-c"];

fn rolling(image: &str) -> Value {
    let children: Vec<_> = ROLLING.map(|name| with_update(deployment(name, image), "rolling")).into();
    json!({"children": children})
}

/// Those with this image.
async fn with_image(world: &World, image: &str) -> Result<BTreeSet<String>> {
    let all = world.list("Deployment", None).await?;
    let has_it =
        |found: &&Value| found.pointer("/spec/template/spec/containers/0/image") == Some(&image.into());
    Ok(all.iter().filter(has_it).map(|found| string(found, "/metadata/name").to_owned()).collect())
}

#[tokio::test]
async fn siblings_roll_one_by_one_and_on_after_a_restart() -> Result<()> {
    let lab = Lab::enter("methods-rolling").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set_plan("w1", rolling("one")).await?;
    ready(world, "w1").await?;

    // A container that no node takes: the first that is changed does not get ready.
    world
        .set_plan("w1", {
            let mut plan = rolling("two");
            for child in plan["children"].as_array_mut().unwrap() {
                child["spec"]["template"]["spec"]["nodeSelector"] = json!({"cases.example.com/none": "true"});
            }
            plan
        })
        .await?;
    world
        .eventually("one is changed and the others wait for it", async || {
            ensure!(with_image(world, "two").await?.len() == 1, "{:?}", with_image(world, "two").await?);
            let widget = world.get("Widget", "w1").await?;
            let message = condition(&widget, "Reconciling").map(|found| string(found, "/message").to_owned());
            let message = message.unwrap_or_default();
            ensure!(message.contains("1 of 3 are as planned"), "{message:?}");
            Ok(())
        })
        .await?;
    host.kill()?;
    let host = lab.host().await?;
    throughout(Duration::from_secs(3), "no other is changed, not by the host that came after", async || {
        let changed = with_image(world, "two").await?;
        ensure!(changed.len() == 1, "{changed:?}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;

    // What is broken goes first, so that a better plan mends it; then the others follow.
    world.set_plan("w1", rolling("three")).await?;
    ready(world, "w1").await?;
    assert_eq!(with_image(world, "three").await?, ROLLING.map(str::to_owned).into());
    host.stop().await
}
