//! A real Kubernetes control plane on loopback ports.
//!
//! etcd, API server (RBAC, audit log), controller manager, scheduler, and kwok with one node: Deployments get
//! ready pods, owners are garbage collected, namespaces end, as in a cluster.
//! The folder of a control plane holds its keys, kubeconfigs, logs and data; nothing is outside of it.
//!
//! The garbage collector looks for new kinds every 30 seconds: children of an object whose CRD is younger may
//! stay that long.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::time::{MissedTickBehavior, interval};

pub use self::component::Component;
use self::component::Ports;
pub(crate) use self::component::{dev_cache, find_file, free_port};
use self::files::User;
pub(crate) use self::process::{Lifetime, Process};
use crate::audit::Audit;
use crate::eventually;

mod component;
mod detached;
mod files;
mod process;
mod store;

pub use self::detached::{down, kubeconfig, up};

/// How long a start may take: 4 s on two idle cores, many times that while they compile something.
const START_DEADLINE: Duration = Duration::from_mins(2);

/// How long one request of the harness may take before it counts as unanswered.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// A running control plane; its processes end when it is dropped, or with the process that started it.
#[derive(Debug)]
pub struct ControlPlane {
    dir: PathBuf,
    ports: Ports,
    lifetime: Lifetime,
    processes: Mutex<BTreeMap<Component, Process>>,
}

