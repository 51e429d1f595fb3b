use super::*;
use crate::{
    decide::plan::ConditionStatus,
    object::Gvk,
    observe::{
        client::mock::{Reply, Server},
        discovery::{ConditionList, Fields, StatusSchema},
    },
};
use serde_json::{Map, Value, json};

const MANAGER: &str = "oarlock/web";
const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-01T01:00:00Z";

fn object(members: &[(&str, Fields)]) -> Fields {
    let members = members.iter().map(|(name, fields)| ((*name).into(), fields.clone())).collect();
    Fields::Object { members, others: None }
}

fn schema(conditions: Option<ConditionList>) -> StatusSchema {
    let names = ["conditions", "observedGeneration", "note", "list", "obj", "addresses"];
    let fields = object(&names.map(|name| (name, Fields::Any)));
    StatusSchema { conditions, fields, hash: 1 }
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
    let (desired, _) = declared::declared(desired, schema);
    merge(parent, &desired, schema, MANAGER, &["Synced".to_owned()], NOW)
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
    assert_eq!(patch, Some(Patch { body: expected, is_urgent: true }));
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
fn failed_pass_ends_what_the_host_said_of_the_last_one() {
    let status = json!({"observedGeneration": 3, "conditions": [
        stored("Ready", "False", THEN, 3), stored("Stalled", "True", THEN, 3), stored("Synced", "True", THEN, 3),
    ]});
    let retried = Desired {
        fields: None,
        conditions: vec![condition("Reconciling", ConditionStatus::True)],
        keep_other_own: true,
        observed_generation: 3,
    };
    let map_owned = owned(&["observedGeneration"], &["Ready", "Stalled", "Synced"]);
    let atomic_owned = owned(&["observedGeneration", "conditions"], &[]);
    for (own, schema) in [(map_owned, map()), (atomic_owned, atomic())] {
        let merged = merged(&parent(&status, &own), &retried, &schema).unwrap();
        let mut types: Vec<_> = merged["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["type"].as_str().unwrap())
            .collect();
        types.sort_unstable();
        assert_eq!(types, ["Ready", "Reconciling", "Synced"]);
    }
}

#[test]
fn status_without_anything_is_left_out_of_the_body() {
    let mut schema = map();
    schema.fields = object(&[("note", Fields::Any)]);
    let status = json!({"note": "x"});
    let parent = parent(&status, &owned(&["note"], &[]));
    let patch = merge(&parent, &desired(&json!({}), vec![]), &schema, MANAGER, &[], NOW).unwrap();
    assert_eq!(patch.body.get("status"), None, "an empty object is refused as null");
}

#[test]
fn undeclared_fields_are_named_and_left_out() {
    // B014.
    let fields = json!({"note": "x", "phase": "Running", "zone": 1});
    let desired = desired(&fields, vec![ready()]);
    let short = StatusSchema { conditions: None, fields: object(&[("note", Fields::Any)]), hash: 1 };
    for (schema, undeclared, written) in [
        (map(), &["phase", "zone"][..], &["conditions", "note", "observedGeneration"][..]),
        (schema(None), &["conditions", "phase", "zone"], &["note", "observedGeneration"]),
        (StatusSchema::any(), &[], &["conditions", "note", "observedGeneration", "phase", "zone"]),
        (short, &["conditions", "phase", "zone"], &["note"]),
    ] {
        let (desired, named) = declared::declared(&desired, &schema);
        assert_eq!(named, undeclared.iter().map(|name| format!("status.{name}")).collect());
        let merged = merged(&parent(&Value::Null, &Value::Null), &desired, &schema).unwrap();
        assert_eq!(merged.as_object().unwrap().keys().collect::<Vec<_>>(), written);
    }
}

#[test]
fn undeclared_fields_are_found_in_objects_lists_and_maps() {
    let item = || object(&[("name", Fields::Any)]);
    let each = Fields::Object { members: [].into(), others: Some(Box::new(item())) };
    let schema = StatusSchema {
        fields: object(&[
            ("obj", object(&[("in", item())])),
            ("list", Fields::List(Box::new(item()))),
            ("map", each),
        ]),
        ..map()
    };
    let given = json!({
        "obj": {"in": {"name": 1, "x": 2}, "y": 3}, "list": [{"name": "a", "z": 1}, {"z": 2}, "odd"],
        "map": {"any": {"name": 1, "w": 2}}, "conditions": 1, "observedGeneration": 1,
    });
    let (left, named) = declared::declared(&desired(&given, vec![]), &schema);
    let expected = json!({
        "obj": {"in": {"name": 1}}, "list": [{"name": "a"}, {}, "odd"], "map": {"any": {"name": 1}},
    });
    assert_eq!(left.fields.map(Value::Object), Some(expected));
    assert_eq!(
        named.into_iter().collect::<Vec<_>>(),
        ["status.list[*].z", "status.map.*.w", "status.obj.in.x", "status.obj.y"]
    );
}

#[test]
fn conditions_carry_what_their_schema_declares() {
    let fields = ["type", "status", "message"].map(|name| (name, Fields::Any));
    let list = Fields::List(Box::new(object(&fields)));
    for (conditions, before) in
        [ConditionList::Map, ConditionList::Atomic].map(|list| (Some(list), json!({"conditions": []})))
    {
        let schema = StatusSchema { conditions, fields: object(&[("conditions", list.clone())]), hash: 1 };
        let desired = desired(&json!({}), vec![ready()]);
        let (_, named) = declared::declared(&desired, &schema);
        assert_eq!(
            named,
            ["status.conditions[*].reason".to_owned()].into(),
            "time and generation are the host's"
        );
        let written = merged(&parent(&before, &Value::Null), &desired, &schema).unwrap();
        assert_eq!(written, json!({"conditions": [{"type": "Ready", "status": "True", "message": "fine"}]}));
        let owned = match conditions {
            Some(ConditionList::Map) => json!({"f:conditions": {r#"k:{"type":"Ready"}"#:
                {".": {}, "f:type": {}, "f:status": {}, "f:message": {}}}}),
            _ => json!({"f:conditions": {}}),
        };
        assert_eq!(merged(&parent(&written, &owned), &desired, &schema), None, "and it settles");
    }
}

#[test]
fn transitions_and_new_generations_are_urgent_and_nothing_else_is() {
    let status = json!({
        "observedGeneration": 3, "note": "x",
        "conditions": [stored("Ready", "True", THEN, 3), stored("Synced", "True", THEN, 3)],
    });
    let both = || vec![ready(), condition("Synced", ConditionStatus::True)];
    let unset = |conditions: &[Condition]| desired(&json!({"note": "x"}), conditions.to_vec());
    let with = |change: fn(&mut Desired)| {
        let mut desired = unset(&both());
        change(&mut desired);
        desired
    };
    for (schema, owned) in [
        (map(), owned(&["observedGeneration", "note"], &["Ready", "Synced"])),
        (atomic(), owned(&["observedGeneration", "note", "conditions"], &[])),
    ] {
        let parent = parent(&status, &owned);
        let is_urgent = |desired: &Desired| {
            merge(&parent, desired, &schema, MANAGER, &["Synced".to_owned()], NOW).unwrap().is_urgent
        };
        for calm in [
            with(|desired| desired.fields = json!({"note": "y"}).as_object().cloned()),
            with(|desired| desired.fields = json!({}).as_object().cloned()),
            with(|desired| desired.conditions[1].message = "other".to_owned()),
            with(|desired| desired.conditions[1].reason = "Other".to_owned()),
        ] {
            assert!(!is_urgent(&calm), "{calm:?}");
        }
        for urgent in [
            with(|desired| desired.conditions[1].status = ConditionStatus::Unknown),
            with(|desired| desired.conditions.push(condition("New", ConditionStatus::False))),
            with(|desired| desired.observed_generation = 4),
            unset(&both()[..1]),
        ] {
            assert!(is_urgent(&urgent), "{urgent:?}");
        }
    }
    // A generation that only conditions can tell.
    let schema = StatusSchema { fields: object(&[("conditions", Fields::Any)]), ..map() };
    let parent = parent(&status, &owned(&["note"], &["Ready", "Synced"]));
    let newer = Desired { observed_generation: 4, ..unset(&both()) };
    assert!(merge(&parent, &newer, &schema, MANAGER, &[], NOW).unwrap().is_urgent);
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

const STATUS: &str = "PATCH /apis/cases.example.com/v1/namespaces/demo/widgets/w1/status?";
const OBJECT: &str = "GET /apis/cases.example.com/v1/namespaces/demo/widgets/w1";

/// The parent as the API server answers a write with it.
fn answer(uid: &str) -> Reply {
    let metadata =
        json!({"name": "w1", "namespace": "demo", "uid": uid, "resourceVersion": "9", "generation": 3});
    Reply::Text(200, json!({"metadata": metadata, "status": {}}).to_string())
}

fn conflict() -> Reply {
    let status = json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "the object has been modified"});
    Reply::Text(409, status.to_string())
}

/// An answer that names fields.
fn invalid(paths: &[&str]) -> Reply {
    let causes: Vec<_> =
        paths.iter().map(|path| json!({"reason": "FieldValueInvalid", "field": path})).collect();
    let status = json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": "Widget \"w1\" is invalid: no",
        "details": {"name": "w1", "causes": causes}});
    Reply::Text(422, status.to_string())
}

