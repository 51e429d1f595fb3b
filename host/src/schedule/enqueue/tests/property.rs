//! Whoever a change concerns is asked again, and nobody else: compared with asking every guest's questions anew, and
//! with a second telling of what concerns whom.

use crate::{
    manifest::{Manifest, Selection},
    object::{ContentHash, ResourceVersion},
    observe::{
        cache::{Cache, Snapshot},
        client::Scope,
        reads::{Memo, Planned, Recorded, Sources, View},
    },
    schedule::enqueue::*,
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    time::Instant,
};

const KINDS: [&str; 5] = ["Website", "Fleet", "ConfigMap", "Node", "Deployment"];
/// Two plugins of one kind, and one of a cluster-scoped kind.
const PLUGINS: [(&str, &str); 3] = [("website", "Website"), ("labeller", "Website"), ("fleet", "Fleet")];

fn gvk(kind: &str) -> Gvk {
    let api_version = match kind {
        "Website" | "Fleet" => "demo.example.com/v1",
        "Deployment" => "apps/v1",
        _ => "v1",
    };
    Gvk::new(api_version, kind)
}

fn watch(kind: &str) -> WatchKey {
    let label_selector = (kind == "Deployment").then(|| LABEL_OWNED_BY.to_owned());
    WatchKey { gvk: gvk(kind), scope: Scope { namespace: None, label_selector } }
}

/// Everything of an object that may differ.
#[derive(Clone, Debug)]
struct Shape {
    kind: &'static str,
    /// An index into [`places`].
    place: usize,
    /// Which one of the name it is.
    life: u8,
    labels: &'static str,
    spec: u8,
    status: u8,
    /// Of a Deployment: whose label it has, and which parent and which life of it controls it.
    owned_by: &'static str,
    owner: Option<(&'static str, &'static str, u8)>,
}

