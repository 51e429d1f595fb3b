//! With everything in place, the host writes nothing (S14).

use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_tests::throughout;
use serde_json::json;

use crate::world::{Lab, say, says};

const WEBSITES: usize = 50;

#[tokio::test]
async fn nothing_is_written_when_all_is_in_place_not_even_after_a_restart() -> Result<()> {
    let lab = Lab::enter("quiet").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("website", "website").await?;
    for n in 0..WEBSITES {
        world.set("Website", &format!("site-{n}"), json!({"image": "nginx:1.29"})).await?;
    }
    world
        .eventually("all websites are ready", async || {
            let sites = world.list("Website", None).await?;
            ensure!(sites.len() == WEBSITES, "{} websites", sites.len());
            for site in &sites {
                says(site, "Ready", "True", "ChildrenReady")?;
                says(site, "Progressing", "False", "Settled")?;
                ensure!(site["status"]["readyReplicas"] == 1, "{}", site["status"]);
            }
            Ok(())
        })
        .await?;

    let user = world.plane.user_host();
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let settled = audit.mark().await?;
    let created = world.list("Deployment", None).await?.len() + world.list("Service", None).await?.len();
    assert_eq!(created, 2 * WEBSITES);

    throughout(Duration::from_mins(1), "the host runs", async || host.check_running()).await?;
    let minute = audit.mark().await?;
    let writes: Vec<_> = audit.writes_by(user, settled, minute).into_iter().map(say).collect();
    assert_eq!(writes, [""; 0], "in a quiet minute");

    host.stop().await?;
    let host = lab.host().await?;
    // It has planned all of them again when its memo holds them: one call each.
    world
        .eventually("all websites are planned again", async || {
            let calls = host.metrics().await?.sum("oarlock_reconcile_total", &["plugin=\"website\""]);
            ensure!(calls >= WEBSITES as f64, "{calls} reconciles");
            Ok(())
        })
        .await?;
    throughout(Duration::from_secs(5), "the host runs", async || host.check_running()).await?;
    let restarted = audit.mark().await?;
    let writes: Vec<_> = audit.writes_by(user, from, restarted).into_iter().map(say).collect();
    assert_eq!(writes, [""; 0], "across a restart");
    host.stop().await
}
