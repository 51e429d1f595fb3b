//! Make it so.

pub mod apply;
pub mod contested;
mod delete;
pub mod drift;
pub mod events;
pub mod fields;
mod owned;
pub mod preview;
pub mod prune;
pub mod status;

use crate::object::Object;
use serde_json::{Value, json};

/// The beginning of an apply to a parent: what it is about, by uid, and nothing that it should say yet.
fn identity(parent: &Object) -> Value {
    let mut body = json!({
        "apiVersion": parent.key.gvk.api_version(),
        "kind": &*parent.key.gvk.kind,
        "metadata": {"name": &*parent.key.name, "uid": &*parent.uid},
    });
    if let Some(namespace) = &parent.key.namespace {
        body["metadata"]["namespace"] = Value::from(&**namespace);
    }
    body
}
