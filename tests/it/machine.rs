//! What the machine can do to a host: full pipes and folders, no descriptors, slow clients, floods. Each costs what
//! needs it, and nothing else.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use oarlock_tests::host::{Host, Options};
use oarlock_tests::proxy::{Fault, Proxy, Rule};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::world::{DEADLINE, Lab, World, says};

/// Waits until a Widget's child has this text.
async fn until_child_has(world: &World, name: &str, text: &str) -> Result<()> {
    world
        .until("ConfigMap", &format!("{name}-cm"), text, |child| {
            ensure!(child["data"]["text"] == text, "{}", child["data"]);
            Ok(())
        })
        .await
        .map(drop)
}

/// A figure of the kernel about the host, such as `VmHWM`.
fn figure(host: &Host, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid()))?;
    let line = status.lines().find(|line| line.starts_with(name)).with_context(|| name.to_owned())?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

fn descriptors(host: &Host) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", host.pid()))?.count())
}

/// F78: standard error is a pipe that is open, and that nobody reads.
#[tokio::test]
async fn host_whose_log_nobody_reads_goes_on_and_stops_in_time() -> Result<()> {
    const WIDGETS: usize = 50;
    let lab = Lab::enter("machine-log").await?;
    let world = &lab.world;
    let shell = "rm -f unread.log; mkfifo unread.log; exec 2<>unread.log".to_owned();
    let flags = vec!["--log".to_owned(), "trace".to_owned()];
    let host = Host::start(world.plane, &Options { shell, flags, ..Options::standard(world.plane) })?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    for text in ["one", "two"] {
        world.set_all("Widget", (0..WIDGETS).map(|n| (format!("w{n}"), json!({"text": text})))).await?;
        for n in 0..WIDGETS {
            until_child_has(world, &format!("w{n}"), text).await?;
        }
    }
    host.stop().await
}

/// F79: clients that ask and do not read, and some that do not even ask.
#[tokio::test]
async fn slow_clients_of_the_admin_endpoint_are_few_at_a_time_and_let_go() -> Result<()> {
    const CLIENTS: usize = 300;
    let lab = Lab::enter("machine-scraped").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let before = descriptors(&host)?;
    let clients = (0..CLIENTS).map(async |n| -> Result<TcpStream> {
        let mut client = TcpStream::connect(host.admin()).await?;
        let end = if n % 2 == 0 { "\r\n" } else { "" };
        client.write_all(format!("GET /metrics HTTP/1.1\r\nHost: slow\r\n{end}").as_bytes()).await?;
        Ok(client)
    });
    let clients = try_join_all(clients).await?;
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    until_child_has(world, "w1", "one").await?;
    let taken = descriptors(&host)?.saturating_sub(before);
    // The bound, and a few connections of its own.
    assert!(taken <= 128 + 16, "{taken} descriptors more are open at once");
    // Those that wait for their turn have it when the others were let go.
    for mut client in clients {
        let mut answer = Vec::new();
        // A connection that is reset has ended as well.
        drop(timeout(DEADLINE, client.read_to_end(&mut answer)).await.context("a client is kept")?);
    }
    host.metrics().await?;
    host.stop().await
}

/// F77: nothing more can be opened: no connection to the API server, no pipe to a compiler, no client accepted.
#[tokio::test]
async fn host_without_descriptors_goes_on_when_it_has_some() -> Result<()> {
    let lab = Lab::enter("machine-descriptors").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 77).await?;
    let options = Options { kubeconfig: proxy.kubeconfig(), ..Options::standard(world.plane) };
    let host = Host::start(world.plane, &options)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    until_child_has(world, "w1", "one").await?;
    let before = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;

    let pid = Pid::from_raw(host.pid().cast_signed());
    // Fewer than it has open from its start on, and never closes.
    let before_that = getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(5), ..before_that })?;
    // All connections that it has end.
    let reset = proxy.rule(Rule::every(Fault::DropBefore));
    let cut = proxy.rule(Rule::every(Fault::Cut(Duration::ZERO)));
    world.merge("Widget", "w1", json!({"spec": {"text": "two"}})).await?;
    world
        .eventually("its watches are gone", async || {
            ensure!(cut.hits() >= 4, "{} were cut", cut.hits());
            Ok(())
        })
        .await?;
    // It is not accepted, so it is not answered.
    assert!(host.get("/livez").await.is_err());
    drop((reset, cut));
    host.check_running()?;
    assert_eq!(world.get("ConfigMap", "w1-cm").await?["data"]["text"], "one");
    prlimit(pid, Resource::Nofile, before_that)?;

    until_child_has(world, "w1", "two").await?;
    let after = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(
        crate::world::condition(&after, "Ready").unwrap()["lastTransitionTime"],
        crate::world::condition(&before, "Ready").unwrap()["lastTransitionTime"],
        "it was never unready"
    );
    host.get("/livez").await?;
    host.stop().await
}

/// How many components' code is kept.
fn codes(cache: &Path) -> Result<usize> {
    Ok(fs::read_dir(cache.join("code"))?.count())
}

