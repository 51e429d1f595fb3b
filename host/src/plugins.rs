//! Which logic is in force.
//!
//! A labelled ConfigMap becomes bytes ([`source`]), a checked version ([`load`]), and the active plugin
//! ([`rollout`]); its `Plugin` ([`resource`]) says so. Reconciles see the plugins through the [`Registry`]: a
//! map that is replaced as a whole, so that a running reconcile ends on the version it began with.

pub mod load;
pub mod preview;
pub mod probation;
pub mod recording;
pub mod resource;
pub mod rollout;
pub mod shortfalls;
pub mod source;

use crate::{
    config::Limits,
    decide::{
        Unplanned,
        guest::{Function, Guest, Trace},
        plan::{Condition, Plan},
    },
    manifest::Manifest,
    object::{Gvk, LABEL_FIELDS, LABEL_OWNED_BY, Object, Selector},
    observe::{
        cache::Snapshot,
        client::Scope,
        discovery::Kind,
        reads::{Planned, Sources, View},
        watch::WatchKey,
    },
    report::Reason,
    schedule::enqueue::Subscriptions,
};
use arc_swap::ArcSwap;
use probation::Probation;
use shortfalls::Shortfalls;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A kind that a plugin needs and does not have: `KindMissing`, `KindForbidden` or `ApiUnavailable`, and which
/// kind, why, and what to do.
pub type Obstacle = (Reason, String);

/// A plugin in force: one version, and where its kinds are watched.
#[derive(Clone)]
pub struct ActivePlugin {
    /// The name of the ConfigMap and of the `Plugin`.
    pub name: Arc<str>,
    /// sha256 of the component, lower-case hex.
    pub digest: Arc<str>,
    /// The field manager of all its writes: `oarlock/<plugin>`.
    pub manager: String,
    /// What it declares.
    pub manifest: Arc<Manifest>,
    /// Its code.
    pub guest: Guest,
    /// What its calls may use.
    pub limits: Limits,
    /// The parent kind, as served.
    pub parent_kind: Arc<Kind>,
    /// Where its parents are watched.
    pub parents: WatchKey,
    /// Where its children and reads are watched.
    pub sources: Arc<Sources>,
    /// Switched off: objects wait until it is resumed.
    pub paused: bool,
    /// What keeps it from reconciling anything; its parents are told.
    pub obstacle: Option<Obstacle>,
    /// Types of the conditions that its plans have set, over all versions: whose a condition is cannot be read from
    /// an atomic list.
    pub condition_types: Arc<ConditionTypes>,
    /// Kinds of whose objects its plans own fields, over all versions.
    pub field_kinds: Arc<FieldKinds>,
    /// What the statuses of its parents should hold and cannot.
    pub shortfalls: Arc<Shortfalls>,
    /// How it does on its first objects, while it is new.
    pub probation: Option<Arc<Probation>>,
    /// Another version that is tried on a part of the objects.
    pub trial: Option<Trial>,
}

/// A version that is tried on a part of the objects.
#[derive(Clone)]
pub struct Trial {
    /// Which objects.
    pub part: Part,
    /// The version.
    pub plugin: Arc<ActivePlugin>,
}

/// A part of a plugin's objects; an object stays in it as long as its labels do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those with these labels.
    Labels(Selector),
    /// So many of a hundred, by uid.
    Percent(u64),
}

impl Part {
    /// Whether an object is in it.
    pub fn has(&self, object: &Object) -> bool {
        match self {
            Self::Labels(selector) => selector.matches(&object.labels),
            Self::Percent(percent) => xxhash_rust::xxh3::xxh3_64(object.uid.as_bytes()) % 100 < *percent,
        }
    }
}

/// Types that are kept of one plugin: a condition of a further one is taken for somebody else's once it is no
/// longer returned. Types are words of a plugin's author; nobody has dozens.
const CONDITION_TYPES: usize = 128;

/// Types of conditions that a plugin has set. They outlive the host in the status of the `Plugin`.
#[derive(Default)]
pub struct ConditionTypes(Mutex<BTreeSet<String>>);

