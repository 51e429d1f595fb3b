//! The proxy itself: each fault does what it says.

use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, TryStreamExt};
use http::header::RETRY_AFTER;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use oarlock_tests::proxy::{Fault, Proxy, Rule, Seen};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::world::{DEADLINE, World};

/// For how long nothing comes that would come at once.
const NOTHING: Duration = Duration::from_secs(1);

/// A namespace, a proxy, and a client that goes through it and tries everything once.
struct Through {
    world: World,
    proxy: Proxy,
    client: Client,
    config_maps: Api<ConfigMap>,
}

impl Through {
    async fn new(namespace: &str) -> Result<Self> {
        let world = World::new(namespace).await?;
        let proxy = Proxy::start(world.plane, 1).await?;
        let content = Kubeconfig::read_from(proxy.kubeconfig())?;
        let mut config = Config::from_custom_kubeconfig(content, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        let client = Client::try_from(config)?;
        let config_maps = Api::namespaced(client.clone(), namespace);
        Ok(Self { world, proxy, client, config_maps })
    }

    /// Applies a `ConfigMap` through the proxy.
    async fn apply(&self, name: &str) -> kube::Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let params = PatchParams::apply("through");
        self.config_maps.patch(name, &params, &Patch::Apply(body)).await.map(drop)
    }

    /// Whether it is there, as others see it.
    async fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.world.find("ConfigMap", name).await?.is_some())
    }

    /// Creates a `ConfigMap` past the proxy.
    async fn create(&self, name: &str) -> Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        self.world.apply(&body, "tests").await.map(drop)
    }

    /// A watch through the proxy that has begun: what was there is not in it.
    async fn watch(&self) -> Result<impl Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + use<>> {
        let list = self.config_maps.list(&ListParams::default()).await?;
        let from = list.metadata.resource_version.context("a list has a version")?;
        Ok(self.config_maps.watch(&WatchParams::default(), &from).await?)
    }

    /// The one request that a fault happened to.
    fn faulted(&self) -> Result<Seen> {
        let seen = self.proxy.seen();
        let mut faulted: Vec<_> = seen.into_iter().filter(|seen| seen.fault.is_some()).collect();
        ensure!(faulted.len() == 1, "{faulted:?}");
        Ok(faulted.remove(0))
    }
}

async fn next(watch: impl Stream<Item = kube::Result<WatchEvent<ConfigMap>>>) -> Result<String> {
    match timeout(DEADLINE, pin!(watch).try_next()).await.context("nothing came")?? {
        Some(WatchEvent::Added(object)) => object.metadata.name.context("a name"),
        other => bail!("the watch delivers {other:?}"),
    }
}

#[tokio::test]
async fn watch_passes_through_and_every_request_is_written_down() -> Result<()> {
    let through = Through::new("proxy-plain").await?;
    let mut watch = pin!(through.watch().await?);
    for name in ["one", "two"] {
        through.apply(name).await?;
        assert_eq!(next(&mut watch).await?, name);
    }
    let seen = through.proxy.seen();
    let said: Vec<_> =
        seen.iter().map(|seen| (&*seen.verb, &*seen.resource, &*seen.name, seen.code)).collect();
    let wanted = [
        ("list", "configmaps", "", Some(200)),
        ("watch", "configmaps", "", Some(200)),
        ("apply", "configmaps", "one", Some(201)),
        ("apply", "configmaps", "two", Some(201)),
    ];
    assert_eq!(said, wanted);
    assert!(seen.iter().all(|seen| seen.namespace == "proxy-plain" && seen.fault.is_none()));
    Ok(())
}

#[tokio::test]
async fn request_is_answered_with_a_status_and_not_forwarded() -> Result<()> {
    let through = Through::new("proxy-answer").await?;
    for (code, reason) in [
        (403, "Forbidden"),
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ] {
        let fault = Fault::Answer { code, retry_after: None };
        let rule = through.proxy.rule(Rule { verbs: &["apply"], times: Some(1), ..Rule::every(fault) });
        match through.apply("one").await {
            Err(kube::Error::Api(status)) => assert_eq!((status.code, &*status.reason), (code, reason)),
            other => bail!("{code}: {other:?}"),
        }
        assert_eq!(rule.hits(), 1);
        assert!(!through.exists("one").await?, "{code}");
    }
    let fault = Fault::Answer { code: 429, retry_after: Some(7) };
    let rule = through.proxy.rule(Rule::every(fault));
    let request = http::Request::get("/version").body(Body::empty())?;
    let answer = through.client.send(request).await?;
    assert_eq!((answer.status().as_u16(), answer.headers()[RETRY_AFTER].as_bytes()), (429, &b"7"[..]));
    drop(rule);
    through.apply("one").await?;
    assert!(through.exists("one").await?);
    Ok(())
}

/// The connection is kept alive by a first request, and the second ends it as a broken network does.
#[tokio::test]
async fn dropped_request_resets_the_connection() -> Result<()> {
    let through = Through::new("proxy-reset").await?;
    let content = Kubeconfig::read_from(through.proxy.kubeconfig())?;
    let server = content.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone());
    let address = server.context("a server")?.replace("http://", "");
    let mut stream = TcpStream::connect(&address).await?;
    let request = "GET /version HTTP/1.1\r\nHost: it\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = vec![0; 65536];
    let length = stream.read(&mut answer).await?;
    assert!(answer[..length].starts_with(b"HTTP/1.1 200 OK\r\n"));
    // The rest of it, if there is one.
    while matches!(timeout(NOTHING, stream.read(&mut answer)).await, Ok(Ok(1..))) {}

    let rule = through.proxy.rule(Rule::every(Fault::DropBefore));
    stream.write_all(request.as_bytes()).await?;
    let ended = timeout(DEADLINE, stream.read(&mut answer)).await?;
    assert_eq!(ended.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    assert_eq!(rule.hits(), 1);
    assert_eq!(through.faulted()?.code, None);
    Ok(())
}

