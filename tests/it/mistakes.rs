//! What people get wrong, and what they are told: each mistake has its reason and its remedy, and stops nobody
//! else.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_tests::eventually;
use oarlock_tests::host::{self, Host, Options};
use serde_json::{Value, json};

use crate::world::{
    DEADLINE, Lab, REPOSITORY, World, condition, grant, kubectl, run, says, shared_host, string, text,
    website,
};

#[tokio::test]
async fn host_without_a_cluster_says_what_to_do() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let nobody = dir.path().join("nobody.kubeconfig");
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n\
        users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n";
    fs::write(&nobody, kubeconfig)?;
    let missing = dir.path().join("missing.kubeconfig");
    for (kubeconfig, named) in [(nobody, "127.0.0.1:9"), (missing, "missing.kubeconfig")] {
        let mut command = Command::new("timeout");
        command.arg("30").arg(host::program()?).arg("--kubeconfig").arg(kubeconfig);
        command.args(["run", "--admin", "127.0.0.1:0", "--cache-dir"]).arg(dir.path().join("cache"));
        let output = run(command, None)?;
        let said = text(&output);
        assert!(matches!(output.status.code(), Some(1..124)), "{said}");
        assert!(said.contains(named) && said.contains("kubeconfig"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn host_waits_for_the_crd_of_plugins_and_says_so() -> Result<()> {
    let lab = Lab::enter("mistake-crd").await?;
    let world = &lab.world;
    world.delete("CustomResourceDefinition", "plugins.oarlock.dev").await?;
    world.until_gone("CustomResourceDefinition", "plugins.oarlock.dev").await?;
    let host = Host::start(world.plane, &Options::standard(world.plane))?;
    eventually(DEADLINE, "it says why it is not ready", async || {
        host.check_running()?;
        let unready = host.get("/readyz").await.err().map(|error| format!("{error:#}")).unwrap_or_default();
        let log = fs::read_to_string(world.plane.dir().join("oarlock.log"))?;
        ensure!(unready.contains("503") && unready.contains("Plugin"), "/readyz: {unready}");
        ensure!(unready.contains("apply its CRD"), "/readyz: {unready}");
        ensure!(log.contains("the CRD plugins.oarlock.dev is missing"), "the log: {log}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    kubectl(world.plane, ["apply", "--server-side", "-f", &format!("{REPOSITORY}/deploy/crd.yaml")], None)?;
    host.ready().await?;
    world.plugin("widget", "widget").await?;
    host.stop().await
}

/// Name, entries, reason, and a piece of the message.
type Source = (&'static str, Vec<(&'static str, Vec<u8>)>, &'static str, &'static str);

#[tokio::test]
async fn each_broken_source_has_its_reason_and_stops_nobody() -> Result<()> {
    let world = World::new("mistake-sources").await?;
    let pid = shared_host().await?.pid();
    let website = host::component("website")?;
    let good = host::component("widget")?;
    let guest = |name| host::component(name);
    let (truncated, core_module) = (&website[..website.len() / 2], b"\0asm\x01\0\0\0");
    let one = |bytes: &[u8]| vec![("plugin.wasm", bytes.to_vec())];
    let cases: Vec<Source> = vec![
        ("no-entry", vec![], "NoComponent", "oarlock push"),
        ("other-entry", vec![("readme.md", b"hello".to_vec())], "NoComponent", "readme.md"),
        ("two-entries", vec![("a.wasm", good.clone()), ("b.wasm", good)], "NoComponent", "a.wasm, b.wasm"),
        ("broken-gzip", vec![("plugin.wasm.gz", b"hello".to_vec())], "SourceInvalid", "plugin.wasm.gz"),
        ("text", one(b"hello"), "NotWasm", ""),
        ("empty", one(b""), "NotWasm", ""),
        ("truncated", one(truncated), "NotWasm", ""),
        ("core-module", one(core_module), "NotComponent", "component"),
        ("no-exports", one(&guest("no-exports")?), "ContractMismatch", "reconcile"),
        ("old-contract", one(&guest("old-contract")?), "ContractMismatch", "0.1.0"),
        ("bad-manifest", one(&guest("bad-manifest")?), "ManifestInvalid", "owns"),
        ("describe-panics", one(&guest("describe-panics")?), "SmokeTestFailed", "no manifest today"),
        ("describe-loops", one(&guest("describe-loops")?), "SmokeTestFailed", ""),
    ];
    for (name, entries, ..) in &cases {
        let entries: Vec<_> = entries.iter().map(|(entry, bytes)| (*entry, bytes.as_slice())).collect();
        world.source(&format!("bad-{name}"), &entries).await?;
    }
    for (name, _, reason, hint) in &cases {
        let name = format!("bad-{name}");
        let plugin = world.until_says("Plugin", &name, ["Ready", "False", reason]).await?;
        says(&plugin, "Loaded", "False", reason)?;
        let message = string(condition(&plugin, "Ready").unwrap(), "/message");
        assert!(message.contains(hint) && message.len() > 20, "{name}: {message}");
        assert!(plugin["status"]["active"].is_null(), "{name}: {}", plugin["status"]);
        assert_eq!(plugin["status"]["refused"]["reason"], **reason, "{name}");
    }
    // The contract's message names both versions.
    let old = world.get("Plugin", "bad-old-contract").await?;
    let message = string(condition(&old, "Ready").unwrap(), "/message");
    assert!(message.contains("0.0.9"), "{message}");

    world.set("Widget", "good", json!({"text": "served"})).await?;
    world.until_says("Widget", "good", ["Ready", "True", "ChildrenReady"]).await?;
    let host = shared_host().await?;
    host.check_running()?;
    assert_eq!(host.pid(), pid);

    // A mended source is taken up, and one that goes leaves a word.
    world.source("bad-text", &[]).await?;
    world.until_says("Plugin", "bad-text", ["Ready", "False", "NoComponent"]).await?;
    for (name, ..) in &cases {
        world.delete_plugin(&format!("bad-{name}")).await?;
    }
    Ok(())
}

/// The reasons that a mode of the guest may lead to, and a piece of the message.
const MODES: [(&str, &[&str], &str); 20] = [
    ("panic", &["GuestTrapped"], "size must be >= 1, got 0"),
    ("loop", &["FuelExhausted", "DeadlineExceeded"], ""),
    ("grow", &["MemoryExceeded"], "memory"),
    ("grow-spin", &["FuelExhausted", "DeadlineExceeded", "MemoryExceeded"], ""),
    ("recurse", &["GuestTrapped"], ""),
    ("recurse-data", &["GuestTrapped"], ""),
    ("big-output", &["OutputTooLarge", "MemoryExceeded"], ""),
    ("many-children", &["OutputTooLarge", "InvalidPlan"], ""),
    ("deep", &["InvalidPlan"], ""),
    ("bad-json", &["InvalidPlan"], "child"),
    ("no-name", &["InvalidPlan"], "name"),
    ("undeclared-kind", &["InvalidPlan"], "Secret"),
    ("other-namespace", &["InvalidPlan"], "namespace"),
    ("foreign-label", &["InvalidPlan"], "oarlock.dev/owned-by"),
    ("bad-name", &["ChildInvalid", "InvalidPlan"], "Bad_Name"),
    ("transient", &["Flaky"], "told to fail for now"),
    ("permanent", &["Broken"], "told to fail for good"),
    ("read-undeclared", &["ReadDenied"], "Secret"),
    ("read-elsewhere", &["ReadDenied"], "namespace"),
    ("bad-selector", &["*"], "a in b"),
];

#[tokio::test]
async fn each_fault_of_a_guest_has_its_reason_and_stops_nobody() -> Result<()> {
    let world = World::new("mistake-guests").await?;
    let pid = shared_host().await?.pid();
    for (mode, ..) in MODES {
        world.set("Widget", mode, json!({"mode": mode, "text": "hi"})).await?;
    }
    world.set("Widget", "good", json!({"text": "served"})).await?;
    world.until_says("Widget", "good", ["Ready", "True", "ChildrenReady"]).await?;
    let mut wrong = Vec::new();
    for (mode, reasons, hint) in MODES {
        let wanted = format!("Ready=False {reasons:?} {hint:?}");
        let told = world.until("Widget", mode, &wanted, |widget| {
            let ready = condition(widget, "Ready").unwrap_or(&Value::Null);
            let reason = string(ready, "/reason");
            says(widget, "Ready", "False", reason)?;
            ensure!(reasons.contains(&reason) || reasons == ["*"], "{ready}");
            ensure!(string(ready, "/message").contains(hint), "{ready}");
            Ok(())
        });
        // All of them are worth knowing.
        if let Err(error) = told.await {
            wrong.push(format!("{error:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(world.find("ConfigMap", "panic-cm").await?.is_none());
    assert!(world.find("ConfigMap", "foreign-label-cm").await?.is_none());
    world.until_told("Widget", "panic", ["Warning", "GuestTrapped", "size must be >= 1, got 0"]).await?;

    // Corrected, each is well.
    for (mode, ..) in MODES {
        world.merge("Widget", mode, json!({"spec": {"mode": "normal"}})).await?;
    }
    for (mode, ..) in MODES {
        let widget = world.until_says("Widget", mode, ["Ready", "True", "ChildrenReady"]).await?;
        assert!(condition(&widget, "Stalled").is_none(), "{}", widget["status"]);
    }
    let host = shared_host().await?;
    host.check_running()?;
    assert_eq!(host.pid(), pid);
    Ok(())
}

/// B037: siblings are applied, and nothing is pruned.
#[tokio::test]
async fn one_bad_child_is_named_and_its_siblings_are_applied() -> Result<()> {
    let world = World::new("mistake-child").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.merge("Widget", "w1", json!({"spec": {"mode": "bad-name"}})).await?;
    let widget = world.until("Widget", "w1", "names the bad child", |widget| {
        let ready = condition(widget, "Ready").unwrap_or(&Value::Null);
        says(widget, "Ready", "False", "ChildInvalid")?;
        ensure!(string(ready, "/message").contains("Bad_Name"), "{ready}");
        Ok(())
    });
    let widget = widget.await?;
    let message = string(condition(&widget, "Ready").unwrap(), "/message");
    assert!(!message.contains("c1") && !message.contains("c3"), "{message}");
    for name in ["c1", "c3"] {
        world.until("ConfigMap", name, "is there", |_| Ok(())).await?;
    }
    world.get("ConfigMap", "w1-cm").await?;

    world.merge("Widget", "w1", json!({"spec": {"mode": "normal"}})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    for name in ["c1", "c3"] {
        world.until_gone("ConfigMap", name).await?;
    }
    world.get("ConfigMap", "w1-cm").await?;
    Ok(())
}

#[tokio::test]
async fn exhausted_quota_is_told_and_retried() -> Result<()> {
    let world = World::new("mistake-quota").await?;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}},
    });
    world.apply(&quota, "tests").await?;
    world
        .until("ResourceQuota", "none", "is in force", |quota| {
            ensure!(quota["status"]["used"]["services"] == "0", "{}", quota["status"]);
            Ok(())
        })
        .await?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]},
    });
    world.set_plan("w1", json!({"children": [service]})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildRefused"]).await?;
    let message = string(condition(&widget, "Ready").unwrap(), "/message");
    assert!(message.contains("quota"), "{message}");
    says(&widget, "Reconciling", "True", "ChildRefused")?;
    world.delete("ResourceQuota", "none").await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    Ok(())
}

/// B028: an upgrade whose rights are missing waits, the version before serves.
#[tokio::test]
async fn missing_right_for_a_child_kind_is_named_and_noticed_when_given() -> Result<()> {
    let world = World::new("mistake-rights").await?;
    let _turn = website(&world, "website").await?;
    // From scratch, with the rights of version 1: no PodDisruptionBudget is watched or known from before.
    world.delete_plugin("website").await?;
    world.until_gone("Plugin", "website").await?;
    world.delete("ClusterRoleBinding", "oarlock-plugin-website-v2").await?;
    grant(world.plane, "website")?;
    world.plugin("website", "website").await?;
    world.set("Website", "blog", json!({"image": "nginx:1.29"})).await?;
    world.until_says("Website", "blog", ["Ready", "True", "ChildrenReady"]).await?;
    world.source("website", &[("plugin.wasm", &host::component("website-v2")?)]).await?;
    let plugin = world.until("Plugin", "website", "names the kind and the remedy", |plugin| {
        says(plugin, "Ready", "False", "KindForbidden")?;
        let message = string(condition(plugin, "Ready").unwrap(), "/message");
        ensure!(message.contains("PodDisruptionBudget"), "{message}");
        ensure!(message.contains("--rbac"), "{message}");
        Ok(())
    });
    let plugin = plugin.await?;
    assert_eq!(plugin["status"]["active"]["version"], "0.1.0", "the version before serves");
    world.merge("Website", "blog", json!({"spec": {"image": "nginx:1.30"}})).await?;
    world
        .until("Deployment", "blog", "has the new image", |deployment| {
            let image = string(deployment, "/spec/template/spec/containers/0/image");
            ensure!(image == "nginx:1.30", "{image}");
            Ok(())
        })
        .await?;

    grant(world.plane, "website-v2")?;
    let plugin = world.until_says("Plugin", "website", ["Ready", "True", "Active"]).await?;
    assert_eq!(plugin["status"]["active"]["version"], "0.2.0");
    world.until("PodDisruptionBudget", "blog", "is there", |_| Ok(())).await?;
    Ok(())
}

#[tokio::test]
async fn missing_crd_of_the_parent_is_named_and_noticed_when_applied() -> Result<()> {
    let world = World::new("mistake-parent").await?;
    let component = host::component("configmap-set")?;
    world.source("configmap-set", &[("plugin.wasm", &component)]).await?;
    let plugin = world.until("Plugin", "configmap-set", "names the kind and the remedy", |plugin| {
        says(plugin, "Ready", "False", "KindMissing")?;
        says(plugin, "Loaded", "True", "Active")?;
        let message = string(condition(plugin, "Ready").unwrap(), "/message");
        ensure!(message.contains("ConfigMapSet") && message.contains("CRD"), "{message}");
        Ok(())
    });
    plugin.await?;

    // Its CRD alone is not enough: the host has no rights for it.
    let crd = format!("{REPOSITORY}/plugins/configmap-set/crd.yaml");
    kubectl(world.plane, ["apply", "--server-side", "-f", &crd], None)?;
    world.until_says("Plugin", "configmap-set", ["Ready", "False", "KindForbidden"]).await?;
    grant(world.plane, "configmap-set")?;
    world.until_says("Plugin", "configmap-set", ["Ready", "True", "Active"]).await?;
    world
        .set("ConfigMapSet", "app", json!({"data": {"a": "1"}, "configMaps": {"one": {}, "two": {"b": "2"}}}))
        .await?;
    world.until_says("ConfigMapSet", "app", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("ConfigMap", "two").await?["data"], json!({"a": "1", "b": "2"}));

    // Rule D4: without its plugin nothing changes.
    world.delete_source("configmap-set").await?;
    world.until_says("Plugin", "configmap-set", ["Ready", "False", "SourceMissing"]).await?;
    world.merge("ConfigMapSet", "app", json!({"spec": {"configMaps": {"three": {}}}})).await?;
    oarlock_tests::throughout(Duration::from_secs(2), "its objects stay as they are", async || {
        let names = world.list("ConfigMap", Some("oarlock.dev/owned-by=configmap-set")).await?;
        ensure!(names.len() == 2, "{names:?}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    world.delete_plugin("configmap-set").await
}
