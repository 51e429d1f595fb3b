//! The defaults that the API server's code gives to built-in kinds.

use serde_json::{Value, json};

pub(super) fn default(kind: &str, object: &mut Value) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if kind == "Namespace" {
        object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
    }
    if kind == "Secret" {
        fill(object, json!({"type": "Opaque"}));
    }
    let Some(spec) = object.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    match kind {
        "Deployment" => {
            fill(spec, json!({"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10}));
            let strategy = child(spec, "strategy");
            fill(strategy, json!({"type": "RollingUpdate"}));
            if strategy["type"] == "RollingUpdate" {
                fill(child(strategy, "rollingUpdate"), json!({"maxSurge": "25%", "maxUnavailable": "25%"}));
            }
        }
        "StatefulSet" => {
            fill(
                spec,
                json!({"podManagementPolicy": "OrderedReady", "replicas": 1, "revisionHistoryLimit": 10}),
            );
            let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
            fill(retention, json!({"whenDeleted": "Retain", "whenScaled": "Retain"}));
            let strategy = child(spec, "updateStrategy");
            fill(strategy, json!({"type": "RollingUpdate"}));
            if strategy["type"] == "RollingUpdate" {
                fill(child(strategy, "rollingUpdate"), json!({"maxUnavailable": 1, "partition": 0}));
            }
            for claim in items(spec, "volumeClaimTemplates") {
                fill(claim, json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim"}));
                fill(child(claim, "spec"), json!({"volumeMode": "Filesystem"}));
                fill(child(claim, "status"), json!({"phase": "Pending"}));
            }
        }
        "ReplicaSet" => fill(spec, json!({"replicas": 1})),
        "Job" => {
            if spec["completions"].is_null() && spec["parallelism"].is_null() {
                fill(spec, json!({"completions": 1}));
            }
            let replacement =
                if spec["podFailurePolicy"].is_null() { "TerminatingOrFailed" } else { "Failed" };
            fill(
                spec,
                json!({
                    "backoffLimit": if spec["backoffLimitPerIndex"].is_null() { 6 } else { i32::MAX },
                    "completionMode": "NonIndexed", "manualSelector": false, "parallelism": 1,
                    "podReplacementPolicy": replacement, "suspend": false,
                }),
            );
        }
        "Pod" => fill(spec, json!({"enableServiceLinks": true})),
        "Service" => service(spec),
        "PersistentVolumeClaim" => fill(spec, json!({"volumeMode": "Filesystem"})),
        "CustomResourceDefinition" => {
            fill(spec, json!({"conversion": {"strategy": "None"}}));
            let names = &spec["names"];
            let kind = names["kind"].as_str().unwrap_or_default();
            let told = json!({"listKind": format!("{kind}List"), "singular": kind.to_lowercase()});
            fill(child(spec, "names"), told);
        }
        _ => {}
    }
    match kind {
        "Pod" => pod(spec),
        "Deployment" | "StatefulSet" | "ReplicaSet" | "Job" => {
            if let Some(template) = spec.get_mut("template").filter(|template| template.is_object()) {
                pod(child(template, "spec"));
            }
        }
        _ => {}
    }
}

/// Adds what is missing.
fn fill(value: &mut Value, defaults: Value) {
    let (Some(value), Value::Object(defaults)) = (value.as_object_mut(), defaults) else { return };
    for (name, default) in defaults {
        let member = value.entry(name).or_insert(Value::Null);
        if member.is_null() {
            *member = default;
        }
    }
}

/// A member that is always there.
fn child<'a>(value: &'a mut Value, name: &str) -> &'a mut Value {
    let child = &mut value[name];
    if child.is_null() {
        *child = json!({});
    }
    child
}

fn items<'a>(value: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    let items = value.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten();
    items.filter(|item| item.is_object())
}

fn member<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    value.get_mut(name).filter(|member| member.is_object())
}

fn service(spec: &mut Value) {
    fill(spec, json!({"sessionAffinity": "None", "type": "ClusterIP"}));
    if spec["type"] != "ExternalName" {
        fill(spec, json!({"internalTrafficPolicy": "Cluster"}));
    }
    if spec["type"] == "NodePort" || spec["type"] == "LoadBalancer" {
        fill(spec, json!({"externalTrafficPolicy": "Cluster"}));
    }
    if spec["type"] == "LoadBalancer" {
        fill(spec, json!({"allocateLoadBalancerNodePorts": true}));
    }
    if spec["sessionAffinity"] == "ClientIP" {
        fill(spec, json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}}));
    }
    for port in items(spec, "ports") {
        let target = &port["targetPort"];
        if target.is_null() || *target == 0 || *target == "" {
            port["targetPort"] = port["port"].clone();
        }
    }
}

fn pod(spec: &mut Value) {
    fill(
        spec,
        json!({
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "securityContext": {}, "terminationGracePeriodSeconds": 30,
        }),
    );
    for containers in ["containers", "initContainers"] {
        items(spec, containers).for_each(container);
    }
    for volume in items(spec, "volumes") {
        if volume.as_object().is_some_and(|volume| volume.keys().all(|name| name == "name")) {
            volume["emptyDir"] = json!({});
        }
        for source in ["configMap", "secret", "projected", "downwardAPI"] {
            if let Some(source) = member(volume, source) {
                fill(source, json!({"defaultMode": 0o644}));
            }
        }
        if let Some(host) = member(volume, "hostPath") {
            fill(host, json!({"type": ""}));
        }
    }
}

fn container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    // The last part of the name may have a tag; the first may have a port.
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let is_moving = !image.contains('@') && tag.is_none_or(|tag| tag == "latest");
    let pull = if is_moving { "Always" } else { "IfNotPresent" };
    fill(
        container,
        json!({
            "imagePullPolicy": pull, "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        }),
    );
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = member(container, name) {
            let times = json!({"failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1});
            fill(probe, times);
            action(probe);
        }
    }
    if let Some(lifecycle) = member(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            member(lifecycle, hook).into_iter().for_each(action);
        }
    }
    for variable in items(container, "env") {
        if let Some(field) = member(variable, "valueFrom").and_then(|source| member(source, "fieldRef")) {
            fill(field, json!({"apiVersion": "v1"}));
        }
    }
    if let Some(resources) = member(container, "resources")
        && let Some(limits) = member(resources, "limits").map(|limits| limits.clone())
    {
        fill(child(resources, "requests"), limits);
    }
}

fn action(probe: &mut Value) {
    if let Some(request) = member(probe, "httpGet") {
        fill(request, json!({"path": "/", "scheme": "HTTP"}));
    }
}
