//! What the controllers of workloads say of them.

use serde_json::{Value, json};

/// The next status of a workload on its way to being ready; `None` if it has arrived, or is none.
pub(super) fn next(resource: &str, object: &Value, now: &str) -> Option<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let generation = object["metadata"]["generation"].as_i64();
    let is_seen = status["observedGeneration"].as_i64() == generation;
    let replicas = spec["replicas"].as_i64().unwrap_or(1);
    let condition = |kind: &str, is_true: bool, reason: &str| {
        json!({"type": kind, "status": if is_true { "True" } else { "False" }, "reason": reason, "message": "",
            "lastTransitionTime": now, "lastUpdateTime": now})
    };
    match resource {
        "deployments.apps" if !is_seen => Some(json!({
            "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
            "unavailableReplicas": if replicas > 0 { json!(replicas) } else { Value::Null },
            "readyReplicas": null, "availableReplicas": null,
            "conditions": [
                condition("Available", replicas == 0, "MinimumReplicasUnavailable"),
                condition("Progressing", true, "ReplicaSetUpdated"),
            ],
        })),
        "deployments.apps" if status["readyReplicas"].as_i64().unwrap_or(0) != replicas => Some(json!({
            "readyReplicas": replicas, "availableReplicas": replicas, "unavailableReplicas": null,
            "conditions": [
                condition("Available", true, "MinimumReplicasAvailable"),
                condition("Progressing", true, "NewReplicaSetAvailable"),
            ],
        })),
        "statefulsets.apps" if !is_seen => Some(json!({
            "observedGeneration": generation, "replicas": replicas, "currentRevision": "1",
            "updateRevision": generation.unwrap_or_default().to_string(),
        })),
        "statefulsets.apps" if status["readyReplicas"].as_i64().unwrap_or(0) != replicas => Some(json!({
            "readyReplicas": replicas, "availableReplicas": replicas, "currentReplicas": replicas,
            "updatedReplicas": replicas, "currentRevision": status["updateRevision"],
        })),
        "jobs.batch" if status["startTime"].is_null() => Some(json!({
            "startTime": now, "active": spec["parallelism"].as_i64().unwrap_or(1), "ready": 0,
        })),
        "jobs.batch" if status["completionTime"].is_null() => {
            let mut met = [
                condition("SuccessCriteriaMet", true, "CompletionsReached"),
                condition("Complete", true, "CompletionsReached"),
            ];
            for condition in &mut met {
                condition["lastProbeTime"] = now.into();
                condition.as_object_mut().map(|condition| condition.remove("lastUpdateTime"));
            }
            Some(json!({
                "succeeded": spec["completions"].as_i64().unwrap_or(1), "active": null, "ready": 0,
                "completionTime": now, "conditions": met,
            }))
        }
        "pods" if status["phase"] == "Pending" => Some(json!({
            "phase": "Running", "startTime": now,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now, "lastProbeTime": null}],
        })),
        "persistentvolumeclaims" if status["phase"] == "Pending" => Some(json!({
            "phase": "Bound", "accessModes": spec["accessModes"],
        })),
        _ => None,
    }
}
