//! The two that are asked.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use futures::{FutureExt, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use oarlock_sim::api::{Answer, Policy, Request, Server};
use oarlock_sim::cluster::Cluster;
use oarlock_tests::cluster::ControlPlane;
use oarlock_tests::eventually;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::ops::{KINDS, Op};
use crate::world::DEADLINE;

/// Somebody who is asked.
pub(super) trait Side {
    /// Does an operation; its answer, without what differs for good reasons.
    async fn take(&mut self, op: &Op) -> Result<Value>;
    /// What watches from the beginning on say of each kind.
    async fn events(&mut self) -> Result<Vec<String>>;
}

/// What an operation may refer to: uids and versions that were answered, by path.
struct Seen {
    namespace: String,
    uids: BTreeMap<String, String>,
    /// The last one, and the one before.
    versions: BTreeMap<String, (String, String)>,
    token: String,
}

impl Seen {
    fn new(namespace: &str) -> Self {
        let (uids, versions) = (BTreeMap::new(), BTreeMap::new());
        Self { namespace: namespace.to_owned(), uids, versions, token: String::new() }
    }

    /// Puts in what was seen: `$uid:PATH`, `$version:PATH`, `$before:PATH`, `$token`.
    fn fill(&self, text: &str) -> String {
        let Some((kind, path)) =
            text.strip_prefix('$').map(|text| text.split_once(':').unwrap_or((text, "")))
        else {
            return text.to_owned();
        };
        let version =
            |one: fn(&(String, String)) -> &String| self.versions.get(path).map(|both| one(both).clone());
        let found = match kind {
            "uid" => self.uids.get(path).cloned(),
            "version" => version(|(last, _)| last),
            "before" => version(|(_, before)| before),
            _ => Some(self.token.clone()),
        };
        found.unwrap_or_else(|| "1".to_owned())
    }

    fn fill_in(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.fill(text).into(),
            Value::Array(items) => items.iter().map(|item| self.fill_in(item)).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), self.fill_in(value))).collect()
            }
            other => other.clone(),
        }
    }

    /// The body as text.
    fn body(&self, op: &Op) -> String {
        if op.body.is_null() { String::new() } else { self.place(&self.fill_in(&op.body).to_string()) }
    }

    fn place(&self, text: &str) -> String {
        text.replace("NS", &self.namespace)
    }

    fn uri(&self, op: &Op) -> String {
        let pairs = op.query.iter().map(|(name, value)| {
            let value = self.place(&self.fill(value));
            format!(
                "{name}={}",
                percent_encoding::utf8_percent_encode(&value, percent_encoding::NON_ALPHANUMERIC)
            )
        });
        let query = pairs.collect::<Vec<_>>().join("&");
        let path = self.place(&op.path);
        if query.is_empty() { path } else { format!("{path}?{query}") }
    }

    fn learn(&mut self, op: &Op, answer: &Value) {
        let metadata = &answer["metadata"];
        if answer["items"].is_array() {
            metadata["continue"].as_str().unwrap_or_default().clone_into(&mut self.token);
        }
        let (Some(uid), Some(version), Some(name)) =
            (metadata["uid"].as_str(), metadata["resourceVersion"].as_str(), metadata["name"].as_str())
        else {
            return;
        };
        let name = name.replace(&self.namespace, "NS");
        let path = if op.method == "POST" { format!("{}/{name}", op.path) } else { op.path.clone() };
        let path = path.trim_end_matches("/status").to_owned();
        self.uids.insert(path.clone(), uid.to_owned());
        let last = self.versions.get(&path).map(|(last, _)| last.clone());
        let both = (version.to_owned(), last.unwrap_or_else(|| version.to_owned()));
        self.versions.insert(path, both);
    }
}

/// An answer as it is compared.
fn compared(code: u16, text: &str) -> Value {
    let mut answer: Value = serde_json::from_str(text).unwrap_or_else(|_| json!({"text": text}));
    if answer["kind"] == "Status" && answer["status"] == "Failure" {
        let details = &answer["details"];
        let causes = details["causes"].as_array().into_iter().flatten();
        let mut causes: Vec<_> =
            causes.map(|cause| json!([cause["reason"], cause["field"]]).to_string()).collect();
        causes.sort();
        // How often it is said differs from kind to kind.
        causes.dedup();
        return json!({
            "code": code, "reason": answer["reason"], "causes": causes, "name": details["name"],
            "group": details["group"], "kind": details["kind"],
        });
    }
    mask(&mut answer);
    json!({"code": code, "object": answer})
}

