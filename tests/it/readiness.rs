//! How far children are, and what their parent says: with controllers that do their work.

use std::pin::pin;

use anyhow::{Context, Result, ensure};
use futures::{Stream, StreamExt};
use kube::api::{WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::world::{World, condition, kubectl, says, string, website};

fn pod_template(image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": image}]},
    })
}

fn deployment(image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": pod_template(image)},
    })
}

/// A Job whose pods end at once, or never are placed.
fn job(name: &str, ends: bool) -> Value {
    let mut template = pod_template("job");
    template["spec"]["restartPolicy"] = "Never".into();
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template},
    });
    if !ends {
        job["spec"]["template"]["spec"]["nodeSelector"] = json!({"nowhere": "true"});
        job["spec"]["activeDeadlineSeconds"] = 1.into();
    }
    job
}

/// The states of an object, each once, from one of them on.
async fn states(world: &World, from: &Value) -> Result<impl Stream<Item = Result<Value>> + use<>> {
    let params = WatchParams::default().fields(&format!("metadata.name={}", string(from, "/metadata/name")));
    let version = string(from, "/metadata/resourceVersion");
    let events = world.api(string(from, "/kind")).watch(&params, version).await?.boxed();
    Ok(events.filter_map(async |event| match event {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
            Some(serde_json::to_value(object).context("an object is JSON"))
        }
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    }))
}

/// Everything that a plan asked for counts, not only that it was applied.
#[tokio::test]
async fn parent_is_ready_when_pods_run_and_jobs_are_complete() -> Result<()> {
    let world = World::new("readiness-kinds").await?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]},
    });
    let stateful_set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": pod_template("db"),
        },
    });
    let children = json!([deployment("web:1"), stateful_set, job("migrate", true), service]);
    let created = world.set_plan("w1", json!({"children": children})).await?;
    let mut states = pin!(states(&world, &created).await?);
    let mut told = Vec::new();
    let waiting = async {
        loop {
            let widget = states.next().await.context("the watch ended")??;
            let Some(ready) = condition(&widget, "Ready") else { continue };
            if ready["status"] == "True" {
                return says(&widget, "Ready", "True", "ChildrenReady");
            }
            // Never anything else on the way.
            says(&widget, "Ready", "False", "ChildrenProgressing")?;
            says(&widget, "Reconciling", "True", "ChildrenProgressing")?;
            told.push(string(ready, "/message").to_owned());
        }
    };
    tokio::time::timeout(crate::world::DEADLINE, waiting).await.context("it never gets ready")??;
    let told = told.join("\n");
    for child in ["Deployment", "StatefulSet", "Job"] {
        assert!(
            told.contains(&format!("{child} {}/", world.namespace)),
            "{child} was not waited for: {told}"
        );
    }
    assert!(!told.contains("Service"), "{told}");
    assert_eq!(world.get("Deployment", "web").await?["status"]["readyReplicas"], 2);
    assert_eq!(world.get("StatefulSet", "db").await?["status"]["readyReplicas"], 1);
    assert_eq!(world.get("Job", "migrate").await?["status"]["succeeded"], 1);
    let widget = world.get("Widget", "w1").await?;
    assert!(condition(&widget, "Reconciling").is_none(), "{}", widget["status"]);
    Ok(())
}

/// What was true of the spec before is not taken for an answer.
#[tokio::test]
async fn kubectl_wait_waits_for_the_spec_as_it_is_now() -> Result<()> {
    let world = World::new("readiness-wait").await?;
    let wait = ["-n", "readiness-wait", "wait", "widget/w1", "--for=condition=Ready", "--timeout=60s"];
    world.set_plan("w1", json!({"children": [deployment("web:0")]})).await?;
    for round in 1..=5 {
        // Nothing in between: kubectl finds a Ready condition that is true of the last round.
        kubectl(world.plane, wait, None)?;
        let image = format!("web:{round}");
        world.set_plan("w1", json!({"children": [deployment(&image)]})).await?;
        kubectl(world.plane, wait, None)?;
        let web = world.get("Deployment", "web").await?;
        assert_eq!(string(&web, "/spec/template/spec/containers/0/image"), image);
        let status = &web["status"];
        assert_eq!(status["observedGeneration"], web["metadata"]["generation"], "{status}");
        assert_eq!(
            (&status["updatedReplicas"], &status["readyReplicas"]),
            (&2.into(), &2.into()),
            "{status}"
        );
    }
    Ok(())
}

/// A plugin looks at its children before they are changed: what it says of them then is not told of the new
/// generation.
#[tokio::test]
async fn conditions_of_a_new_generation_are_about_its_children() -> Result<()> {
    let world = World::new("readiness-new").await?;
    let _turn = website(&world, "website").await?;
    world.set("Website", "site", json!({"image": "web:1"})).await?;
    world.until_says("Website", "site", ["Available", "True", "Serving"]).await?;
    // No pod of another version can start, so nothing of it is ever available.
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}},
    });
    world.apply(&quota, "tests").await?;
    let in_force = world.until("ResourceQuota", "one", "is in force", |quota| {
        ensure!(quota["status"]["used"]["pods"] == "1", "{}", quota["status"]);
        Ok(())
    });
    in_force.await?;
    let edited = world.merge("Website", "site", json!({"spec": {"image": "web:2"}})).await?;
    let mut states = pin!(states(&world, &edited).await?);
    let telling = async {
        loop {
            let site = states.next().await.context("the watch ended")??;
            let available = condition(&site, "Available").context("it is always said")?;
            if available["observedGeneration"] == edited["metadata"]["generation"] {
                return says(&site, "Available", "False", "NotServing");
            }
        }
    };
    tokio::time::timeout(crate::world::DEADLINE, telling).await.context("nothing is said of the edit")?
}

#[tokio::test]
async fn failed_job_stalls_its_parent_and_a_new_plan_mends_it() -> Result<()> {
    let world = World::new("readiness-failed").await?;
    world.set_plan("w1", json!({"children": [job("never", false), deployment("web:1")]})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildFailed"]).await?;
    says(&widget, "Stalled", "True", "ChildFailed")?;
    assert!(condition(&widget, "Reconciling").is_none(), "{}", widget["status"]);
    let message = string(condition(&widget, "Ready").unwrap(), "/message");
    assert!(message.contains("Job readiness-failed/never") && !message.contains("Deployment"), "{message}");

    world.set_plan("w1", json!({"children": [job("once", true), deployment("web:1")]})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    ensure!(condition(&widget, "Stalled").is_none(), "{}", widget["status"]);
    world.until_gone("Job", "never").await
}
