//! Conditions, and everything else in the status of a parent.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
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
    assert_eq!(writes, 1, "writes of the status");

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

/// Rule S6: a burst costs one call per settled state, one write at once, and one for what it ends with.
#[tokio::test]
async fn burst_of_changes_is_written_once_at_once_and_once_at_its_end() -> Result<()> {
    const CHANGES: u32 = 100;
    let lab = Lab::enter("status-burst").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let text = |text: String| json!({"data": {"text": text}});
    let input = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "input"}, "data": {"text": "0"}});
    world.apply(&input, "tests").await?;
    world.set("Widget", "w1", json!({"mode": "note", "read": "input"})).await?;
    let note = async |note: String| {
        let what = format!("the note is {note}");
        let told = world.until("Widget", "w1", &what, |widget| {
            says(widget, "Ready", "True", "ChildrenReady")?;
            ensure!(widget["status"]["note"] == *note, "{}", widget["status"]);
            Ok(())
        });
        told.await.map(drop)
    };
    note("0".to_owned()).await?;
    // What came before is no part of the burst.
    next_second().await?;
    let calls = async || {
        anyhow::Ok(host.metrics().await?.sum("oarlock_guest_call_duration_seconds_count", &["widget"]))
    };
    let calls_before = calls().await?;

    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let start = Instant::now();
    for n in 1..=CHANGES {
        world.merge("ConfigMap", "input", text(n.to_string())).await?;
    }
    let seconds = start.elapsed().as_secs() as usize;
    note(CHANGES.to_string()).await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    assert!(writes.iter().all(|write| write == "patch widgets/status w1 200"), "{writes:?}");
    // On a slow machine it takes longer than a second: one more for each.
    assert!((1..=2 + seconds).contains(&writes.len()), "{} writes in {seconds} s", writes.len());
    let calls = calls().await? - calls_before;
    // A deferred status needs a pass, but no call.
    assert!(calls <= f64::from(CHANGES), "{calls} calls");
    let deferred = host.metrics().await?.sum("oarlock_status_writes_total", &[r#"result="deferred""#]);
    assert!(deferred >= 1.0, "something was merged");
    host.stop().await
}

/// Rule S6: nobody waits for a transition or a generation, however often they come.
#[tokio::test]
async fn transitions_are_written_at_once() -> Result<()> {
    let world = World::new("status-at-once").await?;
    world.set_plan("w1", json!({"conditions": synced("True", "0")})).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    for n in 1..=10 {
        let status = if n % 2 == 0 { "True" } else { "False" };
        world.set_plan("w1", json!({"conditions": synced(status, "")})).await?;
        world.until_says("Widget", "w1", ["Synced", status, "Told"]).await?;
    }
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    assert_eq!(writes, ["patch widgets/status w1 200"; 10]);
    Ok(())
}

/// What the plugin and somebody else say of a Widget, put in place; `wreck` changes it, and all has to be as before.
async fn restored(world: &World, name: &str, wreck: impl AsyncFn(Value) -> Result<()>) -> Result<[Value; 2]> {
    let plan = json!({"status": {"note": "ours"}, "conditions": synced("True", "fine")});
    world.set_plan(name, plan).await?;
    world.until_says("Widget", name, ["Synced", "True", "Told"]).await?;
    let theirs = json!({
        "type": "audit.example.org/Checked", "status": "True", "reason": "Looked", "message": "fine",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    });
    let status = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": name},
        "status": {"conditions": [theirs]},
    });
    let params = PatchParams::apply("auditor").force();
    let before = world.api("Widget").patch_status(name, &params, &Patch::Apply(&status)).await?;
    let before = serde_json::to_value(before)?;
    next_second().await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    wreck(before.clone()).await?;
    let told = |widget: &Value| {
        says(widget, "Synced", "True", "Told")?;
        says(widget, "Ready", "True", "ChildrenReady")?;
        let message = condition(widget, "Synced").map(|synced| &synced["message"]);
        ensure!(
            message == Some(&"fine".into()) && widget["status"]["note"] == "ours",
            "{}",
            widget["status"]
        );
        Ok(())
    };
    world.until("Widget", name, "everything stands again", told).await?;
    // Nothing goes on after that.
    throughout(Duration::from_secs(2), "it stands", async || told(&world.get("Widget", name).await?)).await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    assert_eq!(writes, [format!("patch widgets/status {name} 200")]);
    Ok([before, world.get("Widget", name).await?])
}

