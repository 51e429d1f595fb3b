//! The way from a simulated host to its API server.

use super::{Fault, Passed, Rules, Watch, emptied};
use crate::api::{Answer, Asked, Body, Request, Server};
use crate::refusal::Refusal;
use bytes::Bytes;
use fastrand::Rng;
use futures::{StreamExt, stream};
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use std::{
    future::pending,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::sleep};

/// When the host dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Instead of its write of this number, counted from now.
    Before(usize),
    /// When the write of this number is done, and before its answer arrives.
    After(usize),
}

/// The connection of one host; clones are the same.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

struct Shared {
    server: Server,
    rules: Rules,
    user: String,
    chance: Mutex<Chance>,
    crashed: Notify,
}

struct Chance {
    rng: Rng,
    crash: Option<Crash>,
}

impl Link {
    /// A connection as a user, under these rules; how long requests take is drawn from the seed.
    pub fn new(server: &Server, rules: &Rules, user: &str, seed: u64) -> Self {
        Self(Arc::new(Shared {
            server: server.clone(),
            rules: rules.clone(),
            user: user.to_owned(),
            chance: Mutex::new(Chance { rng: Rng::with_seed(seed), crash: None }),
            crashed: Notify::new(),
        }))
    }

    /// A client that goes this way.
    pub fn client(&self) -> kube::Client {
        let link = self.clone();
        let service = tower::service_fn(move |request| {
            let link = link.clone();
            async move { link.pass(request).await }
        });
        kube::Client::new(service, "default")
    }

    /// Has [`Link::crashed`] return at a write, which gets no answer.
    pub fn crash(&self, crash: Crash) {
        self.chance().crash = Some(crash);
    }

    /// Returns when it is time to die.
    pub async fn crashed(&self) {
        self.0.crashed.notified().await;
    }

    async fn pass(&self, request: http::Request<kube::client::Body>) -> Result<Response<Body>, io::Error> {
        let Shared { rules, server, user, .. } = &*self.0;
        let request = Request::read(user, request).await.map_err(io::Error::other)?;
        let (there, back) = self.times();
        sleep(there).await;
        let asked = &request.asked;
        let crash = if asked.writes() { self.count_write() } else { None };
        if let Some(Crash::Before(_)) = crash {
            return self.die().await;
        }
        let (seen, happens) = rules.arrive(asked);
        if let Some((_, fault)) = happens {
            server.note_fault(&request, format!("{fault:?}"));
        }
        let forward = || {
            let answer = server.answer(&request);
            let code = if let Answer::Text { code, .. } = &answer { *code } else { 200 };
            rules.answered(seen, code);
            answer
        };
        let reset = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
        let answer = match happens {
            Some((_, Fault::Delay(time))) => {
                sleep(time).await;
                forward()
            }
            Some((_, Fault::Answer { code, retry_after })) => refused(code, retry_after, asked),
            Some((_, Fault::AnswerAfter(code))) => {
                forward();
                refused(code, None, asked)
            }
            Some((_, Fault::DropBefore)) => return reset(),
            Some((_, Fault::DropAfter)) => {
                forward();
                sleep(back).await;
                return reset();
            }
            Some((_, Fault::HangBefore)) => pending().await,
            Some((_, Fault::HangAfter)) => {
                forward();
                pending().await
            }
            Some((rule, Fault::Stale)) => {
                // In which form it was asked for makes another answer.
                let uri = format!("{}?{:?} {}", asked.path, asked.query, request.accept);
                let recorded = rules.recorded(rule, &uri);
                let answer = match recorded {
                    Some(answer) => answer,
                    None => whole(forward()).await?,
                };
                rules.record(rule, uri, answer.clone());
                sleep(back).await;
                return Ok(answer.map(|text| Full::new(text).map_err(|never| match never {}).boxed_unsync()));
            }
            Some((_, Fault::Empty)) => match forward() {
                Answer::Text { code, retry_after, text } => {
                    let text = String::from_utf8_lossy(&emptied(text.as_bytes())).into_owned();
                    Answer::Text { code, retry_after, text }
                }
                answer @ Answer::Watch(_) => answer,
            },
            // None, or one about open watches.
            _ => forward(),
        };
        if crash.is_some() {
            return self.die().await;
        }
        sleep(back).await;
        Ok(match answer {
            Answer::Watch(lines) => {
                let lines = lines.map(|line| Ok::<_, io::Error>(Bytes::from(line)));
                let watch = Watch::new(asked.clone(), seen, rules, lines);
                let frames = stream::unfold(Some(watch), |watch| async move {
                    let mut watch = watch?;
                    Some(match watch.next().await? {
                        Passed::Piece(piece) => (Ok(Frame::data(piece)), Some(watch)),
                        Passed::Cut => (Err(io::Error::from(io::ErrorKind::ConnectionReset)), None),
                    })
                });
                Response::new(StreamBody::new(frames).boxed_unsync())
            }
            answer @ Answer::Text { .. } => answer.into_response(),
        })
    }

    /// How long a request takes to the server, and its answer back.
    fn times(&self) -> (Duration, Duration) {
        let rng = &mut self.chance().rng;
        let mut time = || Duration::from_micros(rng.u64(100..8_000));
        (time(), time())
    }

    /// Whether the host dies of this write.
    fn count_write(&self) -> Option<Crash> {
        let mut chance = self.chance();
        let crash = chance.crash.as_mut()?;
        let (Crash::Before(left) | Crash::After(left)) = crash;
        *left = left.saturating_sub(1);
        if *left > 0 { None } else { chance.crash.take() }
    }

    async fn die<T>(&self) -> T {
        self.0.crashed.notify_one();
        pending().await
    }

    fn chance(&self) -> MutexGuard<'_, Chance> {
        self.0.chance.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason that the API server says with a status.
pub fn reason(code: u16) -> &'static str {
    match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}

/// What the API server says with a status.
fn refused(code: u16, retry_after: Option<u32>, asked: &Asked) -> Answer {
    let mut refusal = Refusal::new(code, reason(code), format!("a fault answers {code}"));
    refusal.retry_after = retry_after;
    Answer::refused(&refusal, asked, &asked.name)
}

async fn whole(answer: Answer) -> Result<Response<Bytes>, io::Error> {
    let (head, body) = answer.into_response().into_parts();
    Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
}
