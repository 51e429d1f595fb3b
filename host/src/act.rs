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

use crate::{
    decide::plan::Child,
    object::Object,
    observe::{reads::Sources, watch::WatchKey},
};
use serde_json::{Value, json};

/// Where a planned child, or the object of which fields are to be owned, is watched.
fn watch_of<'a>(sources: &'a Sources, child: &Child) -> Option<&'a WatchKey> {
    let gvk = &child.key.gvk;
    if child.options.fields {
        sources.fields.get(gvk)
    } else {
        sources.children.get(gvk).map(|(watch, _)| watch)
    }
}

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