#[derive(Clone, Debug)]
enum Question {
    /// A kind, and one of its [`places`].
    Get(&'static str, usize),
    List(&'static str, Option<&'static str>, Option<&'static str>),
    Children,
    PreviousStatus,
    Clock,
}

#[derive(Clone, Debug)]
enum Step {
    /// The watch tells that it is so now.
    Applied(Shape),
    /// Only its labels differ.
    Relabelled(&'static str, usize, &'static str),
    /// Only its status differs.
    Progressed(&'static str, usize, u8),
    Deleted(&'static str, usize),
    /// A list tells that of this kind, only these are there.
    Listed(&'static str, Vec<Shape>),
    /// The host wrote it.
    Wrote(Shape),
    /// The host deleted it.
    Deleting(usize),
    /// A parent's guest was called and asked this.
    Called(usize, usize, Vec<Question>),
    Forgotten(usize, usize),
}

fn places(kind: &str) -> &'static [(Option<&'static str>, &'static str)] {
    match kind {
        "Fleet" | "Node" => &[(None, "a"), (None, "b")],
        _ => &[(Some("demo"), "a"), (Some("demo"), "b"), (Some("other"), "a"), (Some("other"), "c")],
    }
}

const LABELS: [&str; 6] = ["", "a=1", "a=2", "a=3", "b=1", "a=1,b=2"];
/// What a selector means, told in another way than the parser's.
type Meaning = fn(&HashMap<&str, &str>) -> bool;
const SELECTORS: [(&str, Meaning); 11] = [
    ("a", |labels| labels.contains_key("a")),
    ("!a", |labels| !labels.contains_key("a")),
    ("a=1", |labels| labels.get("a") == Some(&"1")),
    ("a==2", |labels| labels.get("a") == Some(&"2")),
    ("a!=1", |labels| labels.get("a") != Some(&"1")),
    ("a in (1,2)", |labels| matches!(labels.get("a"), Some(&("1" | "2")))),
    ("a notin (1,3)", |labels| !matches!(labels.get("a"), Some(&("1" | "3")))),
    ("b=2,a", |labels| labels.get("b") == Some(&"2") && labels.contains_key("a")),
    ("a,!b", |labels| labels.contains_key("a") && !labels.contains_key("b")),
    ("a in (1,2),b notin (2)", |labels| {
        matches!(labels.get("a"), Some(&("1" | "2"))) && labels.get("b") != Some(&"2")
    }),
    ("", |_| true),
];

fn labels(text: &str) -> HashMap<&str, &str> {
    text.split(',').filter_map(|pair| pair.split_once('=')).collect()
}

fn uid(kind: &str, namespace: Option<&str>, name: &str, life: u8) -> String {
    format!("{kind}/{}/{name}/{life}", namespace.unwrap_or_default())
}

impl Shape {
    fn object(&self, version: u32) -> Object {
        let (namespace, name) = places(self.kind)[self.place];
        let mut metadata = json!({
            "name": name, "uid": uid(self.kind, namespace, name, self.life), "resourceVersion": version.to_string(),
            "labels": labels(self.labels),
        });
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        if self.kind == "Deployment" {
            metadata["labels"][LABEL_OWNED_BY] = self.owned_by.into();
            if let Some((kind, parent, life)) = self.owner {
                let namespace = if kind == "Fleet" { None } else { namespace };
                let uid = uid(kind, namespace, parent, life);
                metadata["labels"]["oarlock.dev/parent"] = uid.as_str().into();
                metadata["ownerReferences"] = json!([{
                    "apiVersion": "demo.example.com/v1", "kind": kind, "name": parent, "uid": uid, "controller": true,
                }]);
            }
        }
        let text = json!({
            "apiVersion": gvk(self.kind).api_version(), "kind": self.kind, "metadata": metadata,
            "spec": {"replicas": self.spec}, "status": {"replicas": self.status, "readyReplicas": self.status},
        });
        Object::decode(&gvk(self.kind), &text.to_string()).unwrap()
    }
}

fn shape(kind: impl Strategy<Value = &'static str>) -> impl Strategy<Value = Shape> {
    let owner =
        (prop::sample::select(&["Website", "Fleet"][..]), prop::sample::select(&["a", "b"][..]), 0..2_u8);
    (
        kind,
        0..4_usize,
        prop::sample::select(&[0, 0, 0, 1_u8][..]),
        prop::sample::select(&LABELS[..]),
        0..2_u8,
        0..2_u8,
        prop::sample::select(&["website", "website", "fleet", "labeller", "gone"][..]),
        prop::option::weighted(0.9, owner),
    )
        .prop_map(|(kind, place, life, labels, spec, status, owned_by, owner)| {
            let place = place % places(kind).len();
            Shape { kind, place, life, labels, spec, status, owned_by, owner }
        })
}

fn question() -> impl Strategy<Value = Question> {
    let kind = || prop::sample::select(&["ConfigMap", "ConfigMap", "Node"][..]);
    let namespace = prop::option::of(prop::sample::select(&["demo", "other"][..]));
    let selector =
        prop::option::weighted(0.9, prop::sample::select(&SELECTORS[..]).prop_map(|(text, _)| text));
    prop_oneof![
        3 => (kind(), 0..4_usize).prop_map(|(kind, place)| Question::Get(kind, place % places(kind).len())),
        4 => (kind(), namespace, selector).prop_map(|(kind, namespace, selector)| Question::List(kind, namespace, selector)),
        2 => Just(Question::Children),
        1 => Just(Question::PreviousStatus),
        1 => Just(Question::Clock),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let kind = || prop::sample::select(&KINDS[..]);
    let placed = || (kind(), 0..4_usize).prop_map(|(kind, place)| (kind, place % places(kind).len()));
    let who = || (0..PLUGINS.len(), 0..2_usize);
    prop_oneof![
        8 => shape(kind()).prop_map(Step::Applied),
        3 => (placed(), prop::sample::select(&LABELS[..]))
            .prop_map(|((kind, place), labels)| Step::Relabelled(kind, place, labels)),
        3 => (placed(), 0..2_u8).prop_map(|((kind, place), status)| Step::Progressed(kind, place, status)),
        3 => placed().prop_map(|(kind, place)| Step::Deleted(kind, place)),
        1 => kind().prop_flat_map(|kind| {
            prop::collection::vec(shape(Just(kind)), 0..4).prop_map(move |shapes| Step::Listed(kind, shapes))
        }),
        3 => shape(prop::sample::select(&["Website", "Fleet", "ConfigMap", "Deployment", "Deployment"][..])).prop_map(Step::Wrote),
        1 => (0..4_usize).prop_map(Step::Deleting),
        9 => (who(), prop::collection::vec(question(), 0..4))
            .prop_map(|((plugin, parent), questions)| Step::Called(plugin, parent, questions)),
        1 => who().prop_map(|(plugin, parent)| Step::Forgotten(plugin, parent)),
    ]
}

struct World {
    cache: Cache,
    memos: Memos,
    subscriptions: Subscriptions,
    shapes: BTreeMap<(&'static str, usize), Shape>,
    asked: BTreeMap<ParentRef, Vec<Question>>,
    version: u32,
}

impl World {
    fn new() -> Self {
        let cache = Cache::default();
        for kind in KINDS {
            cache.replace(&watch(kind), Vec::new(), &ResourceVersion::new("1"));
        }
        let mut parents: BTreeMap<WatchKey, Vec<Arc<str>>> = BTreeMap::new();
        for (plugin, kind) in PLUGINS {
            parents.entry(watch(kind)).or_default().push(plugin.into());
        }
        let children = PLUGINS.map(|(plugin, kind)| (plugin.into(), watch(kind), kind != "Fleet"));
        Self {
            cache,
            memos: Memos::default(),
            subscriptions: Subscriptions {
                fields: BTreeMap::new(),
                parents,
                children: BTreeMap::from([(watch("Deployment"), children.into())]),
            },
            shapes: BTreeMap::new(),
            asked: BTreeMap::new(),
            version: 1,
        }
    }

    fn parent(plugin: usize, parent: usize) -> ParentRef {
        let (plugin, kind) = PLUGINS[plugin];
        let (namespace, name) = places(kind)[parent];
        let key = ObjectKey { gvk: gvk(kind), namespace: namespace.map(Into::into), name: name.into() };
        ParentRef { plugin: plugin.into(), parent: key }
    }

    /// What the step changes, as the watches and the host's own writes tell it.
    fn take(&mut self, step: Step) -> Vec<Change> {
        self.version += 1;
        let version = self.version;
        match step {
            Step::Applied(shape) => {
                let object = shape.object(version);
                let place = watch(shape.kind);
                self.shapes.insert((shape.kind, shape.place), shape);
                self.cache.applied(&place, object).into_iter().collect()
            }
            Step::Relabelled(kind, place, labels) => {
                let Some(shape) = self.shapes.get(&(kind, place)).cloned() else { return Vec::new() };
                self.take(Step::Applied(Shape { labels, ..shape }))
            }
            Step::Progressed(kind, place, status) => {
                let Some(shape) = self.shapes.get(&(kind, place)).cloned() else { return Vec::new() };
                self.take(Step::Applied(Shape { status, ..shape }))
            }
            Step::Deleted(kind, place) => {
                let Some(shape) = self.shapes.remove(&(kind, place)) else { return Vec::new() };
                self.cache.deleted(&watch(kind), &shape.object(version)).into_iter().collect()
            }
            Step::Listed(kind, shapes) => {
                self.shapes.retain(|(of, _), _| *of != kind);
                for shape in shapes {
                    self.shapes.insert((kind, shape.place), shape);
                }
                let listed = self.shapes.values().filter(|shape| shape.kind == kind);
                let listed = listed.map(|shape| shape.object(version)).collect();
                self.cache.replace(&watch(kind), listed, &ResourceVersion::new(&version.to_string()))
            }
            Step::Wrote(shape) => {
                let object = shape.object(version);
                self.shapes.insert((shape.kind, shape.place), shape);
                self.cache.wrote(object)
            }
            Step::Deleting(place) => {
                let Some(shape) = self.shapes.get(&("Deployment", place)) else { return Vec::new() };
                let object = shape.object(version);
                self.cache.deleting(&object.key, &object.uid)
            }
            Step::Called(plugin, parent, questions) => {
                let parent = Self::parent(plugin, parent);
                let snapshot = self.cache.snapshot();
                if let Some(answer) = ask(&snapshot, &parent, &questions) {
                    let (uid, body) = answer.parent;
                    let memo = Memo {
                        digest: "d".into(),
                        parent: (uid, body),
                        reads: answer.reads.into(),
                        answer: Ok(Planned::default()),
                        called: Instant::now(),
                    };
                    let _ = self.memos.record(&parent, memo);
                    self.asked.insert(parent, questions);
                }
                Vec::new()
            }
            Step::Forgotten(plugin, parent) => {
                let parent = Self::parent(plugin, parent);
                self.memos.forget(&parent);
                self.asked.remove(&parent);
                Vec::new()
            }
        }
    }
}

/// What a guest is shown.
#[derive(PartialEq)]
struct Answer {
    parent: (Arc<str>, ContentHash),
    reads: Vec<Recorded>,
}

/// Asks all of a guest's questions; `None` if its parent is not there.
fn ask(snapshot: &Snapshot, parent: &ParentRef, questions: &[Question]) -> Option<Answer> {
    let key = &parent.parent;
    let object = snapshot.get(&watch(&key.gvk.kind), key.namespace.as_deref(), &key.name)?.clone();
    let json = format!(
        r#"{{"name": "any", "version": "1", "parent": {{"apiVersion": "demo.example.com/v1", "kind": "{}"}}}}"#,
        key.gvk.kind
    );
    let read = |kind| Selection { gvk: gvk(kind), label_selector: None, namespace: None };
    // Nodes stand for any cluster-scoped kind; that they are off is told at load.
    let manifest = Manifest {
        children: BTreeSet::from([gvk("Deployment")]),
        reads: vec![read("ConfigMap"), read("Node")],
        ..Manifest::parse(&json).unwrap()
    };
    let source = |kind, namespaced| (gvk(kind), (watch(kind), namespaced));
    let mut sources = Sources::new(Arc::clone(&parent.plugin));
    sources.children = [source("Deployment", true)].into();
    sources.reads = [source("ConfigMap", true), source("Node", false)].into();
    let identity = (Arc::clone(&object.uid), object.body_hash);
    let mut view = View::new(
        snapshot.clone(),
        object,
        Arc::new(manifest),
        Arc::new(sources),
        "oarlock-system".into(),
        "2026-01-01T00:00:00Z".into(),
        (100, 1_000_000),
    );
    for question in questions {
        // What is refused, as it is elsewhere, is no read.
        match *question {
            Question::Get(kind, place) => {
                let (namespace, name) = places(kind)[place];
                drop(view.get(&gvk(kind), namespace, name));
            }
            Question::List(kind, namespace, selector) => drop(view.list(&gvk(kind), namespace, selector)),
            Question::Children => drop(view.children()),
            Question::PreviousStatus => drop(view.previous_status()),
            Question::Clock => drop(view.now()),
        }
    }
    Some(Answer { parent: identity, reads: view.into_recorded() })
}

/// What a change means to one parent, told from the objects as they are, or `None`.
fn concerns(change: &Change, parent: &ParentRef, questions: Option<&[Question]>) -> Option<&'static str> {
    let objects = || change.before.iter().chain(&change.after);
    let same =
        |what: fn(&Object) -> Value| change.before.as_deref().map(what) == change.after.as_deref().map(what);
    let same_status = same(|object| json!(object.status));
    let same_body = same(|object| json!([object.body, object.uid]));
    let same_deletion = same(|object| json!(object.is_terminating()));
    if same_body && same_status && same_deletion {
        return None;
    }
    let kind = &*change.watch.gvk.kind;
    let asks = |wanted: fn(&Question) -> bool| questions.is_some_and(|asked| asked.iter().any(wanted));
    if kind == &*parent.parent.gvk.kind && objects().any(|object| object.key == parent.parent) {
        if !same_body || !same_deletion {
            return Some("parent");
        }
        if !change.is_own || asks(|question| matches!(question, Question::PreviousStatus)) {
            return Some("status of the parent");
        }
    }
    let controls = |object: &Arc<Object>| {
        let owner = object.controller();
        object.labels.get(LABEL_OWNED_BY).is_some_and(|owned_by| **owned_by == *parent.plugin)
            && owner.is_some_and(|owner| {
                owner.gvk.kind == parent.parent.gvk.kind && *owner.name == *parent.parent.name
            })
            && (parent.parent.namespace.is_none() || parent.parent.namespace == object.key.namespace)
    };
    if kind == "Deployment" && objects().any(controls) {
        let is_gained = !change.before.iter().any(controls);
        let is_lost = !change.after.iter().any(controls);
        return Some(match (is_gained, is_lost) {
            (true, _) => "child gained",
            (_, true) => "child lost",
            _ => "child changed",
        });
    }
    if same_body && same_status {
        return None;
    }
    let own = parent.parent.namespace.as_deref();
    let mut found = None;
    for question in questions.into_iter().flatten() {
        match *question {
            Question::Get(of, place) if of == kind => {
                let (namespace, name) = places(kind)[place];
                let may = own.is_none() || namespace.is_none() || namespace == own;
                let touches = |object: &Arc<Object>| {
                    (object.key.namespace.as_deref(), &*object.key.name) == (namespace, name)
                };
                if may && objects().any(touches) {
                    found = Some(match (&change.before, &change.after) {
                        (None, _) => "get of one that appeared",
                        (_, None) => "get of one that went",
                        _ => "get of one that changed",
                    });
                }
            }
            Question::List(of, namespace, selector) if of == kind => {
                let asked = if kind == "Node" { None } else { namespace.or(own) };
                let may = kind == "Node" || own.is_none() || asked == own;
                let meaning = SELECTORS.iter().find(|(text, _)| Some(*text) == selector);
                let selects = |object: &Arc<Object>| {
                    let labels = object.labels.iter().map(|(name, value)| (&**name, &**value)).collect();
                    (asked.is_none() || asked == object.key.namespace.as_deref())
                        && meaning.is_none_or(|(_, selects)| selects(&labels))
                };
                let (before, after) = (change.before.iter().any(selects), change.after.iter().any(selects));
                if may && (before || after) {
                    found = Some(match (before, after, asked) {
                        (true, true, Some(_)) => "list in a namespace, changed within",
                        (true, true, None) => "list of all, changed within",
                        (false, _, _) if change.before.is_some() => "list that it came into by its labels",
                        (_, false, _) if change.after.is_some() => "list that it left by its labels",
                        (false, ..) => "list that it appeared in",
                        (_, false, _) => "list that it went from",
                    });
                }
            }
            _ => {}
        }
    }
    found
}

#[test]
fn change_wakes_exactly_those_whose_guests_would_be_shown_something_else() {
    let classes: RefCell<BTreeMap<&str, usize>> = RefCell::default();
    let mut runner = TestRunner::new(Config { cases: 512, source_file: Some(file!()), ..Config::default() });
    let property = |steps: Vec<Step>| {
        let mut world = World::new();
        for (kind, place) in ["Website", "Fleet"].into_iter().flat_map(|kind| [(kind, 0), (kind, 1)]) {
            world.take(Step::Applied(Shape {
                kind,
                place,
                life: 0,
                labels: "",
                spec: 0,
                status: 0,
                owned_by: "",
                owner: None,
            }));
        }
        let everybody =
            (0..PLUGINS.len()).flat_map(|plugin| (0..2).map(move |parent| World::parent(plugin, parent)));
        let everybody: Vec<ParentRef> = everybody.collect();
        for step in steps {
            let before = world.cache.snapshot();
            let changes = world.take(step);
            let after = world.cache.snapshot();
            let mut woken = BTreeSet::new();
            for change in &changes {
                let requests = requests(change, &world.subscriptions, &world.memos);
                let requests: BTreeSet<ParentRef> = requests.into_iter().map(|(parent, _)| parent).collect();
                for parent in &everybody {
                    let questions = world.asked.get(parent).map(Vec::as_slice);
                    let concerns = concerns(change, parent, questions);
                    let is_asked = requests.contains(parent);
                    prop_assert_eq!(
                        is_asked,
                        concerns.is_some(),
                        "{:?} {}: {:?}",
                        parent,
                        concerns.unwrap_or("nothing"),
                        change
                    );
                    *classes.borrow_mut().entry(concerns.unwrap_or("nothing")).or_default() += 1;
                }
                woken.extend(requests);
            }
            for (parent, questions) in &world.asked {
                let [then, now] = [&before, &after].map(|snapshot| ask(snapshot, parent, questions));
                prop_assert!(then == now || woken.contains(parent), "{:?} sleeps: {:?}", parent, questions);
            }
        }
        Ok(())
    };
    runner.run(&prop::collection::vec(step(), 1..80), property).unwrap();
    let classes = classes.into_inner();
    let wanted = [
        "nothing",
        "parent",
        "status of the parent",
        "child gained",
        "child lost",
        "child changed",
        "get of one that appeared",
        "get of one that went",
        "get of one that changed",
        "list in a namespace, changed within",
        "list of all, changed within",
        "list that it came into by its labels",
        "list that it left by its labels",
        "list that it appeared in",
        "list that it went from",
    ];
    for class in wanted {
        assert!(classes.get(class).is_some_and(|count| *count >= 10), "{class}: {classes:?}");
    }
}
