//! What makes an object invalid, in the API server's words.

mod builtin;

use super::{At, Form, Kind, List, Scalar, metadata};
use crate::refusal::{Cause, Refusal};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// What is wrong with a field.
pub(super) struct Problem {
    pub(super) field: String,
    /// `FieldValueInvalid`, ….
    reason: &'static str,
    message: String,
}

impl Problem {
    pub(super) fn required(field: impl Into<String>) -> Self {
        Self::new("FieldValueRequired", field, "Required value".to_owned())
    }

    pub(super) fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self::new("FieldValueInvalid", field, format!("Invalid value: {value}: {why}"))
    }

    pub(super) fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {why}"))
    }

    pub(super) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new("FieldValueDuplicate", field, format!("Duplicate value: {value}"))
    }

    pub(super) fn too_long(field: impl Into<String>, most: u64) -> Self {
        Self::new("FieldValueTooLong", field, format!("Too long: may not be more than {most} bytes"))
    }

    fn too_many(field: &str, count: usize, most: u64) -> Self {
        Self::new("FieldValueTooMany", field, format!("Too many: {count}: must have at most {most} items"))
    }

    fn wrong_type(field: &str, wanted: &str, is: &str) -> Self {
        let message = format!("Invalid value: {is:?}: {field} in body must be of type {wanted}: {is:?}");
        Self::new("FieldValueTypeInvalid", field, message)
    }

    fn new(reason: &'static str, field: impl Into<String>, message: String) -> Self {
        Self { field: field.into(), reason, message }
    }

    /// Whether the API server does not go on to what compares with the object before.
    fn is_blocking(&self) -> bool {
        !matches!(self.reason, "FieldValueInvalid" | "FieldValueDuplicate" | "FieldValueForbidden")
    }
}

pub(super) fn validate(kind: &Kind, before: Option<&Value>, after: &Value) -> Result<(), Refusal> {
    let mut problems = metadata::problems(kind, before, after);
    if kind.is_custom() {
        let mut schema = Vec::new();
        let mut root = Map::new();
        for (name, value) in after.as_object().into_iter().flatten() {
            if name != "metadata" {
                root.insert(name.clone(), value.clone());
            }
        }
        walk(kind.root(), &Value::Object(root), "", &mut schema);
        let has_rules = has_rules(kind.root());
        if !problems.iter().chain(&schema).any(Problem::is_blocking) {
            compare(kind.root(), before, Some(after), "", &mut schema);
        } else if has_rules {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            schema.push(Problem::invalid("<nil>", &Value::Null, why));
        }
        problems.extend(schema);
    } else {
        builtin::problems(kind, before, after, &mut problems);
    }
    if problems.is_empty() { Ok(()) } else { Err(refused(kind, after, problems)) }
}

