//! What comes back: bodies, their limits, and what is said of connections.

use super::Answer;
use crate::{object::Object, observe::discovery::Kind};
use futures::{Stream, StreamExt};
use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::{client::Body, core::Status};
use std::time::Duration;

/// How much of a text that is no `Status` is kept for people.
const MESSAGE_BYTES: usize = 1024;

/// A request that did not succeed, before it is said which.
pub(super) struct Failure {
    pub(super) answer: Answer,
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
}

impl Failure {
    pub(super) fn new(answer: Answer, message: String) -> Self {
        Self { answer, message, retry_after: None }
    }

    /// There is no answer; or there is no request, as the credentials for it cannot be had.
    pub(super) fn unsent(error: &kube::Error) -> Self {
        let answer =
            if matches!(error, kube::Error::Auth(_)) { Answer::Unauthorized } else { Answer::Connection };
        Self::new(answer, connection_words(error))
    }
}

/// What happened to a connection, without the names that kube gives to the layers it went through.
pub(super) fn connection_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Service(source) => with_sources(&**source),
        kube::Error::HyperError(source) => with_sources(source),
        other => with_sources(other),
    }
}

pub(super) async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| {
        Err(Failure::new(Answer::Timeout, format!("no answer within {} s", deadline.as_secs())))
    })
}

/// Reads a whole body, up to a limit.
pub(super) async fn read(
    body: Body,
    limit: usize,
) -> Result<impl AsRef<[u8]> + std::ops::Deref<Target = [u8]>, Failure> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(Failure::new(Answer::Undecodable, format!("the answer has more than {limit} bytes")))
        }
        Err(error) => {
            let words =
                error.downcast_ref::<kube::Error>().map_or_else(|| with_sources(&*error), connection_words);
            Err(Failure::new(Answer::Connection, words))
        }
    }
}

pub(super) fn decode(kind: &Kind, text: &[u8]) -> Result<Object, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    Object::decode(&kind.gvk, text).map_err(|error| with_sources(&error))
}

/// The `Status` of an answer; where it is none (a proxy's page, plain text), its beginning is the message.
pub(super) fn status_of(code: StatusCode, text: &[u8]) -> Status {
    let status = serde_json::from_slice::<Status>(text).ok().filter(|status| !status.message.is_empty());
    status.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&text[..text.len().min(MESSAGE_BYTES)]);
        let message = if text.trim().is_empty() { code.to_string() } else { text.trim().to_owned() };
        Status { message, code: code.as_u16(), ..Status::default() }
    })
}

/// An error with its sources, each said once: kube's and hyper's messages often repeat them.
pub(super) fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    text
}

/// Ends a stream with its first error.
pub(super) fn until_error<T, E>(items: impl Stream<Item = Result<T, E>>) -> impl Stream<Item = Result<T, E>> {
    futures::stream::unfold(Some(Box::pin(items)), |items| async move {
        let mut items = items?;
        let item = items.next().await?;
        let rest = item.is_ok().then_some(items);
        Some((item, rest))
    })
}

/// `Retry-After` in seconds; the API server writes no dates.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
