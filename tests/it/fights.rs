//! Two managers on one field: noticed, named, slowed down, and over when the other stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_tests::throughout;
use serde_json::{Value, json};

use crate::world::{World, condition, kubectl, shared_host, string};

const CONTENDED: [&str; 3] = ["Ready", "False", "FieldContested"];

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": "ours", "other": "x"}})
}

/// Somebody who changes the child whenever it holds what the plan says, until told to stop.
async fn contend(world: &World, stop: &AtomicBool, change: impl AsyncFn() -> Result<()>) -> Result<usize> {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        if world.get("ConfigMap", "c").await?["data"]["text"] == "ours" {
            change().await?;
            rounds += 1;
        }
    }
    Ok(rounds)
}

/// A fight from its beginning to its end; `named` is what the message says.
async fn fight(world: &World, change: impl AsyncFn() -> Result<()>, named: &[&str]) -> Result<()> {
    shared_host().await?;
    world.set_plan("w1", json!({"children": [config_map("c"), config_map("sibling")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let stop = AtomicBool::new(false);
    let told = async {
        let told = world.until_says("Widget", "w1", CONTENDED).await;
        let told = async {
            let message = string(condition(&told?, "Ready").unwrap(), "/message").to_owned();
            for part in named {
                ensure!(message.contains(part), "{message}");
            }
            world.until_told("Widget", "w1", ["Warning", "FieldContested", named[0]]).await?;
            // Its sibling is looked after all the same.
            world.merge("ConfigMap", "sibling", json!({"data": {"text": "edited"}})).await?;
            world
                .until("ConfigMap", "sibling", "is put back", |found| {
                    ensure!(found["data"]["text"] == "ours", "{}", found["data"]);
                    Ok(())
                })
                .await?;
            let mut audit = world.plane.audit().await?;
            let from = audit.mark().await?;
            throughout(Duration::from_secs(4), "time passes", async || Ok::<_, anyhow::Error>(())).await?;
            let to = audit.mark().await?;
            let writes = world.host_writes(&audit, from, to);
            ensure!(writes.len() <= 2, "it is slowed down: {writes:?}");
            world.until_says("Widget", "w1", CONTENDED).await
        }
        .await;
        stop.store(true, Ordering::Relaxed);
        told
    };
    let (rounds, told) = tokio::join!(contend(world, &stop, &change), told);
    told?;
    let rounds = rounds?;
    assert!((6..=9).contains(&rounds), "{rounds} rounds");
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let found = world.get("ConfigMap", "c").await?;
    ensure!(found["data"] == json!({"text": "ours", "other": "x"}), "{}", found["data"]);
    Ok(())
}

#[tokio::test]
async fn field_that_another_manager_forces_is_named_and_ours_again_when_it_stops() -> Result<()> {
    let world = World::new("fights-force").await?;
    let theirs = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"text": "theirs"},
    });
    let change = async || world.apply(&theirs, "rival").await.map(drop);
    fight(&world, change, &["data.text by rival", "ConfigMap fights-force/c"]).await
}

#[tokio::test]
async fn field_that_somebody_takes_away_is_named_and_ours_again_when_it_stops() -> Result<()> {
    let world = World::new("fights-remove").await?;
    let change = async || {
        let removed = json!({"data": {"text": null}});
        world.merge("ConfigMap", "c", removed).await.map(drop)
    };
    fight(&world, change, &["data.text is taken away", "ConfigMap fights-remove/c"]).await
}

#[tokio::test]
async fn edit_of_the_plan_ends_the_waiting() -> Result<()> {
    let world = World::new("fights-edit").await?;
    shared_host().await?;
    let plan = |child: Value| json!({"children": [child]});
    world.set_plan("w1", plan(config_map("c"))).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let theirs = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"text": "theirs"},
    });
    let stop = AtomicBool::new(false);
    let told = async {
        let told = world.until_says("Widget", "w1", CONTENDED).await;
        stop.store(true, Ordering::Relaxed);
        told
    };
    let change = async || world.apply(&theirs, "rival").await.map(drop);
    let (rounds, told) = tokio::join!(contend(&world, &stop, change), told);
    rounds?;
    told?;
    // The plugin lets go of it.
    let mut without = config_map("c");
    without["data"] = json!({"other": "y"});
    world.set_plan("w1", plan(without)).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("ConfigMap", "c").await?["data"], json!({"text": "theirs", "other": "y"}));
    Ok(())
}

