//! Conditions, and everything else in the status of a parent.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use oarlock_tests::throughout;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, says, string};

fn synced(status: &str, message: &str) -> Value {
    json!([{"type": "Synced", "status": status, "reason": "Told", "message": message}])
}

fn transition(object: &Value, r#type: &str) -> String {
    string(condition(object, r#type).unwrap(), "/lastTransitionTime").to_owned()
}

/// Times have whole seconds: what happens later must not look the same.
async fn next_second() -> Result<()> {
    throughout(Duration::from_millis(1_100), "time passes", async || Ok::<_, anyhow::Error>(())).await
}

/// B008.
#[tokio::test]
async fn condition_of_somebody_else_stays_as_it_is() -> Result<()> {
    let world = World::new("status-foreign").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let checked = json!({
        "type": "audit.example.org/Checked", "status": "True", "reason": "Looked", "message": "fine",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    });
    let status = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": "w1"},
        "status": {"conditions": [checked]},
    });
    let params = PatchParams::apply("auditor").force();
    world.api("Widget").patch_status("w1", &params, &Patch::Apply(&status)).await?;
    let is_there = |widget: &Value| {
        let found = condition(widget, "audit.example.org/Checked");
        ensure!(found == Some(&checked), "{}", widget["status"]["conditions"]);
        Ok(())
    };

    world.merge("Widget", "w1", json!({"spec": {"text": "ho"}})).await?;
    let widget = world.until_says("Widget", "w1", ["Synced", "True", "Written"]).await?;
    is_there(&widget)?;

    world.set_plan("w1", json!({})).await?;
    let widget = world.until("Widget", "w1", "Synced is gone", |widget| {
        says(widget, "Ready", "True", "ChildrenReady")?;
        ensure!(condition(widget, "Synced").is_none(), "{}", widget["status"]["conditions"]);
        Ok(())
    });
    is_there(&widget.await?)
}

