//! A watch on its way through the proxy.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::request::Asked;
use super::serve::gone;
use super::{Faults, Shared};

/// Pieces of a watch that are kept back; a watch that has more waiting is not read on.
const KEPT: usize = 4096;

/// One watch.
pub(super) struct Watch {
    asked: Asked,
    /// Its place among the requests seen.
    seen: usize,
    opened: Instant,
    /// What was decided about it, by rule.
    drawn: BTreeMap<u64, bool>,
    shared: Arc<Shared>,
    changed: watch::Receiver<()>,
    reset: Arc<Notify>,
    /// What has come and when, and has not been passed on.
    kept: VecDeque<(Instant, Bytes)>,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
}

/// What comes of the wait for the next piece.
enum Next {
    Came(Option<Result<Bytes, kube::Error>>),
    Due,
    Cut,
    Changed,
}

impl Watch {
    pub(super) fn new(asked: Asked, seen: usize, shared: Arc<Shared>, reset: Arc<Notify>) -> Self {
        let changed = shared.changed.subscribe();
        let (opened, drawn, kept) = (Instant::now(), BTreeMap::new(), VecDeque::new());
        Self { asked, seen, opened, drawn, shared, changed, reset, kept, begun: Vec::new() }
    }

    /// The body as whoever asked gets it.
    pub(super) fn through(self, body: Body) -> UnsyncBoxBody<Bytes, kube::Error> {
        let start = (self, Some(body.into_data_stream()));
        let pieces = stream::unfold(start, |(mut watch, mut upstream)| async move {
            let piece = watch.next(&mut upstream).await?;
            Some((piece.map(Frame::data), (watch, upstream)))
        });
        StreamBody::new(pieces).boxed_unsync()
    }

    /// The next piece that is due; `upstream` is `None` once it has ended.
    async fn next(
        &mut self,
        upstream: &mut Option<BodyDataStream<Body>>,
    ) -> Option<Result<Bytes, kube::Error>> {
        loop {
            let faults = self.faults();
            if upstream.is_none() && self.kept.is_empty() {
                return None;
            }
            let due = self.kept.front().filter(|_| !faults.frozen).map(|(came, _)| *came + faults.lag);
            let room = self.kept.len() < KEPT;
            let next = tokio::select! {
                biased;
                () = at(faults.cut) => Next::Cut,
                _ = self.changed.changed() => Next::Changed,
                () = at(due) => Next::Due,
                came = read(upstream), if room => Next::Came(came),
            };
            match next {
                Next::Changed => {}
                Next::Due => return self.kept.pop_front().map(|(_, piece)| Ok(piece)),
                Next::Came(Some(Ok(piece))) => self.keep(&piece, faults.lost_percent),
                // Where the connection to the API server breaks, so does this one.
                Next::Cut | Next::Came(Some(Err(_))) => return gone(&self.reset).await,
                Next::Came(None) => {
                    *upstream = None;
                    let rest = std::mem::take(&mut self.begun);
                    if !rest.is_empty() {
                        self.kept.push_back((Instant::now(), rest.into()));
                    }
                }
            }
        }
    }

    /// Keeps the lines that end in this piece, but not those that are lost.
    fn keep(&mut self, piece: &[u8], lost_percent: u8) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                let is_bookmark = line.starts_with(br#"{"type":"BOOKMARK""#);
                if is_bookmark || !self.shared.state().draw_lost(lost_percent) {
                    self.kept.push_back((Instant::now(), line.into()));
                }
            }
        }
    }

    fn faults(&mut self) -> Faults {
        self.shared.state().on_stream(&self.asked, self.seen, self.opened, &mut self.drawn)
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn read(upstream: &mut Option<BodyDataStream<Body>>) -> Option<Result<Bytes, kube::Error>> {
    match upstream {
        Some(upstream) => upstream.next().await,
        None => pending().await,
    }
}
