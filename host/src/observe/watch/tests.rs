use super::*;
use crate::observe::client::mock::{End, Reply, Server};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// Everything that a watch does to its surroundings, as text.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    changed: Notify,
}

impl Log {
    fn write(&self, line: String) {
        self.lines.lock().unwrap().push(line);
        self.changed.notify_one();
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until so many lines are there; time passes only while everything waits.
    #[track_caller]
    fn until(&self, count: usize) -> impl Future<Output = Vec<String>> {
        let place = std::panic::Location::caller();
        async move {
            let enough = async {
                while self.lines().len() < count {
                    self.changed.notified().await;
                }
            };
            let in_time = timeout(Duration::from_mins(10), enough).await.is_ok();
            assert!(in_time, "{place}: only {:?}", self.lines());
            self.lines()
        }
    }
}

struct Setup {
    server: Arc<Server>,
    log: Arc<Log>,
    cache: Arc<Cache>,
    watches: Watches,
}

fn key() -> WatchKey {
    WatchKey { gvk: Gvk::new("v1", "ConfigMap"), scope: Scope::default() }
}

/// Starts a watch of ConfigMaps against a server that answers this; discovery comes first.
fn start(script: Vec<(&str, Reply)>) -> Setup {
    fastrand::seed(1);
    let resources = json!({"groupVersion": "v1", "resources": [
        {"name": "configmaps", "singularName": "", "namespaced": true, "kind": "ConfigMap", "verbs": ["list", "watch"]}]});
    let script =
        [("GET /api/v1", Reply::Text(200, resources.to_string()))].into_iter().chain(script).collect();
    let (server, client) = Server::start(script);
    let (log, cache) = (Arc::new(Log::default()), Arc::new(Cache::default()));
    let (changes, states) = (Arc::clone(&log), Arc::clone(&log));
    let show = |object: &Option<Arc<crate::object::Object>>| {
        object
            .as_ref()
            .map_or("-".to_owned(), |object| format!("{}@{}", object.key.name, object.version.as_str()))
    };
    let watches = Watches::new(
        client.clone(),
        Arc::new(Discovery::new(client)),
        Arc::clone(&cache),
        Arc::new(move |seen| {
            let seen: Vec<String> = seen
                .iter()
                .map(|change| format!("{}>{}", show(&change.before), show(&change.after)))
                .collect();
            changes.write(seen.join(" "));
        }),
        Arc::new(move |_, state| states.write(format!("{state:?}"))),
        7,
    );
    watches.acquire("test", &key());
    Setup { server, log, cache, watches }
}

impl Setup {
    fn requests(&self) -> Vec<String> {
        // Discovery, and jitter of how long a watch lasts, are no part of the story.
        let requests = self.server.seen().into_iter().filter(|request| request != "GET /api/v1");
        requests
            .map(|request| request.split("&timeoutSeconds").next().unwrap_or_default().to_owned())
            .collect()
    }

    fn version(&self) -> Option<String> {
        self.cache.snapshot().version(&key()).map(|version| version.as_str().to_owned())
    }
}

fn object(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "namespace": "demo", "uid": name, "resourceVersion": version.to_string()}})
}

fn page(version: u64, next: &str, objects: &[Value]) -> Reply {
    Reply::Text(
        200,
        json!({"metadata": {"resourceVersion": version.to_string(), "continue": next}, "items": objects})
            .to_string(),
    )
}

fn event(kind: &str, object: &Value) -> String {
    json!({"type": kind, "object": object}).to_string()
}

fn bookmark(version: u64) -> String {
    event("BOOKMARK", &json!({"metadata": {"resourceVersion": version.to_string()}}))
}

fn status(code: u16, reason: &str, message: &str) -> String {
    json!({"kind": "Status", "code": code, "reason": reason, "message": message}).to_string()
}

const LIST: &str = "GET /api/v1/configmaps?limit=500";
const PROBE: &str = "GET /api/v1/configmaps?limit=1";

fn watch_from(version: u64) -> String {
    format!("GET /api/v1/configmaps?watch=true&allowWatchBookmarks=true&resourceVersion={version}")
}

