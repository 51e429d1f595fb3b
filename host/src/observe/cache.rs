//! Objects by watch and key, as of one moment.
//!
//! Each watch is mirrored apart: what its list and its deliveries say, and nothing else, decides what is in
//! it; so a label taken off an object removes it from the selecting watch and leaves it in the other.
//! A [`Snapshot`] is an immutable view that costs one clone of a pointer (persistent maps).
//! A response of an own write enters at once, and an older delivery never overwrites it (rule R3).

mod mirror;
#[cfg(test)]
mod tests;

use super::watch::WatchKey;
use crate::object::{Object, ObjectKey, ResourceVersion};
use imbl::OrdMap;
pub use mirror::Doubt;
use mirror::{Effect, Entry, Mirror, Name, is_covered};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What a delivery, a list or an own write changed in one watch's mirror.
#[derive(Clone, Debug)]
pub struct Change {
    /// In which mirror.
    pub watch: WatchKey,
    /// What was there before.
    pub before: Option<Arc<Object>>,
    /// What is there now.
    pub after: Option<Arc<Object>>,
    /// Whether it is the answer to a write of the host, or what the host has read for itself.
    pub is_own: bool,
    /// Whether it came with the first list of the watch: it is news to the host only.
    pub is_first_seen: bool,
}

impl Change {
    fn new(watch: &WatchKey, (before, after): Effect) -> Self {
        Self { watch: watch.clone(), before, after, is_own: false, is_first_seen: false }
    }

    /// Whether the object went back to an older version: only another history of the cluster (etcd restored
    /// from a backup) does that.
    pub fn goes_backwards(&self) -> bool {
        matches!((&self.before, &self.after), (Some(before), Some(after)) if after.version.is_older_than(&before.version))
    }
}

/// Keys and mirrors are shared, so that changing one mirror copies pointers to the others, not their texts.
type Mirrors = OrdMap<Arc<WatchKey>, Arc<Mirror>>;

/// Receives what changed in the cache; called from whoever made the change, so it must not block.
pub type OnChange = Arc<dyn Fn(&[Change]) + Send + Sync>;

/// The mirrors of all watches. Those that nobody listens to are for tests and tools.
#[derive(Default)]
pub struct Cache {
    mirrors: Mutex<Mirrors>,
    on_write: Option<OnChange>,
}

/// The cache as of one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    mirrors: Mirrors,
}

impl Cache {
    /// Empty. `on_write` is told what own writes change: their watch delivers them again, but as nothing new.
    pub fn new(on_write: OnChange) -> Self {
        Self { mirrors: Mutex::default(), on_write: Some(on_write) }
    }

