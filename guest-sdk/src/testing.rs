//! Runs a [`Reconciler`] natively, on an in-memory cluster read from YAML.
//!
//! ```
//! use oarlock_sdk::testing::Cluster;
//! # use oarlock_sdk::{Condition, Failure, Manifest, Object, Plan, Readiness, Reads, Reconciler};
//! # struct Sites;
//! # impl Reconciler for Sites {
//! #     type Object = Object<serde_json::Value>;
//! #     fn manifest() -> Manifest {
//! #         Manifest::new("example.com/v1", "Site").children([("apps/v1", "Deployment")])
//! #     }
//! #     fn reconcile(_: &Self::Object, reads: &Reads) -> Result<Plan, Failure> {
//! #         let ready = reads.children()?.all_ready();
//! #         Ok(Plan { conditions: vec![Condition::new("Available", ready, "X", "")], ..Plan::default() })
//! #     }
//! # }
//!
//! let cluster = Cluster::from_yaml("
//! apiVersion: example.com/v1
//! kind: Site
//! metadata: {namespace: demo, name: blog}
//! spec: {image: nginx}
//! ");
//! let outcome = cluster.reconcile::<Sites>("demo", "blog")?;
//! assert_eq!(outcome.condition("Available").status, false.into());
//!
//! let cluster = cluster.child("Deployment", "blog", Readiness::Ready);
//! let outcome = cluster.reconcile::<Sites>("demo", "blog")?;
//! assert_eq!(outcome.condition("Available").status, true.into());
//! # Ok::<_, Failure>(())
//! ```
//!
//! Everything here is for tests, so what a test got wrong panics and says why.

use std::cell::RefCell;

use serde_json::{Map, Value};

use crate::{Condition, Failure, Level, Manifest, Plan, Readiness, Reads, Reconciler, object};

mod selector;
mod world;

pub use world::Read;
pub(crate) use world::World;

thread_local! {
    static LOG: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn log(level: Level, message: &str) {
    LOG.with_borrow_mut(|lines| lines.push((level, message.to_owned())));
}

/// What a plugin can see.
#[derive(Clone, Debug)]
pub struct Cluster {
    objects: Vec<Value>,
    children: Vec<(String, String, Readiness)>,
    now: String,
}

impl Cluster {
    /// A cluster with the objects of a YAML file, which may hold several documents.
    ///
    /// Parents keep their `status`: it is what [`Reads::previous_status`] answers. The time is
    /// `2026-01-01T00:00:00Z`.
    ///
    /// # Panics
    ///
    /// If the text is not YAML.
    pub fn from_yaml(yaml: &str) -> Self {
        let objects = serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("fixture: {error}"));
        Self { objects, children: Vec::new(), now: "2026-01-01T00:00:00Z".to_owned() }
    }

    /// Adds an object, or replaces the one of the same kind, namespace and name.
    pub fn with(mut self, object: Value) -> Self {
        self.objects.retain(|other| world::identity(other) != world::identity(&object));
        self.objects.push(object);
        self
    }

    /// Says that the parent has a child, and how far it is.
    pub fn child(mut self, kind: &str, name: &str, readiness: Readiness) -> Self {
        self.children.retain(|(other_kind, other_name, _)| (&**other_kind, &**other_name) != (kind, name));
        self.children.push((kind.to_owned(), name.to_owned(), readiness));
        self
    }

    /// Sets the time, in RFC 3339.
    pub fn now(self, now: &str) -> Self {
        Self { now: now.to_owned(), ..self }
    }

    /// Calls [`Reconciler::reconcile`] for one parent; `namespace` is empty for a cluster-scoped one.
    ///
    /// # Errors
    ///
    /// The plugin's own, and those of the SDK for an object that does not fit.
    ///
    /// # Panics
    ///
    /// If there is no such parent.
    pub fn reconcile<R: Reconciler>(&self, namespace: &str, name: &str) -> Result<Outcome, Failure> {
        let manifest = R::manifest();
        let parent = self.parent(&manifest, namespace, name);
        self.call(&manifest, &parent, |object, reads| {
            R::reconcile(&object::parse(object)?, reads).map(|plan| (plan, false))
        })
    }

    /// Calls [`Reconciler::finalize`] for one parent, which gets a deletion time if it has none.
    ///
    /// # Errors
    ///
    /// As for [`Cluster::reconcile`].
    ///
    /// # Panics
    ///
    /// If there is no such parent.
    pub fn finalize<R: Reconciler>(&self, namespace: &str, name: &str) -> Result<Outcome, Failure> {
        let manifest = R::manifest();
        let mut parent = self.parent(&manifest, namespace, name);
        let deletion = &mut parent["metadata"]["deletionTimestamp"];
        if deletion.is_null() {
            *deletion = self.now.as_str().into();
        }
        self.call(&manifest, &parent, |object, reads| {
            R::finalize(&object::parse(object)?, reads).map(|teardown| (teardown.plan, teardown.done))
        })
    }

    fn parent(&self, manifest: &Manifest, namespace: &str, name: &str) -> Value {
        let kind = &manifest.parent_selection().kind;
        let identity = [&kind.api_version, &kind.kind, namespace, name];
        let parent = self.objects.iter().find(|object| world::identity(object) == identity);
        parent.cloned().unwrap_or_else(|| panic!("no {} {namespace}/{name} in the cluster", kind.kind))
    }

    fn call(
        &self,
        manifest: &Manifest,
        parent: &Value,
        plan: impl FnOnce(&str, &Reads) -> Result<(Plan, bool), Failure>,
    ) -> Result<Outcome, Failure> {
        LOG.take();
        let object = world::without(parent, &["status"]).to_string();
        let source = World::new(manifest, parent, &self.objects, &self.children, &self.now);
        let reads = Reads { source };
        let (plan, done) = plan(&object, &reads)?;
        Ok(Outcome { plan, done, reads: reads.source.into_records(), log: LOG.take() })
    }
}

/// What one call decided, and on which grounds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The plan, or that of the teardown.
    pub plan: Plan,
    /// Whether the teardown is done; false for a reconcile.
    pub done: bool,
    /// What was read, in order.
    pub reads: Vec<Read>,
    /// What was logged, in order.
    pub log: Vec<(Level, String)>,
}

impl Outcome {
    /// One child of the plan.
    ///
    /// # Panics
    ///
    /// If the plan has no such child.
    pub fn child(&self, kind: &str, name: &str) -> Value {
        let mut children = self.children();
        let position =
            children.iter().position(|child| child["kind"] == kind && child["metadata"]["name"] == name);
        let position = position.unwrap_or_else(|| panic!("no child {kind} {name} among {children:#?}"));
        children.swap_remove(position)
    }

    /// All children of the plan.
    ///
    /// # Panics
    ///
    /// If one of them is not JSON.
    pub fn children(&self) -> Vec<Value> {
        let parse =
            |json: &str| serde_json::from_str(json).unwrap_or_else(|error| panic!("child: {error}: {json}"));
        self.plan.children.iter().map(|child| parse(child.as_json())).collect()
    }

    /// One condition of the plan.
    ///
    /// # Panics
    ///
    /// If the plan has no such condition.
    pub fn condition(&self, type_: &str) -> &Condition {
        let conditions = &self.plan.conditions;
        let condition = conditions.iter().find(|condition| condition.type_ == type_);
        condition.unwrap_or_else(|| panic!("no condition {type_} among {conditions:#?}"))
    }
}

/// The fields of an object, or none of something else.
fn fields(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}