// Also of objects that are somebody else's.
#[tokio::test]
async fn fight_over_a_field_of_somebody_elses_object_is_slowed_down() -> Result<()> {
    let world = World::new("fights-fields").await?;
    shared_host().await?;
    let theirs = |text: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"text": text}});
    world
        .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}), "rival")
        .await?;
    let mut child = theirs("ours");
    child["metadata"]["annotations"]["oarlock.dev/ownership"] = "fields".into();
    world.set_plan("w1", json!({"children": [child]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let stop = AtomicBool::new(false);
    let told = async {
        let told = world.until_says("Widget", "w1", CONTENDED).await;
        stop.store(true, Ordering::Relaxed);
        told
    };
    let change = async || world.apply(&theirs("theirs"), "rival").await.map(drop);
    let (rounds, told) = tokio::join!(contend(&world, &stop, change), told);
    let message = string(condition(&told?, "Ready").unwrap(), "/message").to_owned();
    assert!(message.contains("data.text by rival"), "{message}");
    let rounds = rounds?;
    assert!((6..=9).contains(&rounds), "{rounds} rounds");
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("ConfigMap", "c").await?["data"]["text"], "ours");
    Ok(())
}

#[tokio::test]
async fn parents_that_take_one_field_from_each_other_are_slowed_down_and_named() -> Result<()> {
    let world = World::new("fights-parents").await?;
    shared_host().await?;
    world
        .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}), "rival")
        .await?;
    for name in ["w1", "w2"] {
        let child = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"text": name},
            "metadata": {
                "name": "c",
                "annotations": {"oarlock.dev/ownership": "fields", "oarlock.dev/adopt": "true"},
            },
        });
        world.set_plan(name, json!({"children": [child]})).await?;
    }
    for name in ["w1", "w2"] {
        let told = world.until_says("Widget", name, CONTENDED).await?;
        let message = string(condition(&told, "Ready").unwrap(), "/message");
        assert!(message.contains("data.text by oarlock/widget/"), "{message}");
    }
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    throughout(Duration::from_secs(4), "time passes", async || Ok::<_, anyhow::Error>(())).await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    assert!(writes.len() <= 8, "{writes:?}");
    Ok(())
}

#[tokio::test]
async fn label_of_another_plugin_on_our_child_is_put_right() -> Result<()> {
    let world = World::new("fights-label").await?;
    shared_host().await?;
    world.set_plan("w1", json!({"children": [config_map("c")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let mislabelled = json!({"metadata": {"labels": {"oarlock.dev/owned-by": "other"}}});
    world.merge("ConfigMap", "c", mislabelled).await?;
    world
        .until("ConfigMap", "c", "has our label again", |found| {
            let label = &found["metadata"]["labels"]["oarlock.dev/owned-by"];
            ensure!(label == "widget", "{label}");
            Ok(())
        })
        .await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    Ok(())
}

// F29.
#[tokio::test]
async fn policy_that_changes_a_child_at_every_apply_is_no_fight() -> Result<()> {
    let name = "fights-policy";
    let world = World::new(name).await?;
    shared_host().await?;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                    "resources": ["configmaps"],
                }],
            },
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
                "[JSONPatch{op: \"add\", path: \"/data\", value: {\"text\": \"theirs\", \"added\": \"by a policy\"}}]"}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name},
    });
    for object in [policy, binding] {
        kubectl(world.plane, ["apply", "--server-side", "-f", "-"], Some(&object.to_string()))?;
    }
    let probe = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe"}, "data": {}});
    world
        .eventually("the policy is in force", async || {
            let probe = world.apply(&probe, "probe").await?;
            ensure!(probe["data"]["text"] == "theirs", "{}", probe["data"]);
            world.delete("ConfigMap", "probe").await
        })
        .await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set_plan("w1", json!({"children": [config_map("c")]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    // Every change of the child is a pass.
    for round in 0..8 {
        let touched = json!({"metadata": {"annotations": {"touched": round.to_string()}}});
        world.merge("ConfigMap", "c", touched).await?;
    }
    world.until_at_rest().await?;
    let to = audit.mark().await?;
    let applies: Vec<_> = world
        .host_writes(&audit, from, to)
        .into_iter()
        .filter(|write| write.contains("configmaps"))
        .collect();
    assert!(applies.len() <= 10, "{applies:?}");
    let widget = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert!(condition(&widget, "Reconciling").is_none(), "{widget}");
    let kinds = "mutatingadmissionpolicybinding,mutatingadmissionpolicy";
    kubectl(world.plane, ["delete", kinds, name], None).map(drop)
}
