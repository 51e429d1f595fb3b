//! JSON text to [`Object`], without building a tree: members are cut out of the text as they stand.

use super::{
    ContentHash, DecodeError, Gvk, Object, ObjectKey, OwnedFields, OwnerReference, PREFIX, ResourceVersion,
};
use crate::object::FIELD_MANAGER_PREFIX;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

/// The members of a JSON object, in their order, each as the text that was written.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(key) = map.next_key::<Key<'de>>()? {
                    members.push((key.0, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// A member's name: borrowed unless it has escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    namespace: Option<Cow<'a, str>>,
    uid: Cow<'a, str>,
    resource_version: Cow<'a, str>,
    generation: i64,
    creation_timestamp: Option<Cow<'a, str>>,
    deletion_timestamp: Option<Cow<'a, str>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    owner_references: Option<Vec<Owner<'a>>>,
    finalizers: Option<Vec<Box<str>>>,
    managed_fields: Option<Vec<ManagedFields<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owner<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    kind: Cow<'a, str>,
    name: Box<str>,
    uid: Arc<str>,
    controller: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedFields<'a> {
    #[serde(borrow, default)]
    manager: Cow<'a, str>,
    #[serde(default)]
    subresource: Cow<'a, str>,
    #[serde(rename = "fieldsV1")]
    fields: Option<&'a RawValue>,
}

pub(super) fn decode(gvk: &Gvk, text: &str) -> Result<Object, DecodeError> {
    let json = |source| DecodeError::Json { gvk: gvk.clone(), source };
    let members: Members<'_> = serde_json::from_str(text).map_err(json)?;
    let mut body = Body::with_capacity(text.len());
    let mut status = None;
    let mut metadata = Metadata::default();
    body.member_text("apiVersion", &serde_json::Value::from(gvk.api_version()).to_string());
    body.member_text("kind", &serde_json::Value::from(&*gvk.kind).to_string());
    for (name, value) in &members.0 {
        match &**name {
            // Written above: items of lists come without them.
            "apiVersion" | "kind" => {}
            "status" => status = (value.get() != "null").then(|| Arc::<str>::from(value.get())),
            "metadata" => {
                metadata = serde_json::from_str(value.get()).map_err(json)?;
                let inner: Members<'_> = serde_json::from_str(value.get()).map_err(json)?;
                let mut kept = Body::with_capacity(value.get().len());
                for (name, value) in &inner.0 {
                    if !matches!(&**name, "managedFields" | "resourceVersion") {
                        kept.member_text(name, value.get());
                    }
                }
                body.member_text("metadata", &kept.finish());
            }
            _ => body.member_text(name, value.get()),
        }
    }
    if metadata.name.is_empty() {
        return Err(DecodeError::NoName { gvk: gvk.clone() });
    }
    let body: Arc<str> = body.finish().into();
    Ok(Object {
        key: ObjectKey {
            gvk: gvk.clone(),
            namespace: metadata
                .namespace
                .filter(|namespace| !namespace.is_empty())
                .map(|text| text.as_ref().into()),
            name: metadata.name.as_ref().into(),
        },
        uid: metadata.uid.as_ref().into(),
        version: ResourceVersion::new(&metadata.resource_version),
        generation: metadata.generation,
        created: metadata.creation_timestamp.unwrap_or_default().into(),
        deleted: metadata.deletion_timestamp.map(Into::into),
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata
            .annotations
            .unwrap_or_default()
            .into_iter()
            .filter(|(name, _)| name.starts_with(PREFIX))
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        owners: metadata
            .owner_references
            .unwrap_or_default()
            .into_iter()
            .map(|owner| OwnerReference {
                gvk: Gvk::new(&owner.api_version, &owner.kind),
                name: owner.name,
                uid: owner.uid,
                controller: owner.controller.unwrap_or(false),
            })
            .collect(),
        finalizers: metadata.finalizers.unwrap_or_default().into(),
        owned_fields: metadata
            .managed_fields
            .unwrap_or_default()
            .into_iter()
            .filter(|entry| entry.manager.starts_with(FIELD_MANAGER_PREFIX))
            .filter_map(|entry| {
                Some(OwnedFields {
                    manager: entry.manager.into(),
                    status: entry.subresource == "status",
                    fields: entry.fields?.get().into(),
                })
            })
            .collect(),
        body_hash: ContentHash::of(body.as_bytes()),
        status_hash: ContentHash::of(status.as_deref().unwrap_or_default().as_bytes()),
        body,
        status,
    })
}

/// A JSON object being written.
struct Body(String);

impl Body {
    fn with_capacity(capacity: usize) -> Self {
        let mut text = String::with_capacity(capacity + 2);
        text.push('{');
        Self(text)
    }

    fn member_text(&mut self, name: &str, value: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&serde_json::Value::from(name).to_string());
        self.0.push(':');
        self.0.push_str(value);
    }

    fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widget() -> Gvk {
        Gvk::new("cases.example.com/v1", "Widget")
    }

    const TEXT: &str = r#"{"metadata":{"name":"w1","namespace":"demo","uid":"u-1","resourceVersion":"77",
        "generation":3,"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"a":"b"},
        "annotations":{"oarlock.dev/paused":"true","other":"x"},
        "ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"d","uid":"u-0","controller":true}],
        "managedFields":[{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{}}},
            {"manager":"oarlock/x","operation":"Apply","subresource":"status","fieldsV1":{"f:status":{}}}]},
        "spec":{"big":9007199254740993,"n\"":1},"status":{"ok":true}}"#;

    #[test]
    fn decode_keeps_status_apart_and_drops_what_every_write_changes() {
        let object = Object::decode(&widget(), TEXT).unwrap();
        assert_eq!(object.key.to_string(), "Widget demo/w1");
        assert_eq!(object.status.as_deref(), Some(r#"{"ok":true}"#));
        assert!(
            object.body.starts_with(r#"{"apiVersion":"cases.example.com/v1","kind":"Widget","metadata":{"#)
        );
        assert!(!object.body.contains("managedFields") && !object.body.contains("resourceVersion"));
        assert_eq!(object.generation, 3);
        assert_eq!(object.annotations.len(), 1);
        assert_eq!(object.controller().unwrap().gvk, Gvk::new("apps/v1", "Deployment"));
        assert_eq!(object.owned_fields.len(), 1);
        assert!(object.owned_fields[0].status);
    }

    #[test]
    fn decode_passes_integers_and_escaped_names_on_as_written() {
        let object = Object::decode(&widget(), TEXT).unwrap();
        assert!(object.body.contains(r#""spec":{"big":9007199254740993,"n\"":1}"#), "{}", object.body);
        let whole: serde_json::Value = serde_json::from_str(&object.to_json()).unwrap();
        assert_eq!(whole["status"]["ok"], true);
    }

    #[test]
    fn a_status_write_does_not_change_the_body() {
        let before = Object::decode(&widget(), TEXT).unwrap();
        let after = TEXT.replace(r#""ok":true"#, r#""ok":false"#).replace("\"77\"", "\"78\"");
        let after = Object::decode(&widget(), &after).unwrap();
        assert_eq!(before.body_hash, after.body_hash);
        assert_ne!(before.status_hash, after.status_hash);
        assert!(before.version.is_older_than(&after.version));
    }

    #[test]
    fn decode_survives_deep_nesting_and_names_what_is_missing() {
        let deep =
            format!(r#"{{"metadata":{{"name":"w"}},"spec":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
        assert!(Object::decode(&widget(), &deep).is_ok());
        let error = Object::decode(&widget(), r#"{"metadata":{}}"#).unwrap_err();
        assert_eq!(error.to_string(), "an object of kind Widget (cases.example.com/v1) has no metadata.name");
    }

    #[test]
    fn versions_that_are_no_integers_are_never_older() {
        assert!(!ResourceVersion::new("abc").is_older_than(&ResourceVersion::new("5")));
        assert!(ResourceVersion::new("5").is_older_than(&ResourceVersion::new("40")));
    }
}
