//! The rules for kinds of Kubernetes itself, which say how far they are in fields of their own.

use super::{Condition, Readiness, find, holds};
use crate::object::Object;
use Readiness::{Failed, Progressing, Ready};
use serde::{Deserialize, de::DeserializeOwned};
use std::fmt::Display;

/// The rule of the object's kind; `None` if it has none. `observed`: its controller has seen it at all.
pub(super) fn readiness(object: &Object, observed: bool, conditions: &[Condition<'_>]) -> Option<Readiness> {
    let readiness = match (&*object.key.gvk.group, &*object.key.gvk.kind) {
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("policy", "PodDisruptionBudget")
            if !observed =>
        {
            unseen()
        }
        ("apps", "Deployment") => deployment(&spec(object), &status(object), conditions),
        ("apps", "StatefulSet") => stateful_set(&spec(object), &status(object)),
        ("apps", "DaemonSet") => daemon_set(&spec(object), &status(object)),
        ("apps", "ReplicaSet") => replica_set(&spec(object), &status(object), conditions),
        ("batch", "Job") => job(&status(object), conditions),
        ("", "Pod") => pod(&status(object), conditions),
        ("", "Service") => service(&spec(object), &status(object)),
        ("", "PersistentVolumeClaim") => claim(&status(object)),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(conditions),
        // Its controller has computed what it allows: that is all it does.
        ("policy", "PodDisruptionBudget") => Ready,
        _ => return None,
    };
    Some(readiness)
}

fn unseen() -> Readiness {
    Progressing("its controller has not seen it yet".to_owned())
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Body<S> {
    spec: Option<S>,
}

/// The fields of the spec that a rule needs. The API server has checked their types; an object that says
/// otherwise is judged by their defaults.
fn spec<S: DeserializeOwned + Default>(object: &Object) -> S {
    serde_json::from_str::<Body<S>>(&object.body).ok().and_then(|body| body.spec).unwrap_or_default()
}

/// The fields of the status that a rule needs.
fn status<S: DeserializeOwned + Default>(object: &Object) -> S {
    object.status.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The spec of what runs replicas.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Replicated {
    replicas: Option<i64>,
    progress_deadline_seconds: Option<i64>,
    update_strategy: Option<UpdateStrategy>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct UpdateStrategy {
    r#type: Option<String>,
    rolling_update: Option<RollingUpdate>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RollingUpdate {
    partition: Option<i64>,
}

impl Replicated {
    fn replicas(&self) -> i64 {
        self.replicas.unwrap_or(1)
    }

    /// Whether pods are only replaced when somebody deletes them: then nothing is on its way.
    fn updates_on_delete(&self) -> bool {
        self.update_strategy.as_ref().is_some_and(|strategy| strategy.r#type.as_deref() == Some("OnDelete"))
    }

    fn partition(&self) -> i64 {
        let update = self.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
        update.and_then(|update| update.partition).unwrap_or(0)
    }
}

/// The status of what runs replicas.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Rollout {
    replicas: i64,
    updated_replicas: i64,
    ready_replicas: i64,
    available_replicas: i64,
    fully_labeled_replicas: i64,
    current_revision: String,
    update_revision: String,
}

/// Progress as people read it, if there are fewer than wanted.
fn fewer(have: i64, want: i64, what: impl Display) -> Option<Readiness> {
    (have < want).then(|| Progressing(format!("{have} of {want} {what}")))
}

/// The first of several that is not reached, else ready.
fn first_of(steps: impl IntoIterator<Item = Option<Readiness>>) -> Readiness {
    steps.into_iter().flatten().next().unwrap_or(Ready)
}

fn deployment(spec: &Replicated, status: &Rollout, conditions: &[Condition<'_>]) -> Readiness {
    let progress = find(conditions, "Progressing");
    if let Some(progress) = progress.filter(|progress| progress.reason == "ProgressDeadlineExceeded") {
        return Failed(progress.text());
    }
    let want = spec.replicas();
    // Without a deadline the controller keeps no `Progressing` condition.
    let rolled_out = spec.progress_deadline_seconds.is_none_or(|seconds| seconds == i64::from(i32::MAX))
        || progress
            .is_some_and(|progress| progress.status == "True" && progress.reason == "NewReplicaSetAvailable");
    first_of([
        fewer(status.replicas, want, "replicas created"),
        fewer(status.updated_replicas, want, "replicas updated"),
        (status.replicas > want)
            .then(|| Progressing(format!("{} replicas still to go", status.replicas - want))),
        fewer(status.available_replicas, status.updated_replicas, "updated replicas available"),
        fewer(status.ready_replicas, want, "replicas ready"),
        (!rolled_out).then(|| Progressing("its rollout is not complete".to_owned())),
        holds(conditions, "Available").is_none().then(|| Progressing("not available yet".to_owned())),
    ])
}

fn stateful_set(spec: &Replicated, status: &Rollout) -> Readiness {
    let want = spec.replicas();
    let to_update = if spec.updates_on_delete() { 0 } else { (want - spec.partition()).max(0) };
    first_of([
        fewer(status.replicas, want, "replicas created"),
        fewer(status.ready_replicas, want, "replicas ready"),
        (status.replicas > want)
            .then(|| Progressing(format!("{} replicas still to go", status.replicas - want))),
        // Once all are of one revision, `updatedReplicas` is not counted any more.
        if status.current_revision == status.update_revision {
            None
        } else {
            fewer(status.updated_replicas, to_update, "replicas updated")
        },
        (spec.partition() == 0
            && !spec.updates_on_delete()
            && status.current_revision != status.update_revision)
            .then(|| Progressing("its rollout is not complete".to_owned())),
    ])
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Daemons {
    desired_number_scheduled: i64,
    current_number_scheduled: i64,
    updated_number_scheduled: i64,
    number_available: i64,
    number_ready: i64,
}

fn daemon_set(spec: &Replicated, status: &Daemons) -> Readiness {
    let want = status.desired_number_scheduled;
    first_of([
        fewer(status.current_number_scheduled, want, "pods scheduled"),
        fewer(
            if spec.updates_on_delete() { want } else { status.updated_number_scheduled },
            want,
            "pods updated",
        ),
        fewer(status.number_available, want, "pods available"),
        fewer(status.number_ready, want, "pods ready"),
    ])
}

fn replica_set(spec: &Replicated, status: &Rollout, conditions: &[Condition<'_>]) -> Readiness {
    let want = spec.replicas();
    first_of([
        // A quota may be raised, so it is not the end.
        holds(conditions, "ReplicaFailure").map(|failure| Progressing(failure.text())),
        fewer(status.fully_labeled_replicas, want, "replicas labelled"),
        fewer(status.available_replicas, want, "replicas available"),
        fewer(status.ready_replicas, want, "replicas ready"),
        (status.replicas > want)
            .then(|| Progressing(format!("{} replicas still to go", status.replicas - want))),
    ])
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JobStatus {
    start_time: Option<String>,
    active: i64,
    succeeded: i64,
}

fn job(status: &JobStatus, conditions: &[Condition<'_>]) -> Readiness {
    if let Some(failed) = holds(conditions, "Failed") {
        Failed(failed.text())
    } else if holds(conditions, "Complete").is_some() {
        Ready
    } else if holds(conditions, "Suspended").is_some() {
        Progressing("suspended".to_owned())
    } else if status.start_time.is_none() {
        Progressing("not started yet".to_owned())
    } else {
        Progressing(format!("{} pods active, {} succeeded", status.active, status.succeeded))
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    message: String,
    reason: String,
    init_container_statuses: Option<Vec<ContainerStatus>>,
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    state: Option<ContainerState>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Waiting {
    reason: String,
}

fn pod(status: &PodStatus, conditions: &[Condition<'_>]) -> Readiness {
    match &*status.phase {
        "Succeeded" => return Ready,
        "Failed" => {
            let text = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
            return Failed(text.map_or("its containers failed", String::as_str).to_owned());
        }
        "Running" if holds(conditions, "Ready").is_some() => return Ready,
        _ => {}
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut waiting = containers
        .filter_map(|container| Some((&container.name, &container.state.as_ref()?.waiting.as_ref()?.reason)));
    let stuck =
        |reason: &str| matches!(reason, "CrashLoopBackOff" | "InvalidImageName" | "ErrImageNeverPull");
    if let Some((name, reason)) = waiting.clone().find(|(_, reason)| stuck(reason)) {
        return Failed(format!("container {name}: {reason}"));
    }
    let usual = |reason: &str| matches!(reason, "" | "ContainerCreating" | "PodInitializing");
    if let Some((name, reason)) = waiting.find(|(_, reason)| !usual(reason)) {
        return Progressing(format!("container {name}: {reason}"));
    }
    match find(conditions, "PodScheduled") {
        // Nodes may come.
        Some(scheduled) if scheduled.status == "False" => Progressing(scheduled.text()),
        _ if status.phase == "Running" => Progressing("its containers are not ready".to_owned()),
        _ => Progressing("its containers are being started".to_owned()),
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ServiceSpec {
    r#type: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ServiceStatus {
    load_balancer: Option<LoadBalancer>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LoadBalancer {
    ingress: Option<Vec<serde::de::IgnoredAny>>,
}

fn service(spec: &ServiceSpec, status: &ServiceStatus) -> Readiness {
    let ingress = status.load_balancer.as_ref().and_then(|balancer| balancer.ingress.as_ref());
    if spec.r#type.as_deref() == Some("LoadBalancer") && ingress.is_none_or(Vec::is_empty) {
        return Progressing("no load balancer address yet".to_owned());
    }
    Ready
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClaimStatus {
    phase: String,
}

fn claim(status: &ClaimStatus) -> Readiness {
    match &*status.phase {
        "Bound" => Ready,
        "Lost" => Failed("its volume is lost".to_owned()),
        _ => Progressing("not bound to a volume yet".to_owned()),
    }
}

fn definition(conditions: &[Condition<'_>]) -> Readiness {
    if let Some(names) = find(conditions, "NamesAccepted").filter(|names| names.status == "False") {
        return Failed(names.text());
    }
    match find(conditions, "Established") {
        Some(established) if established.status == "True" => Ready,
        Some(established) if established.status == "False" && established.reason != "Installing" => {
            Failed(established.text())
        }
        _ => Progressing("not established yet".to_owned()),
    }
}
