//! Who asked the API server for what, read from its audit log.
//!
//! In: the audit log of a [`ControlPlane`](crate::cluster::ControlPlane), every stage of every request.
//! Out: requests between two marks.
//!
//! A request counts from the moment the API server received it, and that line is written before the request is
//! handled: once a client has an answer, its request is in the log, and a later mark has it behind it.
//! So "no write between these marks" is a fact, not a guess about buffers.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::mem;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use serde::Deserialize;

use crate::eventually;

/// How long a mark may take: one small request, on a machine that may be busy.
const MARK_DEADLINE: Duration = Duration::from_secs(30);

/// How long a mark waits for the answers of earlier writes; one that is never answered must not hold it up.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);

/// The verbs that change objects.
pub const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// A position in the audit log, made by [`Audit::mark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(usize);

/// One request, as the API server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Whose rights were used.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; or an HTTP method in
    /// lower case when the request was not about an object.
    pub verb: String,
    /// The plural, for example `deployments`; empty when the request was not about an object.
    pub resource: String,
    /// For example `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for all namespaces and for objects outside of them.
    pub namespace: String,
    /// Empty where the request named none.
    pub name: String,
    /// Path and query.
    pub uri: String,
    /// What the client called itself.
    pub user_agent: String,
    /// The status of the answer; `None` while there is none.
    pub code: Option<u16>,
}

/// Reads the audit log as it grows.
pub struct Audit {
    path: PathBuf,
    client: Client,
    /// Up to where the file has been read.
    offset: u64,
    log: Log,
}

/// What has been read so far.
#[derive(Debug, Default)]
struct Log {
    /// The beginning of a line whose end was not there yet.
    partial: Vec<u8>,
    /// In the order in which the API server received them.
    requests: Vec<Request>,
    /// Where the request of an audit id is, until it has been answered.
    unanswered: HashMap<String, usize>,
}

impl Audit {
    /// Starts reading at the present end of the log.
    pub(crate) fn open(path: &Path, client: Client) -> Result<Self> {
        let offset =
            path.metadata().with_context(|| format!("cannot find the audit log {}", path.display()))?.len();
        Ok(Self { path: path.to_owned(), client, offset, log: Log::default() })
    }

    /// Marks the present: every request that has been answered by now is before the mark.
    ///
    /// It sends a request that can be recognised, so it needs an API server that answers.
    pub async fn mark(&mut self) -> Result<Mark> {
        static MARKS: AtomicU32 = AtomicU32::new(0);
        let uri = format!("/version?mark={}-{}", process::id(), MARKS.fetch_add(1, Ordering::Relaxed));
        let request = http::Request::get(&uri).body(Vec::new()).context("bad request")?;
        tokio::time::timeout(MARK_DEADLINE, self.client.request_text(request))
            .await
            .context("no answer to the mark")?
            .context("cannot mark the audit log")?;
        self.read_on()?;
        // The answer is here, so its line is written.
        let mark = self.log.requests.iter().rposition(|request| request.uri == uri);
        let mark = mark.with_context(|| format!("{uri} is not in {}", self.path.display()))?;
        self.await_answers(mark).await?;
        Ok(Mark(mark))
    }

    /// The requests received between two marks.
    pub fn between(&self, from: Mark, to: Mark) -> &[Request] {
        // The request at a mark is the mark itself.
        self.log.requests.get(from.0 + 1..to.0).unwrap_or_default()
    }

    /// The requests of `user` between two marks that change objects, successful or not.
    pub fn writes_by(&self, user: &str, from: Mark, to: Mark) -> Vec<&Request> {
        let requests = self.between(from, to).iter();
        requests.filter(|request| request.user == user && request.is_write()).collect()
    }

    /// Waits a moment for the answers of the writes before `mark`, as they carry code and name.
    async fn await_answers(&mut self, mark: usize) -> Result<()> {
        let end = tokio::time::Instant::now() + ANSWER_DEADLINE;
        while tokio::time::Instant::now() < end && self.log.awaits_answer(mark) {
            let path = &self.path;
            let offset = self.offset;
            let grown = eventually(ANSWER_DEADLINE, "the audit log grows", async || -> Result<()> {
                ensure!(path.metadata()?.len() > offset, "it has {offset} bytes");
                Ok(())
            });
            if grown.await.is_err() {
                break;
            }
            self.read_on()?;
        }
        Ok(())
    }

