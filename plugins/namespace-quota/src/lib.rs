//! Keeps a `ResourceQuota` in each Namespace whose label asks for a size.

use oarlock_sdk::{Child, Failure, Manifest, ObjectMeta, Plan, Reads, Reconciler};
use serde::Deserialize;
use serde_json::json;

/// The label of a Namespace that asks: `small` or `large`.
pub const LABEL: &str = "demo.oarlock.dev/quota";

/// A Namespace, of which only the labels matter.
#[derive(Debug, Deserialize)]
pub struct Namespace {
    metadata: ObjectMeta,
}

/// The controller of those Namespaces.
pub struct NamespaceQuota;

impl Reconciler for NamespaceQuota {
    type Object = Namespace;

    fn manifest() -> Manifest {
        Manifest::new("v1", "Namespace").labels(LABEL).without_status().children([("v1", "ResourceQuota")])
    }

    fn reconcile(namespace: &Namespace, _reads: &Reads) -> Result<Plan, Failure> {
        let size = namespace.metadata.labels.get(LABEL).map_or("", String::as_str);
        let pods = match size {
            "small" => "10",
            "large" => "100",
            _ => {
                let message = format!("the label {LABEL} takes small or large, not {size:?}");
                return Err(Failure::permanent("UnknownSize", message));
            }
        };
        // A cluster-scoped parent has no namespace that its children could take over: they name it.
        let quota = json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "default", "namespace": namespace.metadata.name},
            "spec": {"hard": {"pods": pods}},
        });
        Ok(Plan { children: vec![Child::from(quota)], ..Plan::default() })
    }
}

oarlock_sdk::export!(NamespaceQuota);
