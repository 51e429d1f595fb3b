//! A guest that does what its object says, good or bad: `spec.mode` selects the behaviour, `spec.plan` the answer.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_sdk::{
    Child, Condition, ConditionStatus, Event, EventType, Failure, Manifest, Metadata, Object, Plan, Reads,
    Reconciler, Teardown,
};
use serde::Deserialize;
use serde_json::{Value, json};

#[cfg(target_arch = "wasm32")]
mod exports;
mod hostile;
mod loops;
mod observed;

/// What a test asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The behaviour; `normal` unless said otherwise.
    pub mode: String,
    /// The text in the `ConfigMap`.
    pub text: String,
    /// Must be at least 1.
    pub size: u32,
    /// For modes `reads`, `note` and `note-elsewhere`: the `ConfigMap` to copy, or to tell the text of.
    pub read: String,
    /// For mode `reads`: the `ConfigMap`s to name.
    pub selector: String,
    /// For mode `note-elsewhere`: where to read. For mode `reads` of a cluster-scoped parent: also where to have the
    /// child.
    pub namespace: String,
    /// The whole answer, whatever the mode.
    pub plan: Option<Script>,
    /// While deleted: `done` (also if empty), `wait` until annotated `release: "true"`, `fail` or `panic`.
    pub finalize: String,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            mode: "normal".to_owned(),
            text: String::new(),
            size: 1,
            read: String::new(),
            selector: String::new(),
            namespace: String::new(),
            plan: None,
            finalize: String::new(),
        }
    }
}