impl ControlPlane {
    /// The control plane that all tests of this process share, started by the first that asks.
    ///
    /// It ends with the process, and its folder (`test-clusters/<pid>` in the cache folder) stays for whoever
    /// wants to read the logs, until the next test process tidies up.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED
            .get_or_try_init(async || {
                let parent = dev_cache()?.join("test-clusters");
                remove_abandoned(&parent);
                Self::start(parent.join(std::process::id().to_string())).await
            })
            .await
    }

    /// Starts a control plane with everything it writes in `dir`, and waits until pods can run on its node.
    pub async fn start(dir: impl AsRef<Path>) -> Result<Self> {
        Self::start_for(dir.as_ref(), Lifetime::Owner).await
    }

    async fn start_for(dir: &Path, lifetime: Lifetime) -> Result<Self> {
        // Processes run in this folder and are recognised by it, so it must not be relative.
        let dir = fs::create_dir_all(dir)
            .and_then(|()| dir.canonicalize())
            .with_context(|| format!("cannot create {}", dir.display()))?;
        for component in Component::ALL {
            find_file(component.name())?;
        }
        let ports = Ports::free()?;
        files::write_all(&dir, ports.api)?;
        let plane = Self { dir, ports, lifetime, processes: Mutex::default() };
        if let Err(error) = plane.bring_up().await {
            plane.kill_all();
            return Err(error.context(format!("the control plane in {} did not start", plane.dir.display())));
        }
        Ok(plane)
    }

    async fn bring_up(&self) -> Result<()> {
        self.launch(Component::Etcd)?;
        self.launch(Component::ApiServer)?;
        self.wait_until_ready().await?;
        self.launch(Component::ControllerManager)?;
        self.launch(Component::Scheduler)?;
        self.launch(Component::Kwok)?;
        self.add_node().await
    }

    /// The folder with logs, data and kubeconfigs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kubeconfig of a user who may do everything (group `system:masters`).
    pub fn kubeconfig_admin(&self) -> PathBuf {
        User::Admin.kubeconfig(&self.dir)
    }

    /// The kubeconfig of the service account `oarlock` in `oarlock-system`, who may do what RBAC gives it.
    pub fn kubeconfig_host(&self) -> PathBuf {
        User::Host.kubeconfig(&self.dir)
    }

    /// The name under which the user of [`kubeconfig_admin`](Self::kubeconfig_admin) is in the audit log.
    pub fn user_admin(&self) -> &'static str {
        User::Admin.name()
    }

    /// The name under which the user of [`kubeconfig_host`](Self::kubeconfig_host) is in the audit log.
    pub fn user_host(&self) -> &'static str {
        User::Host.name()
    }

    /// A client that may do everything. It belongs to the runtime that asks, so each test needs its own.
    pub async fn client_admin(&self) -> Result<Client> {
        client(&self.kubeconfig_admin()).await
    }

    /// A client with the rights of the host.
    pub async fn client_host(&self) -> Result<Client> {
        client(&self.kubeconfig_host()).await
    }

    /// A reader of the audit log that starts at its present end.
    pub async fn audit(&self) -> Result<Audit> {
        Audit::open(&self.dir.join("audit.log"), self.client_admin().await?)
    }

    /// Starts a component that was stopped, on the port it had.
    pub fn launch(&self, component: Component) -> Result<()> {
        let name = component.name();
        ensure!(!self.processes().contains_key(&component), "{name} runs already");
        let args = component.args(&self.dir, &self.ports)?;
        let process = Process::spawn(name, &find_file(name)?, &args, &self.dir, self.lifetime)?;
        self.processes().insert(component, process);
        Ok(())
    }

    /// Stops one component in an orderly way.
    pub async fn stop(&self, component: Component) -> Result<()> {
        self.take(component)?.stop().await
    }

    /// Ends one component at once, as a crash would.
    pub fn kill(&self, component: Component) -> Result<()> {
        self.take(component)?.kill()
    }

    /// Has one component stand still, as a machine that hangs, until the guard is dropped.
    pub fn pause(&self, component: Component) -> Result<Paused<'_>> {
        self.signal(component, Signal::STOP)?;
        Ok(Paused { plane: self, component })
    }

    fn signal(&self, component: Component, signal: Signal) -> Result<()> {
        let processes = self.processes();
        let process =
            processes.get(&component).with_context(|| format!("{} does not run", component.name()))?;
        process.signal(signal)
    }

    /// Has etcd refuse what needs space, as one whose quota is used up does, until the guard is dropped.
    pub fn exhaust_store(&self) -> Result<Exhausted> {
        store::no_space(self.ports.etcd, "ACTIVATE")?;
        Ok(Exhausted { port: self.ports.etcd })
    }

    /// Gives the control plane another serving certificate and every user another token, and restarts the API
    /// server with them; components that run know the old ones only.
    pub async fn renew_credentials(&self) -> Result<()> {
        files::write_all(&self.dir, self.ports.api)?;
        self.restart_api_server().await
    }

    /// Stops the API server, starts it again and waits until it is ready.
    pub async fn restart_api_server(&self) -> Result<()> {
        self.stop(Component::ApiServer).await?;
        self.launch(Component::ApiServer)?;
        self.wait_until_ready().await
    }

    /// Waits until the API server says that it is ready.
    pub async fn wait_until_ready(&self) -> Result<()> {
        let client = self.client_admin().await?;
        self.unless_one_ends(Component::ApiServer, async || {
            eventually(START_DEADLINE, "a ready API server", async || ready(&client).await).await
        })
        .await
    }

    /// Stops everything in an orderly way: the API server before its etcd.
    pub async fn stop_all(&self) -> Result<()> {
        for component in Component::ALL.into_iter().rev() {
            // The guard must not live across the await.
            let process = self.processes().remove(&component);
            if let Some(process) = process {
                process.stop().await?;
            }
        }
        Ok(())
    }

    fn kill_all(&self) {
        for process in self.processes().values_mut() {
            // There is an error to report already, and it is the one that explains.
            let _ = process.kill();
        }
    }

    /// Adds one node and waits until kwok has made it ready and the controller manager has opened it to pods.
    async fn add_node(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client_admin().await?);
        let size = json!({"cpu": "1000", "memory": "1000Gi", "pods": "10000"});
        let node = serde_json::from_value(json!({
            "metadata": {"name": "node-1", "labels": {"kubernetes.io/hostname": "node-1"}},
            "status": {"allocatable": size, "capacity": size},
        }))
        .context("the node is not a Node")?;
        nodes.create(&PostParams::default(), &node).await.context("cannot create the node")?;
        self.unless_one_ends(Component::Kwok, async || {
            eventually(START_DEADLINE, "a ready node", async || -> Result<()> {
                let node = nodes.get("node-1").await?;
                let status = node.status.unwrap_or_default();
                let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
                ensure!(
                    ready.is_some_and(|ready| ready.status == "True"),
                    "its condition Ready is {ready:?}"
                );
                let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
                ensure!(taints.is_empty(), "it has the taints {taints:?}");
                Ok(())
            })
            .await
        })
        .await
    }

    /// Awaits `wait`, but not when one of the processes ends meanwhile; `suspect` is whose log explains a
    /// deadline.
    async fn unless_one_ends(
        &self,
        suspect: Component,
        wait: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<()> {
        tokio::select! {
            waited = wait() => waited.map_err(|error| match self.processes().get(&suspect) {
                Some(process) => error.context(process.log_tail()),
                None => error,
            }),
            ended = self.end_of_one() => Err(ended),
        }
    }

    async fn end_of_one(&self) -> anyhow::Error {
        let mut ticks = interval(Duration::from_millis(100));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(error) = self.processes().values().find_map(|process| process.check_running().err()) {
                return error;
            }
        }
    }

    fn take(&self, component: Component) -> Result<Process> {
        let Some(process) = self.processes().remove(&component) else {
            bail!("{} does not run", component.name());
        };
        Ok(process)
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<Component, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A component that stands still.
#[must_use = "it goes on when this is dropped"]
#[derive(Debug)]
pub struct Paused<'a> {
    plane: &'a ControlPlane,
    component: Component,
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        // One that has ended cannot go on.
        let _ = self.plane.signal(self.component, Signal::CONT);
    }
}

/// An etcd without space.
#[must_use = "it has space again when this is dropped"]
#[derive(Debug)]
pub struct Exhausted {
    port: u16,
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        // One that has ended remembers it, and whoever uses it next is told at the first write.
        let _ = store::no_space(self.port, "DEACTIVATE");
    }
}

/// Makes a client from a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let named = || format!("cannot use {}", kubeconfig.display());
    let content = Kubeconfig::read_from(kubeconfig).with_context(named)?;
    let config =
        Config::from_custom_kubeconfig(content, &KubeConfigOptions::default()).await.with_context(named)?;
    Client::try_from(config).with_context(named)
}

/// Asks the API server whether it is ready.
async fn ready(client: &Client) -> Result<()> {
    let request = Request::get("/readyz").body(Vec::new()).context("bad request")?;
    let answer = tokio::time::timeout(REQUEST_DEADLINE, client.request_text(request)).await;
    answer.context("no answer to /readyz")??;
    Ok(())
}

/// Removes the folders of test processes that are gone; their control planes ended with them.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            // What cannot be removed only wastes space.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
