//! One call of a guest with everything that it saw: repeated anywhere, bit for bit, without a cluster.

use crate::{
    config::Limits,
    decide::{
        guest::{CallError, Called, Function, Guest, Trace},
        plan::{Failure, RawPlan},
    },
    manifest::Manifest,
    object::{Gvk, Object, ResourceVersion, Selector},
    observe::{
        cache::{Cache, Snapshot},
        reads::{Read, Recorded, Sources, View},
        watch::WatchKey,
    },
    plugins::{ActivePlugin, children_watch, selection_watch},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The version of the format.
const API_VERSION: &str = "oarlock.dev/v1alpha1";
const KIND: &str = "Recording";
/// In the place of what is in a Secret.
const MASKED: &str = "Kioq";

/// A call and what it saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recording {
    api_version: String,
    kind: String,
    /// The plugin.
    pub plugin: String,
    /// The version that its manifest states.
    pub version: String,
    /// sha256 of its component.
    pub digest: String,
    /// The component, base64; absent unless it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// Whether `finalize` was called, rather than `reconcile`.
    #[serde(default)]
    pub finalize: bool,
    /// Whether what is in Secrets was masked: then the answer may be another one.
    #[serde(default)]
    pub masked: bool,
    /// The time of the call.
    now: String,
    /// The host's namespace.
    host_namespace: String,
    limits: Allowed,
    /// The parent, whole; its text is what the guest was given.
    parent: Box<RawValue>,
    /// Kinds that the plugin declares, with whether their objects have a namespace.
    kinds: Vec<KindScope>,
    /// Objects that were read, each once.
    objects: Vec<Box<RawValue>>,
    /// What was asked, in the order of the questions.
    pub reads: Vec<String>,
    /// What the guest said.
    pub answer: Value,
    /// What it took.
    pub fuel: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KindScope {
    api_version: String,
    kind: String,
    namespaced: bool,
}

/// The limits that bear on an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Allowed {
    memory_bytes: usize,
    fuel: u64,
    deadline_milliseconds: u64,
    output_bytes: usize,
    log_bytes: usize,
    reads: usize,
    read_bytes: usize,
}

/// What a call came to when it was made again.
#[derive(Debug, PartialEq)]
pub struct Replayed {
    /// What was asked.
    pub reads: Vec<String>,
    /// What the guest said.
    pub answer: Value,
    /// What it took.
    pub fuel: u64,
}

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no recording.
    #[error("the file is no recording")]
    Json(#[source] serde_json::Error),
    /// Of another version, or of something else.
    #[error("the file is {found}, and a {KIND} of {API_VERSION} is expected")]
    Format {
        /// What it says it is.
        found: String,
    },
    /// An object in it cannot be read.
    #[error("an object of the recording cannot be read: {0}")]
    Object(String),
    /// The component declares a kind that the recorded one did not.
    #[error("the component declares {gvk}, of which the recording has nothing; record the call with it")]
    Kind {
        /// The kind.
        gvk: Gvk,
    },
}

