//! What a cluster does by itself: the garbage collector, the namespace controller, definitions of kinds, and
//! controllers that make workloads ready.
//!
//! Each is a rule about one object, looked at a moment after something near it has changed; how long a moment is, is
//! drawn from a seed. Nobody here is ever wrong or in doubt: they see the present.

mod garbage;
mod status;

use crate::api::{ADMIN, Change, Key, Server, delete::CLEAN_UP, text};
use fastrand::Rng;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// One object's place: its resource, and its key.
type Place = (Arc<str>, Key);

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Chore {
    /// Whether the owners of an object are still there.
    Collect(Place),
    /// What is left of the dependents of an object that waits for them.
    Release(Place),
    /// A namespace that ends.
    EndNamespace(String),
    /// A definition that is new.
    Establish(Key),
    /// The schemas.
    Publish,
    /// A definition that goes.
    CleanUp(Key),
    /// A workload that is not ready.
    Ready(Place),
}

/// The controllers of one cluster.
pub struct Cluster {
    server: Server,
    rng: Rng,
    /// Everything up to this version was looked at.
    seen: u64,
    agenda: BTreeMap<(Instant, u64), Chore>,
    /// What is on the agenda.
    planned: BTreeSet<Chore>,
    serial: u64,
    /// Places by uid.
    living: BTreeMap<String, Place>,
    /// By the uid of an owner.
    dependents: BTreeMap<String, BTreeSet<Place>>,
    /// The longest moment.
    patience: Duration,
    /// Whether the last write was refused, as by a policy.
    is_refused: bool,
}

impl Cluster {
    /// Controllers that begin with what there is.
    pub fn new(server: &Server, seed: u64) -> Self {
        Self {
            server: server.clone(),
            rng: Rng::with_seed(seed),
            seen: u64::MAX,
            agenda: BTreeMap::new(),
            planned: BTreeSet::new(),
            serial: 0,
            living: BTreeMap::new(),
            dependents: BTreeMap::new(),
            patience: Duration::from_secs(2),
            is_refused: false,
        }
    }

    /// Controllers that need no time at all: for a world that is built before it is looked at.
    pub fn settle(server: &Server) {
        let mut cluster = Self { patience: Duration::ZERO, ..Self::new(server, 0) };
        cluster.look();
        while let Some((_, chore)) = cluster.agenda.pop_first() {
            cluster.planned.remove(&chore);
            cluster.work(&chore);
            cluster.look();
        }
    }

