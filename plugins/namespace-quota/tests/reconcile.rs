//! What a Namespace gets.

use namespace_quota::NamespaceQuota;
use oarlock_sdk::testing::Cluster;
use serde_json::json;

fn cluster() -> Cluster {
    Cluster::from_yaml(include_str!("fixtures/namespaces.yaml"))
}

#[test]
fn namespace_gets_a_quota_of_its_size() {
    let outcome = cluster().reconcile::<NamespaceQuota>("", "shop").unwrap();
    let quota = outcome.child("ResourceQuota", "default");
    assert_eq!(quota["metadata"]["namespace"], "shop");
    assert_eq!(quota["spec"]["hard"], json!({"pods": "10"}));
}

#[test]
fn size_that_there_is_not_is_refused_by_name() {
    let failure = cluster().reconcile::<NamespaceQuota>("", "odd").unwrap_err();
    assert_eq!(failure.message, "the label demo.oarlock.dev/quota takes small or large, not \"huge\"");
}
