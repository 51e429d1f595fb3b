//! Installs an application: settings, storage, a migration that runs once, and what serves it.
//!
//! Nothing here waits. Each call plans what can be there by now and says what is pending or has failed, and why;
//! the host calls again when that changes.

use std::collections::BTreeMap;

use oarlock_sdk::{
    Child, Children, Condition, Failure, Manifest, Object, Plan, Readiness, Reads, Reconciler, Selection,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const PORT: u16 = 80;

/// The spec of a `Bundle`: what serves, and what that needs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// What serves: a Deployment and a Service.
    pub web: Web,
    /// Settings, as environment variables of everything that runs: a `ConfigMap`.
    pub config: Option<BTreeMap<String, String>>,
    /// The size of a volume at `/data` of what serves: a `PersistentVolumeClaim`.
    pub storage: Option<String>,
    /// What has to run once before anything serves: a Job.
    pub migration: Option<Migration>,
}

/// What serves.
#[derive(Debug, Deserialize)]
pub struct Web {
    /// The container image; it listens on port 80.
    pub image: String,
    /// How many pods.
    #[serde(default = "one")]
    pub replicas: u32,
}

/// A migration; another image, command or time-out is another migration. What is not given is not serialized: a
/// field that a later version of this plugin adds must not make the same migration another one.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// The container image.
    pub image: String,
    /// What to run, if it is not what the image runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// How long it may take, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

/// One child and how far it is, as the status shows it.
#[derive(Debug, Serialize)]
struct Component {
    kind: String,
    name: String,
    state: State,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum State {
    Ready,
    Pending,
    Failed,
}

fn one() -> u32 {
    1
}

type Bundle = Object<Spec>;

/// The controller of `Bundle`.
pub struct BundleController;

impl Reconciler for BundleController {
    type Object = Bundle;

    fn manifest() -> Manifest {
        // Only our own Deployments: their label keeps everyone else's out of the host's memory.
        let deployments = Selection::new("apps/v1", "Deployment").labels("oarlock.dev/owned-by");
        Manifest::new("demo.oarlock.dev/v1", "Bundle")
            .children([("v1", "ConfigMap"), ("v1", "PersistentVolumeClaim"), ("v1", "Service")])
            .children([("apps/v1", "Deployment"), ("batch/v1", "Job")])
            .reads([deployments])
    }

    fn reconcile(bundle: &Bundle, reads: &Reads) -> Result<Plan, Failure> {
        let (name, spec) = (&bundle.metadata.name, &bundle.spec);
        let observed = reads.children()?;
        let config = spec.config.as_ref().map(|config| config_map(bundle, config));
        let claim = spec.storage.as_ref().map(|size| claim(bundle, size));
        let migration = spec.migration.as_ref().map(|migration| job(bundle, migration));
        let mut children: Vec<_> =
            [config, claim, migration, Some(service(bundle))].into_iter().flatten().collect();
        let mut components: Vec<_> = children.iter().map(|child| Component::of(child, &observed)).collect();

        let awaited =
            components.iter().find(|component| component.kind == "Job" && component.state != State::Ready);
        let (image, web) = match awaited {
            None => (Some(spec.web.image.clone()), observed.readiness("Deployment", name)),
            // Leaving out what is there already would remove it: it stays as it is.
            Some(job) => {
                (deployed_image(reads, name)?, Readiness::Progressing(format!("waits for Job {}", job.name)))
            }
        };
        components.push(Component::new("Deployment", name, &web));
        children.extend(image.map(|image| deployment(bundle, &image)));
        Ok(Plan {
            children: children.into_iter().map(Child::from).collect(),
            conditions: vec![available(name, &observed), components_ready(&components)],
            status: Some(json!({"components": components})),
            ..Plan::default()
        })
    }
}

oarlock_sdk::export!(BundleController);

/// The image that is being served until the migration is complete; `None` before the first one.
fn deployed_image(reads: &Reads, name: &str) -> Result<Option<String>, Failure> {
    let deployment: Option<Value> = reads.get(("apps/v1", "Deployment"), name)?;
    let image = |deployment: &Value| {
        deployment.pointer("/spec/template/spec/containers/0/image")?.as_str().map(str::to_owned)
    };
    Ok(deployment.as_ref().and_then(image))
}

/// Whether visitors are served, whatever else is under way.
fn available(name: &str, observed: &Children) -> Condition {
    let parts = ["Deployment", "Service"].map(|kind| (kind, observed.readiness(kind, name)));
    match parts.iter().find(|(_, readiness)| !readiness.is_ready()) {
        None => Condition::new("Available", true, "Serving", "The application is being served."),
        Some((kind, why)) => {
            Condition::new("Available", false, "NotServing", format!("{kind} {name}: {why}"))
        }
    }
}

/// Whether everything that was asked for is there: if not, what is pending or has failed, and why.
fn components_ready(components: &[Component]) -> Condition {
    let of = |state| components.iter().filter(move |component| component.state == state);
    let reason = match (of(State::Failed).next(), of(State::Pending).next()) {
        (Some(_), _) => "ComponentFailed",
        (None, Some(_)) => "ComponentPending",
        (None, None) => {
            return Condition::new("ComponentsReady", true, "AllReady", "Everything is installed.");
        }
    };
    let parts: Vec<_> = of(State::Failed).chain(of(State::Pending)).map(Component::say).collect();
    Condition::new("ComponentsReady", false, reason, parts.join("; "))
}

impl Component {
    fn new(kind: &str, name: &str, readiness: &Readiness) -> Self {
        let state = match readiness {
            Readiness::Ready => State::Ready,
            Readiness::Progressing(_) | Readiness::Terminating => State::Pending,
            Readiness::Failed(_) => State::Failed,
        };
        Self { kind: kind.to_owned(), name: name.to_owned(), state, message: readiness.to_string() }
    }

