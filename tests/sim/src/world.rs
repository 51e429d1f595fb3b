//! A cluster with two plugins in it, and the hands of everybody but the host.

use crate::{
    api::{ADMIN, Policy, Rights, Server, Store, Verdict, text},
    cluster::Cluster,
    components::Components,
    scenario::{Action, Claim, Hand, PARENTS, PICKS, SOURCE, kind, resource},
};
use kube::CustomResourceExt;
use oarlock::object::LABEL_PARENT;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// Where the host looks for plugins.
pub const HOST_NAMESPACE: &str = "oarlock-system";
/// Where everything else is.
pub const NAMESPACE: &str = "demo";
/// Who the host is.
pub const HOST: &str = "oarlock";
/// By which somebody holds what is deleted.
pub const HOLD: &str = "cases.example.com/hold";

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";
/// Whose objects have the names of children.
const SQUATTER: &str = "squatter";
/// Who edits specs.
const EDITOR: &str = "editor";

/// The cluster, and what people know of what they did.
pub struct World {
    /// The API server.
    pub server: Server,
    components: Arc<Components>,
    /// The component that each plugin should run; only good ones.
    pub component: &'static str,
    /// What another controller holds in the status of each parent.
    pub auditor: BTreeMap<&'static str, Value>,
    backup: Option<Store>,
}

/// Takes members of a name out, wherever they are.
fn leave_out(name: &str, value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove(name);
            members.values_mut().for_each(|value| leave_out(name, value));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| leave_out(name, value)),
        _ => {}
    }
}

impl World {
    /// A cluster with the plugins' `ConfigMap`s in place, and no parents.
    pub fn new(components: &Arc<Components>) -> Self {
        let server = Server::new();
        let plugins = serde_json::to_value(oarlock::plugins::resource::Plugin::crd());
        let mut plugins = plugins.expect("a definition is JSON");
        // The simulator has no CEL; these rules bind operators, whose settings are good ones here.
        leave_out("x-kubernetes-validations", &mut plugins);
        let mut definitions = vec![plugins];
        for yaml in
            [include_str!("../../guests/widget/crd.yaml"), include_str!("../../guests/widget/cluster.yaml")]
        {
            definitions.push(serde_saphyr::from_str(yaml).expect("a definition of the repository is YAML"));
        }
        let world = Self {
            server,
            components: Arc::clone(components),
            component: "widget",
            auditor: BTreeMap::new(),
            backup: None,
        };
        for definition in definitions {
            world.make(&definition);
        }
        Cluster::settle(&world.server);
        for name in [HOST_NAMESPACE, NAMESPACE] {
            world.make(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        }
        let kinds = json!(["CustomResourceDefinition.apiextensions.k8s.io"]);
        world.make(&json!({
            "apiVersion": "oarlock.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": "cluster"},
            "spec": {"permissions": {"sensitiveKinds": kinds}},
        }));
        world.push("cluster", "widget-cluster");
        world.push("widget", "widget");
        world
    }

    fn make(&self, object: &Value) {
        let made = self.server.create(ADMIN, object);
        assert!(made.is_ok(), "the world cannot be made: {made:?}");
    }

