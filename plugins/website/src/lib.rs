//! Runs a web site: a Deployment and a Service, and conditions that say how they are.

use oarlock_sdk::{
    Child, Children, Condition, Failure, Manifest, Object, Plan, Readiness, Reads, Reconciler, Selection,
};
use serde::Deserialize;
use serde_json::{Value, json};

const PORT: u16 = 80;

/// The spec of a `Website`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The container image; it listens on port 80.
    pub image: String,
    /// How many pods.
    #[serde(default = "one")]
    pub replicas: u32,
    /// The host name visitors use, if it is not the Service's own.
    pub host: Option<String>,
}

/// As much of a Deployment as the status of a site needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObservedDeployment {
    status: ObservedStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObservedStatus {
    ready_replicas: u32,
}

fn one() -> u32 {
    1
}

type Website = Object<Spec>;

/// The controller of `Website`.
pub struct WebsiteController;

impl Reconciler for WebsiteController {
    type Object = Website;

    fn manifest() -> Manifest {
        // Only our own Deployments: their label keeps everyone else's out of the host's memory.
        let deployments = Selection::new("apps/v1", "Deployment").labels("oarlock.dev/owned-by");
        let manifest = Manifest::new("demo.oarlock.dev/v1", "Website")
            .children([("apps/v1", "Deployment"), ("v1", "Service")])
            .reads([deployments]);
        if cfg!(feature = "v2") {
            manifest.version("0.2.0").children([("policy/v1", "PodDisruptionBudget")])
        } else {
            manifest
        }
    }

    fn reconcile(site: &Website, reads: &Reads) -> Result<Plan, Failure> {
        let mut children = vec![deployment(site), service(site)];
        if cfg!(feature = "v2") {
            children.push(disruption_budget(site));
        }
        let name = &site.metadata.name;
        let deployment: Option<ObservedDeployment> = reads.get(("apps/v1", "Deployment"), name)?;
        let ready_replicas = deployment.unwrap_or_default().status.ready_replicas;
        Ok(Plan {
            children,
            status: Some(json!({"readyReplicas": ready_replicas, "address": address(site)})),
            conditions: conditions(name, &reads.children()?),
            ..Plan::default()
        })
    }
}

oarlock_sdk::export!(WebsiteController);

fn labels(site: &Website) -> Value {
    json!({"app.kubernetes.io/name": "website", "app.kubernetes.io/instance": site.metadata.name})
}

fn deployment(site: &Website) -> Child {
    let mut template = json!({
        "metadata": {"labels": labels(site)},
        "spec": {"containers": [{
            "name": "web",
            "image": site.spec.image,
            "ports": [{"name": "http", "containerPort": PORT}],
        }]},
    });
    if cfg!(feature = "v2") {
        template["metadata"]["annotations"] = json!({"demo.oarlock.dev/website": "v2"});
    }
    Child::from(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": site.metadata.name, "labels": labels(site)},
        "spec": {
            "replicas": site.spec.replicas,
            "selector": {"matchLabels": labels(site)},
            "template": template,
        },
    }))
}

fn service(site: &Website) -> Child {
    Child::from(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": site.metadata.name, "labels": labels(site)},
        "spec": {
            "selector": labels(site),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }))
}

fn disruption_budget(site: &Website) -> Child {
    Child::from(json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": site.metadata.name, "labels": labels(site)},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels(site)}},
    }))
}

/// Where visitors find the site.
fn address(site: &Website) -> String {
    let metadata = &site.metadata;
    let in_cluster =
        || format!("{}.{}.svc", metadata.name, metadata.namespace.as_deref().unwrap_or("default"));
    site.spec.host.clone().unwrap_or_else(in_cluster)
}

/// What the children say, without waiting for them: the host asks again when one of them changes.
fn conditions(name: &str, children: &Children) -> Vec<Condition> {
    let parts = ["Deployment", "Service"].map(|kind| (kind, children.readiness(kind, name)));
    let first = |wanted: fn(&Readiness) -> bool| {
        let part = parts.iter().find(|(_, readiness)| wanted(readiness));
        part.map(|(kind, readiness)| format!("{kind} {name}: {readiness}"))
    };
    let failed = first(Readiness::is_failed);
    let progressing =
        first(|readiness| matches!(readiness, Readiness::Progressing(_) | Readiness::Terminating));
    let available = match failed.as_ref().or(progressing.as_ref()) {
        None => Condition::new("Available", true, "Serving", "The site is being served."),
        Some(why) => Condition::new("Available", false, "NotServing", why),
    };
    let progressing = match progressing {
        None => Condition::new("Progressing", false, "Settled", "Nothing is being rolled out."),
        Some(why) => Condition::new("Progressing", true, "RollingOut", why),
    };
    let degraded = match failed {
        None => Condition::new("Degraded", false, "AsExpected", "Nothing has failed."),
        Some(why) => Condition::new("Degraded", true, "ChildFailed", why),
    };
    vec![available, progressing, degraded]
}
