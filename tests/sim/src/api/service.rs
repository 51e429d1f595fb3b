//! Requests in, answers out.

use super::{ADMIN, Asked, Change, FAULT, Record, Server, State, no_page, read::Form, text};
use crate::refusal::{About, Refusal};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http::{Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::Value;
use std::{convert::Infallible, io, sync::Arc};

/// The lines of a watch, each with its end.
pub type Lines = BoxStream<'static, String>;
/// What an HTTP answer has for a body.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks.
    pub user: String,
    /// For what.
    pub asked: Asked,
    /// The header `Accept`.
    pub accept: String,
    /// The header `Content-Type`.
    pub content_type: String,
    /// What is sent along.
    pub body: Bytes,
}

/// An answer.
pub enum Answer {
    /// One that is complete.
    Text {
        /// The HTTP status.
        code: u16,
        /// `Retry-After`, in seconds.
        retry_after: Option<u32>,
        /// JSON.
        text: String,
    },
    /// One that goes on.
    Watch(Lines),
}

/// What a write did.
pub(super) struct Done {
    pub(super) code: u16,
    /// The answer.
    pub(super) object: Arc<Value>,
    pub(super) changes: Vec<Arc<Change>>,
}

impl Request {
    /// A request without headers of its own.
    pub fn new(user: &str, method: &str, uri: &str, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            user: user.to_owned(),
            asked: Asked::new(method, uri, content_type),
            accept: String::new(),
            content_type: content_type.to_owned(),
            body: body.into(),
        }
    }

    /// Reads an HTTP request of a user.
    ///
    /// # Errors
    /// Its body's.
    pub async fn read(user: &str, request: http::Request<kube::client::Body>) -> Result<Self, kube::Error> {
        let (head, body) = request.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut read = Self::new(
            user,
            head.method.as_str(),
            head.uri.path_and_query().map_or("", |uri| uri.as_str()),
            header(CONTENT_TYPE),
            body.collect_bytes().await?,
        );
        header(http::header::ACCEPT).clone_into(&mut read.accept);
        Ok(read)
    }
}

impl Answer {
    /// A refusal of what was asked for.
    pub fn refused(refusal: &Refusal, asked: &Asked, name: &str) -> Self {
        let about = About { group: asked.group.clone(), kind: asked.resource.clone(), name: name.to_owned() };
        // Not every refusal is one of the API's.
        let text = match refusal.code {
            404 if refusal.reason.is_empty() => refusal.message.clone(),
            _ => refusal.status(&about).to_string(),
        };
        Self::Text { code: refusal.code, retry_after: refusal.retry_after, text }
    }

    /// As an HTTP response.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::builder().header(CONTENT_TYPE, "application/json");
        let (code, body) = match self {
            Self::Text { code, retry_after, text } => {
                if let Some(seconds) = retry_after {
                    response = response.header(http::header::RETRY_AFTER, seconds);
                }
                (code, Full::from(text).map_err(|never| match never {}).boxed_unsync())
            }
            Self::Watch(lines) => {
                let frames = lines.map(|line| Ok(Frame::data(Bytes::from(line))));
                (200, StreamBody::new(frames.map_err(|never: Infallible| match never {})).boxed_unsync())
            }
        };
        response.status(code).body(body).expect("a status and plain headers make a response")
    }
}

impl Server {
    /// A client of the server, without anything in between.
    pub fn client(&self, user: &str) -> kube::Client {
        let (server, user) = (self.clone(), user.to_owned());
        let service = tower::service_fn(move |request| {
            let (server, user) = (server.clone(), user.clone());
            async move {
                let request = Request::read(&user, request).await?;
                Ok::<_, kube::Error>(server.answer(&request).into_response())
            }
        });
        kube::Client::new(service, "default")
    }

