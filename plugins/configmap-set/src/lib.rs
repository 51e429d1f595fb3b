//! Keeps a set of `ConfigMap`s that share some of their data.

use std::collections::BTreeMap;

use oarlock_sdk::{Child, Failure, Manifest, Object, Plan, Reads, Reconciler};
use serde::Deserialize;
use serde_json::json;

type Data = BTreeMap<String, String>;

/// The spec of a `ConfigMapSet`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// What every `ConfigMap` contains.
    #[serde(default)]
    pub data: Data,
    /// The `ConfigMap`s by name; each with data of its own, which wins over the shared.
    pub config_maps: BTreeMap<String, Data>,
}

/// Makes one `ConfigMap` per entry; the host removes those that are no longer asked for.
pub struct ConfigMapSet;

impl Reconciler for ConfigMapSet {
    type Object = Object<Spec>;

    fn manifest() -> Manifest {
        Manifest::new("demo.oarlock.dev/v1", "ConfigMapSet").children([("v1", "ConfigMap")])
    }

    fn reconcile(set: &Object<Spec>, _reads: &Reads) -> Result<Plan, Failure> {
        let children = set.spec.config_maps.iter().map(|(name, own)| {
            let mut data = set.spec.data.clone();
            data.extend(own.clone());
            Child::from(
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}),
            )
        });
        Ok(Plan { children: children.collect(), ..Plan::default() })
    }
}

oarlock_sdk::export!(ConfigMapSet);