#[tokio::test(start_paused = true)]
async fn watch_lists_all_pages_and_follows_from_there() {
    let from_9 = watch_from(9);
    let lines = vec![
        event("MODIFIED", &object("a", 10)),
        event("MODIFIED", &object("a", 10)),
        bookmark(15),
        event("ADDED", &json!({"metadata": {}})),
        event("DELETED", &object("b", 16)),
    ];
    let setup = start(vec![
        (LIST, page(9, "next", &[object("a", 3)])),
        ("GET /api/v1/configmaps?limit=500&continue=next", page(9, "", &[object("b", 4)])),
        (&from_9, Reply::Lines(lines, End::Silent)),
    ]);
    assert_eq!(setup.watches.state(&key()), Some(WatchState::Listing));
    assert_eq!(setup.log.until(4).await, ["->a@3 ->b@4", "Live", "a@3>a@10", "b@4>-"]);
    assert_eq!(setup.version().as_deref(), Some("16"));
    assert_eq!(setup.watches.state(&key()), Some(WatchState::Live));
    let counts = setup.watches.counts()[0].1;
    assert_eq!(counts, Counts { lists: 1, watches: 1, undecodable: 1, ..Counts::default() });
}

#[tokio::test(start_paused = true)]
async fn watch_resumes_by_version_when_the_server_ends_it_or_it_is_cut() {
    let (from_9, from_10, from_15) = (watch_from(9), watch_from(10), watch_from(15));
    let setup = start(vec![
        (LIST, page(9, "", &[])),
        (&from_9, Reply::Lines(vec![event("ADDED", &object("a", 10))], End::Closed)),
        (&from_10, Reply::Lines(vec![bookmark(15)], End::Cut)),
        (PROBE, page(15, "more", &[])),
        (&from_15, Reply::Lines(vec![event("MODIFIED", &object("a", 16))], End::Silent)),
    ]);
    assert_eq!(setup.log.until(3).await, ["Live", "->a@10", "a@10>a@16"]);
    assert_eq!(setup.watches.counts()[0].1.lists, 1);
}

#[tokio::test(start_paused = true)]
async fn watch_lists_again_when_its_version_is_too_old() {
    let (from_9, from_20, from_30) = (watch_from(9), watch_from(20), watch_from(30));
    let gone = status(410, "Expired", "too old resource version");
    let setup = start(vec![
        (LIST, page(9, "", &[object("a", 3), object("b", 4)])),
        // At the start of a watch,
        (&from_9, Reply::Text(410, gone.clone())),
        (LIST, page(20, "", &[object("a", 3)])),
        (&from_20, Reply::Lines(vec![event("ERROR", &serde_json::from_str(&gone).unwrap())], End::Closed)),
        // within it, and on a later page of a list: which begins anew.
        (LIST, page(25, "next", &[object("c", 21)])),
        ("GET /api/v1/configmaps?limit=500&continue=next", Reply::Text(410, gone.clone())),
        (LIST, page(30, "", &[object("a", 3), object("d", 26)])),
        (&from_30, Reply::Lines(vec![], End::Silent)),
    ]);
    let log = setup.log.until(6).await;
    // Nobody heard of the first page of the list that broke off.
    let failing = r#"Failing("cannot list ConfigMap (v1): too old resource version")"#;
    assert_eq!(log, ["->a@3 ->b@4", "b@4>-", "Live", failing, "->d@26", "Live"]);
    assert_eq!(setup.version().as_deref(), Some("30"));
}

