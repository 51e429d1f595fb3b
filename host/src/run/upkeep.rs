//! What is looked at again and again because nobody tells: whether watches lose something, and whether kinds change.

use crate::{
    observe::discovery::Discovery,
    operate::metrics::Metrics,
    plugins::rollout::{Pending, Rollout},
};
use std::{convert::Infallible, time::Duration};
use tokio::{sync::watch, time::sleep};
use tracing::debug;

/// How often the API server is asked whether a kind has changed: one request of some kilobytes.
const KINDS: Duration = Duration::from_secs(20);

/// Does it, until `stop`.
pub(super) fn run(
    rollout: &Rollout,
    mut stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + use<> {
    let (watches, discovery) = (rollout.watches.clone(), rollout.discovery.clone());
    let (pending, metrics) = (rollout.pending.clone(), rollout.metrics.clone());
    let audit_interval = rollout.config.audit_interval;
    async move {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            never = watches.audit(audit_interval) => match never {},
            never = refresh(&discovery, &pending, &metrics) => match never {},
        }
    }
}

async fn refresh(discovery: &Discovery, pending: &Pending, metrics: &Metrics) -> Infallible {
    loop {
        match discovery.refresh().await {
            Ok(true) => {
                metrics.kind_changed();
                pending.add_all();
            }
            Ok(false) => {}
            Err(error) => debug!(error = %error, "kinds are looked at again later"),
        }
        sleep(KINDS).await;
    }
}
