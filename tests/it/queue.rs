//! In what order, and when, objects are looked at.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use oarlock_tests::host::{Host, Options};
use oarlock_tests::proxy::{Fault, Proxy, Rule, Standing};
use oarlock_tests::throughout;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::explain::explained;
use crate::world::{Lab, World};

/// How often the guest of the plugin `widget` was called by this host.
async fn calls(host: &Host) -> Result<f64> {
    let labels = ["plugin=\"widget\""];
    Ok(host.metrics().await?.sum("oarlock_guest_call_duration_seconds_count", &labels))
}

async fn pass_by(time: Duration) -> Result<()> {
    throughout(time, "time passes", async || anyhow::Ok(())).await
}

/// B053 (a) and (c): a guest that reads the clock wants to be called every 300 ms.
#[tokio::test]
async fn requeue_of_a_guest_is_one_timer_whatever_else_calls_it_and_begins_anew_with_the_host() -> Result<()>
{
    let lab = Lab::enter("queue-requeue").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"mode": "stamp", "text": "True"})).await?;
    world.until_says("Widget", "w1", ["Stamped", "True", "Ok"]).await?;

    let touches = 8;
    let (began, before) = (Instant::now(), calls(&host).await?);
    for touch in 0..touches {
        let metadata = json!({"annotations": {"touch": touch.to_string()}});
        world.merge("Widget", "w1", json!({"metadata": metadata})).await?;
        pass_by(Duration::from_millis(700)).await?;
    }
    let (called, took) = (calls(&host).await? - before, began.elapsed().as_secs_f64());
    let due = took / 0.3;
    let most = due + f64::from(touches) + 1.0;
    assert!(called <= most, "{called} calls in {took} s: a timer more for every touch?");
    assert!(called >= due / 2.0, "{called} calls in {took} s");

    host.stop().await?;
    let host = lab.host().await?;
    world
        .eventually("it is called after the start", async || {
            let called = calls(&host).await?;
            ensure!(called >= 1.0, "{called} calls");
            Ok(())
        })
        .await?;
    let (began, before) = (Instant::now(), calls(&host).await?);
    pass_by(Duration::from_secs(3)).await?;
    let (called, took) = (calls(&host).await? - before, began.elapsed().as_secs_f64());
    assert!((took / 3.0..=took / 0.3 + 1.0).contains(&called), "{called} calls in {took} s after a restart");
    host.stop().await
}

/// When the only plugin of an object looks at it again, in milliseconds of the clock.
fn next_look(told: &Value) -> Result<i64> {
    let next = &told["plugins"][0]["next"];
    ensure!(next["when"] == "Requeue", "{next}");
    let at: Time = serde_json::from_value(next["at"].clone()).context("no time")?;
    Ok(at.0.as_millisecond())
}

/// Rule R5: what the memo answers is no newer result.
#[tokio::test]
async fn requeue_of_a_plan_is_not_put_off_by_what_calls_no_guest() -> Result<()> {
    let lab = Lab::enter("queue-timer").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let child = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "w1-cm"}});
    world.set_plan("w1", json!({"children": [child], "requeueAfterMs": 60_000})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    let before = next_look(&explained(world, &host, "w1")?)?;
    let hits = async || {
        let labels = ["plugin=\"widget\"", "result=\"hit\""];
        anyhow::Ok(host.metrics().await?.sum("oarlock_memo_total", &labels))
    };
    for touch in 0..3 {
        pass_by(Duration::from_secs(1)).await?;
        let so_far = hits().await?;
        let labels = json!({"metadata": {"labels": {"touch": touch.to_string()}}});
        world.merge("ConfigMap", "w1-cm", labels).await?;
        world
            .eventually("it is looked at, and the memo answers", async || {
                let now = hits().await?;
                ensure!(now > so_far, "{now} hits");
                Ok(())
            })
            .await?;
    }
    world
        .eventually("the time stands", async || {
            let after = next_look(&explained(world, &host, "w1")?)?;
            ensure!((after - before).abs() < 500, "from {before} to {after}");
            Ok(())
        })
        .await?;
    host.stop().await
}

fn start(world: &World, proxy: &Proxy) -> Result<Host> {
    let options = Options { kubeconfig: proxy.kubeconfig(), ..Options::standard(world.plane) };
    Host::start(world.plane, &options)
}

/// B053 (b): where a pass fails after the call, the back-off holds, but not beyond the time asked for.
#[tokio::test]
async fn failed_pass_is_tried_again_when_its_plan_wants_it_at_the_latest() -> Result<()> {
    let lab = Lab::enter("queue-failing").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 53).await?;
    let host = start(world, &proxy)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    let fault = Fault::Answer { code: 500, retry_after: None };
    let rule = Rule { verbs: &["apply"], resource: "configmaps", ..Rule::every(fault) };
    let [hasty, patient] = ["hasty-cm", "patient-cm"]
        .map(|name| proxy.rule(Rule { name: Some(name.to_owned()), ..rule.clone() }));
    let child = |name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    world.set_plan("hasty", json!({"children": [child("hasty-cm")], "requeueAfterMs": 500})).await?;
    world.set_plan("patient", json!({"children": [child("patient-cm")]})).await?;
    world
        .eventually("both have failed often", async || {
            let hits = [&hasty, &patient].map(Standing::hits);
            // The next back-off of eleven failures is five seconds.
            ensure!(hits.iter().all(|hits| *hits >= 11), "{hits:?} hits");
            Ok(())
        })
        .await?;
    let before = [&hasty, &patient].map(Standing::hits);
    pass_by(Duration::from_secs(4)).await?;
    let after = [&hasty, &patient].map(Standing::hits);
    let [hasty_hits, patient_hits] = [0, 1].map(|at| after[at] - before[at]);
    assert!((3..=9).contains(&hasty_hits), "{hasty_hits} attempts in four seconds, every 500 ms asked for");
    assert!(patient_hits <= 1, "{patient_hits} attempts in four seconds of back-off");
    drop((hasty, patient));
    for name in ["hasty", "patient"] {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    host.stop().await
}

