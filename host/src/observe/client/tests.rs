use super::{
    mock::{End, Reply, Server, collect},
    *,
};
use crate::object::Gvk;
use std::sync::Mutex;

fn kind(api_version: &str, kind: &str, plural: &str, namespaced: bool) -> Kind {
    Kind { gvk: Gvk::new(api_version, kind), plural: plural.into(), namespaced, status: None }
}

fn widgets() -> Kind {
    kind("cases.example.com/v1", "Widget", "widgets", true)
}

fn key(kind: &Kind, namespace: Option<&str>, name: &str) -> ObjectKey {
    ObjectKey { gvk: kind.gvk.clone(), namespace: namespace.map(Into::into), name: name.into() }
}

fn json(code: u16, value: &serde_json::Value) -> Reply {
    Reply::Text(code, value.to_string())
}

fn object(name: &str, version: u64) -> serde_json::Value {
    serde_json::json!({"metadata": {"name": name, "namespace": "demo", "resourceVersion": version.to_string()}})
}

fn not_found() -> Reply {
    json(
        404,
        &serde_json::json!({"reason": "NotFound", "message": "widgets \"w\" not found", "details": {"name": "w"}}),
    )
}

const SCOPED: fn() -> Scope =
    || Scope { namespace: Some("demo".into()), label_selector: Some("a in (b,c)".into()) };

