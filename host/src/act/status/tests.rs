use super::*;
use crate::{
    decide::plan::ConditionStatus,
    object::Gvk,
    observe::discovery::{ConditionList, StatusSchema},
};
use serde_json::{Map, Value, json};

const MANAGER: &str = "oarlock/web";
const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-01T01:00:00Z";

fn schema(conditions: Option<ConditionList>) -> StatusSchema {
    let fields = ["conditions", "observedGeneration", "note", "list", "obj", "addresses"];
    StatusSchema { conditions, fields: Some(fields.map(str::to_owned).into()) }
}

fn map() -> StatusSchema {
    schema(Some(ConditionList::Map))
}

fn atomic() -> StatusSchema {
    schema(Some(ConditionList::Atomic))
}

/// A parent of generation 3 with this status, of which the manager owns these fields.
fn parent(status: &Value, owned: &Value) -> Object {
    let object = json!({
        "metadata": {
            "name": "w1", "namespace": "demo", "uid": "u1", "resourceVersion": "7", "generation": 3,
            "managedFields": [
                {"manager": MANAGER, "subresource": "status", "fieldsV1": {"f:status": owned}},
                {"manager": MANAGER, "fieldsV1": {"f:metadata": {"f:labels": {"f:note": {}}}}},
            ],
        },
        "status": status,
    });
    Object::decode(&Gvk::new("cases.example.com/v1", "Widget"), &object.to_string()).unwrap()
}

/// The fields of one condition as they are owned.
fn owned_condition() -> Value {
    json!({".": {}, "f:type": {}, "f:status": {}, "f:reason": {}, "f:message": {}, "f:lastTransitionTime": {},
        "f:observedGeneration": {}})
}

