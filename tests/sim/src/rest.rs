//! What the world must come to once faults have ended: the plugins' functions, written a second time.

use crate::{
    api::text,
    scenario::{FLEET, PARENTS, PLAIN, READS},
    world::{NAMESPACE, World},
};
use anyhow::{Context, Result, ensure};
use oarlock::object::{LABEL_OWNED_BY, LABEL_PARENT};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The resources in which children are.
const RESOURCES: [&str; 5] =
    ["configmaps", "services", "deployments.apps", "statefulsets.apps", "jobs.batch"];

/// What a parent must come to.
struct Expected {
    /// Status and reason of `Ready`.
    ready: (&'static str, &'static str),
    /// `Reconciling` or `Stalled`, or none.
    beside: Option<&'static str>,
    /// Status and message of the plan's own condition; `None`: it says nothing of it.
    synced: Option<(String, String)>,
    /// The plan's own field of the status; `None`: it says nothing of it.
    note: Option<String>,
    /// By resource and name; `None`: the plan failed, and what stood before stands.
    children: Option<BTreeMap<(&'static str, String), Value>>,
}

/// Fails unless every parent's status and children, and the plugins, are as they should be.
///
/// # Errors
/// What is not.
pub fn check(world: &World) -> Result<()> {
    for plugin in ["widget", "cluster"] {
        let found = world.server.object("plugins.oarlock.dev", "", plugin).context("no Plugin")?;
        says(&found, "Ready", ("True", "Active")).with_context(|| format!("plugin {plugin}"))?;
        let digest = text(&found, "/status/active/digest");
        ensure!(digest == world.digest(plugin), "plugin {plugin} runs {digest}");
        ensure!(found["status"]["active"]["settled"] == true, "plugin {plugin} is on probation");
    }
    let mut owners = BTreeMap::new();
    for parent in PARENTS {
        let Some(found) = world.parent(parent) else { continue };
        owners.insert(text(&found, "/metadata/uid").to_owned(), parent);
        check_parent(world, parent, &found)
            .with_context(|| format!("{parent}, whose status is {}", found["status"]))?;
    }
    // Nothing is left of parents that are gone.
    for resource in RESOURCES {
        for (_, object) in &world.server.objects(resource) {
            let parent = label(object, LABEL_PARENT);
            let is_ours = !label(object, LABEL_OWNED_BY).is_empty() && controller(object).is_some();
            ensure!(!is_ours || owners.contains_key(parent), "left over: {object}");
        }
    }
    Ok(())
}

fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["labels"][name].as_str().unwrap_or_default()
}

fn controller(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().find(|owner| owner["controller"] == true).map(|owner| text(owner, "/uid"))
}

fn check_parent(world: &World, parent: &'static str, found: &Arc<Value>) -> Result<()> {
    ensure!(found["metadata"]["deletionTimestamp"].is_null(), "it is still being deleted");
    let expected = expected(world, parent, &found["spec"]);
    says(found, "Ready", expected.ready)?;
    for kind in ["Reconciling", "Stalled"] {
        let condition = condition(found, kind);
        ensure!(condition.is_some() == (expected.beside == Some(kind)), "{kind}: {condition:?}");
    }
    if let Some((status, message)) = &expected.synced {
        let synced = condition(found, "Synced").context("no Synced")?;
        ensure!(synced["status"] == **status && synced["message"] == **message, "Synced is {synced}");
    }
    if let Some(note) = &expected.note {
        ensure!(found["status"]["note"] == **note, "the note is not {note}");
    }
    let checked = condition(found, "audit.example.org/Checked");
    if let Some(auditor) = world.auditor.get(parent) {
        ensure!(checked == Some(auditor), "somebody else's condition is {checked:?}, not {auditor}");
    }
    let Some(planned) = &expected.children else { return Ok(()) };
    let plugin = if parent == FLEET { "cluster" } else { "widget" };
    let uid = text(found, "/metadata/uid");
    for ((resource, name), content) in planned {
        let child = world.server.object(resource, NAMESPACE, name);
        let child = child.with_context(|| format!("{resource} {name} is missing"))?;
        ensure!(label(&child, LABEL_OWNED_BY) == plugin, "{name} is not labelled");
        ensure!(controller(&child) == Some(uid), "{name} is not owned");
        let is = told(resource, &child);
        let agree = content.as_object().into_iter().flatten().all(|(name, value)| is[name] == *value);
        ensure!(agree, "{name} has {is}, not {content}");
    }
    for resource in RESOURCES {
        for ((_, name), object) in &world.server.objects(resource) {
            // Without its label nobody finds it any more, unless it is planned.
            let is_ours = controller(object) == Some(uid) && !label(object, LABEL_OWNED_BY).is_empty();
            let is_planned = planned.contains_key(&(resource, name.clone()));
            ensure!(!is_ours || is_planned, "{resource} {name} is not planned");
        }
    }
    Ok(())
}