/// Writes to an API server that answers as told; what became of it, and the bodies of all writes.
async fn written(
    script: Vec<(&str, Reply)>,
    schema: StatusSchema,
    desired: &Desired,
    refused: Option<&Refusal>,
    rest: Duration,
) -> (Written, Vec<Value>) {
    let (server, client) = Server::start(script);
    let kind = Kind {
        gvk: Gvk::new("cases.example.com/v1", "Widget"),
        plural: "widgets".to_owned(),
        namespaced: true,
        status: Some(schema),
    };
    let writer = Writer {
        client: &client,
        cache: &Cache::default(),
        kind: &kind,
        manager: MANAGER,
        own_types: &[],
        refused,
        rest,
        now: NOW,
    };
    let written = write(writer, &parent(&Value::Null, &Value::Null), desired).await;
    let bodies = server.seen().into_iter().filter(|request| request.starts_with("PATCH"));
    let bodies = bodies.map(|request| serde_json::from_str(&request[request.find('{').unwrap()..]).unwrap());
    (written, bodies.collect())
}

#[tokio::test(start_paused = true)]
async fn conflict_is_answered_by_a_fresh_read_and_another_merge() {
    let theirs = stored("Theirs", "True", THEN, 1);
    let fresh = json!({
        "metadata": {"name": "w1", "namespace": "demo", "uid": "u1", "resourceVersion": "8", "generation": 3},
        "status": {"conditions": [theirs]},
    });
    let script =
        vec![(STATUS, conflict()), (OBJECT, Reply::Text(200, fresh.to_string())), (STATUS, answer("u1"))];
    let start = tokio::time::Instant::now();
    let (done, bodies) =
        written(script, atomic(), &desired(&json!({}), vec![ready()]), None, Duration::ZERO).await;
    assert_eq!((done.result.unwrap(), done.conflicts), (StatusWrite::Written, 1));
    assert!(start.elapsed() >= FIRST_WAIT / 2, "it waits before it tries again");
    let versions: Vec<_> = bodies.iter().map(|body| &body["metadata"]["resourceVersion"]).collect();
    assert_eq!(versions, ["7", "8"]);
    assert_eq!(bodies[1]["status"]["conditions"], json!([theirs, stored("Ready", "True", NOW, 3)]));
}

