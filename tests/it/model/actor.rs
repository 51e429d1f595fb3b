//! Does the steps, and knows what should come of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use oarlock_tests::proxy::{Proxy, Standing};
use oarlock_tests::{eventually, host};
use serde_json::{Value, json};

use super::expected::{Surroundings, expected};
use super::steps::{PICKS, PLAIN, READS, SERVICE, SOURCE, Spec, Step, kind, plugin};
use crate::world::{DEADLINE, World, condition, digest, says, string};

/// By which children are found.
pub(super) const LABEL: &str = "/metadata/labels/oarlock.dev~1owned-by";

/// What the test itself did, for reading the history.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Versions of objects that the test wrote.
    pub(super) writes: BTreeSet<u64>,
    /// Specs by uid and generation.
    pub(super) specs: BTreeMap<(String, i64), Value>,
    /// Uids of objects that the test deleted.
    pub(super) deleted: BTreeSet<String>,
}

/// The hands of everybody but the host.
pub(super) struct Actor<'a> {
    world: &'a World,
    proxy: &'a Proxy,
    component: &'static str,
    specs: BTreeMap<&'static str, Value>,
    source: Option<String>,
    picked: BTreeSet<&'static str>,
    /// What another controller holds in the status of each parent.
    auditor: BTreeMap<&'static str, Value>,
    /// What somebody added to children: uid and text by name.
    added: BTreeMap<String, (String, String)>,
    rules: Vec<Standing>,
    told: Told,
}

impl<'a> Actor<'a> {
    pub(super) fn new(world: &'a World, proxy: &'a Proxy) -> Self {
        Self {
            world,
            proxy,
            component: "widget",
            specs: BTreeMap::new(),
            source: None,
            picked: BTreeSet::new(),
            auditor: BTreeMap::new(),
            added: BTreeMap::new(),
            rules: Vec::new(),
            told: Told::default(),
        }
    }

    /// What was done so far.
    pub(super) fn told(&self) -> &Told {
        &self.told
    }

