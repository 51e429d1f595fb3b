//! Parent kinds whose CRD makes the status harder to write: atomic lists, missing fields, no status at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use oarlock_tests::throughout;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, says, string};

const CRD: &str = "widgets.cases.example.com";
const STATUS: &str = "/schema/openAPIV3Schema/properties/status/properties";

/// Changes the version in the CRD of Widgets, and waits until the API server publishes it: discovery comes first,
/// the schema a moment later.
async fn change_crd(world: &World, change: impl Fn(&mut Value)) -> Result<()> {
    let mut crd = world.get("CustomResourceDefinition", CRD).await?;
    let version = crd.pointer_mut("/spec/versions/0").context("it has a version")?;
    change(version);
    let (status, versions) = (version.pointer(STATUS).cloned(), crd["spec"]["versions"].clone());
    world.merge("CustomResourceDefinition", CRD, json!({"spec": {"versions": versions}})).await?;
    world
        .eventually("the schema is published", async || {
            let path = "/openapi/v3/apis/cases.example.com/v1";
            let document = world.client.request_text(http::Request::get(path).body(Vec::new())?).await?;
            let document: Value = serde_json::from_str(&document)?;
            let schema = &document["components"]["schemas"]["com.example.cases.v1.Widget"];
            let published = schema["properties"]["status"]["properties"].as_object();
            let keys = |schema: Option<&serde_json::Map<String, Value>>| {
                schema.map(|schema| schema.keys().cloned().collect::<Vec<_>>())
            };
            ensure!(keys(published) == keys(status.as_ref().and_then(Value::as_object)), "{published:?}");
            let shape = |status: Option<&Value>| {
                let status = status.cloned().unwrap_or_default();
                ["/conditions/x-kubernetes-list-type", "/phase/enum", "/detail"]
                    .map(|at| string_at(&status, at))
            };
            ensure!(
                shape(schema.pointer("/properties/status/properties")) == shape(status.as_ref()),
                "{schema}"
            );
            Ok(())
        })
        .await
}

fn string_at(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).map(ToString::to_string).unwrap_or_default()
}

/// The conditions as one value.
async fn make_atomic(world: &World) -> Result<()> {
    let atomic = |version: &mut Value| {
        let list = version.pointer_mut(&format!("{STATUS}/conditions")).unwrap().as_object_mut().unwrap();
        list.remove("x-kubernetes-list-map-keys");
        list.insert("x-kubernetes-list-type".to_owned(), "atomic".into());
    };
    change_crd(world, atomic).await
}