#[tokio::test(start_paused = true)]
async fn watch_reports_a_missing_right_and_goes_on_once_it_is_given() {
    let from_9 = watch_from(9);
    let forbidden = || {
        let message = r#"configmaps is forbidden: User "host" cannot list resource "configmaps" in API group "" at the cluster scope"#;
        Reply::Text(403, status(403, "Forbidden", message))
    };
    let started = Instant::now();
    let setup = start(vec![
        (LIST, forbidden()),
        (LIST, forbidden()),
        (LIST, page(9, "", &[object("a", 3)])),
        (&from_9, Reply::Lines(vec![], End::Silent)),
    ]);
    let log = setup.log.until(3).await;
    assert!(log[0].starts_with("Forbidden(\"configmaps is forbidden: User"), "{log:?}");
    assert_eq!(log[1..], ["->a@3", "Live"]);
    assert!(started.elapsed() <= Duration::from_secs(4), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn watch_of_a_kind_that_vanishes_drops_its_objects_until_it_is_back() {
    let (from_9, from_40) = (watch_from(9), watch_from(40));
    let resources = |kind: &str| {
        let resource =
            json!({"name": "configmaps", "singularName": "", "namespaced": true, "kind": kind, "verbs": []});
        Reply::Text(200, json!({"groupVersion": "v1", "resources": [resource]}).to_string())
    };
    let setup = start(vec![
        (LIST, page(9, "", &[object("a", 3)])),
        (&from_9, Reply::Text(404, "404 page not found\n".into())),
        ("GET /api/v1", resources("Other")),
        ("GET /api/v1", resources("ConfigMap")),
        (LIST, page(40, "", &[object("a", 3)])),
        (&from_40, Reply::Lines(vec![], End::Silent)),
    ]);
    let log = setup.log.until(2).await;
    assert_eq!(log, ["->a@3", r#"Missing("404 page not found")"#]);
    assert!(!setup.cache.snapshot().is_synced(&key()));
    let log = setup.log.until(5).await;
    assert_eq!(log[2..], [r#"Missing("the API server does not serve ConfigMap (v1)")"#, "->a@3", "Live"]);
    assert!(setup.cache.snapshot().is_synced(&key()));
}

#[tokio::test(start_paused = true)]
async fn watch_notices_a_silent_connection_within_75_seconds() {
    let (from_9, from_15) = (watch_from(9), watch_from(15));
    let started = Instant::now();
    let setup = start(vec![
        (LIST, page(9, "", &[])),
        (&from_9, Reply::Lines(vec![bookmark(15)], End::Silent)),
        (PROBE, page(15, "", &[])),
        (&from_15, Reply::Lines(vec![event("ADDED", &object("a", 16))], End::Silent)),
    ]);
    assert_eq!(setup.log.until(2).await, ["Live", "->a@16"]);
    assert!(started.elapsed() <= Duration::from_secs(76), "{:?}", started.elapsed());
    assert_eq!(setup.watches.counts()[0].1.silences, 1);
}

#[tokio::test(start_paused = true)]
async fn watch_takes_the_list_as_truth_when_history_goes_backwards() {
    let (from_90, from_50) = (watch_from(90), watch_from(50));
    for (lines, end, probe) in [(vec![], End::Cut, Some(50)), (vec![bookmark(40)], End::Silent, None)] {
        let mut script = vec![
            (LIST, page(90, "", &[object("a", 80), object("b", 3)])),
            (&*from_90, Reply::Lines(lines, end)),
        ];
        script.extend(probe.map(|version| (PROBE, page(version, "", &[]))));
        script.push((LIST, page(50, "", &[object("a", 30), object("b", 3)])));
        script.push((&from_50, Reply::Lines(vec![], End::Silent)));
        let setup = start(script);
        // Whoever waits for lists to be believed hears of the end of this one.
        let told = ["->a@80 ->b@3", "Live", "Listing", "a@80>a@30", "Live"];
        assert_eq!(setup.log.until(told.len()).await, told);
        assert_eq!(setup.watches.counts()[0].1.other_histories, 1);
        assert_eq!(setup.version().as_deref(), Some("50"));
    }
}

#[tokio::test(start_paused = true)]
async fn watch_survives_a_server_that_is_away_for_a_minute() {
    let from_9 = watch_from(9);
    let mut script = vec![(LIST, page(9, "", &[object("a", 3)])), (&*from_9, Reply::Lines(vec![], End::Cut))];
    script.extend((0..6).map(|_| (PROBE, Reply::Reset)));
    script.push((PROBE, page(20, "", &[])));
    script.push((&from_9, Reply::Lines(vec![event("DELETED", &object("a", 12))], End::Silent)));
    let setup = start(script);
    // Said once, although it failed six times.
    let failing = r#"Failing("cannot list ConfigMap (v1): connection reset")"#;
    assert_eq!(setup.log.until(5).await, ["->a@3", "Live", failing, "Live", "a@3>-"]);
}

#[tokio::test(start_paused = true)]
async fn last_release_stops_the_watch_and_drops_its_objects() {
    let from_9 = watch_from(9);
    let setup =
        start(vec![(LIST, page(9, "", &[object("a", 3)])), (&from_9, Reply::Lines(vec![], End::Silent))]);
    setup.watches.acquire("other", &key());
    setup.log.until(2).await;
    setup.watches.release("other", &key());
    setup.watches.release("nobody", &key());
    assert!(setup.cache.snapshot().is_synced(&key()));
    setup.watches.release("test", &key());
    assert!(!setup.cache.snapshot().is_synced(&key()));
    assert_eq!(setup.watches.state(&key()), None);
    timeout(Duration::from_secs(1), setup.watches.stop()).await.unwrap();
    assert_eq!(setup.requests(), [LIST.to_owned(), from_9]);
}

#[tokio::test(start_paused = true)]
async fn own_writes_before_the_first_list_are_kept() {
    let setup = start(vec![(LIST, Reply::Never)]);
    let own = crate::object::Object::decode(&key().gvk, &object("a", 5).to_string()).unwrap();
    assert_eq!(setup.cache.wrote(own).len(), 1);
    setup.watches.stop().await;
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_watch_is_reported_and_the_watch_begins_anew() {
    let from_9 = watch_from(9);
    let (server, client) = Server::start(vec![
        ("GET /api/v1", Reply::Text(200, json!({"groupVersion": "v1", "resources": [
            {"name": "configmaps", "singularName": "", "namespaced": true, "kind": "ConfigMap", "verbs": []}]}).to_string())),
        (LIST, page(9, "", &[object("a", 3)])),
        (LIST, page(9, "", &[object("a", 3)])),
        (&from_9, Reply::Lines(vec![], End::Silent)),
    ]);
    let log = Arc::new(Log::default());
    let states = Arc::clone(&log);
    let watches = Watches::new(
        client.clone(),
        Arc::new(Discovery::new(client)),
        Arc::default(),
        Arc::new(|_| panic!("a receiver's bug")),
        Arc::new(move |_, state| states.write(format!("{state:?}"))),
        7,
    );
    watches.acquire("test", &key());
    let lines = log.until(2).await;
    assert!(lines[0].starts_with("Failing(\"the watch stopped by a fault of the host"), "{lines:?}");
    assert_eq!(lines[1], "Live");
    assert_eq!(server.seen().len(), 4);
}

const AUDIT: &str = "GET /api/v1/configmaps?limit=500";

/// Runs the audit beside the watch until so many lines are logged. A watch that sends no more bookmarks than the
/// script has is silent after 75 s: audits come before.
async fn audited(setup: &Setup, lines: usize) -> Vec<String> {
    tokio::select! {
        never = setup.watches.audit(Duration::from_secs(40)) => match never {},
        lines = setup.log.until(lines) => lines,
    }
}

#[tokio::test(start_paused = true)]
async fn audit_lists_a_watch_anew_that_has_lost_an_arrival_a_change_or_a_deletion() {
    let (from_9, from_20) = (watch_from(9), watch_from(20));
    let setup = start(vec![
        (LIST, page(9, "", &[object("a", 3), object("b", 4), object("c", 5)])),
        (&from_9, Reply::Lines(vec![bookmark(15)], End::Silent)),
        // Of the arrival of d, a change of b, and the end of c nothing was heard, though of the time after.
        (AUDIT, page(14, "next", &[object("a", 3), object("b", 12)])),
        ("GET /api/v1/configmaps?limit=500&continue=next", page(14, "", &[object("d", 11)])),
        (LIST, page(20, "", &[object("a", 3), object("b", 12), object("d", 11)])),
        (&from_20, Reply::Lines(vec![], End::Silent)),
    ]);
    let log = audited(&setup, 5).await;
    assert_eq!(log, ["->a@3 ->b@4 ->c@5", "Live", "Listing", "c@5>- b@4>b@12 ->d@11", "Live"]);
    let counts = setup.watches.counts()[0].1;
    assert_eq!((counts.audits, counts.lost, counts.lists), (1, 3, 2));
}

#[tokio::test(start_paused = true)]
async fn audit_waits_for_what_is_on_its_way_and_finds_nothing_lost() {
    let from_9 = watch_from(9);
    let setup = start(vec![
        (LIST, page(9, "", &[object("a", 3), object("b", 4)])),
        (&from_9, Reply::Lines(vec![bookmark(10)], End::Silent)),
        // The list is ahead of the watch, which has gone silent.
        (AUDIT, page(14, "", &[object("a", 12)])),
        (PROBE, page(14, "", &[])),
        (
            &watch_from(10),
            Reply::Lines(
                vec![event("MODIFIED", &object("a", 12)), event("DELETED", &object("b", 13)), bookmark(15)],
                End::Silent,
            ),
        ),
    ]);
    let log = audited(&setup, 4).await;
    assert_eq!(log, ["->a@3 ->b@4", "Live", "a@3>a@12", "b@4>-"]);
    let counts = setup.watches.counts()[0].1;
    assert_eq!((counts.lost, counts.lists), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn audit_finds_an_object_that_no_list_brings_only_once() {
    let odd = json!({"metadata": {"name": "odd", "namespace": "demo", "uid": "o", "resourceVersion": "2", "labels": 7}});
    let from = [watch_from(9), watch_from(10)];
    let listed = || page(9, "", &[object("a", 3), object("odd", 2)]);
    let followed = || Reply::Lines((0..5).map(|_| bookmark(9)).collect(), End::Silent);
    let setup = start(vec![
        (LIST, page(9, "", &[object("a", 3), odd.clone()])),
        (&from[0], followed()),
        (AUDIT, listed()),
        (LIST, page(9, "", &[object("a", 3), odd])),
        (&from[0], followed()),
        (AUDIT, listed()),
        (AUDIT, listed()),
    ]);
    let audits = async {
        while setup.watches.counts()[0].1.audits < 2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        never = setup.watches.audit(Duration::from_secs(20)) => match never {},
        () = audits => {}
    }
    let counts = setup.watches.counts()[0].1;
    assert_eq!((counts.lost, counts.lists), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn other_history_that_one_watch_notices_has_all_of_them_listed_anew() {
    let secrets = WatchKey { gvk: Gvk::new("v1", "Secret"), scope: Scope::default() };
    let (from_90, from_50) = (watch_from(90), watch_from(50));
    let setup = start(vec![
        (LIST, page(90, "", &[object("a", 80)])),
        (&from_90, Reply::Lines(vec![bookmark(40)], End::Silent)),
        (LIST, page(50, "", &[object("a", 30)])),
        (&from_50, Reply::Lines(vec![], End::Silent)),
    ]);
    // Another watch's mirror, with an own write that the new history has never heard of.
    let text = |name: &str, version: u64| {
        crate::object::Object::decode(&secrets.gvk, &object(name, version).to_string()).unwrap()
    };
    let at = |version: u64| crate::object::ResourceVersion::new(&version.to_string());
    setup.cache.replace(&secrets, vec![text("s", 3)], &at(20));
    setup.cache.wrote(text("own", 85));
    setup.log.until(3).await;
    assert!(!setup.cache.snapshot().is_synced(&secrets));
    assert!(setup.cache.snapshot().is_synced(&key()));
    assert_eq!(setup.cache.snapshot().doubts([&secrets, &key()]), 2);
    setup.cache.replace(&secrets, vec![text("s", 3)], &at(50));
    let snapshot = setup.cache.snapshot();
    assert!(
        snapshot.is_synced(&secrets) && snapshot.len(&secrets) == 1,
        "the own write is of another history"
    );
    assert_eq!(setup.watches.counts()[0].1.other_histories, 1);
}

#[tokio::test(start_paused = true)]
async fn versions_that_are_no_integers_are_believed_in_the_order_of_delivery() {
    let opaque = |name: &str, version: &str| json!({"metadata": {"name": name, "namespace": "demo", "uid": name, "resourceVersion": version}});
    let page = |version: &str, objects: &[Value]| {
        let list = json!({"metadata": {"resourceVersion": version}, "items": objects});
        Reply::Text(200, list.to_string())
    };
    let from = "GET /api/v1/configmaps?watch=true&allowWatchBookmarks=true&resourceVersion=";
    let (first, second) = (format!("{from}z"), format!("{from}d"));
    let lines = vec![
        event("MODIFIED", &opaque("a", "c")),
        event("MODIFIED", &opaque("a", "c")),
        event("ADDED", &opaque("b", "d")),
    ];
    let setup = start(vec![
        (LIST, page("z", &[opaque("a", "y")])),
        (&first, Reply::Lines(lines, End::Cut)),
        (PROBE, page("e", &[])),
        (&second, Reply::Lines(vec![event("DELETED", &opaque("a", "b"))], End::Silent)),
    ]);
    assert_eq!(setup.log.until(5).await, ["->a@y", "Live", "a@y>a@c", "->b@d", "a@c>-"]);
    assert_eq!(setup.watches.counts()[0].1.other_histories, 0);
}
