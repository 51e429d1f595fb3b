use super::*;
use crate::object::Gvk;
use serde_json::{Value, json};

const READY: &str = "ready";

/// Judges an object of generation 2; says `ready`, `progressing: …`, `failed: …` or `terminating`.
fn judge(api_version: &str, kind: &str, spec: &Value, status: &Value) -> String {
    let object = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "x", "namespace": "demo", "generation": 2},
        "spec": spec,
        "status": status,
    });
    let object = Object::decode(&Gvk::new(api_version, kind), &object.to_string()).unwrap();
    match readiness(&object) {
        Readiness::Ready => READY.to_owned(),
        Readiness::Progressing(text) => format!("progressing: {text}"),
        Readiness::Failed(text) => format!("failed: {text}"),
        Readiness::Terminating => "terminating".to_owned(),
    }
}

fn check(api_version: &str, kind: &str, spec: &Value, cases: &[(Value, &str)]) {
    for (status, expected) in cases {
        assert_eq!(judge(api_version, kind, spec, status), *expected, "{kind} {spec} {status}");
    }
}

fn condition(r#type: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": r#type, "status": status, "reason": reason, "message": message})
}

#[test]
fn any_kind_is_judged_by_the_conventions() {
    check(
        "example.org/v1",
        "Gadget",
        &json!({}),
        &[
            (json!(null), READY),
            (json!("odd"), READY),
            (json!({"conditions": "odd"}), READY),
            (
                json!({"observedGeneration": 1}),
                "progressing: its controller has not seen the last change yet",
            ),
            (json!({"observedGeneration": 2}), READY),
            // Restored from a backup.
            (
                json!({"observedGeneration": 3}),
                "progressing: its controller has not seen the last change yet",
            ),
            (json!({"conditions": [condition("Ready", "True", "Ok", "")]}), READY),
            // Only `Ready` counts among what controllers say: what `Available` means differs from kind to kind.
            (json!({"conditions": [condition("Available", "False", "No", "not yet")]}), READY),
            (
                json!({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}),
                "progressing: its controller has not seen the last change yet",
            ),
            (json!({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]}), READY),
            (json!({"conditions": [{"type": "Stalled", "status": "True", "observedGeneration": 1}]}), READY),
            (
                json!({"conditions": [condition("Reconciling", "True", "Yes", "soon"), condition("Stalled", "True", "No", "never")]}),
                "failed: never",
            ),
            (json!({"conditions": [condition("Ready", "False", "Wait", "later")]}), "progressing: later"),
            (json!({"conditions": [condition("Ready", "Unknown", "Wait", "")]}), "progressing: Wait"),
            (json!({"conditions": [{"type": "Ready", "status": "False"}]}), "progressing: Ready"),
            (json!({"conditions": [condition("Stalled", "True", "No", "never")]}), "failed: never"),
            (json!({"conditions": [condition("Stalled", "False", "No", "never")]}), READY),
            (json!({"conditions": [condition("Reconciling", "True", "Yes", "soon")]}), "progressing: soon"),
            (
                json!({"observedGeneration": 1, "conditions": [condition("Stalled", "True", "No", "never")]}),
                "progressing: its controller has not seen the last change yet",
            ),
        ],
    );
    // A kind without generations has none to be behind of.
    let old = json!({"metadata": {"name": "x"}, "status": {"observedGeneration": 1}});
    let old = Object::decode(&Gvk::new("example.org/v1", "Gadget"), &old.to_string()).unwrap();
    assert_eq!(readiness(&old), Readiness::Ready);
    // What nothing acts on is ready by being there.
    check("v1", "ConfigMap", &json!({}), &[(json!(null), READY)]);
}

#[test]
fn anything_is_terminating_once_it_is_being_deleted() {
    let object = json!({
        "metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"conditions": [condition("Ready", "True", "Ok", "")]},
    });
    let object = Object::decode(&Gvk::new("v1", "Pod"), &object.to_string()).unwrap();
    assert_eq!(readiness(&object), Readiness::Terminating);
}

