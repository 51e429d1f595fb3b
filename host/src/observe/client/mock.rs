//! An API server that answers what a test tells it to, request by request.

use super::Client;
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use kube::client::Body;
use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
};

/// What comes back.
pub(crate) enum Reply {
    /// A status and a body.
    Text(u16, String),
    /// A status, headers and a body.
    Headed(u16, &'static str, &'static str, String),
    /// Lines, and how the body ends after them.
    Lines(Vec<String>, End),
    /// The connection breaks.
    Reset,
    /// Nothing, ever.
    Never,
}

/// How a body ends.
pub(crate) enum End {
    /// Properly.
    Closed,
    /// The connection breaks.
    Cut,
    /// Not at all.
    Silent,
}

/// The server: what it still answers, and what it was asked.
pub(crate) struct Server {
    script: Mutex<VecDeque<(String, Reply)>>,
    seen: Mutex<Vec<String>>,
}

impl Server {
    /// A client whose requests must begin as the script says, such as `GET /api/v1/pods?limit`, in its order.
    /// A request after the last never ends.
    pub(crate) fn start(script: Vec<(&str, Reply)>) -> (Arc<Self>, Client) {
        let script = script.into_iter().map(|(request, reply)| (request.to_owned(), reply)).collect();
        let server = Arc::new(Self { script: Mutex::new(script), seen: Mutex::default() });
        let answering = Arc::clone(&server);
        let service = tower::service_fn(move |request| Arc::clone(&answering).answer(request));
        (server, Client::new(kube::Client::new(service, "default")))
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Body>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, io::Error>>, io::Error> {
        let (head, body) = request.into_parts();
        let line = format!("{} {}", head.method, head.uri);
        let kind = head.headers.get(http::header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap());
        let body = String::from_utf8(body.collect_bytes().await.unwrap().to_vec()).unwrap();
        self.seen.lock().unwrap().push(format!("{line} {kind} {body}").trim_end().to_owned());
        let next = self.script.lock().unwrap().pop_front();
        let reply = match next {
            Some((expected, reply)) => {
                assert!(line.starts_with(&expected), "asked {line}, expected {expected}");
                reply
            }
            None => Reply::Never,
        };
        let response = |code: u16, body: UnsyncBoxBody<Bytes, io::Error>| {
            Response::builder().status(code).body(body).unwrap()
        };
        match reply {
            Reply::Text(code, text) => Ok(response(code, full(text))),
            Reply::Headed(code, name, value, text) => {
                let mut response = response(code, full(text));
                response.headers_mut().insert(name, value.parse().unwrap());
                Ok(response)
            }
            Reply::Lines(lines, end) => {
                let text = lines.join("\n") + "\n";
                let rest = async move {
                    match end {
                        End::Closed => None,
                        End::Cut => Some(Err(io::Error::from(io::ErrorKind::ConnectionReset))),
                        End::Silent => std::future::pending::<Option<Result<HeaderMap, io::Error>>>().await,
                    }
                };
                Ok(response(200, full(text).with_trailers(rest).boxed_unsync()))
            }
            Reply::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            Reply::Never => std::future::pending().await,
        }
    }

    /// Every request so far: method, path, and for writes content type and body.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn full(text: String) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}

/// Collects a stream; errors as text.
pub(crate) async fn collect<T>(
    stream: impl futures::Stream<Item = Result<T, super::Error>>,
    show: impl Fn(T) -> String,
) -> Vec<String> {
    stream.map(|item| item.map_or_else(|error| format!("{:?}: {error}", error.answer), &show)).collect().await
}
