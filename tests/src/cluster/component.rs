//! The five programs of a control plane and how each is called.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, bail};

use super::files::{AUDIT_POLICY_FILE, User};

/// A process of the control plane, in the order of starting; stopping goes the other way, as an API server
/// whose etcd is gone hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store behind the API server.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager: garbage collection, namespaces, Deployments and the like.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kwok, which plays the kubelet of every node.
    Kwok,
}

impl Component {
    /// All of them, in the order of starting.
    pub const ALL: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    /// The name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }

    pub(super) fn args(self, dir: &Path, ports: &Ports) -> Result<Vec<String>> {
        let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let kubeconfig = |user: User| format!("--kubeconfig={}", user.kubeconfig(dir).display());
        Ok(match self {
            Self::Etcd => vec![
                format!("--data-dir={}", file("etcd")),
                format!("--listen-client-urls=http://127.0.0.1:{}", ports.etcd),
                format!("--advertise-client-urls=http://127.0.0.1:{}", ports.etcd),
                // It has no peers, so nobody needs to know this port.
                "--listen-peer-urls=http://127.0.0.1:0".into(),
                // Test data need not survive a power failure, and waiting for disks is most of a write.
                "--unsafe-no-fsync".into(),
                "--log-level=warn".into(),
            ],
            Self::ApiServer => vec![
                format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
                "--bind-address=127.0.0.1".into(),
                "--advertise-address=127.0.0.1".into(),
                // Endpoints must not be loopback addresses, and nobody reaches us through the Service.
                "--endpoint-reconciler-type=none".into(),
                format!("--secure-port={}", ports.api),
                format!("--tls-cert-file={}", file("apiserver.crt")),
                format!("--tls-private-key-file={}", file("apiserver.key")),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-key-file={}", file("service-account.pub")),
                format!("--service-account-signing-key-file={}", file("service-account.key")),
                format!("--token-auth-file={}", file("tokens.csv")),
                "--authorization-mode=RBAC".into(),
                "--service-cluster-ip-range=10.0.0.0/24".into(),
                // Pods need not wait for the service account of a new namespace.
                "--disable-admission-plugins=ServiceAccount".into(),
                format!("--audit-policy-file={}", file(AUDIT_POLICY_FILE)),
                format!("--audit-log-path={}", file("audit.log")),
                // A request waits until its line is written, so a reader that comes later finds it.
                "--audit-log-mode=blocking".into(),
                // Megabytes until the file is rotated: never, as readers follow one file.
                "--audit-log-maxsize=100000".into(),
                // Load tests are to measure us, not the API server's queues.
                "--max-requests-inflight=4000".into(),
                "--max-mutating-requests-inflight=2000".into(),
            ],
            Self::ControllerManager => {
                let mut args = leaderless(dir, ports.controller_manager);
                args.extend([
                    kubeconfig(User::ControllerManager),
                    format!("--service-account-private-key-file={}", file("service-account.key")),
                    "--use-service-account-credentials".into(),
                    // By default it holds itself to 20 requests a second, and starts with a hundred.
                    "--kube-api-qps=1000".into(),
                    "--kube-api-burst=1000".into(),
                ]);
                args
            }
            Self::Scheduler => {
                let mut args = leaderless(dir, ports.scheduler);
                args.push(kubeconfig(User::Scheduler));
                args
            }
            Self::Kwok => vec![
                kubeconfig(User::Kwok),
                format!("--config={}", find_file("kwok-stages.yaml")?.display()),
                "--manage-all-nodes=true".into(),
                "--node-lease-duration-seconds=40".into(),
            ],
        })
    }
}

/// The flags that the controller manager and the scheduler share.
fn leaderless(dir: &Path, port: u16) -> Vec<String> {
    let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
    vec![
        "--leader-elect=false".into(),
        "--authentication-skip-lookup".into(),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
    ]
}

/// Finds a program or a file of the control plane.
///
/// `KUBEBUILDER_ASSETS` comes first, as everywhere in the ecosystem; it usually has etcd, kube-apiserver and
/// kubectl only, so the rest may be in the cache folder of the `dev` script.
pub(crate) fn find_file(name: &str) -> Result<PathBuf> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let cache = dev_cache()?.join("bin");
    let places: Vec<_> = assets.into_iter().chain([cache]).collect();
    for place in &places {
        let path = place.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    bail!("{name} is not in {}; run `./dev cluster up` or `./dev test`, which build it", places.join(" or "))
}

/// The folder in which the `dev` script keeps what it builds and downloads.
pub(crate) fn dev_cache() -> Result<PathBuf> {
    if let Some(cache) = env::var_os("OARLOCK_DEV_CACHE") {
        return Ok(cache.into());
    }
    let caches = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| env::home_dir().map(|home| home.join(".cache")));
    Ok(caches.context("neither OARLOCK_DEV_CACHE nor HOME is set")?.join("oarlock-dev"))
}

/// The loopback ports of one control plane; they stay the same when a component is started again.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    pub(super) api: u16,
    pub(super) controller_manager: u16,
    pub(super) scheduler: u16,
}

impl Ports {
    pub(super) fn free() -> Result<Self> {
        Ok(Self {
            etcd: free_port()?,
            api: free_port()?,
            controller_manager: free_port()?,
            scheduler: free_port()?,
        })
    }
}

/// Below the range from which the kernel takes the ports of outgoing connections, so that none of those takes
/// a port between our look and its use, or while an API server is restarted.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// Finds a port nobody listens on; never the same one twice in a process, rarely in two.
pub(crate) fn free_port() -> Result<u16> {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    for _ in 0..PORTS {
        // Neighbouring process numbers start far from each other.
        let start = process::id().wrapping_mul(97) % u32::from(PORTS);
        let offset = (start as u16).wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = FIRST_PORT + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 between {FIRST_PORT} and {}", FIRST_PORT + PORTS)
}
