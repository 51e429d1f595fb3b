//! Sequences of requests, as data.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Kinds, and where their objects are.
pub(super) const KINDS: [(&str, &str); 7] = [
    ("ConfigMap", "/api/v1/namespaces/NS/configmaps"),
    ("Secret", "/api/v1/namespaces/NS/secrets"),
    ("Service", "/api/v1/namespaces/NS/services"),
    ("Lease", "/apis/coordination.k8s.io/v1/namespaces/NS/leases"),
    ("Thing", "/apis/rec.example.com/v1/namespaces/NS/things"),
    ("Plain", "/apis/rec.example.com/v1/namespaces/NS/plains"),
    ("Global", "/apis/rec.example.com/v1/globals"),
];

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// One request. `NS` stands for the sequence's namespace; in query and body, texts that begin with `$` stand for what
/// was answered before.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Op {
    pub(super) method: String,
    pub(super) path: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) query: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) content_type: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) accept: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) body: Value,
}

impl Op {
    fn new(method: &str, path: &str, content_type: &str, body: Value) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: BTreeMap::new(),
            content_type: content_type.to_owned(),
            accept: String::new(),
            body,
        }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.query.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A watch that ends soon.
    pub(super) fn watch(collection: &str, selector: &str, from: &str) -> Self {
        let op =
            Self::new("GET", collection, "", Value::Null).with("watch", "true").with("resourceVersion", from);
        op.with("timeoutSeconds", "1").with("labelSelector", selector)
    }
}

/// The sequence of a seed.
pub(super) fn sequence(seed: u64) -> Vec<Op> {
    let mut dice = Dice { rng: Rng::with_seed(seed) };
    let count = dice.rng.usize(15..40);
    // On few kinds, so that operations meet.
    let kinds = [dice.rng.usize(..KINDS.len()), dice.rng.usize(..KINDS.len())];
    dice.ops(count, &kinds)
}

/// A sequence about `ConfigMap`s.
pub(super) fn config_maps(seed: u64) -> Vec<Op> {
    Dice { rng: Rng::with_seed(seed) }.ops(20, &[0])
}

struct Dice {
    rng: Rng,
}

