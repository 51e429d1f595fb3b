//! `OpenAPI` v3 documents: the real API server's, trimmed, and those of CRDs.

use super::{Kind, Source};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, sync::Arc};

const PREFIX: &str = "#/components/schemas/";
/// What a kind's schema says of itself.
const KINDS: &str = "x-kubernetes-group-version-kind";
/// What the simulator has no use for.
const UNUSED: [&str; 5] = [
    "description",
    "title",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-unions",
];

/// An API server's document of one group's version, with these kinds, what they refer to, and no prose.
pub fn trim(document: &Value, kinds: &[&str]) -> Value {
    let Some(schemas) = document["components"]["schemas"].as_object() else { return Value::Null };
    let is_wanted = |schema: &Value| {
        let told = schema[KINDS].as_array().into_iter().flatten();
        told.filter_map(|kind| kind["kind"].as_str()).any(|kind| kinds.contains(&kind))
            && schema["properties"].get("metadata").is_some()
    };
    let mut open: Vec<&str> =
        schemas.iter().filter(|(_, schema)| is_wanted(schema)).map(|(name, _)| name.as_str()).collect();
    let mut wanted = BTreeSet::new();
    while let Some(name) = open.pop() {
        if let Some((name, schema)) = schemas.get_key_value(name)
            && wanted.insert(name)
        {
            refer(schema, &mut open);
        }
    }
    let kept: Map<String, Value> =
        wanted.into_iter().map(|name| (name.clone(), without_prose(&schemas[name], false))).collect();
    json!({"components": {"schemas": kept}, "openapi": document["openapi"]})
}

/// What a schema refers to.
fn refer<'a>(schema: &'a Value, to: &mut Vec<&'a str>) {
    match schema {
        Value::Object(members) => {
            to.extend(members.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(PREFIX)));
            members.values().for_each(|member| refer(member, to));
        }
        Value::Array(items) => items.iter().for_each(|item| refer(item, to)),
        _ => {}
    }
}

/// `named`: the members are properties, which may be called `description`.
fn without_prose(schema: &Value, named: bool) -> Value {
    match schema {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| named || !UNUSED.contains(&name.as_str()));
            kept.map(|(name, member)| (name.clone(), without_prose(member, !named && name == "properties")))
                .collect()
        }
        Value::Array(items) => items.iter().map(|item| without_prose(item, false)).collect(),
        other => other.clone(),
    }
}

/// The document of one group's version, of which these are all kinds.
pub fn document(kinds: &[Arc<Kind>]) -> Value {
    let mut schemas = Map::new();
    for kind in kinds {
        match &kind.source {
            Source::Builtin(document) => return (**document).clone(),
            Source::Custom(schema) => {
                let group: Vec<_> = kind.group.rsplit('.').collect();
                schemas.insert(
                    format!("{}.{}.{}", group.join("."), kind.version, kind.kind),
                    custom(kind, schema),
                );
            }
        }
    }
    if !schemas.is_empty() {
        let core = super::builtin::definitions();
        let mut open = vec![super::node::METADATA];
        while let Some(name) = open.pop() {
            if !schemas.contains_key(name) {
                refer(&core[name], &mut open);
                schemas.insert(name.to_owned(), core[name].clone());
            }
        }
    }
    json!({"components": {"schemas": schemas}, "openapi": "3.0.0"})
}

fn custom(kind: &Kind, schema: &Value) -> Value {
    let mut schema = schema.clone();
    schema[KINDS] = json!([{"group": kind.group, "kind": kind.kind, "version": kind.version}]);
    let properties = &mut schema["properties"];
    properties["apiVersion"] = json!({"type": "string"});
    properties["kind"] = json!({"type": "string"});
    properties["metadata"] = json!({"allOf": [{"$ref": format!("{PREFIX}{}", super::node::METADATA)}]});
    schema
}