#[tokio::test]
async fn wiped_status_is_written_again() -> Result<()> {
    let world = World::new("status-wiped").await?;
    let wipe = Patch::Json::<()>(serde_json::from_value(json!([{"op": "remove", "path": "/status"}]))?);
    let wreck = async |_| {
        world.api("Widget").patch_status("w1", &PatchParams::default(), &wipe).await?;
        Ok(())
    };
    let [before, after] = restored(&world, "w1", wreck).await?;
    // Nobody knows any more since when it is so.
    assert!(transition(&after, "Synced") > transition(&before, "Synced"), "{}", after["status"]);
    assert!(condition(&after, "audit.example.org/Checked").is_none(), "it is not ours to restore");
    Ok(())
}

#[tokio::test]
async fn status_replaced_as_a_whole_is_put_right_and_what_is_theirs_stays() -> Result<()> {
    let world = World::new("status-replaced").await?;
    let wreck = async |mut widget: Value| {
        let conditions = widget["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "Ready");
        for condition in conditions {
            condition["message"] = "replaced".into();
        }
        widget["status"]["note"] = "replaced".into();
        let body: DynamicObject = serde_json::from_value(widget)?;
        world.api("Widget").replace_status("w1", &PostParams::default(), &body).await?;
        Ok(())
    };
    let [before, after] = restored(&world, "w1", wreck).await?;
    assert_eq!(transition(&after, "Synced"), transition(&before, "Synced"), "its status never changed");
    let theirs = condition(&after, "audit.example.org/Checked").unwrap();
    assert_eq!(theirs["message"], "replaced");
    Ok(())
}

#[tokio::test]
async fn condition_flipped_by_force_is_flipped_back() -> Result<()> {
    let world = World::new("status-flipped").await?;
    let wreck = async |_| {
        let flipped = json!({
            "apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": "w1"},
            "status": {"note": "theirs", "conditions": [{
                "type": "Synced", "status": "False", "reason": "Lie", "message": "no",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        });
        let params = PatchParams::apply("liar").force();
        world.api("Widget").patch_status("w1", &params, &Patch::Apply(&flipped)).await?;
        Ok(())
    };
    let [before, after] = restored(&world, "w1", wreck).await?;
    // It was False for a moment, and went back to True now.
    assert!(transition(&after, "Synced") > transition(&before, "Synced"), "{}", after["status"]);
    assert_eq!(transition(&after, "Ready"), transition(&before, "Ready"));
    assert!(condition(&after, "audit.example.org/Checked").is_some());
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

/// Somebody who has forced a condition shares what of it was right: that must not keep it there, nor the status from
/// being written.
#[tokio::test]
async fn condition_forced_by_somebody_goes_with_the_plan_that_had_it() -> Result<()> {
    let world = World::new("status-shared").await?;
    world.set_plan("w1", json!({"conditions": synced("True", "fine")})).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    let forced = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": "w1"},
        "status": {"conditions": [{
            "type": "Synced", "status": "False", "reason": "Told", "message": "no",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    let params = PatchParams::apply("liar").force();
    world.api("Widget").patch_status("w1", &params, &Patch::Apply(&forced)).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    world.set_plan("w1", json!({"requeueAfterMs": 600_000})).await?;
    world
        .until("Widget", "w1", "Synced is gone", |widget| {
            says(widget, "Ready", "True", "ChildrenReady")?;
            ensure!(condition(widget, "Synced").is_none(), "{}", widget["status"]["conditions"]);
            Ok(())
        })
        .await?;
    Ok(())
}