    /// Does one step; those about the host are not its.
    pub(super) async fn take(&mut self, step: &Step) -> Result<()> {
        let world = self.world;
        match step {
            Step::Edit { widget, specs } => {
                for spec in specs {
                    self.edit(widget, spec).await?;
                }
            }
            Step::Recreate { widget, spec } => {
                let old = world.get(kind(widget), widget).await?;
                let uid = string(&old, "/metadata/uid");
                self.told.deleted.insert(uid.to_owned());
                self.auditor.remove(widget);
                if old["metadata"].get("finalizers").is_some() {
                    // The host takes it off, which it cannot with every request failing.
                    self.rules.clear();
                }
                world.delete(kind(widget), widget).await?;
                world.until_gone(kind(widget), widget).await?;
                self.clear_away(uid).await?;
                self.edit(widget, spec).await?;
            }
            Step::Flip { widget, r#type, text } => self.flip(widget, r#type, text).await?,
            Step::Wipe { widget } => {
                self.auditor.remove(widget);
                self.patch_status(kind(widget), widget, &Patch::Merge(json!({"status": null}))).await?;
            }
            Step::Put { widget, text } => self.put(widget, text).await?,
            Step::Audit { widget, status, text } => {
                let checked = json!({
                    "type": "audit.example.org/Checked", "status": status, "reason": "Looked", "message": text,
                    "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
                });
                let mut held = json!({"conditions": [checked]});
                if [PLAIN, READS].contains(widget) {
                    held["note"] = text.as_str().into();
                }
                self.audit(widget, Some(held)).await?;
            }
            Step::Withdraw { widget } => self.audit(widget, None).await?,
            Step::EditChild { name, text } => {
                self.patch_child(name, json!({"data": {"text": format!("foreign {text}")}})).await?;
            }
            Step::AddToChild { name, text } => {
                if let Some(child) = self.patch_child(name, json!({"data": {"added": text}})).await? {
                    let uid = string(&child, "/metadata/uid").to_owned();
                    self.added.insert(name.clone(), (uid, text.clone()));
                }
            }
            Step::StripChild { name, text } => {
                let labels = json!({"oarlock.dev/owned-by": null});
                let metadata = json!({"labels": labels, "annotations": {"stripped": text}});
                self.patch_child(name, json!({"metadata": metadata})).await?;
            }
            Step::DisownChild { name, text } => {
                let metadata = json!({"ownerReferences": null, "annotations": {"disowned": text}});
                self.patch_child(name, json!({"metadata": metadata})).await?;
            }
            Step::DeleteChild { name } => self.delete_child(name).await?,
            Step::Service { r#type, text } => {
                let since = "2026-01-01T00:00:00Z";
                let condition = json!({
                    "type": r#type, "status": "True", "reason": "Told", "message": text, "lastTransitionTime": since,
                });
                let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
                self.patch_status("Service", &format!("{SERVICE}-svc"), &patch).await?;
            }
            Step::Source { text } => {
                self.read(SOURCE, json!({}), text.as_deref()).await?;
                self.source.clone_from(text);
            }
            Step::Pick { name, is_picked, text } => {
                let labels = json!({"pick": if *is_picked { "yes" } else { "no" }});
                self.read(name, labels, text.as_deref()).await?;
                if *is_picked && text.is_some() {
                    self.picked.insert(name);
                } else {
                    self.picked.remove(name);
                }
            }
            Step::Swap { component } => {
                world.source("widget", &[("plugin.wasm", &host::component(component)?)]).await?;
                self.component = component;
            }
            Step::Inject { rule } => self.rules.push(self.proxy.rule(rule.clone())),
            Step::Mend => self.rules.clear(),
            Step::Pause(time) => {
                oarlock_tests::throughout(*time, "time passes", async || Ok::<_, anyhow::Error>(())).await?;
            }
            Step::Kill | Step::Stop => {}
        }
        Ok(())
    }

    async fn edit(&mut self, widget: &'static str, Spec(spec): &Spec) -> Result<()> {
        let object = self.world.set(kind(widget), widget, spec.clone()).await?;
        self.wrote(&object);
        let uid = string(&object, "/metadata/uid").to_owned();
        let generation = object["metadata"]["generation"].as_i64().context("a generation")?;
        self.told.specs.insert((uid, generation), spec.clone());
        self.specs.insert(widget, spec.clone());
        Ok(())
    }

    async fn flip(&mut self, widget: &str, r#type: &str, text: &str) -> Result<()> {
        let object = self.world.get(kind(widget), widget).await?;
        let Some(found) = condition(&object, r#type) else { return Ok(()) };
        let mut flipped = found.clone();
        flipped["status"] = if found["status"] == "True" { "False".into() } else { "True".into() };
        flipped["message"] = format!("flipped {text}").into();
        flipped["lastTransitionTime"] = "2026-01-02T00:00:00Z".into();
        self.apply_status(widget, "intruder", Some(json!({"conditions": [flipped]}))).await
    }

    async fn put(&mut self, widget: &str, text: &str) -> Result<()> {
        let mut object = self.world.get(kind(widget), widget).await?;
        for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
            if ["Ready", "Synced"].contains(&string(condition, "/type")) {
                condition["status"] = "Unknown".into();
                condition["message"] = format!("put {text}").into();
                condition["lastTransitionTime"] = "2026-01-03T00:00:00Z".into();
            }
        }
        let object = serde_json::from_value(object)?;
        match self.world.api(kind(widget)).replace_status(widget, &PostParams::default(), &object).await {
            Ok(object) => self.wrote(&serde_json::to_value(object)?),
            // The host was quicker.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Holds this in the status, as a controller of its own; `None` withdraws everything.
    async fn audit(&mut self, widget: &'static str, held: Option<Value>) -> Result<()> {
        self.apply_status(widget, "auditor", held.clone()).await?;
        match held {
            Some(held) => drop(self.auditor.insert(widget, held)),
            None => drop(self.auditor.remove(widget)),
        }
        Ok(())
    }

    async fn apply_status(&mut self, widget: &str, manager: &str, status: Option<Value>) -> Result<()> {
        let mut body = json!({
            "apiVersion": "cases.example.com/v1", "kind": kind(widget), "metadata": {"name": widget},
        });
        if let Some(status) = status {
            body["status"] = status;
        }
        let params = PatchParams::apply(manager).force();
        match self.world.api(kind(widget)).patch_status(widget, &params, &Patch::Apply(&body)).await {
            Ok(object) => self.wrote(&serde_json::to_value(object)?),
            // Somebody who gives up what they forced before, of which only they and not we have all that it needs.
            Err(kube::Error::Api(status)) if status.code == 422 && manager == "intruder" => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn patch_status(&mut self, kind: &str, name: &str, patch: &Patch<Value>) -> Result<()> {
        match self.world.api(kind).patch_status(name, &PatchParams::default(), patch).await {
            Ok(object) => self.wrote(&serde_json::to_value(object)?),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The child afterwards, if there is one of the name.
    async fn patch_child(&mut self, name: &str, patch: Value) -> Result<Option<Value>> {
        let params = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        match self.world.api("ConfigMap").patch(name, &params, &Patch::Merge(patch)).await {
            Ok(object) => {
                let object = serde_json::to_value(object)?;
                self.wrote(&object);
                Ok(Some(object))
            }
            // Gone, or immutable.
            Err(kube::Error::Api(status)) if [404, 422].contains(&status.code) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes what guests read, or deletes it.
    async fn read(&mut self, name: &str, labels: Value, text: Option<&str>) -> Result<()> {
        let Some(text) = text else {
            if self.world.find("ConfigMap", name).await?.is_some() {
                self.world.delete("ConfigMap", name).await?;
            }
            return Ok(());
        };
        let metadata = json!({"name": name, "labels": labels});
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}});
        let object = self.world.apply(&object, "tests").await?;
        self.wrote(&object);
        Ok(())
    }

    /// Removes what a parent that is gone has left: without an owner reference, nobody does.
    async fn clear_away(&mut self, uid: &str) -> Result<()> {
        let left = self.world.list("ConfigMap", Some(&format!("oarlock.dev/parent={uid}"))).await?;
        for object in left.iter().filter(|object| object["metadata"].get("ownerReferences").is_none()) {
            self.delete_child(string(object, "/metadata/name")).await?;
        }
        Ok(())
    }

    async fn delete_child(&mut self, name: &str) -> Result<()> {
        let Some(child) = self.world.find("ConfigMap", name).await? else { return Ok(()) };
        let uid = string(&child, "/metadata/uid").to_owned();
        self.told.deleted.insert(uid.clone());
        let exactly = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams { preconditions: Some(exactly), ..DeleteParams::background() };
        match self.world.api("ConfigMap").delete(name, &params).await {
            // Gone, or another one by now.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    fn wrote(&mut self, object: &Value) {
        if let Ok(version) = string(object, "/metadata/resourceVersion").parse() {
            self.told.writes.insert(version);
        }
    }

    /// Waits until everything is as it should be. The garbage collector takes up to 30 s for the children of what
    /// was made anew, while the kinds are new to it, and their names are taken until then.
    pub(super) async fn settled(&self) -> Result<()> {
        eventually(2 * DEADLINE, "all objects are as their specs say", async || self.check().await)
            .await
            .map_err(|error| error.context(self.world.host_log()))
    }

    /// Fails unless every parent's status and children, and the plugins, are as they should be.
    pub(super) async fn check(&self) -> Result<()> {
        for (name, component) in [("widget", self.component), ("cluster", "widget-cluster")] {
            let plugin = self.world.get("Plugin", name).await?;
            says(&plugin, "Ready", "True", "Active")?;
            let digest = digest(&host::component(component)?);
            ensure!(plugin["status"]["active"]["digest"] == *digest, "{}", plugin["status"]);
        }
        let picked: Vec<_> = PICKS.into_iter().filter(|name| self.picked.contains(name)).collect();
        let service = self.world.find("Service", &format!("{SERVICE}-svc")).await?.unwrap_or_default();
        let around = Surroundings {
            component: self.component,
            source: self.source.as_deref(),
            picked: &picked.join(","),
            service: service.pointer("/status/conditions/0/type").and_then(Value::as_str).unwrap_or_default(),
        };
        let config_maps = self.world.list("ConfigMap", None).await?;
        let mut parents = BTreeSet::new();
        for (name, spec) in &self.specs {
            let widget = self.world.get(kind(name), name).await?;
            parents.insert(string(&widget, "/metadata/uid").to_owned());
            let expected = expected(name, spec, &around);
            let auditor = self.auditor.get(name).unwrap_or(&Value::Null);
            expected.check_status(&widget, auditor).with_context(|| format!("{widget:#}"))?;
            let Some(planned) = &expected.config_maps else { continue };
            let is_child = |object: &&Value| {
                let name = string(object, "/metadata/name");
                let is_ours =
                    object.pointer("/metadata/ownerReferences/0/uid") == Some(&widget["metadata"]["uid"]);
                // Without its label nobody finds it any more, unless it is planned.
                is_ours && (object.pointer(LABEL).is_some() || planned.iter().any(|(one, _)| one == name))
            };
            let children: Vec<_> = config_maps.iter().filter(is_child).collect();
            for child in &children {
                self.check_child(child, plugin(name), planned)?;
            }
            ensure!(
                children.len() == planned.len(),
                "{} children of {name}, not {planned:?}",
                children.len()
            );
        }
        if let Some(spec) = self.specs.get(SERVICE) {
            let text = spec.pointer("/plan/status/note");
            let found = service.pointer("/metadata/annotations/text");
            ensure!(found == text, "the Service says {found:?}, not {text:?}");
        }
        // Nothing is left of parents that are gone. What somebody took the owner off is theirs, unless it is planned.
        for object in config_maps.iter().filter(|object| object.pointer(LABEL).is_some()) {
            let owner = object.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
            ensure!(owner.is_none_or(|owner| parents.contains(owner)), "left over: {}", object["metadata"]);
        }
        Ok(())
    }

    fn check_child(&self, child: &Value, plugin: &str, planned: &[(String, Value)]) -> Result<()> {
        let name = string(child, "/metadata/name");
        let (_, data) =
            planned.iter().find(|(one, _)| one == name).with_context(|| format!("{name} is not planned"))?;
        let mut data = data.clone();
        if let Some((uid, text)) = self.added.get(name)
            && string(child, "/metadata/uid") == uid
        {
            data["added"] = text.as_str().into();
        }
        ensure!(child["data"] == data, "{name} has {}, not {data}", child["data"]);
        let label = child.pointer(LABEL);
        ensure!(label.is_some_and(|label| label == plugin), "{name} has the label {label:?}");
        Ok(())
    }
}
