//! What a cluster does by itself, once each.

use super::*;
use tokio::time::sleep;

fn config_map(name: &str, owner: Option<&Value>) -> Value {
    let mut object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
    if let Some(owner) = owner {
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": true,
        }]);
    }
    object
}

fn start() -> (Server, tokio::task::JoinHandle<Infallible>) {
    let server = Server::new();
    let task = tokio::spawn(Cluster::new(&server, 1).run());
    (server, task)
}

async fn pass() {
    sleep(Duration::from_secs(30)).await;
}

fn names(server: &Server) -> Vec<String> {
    server.objects("configmaps").keys().map(|(_, name)| name.clone()).collect()
}

fn delete(server: &Server, name: &str, policy: &str) {
    let uri = format!("/api/v1/namespaces/default/configmaps/{name}");
    server.ask(ADMIN, "DELETE", &uri, JSON, &json!({"propagationPolicy": policy}));
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_owner_or_stay_as_it_was_deleted() {
    for (policy, left) in [("Background", vec![]), ("Foreground", vec![]), ("Orphan", vec!["b", "c"])] {
        let (server, _task) = start();
        let owner = server.create("u", &config_map("a", None)).unwrap();
        let middle = server.create("u", &config_map("b", Some(&owner))).unwrap();
        server.create("u", &config_map("c", Some(&middle))).unwrap();
        pass().await;
        assert_eq!(names(&server), ["a", "b", "c"]);
        delete(&server, "a", policy);
        if policy == "Foreground" {
            assert!(server.object("configmaps", "default", "a").is_some(), "it waits for what it owns");
        }
        pass().await;
        assert_eq!(names(&server), left, "{policy}");
    }
    // An owner that never was.
    let (server, _task) = start();
    let ghost = json!({"metadata": {"name": "g", "uid": "ghost"}});
    server.create("u", &config_map("d", Some(&ghost))).unwrap();
    pass().await;
    assert_eq!(names(&server), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn namespaces_and_definitions_take_their_objects_along() {
    let (server, _task) = start();
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "toys.e.io"},
        "spec": {"group": "e.io", "scope": "Namespaced", "names": {"kind": "Toy", "plural": "toys", "singular": "toy", "listKind": "ToyList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]},
    });
    server.create("u", &crd).unwrap();
    let toy = |name: &str| json!({"apiVersion": "e.io/v1", "kind": "Toy", "metadata": {"name": name, "namespace": "x"}});
    assert!(server.create("u", &toy("t")).is_err(), "it is not served yet");
    pass().await;
    server.create("u", &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}})).unwrap();
    server.create("u", &toy("t")).unwrap();
    assert_eq!(server.ask("u", "GET", "/openapi/v3/apis/e.io/v1", "", &Value::Null).0, 200);
    server.ask("u", "DELETE", "/api/v1/namespaces/x", JSON, &Value::Null);
    pass().await;
    assert!(server.object("namespaces", "", "x").is_none() && server.objects("toys.e.io").is_empty());

    let in_default =
        json!({"apiVersion": "e.io/v1", "kind": "Toy", "metadata": {"name": "t", "namespace": "default"}});
    server.create("u", &in_default).unwrap();
    let uri = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/toys.e.io";
    server.ask("u", "DELETE", uri, JSON, &Value::Null);
    pass().await;
    assert!(server.objects("toys.e.io").is_empty() && server.kind("toys.e.io").is_none());
    assert_eq!(server.ask("u", "GET", "/apis/e.io/v1", "", &Value::Null).0, 404);
}

#[tokio::test(start_paused = true)]
async fn workloads_become_ready_and_then_nothing_happens() {
    let (server, _task) = start();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "i"}]}});
    let selector = json!({"matchLabels": {"a": "b"}});
    let metadata = |name: &str| json!({"name": name, "namespace": "default"});
    let mut once = template.clone();
    once["spec"]["restartPolicy"] = "Never".into();
    for object in [
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("d"), "spec": {"replicas": 2, "selector": selector, "template": template}}),
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata("s"), "spec": {"serviceName": "s", "selector": selector, "template": template}}),
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata("j"), "spec": {"template": once}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata("p"), "spec": template["spec"]}),
    ] {
        server.create("u", &object).unwrap();
    }
    pass().await;
    let status =
        |resource: &str, name: &str| server.object(resource, "default", name).unwrap()["status"].clone();
    assert_eq!(status("deployments.apps", "d")["availableReplicas"], 2);
    assert_eq!(status("statefulsets.apps", "s")["readyReplicas"], 1);
    assert_eq!(status("jobs.batch", "j")["conditions"][1]["type"], "Complete");
    assert_eq!(status("pods", "p")["conditions"][0]["type"], "Ready");
    let version = server.version();
    pass().await;
    assert_eq!(server.version(), version);
}
