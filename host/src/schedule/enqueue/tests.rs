mod property;

use super::*;
use crate::{
    object::ContentHash,
    observe::{
        client::Scope,
        reads::{Memo, Planned, Read},
    },
};
use serde_json::{Value, json};
use std::time::Instant;

fn watch(api_version: &str, kind: &str) -> WatchKey {
    WatchKey { gvk: Gvk::new(api_version, kind), scope: Scope::default() }
}

fn website() -> WatchKey {
    watch("demo.example.com/v1", "Website")
}

fn deployments() -> WatchKey {
    watch("apps/v1", "Deployment")
}

/// `website` and `labeller` reconcile Websites, `fleet` cluster-scoped Fleets; the first and the last have
/// Deployments as children.
fn subscriptions() -> Subscriptions {
    let fleet = watch("demo.example.com/v1", "Fleet");
    Subscriptions {
        fields: BTreeMap::new(),
        parents: BTreeMap::from([
            (website(), vec!["website".into(), "labeller".into()]),
            (fleet.clone(), vec!["fleet".into()]),
        ]),
        children: BTreeMap::from([(
            deployments(),
            vec![("website".into(), website(), true), ("fleet".into(), fleet, false)],
        )]),
    }
}

fn object(watch: &WatchKey, fields: &[(&str, Value)]) -> Arc<Object> {
    let mut text = json!({"metadata": {"name": "o", "namespace": "demo", "uid": "u"}});
    for (path, value) in fields {
        match path.strip_prefix("metadata.") {
            Some(field) => text["metadata"][field] = value.clone(),
            None => text[*path] = value.clone(),
        }
    }
    Arc::new(Object::decode(&watch.gvk, &text.to_string()).unwrap())
}

fn child(plugin: &str, owner: &[(&str, &str, &str)]) -> Arc<Object> {
    let owners: Vec<_> = owner
        .iter()
        .map(|(api_version, kind, name)| {
            json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": "p", "controller": true})
        })
        .collect();
    let labels = if plugin.is_empty() { json!({}) } else { json!({"oarlock.dev/owned-by": plugin}) };
    object(&deployments(), &[("metadata.labels", labels), ("metadata.ownerReferences", json!(owners))])
}

fn change(watch: &WatchKey, before: Option<Arc<Object>>, after: Option<Arc<Object>>) -> Change {
    Change { watch: watch.clone(), before, after, is_own: false, is_first_seen: false }
}

fn check(watch: &WatchKey, before: Option<Arc<Object>>, after: Option<Arc<Object>>, memos: &Memos) -> String {
    texts(&change(watch, before, after), memos)
}

fn texts(change: &Change, memos: &Memos) -> String {
    let requests = requests(change, &subscriptions(), memos);
    let texts = requests
        .iter()
        .map(|(parent, trigger)| format!("{}: {} {}", parent.plugin, parent.parent, trigger.as_str()));
    texts.collect::<Vec<_>>().join(", ")
}

