//! What the way to the API server can suffer, and what is behind it: the host gives up in time, spoils nothing, and
//! goes on by itself.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oarlock_tests::cluster::{Component, ControlPlane};
use oarlock_tests::eventually;
use oarlock_tests::host::{Host, Options};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::world::{Lab, World, install, says, string};

/// Requests that ended without an answer.
async fn unanswered(host: &Host) -> Result<f64> {
    let metrics = host.metrics().await?;
    let of = |result| metrics.sum("oarlock_api_requests_total", &[result]);
    Ok(of(r#"result="timeout""#) + of(r#"result="connection""#))
}

/// Waits until every one of these Widgets has a child with this text.
async fn until_children_have(world: &World, count: usize, text: &str) -> Result<()> {
    world
        .eventually("every child has its text", async || {
            let children = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;
            let done = children.iter().filter(|child| child["data"]["text"] == text).count();
            ensure!(done == count, "{done} of {count} have {text}");
            Ok(())
        })
        .await
}

async fn set_texts(world: &World, count: usize, text: &str) -> Result<()> {
    world.set_all("Widget", (0..count).map(|n| (format!("w{n}"), json!({"text": text})))).await
}

/// A kubeconfig of the host with something replaced.
fn kubeconfig(plane: &ControlPlane, name: &str, from: &str, to: &str) -> Result<PathBuf> {
    let content = fs::read_to_string(plane.kubeconfig_host())?;
    ensure!(content.contains(from), "{from} is not in {content}");
    let path = plane.dir().join(name);
    fs::write(&path, content.replace(from, to))?;
    Ok(path)
}

/// What stands in a kubeconfig behind a word.
fn value(plane: &ControlPlane, word: &str) -> Result<String> {
    let content = fs::read_to_string(plane.kubeconfig_host())?;
    let rest = content.split_once(word).with_context(|| format!("{word} is not in {content}"))?.1;
    Ok(rest.lines().next().unwrap_or_default().trim().to_owned())
}

/// F40, F41: every token and the certificate of the API server are others; what was valid before is not any more.
#[tokio::test]
async fn token_and_certificate_that_are_renewed_are_taken_up_by_a_host_that_runs() -> Result<()> {
    let plane = ControlPlane::start(ControlPlane::shared().await?.dir().join("renewed")).await?;
    // Its processes end with this one, or below.
    let plane: &'static ControlPlane = Box::leak(Box::new(plane));
    install(plane)?;
    let world = World::within(plane, "renewed").await?;
    // They know what they were started with.
    for component in [Component::Kwok, Component::Scheduler, Component::ControllerManager] {
        plane.stop(component).await?;
    }
    let token_file = plane.dir().join("host.token");
    let token = || value(plane, "token: ");
    fs::write(&token_file, token()?)?;
    let (from, to) = (format!("token: {}", token()?), format!("tokenFile: \"{}\"", token_file.display()));
    let kubeconfig = kubeconfig(plane, "token-file.kubeconfig", &from, &to)?;
    let host = Host::start(plane, &Options { kubeconfig, ..Options::standard(plane) })?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    set_texts(&world, 1, "one").await?;
    until_children_have(&world, 1, "one").await?;

    let before = token()?;
    plane.renew_credentials().await?;
    assert_ne!(token()?, before);
    fs::write(&token_file, token()?)?;
    // The client has to be told as well.
    let world = World::within(plane, "renewed").await?;
    set_texts(&world, 1, "two").await?;
    // Both files are read once a minute, the later one perhaps after the longest back-off of a watch.
    eventually(Duration::from_mins(2), "the host goes on", async || {
        let child = world.get("ConfigMap", "w0-cm").await?;
        ensure!(child["data"]["text"] == "two", "{}", child["data"]);
        anyhow::Ok(())
    })
    .await
    .map_err(|error| error.context(world.host_log()))?;
    world.until_says("Widget", "w0", ["Ready", "True", "ChildrenReady"]).await?;
    let refused = host.metrics().await?.sum("oarlock_api_requests_total", &[r#"result="unauthorized""#]);
    assert!(refused < 100.0, "{refused} requests with a token that is not valid any more");
    host.stop().await?;
    plane.stop_all().await
}

/// Has a component stand still in the middle of a change of many objects: what the host gave up may still take
/// effect once it goes on.
async fn is_given_up_and_undoes_nothing(lab: &Lab, component: Component) -> Result<()> {
    const WIDGETS: usize = 40;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    set_texts(world, WIDGETS, "one").await?;
    until_children_have(world, WIDGETS, "one").await?;
    world.until_at_rest().await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let before = unanswered(&host).await?;

    let standing_still = async {
        world
            .eventually("it is in the middle of it", async || {
                let children = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;
                ensure!(children.iter().any(|child| child["data"]["text"] == "two"), "none has changed");
                Ok(())
            })
            .await?;
        let paused = world.plane.pause(component)?;
        world
            .eventually("requests were given up", async || {
                let given_up = unanswered(&host).await? - before;
                ensure!(given_up >= 4.0, "{given_up} were");
                Ok(())
            })
            .await?;
        host.get("/readyz").await?;
        drop(paused);
        anyhow::Ok(())
    };
    let (edited, stood_still) = tokio::join!(set_texts(world, WIDGETS, "two"), standing_still);
    edited?;
    stood_still?;
    set_texts(world, WIDGETS, "three").await?;
    until_children_have(world, WIDGETS, "three").await?;
    world.until_at_rest().await?;
    until_children_have(world, WIDGETS, "three").await?;
    for widget in world.list("Widget", None).await? {
        says(&widget, "Ready", "True", "ChildrenReady")?;
    }
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    // What it told of is its business.
    let others: Vec<_> = writes
        .iter()
        .filter(|write| !write.contains(" events "))
        .filter(|write| !write.starts_with("patch ") || write.ends_with(" 201"))
        .collect();
    assert!(others.is_empty(), "created or deleted, where there was only something to change: {others:?}");
    host.stop().await
}

/// F43: nobody answers, so it is the host that ends its requests.
#[tokio::test]
async fn api_server_that_stands_still_is_given_up_in_time_and_undoes_nothing_when_it_goes_on() -> Result<()> {
    let lab = Lab::enter("connection-paused").await?;
    is_given_up_and_undoes_nothing(&lab, Component::ApiServer).await
}

/// F44: the API server answers 504 after the time that the host gave it, and etcd may still do what it was asked for.
#[tokio::test]
async fn store_that_stands_still_is_given_up_in_time_and_undoes_nothing_when_it_goes_on() -> Result<()> {
    let lab = Lab::enter("connection-store-paused").await?;
    is_given_up_and_undoes_nothing(&lab, Component::Etcd).await
}

/// F45: etcd has used up its quota, so what needs space is answered with 500, and what frees some is not.
#[tokio::test]
async fn store_without_space_is_waited_for_and_made_good_when_it_has_some() -> Result<()> {
    let lab = Lab::enter("connection-store").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    set_texts(world, 3, "one").await?;
    until_children_have(world, 3, "one").await?;
    world.until_at_rest().await?;
    let mut audit = world.plane.audit().await?;
    let before = world.get("Widget", "w1").await?;

    let exhausted = world.plane.exhaust_store()?;
    let from = audit.mark().await?;
    world.delete("ConfigMap", "w0-cm").await?;
    let refused = |audit: &mut oarlock_tests::audit::Audit, to| {
        let writes = world.host_writes(audit, from, to);
        writes.iter().filter(|write| *write == "patch configmaps w0-cm 500").count()
    };
    let attempts = tokio::sync::Mutex::new(&mut audit);
    world
        .eventually("it has been tried again and again", async || {
            let mut audit = attempts.lock().await;
            let to = audit.mark().await?;
            let refused = refused(*audit, to);
            // The next one comes after five seconds.
            ensure!(refused >= 10, "{refused} times");
            Ok(())
        })
        .await?;
    let to = audit.mark().await?;
    let refused = refused(&mut audit, to);
    assert!(refused <= 15, "{refused} attempts within the time of ten");
    assert!(world.host_log().contains("database space exceeded"), "{}", world.host_log());
    host.get("/readyz").await?;
    let (writes, is_about) = (world.host_writes(&audit, from, to), |write: &String| write.contains(" w0"));
    assert!(writes.iter().all(is_about), "{writes:?}");
    drop(exhausted);

    until_children_have(world, 3, "one").await?;
    world.until_says("Widget", "w0", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("Widget", "w1").await?, before);
    host.stop().await
}

/// Passes connections on to one port at a time; when that is another, those that are open end.
async fn pass_on(listener: TcpListener, port: watch::Receiver<u16>) {
    // A connection that ended before it was taken is nobody's loss.
    while let Ok((mut here, _)) = listener.accept().await {
        let mut port = port.clone();
        let to = *port.borrow_and_update();
        drop(tokio::spawn(async move {
            let Ok(mut there) = TcpStream::connect(("127.0.0.1", to)).await else { return };
            tokio::select! {
                biased;
                _ = port.changed() => {}
                _ = copy_bidirectional(&mut here, &mut there) => {}
            }
        }));
    }
}

fn port(plane: &ControlPlane) -> Result<u16> {
    value(plane, "server: https://127.0.0.1:")?.parse().context("a port")
}

/// F46: the address of the API server leads to another cluster, where everything the host knows is missing.
#[tokio::test]
async fn another_cluster_at_the_same_address_is_asked_nothing() -> Result<()> {
    let lab = Lab::enter("connection-elsewhere").await?;
    let world = &lab.world;
    let other = ControlPlane::shared().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let here = listener.local_addr()?.port();
    let (redirect, leads_to) = watch::channel(port(world.plane)?);
    let passing = tokio::spawn(pass_on(listener, leads_to));
    let kubeconfig =
        kubeconfig(world.plane, "elsewhere.kubeconfig", &port(world.plane)?.to_string(), &here.to_string())?;
    let host = Host::start(world.plane, &Options { kubeconfig, ..Options::standard(world.plane) })?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    set_texts(world, 3, "one").await?;
    until_children_have(world, 3, "one").await?;
    world.until_at_rest().await?;
    let children = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;

    let mut audit = other.audit().await?;
    let from = audit.mark().await?;
    let said = fs::read_to_string(world.plane.dir().join("oarlock.log"))?;
    let before = unanswered(&host).await?;
    redirect.send(port(other)?)?;
    world
        .eventually("the host has tried", async || {
            let failed = unanswered(&host).await? - before;
            ensure!(failed >= 10.0, "{failed} times");
            let log = fs::read_to_string(world.plane.dir().join("oarlock.log"))?;
            let said = log.get(said.len()..).context("the log has lines")?;
            ensure!(said.contains("invalid peer certificate"), "it has not said why");
            Ok(())
        })
        .await?;
    let to = audit.mark().await?;
    // It has never come as far as a request, which would be answered with 401.
    let strangers: Vec<_> =
        audit.between(from, to).iter().filter(|request| request.code == Some(401)).collect();
    assert!(strangers.is_empty(), "{strangers:?}");

    set_texts(world, 3, "two").await?;
    redirect.send(port(world.plane)?)?;
    until_children_have(world, 3, "two").await?;
    let uids = |all: &[serde_json::Value]| -> Vec<String> {
        all.iter().map(|child| string(child, "/metadata/uid").to_owned()).collect()
    };
    let after = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;
    assert_eq!(uids(&after), uids(&children));
    host.stop().await?;
    passing.abort();
    Ok(())
}