/// What of a child says which plan it is of.
pub(crate) fn told(resource: &str, child: &Value) -> Value {
    if resource == "configmaps" {
        child["data"].clone()
    } else {
        json!({"text": child["metadata"]["annotations"]["text"]})
    }
}

/// The children that a spec asks for, by resource and name.
pub(crate) fn scripted(spec: &Value) -> BTreeMap<(&'static str, String), Value> {
    let children = spec["plan"]["children"].as_array().into_iter().flatten();
    let planned = children.filter_map(|child| {
        let resource = match text(child, "/kind") {
            "ConfigMap" => "configmaps",
            "Service" => "services",
            "Deployment" => "deployments.apps",
            "Job" => "jobs.batch",
            _ => return None,
        };
        Some(((resource, text(child, "/metadata/name").to_owned()), told(resource, child)))
    });
    planned.collect()
}

fn expected(world: &World, parent: &str, spec: &Value) -> Expected {
    let written = Some(("True".to_owned(), "The text is in its ConfigMap.".to_owned()));
    let failed = |reason: &'static str, beside| Expected {
        ready: ("False", reason),
        beside: Some(beside),
        synced: None,
        note: None,
        children: None,
    };
    let healthy =
        Expected { ready: ("True", "ChildrenReady"), beside: None, synced: None, note: None, children: None };
    let one = |data: Value| Some([(("configmaps", format!("{parent}-cm")), data)].into());
    match parent {
        PLAIN => match text(spec, "/mode") {
            "transient" => failed("Flaky", "Reconciling"),
            "permanent" => failed("Broken", "Stalled"),
            "panic" => failed("GuestTrapped", "Stalled"),
            _ => {
                let mut data = json!({"text": spec["text"]});
                if world.component == "widget-v2" {
                    data["version"] = "2".into();
                }
                Expected { synced: written, children: one(data), ..healthy }
            }
        },
        READS | FLEET => {
            let source = world.source();
            let mut data = json!({"names": world.picked()});
            data["text"] = source.as_deref().map_or_else(|| spec["text"].clone(), Value::from);
            Expected { synced: written, children: one(data), ..healthy }
        }
        _ => {
            let plan = &spec["plan"];
            let synced = plan.pointer("/conditions/0");
            let synced =
                synced.map(|one| (text(one, "/status").to_owned(), text(one, "/message").to_owned()));
            let note = Some(text(plan, "/status/note").to_owned());
            Expected { synced, note, children: Some(scripted(spec)), ..healthy }
        }
    }
}

/// A condition of an object.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Fails unless a condition has this status and reason, in a status about the object as it is now.
fn says(object: &Arc<Value>, kind: &str, (status, reason): (&str, &str)) -> Result<()> {
    let found = condition(object, kind).with_context(|| format!("no condition {kind}"))?;
    ensure!(found["status"] == status && found["reason"] == reason, "it says {found}, not {reason}");
    for observed in [&found["observedGeneration"], &object["status"]["observedGeneration"]] {
        let generation = &object["metadata"]["generation"];
        ensure!(observed == generation, "generation {generation}, observed is {observed}");
    }
    Ok(())
}