    /// Answers a request.
    pub fn answer(&self, request: &Request) -> Answer {
        let Request { user, asked, accept, .. } = request;
        let form = Form::of(accept);
        let mut state = self.state();
        let allowed = state.rights.get(user).map_or(Ok(()), |rights| rights.check(user, asked));
        let mut name = asked.name.clone();
        let mut changes = Vec::new();
        let answer = match (&*asked.verb, allowed) {
            (_, Err(refusal)) => Err(refusal),
            _ if asked.resource.is_empty() => state.document(&asked.path).map(|text| (200, text)),
            ("get", Ok(())) => state.get(asked, form).map(|object| (200, object.to_string())),
            ("list", Ok(())) => state.list(asked, form).map(|text| (200, text)),
            ("watch", Ok(())) => {
                state.record(request, 200, None, Vec::new());
                drop(state);
                return self
                    .watch(asked, form)
                    .map_or_else(|refusal| Answer::refused(&refusal, asked, ""), Answer::Watch);
            }
            _ => state.write(request, &mut name).map(|done| {
                changes = done.changes;
                (done.code, done.object.to_string())
            }),
        };
        let answer = match answer {
            Ok((code, text)) => {
                state.record(request, code, None, changes.clone());
                Answer::Text { code, retry_after: None, text }
            }
            Err(refusal) => {
                state.record(request, refusal.code, Some(refusal.message.clone()), Vec::new());
                Answer::refused(&refusal, asked, &name)
            }
        };
        drop(state);
        if !changes.is_empty() {
            self.0.changed.notify_waiters();
        }
        answer
    }

    /// Puts on record that something happened to a request on its way.
    pub fn note_fault(&self, request: &Request, what: String) {
        self.state().record(request, FAULT, Some(what), Vec::new());
    }

    /// One request whose answer is read at once: status and object.
    pub fn ask(&self, user: &str, method: &str, uri: &str, content_type: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        match self.answer(&Request::new(user, method, uri, content_type, body)) {
            Answer::Text { code, text, .. } => (code, serde_json::from_str(&text).unwrap_or_default()),
            Answer::Watch(_) => (200, Value::Null),
        }
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The server's `Status`.
    pub fn create(&self, user: &str, object: &Value) -> Result<Value, Value> {
        let uri = self.uri(object, false);
        told(self.ask(user, "POST", &uri.ok_or(Value::Null)?, "application/json", object))
    }

    /// Applies an object as a field manager, by force; `status` goes to the subresource.
    ///
    /// # Errors
    /// The server's `Status`.
    pub fn apply(&self, manager: &str, object: &Value, status: bool) -> Result<Value, Value> {
        let uri = self.uri(object, true).ok_or(Value::Null)?;
        let subresource = if status { "/status" } else { "" };
        let uri = format!("{uri}{subresource}?fieldManager={manager}&force=true");
        told(self.ask(ADMIN, "PATCH", &uri, "application/apply-patch+yaml", object))
    }

    /// The path of an object, or of the collection that it is in; `None` if its kind is not served.
    pub fn uri(&self, object: &Value, named: bool) -> Option<String> {
        let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
        let state = self.state();
        let kind =
            state.kinds.values().find(|known| known.kind == kind && known.api_version() == api_version)?;
        let root = if kind.group.is_empty() { "api" } else { "apis" };
        let namespace = if kind.namespaced {
            format!("/namespaces/{}", text(object, "/metadata/namespace"))
        } else {
            String::new()
        };
        let name = if named { format!("/{}", text(object, "/metadata/name")) } else { String::new() };
        Some(format!("/{root}/{api_version}{namespace}/{}{name}", kind.plural))
    }
}

fn told((code, object): (u16, Value)) -> Result<Value, Value> {
    if code < 300 { Ok(object) } else { Err(object) }
}

impl State {
    /// A write; `name` becomes the name of the object where the path has none.
    fn write(&mut self, request: &Request, name: &mut String) -> Result<Done, Refusal> {
        let kind = self.kind(&request.asked)?;
        match &*request.asked.verb {
            "create" => self.create(&kind, request, name),
            "update" => self.update(&kind, request),
            "apply" | "patch" => self.patch(&kind, request),
            "delete" => self.delete(&kind, request),
            "deletecollection" => self.delete_collection(&kind, request),
            _ => Err(no_page()),
        }
    }

    pub(super) fn record(
        &mut self,
        request: &Request,
        code: u16,
        refused: Option<String>,
        changes: Vec<Arc<Change>>,
    ) {
        let at = self.at;
        if let Some(records) = &mut self.records {
            records.push(Record {
                at,
                user: request.user.clone(),
                asked: request.asked.clone(),
                code,
                refused,
                changes,
            });
        }
    }
}
