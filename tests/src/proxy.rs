//! A proxy between a host and its API server that injects faults.
//!
//! In: plain HTTP on a loopback port, from whoever uses [`Proxy::kubeconfig`]. Out: the same requests with the
//! host's credentials, answers and watches as they come; or what a [`Rule`] says instead.
//! It runs on a thread of its own, so a test that waits for a command does not hold it up.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use oarlock_sim::faults::Rules;
pub use oarlock_sim::faults::{Fault, Rule, Seen, Standing};
use tokio::sync::oneshot;

use crate::cluster::ControlPlane;

mod serve;

/// A running proxy; it ends when it is dropped, and so do the connections through it.
#[derive(Debug)]
pub struct Proxy {
    rules: Rules,
    kubeconfig: PathBuf,
    /// Dropping it ends the thread.
    _running: oneshot::Sender<()>,
}

impl Proxy {
    /// Starts a proxy to the API server; probabilities are drawn from the seed.
    pub async fn start(plane: &ControlPlane, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port for the proxy")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let kubeconfig = plane.dir().join(format!("proxy-{port}.kubeconfig"));
        write_kubeconfig(&kubeconfig, port)?;

        let rules = Rules::new(seed);
        let (running, ended) = oneshot::channel();
        let (tell, started) = oneshot::channel();
        let (serving, credentials) = (rules.clone(), plane.kubeconfig_host());
        thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || serve::run(listener, &credentials, &serving, tell, ended))
            .context("no thread for the proxy")?;
        started.await.context("the proxy ended")??;
        Ok(Self { rules, kubeconfig, _running: running })
    }

    /// The kubeconfig of whoever should go through it. It has no credentials: the proxy has the host's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Sets a rule. Of several that fit a request, the one that was set first and happens, happens alone; a
    /// watch that is open has them all.
    pub fn rule(&self, rule: Rule) -> Standing {
        self.rules.rule(rule)
    }

    /// Ends all rules; how often they happened can still be asked.
    pub fn clear(&self) {
        self.rules.clear();
    }

    /// Every request so far, in the order in which they came.
    pub fn seen(&self) -> Vec<Seen> {
        self.rules.seen()
    }
}

fn write_kubeconfig(path: &Path, port: u16) -> Result<()> {
    let content = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: proxy\n\
         clusters: [{{name: proxy, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\n\
         users: [{{name: nobody, user: {{}}}}]\n\
         contexts: [{{name: proxy, context: {{cluster: proxy, user: nobody}}}}]\n"
    );
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
