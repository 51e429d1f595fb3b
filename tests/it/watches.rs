//! What a watch can suffer, and what the host makes of it: it loses nothing, and deletes nothing that should stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oarlock_tests::cluster::Component;
use oarlock_tests::eventually;
use oarlock_tests::host::{Host, Options};
use oarlock_tests::proxy::{Fault, Proxy, Rule};
use serde_json::{Value, json};

use crate::world::{DEADLINE, Lab, REPOSITORY, World, condition, grant, kubectl, says, string};

/// A host behind the proxy that audits its watches all the time, with the plugin `widget`.
async fn start(world: &World, proxy: &Proxy, audit_interval: &str) -> Result<Host> {
    let flags = vec!["--audit-interval".to_owned(), audit_interval.to_owned()];
    let options = Options { kubeconfig: proxy.kubeconfig(), flags, ..Options::standard(world.plane) };
    let host = Host::start(world.plane, &options)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    Ok(host)
}

fn child_name(child: &Value) -> String {
    string(child, "/metadata/name").to_owned()
}

/// Names and uids of the children.
async fn children(world: &World) -> Result<Vec<(String, String)>> {
    let children = world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await?;
    let uid = |child: &Value| string(child, "/metadata/uid").to_owned();
    Ok(children.iter().map(|child| (child_name(child), uid(child))).collect())
}

/// A Widget with one `ConfigMap` of this name and text.
async fn with_child(world: &World, name: &str, child: &str, text: &str) -> Result<()> {
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": child}, "data": {"text": text},
    });
    world.set_plan(name, json!({"children": [child]})).await.map(drop)
}

