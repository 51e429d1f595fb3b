//! Installing without waiting: a bundle says what is pending or has failed, and why, and gets there.

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::children::GUEST_CALLS;
use crate::world::{World, condition, says, shared_host, string};

/// A namespace, with the plugin in force; one test at a time, as calls are counted by plugin.
async fn enter(namespace: &str) -> Result<(World, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let world = World::new(namespace).await?;
    world.plugin("bundle", "bundle").await?;
    Ok((world, turn))
}

/// No pod more may start here, so no Job gets anywhere.
async fn forbid_pods(world: &World) -> Result<()> {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-pods"}, "spec": {"hard": {"pods": "0"}},
    });
    world.apply(&quota, "tests").await.map(drop)
}

/// Waits until `ComponentsReady` is `False` for this reason, with a message that has all these words.
async fn until_lacks(world: &World, name: &str, reason: &str, words: &[&str]) -> Result<Value> {
    world
        .until("Bundle", name, &format!("{reason} {words:?}"), |bundle| {
            says(bundle, "ComponentsReady", "False", reason)?;
            let message = string(condition(bundle, "ComponentsReady").unwrap(), "/message");
            ensure!(words.iter().all(|word| message.contains(word)), "{message}");
            Ok(())
        })
        .await
}

/// The name of the one Job.
async fn job(world: &World) -> Result<String> {
    world
        .eventually("there is one Job", async || {
            let jobs = world.list("Job", None).await?;
            ensure!(jobs.len() == 1, "{} Jobs", jobs.len());
            Ok(string(&jobs[0], "/metadata/name").to_owned())
        })
        .await
}

fn state(bundle: &Value, kind: &str) -> Result<String> {
    let components = bundle["status"]["components"].as_array().context("no components")?;
    let component = components.iter().find(|component| component["kind"] == kind);
    Ok(string(component.with_context(|| format!("no {kind} in {components:?}"))?, "/state").to_owned())
}

async fn until_installed(world: &World, name: &str) -> Result<Value> {
    world
        .until("Bundle", name, "everything is installed", |bundle| {
            says(bundle, "ComponentsReady", "True", "AllReady")?;
            says(bundle, "Available", "True", "Serving")?;
            says(bundle, "Ready", "True", "ChildrenReady")
        })
        .await
}

#[tokio::test]
async fn bundle_says_what_is_pending_or_has_failed_and_gets_there_when_mended() -> Result<()> {
    let (world, _turn) = enter("bundle").await?;
    let host = shared_host().await?;
    let calls = async || anyhow::Ok(host.metrics().await?.sum(GUEST_CALLS, &["plugin=\"bundle\""]));
    let before = calls().await?;
    forbid_pods(&world).await?;
    let spec = |timeout: u32| {
        json!({
            "config": {"LOG_LEVEL": "info"}, "storage": "1Gi", "web": {"image": "shop:1"},
            "migration": {"image": "migrations:1", "timeoutSeconds": timeout},
        })
    };
    world.set("Bundle", "shop", spec(600)).await?;
    let first = job(&world).await?;
    let job_waits = format!("Job {first} is pending: ");
    let web_waits = format!("Deployment shop is pending: waits for Job {first}");
    let words = [&*job_waits, "PersistentVolumeClaim shop is pending: not bound", &*web_waits];
    let bundle = until_lacks(&world, "shop", "ComponentPending", &words).await?;
    assert_eq!(state(&bundle, "ConfigMap")?, "Ready");
    says(&bundle, "Available", "False", "NotServing")?;
    ensure!(condition(&bundle, "Stalled").is_none(), "{}", bundle["status"]);

    // Another time-out is another migration; this one fails, as it cannot start.
    world.set("Bundle", "shop", spec(1)).await?;
    let bundle = until_lacks(&world, "shop", "ComponentFailed", &[" has failed: ", "deadline"]).await?;
    let second = job(&world).await?;
    assert_ne!(second, first);
    let message = string(condition(&bundle, "ComponentsReady").unwrap(), "/message");
    assert!(message.starts_with(&format!("Job {second} has failed: ")), "{message}");
    assert_eq!(state(&bundle, "Job")?, "Failed");
    assert_eq!(state(&bundle, "Deployment")?, "Pending");
    ensure!(world.find("Deployment", "shop").await?.is_none(), "it must not be there without its migration");
    world.until_says("Bundle", "shop", ["Ready", "False", "ChildFailed"]).await?;

    // Mended: what was in the way is gone, and so is what failed. The volume is still missing.
    world.delete("ResourceQuota", "no-pods").await?;
    world.set("Bundle", "shop", spec(300)).await?;
    until_lacks(&world, "shop", "ComponentPending", &["PersistentVolumeClaim shop is pending: not bound"])
        .await?;
    world.until("Deployment", "shop", "is there", |_| Ok(())).await?;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "bundle-shop"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"},
            "claimRef": {"namespace": "bundle", "name": "shop"},
        },
    });
    world.apply(&volume, "tests").await?;
    let bundle = until_installed(&world, "shop").await?;
    assert_eq!(bundle["status"]["components"].as_array().map(Vec::len), Some(5), "{}", bundle["status"]);

    // One call per change of a spec or of a child's readiness, and none at rest.
    world.until_at_rest().await?;
    let made = calls().await? - before;
    assert!((5.0..=40.0).contains(&made), "{made} calls");
    world.until_at_rest().await?;
    let later = calls().await? - before;
    assert!((later - made).abs() < f64::EPSILON, "{} calls at rest", later - made);
    Ok(())
}

