//! What the host relies on, against the server alone. That the answers are the real ones is checked against a real
//! control plane, in `tests/it/honesty.rs`.

use super::*;
use futures::{FutureExt, StreamExt};
use serde_json::json;

const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"a": text}})
}

fn uri(name: &str) -> String {
    format!("/api/v1/namespaces/default/configmaps{}{name}", if name.is_empty() { "" } else { "/" })
}

fn watch(server: &Server, query: &str) -> Lines {
    let asked = Asked::new("GET", &format!("/api/v1/configmaps?watch=true&{query}"), "");
    server.watch(&asked, read::Form::Whole).unwrap()
}

/// What a watch says now, shortened: `ADDED a 5`.
fn said(lines: &mut Lines) -> Vec<String> {
    let mut said = Vec::new();
    while let Some(Some(line)) = lines.next().now_or_never() {
        let event: Value = serde_json::from_str(&line).unwrap();
        let object = &event["object"];
        let name = text(object, "/metadata/name");
        let version = text(object, "/metadata/resourceVersion");
        said.push(format!("{} {name} {version}", text(&event, "/type")));
    }
    said
}

#[tokio::test(start_paused = true)]
async fn writes_are_seen_by_reads_and_watches_and_change_nothing_twice() {
    let server = Server::new();
    let mut lines = watch(&server, &format!("resourceVersion={}", server.version()));
    let from = server.version();
    let made = server.create("u", &config_map("a", "1")).unwrap();
    assert_eq!(text(&made, "/metadata/resourceVersion"), (from + 1).to_string());
    assert_eq!(text(&made, "/metadata/creationTimestamp"), EPOCH);
    assert_eq!(server.create("u", &config_map("a", "1")).unwrap_err()["reason"], "AlreadyExists");
    for _ in 0..2 {
        let (code, applied) = server.ask(
            "u",
            "PATCH",
            &format!("{}?fieldManager=m&force=true", uri("a")),
            APPLY,
            &config_map("a", "2"),
        );
        assert_eq!((code, text(&applied, "/metadata/resourceVersion")), (200, &*(from + 2).to_string()));
    }
    let (code, _) = server.ask("u", "DELETE", &uri("a"), JSON, &json!({"preconditions": {"uid": "other"}}));
    assert_eq!(code, 409);
    assert_eq!(server.ask("u", "DELETE", &uri("a"), JSON, &Value::Null).0, 200);
    assert_eq!(server.ask("u", "GET", &uri("a"), "", &Value::Null).1["details"]["name"], "a");
    let told = [("ADDED", 1), ("MODIFIED", 2), ("DELETED", 3)];
    let told = told.map(|(event, later)| format!("{event} a {}", from + later));
    assert_eq!(said(&mut lines), told);
}

#[tokio::test(start_paused = true)]
async fn lists_go_on_from_one_moment_until_the_log_is_compacted() {
    let server = Server::new();
    for name in ["a", "b", "c", "d"] {
        server.create("u", &config_map(name, "")).unwrap();
    }
    let page = |token: &str| {
        server.ask("u", "GET", &format!("/api/v1/configmaps?limit=2&continue={token}"), "", &Value::Null)
    };
    let names = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| text(item, "/metadata/name").to_owned()).collect::<Vec<_>>()
    };
    let (_, first) = page("");
    assert_eq!((names(&first).join(""), &first["metadata"]["remainingItemCount"]), ("ab".into(), &json!(2)));
    let token = text(&first, "/metadata/continue").to_owned();
    server.ask("u", "DELETE", &uri("c"), JSON, &Value::Null);
    let (_, second) = page(&token);
    assert_eq!((names(&second).join(""), &second["metadata"]["continue"]), ("cd".into(), &Value::Null));
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    server.compact();
    assert_eq!((page(&token).0, text(&page(&token).1, "/reason")), (410, "Expired"));
}