/// F18: an API server that loses events.
#[tokio::test]
async fn lost_events_are_found_by_the_audit_and_made_good() -> Result<()> {
    let lab = Lab::enter("watch-lost").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 5).await?;
    let host = start(world, &proxy, "1").await?;
    for number in 0..20 {
        with_child(world, &format!("w{number}"), &format!("c{number}"), "one").await?;
    }
    for number in 0..20 {
        world.until_says("Widget", &format!("w{number}"), ["Ready", "True", "ChildrenReady"]).await?;
    }
    world.until_at_rest().await?;
    // Without a fault it finds nothing.
    let audits = async || host.metrics().await.map(|metrics| metrics.sum("oarlock_watch_audits_total", &[]));
    let before = audits().await?;
    world
        .eventually("some audits", async || {
            ensure!(audits().await? > before + 8.0, "too few");
            Ok(())
        })
        .await?;
    assert!(host.metrics().await?.sum("oarlock_watch_lost_changes_total", &[]) < 0.5);

    let losing = proxy.rule(Rule { resource: "widgets", ..Rule::every(Fault::Lose(30)) });
    for number in 0..20 {
        with_child(world, &format!("w{number}"), &format!("c{number}"), "two").await?;
    }
    // What is lost last is known to be lost at the next bookmark, which comes about once a minute.
    eventually(DEADLINE * 3, "every child is as its parent says", async || {
        for child in world.list("ConfigMap", Some("oarlock.dev/owned-by=widget")).await? {
            ensure!(child["data"]["text"] == "two", "{} is not", child_name(&child));
        }
        Ok::<_, anyhow::Error>(())
    })
    .await
    .map_err(|error| error.context(world.host_log()))?;
    let lost = host
        .metrics()
        .await?
        .sum("oarlock_watch_lost_changes_total", &[r#"kind="Widget (cases.example.com/v1)""#]);
    assert!(lost > 0.5 && losing.hits() > 0, "{lost} lost");
    host.stop().await
}

/// What is written to a file from now on.
struct Tail {
    path: PathBuf,
    from: usize,
}

impl Tail {
    fn of(path: PathBuf) -> Result<Self> {
        let from = fs::read(&path)?.len();
        Ok(Self { path, from })
    }

    fn read(&self) -> Result<String> {
        let all = fs::read(&self.path)?;
        Ok(String::from_utf8_lossy(&all[self.from..]).into_owned())
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to).with_context(|| format!("cannot copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

async fn stop_store(world: &World) -> Result<()> {
    world.plane.stop(Component::ApiServer).await?;
    world.plane.stop(Component::Etcd).await
}

async fn start_store(world: &World) -> Result<()> {
    world.plane.launch(Component::Etcd)?;
    world.plane.launch(Component::ApiServer)?;
    world.plane.wait_until_ready().await
}

/// F14: etcd is restored from a backup while the host runs.
#[tokio::test]
async fn restored_backup_is_planned_anew_and_nothing_that_should_stay_is_deleted() -> Result<()> {
    let lab = Lab::enter("watch-restored").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    for (name, child) in [("same", "same"), ("edited", "before"), ("deleted", "deleted")] {
        with_child(world, name, child, "one").await?;
    }
    for name in ["same", "edited", "deleted"] {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    let mut expected = children(world).await?;
    expected.sort();

    stop_store(world).await?;
    let (data, backup) = (world.plane.dir().join("etcd"), world.plane.dir().join("etcd-backup"));
    // What another run of this test has left.
    drop(fs::remove_dir_all(&backup));
    copy(&data, &backup)?;
    start_store(world).await?;
    // What the backup does not know: a child that moved, an object that went, one that came, and a lot of history.
    with_child(world, "edited", "after", "two").await?;
    world.delete("Widget", "deleted").await?;
    with_child(world, "new", "new", "one").await?;
    for name in ["edited", "new"] {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    world.until_gone("Widget", "deleted").await?;
    for touch in 0..300 {
        world
            .merge("Widget", "same", json!({"metadata": {"annotations": {"touch": touch.to_string()}}}))
            .await?;
    }
    world.until_at_rest().await?;

    stop_store(world).await?;
    fs::remove_dir_all(&data)?;
    copy(&backup, &data)?;
    let said = Tail::of(world.plane.dir().join("oarlock.log"))?;
    let asked = Tail::of(world.plane.dir().join("audit.log"))?;
    start_store(world).await?;
    world
        .eventually("the host has noticed", async || {
            ensure!(said.read()?.contains("history went backwards"), "it has not");
            Ok(())
        })
        .await?;
    world.until_at_rest().await?;
    let mut found = children(world).await?;
    found.sort();
    assert_eq!(found, expected, "children of the backup, with their uids");
    for name in ["same", "edited", "deleted"] {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    let asked = asked.read()?;
    let deletes: Vec<_> = asked
        .lines()
        .filter(|line| line.contains(r#""verb":"delete""#) && line.contains(world.plane.user_host()))
        .collect();
    assert!(deletes.is_empty(), "{deletes:?}");

    // It goes on from there.
    with_child(world, "edited", "later", "three").await?;
    world
        .eventually("the child has moved", async || {
            let names: Vec<_> = children(world).await?.into_iter().map(|(name, _)| name).collect();
            ensure!(
                names.contains(&"later".to_owned()) && !names.contains(&"before".to_owned()),
                "{names:?}"
            );
            Ok(())
        })
        .await?;
    host.stop().await
}

/// F42: the API server refuses for a moment after its start, as it has not read its roles.
#[tokio::test]
async fn restarts_of_the_api_server_are_no_news() -> Result<()> {
    let lab = Lab::enter("watch-restarts").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    for name in ["w1", "w2"] {
        with_child(world, name, name, "one").await?;
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    world.until_at_rest().await?;
    let lists = async || host.metrics().await.map(|metrics| metrics.sum("oarlock_watch_lists_total", &[]));
    let before = lists().await?;
    let statuses = async || -> Result<Vec<Value>> {
        Ok(world.list("Widget", None).await?.into_iter().map(|mut widget| widget["status"].take()).collect())
    };
    let said = statuses().await?;
    for restart in 1..=3 {
        world.plane.restart_api_server().await?;
        let text = format!("restart {restart}");
        with_child(world, "w1", "w1", &text).await?;
        world
            .eventually("the host goes on", async || {
                let child = world.get("ConfigMap", "w1").await?;
                ensure!(child["data"]["text"] == text, "{}", child["data"]);
                Ok(())
            })
            .await?;
        ensure!(statuses().await?[1] == said[1], "w2 was told something: {:?}", statuses().await?[1]);
    }
    let w1 = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let (now, then) = (condition(&w1, "Ready"), said[0]["conditions"].as_array().context("conditions")?);
    let ready = then.iter().find(|condition| condition["type"] == "Ready");
    assert_eq!(
        now.map(|ready| &ready["lastTransitionTime"]),
        ready.map(|ready| &ready["lastTransitionTime"]),
        "it was never unready"
    );
    let kinds = 10.0;
    let relists = lists().await? - before;
    assert!(relists <= 3.0 * kinds, "{relists} lists");
    host.stop().await
}

/// F04 to F07, B025: deletes are missed while the watch is away, and its version is too old when it is back.
#[tokio::test]
async fn deletes_that_were_missed_are_noticed_by_the_list_after_an_expired_version() -> Result<()> {
    let lab = Lab::enter("watch-expired").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 7).await?;
    let host = start(world, &proxy, "3600").await?;
    for name in ["w1", "w2", "w3"] {
        with_child(world, name, name, "one").await?;
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    world.until_at_rest().await?;
    let metric = async |name: &str| host.metrics().await.map(|metrics| metrics.sum(name, &[]));
    let lists = metric("oarlock_watch_lists_total").await?;
    let before = children(world).await?;

    let away = proxy.rule(Rule { verbs: &["watch", "list"], ..Rule::every(Fault::DropBefore) });
    let cut = proxy.rule(Rule::every(Fault::Cut(Duration::ZERO)));
    world
        .eventually("its watches are gone", async || {
            ensure!(cut.hits() >= 4 && away.hits() >= 4, "{} cut, {} refused", cut.hits(), away.hits());
            Ok(())
        })
        .await?;
    world.delete("ConfigMap", "w1").await?;
    world.delete("Widget", "w2").await?;
    world.delete("Widget", "w3").await?;
    with_child(world, "w3", "w3", "of another").await?;
    drop((away, cut));
    let expired = Fault::Answer { code: 410, retry_after: None };
    let expired = ["widgets", "configmaps"].map(|resource| {
        proxy.rule(Rule { verbs: &["watch"], resource, times: Some(1), ..Rule::every(expired) })
    });
    world
        .eventually("the child is back", async || {
            let now = children(world).await?;
            let uid =
                |all: &[(String, String)]| all.iter().find(|(name, _)| name == "w1").map(|one| one.1.clone());
            ensure!(uid(&now).is_some() && uid(&now) != uid(&before), "{now:?}");
            Ok(())
        })
        .await?;
    let another = world.until_says("Widget", "w3", ["Ready", "True", "ChildrenReady"]).await?;
    let child = world.get("ConfigMap", "w3").await?;
    assert_eq!(child["metadata"]["ownerReferences"][0]["uid"], another["metadata"]["uid"]);
    world.until_at_rest().await?;
    assert!(expired.iter().all(|rule| rule.hits() == 1));
    let relists = metric("oarlock_watch_lists_total").await? - lists;
    assert!((1.0..=4.0).contains(&relists), "{relists} lists");
    assert!(metric("oarlock_watch_lost_changes_total").await? < 0.5);
    says(&world.get("Widget", "w1").await?, "Ready", "True", "ChildrenReady")?;
    host.stop().await
}

/// F03: a watch that is cut all the time goes on where it was, without another list.
#[tokio::test]
async fn watch_that_is_cut_all_the_time_misses_nothing_and_lists_nothing() -> Result<()> {
    let lab = Lab::enter("watch-cut").await?;
    let world = &lab.world;
    let proxy = Proxy::start(world.plane, 9).await?;
    let host = start(world, &proxy, "3600").await?;
    with_child(world, "w1", "w1", "0").await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let lists = async || host.metrics().await.map(|metrics| metrics.sum("oarlock_watch_lists_total", &[]));
    let before = lists().await?;
    let cut = proxy.rule(Rule::every(Fault::Cut(Duration::from_millis(300))));
    for round in 1..=5 {
        let text = round.to_string();
        with_child(world, "w1", "w1", &text).await?;
        world
            .eventually("the child follows", async || {
                let child = world.get("ConfigMap", "w1").await?;
                ensure!(child["data"]["text"] == text, "{}", child["data"]);
                Ok(())
            })
            .await?;
    }
    assert!(cut.hits() > 8, "{} cuts", cut.hits());
    let lists = lists().await? - before;
    assert!(lists < 0.5, "{lists} lists");
    drop(cut);
    world.until_at_rest().await?;
    host.stop().await
}

/// B029: what is in the cluster and is not ours costs no memory, though its kind is one of our children's.
#[tokio::test]
async fn objects_of_a_child_kind_that_are_not_ours_cost_no_memory() -> Result<()> {
    let lab = Lab::enter("watch-memory").await?;
    let world = &lab.world;
    let peak = |host: &Host| -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", host.pid()))?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no peak")?;
        Ok(line.split_whitespace().nth(1).context("no number")?.parse::<u64>()? >> 10)
    };
    let crd = fs::read_to_string(format!("{REPOSITORY}/tests/guests/widget/gadget.yaml"))?;
    kubectl(world.plane, ["apply", "--server-side", "-f", "-"], Some(&crd))?;
    grant(world.plane, "widget-gadgets")?;
    let run = async || -> Result<u64> {
        let host = lab.host().await?;
        world.plugin("widget", "widget-gadgets").await?;
        with_child(world, "w1", "w1", "one").await?;
        world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
        let peak = peak(&host)?;
        host.stop().await?;
        Ok(peak)
    };
    // The first start compiles.
    run().await?;
    let without = run().await?;
    let text = "x".repeat(600 << 10);
    for number in 0..300 {
        let name = format!("foreign-{number}");
        let gadget = json!({
            "apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": {"text": text},
        });
        world.apply(&gadget, "tests").await?;
    }
    let with = run().await?;
    // All of it would be 180 MiB.
    assert!(with <= without + 64, "{with} MiB with them, {without} MiB without");
    kubectl(world.plane, ["delete", "crd", "gadgets.cases.example.com", "--wait=false"], None)?;
    world.until_gone("CustomResourceDefinition", "gadgets.cases.example.com").await
}

/// B026, F36: a child's kind that is deleted and comes back, again and again, and once with another scope.
#[tokio::test]
async fn child_kind_that_is_deleted_and_comes_back_is_watched_once_as_what_it_is() -> Result<()> {
    let lab = Lab::enter("watch-kind").await?;
    let world = &lab.world;
    let crd = fs::read_to_string(format!("{REPOSITORY}/tests/guests/widget/gadget.yaml"))?;
    let apply = |crd: &str| kubectl(world.plane, ["apply", "--server-side", "-f", "-"], Some(crd)).map(drop);
    let remove = async || -> Result<()> {
        kubectl(world.plane, ["delete", "crd", "gadgets.cases.example.com"], None)?;
        world.until_says("Plugin", "widget", ["Ready", "False", "KindMissing"]).await.map(drop)
    };
    apply(&crd)?;
    grant(world.plane, "widget-gadgets")?;
    let host = lab.host().await?;
    world.plugin("widget", "widget-gadgets").await?;
    let gadget = json!({"apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": {"name": "g1"}, "spec": {"n": 1}});
    world.set_plan("w1", json!({"children": [gadget]})).await?;
    let watches = async |state: &str| -> Result<f64> {
        let labels = [r#"kind="Gadget (cases.example.com/v1)""#, &format!("state=\"{state}\"")];
        Ok(host.metrics().await?.sum("oarlock_watch_state", &labels))
    };
    // Its state may be told a moment after what it is for.
    let open = async |count: f64| {
        let is_so = async || {
            let live = watches("live").await?;
            ensure!((live - count).abs() < 0.5, "{live} are open");
            Ok(())
        };
        world.eventually("so many watches are open", is_so).await
    };
    for _ in 0..4 {
        world.until("Gadget", "g1", "is there", |_| Ok(())).await?;
        world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
        open(1.0).await?;
        remove().await?;
        open(0.0).await?;
        apply(&crd)?;
    }
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    remove().await?;
    apply(&crd.replace("scope: Namespaced", "scope: Cluster"))?;
    world
        .until("Widget", "w1", "its child is of another scope", |widget| {
            let ready = condition(widget, "Ready").context("Ready")?;
            ensure!(
                ready["status"] == "False" && string(ready, "/message").contains("cluster-scoped"),
                "{ready}"
            );
            Ok(())
        })
        .await?;
    remove().await?;
    apply(&crd)?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until("Gadget", "g1", "is there", |_| Ok(())).await?;

    // A kind that nobody wants any more is watched no more.
    world.plugin("widget", "widget").await?;
    world.set_plan("w1", json!({"children": []})).await?;
    world.delete_plugin("widget").await?;
    world
        .eventually("nobody watches Gadgets", async || {
            let all = watches("live").await? + watches("missing").await?;
            ensure!(all < 0.5, "{all} watches");
            Ok(())
        })
        .await?;
    host.stop().await
}
