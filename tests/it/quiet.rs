//! With everything in place, the host writes nothing (S14).

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Patch, PatchParams};
use oarlock_tests::audit::{Audit, Mark};
use oarlock_tests::host::{Host, Options};
use oarlock_tests::proxy::{Fault, Proxy, Rule};
use oarlock_tests::throughout;
use serde_json::json;

use crate::explain::explained;
use crate::world::{Lab, World, say, says};

const WEBSITES: usize = 50;
const WIDGETS: usize = 1_000;
/// Of the Widgets, those that have a Service; the others have a `ConfigMap`.
const SERVICES: usize = 100;
/// How many of them somebody else touches.
const TOUCHED: usize = 100;

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

/// What the host has done since it started.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    /// Calls of the guest.
    calls: f64,
    /// Passes that needed none.
    hits: f64,
}

impl Figures {
    async fn of(host: &Host) -> Result<Self> {
        let metrics = host.metrics().await?;
        let widget = "plugin=\"widget\"";
        Ok(Self {
            calls: metrics.sum("oarlock_guest_call_duration_seconds_count", &[widget]),
            hits: metrics.sum("oarlock_memo_total", &[widget, "result=\"hit\""]),
        })
    }

    fn more(self, calls: usize, hits: usize) -> Self {
        Self { calls: self.calls + calls as f64, hits: self.hits + hits as f64 }
    }
}

/// Waits until the host has made as many calls, and found as many memos valid at least; then it must rest, without a
/// call more, and must not have written since the mark, which is set anew.
async fn check(
    world: &World,
    host: &Host,
    (audit, from): (&mut Audit, &mut Mark),
    what: &str,
    wanted: Figures,
) -> Result<Figures> {
    world
        .eventually(&format!("after {what} the host has looked at it"), async || {
            let found = Figures::of(host).await?;
            ensure!(found.calls >= wanted.calls && found.hits >= wanted.hits, "{found:?} of {wanted:?}");
            Ok(())
        })
        .await?;
    world.until_at_rest().await?;
    let found = Figures::of(host).await?;
    let to = audit.mark().await?;
    let writes: Vec<_> = audit.writes_by(world.plane.user_host(), *from, to).into_iter().map(say).collect();
    *from = to;
    ensure!(writes.is_empty(), "after {what} it wrote {} times: {writes:?}", writes.len());
    ensure!(
        (found.calls - wanted.calls).abs() < 0.5,
        "after {what} there were {} calls, not {}: {found:?}",
        found.calls,
        wanted.calls
    );
    Ok(found)
}

#[tokio::test]
async fn nothing_is_written_for_a_thousand_objects_and_no_guest_called_for_what_it_did_not_read() -> Result<()>
{
    let lab = Lab::enter("quiet-thousand").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let spec = |n: usize| {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("w{n}-svc")},
            "spec": {"clusterIP": "None", "ports": [{"port": 80}], "selector": {"app": "none"}},
        });
        if n < SERVICES { json!({"plan": {"children": [service]}}) } else { json!({"text": "hi"}) }
    };
    world.set_all("Widget", (0..WIDGETS).map(|n| (format!("w{n}"), spec(n)))).await?;
    world
        .eventually("all have their status", async || {
            let labels = ["plugin=\"widget\"", "result=\"written\""];
            let written = host.metrics().await?.sum("oarlock_status_writes_total", &labels);
            ensure!(written >= WIDGETS as f64, "{written} statuses");
            let widgets = world.list("Widget", None).await?;
            widgets.iter().try_for_each(|widget| says(widget, "Ready", "True", "ChildrenReady"))
        })
        .await?;
    world.until_at_rest().await?;
    host.stop().await?;

    let proxy = Proxy::start(world.plane, 8).await?;
    let options = Options { kubeconfig: proxy.kubeconfig(), ..Options::standard(world.plane) };
    let mut audit = world.plane.audit().await?;
    let mut from = audit.mark().await?;
    let host = Host::start(world.plane, &options)?;
    host.ready().await?;
    let restarted = Figures { calls: WIDGETS as f64, hits: 0.0 };
    let found = check(world, &host, (&mut audit, &mut from), "a restart", restarted).await?;
    // So an edit would have gone before it.
    let told = explained(world, &host, "w999")?;
    let triggers = &told["plugins"][0]["reconciles"][0]["triggers"];
    assert!(*triggers == json!(["plugin"]) || *triggers == json!(["listed"]), "{triggers}");

    let lists = |proxy: &Proxy| {
        let seen = proxy.seen().into_iter();
        let of_ours = |resource: &str| ["widgets", "configmaps", "services"].contains(&resource);
        seen.filter(|seen| seen.verb == "list" && of_ours(&seen.resource)).count()
    };
    let before = lists(&proxy);
    let gone = Fault::Answer { code: 410, retry_after: None };
    let rules = [Fault::Cut(Duration::ZERO), gone]
        .map(|fault| proxy.rule(Rule { verbs: &["watch"], ..Rule::every(fault) }));
    world
        .eventually("everything is listed anew", async || {
            let anew = lists(&proxy) - before;
            // ConfigMaps are watched twice, and where the plugins are.
            ensure!(anew >= 5, "{anew} lists");
            Ok(())
        })
        .await?;
    drop(rules);
    let found = check(world, &host, (&mut audit, &mut from), "a relist", found).await?;

    let touch = async |kind: &str, names: Vec<String>| -> Result<()> {
        let label = json!({"metadata": {"labels": {"touched-by": "somebody"}}});
        let touched = names.into_iter().map(|name| {
            let label = label.clone();
            async move { world.merge(kind, &name, label).await }
        });
        stream::iter(touched).buffer_unordered(32).try_for_each(async |_| Ok(())).await
    };
    let names = |suffix: &str, from: usize| (from..from + TOUCHED).map(|n| format!("w{n}{suffix}")).collect();
    touch("ConfigMap", names("-cm", SERVICES)).await?;
    touch("Service", names("-svc", 0)).await?;
    let wanted = found.more(0, 2 * TOUCHED);
    let found = check(world, &host, (&mut audit, &mut from), "labels on children", wanted).await?;

    let condition = json!({
        "type": "Told", "status": "True", "reason": "Told", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    let services = world.api("Service");
    let told = (0..TOUCHED).map(|n| {
        let (services, status) = (&services, &status);
        async move { services.patch_status(&format!("w{n}-svc"), &PatchParams::default(), status).await }
    });
    stream::iter(told).buffer_unordered(32).try_for_each(async |_| Ok(())).await?;
    let wanted = found.more(0, TOUCHED);
    let found = check(world, &host, (&mut audit, &mut from), "statuses of children", wanted).await?;

    // The metadata of its object is part of what a guest is shown.
    touch("Widget", names("", SERVICES)).await?;
    let wanted = found.more(TOUCHED, 0);
    check(world, &host, (&mut audit, &mut from), "labels on parents", wanted).await?;
    host.stop().await
}