#[test]
fn deployment_is_ready_when_its_rollout_is_complete_and_available() {
    let rolled = condition("Progressing", "True", "NewReplicaSetAvailable", "");
    let available = condition("Available", "True", "MinimumReplicasAvailable", "");
    let late = condition("Progressing", "False", "ProgressDeadlineExceeded", "timed out");
    let status = |all, updated, ready, avail, conditions: Value| {
        json!({"observedGeneration": 2, "replicas": all, "updatedReplicas": updated, "readyReplicas": ready,
            "availableReplicas": avail, "conditions": conditions})
    };
    check(
        "apps/v1",
        "Deployment",
        &json!({"replicas": 2, "progressDeadlineSeconds": 600}),
        &[
            (json!(null), "progressing: its controller has not seen it yet"),
            (status(0, 0, 0, 0, json!([])), "progressing: 0 of 2 replicas created"),
            (status(2, 1, 1, 1, json!([available])), "progressing: 1 of 2 replicas updated"),
            (status(3, 2, 2, 2, json!([available])), "progressing: 1 replicas still to go"),
            (status(2, 2, 2, 1, json!([available])), "progressing: 1 of 2 updated replicas available"),
            (status(2, 2, 1, 2, json!([available])), "progressing: 1 of 2 replicas ready"),
            (status(2, 2, 2, 2, json!([available])), "progressing: its rollout is not complete"),
            (status(2, 2, 2, 2, json!([rolled])), "progressing: not available yet"),
            (status(2, 2, 2, 2, json!([rolled, available])), READY),
            (status(2, 1, 1, 1, json!([late, available])), "failed: timed out"),
        ],
    );
    check(
        "apps/v1",
        "Deployment",
        &json!({"replicas": 0}),
        &[(status(0, 0, 0, 0, json!([available])), READY)],
    );
    // `replicas` left out is one.
    check(
        "apps/v1",
        "Deployment",
        &json!({}),
        &[(status(0, 0, 0, 0, json!([available])), "progressing: 0 of 1 replicas created")],
    );
}