impl Recording {
    /// Calls a guest, and keeps everything that it saw. What is in Secrets is masked, unless it is asked for.
    ///
    /// # Errors
    /// An object of the snapshot is no JSON, which no API server delivers.
    pub async fn make(
        plugin: &ActivePlugin,
        snapshot: &Snapshot,
        parent: &Arc<Object>,
        (host_namespace, now): (&str, &str),
        with_secrets: bool,
    ) -> Result<Self, Error> {
        let finalize = parent.is_terminating() && plugin.manifest.finalizes;
        let function = if finalize { Function::Finalize } else { Function::Reconcile };
        let view = plugin.view(snapshot.clone(), parent.clone(), host_namespace, now);
        let called = plugin.guest.call(function, view, &plugin.limits).await;
        let trace = trace(&called);
        let (mut objects, mut masked) = (Vec::new(), false);
        for object in seen(snapshot, &plugin.sources, parent, &trace.reads) {
            objects.push(text(&object, with_secrets, &mut masked)?);
        }
        let parent = text(parent, with_secrets, &mut masked)?;
        let scopes = plugin.sources.children.iter().chain(&plugin.sources.reads);
        let kinds: BTreeMap<&Gvk, bool> = scopes.map(|(gvk, (_, namespaced))| (gvk, *namespaced)).collect();
        let kinds = kinds.into_iter().map(|(gvk, namespaced)| KindScope {
            api_version: gvk.api_version(),
            kind: gvk.kind.to_string(),
            namespaced,
        });
        Ok(Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            plugin: plugin.name.to_string(),
            version: plugin.manifest.version.clone(),
            digest: plugin.digest.to_string(),
            component: None,
            finalize,
            masked,
            now: now.to_owned(),
            host_namespace: host_namespace.to_owned(),
            limits: Allowed::of(&plugin.limits),
            parent,
            kinds: kinds.collect(),
            objects,
            reads: trace.reads.iter().map(|(read, _)| read.to_string()).collect(),
            fuel: trace.fuel,
            answer: answer(&called),
        })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// It is no recording, or one of another version.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let type_meta: TypeMeta = serde_json::from_str(text).map_err(Error::Json)?;
        if type_meta.api_version != API_VERSION || type_meta.kind != KIND {
            return Err(Error::Format { found: format!("{} of {}", type_meta.kind, type_meta.api_version) });
        }
        serde_json::from_str(text).map_err(Error::Json)
    }

    /// Calls a guest again with what was seen then.
    ///
    /// # Errors
    /// It declares a kind of which nothing was recorded, or an object cannot be read.
    pub async fn replay(&self, guest: &Guest, manifest: Arc<Manifest>) -> Result<Replayed, Error> {
        let sources = self.sources(&manifest)?;
        let parent = decode(&self.parent, &manifest.parent.gvk)?;
        let cache = Cache::new(Arc::new(|_| {}));
        let watches: BTreeSet<_> =
            sources.children.values().chain(sources.reads.values()).map(|(watch, _)| watch).collect();
        for watch in watches {
            let mut objects = Vec::new();
            for text in self.objects.iter().filter(|text| is_of(text, &watch.gvk)) {
                let object = decode(text, &watch.gvk)?;
                if is_watched(&object, watch) {
                    objects.push(object);
                }
            }
            cache.open(watch);
            cache.replace(watch, objects, &ResourceVersion::new("1"));
        }
        let limits = self.limits.limits();
        let view = View::new(
            cache.snapshot(),
            Arc::new(parent),
            manifest,
            Arc::new(sources),
            (*self.host_namespace).into(),
            (*self.now).into(),
            (limits.reads, limits.read_bytes),
        );
        let function = if self.finalize { Function::Finalize } else { Function::Reconcile };
        let called = guest.call(function, view, &limits).await;
        let trace = trace(&called);
        let reads = trace.reads.iter().map(|(read, _)| read.to_string()).collect();
        Ok(Replayed { reads, fuel: trace.fuel, answer: answer(&called) })
    }

    fn sources(&self, manifest: &Manifest) -> Result<Sources, Error> {
        let scope = |gvk: &Gvk| {
            let mut kinds = self.kinds.iter();
            let found = kinds.find(|kind| Gvk::new(&kind.api_version, &kind.kind) == *gvk);
            found.map(|kind| kind.namespaced).ok_or_else(|| Error::Kind { gvk: gvk.clone() })
        };
        let mut sources = Sources::new((*self.plugin).into());
        for kind in &self.kinds {
            // Children of earlier versions may be of any of them.
            let gvk = Gvk::new(&kind.api_version, &kind.kind);
            sources.children.insert(gvk.clone(), (children_watch(&gvk), kind.namespaced));
        }
        for gvk in &manifest.children {
            scope(gvk)?;
        }
        for read in &manifest.reads {
            sources.reads.insert(read.gvk.clone(), (selection_watch(read), scope(&read.gvk)?));
        }
        Ok(sources)
    }
}

impl Allowed {
    fn of(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes,
            fuel: limits.fuel,
            deadline_milliseconds: u64::try_from(limits.deadline.as_millis()).unwrap_or(u64::MAX),
            output_bytes: limits.output_bytes,
            log_bytes: limits.log_bytes,
            reads: limits.reads,
            read_bytes: limits.read_bytes,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.memory_bytes,
            fuel: self.fuel,
            deadline: Duration::from_millis(self.deadline_milliseconds),
            output_bytes: self.output_bytes,
            log_bytes: self.log_bytes,
            reads: self.reads,
            read_bytes: self.read_bytes,
            ..Limits::STANDARD
        }
    }
}