#[tokio::test]
async fn requests_name_the_path_of_the_kind_and_its_scope() {
    let (core, nodes) = (kind("v1", "ConfigMap", "configmaps", true), kind("v1", "Node", "nodes", false));
    let apply = |status| Apply { manager: "oarlock/x", force: true, status, body: "{}" };
    let answer = || json(200, &object("w", 1));
    let page = || json(200, &serde_json::json!({"metadata": {"resourceVersion": "7"}, "items": []}));
    let (server, client) = Server::start(vec![
        ("GET", answer()),
        ("GET", answer()),
        ("GET", answer()),
        ("PATCH", answer()),
        ("PATCH", answer()),
        ("PATCH", answer()),
        ("DELETE", answer()),
        ("GET", page()),
        ("GET", page()),
        ("GET", page()),
        ("GET", Reply::Lines(vec![], End::Closed)),
        ("GET", Reply::Text(200, "text".into())),
    ]);
    client.get(&core, &key(&core, Some("demo"), "c")).await.unwrap();
    // The namespace of a cluster-scoped kind's key is nobody's.
    client.get(&nodes, &key(&nodes, Some("demo"), "system:n")).await.unwrap();
    client.peek(&widgets(), &key(&widgets(), Some("demo"), "w")).await.unwrap();
    client.apply(&widgets(), &key(&widgets(), Some("demo"), "w"), apply(false)).await.unwrap();
    client.apply(&nodes, &key(&nodes, None, "n"), apply(true)).await.unwrap();
    client.json_patch(&nodes, &key(&nodes, None, "n"), "[]").await.unwrap();
    client.delete(&widgets(), &key(&widgets(), Some("demo"), "w"), "u-1").await.unwrap();
    client.list(&widgets(), &SCOPED(), Some("c+/=")).await.unwrap();
    client.list(&nodes, &SCOPED(), None).await.unwrap();
    client.current_version(&widgets(), &Scope::default()).await.unwrap();
    client.watch(&widgets(), &Scope::default(), &ResourceVersion::new("7"), 290).await.map(drop).unwrap();
    assert_eq!(client.raw_get("/openapi/v3").await.unwrap(), "text");
    let widget = "/apis/cases.example.com/v1/namespaces/demo/widgets";
    let apply = "fieldManager=oarlock%2Fx&force=true&fieldValidation=Strict&timeout=8s application/apply-patch+yaml {}";
    let patch = "fieldManager=oarlock&fieldValidation=Strict&timeout=8s";
    assert_eq!(
        server.seen(),
        [
            "GET /api/v1/namespaces/demo/configmaps/c".to_owned(),
            "GET /api/v1/nodes/system%3An".into(),
            format!("GET {widget}/w?resourceVersion=0"),
            format!("PATCH {widget}/w?{apply}"),
            format!("PATCH /api/v1/nodes/n/status?{apply}"),
            format!("PATCH /api/v1/nodes/n?{patch} application/json-patch+json []"),
            format!(
                "DELETE {widget}/w?timeout=8s application/json {}",
                r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"u-1"},"propagationPolicy":"Background"}"#
            ),
            format!("GET {widget}?limit=500&labelSelector=a%20in%20%28b%2Cc%29&continue=c%2B%2F%3D"),
            "GET /api/v1/nodes?limit=500&labelSelector=a%20in%20%28b%2Cc%29".into(),
            "GET /apis/cases.example.com/v1/widgets?limit=1".into(),
            "GET /apis/cases.example.com/v1/widgets?watch=true&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=290".into(),
            "GET /openapi/v3".into(),
        ]
    );
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused_before_any_request() {
    let (server, client) = Server::start(vec![]);
    for (namespace, name) in [
        (Some("demo"), ".."),
        (Some("demo"), "a/status"),
        (Some("demo"), "a%2Fstatus"),
        (Some("demo"), ""),
        (Some("../kube-system"), "a"),
        (None, "a"),
    ] {
        let error = client.get(&widgets(), &key(&widgets(), namespace, name)).await.unwrap_err();
        assert!(matches!(error.answer, Answer::Invalid(_)), "{namespace:?} {name:?}: {error}");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn what_is_gone_is_no_error() {
    let (_server, client) = Server::start(vec![
        ("GET", not_found()),
        ("GET", not_found()),
        ("DELETE", not_found()),
        ("PATCH", not_found()),
    ]);
    let (kind, key) = (widgets(), key(&widgets(), Some("demo"), "w"));
    assert!(client.get(&kind, &key).await.unwrap().is_none());
    assert!(client.peek(&kind, &key).await.unwrap().is_none());
    client.delete(&kind, &key, "u-1").await.unwrap();
    let error = client.json_patch(&kind, &key, "[]").await.unwrap_err();
    assert_eq!(error.answer, Answer::NotFound);
    assert_eq!(error.to_string(), r#"cannot patch Widget demo/w: widgets "w" not found"#);
}

#[tokio::test(start_paused = true)]
async fn failures_on_the_way_are_told_apart() {
    let gone = r#"{"reason":"Conflict","message":"Precondition failed: UID in precondition: u-1, UID in object meta: u-2"}"#;
    let busy =
        r#"{"reason":"TooManyRequests","message":"too many requests","details":{"retryAfterSeconds":3}}"#;
    let rows = [
        (Reply::Reset, Answer::Connection, None),
        (Reply::Never, Answer::Timeout, None),
        (Reply::Lines(vec!["{".into()], End::Cut), Answer::Connection, None),
        (Reply::Lines(vec!["{".into()], End::Silent), Answer::Timeout, None),
        (Reply::Text(200, "{".into()), Answer::Undecodable, None),
        (Reply::Text(200, "x".repeat(OBJECT_BYTES + 1)), Answer::Undecodable, None),
        (Reply::Text(502, "<html>".into()), Answer::Unavailable, None),
        (Reply::Text(409, gone.into()), Answer::UidMismatch, None),
        (Reply::Text(429, busy.into()), Answer::TooManyRequests, Some(3)),
        (Reply::Headed(429, "retry-after", "7", busy.into()), Answer::TooManyRequests, Some(7)),
    ];
    for (reply, answer, retry_after) in rows {
        let (server, client) = Server::start(vec![("PATCH", reply)]);
        let error =
            client.json_patch(&widgets(), &key(&widgets(), Some("demo"), "w"), "[]").await.unwrap_err();
        assert_eq!(
            (error.answer.clone(), error.retry_after.map(|after| after.as_secs())),
            (answer, retry_after),
            "{error}"
        );
        assert_eq!(server.seen().len(), 1, "one attempt");
    }
}

#[tokio::test]
async fn closed_gate_stops_every_write_and_no_read() {
    let (server, client) = Server::start(vec![("GET", not_found()), ("DELETE", not_found())]);
    let (kind, key) = (widgets(), key(&widgets(), Some("demo"), "w"));
    let apply = Apply { manager: "oarlock/x", force: false, status: false, body: "{}" };
    client.clone().gate().close();
    let errors = [
        client.apply(&kind, &key, apply).await.unwrap_err(),
        client.json_patch(&kind, &key, "[]").await.unwrap_err(),
        client.delete(&kind, &key, "u-1").await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.answer == Answer::GateClosed));
    client.get(&kind, &key).await.unwrap();
    client.gate().open();
    client.delete(&kind, &key, "u-1").await.unwrap();
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn observer_is_told_of_every_request() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let (_server, client) =
        Server::start(vec![("GET", not_found()), ("GET", Reply::Text(200, String::new()))]);
    let client = client.observed(Arc::new(move |verb, kind, answer| {
        tell.lock().unwrap().push(format!("{verb} {kind} {}", answer.map_or("ok", Answer::as_str)));
    }));
    client.get(&widgets(), &key(&widgets(), Some("demo"), "w")).await.unwrap();
    client.raw_get("/api/v1").await.unwrap();
    assert_eq!(*told.lock().unwrap(), ["get Widget.cases.example.com not_found", "get  ok"]);
}

#[tokio::test]
async fn watch_delivers_until_the_server_ends_it_or_an_error_does() {
    let line = |kind: &str, object: &serde_json::Value| {
        serde_json::json!({"type": kind, "object": object}).to_string()
    };
    let lines = vec![
        line("ADDED", &object("a", 5)),
        line("BOOKMARK", &object("", 9)),
        line("DELETED", &object("a", 10)),
    ];
    let error = line("ERROR", &serde_json::json!({"code": 410, "reason": "Expired", "message": "too old"}));
    let after_error = vec![error, line("ADDED", &object("b", 5))];
    let show = |delivery| match delivery {
        Delivery::Applied(object) => format!("applied {}", object.key.name),
        Delivery::Deleted(object) => format!("deleted {}", object.key.name),
        Delivery::Bookmark(version) => format!("at {}", version.as_str()),
        Delivery::Undecodable(why) => why,
    };
    let rows = [
        (Reply::Lines(lines.clone(), End::Closed), vec!["applied a", "at 9", "deleted a"]),
        (
            Reply::Lines(lines[..1].to_vec(), End::Cut),
            vec!["applied a", "Connection: cannot watch Widget (cases.example.com/v1): "],
        ),
        (
            Reply::Lines(after_error, End::Closed),
            vec!["Expired: cannot watch Widget (cases.example.com/v1): too old"],
        ),
        (
            Reply::Text(200, "{\"type\":\"ADDED\"".into()),
            vec!["Connection: cannot watch Widget (cases.example.com/v1): the conn"],
        ),
        (Reply::Text(200, "<html>\n{}\n".into()), vec!["Undecodable: cannot watch "]),
    ];
    for (reply, expected) in rows {
        let (_server, client) = Server::start(vec![("GET", reply)]);
        let stream =
            client.watch(&widgets(), &Scope::default(), &ResourceVersion::new("1"), 290).await.unwrap();
        let items = collect(stream, show).await;
        assert_eq!(items.len(), expected.len(), "{items:?}");
        for (item, expected) in items.iter().zip(expected) {
            assert!(item.starts_with(expected), "{item}");
        }
    }
}

#[tokio::test]
async fn watch_that_is_refused_is_an_error_at_once() {
    let (_server, client) =
        Server::start(vec![("GET", Reply::Text(410, r#"{"reason":"Gone","message":"too old"}"#.into()))]);
    let watch = client.watch(&widgets(), &Scope::default(), &ResourceVersion::new("1"), 290).await;
    assert_eq!(watch.map(drop).unwrap_err().answer, Answer::Expired);
}