/// B002, rules S1 and S3.
#[tokio::test]
async fn transition_time_moves_only_with_the_status_of_its_condition() -> Result<()> {
    let world = World::new("status-times").await?;
    let mut audit = world.plane.audit().await?;
    world.set_plan("w1", json!({"conditions": synced("True", "one"), "requeueAfterMs": 500})).await?;
    let first = world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    next_second().await?;

    // Called again and again, with nothing new to say.
    let from = audit.mark().await?;
    throughout(Duration::from_secs(3), "the object stands still", async || {
        let widget = world.get("Widget", "w1").await?;
        let (version, before) =
            (&widget["metadata"]["resourceVersion"], &first["metadata"]["resourceVersion"]);
        ensure!(version == before, "it went from version {before} to {version}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let to = audit.mark().await?;
    assert_eq!(world.host_writes(&audit, from, to), [""; 0]);

    world.set_plan("w1", json!({"conditions": synced("True", "two")})).await?;
    let second = world.until("Widget", "w1", "the new message", |widget| {
        let message = condition(widget, "Synced").map(|synced| &synced["message"]);
        ensure!(message == Some(&"two".into()), "{message:?}");
        Ok(())
    });
    let second = second.await?;
    assert_eq!(transition(&second, "Synced"), transition(&first, "Synced"));
    assert_eq!(transition(&second, "Ready"), transition(&first, "Ready"));

    world.set_plan("w1", json!({"conditions": synced("False", "two")})).await?;
    let third = world.until_says("Widget", "w1", ["Synced", "False", "Told"]).await?;
    assert!(transition(&third, "Synced") > transition(&first, "Synced"), "{}", third["status"]);
    assert_eq!(transition(&third, "Ready"), transition(&first, "Ready"));
    Ok(())
}

/// B002, across what makes a host forget.
#[tokio::test]
async fn transition_time_outlives_a_restart_and_a_swap() -> Result<()> {
    let lab = Lab::enter("status-restart").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    let first = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    next_second().await?;

    host.stop().await?;
    let host = lab.host().await?;
    world.plugin("widget", "widget-v2").await?;
    world
        .until("ConfigMap", "w1-cm", "is the new version's", |config_map| {
            ensure!(config_map["data"]["version"] == "2", "{}", config_map["data"]);
            Ok(())
        })
        .await?;
    world.merge("Widget", "w1", json!({"spec": {"text": "ho"}})).await?;
    let second = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    for r#type in ["Ready", "Synced"] {
        assert_eq!(transition(&second, r#type), transition(&first, r#type), "{type}");
    }
    host.stop().await
}

/// Rule S2.
#[tokio::test]
async fn observed_generation_follows_an_edit_that_changes_nothing_else() -> Result<()> {
    let world = World::new("status-generation").await?;
    world.set("Widget", "w1", json!({"text": "hi", "size": 1})).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Written"]).await?;
    world.merge("Widget", "w1", json!({"spec": {"size": 2}})).await?;
    world
        .until("Widget", "w1", "everything speaks of generation 2", |widget| {
            ensure!(widget["metadata"]["generation"] == 2, "{}", widget["metadata"]);
            says(widget, "Synced", "True", "Written")?;
            says(widget, "Ready", "True", "ChildrenReady")
        })
        .await?;
    Ok(())
}

/// Rule S1.
#[tokio::test]
async fn status_is_written_by_patches_of_the_subresource_only() -> Result<()> {
    let world = World::new("status-patches").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.merge("Widget", "w1", json!({"spec": {"text": "ho"}})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let (parent, other): (Vec<_>, Vec<_>) = writes.iter().partition(|write| write.contains(" widgets"));
    assert!(parent.iter().all(|write| *write == "patch widgets/status w1 200"), "{parent:?}");
    // One for the object, one for its edit, and one more where the child was not ready at once.
    assert!((2..=4).contains(&parent.len()), "{parent:?}");
    assert!(
        other.iter().all(|write| write.starts_with("patch configmaps w1-cm 20") || write.contains(" events")),
        "{other:?}"
    );
    Ok(())
}

/// Rule S4, and S8 (B014).
#[tokio::test]
async fn fields_and_conditions_go_with_the_plan_that_had_them() -> Result<()> {
    let world = World::new("status-fields").await?;
    let mut audit = world.plane.audit().await?;
    let plan = json!({"status": {"note": "ok", "phase": "Running"}, "conditions": synced("True", ""), "requeueAfterMs": 500});
    let from = audit.mark().await?;
    world.set_plan("w1", plan).await?;
    // `phase` is not in the schema: the rest is there all the same, and the host does not try for ever.
    world
        .until("Widget", "w1", "what the schema has is there", |widget| {
            says(widget, "Synced", "True", "Told")?;
            ensure!(widget["status"]["note"] == "ok", "{}", widget["status"]);
            Ok(())
        })
        .await?;
    throughout(Duration::from_secs(2), "the note stays", async || {
        let widget = world.get("Widget", "w1").await?;
        ensure!(widget["status"]["note"] == "ok", "{}", widget["status"]);
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let writes = writes.iter().filter(|write| write.contains("/status")).count();
    assert!((1..=2).contains(&writes), "{writes} writes of the status");

    world.set_plan("w1", json!({"requeueAfterMs": 600_000})).await?;
    world
        .until("Widget", "w1", "both are gone", |widget| {
            says(widget, "Ready", "True", "ChildrenReady")?;
            ensure!(widget["status"]["note"].is_null(), "{}", widget["status"]);
            ensure!(condition(widget, "Synced").is_none(), "{}", widget["status"]);
            Ok(())
        })
        .await?;
    Ok(())
}

/// Rule S5: a failure is told beside what stands there.
#[tokio::test]
async fn failure_leaves_other_conditions_standing() -> Result<()> {
    let world = World::new("status-failure").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Written"]).await?;
    world.merge("Widget", "w1", json!({"spec": {"mode": "permanent"}})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "Broken"]).await?;
    says(&widget, "Stalled", "True", "Broken")?;
    let synced = condition(&widget, "Synced").unwrap();
    assert_eq!((&synced["status"], &synced["reason"]), (&"True".into(), &"Written".into()));
    world.merge("Widget", "w1", json!({"spec": {"mode": "normal"}})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert!(condition(&widget, "Stalled").is_none(), "{}", widget["status"]);
    Ok(())
}

/// Rule S7.
#[tokio::test]
async fn long_messages_and_odd_reasons_are_brought_within_the_limits() -> Result<()> {
    let world = World::new("status-limits").await?;
    world.set("Widget", "long", json!({"mode": "long-message"})).await?;
    let widget = world.until_says("Widget", "long", ["Long", "True", "Long"]).await?;
    let message = string(condition(&widget, "Long").unwrap(), "/message");
    assert!(message.chars().count() <= 32_768 && message.len() > 30_000, "{} bytes", message.len());
    says(&widget, "Short", "True", "Short")?;
    world.set("Widget", "odd", json!({"mode": "bad-reason"})).await?;
    world
        .until("Widget", "odd", "has its condition, with some reason", |widget| {
            ensure!(condition(widget, "Odd").is_some(), "{}", widget["status"]);
            Ok(())
        })
        .await?;
    Ok(())
}
