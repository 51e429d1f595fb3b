//! The in-memory cluster answers as the host does.

use oarlock_sdk::testing::{Cluster, Outcome, Read};
use oarlock_sdk::{
    Failure, FailureKind, Level, Manifest, Object, Plan, Readiness, Reads, Reconciler, Selection, Teardown,
};
use serde_json::{Value, json};

const CLUSTER: &str = "
apiVersion: example.com/v1
kind: Site
metadata: {name: a, namespace: demo, resourceVersion: '7', managedFields: []}
spec: {ask: own}
status: {count: 4}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two, namespace: demo, labels: {tier: front}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: one, namespace: demo, labels: {tier: back}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: one, namespace: other, labels: {tier: back}}
---
apiVersion: v1
kind: Service
metadata: {name: seen, namespace: demo, labels: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: unseen, namespace: demo}
";

/// Reads what `spec.ask` says and puts the answer into the status.
struct Asks;

impl Reconciler for Asks {
    type Object = Object<Value>;

    fn manifest() -> Manifest {
        Manifest::new("example.com/v1", "Site")
            .children([("apps/v1", "Deployment")])
            .reads([("v1", "ConfigMap")])
            .reads([Selection::new("v1", "Service").labels("app=web")])
            .finalizes()
    }

    fn reconcile(object: &Object<Value>, reads: &Reads) -> Result<Plan, Failure> {
        let names =
            |objects: Vec<Value>| json!(objects.iter().map(|it| &it["metadata"]["name"]).collect::<Vec<_>>());
        let config_map = ("v1", "ConfigMap");
        let service = ("v1", "Service");
        let answer = match object.spec["ask"].as_str().unwrap_or_default() {
            "own" => {
                json!(reads.get::<Value>(config_map, "one")?.map(|it| it["metadata"]["namespace"].clone()))
            }
            "none" => json!(reads.get::<Value>(config_map, "none")?),
            "all" => names(reads.list(config_map, "")?),
            "some" => names(reads.list(config_map, "tier in (front)")?),
            "malformed" => names(reads.list(config_map, "tier in front")?),
            "other" => json!(reads.get_in::<Value>("other", config_map, "one")?),
            "selected" => names(reads.list_in("demo", service, "")?),
            "secret" => json!(reads.get::<Value>(("v1", "Secret"), "one")?),
            "child" => json!(reads.get::<Value>(("apps/v1", "Deployment"), "a")?),
            "typed" => json!(reads.get::<u32>(config_map, "one")?),
            "status" => json!(reads.previous_status::<Value>()?),
            "now" => json!(reads.now()),
            "children" => {
                json!(reads.children()?.iter().map(|it| it.readiness.to_string()).collect::<Vec<_>>())
            }
            "ready" => json!(reads.children()?.all_ready()),
            other => panic!("{other}"),
        };
        oarlock_sdk::info!("asked for {}", object.spec["ask"]);
        Ok(Plan { status: Some(answer), ..Plan::default() })
    }

    fn finalize(object: &Object<Value>, _reads: &Reads) -> Result<Teardown, Failure> {
        assert!(object.metadata.deletion_timestamp.is_some());
        Ok(Teardown::done())
    }
}

fn ask(cluster: Cluster, what: &str) -> Result<Outcome, Failure> {
    let parent = json!({
        "apiVersion": "example.com/v1", "kind": "Site", "metadata": {"name": "a", "namespace": "demo"},
        "spec": {"ask": what}, "status": {"count": 4},
    });
    cluster.with(parent).reconcile::<Asks>("demo", "a")
}

fn cluster() -> Cluster {
    Cluster::from_yaml(CLUSTER)
}

#[test]
fn reads_answer_what_is_declared_in_the_namespace_of_the_parent() {
    let cases = [
        ("own", json!("demo")),
        ("none", json!(null)),
        ("all", json!(["one", "two"])),
        ("some", json!(["two"])),
        ("selected", json!(["seen"])),
        ("status", json!({"count": 4})),
        ("now", json!("2026-01-01T00:00:00Z")),
        ("children", json!([])),
        ("ready", json!(false)),
    ];
    for (what, expected) in cases {
        assert_eq!(ask(cluster(), what).unwrap().plan.status, Some(expected), "{what}");
    }
}

#[test]
fn reads_that_are_not_allowed_fail_for_good() {
    let cases = [
        ("other", "ReadDenied", "ConfigMap (v1) is outside of the parent's namespace demo"),
        ("secret", "ReadDenied", "the manifest does not declare Secret (v1) under reads"),
        ("child", "ReadDenied", "the manifest does not declare Deployment (apps/v1) under reads"),
        ("malformed", "ReadInvalid", "label selector `tier in front`: at `tier in front`"),
        ("typed", "InvalidObject", "ConfigMap one: invalid type: map, expected u32"),
    ];
    for (what, reason, message) in cases {
        let failure = ask(cluster(), what).unwrap_err();
        assert_eq!((failure.kind, &*failure.reason), (FailureKind::Permanent, reason), "{what}");
        assert_eq!(failure.message, message);
    }
}

#[test]
fn children_are_as_the_test_says() {
    let cluster = cluster()
        .child("Deployment", "b", Readiness::Failed("no image".to_owned()))
        .child("Deployment", "a", Readiness::Terminating)
        .child("Deployment", "b", Readiness::Ready);
    let outcome = ask(cluster.clone(), "children").unwrap();
    assert_eq!(outcome.plan.status, Some(json!(["is being deleted", "is ready"])));
    let outcome = ask(cluster.child("Deployment", "a", Readiness::Ready), "ready").unwrap();
    assert_eq!(outcome.plan.status, Some(json!(true)));
}

#[test]
fn the_outcome_tells_what_was_read_and_logged() {
    let outcome = ask(cluster(), "selected").unwrap();
    let list =
        Read::List { kind: "Service".to_owned(), namespace: Some("demo".to_owned()), label_selector: None };
    assert_eq!(outcome.reads, [list]);
    assert_eq!(outcome.log, [(Level::Info, "asked for \"selected\"".to_owned())]);
}

#[test]
fn finalize_sees_an_object_that_is_being_deleted() {
    let outcome = cluster().now("2026-02-02T00:00:00Z").finalize::<Asks>("demo", "a").unwrap();
    assert!(outcome.done);
    assert_eq!(outcome.plan, Plan::default());
}

#[test]
#[should_panic(expected = "no Site demo/missing in the cluster")]
fn a_parent_that_is_missing_is_named() {
    drop(cluster().reconcile::<Asks>("demo", "missing"));
}