/// Rule R2: the workers are not all those of the plugin whose calls last longest.
#[tokio::test]
async fn plugin_whose_calls_never_end_costs_the_others_a_turn_and_no_more() -> Result<()> {
    const WEBSITES: usize = 40;
    let lab = Lab::enter("queue-slow").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.plugin("website", "website").await?;
    let limits = json!({"fuelMillions": 1_000_000, "deadlineMilliseconds": 4_000});
    world.merge("Plugin", "widget", json!({"spec": {"limits": limits}})).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    let figure = async |name: &str, labels: &[&str]| anyhow::Ok(host.metrics().await?.sum(name, labels));
    let waiting = async || figure("oarlock_queue_depth", &["plugin=\"widget\"", "state=\"due\""]).await;
    let turns = async || figure("oarlock_reconcile_total", &["plugin=\"widget\""]).await;
    let served = async || figure("oarlock_reconcile_total", &["plugin=\"website\""]).await;

    // More than are through before the first is tried again: there are always some due.
    let loops = (0..40).map(|n| (format!("loop-{n}"), json!({"mode": "loop"})));
    world.set_all("Widget", loops).await?;
    world
        .eventually("the workers are busy", async || {
            let (waiting, turns) = (waiting().await?, turns().await?);
            ensure!(waiting >= 30.0 && turns >= 4.0, "{waiting} are due, {turns} are done");
            Ok(())
        })
        .await?;
    let before = turns().await?;
    let sites = (0..WEBSITES).map(|n| (format!("site-{n}"), json!({"image": "nginx:1.29"})));
    world.set_all("Website", sites).await?;
    world
        .eventually("every website has its children", async || {
            for kind in ["Deployment", "Service"] {
                let children = world.list(kind, None).await?.len();
                ensure!(children == WEBSITES, "{children} of kind {kind}");
            }
            Ok(())
        })
        .await?;
    let (turns, served, waiting) = (turns().await? - before, served().await?, waiting().await?);
    // Turn by turn it would be a call of four seconds for each pass.
    assert!(turns <= 0.7 * served, "{turns} calls of four seconds beside {served} passes of websites");
    assert!(waiting > 0.0, "nothing was in their way at last");
    let waits = figure("oarlock_queue_wait_seconds_count", &["plugin=\"website\""]).await?;
    assert!(waits >= WEBSITES as f64, "{waits} waits were measured");
    host.stop().await
}

/// B052.
#[tokio::test]
async fn edit_after_a_restart_does_not_wait_for_what_has_not_changed() -> Result<()> {
    const WIDGETS: usize = 500;
    let lab = Lab::enter("queue-storm").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let widgets = (1..WIDGETS).map(|n| (format!("w{n}"), json!({"text": "one"})));
    world.set_all("Widget", widgets).await?;
    world.set("Widget", "again", json!({"mode": "requeue"})).await?;
    world
        .eventually("all have their status", async || {
            let labels = ["plugin=\"widget\"", "result=\"written\""];
            let written = host.metrics().await?.sum("oarlock_status_writes_total", &labels);
            ensure!(written >= WIDGETS as f64, "{written} statuses");
            Ok(())
        })
        .await?;
    world.until_at_rest().await?;
    host.stop().await?;

    let proxy = Proxy::start(world.plane, 52).await?;
    let busy = Fault::Answer { code: 429, retry_after: Some(1) };
    let limit = proxy.rule(Rule { per_second: Some(10), ..Rule::every(busy) });
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let host = start(world, &proxy)?;
    pass_by(Duration::from_secs(5)).await?;
    world.set("Widget", "w300", json!({"text": "two"})).await?;
    let edited = Instant::now();
    world
        .until("ConfigMap", "w300-cm", "has the new text", |child| {
            ensure!(child["data"]["text"] == "two", "{}", child["data"]);
            Ok(())
        })
        .await?;
    world.until_says("Widget", "w300", ["Ready", "True", "ChildrenReady"]).await?;
    let took = edited.elapsed();
    assert!(took < Duration::from_secs(10), "the edit was served after {took:?}");
    world
        .eventually("all were looked at", async || {
            let called = calls(&host).await?;
            // None is called twice but the one that was edited, perhaps before and after.
            ensure!(called >= WIDGETS as f64, "{called} calls");
            ensure!(called <= (WIDGETS + 1) as f64, "{called} calls");
            Ok(())
        })
        .await?;
    assert!(limit.hits() > 0, "the limit was never reached");
    world.until_at_rest().await?;
    let to = audit.mark().await?;
    let mut writes = world.host_writes(&audit, from, to);
    writes.retain(|write| !write.contains("w300") && !write.contains(" events "));
    assert_eq!(writes, [""; 0], "for objects that had not changed");
    host.stop().await
}
