//! The history of all objects of a run, and what must hold at every moment of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::actor::{LABEL, Told};
use super::expected::{Surroundings, Synced, expected};
use super::steps::{FLEET, READS, SERVICE};
use crate::world::{DEADLINE, World, condition, string};

/// The kinds whose history is kept.
const KINDS: [&str; 4] = ["Widget", "ClusterWidget", "ConfigMap", "Service"];
/// The name of the object that ends it.
const END: &str = "end";
/// Conditions that are ours, and nobody else's.
const OURS: [&str; 4] = ["Ready", "Reconciling", "Stalled", "Synced"];
/// How far apart the time in a condition and the time of its write may be: a request's deadline.
const TIME_APART: i64 = 10;

/// One version of one object.
#[derive(Debug, Clone)]
pub(super) struct Version {
    /// The API server's etcd is one, so the versions of all kinds have one order.
    number: u64,
    is_deleted: bool,
    object: Value,
}

/// The watches, while the run goes on.
pub(super) struct History(Vec<JoinHandle<Result<Vec<Version>>>>);

impl History {
    /// Begins to watch the namespace, in which there is nothing yet.
    pub(super) async fn watch(world: &World) -> Result<Self> {
        let mut tasks = Vec::new();
        for kind in KINDS {
            let api = world.api(kind);
            let list = api.list(&ListParams::default()).await?;
            let from = list.metadata.resource_version.context("a list has a version")?;
            tasks.push(tokio::spawn(follow(api, from)));
        }
        Ok(Self(tasks))
    }

    /// Everything until now, in order.
    pub(super) async fn end(self, world: &World) -> Result<Vec<Version>> {
        let service = json!({"ports": [{"port": 80}]});
        for kind in ["Widget", "ClusterWidget"] {
            world.set(kind, END, json!({"plan": {}})).await?;
        }
        world.set("Service", END, service).await?;
        world
            .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": END}}), "tests")
            .await?;
        let mut versions = Vec::new();
        for task in self.0 {
            versions.extend(timeout(DEADLINE, task).await.context("the history does not end")???);
        }
        versions.sort_by_key(|version| version.number);
        Ok(versions)
    }
}

async fn follow(api: Api<DynamicObject>, from: String) -> Result<Vec<Version>> {
    let mut versions = Vec::new();
    let params = WatchParams { timeout: Some(290), ..WatchParams::default() };
    let mut from = from;
    loop {
        let mut changes = std::pin::pin!(api.watch(&params, &from).await?);
        while let Some(change) = changes.try_next().await? {
            let (is_deleted, object) = match change {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (false, object),
                WatchEvent::Deleted(object) => (true, object),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(error) => bail!("a watch of the history: {error:?}"),
            };
            let object = serde_json::to_value(object)?;
            if string(&object, "/metadata/name") == END {
                return Ok(versions);
            }
            string(&object, "/metadata/resourceVersion").clone_into(&mut from);
            versions.push(Version { number: from.parse()?, is_deleted, object });
        }
    }
}

/// Fails with the first moment that misleads a reader.
pub(super) fn check(versions: &[Version], told: &Told) -> Result<()> {
    let mut by_uid: BTreeMap<&str, Vec<&Version>> = BTreeMap::new();
    for (at, version) in versions.iter().enumerate() {
        let uid = string(&version.object, "/metadata/uid");
        let before = by_uid.entry(uid).or_default();
        before.push(version);
        let is_widget = ["Widget", "ClusterWidget"].contains(&string(&version.object, "/kind"));
        if !is_widget || version.is_deleted || told.writes.contains(&version.number) {
            continue;
        }
        let is_foreign = |version: &Version| told.writes.contains(&version.number);
        let mut earlier = before.iter().rev().skip(1);
        let last = earlier.clone().next().map(|last| (&last.object, is_foreign(last)));
        // Not a status, but the finalizer that later waves need.
        if last.is_some_and(|(last, _)| {
            last["metadata"]["finalizers"] != version.object["metadata"]["finalizers"]
                && last["status"] == version.object["status"]
        }) {
            continue;
        }
        // What the host may have seen last: the latest of others may not have reached it.
        let mut seen: Vec<&Value> = Vec::new();
        for version in earlier.by_ref() {
            seen.push(&version.object);
            if !is_foreign(version) {
                break;
            }
        }
        // The API server does not look at the uid of a status: a write that was on its way to the object before may
        // come to this one, whose own pass then puts it right.
        let name = string(&version.object, "/metadata/name");
        let is_overtaken = last.is_some_and(|(last, _)| last["status"].is_null())
            && versions[..at]
                .iter()
                .any(|one| one.is_deleted && string(&one.object, "/metadata/name") == name);
        if is_overtaken {
            continue;
        }
        check_conditions(&version.object, last, &seen)
            .and_then(|()| check_reader(&versions[..at], &version.object, told))
            .and_then(|()| check_faults(&versions[..at], &version.object, last))
            .with_context(|| {
                format!(
                    "{name} at version {}; before and then:\n{}",
                    version.number,
                    story(&versions[..=at], uid, told)
                )
            })?;
    }
    Ok(())
}

