//! `/metrics`, `/livez`, `/readyz` and `/explain`: what may be asked of a host, and nothing that changes it.

use super::{
    explain::{Explanation, Problem, Question},
    metrics::{Depth, Metrics},
};
use axum::{
    Router,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::warn;

/// What a client that is slow to read may take once the host is told to stop.
const GRACE: Duration = Duration::from_secs(1);
/// How long a client may take to ask and to read: whatever is asked for is answered at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients at the same time: far more than there are, and few enough to leave descriptors and memory to the rest.
const CLIENTS: usize = 128;
/// How long nobody is accepted after that failed: for want of descriptors, mostly.
const REST: Duration = Duration::from_secs(1);

/// Serves until `stopped` says true, as one task. `ready` tells whether the host is of use yet, or
/// what it waits for; `depth` what waits in the queue; `explain` what is known of an object.
pub fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    depth: impl Fn() -> Depth + Send + Sync + 'static,
    explain: impl Fn(&Question) -> Result<Explanation, Problem> + Send + Sync + 'static,
    mut stopped: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let (ready, depth, explain) = (Arc::new(ready), Arc::new(depth), Arc::new(explain));
    let readyz = move || async move {
        match ready() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(waits) => (StatusCode::SERVICE_UNAVAILABLE, format!("{waits}\n")),
        }
    };
    let render = move || async move {
        let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, format)], metrics.render(&depth()))
    };
    let explain = move |uri: Uri| async move {
        match question(uri.query().unwrap_or_default()) {
            Ok(question) => match explain(&question) {
                Ok(explanation) => json(StatusCode::OK, &explanation),
                Err(problem) => json(StatusCode::NOT_FOUND, &problem),
            },
            Err(problem) => json(StatusCode::BAD_REQUEST, &problem),
        }
    };
    let router = Router::new()
        .route("/metrics", get(render))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/explain", get(explain));
    tokio::spawn(async move {
        let mut clients = JoinSet::new();
        tokio::select! {
            biased;
            // An error means that the sender is gone: the host is as good as stopped then.
            _ = stopped.wait_for(|stopped| *stopped) => {}
            never = accept(&listener, &router, &mut clients) => match never {},
        }
        // Whoever has not been answered by then is dropped with the set.
        let _ = timeout(GRACE, async { while clients.join_next().await.is_some() {} }).await;
    })
}

/// Serves a request to each client, to a bounded number at a time, and to none for long.
async fn accept(listener: &TcpListener, router: &Router, clients: &mut JoinSet<()>) -> Infallible {
    loop {
        tokio::select! {
            biased;
            Some(_) = clients.join_next() => {}
            accepted = listener.accept(), if clients.len() < CLIENTS => match accepted {
                Ok((stream, _)) => {
                    let service = TowerToHyperService::new(router.clone());
                    let served = http1::Builder::new()
                        .keep_alive(false)
                        .serve_connection(TokioIo::new(stream), service);
                    // How it ends is the client's concern.
                    clients.spawn(async { drop(timeout(PATIENCE, served).await) });
                }
                Err(error) => {
                    warn!(error = %error, "no client of the admin endpoint can be accepted");
                    sleep(REST).await;
                }
            },
        }
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let text = serde_json::to_string(body).expect("names and numbers are JSON");
    (status, [(header::CONTENT_TYPE, "application/json")], text + "\n").into_response()
}

/// From `kind=website&namespace=demo&name=blog`, with `plugin=…` or without.
fn question(query: &str) -> Result<Question, Problem> {
    let mut question = Question::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
        match name {
            "kind" => question.kind = value,
            "namespace" => question.namespace = value,
            "name" => question.name = value,
            "plugin" => question.plugin = Some(value),
            other => return Err(malformed(&format!("{other} is no part of a question"))),
        }
    }
    if question.kind.is_empty() || question.name.is_empty() {
        return Err(malformed("a question has a kind and a name"));
    }
    Ok(question)
}

fn malformed(error: &str) -> Problem {
    let help = "ask like /explain?kind=website&namespace=demo&name=blog, or with `oarlock explain`";
    Problem { error: error.to_owned(), help: help.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::SocketAddr,
        sync::atomic::{AtomicBool, Ordering},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    async fn get(address: SocketAddr, path: &str) -> String {
        ask(address, "GET", path).await
    }

    async fn ask(address: SocketAddr, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn admin_tells_health_and_metrics_and_stops_though_a_client_is_slow() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let is_ready = Arc::new(AtomicBool::new(false));
        let ready = is_ready.clone();
        let depth = || Depth::from([("website".into(), (2, 0))]);
        let metrics = Arc::new(Metrics::new());
        let task = serve(
            listener,
            metrics,
            move || {
                ready
                    .load(Ordering::Relaxed)
                    .then_some(())
                    .ok_or_else(|| "plugins are being listed".to_owned())
            },
            depth,
            |question| Err(malformed(&format!("no {} {}", question.kind, question.name))),
            stopped,
        );
        assert!(get(address, "/livez").await.starts_with("HTTP/1.1 200 "));
        let unready = get(address, "/readyz").await;
        assert!(
            unready.starts_with("HTTP/1.1 503 ") && unready.contains("plugins are being listed"),
            "{unready}"
        );
        is_ready.store(true, Ordering::Relaxed);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200 "));
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("application/openmetrics-text"), "{metrics}");
        assert!(metrics.contains(r#"oarlock_queue_depth{plugin="website",state="due"} 2"#), "{metrics}");
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404 "));
        let unknown = get(address, "/explain?kind=website&name=blog").await;
        assert!(unknown.starts_with("HTTP/1.1 404 ") && unknown.contains("no website blog"), "{unknown}");
        assert!(get(address, "/explain?kind=website").await.starts_with("HTTP/1.1 400 "));
        let post = ask(address, "POST", "/explain?kind=website&name=blog").await;
        assert!(post.starts_with("HTTP/1.1 405 "), "{post}");

        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        stop.send(true).unwrap();
        timeout(Duration::from_secs(10), task).await.expect("the task ends").unwrap();
    }

    #[test]
    fn question_is_read_from_a_query() {
        let asked = |plugin: Option<&str>| Question {
            kind: "websites.demo.oarlock.dev".into(),
            namespace: "demo".into(),
            name: "a&b".into(),
            plugin: plugin.map(Into::into),
        };
        let query = "kind=websites%2Edemo.oarlock.dev&namespace=demo&name=a%26b";
        assert_eq!(question(query).unwrap(), asked(None));
        assert_eq!(question(&format!("{query}&plugin=website")).unwrap(), asked(Some("website")));
        for (query, error) in [
            ("", "a question has a kind and a name"),
            ("kind=website&namespace=demo", "a question has a kind and a name"),
            ("kind=website&name=a&uid=b", "uid is no part of a question"),
        ] {
            assert_eq!(question(query).unwrap_err().error, error);
        }
    }
}
