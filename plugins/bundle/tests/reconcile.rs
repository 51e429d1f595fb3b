//! What a `Bundle` becomes, and what it says about its parts.

use bundle::BundleController;
use oarlock_sdk::testing::{Cluster, Outcome, Read};
use oarlock_sdk::{ConditionStatus, Readiness};
use serde_json::{Value, json};

fn cluster() -> Cluster {
    Cluster::from_yaml(include_str!("fixtures/shop.yaml"))
}

/// The fixtures, without what serves already.
fn empty_cluster() -> Cluster {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop", "namespace": "demo"},
    });
    cluster().with(deployment)
}

fn reconcile(cluster: &Cluster, name: &str) -> Outcome {
    cluster.reconcile::<BundleController>("demo", name).expect("a plan")
}

fn kinds(outcome: &Outcome) -> Vec<Value> {
    outcome.children().iter().map(|child| child["kind"].clone()).collect()
}

/// The one Job of a plan, by name.
fn job(outcome: &Outcome) -> String {
    let children = outcome.children();
    let job = children.iter().find(|child| child["kind"] == "Job").expect("a Job");
    job["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// Status, reason and message of `ComponentsReady`.
fn components_ready(outcome: &Outcome) -> (ConditionStatus, &str, &str) {
    let condition = outcome.condition("ComponentsReady");
    (condition.status, &condition.reason, &condition.message)
}

fn is_available(outcome: &Outcome) -> bool {
    outcome.condition("Available").status == ConditionStatus::True
}

/// Everything but what serves is ready.
fn migrated(cluster: Cluster, name: &str) -> Cluster {
    let job = job(&reconcile(&cluster, name));
    ["ConfigMap", "PersistentVolumeClaim", "Service"]
        .into_iter()
        .fold(cluster, |cluster, kind| cluster.child(kind, name, Readiness::Ready))
        .child("Job", &job, Readiness::Ready)
}

#[test]
fn a_bundle_of_nothing_else_serves_at_once() {
    let outcome = reconcile(&cluster(), "plain");
    assert_eq!(kinds(&outcome), ["Service", "Deployment"]);
    let deployment = outcome.child("Deployment", "plain");
    assert_eq!(deployment["spec"]["replicas"], 1);
    let pod = &deployment["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"], outcome.child("Service", "plain")["spec"]["selector"]);
    assert_eq!(pod["spec"]["containers"][0]["image"], "plain:1");
    assert!(pod["spec"]["volumes"].is_null() && pod["spec"]["containers"][0]["envFrom"].is_null(), "{pod}");
}

#[test]
fn what_serves_is_planned_once_the_migration_is_complete() {
    let outcome = reconcile(&empty_cluster(), "shop");
    assert_eq!(kinds(&outcome), ["ConfigMap", "PersistentVolumeClaim", "Job", "Service"]);
    assert!(!is_available(&outcome));

    let outcome = reconcile(&migrated(empty_cluster(), "shop"), "shop");
    let deployment = outcome.child("Deployment", "shop");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "shop:2");
    assert_eq!(pod["containers"][0]["envFrom"], json!([{"configMapRef": {"name": "shop"}}]));
    assert_eq!(pod["volumes"][0]["persistentVolumeClaim"]["claimName"], "shop");
    // It asks for nothing that it does not need: a Deployment's every change would call it.
    assert_eq!(outcome.reads, [Read::Children]);
}

#[test]
fn what_serves_already_keeps_its_image_while_another_migration_runs() {
    let cluster =
        cluster().child("Deployment", "shop", Readiness::Ready).child("Service", "shop", Readiness::Ready);
    let outcome = reconcile(&cluster, "shop");
    let deployment = outcome.child("Deployment", "shop");
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "shop:1");
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert!(is_available(&outcome));
    assert_eq!(components_ready(&outcome).0, ConditionStatus::False);
}

#[test]
fn a_condition_says_what_is_pending_and_why() {
    let outcome = reconcile(&empty_cluster(), "shop");
    let job = job(&outcome);
    let not_there = "is pending: does not exist yet";
    let message = format!(
        "ConfigMap shop {not_there}; PersistentVolumeClaim shop {not_there}; Job {job} {not_there}; \
         Service shop {not_there}; Deployment shop is pending: waits for Job {job}"
    );
    assert_eq!(components_ready(&outcome), (ConditionStatus::False, "ComponentPending", &*message));

    let waiting = Readiness::Progressing("0 of 2 replicas ready".to_owned());
    let cluster = migrated(empty_cluster(), "shop").child("Deployment", "shop", waiting);
    let outcome = reconcile(&cluster, "shop");
    let message = "Deployment shop is pending: 0 of 2 replicas ready";
    assert_eq!(components_ready(&outcome), (ConditionStatus::False, "ComponentPending", message));
    assert_eq!(outcome.condition("Available").message, "Deployment shop: 0 of 2 replicas ready");

    let outcome = reconcile(&cluster.child("Deployment", "shop", Readiness::Ready), "shop");
    let message = "Everything is installed.";
    assert_eq!(components_ready(&outcome), (ConditionStatus::True, "AllReady", message));
    assert!(is_available(&outcome));
}

#[test]
fn what_has_failed_is_said_first_and_nothing_serves() {
    let cluster = empty_cluster();
    let job = job(&reconcile(&cluster, "shop"));
    let failed = Readiness::Failed("took too long".to_owned());
    let cluster = cluster
        .child("ConfigMap", "shop", Readiness::Ready)
        .child("Service", "shop", Readiness::Ready)
        .child("PersistentVolumeClaim", "shop", Readiness::Terminating)
        .child("Job", &job, failed);
    let outcome = reconcile(&cluster, "shop");
    let message = format!(
        "Job {job} has failed: took too long; PersistentVolumeClaim shop is pending: is being deleted; \
         Deployment shop is pending: waits for Job {job}"
    );
    assert_eq!(components_ready(&outcome), (ConditionStatus::False, "ComponentFailed", &*message));
    assert!(!kinds(&outcome).contains(&json!("Deployment")));
    let components = &outcome.plan.status.as_ref().expect("a status")["components"];
    assert_eq!(
        components[2],
        json!({"kind": "Job", "name": job, "state": "Failed", "message": "took too long"})
    );
    let states: Vec<_> = components.as_array().unwrap().iter().map(|component| &component["state"]).collect();
    assert_eq!(states, ["Ready", "Pending", "Failed", "Ready", "Pending"]);
}

#[test]
fn another_migration_is_another_job() {
    let with = |migration: Value| {
        let bundle = json!({
            "apiVersion": "demo.oarlock.dev/v1", "kind": "Bundle", "metadata": {"name": "shop", "namespace": "demo"},
            "spec": {"web": {"image": "shop:2"}, "migration": migration},
        });
        job(&reconcile(&cluster().with(bundle), "shop"))
    };
    // What is in force in a cluster: another hash would run every migration again.
    assert_eq!(with(json!({"image": "migrations:2"})), "shop-0989f76d");
    assert_ne!(with(json!({"image": "migrations:3"})), with(json!({"image": "migrations:2"})));
    assert_ne!(
        with(json!({"image": "migrations:2", "timeoutSeconds": 9})),
        with(json!({"image": "migrations:2"}))
    );
}
