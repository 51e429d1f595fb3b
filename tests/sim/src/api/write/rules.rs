//! What every write has to keep to, whatever its form.

use crate::{
    api::{Asked, text},
    refusal::{Cause, Refusal},
    schema::Kind,
};
use serde_json::Value;

pub(super) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

pub(super) fn read(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::new(400, "BadRequest", format!("error decoding the body, which must be JSON: {error}"))
    })
}

/// The body says of which kind it is.
pub(super) fn check_kind(kind: &Kind, object: &Value) -> Result<(), Refusal> {
    let given = (text(object, "/apiVersion"), text(object, "/kind"));
    let wanted = (&*kind.api_version(), &*kind.kind);
    if given == wanted {
        return Ok(());
    }
    if kind.is_custom() && given.0 == wanted.0 && !given.1.is_empty() {
        let what = format!("Invalid value: {:?}: must be {}", given.1, wanted.1);
        let name = text(object, "/metadata/name");
        return Err(invalid(kind, name, "FieldValueInvalid", "kind", &what).about(
            &kind.group,
            given.1,
            name,
        ));
    }
    let message = match given {
        ("", _) | (_, "") => "Object 'Kind' or 'apiVersion' is missing".to_owned(),
        (api_version, kind) => format!(
            "{kind} in version {api_version:?} cannot be handled as a {}: the object provided is unrecognized",
            wanted.1
        ),
    };
    Err(Refusal::new(400, "BadRequest", message))
}

/// The namespace is the path's.
pub(super) fn place(kind: &Kind, asked: &Asked, object: &mut Value) -> Result<(), Refusal> {
    let given = text(object, "/metadata/namespace");
    if !given.is_empty() && given != asked.namespace {
        let message = format!(
            "the namespace of the provided object does not match the namespace sent on the request ({given}, {})",
            asked.namespace
        );
        return Err(Refusal::new(400, "BadRequest", message));
    }
    if kind.namespaced {
        object["metadata"]["namespace"] = asked.namespace.as_str().into();
    }
    Ok(())
}

/// What no update changes, and what it may leave out.
pub(super) fn keep_identity(kind: &Kind, before: &Value, object: &mut Value) -> Result<(), Refusal> {
    let version = text(object, "/metadata/resourceVersion");
    let name = text(before, "/metadata/name");
    if !version.is_empty() && version != text(before, "/metadata/resourceVersion") {
        return Err(conflict(kind, name, MODIFIED));
    }
    let was = &before["metadata"];
    let metadata = &mut object["metadata"];
    for name in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if metadata[name].is_null() {
            metadata[name] = was[name].clone();
        }
    }
    metadata["generation"] = was["generation"].clone();
    metadata["resourceVersion"] = was["resourceVersion"].clone();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.retain(|_, value| !value.is_null());
    }
    Ok(())
}

/// Whether the generation counts the change.
pub(super) fn is_other_content(kind: &Kind, before: &Value, after: &Value) -> bool {
    if !kind.is_custom() {
        return before["spec"] != after["spec"]
            || (kind.kind == "Deployment"
                && before["metadata"]["annotations"] != after["metadata"]["annotations"]);
    }
    let content = |object: &Value| {
        let members = object.as_object().into_iter().flatten();
        let counted = members.filter(|(name, _)| {
            !matches!(&***name, "metadata" | "apiVersion" | "kind") && (!kind.status || *name != "status")
        });
        counted.map(|(name, value)| (name.clone(), value.clone())).collect::<Vec<_>>()
    };
    content(before) != content(after)
}

pub(super) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// What is about to go gets no new finalizers.
pub(super) fn check_finalizers(kind: &Kind, before: Option<&Value>, after: &Value) -> Result<(), Refusal> {
    let Some(before) = before.filter(|before| !before["metadata"]["deletionTimestamp"].is_null()) else {
        return Ok(());
    };
    let new: Vec<_> =
        finalizers(after).filter(|one| !finalizers(before).any(|known| known == *one)).collect();
    if new.is_empty() {
        return Ok(());
    }
    let what = format!(
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        new.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
    );
    Err(invalid(kind, text(after, "/metadata/name"), "FieldValueForbidden", "metadata.finalizers", &what))
}

/// Whether an object that was deleted has nothing left to wait for.
pub(in crate::api) fn is_at_its_end(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
        && finalizers(object).next().is_none()
        && (object["kind"] != "Namespace"
            || object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty))
}

pub(in crate::api) fn conflict(kind: &Kind, name: &str, what: &str) -> Refusal {
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {what}", kind.qualified());
    Refusal::new(409, "Conflict", message).about(&kind.group, &kind.plural, name)
}

pub(super) fn invalid(kind: &Kind, name: &str, reason: &str, field: &str, what: &str) -> Refusal {
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    let message = format!("{}{group} {name:?} is invalid: {field}: {what}", kind.kind);
    let cause = Cause { reason: reason.to_owned(), message: what.to_owned(), field: field.to_owned() };
    Refusal::new(422, "Invalid", message).because(vec![cause]).about(&kind.group, &kind.kind, name)
}

/// Five letters that a number makes, as in a generated name; no vowels, so that they make no words.
pub(super) fn suffix(serial: u64) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let base = LETTERS.len() as u64;
    // Numbers that follow each other look unlike.
    let mut rest = serial.wrapping_mul(7_919_473) % base.pow(5);
    let letters = (0..5).map(|_| {
        let letter = LETTERS[(rest % base) as usize];
        rest /= base;
        char::from(letter)
    });
    letters.collect()
}