    /// Puts a component into the `ConfigMap` of a plugin.
    fn push(&self, plugin: &str, component: &str) {
        let config_map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": plugin, "namespace": HOST_NAMESPACE, "labels": {"oarlock.dev/plugin": "true"}},
            "binaryData": {"plugin.wasm.zst": self.components.text(component)},
        });
        let pushed = self.server.apply("pusher", &config_map, false);
        assert!(pushed.is_ok(), "a plugin cannot be pushed: {pushed:?}");
    }

    /// The operator insists where a component that should run was taken back, as it failed on an object that the one
    /// before happened to handle.
    pub fn approve(&self) {
        for plugin in ["widget", "cluster"] {
            let Some(found) = self.server.object("plugins.oarlock.dev", "", plugin) else { continue };
            let (digest, refused) = (self.digest(plugin), &found["status"]["refused"]);
            let is_taken_back = refused["reason"] == "RolledBack" && refused["digest"] == *digest;
            if is_taken_back && found["spec"]["approved"] != *digest {
                self.merge(&found, &json!({"spec": {"approved": digest}}));
            }
        }
    }

    /// The digest of the component that a plugin should run.
    pub fn digest(&self, plugin: &str) -> &str {
        let component = if plugin == "cluster" { "widget-cluster" } else { self.component };
        self.components.digest(component)
    }

    /// A parent as it is.
    pub fn parent(&self, parent: &str) -> Option<Arc<Value>> {
        let namespace = if resource(parent).starts_with("cluster") { "" } else { NAMESPACE };
        self.server.object(resource(parent), namespace, parent)
    }

    /// Does what an action says. Those about the host are not its, and nor are faults of the way to it.
    pub fn act(&mut self, action: &Action) {
        match action {
            Action::Edit { parent, spec } => self.edit(parent, spec),
            Action::Delete { parent } => self.delete_parent(parent),
            Action::Recreate { parent, spec } => {
                self.delete_parent(parent);
                self.edit(parent, spec);
            }
            Action::Child { resource, name, hand, text } => self.touch(resource, name, *hand, text),
            Action::Status { parent, claim, text } => self.claim(parent, *claim, text),
            Action::Source { text } => self.read(SOURCE, &json!({}), text.as_deref()),
            Action::Pick { name, is_picked, text } => {
                self.read(name, &json!({"pick": if *is_picked { "yes" } else { "no" }}), text.as_deref());
            }
            Action::Swap { component } => {
                self.push("widget", component);
                if Components::is_good(component) {
                    self.component = component;
                }
            }
            Action::Compact => self.server.compact(),
            Action::Disconnect => self.server.disconnect(),
            Action::ExpiryAsStatus(is_status) => self.server.set_expiry_as_status(*is_status),
            Action::Advance(versions) => self.server.advance(*versions),
            Action::Backup => self.backup = Some(self.server.backup()),
            Action::Restore => {
                if let Some(backup) = self.backup.take() {
                    self.server.restore(backup);
                    self.auditor.clear();
                }
            }
            Action::Forbid(right) => self.server.set_rights(HOST, Rights::without(&[right])),
            Action::Allow => self.server.set_rights(HOST, Rights::all()),
            Action::Deny { resource, text } => {
                self.add_policy("deny", resource, &Verdict::Deny(text.clone()));
            }
            Action::Mutate { resource } => {
                let verdict = Verdict::Set("/metadata/annotations/mutated".to_owned(), "yes".into());
                self.add_policy("mutate", resource, &verdict);
            }
            Action::NoPolicies => ["deny", "mutate"].iter().for_each(|name| self.server.remove_policy(name)),
            Action::Quota { resource, count } => {
                let quota = json!({
                    "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": NAMESPACE},
                    "spec": {"hard": {format!("count/{resource}"): count.to_string()}},
                });
                drop(self.server.apply(EDITOR, &quota, false));
            }
            Action::NoQuota => {
                let uri = format!("/api/v1/namespaces/{NAMESPACE}/resourcequotas/few");
                self.ask("DELETE", &uri, JSON, &Value::Null);
            }
            Action::Kill { .. }
            | Action::Crash(_)
            | Action::Stop
            | Action::Inject(_)
            | Action::Mend
            | Action::Jump { .. } => {}
        }
    }

    /// Ends everything that stands in the way of what parents ask for.
    pub fn calm(&mut self) {
        self.act(&Action::Allow);
        self.act(&Action::NoPolicies);
        self.act(&Action::NoQuota);
        self.push("widget", self.component);
        self.clear_away();
        for resource in self.server.resources() {
            for ((namespace, _), object) in self.server.objects(&resource) {
                let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
                if object["metadata"]["labels"][SQUATTER] == "yes" {
                    self.delete(&object);
                }
                let rest: Vec<_> = finalizers.clone().filter(|one| *one != HOLD).collect();
                if namespace == NAMESPACE && rest.len() != finalizers.count() {
                    self.merge(&object, &json!({"metadata": {"finalizers": rest}}));
                }
            }
        }
    }

    fn edit(&self, parent: &str, spec: &Value) {
        let mut object = json!({
            "apiVersion": "cases.example.com/v1", "kind": kind(parent), "metadata": {"name": parent}, "spec": spec,
        });
        if kind(parent) == "Widget" {
            object["metadata"]["namespace"] = NAMESPACE.into();
        }
        if let Some(found) = self.parent(parent) {
            // As a whole: what was in the last spec is gone.
            let mut whole = (*found).clone();
            whole["spec"] = spec.clone();
            let uri = self.server.uri(&whole, true).unwrap_or_default();
            self.ask("PUT", &uri, JSON, &whole);
        } else {
            drop(self.server.create(EDITOR, &object));
        }
    }

    fn delete_parent(&mut self, parent: &'static str) {
        self.auditor.remove(parent);
        if let Some(object) = self.parent(parent) {
            self.delete(&object);
            self.clear_away();
        }
    }

    /// Deletes what somebody took the owner off and whose parent is gone, or about to: nobody else does, and its name
    /// is taken.
    fn clear_away(&self) {
        let resources = ["configmaps", "services", "deployments.apps", "jobs.batch"];
        for object in
            resources.iter().flat_map(|resource| self.server.objects(resource)).map(|(_, object)| object)
        {
            let parent = object["metadata"]["labels"][LABEL_PARENT].as_str().unwrap_or_default();
            let is_owned =
                object["metadata"]["ownerReferences"].as_array().is_some_and(|all| !all.is_empty());
            let is_there = PARENTS.iter().filter_map(|parent| self.parent(parent)).any(|found| {
                text(&found, "/metadata/uid") == parent && found["metadata"]["deletionTimestamp"].is_null()
            });
            if !parent.is_empty() && !is_owned && !is_there {
                self.delete(&object);
            }
        }
    }

    fn delete(&self, object: &Value) {
        let uri = self.server.uri(object, true).unwrap_or_default();
        let exactly = json!({"uid": object["metadata"]["uid"]});
        self.ask("DELETE", &uri, JSON, &json!({"preconditions": exactly}));
    }

    fn touch(&self, resource: &str, name: &str, hand: Hand, word: &str) {
        let Some(child) = self.server.object(resource, NAMESPACE, name) else { return };
        let is_data = resource == "configmaps";
        let patch = match hand {
            Hand::Edit if is_data => json!({"data": {"text": format!("foreign {word}")}}),
            Hand::Edit => json!({"metadata": {"annotations": {"text": format!("foreign {word}")}}}),
            Hand::Add if is_data => json!({"data": {"added": word}}),
            Hand::Add => json!({"metadata": {"annotations": {"added": word}}}),
            Hand::Strip => json!({"metadata": {"labels": {"oarlock.dev/owned-by": null}}}),
            Hand::Disown => json!({"metadata": {"ownerReferences": null}}),
            Hand::Hold => {
                let finalizers = json!([HOLD]);
                self.merge(&child, &json!({"metadata": {"finalizers": finalizers}}));
                return self.delete(&child);
            }
            Hand::Delete => return self.delete(&child),
            Hand::Squat => {
                self.delete(&child);
                let mut own =
                    json!({"apiVersion": child["apiVersion"], "kind": child["kind"], "spec": child["spec"]});
                own["metadata"] = json!({"name": name, "namespace": NAMESPACE, "labels": {SQUATTER: "yes"}});
                if is_data {
                    own["data"] = json!({"text": word});
                }
                return drop(self.server.create(EDITOR, &own));
            }
        };
        self.merge(&child, &patch);
    }

    fn claim(&mut self, parent: &'static str, claim: Claim, word: &str) {
        let Some(object) = self.parent(parent) else { return };
        // What is about to go keeps nothing.
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        let uri = format!("{}/status", self.server.uri(&object, true).unwrap_or_default());
        let held = |status: Value| {
            let mut body = json!({
                "apiVersion": "cases.example.com/v1", "kind": kind(parent), "metadata": {"name": parent},
            });
            if !status.is_null() {
                body["status"] = status;
            }
            body
        };
        match claim {
            Claim::Flip => {
                let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let Some(mut flipped) = conditions.into_iter().find(|one| one["type"] == "Ready") else {
                    return;
                };
                flipped["status"] = if flipped["status"] == "True" { "False".into() } else { "True".into() };
                flipped["message"] = format!("flipped {word}").into();
                flipped["lastTransitionTime"] = "2026-01-02T00:00:00Z".into();
                let uri = format!("{uri}?fieldManager=intruder&force=true");
                self.ask("PATCH", &uri, APPLY, &held(json!({"conditions": [flipped]})));
            }
            Claim::Wipe => {
                self.auditor.remove(parent);
                self.ask("PATCH", &uri, MERGE, &json!({"status": null}));
            }
            Claim::Put => {
                let mut object = (*object).clone();
                for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
                    if ["Ready", "Synced"].contains(&text(condition, "/type")) {
                        condition["status"] = "Unknown".into();
                        condition["message"] = format!("put {word}").into();
                        condition["lastTransitionTime"] = "2026-01-03T00:00:00Z".into();
                    }
                }
                self.ask("PUT", &uri, JSON, &object);
            }
            Claim::Audit => {
                let checked = json!({
                    "type": "audit.example.org/Checked", "status": "True", "reason": "Looked", "message": word,
                    "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
                });
                let uri = format!("{uri}?fieldManager=auditor&force=true");
                self.ask("PATCH", &uri, APPLY, &held(json!({"conditions": [checked.clone()]})));
                self.auditor.insert(parent, checked);
            }
            Claim::Withdraw => {
                let uri = format!("{uri}?fieldManager=auditor&force=true");
                self.ask("PATCH", &uri, APPLY, &held(Value::Null));
                self.auditor.remove(parent);
            }
        }
    }

    /// Writes what guests read, or deletes it.
    fn read(&self, name: &str, labels: &Value, word: Option<&str>) {
        match word {
            Some(word) => {
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "data": {"text": word},
                });
                drop(self.server.apply(EDITOR, &object, false));
            }
            None => {
                if let Some(found) = self.server.object("configmaps", NAMESPACE, name) {
                    self.delete(&found);
                }
            }
        }
    }

    fn add_policy(&self, name: &str, resource: &str, verdict: &Verdict) {
        // About children alone: parents' names are their beginning.
        for prefix in ["script-", "plain-", "reads-", "fleet-"] {
            self.server.add_policy(Policy {
                name: name.to_owned(),
                resource: resource.to_owned(),
                prefix: prefix.to_owned(),
                verdict: verdict.clone(),
            });
        }
    }

    fn merge(&self, object: &Value, patch: &Value) {
        if let Some(uri) = self.server.uri(object, true) {
            self.ask("PATCH", &format!("{uri}?fieldManager=somebody"), MERGE, patch);
        }
    }

    /// What somebody asks for may be refused, which is their concern.
    fn ask(&self, method: &str, uri: &str, content_type: &str, body: &Value) {
        self.server.ask(EDITOR, method, uri, content_type, body);
    }

    /// The text in what parents read by name, if it is there.
    pub fn source(&self) -> Option<String> {
        let source = self.server.object("configmaps", NAMESPACE, SOURCE)?;
        Some(text(&source, "/data/text").to_owned())
    }

    /// The names of what parents list, in order, with commas.
    pub fn picked(&self) -> String {
        let is_picked = |name: &&str| {
            let found = self.server.object("configmaps", NAMESPACE, name);
            found.is_some_and(|found| found["metadata"]["labels"]["pick"] == "yes")
        };
        PICKS.into_iter().filter(is_picked).collect::<Vec<_>>().join(",")
    }
}
