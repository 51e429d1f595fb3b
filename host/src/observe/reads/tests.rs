use super::*;
use crate::{
    decide::{Unplanned, plan::Failure},
    manifest::Selection,
    object::ResourceVersion,
    observe::{
        cache::{Cache, Change},
        client::Scope,
    },
};
use proptest::prelude::*;
use std::{collections::BTreeSet, time::Instant};

fn watch(kind: &str) -> WatchKey {
    let label_selector = (kind == "Deployment").then(|| LABEL_OWNED_BY.to_owned());
    WatchKey { gvk: gvk(kind), scope: Scope { namespace: None, label_selector } }
}

fn gvk(kind: &str) -> Gvk {
    match kind {
        "Deployment" => Gvk::new("apps/v1", kind),
        "Website" => Gvk::new("demo.example.com/v1", kind),
        _ => Gvk::new("v1", kind),
    }
}

/// `namespace/name`, or a name alone; labels as `a=b c=d`.
fn object(kind: &str, path: &str, labels: &str, content: u32) -> Object {
    let (namespace, name) =
        path.split_once('/').map_or((None, path), |(namespace, name)| (Some(namespace), name));
    let labels: BTreeMap<&str, &str> =
        labels.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    let mut text = serde_json::json!({
        "metadata": {"name": name, "uid": path, "resourceVersion": content.to_string(), "labels": labels},
        "spec": content / 2,
        "status": content,
    });
    if let Some(namespace) = namespace {
        text["metadata"]["namespace"] = namespace.into();
    }
    if let Some(uid) = labels.get("oarlock.dev/parent") {
        text["metadata"]["ownerReferences"] = serde_json::json!([
            {"apiVersion": "demo.example.com/v1", "kind": "Website", "name": "w", "uid": uid, "controller": true}
        ]);
    }
    Object::decode(&gvk(kind), &text.to_string()).unwrap()
}

const WORLD: [(&str, &str, &str); 7] = [
    ("ConfigMap", "demo/a", "app=x"),
    ("ConfigMap", "demo/b", "app=y"),
    ("ConfigMap", "other/a", "app=x"),
    ("Node", "n1", ""),
    ("Deployment", "demo/ours", "oarlock.dev/owned-by=website oarlock.dev/parent=demo/w"),
    ("Deployment", "demo/not-this-plugin", "oarlock.dev/owned-by=other oarlock.dev/parent=demo/w"),
    ("Deployment", "demo/not-this-parent", "oarlock.dev/owned-by=website oarlock.dev/parent=demo/v"),
];

fn world() -> Cache {
    let cache = Cache::default();
    for kind in ["ConfigMap", "Node", "Deployment"] {
        let objects = WORLD.iter().filter(|(of, ..)| *of == kind);
        let objects = objects.map(|(kind, path, labels)| object(kind, path, labels, 2)).collect();
        cache.replace(&watch(kind), objects, &ResourceVersion::new("2"));
    }
    cache
}

/// May read ConfigMaps and Nodes (which stand for any cluster-scoped kind) and write Deployments.
fn view(cache: &Cache, parent: &str) -> View {
    let json = r#"{"name": "any", "version": "1", "parent": {"apiVersion": "demo.example.com/v1", "kind": "Website"}}"#;
    let read = |kind| Selection { gvk: gvk(kind), label_selector: None, namespace: None };
    let manifest = Manifest {
        children: BTreeSet::from([gvk("Deployment")]),
        reads: vec![read("ConfigMap"), read("Node")],
        ..Manifest::parse(json).unwrap()
    };
    let source = |kind, namespaced| (gvk(kind), (watch(kind), namespaced));
    View::new(
        cache.snapshot(),
        Arc::new(object("Website", parent, "", 2)),
        Arc::new(manifest),
        Arc::new(Sources {
            fields: BTreeMap::new(),
            plugin: "website".into(),
            children: BTreeMap::from([source("Deployment", true)]),
            reads: BTreeMap::from([source("ConfigMap", true), source("Node", false)]),
        }),
        "oarlock-system".into(),
        "2026-01-01T00:00:00Z".into(),
        (4, 4_000),
    )
}