#[tokio::test(start_paused = true)]
async fn watches_know_selectors_bookmarks_compaction_and_their_end() {
    let server = Server::new();
    let from = server.version();
    let mut lines = watch(
        &server,
        &format!("resourceVersion={from}&labelSelector=x%3D1&allowWatchBookmarks=true&timeoutSeconds=90"),
    );
    let labelled = |label: &str| json!({"metadata": {"labels": {"x": label}}});
    server.create("u", &config_map("a", "")).unwrap();
    for label in ["1", "2"] {
        server.ask("u", "PATCH", &uri("a"), "application/merge-patch+json", &labelled(label));
    }
    assert_eq!(said(&mut lines), [format!("ADDED a {}", from + 2), format!("DELETED a {}", from + 3)]);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(said(&mut lines), [format!("BOOKMARK  {}", from + 3)]);
    // An open watch has had everything; a new one from before has not.
    server.create("u", &config_map("b", "")).unwrap();
    server.compact();
    assert_eq!(said(&mut lines), Vec::<String>::new());
    let mut late = watch(&server, &format!("resourceVersion={from}"));
    let error: Value = serde_json::from_str(&late.next().await.unwrap()).unwrap();
    assert_eq!((text(&error, "/type"), &error["object"]["code"]), ("ERROR", &json!(410)));
    assert!(late.next().await.is_none());
    server.set_expiry_as_status(true);
    let uri = format!("/api/v1/configmaps?watch=1&resourceVersion={from}");
    assert_eq!(server.ask("u", "GET", &uri, "", &Value::Null).0, 410);
    let (code, status) =
        server.ask("u", "GET", "/api/v1/configmaps?watch=1&resourceVersion=99", "", &Value::Null);
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (504, &json!("ResourceVersionTooLarge")));
    // Its time is over after 90 s.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(lines.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_restored_backup_ends_watches_and_takes_versions_back() {
    let server = Server::new();
    let backup = server.backup();
    server.create("u", &config_map("a", "")).unwrap();
    let mut lines = watch(&server, &format!("resourceVersion={}", server.version()));
    server.restore(backup);
    assert!(lines.next().await.is_none());
    assert!(server.object("configmaps", "default", "a").is_none());
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_and_nobody_adds_one_to_what_goes() {
    let server = Server::new();
    let mut held = config_map("a", "");
    held["metadata"]["finalizers"] = json!(["e.io/x"]);
    server.create("u", &held).unwrap();
    let (code, going) = server.ask("u", "DELETE", &uri("a"), JSON, &Value::Null);
    assert_eq!((code, text(&going, "/metadata/deletionTimestamp")), (200, EPOCH));
    let version = server.version();
    server.ask("u", "DELETE", &uri("a"), JSON, &Value::Null);
    assert_eq!(server.version(), version);
    let merge = |body: Value| server.ask("u", "PATCH", &uri("a"), "application/merge-patch+json", &body);
    let (code, refused) = merge(json!({"metadata": {"finalizers": ["e.io/x", "e.io/y"]}}));
    assert_eq!((code, text(&refused, "/details/causes/0/field")), (422, "metadata.finalizers"));
    assert_eq!(merge(json!({"metadata": {"finalizers": null}})).0, 200);
    assert!(server.object("configmaps", "default", "a").is_none());
}

#[tokio::test(start_paused = true)]
async fn rights_policies_quotas_and_namespaces_that_end_stand_against_writes() {
    let server = Server::new();
    let refused = |name: &str| {
        let status = server.create("u", &config_map(name, "")).unwrap_err();
        (status["code"].as_u64().unwrap(), text(&status, "/message").to_owned())
    };
    server.set_rights("u", Rights::without(&["create configmaps"]));
    assert_eq!(refused("a").0, 403);
    server.set_rights("u", Rights::all());
    let policy = |name: &str, verdict| Policy {
        name: name.into(),
        resource: "configmaps".into(),
        prefix: "d".into(),
        verdict,
    };
    server.add_policy(policy("no", Verdict::Deny("not today".into())));
    assert!(refused("d1").1.ends_with("denied request: not today"));
    server.remove_policy("no");
    server.add_policy(policy("mark", Verdict::Set("/metadata/annotations/by".into(), "p".into())));
    assert_eq!(server.create("u", &config_map("d1", "")).unwrap()["metadata"]["annotations"]["by"], "p");
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {"count/configmaps": "1"}}});
    server.create("u", &quota).unwrap();
    assert!(refused("e").1.contains("exceeded quota: q, "));
    server.ask("u", "DELETE", "/api/v1/namespaces/default", JSON, &Value::Null);
    assert_eq!(refused("e").0, 403);
    let mut elsewhere = config_map("e", "");
    elsewhere["metadata"]["namespace"] = "nowhere".into();
    assert_eq!(server.create("u", &elsewhere).unwrap_err()["details"]["kind"], "namespaces");
}

#[tokio::test(start_paused = true)]
async fn a_kube_client_works_with_it() {
    use k8s_openapi::api::core::v1::ConfigMap;
    let server = Server::new();
    let api: kube::Api<ConfigMap> = kube::Api::namespaced(server.client("u"), "default");
    let made = serde_json::from_value(config_map("a", "1")).unwrap();
    api.create(&kube::api::PostParams::default(), &made).await.unwrap();
    let params = kube::api::WatchParams::default();
    let mut events = api.watch(&params, "0").await.unwrap().boxed();
    let event = events.next().await.unwrap().unwrap();
    assert!(matches!(event, kube::api::WatchEvent::Added(object) if object.data.is_some()));
    let error = api.get("b").await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.is_not_found()));
}
