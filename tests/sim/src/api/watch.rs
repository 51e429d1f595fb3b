//! Watches: the log of a kind as it goes on, for as long as somebody listens.

use super::{
    Asked, Change, Lines, Server, Shared,
    read::{Filter, Form},
};
use crate::{
    refusal::{About, Cause, Refusal},
    schema::Kind,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// How often a watch that has nothing to tell says how far it is.
const BOOKMARKS: Duration = Duration::from_mins(1);
/// How long a watch lasts that says nothing about it.
const LASTS: Duration = Duration::from_mins(30);

/// A watch that is open.
struct Watching {
    shared: Arc<Shared>,
    kind: Arc<Kind>,
    resource: String,
    filter: Filter,
    form: Form,
    wants_bookmarks: bool,
    /// Everything up to this version has been said.
    version: u64,
    /// What is still to be said.
    lines: VecDeque<String>,
    connection: u64,
    bookmark: Instant,
    end: Instant,
}

impl Server {
    /// Opens a watch. It ends when its time is over, and when the server drops its connections.
    pub(super) fn watch(&self, asked: &Asked, form: Form) -> Result<Lines, Refusal> {
        let state = self.state();
        let kind = state.kind(asked)?;
        let (filter, resource) = (Filter::new(asked)?, kind.qualified());
        let from = asked.option("resourceVersion");
        let mut lines = VecDeque::new();
        let version = match from {
            "" | "0" => {
                let objects = state.store.objects(&resource);
                let shown = objects.values().filter(|object| filter.has(object));
                lines.extend(shown.map(|object| line("ADDED", &form.shown(&kind, object))));
                state.store.version()
            }
            from => from.parse().map_err(|_| {
                let message = format!("resourceVersion: Invalid value: {from:?}: invalid resource version");
                Refusal::new(400, "BadRequest", message)
            })?,
        };
        let now = state.store.version();
        if version > now {
            let message = format!("Timeout: Too large resource version: {version}, current: {now}");
            return Err(Refusal::new(504, "Timeout", message).about("", "", "").because(vec![Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }]));
        }
        let compacted = state.store.compacted();
        if version < compacted {
            let refusal = too_old(version, compacted);
            if state.is_expiry_a_status {
                return Err(refusal);
            }
            return Ok(stream::iter([error_line(&refusal)]).boxed());
        }
        let opened = Instant::now();
        let seconds = asked.option("timeoutSeconds").parse().map_or(LASTS, Duration::from_secs);
        let watching = Watching {
            shared: Arc::clone(&self.0),
            kind,
            resource,
            filter,
            form,
            wants_bookmarks: matches!(asked.option("allowWatchBookmarks"), "true" | "1"),
            version,
            lines,
            connection: self.0.connections.load(Ordering::Relaxed),
            bookmark: opened + BOOKMARKS,
            end: opened + seconds,
        };
        Ok(stream::unfold(watching, |mut watching| async move {
            let line = watching.next().await?;
            Some((line, watching))
        })
        .boxed())
    }
}

impl Watching {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            let shared = Arc::clone(&self.shared);
            let mut changed = std::pin::pin!(shared.changed.notified());
            changed.as_mut().enable();
            if shared.connections.load(Ordering::Relaxed) != self.connection {
                return None;
            }
            self.catch_up();
            if !self.lines.is_empty() {
                continue;
            }
            let now = Instant::now();
            if now >= self.end {
                return None;
            }
            if now >= self.bookmark {
                self.bookmark = now + BOOKMARKS;
                if self.wants_bookmarks {
                    return Some(self.bookmark());
                }
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(self.bookmark.min(self.end)) => {}
            }
        }
    }

    /// Takes what has happened since.
    fn catch_up(&mut self) {
        let server = Server(Arc::clone(&self.shared));
        let state = server.state();
        let said: Vec<_> = match state.store.changes(&self.resource, self.version) {
            Some(changes) => changes.filter_map(|change| self.said(change)).collect(),
            None => vec![error_line(&too_old(self.version, state.store.compacted()))],
        };
        self.lines.extend(said);
        self.version = state.store.version();
    }

    /// What a change is to whoever watches with a selector: an object may come into it, and leave it.
    fn said(&self, change: &Change) -> Option<String> {
        let is_in =
            |object: &Option<Arc<Value>>| object.as_ref().is_some_and(|object| self.filter.has(object));
        let (was, is) = (is_in(&change.before), is_in(&change.after));
        let event = match (was, is) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        let object = if is { change.after.as_ref()? } else { change.before.as_ref()? };
        let shown = self.form.shown(&self.kind, object);
        if is {
            return Some(line(event, &shown));
        }
        // As it was last, in the version in which it went.
        let mut gone = (*shown).clone();
        gone["metadata"]["resourceVersion"] = change.version.to_string().into();
        Some(line(event, &gone))
    }

    fn bookmark(&self) -> String {
        let object = json!({
            "apiVersion": self.kind.api_version(), "kind": self.kind.kind,
            "metadata": {"resourceVersion": self.version.to_string(), "creationTimestamp": null},
        });
        line("BOOKMARK", &object)
    }
}

fn too_old(version: u64, compacted: u64) -> Refusal {
    Refusal::new(410, "Expired", format!("too old resource version: {version} ({compacted})"))
        .about("", "", "")
}

fn error_line(refusal: &Refusal) -> String {
    line("ERROR", &refusal.status(&About::default()))
}

fn line(event: &str, object: &Value) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n")
}
