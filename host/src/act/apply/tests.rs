use super::{change::request, decision, desired::desired, parent::metadata_request, *};
use crate::{
    decide::plan::{Options, Update},
    object::{Gvk, LABEL_SHARD},
    observe::discovery::StatusSchema,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const PARENT_UID: &str = "0c5b7d3e-6f0a-4c39-9a53-3d4b6d2f1e11";

fn object(api_version: &str, kind: &str, text: &Value) -> Object {
    Object::decode(&Gvk::new(api_version, kind), &text.to_string()).unwrap()
}

fn parent(namespace: Option<&str>) -> Object {
    let mut text = json!({"metadata": {"name": "w1", "uid": PARENT_UID}});
    if let Some(namespace) = namespace {
        text["metadata"]["namespace"] = json!(namespace);
    }
    object("cases.example.com/v1", "Widget", &text)
}

fn child(object: &Value) -> Child {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Child {
        key: ObjectKey {
            gvk: Gvk::new(&text(&object["apiVersion"]), &text(&object["kind"])),
            namespace: object["metadata"]["namespace"].as_str().map(Into::into),
            name: text(&object["metadata"]["name"]).into(),
        },
        object: object.as_object().unwrap().clone(),
        options: Options::default(),
    }
}

fn config_map(data: &Value) -> Child {
    child(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "demo"}, "data": data}),
    )
}

fn kind(child: &Child, has_status: bool) -> Kind {
    Kind {
        gvk: child.key.gvk.clone(),
        plural: String::new(),
        namespaced: true,
        status: has_status.then_some(StatusSchema::any()),
    }
}

fn body(child: &Child) -> (Value, String) {
    desired(child, &kind(child, true), "web", &parent(Some("demo")))
}

#[test]
fn desired_is_owned_labelled_and_hashed() {
    let (body, applied) = body(&config_map(&json!({"b": "2", "a": "1"})));
    assert_eq!(
        body,
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "c", "namespace": "demo",
                "labels": {
                    "oarlock.dev/owned-by": "web", "oarlock.dev/parent": PARENT_UID,
                    "oarlock.dev/shard": body["metadata"]["labels"][LABEL_SHARD],
                },
                "annotations": {"oarlock.dev/applied": applied},
                "ownerReferences": [{
                    "apiVersion": "cases.example.com/v1", "kind": "Widget", "name": "w1", "uid": PARENT_UID,
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "data": {"a": "1", "b": "2"},
        })
    );
    // Whoever changes how this is made has every object of every cluster written anew: then it is `v2:`.
    assert_eq!(applied, "v1:d651d55d2ed7f52d09c60b0b49eb555f");
}

