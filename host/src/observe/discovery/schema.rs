//! What an `OpenAPI` v3 document says of the status of each of its kinds. The rest of it is not kept.
//!
//! Never: I/O, clocks.

use super::{ConditionList, StatusSchema};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// By kind.
pub(super) type Statuses = BTreeMap<String, StatusSchema>;

const KINDS: &str = "x-kubernetes-group-version-kind";

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow, default)]
    components: Components<'a>,
}

#[derive(Deserialize, Default)]
struct Components<'a> {
    #[serde(borrow, default)]
    schemas: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

/// The status of every kind of a group's version. Schemas stay text until one is needed: a document has
/// megabytes, of which `status` is little.
pub(super) fn statuses(group: &str, version: &str, text: &str) -> Result<Statuses, serde_json::Error> {
    let document: Document<'_> = serde_json::from_str(text)?;
    let schemas = document.components.schemas;
    let mut statuses = Statuses::new();
    for text in schemas.values().filter(|schema| schema.get().contains(KINDS)) {
        // One schema that cannot be read (nested too deep) does not hide the others.
        let Ok(schema) = serde_json::from_str::<Value>(text.get()) else { continue };
        let kinds = schema[KINDS].as_array().map_or(&[][..], Vec::as_slice);
        let here = kinds.iter().find(|kind| kind["group"] == group && kind["version"] == version);
        if let Some(kind) = here.and_then(|kind| kind["kind"].as_str()) {
            statuses.insert(kind.to_owned(), status(&schemas, &schema));
        }
    }
    Ok(statuses)
}

/// A schema with what it refers to: `$ref` as it stands, or as one of `allOf`.
struct Resolved(Vec<Value>);

impl Resolved {
    fn of(schemas: &BTreeMap<Cow<'_, str>, &RawValue>, schema: &Value) -> Self {
        let mut parts = vec![schema.clone()];
        let mut done = 0;
        // Bounded, as a document could refer in a circle.
        while let Some(part) = parts.get(done).filter(|_| done < 32) {
            let referred = part["$ref"].as_str().and_then(|name| schemas.get(name.rsplit('/').next()?));
            let referred = referred.and_then(|text| serde_json::from_str(text.get()).ok());
            let all_of = part["allOf"].as_array().cloned().unwrap_or_default();
            parts.extend(referred.into_iter().chain(all_of));
            done += 1;
        }
        Self(parts)
    }

    fn property(&self, name: &str) -> Option<&Value> {
        self.0.iter().find_map(|part| part["properties"].get(name))
    }

    fn properties(&self) -> impl Iterator<Item = &String> {
        self.0
            .iter()
            .filter_map(|part| part["properties"].as_object())
            .flat_map(|properties| properties.keys())
    }

    /// Whether fields that are not declared are kept.
    fn keeps_any(&self) -> bool {
        self.0.iter().any(|part| {
            part["x-kubernetes-preserve-unknown-fields"] == true
                || part.get("additionalProperties").is_some_and(|allowed| *allowed != false)
        })
    }

    fn has(&self, name: &str, value: &Value) -> bool {
        self.0.iter().any(|part| part[name] == *value)
    }
}