    fn read_on(&mut self) -> Result<()> {
        let named = || format!("cannot read {}", self.path.display());
        let mut file = File::open(&self.path).with_context(named)?;
        file.seek(SeekFrom::Start(self.offset)).with_context(named)?;
        let mut bytes = Vec::new();
        self.offset += file.read_to_end(&mut bytes).with_context(named)? as u64;
        self.log.take_in(&bytes).with_context(named)
    }
}

impl Log {
    fn awaits_answer(&self, mark: usize) -> bool {
        self.unanswered.values().any(|&at| at < mark && self.requests[at].is_write())
    }

    /// Takes in what the file grew by, which may end in the middle of a line.
    fn take_in(&mut self, bytes: &[u8]) -> Result<()> {
        self.partial.extend_from_slice(bytes);
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let rest = self.partial.split_off(end + 1);
        let lines = mem::replace(&mut self.partial, rest);
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let event = serde_json::from_slice(line)
                .with_context(|| format!("this is no audit event: {}", String::from_utf8_lossy(line)))?;
            self.add(event);
        }
        Ok(())
    }

    fn add(&mut self, event: Event) {
        let has_ended = event.stage == "ResponseComplete" || event.stage == "Panic";
        if event.stage == "RequestReceived" {
            self.unanswered.insert(event.audit_id.clone(), self.requests.len());
            self.requests.push(event.into_request());
            return;
        }
        // One that was received before we began to read is not ours to report.
        let Some(&at) = self.unanswered.get(&event.audit_id) else { return };
        if has_ended {
            self.unanswered.remove(&event.audit_id);
        }
        // Later stages know more: the code, the name of what was created, who was impersonated.
        self.requests[at] = event.into_request();
    }
}

impl Request {
    /// Whether its verb is one of [`WRITES`].
    pub fn is_write(&self) -> bool {
        WRITES.contains(&&*self.verb)
    }
}

/// The parts we use of `audit.k8s.io/v1` `Event`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: EventUser,
    impersonated_user: Option<EventUser>,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<ResponseStatus>,
}

#[derive(Deserialize)]
struct EventUser {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    code: Option<u16>,
}

impl Event {
    fn into_request(self) -> Request {
        Request {
            user: self.impersonated_user.unwrap_or(self.user).username,
            verb: self.verb,
            resource: self.object_ref.resource,
            subresource: self.object_ref.subresource,
            namespace: self.object_ref.namespace,
            name: self.object_ref.name,
            uri: self.request_uri,
            user_agent: self.user_agent,
            code: self.response_status.and_then(|status| status.code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, stage: &str, rest: &str) -> String {
        format!(
            r#"{{"auditID":"{id}","stage":"{stage}","requestURI":"/","verb":"create","user":{{"username":"ann"}}{rest}}}"#
        ) + "\n"
    }

    #[test]
    fn log_keeps_the_order_of_receipt_and_learns_from_later_stages() {
        let mut log = Log::default();
        let created = r#","objectRef":{"resource":"pods","name":"made-up"},"responseStatus":{"code":201}"#;
        let lines = [
            line("a", "RequestReceived", ""),
            line("b", "RequestReceived", ""),
            line("b", "ResponseComplete", r#","responseStatus":{"code":409}"#),
            line("a", "ResponseStarted", ""),
            line("a", "ResponseComplete", created),
        ];
        for line in lines {
            log.take_in(line.as_bytes()).unwrap();
        }
        let seen: Vec<_> = log.requests.iter().map(|request| (&*request.name, request.code)).collect();
        assert_eq!(seen, [("made-up", Some(201)), ("", Some(409))]);
        assert!(log.unanswered.is_empty());
    }

    #[test]
    fn log_takes_in_a_line_that_comes_in_pieces() {
        let mut log = Log::default();
        for byte in line("a", "RequestReceived", "").as_bytes() {
            log.take_in(&[*byte]).unwrap();
        }
        assert_eq!(log.requests.len(), 1);
        assert!(log.awaits_answer(1) && !log.awaits_answer(0));
    }

    #[test]
    fn log_ignores_the_end_of_a_request_it_did_not_see_begin() {
        let mut log = Log::default();
        log.take_in(line("early", "ResponseComplete", "").as_bytes()).unwrap();
        assert!(log.requests.is_empty());
    }

    #[test]
    fn log_names_a_line_it_cannot_read() {
        let error = Log::default().take_in(b"{}\n").unwrap_err();
        assert_eq!(error.to_string(), "this is no audit event: {}");
    }
}