    /// The state of now, which later changes leave alone.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { mirrors: self.lock().clone() }
    }

    /// Begins an empty mirror that is not synced, so that own writes are kept until its first list. Every
    /// other call that names the watch begins it too.
    pub fn open(&self, watch: &WatchKey) {
        mirror(&mut self.lock(), watch);
    }

    /// A complete list, at its version: what is not in it is gone, except own writes that are newer.
    ///
    /// A list older than what the mirror has reached ([`Snapshot::version`]) comes from another history of the
    /// cluster: it is taken as the truth, and nothing that was known before survives it.
    pub fn replace(&self, watch: &WatchKey, objects: Vec<Object>, version: &ResourceVersion) -> Vec<Change> {
        // Allocated and sorted before the lock is taken: every reader waits for it.
        let listed = objects.into_iter().map(Entry::new).collect();
        let mut mirrors = self.lock();
        let mirror = mirror(&mut mirrors, watch);
        let is_first_seen = mirror.version().is_none();
        let effects = mirror.replace(listed, version);
        effects.into_iter().map(|effect| Change { is_first_seen, ..Change::new(watch, effect) }).collect()
    }

    /// A watch delivered an object that is there, new or changed.
    pub fn applied(&self, watch: &WatchKey, object: Object) -> Option<Change> {
        let effect = mirror(&mut self.lock(), watch).applied(object);
        effect.map(|effect| Change::new(watch, effect))
    }

    /// A watch delivered an object that is gone.
    pub fn deleted(&self, watch: &WatchKey, object: &Object) -> Option<Change> {
        let effect = mirror(&mut self.lock(), watch).deleted(object);
        effect.map(|effect| Change::new(watch, effect))
    }

    /// A watch has delivered everything up to this version (a bookmark).
    pub fn reached(&self, watch: &WatchKey, version: &ResourceVersion) {
        mirror(&mut self.lock(), watch).reached(version);
    }

    /// What a watch has is not believed until its next list: it counts as not synced.
    pub fn doubt(&self, watch: &WatchKey, doubt: Doubt) {
        mirror(&mut self.lock(), watch).be_doubted(doubt);
    }

    /// The cluster has another history than the one that was followed: nothing is believed until it has been listed
    /// anew, except what has just been.
    pub fn other_history(&self, just_listed: Option<&WatchKey>) {
        let mut mirrors = self.lock();
        let others: Vec<_> = mirrors.keys().filter(|watch| Some(&***watch) != just_listed).cloned().collect();
        for watch in others {
            mirror(&mut mirrors, &watch).be_doubted(Doubt::OtherHistory);
        }
    }

    /// The response of an own write: enters every mirror whose scope it matches, and leaves those whose
    /// selector it no longer matches.
    pub fn wrote(&self, object: impl Into<Arc<Object>>) -> Vec<Change> {
        let object = object.into();
        self.in_scope(&object.key, |mirror| mirror.wrote(&object))
    }

    /// An own write has let the object go, which was being deleted and waited for nothing else.
    pub fn released(&self, object: &Object) -> Vec<Change> {
        self.in_scope(&object.key, |mirror| mirror.deleted(object))
    }

    /// The host deleted the object of this uid: until the watch says so, it counts as terminating.
    ///
    /// When it will be gone is not known here: the text of `deleted` is empty until the API server's comes.
    pub fn deleting(&self, key: &ObjectKey, uid: &str) -> Vec<Change> {
        self.in_scope(key, |mirror| mirror.deleting(Name::of(key), uid))
    }

    /// Nobody wants this watch any more.
    pub fn forget(&self, watch: &WatchKey) {
        self.lock().remove(watch);
    }

    /// Changes every mirror of this kind whose scope includes the namespace, and tells the listener.
    fn in_scope(&self, key: &ObjectKey, change: impl Fn(&mut Mirror) -> Option<Effect>) -> Vec<Change> {
        let mut mirrors = self.lock();
        let watches = in_scope(&mirrors, key);
        let changes: Vec<_> = watches
            .iter()
            .filter_map(|watch| {
                change(mirror(&mut mirrors, watch))
                    .map(|effect| Change { is_own: true, ..Change::new(watch, effect) })
            })
            .collect();
        drop(mirrors);
        if let Some(on_write) = &self.on_write
            && !changes.is_empty()
        {
            on_write(&changes);
        }
        changes
    }

    fn lock(&self) -> MutexGuard<'_, Mirrors> {
        // Every change ends with a consistent map; a panic in between is one of this file's, and is not made
        // better by a second one in every other task.
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mirror of a watch, begun if there is none.
fn mirror<'a>(mirrors: &'a mut Mirrors, watch: &WatchKey) -> &'a mut Mirror {
    if !mirrors.contains_key(watch) {
        mirrors.insert(Arc::new(watch.clone()), Arc::new(Mirror::new(&watch.scope)));
    }
    Arc::make_mut(mirrors.get_mut(watch).expect("inserted above if it was missing"))
}

/// The watches of this kind whose scope includes the namespace.
fn in_scope(mirrors: &Mirrors, key: &ObjectKey) -> Vec<Arc<WatchKey>> {
    let first = WatchKey { gvk: key.gvk.clone(), scope: super::client::Scope::default() };
    let watches = mirrors.range(first..).map(|(watch, _)| watch).take_while(|watch| watch.gvk == key.gvk);
    watches
        .filter(|watch| {
            watch.scope.namespace.is_none() || watch.scope.namespace.as_deref() == key.namespace.as_deref()
        })
        .map(Arc::clone)
        .collect()
}

