//! A child with what the host adds (rule A2).

use crate::{
    decide::plan::Child,
    object::{ANNOTATION_APPLIED, LABEL_OWNED_BY, LABEL_PARENT, LABEL_SHARD, Object},
    observe::discovery::Kind,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Bytes of the hash in the annotation: enough to tell any two contents apart.
const HASH_BYTES: usize = 16;

/// A child with what the host adds: owner reference, labels, and the hash as annotation (rule A2), which is
/// returned beside it.
///
/// What the API server does not take from an apply is left out, so that what is sent is what is owned: the status
/// of a kind that has it apart, and a Secret's `stringData`, which is written into `data`.
pub(super) fn desired(child: &Child, kind: &Kind, plugin: &str, parent: &Object) -> (Value, String) {
    let mut object = child.object.clone();
    if kind.status.is_some() {
        object.remove("status");
    }
    if child.key.gvk.group.is_empty() && &*child.key.gvk.kind == "Secret" {
        encode_string_data(&mut object);
    }
    let metadata = section(&mut object, "metadata");
    // Elsewhere the garbage collector takes the owner for absent, and the child away.
    if parent.key.namespace.is_none() || parent.key.namespace == child.key.namespace {
        own(metadata, parent);
    }
    let labels = section(metadata, "labels");
    labels.insert(LABEL_OWNED_BY.to_owned(), Value::from(plugin));
    labels.insert(LABEL_PARENT.to_owned(), Value::from(&*parent.uid));
    labels.insert(LABEL_SHARD.to_owned(), Value::from(shard(&parent.uid)));
    // The members of a `Map` are sorted, so equal content is equal text.
    let mut object = Value::Object(object);
    let applied = format!("v1:{}", hash(&object.to_string()));
    if let Value::Object(object) = &mut object {
        let annotations = section(section(object, "metadata"), "annotations");
        annotations.insert(ANNOTATION_APPLIED.to_owned(), Value::from(&*applied));
    }
    (object, applied)
}

/// What the host adds to a child, and nothing else: what must hold even where its content is left alone.
pub(super) fn bookkeeping(child: &Child, kind: &Kind, plugin: &str, parent: &Object) -> Value {
    let empty = Child { key: child.key.clone(), object: Map::new(), options: child.options };
    let (mut body, _) = desired(&empty, kind, plugin, parent);
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("annotations");
    }
    body
}

/// The part of a live child that the plugin owns, as a body to apply: with what the host adds, as if it were planned.
pub(super) fn restored(child: &Child, part: Value, kind: &Kind, plugin: &str, parent: &Object) -> Value {
    let mut object = match part {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    object.insert("apiVersion".to_owned(), Value::from(child.key.gvk.api_version()));
    object.insert("kind".to_owned(), Value::from(&*child.key.gvk.kind));
    let metadata = section(&mut object, "metadata");
    metadata.insert("name".to_owned(), Value::from(&*child.key.name));
    if let Some(namespace) = &child.key.namespace {
        metadata.insert("namespace".to_owned(), Value::from(&**namespace));
    }
    section(metadata, "annotations").remove(ANNOTATION_APPLIED);
    let as_planned = Child { key: child.key.clone(), object, options: child.options };
    desired(&as_planned, kind, plugin, parent).0
}

/// The member of that name, as an object; a plan's check leaves nothing else there.
fn section<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let section = object.entry(name).or_insert_with(|| json!({}));
    if !section.is_object() {
        *section = json!({});
    }
    section.as_object_mut().expect("made an object above")
}

fn own(metadata: &mut Map<String, Value>, parent: &Object) {
    let mut owners = match metadata.remove("ownerReferences") {
        Some(Value::Array(owners)) => owners,
        Some(_) | None => Vec::new(),
    };
    // The list merges by uid: the parent cannot be in it twice.
    owners.retain(|owner| owner.get("uid").and_then(Value::as_str) != Some(&*parent.uid));
    owners.push(json!({
        "apiVersion": parent.key.gvk.api_version(),
        "kind": &*parent.key.gvk.kind,
        "name": &*parent.key.name,
        "uid": &*parent.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }));
    metadata.insert("ownerReferences".to_owned(), Value::Array(owners));
}

/// `stringData` is only written, never read: a key taken out of it would stay in `data` for ever (rule A1).
fn encode_string_data(object: &mut Map<String, Value>) {
    let Some(Value::Object(texts)) = object.get("stringData") else { return };
    if !texts.values().all(Value::is_string) {
        // The API server says what is wrong with it.
        return;
    }
    let encoded: Vec<_> = texts
        .iter()
        .filter_map(|(name, text)| Some((name.clone(), Value::from(STANDARD.encode(text.as_str()?)))))
        .collect();
    object.remove("stringData");
    section(object, "data").extend(encoded);
}

/// Two digits: the first four bytes of the SHA-256 of the uid, read as a big-endian number, modulo 100.
fn shard(uid: &str) -> String {
    let digest = Sha256::digest(uid);
    let number = digest.iter().take(4).fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    format!("{:02}", number % 100)
}

/// What tells any two contents apart.
pub(in crate::act) fn hash(text: &str) -> String {
    hex(&Sha256::digest(text)[..HASH_BYTES])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
