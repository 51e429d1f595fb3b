//! What a parent must come to: the plugins' functions, written a second time.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::steps::{FLEET, PLAIN, READS, SERVICE};
use crate::world::{condition, says, string};

/// Everything beside the spec that the plugin's answer, and the host's, depend on.
pub(super) struct Surroundings<'a> {
    /// The component in force.
    pub(super) component: &'a str,
    /// The text in what [`READS`] and [`FLEET`] read, if it is there.
    pub(super) source: Option<&'a str>,
    /// The names of what they list, in order, with commas.
    pub(super) picked: &'a str,
    /// What the Service says of itself: a condition type, or nothing.
    pub(super) service: &'a str,
}

/// The condition `Synced`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Synced {
    /// The plan failed: what stood before stands.
    Standing,
    /// The plan has none.
    Absent,
    /// Its status and message.
    Told(String, String),
}

/// What a parent must come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// Status and reason of `Ready`.
    pub(super) ready: (&'static str, String),
    /// `Reconciling` or `Stalled`, or none.
    pub(super) beside: Option<&'static str>,
    /// The plan's own condition.
    pub(super) synced: Synced,
    /// The plan's own field of the status.
    pub(super) note: Option<String>,
    /// `None`: the plan failed. Else names and data of the `ConfigMap`s.
    pub(super) config_maps: Option<Vec<(String, Value)>>,
}

/// The plugin's function.
pub(super) fn expected(widget: &str, spec: &Value, around: &Surroundings<'_>) -> Expected {
    let ready = || ("True", "ChildrenReady".to_owned());
    let written = || Synced::Told("True".to_owned(), "The text is in its ConfigMap.".to_owned());
    let healthy =
        Expected { ready: ready(), beside: None, synced: Synced::Standing, note: None, config_maps: None };
    let failed = |reason: &str, beside| Expected {
        ready: ("False", reason.to_owned()),
        beside: Some(beside),
        synced: Synced::Standing,
        note: None,
        config_maps: None,
    };
    match widget {
        PLAIN => match string(spec, "/mode") {
            "transient" => failed("Flaky", "Reconciling"),
            "permanent" => failed("Broken", "Stalled"),
            "panic" => failed("GuestTrapped", "Stalled"),
            _ => {
                let mut data = json!({"text": spec["text"]});
                if around.component == "widget-v2" {
                    data["version"] = "2".into();
                }
                Expected {
                    synced: written(),
                    config_maps: Some(vec![(format!("{PLAIN}-cm"), data)]),
                    ..healthy
                }
            }
        },
        READS | FLEET => {
            let text = around.source.map_or_else(|| spec["text"].clone(), Value::from);
            let mut data = json!({"text": text, "names": around.picked});
            if around.source.is_none() && widget == READS && around.component == "widget-v2" {
                data["version"] = "2".into();
            }
            Expected { synced: written(), config_maps: Some(vec![(format!("{widget}-cm"), data)]), ..healthy }
        }
        _ => {
            let plan = &spec["plan"];
            let children = plan["children"].as_array().into_iter().flatten();
            let config_maps = children
                .filter(|child| child["kind"] == "ConfigMap")
                .map(|child| (string(child, "/metadata/name").to_owned(), child["data"].clone()))
                .collect();
            let (ready, beside) = match (widget, around.service) {
                (SERVICE, "Reconciling") => {
                    (("False", "ChildrenProgressing".to_owned()), Some("Reconciling"))
                }
                (SERVICE, "Stalled") => (("False", "ChildFailed".to_owned()), Some("Stalled")),
                _ => (ready(), None),
            };
            let synced = plan.pointer("/conditions/0");
            let synced = synced.map_or(Synced::Absent, |one| {
                Synced::Told(string(one, "/status").to_owned(), string(one, "/message").to_owned())
            });
            let note = Some(string(plan, "/status/note").to_owned());
            Expected { ready, beside, synced, note, config_maps: Some(config_maps) }
        }
    }
}

impl Expected {
    /// Fails unless the status of a parent says this; of the fields and conditions of others, those of `auditor`
    /// must be there and no more.
    pub(super) fn check_status(&self, widget: &Value, auditor: &Value) -> Result<()> {
        let status = &widget["status"];
        says(widget, "Ready", self.ready.0, &self.ready.1)?;
        for r#type in ["Reconciling", "Stalled"] {
            let found = condition(widget, r#type);
            ensure!(found.is_some() == (self.beside == Some(r#type)), "{type}: {found:?}");
            if found.is_some() {
                says(widget, r#type, "True", &self.ready.1)?;
            }
        }
        match (&self.synced, condition(widget, "Synced")) {
            (Synced::Standing, _) | (Synced::Absent, None) => {}
            // Somebody set it anew after the plan had stopped to: then it is theirs.
            (Synced::Absent, Some(found)) if string(found, "/message").starts_with("flipped") => {}
            (Synced::Told(status, message), Some(found)) => {
                says(widget, "Synced", status, string(found, "/reason"))?;
                ensure!(string(found, "/message") == message, "{found}, not {message}");
            }
            (expected, found) => bail!("Synced is {found:?}, not {expected:?}"),
        }
        let note = self.note.as_deref().or(auditor["note"].as_str());
        ensure!(status["note"].as_str() == note, "the note is {}, not {note:?}", status["note"]);
        let checked = condition(widget, "audit.example.org/Checked");
        ensure!(checked == auditor.pointer("/conditions/0"), "somebody else's condition is {checked:?}");
        Ok(())
    }
}
