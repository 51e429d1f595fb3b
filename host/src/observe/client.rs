//! The one way to the API server.
//!
//! Every request has a deadline, `?timeout=` where it writes, and exactly one attempt: retries happen in the
//! queue. Every answer is told apart by one table, [`Answer`].

mod answer;
#[cfg(test)]
pub(crate) mod mock;
mod request;
mod response;
#[cfg(test)]
mod tests;
mod wire;

pub use answer::Answer;

use super::discovery::Kind;
use crate::object::{Object, ObjectKey, ResourceVersion};
use answer::classify;
use futures::{Stream, StreamExt};
use http::Response;
use http_body_util::BodyExt;
use kube::{client::Body, core::response::StatusDetails};
pub(in crate::observe) use request::root;
use request::{Ask, JSON, Verb};
use response::{Failure, connection_words, decode, read, retry_after, status_of, until_error, within};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long one request may take. The API server ends a write after [`WRITE_TIMEOUT`], so that its answer still
/// has time to arrive.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long the API server may work on a write: after that it gives up, and says so.
const WRITE_TIMEOUT: &str = "8s";
/// How long a list, or an `OpenAPI` document of several megabytes, may take.
const LIST_DEADLINE: Duration = Duration::from_mins(1);
/// How long opening a watch may take, headers only.
const WATCH_DEADLINE: Duration = Duration::from_secs(30);
/// How long connecting may take, TLS included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Objects in one page of a list: as many as kubectl asks for.
const PAGE_SIZE: &str = "500";
/// The largest answer about one object: a stored object has up to 1.5 MB, its text a multiple at worst.
const OBJECT_BYTES: usize = 16 << 20;
/// The largest page of a list, or document: 500 objects of half a megabyte.
const LIST_BYTES: usize = 256 << 20;
/// The host's field manager where no plugin owns what it writes: finalizers.
const HOST_MANAGER: &str = "oarlock";

/// A request that did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {verb} {target}: {message}")]
pub struct Error {
    /// What was tried, as in RBAC: `get`, `list`, `watch`, `patch`, `delete`, ….
    pub verb: &'static str,
    /// On what, for people: `Deployment demo/blog`.
    pub target: String,
    /// The row of the table.
    pub answer: Answer,
    /// The API server's words, or the connection's.
    pub message: String,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// Which objects of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// One namespace; `None` for all.
    pub namespace: Option<String>,
    /// A label selector in the notation of `kubectl -l`; `None` for all.
    pub label_selector: Option<String>,
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    /// The objects; those that cannot be decoded are in `undecodable`.
    pub objects: Vec<Object>,
    /// What could not be decoded, with the reason.
    pub undecodable: Vec<String>,
    /// The collection's version.
    pub version: ResourceVersion,
    /// Where the next page starts.
    pub next: Option<String>,
}

/// What a watch delivers.
#[derive(Debug)]
pub enum Delivery {
    /// The object is there, new or changed.
    Applied(Box<Object>),
    /// The object is gone, or left the selector.
    Deleted(Box<Object>),
    /// Everything up to this version has been delivered.
    Bookmark(ResourceVersion),
    /// One object could not be decoded; the watch goes on.
    Undecodable(String),
}

/// A server-side apply.
#[derive(Clone, Copy, Debug)]
pub struct Apply<'a> {
    /// `oarlock/<plugin>`.
    pub manager: &'a str,
    /// Whether to take fields from other managers.
    pub force: bool,
    /// Whether this goes to the status subresource.
    pub status: bool,
    /// The object as JSON text.
    pub body: &'a str,
}