fn status(schemas: &BTreeMap<Cow<'_, str>, &RawValue>, kind: &Value) -> StatusSchema {
    let kind = Resolved::of(schemas, kind);
    let Some(status) = kind.property("status").map(|status| Resolved::of(schemas, status)) else {
        let keeps_any = kind.keeps_any();
        return StatusSchema {
            conditions: keeps_any.then_some(ConditionList::Atomic),
            fields: (!keeps_any).then(Default::default),
        };
    };
    let conditions = match status.property("conditions").map(|list| Resolved::of(schemas, list)) {
        // By another key than the type, the host could not tell whose condition is whose.
        Some(list)
            if list.has("x-kubernetes-list-type", &"map".into())
                && list.has("x-kubernetes-list-map-keys", &["type"].as_slice().into()) =>
        {
            Some(ConditionList::Map)
        }
        Some(_) => Some(ConditionList::Atomic),
        // What no schema describes is one value for server-side apply.
        None => status.keeps_any().then_some(ConditionList::Atomic),
    };
    let fields = (!status.keeps_any()).then(|| status.properties().cloned().collect());
    StatusSchema { conditions, fields }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MAP: &str =
        r#"{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type"]}"#;

    /// The status of a kind whose schema is this, beside a referred-to `Referred`.
    #[track_caller]
    fn check(schema: &str, referred: &str, conditions: Option<ConditionList>, fields: Option<&[&str]>) {
        let mut schema: Value = serde_json::from_str(schema).unwrap();
        schema[KINDS] = json!([{"group": "other", "version": "v1", "kind": "No"}, {"group": "g", "version": "v1", "kind": "Widget"}]);
        let referred: Value = serde_json::from_str(referred).unwrap();
        let document = json!({"components": {"schemas": {"a.b.Widget": schema, "a.b.Referred": referred}}});
        let statuses = statuses("g", "v1", &document.to_string()).unwrap();
        let fields = fields.map(|fields| fields.iter().map(ToString::to_string).collect());
        assert_eq!(statuses, [("Widget".to_owned(), StatusSchema { conditions, fields })].into());
    }

    #[test]
    fn status_is_read_where_it_stands_or_where_it_refers_to() {
        let with_map = format!(r#"{{"properties":{{"conditions":{MAP},"note":{{}}}}}}"#);
        let (map, both) = (Some(ConditionList::Map), Some(&["conditions", "note"][..]));
        check(&format!(r#"{{"properties":{{"status":{with_map}}}}}"#), "{}", map, both);
        let refer = |how: &str| format!(r#"{{"properties":{{"spec":{{}},"status":{how}}}}}"#);
        check(&refer(r##"{"$ref":"#/components/schemas/a.b.Referred"}"##), &with_map, map, both);
        check(
            &refer(r##"{"allOf":[{"$ref":"#/components/schemas/a.b.Referred"}],"default":{}}"##),
            &with_map,
            map,
            both,
        );
        check(&refer(r##"{"$ref":"#/components/schemas/a.b.Missing"}"##), "{}", None, Some(&[]));
        let circle = r##"{"allOf":[{"$ref":"#/components/schemas/a.b.Referred"}]}"##;
        check(&refer(r##"{"$ref":"#/components/schemas/a.b.Referred"}"##), circle, None, Some(&[]));
    }

    #[test]
    fn conditions_are_a_map_only_by_type() {
        let atomic = Some(ConditionList::Atomic);
        for list in [
            r#"{"type":"array"}"#,
            r#"{"x-kubernetes-list-type":"atomic"}"#,
            r#"{"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type","reason"]}"#,
        ] {
            let schema = format!(r#"{{"properties":{{"status":{{"properties":{{"conditions":{list}}}}}}}}}"#);
            check(&schema, "{}", atomic, Some(&["conditions"]));
        }
    }

    #[test]
    fn fields_are_any_where_the_schema_keeps_unknown_ones() {
        let atomic = Some(ConditionList::Atomic);
        check(
            r#"{"properties":{"status":{"x-kubernetes-preserve-unknown-fields":true}}}"#,
            "{}",
            atomic,
            None,
        );
        check(r#"{"properties":{"status":{"additionalProperties":{"type":"string"}}}}"#, "{}", atomic, None);
        check(r#"{"x-kubernetes-preserve-unknown-fields":true}"#, "{}", atomic, None);
        check(
            r#"{"x-kubernetes-preserve-unknown-fields":true,"properties":{"status":{"type":"object"}}}"#,
            "{}",
            None,
            Some(&[]),
        );
        check(r#"{"properties":{"spec":{}}}"#, "{}", None, Some(&[]));
    }
}
