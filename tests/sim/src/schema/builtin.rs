//! The built-in kinds, with the schemas that the real API server publishes.

use super::{Kind, Source, node::Schema};
use serde_json::{Map, Value};
use std::sync::{Arc, LazyLock};

/// A group's version, and the document that `examples/schemas.rs` made of the real API server's.
struct Document {
    group: &'static str,
    version: &'static str,
    text: &'static str,
    kinds: &'static [Row],
}

/// The name of a kind's schema, its plural, and whether it is namespaced, has a status and counts generations.
type Row = (&'static str, &'static str, bool, bool, bool);

const DOCUMENTS: [Document; 7] = [
    Document {
        group: "",
        version: "v1",
        text: include_str!("../../schemas/core.v1.json"),
        kinds: &[
            ("io.k8s.api.core.v1.ConfigMap", "configmaps", true, false, false),
            ("io.k8s.api.core.v1.Event", "events", true, false, false),
            ("io.k8s.api.core.v1.Namespace", "namespaces", false, true, false),
            ("io.k8s.api.core.v1.PersistentVolumeClaim", "persistentvolumeclaims", true, true, false),
            ("io.k8s.api.core.v1.Pod", "pods", true, true, true),
            ("io.k8s.api.core.v1.ResourceQuota", "resourcequotas", true, true, false),
            ("io.k8s.api.core.v1.Secret", "secrets", true, false, false),
            ("io.k8s.api.core.v1.Service", "services", true, true, false),
            ("io.k8s.api.core.v1.ServiceAccount", "serviceaccounts", true, false, false),
        ],
    },
    Document {
        group: "apps",
        version: "v1",
        text: include_str!("../../schemas/apps.v1.json"),
        kinds: &[
            ("io.k8s.api.apps.v1.Deployment", "deployments", true, true, true),
            ("io.k8s.api.apps.v1.ReplicaSet", "replicasets", true, true, true),
            ("io.k8s.api.apps.v1.StatefulSet", "statefulsets", true, true, true),
        ],
    },
    Document {
        group: "batch",
        version: "v1",
        text: include_str!("../../schemas/batch.v1.json"),
        kinds: &[("io.k8s.api.batch.v1.Job", "jobs", true, true, true)],
    },
    Document {
        group: "coordination.k8s.io",
        version: "v1",
        text: include_str!("../../schemas/coordination.k8s.io.v1.json"),
        kinds: &[("io.k8s.api.coordination.v1.Lease", "leases", true, false, false)],
    },
    Document {
        group: "events.k8s.io",
        version: "v1",
        text: include_str!("../../schemas/events.k8s.io.v1.json"),
        kinds: &[("io.k8s.api.events.v1.Event", "events", true, false, false)],
    },
    Document {
        group: "policy",
        version: "v1",
        text: include_str!("../../schemas/policy.v1.json"),
        kinds: &[("io.k8s.api.policy.v1.PodDisruptionBudget", "poddisruptionbudgets", true, true, true)],
    },
    Document {
        group: "apiextensions.k8s.io",
        version: "v1",
        text: include_str!("../../schemas/apiextensions.k8s.io.v1.json"),
        kinds: &[(
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
            "customresourcedefinitions",
            false,
            true,
            true,
        )],
    },
];

/// Parsed once: thousands of clusters are started in one process.
static PARSED: LazyLock<Vec<Value>> = LazyLock::new(|| {
    DOCUMENTS
        .iter()
        .map(|document| serde_json::from_str(document.text).expect("a document is JSON"))
        .collect()
});

static KINDS: LazyLock<Vec<Arc<Kind>>> = LazyLock::new(|| {
    let documents = DOCUMENTS.iter().zip(&*PARSED);
    documents
        .flat_map(|(document, parsed)| document.kinds.iter().map(|row| made(document, parsed, row)))
        .collect()
});

fn made(document: &Document, parsed: &'static Value, row: &Row) -> Arc<Kind> {
    let (name, plural, namespaced, status, generation) = *row;
    let kind = name.rsplit('.').next().unwrap_or(name);
    let schema = Schema::builtin(schemas(parsed), name).expect("the schema of a built-in kind is supported");
    Arc::new(Kind {
        group: document.group.to_owned(),
        version: document.version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        list_kind: format!("{kind}List"),
        namespaced,
        status,
        generation,
        schema: Arc::new(schema),
        source: Source::Builtin(parsed),
    })
}

fn schemas(document: &'static Value) -> &'static Map<String, Value> {
    document["components"]["schemas"].as_object().expect("a document has schemas")
}

/// The built-in kinds.
pub fn builtin() -> Vec<Arc<Kind>> {
    KINDS.clone()
}

/// The definitions of the core group's document, among them what metadata is.
pub(super) fn definitions() -> &'static Map<String, Value> {
    schemas(&PARSED[0])
}