impl Dice {
    fn ops(&mut self, count: usize, kinds: &[usize]) -> Vec<Op> {
        let mut ops: Vec<_> = (0..count).map(|_| self.op(kinds)).collect();
        if self.chance(4) {
            ops.extend(end_of_namespace());
        }
        ops
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())].clone()
    }

    fn chance(&mut self, of: u8) -> bool {
        self.rng.u8(..of) == 0
    }

    fn op(&mut self, kinds: &[usize]) -> Op {
        let (kind, collection) = KINDS[self.one(kinds)];
        let name = self.name(kind);
        let path = format!("{collection}/{name}");
        let has_status = kind == "Thing" || kind == "Global";
        let is_status = has_status && self.chance(4);
        let place = if is_status { format!("{path}/status") } else { path.clone() };
        let op = match self.rng.u8(..100) {
            0..14 => {
                let mut body = self.object(kind, &name);
                match self.rng.u8(..12) {
                    // A Service without a name is refused for its address first.
                    0 if kind != "Service" => {
                        let metadata = body["metadata"].as_object_mut();
                        metadata.map(|metadata| metadata.remove("name"));
                        if self.chance(2) {
                            body["metadata"]["generateName"] = "NS-gen-".into();
                        }
                    }
                    1 => body["metadata"]["resourceVersion"] = "1".into(),
                    2 if collection.contains("/namespaces/") => {
                        body["metadata"]["namespace"] = "elsewhere".into();
                    }
                    3 => body["metadata"]["name"] = "Bad_Name".into(),
                    4 => body["kind"] = "Other".into(),
                    _ => {}
                }
                Op::new("POST", collection, JSON, body)
            }
            14..20 => {
                let op = Op::new("GET", &place, "", Value::Null);
                if self.chance(3) {
                    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1".to_owned();
                    Op { accept, ..op }
                } else {
                    op
                }
            }
            20..28 => self.list(collection, &name),
            28..38 => {
                let mut body = self.object(kind, &name);
                let version = ["$version:", "$version:", "$version:", "$before:", ""];
                match self.one(&version) {
                    "" => {}
                    version => body["metadata"]["resourceVersion"] = format!("{version}{path}").into(),
                }
                match self.rng.u8(..8) {
                    0 => body["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000".into(),
                    1 => body["metadata"]["uid"] = format!("$uid:{path}").into(),
                    2 => body["metadata"]["name"] = "other".into(),
                    _ => {}
                }
                Op::new("PUT", &place, JSON, body)
            }
            38..48 => {
                let body = self.merge(kind, &path);
                Op::new("PATCH", &place, MERGE, body)
            }
            48..55 => {
                let body = self.json_patch(&path);
                Op::new("PATCH", &place, PATCH, body)
            }
            55..85 => self.apply(kind, &name, &path, &place),
            85..96 => self.delete(&path),
            96..98 => {
                let op = Op::new("DELETE", collection, JSON, Value::Null).with("labelSelector", "l=1");
                // Outside of namespaces, others have objects too.
                if kind == "Global" { op.with("fieldSelector", &format!("metadata.name={name}")) } else { op }
            }
            _ => {
                let path =
                    self.one(&["/apis/rec.example.com/v1/nothings", "/apis/nowhere.example.com/v1/things/a"]);
                Op::new("GET", path, "", Value::Null)
            }
        };
        let writes = op.method != "GET" && op.method != "DELETE";
        let op = if writes && self.chance(10) { op.with("dryRun", "All") } else { op };
        if writes && op.content_type != APPLY && self.chance(3) {
            let validation = self.one(&["Strict", "Warn", "Ignore"]);
            return op.with("fieldValidation", validation);
        }
        op
    }

    fn name(&mut self, kind: &str) -> String {
        let name = self.one(&["a", "a", "b"]);
        if kind == "Global" { format!("NS-{name}") } else { name.to_owned() }
    }

    fn list(&mut self, collection: &str, name: &str) -> Op {
        let op = Op::new("GET", collection, "", Value::Null);
        // Outside of namespaces, others have objects too.
        let is_global = !collection.contains("/namespaces/");
        let op = match self.rng.u8(..5) {
            _ if is_global => op.with("fieldSelector", &format!("metadata.name={name}")),
            // A namespace has objects of its own.
            0 if collection.contains("/rec.") => op.with("limit", "1"),
            1 if collection.contains("/rec.") => op.with("limit", "1").with("continue", "$token"),
            2 => op.with("fieldSelector", &format!("metadata.name={name}")),
            _ => {
                let selector = self.one(&["l=1", "l in (1,2)", "l", "l!=1,m", "l notin (1),l", "m=1"]);
                op.with("labelSelector", selector)
            }
        };
        if self.chance(4) {
            let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1".to_owned();
            return Op { accept, ..op };
        }
        op
    }

    fn labels(&mut self) -> Value {
        let mut labels = Map::new();
        for label in ["l", "m"] {
            if self.rng.bool() {
                labels.insert(label.to_owned(), self.one(&["1", "2", "3"]).into());
            }
        }
        if self.chance(40) {
            labels.insert("bad label".to_owned(), "x".into());
        }
        labels.into()
    }

    fn metadata(&mut self, name: &str) -> Value {
        let mut metadata = json!({"name": name});
        if self.rng.bool() {
            let labels = self.labels();
            // Empty ones are there, and then they are not.
            if labels.as_object().is_some_and(|labels| !labels.is_empty()) {
                metadata["labels"] = labels;
            }
        }
        if self.chance(3) {
            metadata["annotations"] = json!({self.one(&["x", "y"]): self.one(&["1", "2"])});
        }
        if self.chance(6) {
            let finalizers =
                self.one(&[json!(["e.io/f"]), json!(["e.io/f", "e.io/g"]), json!(["e.io/g"]), json!([])]);
            metadata["finalizers"] = finalizers;
        }
        metadata
    }

    fn object(&mut self, kind: &str, name: &str) -> Value {
        let metadata = self.metadata(name);
        let mut object = self.content(kind);
        object["metadata"] = metadata;
        object["kind"] = kind.into();
        object["apiVersion"] = match kind {
            "ConfigMap" | "Secret" | "Service" => "v1",
            "Lease" => "coordination.k8s.io/v1",
            _ => "rec.example.com/v1",
        }
        .into();
        object
    }

    fn texts(&mut self) -> Value {
        let mut texts = Map::new();
        for name in ["x", "y", "z"] {
            if self.rng.bool() {
                texts.insert(name.to_owned(), self.one(&["1", "2", ""]).into());
            }
        }
        texts.into()
    }

    fn content(&mut self, kind: &str) -> Value {
        match kind {
            "ConfigMap" => {
                let mut object = json!({"data": self.texts()});
                if self.chance(10) {
                    object["immutable"] = true.into();
                }
                if self.chance(12) {
                    object["nope"] = 1.into();
                }
                object
            }
            "Secret" => {
                let mut object = json!({"data": {self.one(&["x", "y"]): self.one(&["MQ==", "Mg=="])}});
                if self.chance(3) {
                    object["stringData"] = self.texts();
                }
                object
            }
            "Service" => {
                let mut ports = vec![json!({"port": self.one(&[80, 81])})];
                if self.chance(3) {
                    ports[0]["name"] = "one".into();
                    ports.push(json!({"port": 90, "name": "two", "targetPort": self.one(&[json!(9), json!("http")])}));
                }
                json!({"spec": {"ports": ports, "selector": {"app": self.one(&["a", "b"])}}})
            }
            "Lease" => {
                let mut spec = json!({"holderIdentity": self.one(&["h", "i"])});
                if self.rng.bool() {
                    spec["leaseDurationSeconds"] = self.one(&[15, 20]).into();
                }
                json!({"spec": spec})
            }
            _ => {
                let mut object = json!({"spec": self.thing()});
                if self.chance(3) {
                    object["status"] = self.status();
                }
                if self.chance(30) {
                    object["bad"] = 1.into();
                }
                object
            }
        }
    }

    fn status(&mut self) -> Value {
        let mut status = Map::new();
        if self.rng.bool() {
            status.insert("note".to_owned(), self.one(&["n1", "n2"]).into());
        }
        let mut conditions = Vec::new();
        for kind in ["A", "B"] {
            if self.rng.bool() {
                conditions.push(json!({"type": kind, "status": self.one(&["True", "False"])}));
            }
        }
        if !conditions.is_empty() {
            status.insert("conditions".to_owned(), conditions.into());
        }
        status.into()
    }

    fn thing(&mut self) -> Value {
        let mut spec = json!({"mode": self.one(&["A", "A", "B", "B", "A", "C"])});
        for _ in 0..self.rng.usize(..4) {
            let (name, value) = match self.rng.u8(..17) {
                0 => ("replicas", self.one(&[json!(1), json!(9), json!(-1), json!("x"), Value::Null])),
                1 => ("word", self.one(&[json!("abc"), json!("xyz"), json!("UP"), json!("toolongaword")])),
                2 => ("flag", self.one(&[json!(true), json!(false)])),
                3 | 4 => {
                    let mut ports = vec![json!({"port": self.one(&[1, 2]), "name": self.one(&["p", "q"])})];
                    if self.rng.bool() {
                        ports.push(json!({"port": 3, "protocol": self.one(&["TCP", "UDP"]), "note": "n"}));
                    }
                    ("ports", ports.into())
                }
                5 | 6 => (
                    "tags",
                    self.one(&[
                        json!(["a"]),
                        json!(["a", "b"]),
                        json!(["b", "c"]),
                        json!(["c", "a"]),
                        json!([]),
                    ]),
                ),
                7 => (
                    "steps",
                    self.one(&[json!([{"run": "x"}]), json!([{"run": "y", "times": 1}, {"run": "x"}])]),
                ),
                8 => {
                    ("nested", self.one(&[json!({"a": "1"}), json!({"b": "2", "deep": {"x": 1}}), json!({})]))
                }
                9 => ("map", self.texts()),
                10 => ("maps", self.one(&[json!({"k": {"a": "1"}}), json!({"k": {"b": "1"}, "l": {}})])),
                11 => ("whole", self.one(&[json!({"a": "1"}), json!({"b": "1"})])),
                12 => ("any", self.one(&[json!({"a": 1}), json!({"a": {"b": [1]}, "c": "x"}), json!({})])),
                13 => ("either", self.one(&[json!(1), json!("50%")])),
                14 => ("maybe", self.one(&[json!("m"), Value::Null])),
                15 => ("fixed", self.one(&[json!("f"), json!("f"), json!("g")])),
                _ => ("nope", json!(1)),
            };
            spec[name] = value;
        }
        spec
    }

    fn merge(&mut self, kind: &str, path: &str) -> Value {
        let mut merged = json!({});
        match self.rng.u8(..10) {
            0 => merged["metadata"]["labels"] = json!({"l": self.one(&[json!("1"), Value::Null])}),
            1 => {
                merged["metadata"]["finalizers"] =
                    self.one(&[Value::Null, json!(["e.io/f"]), json!(["e.io/h"])]);
            }
            2 => {
                let which = self.one(&["version", "before"]);
                merged["metadata"]["resourceVersion"] = format!("${which}:{path}").into();
            }
            3 => merged["metadata"]["annotations"] = self.one(&[Value::Null, json!({"x": "3"})]),
            _ => {
                merged = self.content(kind);
                if self.chance(4)
                    && let Some(part) = merged.as_object_mut().and_then(|merged| merged.values_mut().next())
                    && let Some(value) = part.as_object_mut().and_then(|part| part.values_mut().next())
                {
                    *value = Value::Null;
                }
            }
        }
        merged
    }

    fn json_patch(&mut self, path: &str) -> Value {
        match self.rng.u8(..6) {
            0 => json!([{"op": "test", "path": "/metadata/labels/l", "value": "1"},
                {"op": "replace", "path": "/metadata/labels/l", "value": "2"}]),
            1 => json!([{"op": "remove", "path": "/metadata/finalizers"}]),
            2 => json!([{"op": "add", "path": "/metadata/finalizers", "value": ["e.io/f"]}]),
            3 => {
                json!([{"op": "add", "path": "/metadata/resourceVersion", "value": format!("$version:{path}")},
                {"op": "add", "path": "/metadata/labels", "value": {"l": "3"}}])
            }
            4 => {
                json!([{"op": "add", "path": "/metadata/resourceVersion", "value": format!("$before:{path}")}])
            }
            _ => {
                json!([{"op": "add", "path": "/metadata/annotations", "value": {"p": self.one(&["1", "2"])}}])
            }
        }
    }

    fn apply(&mut self, kind: &str, name: &str, path: &str, place: &str) -> Op {
        let mut body = self.object(kind, name);
        if place.ends_with("/status") {
            body.as_object_mut().map(|body| body.remove("spec"));
            body["metadata"] = json!({"name": name});
            body["status"] = self.status();
        }
        match self.rng.u8(..20) {
            0 => body["metadata"]["uid"] = format!("$uid:{path}").into(),
            1 => body["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000".into(),
            2 => body["metadata"]["resourceVersion"] = format!("$version:{path}").into(),
            3 => body["metadata"]["resourceVersion"] = format!("$before:{path}").into(),
            4 => body["metadata"]["managedFields"] = json!([]),
            _ => {}
        }
        let op = Op::new("PATCH", place, APPLY, body).with("force", self.one(&["true", "true", "false"]));
        if self.chance(30) { op } else { op.with("fieldManager", self.one(&["m1", "m2", "m3"])) }
    }

    fn delete(&mut self, path: &str) -> Op {
        let mut options = json!({});
        match self.rng.u8(..6) {
            0 => options["preconditions"] = json!({"uid": "00000000-0000-0000-0000-000000000000"}),
            1 => options["preconditions"] = json!({"uid": format!("$uid:{path}")}),
            2 => options["preconditions"] = json!({"resourceVersion": format!("$before:{path}")}),
            3 => options["propagationPolicy"] = "Background".into(),
            4 => return Op::new("DELETE", path, "", Value::Null),
            _ => {}
        }
        Op::new("DELETE", path, JSON, options)
    }
}

/// The namespace ends, held by an object; nothing new comes into it.
fn end_of_namespace() -> Vec<Op> {
    let collection = "/api/v1/namespaces/NS/configmaps";
    let object = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let mut held = object("held");
    held["metadata"]["finalizers"] = json!(["e.io/f"]);
    vec![
        Op::new("POST", collection, JSON, held),
        Op::new("DELETE", "/api/v1/namespaces/NS", "", Value::Null),
        Op::new("POST", collection, JSON, object("late")),
        Op::new("PATCH", &format!("{collection}/late"), APPLY, object("late")).with("fieldManager", "m1"),
    ]
}
