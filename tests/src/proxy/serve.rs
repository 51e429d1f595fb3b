//! The thread of a proxy: connections in, requests out, and what happens between.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::net;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::request::Asked;
use super::stream::Watch;
use super::{Fault, Shared};

/// An answer on its way to whoever asked.
type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// Serves until `ended`; tells once whether it could begin to.
pub(super) fn run(
    listener: net::TcpListener,
    kubeconfig: &Path,
    shared: &Arc<Shared>,
    tell: oneshot::Sender<Result<()>>,
    ended: oneshot::Receiver<()>,
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // Whoever waits for it is gone, or hears it.
            let _ = tell.send(Err(error).context("no runtime for the proxy"));
            return;
        }
    };
    runtime.block_on(async {
        let begun = begin(listener, kubeconfig).await;
        let (told, serve) = match begun {
            Ok(both) => (Ok(()), Some(both)),
            Err(error) => (Err(error), None),
        };
        let _ = tell.send(told);
        let Some((listener, client)) = serve else { return };
        tokio::select! {
            _ = ended => {}
            () = accept(&listener, &client, shared) => {}
        }
    });
}

async fn begin(listener: net::TcpListener, kubeconfig: &Path) -> Result<(TcpListener, Client)> {
    let content = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(content, &KubeConfigOptions::default()).await?;
    // One request is one request, and a watch may be silent for as long as it likes.
    config.default_retry = false;
    config.read_timeout = None;
    Ok((TcpListener::from_std(listener)?, Client::try_from(config)?))
}

async fn accept(listener: &TcpListener, client: &Client, shared: &Arc<Shared>) {
    loop {
        // A connection that ended before it was taken is nobody's loss.
        if let Ok((stream, _)) = listener.accept().await {
            drop(tokio::spawn(connection(stream, client.clone(), shared.clone())));
        }
    }
}

/// Serves one connection, until its end or until a fault resets it.
async fn connection(stream: TcpStream, client: Client, shared: Arc<Shared>) {
    let reset = Arc::new(Notify::new());
    let service = {
        let reset = reset.clone();
        service_fn(move |request| -> BoxFuture<'static, Result<Answer, Infallible>> {
            let (client, shared, reset) = (client.clone(), shared.clone(), reset.clone());
            async move { Ok(answer(request, &client, &shared, &reset).await) }.boxed()
        })
    };
    let mut served =
        http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // Its error is the other side's going away, which is its right.
        _ = poll_fn(|context| served.poll_without_shutdown(context)) => {}
        () = reset.notified() => {
            let stream = served.into_parts().io.into_inner();
            // Closed with this, it sends RST instead of FIN.
            let _ = stream.set_zero_linger();
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    client: &Client,
    shared: &Arc<Shared>,
    reset: &Arc<Notify>,
) -> Answer {
    let asked = Asked::of(&request);
    let uri = request.uri().to_string();
    let (seen, happens) = shared.state().arrive(&asked, &uri);
    let (rule, fault) = match happens {
        Some((rule, fault)) => (rule, Some(fault)),
        None => (0, None),
    };
    let forward = async || forward(request, client, shared, seen).await;
    match fault {
        Some(Fault::Answer { code, retry_after }) => refusal(code, retry_after),
        Some(Fault::DropBefore) => gone(reset).await,
        Some(Fault::DropAfter) => {
            // To the end of the answer: what it was about is done then. A watch has no end.
            if let Ok(answer) = forward().await
                && asked.verb != "watch"
            {
                let _ = answer.into_body().collect().await;
            }
            gone(reset).await
        }
        Some(Fault::HangBefore) => pending().await,
        Some(Fault::HangAfter) => {
            if let Ok(answer) = forward().await {
                let _ = answer.into_body().collect().await;
            }
            pending().await
        }
        Some(Fault::AnswerAfter(code)) => {
            if let Ok(answer) = forward().await {
                let _ = answer.into_body().collect().await;
            }
            refusal(code, None)
        }
        Some(Fault::Stale) => {
            if let Some(recorded) = shared.state().recorded(rule, &uri) {
                return recorded.map(whole);
            }
            let Ok(answer) = forward().await else { return gone(reset).await };
            let (head, body) = answer.into_parts();
            let Ok(body) = body.collect().await else { return gone(reset).await };
            let answer = Response::from_parts(head, body.to_bytes());
            shared.state().record(rule, uri, answer.clone());
            answer.map(whole)
        }
        other => {
            if let Some(Fault::Delay(time)) = other {
                sleep_until(Instant::now() + time).await;
            }
            match forward().await {
                Ok(answer) if asked.verb == "watch" && answer.status().is_success() => {
                    let watch = Watch::new(asked, seen, shared.clone(), reset.clone());
                    answer.map(|body| watch.through(body))
                }
                Ok(answer) => answer.map(BodyExt::boxed_unsync),
                // The API server is away: so is the proxy.
                Err(_) => gone(reset).await,
            }
        }
    }
}

/// Resets the connection, and with it ends this future.
pub(super) async fn gone<T>(reset: &Notify) -> T {
    reset.notify_one();
    pending().await
}

async fn forward(
    request: Request<Incoming>,
    client: &Client,
    shared: &Shared,
    seen: usize,
) -> Result<Response<Body>, kube::Error> {
    let (mut head, body) = request.into_parts();
    // About this connection, not about the next.
    head.headers.remove(HOST);
    head.headers.remove(CONNECTION);
    head.headers.remove(TRANSFER_ENCODING);
    // What breaks off in the middle is nothing that was asked.
    let body = body.collect().await.map_err(kube::Error::HyperError)?.to_bytes();
    let answer = client.send(Request::from_parts(head, Body::from(body))).await?;
    shared.state().seen[seen].code = Some(answer.status().as_u16());
    let (from, body) = answer.into_parts();
    let mut answer = Response::new(body);
    *answer.status_mut() = from.status;
    *answer.headers_mut() = from.headers;
    answer.headers_mut().remove(CONNECTION);
    answer.headers_mut().remove(TRANSFER_ENCODING);
    Ok(answer)
}

/// What the API server says with a status.
fn refusal(code: u16, retry_after: Option<u32>) -> Answer {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("the proxy answers {code}"), "reason": reason, "code": code,
    });
    let mut answer = Response::new(whole(Bytes::from(status.to_string())));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    answer
}

fn whole(body: Bytes) -> UnsyncBoxBody<Bytes, kube::Error> {
    Full::new(body).map_err(|never: Infallible| match never {}).boxed_unsync()
}
