//! What tests are made of: a control plane with a host, a namespace, objects as JSON, and polls that explain
//! themselves.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client};
use oarlock_tests::audit::{Audit, Mark, Request};
use oarlock_tests::cluster::ControlPlane;
use oarlock_tests::host::{self, Host, NAMESPACE, Options};
use oarlock_tests::{eventually, throughout};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Generous: it is only used up by what fails.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// The root of the repository.
pub(crate) const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A namespace in a control plane.
pub(crate) struct World {
    /// The control plane.
    pub(crate) plane: &'static ControlPlane,
    /// May do everything.
    pub(crate) client: Client,
    /// The test's own.
    pub(crate) namespace: String,
}

/// A control plane for one test at a time, which starts and stops hosts as it likes; none runs at first.
///
/// There are two, as tests that wait for their turn are most of the time that a run takes.
pub(crate) struct Lab {
    /// A namespace in it.
    pub(crate) world: World,
    _turn: MutexGuard<'static, ()>,
}

/// The host of most tests, with the plugins `widget` and `website`, see [`website`].
pub(crate) async fn shared_host() -> Result<&'static Host> {
    static HOST: OnceCell<Host> = OnceCell::const_new();
    HOST.get_or_try_init(async || {
        let plane = ControlPlane::shared().await?;
        install(plane)?;
        let host = Host::start(plane, &Options::standard(plane))?;
        host.ready().await?;
        let world = World::within(plane, NAMESPACE).await?;
        world.plugin("widget", "widget").await?;
        world.permit("widget", json!({"adopt": true})).await?;
        world.plugin("website", "website").await?;
        Ok(host)
    })
    .await
}

/// The plugin `website` in the given version, `website` or `website-v2`, until the guard is dropped.
pub(crate) async fn website(world: &World, version: &str) -> Result<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    world.plugin("website", version).await?;
    Ok(turn)
}

/// What an operator installs: the CRD of plugins, the host's rights, the example kinds, the rights for them.
pub(crate) fn install(plane: &ControlPlane) -> Result<()> {
    kubectl(plane, ["apply", "--server-side", "-k", &format!("{REPOSITORY}/deploy")], None)?;
    for crd in [
        "plugins/website/crd.yaml",
        "plugins/bundle/crd.yaml",
        "tests/guests/widget/crd.yaml",
        "tests/guests/widget/cluster.yaml",
    ] {
        kubectl(plane, ["apply", "--server-side", "-f", &format!("{REPOSITORY}/{crd}")], None)?;
    }
    // The second version needs a superset of the first one's rights.
    grant(plane, "widget")?;
    grant(plane, "bundle")?;
    grant(plane, "website-v2")
}

/// Gives the host the rights that a component needs.
pub(crate) fn grant(plane: &ControlPlane, component: &str) -> Result<()> {
    let path = host::component_path(component)?;
    let rights = oarlock(plane, [OsStr::new("check"), OsStr::new("--rbac"), path.as_os_str()])?;
    ensure!(rights.status.success(), "oarlock check --rbac {component}: {}", text(&rights));
    let rights = String::from_utf8(rights.stdout)?;
    kubectl(plane, ["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&rights)).map(drop)
}

/// Runs kubectl as administrator; what it printed.
pub(crate) fn kubectl<'a>(
    plane: &ControlPlane,
    args: impl IntoIterator<Item = &'a str>,
    input: Option<&str>,
) -> Result<String> {
    let mut command = Command::new(host::kubectl()?);
    command.arg("--kubeconfig").arg(plane.kubeconfig_admin()).args(args);
    let output = run(command, input)?;
    ensure!(output.status.success(), "kubectl: {}", text(&output));
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs the command under test as administrator.
pub(crate) fn oarlock<A: AsRef<OsStr>>(
    plane: &ControlPlane,
    args: impl IntoIterator<Item = A>,
) -> Result<Output> {
    let mut command = Command::new(host::program()?);
    command.arg("--kubeconfig").arg(plane.kubeconfig_admin()).args(["--namespace", NAMESPACE]).args(args);
    run(command, None)
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command, input: Option<&str>) -> Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.unwrap_or_default().as_bytes())?;
    }
    Ok(child.wait_with_output()?)
}

/// Everything that a command printed.
pub(crate) fn text(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{stdout}{stderr}", output.status)
}

