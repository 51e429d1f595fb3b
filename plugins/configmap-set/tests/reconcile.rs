//! What a `ConfigMapSet` makes.

use configmap_set::ConfigMapSet;
use oarlock_sdk::FailureKind;
use oarlock_sdk::testing::Cluster;
use serde_json::json;

fn cluster() -> Cluster {
    Cluster::from_yaml(include_str!("fixtures/app.yaml"))
}

#[test]
fn every_config_map_has_the_shared_data_and_its_own() {
    let outcome = cluster().reconcile::<ConfigMapSet>("demo", "app").unwrap();
    assert_eq!(outcome.children().len(), 2);
    let staging = outcome.child("ConfigMap", "app-staging");
    assert_eq!(staging["data"], json!({"log.level": "debug", "region": "eu"}));
    let production = outcome.child("ConfigMap", "app-production");
    assert_eq!(production["data"], json!({"log.level": "info", "region": "eu"}));
}

#[test]
fn an_object_that_does_not_fit_is_refused_by_field() {
    let failure = cluster().reconcile::<ConfigMapSet>("demo", "wrong").unwrap_err();
    assert_eq!((failure.kind, &*failure.reason), (FailureKind::Permanent, "InvalidObject"));
    assert_eq!(failure.message, "spec.configMaps.app.retries: invalid type: integer `3`, expected a string");
}