type CallResult = Result<Called, (CallError, Trace)>;

fn trace(called: &CallResult) -> &Trace {
    match called {
        Ok(called) => &called.trace,
        Err((_, trace)) => trace,
    }
}

/// What a guest said, for comparing: `plan`, `failure` or `error`.
fn answer(called: &CallResult) -> Value {
    match called {
        Ok(Called { answer: Ok((plan, done)), .. }) => json!({"plan": plan_to_json(plan), "done": done}),
        Ok(Called { answer: Err(Failure { transient, reason, message }), .. }) => {
            json!({"failure": {"transient": transient, "reason": reason, "message": message}})
        }
        Err((error, _)) => json!({"error": error.to_string()}),
    }
}

/// JSON of a text, or the text where it is none.
fn loose(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn plan_to_json(plan: &RawPlan) -> Value {
    let conditions = plan.conditions.iter().map(|one| {
        json!({"type": one.r#type, "status": one.status.as_str(), "reason": one.reason, "message": one.message})
    });
    let events =
        plan.events.iter().map(|one| json!({"warning": one.warning, "reason": one.reason, "note": one.note}));
    json!({
        "children": plan.children.iter().map(|child| loose(child)).collect::<Vec<_>>(),
        "status": plan.status.as_deref().map(loose),
        "conditions": conditions.collect::<Vec<_>>(),
        "metadata": plan.metadata.as_deref().map(loose),
        "events": events.collect::<Vec<_>>(),
        "requeueAfterMilliseconds": plan.requeue_after,
    })
}

/// The objects behind the answers to reads, each once.
fn seen(snapshot: &Snapshot, sources: &Sources, parent: &Object, reads: &[Recorded]) -> Vec<Arc<Object>> {
    let mut found: BTreeMap<_, Arc<Object>> = BTreeMap::new();
    let mut keep = |object: &Arc<Object>| drop(found.insert(object.key.clone(), object.clone()));
    for (read, _) in reads {
        match read {
            Read::Get { watch, namespace, name } => {
                snapshot.get(watch, namespace.as_deref(), name).into_iter().for_each(&mut keep);
            }
            Read::List { watch, namespace, selector } => {
                let objects = snapshot.list(watch, namespace.as_deref());
                let is_selected =
                    |object: &&Arc<Object>| selector.as_ref().is_none_or(|one| one.matches(&object.labels));
                objects.filter(is_selected).for_each(&mut keep);
            }
            Read::Children => {
                for (watch, _) in sources.children.values() {
                    snapshot.children(watch, &parent.uid).for_each(&mut keep);
                }
            }
            Read::PreviousStatus | Read::Clock => {}
        }
    }
    found.into_values().collect()
}

/// What an object is.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    api_version: String,
    kind: String,
}

fn decode(text: &RawValue, gvk: &Gvk) -> Result<Object, Error> {
    Object::decode(gvk, text.get()).map_err(|error| Error::Object(error.to_string()))
}

fn is_of(text: &RawValue, gvk: &Gvk) -> bool {
    let type_meta: TypeMeta = serde_json::from_str(text.get()).unwrap_or_default();
    type_meta.api_version == gvk.api_version() && type_meta.kind == *gvk.kind
}

fn is_watched(object: &Object, watch: &WatchKey) -> bool {
    let scope = &watch.scope;
    let is_in = |namespace: &String| object.key.namespace.as_deref() == Some(namespace);
    let selector = scope.label_selector.as_deref().and_then(|selector| Selector::parse(selector).ok());
    scope.namespace.as_ref().is_none_or(is_in)
        && selector.is_none_or(|selector| selector.matches(&object.labels))
}

/// An object's text, masked if it is a Secret.
fn text(object: &Object, with_secrets: bool, masked: &mut bool) -> Result<Box<RawValue>, Error> {
    let failed = |error: serde_json::Error| Error::Object(error.to_string());
    let mut text = object.to_json();
    let is_secret = object.key.gvk.group.is_empty() && &*object.key.gvk.kind == "Secret";
    if is_secret && !with_secrets {
        let mut value: Value = serde_json::from_str(&text).map_err(failed)?;
        for value in
            value.get_mut("data").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
        {
            *value = MASKED.into();
            *masked = true;
        }
        text = value.to_string();
    }
    RawValue::from_string(text).map_err(failed)
}