/// sha256 in lower-case hex: the identity of a version.
pub(crate) fn digest(component: &[u8]) -> String {
    Sha256::digest(component).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn resource(kind: &str) -> ApiResource {
    let (group, version, plural) = match kind {
        "Namespace" => ("", "v1", "namespaces"),
        "ConfigMap" => ("", "v1", "configmaps"),
        "Service" => ("", "v1", "services"),
        "Pod" => ("", "v1", "pods"),
        "PersistentVolume" => ("", "v1", "persistentvolumes"),
        "ResourceQuota" => ("", "v1", "resourcequotas"),
        "Event" => ("events.k8s.io", "v1", "events"),
        "Deployment" => ("apps", "v1", "deployments"),
        "ReplicaSet" => ("apps", "v1", "replicasets"),
        "StatefulSet" => ("apps", "v1", "statefulsets"),
        "Job" => ("batch", "v1", "jobs"),
        "PodDisruptionBudget" => ("policy", "v1", "poddisruptionbudgets"),
        "CustomResourceDefinition" => ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
        "ClusterRoleBinding" => ("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
        "Plugin" => ("oarlock.dev", "v1alpha1", "plugins"),
        "Website" => ("demo.oarlock.dev", "v1", "websites"),
        "Bundle" => ("demo.oarlock.dev", "v1", "bundles"),
        "ConfigMapSet" => ("demo.oarlock.dev", "v1", "configmapsets"),
        "Widget" => ("cases.example.com", "v1", "widgets"),
        "ClusterWidget" => ("cases.example.com", "v1", "clusterwidgets"),
        "Gadget" => ("cases.example.com", "v1", "gadgets"),
        other => panic!("no test knows the kind {other}"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

const CLUSTER_SCOPED: [&str; 6] = [
    "Namespace",
    "PersistentVolume",
    "CustomResourceDefinition",
    "ClusterRoleBinding",
    "Plugin",
    "ClusterWidget",
];

impl World {
    /// A namespace beside the shared host.
    pub(crate) async fn new(namespace: &str) -> Result<Self> {
        shared_host().await?;
        Self::within(ControlPlane::shared().await?, namespace).await
    }

    /// A namespace in a control plane, without a host.
    pub(crate) async fn within(plane: &'static ControlPlane, namespace: &str) -> Result<Self> {
        let world = Self { plane, client: plane.client_admin().await?, namespace: namespace.to_owned() };
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        world.apply(&body, "tests").await?;
        Ok(world)
    }

    /// The objects of a kind in this namespace, or in the cluster.
    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = resource(kind);
        if CLUSTER_SCOPED.contains(&kind) {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
        }
    }

    /// One object, if there is one.
    pub(crate) async fn find(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let found = self.api(kind).get_opt(name).await?;
        found.map(|object| serde_json::to_value(object).context("an object is JSON")).transpose()
    }

    /// One object.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> Result<Value> {
        let namespace = &self.namespace;
        self.find(kind, name).await?.with_context(|| format!("there is no {kind} {namespace}/{name}"))
    }

    /// The objects of a kind, with a label selector or all.
    pub(crate) async fn list(&self, kind: &str, selector: Option<&str>) -> Result<Vec<Value>> {
        let params =
            selector.map_or_else(ListParams::default, |selector| ListParams::default().labels(selector));
        let found = self.api(kind).list(&params).await?;
        found.items.iter().map(|object| serde_json::to_value(object).context("an object is JSON")).collect()
    }

    /// Server-side apply of one object by a field manager, in this namespace where it has none.
    pub(crate) async fn apply(&self, object: &Value, manager: &str) -> Result<Value> {
        let (kind, name) = (string(object, "/kind"), string(object, "/metadata/name"));
        let params = PatchParams::apply(manager).force();
        let applied = self.api(kind).patch(name, &params, &Patch::Apply(object)).await;
        Ok(serde_json::to_value(applied.with_context(|| format!("cannot apply {kind} {name}"))?)?)
    }

    /// Creates or changes an object with this spec.
    pub(crate) async fn set(&self, kind: &str, name: &str, spec: Value) -> Result<Value> {
        let resource = resource(kind);
        let object = json!({
            "apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        self.apply(&object, "tests").await
    }

    /// Creates or changes many objects of a kind, many at once.
    pub(crate) async fn set_all(
        &self,
        kind: &str,
        specs: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<()> {
        let set = specs.into_iter().map(|(name, spec)| async move { self.set(kind, &name, spec).await });
        stream::iter(set).buffer_unordered(32).try_for_each(async |_| Ok(())).await
    }

    /// A Widget whose plan is just what the test says.
    pub(crate) async fn set_plan(&self, name: &str, plan: Value) -> Result<Value> {
        self.set("Widget", name, json!({"plan": plan})).await
    }

    /// Merges a patch into an object, as somebody with an editor would.
    pub(crate) async fn merge(&self, kind: &str, name: &str, patch: Value) -> Result<Value> {
        let patched = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        Ok(serde_json::to_value(patched.with_context(|| format!("cannot patch {kind} {name}"))?)?)
    }

    /// Deletes an object; it may take its time.
    pub(crate) async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let deleted = self.api(kind).delete(name, &DeleteParams::background()).await;
        deleted.map(drop).with_context(|| format!("cannot delete {kind} {name}"))
    }

    /// The events about an object, as `Warning Refused why`.
    pub(crate) async fn events(&self, kind: &str, name: &str) -> Result<Vec<String>> {
        // Events about cluster-scoped objects are in `default`.
        let events: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource("Event"));
        let found = events.list(&ListParams::default()).await?;
        let events = found.items.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        let about = |event: &&Value| {
            let regarding = &event["regarding"];
            let namespace = regarding["namespace"].as_str();
            regarding["kind"] == kind
                && regarding["name"] == name
                && namespace.is_none_or(|namespace| namespace == self.namespace)
        };
        let words = ["/type", "/reason", "/note"];
        let say = |event: &Value| words.map(|word| string(event, word)).join(" ");
        Ok(events.iter().filter(about).map(say).collect())
    }

    /// Waits for an event that has these words.
    pub(crate) async fn until_told(&self, kind: &str, name: &str, words: [&str; 3]) -> Result<()> {
        self.eventually(&format!("an event about {kind} {name} has {words:?}"), async || {
            let events = self.events(kind, name).await?;
            let told = |event: &String| words.iter().all(|word| event.contains(word));
            ensure!(events.iter().any(told), "{events:?}");
            Ok(())
        })
        .await
    }

    /// Waits until an object is as `check` wants it, and fails with the object, its events and the host's log.
    pub(crate) async fn until(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        check: impl Fn(&Value) -> Result<()>,
    ) -> Result<Value> {
        let what = format!("{kind} {name}: {what}");
        let seen = eventually(DEADLINE, &what, async || -> Result<Value> {
            let object = self.get(kind, name).await?;
            check(&object)?;
            Ok(object)
        });
        match seen.await {
            Ok(object) => Ok(object),
            Err(error) => Err(self.explained(error, kind, name).await),
        }
    }

    /// Waits until a condition has this status and reason, in a status about the object as it is now.
    pub(crate) async fn until_says(&self, kind: &str, name: &str, wanted: [&str; 3]) -> Result<Value> {
        let [r#type, status, reason] = wanted;
        self.until(kind, name, &wanted.join(" "), |object| says(object, r#type, status, reason)).await
    }

    /// Waits until an object does not exist.
    pub(crate) async fn until_gone(&self, kind: &str, name: &str) -> Result<()> {
        let what = format!("{kind} {name} is gone");
        let gone = eventually(DEADLINE, &what, async || {
            let found = self.find(kind, name).await?;
            ensure!(found.is_none(), "it is there: {found:?}");
            Ok(())
        });
        match gone.await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.explained(error, kind, name).await),
        }
    }

    /// Waits for something that is no single object, and fails with the host's log.
    pub(crate) async fn eventually<T>(&self, what: &str, observe: impl AsyncFn() -> Result<T>) -> Result<T> {
        eventually(DEADLINE, what, async || observe().await)
            .await
            .map_err(|error| error.context(self.host_log()))
    }

    async fn explained(&self, error: anyhow::Error, kind: &str, name: &str) -> anyhow::Error {
        let mut story = format!("{error:#}\n");
        if let Ok(Some(mut object)) = self.find(kind, name).await {
            for large in ["/metadata/managedFields", "/binaryData", "/data"] {
                object.pointer_mut(large).map(Value::take);
            }
            let _ = writeln!(story, "the object: {object:#}");
        }
        for event in self.events(kind, name).await.unwrap_or_default() {
            let _ = writeln!(story, "event: {event}");
        }
        anyhow!(story).context(self.host_log())
    }

    /// The end of the host's log.
    pub(crate) fn host_log(&self) -> String {
        let path = self.plane.dir().join("oarlock.log");
        let log = fs::read(&path).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<String> = log.lines().map(|line| line.chars().take(400).collect()).collect();
        let tail = lines[lines.len().saturating_sub(30)..].join("\n  ");
        format!("the host's log ({}) ends with:\n  {tail}", path.display())
    }

    /// Puts a component under a plugin's name and waits until it is in force.
    pub(crate) async fn plugin(&self, name: &str, component: &str) -> Result<Value> {
        let component = host::component(component)?;
        let digest = digest(&component);
        self.source(name, &[("plugin.wasm", &component)]).await?;
        self.until("Plugin", name, "its ConfigMap's version is in force", |plugin| {
            says(plugin, "Ready", "True", "Active")?;
            says(plugin, "Loaded", "True", "Active")?;
            ensure!(plugin["status"]["active"]["digest"] == *digest, "{}", plugin["status"]["active"]);
            Ok(())
        })
        .await
    }

    /// Puts the plugin `cluster` in force, which may make definitions of kinds.
    pub(crate) async fn cluster_plugin(&self) -> Result<()> {
        grant(self.plane, "widget-cluster")?;
        self.source("cluster", &[("plugin.wasm", &host::component("widget-cluster")?)]).await?;
        self.until("Plugin", "cluster", "is there", |_| Ok(())).await?;
        let kinds = json!(["CustomResourceDefinition.apiextensions.k8s.io"]);
        self.merge("Plugin", "cluster", json!({"spec": {"permissions": {"sensitiveKinds": kinds}}})).await?;
        self.until_says("Plugin", "cluster", ["Ready", "True", "Active"]).await.map(drop)
    }

    /// Lets a plugin do this, and whatever is said nothing of is as it was.
    pub(crate) async fn permit(&self, name: &str, permissions: Value) -> Result<()> {
        self.merge("Plugin", name, json!({"spec": {"permissions": permissions}})).await.map(drop)
    }

    /// Puts a `ConfigMap` with these entries where the host looks for plugins.
    pub(crate) async fn source(&self, name: &str, entries: &[(&str, &[u8])]) -> Result<()> {
        let entries = entries.iter().map(|(entry, bytes)| ((*entry).to_owned(), ByteString(bytes.to_vec())));
        let mut config_map = ConfigMap { binary_data: Some(entries.collect()), ..ConfigMap::default() };
        config_map.metadata.name = Some(name.to_owned());
        config_map.metadata.labels = Some([("oarlock.dev/plugin".to_owned(), "true".to_owned())].into());
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        // As a whole: entries that were there before, by whomever, go.
        match config_maps.replace(name, &PostParams::default(), &config_map).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                config_maps.create(&PostParams::default(), &config_map).await?;
            }
            other => drop(other?),
        }
        Ok(())
    }

    /// Removes a plugin's `ConfigMap`: the plugin goes out of force, its `Plugin` stays and says so.
    pub(crate) async fn delete_source(&self, name: &str) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        or_gone(config_maps.delete(name, &DeleteParams::default()).await)
    }

    /// Removes a plugin: its `ConfigMap` and its `Plugin`.
    pub(crate) async fn delete_plugin(&self, name: &str) -> Result<()> {
        self.delete_source(name).await?;
        or_gone(self.api("Plugin").delete(name, &DeleteParams::default()).await)
    }

    /// Waits until the host has written nothing in this namespace for a moment, and sees that it stays at that:
    /// a pass every 300 ms (`requeueAfterMs`), or a write that is merged into one a second, would not.
    pub(crate) async fn until_at_rest(&self) -> Result<()> {
        let quiet = async |audit: &mut Audit, duration: Duration| -> Result<()> {
            let from = audit.mark().await?;
            throughout(duration, "time passes", async || Ok::<_, anyhow::Error>(())).await?;
            let to = audit.mark().await?;
            let writes = self.host_writes(audit, from, to);
            ensure!(writes.is_empty(), "the host wrote {writes:?}");
            Ok(())
        };
        let audit = Mutex::new(self.plane.audit().await?);
        self.eventually("the host has nothing left to write", async || {
            quiet(&mut *audit.lock().await, Duration::from_millis(600)).await
        })
        .await?;
        quiet(&mut *audit.lock().await, Duration::from_secs(2))
            .await
            .map_err(|error| error.context(self.host_log()))
    }

    /// What the host wrote in this namespace between two marks: `patch widgets/status w1 200`, ….
    pub(crate) fn host_writes(&self, audit: &Audit, from: Mark, to: Mark) -> Vec<String> {
        let writes = audit.writes_by(self.plane.user_host(), from, to);
        writes.into_iter().filter(|write| write.namespace == self.namespace).map(say).collect()
    }
}

/// Success, also when there is nothing of that name.
fn or_gone<T>(answer: kube::Result<T>) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// A request in words.
pub(crate) fn say(request: &Request) -> String {
    let mut resource = request.resource.clone();
    if !request.subresource.is_empty() {
        let _ = write!(resource, "/{}", request.subresource);
    }
    let code = request.code.map_or_else(|| "unanswered".to_owned(), |code| code.to_string());
    format!("{} {resource} {} {code}", request.verb, request.name)
}

/// The text at a JSON pointer; empty where there is none.
pub(crate) fn string<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A condition of an object.
pub(crate) fn condition<'a>(object: &'a Value, r#type: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == r#type)
}

/// Fails unless a condition has this status and reason, in a status about the object as it is now.
pub(crate) fn says(object: &Value, r#type: &str, status: &str, reason: &str) -> Result<()> {
    let Some(found) = condition(object, r#type) else {
        bail!("no condition {type} in {}", object["status"]["conditions"]);
    };
    ensure!(found["status"] == status && found["reason"] == reason, "it says {found}");
    for observed in [&found["observedGeneration"], &object["status"]["observedGeneration"]] {
        let generation = &object["metadata"]["generation"];
        ensure!(observed == generation, "generation {generation}, observed is {observed}");
    }
    Ok(())
}

/// A room for one lab, which is set up by the first that enters.
struct Room {
    name: &'static str,
    turn: Mutex<()>,
    plane: OnceCell<ControlPlane>,
}

impl Room {
    const fn new(name: &'static str) -> Self {
        Self { name, turn: Mutex::const_new(()), plane: OnceCell::const_new() }
    }

    async fn plane(&self) -> Result<&ControlPlane> {
        self.plane
            .get_or_try_init(async || {
                let plane = ControlPlane::start(ControlPlane::shared().await?.dir().join(self.name)).await?;
                install(&plane)?;
                Ok(plane)
            })
            .await
    }
}

impl Lab {
    /// Waits for its turn in the first that is free.
    pub(crate) async fn enter(namespace: &str) -> Result<Self> {
        static FIRST: Room = Room::new("lab-1");
        static SECOND: Room = Room::new("lab-2");
        let (room, turn) = tokio::select! {
            biased;
            turn = FIRST.turn.lock() => (&FIRST, turn),
            turn = SECOND.turn.lock() => (&SECOND, turn),
        };
        let plane = room.plane().await?;
        let world = World::within(plane, namespace).await?;
        // What the test before left, or took away, must not matter.
        for crd in ["deploy/crd.yaml", "tests/guests/widget/crd.yaml"] {
            let crd = format!("{REPOSITORY}/{crd}");
            kubectl(plane, ["apply", "--server-side", "--force-conflicts", "-f", &crd], None)?;
        }
        for kind in ["Widget", "Website", "ClusterWidget"] {
            let all: Api<DynamicObject> = Api::all_with(world.client.clone(), &resource(kind));
            for object in all.list(&ListParams::default()).await? {
                let api: Api<DynamicObject> = match &object.metadata.namespace {
                    Some(namespace) => Api::namespaced_with(world.client.clone(), namespace, &resource(kind)),
                    None => Api::all_with(world.client.clone(), &resource(kind)),
                };
                let name = object.metadata.name.unwrap_or_default();
                if object.metadata.finalizers.is_some() {
                    let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                    or_gone(api.patch(&name, &PatchParams::default(), &freed).await)?;
                }
                or_gone(api.delete(&name, &DeleteParams::background()).await)?;
            }
        }
        for name in ["widget", "website", "rival", "cluster", "beside", "beyond"] {
            world.delete_plugin(name).await?;
        }
        // Whoever takes rights for Gadgets away means all of them.
        let rights = ["oarlock-plugin-widget-gadgets", "oarlock-plugin-widget-cluster"];
        kubectl(
            plane,
            ["delete", "clusterrolebinding", "--ignore-not-found"].into_iter().chain(rights),
            None,
        )?;
        Ok(Self { world, _turn: turn })
    }

    /// Starts a host and waits until it is ready.
    pub(crate) async fn host(&self) -> Result<Host> {
        let host = Host::start(self.world.plane, &Options::standard(self.world.plane))?;
        host.ready().await?;
        Ok(host)
    }
}
