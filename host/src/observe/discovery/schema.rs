//! What an `OpenAPI` v3 document says of the status of each of its kinds. The rest of it is not kept.
//!
//! Never: I/O, clocks.

use super::{ConditionList, Fields, StatusSchema};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};
use xxhash_rust::xxh3::xxh3_64;

/// By kind.
pub(super) type Statuses = BTreeMap<String, StatusSchema>;

const KINDS: &str = "x-kubernetes-group-version-kind";
/// So deep is a schema read. The deepest status of the standard kinds, a Pod's, has 6 levels; a schema may refer to
/// itself without end. What is deeper is taken to keep anything: the API server says what it does not take.
const DEPTH: usize = 16;
/// So many values of one status are read, for the same reason: some 100 KB. A Pod's has 200.
const VALUES: usize = 1_000;

type Schemas<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow, default)]
    components: Components<'a>,
}

#[derive(Deserialize, Default)]
struct Components<'a> {
    #[serde(borrow, default)]
    schemas: Schemas<'a>,
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
            statuses.insert(kind.to_owned(), status(&schemas, &schema, xxh3_64(text.get().as_bytes())));
        }
    }
    Ok(statuses)
}

/// A schema with what it refers to: `$ref` as it stands, or as one of `allOf`.
struct Resolved(Vec<Value>);

impl Resolved {
    fn of(schemas: &Schemas<'_>, schema: &Value) -> Self {
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

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find_map(|part| part.get(name))
    }

    fn property(&self, name: &str) -> Option<&Value> {
        self.0.iter().find_map(|part| part["properties"].get(name))
    }

    fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().filter_map(|part| part["properties"].as_object()).flatten()
    }

    /// Whether members that are not declared are kept.
    fn keeps_any(&self) -> bool {
        self.0.iter().any(|part| {
            part["x-kubernetes-preserve-unknown-fields"] == true
                || part.get("additionalProperties").is_some_and(|allowed| *allowed != false)
        })
    }

    fn has(&self, name: &str, value: &Value) -> bool {
        self.0.iter().any(|part| part[name] == *value)
    }

    /// Whether members that no schema declares are dropped. A standard type without properties, such as
    /// `RawExtension`, holds whatever it is given; it is always referred to, and a CRD's schema never refers.
    fn is_closed(&self) -> bool {
        self.properties().next().is_some() || self.0.len() == 1 && self.has("type", &"object".into())
    }
}

fn status(schemas: &Schemas<'_>, kind: &Value, hash: u64) -> StatusSchema {
    let kind = Resolved::of(schemas, kind);
    let Some(schema) = kind.property("status") else {
        if kind.keeps_any() {
            return StatusSchema { hash, ..StatusSchema::any() };
        }
        return StatusSchema { conditions: None, fields: Fields::none(), hash };
    };
    let status = Resolved::of(schemas, schema);
    let fields = fields(schemas, &status, DEPTH, &mut { VALUES });
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
        None => fields.member("conditions").map(|_| ConditionList::Atomic),
    };
    StatusSchema { conditions, fields, hash }
}

