//! The way to the host: through the API server to its pod, or straight to an address.

use crate::{
    cli::{
        Failure,
        cluster::{Ask, Cluster, root_cause},
    },
    operate::explain::{Problem, Question},
};
use anyhow::{Context as _, anyhow};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Config, api::ListParams, client::Body, core::Status};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;

/// The host's pods, as in `deploy/deployment.yaml`.
const LABELS: &str = "app.kubernetes.io/name=oarlock";
/// The name of its port there.
const PORT: &str = "metrics";
/// The port where a pod names none.
const DEFAULT_PORT: i32 = 8080;
/// A host answers at once, if it is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks a host at an address.
///
/// # Errors
/// Nobody answers there, or the host knows of no such object; said with what to do.
pub(super) async fn admin(url: &str, question: &Question) -> anyhow::Result<String> {
    let unreachable = || {
        Failure::new(
            format!("no host answers at {url}"),
            "is it running, and is this what its option --admin says? its log names the address",
        )
    };
    let base = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let mut config = Config::new(base.parse().with_context(unreachable)?);
    config.connect_timeout = Some(PATIENCE);
    config.read_timeout = Some(PATIENCE);
    let client =
        kube::Client::try_from(config).map_err(|error| anyhow!(root_cause(&error)).context(unreachable()))?;
    let (status, body) = send(&client, &format!("/explain?{}", query(question)))
        .await
        .map_err(|error| anyhow!(root_cause(&error)).context(unreachable()))?;
    if status.is_success() {
        return Ok(body);
    }
    Err(problem(&body).unwrap_or_else(|| anyhow!("{status} {body}").context(unreachable())))
}

/// Asks the host's pod, through the API server.
///
/// # Errors
/// There is no host, it cannot be reached that way, or it knows of no such object; said with what to do.
pub(super) async fn pod(cluster: &Cluster, namespace: &str, question: &Question) -> anyhow::Result<String> {
    let list = Ask { verb: "list", resource: "pods", namespace: Some(namespace) };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let pods = cluster.ask(list, pods.list(&ListParams::default().labels(LABELS))).await?;
    let pod = choose(&pods.items, namespace)?;
    let get = Ask { verb: "get", resource: "pods/proxy", namespace: Some(namespace) };
    let path = proxy_path(namespace, pod, question);
    let (status, body) = cluster.ask(get, send(&cluster.client, &path)).await?;
    if status.is_success() {
        return Ok(body);
    }
    Err(problem(&body).unwrap_or_else(|| refused(namespace, name(pod), status, &body)))
}

/// The first that is ready, or runs at least.
fn choose<'a>(pods: &'a [Pod], namespace: &str) -> anyhow::Result<&'a Pod> {
    let by_hand = "for a host started by hand give its address, --admin http://127.0.0.1:8080";
    let status = |pod: &'a Pod| pod.status.as_ref();
    let phase = |pod| status(pod).and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let is_ready = |pod| {
        let conditions = status(pod).and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    };
    let alive = || pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let running = alive().filter(|pod| phase(pod) == "Running");
    match (running.min_by_key(|pod| (!is_ready(pod), name(pod))), alive().next()) {
        (Some(pod), _) => Ok(pod),
        (None, Some(pod)) => Err(Failure::new(
            format!("the host does not run: pod {namespace}/{} is {}", name(pod), phase(pod)),
            format!("see why: kubectl -n {namespace} describe pod {}", name(pod)),
        )
        .into()),
        (None, None) => Err(Failure::new(
            format!("no host runs in namespace {namespace}: no pod there has the label {LABELS}"),
            format!("name the host's namespace with --host-namespace; {by_hand}"),
        )
        .into()),
    }
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The path to `/explain` of a pod.
fn proxy_path(namespace: &str, pod: &Pod, question: &Question) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports
        .find(|port| port.name.as_deref() == Some(PORT))
        .map_or(DEFAULT_PORT, |port| port.container_port);
    format!("/api/v1/namespaces/{namespace}/pods/{}:{port}/proxy/explain?{}", name(pod), query(question))
}

fn query(question: &Question) -> String {
    let Question { kind, namespace, name, plugin } = question;
    let mut pairs = vec![("kind", kind), ("namespace", namespace), ("name", name)];
    pairs.extend(plugin.iter().map(|plugin| ("plugin", plugin)));
    let encoded =
        pairs.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    encoded.collect::<Vec<_>>().join("&")
}

