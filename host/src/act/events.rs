//! Reports become Kubernetes Events: equal ones are counted, not repeated, and a flood of them is not written.

mod allowance;

use crate::{
    decide::plan::cut,
    object::{Object, ObjectKey, ResourceVersion},
    observe::client::Client,
};
use allowance::Allowance;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder, Reporter};
use std::time::Duration;
use tokio::{sync::mpsc, time::Instant};
use tracing::{debug, warn};

/// Bytes of a reason, as in `events.k8s.io/v1`.
const MAX_REASON: usize = 128;
/// Bytes of a note, as in `events.k8s.io/v1`.
const MAX_NOTE: usize = 1_024;
/// Bytes of the reporting instance, as in `events.k8s.io/v1`.
const MAX_INSTANCE: usize = 128;
/// How long writing one event may keep the next waiting.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events that may wait to be written: what is beyond tells nobody anything new.
const OUTBOX: usize = 1_024;

/// Takes events about objects; a task of its own writes them, so that they delay no reconcile.
pub struct Events {
    outbox: mpsc::Sender<(KubeEvent, ObjectReference)>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Whether it is a warning.
    pub warning: bool,
    /// The reason.
    pub reason: String,
    /// What was done, as in events.k8s.io: one verb.
    pub action: &'static str,
    /// A sentence; cut at 1,024 bytes.
    pub note: String,
    /// The other object that it is about, at this version if it is one version's event. Events that agree in all
    /// but the note are counted as one, under the first note.
    pub related: Option<(ObjectKey, Option<ResourceVersion>)>,
}

impl Events {
    /// What takes events, and what writes them, which ends when the former is gone and all is written. The reporter
    /// is `oarlock`, its instance the pod's name (`POD_NAME`), else the host's. kube's recorder names events and
    /// stamps them with the system's time.
    pub fn new(client: &Client) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let mut reporter = Reporter::from("oarlock");
        let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
        reporter.instance = pod.or(reporter.instance).map(|name| cut(&name, MAX_INSTANCE));
        let recorder = Recorder::new(client.kube().clone(), reporter);
        let (outbox, inbox) = mpsc::channel(OUTBOX);
        (Self { outbox }, write(recorder, inbox))
    }

    /// Records an event about an object. One that cannot be written, that comes when too many wait, or that is
    /// one of very many, is logged and not retried.
    pub fn publish(&self, object: &Object, event: &Event) {
        if self.outbox.try_send((to_kube(event), reference(object))).is_err() {
            warn!(object = %object.key, reason = event.reason, "an event was dropped, too many wait");
        }
    }
}

async fn write(recorder: Recorder, mut inbox: mpsc::Receiver<(KubeEvent, ObjectReference)>) {
    let mut allowance = Allowance::default();
    while let Some((event, reference)) = inbox.recv().await {
        let (kind, name, reason) = (&reference.kind, &reference.name, &event.reason);
        let related =
            event.secondary.as_ref().map(|to| (&to.kind, &to.namespace, &to.name, &to.resource_version));
        if !allowance.take(&reference.uid, (event.type_, reason, related), Instant::now()) {
            debug!(kind, name, reason, "an event was not written, there were too many lately");
            continue;
        }
        match tokio::time::timeout(PATIENCE, recorder.publish(&event, &reference)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(kind, name, reason, %error, "an event was not written"),
            Err(_) => warn!(kind, name, reason, "an event was not written in time"),
        }
    }
}

fn to_kube(event: &Event) -> KubeEvent {
    KubeEvent {
        type_: if event.warning { EventType::Warning } else { EventType::Normal },
        reason: cut(&event.reason, MAX_REASON),
        note: Some(cut(&event.note, MAX_NOTE)).filter(|note| !note.is_empty()),
        action: event.action.to_owned(),
        secondary: event.related.as_ref().map(|(key, version)| ObjectReference {
            resource_version: version.as_ref().map(|version| version.as_str().to_owned()),
            ..named(key)
        }),
    }
}

fn reference(object: &Object) -> ObjectReference {
    ObjectReference { uid: Some(object.uid.to_string()), ..named(&object.key) }
}

fn named(key: &ObjectKey) -> ObjectReference {
    ObjectReference {
        api_version: Some(key.gvk.api_version()),
        kind: Some(key.gvk.kind.to_string()),
        namespace: key.namespace.as_deref().map(str::to_owned),
        name: Some(key.name.to_string()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;

    #[test]
    fn event_fits_the_limits_of_the_api() {
        let event = Event {
            warning: true,
            reason: "R".repeat(200),
            action: "Reconcile",
            note: "ä".repeat(1_000),
            related: None,
        };
        let event = to_kube(&event);
        assert_eq!(event.type_, EventType::Warning);
        assert!(event.reason.len() <= 128);
        let note = event.note.unwrap();
        assert!(note.len() <= 1_024 && note.ends_with("… (cut)"), "{note}");
    }

    #[test]
    fn event_refers_to_the_object_by_uid() {
        let text = r#"{"metadata": {"name": "w1", "namespace": "demo", "uid": "u1"}}"#;
        let object = Object::decode(&Gvk::new("cases.example.com/v1", "Widget"), text).unwrap();
        let reference = reference(&object);
        assert_eq!(reference.api_version.as_deref(), Some("cases.example.com/v1"));
        assert_eq!(reference.namespace.as_deref(), Some("demo"));
        assert_eq!(reference.uid.as_deref(), Some("u1"));
    }
}