/// What a schema declares, within what is left of depth and number of values.
fn fields(schemas: &Schemas<'_>, schema: &Resolved, depth: usize, values: &mut usize) -> Fields {
    *values = values.saturating_sub(1);
    if depth == 0 || *values == 0 {
        return Fields::Any;
    }
    let mut below = |schema: &Value| fields(schemas, &Resolved::of(schemas, schema), depth - 1, values);
    if let Some(items) = schema.get("items") {
        return Fields::List(Box::new(below(items)));
    }
    let each = match schema.get("additionalProperties") {
        Some(Value::Object(each)) if !each.is_empty() => Some(below(&Value::Object(each.clone()))),
        Some(_) | None => schema.keeps_any().then_some(Fields::Any),
    };
    if each.is_none() && !schema.is_closed() {
        return Fields::Any;
    }
    let members = schema.properties().map(|(name, schema)| ((&**name).into(), below(schema))).collect();
    Fields::Object { members, others: each.map(Box::new) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MAP: &str =
        r#"{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type"]}"#;

    /// In short: members by name, those of other names as `*`, a list as the one thing it holds, `any` as null.
    fn shown(fields: &Fields) -> Value {
        match fields {
            Fields::Any => Value::Null,
            Fields::List(each) => json!([shown(each)]),
            Fields::Object { members, others } => {
                let others = others.iter().map(|others| ("*".to_owned(), shown(others)));
                members.iter().map(|(name, fields)| (name.to_string(), shown(fields))).chain(others).collect()
            }
        }
    }

    /// The status of a kind whose schema is this, beside a referred-to `Referred`.
    fn read(schema: &str, referred: &str) -> StatusSchema {
        let mut schema: Value = serde_json::from_str(schema).unwrap();
        schema[KINDS] = json!([{"group": "other", "version": "v1", "kind": "No"}, {"group": "g", "version": "v1", "kind": "Widget"}]);
        let referred: Value = serde_json::from_str(referred).unwrap();
        let document = json!({"components": {"schemas": {"a.b.Widget": schema, "a.b.Referred": referred}}});
        statuses("g", "v1", &document.to_string()).unwrap().remove("Widget").unwrap()
    }

    #[track_caller]
    fn check(schema: &str, referred: &str, conditions: Option<ConditionList>, fields: &Value) {
        let status = read(schema, referred);
        assert_eq!((status.conditions, &shown(&status.fields)), (conditions, fields));
    }

    /// The fields of a status of this schema.
    #[track_caller]
    fn check_fields(status: &str, referred: &str, fields: &Value) {
        let status = read(&format!(r#"{{"properties":{{"status":{status}}}}}"#), referred);
        assert_eq!(&shown(&status.fields), fields);
    }

    #[test]
    fn status_is_read_where_it_stands_or_where_it_refers_to() {
        let with_map = format!(r#"{{"properties":{{"conditions":{MAP},"note":{{}}}}}}"#);
        let (map, both) = (Some(ConditionList::Map), json!({"conditions": null, "note": null}));
        check(&format!(r#"{{"properties":{{"status":{with_map}}}}}"#), "{}", map, &both);
        let refer = |how: &str| format!(r#"{{"properties":{{"spec":{{}},"status":{how}}}}}"#);
        check(&refer(r##"{"$ref":"#/components/schemas/a.b.Referred"}"##), &with_map, map, &both);
        check(
            &refer(r##"{"allOf":[{"$ref":"#/components/schemas/a.b.Referred"}],"default":{}}"##),
            &with_map,
            map,
            &both,
        );
        // What cannot be read forbids nothing.
        let (atomic, any) = (Some(ConditionList::Atomic), Value::Null);
        check(&refer(r##"{"$ref":"#/components/schemas/a.b.Missing"}"##), "{}", atomic, &any);
        let circle = r##"{"allOf":[{"$ref":"#/components/schemas/a.b.Referred"}]}"##;
        check(&refer(r##"{"$ref":"#/components/schemas/a.b.Referred"}"##), circle, atomic, &any);
    }

    #[test]
    fn conditions_are_a_map_only_by_type() {
        for list in [
            r#"{"type":"array"}"#,
            r#"{"x-kubernetes-list-type":"atomic"}"#,
            r#"{"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type","reason"]}"#,
        ] {
            let schema = format!(r#"{{"properties":{{"status":{{"properties":{{"conditions":{list}}}}}}}}}"#);
            check(&schema, "{}", Some(ConditionList::Atomic), &json!({"conditions": null}));
        }
    }

    #[test]
    fn fields_are_any_where_the_schema_keeps_unknown_ones() {
        let atomic = Some(ConditionList::Atomic);
        let (others, none) = (json!({"*": null}), json!({}));
        check(
            r#"{"properties":{"status":{"x-kubernetes-preserve-unknown-fields":true}}}"#,
            "{}",
            atomic,
            &others,
        );
        check(
            r#"{"properties":{"status":{"additionalProperties":{"type":"string"}}}}"#,
            "{}",
            atomic,
            &others,
        );
        check(r#"{"x-kubernetes-preserve-unknown-fields":true}"#, "{}", atomic, &Value::Null);
        check(
            r#"{"x-kubernetes-preserve-unknown-fields":true,"properties":{"status":{"type":"object"}}}"#,
            "{}",
            None,
            &none,
        );
        check(r#"{"properties":{"spec":{}}}"#, "{}", None, &none);
    }

    #[test]
    fn fields_are_read_in_objects_lists_and_maps() {
        check_fields(
            r##"{"type":"object","properties":{
                "scalar":{"type":"string"},"either":{"x-kubernetes-int-or-string":true},
                "closed":{"type":"object"},
                "nested":{"type":"object","properties":{"a":{"type":"object","properties":{"b":{}}}}},
                "list":{"type":"array","items":{"type":"object","properties":{"name":{}}}},
                "map":{"type":"object","additionalProperties":{"type":"object","properties":{"x":{}}}},
                "open":{"type":"object","x-kubernetes-preserve-unknown-fields":true,
                    "properties":{"known":{"type":"object","properties":{"x":{}}}}},
                "raw":{"$ref":"#/components/schemas/a.b.Referred"}}}"##,
            r#"{"type":"object"}"#,
            &json!({
                "scalar": null, "either": null, "closed": {}, "nested": {"a": {"b": null}},
                "list": [{"name": null}], "map": {"*": {"x": null}}, "open": {"known": {"x": null}, "*": null},
                "raw": null,
            }),
        );
    }

    #[test]
    fn schema_that_refers_to_itself_or_is_huge_ends() {
        let itself =
            r##"{"type":"object","properties":{"more":{"$ref":"#/components/schemas/a.b.Referred"}}}"##;
        let mut status =
            read(r##"{"properties":{"status":{"$ref":"#/components/schemas/a.b.Referred"}}}"##, itself)
                .fields;
        let mut depth = 0;
        while let Fields::Object { mut members, .. } = status {
            status = members.remove("more").unwrap();
            depth += 1;
        }
        assert_eq!((status, depth), (Fields::Any, DEPTH));

        let closed: Vec<_> = (0..2 * VALUES).map(|n| format!(r#""f{n:04}":{{"type":"object"}}"#)).collect();
        let huge = format!(r#"{{"properties":{{"status":{{"properties":{{{}}}}}}}}}"#, closed.join(","));
        let Fields::Object { members, .. } = read(&huge, "{}").fields else { panic!("it is an object") };
        assert_eq!(members.len(), 2 * VALUES, "each of them may be there");
        assert_eq!(members.values().filter(|fields| **fields != Fields::Any).count(), VALUES - 2);
    }

    #[test]
    fn every_change_of_a_schema_is_another_schema() {
        let of = |phase: &str| {
            read(&format!(r#"{{"properties":{{"status":{{"properties":{{"phase":{phase}}}}}}}}}"#), "{}")
        };
        let (one, other) = (of(r#"{"enum":["A"]}"#), of(r#"{"enum":["A","B"]}"#));
        assert_eq!((&one.fields, one == other, one == of(r#"{"enum":["A"]}"#)), (&other.fields, false, true));
    }
}
