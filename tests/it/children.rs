//! Children: whose they are, when they are written and when they go.

use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_tests::throughout;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, says, string, website};

fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// Rule A3.
#[tokio::test]
async fn foreign_edit_of_our_field_is_put_back() -> Result<()> {
    let world = World::new("children-edit").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let before = world.get("ConfigMap", "w1-cm").await?;
    world.merge("ConfigMap", "w1-cm", json!({"data": {"text": "mine"}})).await?;
    let after = world.until("ConfigMap", "w1-cm", "the text is back", |config_map| {
        ensure!(config_map["data"]["text"] == "hi", "{}", config_map["data"]);
        Ok(())
    });
    assert_eq!(after.await?["metadata"]["uid"], before["metadata"]["uid"]);
    // A label of ours counts as well (F12): without it we would lose sight of the child.
    world
        .merge("ConfigMap", "w1-cm", json!({"metadata": {"labels": {"oarlock.dev/owned-by": null}}}))
        .await?;
    world
        .until("ConfigMap", "w1-cm", "the label is back", |config_map| {
            ensure!(
                config_map["metadata"]["labels"]["oarlock.dev/owned-by"] == "widget",
                "{}",
                config_map["metadata"]
            );
            Ok(())
        })
        .await?;
    Ok(())
}

/// Rule A3, S6.
#[tokio::test]
async fn foreign_field_stays_and_costs_no_write() -> Result<()> {
    let world = World::new("children-foreign").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_told("Widget", "w1", ["Created", "w1-cm", ""]).await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let note =
        json!({"data": {"note": "theirs"}, "metadata": {"annotations": {"example.org/note": "theirs"}}});
    let foreign = world.merge("ConfigMap", "w1-cm", note).await?;
    throughout(Duration::from_secs(2), "the child stands still", async || {
        let config_map = world.get("ConfigMap", "w1-cm").await?;
        ensure!(config_map == foreign, "{config_map}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let to = audit.mark().await?;
    assert_eq!(world.host_writes(&audit, from, to), [""; 0]);

    world.merge("Widget", "w1", json!({"spec": {"text": "ho"}})).await?;
    let after = world.until("ConfigMap", "w1-cm", "has the new text", |config_map| {
        ensure!(config_map["data"]["text"] == "ho", "{}", config_map["data"]);
        Ok(())
    });
    let after = after.await?;
    assert_eq!(after["data"]["note"], "theirs");
    assert_eq!(after["metadata"]["annotations"]["example.org/note"], "theirs");
    Ok(())
}

#[tokio::test]
async fn child_deleted_by_hand_comes_back() -> Result<()> {
    let world = World::new("children-deleted").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let before = world.get("ConfigMap", "w1-cm").await?;
    world.delete("ConfigMap", "w1-cm").await?;
    world
        .until("ConfigMap", "w1-cm", "is another one", |config_map| {
            ensure!(config_map["metadata"]["uid"] != before["metadata"]["uid"], "it is the old one");
            ensure!(config_map["data"]["text"] == "hi", "{}", config_map["data"]);
            Ok(())
        })
        .await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    Ok(())
}

/// Rule A4, and variant b of B031.
#[tokio::test]
async fn existing_object_is_taken_only_when_asked_to() -> Result<()> {
    let world = World::new("children-adopt").await?;
    world.apply(&config_map("taken", &json!({"whose": "theirs"})), "somebody").await?;
    world.set_plan("w1", json!({"children": [config_map("taken", &json!({"text": "ours"}))]})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildNotOwned"]).await?;
    let message = string(condition(&widget, "Ready").unwrap(), "/message");
    assert!(message.contains("taken") && message.contains("oarlock.dev/adopt"), "{message}");
    let untouched = world.get("ConfigMap", "taken").await?;
    assert_eq!(untouched["data"], json!({"whose": "theirs"}));
    assert!(untouched["metadata"]["ownerReferences"].is_null(), "{untouched}");

    let mut adopting = config_map("taken", &json!({"text": "ours"}));
    adopting["metadata"]["annotations"] = json!({"oarlock.dev/adopt": "true"});
    world.set_plan("w1", json!({"children": [adopting]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let taken = world.get("ConfigMap", "taken").await?;
    assert_eq!(taken["data"], json!({"whose": "theirs", "text": "ours"}));
    assert_eq!(taken["metadata"]["uid"], untouched["metadata"]["uid"]);
    assert_eq!(string(&taken, "/metadata/ownerReferences/0/name"), "w1");
    Ok(())
}

/// It carries no label of ours: no watch tells when it has gone.
#[tokio::test]
async fn adopted_child_that_was_on_its_way_out_is_created_anew() -> Result<()> {
    let world = World::new("children-adopt-going").await?;
    let mut going = config_map("taken", &json!({"whose": "theirs"}));
    going["metadata"]["finalizers"] = json!(["x.example.org/hold"]);
    world.apply(&going, "somebody").await?;
    world.delete("ConfigMap", "taken").await?;
    let mut adopting = config_map("taken", &json!({"text": "ours"}));
    adopting["metadata"]["annotations"] = json!({"oarlock.dev/adopt": "true"});
    world.set_plan("w1", json!({"children": [adopting]})).await?;
    world.until_says("Widget", "w1", ["Ready", "False", "ChildrenProgressing"]).await?;
    world.merge("ConfigMap", "taken", json!({"metadata": {"finalizers": null}})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("ConfigMap", "taken").await?["data"], json!({"text": "ours"}));
    Ok(())
}

/// B031.
#[tokio::test]
async fn child_stays_with_the_first_of_two_parents() -> Result<()> {
    let world = World::new("children-shared").await?;
    let plan = |from: &str| json!({"children": [config_map("shared", &json!({"from": from}))]});
    world.set_plan("a", plan("a")).await?;
    world.until_says("Widget", "a", ["Ready", "True", "ChildrenReady"]).await?;
    world.set_plan("b", plan("b")).await?;
    let widget = world.until_says("Widget", "b", ["Ready", "False", "ChildNotOwned"]).await?;
    let message = string(condition(&widget, "Ready").unwrap(), "/message");
    assert!(message.contains("Widget") && message.contains('a'), "{message}");
    assert_eq!(world.get("ConfigMap", "shared").await?["data"]["from"], "a");
    world.delete("Widget", "b").await?;
    world.until_gone("Widget", "b").await?;
    throughout(Duration::from_secs(1), "the child stays", async || {
        let shared = world.get("ConfigMap", "shared").await?;
        ensure!(shared["data"]["from"] == "a", "{shared}");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Rule A6, and the guard of B034.
#[tokio::test]
async fn child_that_is_no_longer_planned_goes_and_nothing_else() -> Result<()> {
    let world = World::new("children-prune").await?;
    let both = [config_map("one", &json!({})), config_map("two", &json!({}))];
    let widget = world.set_plan("w1", json!({"children": both})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let mut lookalike = config_map("lookalike", &json!({}));
    lookalike["metadata"]["labels"] =
        json!({"oarlock.dev/owned-by": "widget", "oarlock.dev/parent": widget["metadata"]["uid"]});
    world.apply(&lookalike, "somebody").await?;

    world.set_plan("w1", json!({"children": both[..1]})).await?;
    world.until_gone("ConfigMap", "two").await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.get("ConfigMap", "one").await?;
    world.get("ConfigMap", "lookalike").await?;

    // A failure is no wish for nothing.
    world.set("Widget", "w1", json!({"mode": "panic"})).await?;
    world.merge("Widget", "w1", json!({"spec": {"plan": null}})).await?;
    world.until_says("Widget", "w1", ["Ready", "False", "GuestTrapped"]).await?;
    world.get("ConfigMap", "one").await?;
    Ok(())
}

/// B034: the recorded kinds outlive the version that declared them.
#[tokio::test]
async fn kind_that_a_new_version_does_not_know_is_pruned() -> Result<()> {
    let world = World::new("children-kind").await?;
    let turn = website(&world, "website-v2").await?;
    world.set("Website", "blog", json!({"image": "nginx:1.29"})).await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    world.get("PodDisruptionBudget", "blog").await?;
    drop(turn);
    let _turn = website(&world, "website").await?;
    world.until_gone("PodDisruptionBudget", "blog").await?;
    world
        .until("Deployment", "blog", "has lost the mark", |deployment| {
            let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
            ensure!(annotations["demo.oarlock.dev/website"].is_null(), "{annotations}");
            Ok(())
        })
        .await?;
    world.get("Service", "blog").await?;
    Ok(())
}

/// B032: an immutable field is an answer; the sibling is updated all the same.
#[tokio::test]
async fn change_of_an_immutable_field_is_told_and_its_sibling_changed() -> Result<()> {
    let world = World::new("children-immutable").await?;
    let plan = |image: &str| {
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": image}]}}},
        });
        json!({"children": [job, config_map("settings", &json!({"image": image}))]})
    };
    world.set_plan("w1", plan("a")).await?;
    let before = world.until("Job", "once", "is there", |_| Ok(())).await?;
    world.set_plan("w1", plan("b")).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildImmutable"]).await?;
    let message = string(condition(&widget, "Ready").unwrap(), "/message");
    for part in ["Job children-immutable/once", "spec.template", "oarlock.dev/update: replace"] {
        assert!(message.contains(part), "{message}");
    }
    let after = world.get("Job", "once").await?;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(world.get("ConfigMap", "settings").await?["data"]["image"], "b");
    Ok(())
}

/// Rule R3: what is read is what is watched.
#[tokio::test]
async fn read_object_that_changes_calls_the_guest_and_an_unrelated_one_does_not() -> Result<()> {
    let lab = Lab::enter("children-reads").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"mode": "reads", "read": "settings", "selector": "team=a"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let holds = async |what: &str, data: Value| {
        let held = world.until("ConfigMap", "w1-cm", what, |config_map| {
            ensure!(config_map["data"] == data, "{}", config_map["data"]);
            Ok(())
        });
        held.await
    };
    // It appears, and it changes.
    world.apply(&config_map("settings", &json!({"color": "red"})), "somebody").await?;
    holds("what has appeared", json!({"color": "red", "names": ""})).await?;
    world.apply(&config_map("settings", &json!({"color": "blue"})), "somebody").await?;
    holds("what has changed", json!({"color": "blue", "names": ""})).await?;
    let mut listed = config_map("listed", &json!({}));
    listed["metadata"]["labels"] = json!({"team": "a"});
    world.apply(&listed, "somebody").await?;
    holds("what is listed", json!({"color": "blue", "names": "listed"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;

    let calls = async || anyhow::Ok(host.metrics().await?.sum(GUEST_CALLS, &["plugin=\"widget\""]));
    let before = calls().await?;
    ensure!(before >= 4.0, "{before} calls are counted; is it {GUEST_CALLS}?");
    for n in 0..10 {
        world.apply(&config_map("unrelated", &json!({"n": n.to_string()})), "somebody").await?;
    }
    // A barrier: what came later has been seen.
    world.set("Widget", "w2", json!({"text": "later"})).await?;
    world.until_says("Widget", "w2", ["Ready", "True", "ChildrenReady"]).await?;
    let calls = calls().await? - before;
    // One for the new object; the guest of `normal` does not read.
    assert!((calls - 1.0).abs() < f64::EPSILON, "{calls} calls");

    world.delete("ConfigMap", "settings").await?;
    holds("nothing of what is gone", json!({"text": "", "names": "listed"})).await?;
    host.stop().await
}

/// The family that counts calls of guests.
pub(crate) const GUEST_CALLS: &str = "oarlock_guest_call_duration_seconds_count";

/// `children.list` shows how far children are, and wakes the guest when that changes.
#[tokio::test]
async fn guest_sees_its_children_get_ready() -> Result<()> {
    let world = World::new("children-observed").await?;
    world.set("Widget", "w1", json!({"mode": "children"})).await?;
    world
        .until("Widget", "w1", "sees its ConfigMap", |widget| {
            says(widget, "Ready", "True", "ChildrenReady")?;
            let note = string(widget, "/status/note");
            ensure!(note.contains("ConfigMap w1-cm"), "{note:?}");
            Ok(())
        })
        .await?;
    Ok(())
}

/// Rule A6 for the parent's own metadata.
#[tokio::test]
async fn labels_and_annotations_of_the_parent_come_and_go_with_the_plan() -> Result<()> {
    let world = World::new("children-metadata").await?;
    let mut widget = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget",
        "metadata": {"name": "w1", "labels": {"team": "a"}}, "spec": {"mode": "metadata", "text": "hi"},
    });
    world.apply(&widget, "tests").await?;
    world
        .until("Widget", "w1", "is labelled", |widget| {
            let metadata = &widget["metadata"];
            ensure!(
                metadata["labels"] == json!({"team": "a", "cases.example.com/seen": "true"}),
                "{metadata}"
            );
            ensure!(metadata["annotations"]["cases.example.com/text"] == "hi", "{metadata}");
            says(widget, "Ready", "True", "ChildrenReady")
        })
        .await?;
    widget["spec"]["mode"] = "normal".into();
    world.apply(&widget, "tests").await?;
    world
        .until("Widget", "w1", "is as it was", |widget| {
            let metadata = &widget["metadata"];
            ensure!(metadata["labels"] == json!({"team": "a"}), "{metadata}");
            ensure!(metadata["annotations"]["cases.example.com/text"].is_null(), "{metadata}");
            Ok(())
        })
        .await?;
    Ok(())
}
