//! What a `Website` becomes.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use oarlock_sdk::testing::{Cluster, Outcome, Read};
use oarlock_sdk::{Child, ConditionStatus, FailureKind, Readiness};
use serde_json::json;
use website::WebsiteController;

fn cluster() -> Cluster {
    Cluster::from_yaml(include_str!("fixtures/blog.yaml"))
}

fn reconcile(cluster: &Cluster, name: &str) -> Outcome {
    cluster.reconcile::<WebsiteController>("demo", name).expect("a plan")
}

/// Available, Progressing, Degraded.
fn conditions(outcome: &Outcome) -> [bool; 3] {
    ["Available", "Progressing", "Degraded"]
        .map(|condition| outcome.condition(condition).status == ConditionStatus::True)
}

#[test]
fn a_site_is_a_deployment_and_a_service_that_fit_together() {
    let outcome = reconcile(&cluster(), "shop");
    let deployment: Deployment = serde_json::from_value(outcome.child("Deployment", "shop")).unwrap();
    let service: Service = serde_json::from_value(outcome.child("Service", "shop")).unwrap();

    let deployment = deployment.spec.unwrap();
    assert_eq!(deployment.replicas, Some(3));
    let pods = deployment.template.metadata.unwrap().labels;
    assert_eq!(deployment.selector.match_labels, pods);
    assert_eq!(service.spec.unwrap().selector, pods);
    let containers = deployment.template.spec.unwrap().containers;
    assert_eq!(containers[0].image.as_deref(), Some("nginx:1.29"));
}

#[test]
fn a_site_without_replicas_and_host_has_one_pod_and_the_address_of_its_service() {
    let outcome = reconcile(&cluster(), "blog");
    assert_eq!(outcome.child("Deployment", "blog")["spec"]["replicas"], 1);
    assert_eq!(outcome.plan.status, Some(json!({"readyReplicas": 0, "address": "blog.demo.svc"})));
}

#[test]
fn the_status_counts_the_ready_replicas_of_its_own_deployment() {
    let outcome = reconcile(&cluster(), "shop");
    assert_eq!(outcome.plan.status, Some(json!({"readyReplicas": 2, "address": "shop.example.com"})));
    let get = Read::Get { kind: "Deployment".to_owned(), namespace: None, name: "shop".to_owned() };
    assert_eq!(outcome.reads, [get, Read::Children]);
}

#[test]
fn a_new_site_progresses_until_its_children_are_ready() {
    let cluster = cluster();
    let outcome = reconcile(&cluster, "blog");
    assert_eq!(conditions(&outcome), [false, true, false]);
    assert_eq!(outcome.condition("Progressing").message, "Deployment blog: does not exist yet");

    let waiting = Readiness::Progressing("0 of 1 pods are ready".to_owned());
    let cluster = cluster.child("Service", "blog", Readiness::Ready).child("Deployment", "blog", waiting);
    let outcome = reconcile(&cluster, "blog");
    assert_eq!(conditions(&outcome), [false, true, false]);
    assert_eq!(outcome.condition("Available").message, "Deployment blog: 0 of 1 pods are ready");

    let outcome = reconcile(&cluster.child("Deployment", "blog", Readiness::Ready), "blog");
    assert_eq!(conditions(&outcome), [true, false, false]);
}

#[test]
fn a_failed_child_degrades_the_site() {
    let failed = Readiness::Failed("progress deadline exceeded".to_owned());
    let cluster = cluster().child("Service", "blog", Readiness::Ready).child("Deployment", "blog", failed);
    let outcome = reconcile(&cluster, "blog");
    assert_eq!(conditions(&outcome), [false, false, true]);
    assert_eq!(outcome.condition("Degraded").message, "Deployment blog: progress deadline exceeded");
}

#[test]
fn a_site_without_image_is_refused_by_field() {
    let failure = cluster().reconcile::<WebsiteController>("demo", "empty").unwrap_err();
    assert_eq!(failure.kind, FailureKind::Permanent);
    assert_eq!(failure.message, "spec: missing field `image`");
}

#[test]
fn the_second_version_marks_its_pods_and_guards_them() {
    let outcome = reconcile(&cluster(), "blog");
    let is_second = cfg!(feature = "v2");
    assert_eq!(outcome.children().len(), if is_second { 3 } else { 2 });
    let deployment = outcome.child("Deployment", "blog");
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["demo.oarlock.dev/website"] == "v2", is_second);
}

/// The same child from a type: what the compiler knows cannot be misspelt. Types cost a component about 250 KB, most
/// of it for times, so this plugin does without.
#[test]
fn a_typed_service_is_the_same_child() {
    use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
    use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};

    let service = reconcile(&cluster(), "blog").child("Service", "blog");
    let labels = serde_json::from_value(service["metadata"]["labels"].clone()).unwrap();
    let typed = Service {
        metadata: ObjectMeta { name: Some("blog".to_owned()), labels: Some(labels), ..ObjectMeta::default() },
        spec: Some(ServiceSpec {
            selector: serde_json::from_value(service["spec"]["selector"].clone()).unwrap(),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: 80,
                target_port: Some(IntOrString::String("http".to_owned())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    let child = Child::new(&typed).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(child.as_json()).unwrap(), service);
}
