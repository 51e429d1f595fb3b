//! What happens while the host hears late, or not at all, of what it did itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use oarlock_tests::host::{Host, Options};
use oarlock_tests::proxy::{Fault, Proxy, Rule};
use oarlock_tests::throughout;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, says};

async fn start(world: &World, proxy: &Proxy) -> Result<Host> {
    let options = Options { kubeconfig: proxy.kubeconfig(), ..Options::standard(world.plane) };
    let host = Host::start(world.plane, &options)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    Ok(host)
}

async fn children(world: &World) -> Result<Vec<Value>> {
    world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await
}

/// Makes the guest be called again and again: it repeats what it is shown, and there must always be one.
async fn check_one_child(world: &World) -> Result<()> {
    world.set("Widget", "w1", json!({"mode": "repeat", "size": 1, "text": "hi"})).await?;
    world
        .eventually("the first child", async || {
            ensure!(!children(world).await?.is_empty(), "none");
            Ok(())
        })
        .await?;
    for touch in 1..=17 {
        let metadata = json!({"annotations": {"touch": touch.to_string()}});
        world.merge("Widget", "w1", json!({"metadata": metadata})).await?;
        throughout(Duration::from_millis(300), "there is one child", async || {
            let found = children(world).await?.len();
            ensure!(found == 1, "{found} children");
            anyhow::Ok(())
        })
        .await?;
    }
    Ok(())
}

/// B011, rule R3: a guest is never shown less than the host has written.
#[tokio::test]
async fn child_is_made_once_while_the_news_of_it_is_late() -> Result<()> {
    let lab = Lab::enter("lag-children").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 11).await?;
    let host = start(world, &proxy).await?;
    let late = proxy.rule(Rule { resource: "configmaps", ..Rule::every(Fault::Lag(Duration::from_secs(3))) });
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    check_one_child(world).await?;
    let to = audit.mark().await?;
    assert!(late.hits() > 0, "nothing was late");
    let writes = world.host_writes(&audit, from, to);
    let children: Vec<_> = writes.iter().filter(|write| write.contains(" configmaps ")).collect();
    assert_eq!(children, ["patch configmaps w1-0 201"]);
    host.stop().await
}

/// Rule R3a, of children.
#[tokio::test]
async fn child_is_made_once_when_the_answer_is_lost() -> Result<()> {
    let lab = Lab::enter("lag-unknown-child").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 12).await?;
    let host = start(world, &proxy).await?;
    let config_maps = Rule { resource: "configmaps", ..Rule::every(Fault::Lag(Duration::from_secs(3))) };
    let _late = proxy.rule(config_maps.clone());
    let lost = Rule { verbs: &["apply"], times: Some(1), fault: Fault::DropAfter, ..config_maps };
    let lost = proxy.rule(lost);
    check_one_child(world).await?;
    assert_eq!(lost.hits(), 1);
    host.stop().await
}

/// Rules R3a and S3: the time of a condition is that of the write that took effect, though its answer was lost.
#[tokio::test]
async fn transition_time_stays_when_the_answer_is_lost() -> Result<()> {
    let lab = Lab::enter("lag-unknown-status").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 13).await?;
    let host = start(world, &proxy).await?;
    let ports = json!({"ports": [{"port": 80}], "selector": {"app": "none"}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": ports});
    world.set_plan("w1", json!({"children": [service]})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;

    let widgets = Rule { resource: "widgets", ..Rule::every(Fault::Lag(Duration::from_secs(30))) };
    let _late = proxy.rule(widgets.clone());
    let write = Rule { verbs: &["apply"], subresource: Some("status"), times: Some(1), ..widgets };
    let lost = proxy.rule(Rule { fault: Fault::DropAfter, ..write.clone() });
    // A second attempt would be put off until another time has come.
    let refusal = Fault::Answer { code: 429, retry_after: Some(2) };
    let _later = proxy.rule(Rule { fault: refusal, ..write });
    let stalled = json!([{
        "type": "Stalled", "status": "True", "reason": "Told", "message": "told so",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let patch = Patch::Merge(json!({"status": {"conditions": stalled}}));
    world.api("Service").patch_status("s", &PatchParams::default(), &patch).await?;

    let first = world.until_says("Widget", "w1", ["Ready", "False", "ChildFailed"]).await?;
    throughout(Duration::from_secs(5), "it stays as it was written", async || {
        let widget = world.get("Widget", "w1").await?;
        says(&widget, "Ready", "False", "ChildFailed")?;
        ensure!(condition(&widget, "Ready") == condition(&first, "Ready"), "{}", widget["status"]);
        anyhow::Ok(())
    })
    .await?;
    assert_eq!(lost.hits(), 1);
    host.stop().await
}