/// Takes out what follows from when and where something was made.
fn mask(value: &mut Value) {
    match value {
        Value::Object(members) => {
            let is_generated = members.contains_key("generateName");
            // Their order is that of their times, which are masked.
            if let Some(entries) = members.get_mut("managedFields").and_then(Value::as_array_mut) {
                entries.sort_by_key(|entry| {
                    ["manager", "operation", "subresource"].map(|part| entry[part].to_string())
                });
            }
            // An empty one is as good as none.
            if members.get("continue").is_some_and(|token| token == "") {
                members.remove("continue");
            }
            for (name, value) in &mut *members {
                let is_masked = matches!(
                    &**name,
                    "uid"
                        | "resourceVersion"
                        | "creationTimestamp"
                        | "deletionTimestamp"
                        | "time"
                        | "clusterIP"
                        | "clusterIPs"
                        | "continue"
                ) || (is_generated && name == "name");
                if is_masked && !value.is_null() {
                    *value = "*".into();
                }
                mask(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

/// What a watch says, if it is about the sequence: outside of namespaces, others have objects too.
fn event(line: &str, namespace: &str) -> Option<String> {
    let mut event: Value = serde_json::from_str(line).unwrap_or_default();
    let metadata = &event["object"]["metadata"];
    let is_ours = metadata["namespace"].is_string()
        || metadata["name"].as_str().is_some_and(|name| name.starts_with(&format!("{namespace}-")));
    mask(&mut event);
    is_ours.then(|| event.to_string())
}

/// The definitions that sequences use: of a kind with a status apart, of one without, of one outside of namespaces.
fn definitions() -> Result<Vec<Value>> {
    let thing: Value = serde_json::from_str(include_str!("../../sim/src/fields/thing.json"))?;
    let other = |kind: &str, plural: &str| {
        let mut other = thing.clone();
        other["metadata"]["name"] = format!("{plural}.rec.example.com").into();
        other["spec"]["names"] = json!({"kind": kind, "plural": plural, "singular": kind.to_lowercase()});
        other
    };
    let (mut plain, mut global) = (other("Plain", "plains"), other("Global", "globals"));
    if let Some(version) = plain["spec"]["versions"][0].as_object_mut() {
        version.remove("subresources");
    }
    global["spec"]["scope"] = "Cluster".into();
    Ok(vec![thing, plain, global])
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// The server in memory.
pub(super) struct Memory {
    server: Server,
    seen: Seen,
    from: u64,
}

impl Memory {
    pub(super) fn new(name: &str, lie: Option<Policy>) -> Result<Self> {
        let server = Server::new();
        for definition in definitions()? {
            server.create("tests", &definition).map_err(|status| anyhow::anyhow!("{status}"))?;
        }
        Cluster::settle(&server);
        server.create("tests", &namespace(name)).map_err(|status| anyhow::anyhow!("{status}"))?;
        if let Some(lie) = lie {
            server.add_policy(lie);
        }
        let from = server.version();
        Ok(Self { server, seen: Seen::new(name), from })
    }

    fn ask(&self, op: &Op) -> Answer {
        let body = self.seen.body(op);
        let mut request = Request::new("tests", &op.method, &self.seen.uri(op), &op.content_type, body);
        op.accept.clone_into(&mut request.accept);
        self.server.answer(&request)
    }
}

impl Side for Memory {
    async fn take(&mut self, op: &Op) -> Result<Value> {
        let Answer::Text { code, text, .. } = self.ask(op) else { anyhow::bail!("a watch") };
        self.seen.learn(op, &serde_json::from_str(&text).unwrap_or_default());
        Ok(compared(code, &text))
    }

    async fn events(&mut self) -> Result<Vec<String>> {
        let mut events = Vec::new();
        for (_, collection) in KINDS {
            for selector in ["", "l=1"] {
                let op = Op::watch(collection, selector, &self.from.to_string());
                let Answer::Watch(mut lines) = self.ask(&op) else {
                    anyhow::bail!("no watch of {collection}")
                };
                while let Some(Some(line)) = lines.next().now_or_never() {
                    events.extend(event(&line, &self.seen.namespace));
                }
            }
        }
        Ok(events)
    }
}

/// The real one.
pub(super) struct Real {
    client: Client,
    seen: Seen,
    from: String,
}

/// A client, once the definitions are in force.
async fn client(plane: &ControlPlane) -> Result<Client> {
    static DEFINED: OnceCell<()> = OnceCell::const_new();
    let content = Kubeconfig::read_from(plane.kubeconfig_admin())?;
    let mut config = Config::from_custom_kubeconfig(content, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    DEFINED
        .get_or_try_init(async || {
            let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            for definition in definitions()? {
                let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let (code, text) =
                    send(&client, "POST", all, "application/json", "", &definition.to_string()).await?;
                ensure!([201, 409].contains(&code), "{text}");
                eventually(DEADLINE, "a kind that is served", async || {
                    let (_, text) = send(&client, "GET", &format!("{all}/{name}"), "", "", "").await?;
                    let served =
                        format!("/apis/rec.example.com/v1/{}", name.split('.').next().unwrap_or_default());
                    let (code, _) = send(&client, "GET", &served, "", "", "").await?;
                    ensure!(code == 200 && text.contains("\"Established\""), "{code} {text}");
                    Ok(())
                })
                .await?;
            }
            Ok::<_, anyhow::Error>(())
        })
        .await?;
    Ok(client)
}

async fn send(
    client: &Client,
    method: &str,
    uri: &str,
    content_type: &str,
    accept: &str,
    body: &str,
) -> Result<(u16, String)> {
    let mut request = http::Request::builder().method(method).uri(uri);
    if !content_type.is_empty() {
        request = request.header(CONTENT_TYPE, content_type);
    }
    let accept = if accept.is_empty() { "application/json" } else { accept };
    let request = request.header(ACCEPT, accept).body(Body::from(body.to_owned().into_bytes()))?;
    let response = timeout(DEADLINE, client.send(request)).await.context("no answer")??;
    let code = response.status().as_u16();
    let text = timeout(DEADLINE, response.into_body().collect_bytes()).await.context("half an answer")??;
    Ok((code, String::from_utf8(text.to_vec())?))
}

impl Real {
    pub(super) async fn new(plane: &ControlPlane, name: &str) -> Result<Self> {
        let client = client(plane).await?;
        let (code, text) =
            send(&client, "POST", "/api/v1/namespaces", "application/json", "", &namespace(name).to_string())
                .await?;
        ensure!(code == 201, "{text}");
        // What a cluster puts into each namespace is there before anything is compared.
        for path in ["configmaps/kube-root-ca.crt", "serviceaccounts/default"] {
            let path = format!("/api/v1/namespaces/{name}/{path}");
            eventually(DEADLINE, "a namespace with all it has", async || {
                let (code, _) = send(&client, "GET", &path, "", "", "").await?;
                ensure!(code == 200, "{path}: {code}");
                Ok(())
            })
            .await?;
        }
        let (_, list) =
            send(&client, "GET", &format!("/api/v1/namespaces/{name}/configmaps"), "", "", "").await?;
        let list: Value = serde_json::from_str(&list)?;
        let from = list["metadata"]["resourceVersion"].as_str().context("a list has a version")?.to_owned();
        Ok(Self { client, seen: Seen::new(name), from })
    }

    async fn ask(&self, op: &Op) -> Result<(u16, String)> {
        let body = self.seen.body(op);
        send(&self.client, &op.method, &self.seen.uri(op), &op.content_type, &op.accept, &body).await
    }

    /// Lets go of everything that the sequence made.
    pub(super) async fn end(self) -> Result<()> {
        for (_, collection) in KINDS {
            let uri = collection.replace("NS", &self.seen.namespace);
            let (_, text) = send(&self.client, "GET", &uri, "", "", "").await?;
            let list: Value = serde_json::from_str(&text).unwrap_or_default();
            for item in list["items"].as_array().into_iter().flatten() {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                // Outside of namespaces, others have theirs.
                let is_ours = uri.contains("/namespaces/") || name.starts_with(&self.seen.namespace);
                if is_ours && !item["metadata"]["finalizers"].is_null() {
                    let release = json!({"metadata": {"finalizers": null}}).to_string();
                    let uri = format!("{uri}/{name}");
                    send(&self.client, "PATCH", &uri, "application/merge-patch+json", "", &release).await?;
                }
                if is_ours && !uri.contains("/namespaces/") {
                    send(&self.client, "DELETE", &format!("{uri}/{name}"), "", "", "").await?;
                }
            }
        }
        let uri = format!("/api/v1/namespaces/{}", self.seen.namespace);
        send(&self.client, "DELETE", &uri, "", "", "").await.map(drop)
    }
}

impl Side for Real {
    async fn take(&mut self, op: &Op) -> Result<Value> {
        let (code, text) = self.ask(op).await?;
        self.seen.learn(op, &serde_json::from_str(&text).unwrap_or_default());
        Ok(compared(code, &text))
    }

    async fn events(&mut self) -> Result<Vec<String>> {
        // Each takes a second, so all at once.
        let watches = KINDS.iter().flat_map(|(_, collection)| {
            ["", "l=1"].map(|selector| Op::watch(collection, selector, &self.from))
        });
        let watches: Vec<_> = watches.collect();
        let texts = try_join_all(watches.iter().map(|op| self.ask(op))).await?;
        let lines = texts.iter().flat_map(|(_, text)| text.lines());
        Ok(lines.filter_map(|line| event(line, &self.seen.namespace)).collect())
    }
}