/// A plan as a test writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    #[serde(default)]
    children: Vec<Value>,
    status: Option<Value>,
    #[serde(default)]
    conditions: Vec<ScriptCondition>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    events: Vec<ScriptEvent>,
    requeue_after_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct ScriptCondition {
    r#type: String,
    status: String,
    reason: String,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
struct ScriptEvent {
    r#type: String,
    reason: String,
    #[serde(default)]
    note: String,
}

impl Script {
    fn plan(&self) -> Plan {
        Plan {
            children: self.children.iter().cloned().map(Child::from).collect(),
            status: self.status.clone(),
            conditions: self.conditions.iter().map(ScriptCondition::condition).collect(),
            metadata: Metadata { labels: self.labels.clone(), annotations: self.annotations.clone() },
            events: self.events.iter().map(ScriptEvent::event).collect(),
            requeue_after: self.requeue_after_ms.map(Duration::from_millis),
        }
    }
}

impl ScriptCondition {
    fn condition(&self) -> Condition {
        let status = match &*self.status {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        };
        Condition::new(&*self.r#type, status, &*self.reason, &*self.message)
    }
}

impl ScriptEvent {
    fn event(&self) -> Event {
        let type_ = if self.r#type == "Warning" { EventType::Warning } else { EventType::Normal };
        Event { type_, reason: self.reason.clone(), note: self.note.clone() }
    }
}

type Widget = Object<Spec>;

/// The well-formed half of the guest.
pub struct Widgets;

impl Reconciler for Widgets {
    type Object = Widget;

    fn manifest() -> Manifest {
        if cfg!(feature = "cluster") {
            return Manifest::new("cases.example.com/v1", "ClusterWidget")
                .children([("v1", "Namespace"), ("v1", "ConfigMap"), ("v1", "PersistentVolume")])
                .children([("apiextensions.k8s.io/v1", "CustomResourceDefinition")])
                .children([("cases.example.com/v1", "Gadget")])
                .reads([("v1", "ConfigMap")]);
        }
        if cfg!(feature = "beside") {
            return Manifest::new("cases.example.com/v1", "Widget")
                .without_status()
                .children([("v1", "ConfigMap")]);
        }
        let manifest = Manifest::new("cases.example.com/v1", "Widget")
            .children([("v1", "ConfigMap"), ("v1", "Service"), ("apps/v1", "Deployment")])
            .children([("apps/v1", "StatefulSet"), ("batch/v1", "Job")])
            .reads([("v1", "ConfigMap")]);
        let manifest = if cfg!(feature = "finalizes") { manifest.finalizes() } else { manifest };
        let manifest = if cfg!(feature = "gadgets") {
            manifest.children([("cases.example.com/v1", "Gadget")])
        } else {
            manifest
        };
        if cfg!(any(feature = "v2", feature = "fewer", feature = "failing")) {
            manifest.version("0.2.0")
        } else {
            manifest
        }
    }

    fn reconcile(widget: &Widget, reads: &Reads) -> Result<Plan, Failure> {
        if cfg!(feature = "failing") {
            hostile::fail();
        }
        if cfg!(feature = "beside") {
            let suffix = if cfg!(feature = "beyond") { "beyond" } else { "beside" };
            let child = config_map(&format!("{}-{suffix}", widget.metadata.name), &widget.spec.text);
            let mut plan = Plan { children: vec![child.into()], ..Plan::default() };
            plan.metadata.labels.insert(format!("cases.example.com/{suffix}"), "true".to_owned());
            return Ok(plan);
        }
        if cfg!(feature = "fewer") {
            return Ok(Plan { conditions: vec![synced()], ..Plan::default() });
        }
        match &widget.spec.plan {
            Some(script) => Ok(script.plan()),
            None => by_mode(widget, reads),
        }
    }

    fn finalize(widget: &Widget, _reads: &Reads) -> Result<Teardown, Failure> {
        let is_released = widget.metadata.annotations.get("release").is_some_and(|release| release == "true");
        match &*widget.spec.finalize {
            "fail" => Err(Failure::transient("FinalizeFailed", "told to fail while deleted")),
            "panic" => panic!("told to panic while deleted"),
            "wait" if !is_released => {
                let goodbye = config_map(&format!("{}-bye", widget.metadata.name), "bye");
                Ok(Teardown::waiting(Plan { children: vec![goodbye.into()], ..Plan::default() }))
            }
            _ => Ok(Teardown::done()),
        }
    }
}

fn by_mode(widget: &Widget, reads: &Reads) -> Result<Plan, Failure> {
    let spec = &widget.spec;
    let mut plan = normal(widget);
    match &*spec.mode {
        "normal" => assert!(spec.size >= 1, "size must be >= 1, got {}", spec.size),
        "panic" => panic!("size must be >= 1, got 0"),
        "transient" => return Err(Failure::transient("Flaky", "told to fail for now")),
        "transient-at" => {
            return Err(Failure::transient("Flaky", format!("told to fail at {}", reads.now())));
        }
        "permanent" => return Err(Failure::permanent("Broken", "told to fail for good")),
        "no-name" => plan.children.push(json_child(&json!({"generateName": "made-up-"}))),
        "bad-name" => {
            plan.children = ["c1", "Bad_Name", "c3"].map(|name| config_map(name, &spec.text).into()).into();
        }
        "undeclared-kind" => plan.children.push(Child::from(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{}-secret", widget.metadata.name)},
        }))),
        "other-namespace" => {
            let name = format!("{}-far", widget.metadata.name);
            plan.children.push(json_child(&json!({"name": name, "namespace": "other"})));
        }
        "foreign-label" => plan.children.push(json_child(&json!({
            "name": format!("{}-foreign", widget.metadata.name),
            "labels": {"oarlock.dev/owned-by": "somebody-else"},
        }))),
        "read-undeclared" => drop(reads.get::<Value>(("v1", "Secret"), "any")?),
        "read-elsewhere" => drop(reads.get_in::<Value>("kube-system", ("v1", "ConfigMap"), "any")?),
        "bad-selector" => drop(reads.list::<Value>(("v1", "ConfigMap"), "a in b")?),
        "reads" => copy(widget, reads, &mut plan)?,
        "clock" => plan.status = Some(json!({"note": reads.now()})),
        "random" => plan.children = vec![config_map(&child_name(widget), &reads.now()).into()],
        "note-elsewhere" => {
            let found: Option<Value> = reads.get_in(&spec.namespace, ("v1", "ConfigMap"), &spec.read)?;
            plan.status = Some(json!({"note": found.map(|found| found["data"]["text"].clone())}));
        }
        "note" => plan.status = Some(json!({"note": text_of(&spec.read, reads)?})),
        "wasi" => plan.status = Some(json!({"note": hostile::reach_out()})),
        "previous" => plan.status = Some(json!({"note": next(reads)?})),
        "children" => plan.status = Some(json!({"note": observed(reads)?})),
        "repeat" => plan.children = observed::repeat(widget, reads)?,
        "requeue" => plan.requeue_after = Some(Duration::from_secs(2)),
        "long-message" => {
            plan.conditions.push(Condition::new("Long", true, "Long", "ä".repeat(47_012 / 2)));
            plan.conditions.push(Condition::new("Short", true, "Short", "short"));
        }
        "bad-reason" => plan.conditions.push(Condition::new("Odd", true, "not one word!", "")),
        "events" => plan.events = vec![Event::normal("Told", "all is well"), Event::warning("Worried", "or not")],
        "events-at" => {
            plan.events = vec![Event::normal("Told", format!("it is {}", reads.now()))];
            plan.requeue_after = Some(Duration::from_millis(300));
        }
        "many-events" => plan.events = (0..10_000).map(|i| Event::normal("Many", format!("event {i}"))).collect(),
        "metadata" => {
            plan.metadata.labels.insert("cases.example.com/seen".to_owned(), "true".to_owned());
            plan.metadata.annotations.insert("cases.example.com/text".to_owned(), spec.text.clone());
        }
        "logs" => {
            oarlock_sdk::info!("the text is {:?}", spec.text);
            oarlock_sdk::warn!("and that is all");
        }
        _ if loops::run(widget, reads, &mut plan)? => {}
        mode => hostile::run(mode, reads)?,
    }
    Ok(plan)
}

