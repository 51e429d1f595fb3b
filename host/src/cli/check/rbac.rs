//! The rights that a plugin's kinds need (rule Z5), for an operator to read and apply.

use crate::{manifest::Manifest, object::Gvk};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    namespace: String,
    name: String,
}

/// Reads `NAMESPACE/NAME`.
pub(super) fn parse_account(text: &str) -> Result<Account, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(Account { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("expected a namespace and a name, such as oarlock-system/oarlock".to_owned()),
    }
}

/// A cluster role with what the plugin needs, and its binding to the host's account.
pub(super) fn yaml(plugin: &str, manifest: &Manifest, account: &Account) -> anyhow::Result<String> {
    let name = format!("oarlock-plugin-{plugin}");
    let metadata = json!({"name": name, "labels": {"app.kubernetes.io/part-of": "oarlock"}});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": rules(manifest),
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
    });
    Ok(format!("{}---\n{}", serde_saphyr::to_string(&role)?, serde_saphyr::to_string(&binding)?))
}

fn rules(manifest: &Manifest) -> Vec<Value> {
    const WATCH: [&str; 3] = ["get", "list", "watch"];
    let mut verbs: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    let mut allow = |gvk: &Gvk, subresource: &str, more: &[&'static str]| {
        let resource = plural(gvk, &manifest.crds) + subresource;
        verbs.entry((gvk.group.to_string(), resource)).or_default().extend(more);
    };
    let parent = &manifest.parent.gvk;
    allow(parent, "", &WATCH);
    // The host's finalizer, and labels and annotations that a plan sets.
    allow(parent, "", &["patch"]);
    if manifest.status {
        allow(parent, "/status", &["patch"]);
    }
    // Clusters with OwnerReferencesPermissionEnforcement ask for it where a child blocks its owner's deletion.
    allow(parent, "/finalizers", &["update"]);
    for child in &manifest.children {
        allow(child, "", &WATCH);
        allow(child, "", &["create", "patch", "delete"]);
    }
    for read in &manifest.reads {
        allow(&read.gvk, "", &WATCH);
    }
    // One rule for all resources of a group with the same verbs.
    let mut rules: BTreeMap<(String, BTreeSet<&str>), Vec<String>> = BTreeMap::new();
    for ((group, resource), verbs) in verbs {
        rules.entry((group, verbs)).or_default().push(resource);
    }
    rules
        .into_iter()
        .map(|((group, verbs), resources)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs}))
        .collect()
}

/// The plural by which the API knows a kind: from a CRD that the plugin brings along, else by the rules of English
/// as kube knows them (`Ingress` → `ingresses`, `NetworkPolicy` → `networkpolicies`, `Endpoints` → `endpoints`).
/// Without a cluster to ask, a CRD elsewhere with an unusual plural is not known.
fn plural(gvk: &Gvk, crds: &[Value]) -> String {
    let from_crd = crds.iter().find_map(|crd| {
        let spec = &crd["spec"];
        let is_it = spec["group"] == *gvk.group && spec["names"]["kind"] == *gvk.kind;
        spec["names"]["plural"].as_str().filter(|_| is_it)
    });
    let by_rule = || {
        let gvk = kube::core::GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind);
        kube::core::ApiResource::from_gvk(&gvk).plural
    };
    from_crd.map_or_else(by_rule, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plural_is_the_apis() {
        let crds = [json!({"spec": {"group": "g", "names": {"kind": "Foo", "plural": "fooz"}}})];
        let cases = [
            (("apps/v1", "Deployment"), "deployments"),
            (("networking.k8s.io/v1", "Ingress"), "ingresses"),
            (("networking.k8s.io/v1", "NetworkPolicy"), "networkpolicies"),
            (("gateway.networking.k8s.io/v1", "Gateway"), "gateways"),
            (("v1", "Endpoints"), "endpoints"),
            (("g/v1", "Foo"), "fooz"),
            (("other/v1", "Foo"), "foos"),
        ];
        for ((api_version, kind), expected) in cases {
            assert_eq!(plural(&Gvk::new(api_version, kind), &crds), expected);
        }
    }

    #[test]
    fn rights_are_those_of_the_manifest() {
        let manifest = Manifest::parse(
            r#"{"name": "site", "version": "1", "parent": {"apiVersion": "demo.example.com/v1", "kind": "Website"},
                "children": [{"apiVersion": "v1", "kind": "Service"}, {"apiVersion": "apps/v1", "kind": "Deployment"},
                             {"apiVersion": "v1", "kind": "ConfigMap"}],
                "reads": [{"apiVersion": "v1", "kind": "ConfigMap"}, {"apiVersion": "v1", "kind": "Pod"}]}"#,
        )
        .unwrap();
        let write = json!(["create", "delete", "get", "list", "patch", "watch"]);
        let expected = json!([
            {"apiGroups": [""], "resources": ["configmaps", "services"], "verbs": write},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": write},
            {"apiGroups": ["demo.example.com"], "resources": ["websites"], "verbs": ["get", "list", "patch", "watch"]},
            {"apiGroups": ["demo.example.com"], "resources": ["websites/status"], "verbs": ["patch"]},
            {"apiGroups": ["demo.example.com"], "resources": ["websites/finalizers"], "verbs": ["update"]},
        ]);
        assert_eq!(Value::from(rules(&manifest)), expected);
    }

    #[test]
    fn yaml_names_the_plugin_and_the_account() {
        let manifest = r#"{"name": "site", "version": "1", "parent": {"apiVersion": "v1", "kind": "Pod"}, "status": false}"#;
        let yaml =
            yaml("site", &Manifest::parse(manifest).unwrap(), &parse_account("ns/sa").unwrap()).unwrap();
        for expected in
            ["name: oarlock-plugin-site", "namespace: ns", "name: sa", "---\n", "kind: ClusterRoleBinding"]
        {
            assert!(yaml.contains(expected), "{yaml}");
        }
        assert!(!yaml.contains("pods/status"), "{yaml}");
        for text in ["sa", "/sa", "ns/", "a/b/c"] {
            parse_account(text).unwrap_err();
        }
    }
}
