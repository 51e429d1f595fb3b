//! What a Pod gets.

use oarlock_sdk::testing::Cluster;
use pod_service::{ANNOTATION, POD_NAME, PodService};
use serde_json::json;

fn cluster() -> Cluster {
    Cluster::from_yaml(include_str!("fixtures/pods.yaml"))
}

#[test]
fn pod_gets_a_service_that_selects_just_it() {
    let outcome = cluster().reconcile::<PodService>("demo", "db-0").unwrap();
    let service = outcome.child("Service", "db-0");
    assert_eq!(service["spec"]["selector"], json!({POD_NAME: "db-0"}));
    assert_eq!(service["spec"]["ports"], json!([{"name": "port-5432", "port": 5432}]));
    assert_eq!(outcome.plan.metadata.annotations[ANNOTATION], "db-0");
}

#[test]
fn pod_without_ports_is_told_so() {
    let failure = cluster().reconcile::<PodService>("demo", "job-0").unwrap_err();
    assert_eq!(failure.reason, "NoPorts");
}