#[tokio::test]
async fn drop_before_and_after_differ_in_what_was_done() -> Result<()> {
    let through = Through::new("proxy-drop").await?;
    let once = |fault| Rule { times: Some(1), ..Rule::every(fault) };
    for (name, fault, is_done) in [
        ("before", Fault::DropBefore, false),
        ("after", Fault::DropAfter, true),
        ("timeout", Fault::AnswerAfter(504), true),
    ] {
        let rule = through.proxy.rule(once(fault));
        match (through.apply(name).await, fault) {
            (Err(kube::Error::Api(status)), Fault::AnswerAfter(code)) => assert_eq!(status.code, code),
            (Err(kube::Error::Api(status)), _) => bail!("{name}: {status:?}"),
            (Err(_), Fault::DropBefore | Fault::DropAfter) => {}
            (other, _) => bail!("{name}: {other:?}"),
        }
        assert_eq!(rule.hits(), 1, "{name}");
        assert_eq!(through.exists(name).await?, is_done, "{name}");
    }
    through.apply("before").await?;
    for (name, fault, is_done) in [("never", Fault::HangBefore, false), ("unheard", Fault::HangAfter, true)] {
        let rule = through.proxy.rule(once(fault));
        assert!(timeout(NOTHING, through.apply(name)).await.is_err(), "{name} was answered");
        assert_eq!(rule.hits(), 1, "{name}");
        assert_eq!(through.exists(name).await?, is_done, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn stale_reads_are_answered_from_the_first_answer() -> Result<()> {
    let through = Through::new("proxy-stale").await?;
    let names = async || -> Result<Vec<String>> {
        let list = through
            .config_maps
            .list(&ListParams::default().fields("metadata.name!=kube-root-ca.crt"))
            .await?;
        Ok(list.items.into_iter().filter_map(|object| object.metadata.name).collect())
    };
    let stale = through.proxy.rule(Rule { resource: "configmaps", ..Rule::every(Fault::Stale) });
    assert_eq!(names().await?, [""; 0]);
    through.apply("one").await?;
    assert_eq!(names().await?, [""; 0]);
    assert_eq!(stale.hits(), 2);
    drop(stale);
    assert_eq!(names().await?, ["one"]);
    Ok(())
}

#[tokio::test]
async fn delayed_request_waits() -> Result<()> {
    let through = Through::new("proxy-delay").await?;
    let delay = Duration::from_millis(300);
    let _rule = through.proxy.rule(Rule::every(Fault::Delay(delay)));
    let start = Instant::now();
    through.apply("one").await?;
    assert!(start.elapsed() >= delay);
    Ok(())
}

#[tokio::test]
async fn frozen_watch_delivers_nothing_until_it_thaws() -> Result<()> {
    let through = Through::new("proxy-freeze").await?;
    let mut watch = pin!(through.watch().await?);
    let freeze = through.proxy.rule(Rule::every(Fault::Freeze));
    through.create("one").await?;
    assert!(timeout(NOTHING, watch.try_next()).await.is_err());
    assert_eq!(freeze.hits(), 1);
    drop(freeze);
    assert_eq!(next(&mut watch).await?, "one");
    // All rules end at once in another way.
    let freeze = through.proxy.rule(Rule::every(Fault::Freeze));
    through.create("two").await?;
    assert!(timeout(NOTHING, watch.try_next()).await.is_err());
    through.proxy.clear();
    assert_eq!(next(&mut watch).await?, "two");
    assert_eq!(freeze.hits(), 1);
    Ok(())
}

#[tokio::test]
async fn cut_watch_ends_with_an_error_also_when_it_is_open_already() -> Result<()> {
    let through = Through::new("proxy-cut").await?;
    let mut watch = pin!(through.watch().await?);
    through.create("one").await?;
    assert_eq!(next(&mut watch).await?, "one");
    let cut = through.proxy.rule(Rule { times: Some(1), ..Rule::every(Fault::Cut(Duration::ZERO)) });
    let ended = timeout(DEADLINE, watch.try_next()).await?;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(cut.hits(), 1);
    assert_eq!(through.faulted()?.fault, Some(Fault::Cut(Duration::ZERO)));

    let mut watch = pin!(through.watch().await?);
    through.create("two").await?;
    assert_eq!(next(&mut watch).await?, "two");
    Ok(())
}

#[tokio::test]
async fn lagging_watch_delivers_everything_later() -> Result<()> {
    let through = Through::new("proxy-lag").await?;
    let mut watch = pin!(through.watch().await?);
    let _lag = through.proxy.rule(Rule::every(Fault::Lag(NOTHING)));
    let start = Instant::now();
    for name in ["one", "two"] {
        through.create(name).await?;
    }
    assert_eq!(next(&mut watch).await?, "one");
    assert!(start.elapsed() >= NOTHING);
    assert_eq!(next(&mut watch).await?, "two");
    // Later, but not one after the other.
    assert!(start.elapsed() < NOTHING * 30);
    Ok(())
}