#[test]
fn stateful_set_is_ready_when_all_replicas_are_of_the_new_revision() {
    let status = |all, ready, updated, revisions: [&str; 2]| {
        json!({"observedGeneration": 2, "replicas": all, "readyReplicas": ready, "updatedReplicas": updated,
            "currentRevision": revisions[0], "updateRevision": revisions[1]})
    };
    check(
        "apps/v1",
        "StatefulSet",
        &json!({"replicas": 3}),
        &[
            (json!({}), "progressing: its controller has not seen it yet"),
            (status(1, 1, 1, ["a", "a"]), "progressing: 1 of 3 replicas created"),
            (status(3, 2, 3, ["a", "a"]), "progressing: 2 of 3 replicas ready"),
            (status(4, 4, 3, ["a", "a"]), "progressing: 1 replicas still to go"),
            (status(3, 3, 1, ["a", "b"]), "progressing: 1 of 3 replicas updated"),
            (status(3, 3, 3, ["a", "b"]), "progressing: its rollout is not complete"),
            (status(3, 3, 3, ["b", "b"]), READY),
            (status(3, 3, 0, ["b", "b"]), READY),
        ],
    );
    check(
        "apps/v1",
        "StatefulSet",
        &json!({"replicas": 3, "updateStrategy": {"type": "OnDelete"}}),
        &[(status(3, 3, 0, ["a", "b"]), READY)],
    );
    let partition = json!({"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}});
    check(
        "apps/v1",
        "StatefulSet",
        &partition,
        &[
            (status(3, 3, 0, ["a", "b"]), "progressing: 0 of 1 replicas updated"),
            (status(3, 3, 1, ["a", "b"]), READY),
        ],
    );
}

#[test]
fn daemon_set_is_ready_when_every_node_has_its_pod() {
    let status = |want, current, updated, available, ready| {
        json!({"observedGeneration": 2, "desiredNumberScheduled": want, "currentNumberScheduled": current,
            "updatedNumberScheduled": updated, "numberAvailable": available, "numberReady": ready})
    };
    check(
        "apps/v1",
        "DaemonSet",
        &json!({}),
        &[
            (json!({}), "progressing: its controller has not seen it yet"),
            (status(2, 1, 1, 1, 1), "progressing: 1 of 2 pods scheduled"),
            (status(2, 2, 1, 1, 1), "progressing: 1 of 2 pods updated"),
            (status(2, 2, 2, 1, 1), "progressing: 1 of 2 pods available"),
            (status(2, 2, 2, 2, 1), "progressing: 1 of 2 pods ready"),
            (status(2, 2, 2, 2, 2), READY),
            (status(0, 0, 0, 0, 0), READY),
        ],
    );
    check(
        "apps/v1",
        "DaemonSet",
        &json!({"updateStrategy": {"type": "OnDelete"}}),
        &[(status(2, 2, 0, 2, 2), READY)],
    );
}

#[test]
fn replica_set_is_ready_when_its_replicas_are() {
    let quota = condition("ReplicaFailure", "True", "FailedCreate", "quota");
    check(
        "apps/v1",
        "ReplicaSet",
        &json!({"replicas": 1}),
        &[
            (json!({}), "progressing: its controller has not seen it yet"),
            (json!({"observedGeneration": 2, "conditions": [quota]}), "progressing: quota"),
            (json!({"observedGeneration": 2}), "progressing: 0 of 1 replicas labelled"),
            (
                json!({"observedGeneration": 2, "replicas": 1, "fullyLabeledReplicas": 1}),
                "progressing: 0 of 1 replicas available",
            ),
            (
                json!({"observedGeneration": 2, "replicas": 1, "fullyLabeledReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}),
                READY,
            ),
        ],
    );
}

#[test]
fn job_is_ready_when_it_is_complete() {
    check(
        "batch/v1",
        "Job",
        &json!({}),
        &[
            (json!({}), "progressing: not started yet"),
            (
                json!({"startTime": "2026-01-01T00:00:00Z", "active": 1}),
                "progressing: 1 pods active, 0 succeeded",
            ),
            (json!({"conditions": [condition("Suspended", "True", "", "")]}), "progressing: suspended"),
            (json!({"conditions": [condition("Complete", "True", "", "")]}), READY),
            (
                json!({"conditions": [condition("Failed", "True", "BackoffLimitExceeded", "too often")]}),
                "failed: too often",
            ),
        ],
    );
}

#[test]
fn pod_is_ready_when_it_says_so_or_has_succeeded() {
    let waiting = |reason| json!([{"name": "web", "state": {"waiting": {"reason": reason}}}]);
    check(
        "v1",
        "Pod",
        &json!({}),
        &[
            (json!({}), "progressing: its containers are being started"),
            (json!({"phase": "Succeeded"}), READY),
            (json!({"phase": "Failed", "message": "evicted"}), "failed: evicted"),
            (json!({"phase": "Failed"}), "failed: its containers failed"),
            (json!({"phase": "Running", "conditions": [condition("Ready", "True", "", "")]}), READY),
            (
                json!({"phase": "Running", "conditions": [condition("Ready", "False", "", "")]}),
                "progressing: its containers are not ready",
            ),
            (
                json!({"phase": "Running", "containerStatuses": waiting("CrashLoopBackOff")}),
                "failed: container web: CrashLoopBackOff",
            ),
            (
                json!({"phase": "Pending", "initContainerStatuses": waiting("ImagePullBackOff")}),
                "progressing: container web: ImagePullBackOff",
            ),
            (
                json!({"phase": "Pending", "containerStatuses": waiting("ContainerCreating")}),
                "progressing: its containers are being started",
            ),
            (
                json!({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "Unschedulable", "no node")]}),
                "progressing: no node",
            ),
        ],
    );
}

#[test]
fn other_kinds_of_kubernetes_are_judged_by_their_fields() {
    let pending = "progressing: no load balancer address yet";
    check("v1", "Service", &json!({}), &[(json!({"loadBalancer": {}}), READY)]);
    check(
        "v1",
        "Service",
        &json!({"type": "LoadBalancer"}),
        &[
            (json!(null), pending),
            (json!({"loadBalancer": {"ingress": []}}), pending),
            (json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}), READY),
        ],
    );
    check(
        "v1",
        "PersistentVolumeClaim",
        &json!({}),
        &[
            (json!(null), "progressing: not bound to a volume yet"),
            (json!({"phase": "Bound"}), READY),
            (json!({"phase": "Lost"}), "failed: its volume is lost"),
        ],
    );
    check(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &json!({}),
        &[
            (json!(null), "progressing: not established yet"),
            (
                json!({"conditions": [condition("Established", "False", "Installing", "wait")]}),
                "progressing: not established yet",
            ),
            (
                json!({"conditions": [condition("NamesAccepted", "False", "Conflict", "taken")]}),
                "failed: taken",
            ),
            (json!({"conditions": [condition("Established", "True", "", "")]}), READY),
        ],
    );
    check(
        "policy/v1",
        "PodDisruptionBudget",
        &json!({}),
        &[
            (json!(null), "progressing: its controller has not seen it yet"),
            (json!({"observedGeneration": 2}), READY),
        ],
    );
}