/// One `ConfigMap` with the text, and a condition that says so.
fn normal(widget: &Widget) -> Plan {
    Plan {
        children: vec![config_map(&child_name(widget), &widget.spec.text).into()],
        conditions: vec![synced()],
        ..Plan::default()
    }
}

fn synced() -> Condition {
    Condition::new("Synced", true, "Written", "The text is in its ConfigMap.")
}

fn child_name(widget: &Widget) -> String {
    format!("{}-cm", widget.metadata.name)
}

fn config_map(name: &str, text: &str) -> Value {
    let mut data = json!({"text": text});
    if cfg!(feature = "v2") {
        data["version"] = "2".into();
    }
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn json_child(metadata: &Value) -> Child {
    Child::from(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "hi"}}),
    )
}

/// Puts the data of one `ConfigMap` and the names of others into the child.
fn copy(widget: &Widget, reads: &Reads, plan: &mut Plan) -> Result<(), Failure> {
    let spec = &widget.spec;
    let (kind, namespace) = (("v1", "ConfigMap"), &*spec.namespace);
    let (source, found): (Option<Value>, Vec<Value>) = if namespace.is_empty() {
        (reads.get(kind, &spec.read)?, reads.list(kind, &spec.selector)?)
    } else {
        (reads.get_in(namespace, kind, &spec.read)?, reads.list_in(namespace, kind, &spec.selector)?)
    };
    let names: Vec<_> = found.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    let mut child = config_map(&child_name(widget), &spec.text);
    if let Some(Value::Object(data)) = source.map(|source| source["data"].clone()) {
        child["data"] = Value::Object(data);
    }
    child["data"]["names"] = names.join(",").into();
    if !namespace.is_empty() {
        child["metadata"]["namespace"] = namespace.into();
    }
    plan.children = vec![child.into()];
    Ok(())
}

/// The text in a `ConfigMap`; empty where there is none.
fn text_of(config_map: &str, reads: &Reads) -> Result<String, Failure> {
    let found: Option<Value> = reads.get(("v1", "ConfigMap"), config_map)?;
    Ok(found.and_then(|found| found["data"]["text"].as_str().map(str::to_owned)).unwrap_or_default())
}

/// One more than the number in the previous status.
fn next(reads: &Reads) -> Result<String, Failure> {
    let previous: Option<Value> = reads.previous_status()?;
    let note = previous.as_ref().and_then(|status| status["note"].as_str());
    let count: u64 = note.and_then(|note| note.parse().ok()).unwrap_or(0);
    Ok((count + 1).to_string())
}

/// The children and their readiness, one after the other.
fn observed(reads: &Reads) -> Result<String, Failure> {
    let children = reads.children()?;
    let texts: Vec<_> =
        children.iter().map(|child| format!("{} {} {}", child.kind, child.name, child.readiness)).collect();
    Ok(texts.join(", "))
}