impl Snapshot {
    /// Whether this watch has been listed completely.
    pub fn is_synced(&self, watch: &WatchKey) -> bool {
        self.mirrors.get(watch).is_some_and(|mirror| mirror.is_synced())
    }

    /// Why what a watch has is not believed until its next list.
    pub fn doubt(&self, watch: &WatchKey) -> Option<Doubt> {
        self.mirrors.get(watch)?.doubt()
    }

    /// How often what these watches have was not believed.
    pub fn doubts<'a>(&self, watches: impl IntoIterator<Item = &'a WatchKey>) -> u64 {
        watches.into_iter().filter_map(|watch| self.mirrors.get(watch)).map(|mirror| mirror.doubts()).sum()
    }

    /// What a watch has lost, if it has come as far as this list and has delivered what came before: `before` is
    /// the moment before the list was asked for. Objects that came, changed or went meanwhile are not among it.
    pub fn lost(
        &self,
        watch: &WatchKey,
        before: &Self,
        listed: &BTreeMap<ObjectKey, ResourceVersion>,
        at: &ResourceVersion,
    ) -> BTreeMap<ObjectKey, ResourceVersion> {
        let Some(mirror) = self.mirrors.get(watch) else { return BTreeMap::new() };
        // A version says it all: no two objects, nor two states of one, share theirs.
        let is_lost = |key: &ObjectKey, version: &ResourceVersion| {
            if let Some(present) = mirror.get(Name::of(key)) {
                // A list has the last version up to its own: an older one is of another history, which has given the
                // same versions out a second time.
                let is_contradicted =
                    version.is_older_than(&present.version) && is_covered(&present.version, at);
                return is_contradicted || !is_covered(version, &present.version);
            }
            let was_there = before.get(watch, key.namespace.as_deref(), &key.name).is_some();
            !was_there && !mirror.has_seen_go(key, version)
        };
        let unheard = listed.iter().filter(|(key, version)| is_lost(key, version));
        let still_there = mirror
            .list(None)
            .filter(|object| !listed.contains_key(&object.key) && is_covered(&object.version, at))
            .map(|object| (&object.key, &object.version));
        unheard.chain(still_there).map(|(key, version)| (key.clone(), version.clone())).collect()
    }

    /// How far this watch has come: the newest version of its list, its deliveries and its bookmarks. `None`
    /// before the first list.
    pub fn version(&self, watch: &WatchKey) -> Option<&ResourceVersion> {
        self.mirrors.get(watch).and_then(|mirror| mirror.version())
    }

    /// How many objects a watch has.
    pub fn len(&self, watch: &WatchKey) -> usize {
        self.mirrors.get(watch).map_or(0, |mirror| mirror.len())
    }

    /// One object.
    pub fn get(&self, watch: &WatchKey, namespace: Option<&str>, name: &str) -> Option<&Arc<Object>> {
        self.mirrors.get(watch)?.get(Name { namespace, name })
    }

    /// Objects of one namespace, or of all, sorted by namespace and name.
    pub fn list<'a>(
        &'a self,
        watch: &WatchKey,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        self.mirrors.get(watch).into_iter().flat_map(move |mirror| mirror.list(namespace))
    }

    /// Objects with the label `oarlock.dev/parent` of this uid, sorted by namespace and name.
    pub fn children<'a>(
        &'a self,
        watch: &WatchKey,
        parent_uid: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        self.mirrors.get(watch).into_iter().flat_map(move |mirror| mirror.children(parent_uid))
    }

    /// Shows an own write on top of this moment, whatever else has happened since.
    pub fn wrote(&mut self, object: &Arc<Object>) {
        for watch in in_scope(&self.mirrors, &object.key) {
            mirror(&mut self.mirrors, &watch).wrote(object);
        }
    }

    /// Leaves an object of this moment out.
    pub fn leave_out(&mut self, object: &Object) {
        for watch in in_scope(&self.mirrors, &object.key) {
            mirror(&mut self.mirrors, &watch).leave_out(object);
        }
    }
}