/// May this replica write? Shared by all clones of a client; open until somebody closes it.
#[derive(Clone, Debug)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    /// Lets writes pass.
    pub fn open(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Answers every write that begins after this with [`Answer::GateClosed`].
    pub fn close(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Whether writes pass.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Is told of every request: its verb, its kind (`Deployment.apps`, empty for documents), and the answer if it
/// was no success. Called on the request's task, so it must not block.
pub type Observer = Arc<dyn Fn(&'static str, &str, Option<&Answer>) + Send + Sync>;

/// The client.
#[derive(Clone)]
pub struct Client {
    kube: kube::Client,
    gate: Gate,
    observer: Option<Observer>,
}

impl Client {
    /// Wraps kube's client; its own retries must be off (see [`Client::from_config`]).
    pub fn new(kube: kube::Client) -> Self {
        Self { kube, gate: Gate(Arc::new(AtomicBool::new(true))), observer: None }
    }

    /// Connects with kube's configuration: no retries of its own, and no limit on how long a watch may be
    /// silent (each request here has its own).
    ///
    /// # Errors
    /// The configuration makes no client (certificates, exec plugin).
    pub fn from_config(mut config: kube::Config) -> Result<Self, kube::Error> {
        config.default_retry = false;
        config.read_timeout = None;
        config.write_timeout = Some(DEADLINE);
        config.connect_timeout = Some(CONNECT_DEADLINE);
        Ok(Self::new(kube::Client::try_from(config)?))
    }

    /// Tells `observer` of every request.
    pub fn observed(self, observer: Observer) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// The gate that every write passes.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// kube's client, for what is not an object: events.
    pub fn kube(&self) -> &kube::Client {
        &self.kube
    }

    /// One page of a list: most recent data (no resourceVersion), `next` from the page before.
    pub async fn list(&self, kind: &Kind, scope: &Scope, next: Option<&str>) -> Result<Page, Error> {
        self.page(kind, Self::ask_page(kind, scope, PAGE_SIZE, next)).await
    }

    /// One page of a list without bodies: what there is, in which version.
    pub async fn list_metadata(&self, kind: &Kind, scope: &Scope, next: Option<&str>) -> Result<Page, Error> {
        let ask = Self::ask_page(kind, scope, PAGE_SIZE, next);
        let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        self.page(kind, Ask { accept, ..ask }).await
    }

    /// The version that the collection has now, read consistently: everything written before is included.
    pub async fn current_version(&self, kind: &Kind, scope: &Scope) -> Result<ResourceVersion, Error> {
        Ok(self.page(kind, Self::ask_page(kind, scope, "1", None)).await?.version)
    }

    fn ask_page<'a>(kind: &'a Kind, scope: &Scope, limit: &str, next: Option<&str>) -> Ask<'a> {
        let options =
            [("limit", Some(limit)), ("labelSelector", scope.label_selector.as_deref()), ("continue", next)];
        Ask::collection(Verb::List, kind, scope, &options)
    }

    async fn page(&self, kind: &Kind, ask: Ask<'_>) -> Result<Page, Error> {
        self.finish(&ask, LIST_DEADLINE, LIST_BYTES, |text| {
            wire::page(&kind.gvk, text).map_err(|error| error.to_string())
        })
        .await
    }

    /// A watch from a version on, with bookmarks, for about so many seconds. Ends when the server ends it; an
    /// item that is an error ends it too.
    pub async fn watch(
        &self,
        kind: &Kind,
        scope: &Scope,
        from: &ResourceVersion,
        seconds: u32,
    ) -> Result<impl Stream<Item = Result<Delivery, Error>> + Send + use<>, Error> {
        let seconds = seconds.to_string();
        let options = [
            ("watch", Some("true")),
            ("allowWatchBookmarks", Some("true")),
            ("resourceVersion", Some(from.as_str())),
            ("timeoutSeconds", Some(&*seconds)),
            ("labelSelector", scope.label_selector.as_deref()),
        ];
        let ask = Ask::collection(Verb::Watch, kind, scope, &options);
        let opened = within(WATCH_DEADLINE, self.send(&ask)).await;
        let body = self.observe(&ask, opened)?.into_body();
        let (gvk, target) = (kind.gvk.clone(), ask.target);
        let fail = move |answer, message| Error {
            verb: Verb::Watch.as_str(),
            target: target.clone(),
            answer,
            message,
            retry_after: None,
        };
        let items = wire::lines(body.into_data_stream()).map(move |line| match line {
            Err(error) => Err(fail(Answer::Connection, connection_words(&error))),
            Ok(wire::Line::Cut) => Err(fail(Answer::Connection, "the connection ended within a line".into())),
            Ok(wire::Line::TooLong(bytes)) => Ok(Delivery::Undecodable(format!("an event of {bytes} bytes"))),
            Ok(wire::Line::Text(text)) => match wire::line(&gvk, &text) {
                Ok(wire::Said::Delivery(delivery)) => Ok(delivery),
                Ok(wire::Said::Error(status)) => {
                    // A status without a code is an internal error of the API server.
                    let code = if status.code == 0 { 500 } else { status.code };
                    Err(fail(classify(Verb::Watch, code, &status), status.message))
                }
                Err(error) => Err(fail(Answer::Undecodable, error.to_string())),
            },
        });
        Ok(until_error(items))
    }

    /// One object, as it is now; `None` if there is none.
    pub async fn get(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Object>, Error> {
        self.get_object(Ask::object(Verb::Get, kind, key, false, &[])?, kind).await
    }

    /// An object's metadata from the API server's cache, cheap and perhaps a moment old; `None` if there is none.
    pub async fn peek(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Object>, Error> {
        let ask = Ask {
            accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            ..Ask::object(Verb::Get, kind, key, false, &[("resourceVersion", Some("0"))])?
        };
        self.get_object(ask, kind).await
    }

    async fn get_object(&self, ask: Ask<'_>, kind: &Kind) -> Result<Option<Object>, Error> {
        match self.finish(&ask, DEADLINE, OBJECT_BYTES, |text| decode(kind, text)).await {
            Ok(object) => Ok(Some(object)),
            Err(Error { answer: Answer::NotFound, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Server-side apply; the object as it is afterwards.
    pub async fn apply(&self, kind: &Kind, key: &ObjectKey, apply: Apply<'_>) -> Result<Object, Error> {
        let options = [
            ("fieldManager", Some(apply.manager)),
            ("force", Some(if apply.force { "true" } else { "false" })),
            ("fieldValidation", Some("Strict")),
            ("timeout", Some(WRITE_TIMEOUT)),
        ];
        let ask = Ask::object(Verb::Apply, kind, key, apply.status, &options)?;
        self.write(ask, kind, "application/apply-patch+yaml", &request::yaml(apply.body)).await
    }

    /// Whether the API server would take this as a new object, if none of its name were there; nothing is written.
    /// True where only the name stands against it, as the API server looks at the content first.
    pub async fn is_valid_as_new(&self, kind: &Kind, key: &ObjectKey, body: &str) -> Result<bool, Error> {
        let options = [
            ("dryRun", Some("All")),
            ("fieldManager", Some(HOST_MANAGER)),
            ("fieldValidation", Some("Strict")),
            ("timeout", Some(WRITE_TIMEOUT)),
        ];
        let scope = Scope { namespace: key.namespace.as_deref().map(str::to_owned), label_selector: None };
        let ask = Ask::collection(Verb::Create, kind, &scope, &options);
        let ask = Ask { target: key.to_string(), content: Some((JSON, body.to_owned())), ..ask };
        match self.finish(&ask, DEADLINE, OBJECT_BYTES, |_| Ok(())).await {
            Ok(()) | Err(Error { answer: Answer::AlreadyExists, .. }) => Ok(true),
            Err(Error { answer: Answer::Invalid(_), .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A JSON patch (RFC 6902) of the object itself, for finalizers; the object as it is afterwards.
    pub async fn json_patch(&self, kind: &Kind, key: &ObjectKey, patch: &str) -> Result<Object, Error> {
        self.patch(kind, key, false, patch).await
    }

    /// A JSON patch of the status subresource, for what an apply cannot take off; the object as it is afterwards.
    pub async fn json_patch_status(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        patch: &str,
    ) -> Result<Object, Error> {
        self.patch(kind, key, true, patch).await
    }

    async fn patch(&self, kind: &Kind, key: &ObjectKey, status: bool, patch: &str) -> Result<Object, Error> {
        let options = [
            ("fieldManager", Some(HOST_MANAGER)),
            ("fieldValidation", Some("Strict")),
            ("timeout", Some(WRITE_TIMEOUT)),
        ];
        let ask = Ask::object(Verb::JsonPatch, kind, key, status, &options)?;
        self.write(ask, kind, "application/json-patch+json", patch).await
    }

    async fn write(
        &self,
        ask: Ask<'_>,
        kind: &Kind,
        content_type: &'static str,
        body: &str,
    ) -> Result<Object, Error> {
        let ask = Ask { content: Some((content_type, body.to_owned())), ..ask };
        self.finish(&ask, DEADLINE, OBJECT_BYTES, |text| decode(kind, text)).await
    }

    /// Deletes exactly the object of this uid, in the background; gone already counts as deleted.
    pub async fn delete(&self, kind: &Kind, key: &ObjectKey, uid: &str) -> Result<(), Error> {
        let options = serde_json::json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        });
        let ask = Ask::object(Verb::Delete, kind, key, false, &[("timeout", Some(WRITE_TIMEOUT))])?;
        let ask = Ask { content: Some((JSON, options.to_string())), ..ask };
        // The answer is the object or a status; that there is one says all.
        match self.finish(&ask, DEADLINE, OBJECT_BYTES, |_| Ok(())).await {
            Err(Error { answer: Answer::NotFound, .. }) => Ok(()),
            result => result,
        }
    }

    /// A document of the API server as text: discovery, schemas.
    pub async fn raw_get(&self, path: &str) -> Result<String, Error> {
        let ask = Ask {
            verb: Verb::Get,
            gvk: None,
            target: path.to_owned(),
            path: path.to_owned(),
            accept: JSON,
            content: None,
        };
        let text =
            |text: &[u8]| std::str::from_utf8(text).map(str::to_owned).map_err(|error| error.to_string());
        self.finish(&ask, LIST_DEADLINE, LIST_BYTES, text).await
    }

    /// Sends, reads the whole answer and decodes it, all within the deadline.
    async fn finish<T>(
        &self,
        ask: &Ask<'_>,
        deadline: Duration,
        limit: usize,
        decode: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, Error> {
        let answer = within(deadline, async {
            let response = self.send(ask).await?;
            let text = read(response.into_body(), limit).await?;
            decode(&text).map_err(|why| {
                Failure::new(Answer::Undecodable, format!("the answer cannot be decoded: {why}"))
            })
        });
        self.observe(ask, answer.await)
    }

    /// Sends one request, once; an answer that is no success is a failure.
    async fn send(&self, ask: &Ask<'_>) -> Result<Response<Body>, Failure> {
        let request =
            ask.request().map_err(|error| Failure::new(Answer::Invalid(Vec::new()), error.to_string()))?;
        // As late as possible: a gate that closes while a request is being made up stops it.
        if ask.verb.writes() && !self.gate.is_open() {
            return Err(Failure::new(Answer::GateClosed, "this replica may not write".into()));
        }
        let response = self.kube.send(request).await.map_err(|error| Failure::unsent(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (code, retry_after) = (response.status(), retry_after(response.headers()));
        let text = read(response.into_body(), OBJECT_BYTES).await?;
        let status = status_of(code, &text);
        let retry_after = retry_after.or_else(|| {
            let seconds =
                status.details.as_ref().map_or(0, |details: &StatusDetails| details.retry_after_seconds);
            (seconds > 0).then(|| Duration::from_secs(seconds.into()))
        });
        Err(Failure {
            answer: classify(ask.verb, code.as_u16(), &status),
            message: status.message,
            retry_after,
        })
    }

    /// Completes a failure with what was asked, and tells the observer.
    fn observe<T>(&self, ask: &Ask<'_>, result: Result<T, Failure>) -> Result<T, Error> {
        if let Some(observer) = &self.observer {
            let kind = ask.gvk.map_or_else(String::new, |gvk| match &*gvk.group {
                "" => gvk.kind.to_string(),
                group => format!("{}.{group}", gvk.kind),
            });
            observer(ask.verb.as_str(), &kind, result.as_ref().err().map(|failure| &failure.answer));
        }
        result.map_err(|Failure { answer, message, retry_after }| Error {
            verb: ask.verb.as_str(),
            target: ask.target.clone(),
            answer,
            message,
            retry_after,
        })
    }
}
