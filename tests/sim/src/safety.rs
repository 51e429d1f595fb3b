//! What must hold of every write of the host, whatever happens: the safety properties, judged from the log of
//! requests.

mod children;
mod status;

use crate::{
    api::{Change, ETCD, Key, Record, text},
    faults::{Fault, Rule},
    rest,
    scenario::{Action, PARENTS, PLAIN, SCRIPTED, Scenario, Step},
    simulation::{Note, START},
    world::{HOST, HOST_NAMESPACE},
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

const DEFINITIONS: [&str; 2] = ["widgets.cases.example.com", "clusterwidgets.cases.example.com"];
const CHILDREN: [&str; 5] = ["configmaps", "services", "deployments.apps", "statefulsets.apps", "jobs.batch"];

/// How long a request that was decided on may still be on its way.
const UNDER_WAY: Duration = Duration::from_mins(1);

/// For how long what is gone may be believed in: until a lost event is noticed.
const BELIEVED: Duration = Duration::from_mins(10);

/// A child, by resource and name.
type Child = (String, String);

/// Fails with the first write that must not have been.
///
/// # Errors
/// What is wrong with it.
pub fn check(scenario: &Scenario, records: &[Record], notes: &[Note]) -> Result<()> {
    let is_stale = |step: &Step| matches!(&step.action, Action::Inject(Rule { fault: Fault::Stale, .. }));
    let mut judge = Judge { is_stale: scenario.steps.iter().any(is_stale), ..Judge::default() };
    let mut starts = notes.iter().filter(|note| note.text == START).map(|note| note.after).peekable();
    for (at, record) in records.iter().enumerate() {
        while starts.next_if(|start| *start <= at).is_some() {
            // A new host knows what it is answered, and nothing of what one before it has seen.
            judge.starts += 1;
            judge.parents.values_mut().filter(|_| judge.is_stale).for_each(|parent| parent.floor = 0);
        }
        // What was known is of a world that never was.
        if record.user == ETCD {
            judge = Judge {
                is_fewer: judge.is_fewer,
                is_stale: judge.is_stale,
                starts: judge.starts,
                restored: Some(record.at),
                ..Judge::default()
            };
        }
        for change in &record.changes {
            let is_host = record.user == HOST;
            // What was decided before is still on its way.
            let is_after = judge.restored.is_none_or(|restored| record.at > restored + BELIEVED);
            if is_host && is_after {
                let what = || format!("at {:?}: {} {}", record.at, record.asked.verb, record.asked.target());
                judge.check(record, change).with_context(what)?;
            }
            judge.learn(record, change, is_host);
        }
    }
    Ok(())
}

/// One generation of a parent.
struct Planned {
    generation: i64,
    spec: Value,
}

/// What is known of a parent, by uid.
struct Parent {
    name: String,
    /// In the order in which they came.
    plans: Vec<Planned>,
    /// The generation that the host is known to have seen: it wrote what only this one says.
    floor: i64,
    /// When its deletion began.
    deleted: Option<Duration>,
}

/// The world as it was after each write so far.
#[derive(Default)]
struct Judge {
    parents: BTreeMap<String, Parent>,
    objects: BTreeMap<(String, Key), Arc<Value>>,
    /// When somebody else touched a child last.
    touched: Option<Duration>,
    /// Parents whose children others may have touched since the host's last write of their status, by uid.
    disturbed: BTreeSet<String>,
    /// Whether a component without children has been in force, or could have been.
    is_fewer: bool,
    /// Whether the API server's answers were ever old ones: then nobody can know better.
    is_stale: bool,
    /// How often the host has started.
    starts: usize,
    /// When a backup was restored last.
    restored: Option<Duration>,
    /// Versions of parents since the host's last write of each, oldest first, by uid.
    seen: BTreeMap<String, Vec<Arc<Value>>>,
}

impl Judge {
    fn check(&self, record: &Record, change: &Change) -> Result<()> {
        let resource = &*change.resource;
        if DEFINITIONS.contains(&resource) {
            return self.check_parent(record, change);
        }
        if change.key.0 == HOST_NAMESPACE {
            return check_kept(change);
        }
        if CHILDREN.contains(&resource) {
            return match (&change.before, &change.after) {
                (Some(before), _) if record.asked.verb == "delete" => {
                    self.check_delete(record, change, before)
                }
                (before, Some(after)) => self.check_apply(record, change, before.as_deref(), after),
                (_, None) => Ok(()),
            };
        }
        let is_own = resource.starts_with("events.") || resource == "plugins.oarlock.dev";
        ensure!(is_own, "{resource} {} is nobody's child", change.key.1);
        if let (Some(before), Some(after)) = (&change.before, &change.after)
            && resource == "plugins.oarlock.dev"
        {
            ensure!(before["spec"] == after["spec"], "the spec of a Plugin is its operator's");
        }
        Ok(())
    }

    /// Of a parent, the host writes the status and its finalizer; it neither makes nor deletes any.
    fn check_parent(&self, record: &Record, change: &Change) -> Result<()> {
        let before = change.before.as_ref().context("a parent is made by the host")?;
        let Some(after) = &change.after else {
            let is_going = !before["metadata"]["deletionTimestamp"].is_null();
            ensure!(is_going, "a parent is deleted by the host");
            return Ok(());
        };
        ensure!(before["spec"] == after["spec"], "the spec of a parent is its owner's");
        for name in ["labels", "annotations", "ownerReferences"] {
            ensure!(before["metadata"][name] == after["metadata"][name], "{name} of a parent changed");
        }
        if self.was_just_there(record.at, text(after, "/metadata/name")) {
            return Ok(());
        }
        self.check_status(before, after)
    }

    /// Whether another object of this name was there a moment ago. The API server does not look at the uid of a status:
    /// a write that was meant for the object before may come to the next one, whose own pass then puts it right.
    fn was_just_there(&self, at: Duration, name: &str) -> bool {
        let was = |parent: &Parent| {
            parent.name == name && parent.deleted.is_some_and(|deleted| at < deleted + BELIEVED)
        };
        self.parents.values().any(was)
    }

    fn learn(&mut self, record: &Record, change: &Change, is_host: bool) {
        let resource = &*change.resource;
        if DEFINITIONS.contains(&resource) {
            self.learn_parent(record, change, is_host);
        }
        if CHILDREN.contains(&resource) {
            self.learn_child(record, change, is_host);
        }
        if resource == "configmaps" && change.key.1 == "widget" && !is_host {
            // Any component may be without children, and each is in force for a while after the next was pushed.
            let is_first = change.before.is_none();
            self.is_fewer |= !is_first;
        }
        let key = (resource.to_owned(), change.key.clone());
        match &change.after {
            Some(after) => drop(self.objects.insert(key, Arc::clone(after))),
            None => drop(self.objects.remove(&key)),
        }
    }

    fn learn_parent(&mut self, record: &Record, change: &Change, is_host: bool) {
        let object = change.object();
        let uid = text(object, "/metadata/uid").to_owned();
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let is_other = self.was_just_there(record.at, text(object, "/metadata/name"));
        let parent = self.parents.entry(uid.clone()).or_insert_with(|| Parent {
            name: text(object, "/metadata/name").to_owned(),
            plans: Vec::new(),
            floor: 0,
            deleted: None,
        });
        let is_going = change.after.is_none() || !object["metadata"]["deletionTimestamp"].is_null();
        if is_going && parent.deleted.is_none() {
            parent.deleted = Some(record.at);
        }
        let is_known =
            parent.plans.iter().any(|plan| plan.spec == object["spec"] && plan.generation == generation);
        if !is_known {
            parent.plans.push(Planned { generation, spec: object["spec"].clone() });
        }
        if is_host && change.before.as_ref().is_some_and(|before| before["status"] != object["status"]) {
            let observed = object["status"]["observedGeneration"].as_i64().unwrap_or_default();
            if !is_other {
                parent.floor = parent.floor.max(observed);
            }
            self.disturbed.remove(&uid);
            self.seen.remove(&uid);
        }
        self.seen.entry(uid).or_default().push(Arc::clone(object));
    }
}

/// In its own namespace the host keeps versions of plugins, each once and for all, and lets go of them.
fn check_kept(change: &Change) -> Result<()> {
    let object = change.object();
    let is_kept =
        object["metadata"]["labels"]["oarlock.dev/version-of"].is_string() && object["immutable"] == true;
    ensure!(
        is_kept && *change.resource == *"configmaps",
        "{} {} is not the host's",
        change.resource,
        change.key.1
    );
    ensure!(change.before.is_none() || change.after.is_none(), "a version that is kept was changed");
    Ok(())
}

impl Parent {
    /// The plans that the host may act on now: what it has seen, and what came after.
    fn possible(&self) -> impl Iterator<Item = &Planned> {
        self.plans.iter().filter(|plan| plan.generation >= self.floor)
    }

    fn is_scripted(&self) -> bool {
        SCRIPTED.contains(&&*self.name)
    }
}

impl Planned {
    /// The children of a parent, as far as its spec alone tells: by resource and name, with what they say.
    fn children(&self, parent: &str) -> BTreeMap<Child, Value> {
        if SCRIPTED.contains(&parent) {
            let planned = rest::scripted(&self.spec);
            return planned
                .into_iter()
                .map(|((resource, name), told)| ((resource.to_owned(), name), told))
                .collect();
        }
        let name = PARENTS.contains(&parent).then(|| format!("{parent}-cm"));
        let told = if parent == PLAIN { serde_json::json!({"text": self.spec["text"]}) } else { Value::Null };
        name.map(|name| (("configmaps".to_owned(), name), told)).into_iter().collect()
    }
}
