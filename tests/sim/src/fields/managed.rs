//! `managedFields`: who owns what, as it is stored.

use super::{Write, set::Set};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// What one manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) manager: String,
    pub(super) applies: bool,
    pub(super) api_version: String,
    pub(super) subresource: String,
    pub(super) time: Option<String>,
    pub(super) fields: Set,
}

impl Entry {
    pub(super) fn new(write: &Write<'_>, applies: bool, api_version: String, fields: Set) -> Self {
        Self {
            manager: write.manager.to_owned(),
            applies,
            api_version,
            subresource: write.subresource.to_owned(),
            time: Some(write.time.to_owned()),
            fields,
        }
    }

    /// Whether both are entries of the same manager: one that applies is the same in every version.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.applies == other.applies
            && self.subresource == other.subresource
            && (self.applies || self.api_version == other.api_version)
    }

    /// As conflicts name it.
    pub(super) fn shown(&self) -> String {
        let mut shown = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            let _ = write!(shown, " with subresource {:?}", self.subresource);
        }
        if !self.applies {
            let _ = write!(shown, " using {}", self.api_version);
        }
        shown
    }
}

/// The entries in an object's metadata.
pub(super) fn decode(object: &Value) -> Vec<Entry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .map(|entry| Entry {
            manager: text(&entry["manager"]),
            applies: entry["operation"] == "Apply",
            api_version: text(&entry["apiVersion"]),
            subresource: text(&entry["subresource"]),
            time: entry["time"].as_str().map(str::to_owned),
            fields: Set::from_json(&entry["fieldsV1"]),
        })
        .collect()
}

/// Puts them back, in the order in which the API server keeps them.
pub(super) fn encode(mut entries: Vec<Entry>, object: &mut Value) {
    entries.retain(|entry| !entry.fields.is_empty());
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
        return;
    }
    entries.sort_by(|a, b| {
        fn key(entry: &Entry) -> (bool, Option<&str>, &str, &str, &str) {
            (!entry.applies, entry.time.as_deref(), &entry.manager, &entry.api_version, &entry.subresource)
        }
        key(a).cmp(&key(b))
    });
    let entries = entries.into_iter().map(|entry| {
        let mut stored = json!({
            "apiVersion": entry.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": entry.fields.to_json(),
            "manager": entry.manager,
            "operation": if entry.applies { "Apply" } else { "Update" },
        });
        if let Some(time) = entry.time {
            stored["time"] = time.into();
        }
        if !entry.subresource.is_empty() {
            stored["subresource"] = entry.subresource.into();
        }
        stored
    });
    metadata.insert("managedFields".into(), entries.collect());
}