    /// Works until it is dropped.
    pub async fn run(mut self) -> Infallible {
        let server = self.server.clone();
        loop {
            let mut changed = std::pin::pin!(server.changed());
            changed.as_mut().enable();
            self.look();
            let due = self.agenda.first_key_value().map(|((due, _), _)| *due);
            if due.is_some_and(|due| due <= Instant::now()) {
                if let Some((_, chore)) = self.agenda.pop_first() {
                    self.planned.remove(&chore);
                    self.is_refused = false;
                    self.work(&chore);
                    if self.is_refused {
                        self.plan(chore);
                    }
                }
                continue;
            }
            let next = due.unwrap_or_else(|| Instant::now() + Duration::from_hours(24));
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Looks at what has happened since the last look.
    fn look(&mut self) {
        match self.server.all_changes(self.seen) {
            Some(changes) => changes.iter().for_each(|change| self.changed(change)),
            None => self.begin(),
        }
        self.seen = self.server.version();
    }

    /// Looks at everything anew: at first, and when another history has come.
    fn begin(&mut self) {
        self.living.clear();
        self.dependents.clear();
        for resource in self.server.resources() {
            for (key, object) in self.server.objects(&resource) {
                self.note(&(Arc::clone(&resource), key), &object);
            }
        }
        self.plan(Chore::Publish);
    }

    fn changed(&mut self, change: &Change) {
        let place = (Arc::clone(&change.resource), change.key.clone());
        if let Some(before) = &change.before {
            let is_same = |after: &Arc<Value>| text(after, "/metadata/uid") == text(before, "/metadata/uid");
            if !change.after.as_ref().is_some_and(is_same) {
                self.living.remove(text(before, "/metadata/uid"));
            }
            for owner in owners(before) {
                let uid = text(owner, "/uid");
                if let Some(of) = self.dependents.get_mut(uid) {
                    of.remove(&place);
                }
                if let Some(owner) = self.living.get(uid).cloned() {
                    self.plan(Chore::Release(owner));
                }
            }
            if change.after.is_none() {
                let of = self.dependents.get(text(before, "/metadata/uid")).cloned();
                of.into_iter().flatten().for_each(|dependent| self.plan(Chore::Collect(dependent)));
                let namespace = &change.key.0;
                if !namespace.is_empty() {
                    self.plan_if_ending(namespace);
                }
                self.plan_clean_ups(&change.resource);
            }
        }
        if let Some(after) = &change.after {
            self.note(&place, after);
        }
    }

    /// Remembers an object, and plans what there is to do about it.
    fn note(&mut self, place: &Place, object: &Arc<Value>) {
        self.living.insert(text(object, "/metadata/uid").to_owned(), place.clone());
        for owner in owners(object) {
            self.dependents.entry(text(owner, "/uid").to_owned()).or_default().insert(place.clone());
        }
        let is_going = !object["metadata"]["deletionTimestamp"].is_null();
        if owners(object).next().is_some() {
            self.plan(Chore::Collect(place.clone()));
        }
        if is_going && garbage::waits(object) {
            self.plan(Chore::Release(place.clone()));
        }
        match &*place.0 {
            "namespaces" if is_going => self.plan(Chore::EndNamespace(place.1.1.clone())),
            DEFINITIONS if is_going => self.plan(Chore::CleanUp(place.1.clone())),
            DEFINITIONS if object["status"]["conditions"].is_null() => {
                self.plan(Chore::Establish(place.1.clone()));
            }
            DEFINITIONS => self.plan(Chore::Publish),
            resource if status::next(resource, object, "").is_some() => {
                self.plan(Chore::Ready(place.clone()));
            }
            _ => {}
        }
    }

    fn plan(&mut self, chore: Chore) {
        if self.planned.insert(chore.clone()) {
            let longest = u64::try_from(self.patience.as_micros()).unwrap_or(u64::MAX);
            let moment = Duration::from_micros(self.rng.u64(0..=longest));
            self.serial += 1;
            self.agenda.insert((Instant::now() + moment, self.serial), chore);
        }
    }

    fn plan_if_ending(&mut self, namespace: &str) {
        let object = self.server.object("namespaces", "", namespace);
        if object.is_some_and(|object| !object["metadata"]["deletionTimestamp"].is_null()) {
            self.plan(Chore::EndNamespace(namespace.to_owned()));
        }
    }

    fn plan_clean_ups(&mut self, resource: &str) {
        let key = (String::new(), resource.to_owned());
        if let Some(definition) = self.server.object(DEFINITIONS, &key.0, &key.1)
            && !definition["metadata"]["deletionTimestamp"].is_null()
        {
            self.plan(Chore::CleanUp(key));
        }
    }

    fn work(&mut self, chore: &Chore) {
        match chore {
            Chore::Collect(place) => self.collect(place),
            Chore::Release(place) => self.release(place),
            Chore::EndNamespace(name) => self.end_namespace(name),
            Chore::Establish(key) => self.establish(key),
            Chore::Publish => self.server.publish(),
            Chore::CleanUp(key) => self.clean_up(key),
            Chore::Ready((resource, key)) => {
                let Some(object) = self.server.object(resource, &key.0, &key.1) else { return };
                let now = self.server.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                if let Some(status) = status::next(resource, &object, &now) {
                    self.patch(&object, "/status", &json!({"status": status}));
                }
            }
        }
    }

    /// Deletes what is in a namespace that ends, and lets it go when nothing is.
    fn end_namespace(&mut self, name: &str) {
        let Some(namespace) = self.server.object("namespaces", "", name) else { return };
        let mut is_empty = true;
        for resource in self.server.resources() {
            let start = (name.to_owned(), String::new());
            let objects = self.server.objects(&resource);
            for (_, object) in objects.range(start..).take_while(|((of, _), _)| of == name) {
                is_empty = false;
                if object["metadata"]["deletionTimestamp"].is_null() {
                    self.delete(object, "Background");
                }
            }
        }
        // Whatever goes last has this looked at again.
        if is_empty {
            let mut released = (*namespace).clone();
            released["spec"]["finalizers"] = json!([]);
            self.server.ask(ADMIN, "PUT", &format!("/api/v1/namespaces/{name}/finalize"), JSON, &released);
        }
    }

    fn establish(&mut self, (_, name): &Key) {
        let Some(definition) = self.server.object(DEFINITIONS, "", name) else { return };
        let condition = |kind: &str| {
            json!({"type": kind, "status": "True", "reason": "NoConflicts", "message": "it is as it should be",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let names = &definition["spec"]["names"];
        let stored: Vec<_> = definition["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|version| version["storage"] == true)
            .map(|version| version["name"].clone())
            .collect();
        let status = json!({
            "conditions": [condition("NamesAccepted"), condition("Established")],
            "acceptedNames": names, "storedVersions": stored,
        });
        self.patch(&definition, "/status", &json!({"status": status}));
    }

    /// Deletes the objects of a definition that goes, and lets it go when there are none.
    fn clean_up(&mut self, (_, name): &Key) {
        let Some(definition) = self.server.object(DEFINITIONS, "", name) else { return };
        let objects = self.server.objects(name);
        for object in objects.values() {
            if object["metadata"]["deletionTimestamp"].is_null() {
                self.delete(object, "Background");
            }
        }
        if self.server.objects(name).is_empty() {
            self.drop_finalizer(&definition, CLEAN_UP);
            self.plan(Chore::Publish);
        }
    }

    fn drop_finalizer(&mut self, object: &Value, finalizer: &str) {
        let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        let rest: Vec<_> = finalizers.filter(|one| *one != finalizer).collect();
        self.patch(object, "", &json!({"metadata": {"finalizers": rest}}));
    }

    fn patch(&mut self, object: &Value, subresource: &str, patch: &Value) {
        if let Some(uri) = self.server.uri(object, true) {
            let (code, _) = self.server.ask(ADMIN, "PATCH", &format!("{uri}{subresource}"), MERGE, patch);
            self.is_refused |= code >= 300;
        }
    }

    /// Deletes exactly this object.
    fn delete(&self, object: &Value, propagation: &str) {
        if let Some(uri) = self.server.uri(object, true) {
            let exactly = json!({"uid": object["metadata"]["uid"]});
            let options = json!({"preconditions": exactly, "propagationPolicy": propagation});
            self.server.ask(ADMIN, "DELETE", &uri, JSON, &options);
        }
    }
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests;