#[tokio::test(start_paused = true)]
async fn conflicts_without_end_are_left_to_the_queue() {
    let fresh = || {
        let metadata =
            json!({"name": "w1", "namespace": "demo", "uid": "u1", "resourceVersion": "8", "generation": 3});
        Reply::Text(200, json!({"metadata": metadata}).to_string())
    };
    let script = (0..ATTEMPTS).flat_map(|_| [(STATUS, conflict()), (OBJECT, fresh())]).collect();
    let (done, bodies) =
        written(script, atomic(), &desired(&json!({}), vec![ready()]), None, Duration::ZERO).await;
    assert_eq!(done.result.unwrap_err().answer, Answer::VersionConflict);
    assert_eq!((done.conflicts, bodies.len()), (ATTEMPTS, ATTEMPTS as usize));
}

#[tokio::test]
async fn status_of_another_object_of_the_name_is_no_success() {
    let script = vec![(STATUS, answer("u2"))];
    let (done, _) = written(script, map(), &desired(&json!({}), vec![ready()]), None, Duration::ZERO).await;
    assert_eq!(done.result.unwrap_err().answer, Answer::UidMismatch);
}

#[tokio::test]
async fn status_that_is_not_there_is_told_apart_from_an_object_that_is_not() {
    let missing = || {
        let status = json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "widgets \"w1\" not found",
            "details": {"name": "w1", "kind": "widgets"}});
        Reply::Text(404, status.to_string())
    };
    for (object, expected) in [
        (answer("u1"), Answer::KindNotFound),
        (answer("u2"), Answer::UidMismatch),
        (missing(), Answer::UidMismatch),
    ] {
        let script = vec![(STATUS, missing()), (OBJECT, object)];
        let (done, _) =
            written(script, map(), &desired(&json!({}), vec![ready()]), None, Duration::ZERO).await;
        assert_eq!(done.result.unwrap_err().answer, expected);
    }
}