/// The keys of what was read, or the error's text.
fn keys(texts: Result<Vec<String>, Error>) -> Vec<String> {
    match texts {
        Err(error) => vec![error.to_string()],
        Ok(texts) => texts
            .iter()
            .map(|text| {
                let object: serde_json::Value = serde_json::from_str(text).unwrap();
                assert!(object["status"].is_number(), "{text}");
                let metadata = &object["metadata"];
                let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/"));
                format!("{}{}", namespace.unwrap_or_default(), metadata["name"].as_str().unwrap())
            })
            .collect(),
    }
}

const ELSEWHERE: &str = "ConfigMap (v1) is outside of the parent's namespace demo; the operator can allow it, by the \
                         namespaces in spec.permissions.read of the Plugin";

#[test]
fn get_looks_where_the_plugin_may() {
    let cache = world();
    for (parent, kind, namespace, name, expected) in [
        ("demo/w", "ConfigMap", None, "a", "demo/a"),
        ("demo/w", "ConfigMap", Some("demo"), "a", "demo/a"),
        ("demo/w", "ConfigMap", None, "c", ""),
        ("demo/w", "ConfigMap", Some("other"), "a", ELSEWHERE),
        ("demo/w", "Node", None, "n1", "n1"),
        ("demo/w", "Node", Some("demo"), "n1", "n1"),
        ("demo/w", "Pod", None, "a", "the manifest does not declare Pod (v1) under reads"),
        (
            "demo/w",
            "Deployment",
            None,
            "ours",
            "the manifest does not declare Deployment (apps/v1) under reads",
        ),
        ("w", "ConfigMap", Some("other"), "a", "other/a"),
        (
            "w",
            "ConfigMap",
            None,
            "a",
            "a read of one ConfigMap (v1) names its namespace, as the parent has none",
        ),
        ("w", "Node", None, "n1", "n1"),
    ] {
        let got =
            view(&cache, parent).get(&gvk(kind), namespace, name).map(|found| found.into_iter().collect());
        assert_eq!(keys(got).join(","), expected, "{parent} gets {kind} {namespace:?} {name}");
    }
}

