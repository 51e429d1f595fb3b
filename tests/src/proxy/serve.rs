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
use futures::stream;
use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
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

use oarlock_sim::api::Asked;
use oarlock_sim::faults::{Fault, Passed, Rules, Watch, emptied, reason};

/// An answer on its way to whoever asked.
type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// Serves until `ended`; tells once whether it could begin to.
pub(super) fn run(
    listener: net::TcpListener,
    kubeconfig: &Path,
    rules: &Rules,
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
            () = accept(&listener, &client, rules) => {}
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

async fn accept(listener: &TcpListener, client: &Client, rules: &Rules) {
    loop {
        // A connection that ended before it was taken is nobody's loss.
        if let Ok((stream, _)) = listener.accept().await {
            drop(tokio::spawn(connection(stream, client.clone(), rules.clone())));
        }
    }
}

/// Serves one connection, until its end or until a fault resets it.
async fn connection(stream: TcpStream, client: Client, rules: Rules) {
    let reset = Arc::new(Notify::new());
    let service = {
        let reset = reset.clone();
        service_fn(move |request| -> BoxFuture<'static, Result<Answer, Infallible>> {
            let (client, rules, reset) = (client.clone(), rules.clone(), reset.clone());
            async move { Ok(answer(request, &client, &rules, &reset).await) }.boxed()
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

async fn answer(request: Request<Incoming>, client: &Client, rules: &Rules, reset: &Arc<Notify>) -> Answer {
    let uri = request.uri().to_string();
    // In which form it was asked for makes another answer.
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let place = format!("{uri} {accept}");
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let asked = Asked::new(request.method().as_str(), &uri, content_type.unwrap_or_default());
    let (seen, happens) = rules.arrive(&asked);
    let (rule, fault) = match happens {
        Some((rule, fault)) => (rule, Some(fault)),
        None => (0, None),
    };
    let forward = async || forward(request, client, rules, seen).await;
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
            if let Some(recorded) = rules.recorded(rule, &place) {
                return recorded.map(whole);
            }
            let Ok(answer) = forward().await else { return gone(reset).await };
            let (head, body) = answer.into_parts();
            let Ok(body) = body.collect().await else { return gone(reset).await };
            let answer = Response::from_parts(head, body.to_bytes());
            rules.record(rule, place, answer.clone());
            answer.map(whole)
        }
        Some(Fault::Empty) => {
            let Ok(answer) = forward().await else { return gone(reset).await };
            let (head, body) = answer.into_parts();
            let Ok(body) = body.collect().await else { return gone(reset).await };
            Response::from_parts(head, whole(emptied(&body.to_bytes()).into()))
        }
        other => {
            if let Some(Fault::Delay(time)) = other {
                sleep_until(Instant::now() + time).await;
            }
            match forward().await {
                Ok(answer) if asked.verb == "watch" && answer.status().is_success() => {
                    answer.map(|body| through(Watch::new(asked, seen, rules, body.into_data_stream()), reset))
                }
                Ok(answer) => answer.map(BodyExt::boxed_unsync),
                // The API server is away: so is the proxy.
                Err(_) => gone(reset).await,
            }
        }
    }
}

/// The body of a watch as whoever asked gets it.
fn through(watch: Watch<BodyDataStream<Body>>, reset: &Arc<Notify>) -> UnsyncBoxBody<Bytes, kube::Error> {
    let pieces = stream::unfold((watch, reset.clone()), |(mut watch, reset)| async move {
        match watch.next().await? {
            Passed::Piece(piece) => Some((Ok(Frame::data(piece)), (watch, reset))),
            Passed::Cut => gone(&reset).await,
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Resets the connection, and with it ends this future.
async fn gone<T>(reset: &Notify) -> T {
    reset.notify_one();
    pending().await
}

async fn forward(
    request: Request<Incoming>,
    client: &Client,
    rules: &Rules,
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
    rules.answered(seen, answer.status().as_u16());
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
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("the proxy answers {code}"), "reason": reason(code), "code": code,
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