#[tokio::test]
async fn what_is_refused_is_left_out_and_not_asked_for_again() {
    let script = vec![
        (STATUS, invalid(&["status.note", "status.conditions[0].reason"])),
        (STATUS, invalid(&["status.obj.a"])),
        (STATUS, answer("u1")),
    ];
    let given = desired(&json!({"note": "odd", "obj": {"a": 1, "b": 2}, "phase": 1}), vec![ready()]);
    let (done, bodies) = written(script, map(), &given, None, Duration::ZERO).await;
    assert_eq!((done.result.unwrap(), done.refusals), (StatusWrite::Written, 2));
    assert_eq!(bodies[2]["status"], json!({"observedGeneration": 3, "obj": {"b": 2}}));
    let told: Vec<_> = done.shortfalls.iter().map(|one| (&*one.path, one.refusal.as_deref())).collect();
    let no = Some("no");
    assert_eq!(
        told,
        [
            ("status.phase", None),
            ("status.note", no),
            ("status.conditions[*].reason", no),
            ("status.obj.a", no)
        ]
    );

    let refusal = done.refusal;
    let again = written(vec![(STATUS, answer("u1"))], map(), &given, refusal.as_ref(), Duration::ZERO).await;
    assert_eq!((again.0.result.unwrap(), again.0.refusals), (StatusWrite::Written, 0));
    assert_eq!((&again.0.refusal, again.0.shortfalls.len()), (&refusal, 4));
    assert_eq!(again.1, bodies[2..]);

    // Another value, or a schema that was changed, is worth another try.
    let other = desired(&json!({"note": "even", "obj": {"a": 1, "b": 2}}), vec![ready()]);
    for (given, schema) in [(&other, map()), (&given, StatusSchema { hash: 2, ..map() })] {
        let script = vec![(STATUS, answer("u1"))];
        let (done, bodies) = written(script, schema, given, refusal.as_ref(), Duration::ZERO).await;
        assert_eq!(done.refusal, None);
        assert_eq!(bodies[0]["status"]["obj"], json!({"a": 1, "b": 2}));
    }
}

#[tokio::test]
async fn status_that_is_refused_as_a_whole_is_tried_once() {
    let given = desired(&json!({"note": "odd", "obj": {"a": 1, "b": 2, "c": 3, "d": 4}}), vec![]);
    let (note, a, b) = ("status.note", "status.obj.a", "status.obj.b");
    for (script, refusals) in [
        // Nothing that could be left out, or no end of it.
        (vec![(STATUS, invalid(&["status"]))], 1),
        (vec![(STATUS, invalid(&[note])), (STATUS, invalid(&[a])), (STATUS, invalid(&[b]))], 3),
    ] {
        let (done, _) = written(script, map(), &given, None, Duration::ZERO).await;
        assert_eq!((done.result.unwrap(), done.refusals), (StatusWrite::Failed, refusals));
        assert!(!done.shortfalls.is_empty());
        let (again, bodies) = written(vec![], map(), &given, done.refusal.as_ref(), Duration::ZERO).await;
        assert_eq!((again.result.unwrap(), bodies.len()), (StatusWrite::Unchanged, 0));
        assert_eq!(again.shortfalls, done.shortfalls);
    }
}

#[tokio::test]
async fn write_that_may_wait_waits_and_one_that_may_not_does_not() {
    let script = || vec![(STATUS, answer("u1"))];
    let rest = Duration::from_millis(300);
    let calm = Desired { observed_generation: 3, ..desired(&json!({"note": "x"}), vec![]) };
    let schema =
        StatusSchema { fields: object(&[("note", Fields::Any), ("conditions", Fields::Any)]), ..map() };
    let (done, bodies) = written(script(), schema.clone(), &calm, None, rest).await;
    assert_eq!((done.result.unwrap(), bodies.len()), (StatusWrite::Deferred, 0));
    let (done, _) = written(script(), schema.clone(), &calm, None, Duration::ZERO).await;
    assert_eq!(done.result.unwrap(), StatusWrite::Written);
    let urgent = Desired { conditions: vec![ready()], ..calm };
    let (done, _) = written(script(), schema, &urgent, None, rest).await;
    assert_eq!(done.result.unwrap(), StatusWrite::Written);
}

/// Of three conditions of which two are ours, the one that is not in the body is taken off where it stands.
#[test]
fn only_own_conditions_that_go_are_taken_off() {
    let conditions = ["Synced", "Theirs", "Ready"].map(|one| stored(one, "True", NOW, 3));
    let parent = parent(&json!({"conditions": conditions}), &owned(&[], &["Ready", "Synced"]));
    let take_off = |kept: &[&str]| {
        let kept: Vec<_> = kept.iter().map(|one| json!({"type": one})).collect();
        let patch = shared::take_off(&parent, MANAGER, &json!({"status": {"conditions": kept}}));
        let patch: Value = serde_json::from_str(&patch?).unwrap();
        let paths = patch.as_array().unwrap().iter().map(|step| step["path"].as_str().unwrap().to_owned());
        Some(paths.collect::<Vec<_>>())
    };
    let version = "/metadata/resourceVersion".to_owned();
    assert_eq!(take_off(&["Ready"]), Some(vec![version.clone(), "/status/conditions/0".to_owned()]));
    let both = vec![version, "/status/conditions/2".to_owned(), "/status/conditions/0".to_owned()];
    assert_eq!(take_off(&[]), Some(both));
    assert_eq!(take_off(&["Synced", "Ready"]), None);
}
