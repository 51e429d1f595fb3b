use super::*;
use crate::{
    object::{Gvk, LABEL_PARENT},
    observe::client::Scope,
};
use proptest::{collection, prelude::*, sample::Index};
use std::collections::BTreeMap;

fn widget() -> Gvk {
    Gvk::new("cases.example.com/v1", "Widget")
}

fn watch(label_selector: Option<&str>) -> WatchKey {
    WatchKey {
        gvk: widget(),
        scope: Scope { namespace: None, label_selector: label_selector.map(Into::into) },
    }
}

/// A Widget `name` in namespace `demo`, of which everything is equal but what is given.
fn object(name: &str, uid: &str, version: u64, labels: &[(&str, &str)]) -> Object {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let text = serde_json::json!({
        "metadata": {"name": name, "namespace": "demo", "uid": uid, "resourceVersion": version.to_string(), "labels": labels},
    });
    Object::decode(&widget(), &text.to_string()).unwrap()
}

fn version(number: u64) -> ResourceVersion {
    ResourceVersion::new(&number.to_string())
}

/// `name:uid@version`, with `!` for what is terminating.
fn listing(cache: &Cache, watch: &WatchKey) -> Vec<String> {
    let snapshot = cache.snapshot();
    snapshot.list(watch, None).map(|object| show(object)).collect()
}

fn show(object: &Object) -> String {
    let terminating = if object.is_terminating() { "!" } else { "" };
    format!("{}:{}@{}{terminating}", object.key.name, object.uid, object.version.as_str())
}