/// One request, and its answer whatever its status.
async fn send(client: &kube::Client, path: &str) -> kube::Result<(StatusCode, String)> {
    let request = Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// What the host says where it has no explanation.
fn problem(body: &str) -> Option<anyhow::Error> {
    let Problem { error, help } = serde_json::from_str(body).ok()?;
    Some(Failure::new(error, help).into())
}

/// What the API server says where it does not pass the question on, or the pod where it knows no `/explain`.
fn refused(namespace: &str, pod: &str, status: StatusCode, body: &str) -> anyhow::Error {
    let said =
        serde_json::from_str::<Status>(body).map_or_else(|_| body.trim().to_owned(), |status| status.message);
    let forward =
        format!("kubectl -n {namespace} port-forward {pod} 8080, then --admin http://127.0.0.1:8080");
    let failure = if status == StatusCode::FORBIDDEN {
        Failure::new(
            format!("not allowed to get pods/proxy in namespace {namespace}"),
            format!(
                "ask for the right; `kubectl auth can-i get pods --subresource=proxy -n {namespace}` tells whether \
                 you have it; with pods/portforward instead: {forward}"
            ),
        )
    } else {
        Failure::new(
            format!("the host does not answer through the API server: pod {namespace}/{pod}"),
            format!("try without it: {forward}"),
        )
    };
    anyhow!("{status} {said}").context(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, phase: &str, ready: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [
                {"name": "sidecar", "ports": [{"name": "admin", "containerPort": 1}]},
                {"name": "oarlock", "ports": [{"name": "metrics", "containerPort": 9090}]},
            ]},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pod_is_found_and_asked_as_deploy_makes_it() {
        let deployment = include_str!("../../../../deploy/deployment.yaml");
        let (label, value) = LABELS.split_once('=').unwrap();
        assert!(deployment.contains(&format!("      labels:\n        {label}: {value}\n")), "{deployment}");
        let port = format!("- name: {PORT}\n          containerPort: {DEFAULT_PORT}\n");
        assert!(deployment.contains(&port), "{deployment}");
    }

    #[test]
    fn proxy_path_names_pod_and_port_and_carries_any_text() {
        let question = Question {
            kind: "websites.demo.oarlock.dev".into(),
            namespace: "demo".into(),
            name: "a&b=c".into(),
            plugin: Some("website".into()),
        };
        let asked =
            "explain?kind=websites%2Edemo%2Eoarlock%2Edev&namespace=demo&name=a%26b%3Dc&plugin=website";
        let path = proxy_path("oarlock-system", &pod("oarlock-7", "Running", "True"), &question);
        assert_eq!(path, format!("/api/v1/namespaces/oarlock-system/pods/oarlock-7:9090/proxy/{asked}"));
        let path = proxy_path("ns", &Pod::default(), &Question::default());
        assert_eq!(path, "/api/v1/namespaces/ns/pods/:8080/proxy/explain?kind=&namespace=&name=");
    }

    #[test]
    fn pod_is_one_that_is_ready_or_runs_at_least() {
        let (down, up, ready) =
            (pod("a", "Pending", "False"), pod("b", "Running", "False"), pod("c", "Running", "True"));
        let mut leaving = pod("0", "Running", "True");
        leaving.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let chosen = |pods: &[&Pod]| {
            let pods: Vec<Pod> = pods.iter().map(|pod| (*pod).clone()).collect();
            choose(&pods, "ns")
                .map(|pod| name(pod).to_owned())
                .map_err(|error| format!("{error}; {}", error.downcast_ref::<Failure>().unwrap().help))
        };
        assert_eq!(chosen(&[&leaving, &down, &up, &ready]), Ok("c".to_owned()));
        assert_eq!(chosen(&[&down, &up]), Ok("b".to_owned()));
        let error = chosen(&[&down]).unwrap_err();
        assert!(error.contains("pod ns/a is Pending; see why: kubectl -n ns describe pod a"), "{error}");
        for none in [&[][..], &[&leaving]] {
            let error = chosen(none).unwrap_err();
            assert!(error.contains("no host runs in namespace ns") && error.contains("--admin"), "{error}");
        }
    }

    #[test]
    fn refusals_are_told_with_a_remedy() {
        let status = |code: u16, message: &str| {
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message});
            let error = refused("ns", "p", StatusCode::from_u16(code).unwrap(), &body.to_string());
            let help = error.downcast_ref::<Failure>().unwrap().help.clone();
            (error.to_string(), error.root_cause().to_string(), help)
        };
        let (what, cause, help) = status(403, "pods \"p\" is forbidden");
        assert_eq!(what, "not allowed to get pods/proxy in namespace ns");
        assert!(cause.contains("is forbidden") && help.contains("--subresource=proxy"), "{cause}; {help}");
        let (what, cause, help) = status(400, "address not allowed");
        assert!(what.ends_with("pod ns/p") && cause.ends_with("address not allowed"), "{what}; {cause}");
        assert!(
            help.contains("kubectl -n ns port-forward p 8080, then --admin http://127.0.0.1:8080"),
            "{help}"
        );
        // A host that knows no such question.
        let error = refused("ns", "p", StatusCode::NOT_FOUND, "");
        assert!(error.root_cause().to_string().contains("404"), "{error:#}");
    }

    #[tokio::test]
    async fn address_where_nobody_is_is_named() {
        let error = admin("127.0.0.1:1", &Question::default()).await.unwrap_err();
        assert_eq!(error.to_string(), "no host answers at 127.0.0.1:1");
        assert!(error.root_cause().to_string().contains("refused"), "{error:#}");
    }
}