fn owned(fields: &[&str], types: &[&str]) -> Value {
    let mut node: Map<String, Value> = fields.iter().map(|name| (format!("f:{name}"), json!({}))).collect();
    if !types.is_empty() {
        let types = types.iter().map(|one| (format!(r#"k:{{"type":"{one}"}}"#), owned_condition()));
        node.insert("f:conditions".to_owned(), Value::Object(types.collect()));
    }
    Value::Object(node)
}

fn stored(r#type: &str, status: &str, time: &str, generation: i64) -> Value {
    json!({"type": r#type, "status": status, "reason": "Ok", "message": "fine", "lastTransitionTime": time,
        "observedGeneration": generation})
}

fn condition(r#type: &str, status: ConditionStatus) -> Condition {
    Condition { r#type: r#type.to_owned(), status, reason: "Ok".to_owned(), message: "fine".to_owned() }
}

fn ready() -> Condition {
    condition("Ready", ConditionStatus::True)
}

fn desired(fields: &Value, conditions: Vec<Condition>) -> Desired {
    Desired {
        fields: Some(fields.as_object().unwrap().clone()),
        conditions,
        keep_other_own: false,
        observed_generation: 3,
    }
}

/// The status in the body of the patch; `None` if nothing is to be written.
fn merged(parent: &Object, desired: &Desired, schema: &StatusSchema) -> Option<Value> {
    merge(parent, desired, schema, MANAGER, &["Synced".to_owned()], NOW)
        .map(|patch| patch.body["status"].clone())
}

#[test]
fn first_status_is_written_whole_and_names_its_object() {
    let patch = merge(
        &parent(&Value::Null, &Value::Null),
        &desired(&json!({"note": "x", "big": 1}), vec![ready()]),
        &map(),
        MANAGER,
        &[],
        NOW,
    );
    let expected = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget",
        "metadata": {"name": "w1", "namespace": "demo", "uid": "u1"},
        "status": {"observedGeneration": 3, "note": "x", "conditions": [stored("Ready", "True", NOW, 3)]},
    });
    // B014: `big` is not in the schema.
    assert_eq!(patch, Some(Patch { body: expected, undeclared: vec!["big".to_owned()] }));
}

#[test]
fn nothing_is_written_when_nothing_but_the_time_would_differ() {
    // B002, and a restart: what is ours is known from the object alone.
    let status =
        json!({"observedGeneration": 3, "note": "x", "conditions": [stored("Ready", "True", THEN, 3)]});
    let owned = owned(&["observedGeneration", "note"], &["Ready"]);
    let desired = desired(&json!({"note": "x"}), vec![ready()]);
    assert_eq!(merged(&parent(&status, &owned), &desired, &map()), None);
    assert_eq!(merged(&parent(&status, &owned), &desired, &atomic()), None);
}

#[test]
fn transition_time_moves_with_the_status_alone() {
    let check = |change: &dyn Fn(&mut Condition), expected: &str| {
        let status = json!({"observedGeneration": 3, "conditions": [stored("Ready", "True", THEN, 3)]});
        let owned = owned(&["observedGeneration"], &["Ready"]);
        let mut condition = ready();
        change(&mut condition);
        for schema in [map(), atomic()] {
            let merged =
                merged(&parent(&status, &owned), &desired(&json!({}), vec![condition.clone()]), &schema);
            assert_eq!(merged.unwrap()["conditions"][0]["lastTransitionTime"], expected);
        }
    };
    check(&|condition| condition.status = ConditionStatus::False, NOW);
    check(&|condition| condition.status = ConditionStatus::Unknown, NOW);
    check(&|condition| condition.reason = "Other".to_owned(), THEN);
    check(&|condition| condition.message = "other".to_owned(), THEN);
}

#[test]
fn transition_time_that_is_missing_is_now() {
    for time in [Value::Null, json!("")] {
        let mut condition = stored("Ready", "True", THEN, 3);
        condition["lastTransitionTime"] = time;
        let parent = parent(&json!({"conditions": [condition]}), &Value::Null);
        let merged = merged(&parent, &desired(&json!({}), vec![ready()]), &map()).unwrap();
        assert_eq!(merged["conditions"][0]["lastTransitionTime"], NOW);
    }
}

#[test]
fn observed_generation_is_written_though_nothing_else_changed() {
    let status = json!({"observedGeneration": 2, "conditions": [stored("Ready", "True", THEN, 2)]});
    let owned = owned(&["observedGeneration"], &["Ready"]);
    let merged = merged(&parent(&status, &owned), &desired(&json!({}), vec![ready()]), &map());
    let expected = json!({"observedGeneration": 3, "conditions": [stored("Ready", "True", THEN, 3)]});
    assert_eq!(merged, Some(expected));
}

#[test]
fn conditions_of_others_are_left_alone_where_the_list_is_a_map() {
    // B008: `Checked` is the auditor's, `Synced` was ours and is not returned any more.
    let checked = stored("audit.example.org/Checked", "True", THEN, 1);
    let status = json!({
        "observedGeneration": 3,
        "conditions": [stored("Ready", "True", THEN, 3), checked, stored("Synced", "True", THEN, 3)],
    });
    let owned = owned(&["observedGeneration"], &["Ready", "Synced"]);
    let merged = merged(&parent(&status, &owned), &desired(&json!({}), vec![ready()]), &map());
    let expected = json!({"observedGeneration": 3, "conditions": [stored("Ready", "True", THEN, 3)]});
    assert_eq!(merged, Some(expected), "ours alone: the API server removes `Synced` and keeps `Checked`");
}

#[test]
fn conditions_of_others_are_kept_where_they_stand_in_an_atomic_list() {
    let mut checked = stored("audit.example.org/Checked", "True", THEN, 1);
    checked["extra"] = json!({"big": 9_007_199_254_740_993_i64});
    let status = json!({
        "observedGeneration": 3,
        "conditions": [
            stored("Synced", "True", THEN, 3), checked, stored("Stalled", "True", THEN, 3), stored("Ready", "False", THEN, 3),
        ],
    });
    let parent = parent(&status, &owned(&["observedGeneration", "conditions"], &[]));
    let desired = desired(&json!({}), vec![condition("New", ConditionStatus::True), ready()]);
    let patch = merge(&parent, &desired, &atomic(), MANAGER, &["Synced".to_owned()], NOW).unwrap();
    assert_eq!(
        patch.body["status"]["conditions"],
        json!([checked, stored("Ready", "True", NOW, 3), stored("New", "True", NOW, 3)]),
    );
    assert_eq!(patch.body["metadata"]["resourceVersion"], "7");
    let patch = merge(&parent, &desired, &map(), MANAGER, &[], NOW).unwrap();
    assert_eq!(patch.body["metadata"].get("resourceVersion"), None);
}

#[test]
fn what_is_no_longer_desired_takes_a_write() {
    let status =
        json!({"observedGeneration": 3, "note": "x", "obj": {"mine": 1, "theirs": 2}, "list": ["theirs"]});
    let mut owned = owned(&["observedGeneration", "note"], &[]);
    owned["f:obj"] = json!({"f:mine": {}});
    let parent = parent(&status, &owned);
    let of = |fields: Value| merged(&parent, &desired(&fields, vec![]), &map());
    assert_eq!(of(json!({"note": "x", "obj": {"mine": 1}})), None);
    assert_eq!(of(json!({"obj": {"mine": 1}})), Some(json!({"observedGeneration": 3, "obj": {"mine": 1}})));
    assert_eq!(of(json!({"note": "x"})), Some(json!({"observedGeneration": 3, "note": "x"})));
    // The API server makes null of an object that is left without parts, and refuses that.
    assert_eq!(of(json!({"note": "x", "obj": {}})), Some(json!({"observedGeneration": 3, "note": "x"})));
}

#[test]
fn what_somebody_else_wrote_since_takes_a_write() {
    // The value is the same again, but it is not ours: without a write it would outlive the plan.
    let status =
        json!({"observedGeneration": 3, "note": "x", "conditions": [stored("Ready", "True", THEN, 3)]});
    let desired = desired(&json!({"note": "x"}), vec![ready()]);
    for owned in [owned(&["observedGeneration"], &["Ready"]), owned(&["observedGeneration", "note"], &[])] {
        let merged = merged(&parent(&status, &owned), &desired, &map());
        assert_eq!(merged.as_ref(), Some(&status), "{owned}");
    }
}

#[test]
fn failed_pass_keeps_what_stands() {
    let status = json!({
        "observedGeneration": 2, "note": "x", "obj": {"mine": 1, "theirs": 2},
        "conditions": [
            stored("Ready", "True", THEN, 2), stored("audit.example.org/Checked", "True", THEN, 1), stored("Synced", "True", THEN, 2),
        ],
    });
    let mut own = owned(&["observedGeneration", "note"], &["Ready", "Synced"]);
    own["f:obj"] = json!({"f:mine": {}});
    let failed = Desired {
        fields: None,
        conditions: vec![condition("Ready", ConditionStatus::False)],
        keep_other_own: true,
        observed_generation: 3,
    };
    let expected = json!({
        "observedGeneration": 3, "note": "x", "obj": {"mine": 1},
        "conditions": [stored("Ready", "False", NOW, 3), stored("Synced", "True", THEN, 2)],
    });
    assert_eq!(merged(&parent(&status, &own), &failed, &map()), Some(expected));

    // The same failure again: nothing to write.
    let status = json!({
        "observedGeneration": 3, "note": "x", "obj": {"mine": 1, "theirs": 2},
        "conditions": [
            stored("Synced", "True", THEN, 2), stored("audit.example.org/Checked", "True", THEN, 1), stored("Ready", "False", THEN, 3),
        ],
    });
    assert_eq!(merged(&parent(&status, &own), &failed, &map()), None);

    let own = owned(&["observedGeneration", "note", "conditions"], &[]);
    let atomic =
        merged(&parent(&status, &own), &Desired { observed_generation: 4, ..failed }, &atomic()).unwrap();
    let kept: Vec<_> = atomic["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    assert_eq!(kept, ["Synced", "audit.example.org/Checked", "Ready"]);
}

#[test]
fn status_without_anything_is_left_out_of_the_body() {
    let mut schema = map();
    schema.fields.as_mut().unwrap().remove("observedGeneration");
    let status = json!({"note": "x"});
    let parent = parent(&status, &owned(&["note"], &[]));
    let patch = merge(&parent, &desired(&json!({}), vec![]), &schema, MANAGER, &[], NOW).unwrap();
    assert_eq!(patch.body.get("status"), None, "an empty object is refused as null");
}

#[test]
fn undeclared_fields_are_named_and_left_out() {
    let fields = json!({"note": "x", "phase": "Running", "zone": 1});
    let desired = desired(&fields, vec![ready()]);
    for (schema, undeclared, written) in [
        (map(), vec!["phase", "zone"], vec!["conditions", "note", "observedGeneration"]),
        (schema(None), vec!["phase", "zone", "conditions"], vec!["note", "observedGeneration"]),
        (
            StatusSchema { conditions: None, fields: None },
            vec![],
            vec!["conditions", "note", "observedGeneration", "phase", "zone"],
        ),
        (
            StatusSchema { conditions: None, fields: Some(["note".to_owned()].into()) },
            vec!["phase", "zone", "conditions"],
            vec!["note"],
        ),
    ] {
        let patch = merge(&parent(&Value::Null, &Value::Null), &desired, &schema, MANAGER, &[], NOW).unwrap();
        assert_eq!(patch.undeclared, undeclared);
        let names: Vec<_> = patch.body["status"].as_object().unwrap().keys().collect();
        assert_eq!(names, written);
    }
}

#[test]
fn order_of_what_merges_makes_no_difference() {
    let status = json!({
        "observedGeneration": 3, "addresses": ["b", "theirs", "a"],
        "conditions": [stored("B", "True", THEN, 3), stored("A", "True", THEN, 3)],
    });
    let mut owned = owned(&["observedGeneration"], &["A", "B"]);
    owned["f:addresses"] = json!({r#"v:"a""#: {}, r#"v:"b""#: {}});
    let parent = parent(&status, &owned);
    let conditions = || vec![condition("A", ConditionStatus::True), condition("B", ConditionStatus::True)];
    assert_eq!(merged(&parent, &desired(&json!({"addresses": ["a", "b"]}), conditions()), &map()), None);
    assert!(merged(&parent, &desired(&json!({"addresses": ["a", "c"]}), conditions()), &map()).is_some());
    assert!(merged(&parent, &desired(&json!({"addresses": ["a"]}), conditions()), &map()).is_some());
}

#[test]
fn empties_and_numbers_settle() {
    // As the API server answered these: a list that merges has no owner while it is empty.
    let status = json!({"observedGeneration": 3, "addresses": [], "list": [], "obj": {}, "note": 1});
    let parent = parent(&status, &owned(&["observedGeneration", "list", "obj", "note"], &[]));
    let fields = json!({"addresses": [], "list": [], "obj": {}, "note": 1.0});
    assert_eq!(merged(&parent, &desired(&fields, vec![]), &map()), None);
    assert!(merged(&parent, &desired(&json!({"note": 2.0}), vec![]), &map()).is_some());
}

#[test]
fn big_integers_survive() {
    let fields = json!({"note": u64::MAX, "list": [i64::MIN]});
    let merged = merged(&parent(&Value::Null, &Value::Null), &desired(&fields, vec![]), &map()).unwrap();
    assert_eq!(
        merged.to_string(),
        r#"{"list":[-9223372036854775808],"note":18446744073709551615,"observedGeneration":3}"#
    );
}

#[test]
fn conditions_are_within_the_limits_and_unique() {
    // B056 and B058, whoever made the condition.
    let odd = Condition { reason: "9 lives".to_owned(), message: "ä".repeat(20_000), ..ready() };
    let merged =
        merged(&parent(&Value::Null, &Value::Null), &desired(&json!({}), vec![odd, ready()]), &map())
            .unwrap();
    let conditions = merged["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0]["reason"], "Reason9Lives");
    let message = conditions[0]["message"].as_str().unwrap();
    assert!(
        message.len() <= 32_768
            && message.starts_with(r#"reason "9 lives": "#)
            && message.ends_with("… (cut)")
    );
}

#[test]
fn status_of_another_shape_is_written_anew() {
    let odd = parent(&json!({"conditions": "odd", "note": null}), &Value::Null);
    for schema in [map(), atomic()] {
        let merged = merged(&odd, &desired(&json!({"note": "x"}), vec![ready()]), &schema).unwrap();
        assert_eq!(merged["conditions"], json!([stored("Ready", "True", NOW, 3)]));
    }
}

#[test]
fn waits_double_and_stay_within_their_bounds() {
    let parent = parent(&Value::Null, &Value::Null);
    for attempt in 1..ATTEMPTS {
        let full = FIRST_WAIT * 2_u32.pow(attempt - 1);
        let wait = wait(&parent, attempt);
        assert!(wait >= full / 2 && wait <= full, "{attempt}: {wait:?}");
    }
}