/// Gives a Job up, as its controller does; without a deadline, so that it can succeed when it is made again.
async fn give_up(world: &World, name: &str) -> Result<()> {
    world
        .until("Job", name, "its controller has seen it", |job| {
            ensure!(!string(job, "/status/startTime").is_empty(), "{}", job["status"]);
            Ok(())
        })
        .await?;
    // The API server takes the one only after the other.
    let condition = |r#type: &str| {
        json!({
            "type": r#type, "status": "True", "reason": "GivenUp", "message": "out of patience",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastProbeTime": "2026-01-01T00:00:00Z",
        })
    };
    let status =
        Patch::Merge(json!({"status": {"conditions": [condition("FailureTarget"), condition("Failed")]}}));
    world.api("Job").patch_status(name, &PatchParams::default(), &status).await?;
    Ok(())
}

#[tokio::test]
async fn failed_migration_that_is_deleted_runs_again() -> Result<()> {
    let (world, _turn) = enter("bundle-again").await?;
    forbid_pods(&world).await?;
    let migration = json!({"image": "migrations:1"});
    world.set("Bundle", "shop", json!({"web": {"image": "shop:1"}, "migration": migration})).await?;
    let name = job(&world).await?;
    give_up(&world, &name).await?;
    let says_why = format!("Job {name} has failed: out of patience");
    until_lacks(&world, "shop", "ComponentFailed", &[&*says_why]).await?;
    world.delete("ResourceQuota", "no-pods").await?;
    world.delete("Job", &name).await?;
    until_installed(&world, "shop").await?;
    assert_eq!(job(&world).await?, name);
    Ok(())
}

#[tokio::test]
async fn upgrade_serves_what_it_served_until_its_migration_is_complete() -> Result<()> {
    let (world, _turn) = enter("bundle-upgrade").await?;
    let spec = |version: u32, timeout: u32| {
        json!({
            "web": {"image": format!("shop:{version}")},
            "migration": {"image": format!("migrations:{version}"), "timeoutSeconds": timeout},
        })
    };
    let image = async || {
        let deployment = world.get("Deployment", "shop").await?;
        anyhow::Ok(string(&deployment, "/spec/template/spec/containers/0/image").to_owned())
    };
    world.set("Bundle", "shop", spec(1, 300)).await?;
    until_installed(&world, "shop").await?;
    let before = world.get("Deployment", "shop").await?;

    forbid_pods(&world).await?;
    world.set("Bundle", "shop", spec(2, 1)).await?;
    let bundle = until_lacks(&world, "shop", "ComponentFailed", &[" has failed: ", "waits for Job"]).await?;
    says(&bundle, "Available", "True", "Serving")?;
    assert_eq!(image().await?, "shop:1");

    world.delete("ResourceQuota", "no-pods").await?;
    world.set("Bundle", "shop", spec(2, 300)).await?;
    until_installed(&world, "shop").await?;
    assert_eq!(image().await?, "shop:2");
    // The Jobs before it are not planned any more.
    job(&world).await?;
    let after = world.get("Deployment", "shop").await?;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    Ok(())
}