#[test]
fn change_of_a_parent_is_told_apart_by_what_changed() {
    let with = |field, value| Some(object(&website(), &[(field, value)]));
    let plain = || with("spec", json!(1));
    let parent = "website: Website demo/o parent, labeller: Website demo/o parent";
    let status = "website: Website demo/o parent_status, labeller: Website demo/o parent_status";
    let field =
        |manager: &str| json!([{"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {}}}]);
    for (name, before, after, expected) in [
        ("it appeared", None, plain(), parent),
        ("it vanished", plain(), None, parent),
        ("its spec changed", plain(), with("spec", json!(2)), parent),
        ("a label changed", plain(), with("metadata.labels", json!({"a": "b"})), parent),
        ("it is another of the same name", plain(), with("metadata.uid", json!("v")), parent),
        (
            "it is being deleted",
            plain(),
            with("metadata.deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            parent,
        ),
        ("only its status changed", with("status", json!(1)), with("status", json!(2)), status),
        (
            "somebody took a field of ours",
            with("metadata.managedFields", field("oarlock/website")),
            with("metadata.managedFields", json!([])),
            status,
        ),
        (
            "others changed hands",
            with("metadata.managedFields", field("kubectl")),
            with("metadata.managedFields", field("helm")),
            "",
        ),
        ("a version without a difference", plain(), with("spec", json!(1)), ""),
        ("nothing", None, None, ""),
    ] {
        assert_eq!(check(&website(), before, after, &Memos::default()), expected, "{name}");
    }
}

/// Own status writes wake nobody by themselves, but for a guest that looks at its status.
#[test]
fn what_a_first_list_brings_is_no_edit() {
    let first = |watch: &WatchKey, object| {
        texts(&Change { is_first_seen: true, ..change(watch, None, Some(object)) }, &Memos::default())
    };
    let parent = first(&website(), object(&website(), &[]));
    assert_eq!(parent, "website: Website demo/o listed, labeller: Website demo/o listed");
    let child = child("website", &[("demo.example.com/v1", "Website", "w")]);
    assert_eq!(first(&deployments(), child), "website: Website demo/w listed");
}

#[test]
fn own_write_of_a_status_goes_to_those_who_read_it() {
    let memos = Memos::default();
    let parent = object(&website(), &[]).key.clone();
    let memo = |read| Memo {
        digest: "d".into(),
        parent: ("uid".into(), ContentHash::default()),
        reads: [(read, ContentHash::default())].into(),
        answer: Ok(Planned::default()),
        called: Instant::now(),
    };
    for (plugin, read) in [("website", Read::PreviousStatus), ("labeller", Read::Children)] {
        let _ = memos.record(&ParentRef { plugin: plugin.into(), parent: parent.clone() }, memo(read));
    }
    let with = |field, value: u32| Some(object(&website(), &[(field, json!(value))]));
    let own = |field| Change { is_own: true, ..change(&website(), with(field, 1), with(field, 2)) };
    assert_eq!(texts(&own("status"), &memos), "website: Website demo/o parent_status");
    assert_eq!(texts(&own("status"), &Memos::default()), "");
    // The answer to a write shows an edit before the watch does.
    let both = "website: Website demo/o parent, labeller: Website demo/o parent";
    assert_eq!(texts(&own("spec"), &memos), both);
}

#[test]
fn change_of_a_child_goes_to_the_parent_that_controls_it() {
    let a = || child("website", &[("demo.example.com/v1", "Website", "a")]);
    let b = || child("website", &[("demo.example.com/v1", "Website", "b")]);
    let old_version = child("website", &[("demo.example.com/v1beta1", "Website", "a")]);
    let of_fleet = child("fleet", &[("demo.example.com/v1", "Fleet", "f")]);
    let unlabelled = child("", &[("demo.example.com/v1", "Website", "a")]);
    let other_plugin = child("other", &[("demo.example.com/v1", "Website", "a")]);
    let other_kind = child("website", &[("apps/v1", "Website", "a")]);
    let unowned = child("website", &[]);
    let to_a = "website: Website demo/a child";
    for (name, before, after, expected) in [
        ("it appeared", None, Some(a()), to_a),
        ("it vanished", Some(a()), None, to_a),
        (
            "it changed hands",
            Some(a()),
            Some(b()),
            "website: Website demo/a child, website: Website demo/b child",
        ),
        ("it lost its owner", Some(a()), Some(unowned.clone()), to_a),
        ("it lost its label", Some(a()), Some(unlabelled.clone()), to_a),
        ("its owner is of another served version", Some(a()), Some(old_version), to_a),
        ("its parent is cluster-scoped", None, Some(of_fleet), "fleet: Fleet f child"),
        ("it is labelled and has no owner", None, Some(unowned), ""),
        ("it has an owner and no label", None, Some(unlabelled), ""),
        ("it is another plugin's", None, Some(other_plugin), ""),
        ("its owner is of another kind", None, Some(other_kind), ""),
        ("nothing changed", Some(a()), Some(a()), ""),
    ] {
        assert_eq!(check(&deployments(), before, after, &Memos::default()), expected, "{name}");
    }
    let mut marked = (*a()).clone();
    marked.deleted = Some("".into());
    let marked = Some(Arc::new(marked));
    assert_eq!(check(&deployments(), Some(a()), marked, &Memos::default()), to_a, "the host deleted it");
}

#[test]
fn change_of_an_object_that_was_read_goes_to_its_readers() {
    let config_maps = watch("v1", "ConfigMap");
    let memos = Memos::default();
    let reader = ParentRef {
        plugin: "website".into(),
        parent: ObjectKey { gvk: website().gvk, namespace: Some("demo".into()), name: "w".into() },
    };
    let read = Read::Get { watch: config_maps.clone(), namespace: Some("demo".into()), name: "o".into() };
    let memo = Memo {
        digest: "d".into(),
        parent: ("uid".into(), ContentHash::default()),
        reads: [(read, ContentHash::default())].into(),
        answer: Ok(Planned::default()),
        called: Instant::now(),
    };
    let _ = memos.record(&reader, memo);
    let of = |status: u32| Some(object(&config_maps, &[("status", json!(status))]));
    let to_reader = "website: Website demo/w read";
    for (before, after, expected) in
        [(None, of(1), to_reader), (of(1), of(2), to_reader), (of(1), None, to_reader), (of(1), of(1), "")]
    {
        assert_eq!(check(&config_maps, before, after, &memos), expected);
    }
    assert_eq!(check(&watch("v1", "Secret"), None, of(1), &memos), "");
}
