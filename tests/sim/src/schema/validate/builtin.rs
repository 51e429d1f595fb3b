//! What the API server's code asks of built-in kinds, as far as those who write to the simulator may get it wrong.

use super::Problem;
use crate::schema::Kind;
use serde_json::{Value, json};

/// All data of a `ConfigMap` or a Secret together.
const DATA_BYTES: usize = 1 << 20;

pub(super) fn problems(kind: &Kind, before: Option<&Value>, after: &Value, problems: &mut Vec<Problem>) {
    match &*kind.kind {
        "ConfigMap" | "Secret" => data(before, after, problems),
        "Deployment" | "StatefulSet" | "ReplicaSet" => {
            workload(after, problems);
            unchanged(before, after, "selector", problems);
        }
        "Job" => job(before, after, problems),
        "Service" => service(before, after, problems),
        "Pod" => containers(&after["spec"], "spec", problems),
        _ => {}
    }
}

fn items<'a>(object: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object[name].as_array().into_iter().flatten()
}

fn unchanged(before: Option<&Value>, after: &Value, field: &str, problems: &mut Vec<Problem>) {
    let is = &after["spec"][field];
    if before.is_some_and(|before| before["spec"][field] != *is) {
        problems.push(Problem::invalid(format!("spec.{field}"), is, "field is immutable"));
    }
}

fn data(before: Option<&Value>, after: &Value, problems: &mut Vec<Problem>) {
    let mut bytes = 0;
    for part in ["data", "binaryData"] {
        for (key, value) in after[part].as_object().into_iter().flatten() {
            bytes += value.as_str().map_or(0, str::len);
            let is_valid = !key.is_empty()
                && key.len() <= 253
                && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
            if !is_valid {
                let why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
                problems.push(Problem::invalid(format!("{part}[{key}]"), &json!(key), why));
            }
        }
    }
    if bytes > DATA_BYTES {
        problems.push(Problem::too_long("[]", DATA_BYTES as u64));
    }
    let Some(before) = before.filter(|before| before["immutable"] == true) else { return };
    for field in ["immutable", "data", "binaryData"] {
        if before[field] != after[field] {
            problems.push(Problem::forbidden(field, "field is immutable when `immutable` is set"));
        }
    }
}

fn containers(spec: &Value, path: &str, problems: &mut Vec<Problem>) {
    if items(spec, "containers").next().is_none() {
        problems.push(Problem::required(format!("{path}.containers")));
    }
    for (index, container) in items(spec, "containers").enumerate() {
        for field in ["name", "image"] {
            if container[field].as_str().unwrap_or_default().is_empty() {
                problems.push(Problem::required(format!("{path}.containers[{index}].{field}")));
            }
        }
    }
}

fn workload(after: &Value, problems: &mut Vec<Problem>) {
    let spec = &after["spec"];
    let labels = &spec["template"]["metadata"]["labels"];
    let selector = &spec["selector"];
    if selector.is_null() {
        problems.push(Problem::required("spec.selector"));
    } else {
        let wanted = selector["matchLabels"].as_object();
        let is_empty = wanted.is_none_or(serde_json::Map::is_empty) && selector["matchExpressions"].is_null();
        if is_empty {
            problems.push(Problem::invalid(
                "spec.selector",
                selector,
                "empty selector is invalid for deployment",
            ));
        }
        if wanted.into_iter().flatten().any(|(name, value)| labels.get(name) != Some(value)) {
            let why = "`selector` does not match template `labels`";
            problems.push(Problem::invalid("spec.template.metadata.labels", labels, why));
        }
    }
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas < 0) {
        let why = "must be greater than or equal to 0";
        problems.push(Problem::invalid("spec.replicas", &spec["replicas"], why));
    }
    containers(&spec["template"]["spec"], "spec.template.spec", problems);
    let strategy = &spec["strategy"];
    if strategy["type"] == "Recreate" && !strategy["rollingUpdate"].is_null() {
        let why = "may not be specified when strategy `type` is 'Recreate'";
        problems.push(Problem::forbidden("spec.strategy.rollingUpdate", why));
    }
}

fn job(before: Option<&Value>, after: &Value, problems: &mut Vec<Problem>) {
    let pod = &after["spec"]["template"]["spec"];
    containers(pod, "spec.template.spec", problems);
    if !matches!(pod["restartPolicy"].as_str(), Some("Never" | "OnFailure")) {
        let field = "spec.template.spec.restartPolicy";
        problems.push(match pod["restartPolicy"].as_str() {
            None => Problem::required(field),
            Some(other) => Problem::new(
                "FieldValueNotSupported",
                field,
                format!("Unsupported value: {other:?}: supported values: \"OnFailure\", \"Never\""),
            ),
        });
    }
    for field in ["template", "selector", "completions"] {
        unchanged(before, after, field, problems);
    }
}

fn service(before: Option<&Value>, after: &Value, problems: &mut Vec<Problem>) {
    let spec = &after["spec"];
    let is_headless = spec["clusterIP"] == "None" || spec["type"] == "ExternalName";
    let ports: Vec<_> = items(spec, "ports").collect();
    if ports.is_empty() && !is_headless {
        problems.push(Problem::required("spec.ports"));
    }
    for (index, port) in ports.iter().enumerate() {
        if ports.len() > 1 && port["name"].as_str().unwrap_or_default().is_empty() {
            problems.push(Problem::required(format!("spec.ports[{index}].name")));
        }
        let is_same = |other: &&Value| other["name"] == port["name"] && port["name"].is_string();
        if ports[..index].iter().any(is_same) {
            problems.push(Problem::duplicate(format!("spec.ports[{index}].name"), &port["name"]));
        }
        if !port["port"].as_i64().is_some_and(|port| (1..=65_535).contains(&port)) {
            let why = "must be between 1 and 65535, inclusive";
            problems.push(Problem::invalid(format!("spec.ports[{index}].port"), &port["port"], why));
        }
    }
    let was = before.map(|before| &before["spec"]["clusterIP"]);
    if was.is_some_and(|was| was.is_string() && was != "" && *was != spec["clusterIP"]) && !is_headless {
        let why = "may not change once set";
        problems.push(Problem::invalid("spec.clusterIPs[0]", &spec["clusterIP"], why));
    }
}