impl ConditionTypes {
    /// Notes those of a plan; all of them so far, and whether there are new ones.
    pub fn note(&self, conditions: &[Condition]) -> (Vec<String>, bool) {
        let is_new = self.add(conditions.iter().map(|condition| &*condition.r#type));
        (self.all(), is_new)
    }

    /// Adds some; whether one of them is new.
    pub fn add<'a>(&self, added: impl IntoIterator<Item = &'a str>) -> bool {
        let mut types = self.lock();
        let before = types.len();
        for one in added {
            if types.len() < CONDITION_TYPES && !types.contains(one) {
                types.insert(one.to_owned());
            }
        }
        types.len() != before
    }

    /// All of them, sorted.
    pub fn all(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A set of strings is never half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kinds of whose objects a plugin owns fields (rule A10). They outlive the host in the status of the `Plugin`.
#[derive(Default)]
pub struct FieldKinds(Mutex<BTreeSet<Gvk>>);

impl FieldKinds {
    /// Adds some.
    pub fn add(&self, kinds: impl IntoIterator<Item = Gvk>) {
        self.lock().extend(kinds);
    }

    /// All of them.
    pub fn all(&self) -> BTreeSet<Gvk> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Gvk>> {
        // A set is never half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActivePlugin {
    /// Whether all its kinds were served when it came into force. Else it has never reconciled anything.
    pub fn is_complete(&self) -> bool {
        let Manifest { children, reads, .. } = &*self.manifest;
        children.iter().all(|gvk| self.sources.children.contains_key(gvk))
            && reads.iter().all(|read| self.sources.reads.contains_key(&read.gvk))
    }

    /// Asks it about what a view shows: its plan, checked, and whether nothing is left to do; with what the call cost and
    /// left behind. Nothing is kept of it.
    pub async fn ask(&self, function: Function, view: View) -> (Result<Planned, Unplanned>, Trace) {
        let (parent, host_namespace) = (view.parent.key.clone(), view.host_namespace.clone());
        let (answer, trace) = match self.guest.call(function, view, &self.limits).await {
            Ok(called) => (called.answer.map_err(Unplanned::Failure), called.trace),
            Err((error, trace)) => (Err(Unplanned::Call(error)), trace),
        };
        let planned = answer.and_then(|(raw, done)| {
            let plan =
                Plan::check(raw, &parent, &self.manifest, &self.sources, &host_namespace, &self.limits);
            plan.map(|plan| Planned { plan: Arc::new(plan), done }).map_err(Unplanned::Plan)
        });
        (planned, trace)
    }

    /// What it sees of an object.
    pub fn view(&self, snapshot: Snapshot, parent: Arc<Object>, host_namespace: &str, now: &str) -> View {
        View::new(
            snapshot,
            parent,
            self.manifest.clone(),
            self.sources.clone(),
            host_namespace.into(),
            now.into(),
            (self.limits.reads, self.limits.read_bytes),
        )
    }

    /// The version for one of its objects.
    pub fn of(self: &Arc<Self>, parent: &Object) -> &Arc<Self> {
        match &self.trial {
            Some(trial) if trial.part.has(parent) => &trial.plugin,
            _ => self,
        }
    }

    /// It, and the version that is tried beside it.
    pub fn versions(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.trial.as_ref().map(|trial| &*trial.plugin))
    }

    /// Every watch that must have been listed before anything is reconciled (rule R4).
    pub fn watches(&self) -> impl Iterator<Item = &WatchKey> {
        let children = self.sources.children.values();
        std::iter::once(&self.parents)
            .chain(children.chain(self.sources.reads.values()).map(|(watch, _)| watch))
            .chain(self.sources.fields.values())
    }
}

/// The watch of a child kind: our children of that kind, for all plugins together.
pub fn children_watch(gvk: &Gvk) -> WatchKey {
    WatchKey {
        gvk: gvk.clone(),
        scope: Scope { namespace: None, label_selector: Some(LABEL_OWNED_BY.to_owned()) },
    }
}

/// The watch of the objects of a kind of which plugins own fields.
pub fn fields_watch(gvk: &Gvk) -> WatchKey {
    WatchKey {
        gvk: gvk.clone(),
        scope: Scope { namespace: None, label_selector: Some(LABEL_FIELDS.to_owned()) },
    }
}

/// The watch of a parent or read kind.
pub fn selection_watch(selection: &crate::manifest::Selection) -> WatchKey {
    WatchKey {
        gvk: selection.gvk.clone(),
        scope: Scope {
            namespace: selection.namespace.clone(),
            label_selector: selection.label_selector.as_ref().map(ToString::to_string),
        },
    }
}

/// What is in force, as of one moment.
#[derive(Default)]
pub struct InForce {
    /// The plugins by name.
    pub plugins: BTreeMap<Arc<str>, Arc<ActivePlugin>>,
    /// From watches to plugins.
    pub subscriptions: Subscriptions,
}

impl InForce {
    fn new(plugins: BTreeMap<Arc<str>, Arc<ActivePlugin>>) -> Self {
        let mut subscriptions = Subscriptions::default();
        for plugin in plugins.values() {
            subscriptions.parents.entry(plugin.parents.clone()).or_default().push(plugin.name.clone());
            let children: BTreeSet<_> =
                plugin.versions().flat_map(|one| one.sources.children.values()).collect();
            for (watch, _) in children {
                let children = subscriptions.children.entry(watch.clone()).or_default();
                children.push((plugin.name.clone(), plugin.parents.clone(), plugin.parent_kind.namespaced));
            }
            let fields: BTreeSet<_> = plugin.versions().flat_map(|one| one.sources.fields.values()).collect();
            for watch in fields {
                let fields = subscriptions.fields.entry(watch.clone()).or_default();
                fields.push((plugin.name.clone(), plugin.parents.gvk.clone()));
            }
        }
        Self { plugins, subscriptions }
    }
}

/// The plugins in force; replaced as a whole.
#[derive(Default)]
pub struct Registry(ArcSwap<InForce>);

impl Registry {
    /// What is in force now.
    pub fn now(&self) -> Arc<InForce> {
        self.0.load_full()
    }

    /// Puts a version in force: reconciles that begin from now on see it.
    pub fn activate(&self, plugin: ActivePlugin) {
        let mut plugins = self.now().plugins.clone();
        plugins.insert(plugin.name.clone(), Arc::new(plugin));
        self.0.store(Arc::new(InForce::new(plugins)));
    }

    /// Takes a plugin out of force.
    pub fn remove(&self, name: &str) -> Option<Arc<ActivePlugin>> {
        let mut plugins = self.now().plugins.clone();
        let removed = plugins.remove(name)?;
        self.0.store(Arc::new(InForce::new(plugins)));
        Some(removed)
    }
}
