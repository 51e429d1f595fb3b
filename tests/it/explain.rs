//! `oarlock explain`: what the host says of one object, and the ways to ask it.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Output;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use oarlock_tests::host::Host;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::world::{Lab, World, digest, oarlock, shared_host, string, text};

/// The command, about an object in the test's namespace, asking the host at its address.
fn ask(world: &World, host: &Host, args: &[&str]) -> Result<Output> {
    let url = format!("http://{}", host.admin());
    let fixed = ["explain", "--admin", &url, "-n", &world.namespace];
    oarlock(world.plane, fixed.into_iter().chain(args.iter().copied()))
}

/// What the command says to programs.
pub(crate) fn explained(world: &World, host: &Host, name: &str) -> Result<Value> {
    let output = ask(world, host, &["widget", name, "-o", "json"])?;
    ensure!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).with_context(|| text(&output))
}

/// Waits for a reconcile among those of the only plugin, newest first.
async fn until_done(world: &World, host: &Host, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
    world
        .eventually(what, async || {
            let told = explained(world, host, "w1")?;
            let found =
                told["plugins"][0]["reconciles"].as_array().into_iter().flatten().find(|one| is_it(one));
            found.cloned().with_context(|| format!("{told:#}"))
        })
        .await
}

/// The command said no, with these words.
fn refused(output: &Output, words: &[&str]) {
    let printed = text(output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    for word in words.iter().chain(&["help: "]) {
        assert!(printed.contains(word), "no {word:?} in {printed}");
    }
}

/// Lines for people, without what differs from run to run: times and durations.
fn lines(printed: &str) -> Vec<String> {
    let line = |line: &str| match line.split_once(", by ") {
        Some((when, rest)) if when.contains(" ago, took ") => format!("  by {rest}"),
        _ if line.starts_with("Last ") => line.split(':').next().unwrap_or_default().to_owned(),
        _ => line.to_owned(),
    };
    printed.lines().map(line).collect()
}

/// S9.
#[tokio::test]
async fn explain_tells_what_each_reconcile_did_and_why() -> Result<()> {
    let world = World::new("explain").await?;
    let host = shared_host().await?;
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}});
    world.apply(&settings, "tests").await?;
    world.set("Widget", "w1", json!({"mode": "reads", "read": "settings", "selector": "app=web"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;

    let is_created = |one: &Value| one["created"]["names"] == json!(["ConfigMap explain/w1-cm"]);
    let created = until_done(&world, host, "it was created", is_created).await?;
    assert_eq!((&created["triggers"][0], &created["calls"]), (&json!("parent"), &json!(1)), "{created:#}");
    assert_eq!((&created["statusWritten"], &created["generation"]), (&json!(true), &json!(1)), "{created:#}");
    let told = explained(&world, host, "w1")?;
    let plugin = &told["plugins"][0];
    assert_eq!((&told["kind"], &told["object"]["name"]), (&json!("Explanation"), &json!("w1")));
    assert_eq!((&plugin["name"], &plugin["standing"]["status"]), (&json!("widget"), &json!("True")));
    assert_eq!(plugin["reads"], json!(["get ConfigMap explain/settings", "list ConfigMap explain app=web"]));

    // Somebody labels the child: the memo answers, and nothing is written.
    world.merge("ConfigMap", "w1-cm", json!({"metadata": {"labels": {"team": "blue"}}})).await?;
    let is_memo = |one: &Value| one["triggers"].as_array().is_some_and(|all| all.contains(&json!("child")));
    let memo = until_done(&world, host, "the child's change was looked at", is_memo).await?;
    let is_nothing = ["created", "updated", "pruned"].iter().all(|done| memo[done]["total"] == 0);
    assert!(is_nothing && memo["statusWritten"] == false && memo["failure"].is_null(), "{memo:#}");

    // What it reads changes.
    world.merge("ConfigMap", "settings", json!({"data": {"a": "2"}})).await?;
    let is_updated = |one: &Value| one["updated"]["names"] == json!(["ConfigMap explain/w1-cm"]);
    let updated = until_done(&world, host, "the child was updated", is_updated).await?;
    assert_eq!((&updated["triggers"], &updated["calls"]), (&json!(["read"]), &json!(1)), "{updated:#}");
    assert!(updated["why"].is_string(), "{updated:#}");

    // Somebody edits it: what it reads is another question now, and what it is told of is the new generation.
    world.merge("Widget", "w1", json!({"spec": {"selector": "app=db"}})).await?;
    let is_edited = |one: &Value| one["generation"] == 2 && one["calls"] == 1;
    let edited = until_done(&world, host, "the edit was looked at", is_edited).await?;
    assert_eq!(edited["statusWritten"], true, "{edited:#}");
    let (told, version) =
        (explained(&world, host, "w1")?, digest(&oarlock_tests::host::component("widget")?));
    let (checked, changed) = (string(&told, "/plugins/0/checked"), string(&told, "/plugins/0/changed"));
    assert!(
        string(&created, "/last") < changed && changed <= checked && checked <= string(&told, "/now"),
        "{told:#}"
    );

    let args = ["Widgets.cases.example.com", "w1", "--plugin", "widget"];
    let printed = world
        .eventually("it is at rest", async || {
            let output = ask(&world, host, &args)?;
            let printed = lines(&String::from_utf8_lossy(&output.stdout));
            ensure!(printed.iter().any(|line| line.starts_with("Next:          when ")), "{}", text(&output));
            Ok(printed)
        })
        .await?;
    let expected = [
        "Widget explain/w1 (cases.example.com/v1), generation 2",
        &format!("Plugin:        widget, version 0.1.0 ({})", &version[..12]),
        "Last checked",
        "Last changed",
        "Next:          when the object, a child, or something it reads changes",
        "Reads:         get ConfigMap explain/settings",
        "               list ConfigMap explain app=db",
        "Reconciles:    newest first",
    ];
    assert_eq!(printed[..expected.len()], expected, "{printed:#?}");
    let last = [
        "  by parent, generation 1: guest called, the first call",
        "    created ConfigMap explain/w1-cm",
        "    wrote its status",
    ];
    assert!(printed.ends_with(&last.map(str::to_owned)), "{printed:#?}");

    let metrics = host.metrics().await?;
    let success = metrics.sum("oarlock_last_success_timestamp_seconds", &["plugin=\"widget\""]);
    let changed = seconds(changed)?;
    assert!(success >= changed.floor(), "{success} is before {changed}");
    Ok(())
}

/// Seconds since 1970 of an RFC 3339 time.
fn seconds(time: &str) -> Result<f64> {
    let time: k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime =
        serde_json::from_value(json!(time))?;
    Ok(time.0.as_millisecond() as f64 / 1_000.0)
}

#[tokio::test]
async fn explain_tells_failures_and_what_is_next() -> Result<()> {
    let world = World::new("explain-fails").await?;
    let host = shared_host().await?;
    world.set("Widget", "w1", json!({"mode": "transient"})).await?;
    let is_failed =
        |one: &Value| one["failure"]["reason"] == "GuestFailed" && one["passes"].as_u64() > Some(2);
    let failed = until_done(&world, host, "it failed again and again", is_failed).await?;
    assert!(string(&failed, "/failure/message").contains("told to fail for now"), "{failed:#}");
    assert_eq!(failed["statusWritten"], false, "retries write nothing: {failed:#}");
    world
        .eventually("the end of its back-off is told", async || {
            let next = explained(&world, host, "w1")?["plugins"][0]["next"].clone();
            ensure!(next["when"] == "BackOff" && next["failures"].as_u64() > Some(2), "{next}");
            ensure!(next["at"].is_string(), "{next}");
            Ok(())
        })
        .await?;
    let output = ask(&world, host, &["widget", "w1"])?;
    let printed = text(&output);
    for words in [
        "failures in a row, or on a change",
        "failed: GuestFailed: ",
        "told to fail for now",
        " times since ",
    ] {
        assert!(printed.contains(words), "no {words:?} in {printed}");
    }

    world.set("Widget", "w1", json!({"mode": "requeue"})).await?;
    world
        .eventually("the time that the plugin asked for is told", async || {
            let next = explained(&world, host, "w1")?["plugins"][0]["next"].clone();
            ensure!(next["when"] == "Requeue" && next["at"].is_string(), "{next}");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn explain_says_what_stands_against_it_and_what_to_do() -> Result<()> {
    let world = World::new("explain-errors").await?;
    let host = shared_host().await?;
    world.set("Widget", "w1", json!({})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    for (args, words) in [
        (
            &["widget", "nobody"][..],
            &[
                "the host sees no nobody among widgets.cases.example.com in namespace explain-errors",
                "kubectl get widgets.cases.example.com nobody -n explain-errors",
            ][..],
        ),
        (&["gadget", "w1"], &["no plugin in force reconciles gadget", "widgets.cases.example.com"]),
        (
            &["widget", "w1", "--plugin", "website"],
            &["plugin website does not reconcile widget", "websites.demo"],
        ),
        (&["widget", "w1", "--plugin", "nobody"], &["there is no plugin nobody", "oarlock get plugins"]),
    ] {
        refused(&ask(&world, host, args)?, words);
    }
    let admin = ["explain", "widget", "w1", "--admin", "127.0.0.1:1"];
    refused(&oarlock(world.plane, admin)?, &["no host answers at 127.0.0.1:1", "--admin"]);
    let pods = ["explain", "widget", "w1", "--host-namespace", &world.namespace];
    refused(
        &oarlock(world.plane, pods)?,
        &["no host runs in namespace explain-errors", "--host-namespace", "--admin"],
    );
    Ok(())
}

#[tokio::test]
async fn explain_says_that_a_plugin_is_paused_or_waits_for_a_kind() -> Result<()> {
    let lab = Lab::enter("explain-paused").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.set("Widget", "w1", json!({})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.merge("Plugin", "widget", json!({"spec": {"paused": true}})).await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "Paused"]).await?;
    world
        .eventually("the pause is told", async || {
            let printed = text(&ask(world, &host, &["widget", "w1"])?);
            ensure!(printed.contains("Not serving:   Paused: switched off by spec.paused"), "{printed}");
            ensure!(printed.contains("created ConfigMap explain-paused/w1-cm"), "{printed}");
            Ok(())
        })
        .await?;

    // Its kind is not served in this cluster.
    world.source("rival", &[("plugin.wasm", &oarlock_tests::host::component("configmap-set")?)]).await?;
    world.until_says("Plugin", "rival", ["Ready", "False", "KindMissing"]).await?;
    world
        .eventually("what it waits for is told", async || {
            let printed = text(&ask(world, &host, &["configmapset", "s1"])?);
            ensure!(printed.contains("no plugin in force reconciles configmapset"), "{printed}");
            ensure!(
                printed.contains("rival (KindMissing: ") && printed.contains("apply its CRD"),
                "{printed}"
            );
            Ok(())
        })
        .await?;
    world.merge("Plugin", "widget", json!({"spec": {"paused": false}})).await?;
    host.stop().await
}

/// A pod of this address, as far as the API server knows; nothing runs there but what the test puts there.
async fn pod(world: &World, address: IpAddr, port: u16) -> Result<()> {
    let body = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "oarlock", "labels": {"app.kubernetes.io/name": "oarlock"}},
        "spec": {
            // No node takes it, so that its status is the test's own.
            "schedulingGates": [{"name": "tests.oarlock.dev/none"}],
            "containers": [
                {"name": "oarlock", "image": "oarlock", "ports": [{"name": "metrics", "containerPort": port}]},
            ],
        },
    });
    world.apply(&body, "tests").await?;
    let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
    world.api("Pod").patch_status("oarlock", &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// An address of this machine beside loopback, if it has one. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// The API server passes on to addresses beside loopback only; a machine without one shows the refusal alone.
#[tokio::test]
async fn explain_reaches_the_host_through_the_api_server() -> Result<()> {
    let world = World::new("explain-pod").await?;
    let host = shared_host().await?;
    world.set("Widget", "w1", json!({})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let args = ["explain", "widget", "w1", "-n", "explain-pod", "--host-namespace", "explain-pod"];

    let port = host.admin().rsplit(':').next().context("an address has a port")?.parse()?;
    pod(&world, Ipv4Addr::LOCALHOST.into(), port).await?;
    let refusal = ["pod explain-pod/oarlock", "kubectl -n explain-pod port-forward oarlock 8080"];
    refused(&oarlock(world.plane, args)?, &refusal);

    let Some(address) = own_address() else { return Ok(()) };
    let listener = TcpListener::bind((address, 0)).await?;
    let port = listener.local_addr()?.port();
    let admin = host.admin().to_owned();
    let forward = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(mut server) = TcpStream::connect(&admin).await else { return };
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    world.delete("Pod", "oarlock").await?;
    world.until_gone("Pod", "oarlock").await?;
    pod(&world, address, port).await?;
    let plane = world.plane;
    let output = tokio::task::spawn_blocking(move || oarlock(plane, args)).await??;
    let printed = text(&output);
    assert!(output.status.success() && printed.contains("created ConfigMap explain-pod/w1-cm"), "{printed}");
    // What the host says of an object it does not know comes through as well.
    let args = args.map(|arg| if arg == "w1" { "nobody" } else { arg });
    let output = tokio::task::spawn_blocking(move || oarlock(plane, args)).await??;
    refused(&output, &["the host sees no nobody among widgets.cases.example.com"]);
    forward.abort();
    Ok(())
}
