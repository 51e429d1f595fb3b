//! Control-plane harness and integration tests.
//!
//! [`cluster::ControlPlane`] is a real Kubernetes control plane on loopback ports: etcd, API server, controller
//! manager, scheduler, and kwok in the place of kubelets.
//! [`audit::Audit`] answers who asked the API server for what, which is how a test shows that nothing was written.
//! [`proxy::Proxy`] stands between the two and does to requests what networks and API servers do.
//! [`host::Host`] is the program under test, in a process of its own.
//! [`eventually`] waits for a condition, and [`throughout`] sees that one holds: tests poll and never sleep.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

pub mod audit;
pub mod cluster;
pub mod host;
pub mod proxy;

/// How often [`eventually`] looks: a fresh answer is rarely wanted sooner, and an API server bears it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Repeats `observe` until it succeeds, and fails with its last answer once `deadline` has passed.
///
/// An `Err` of `observe` means "not yet"; its text should say what was seen instead.
/// One observation that never returns cannot outlive the deadline.
///
/// ```
/// # use std::time::Duration;
/// # async fn replicas() -> anyhow::Result<i32> { Ok(2) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// let replicas = oarlock_tests::eventually(Duration::from_secs(5), "two replicas", async || {
///     let replicas = replicas().await?;
///     anyhow::ensure!(replicas == 2, "{replicas} replicas");
///     Ok(replicas)
/// })
/// .await?;
/// # assert_eq!(replicas, 2); Ok(()) }
/// ```
pub async fn eventually<T, E, F, Fut>(deadline: Duration, what: &str, mut observe: F) -> Result<T>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let end = Instant::now() + deadline;
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = String::from("no observation ended in time");
    loop {
        match timeout_at(end, observe()).await {
            Ok(Ok(value)) => return Ok(value),
            // The alternate form of an `anyhow::Error` prints its whole chain.
            Ok(Err(observation)) => last = format!("{observation:#}"),
            Err(_elapsed) => return Err(not_seen(what, deadline, &last)),
        }
        if timeout_at(end, ticks.tick()).await.is_err() {
            return Err(not_seen(what, deadline, &last));
        }
    }
}

/// Repeats `observe` for the whole of `duration`, and fails as soon as it does.
pub async fn throughout<E, F, Fut>(duration: Duration, what: &str, mut observe: F) -> Result<()>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), E>>,
{
    let end = Instant::now() + duration;
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < end {
        ticks.tick().await;
        observe()
            .await
            .map_err(|seen| anyhow!("not true for {duration:?}: {what}; seen instead: {seen:#}"))?;
    }
    Ok(())
}

fn not_seen(what: &str, deadline: Duration, last: &str) -> anyhow::Error {
    anyhow!("not seen within {deadline:?}: {what}; last observation: {last}")
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn eventually_returns_the_first_success() {
        let mut left = 3;
        let value = eventually(Duration::from_secs(5), "zero left", || {
            left -= 1;
            async move { if left == 0 { Ok("done") } else { Err(format!("{left} left")) } }
        })
        .await;
        assert_eq!(value.unwrap(), "done");
    }

    #[tokio::test]
    async fn eventually_names_the_last_observation_when_time_is_up() {
        let failed = eventually(Duration::from_millis(60), "a miracle", async || {
            Err::<(), _>(anyhow!("connection refused").context("asking for a miracle"))
        })
        .await
        .unwrap_err()
        .to_string();
        assert_eq!(
            failed,
            "not seen within 60ms: a miracle; last observation: asking for a miracle: connection refused"
        );
    }

    #[tokio::test]
    async fn eventually_ends_when_an_observation_hangs() {
        let failed = eventually(Duration::from_millis(60), "an answer", pending::<Result<(), String>>).await;
        assert!(failed.unwrap_err().to_string().contains("no observation ended in time"));
    }
}
