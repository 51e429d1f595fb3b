//! Plans of which a part cannot be applied, or nothing: what is told, and what is done all the same.

use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_tests::throughout;
use serde_json::{Map, Value, json};

use crate::world::{World, condition, says, string};

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

fn message(widget: &Value) -> &str {
    condition(widget, "Ready").map(|ready| string(ready, "/message")).unwrap_or_default()
}

/// B037, with more bad children than anybody reads about.
#[tokio::test]
async fn many_bad_children_are_named_in_order_and_briefly_and_nothing_is_pruned() -> Result<()> {
    let world = World::new("partial-many").await?;
    world.set_plan("w1", json!({"children": [config_map("good", "one"), config_map("old", "one")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let old = world.get("ConfigMap", "old").await?;

    let mut children: Vec<_> = (0..70).rev().map(|n| config_map(&format!("Bad_{n:02}"), "two")).collect();
    children.insert(35, config_map("good", "two"));
    world.set_plan("w1", json!({"children": children})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildInvalid"]).await?;
    let told = message(&widget);
    let in_full: Vec<_> = told.split("; ").map(|part| part.split(' ').nth(1).unwrap_or_default()).collect();
    let expected: Vec<_> = (0..10).map(|n| format!("partial-many/Bad_{n:02}")).collect();
    assert_eq!(in_full[..10], expected, "{told}");
    assert!(told.contains("; and 60 more: ConfigMap partial-many/Bad_10, "), "{told}");
    assert!(told.ends_with("ConfigMap partial-many/Bad_59 and 10 others"), "{told}");
    assert!(told.len() < 12_000, "{} bytes", told.len());
    assert!(!told.contains("/good") && !told.contains("/old"), "{told}");
    assert_eq!(world.get("ConfigMap", "good").await?["data"]["text"], "two");
    throughout(Duration::from_secs(2), "what is no longer planned stays", async || {
        let found = world.get("ConfigMap", "old").await?;
        ensure!(found == old, "{found}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;

    world.set_plan("w1", json!({"children": [config_map("good", "three")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_gone("ConfigMap", "old").await
}

/// One that its kind allows, but that is too large to be stored.
#[tokio::test]
async fn child_that_cannot_be_stored_is_named_and_its_siblings_are_applied() -> Result<()> {
    let world = World::new("partial-large").await?;
    // What it costs twice are its keys: the API server also keeps whose they are. The object that lists the child is
    // spared that, as a list has one owner.
    let data: Map<_, _> = (0..4_200).map(|n| (format!("{n:0>200}"), Value::from(""))).collect();
    let large = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": data,
    });
    let plan = |text: &str| json!({"children": [config_map("a", text), large, config_map("z", text)]});
    for text in ["one", "two"] {
        world.set_plan("w1", plan(text)).await?;
        let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildInvalid"]).await?;
        let told = message(&widget);
        assert!(told.starts_with("ConfigMap partial-large/large") && told.contains("too large"), "{told}");
        assert!(told.len() < 1_000, "{told}");
        for name in ["a", "z"] {
            assert_eq!(world.get("ConfigMap", name).await?["data"]["text"], text, "{name}");
        }
    }
    assert!(world.find("ConfigMap", "large").await?.is_none());
    world.set_plan("w1", json!({"children": [config_map("a", "three")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_gone("ConfigMap", "z").await
}

/// B038 (c), and what else cannot be meant.
#[tokio::test]
async fn plan_with_a_child_that_cannot_be_meant_is_refused_and_nothing_is_written() -> Result<()> {
    let world = World::new("partial-refused").await?;
    world.set_plan("w1", json!({"children": [config_map("kept", "one")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let mut generated = config_map("", "two");
    generated["metadata"] = json!({"generateName": "w1-"});
    let mut secret = config_map("secret", "two");
    secret["kind"] = "Secret".into();
    let mut elsewhere = config_map("kept", "two");
    elsewhere["metadata"]["namespace"] = "partial-refused".into();
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    for (child, hints) in [
        (generated, ["metadata.generateName", "set metadata.name"]),
        (elsewhere, ["ConfigMap partial-refused/kept", "twice"]),
        (secret, ["Secret", "children"]),
    ] {
        // The good ones around it are not applied either: the guest did not mean what it says.
        let children = [config_map("kept", "two"), child, config_map("new", "two")];
        world.set_plan("w1", json!({"children": children})).await?;
        world
            .until("Widget", "w1", &format!("says {hints:?}"), |widget| {
                says(widget, "Ready", "False", "InvalidPlan")?;
                ensure!(hints.iter().all(|hint| message(widget).contains(hint)), "{}", message(widget));
                Ok(())
            })
            .await?;
    }
    world.until_at_rest().await?;
    let to = audit.mark().await?;
    let mut writes = world.host_writes(&audit, from, to);
    writes.retain(|write| !write.starts_with("patch widgets/status ") && !write.contains(" events "));
    assert_eq!(writes, [""; 0]);
    assert_eq!(world.get("ConfigMap", "kept").await?["data"]["text"], "one");
    Ok(())
}

/// A name that changes is another child: the old one goes when the new one is there.
#[tokio::test]
async fn renamed_child_is_created_before_the_old_one_goes() -> Result<()> {
    let world = World::new("partial-renamed").await?;
    world.set_plan("w1", json!({"children": [config_map("old", "one")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    // Not before it can be.
    world.set_plan("w1", json!({"children": [config_map("New", "one")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "False", "ChildInvalid"]).await?;
    world.get("ConfigMap", "old").await?;
    world.set_plan("w1", json!({"children": [config_map("new", "one")]})).await?;
    world.until_gone("ConfigMap", "old").await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let to = audit.mark().await?;
    let mut writes = world.host_writes(&audit, from, to);
    writes.retain(|write| write.contains(" configmaps ") && !write.contains(" New "));
    assert_eq!(writes, ["patch configmaps new 201", "delete configmaps old 200"]);
    Ok(())
}