#[test]
fn list_shows_what_the_plugin_may_see_in_order() {
    let cache = world();
    for (parent, kind, namespace, selector, expected) in [
        ("demo/w", "ConfigMap", None, None, "demo/a,demo/b"),
        ("demo/w", "ConfigMap", None, Some("app!=x"), "demo/b"),
        ("demo/w", "ConfigMap", None, Some("app=z"), ""),
        ("demo/w", "ConfigMap", Some("other"), None, ELSEWHERE),
        ("demo/w", "ConfigMap", None, Some("app in"), r#"label selector "app in" is malformed at """#),
        ("w", "ConfigMap", None, None, "demo/a,demo/b,other/a"),
        ("w", "ConfigMap", None, Some("app=x"), "demo/a,other/a"),
        ("w", "Node", Some("demo"), Some(""), "n1"),
    ] {
        let listed = view(&cache, parent).list(&gvk(kind), namespace, selector);
        assert_eq!(keys(listed).join(","), expected, "{parent} lists {kind} {namespace:?} {selector:?}");
    }
}

#[test]
fn view_records_each_question_once_however_it_is_written() {
    let mut view = view(&world(), "demo/w");
    for selector in ["app in (x)", "app=x", "app==x,app"] {
        view.list(&gvk("ConfigMap"), None, Some(selector)).unwrap();
    }
    view.list(&gvk("ConfigMap"), Some("demo"), Some("app=x")).unwrap();
    view.get(&gvk("ConfigMap"), None, "none").unwrap();
    view.get(&gvk("ConfigMap"), Some("demo"), "none").unwrap();
    view.get(&gvk("Pod"), None, "none").unwrap_err();
    view.previous_status();
    view.now();
    view.now();
    assert_eq!(view.into_recorded().len(), 5, "two selectors, one get, status, clock");
}

#[test]
fn view_stops_answering_at_its_limits() {
    let cache = world();
    let mut many = view(&cache, "demo/w");
    for name in ["a", "b", "c", "d", "a"] {
        many.get(&gvk("ConfigMap"), None, name).unwrap();
    }
    let exhausted = Err(Error::Exhausted { what: "different reads", count: 5, limit: 4 });
    assert_eq!(many.get(&gvk("ConfigMap"), None, "e"), exhausted);
    assert_eq!(many.into_recorded().len(), 4);

    let mut often = view(&cache, "demo/w");
    let calls = (0..100).take_while(|_| often.get(&gvk("ConfigMap"), None, "none").is_ok()).count();
    assert!((30..60).contains(&calls), "{calls}");
    let mut long = view(&cache, "demo/w");
    let told = long.get(&gvk("ConfigMap"), None, &"x".repeat(5_000)).unwrap_err().to_string();
    assert!(
        told.starts_with("the call has come to 50") && told.ends_with("at most 4000 are allowed"),
        "{told}"
    );
    // What was refused for its size is a read all the same: a smaller answer is a reason to call again.
    let mut large = view(&cache, "demo/w");
    large.limits.1 = 200;
    large.list(&gvk("ConfigMap"), None, None).unwrap_err();
    assert_eq!(large.into_recorded().len(), 1);
}

#[test]
fn children_are_those_of_this_plugin_and_this_parent() {
    let cache = world();
    let mut unowned = object("Deployment", "demo/forged", WORLD[4].2, 2);
    unowned.owners = Box::default();
    cache.applied(&watch("Deployment"), unowned);
    let children = view(&cache, "demo/w").children().unwrap();
    assert_eq!(
        children.iter().map(|child| child.key.to_string()).collect::<Vec<_>>(),
        ["Deployment demo/ours"]
    );
}

fn parent_ref(parent: &str) -> ParentRef {
    let key = ObjectKey { gvk: gvk("Website"), namespace: Some("demo".into()), name: parent.into() };
    ParentRef { plugin: "website".into(), parent: key }
}

fn memo(view: View) -> Memo {
    Memo {
        digest: "d1".into(),
        parent: (Arc::clone(&view.parent.uid), view.parent.body_hash),
        reads: view.into_recorded().into(),
        answer: Ok(Planned::default()),
        called: Instant::now(),
    }
}

/// The same, of a call that failed and may be tried again.
fn failed(view: View) -> Memo {
    let failure = Failure { transient: true, reason: String::new(), message: "not yet".to_owned() };
    Memo { answer: Err(Arc::new(Unplanned::Failure(failure))), ..memo(view) }
}

/// `valid`, or why the guest is called.
fn check(memos: &Memos, parent: &str, digest: &str, view: &View) -> String {
    match memos.check(&parent_ref(parent), digest, view) {
        Check::Valid(..) => "valid".to_owned(),
        Check::Call { why, .. } => why.to_string(),
    }
}

#[test]
fn memo_is_valid_until_something_that_was_read_changes() {
    type Read = fn(&mut View);
    type Happens = fn(&Cache, &mut View);
    let get: Read = |view| drop(view.get(&gvk("ConfigMap"), None, "a").unwrap());
    let get_none: Read = |view| drop(view.get(&gvk("ConfigMap"), None, "new").unwrap());
    let list: Read = |view| drop(view.list(&gvk("ConfigMap"), None, Some("app=x")).unwrap());
    let children: Read = |view| drop(view.children().unwrap());
    let status: Read = |view| drop(view.previous_status());
    let nothing: Read = |_| {};

    let calm: Happens = |_, _| {};
    let a_changes: Happens =
        |cache, _| drop(cache.applied(&watch("ConfigMap"), object("ConfigMap", "demo/a", "app=x", 3)));
    let b_changes: Happens =
        |cache, _| drop(cache.applied(&watch("ConfigMap"), object("ConfigMap", "demo/b", "app=y", 4)));
    let b_joins: Happens =
        |cache, _| drop(cache.applied(&watch("ConfigMap"), object("ConfigMap", "demo/b", "app=x", 4)));
    let appears: Happens =
        |cache, _| drop(cache.applied(&watch("ConfigMap"), object("ConfigMap", "demo/new", "", 4)));
    let elsewhere: Happens =
        |cache, _| drop(cache.applied(&watch("ConfigMap"), object("ConfigMap", "other/a", "app=x", 4)));
    let child_goes: Happens = |cache, _| {
        cache.deleting(&object("Deployment", "demo/ours", "", 0).key, "demo/ours");
    };
    let status_changes: Happens = |_, view| view.parent = Arc::new(object("Website", "demo/w", "", 3));
    let parent_changes: Happens = |_, view| view.parent = Arc::new(object("Website", "demo/w", "", 4));
    let parent_is_another: Happens = |_, view| {
        let mut parent = (*view.parent).clone();
        parent.uid = "another".into();
        view.parent = Arc::new(parent);
    };
    for (index, (read, happens, expected)) in [
        (nothing, calm, "valid"),
        (nothing, a_changes, "valid"),
        (nothing, status_changes, "valid"),
        (nothing, parent_changes, "the object changed"),
        (nothing, parent_is_another, "the object changed"),
        (get, calm, "valid"),
        (get, a_changes, "changed: get ConfigMap demo/a"),
        (get, b_changes, "valid"),
        (get, elsewhere, "valid"),
        (get_none, a_changes, "valid"),
        (get_none, appears, "changed: get ConfigMap demo/new"),
        (list, calm, "valid"),
        (list, a_changes, "changed: list ConfigMap demo app=x"),
        (list, b_changes, "valid"),
        (list, b_joins, "changed: list ConfigMap demo app=x"),
        (list, appears, "valid"),
        (list, elsewhere, "valid"),
        (children, calm, "valid"),
        (children, status_changes, "valid"),
        (children, child_goes, "changed: children"),
        (status, calm, "valid"),
        (status, status_changes, "changed: previous status"),
    ]
    .into_iter()
    .enumerate()
    {
        let (cache, memos, parent) = (world(), Memos::default(), parent_ref("w"));
        let mut first = view(&cache, "demo/w");
        read(&mut first);
        let subscribed = memos.record(&parent, memo(first));
        assert!(!subscribed.is_outdated(&cache.snapshot()), "row {index}");
        // Twice before, so that what is kept of the first look is looked at too.
        for _ in 0..2 {
            assert_eq!(check(&memos, "w", "d1", &view(&cache, "demo/w")), "valid", "row {index}");
        }
        let mut later = view(&cache, "demo/w");
        happens(&cache, &mut later);
        later.snapshot = cache.snapshot();
        assert_eq!(check(&memos, "w", "d1", &later), expected, "row {index}");
        assert_eq!(check(&memos, "w", "d2", &later), "a new version of the plugin", "row {index}");
        assert_eq!(check(&memos, "v", "d1", &later), "the first call", "row {index}");
    }
}

#[test]
fn memo_is_never_valid_for_a_guest_that_asked_the_time() {
    let (cache, memos) = (world(), Memos::default());
    let mut first = view(&cache, "demo/w");
    first.now();
    let _ = memos.record(&parent_ref("w"), memo(first));
    assert_eq!(check(&memos, "w", "d1", &view(&cache, "demo/w")), "changed: clock");
}

#[test]
fn memo_of_a_failure_is_valid_unless_trying_again_can_help() {
    let (cache, memos) = (world(), Memos::default());
    let _ = memos.record(&parent_ref("w"), failed(view(&cache, "demo/w")));
    assert_eq!(check(&memos, "w", "d1", &view(&cache, "demo/w")), "the last call failed");
    let failure = Failure { transient: false, reason: String::new(), message: "never".to_owned() };
    let memo = Memo { answer: Err(Arc::new(Unplanned::Failure(failure))), ..memo(view(&cache, "demo/w")) };
    let _ = memos.record(&parent_ref("w"), memo);
    assert_eq!(check(&memos, "w", "d1", &view(&cache, "demo/w")), "valid");
}

#[test]
fn reads_that_differ_are_named_up_to_a_number() {
    let (cache, memos) = (world(), Memos::default());
    let mut first = view(&cache, "demo/w");
    first.limits.0 = 20;
    first.get(&gvk("Node"), None, "n1").unwrap();
    for name in 0..9 {
        first.get(&gvk("ConfigMap"), None, &format!("new-{name}")).unwrap();
    }
    let _ = memos.record(&parent_ref("w"), memo(first));
    for name in 0..9 {
        let object = object("ConfigMap", &format!("demo/new-{name}"), "", 4);
        cache.applied(&watch("ConfigMap"), object);
    }
    cache.applied(&watch("Node"), object("Node", "n1", "", 4));
    let named: Vec<String> = (0..8).map(|name| format!("get ConfigMap demo/new-{name}")).collect();
    let expected = format!("changed: {} and 2 more", named.join(", "));
    assert_eq!(check(&memos, "w", "d1", &view(&cache, "demo/w")), expected);
}

#[test]
fn subscription_tells_of_a_change_that_came_before_it() {
    let (cache, memos) = (world(), Memos::default());
    let mut first = view(&cache, "demo/w");
    first.get(&gvk("ConfigMap"), None, "a").unwrap();
    first.now();
    let change = cache.applied(&watch("ConfigMap"), object("ConfigMap", "demo/a", "app=x", 3)).unwrap();
    assert_eq!(memos.affected(&change), []);
    assert!(memos.record(&parent_ref("w"), failed(first)).is_outdated(&cache.snapshot()));
    assert_eq!(memos.affected(&change), [parent_ref("w")]);
}

/// A world in which the parent's last pass saw `before` and wrote `own` of its children; whether its guest is
/// then called for its own doing only.
struct Doing {
    cache: Cache,
    memos: Memos,
    parent: Object,
}

impl Doing {
    /// The pass read, and wrote these objects and this parent.
    fn pass(read: fn(&mut View), own: &[Object], gone: &[&str], parent: u32) -> Self {
        let (cache, memos) = (world(), Memos::default());
        let mut first = view(&cache, "demo/w");
        read(&mut first);
        let mut after = view(&cache, "demo/w");
        // Somebody else was quick: what the host wrote does not tell of it.
        cache.applied(&watch("ConfigMap"), object("ConfigMap", "demo/quick", "", 4));
        let _ = memos.record(&parent_ref("w"), memo(first));
        for object in own {
            after.snapshot.wrote(&Arc::new(object.clone()));
            cache.wrote(object.clone());
        }
        for name in gone {
            let key = object("Deployment", name, "", 0).key;
            let present = after.snapshot.get(&watch("Deployment"), Some("demo"), &key.name).unwrap().clone();
            after.snapshot.leave_out(&present);
            cache.deleting(&key, &present.uid);
        }
        let parent = object("Website", "demo/w", "", parent);
        after.parent = Arc::new(parent.clone());
        memos.wrote(&parent_ref("w"), &after);
        Self { cache, memos, parent }
    }

    fn then(self, kind: &str, path: &str, labels: &str, content: u32) -> Self {
        self.cache.applied(&watch(kind), object(kind, path, labels, content));
        self
    }

    fn without(self, kind: &str, path: &str) -> Self {
        self.cache.deleted(&watch(kind), &object(kind, path, "", 9));
        self
    }

    fn parent(self, content: u32) -> Self {
        Self { parent: object("Website", "demo/w", "", content), ..self }
    }

    /// `own: why` or `outside: why`.
    fn check(&self) -> String {
        let mut view = view(&self.cache, "demo/w");
        view.parent = Arc::new(self.parent.clone());
        match self.memos.check(&parent_ref("w"), "d1", &view) {
            Check::Valid(..) => "valid".to_owned(),
            Check::Call { why, standing: Some(_) } => format!("own: {why}"),
            Check::Call { why, standing: None } => format!("outside: {why}"),
        }
    }
}

#[test]
fn own_doing_is_told_from_what_others_do() {
    let ours = "oarlock.dev/owned-by=website oarlock.dev/parent=demo/w";
    let get: fn(&mut View) = |view| drop(view.get(&gvk("ConfigMap"), None, "a").unwrap());
    let get_both: fn(&mut View) = |view| {
        for name in ["a", "quick"] {
            view.get(&gvk("ConfigMap"), None, name).unwrap();
        }
    };
    let list: fn(&mut View) = |view| drop(view.list(&gvk("ConfigMap"), None, Some("app=x")).unwrap());
    let children: fn(&mut View) = |view| drop(view.children().unwrap());
    let status: fn(&mut View) = |view| drop(view.previous_status());
    let clock: fn(&mut View) = |view| {
        view.now();
        view.get(&gvk("ConfigMap"), None, "a").unwrap();
    };
    let a = |content| object("ConfigMap", "demo/a", "app=x", content);
    let new = object("Deployment", "demo/new", ours, 4);
    let wrote = Doing::pass;
    for (row, (doing, expected)) in [
        (wrote(clock, &[], &[], 2), "own: changed: clock"),
        (wrote(clock, &[a(4)], &[], 2), "own: changed: get ConfigMap demo/a, clock"),
        (
            wrote(clock, &[], &[], 2).then("ConfigMap", "demo/a", "", 4),
            "outside: changed: get ConfigMap demo/a, clock",
        ),
        (wrote(get, &[], &[], 2), "valid"),
        (wrote(get, &[a(4)], &[], 2), "own: changed: get ConfigMap demo/a"),
        (
            wrote(get, &[a(4)], &[], 2).then("ConfigMap", "demo/a", "app=x", 6),
            "outside: changed: get ConfigMap demo/a",
        ),
        (
            wrote(get_both, &[a(4)], &[], 2),
            "outside: changed: get ConfigMap demo/a, get ConfigMap demo/quick",
        ),
        (wrote(list, &[a(4)], &[], 2), "own: changed: list ConfigMap demo app=x"),
        (
            wrote(list, &[a(4)], &[], 2).then("ConfigMap", "demo/b", "app=x", 4),
            "outside: changed: list ConfigMap demo app=x",
        ),
        (wrote(children, std::slice::from_ref(&new), &[], 2), "own: changed: children"),
        (
            wrote(children, std::slice::from_ref(&new), &[], 2).without("Deployment", "demo/ours"),
            "outside: changed: children",
        ),
        (wrote(children, &[], &["demo/ours"], 2), "own: changed: children"),
        // What the host deleted is gone a moment later.
        (
            wrote(children, &[], &["demo/ours"], 2).without("Deployment", "demo/ours"),
            "own: changed: children",
        ),
        (wrote(children, &[], &[], 2).without("Deployment", "demo/ours"), "outside: changed: children"),
        (wrote(status, &[], &[], 3), "own: changed: previous status"),
        (wrote(status, &[], &[], 3).parent(2), "valid"),
        (wrote(status, &[], &[], 2).parent(3), "outside: changed: previous status"),
        (wrote(children, &[], &[], 3), "valid"),
        // The content of the parent: its labels and annotations.
        (wrote(children, &[], &[], 4), "own: the object changed"),
        (wrote(children, &[], &[], 4).parent(6), "outside: the object changed"),
        (wrote(get, &[a(4)], &[], 4), "own: the object changed"),
        (wrote(get, &[], &[], 4).then("ConfigMap", "demo/a", "", 4), "outside: the object changed"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(doing.check(), expected, "row {row}");
    }
}

#[test]
fn child_that_was_on_its_way_out_before_the_call_is_no_news_when_it_is_gone() {
    let (cache, memos) = (world(), Memos::default());
    cache.deleting(&object("Deployment", "demo/ours", "", 0).key, "demo/ours");
    let mut first = view(&cache, "demo/w");
    first.children().unwrap();
    let _ = memos.record(&parent_ref("w"), memo(first));
    let mut after = view(&cache, "demo/w");
    let new = object("Deployment", "demo/new", WORLD[4].2, 4);
    after.snapshot.wrote(&Arc::new(new.clone()));
    memos.wrote(&parent_ref("w"), &after);
    cache.wrote(new);
    cache.deleted(&watch("Deployment"), &object("Deployment", "demo/ours", "", 9));
    let check = memos.check(&parent_ref("w"), "d1", &view(&cache, "demo/w"));
    assert!(matches!(check, Check::Call { why: Why::Reads(_), standing: Some(_) }));
}

#[derive(Clone, Debug)]
enum Step {
    Apply { path: &'static str, labels: &'static str, content: u32 },
    Delete { path: &'static str },
    Record { parent: usize, reads: Vec<Question> },
    Forget { parent: usize },
    ForgetPlugin,
}

#[derive(Clone, Debug)]
enum Question {
    Get(&'static str),
    List(Option<&'static str>, Option<&'static str>),
}

const PATHS: [&str; 5] = ["demo/a", "demo/b", "other/a", "other/c", "d"];
const LABELS: [&str; 5] = ["", "a=1", "a=2", "b=1", "a=1 b=2"];
const SELECTORS: [&str; 7] = ["a", "!a", "a=1", "a!=1", "a in (1,2)", "b=2,a", "b notin (1)"];

fn step() -> impl Strategy<Value = Step> {
    let path = || prop::sample::select(&PATHS[..]);
    let question = prop_oneof![
        path().prop_map(Question::Get),
        (
            prop::option::of(prop::sample::select(&["demo", "other"][..])),
            prop::option::of(prop::sample::select(&SELECTORS[..]))
        )
            .prop_map(|(namespace, selector)| Question::List(namespace, selector)),
    ];
    prop_oneof![
        6 => (path(), prop::sample::select(&LABELS[..]), 0..4_u32)
            .prop_map(|(path, labels, content)| Step::Apply { path, labels, content }),
        2 => path().prop_map(|path| Step::Delete { path }),
        6 => (0..4_usize, prop::collection::vec(question, 0..4))
            .prop_map(|(parent, reads)| Step::Record { parent, reads }),
        1 => (0..4_usize).prop_map(|parent| Step::Forget { parent }),
        1 => Just(Step::ForgetPlugin),
    ]
}

/// The same as the index, by looking at every read of every parent.
fn brute_force(
    recorded: &BTreeMap<ParentRef, Vec<Recorded>>,
    is_affected: impl Fn(&Read, &ContentHash) -> bool,
) -> Vec<ParentRef> {
    let affected =
        recorded.iter().filter(|(_, reads)| reads.iter().any(|(read, answer)| is_affected(read, answer)));
    affected.map(|(parent, _)| parent.clone()).collect()
}

/// Whether an object is or was part of the answer to a question.
fn is_touched(read: &Read, change: &Change) -> bool {
    let touches = |object: &Arc<Object>| match read {
        Read::Get { namespace, name, .. } => (namespace, name) == (&object.key.namespace, &object.key.name),
        Read::List { namespace, selector, .. } => {
            (namespace.is_none() || *namespace == object.key.namespace)
                && selector.as_ref().is_none_or(|selector| selector.matches(&object.labels))
        }
        Read::Children | Read::PreviousStatus | Read::Clock => false,
    };
    change.before.iter().chain(&change.after).any(touches)
}

fn answer(snapshot: &Snapshot, read: &Read) -> ContentHash {
    let mut view = view(&Cache::default(), "demo/w");
    view.snapshot = snapshot.clone();
    view.answer(read)
}

proptest! {
    #[test]
    fn index_finds_exactly_those_whose_reads_are_touched(steps in prop::collection::vec(step(), 1..60)) {
        let (cache, memos) = (Cache::default(), Memos::default());
        let place = watch("ConfigMap");
        let mut recorded: BTreeMap<ParentRef, Vec<Recorded>> = BTreeMap::new();
        let mut version = 0;
        for step in steps {
            let before = cache.snapshot();
            let parent = |index: usize| ParentRef {
                plugin: ["website", "other"][index % 2].into(), ..parent_ref(["v", "w"][index / 2])
            };
            let changes = match step {
                Step::Apply { path, labels, content } => {
                    version += 1;
                    let mut object = object("ConfigMap", path, labels, content);
                    object.version = ResourceVersion::new(&version.to_string());
                    cache.applied(&place, object)
                }
                Step::Delete { path } => {
                    version += 1;
                    let mut object = object("ConfigMap", path, "", 0);
                    object.version = ResourceVersion::new(&version.to_string());
                    cache.deleted(&place, &object)
                }
                Step::Record { parent: index, reads } => {
                    let reads: BTreeSet<Read> = reads.into_iter().map(|question| match question {
                        Question::Get(path) => {
                            let key = object("ConfigMap", path, "", 0).key;
                            Read::Get { watch: place.clone(), namespace: key.namespace, name: key.name }
                        }
                        Question::List(namespace, selector) => Read::List {
                            watch: place.clone(),
                            namespace: namespace.map(Into::into),
                            selector: selector.map(|text| Selector::parse(text).unwrap()),
                        },
                    }).collect();
                    let reads: Vec<Recorded> = reads.into_iter().map(|read| {
                        let hash = answer(&before, &read);
                        (read, hash)
                    }).collect();
                    let memo = memo(view(&cache, "demo/w"));
                    let subscribed = memos.record(&parent(index), Memo { reads: reads.clone().into(), ..memo });
                    prop_assert!(!subscribed.is_outdated(&before));
                    recorded.insert(parent(index), reads);
                    None
                }
                Step::Forget { parent: index } => {
                    memos.forget(&parent(index));
                    recorded.remove(&parent(index));
                    None
                }
                Step::ForgetPlugin => {
                    memos.forget_plugin("website");
                    recorded.retain(|parent, _| &*parent.plugin != "website");
                    None
                }
            };
            let after = cache.snapshot();
            let Some(change) = changes else { continue };
            let affected = memos.affected(&change);
            let differing = brute_force(&recorded, |read, _| answer(&before, read) != answer(&after, read));
            let touched = brute_force(&recorded, |read, _| is_touched(read, &change));
            prop_assert!(differing.iter().all(|parent| affected.contains(parent)), "{differing:?} in {affected:?}");
            let content = |object: &Arc<Object>| (object.body_hash, object.status_hash);
            if change.before.as_ref().map(content) == change.after.as_ref().map(content) {
                prop_assert_eq!(affected, []);
            } else {
                prop_assert_eq!(affected, touched);
            }
        }
        for parent in recorded.into_keys() {
            memos.forget(&parent);
        }
        prop_assert!(memos.is_index_empty());
    }
}