/// The last versions of an object, in words.
fn story(versions: &[Version], uid: &str, told: &Told) -> String {
    let own: Vec<_> =
        versions.iter().filter(|version| string(&version.object, "/metadata/uid") == uid).collect();
    let lines = own[own.len().saturating_sub(8)..].iter().map(|version| {
        let author = if told.writes.contains(&version.number) { "test" } else { "host" };
        let generation = &version.object["metadata"]["generation"];
        format!("  {} by the {author}, generation {generation}: {}", version.number, version.object["status"])
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Conditions of one version that the host wrote, compared with the version before, and whether the test wrote that;
/// `seen` are those that the host may have compared with.
fn check_conditions(widget: &Value, last: Option<(&Value, bool)>, seen: &[&Value]) -> Result<()> {
    let generation = widget["metadata"]["generation"].as_i64();
    let status = &widget["status"];
    ensure!(status["observedGeneration"].as_i64() <= generation, "a generation from the future");
    let written = written_at(widget)?;
    let last_conditions = last.map(|(last, _)| conditions(last)).unwrap_or_default();
    for found in conditions(widget) {
        let r#type = string(found, "/type");
        let before = last_conditions.iter().find(|one| one["type"] == found["type"]).copied();
        if !OURS.contains(&r#type) {
            ensure!(before == Some(found), "the condition {type} of somebody else was {before:?}");
            continue;
        }
        ensure!(found["observedGeneration"].as_i64() <= generation, "{type}: a generation from the future");
        // A condition somebody made up after the plan had stopped to have it is theirs.
        if before == Some(found) {
            continue;
        }
        let since = seconds(&found["lastTransitionTime"])?;
        let is_same =
            |one: &&Value| condition(one, r#type).is_some_and(|one| one["status"] == found["status"]);
        match before {
            Some(before) if seen.iter().all(is_same) => {
                ensure!(
                    before["lastTransitionTime"] == found["lastTransitionTime"],
                    "{type}: the time moved without the status: {} after {}",
                    found["lastTransitionTime"],
                    before["lastTransitionTime"],
                );
            }
            // Only what else it says is new.
            Some(before)
                if ["status", "lastTransitionTime"].iter().all(|name| before[name] == found[name]) => {}
            Some(_) | None => {
                ensure!((since - written).abs() <= TIME_APART, "{type}: the time is not that of the change");
            }
        }
    }
    for before in &last_conditions {
        let r#type = string(before, "/type");
        ensure!(
            OURS.contains(&r#type) || condition(widget, r#type).is_some(),
            "{type} of somebody else is gone"
        );
    }
    let Some((last, is_foreign)) = last else { return Ok(()) };
    let observed = |widget: &Value| widget["status"]["observedGeneration"].as_i64();
    ensure!(observed(last) <= observed(widget), "the observed generation went back");
    ensure!(is_foreign || last["status"] != *status, "a write that changes nothing");
    Ok(())
}

/// Whoever compares the observed generation with the generation, and finds `Ready`, relies on the children, the
/// fields and the conditions being those of this generation.
fn check_reader(before: &[Version], widget: &Value, told: &Told) -> Result<()> {
    let generation = &widget["metadata"]["generation"];
    let is_ready = condition(widget, "Ready").is_some_and(|ready| ready["status"] == "True");
    if !is_ready || widget["status"]["observedGeneration"] != *generation {
        return Ok(());
    }
    let (name, uid) = (string(widget, "/metadata/name"), string(widget, "/metadata/uid"));
    let key = (uid.to_owned(), generation.as_i64().unwrap_or_default());
    // The spec of a version whose answer the test has not had is not known.
    let Some(spec) = told.specs.get(&key) else { return Ok(()) };
    let around = Surroundings { component: "", source: None, picked: "", service: "" };
    let expected = expected(name, spec, &around);
    ensure!(expected.ready.0 == "True", "Ready, where the plan fails");
    if let Some(note) = &expected.note {
        ensure!(widget["status"]["note"] == **note, "Ready with a note that is not {note}");
    }
    if let Synced::Told(status, message) = &expected.synced {
        let synced = condition(widget, "Synced").context("Ready without Synced")?;
        ensure!(
            synced["status"] == **status
                && synced["message"] == **message
                && synced["observedGeneration"] == *generation,
            "Ready beside another generation's {synced}"
        );
    }
    let planned = expected.config_maps.unwrap_or_default();
    for (child, data) in &planned {
        let found =
            by_host(before, "ConfigMap", child, told).with_context(|| format!("Ready without {child}"))?;
        ensure!(!found.is_deleted, "Ready, and the host has deleted {child}");
        ensure!(
            [READS, FLEET].contains(&name) || found.object["data"]["text"] == data["text"],
            "Ready, and {child} has {}, not {data}",
            found.object["data"]
        );
    }
    if name == SERVICE {
        let child = format!("{SERVICE}-svc");
        let found =
            by_host(before, "Service", &child, told).with_context(|| format!("Ready without {child}"))?;
        let text = found.object.pointer("/metadata/annotations/text");
        ensure!(text == spec.pointer("/plan/status/note"), "Ready, and {child} says {text:?}");
    }
    for child in living(before, "ConfigMap", uid) {
        let child = string(child, "/metadata/name");
        ensure!(
            planned.iter().any(|(name, _)| name == child),
            "Ready, and {child}, which is not planned, is there"
        );
    }
    Ok(())
}

/// A failing API server says nothing about the objects: what was ready, and nobody touched since, stays ready.
fn check_faults(before: &[Version], widget: &Value, last: Option<(&Value, bool)>) -> Result<()> {
    let Some((last, false)) = last else { return Ok(()) };
    let (Some(was), Some(is)) = (condition(last, "Ready"), condition(widget, "Ready")) else { return Ok(()) };
    let is_fault = ["ApiUnavailable", "Conflict"].contains(&string(is, "/reason"));
    if !is_fault || was["status"] != "True" || is["status"] == "True" {
        return Ok(());
    }
    let uid = string(widget, "/metadata/uid");
    let versions = before.iter().rev();
    let mut since = versions.take_while(|version| string(&version.object, "/metadata/uid") != uid);
    let is_touched = since.any(|version| string(&version.object, "/metadata/ownerReferences/0/uid") == uid);
    let is_new = last["metadata"]["generation"] != was["observedGeneration"];
    ensure!(is_touched || is_new, "not Ready, because the API server failed");
    Ok(())
}

/// The last version of a child that is the host's doing.
fn by_host<'a>(versions: &'a [Version], kind: &str, name: &str, told: &Told) -> Option<&'a Version> {
    versions.iter().rev().find(|version| {
        let object = &version.object;
        let is_foreign = if version.is_deleted {
            let uids = ["/metadata/uid", "/metadata/ownerReferences/0/uid"].map(|uid| string(object, uid));
            uids.iter().any(|uid| told.deleted.contains(*uid))
        } else {
            told.writes.contains(&version.number)
        };
        !is_foreign && object["kind"] == kind && string(object, "/metadata/name") == name
    })
}

/// The children of a parent that exist after these versions.
fn living<'a>(versions: &'a [Version], kind: &str, parent: &str) -> Vec<&'a Value> {
    let mut living = BTreeMap::new();
    for version in versions.iter().filter(|version| version.object["kind"] == kind) {
        let uid = string(&version.object, "/metadata/uid");
        if version.is_deleted {
            living.remove(uid);
        } else {
            living.insert(uid, &version.object);
        }
    }
    living.retain(|_, object| {
        // Without its label nobody finds it any more, unless it is planned.
        string(object, "/metadata/ownerReferences/0/uid") == parent && object.pointer(LABEL).is_some()
    });
    living.into_values().collect()
}

fn conditions(widget: &Value) -> Vec<&Value> {
    widget["status"]["conditions"].as_array().into_iter().flatten().collect()
}

fn seconds(time: &Value) -> Result<i64> {
    let time: Time = serde_json::from_value(time.clone()).context("no time")?;
    Ok(time.0.as_second())
}

/// When the host last wrote the status.
fn written_at(widget: &Value) -> Result<i64> {
    let managers = widget["metadata"]["managedFields"].as_array().into_iter().flatten();
    let host = managers.filter(|entry| {
        string(entry, "/manager").starts_with("oarlock/") && entry["subresource"] == "status"
    });
    let times = host.map(|entry| seconds(&entry["time"])).collect::<Result<Vec<_>>>()?;
    times.into_iter().max().context("the host has not written this status")
}

mod tests;
