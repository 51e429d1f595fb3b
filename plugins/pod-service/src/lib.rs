//! Gives each Pod of a `StatefulSet` a Service of its own, by the Pod's name.
//!
//! The parent is a kind that is not ours: its status is left to kubelet, and only those Pods are parents, and in the
//! host's memory, that somebody labelled for it.

use oarlock_sdk::{Child, Failure, Manifest, Metadata, Object, Plan, Reads, Reconciler};
use serde::Deserialize;
use serde_json::json;

/// The label that the Pod template of a `StatefulSet` asks with.
pub const LABEL: &str = "demo.oarlock.dev/pod-service";
/// What Kubernetes puts on every Pod of a `StatefulSet`: the Pod's name, for a Service to select it by.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// The annotation that tells the Pod, and who reads it, the name of its Service.
pub const ANNOTATION: &str = "demo.oarlock.dev/service";

/// What of a Pod's spec matters here.
#[derive(Debug, Deserialize)]
pub struct Spec {
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Container {
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    container_port: u16,
}

/// The controller of those Pods.
pub struct PodService;

impl Reconciler for PodService {
    type Object = Object<Spec>;

    fn manifest() -> Manifest {
        Manifest::new("v1", "Pod")
            .labels(format!("{LABEL}=true,{POD_NAME}"))
            .without_status()
            .children([("v1", "Service")])
    }

    fn reconcile(pod: &Object<Spec>, _reads: &Reads) -> Result<Plan, Failure> {
        let name = &pod.metadata.name;
        let ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
        let ports: Vec<_> = ports
            .map(|port| json!({"name": format!("port-{}", port.container_port), "port": port.container_port}))
            .collect();
        if ports.is_empty() {
            return Err(Failure::permanent("NoPorts", "no container of this Pod names a port to serve"));
        }
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {POD_NAME: name}, "ports": ports},
        });
        let annotations = [(ANNOTATION.to_owned(), name.clone())].into();
        Ok(Plan {
            children: vec![Child::from(service)],
            metadata: Metadata { annotations, ..Metadata::default() },
            ..Plan::default()
        })
    }
}

oarlock_sdk::export!(PodService);
