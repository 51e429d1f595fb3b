//! `oarlock run`: the host itself.

use super::Connection;
use crate::{
    config::{Config, Limits},
    observe::client::Client,
    operate::{log, metrics::Metrics},
};
use anyhow::Context as _;
use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Runs the host: serves the plugins in its namespace until it is told to stop (SIGTERM or Ctrl-C)
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where /metrics, /livez, /readyz and /explain are served
    #[arg(long, default_value = "127.0.0.1:8080", env = "OARLOCK_ADMIN", value_name = "ADDRESS")]
    admin: SocketAddr,
    /// Reconciles at the same time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    workers: u16,
    /// About how often each watch is compared with a list of what there is, in seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400), value_name = "SECONDS")]
    audit_interval: u32,
    /// Where compiled plugins are kept between starts; by default the user's cache folder
    #[arg(long, env = "OARLOCK_CACHE_DIR", value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// What is logged: `info`, or `warn,oarlock=debug,guest=debug`
    #[arg(long, default_value = "info", env = "RUST_LOG", value_name = "FILTER")]
    log: String,
}

/// Runs the host.
///
/// # Errors
/// What stands against starting; see [`crate::run::Error`].
pub async fn run(args: Args, connection: &Connection) -> anyhow::Result<ExitCode> {
    let _log = log::start(&args.log)?;
    let kube = connection.config().await?;
    let url = kube.cluster_url.clone();
    let metrics = Arc::new(Metrics::new());
    let client = Client::from_config(kube).context("the cluster's configuration cannot be used")?.observed({
        let metrics = metrics.clone();
        Arc::new(move |verb, _kind, answer| metrics.api_request(verb, answer.map_or(Ok(()), Err)))
    });
    client.raw_get("/version").await.with_context(|| {
        format!(
            "no API server answers at {url}; check the kubeconfig and its context, and that the cluster runs"
        )
    })?;
    let config = Config {
        namespace: connection.host_namespace(),
        workers: args.workers.into(),
        cache_dir: args.cache_dir.unwrap_or_else(cache_dir),
        admin: args.admin,
        audit_interval: Duration::from_secs(args.audit_interval.into()),
        limits: Limits::STANDARD,
    };
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let stop = async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    crate::run::run(config, client, metrics, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// `$XDG_CACHE_HOME/oarlock`, or the like.
fn cache_dir() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    folder("XDG_CACHE_HOME")
        .or_else(|| folder("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("oarlock")
}
