//! A watch on its way through the faults.

use super::{OnStream, Rules};
use crate::api::Asked;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
};
use tokio::time::{Instant, sleep_until};

/// Pieces of a watch that are kept back; a watch that has more waiting is not read on.
const KEPT: usize = 4096;

/// One watch.
pub struct Watch<S> {
    asked: Asked,
    /// Its place among the requests seen.
    seen: usize,
    opened: Instant,
    /// What was decided about it, by rule.
    drawn: BTreeMap<u64, bool>,
    rules: Rules,
    /// `None` once it has ended.
    upstream: Option<S>,
    /// What has come and when, and has not been passed on.
    kept: VecDeque<(Instant, Bytes)>,
    /// An event that comes after the next.
    late: Option<Bytes>,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
}

/// What passes.
#[derive(Debug, PartialEq, Eq)]
pub enum Passed {
    /// A piece of the body: whole lines.
    Piece(Bytes),
    /// The connection breaks.
    Cut,
}

/// What comes of the wait for the next piece.
enum Next<E> {
    Came(Option<Result<Bytes, E>>),
    Due,
    Cut,
    Changed,
}

impl<S, E> Watch<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    /// A watch that was opened now.
    pub fn new(asked: Asked, seen: usize, rules: &Rules, upstream: S) -> Self {
        Self {
            asked,
            seen,
            opened: Instant::now(),
            drawn: BTreeMap::new(),
            rules: rules.clone(),
            upstream: Some(upstream),
            kept: VecDeque::new(),
            late: None,
            begun: Vec::new(),
        }
    }

    /// The next piece that is due; `None` once everything has passed.
    pub async fn next(&mut self) -> Option<Passed> {
        loop {
            let rules = self.rules.clone();
            let mut changed = std::pin::pin!(rules.0.changed.notified());
            changed.as_mut().enable();
            let faults = self.rules.on_stream(&self.asked, self.seen, self.opened, &mut self.drawn);
            if self.upstream.is_none() && self.kept.is_empty() {
                return None;
            }
            let due = self.kept.front().filter(|_| !faults.frozen).map(|(came, _)| *came + faults.lag);
            let room = self.kept.len() < KEPT;
            let next = tokio::select! {
                biased;
                () = at(faults.cut) => Next::Cut,
                () = changed => Next::Changed,
                () = at(due) => Next::Due,
                came = read(&mut self.upstream), if room => Next::Came(came),
            };
            match next {
                Next::Changed => {}
                Next::Due => return self.kept.pop_front().map(|(_, piece)| Passed::Piece(piece)),
                Next::Came(Some(Ok(piece))) => self.take(&piece, &faults),
                // Where the connection to the API server breaks, so does this one.
                Next::Cut | Next::Came(Some(Err(_))) => return Some(Passed::Cut),
                Next::Came(None) => {
                    self.upstream = None;
                    let rest = std::mem::take(&mut self.begun);
                    let rest = self.late.take().into_iter().chain((!rest.is_empty()).then(|| rest.into()));
                    rest.for_each(|line| self.kept.push_back((Instant::now(), line)));
                }
            }
        }
    }

    /// Takes the lines that end in this piece.
    fn take(&mut self, piece: &[u8], faults: &OnStream) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                self.keep(line.into(), faults);
            }
        }
    }

    fn keep(&mut self, line: Bytes, faults: &OnStream) {
        let happens = |percent| percent > 0 && self.rules.draw_percent() < percent;
        // What a bookmark says would not be true if an event came after it.
        let is_bookmark = line.starts_with(br#"{"type":"BOOKMARK""#);
        if !is_bookmark && happens(faults.lost_percent) {
            return;
        }
        let is_late = !is_bookmark && self.late.is_none() && happens(faults.late_percent);
        let is_doubled = !is_bookmark && happens(faults.doubled_percent);
        if is_late {
            self.late = Some(line);
            return;
        }
        let late = self.late.take();
        let lines = match late {
            Some(late) if is_bookmark => [Some(late), Some(line), None],
            late => [Some(line.clone()), is_doubled.then_some(line), late],
        };
        self.kept.extend(lines.into_iter().flatten().map(|line| (Instant::now(), line)));
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn read<S: Stream + Unpin>(upstream: &mut Option<S>) -> Option<S::Item> {
    match upstream {
        Some(upstream) => upstream.next().await,
        None => pending().await,
    }
}