#[test]
fn hash_follows_the_content() {
    let of = |data: Value| body(&config_map(&data)).1;
    let in_order: Child = config_map(&serde_json::from_str(r#"{"a": "1", "b": "2"}"#).unwrap());
    let reversed: Child = config_map(&serde_json::from_str(r#"{"b": "2", "a": "1"}"#).unwrap());
    assert_eq!(
        body(&in_order).1,
        body(&reversed).1,
        "members are sorted, whatever serde_json's features are"
    );
    assert_ne!(of(json!({"a": "1"})), of(json!({"a": "2"})));
    assert_ne!(of(json!({})), of(json!({"a": ""})));
}

#[test]
fn shard_is_two_digits_of_the_uid() {
    let shard = |uid: &str| {
        let mut parent = parent(Some("demo"));
        parent.uid = uid.into();
        let child = config_map(&json!({}));
        let (body, _) = desired(&child, &kind(&child, true), "web", &parent);
        body["metadata"]["labels"][LABEL_SHARD].as_str().unwrap().to_owned()
    };
    // printf a | sha256sum | cut -c1-8, as a number, modulo 100
    assert_eq!(shard("a"), format!("{:02}", 0xca97_8112_u32 % 100));
    assert!((0..500).all(|uid| shard(&uid.to_string()).len() == 2));
}

#[test]
fn owner_reference_stands_where_the_garbage_collector_follows_it() {
    let owners = |parent: &Object, object: &Value| {
        let child = child(object);
        let (body, _) = desired(&child, &kind(&child, true), "web", parent);
        body["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len)
    };
    let in_demo =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "demo"}});
    let cluster = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c"}});
    assert_eq!(owners(&parent(Some("demo")), &in_demo), 1);
    assert_eq!(owners(&parent(Some("other")), &in_demo), 0);
    assert_eq!(owners(&parent(Some("demo")), &cluster), 0);
    assert_eq!(owners(&parent(None), &in_demo), 1);
    assert_eq!(owners(&parent(None), &cluster), 1);

    // The parent once, others beside it.
    let mut with_owners = in_demo;
    with_owners["metadata"]["ownerReferences"] = json!([{"uid": PARENT_UID}, {"uid": "other"}]);
    assert_eq!(owners(&parent(Some("demo")), &with_owners), 2);
}

#[test]
fn what_an_apply_does_not_take_is_left_out() {
    let with_status = |kind: &str| {
        child(
            &json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "c", "namespace": "demo"}, "status": {"a": 1}}),
        )
    };
    let of =
        |child: &Child, has_status| desired(child, &kind(child, has_status), "web", &parent(Some("demo"))).0;
    assert_eq!(of(&with_status("Service"), true).get("status"), None);
    assert_eq!(of(&with_status("Odd"), false)["status"], json!({"a": 1}));

    let secret = child(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c", "namespace": "demo"},
        "data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "other", "c": "ä"},
    }));
    let secret = of(&secret, false);
    assert_eq!(secret.get("stringData"), None);
    assert_eq!(secret["data"], json!({"a": "YQ==", "b": "b3RoZXI=", "c": "w6Q="}));
}

