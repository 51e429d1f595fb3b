//! What outlives the host's end, orderly or not.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use oarlock_tests::host;
use serde_json::json;

use crate::world::{Lab, says, string};

const WEBSITES: usize = 20;
/// Of the host that is killed.
const WORKERS: usize = 4;

#[tokio::test]
async fn killed_host_goes_on_where_it_was() -> Result<()> {
    let lab = Lab::enter("restart-killed").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("website", "website").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let creating = async {
        for n in 0..WEBSITES {
            world.set("Website", &format!("site-{n}"), json!({"image": "nginx:1.29"})).await?;
        }
        anyhow::Ok(())
    };
    let killing = world.eventually("it is in the middle of it", async || {
        let children = world.list("Deployment", None).await?.len() + world.list("Service", None).await?.len();
        ensure!(children > 5, "{children} children");
        Ok(())
    });
    let (created, killing) = tokio::join!(creating, async {
        killing.await?;
        host.kill()
    });
    created?;
    killing?;
    let done = world.list("Deployment", None).await?.len() + world.list("Service", None).await?.len();
    ensure!(done < 2 * WEBSITES, "it was killed too late: {done} children");

    let host = lab.host().await?;
    world
        .eventually("all websites are ready", async || {
            let sites = world.list("Website", None).await?;
            ensure!(sites.len() == WEBSITES, "{} websites", sites.len());
            sites.iter().try_for_each(|site| says(site, "Ready", "True", "ChildrenReady"))
        })
        .await?;
    let to = audit.mark().await?;

    let mut created = BTreeMap::<String, usize>::new();
    // Whoever is killed does not get to hear what became of the requests on their way; the log may not say either.
    let mut unheard = BTreeSet::new();
    for write in audit.writes_by(world.plane.user_host(), from, to) {
        if write.namespace != world.namespace || !["deployments", "services"].contains(&&*write.resource) {
            continue;
        }
        let child = format!("{} {}", write.resource, write.name);
        match write.code {
            Some(201) => *created.entry(child).or_default() += 1,
            Some(200) => {}
            _ => drop(unheard.insert(child)),
        }
    }
    assert!(created.values().all(|times| *times == 1), "{created:?}");
    let accounted: BTreeSet<_> = created.keys().chain(&unheard).collect();
    assert_eq!(accounted.len(), 2 * WEBSITES, "{created:?}, and perhaps {unheard:?}");
    assert!(unheard.len() <= 2 * WORKERS, "{unheard:?}");
    let sites = world.list("Website", None).await?;
    let uids: BTreeMap<_, _> =
        sites.iter().map(|site| (string(site, "/metadata/name"), string(site, "/metadata/uid"))).collect();
    for kind in ["Deployment", "Service"] {
        let children = world.list(kind, None).await?;
        let names: BTreeSet<_> = children.iter().map(|child| string(child, "/metadata/name")).collect();
        assert_eq!(names, uids.keys().copied().collect());
        for child in &children {
            let owners = child["metadata"]["ownerReferences"].as_array().unwrap();
            assert_eq!(owners.len(), 1, "{child}");
            assert_eq!(owners[0]["uid"], uids[string(child, "/metadata/name")], "{child}");
        }
    }
    host.stop().await
}

/// B034: the version that made them is gone before the host is back.
#[tokio::test]
async fn kind_that_a_version_does_not_know_is_pruned_also_when_it_came_while_no_host_ran() -> Result<()> {
    let lab = Lab::enter("restart-kind").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("website", "website-v2").await?;
    let parent = world.set("Website", "blog", json!({"image": "nginx:1.29"})).await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    world.get("PodDisruptionBudget", "blog").await?;
    let service = world.get("Service", "blog").await?;
    host.stop().await?;

    let lookalike = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {
            "name": "other",
            "labels": {"oarlock.dev/owned-by": "website", "oarlock.dev/parent": parent["metadata"]["uid"]},
        },
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "other"}}},
    });
    world.apply(&lookalike, "somebody").await?;
    world.source("website", &[("plugin.wasm", &host::component("website")?)]).await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let host = lab.host().await?;
    world.plugin("website", "website").await?;
    world.until_gone("PodDisruptionBudget", "blog").await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let deletes: Vec<_> = writes.iter().filter(|write| write.starts_with("delete ")).collect();
    assert_eq!(deletes, ["delete poddisruptionbudgets blog 200"]);
    let found = world.get("PodDisruptionBudget", "other").await?;
    ensure!(found["metadata"].get("deletionTimestamp").is_none(), "{found}");
    assert_eq!(world.get("Service", "blog").await?, service, "what stays is not touched");
    host.stop().await
}

#[tokio::test]
async fn host_stops_in_time_with_a_guest_in_a_loop() -> Result<()> {
    let lab = Lab::enter("restart-stop").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    for n in 0..8 {
        world.set("Widget", &format!("loop-{n}"), json!({"mode": "loop"})).await?;
    }
    world.set("Widget", "good", json!({"text": "served"})).await?;
    world.until_says("Widget", "good", ["Ready", "True", "ChildrenReady"]).await?;
    // Within ten seconds, with success.
    host.stop().await
}

#[tokio::test]
async fn host_outlives_a_restart_of_the_api_server() -> Result<()> {
    let lab = Lab::enter("restart-api").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.plane.restart_api_server().await?;
    host.check_running()?;
    world.merge("Widget", "w1", json!({"spec": {"text": "ho"}})).await?;
    world.set("Widget", "w2", json!({"text": "new"})).await?;
    for name in ["w1", "w2"] {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    assert_eq!(world.get("ConfigMap", "w1-cm").await?["data"]["text"], "ho");
    host.stop().await
}
