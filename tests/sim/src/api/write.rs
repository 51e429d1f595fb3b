//! Creates, updates, patches.

mod rules;

pub(super) use rules::{conflict, is_at_its_end};

use super::{Asked, Request, State, not_found, service::Done, store::Key, text};
use crate::{
    fields::{self, Write},
    refusal::{Cause, Refusal},
    schema::Kind,
};
use rules::{
    MODIFIED, check_finalizers, check_kind, invalid, is_other_content, keep_identity, place, read, suffix,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// What a write says besides the object.
struct Options {
    manager: String,
    strict: bool,
    is_dry: bool,
    force: bool,
}

impl Options {
    fn of(request: &Request) -> Self {
        let asked = &request.asked;
        let manager = match asked.option("fieldManager") {
            // After the client's name, which nobody gives here.
            "" => "unknown",
            manager => manager,
        };
        Self {
            manager: manager.to_owned(),
            strict: asked.option("fieldValidation") == "Strict",
            is_dry: asked.option("dryRun") == "All",
            force: asked.option("force") == "true",
        }
    }
}

/// The object in a request's body, as the kind has it, where the URL says.
fn whole(kind: &Kind, request: &Request, options: &Options) -> Result<Value, Refusal> {
    let mut object = read(&request.body)?;
    check_kind(kind, &object)?;
    kind.decode(&mut object, options.strict)?;
    kind.normalize(&mut object);
    place(kind, &request.asked, &mut object)?;
    Ok(object)
}

impl State {
    pub(super) fn create(
        &mut self,
        kind: &Kind,
        request: &Request,
        name: &mut String,
    ) -> Result<Done, Refusal> {
        let (asked, options) = (&request.asked, Options::of(request));
        let mut object = whole(kind, request, &options)?;
        let prefix = text(&object, "/metadata/generateName").to_owned();
        if text(&object, "/metadata/name").is_empty() && !prefix.is_empty() {
            let serial = self.next_serial();
            object["metadata"]["name"] = format!("{prefix}{}", suffix(serial)).into();
        }
        text(&object, "/metadata/name").clone_into(name);
        if !text(&object, "/metadata/resourceVersion").is_empty() && !options.is_dry {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Refusal::new(500, "", message));
        }
        self.check_namespace(kind, &asked.namespace, name)?;
        self.be_new(&mut object);
        self.finish(kind, request, &options, None, object)
    }

    pub(super) fn update(&mut self, kind: &Kind, request: &Request) -> Result<Done, Refusal> {
        let (asked, options) = (&request.asked, Options::of(request));
        let object = whole(kind, request, &options)?;
        let name = text(&object, "/metadata/name");
        if name != asked.name {
            let message = format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                asked.name
            );
            return Err(Refusal::new(400, "BadRequest", message));
        }
        let Ok(live) = self.live(kind, asked) else {
            return self.update_absent(kind, request, &options, object);
        };
        let (uid, given) = (text(&live, "/metadata/uid"), text(&object, "/metadata/uid"));
        if !given.is_empty() && given != uid {
            let what =
                format!("Precondition failed: UID in precondition: {given}, UID in object meta: {uid}");
            return Err(conflict(kind, &asked.name, &what));
        }
        if text(&object, "/metadata/resourceVersion").is_empty() && (kind.is_custom() || kind.kind == "Lease")
        {
            let what = "Invalid value: 0: must be specified for an update";
            let refusal = invalid(kind, &asked.name, "FieldValueInvalid", "metadata.resourceVersion", what);
            return Err(refusal.about(&kind.group, &kind.plural, &asked.name));
        }
        self.finish(kind, request, &options, Some(&live), object)
    }

    /// Some kinds are created by an update, as they were before anybody thought better of it.
    fn update_absent(
        &mut self,
        kind: &Kind,
        request: &Request,
        options: &Options,
        mut object: Value,
    ) -> Result<Done, Refusal> {
        let asked = &request.asked;
        if !matches!(&*kind.kind, "Service" | "Lease" | "Event") {
            return Err(not_found(kind, &asked.name));
        }
        let uid = text(&object, "/metadata/uid");
        if !uid.is_empty() {
            let what = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
            return Err(conflict(kind, &asked.name, &what));
        }
        self.check_namespace(kind, &asked.namespace, &asked.name)?;
        self.be_new(&mut object);
        self.finish(kind, request, options, None, object)
    }

    pub(super) fn patch(&mut self, kind: &Kind, request: &Request) -> Result<Done, Refusal> {
        let (asked, options) = (&request.asked, Options::of(request));
        let patch = read(&request.body)?;
        if asked.verb == "apply" {
            return self.apply(kind, request, &options, patch);
        }
        let live = self.live(kind, asked)?;
        let mut object = (*live).clone();
        object["apiVersion"] = kind.api_version().into();
        match request.content_type.split(';').next().unwrap_or_default() {
            "application/merge-patch+json" => json_patch::merge(&mut object, &patch),
            "application/json-patch+json" => {
                let bad = |error: serde_json::Error| Refusal::new(400, "BadRequest", error.to_string());
                let patch: json_patch::Patch = serde_json::from_value(patch.clone()).map_err(bad)?;
                if json_patch::patch(&mut object, &patch).is_err() {
                    let message = "the server rejected our request due to an error in our request";
                    return Err(Refusal::new(422, "Invalid", message).about("", "", ""));
                }
            }
            other => {
                let message = format!(
                    "the body of the request was in an unknown format ({other}) - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
                );
                return Err(Refusal::new(415, "UnsupportedMediaType", message));
            }
        }
        // The patch is to blame, not a body.
        kind.decode(&mut object, options.strict).map_err(|refusal| {
            let (_, why) = refusal.message.split_once(&format!("as a {}: ", kind.kind)).unwrap_or_default();
            let message = format!("Invalid value: {:?}: {why}", patch.to_string());
            let cause =
                Cause { reason: "FieldValueInvalid".into(), message: message.clone(), field: "patch".into() };
            Refusal::new(422, "Invalid", format!(" \"\" is invalid: patch: {message}")).because(vec![cause])
        })?;
        kind.normalize(&mut object);
        place(kind, asked, &mut object)?;
        self.finish(kind, request, &options, Some(&live), object)
    }

    fn apply(
        &mut self,
        kind: &Kind,
        request: &Request,
        options: &Options,
        mut applied: Value,
    ) -> Result<Done, Refusal> {
        let asked = &request.asked;
        if asked.option("fieldManager").is_empty() {
            let message = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
            return Err(Refusal::new(422, "Invalid", message)
                .because(vec![Cause {
                    reason: "FieldValueRequired".to_owned(),
                    message: "Required value: is required for apply patch".to_owned(),
                    field: "fieldManager".to_owned(),
                }])
                .about("meta.k8s.io", "PatchOptions", ""));
        }
        check_kind(kind, &applied)?;
        let live = self.live(kind, asked).ok();
        let name = &asked.name;
        let given = |field: &str| text(&applied, field).to_owned();
        let (version, uid) = (given("/metadata/resourceVersion"), given("/metadata/uid"));
        if live.is_none() && !asked.subresource.is_empty() {
            return Err(not_found(kind, name));
        }
        if let Some(metadata) = applied["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        place(kind, asked, &mut applied)?;
        if applied["metadata"]["name"].is_null() {
            applied["metadata"]["name"] = name.as_str().into();
        }
        let given = text(&applied, "/metadata/name");
        if given != name {
            let message = format!("name in object ({given}) does not match name in path ({name})");
            return Err(Refusal::new(400, "BadRequest", message));
        }
        let now = self.now.clone();
        let write = Write { manager: &options.manager, subresource: &asked.subresource, time: &now };
        let mut object = fields::apply(kind, live.as_deref(), &applied, &write, options.force)?;
        if live
            .as_ref()
            .is_some_and(|live| !version.is_empty() && version != text(live, "/metadata/resourceVersion"))
        {
            return Err(conflict(kind, name, MODIFIED));
        }
        if live.is_none() {
            if !uid.is_empty() {
                let what = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                );
                return Err(conflict(kind, name, &what));
            }
            self.check_namespace(kind, &asked.namespace, name)?;
            self.be_new(&mut object);
            if !version.is_empty() {
                object["metadata"]["resourceVersion"] = version.into();
            }
        }
        kind.decode(&mut object, false)?;
        self.finish(kind, request, options, live.as_ref(), object)
    }

    /// Everything between the object that somebody wants and the one that is stored.
    fn finish(
        &mut self,
        kind: &Kind,
        request: &Request,
        options: &Options,
        live: Option<&Arc<Value>>,
        mut object: Value,
    ) -> Result<Done, Refusal> {
        let asked = &request.asked;
        let before = live.map(Arc::as_ref);
        let name = text(&object, "/metadata/name").to_owned();
        if let Some(before) = before {
            keep_identity(kind, before, &mut object)?;
        }
        kind.default(&mut object);
        if asked.verb != "apply" {
            let now = self.now.clone();
            let write = Write { manager: &options.manager, subresource: &asked.subresource, time: &now };
            fields::track(kind, before, &mut object, &write);
        }
        self.mutate(kind, &mut object);
        // What ends a namespace is a write of its spec.
        let subresource = if asked.subresource == "finalize" { "" } else { &*asked.subresource };
        kind.prepare(before, &mut object, subresource);
        kind.default(&mut object);
        self.give_address(kind, before, &mut object);
        if kind.generation {
            let last =
                before.and_then(|before| before["metadata"]["generation"].as_u64()).unwrap_or_default();
            let is_other = before.is_none_or(|before| is_other_content(kind, before, &object));
            object["metadata"]["generation"] = (last + u64::from(is_other)).into();
        }
        kind.validate(before, &object)?;
        check_finalizers(kind, before, &object)?;
        self.admit(kind, &asked.namespace, before, &object)?;
        let key: Key = (asked.namespace.clone(), name.clone());
        let resource: Arc<str> = kind.qualified().into();
        let code = if before.is_some() { 200 } else { 201 };
        let unchanged = |object| Done { code, object, changes: Vec::new() };
        match live {
            None if self.store.get(&resource, &key).is_some() => {
                let message = format!("{resource} {name:?} already exists");
                return Err(Refusal::new(409, "AlreadyExists", message));
            }
            Some(live) if fields::is_same(live, &object) => return Ok(unchanged(Arc::clone(live))),
            _ => {}
        }
        if options.is_dry {
            return Ok(unchanged(Arc::new(object)));
        }
        if before.is_some() && is_at_its_end(&object) {
            let gone = object.clone();
            let change = self.store.write(&resource, key, None);
            self.changed(kind);
            return Ok(Done { code, object: Arc::new(gone), changes: vec![change] });
        }
        let change = self.store.write(&resource, key, Some(object));
        self.changed(kind);
        Ok(Done { code, object: Arc::clone(change.object()), changes: vec![change] })
    }

    /// After every write: definitions of kinds change what is served.
    pub(super) fn changed(&mut self, kind: &Kind) {
        if kind.kind == "CustomResourceDefinition" {
            self.read_definitions();
        }
    }

    pub(super) fn live(&self, kind: &Kind, asked: &Asked) -> Result<Arc<Value>, Refusal> {
        let key = (asked.namespace.clone(), asked.name.clone());
        self.store.get(&kind.qualified(), &key).cloned().ok_or_else(|| not_found(kind, &asked.name))
    }

    /// What every new object gets.
    fn be_new(&mut self, object: &mut Value) {
        let uid = self.next_uid();
        let metadata = &mut object["metadata"];
        metadata["uid"] = uid.into();
        metadata["creationTimestamp"] = self.now.as_str().into();
        for name in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
            metadata.as_object_mut().map(|metadata| metadata.remove(name));
        }
    }

    /// The cluster IP of a Service that needs one, or has one.
    fn give_address(&mut self, kind: &Kind, before: Option<&Value>, object: &mut Value) {
        let spec = &object["spec"];
        if kind.qualified() != "services"
            || spec["type"] == "ExternalName"
            || !text(spec, "/clusterIP").is_empty()
        {
            return;
        }
        if let Some(before) = before.filter(|before| before["spec"]["clusterIP"].is_string()) {
            for field in ["clusterIP", "clusterIPs"] {
                object["spec"][field] = before["spec"][field].clone();
            }
            return;
        }
        let serial = self.next_serial();
        let address = format!("10.96.{}.{}", serial >> 8 & 0xff, serial & 0xff);
        object["spec"]["clusterIPs"] = json!([address]);
        object["spec"]["clusterIP"] = address.into();
    }
}
