//! Two forms of an object, field by field.

use crate::object::{ANNOTATION_APPLIED, Gvk};
use serde_json::{Value, json};
use std::fmt::{self, Display};

/// Fields of `metadata` that tell nothing about what is planned.
const NOISE: [&str; 3] = ["managedFields", "resourceVersion", "generation"];
/// Characters of a value that are shown.
const SHOWN: usize = 120;
/// In the place of what is in a Secret.
const MASKED: &str = "(masked)";

/// A field that differs: its path, and both values in words.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Difference {
    path: String,
    from: Option<String>,
    to: Option<String>,
}

impl Difference {
    /// Something to say beside fields.
    pub(super) fn note(text: String) -> Self {
        Self { path: text, from: None, to: None }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({"path": self.path, "from": self.from, "to": self.to})
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, from, to } = self;
        match (from, to) {
            (Some(from), Some(to)) => write!(f, "{path}: {from} → {to}"),
            (None, Some(to)) => write!(f, "{path}: {to}, new"),
            (Some(from), None) => write!(f, "{path}: {from}, gone"),
            (None, None) => f.write_str(path),
        }
    }
}

/// Whether values are to be kept to oneself.
pub(super) fn is_secret(gvk: &Gvk) -> bool {
    gvk.group.is_empty() && &*gvk.kind == "Secret"
}

/// Everything that differs between an object and what would become of it.
pub(in crate::cli) fn between(now: &Value, then: &Value, is_secret: bool) -> Vec<Difference> {
    let mut found = Vec::new();
    walk(String::new(), Some(now), Some(then), true, &mut found);
    masked(found, is_secret)
}

/// What a body sets otherwise than it is.
pub(super) fn wanted(now: &Value, body: &Value, is_secret: bool) -> Vec<Difference> {
    let mut found = Vec::new();
    walk(String::new(), Some(now), Some(body), false, &mut found);
    masked(found, is_secret)
}

fn masked(mut found: Vec<Difference>, is_secret: bool) -> Vec<Difference> {
    let is_content = |path: &str| path.starts_with("data") || path.starts_with("stringData");
    for difference in found.iter_mut().filter(|one| is_secret && is_content(&one.path)) {
        for value in [&mut difference.from, &mut difference.to].into_iter().flatten() {
            MASKED.clone_into(value);
        }
    }
    found
}

/// `both`: what is in `now` only differs too.
fn walk(path: String, now: Option<&Value>, then: Option<&Value>, both: bool, found: &mut Vec<Difference>) {
    if now == then || is_noise(&path) {
        return;
    }
    match (now, then) {
        (Some(Value::Object(now)), Some(Value::Object(then))) => {
            let gone = now.keys().filter(|name| both && !then.contains_key(*name));
            for name in then.keys().chain(gone) {
                walk(member(&path, name), now.get(name), then.get(name), both, found);
            }
        }
        (Some(Value::Array(now)), Some(Value::Array(then)))
            if now.iter().chain(then).all(|one| name(one).is_some()) =>
        {
            let find = |list: &[Value], wanted: &str| {
                list.iter().find(|one| name(one).is_some_and(|name| name == wanted)).cloned()
            };
            let gone = now.iter().filter_map(name).filter(|one| both && find(then, one).is_none());
            for one in then.iter().filter_map(name).chain(gone) {
                let (now, then) = (find(now, &one), find(then, &one));
                walk(format!("{path}[{one}]"), now.as_ref(), then.as_ref(), both, found);
            }
        }
        (now, then) => found.push(Difference { path, from: now.map(shown), to: then.map(shown) }),
    }
}

fn is_noise(path: &str) -> bool {
    let field = path.strip_prefix("metadata.");
    field.is_some_and(|field| NOISE.contains(&field) || field == format!("annotations[{ANNOTATION_APPLIED}]"))
}

/// What tells an element of a list apart: its name, as of containers, or what object it is.
fn name(element: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    text(&element["name"])
        .or_else(|| Some(format!("{}/{}", text(&element["kind"])?, text(&element["metadata"]["name"])?)))
}

fn member(path: &str, name: &str) -> String {
    match (path, name.contains('.')) {
        ("", _) => name.to_owned(),
        (_, true) => format!("{path}[{name}]"),
        (_, false) => format!("{path}.{name}"),
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(differences: &[Difference]) -> Vec<String> {
        differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn fields_are_told_by_path_and_noise_is_not() {
        let now = json!({
            "metadata": {
                "resourceVersion": "1", "generation": 1, "labels": {"a.b/c": "x", "old": "y"},
                "annotations": {"oarlock.dev/applied": "v1:1"},
            },
            "spec": {"replicas": 2, "ports": [80], "containers": [{"name": "web", "image": "a"}, {"name": "side"}]},
        });
        let then = json!({
            "metadata": {
                "resourceVersion": "2", "generation": 2, "labels": {"a.b/c": "z"},
                "annotations": {"oarlock.dev/applied": "v1:2"},
            },
            "spec": {"replicas": 3, "ports": [80, 81], "containers": [{"name": "web", "image": "b"}, {"name": "new"}]},
        });
        let expected = [
            r#"metadata.labels[a.b/c]: "x" → "z""#,
            r#"metadata.labels.old: "y", gone"#,
            r#"spec.containers[web].image: "a" → "b""#,
            r#"spec.containers[new]: {"name":"new"}, new"#,
            r#"spec.containers[side]: {"name":"side"}, gone"#,
            "spec.ports: [80] → [80,81]",
            "spec.replicas: 2 → 3",
        ];
        assert_eq!(texts(&between(&now, &then, false)), expected);
        assert!(between(&now, &now, false).is_empty());
        // What others set stays: only what is wanted is told.
        let body = json!({"spec": {"replicas": 3}});
        assert_eq!(texts(&wanted(&now, &body, false)), ["spec.replicas: 2 → 3"]);
    }

    #[test]
    fn content_of_secrets_is_masked_and_long_values_are_cut() {
        let (now, then) =
            (json!({"data": {"key": "YQ=="}}), json!({"data": {"key": "Yg==", "more": "Yw=="}}));
        let expected = ["data.key: (masked) → (masked)", "data.more: (masked), new"];
        assert_eq!(texts(&between(&now, &then, true)), expected);
        let long = json!({"data": "é".repeat(500)});
        assert!(texts(&between(&json!({}), &long, false))[0].chars().count() < 150);
    }
}