/// A condition of somebody else at the end of the list.
async fn add_theirs(world: &World, name: &str) -> Result<()> {
    let theirs = json!({
        "type": "audit.example.org/Checked", "status": "True", "reason": "Looked", "message": "fine",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let add = json!([{"op": "add", "path": "/status/conditions/-", "value": theirs}]);
    let add = Patch::Json::<()>(serde_json::from_value(add)?);
    world.api("Widget").patch_status(name, &PatchParams::default(), &add).await?;
    Ok(())
}

fn synced(message: &str) -> Value {
    json!([{"type": "Synced", "status": "True", "reason": "Told", "message": message}])
}

/// Rule S4 where the list does not tell whose a condition is.
#[tokio::test]
async fn atomic_list_keeps_conditions_of_others_and_loses_own_ones_even_across_a_restart() -> Result<()> {
    let lab = Lab::enter("shapes-atomic").await?;
    let world = &lab.world;
    make_atomic(world).await?;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set_plan("w1", json!({"conditions": synced("one")})).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    add_theirs(world, "w1").await?;
    let is_there = |widget: &Value| {
        let found = condition(widget, "audit.example.org/Checked");
        ensure!(found.is_some_and(|found| found["message"] == "fine"), "{}", widget["status"]["conditions"]);
        Ok(())
    };
    world.set_plan("w1", json!({"conditions": synced("two")})).await?;
    let widget = world.until("Widget", "w1", "the new message", |widget| {
        says(widget, "Synced", "True", "Told")?;
        let message = condition(widget, "Synced").map(|synced| &synced["message"]);
        ensure!(message == Some(&"two".into()), "{message:?}");
        is_there(widget)
    });
    widget.await?;
    world
        .until("Plugin", "widget", "remembers its conditions", |plugin| {
            let types = &plugin["status"]["conditionTypes"];
            ensure!(
                types.as_array().is_some_and(|types| types.contains(&"Synced".into())),
                "{}",
                plugin["status"]
            );
            Ok(())
        })
        .await?;

    host.stop().await?;
    world.set_plan("w1", json!({"requeueAfterMs": 600_000})).await?;
    let host = lab.host().await?;
    world
        .until("Widget", "w1", "Synced is gone", |widget| {
            says(widget, "Ready", "True", "ChildrenReady")?;
            ensure!(condition(widget, "Synced").is_none(), "{}", widget["status"]["conditions"]);
            is_there(widget)
        })
        .await?;
    host.stop().await
}

/// A CRD that changes while the host runs: nobody tells, and a status written in the wrong way would take away what
/// others have written.
#[tokio::test]
async fn list_that_becomes_atomic_and_a_map_again_keeps_conditions_of_others() -> Result<()> {
    let lab = Lab::enter("shapes-switched").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set_plan("w1", json!({"conditions": synced("map")})).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    add_theirs(world, "w1").await?;
    let map = world.get("CustomResourceDefinition", CRD).await?["spec"]["versions"][0].take();
    // Also when it serves on with a kind that is another now.
    let in_force = || -> Result<usize> {
        let log = std::fs::read_to_string(world.plane.dir().join("oarlock.log"))?;
        Ok(log.lines().filter(|line| line.contains("version in force") && line.contains("widget")).count())
    };
    for message in ["atomic", "map again"] {
        let before = in_force()?;
        if message == "atomic" {
            make_atomic(world).await?;
        } else {
            change_crd(world, |version| version.clone_from(&map)).await?;
        }
        world
            .eventually("the host has noticed", async || {
                ensure!(in_force()? > before, "{before} times in force");
                Ok(())
            })
            .await?;
        world.set_plan("w1", json!({"conditions": synced(message)})).await?;
        let widget = world.until("Widget", "w1", "the new message, and theirs", |widget| {
            says(widget, "Synced", "True", "Told")?;
            let said = condition(widget, "Synced").map(|synced| &synced["message"]);
            ensure!(said == Some(&message.into()), "{said:?}");
            Ok(())
        });
        let widget = widget.await?;
        let theirs = condition(&widget, "audit.example.org/Checked").context("theirs is lost")?;
        assert_eq!(theirs["message"], "fine");
        world.until_at_rest().await?;
    }
    let changes = host.metrics().await?.sum("oarlock_kind_changes_total", &[]);
    assert!(changes >= 2.0, "{changes} changes");
    host.stop().await
}

/// Rule S1: a write that meets one of somebody else is merged with it.
#[tokio::test]
async fn atomic_list_is_merged_anew_after_a_conflict() -> Result<()> {
    let lab = Lab::enter("shapes-conflict").await?;
    let world = &lab.world;
    make_atomic(world).await?;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set_plan("w1", json!({"conditions": synced("0")})).await?;
    world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    add_theirs(world, "w1").await?;

    // Somebody writes all the time, and so does the host: some of its writes are about an outdated version.
    let (is_over, mut last) = (AtomicBool::new(false), 0);
    let theirs = async {
        while !is_over.load(Ordering::Relaxed) {
            let widget = world.get("Widget", "w1").await?;
            let conditions = widget["status"]["conditions"].as_array().context("it has conditions")?;
            let at = conditions.iter().position(|one| one["type"] == "audit.example.org/Checked");
            let at = format!("/status/conditions/{}", at.context("theirs is lost")?);
            let change = json!([
                {"op": "test", "path": format!("{at}/type"), "value": "audit.example.org/Checked"},
                {"op": "replace", "path": format!("{at}/message"), "value": (last + 1).to_string()},
            ]);
            let change = Patch::Json::<()>(serde_json::from_value(change)?);
            // It does not apply where the host has just moved the condition.
            if world.api("Widget").patch_status("w1", &PatchParams::default(), &change).await.is_ok() {
                last += 1;
            }
        }
        anyhow::Ok(())
    };
    let ours = async {
        let conflicts = world
            .eventually("a conflict was counted", async || {
                let n = host.metrics().await?.sum("oarlock_guest_call_duration_seconds_count", &["widget"]);
                world.set_plan("w1", json!({"conditions": synced(&n.to_string())})).await?;
                let conflicts =
                    host.metrics().await?.sum("oarlock_status_conflicts_total", &[r#"plugin="widget""#]);
                ensure!(conflicts >= 1.0, "{conflicts} conflicts");
                Ok(())
            })
            .await;
        is_over.store(true, Ordering::Relaxed);
        conflicts
    };
    let (theirs, ours) = tokio::join!(theirs, ours);
    ours?;
    theirs?;
    world.set_plan("w1", json!({"conditions": synced("last")})).await?;
    world
        .until("Widget", "w1", "both stand", |widget| {
            says(widget, "Synced", "True", "Told")?;
            let messages = ["Synced", "audit.example.org/Checked"]
                .map(|one| condition(widget, one).map(|one| string(one, "/message").to_owned()));
            ensure!(messages == [Some("last".to_owned()), Some(last.to_string())], "{messages:?}");
            Ok(())
        })
        .await?;
    host.stop().await
}

/// B001, B016.
#[tokio::test]
async fn kind_without_a_status_is_reconciled_and_noticed_when_mended() -> Result<()> {
    let lab = Lab::enter("shapes-without").await?;
    let world = &lab.world;
    let subresources = std::cell::RefCell::new(Value::Null);
    change_crd(world, |version| *subresources.borrow_mut() = version["subresources"].take()).await?;

    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let plugin = world.until_says("Plugin", "widget", ["Degraded", "True", "StatusUnsupported"]).await?;
    let message = string(condition(&plugin, "Degraded").unwrap(), "/message");
    assert!(
        message.contains("Widget (cases.example.com/v1)") && message.contains("subresources"),
        "{message}"
    );
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    for name in ["w1", "w2"] {
        world.set("Widget", name, json!({"text": "hi"})).await?;
        world.until("ConfigMap", &format!("{name}-cm"), "is applied", |_| Ok(())).await?;
    }
    throughout(Duration::from_secs(3), "its generation stands still", async || {
        let widget = world.get("Widget", "w1").await?;
        ensure!(widget["metadata"]["generation"] == 1, "{}", widget["metadata"]);
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let writes: Vec<_> = writes.iter().filter(|write| !write.contains(" events")).collect();
    assert_eq!(writes, ["patch configmaps w1-cm 201", "patch configmaps w2-cm 201"]);

    // What is said of the plugin outlives a restart: nothing is taken back and said again.
    host.stop().await?;
    let from = audit.mark().await?;
    let host = lab.host().await?;
    world.set("Widget", "w3", json!({"text": "hi"})).await?;
    world.until("ConfigMap", "w3-cm", "is applied", |_| Ok(())).await?;
    let again = world.get("Plugin", "widget").await?;
    assert_eq!(condition(&again, "Degraded"), condition(&plugin, "Degraded"));
    let to = audit.mark().await?;
    let writes = audit.writes_by(world.plane.user_host(), from, to);
    assert!(writes.iter().all(|write| write.resource != "plugins"), "{writes:?}");

    change_crd(world, |version| version["subresources"] = subresources.borrow().clone()).await?;
    for name in ["w1", "w2", "w3"] {
        let widget = world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
        says(&widget, "Synced", "True", "Written")?;
    }
    until_whole(world).await?;

    // Taken away while the host runs: the next write finds out.
    change_crd(world, |version| drop(version["subresources"].take())).await?;
    world.merge("Widget", "w1", json!({"spec": {"text": "ho"}})).await?;
    world.until_says("Plugin", "widget", ["Degraded", "True", "StatusUnsupported"]).await?;
    change_crd(world, |version| version["subresources"] = subresources.borrow().clone()).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    host.stop().await
}

/// Waits until a plugin lacks nothing any more.
async fn until_whole(world: &World) -> Result<()> {
    let whole = world.until("Plugin", "widget", "it is not degraded", |plugin| {
        says(plugin, "Ready", "True", "Active")?;
        ensure!(condition(plugin, "Degraded").is_none(), "{}", plugin["status"]["conditions"]);
        Ok(())
    });
    whole.await.map(drop)
}

/// Rule S8, B014: what the schema does not have, or does not allow, is left out and told.
#[tokio::test]
async fn fields_that_the_schema_does_not_take_are_left_out_and_told_until_it_does() -> Result<()> {
    let lab = Lab::enter("shapes-fields").await?;
    let world = &lab.world;
    let add = |fields: Value| {
        move |version: &mut Value| {
            let status = version.pointer_mut(STATUS).unwrap().as_object_mut().unwrap();
            status.extend(fields.as_object().unwrap().clone());
        }
    };
    let detail = |names: &[&str]| -> Value {
        let members: serde_json::Map<_, _> =
            names.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": members})
    };
    let phase = |values: &[&str]| json!({"type": "string", "enum": values});
    change_crd(world, add(json!({"phase": phase(&["Good"]), "detail": detail(&["a"])}))).await?;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let fields = json!({"note": "ok", "phase": "Odd", "detail": {"a": "x", "b": "y"}});
    let plan = json!({"status": fields, "conditions": synced(""), "requeueAfterMs": 300});
    world.set_plan("w1", plan.clone()).await?;
    let widget = world.until_says("Widget", "w1", ["Synced", "True", "Told"]).await?;
    assert_eq!((&widget["status"]["note"], &widget["status"]["detail"]), (&json!("ok"), &json!({"a": "x"})));
    let plugin = world
        .until("Plugin", "widget", "names both fields", |plugin| {
            says(plugin, "Degraded", "True", "StatusUnsupported")?;
            let message = string(condition(plugin, "Degraded").unwrap(), "/message");
            let words = [
                "Widget (cases.example.com/v1)",
                "status.detail.b",
                "status.phase",
                "Unsupported value",
                "CRD",
            ];
            ensure!(words.iter().all(|word| message.contains(word)), "{message}");
            says(plugin, "Ready", "True", "Active")
        })
        .await?;
    throughout(Duration::from_secs(2), "it is called again and again", async || host.check_running()).await?;
    let to = audit.mark().await?;
    let statuses = |writes: Vec<String>| -> Vec<String> {
        writes.into_iter().filter(|write| write.contains("/status")).collect()
    };
    let writes = statuses(world.host_writes(&audit, from, to));
    assert_eq!(writes, ["patch widgets/status w1 422", "patch widgets/status w1 200"]);
    let failures =
        host.metrics().await?.sum("oarlock_status_update_failures_total", &[r#"reason="invalid""#]);
    assert!((failures - 1.0).abs() < f64::EPSILON, "{failures}");

    // A level: it goes with the plan, and comes back.
    world.set_plan("w1", json!({"status": {"note": "ok"}})).await?;
    until_whole(world).await?;
    world.set_plan("w1", plan).await?;
    let again = world.until_says("Plugin", "widget", ["Degraded", "True", "StatusUnsupported"]).await?;
    assert_ne!(plugin["metadata"]["resourceVersion"], again["metadata"]["resourceVersion"]);

    // Mended, without a restart and without a touch of the object.
    change_crd(world, add(json!({"phase": phase(&["Good", "Odd"]), "detail": detail(&["a", "b"])}))).await?;
    world
        .until("Widget", "w1", "has all of its fields", |widget| {
            let status = ["note", "phase", "detail"].map(|name| &widget["status"][name]);
            ensure!(status == ["note", "phase", "detail"].map(|name| &fields[name]), "{}", widget["status"]);
            Ok(())
        })
        .await?;
    until_whole(world).await?;
    change_crd(world, |version| {
        let status = version.pointer_mut(STATUS).unwrap().as_object_mut().unwrap();
        status.remove("phase");
        status.remove("detail");
    })
    .await?;
    host.stop().await
}
