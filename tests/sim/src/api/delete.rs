//! Deletes: of one object, and of a collection.

use super::{
    Request, State,
    read::{Filter, Form},
    service::Done,
    store::Key,
    text,
    write::{conflict, is_at_its_end},
};
use crate::{refusal::Refusal, schema::Kind};
use serde_json::{Value, json};
use std::sync::Arc;

/// What a delete says.
#[derive(Default)]
struct Options {
    uid: Option<String>,
    version: Option<String>,
    /// `Background`, `Foreground`, `Orphan`.
    propagation: Option<String>,
    is_dry: bool,
}

impl Options {
    fn read(request: &Request) -> Result<Self, Refusal> {
        let body: Value = if request.body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&request.body)
                .map_err(|error| Refusal::new(400, "BadRequest", error.to_string()))?
        };
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let asked = &request.asked;
        let given =
            text("/propagationPolicy").unwrap_or_else(|| asked.option("propagationPolicy").to_owned());
        let propagation = match (&*given, &body["orphanDependents"]) {
            ("", Value::Bool(true)) => Some("Orphan".to_owned()),
            ("", Value::Bool(false)) => Some("Background".to_owned()),
            ("", _) => None,
            ("Background" | "Foreground" | "Orphan", _) => Some(given),
            (other, _) => {
                let message = format!(
                    "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                );
                return Err(Refusal::new(422, "Invalid", message));
            }
        };
        Ok(Self {
            uid: text("/preconditions/uid"),
            version: text("/preconditions/resourceVersion"),
            propagation,
            is_dry: body["dryRun"] == json!(["All"]) || asked.option("dryRun") == "All",
        })
    }
}

/// The finalizers of the garbage collector.
pub(crate) const ORPHAN: &str = "orphan";
/// See [`ORPHAN`].
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// With which a definition waits until the objects of its kinds are gone.
pub(crate) const CLEAN_UP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl State {
    pub(super) fn delete(&mut self, kind: &Kind, request: &Request) -> Result<Done, Refusal> {
        let options = Options::read(request)?;
        let live = self.live(kind, &request.asked)?;
        self.delete_one(kind, &live, &options)
    }

    pub(super) fn delete_collection(&mut self, kind: &Kind, request: &Request) -> Result<Done, Refusal> {
        let (options, filter) = (Options::read(request)?, Filter::new(&request.asked)?);
        let all = self.store.objects(&kind.qualified());
        let mut changes = Vec::new();
        let mut items = Vec::new();
        for object in all.values().filter(|object| filter.has(object)) {
            items.push((*Form::Whole.listed(kind, object)).clone());
            changes.extend(self.delete_one(kind, object, &options)?.changes);
        }
        let list = json!({
            "apiVersion": kind.api_version(), "kind": kind.list_kind,
            "metadata": {"resourceVersion": self.store.version().to_string()}, "items": items,
        });
        Ok(Done { code: 200, object: Arc::new(list), changes })
    }

    fn delete_one(&mut self, kind: &Kind, live: &Arc<Value>, options: &Options) -> Result<Done, Refusal> {
        let name = text(live, "/metadata/name");
        for (wanted, field, what, then) in [
            (&options.uid, "/metadata/uid", "UID", "The object might have been deleted and then recreated"),
            (
                &options.version,
                "/metadata/resourceVersion",
                "ResourceVersion",
                "The object might have been modified",
            ),
        ] {
            let is = text(live, field);
            if let Some(wanted) = wanted.as_ref().filter(|wanted| **wanted != is) {
                let what = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({is}). {then}"
                );
                // Here it is the kind that is named.
                return Err(conflict(kind, name, &what).about(&kind.group, &kind.kind, name));
            }
        }
        let resource: Arc<str> = kind.qualified().into();
        let key: Key = (text(live, "/metadata/namespace").to_owned(), name.to_owned());
        let mut object = (**live).clone();
        set_finalizers(&resource, options, &mut object);
        let metadata = &mut object["metadata"];
        if metadata["deletionTimestamp"].is_null() {
            metadata["deletionTimestamp"] = self.now.as_str().into();
            if &*resource != "namespaces" {
                metadata["deletionGracePeriodSeconds"] = 0.into();
            }
            if let Some(generation) = metadata["generation"].as_u64() {
                metadata["generation"] = (generation + 1).into();
            }
            if &*resource == "namespaces" {
                object["status"]["phase"] = "Terminating".into();
            }
        }
        let unchanged = |object| Done { code: 200, object, changes: Vec::new() };
        if is_at_its_end(&object) {
            let answer = Arc::new(gone(kind, &resource, live));
            if options.is_dry {
                return Ok(unchanged(answer));
            }
            let change = self.store.write(&resource, key, None);
            self.changed(kind);
            return Ok(Done { code: 200, object: answer, changes: vec![change] });
        }
        if options.is_dry || object == **live {
            return Ok(unchanged(Arc::new(object)));
        }
        let change = self.store.write(&resource, key, Some(object));
        self.changed(kind);
        Ok(Done { code: 200, object: Arc::clone(change.object()), changes: vec![change] })
    }
}

/// The garbage collector's finalizers say what becomes of the dependents.
fn set_finalizers(resource: &str, options: &Options, object: &mut Value) {
    let given = object["metadata"]["finalizers"].as_array();
    let mut finalizers: Vec<Value> = given.cloned().unwrap_or_default();
    if let Some(propagation) = &options.propagation {
        finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
        match &**propagation {
            "Orphan" => finalizers.push(ORPHAN.into()),
            "Foreground" => finalizers.push(FOREGROUND.into()),
            _ => {}
        }
    }
    if resource == "customresourcedefinitions.apiextensions.k8s.io"
        && !finalizers.iter().any(|finalizer| finalizer == CLEAN_UP)
        && object["metadata"]["deletionTimestamp"].is_null()
    {
        finalizers.push(CLEAN_UP.into());
    }
    match object["metadata"].as_object_mut() {
        Some(metadata) if finalizers.is_empty() => drop(metadata.remove("finalizers")),
        Some(metadata) => drop(metadata.insert("finalizers".to_owned(), finalizers.into())),
        None => {}
    }
}

/// What is answered when an object is gone at once: some kinds answer with the object as it was last.
fn gone(kind: &Kind, resource: &str, live: &Value) -> Value {
    if matches!(
        resource,
        "pods" | "services" | "persistentvolumeclaims" | "serviceaccounts" | "resourcequotas"
    ) {
        return live.clone();
    }
    let mut details =
        json!({"name": live["metadata"]["name"], "kind": kind.plural, "uid": live["metadata"]["uid"]});
    if !kind.group.is_empty() {
        details["group"] = kind.group.as_str().into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