fn refused(kind: &Kind, object: &Value, problems: Vec<Problem>) -> Refusal {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let told: Vec<_> = problems.iter().map(|one| format!("{}: {}", one.field, one.message)).collect();
    let told = match &told[..] {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    let causes = problems.into_iter().map(|one| Cause {
        reason: one.reason.to_owned(),
        message: one.message,
        field: one.field,
    });
    let message = format!("{}{group} {name:?} is invalid: {told}", kind.kind);
    Refusal::new(422, "Invalid", message).because(causes.collect()).about(&kind.group, &kind.kind, name)
}

/// How the API server calls the type of a value.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The structural rules of a value and all that is in it.
fn walk(at: At<'_>, value: &Value, path: &str, problems: &mut Vec<Problem>) {
    if value.is_null() && at.rules.nullable {
        return;
    }
    if let Some(wanted) = wrong_type(at, value) {
        if wanted == "integer" && type_of(value) == "number" {
            let format = at.rules.format.as_deref().unwrap_or("int64");
            problems.push(Problem::wrong_type(path, format, "float64"));
            let why = format!("Checked value must be of type integer with format {format} in {path}");
            problems.push(Problem::invalid("<nil>", &Value::from(""), &why));
        } else {
            problems.push(Problem::wrong_type(path, wanted, type_of(value)));
        }
        return;
    }
    rules(at, value, path, problems);
    match value {
        Value::Object(members) => {
            for name in &at.rules.required {
                if !members.contains_key(&**name) {
                    problems.push(Problem::required(below(path, name)));
                }
            }
            for (name, value) in members {
                if let Some(at) = at.member(name) {
                    walk(at, value, &below(path, name), problems);
                }
            }
        }
        Value::Array(items) if matches!(at.shape(), Form::List { .. }) => {
            for (index, item) in items.iter().enumerate() {
                walk(at.items(), item, &format!("{path}[{index}]"), problems);
            }
            duplicates(at, items, path, problems);
        }
        _ => {}
    }
}

/// The type that a value should have, if it has another.
fn wrong_type(at: At<'_>, value: &Value) -> Option<&'static str> {
    let is = type_of(value);
    let (fits, wanted) = match at.shape() {
        Form::Any { .. } => return None,
        Form::Object { .. } => (is == "object", "object"),
        Form::List { .. } => (is == "array", "array"),
        Form::Scalar(Scalar::String) => (is == "string", "string"),
        Form::Scalar(Scalar::Integer) => (is == "integer", "integer"),
        Form::Scalar(Scalar::Number) => (is == "integer" || is == "number", "number"),
        Form::Scalar(Scalar::Boolean) => (is == "boolean", "boolean"),
        Form::Scalar(Scalar::Either) => (is == "integer" || is == "string", "integer,string"),
    };
    (!fits).then_some(wanted)
}

fn rules(at: At<'_>, value: &Value, path: &str, problems: &mut Vec<Problem>) {
    let rules = &at.rules;
    let mut found = Vec::new();
    let mut invalid = |why: &str| found.push(Problem::invalid(path, value, &format!("{path} in body {why}")));
    if let Some(number) = value.as_f64() {
        if let Some(bound) = rules.minimum {
            let than = if bound.excluded { "greater than" } else { "greater than or equal to" };
            if number < bound.at || (bound.excluded && number <= bound.at) {
                invalid(&format!("should be {than} {}", bound.at));
            }
        }
        if let Some(bound) = rules.maximum {
            let than = if bound.excluded { "less than" } else { "less than or equal to" };
            if number > bound.at || (bound.excluded && number >= bound.at) {
                invalid(&format!("should be {than} {}", bound.at));
            }
        }
        if let Some(factor) = rules.multiple_of {
            // A whole number is compared with whole numbers, of which a fraction is none.
            if number.fract() == 0.0 && factor.abs() < 1.0 {
                let why = format!("factor MultipleOf declared for {path} must be positive: 0");
                problems.push(Problem::invalid(path, &Value::from(0), &why));
            } else if (number / factor).fract() != 0.0 {
                invalid(&format!("should be a multiple of {factor}"));
            }
        }
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as u64;
        // The first of them is told.
        let pattern = rules.pattern.as_ref().filter(|pattern| !pattern.is_match(text));
        if let Some(most) = rules.most.filter(|most| length > *most) {
            problems.push(Problem::too_long(path, most));
        } else if let Some(least) = rules.least.filter(|least| length < *least) {
            invalid(&format!("should be at least {least} chars long"));
        } else if let Some(pattern) = pattern {
            invalid(&format!("should match '{}'", pattern.text()));
        }
        if rules.format.as_deref() == Some("date-time") && text.parse::<jiff::Timestamp>().is_err() {
            problems.push(Problem::wrong_type(path, "date-time", text));
        }
    }
    problems.append(&mut found);
    let count = match value {
        Value::Array(items) => Some(items.len()),
        Value::Object(members) => Some(members.len()),
        _ => None,
    };
    if let Some(count) = count {
        if let Some(most) = rules.most.filter(|most| count as u64 > *most) {
            problems.push(Problem::too_many(path, count, most));
        }
        if let Some(least) = rules.least.filter(|least| (count as u64) < *least) {
            let what = if value.is_array() { "items" } else { "properties" };
            let why = format!("{path} in body should have at least {least} {what}");
            problems.push(Problem::invalid(path, value, &why));
        }
    }
    if !rules.one_of.is_empty() && !rules.one_of.contains(value) {
        let supported: Vec<_> = rules.one_of.iter().map(ToString::to_string).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", supported.join(", "));
        problems.push(Problem::new("FieldValueNotSupported", path, message));
    }
}

/// Items of a set, and of a list that is told apart by members, are there once.
fn duplicates(at: At<'_>, items: &[Value], path: &str, problems: &mut Vec<Problem>) {
    let Form::List { list, .. } = at.shape() else { return };
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let identity = match list {
            List::Atomic => return,
            List::Set => item.clone(),
            List::Map(keys) => {
                let keys = keys.iter().map(|key| ((**key).to_owned(), item[&**key].clone()));
                Value::Object(keys.filter(|(_, value)| !value.is_null()).collect())
            }
        };
        if !seen.insert(identity.to_string()) {
            problems.push(Problem::duplicate(format!("{path}[{index}]"), &identity));
        }
    }
}

/// Whether a schema has rules that compare; those of what it holds count.
fn has_rules(at: At<'_>) -> bool {
    if !at.rules.immutable.is_empty() {
        return true;
    }
    match at.shape() {
        Form::Object { .. } => at.members().any(|(name, at, _)| name != "metadata" && has_rules(at)),
        Form::List { .. } => has_rules(at.items()),
        Form::Any { .. } | Form::Scalar(_) => false,
    }
}

/// What may not change has not.
fn compare(
    at: At<'_>,
    before: Option<&Value>,
    after: Option<&Value>,
    path: &str,
    problems: &mut Vec<Problem>,
) {
    let (Some(before), Some(after)) = (before, after) else { return };
    if before != after {
        for message in &at.rules.immutable {
            let why = if message.is_empty() { "failed rule: self == oldSelf" } else { message };
            problems.push(match after {
                // The API server shows nothing of what has parts.
                Value::Object(_) | Value::Array(_) => {
                    Problem::new("FieldValueInvalid", path, format!("Invalid value: {why}"))
                }
                value => Problem::invalid(path, value, why),
            });
        }
    }
    if let Form::Object { .. } = at.shape() {
        for (name, at, _) in at.members().filter(|(name, ..)| *name != "metadata") {
            compare(at, before.get(name), after.get(name), &below(path, name), problems);
        }
    }
}
