//! What makes metadata invalid, whatever the kind.

use super::{Kind, validate::Problem};
use serde_json::Value;

/// All annotations of an object together.
const ANNOTATION_BYTES: usize = 256 << 10;
const NAME_BYTES: usize = 253;
const LABEL_BYTES: usize = 63;

pub(super) fn problems(kind: &Kind, before: Option<&Value>, after: &Value) -> Vec<Problem> {
    let metadata = &after["metadata"];
    let mut problems = Vec::new();
    name(kind, &metadata["name"], &mut problems);
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        if !is_qualified_name(key) {
            problems.push(Problem::invalid("metadata.labels", &key.as_str().into(), QUALIFIED));
        }
        let text = value.as_str().unwrap_or_default();
        if !(text.is_empty() || is_label(text)) {
            problems.push(Problem::invalid("metadata.labels", value, LABEL));
        }
    }
    let mut bytes = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        bytes += key.len() + value.as_str().map_or(0, str::len);
        if !is_qualified_name(&key.to_lowercase()) {
            problems.push(Problem::invalid("metadata.annotations", &key.as_str().into(), QUALIFIED));
        }
    }
    if bytes > ANNOTATION_BYTES {
        problems.push(Problem::too_long("metadata.annotations", ANNOTATION_BYTES as u64));
    }
    owners(&metadata["ownerReferences"], &mut problems);
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten() {
        if !is_qualified_name(finalizer.as_str().unwrap_or_default()) {
            problems.push(Problem::invalid("metadata.finalizers", finalizer, QUALIFIED));
        }
    }
    if let Some(before) = before {
        for name in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"] {
            if before["metadata"][name] != metadata[name] {
                let field = format!("metadata.{name}");
                problems.push(Problem::invalid(field, &metadata[name], "field is immutable"));
            }
        }
    }
    problems
}

const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn name(kind: &Kind, name: &Value, problems: &mut Vec<Problem>) {
    let text = name.as_str().unwrap_or_default();
    if text.is_empty() {
        problems.push(Problem::required("metadata.name"));
        return;
    }
    let is_valid = match &*kind.kind {
        "Service" => is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()),
        "Namespace" => is_dns_label(text),
        _ => text.len() <= NAME_BYTES && text.split('.').all(is_part),
    };
    if !is_valid {
        problems.push(Problem::invalid("metadata.name", name, SUBDOMAIN));
    }
}

fn owners(references: &Value, problems: &mut Vec<Problem>) {
    let all = references.as_array().into_iter().flatten();
    for reference in all.clone() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if reference[field].as_str().unwrap_or_default().is_empty() {
                let why =
                    if field == "apiVersion" { "version must not be empty" } else { "must not be empty" };
                problems.push(Problem::invalid(format!("metadata.ownerReferences.{field}"), &"".into(), why));
            }
        }
    }
    let controllers: Vec<_> = all.filter(|reference| reference["controller"] == true).collect();
    if let [first, second, ..] = &controllers[..] {
        let told = |one: &Value| {
            format!(
                "{}/{}",
                one["kind"].as_str().unwrap_or_default(),
                one["name"].as_str().unwrap_or_default()
            )
        };
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
            told(first),
            told(second)
        );
        problems.push(Problem::invalid("metadata.ownerReferences", references, &why));
    }
}

/// Letters, digits, and in between what may stand there.
fn is_word(text: &str, between: &str, is_letter: impl Fn(char) -> bool) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| is_letter(c) || c.is_ascii_digit());
    is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|c| is_letter(c) || c.is_ascii_digit() || between.contains(c))
}

fn is_part(text: &str) -> bool {
    is_word(text, "-", |c| c.is_ascii_lowercase())
}

fn is_dns_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES && is_part(text)
}

fn is_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES && is_word(text, "-_.", |c| c.is_ascii_alphabetic())
}

/// A name, perhaps after a domain and a slash.
fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => {
            domain.len() <= NAME_BYTES && domain.split('.').all(is_part) && is_label(name)
        }
        None => is_label(text),
    }
}
