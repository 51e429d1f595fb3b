//! What etcd is to the API server: every object in its last version, and one log of all changes.
//!
//! Never: rules. Whoever writes here has checked everything.

use imbl::OrdMap;
use serde_json::Value;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Namespace, empty outside of namespaces, and name.
pub type Key = (String, String);

/// The objects of one resource at one moment; a clone is a snapshot.
pub type Objects = OrdMap<Key, Arc<Value>>;

/// One write.
#[derive(Clone, Debug)]
pub struct Change {
    /// The version that it made.
    pub version: u64,
    /// `plural.group`, as in `deployments.apps`.
    pub resource: Arc<str>,
    /// Which object.
    pub key: Key,
    /// The object before; `None` when it was created.
    pub before: Option<Arc<Value>>,
    /// The object after; `None` when it is gone.
    pub after: Option<Arc<Value>>,
}

impl Change {
    /// The object as it is, or was last.
    pub fn object(&self) -> &Arc<Value> {
        self.after.as_ref().or(self.before.as_ref()).expect("a change is about an object")
    }
}

/// All objects. A clone is a backup.
#[derive(Clone, Debug, Default)]
pub struct Store {
    version: u64,
    /// Nobody may begin to read the log before this version.
    compacted: u64,
    /// Changes up to this version are not in the log any more. What is compacted goes with the next compaction, as
    /// watches that are open have had it all.
    dropped: u64,
    resources: BTreeMap<Arc<str>, Resource>,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    objects: Objects,
    log: VecDeque<Arc<Change>>,
}

impl Store {
    /// The version of the last write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Up to which version the log is gone.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// One object.
    pub fn get(&self, resource: &str, key: &Key) -> Option<&Arc<Value>> {
        self.resources.get(resource)?.objects.get(key)
    }

    /// All objects of a resource.
    pub fn objects(&self, resource: &str) -> Objects {
        self.resources.get(resource).map_or_else(Objects::default, |resource| resource.objects.clone())
    }

    /// The names of all resources that have objects.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<str>> {
        self.resources.iter().filter(|(_, resource)| !resource.objects.is_empty()).map(|(name, _)| name)
    }

    /// Writes an object, or removes it: gives it the next version.
    pub fn write(&mut self, resource: &Arc<str>, key: Key, after: Option<Value>) -> Arc<Change> {
        self.version += 1;
        let of_kind = self.resources.entry(Arc::clone(resource)).or_default();
        let before = of_kind.objects.get(&key).cloned();
        let after = after.map(|mut object| {
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
            Arc::new(object)
        });
        match &after {
            Some(object) => drop(of_kind.objects.insert(key.clone(), Arc::clone(object))),
            None => drop(of_kind.objects.remove(&key)),
        }
        let change =
            Arc::new(Change { version: self.version, resource: Arc::clone(resource), key, before, after });
        of_kind.log.push_back(Arc::clone(&change));
        change
    }

    /// The changes of a resource after a version, oldest first; `None` where the log does not reach back to it.
    pub fn changes(&self, resource: &str, after: u64) -> Option<impl Iterator<Item = &Arc<Change>>> {
        (after >= self.dropped).then(|| {
            let log = self.resources.get(resource).map(|resource| &resource.log);
            let start = log.map_or(0, |log| log.partition_point(|change| change.version <= after));
            log.into_iter().flat_map(move |log| log.range(start..))
        })
    }

    /// The changes of all resources after a version, oldest first; `None` where the log does not reach back to it.
    pub fn all_changes(&self, after: u64) -> Option<Vec<Arc<Change>>> {
        let resources = self.resources.keys();
        let changes = resources.map(|resource| self.changes(resource, after));
        let mut changes: Vec<_> =
            changes.collect::<Option<Vec<_>>>()?.into_iter().flatten().cloned().collect();
        changes.sort_by_key(|change| change.version);
        Some(changes)
    }

    /// All objects, each as if it had been created by its last write.
    pub fn everything(&self) -> Vec<Arc<Change>> {
        let objects = self
            .resources
            .iter()
            .flat_map(|(resource, of)| of.objects.iter().map(move |one| (resource, one)));
        let made = objects.map(|(resource, (key, object))| {
            let version = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
            Arc::new(Change {
                version: version.unwrap_or_default(),
                resource: Arc::clone(resource),
                key: key.clone(),
                before: None,
                after: Some(Arc::clone(object)),
            })
        });
        made.collect()
    }

    /// Lets nobody read the log from before the present version on.
    pub fn compact(&mut self) {
        self.dropped = self.compacted;
        self.compacted = self.version;
        for resource in self.resources.values_mut() {
            let gone = resource.log.partition_point(|change| change.version <= self.dropped);
            resource.log.drain(..gone);
        }
    }

    /// Writes something that is nobody's: versions go on, as they do in a cluster where others work.
    pub fn advance(&mut self, versions: u64) {
        self.version += versions;
    }
}
