//! The parent, as a plugin sees it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::Failure;

/// A parent with a typed spec.
#[derive(Clone, Debug, Deserialize)]
pub struct Object<Spec> {
    /// Who it is.
    pub metadata: ObjectMeta,
    /// What its author asks for.
    pub spec: Spec,
}

/// The part of an object's metadata that controllers use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The name, unique in its namespace.
    pub name: String,
    /// The namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// The identity: another object of the same name has another one.
    pub uid: String,
    /// Counts the changes of the spec.
    pub generation: i64,
    /// The labels.
    #[serde(deserialize_with = "texts")]
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    #[serde(deserialize_with = "texts")]
    pub annotations: BTreeMap<String, String>,
    /// When it was created, in RFC 3339.
    pub creation_timestamp: Option<String>,
    /// When its deletion was asked for, in RFC 3339; `None` while it lives.
    pub deletion_timestamp: Option<String>,
}

/// A map of texts, sorted once: keys that share long prefixes, as those of Kubernetes do, make inserting them one by
/// one the greater part of reading an object.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Texts;

    impl<'de> Visitor<'de> for Texts {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = map.next_entry::<String, String>()? {
                entries.push(entry);
            }
            Ok(entries.into_iter().collect())
        }
    }

    deserializer.deserialize_map(Texts)
}

/// Reads the parent; what does not fit is named by its path, because the message is for the object's author.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T, Failure> {
    serde_json::from_str(json).map_err(|error| Failure::permanent("InvalidObject", explain(json, &error)))
}

/// The error with the path of the value at fault, and without a position in text nobody sees.
pub(crate) fn explain(json: &str, error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = text.strip_suffix(&position).unwrap_or(&text);
    let line_start: usize =
        json.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    match path_at(json.as_bytes(), line_start + error.column()) {
        path if path.is_empty() => message.to_owned(),
        path => format!("{path}: {message}"),
    }
}

/// One step of a path.
enum Step {
    Field(Option<String>),
    Item(usize),
}

/// The path of the value in which the first `length` bytes of a JSON text end, such as `spec.ports[0].name`.
fn path_at(json: &[u8], length: usize) -> String {
    let mut path: Vec<Step> = Vec::new();
    let mut string_start = None;
    let mut is_escaped = false;
    for (at, &byte) in json.iter().take(length).enumerate() {
        if let Some(start) = string_start {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => {
                    string_start = None;
                    if let Some(Step::Field(name @ None)) = path.last_mut() {
                        *name = Some(String::from_utf8_lossy(&json[start..at]).into_owned());
                    }
                }
                _ => {}
            }
            continue;
        }
        match (byte, path.last_mut()) {
            (b'"', _) => string_start = Some(at + 1),
            (b'{', _) => path.push(Step::Field(None)),
            (b'[', _) => path.push(Step::Item(0)),
            (b',', Some(Step::Field(name))) => *name = None,
            (b',', Some(Step::Item(index))) => *index += 1,
            (b'}' | b']', _) => drop(path.pop()),
            _ => {}
        }
    }
    let text: String = path
        .iter()
        .map(|step| match step {
            Step::Field(name) => name.as_ref().map(|name| format!(".{name}")).unwrap_or_default(),
            Step::Item(index) => format!("[{index}]"),
        })
        .collect();
    text.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only deserialized")]
    struct Spec {
        image: String,
        #[serde(default)]
        ports: Vec<Port>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only deserialized")]
    struct Port {
        number: u16,
    }

    fn message(spec: &str) -> String {
        let json = format!("{{\"metadata\": {{\"name\": \"a\\\"b\"}},\n \"spec\": {spec}, \"z\": 1}}");
        let failure = parse::<Object<Spec>>(&json).unwrap_err();
        assert_eq!(failure.reason, "InvalidObject");
        failure.message
    }

    #[test]
    fn object_that_does_not_fit_is_explained_by_path() {
        let cases = [
            (r#"{"ports": []}"#, "spec: missing field `image`"),
            (r#"{"image": 5}"#, "spec.image: invalid type: integer `5`, expected a string"),
            (r#"{"image": {"a": 1}}"#, "spec.image: invalid type: map, expected a string"),
            (r#"{"image": null}"#, "spec.image: invalid type: null, expected a string"),
            (
                r#"{"image": "a", "ports": [{"number": 1}, {"number": 70000}]}"#,
                "spec.ports[1].number: invalid value: integer `70000`, expected u16",
            ),
            (r#"{"image": "a", "ports": [{"number": 1}, {}]}"#, "spec.ports[1]: missing field `number`"),
            (r#"{"imag": "a"}"#, "spec.imag: unknown field `imag`, expected `image` or `ports`"),
        ];
        for (spec, expected) in cases {
            assert_eq!(message(spec), expected, "{spec}");
        }
    }

    #[test]
    fn object_without_optional_metadata_has_defaults() {
        let object: Object<Spec> =
            parse(r#"{"metadata": {"name": "a", "generation": 3}, "spec": {"image": "i"}}"#).unwrap();
        assert_eq!((object.metadata.generation, object.metadata.namespace), (3, None));
    }
}