    fn of(child: &Value, observed: &Children) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, name) = (text(&child["kind"]), text(&child["metadata"]["name"]));
        Self::new(&kind, &name, &observed.readiness(&kind, &name))
    }

    fn say(&self) -> String {
        let Self { kind, name, state, message } = self;
        let state = if *state == State::Failed { "has failed" } else { "is pending" };
        format!("{kind} {name} {state}: {message}")
    }
}

fn labels(bundle: &Bundle) -> Value {
    json!({"app.kubernetes.io/name": "bundle", "app.kubernetes.io/instance": bundle.metadata.name})
}

fn config_map(bundle: &Bundle, config: &BTreeMap<String, String>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": bundle.metadata.name, "labels": labels(bundle)},
        "data": config,
    })
}

fn claim(bundle: &Bundle, size: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": bundle.metadata.name, "labels": labels(bundle)},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    })
}

/// A Job cannot be changed, so another migration is another Job: its name tells its content.
fn job(bundle: &Bundle, migration: &Migration) -> Value {
    let text = json!(migration).to_string();
    // FNV-1a: what is in the name must not depend on who compiled this.
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let mut container = container(bundle, "migrate", &migration.image);
    if !migration.command.is_empty() {
        container["command"] = json!(migration.command);
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": format!("{}-{hash:08x}", bundle.metadata.name), "labels": labels(bundle)},
        "spec": {
            "activeDeadlineSeconds": migration.timeout_seconds,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    })
}

fn service(bundle: &Bundle) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": bundle.metadata.name, "labels": labels(bundle)},
        "spec": {"selector": labels(bundle), "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    })
}

fn deployment(bundle: &Bundle, image: &str) -> Value {
    let name = &bundle.metadata.name;
    let mut container = container(bundle, "web", image);
    container["ports"] = json!([{"name": "http", "containerPort": PORT}]);
    let mut pod = json!({"containers": [container]});
    if bundle.spec.storage.is_some() {
        pod["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        pod["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels(bundle)},
        "spec": {
            "replicas": bundle.spec.web.replicas,
            "selector": {"matchLabels": labels(bundle)},
            "template": {"metadata": {"labels": labels(bundle)}, "spec": pod},
        },
    })
}

fn container(bundle: &Bundle, name: &str, image: &str) -> Value {
    let mut container = json!({"name": name, "image": image});
    if bundle.spec.config.is_some() {
        container["envFrom"] = json!([{"configMapRef": {"name": bundle.metadata.name}}]);
    }
    container
}
