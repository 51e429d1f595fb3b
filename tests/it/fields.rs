//! Fields of objects that are somebody else's: `oarlock.dev/ownership: fields`.

use anyhow::{Result, ensure};
use oarlock_tests::host;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, shared_host, string};

fn fields(kind: &str, name: &str, rest: &Value) -> Value {
    let api_version = if kind == "Deployment" { "apps/v1" } else { "v1" };
    let mut child = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "annotations": {"oarlock.dev/ownership": "fields"}},
    });
    for (name, value) in rest.as_object().unwrap() {
        match name.as_str() {
            "labels" => child["metadata"]["labels"] = value.clone(),
            _ => child[name] = value.clone(),
        }
    }
    child
}

fn theirs(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "labels": {"a": "b"}}, "data": data})
}

async fn ready(world: &World, name: &str) -> Result<()> {
    world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await.map(drop)
}

async fn until_data(world: &World, what: &str, data: Value) -> Result<Value> {
    world
        .until("ConfigMap", "theirs", what, |found| {
            ensure!(found["data"] == data, "{}", found["data"]);
            Ok(())
        })
        .await
}

/// Nothing of the host is left on an object.
fn is_free(object: &Value) -> Result<()> {
    let metadata = &object["metadata"];
    let text = format!("{} {} {}", metadata["labels"], metadata["annotations"], metadata["managedFields"]);
    ensure!(!text.contains("oarlock"), "{text}");
    Ok(())
}