/// Steps of one history of Widget `a`, in the order they reach the cache.
enum Step {
    Applied(&'static str, u64),
    Deleted(&'static str, u64),
    Wrote(&'static str, u64),
    Deleting(&'static str),
    Listed(&'static [(&'static str, u64)], u64),
    Reached(u64),
}
use Step::*;

#[track_caller]
fn check(steps: &[Step], expected: &[&str]) {
    let cache = Cache::default();
    let all = watch(None);
    cache.open(&all);
    let mut changes = 0;
    for step in steps {
        changes += match step {
            Applied(uid, v) => usize::from(cache.applied(&all, object("a", uid, *v, &[])).is_some()),
            Deleted(uid, v) => usize::from(cache.deleted(&all, &object("a", uid, *v, &[])).is_some()),
            Wrote(uid, v) => cache.wrote(object("a", uid, *v, &[])).len(),
            Deleting(uid) => cache.deleting(&object("a", uid, 1, &[]).key, uid).len(),
            Listed(objects, v) => {
                let objects = objects.iter().map(|(uid, v)| object("a", uid, *v, &[])).collect();
                cache.replace(&all, objects, &version(*v)).len()
            }
            Reached(v) => {
                cache.reached(&all, &version(*v));
                0
            }
        };
    }
    let mut seen = listing(&cache, &all);
    seen.push(format!("{changes} changes"));
    assert_eq!(seen, expected);
}

#[test]
fn cache_keeps_the_newest_fact_in_any_order() {
    check(&[Listed(&[("u", 1)], 1), Applied("u", 5)], &["a:u@5", "2 changes"]);
    // An own write coming back changes nothing; what was on its way before it changes nothing either.
    check(
        &[Listed(&[("u", 1)], 1), Wrote("u", 5), Applied("u", 3), Applied("u", 5)],
        &["a:u@5", "2 changes"],
    );
    // A slow response.
    check(&[Listed(&[("u", 1)], 1), Applied("u", 5), Wrote("u", 3)], &["a:u@5", "2 changes"]);
    check(&[Listed(&[], 1), Applied("u", 5), Deleted("u", 6), Wrote("u", 5)], &["2 changes"]);
    check(&[Listed(&[], 6), Wrote("u", 5)], &["0 changes"]);
    check(&[Listed(&[], 1), Reached(6), Wrote("u", 5)], &["0 changes"]);
}

#[test]
fn cache_tells_a_recreated_object_from_the_one_before_in_any_order() {
    let start = || Listed(&[("u", 1)], 1);
    check(&[start(), Deleted("u", 4), Applied("w", 5)], &["a:w@5", "3 changes"]);
    check(&[start(), Applied("w", 5), Deleted("u", 4)], &["a:w@5", "2 changes"]);
    check(
        &[start(), Wrote("w", 5), Applied("u", 3), Deleted("u", 4), Applied("w", 5)],
        &["a:w@5", "2 changes"],
    );
    check(&[start(), Deleted("u", 4), Applied("u", 3)], &["2 changes"]);
    check(&[start(), Applied("u", 6), Deleted("u", 4)], &["a:u@6", "2 changes"]);
}

#[test]
fn cache_replaces_all_but_newer_own_writes_when_listed() {
    check(&[Wrote("u", 9), Listed(&[], 8)], &["a:u@9", "1 changes"]);
    check(&[Wrote("u", 8), Listed(&[], 8)], &["2 changes"]);
    check(&[Wrote("u", 9), Listed(&[("u", 7)], 8)], &["a:u@9", "1 changes"]);
    check(&[Wrote("u", 6), Listed(&[("u", 7)], 8)], &["a:u@7", "2 changes"]);
    check(&[Listed(&[("u", 1)], 1), Listed(&[("u", 1)], 8)], &["a:u@1", "1 changes"]);
    check(&[Listed(&[("u", 1)], 1), Listed(&[("w", 7)], 8)], &["a:w@7", "2 changes"]);
}

#[test]
fn cache_takes_the_list_as_truth_when_history_goes_backwards() {
    // Older than a bookmark: own writes of the other history do not survive.
    check(
        &[Listed(&[("u", 5)], 5), Reached(90), Wrote("u", 99), Listed(&[("u", 5)], 50)],
        &["a:u@5", "3 changes"],
    );
    check(&[Listed(&[("u", 5)], 90), Wrote("u", 99), Listed(&[], 50)], &["3 changes"]);
    // The new history has overtaken the old one meanwhile.
    check(
        &[Listed(&[("u", 90)], 90), Listed(&[("u", 40)], 200), Applied("u", 201)],
        &["a:u@201", "3 changes"],
    );
    let cache = Cache::default();
    cache.replace(&watch(None), vec![object("a", "u", 90, &[])], &version(90));
    let changes = cache.replace(&watch(None), vec![object("a", "u", 40, &[])], &version(200));
    assert!(changes[0].goes_backwards());
}

#[test]
fn cache_shows_what_the_host_deleted_as_terminating_until_it_is_gone() {
    let start = || Listed(&[("u", 1)], 1);
    check(&[start(), Deleting("u")], &["a:u@1!", "2 changes"]);
    check(&[start(), Deleting("u"), Deleting("u"), Applied("u", 1)], &["a:u@1!", "2 changes"]);
    check(&[start(), Deleting("u"), Applied("u", 2)], &["a:u@2!", "3 changes"]);
    check(&[start(), Deleting("u"), Listed(&[("u", 2)], 2)], &["a:u@2!", "3 changes"]);
    check(&[start(), Deleting("u"), Deleted("u", 3)], &["3 changes"]);
    check(&[start(), Deleting("u"), Applied("w", 4)], &["a:w@4", "3 changes"]);
    check(&[start(), Deleting("other")], &["a:u@1", "1 changes"]);
}

#[test]
fn mirror_is_synced_only_after_its_first_list() {
    let cache = Cache::default();
    let all = watch(None);
    assert!(!cache.snapshot().is_synced(&all));
    cache.open(&all);
    cache.wrote(object("a", "u", 9, &[]));
    cache.applied(&all, object("b", "v", 4, &[]));
    assert_eq!(listing(&cache, &all), ["a:u@9", "b:v@4"]);
    assert!(!cache.snapshot().is_synced(&all));
    cache.replace(&all, vec![], &version(3));
    assert!(cache.snapshot().is_synced(&all));
    assert_eq!(cache.snapshot().version(&all), Some(&version(3)));
    assert_eq!(listing(&cache, &all), ["a:u@9", "b:v@4"]);
    cache.forget(&all);
    assert!(!cache.snapshot().is_synced(&all));
    assert!(listing(&cache, &all).is_empty());
}

#[test]
fn first_list_brings_what_is_new_to_the_host_only_and_a_later_one_what_happened() {
    let cache = Cache::default();
    let all = watch(None);
    cache.open(&all);
    let first_seen =
        |changes: Vec<Change>| changes.iter().map(|change| change.is_first_seen).collect::<Vec<_>>();
    assert_eq!(first_seen(cache.replace(&all, vec![object("a", "u", 1, &[])], &version(3))), [true]);
    let listed = vec![object("a", "u", 4, &[]), object("b", "v", 5, &[])];
    assert_eq!(first_seen(cache.replace(&all, listed, &version(6))), [false, false]);
    assert!(!cache.applied(&all, object("c", "w", 7, &[])).unwrap().is_first_seen);
}

#[test]
fn own_write_enters_and_leaves_the_mirrors_whose_scope_it_matches() {
    let (all, selected) = (watch(None), watch(Some("ours=yes")));
    let elsewhere =
        WatchKey { gvk: widget(), scope: Scope { namespace: Some("other".into()), label_selector: None } };
    let other_kind = WatchKey { gvk: Gvk::new("v1", "ConfigMap"), ..all.clone() };
    let cache = Cache::default();
    for watch in [&all, &selected, &elsewhere, &other_kind] {
        cache.replace(watch, vec![], &version(1));
    }
    let changed =
        |changes: Vec<Change>| -> Vec<WatchKey> { changes.into_iter().map(|change| change.watch).collect() };
    assert_eq!(
        changed(cache.wrote(object("a", "u", 5, &[("ours", "yes")]))),
        [all.clone(), selected.clone()]
    );
    assert_eq!(changed(cache.wrote(object("a", "u", 7, &[]))), [all.clone(), selected.clone()]);
    assert_eq!(listing(&cache, &all), ["a:u@7"]);
    assert!(listing(&cache, &selected).is_empty());
    // On its way before the label was taken off: it stays out.
    assert!(cache.applied(&selected, object("a", "u", 6, &[("ours", "yes")])).is_none());
    assert!(cache.deleted(&selected, &object("a", "u", 7, &[("ours", "yes")])).is_none());
    assert!(cache.applied(&selected, object("a", "u", 8, &[("ours", "yes")])).is_some());
}

#[test]
fn snapshot_lists_by_namespace_and_parent_in_order() {
    let cache = Cache::default();
    let all = watch(None);
    let in_namespace = |namespace: Option<&str>, name: &str, parent: &str| {
        let mut object = object(name, name, 1, &[(LABEL_PARENT, parent)]);
        object.key.namespace = namespace.map(Into::into);
        object
    };
    let objects = vec![
        in_namespace(Some("b"), "x", "p1"),
        in_namespace(Some("a"), "z", "p2"),
        in_namespace(Some("a"), "y", "p1"),
        in_namespace(Some("ab"), "y", "p1"),
        in_namespace(None, "n", "p10"),
    ];
    cache.replace(&all, objects, &version(1));
    let before = cache.snapshot();
    let keys = |objects: Vec<&Arc<Object>>| -> Vec<String> {
        objects.iter().map(|object| object.key.to_string()).collect()
    };
    assert_eq!(
        keys(before.list(&all, None).collect()),
        ["Widget n", "Widget a/y", "Widget a/z", "Widget ab/y", "Widget b/x"]
    );
    assert_eq!(keys(before.list(&all, Some("a")).collect()), ["Widget a/y", "Widget a/z"]);
    assert_eq!(keys(before.children(&all, "p1").collect()), ["Widget a/y", "Widget ab/y", "Widget b/x"]);
    assert_eq!(before.get(&all, Some("a"), "z").map(|object| &*object.uid), Some("z"));
    assert!(before.get(&all, None, "z").is_none());

    // The child moves to another parent; the snapshot does not move.
    let mut moved = in_namespace(Some("a"), "y", "p2");
    moved.version = version(2);
    cache.applied(&all, moved);
    assert_eq!(keys(cache.snapshot().children(&all, "p1").collect()), ["Widget ab/y", "Widget b/x"]);
    assert_eq!(keys(cache.snapshot().children(&all, "p2").collect()), ["Widget a/y", "Widget a/z"]);
    assert_eq!(before.children(&all, "p1").count(), 3);
    assert_eq!(cache.snapshot().len(&all), 5);
}

#[test]
fn versions_that_are_no_integers_follow_the_order_of_delivery() {
    let cache = Cache::default();
    let all = watch(None);
    let opaque =
        |uid: &str, text: &str| Object { version: ResourceVersion::new(text), ..object("a", uid, 1, &[]) };
    cache.replace(&all, vec![opaque("u", "q")], &ResourceVersion::new("q"));
    assert!(cache.applied(&all, opaque("u", "c")).is_some());
    assert!(cache.applied(&all, opaque("u", "c")).is_none());
    assert!(cache.deleted(&all, &opaque("u", "b")).is_some());
    assert!(cache.wrote(opaque("w", "a")).len() == 1);
    cache.replace(&all, vec![], &ResourceVersion::new("z"));
    assert!(listing(&cache, &all).is_empty());
}

/// Forgetting is bounded: more objects can go than are remembered.
#[test]
fn cache_survives_many_deletions() {
    let cache = Cache::default();
    let all = watch(None);
    cache.replace(&all, vec![], &version(1));
    for number in 0..3000 {
        let name = format!("n{number}");
        cache.applied(&all, object(&name, &name, 2 * number + 2, &[]));
        assert!(cache.deleted(&all, &object(&name, &name, 2 * number + 3, &[])).is_some());
        assert!(cache.wrote(object(&name, &name, 2 * number + 2, &[])).is_empty());
    }
    assert!(listing(&cache, &all).is_empty());
}

// The property: whatever reaches the cache is a true fact about one history, and the cache shows, for every
// object, its state as of the newest fact about it. So an older delivery never overwrites an own write, and
// every order of the same facts ends the same.

/// What happens to one of three objects, each step at the next version.
#[derive(Clone, Copy, Debug)]
enum Act {
    Put { labelled: bool },
    Delete,
}

#[derive(Clone, Debug)]
enum Input {
    /// The next delivery about an object.
    Deliver(Index),
    /// The response to an own write, at any time.
    Respond(Index),
    /// A list of some version, not before the last one; deliveries go on from there.
    List(Index),
}

/// One object's state since a version.
#[derive(Clone, Debug)]
struct State {
    version: u64,
    object: Option<Object>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The states of each object, from the acts; version 0 is before all.
fn history(acts: &[(usize, Act)]) -> Vec<Vec<State>> {
    let mut states = vec![vec![State { version: 0, object: None }]; NAMES.len()];
    for (version, (which, act)) in (1..).zip(acts) {
        let before = states[*which].last().and_then(|state| state.object.clone());
        let object = match (act, before) {
            (Act::Delete, None) => continue,
            (Act::Delete, Some(_)) => None,
            (Act::Put { labelled }, before) => {
                let uid = before.map_or_else(|| format!("u{version}"), |before| before.uid.to_string());
                let labels: &[_] = if *labelled { &[("ours", "yes")] } else { &[] };
                Some(object(NAMES[*which], &uid, version, labels))
            }
        };
        states[*which].push(State { version, object });
    }
    states
}

fn is_selected(object: &Object) -> bool {
    object.labels.contains_key("ours")
}

fn state_at(states: &[State], version: u64) -> &State {
    states.iter().rev().find(|state| state.version <= version).unwrap()
}

/// What the watch with the selector delivers for the step after `version`, if there is a step.
fn deliver(cache: &Cache, watch: &WatchKey, states: &[State], version: u64) -> Option<u64> {
    let next = states.iter().find(|state| state.version > version)?;
    let before = state_at(states, version).object.clone().filter(is_selected);
    let now = next.object.clone().filter(is_selected);
    match (before, now) {
        (_, Some(now)) => drop(cache.applied(watch, now)),
        (Some(before), None) => {
            let gone = Object { version: self::version(next.version), ..before };
            drop(cache.deleted(watch, &gone));
        }
        (None, None) => {}
    }
    Some(next.version)
}

fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let act = prop_oneof![
        4 => any::<bool>().prop_map(|labelled| Act::Put { labelled }),
        1 => Just(Act::Delete),
    ];
    collection::vec((0..NAMES.len(), act), 1..40)
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        6 => any::<Index>().prop_map(Input::Deliver),
        4 => any::<Index>().prop_map(Input::Respond),
        1 => any::<Index>().prop_map(Input::List),
    ];
    collection::vec(input, 0..120)
}

proptest! {
    #[test]
    fn cache_shows_the_newest_fact_about_every_object(acts in acts(), inputs in inputs()) {
        let selected = watch(Some("ours=yes"));
        let cache = Cache::default();
        let states = history(&acts);
        let last = acts.len() as u64;
        cache.replace(&selected, vec![], &version(0));
        let (mut listed, mut delivered, mut known) = (0, [0; NAMES.len()], [0; NAMES.len()]);
        let rest = (0..NAMES.len()).cycle().take(NAMES.len() * acts.len()).map(|which| (which, None));
        let inputs = inputs.iter().map(|input| (0, Some(input))).chain(rest);
        for (which, input) in inputs {
            match input {
                None => delivered[which] = deliver(&cache, &selected, &states[which], delivered[which]).unwrap_or(delivered[which]),
                Some(Input::Deliver(index)) => {
                    let which = index.index(NAMES.len());
                    delivered[which] = deliver(&cache, &selected, &states[which], delivered[which]).unwrap_or(delivered[which]);
                }
                Some(Input::Respond(index)) => {
                    let writes: Vec<&State> = states.iter().flatten().filter(|state| state.object.is_some()).collect();
                    if !writes.is_empty() {
                        let object = writes[index.index(writes.len())].object.clone().unwrap();
                        let which = NAMES.iter().position(|name| **name == *object.key.name).unwrap();
                        known[which] = known[which].max(object.version.as_str().parse().unwrap());
                        cache.wrote(object);
                    }
                }
                Some(Input::List(index)) => {
                    // Most recent data: never older than what was listed or delivered.
                    let reached = delivered.iter().copied().fold(listed, u64::max);
                    listed = reached + index.index((last - reached + 1) as usize) as u64;
                    let objects = states.iter().filter_map(|states| state_at(states, listed).object.clone().filter(is_selected)).collect();
                    cache.replace(&selected, objects, &version(listed));
                    delivered = [listed; NAMES.len()];
                }
            }
            let mut expected = vec![];
            for (which, states) in states.iter().enumerate() {
                known[which] = known[which].max(delivered[which]);
                expected.extend(state_at(states, known[which]).object.iter().filter(|object| is_selected(object)).map(show));
            }
            prop_assert_eq!(listing(&cache, &selected), expected);
        }
    }

    #[test]
    fn changes_lead_from_one_snapshot_to_the_next(acts in acts(), order in collection::vec(any::<Index>(), 0..60)) {
        let all = watch(None);
        let cache = Cache::default();
        cache.replace(&all, vec![], &version(0));
        let facts: Vec<Object> = history(&acts).into_iter().flatten().filter_map(|state| state.object).collect();
        let mut shown: BTreeMap<ObjectKey, String> = BTreeMap::new();
        for (number, index) in order.iter().enumerate() {
            let Some(object) = facts.get(index.index(facts.len().max(1))).cloned() else { continue };
            let key = object.key.clone();
            let change = match number % 4 {
                0 => cache.wrote(object).pop(),
                1 => cache.deleted(&all, &object),
                2 => cache.deleting(&key, &object.uid).pop(),
                _ => cache.applied(&all, object),
            };
            let before = shown.get(&key).cloned();
            if let Some(change) = change {
                prop_assert_eq!(change.before.as_deref().map(show), before);
                match change.after {
                    Some(after) => shown.insert(key, show(&after)),
                    None => shown.remove(&key),
                };
            }
            let listed: Vec<String> = listing(&cache, &all);
            prop_assert_eq!(listed, shown.values().cloned().collect::<Vec<_>>());
        }
    }
}

#[test]
fn doubted_mirror_is_not_synced_until_its_next_list_and_keeps_own_writes_that_are_newer() {
    let cache = Cache::default();
    let all = watch(None);
    // Before its first list there is nothing to doubt.
    cache.doubt(&all, Doubt::Lost);
    assert_eq!((cache.snapshot().doubt(&all), cache.snapshot().doubts([&all])), (None, 0));
    cache.replace(&all, vec![object("a", "u", 1, &[])], &version(3));
    cache.doubt(&all, Doubt::Lost);
    cache.doubt(&all, Doubt::Lost);
    assert_eq!((cache.snapshot().is_synced(&all), cache.snapshot().doubts([&all])), (false, 1));
    cache.wrote(object("b", "v", 9, &[]));
    cache.applied(&all, object("a", "u", 5, &[]));
    assert!(!cache.snapshot().is_synced(&all));
    cache.replace(&all, vec![object("a", "u", 5, &[])], &version(6));
    assert_eq!(
        (cache.snapshot().is_synced(&all), listing(&cache, &all)),
        (true, vec!["a:u@5".into(), "b:v@9".into()])
    );
}

#[test]
fn lost_is_what_should_have_been_heard_of_and_nothing_that_happened_meanwhile() {
    let cache = Cache::default();
    let all = watch(None);
    let object = |name: &str, version| object(name, name, version, &[]);
    let listed = |objects: &[(&str, u64)]| {
        let listed = objects.iter().map(|(name, number)| (object(name, 1).key, version(*number)));
        listed.collect::<BTreeMap<_, _>>()
    };
    let all_of_them = ["changed", "going", "left", "same", "set-back", "stale"].map(|name| object(name, 5));
    cache.replace(&all, all_of_them.into(), &version(10));
    // Of a history in which it never came to that.
    cache.applied(&all, object("set-back", 12));
    let before = cache.snapshot();
    // Between the question and the comparison.
    cache.applied(&all, object("changed", 30));
    cache.deleted(&all, &object("going", 31));
    cache.applied(&all, object("new", 32));
    cache.applied(&all, object("short", 19));
    cache.deleted(&all, &object("short", 33));
    let told = [
        ("changed", 15),
        ("going", 5),
        ("same", 5),
        ("set-back", 8),
        ("stale", 16),
        ("short", 19),
        ("unheard", 17),
    ];
    let lost = cache.snapshot().lost(&all, &before, &listed(&told), &version(20));
    let found: Vec<_> =
        lost.iter().map(|(key, version)| format!("{}@{}", key.name, version.as_str())).collect();
    assert_eq!(found, ["left@5", "set-back@8", "stale@16", "unheard@17"]);
}