/// F66: the folder goes while the host runs.
#[tokio::test]
async fn folder_of_compiled_code_that_goes_is_made_again() -> Result<()> {
    let lab = Lab::enter("machine-folder").await?;
    let world = &lab.world;
    let folder = tempfile::tempdir()?;
    let cache_dir = folder.path().join("cache");
    let options = Options { cache_dir: cache_dir.clone(), ..Options::standard(world.plane) };
    let host = Host::start(world.plane, &options)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    until_child_has(world, "w1", "one").await?;
    assert_eq!(codes(&cache_dir)?, 1);
    fs::remove_dir_all(&cache_dir)?;
    world.merge("Widget", "w1", json!({"spec": {"text": "two"}})).await?;
    until_child_has(world, "w1", "two").await?;
    world.plugin("widget", "widget-v2").await?;
    world
        .until("ConfigMap", "w1-cm", "is of the new version", |child| {
            ensure!(child["data"]["version"] == "2", "{}", child["data"]);
            Ok(())
        })
        .await?;
    assert_eq!(codes(&cache_dir)?, 1);
    host.stop().await
}

/// F66: the disk is full in the middle of every file, the log's as well.
#[tokio::test]
async fn full_disk_leaves_no_half_file_and_stops_nobody() -> Result<()> {
    // Less than compiled code takes, more than a guest's memory, which is a file for the kernel.
    const FULL: u64 = 256 << 10;
    let lab = Lab::enter("machine-disk").await?;
    let world = &lab.world;
    let folder = tempfile::tempdir()?;
    let cache_dir = folder.path().join("cache");
    let log = folder.path().join("full.log");
    fs::write(&log, vec![b'\n'; FULL as usize])?;
    // To whoever ignores its signal, the limit of a file's size is as a full disk.
    let shell = format!("trap '' XFSZ; ulimit -S -f {}; exec 2>>'{}'", FULL / 512, log.display());
    let options = Options { cache_dir: cache_dir.clone(), shell, ..Options::standard(world.plane) };
    let host = Host::start(world.plane, &options)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    until_child_has(world, "w1", "one").await?;
    assert_eq!(fs::metadata(&log)?.len(), FULL);
    assert_eq!(codes(&cache_dir)?, 0, "half a file is kept");

    let pid = Pid::from_raw(host.pid().cast_signed());
    prlimit(pid, Resource::Fsize, getrlimit(Resource::Fsize))?;
    world.plugin("widget", "widget-v2").await?;
    assert_eq!(codes(&cache_dir)?, 1);
    world.merge("Widget", "w1", json!({"spec": {"text": "two"}})).await?;
    until_child_has(world, "w1", "two").await?;
    host.stop().await?;
    assert!(fs::metadata(&log)?.len() > FULL, "the log has ended");
    Ok(())
}

/// F16: as many changes of one kind as the API server takes.
#[tokio::test]
async fn flood_of_one_kind_costs_the_others_little_and_no_memory() -> Result<()> {
    const OBJECTS: usize = 16;
    const EDITS: usize = 100;
    let lab = Lab::enter("machine-flood").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.plugin("website", "website").await?;
    world.set_all("Widget", (0..OBJECTS).map(|n| (format!("w{n}"), json!({"text": "one"})))).await?;
    world.set("Website", "blog", json!({"image": "nginx:0"})).await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    let before = figure(&host, "VmRSS")?;

    let done = AtomicUsize::new(0);
    let flood = (0..OBJECTS).map(async |object| {
        for edit in 0..EDITS {
            let text = format!("{edit} {}", "x".repeat(10_000));
            world.merge("Widget", &format!("w{object}"), json!({"spec": {"text": text}})).await?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        anyhow::Ok(())
    });
    let others = async {
        for edit in 1..=3 {
            let image = format!("nginx:{edit}");
            world.merge("Website", "blog", json!({"spec": {"image": image}})).await?;
            let has_it = world.until("Deployment", "blog", &image, |deployment| {
                ensure!(
                    deployment["spec"]["template"]["spec"]["containers"][0]["image"] == *image,
                    "not yet"
                );
                Ok(())
            });
            has_it.await?;
        }
        anyhow::Ok(done.load(Ordering::Relaxed))
    };
    let (flooded, served_at) = tokio::join!(try_join_all(flood), others);
    flooded?;
    let served_at = served_at?;
    assert!(served_at < OBJECTS * EDITS / 2, "served after {served_at} of {} edits", OBJECTS * EDITS);
    world
        .eventually("every child has the last text", async || {
            for n in 0..OBJECTS {
                let child = world.get("ConfigMap", &format!("w{n}-cm")).await?;
                let text = child["data"]["text"].as_str().context("a text")?;
                ensure!(text.starts_with(&format!("{} ", EDITS - 1)), "w{n} is behind");
            }
            world
                .list("Widget", None)
                .await?
                .iter()
                .try_for_each(|widget| says(widget, "Ready", "True", "ChildrenReady"))
        })
        .await?;
    let peak = figure(&host, "VmHWM")?;
    // All versions together are 16 MB, several times over on their way.
    assert!(peak < before + (64 << 10), "from {before} KiB to {peak} KiB");
    host.stop().await
}