#[tokio::test]
async fn fields_are_taken_held_and_given_back() -> Result<()> {
    let world = World::new("fields-life").await?;
    shared_host().await?;
    let plan = |data: Value| json!({"children": [fields("ConfigMap", "theirs", &json!({"data": data}))]});
    world.set_plan("w1", plan(json!({"ours": "1"}))).await?;
    let widget = world
        .until("Widget", "w1", "says what is missing", |widget| {
            let message = condition(widget, "Reconciling").map(|found| string(found, "/message").to_owned());
            let message = message.unwrap_or_default();
            ensure!(message.contains("ConfigMap fields-life/theirs: does not exist"), "{message}");
            Ok(())
        })
        .await?;
    assert_eq!(widget["metadata"]["finalizers"], json!(["oarlock.dev/widget"]));
    assert!(world.find("ConfigMap", "theirs").await?.is_none(), "it is not created");

    world.apply(&theirs(&json!({"theirs": "x"})), "somebody").await?;
    let taken = until_data(&world, "has our field", json!({"theirs": "x", "ours": "1"})).await?;
    assert!(taken["metadata"].get("ownerReferences").is_none(), "{taken}");
    ready(&world, "w1").await?;

    // Somebody else's change of ours is put back; of theirs it costs nothing.
    world.merge("ConfigMap", "theirs", json!({"data": {"ours": "9"}})).await?;
    until_data(&world, "has our value again", json!({"theirs": "x", "ours": "1"})).await?;
    world.until_at_rest().await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.apply(&theirs(&json!({"theirs": "y"})), "somebody").await?;
    world.until_at_rest().await?;
    let to = audit.mark().await?;
    assert_eq!(world.host_writes(&audit, from, to), [""; 0]);

    // Other fields are planned, then none.
    world.set_plan("w1", plan(json!({"other": "2"}))).await?;
    until_data(&world, "has just the new field", json!({"theirs": "y", "other": "2"})).await?;
    world.set_plan("w1", json!({"children": []})).await?;
    let free = until_data(&world, "is as they made it", json!({"theirs": "y"})).await?;
    is_free(&free)?;
    world
        .until("Widget", "w1", "has no finalizer any more", |widget| {
            ensure!(widget["metadata"].get("finalizers").is_none(), "{}", widget["metadata"]);
            Ok(())
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn several_parents_own_fields_of_one_object_and_give_them_back_when_they_go() -> Result<()> {
    let world = World::new("fields-several").await?;
    shared_host().await?;
    world.apply(&theirs(&json!({"theirs": "x"})), "somebody").await?;
    for name in ["w1", "w2"] {
        let child = fields(
            "ConfigMap",
            "theirs",
            &json!({"data": {name: "1"}, "labels": {"cases.example.com/seen": "true"}}),
        );
        world.set_plan(name, json!({"children": [child]})).await?;
        ready(&world, name).await?;
    }
    let both = until_data(&world, "has both fields", json!({"theirs": "x", "w1": "1", "w2": "1"})).await?;
    assert_eq!(both["metadata"]["labels"]["cases.example.com/seen"], "true");
    world.delete("Widget", "w1").await?;
    world.until_gone("Widget", "w1").await?;
    let one = until_data(&world, "has one field", json!({"theirs": "x", "w2": "1"})).await?;
    assert_eq!(one["metadata"]["labels"]["cases.example.com/seen"], "true", "w2 still asks for it");
    world.delete("Widget", "w2").await?;
    world.until_gone("Widget", "w2").await?;
    let free = until_data(&world, "is as they made it", json!({"theirs": "x"})).await?;
    assert_eq!(free["metadata"]["labels"], json!({"a": "b"}));
    is_free(&free)
}

#[tokio::test]
async fn field_that_another_manager_has_is_taken_only_when_asked_to() -> Result<()> {
    let world = World::new("fields-conflict").await?;
    shared_host().await?;
    world.apply(&theirs(&json!({"text": "theirs"})), "somebody").await?;
    let mut child = fields("ConfigMap", "theirs", &json!({"data": {"text": "ours"}}));
    world.set_plan("w1", json!({"children": [child]})).await?;
    let told = world.until_says("Widget", "w1", ["Ready", "False", "Conflict"]).await?;
    let message = string(condition(&told, "Ready").unwrap(), "/message");
    assert!(message.contains("data.text") && message.contains("somebody"), "{message}");
    assert_eq!(world.get("ConfigMap", "theirs").await?["data"]["text"], "theirs");
    child["metadata"]["annotations"]["oarlock.dev/adopt"] = "true".into();
    world.set_plan("w1", json!({"children": [child]})).await?;
    until_data(&world, "has our value", json!({"text": "ours"})).await?;
    ready(&world, "w1").await
}

#[tokio::test]
async fn fields_outlive_a_kill_and_are_given_back_with_the_plugin() -> Result<()> {
    let lab = Lab::enter("fields-plugin").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.cluster_plugin().await?;
    let label = fields("Namespace", "fields-plugin", &json!({"labels": {"cases.example.com/team": "a"}}));
    world.set("ClusterWidget", "c1", json!({"plan": {"children": [label]}})).await?;
    let labelled = |wanted: Option<&'static str>| {
        move |namespace: &Value| {
            let found = namespace["metadata"]["labels"]["cases.example.com/team"].as_str();
            ensure!(found == wanted, "{found:?}");
            Ok(())
        }
    };
    let released = async || -> Result<()> {
        let namespace = world.until("Namespace", "fields-plugin", "is theirs again", labelled(None)).await?;
        is_free(&namespace)?;
        world
            .until("ClusterWidget", "c1", "has no finalizer", |parent| {
                ensure!(parent["metadata"].get("finalizers").is_none(), "{}", parent["metadata"]);
                Ok(())
            })
            .await
            .map(drop)
    };
    world.until("Namespace", "fields-plugin", "is labelled", labelled(Some("a"))).await?;
    world.until_says("ClusterWidget", "c1", ["Ready", "True", "ChildrenReady"]).await?;
    host.kill()?;
    let relabelled = json!({"metadata": {"labels": {"cases.example.com/team": "b"}}});
    world.merge("Namespace", "fields-plugin", relabelled).await?;
    let host = lab.host().await?;
    world.until("Namespace", "fields-plugin", "is labelled again", labelled(Some("a"))).await?;

    world.delete_source("cluster").await?;
    released().await?;

    // While no host runs, nobody sees it go: the next one does what is left to do.
    world.source("cluster", &[("plugin.wasm", &host::component("widget-cluster")?)]).await?;
    world.until("Namespace", "fields-plugin", "is labelled", labelled(Some("a"))).await?;
    world.until_says("ClusterWidget", "c1", ["Ready", "True", "ChildrenReady"]).await?;
    host.kill()?;
    world.delete_source("cluster").await?;
    let host = lab.host().await?;
    released().await?;
    host.stop().await
}

#[tokio::test]
async fn field_that_a_later_plan_adds_is_not_taken_from_another_manager_either() -> Result<()> {
    let world = World::new("fields-added").await?;
    shared_host().await?;
    world.apply(&theirs(&json!({"text": "theirs"})), "somebody").await?;
    let plan = |data: Value| json!({"children": [fields("ConfigMap", "theirs", &json!({"data": data}))]});
    world.set_plan("w1", plan(json!({"ours": "1"}))).await?;
    until_data(&world, "has our field", json!({"text": "theirs", "ours": "1"})).await?;
    ready(&world, "w1").await?;
    world.set_plan("w1", plan(json!({"ours": "1", "text": "ours"}))).await?;
    let told = world.until_says("Widget", "w1", ["Ready", "False", "Conflict"]).await?;
    let message = string(condition(&told, "Ready").unwrap(), "/message");
    assert!(message.contains("data.text") && message.contains("somebody"), "{message}");
    let found = world.get("ConfigMap", "theirs").await?;
    assert_eq!(found["data"], json!({"text": "theirs", "ours": "1"}));
    Ok(())
}