/// A live child as it was applied, with changes.
fn live(change: impl Fn(&mut Value)) -> (Child, Object) {
    let child = config_map(&json!({"a": "1"}));
    let mut text = body(&child).0;
    text["metadata"]["uid"] = json!("child");
    text["metadata"]["managedFields"] = json!([{
        "manager": "oarlock/web",
        "fieldsV1": {
            "f:metadata": {
                "f:labels": {
                    "f:oarlock.dev/owned-by": {}, "f:oarlock.dev/parent": {}, "f:oarlock.dev/shard": {},
                },
                "f:annotations": {"f:oarlock.dev/applied": {}},
                "f:ownerReferences": {format!(r#"k:{{"uid":"{PARENT_UID}"}}"#): {}},
            },
            "f:data": {"f:a": {}},
        },
    }]);
    change(&mut text);
    let live = object("v1", "ConfigMap", &text);
    (child, live)
}

fn decided(options: Options, change: impl Fn(&mut Value)) -> Decision {
    let (mut child, live) = live(change);
    child.options = options;
    match decision::of(&child, &kind(&child, true), Some(&live), "web", &parent(Some("demo"))) {
        // What is applied has tests of its own.
        Decision::Apply(_) => Decision::Apply(Value::Null),
        decision => decision,
    }
}

/// What somebody does to a live child.
type Change<'a> = &'a dyn Fn(&mut Value);

const PLAIN: Options = Options { adopt: false, update: Update::Apply, wave: 0, fields: false };
const ADOPT: Options = Options { adopt: true, ..PLAIN };
const ON_DELETE: Options = Options { update: Update::OnDelete, ..PLAIN };

fn owner(uid: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": uid, "controller": true}])
}

#[test]
fn nothing_is_done_when_it_holds_what_was_applied() {
    assert_eq!(decided(PLAIN, |_| {}), Decision::Nothing);
    assert_eq!(decided(ADOPT, |_| {}), Decision::Nothing);
    // Fields of others cost nothing.
    assert_eq!(decided(PLAIN, |live| live["data"]["theirs"] = json!("x")), Decision::Nothing);
}

#[test]
fn child_is_applied_when_the_plan_or_somebody_else_changed_it() {
    let changes: [&dyn Fn(&mut Value); 5] = [
        &|live| live["metadata"]["annotations"]["oarlock.dev/applied"] = json!("v1:old"),
        &|live| live["metadata"]["annotations"] = json!({}),
        &|live| {
            drop(live["metadata"]["managedFields"][0]["fieldsV1"].as_object_mut().unwrap().remove("f:data"));
        },
        &|live| live["metadata"]["managedFields"] = json!([]),
        // F12: the label was taken off, so it was found by looking, not in the mirror.
        &|live| {
            live["metadata"]["labels"] = json!({});
            live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"] =
                json!({"f:oarlock.dev/shard": {}});
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert_eq!(decided(PLAIN, change), Decision::Apply(Value::Null), "change {index}");
    }
    let (child, _) = live(|_| {});
    let absent = decision::of(&child, &kind(&child, true), None, "web", &parent(Some("demo")));
    assert_eq!(absent, Decision::Apply(body(&child).0));
}

#[test]
fn child_that_is_not_ours_is_refused_unless_it_is_adopted() {
    const REMEDY: &str = r#"; set oarlock.dev/adopt: "true" on the planned child to take it over"#;
    let unowned = |live: &mut Value| {
        live["metadata"] = json!({"name": "c", "namespace": "demo", "uid": "child"});
    };
    // B031, variant b.
    assert_eq!(decided(PLAIN, unowned), Decision::Refuse(format!("has no owner{REMEDY}")));
    assert_eq!(decided(ADOPT, unowned), Decision::Apply(Value::Null));
    // Labels alone prove nothing; with what we own of it they do, when only the owner reference was taken off.
    let labels_only = |live: &mut Value| {
        live["metadata"]["ownerReferences"] = json!([]);
        live["metadata"]["managedFields"] = json!([]);
    };
    assert_eq!(decided(PLAIN, labels_only), Decision::Refuse(format!("has no owner{REMEDY}")));
    let reference_lost = |live: &mut Value| {
        live["metadata"]["ownerReferences"] = json!([]);
        live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]
            .as_object_mut()
            .unwrap()
            .remove("f:ownerReferences");
    };
    assert_eq!(decided(PLAIN, reference_lost), Decision::Apply(Value::Null));
    // B031: another parent's stays its own, and an object has one controller.
    let of_another = |live: &mut Value| live["metadata"]["ownerReferences"] = owner("another");
    for options in [PLAIN, ADOPT] {
        assert_eq!(decided(options, of_another), Decision::Refuse("belongs to Deployment web".to_owned()));
    }
    // The same parent's, by another plugin.
    let of_a_peer = |live: &mut Value| {
        live["metadata"]["labels"]["oarlock.dev/owned-by"] = json!("cache");
        live["metadata"]["annotations"]["oarlock.dev/applied"] = json!("v1:the peer's");
        live["metadata"]["managedFields"][0]["manager"] = json!("oarlock/cache");
    };
    assert_eq!(decided(PLAIN, of_a_peer), Decision::Refuse(format!("belongs to plugin cache{REMEDY}")));
    assert_eq!(decided(ADOPT, of_a_peer), Decision::Apply(Value::Null));
    // The label alone says nothing either.
    let mislabelled = |live: &mut Value| {
        live["metadata"]["labels"]["oarlock.dev/owned-by"] = json!("cache");
        live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"] =
            json!({"f:oarlock.dev/parent": {}, "f:oarlock.dev/shard": {}});
    };
    assert_eq!(decided(PLAIN, mislabelled), Decision::Apply(Value::Null));
}

#[test]
fn child_that_is_being_deleted_is_awaited() {
    let terminating =
        |live: &mut Value| live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(decided(PLAIN, terminating), Decision::Await);
}

#[test]
fn child_that_changes_on_delete_only_keeps_its_content_and_what_the_host_adds() {
    let changes: [(Change<'_>, Decision); 5] = [
        (&|live| live["metadata"]["annotations"]["oarlock.dev/applied"] = json!("v1:old"), Decision::Nothing),
        (
            &|live| {
                drop(
                    live["metadata"]["managedFields"][0]["fieldsV1"]
                        .as_object_mut()
                        .unwrap()
                        .remove("f:data"),
                );
            },
            Decision::Nothing,
        ),
        (
            &|live| {
                live["metadata"]["labels"] = json!({});
                live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"] =
                    json!({"f:oarlock.dev/shard": {}});
            },
            Decision::Restore,
        ),
        (
            &|live| {
                live["metadata"]["ownerReferences"] = json!([]);
                live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:ownerReferences"] =
                    json!({r#"k:{"uid":"other"}"#: {}});
            },
            Decision::Restore,
        ),
        (&|live| live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"), Decision::Await),
    ];
    for (index, (change, expected)) in changes.into_iter().enumerate() {
        assert_eq!(decided(ON_DELETE, change), expected, "change {index}");
    }
}

#[test]
fn restored_child_has_its_own_content_and_what_the_host_adds() {
    let (child, _) = live(|_| {});
    let part =
        json!({"metadata": {"annotations": {"oarlock.dev/applied": "v1:old", "a": "b"}}, "data": {"a": "0"}});
    let restored = desired::restored(&child, part, &kind(&child, true), "web", &parent(Some("demo")));
    let as_planned = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "demo", "annotations": {"a": "b"}}, "data": {"a": "0"},
    });
    assert_eq!(restored, body(&self::child(&as_planned)).0);
}

#[test]
fn request_carries_the_uid_it_was_decided_on() {
    let (child, live) = live(|_| {});
    let (body, _) = body(&child);
    assert_eq!(request(body.clone(), Some(&live), "oarlock/web")["metadata"]["uid"], "child");
    assert_eq!(request(body.clone(), None, "oarlock/web"), body);
}

#[test]
fn metadata_of_the_parent_is_applied_when_it_is_not_just_what_is_planned() {
    let strings = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let plan = |labels: &[(&str, &str)], annotations: &[(&str, &str)]| Plan {
        children: Vec::new(),
        status: Map::new(),
        conditions: Vec::new(),
        labels: strings(labels),
        annotations: strings(annotations),
        events: Vec::new(),
        requeue_after: None,
    };
    let parent = |owned: Value| {
        object(
            "v1",
            "Widget",
            &json!({
                "metadata": {
                    "name": "w1", "namespace": "demo", "uid": "u1", "labels": {"a": "1", "theirs": "x"},
                    "annotations": {"b": "2"},
                    "managedFields": [
                        {"manager": "oarlock/web", "fieldsV1": {"f:metadata": owned}},
                        {"manager": "oarlock/web", "fieldsV1": {"f:metadata": {"f:finalizers": {r#"v:"x""#: {}}}}},
                        {"manager": "oarlock/web", "subresource": "status", "fieldsV1": {"f:status": {"f:labels": {}}}},
                    ],
                },
            }),
        )
    };
    let ours = json!({"f:labels": {"f:a": {}}, "f:annotations": {"f:b": {}}});
    let request = |owned: &Value, plan: &Plan| {
        metadata_request(&parent(owned.clone()), plan, "oarlock/web").map(|mut body| body["metadata"].take())
    };
    let base = |rest: Value| {
        let mut metadata = json!({"name": "w1", "namespace": "demo", "uid": "u1"});
        metadata.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        Some(metadata)
    };
    assert_eq!(request(&json!({}), &plan(&[], &[])), None);
    assert_eq!(request(&ours, &plan(&[("a", "1")], &[("b", "2")])), None);
    assert_eq!(
        request(&ours, &plan(&[("a", "9")], &[("b", "2")])),
        base(json!({"labels": {"a": "9"}, "annotations": {"b": "2"}}))
    );
    // No longer planned.
    assert_eq!(request(&ours, &plan(&[("a", "1")], &[])), base(json!({"labels": {"a": "1"}})));
    assert_eq!(request(&ours, &plan(&[], &[])), base(json!({})));
    // There, but not ours yet.
    assert_eq!(request(&json!({}), &plan(&[("theirs", "x")], &[])), base(json!({"labels": {"theirs": "x"}})));
}
