//! What the API server does to an object after the fields are tracked: nobody owns what it adds here.

use super::Kind;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Takes back what a write of this subresource may not change, and adds what the API server's strategies and its own
/// admission plugins add.
pub(super) fn prepare(kind: &Kind, before: Option<&Value>, object: &mut Value, subresource: &str) {
    let managed = object["metadata"].get("managedFields").cloned();
    for path in kind.ignored(subresource) {
        take_back(before, object, path);
    }
    if kind.is_custom() && !subresource.is_empty() {
        // Nothing but its status is taken.
        let status = object.get("status").cloned();
        *object = before.cloned().unwrap_or_default();
        match status {
            Some(status) => object["status"] = status,
            None => drop(object.as_object_mut().map(|object| object.remove("status"))),
        }
    }
    if let Some(managed) = managed {
        object["metadata"]["managedFields"] = managed;
    }
    if !kind.is_custom() && subresource.is_empty() {
        builtin(kind, before.is_none(), object);
    }
}

fn take_back(before: Option<&Value>, object: &mut Value, path: &[&str]) {
    let Some((name, parents)) = path.split_last() else { return };
    let was = before
        .and_then(|before| parents.iter().try_fold(before, |at, name| at.get(name))?.get(name))
        .cloned();
    let parent = parents.iter().try_fold(object, |at, name| at.get_mut(*name)).and_then(Value::as_object_mut);
    let Some(parent) = parent else { return };
    match was {
        Some(was) => drop(parent.insert((*name).to_owned(), was)),
        None => drop(parent.remove(*name)),
    }
}

fn builtin(kind: &Kind, is_new: bool, object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    match &*kind.kind {
        "Secret" => encode_string_data(object),
        "Namespace" if is_new => {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({"phase": "Active"});
        }
        "PersistentVolumeClaim" if is_new => {
            add(&mut object["metadata"]["finalizers"], "kubernetes.io/pvc-protection".into());
            object["status"] = json!({"phase": "Pending"});
        }
        "Pod" => pod(is_new, object),
        "Job" if is_new && object["spec"]["manualSelector"] != true => {
            let uid = object["metadata"]["uid"].clone();
            let labels = json!({
                "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name,
                "controller-uid": uid, "job-name": name,
            });
            for (name, label) in labels.as_object().into_iter().flatten() {
                object["spec"]["template"]["metadata"]["labels"][name] = label.clone();
                let own = &mut object["metadata"]["labels"][name];
                if own.is_null() {
                    *own = label.clone();
                }
            }
            if object["spec"]["selector"].is_null() {
                object["spec"]["selector"] =
                    json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
            }
        }
        "Service" if object["spec"]["type"] != "ExternalName" => {
            let spec = &mut object["spec"];
            for (name, value) in [("ipFamilies", json!(["IPv4"])), ("ipFamilyPolicy", json!("SingleStack"))] {
                if spec[name].is_null() {
                    spec[name] = value;
                }
            }
            if spec["clusterIPs"].is_null() && spec["clusterIP"].is_string() {
                spec["clusterIPs"] = json!([spec["clusterIP"]]);
            }
        }
        _ => {}
    }
}

/// Puts a Secret's texts into its data.
pub(super) fn encode_string_data(secret: &mut Value) {
    let text = secret.as_object_mut().and_then(|secret| secret.remove("stringData"));
    for (name, text) in text.as_ref().and_then(Value::as_object).into_iter().flatten() {
        secret["data"][name] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
    }
}

fn add(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) if items.contains(&item) => {}
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}

fn pod(is_new: bool, object: &mut Value) {
    let spec = &mut object["spec"];
    for (name, value) in [("preemptionPolicy", json!("PreemptLowerPriority")), ("priority", json!(0))] {
        if spec[name].is_null() {
            spec[name] = value;
        }
    }
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let known = spec["tolerations"].as_array().into_iter().flatten();
        if !known.into_iter().any(|toleration| toleration["key"] == key) {
            let toleration =
                json!({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300});
            add(&mut spec["tolerations"], toleration);
        }
    }
    if is_new {
        let containers = || spec["containers"].as_array().into_iter().flatten();
        let asks = |of: &str| containers().any(|container| container["resources"][of].is_object());
        let is_bounded = containers().all(|container| {
            let resources = &container["resources"];
            resources["limits"] == resources["requests"]
                && ["cpu", "memory"].iter().all(|name| resources["limits"].get(name).is_some())
        });
        let class = match asks("requests") || asks("limits") {
            false => "BestEffort",
            true if is_bounded => "Guaranteed",
            true => "Burstable",
        };
        object["status"] = json!({"phase": "Pending", "qosClass": class});
    }
}
