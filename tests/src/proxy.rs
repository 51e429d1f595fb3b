//! A proxy between a host and its API server that injects faults.
//!
//! In: plain HTTP on a loopback port, from whoever uses [`Proxy::kubeconfig`]. Out: the same requests with the
//! host's credentials, answers and watches as they come; or what a [`Rule`] says instead.
//! It runs on a thread of its own, so a test that waits for a command does not hold it up.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use fastrand::Rng;
use http::Response;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use self::request::Asked;
use crate::cluster::ControlPlane;

mod request;
mod serve;
mod stream;

/// What happens to a request, or to a watch that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request waits before it is forwarded.
    Delay(Duration),
    /// It is answered with a status and not forwarded: 403 and 409 with the reasons that the API server gives,
    /// 429 or 503 perhaps with `Retry-After`, 410 at the start of a watch.
    Answer {
        /// The HTTP status.
        code: u16,
        /// `Retry-After`, in seconds.
        retry_after: Option<u32>,
    },
    /// It is forwarded, and answered with this status whatever the API server said: 504.
    AnswerAfter(u16),
    /// The connection is reset, and the request not forwarded.
    DropBefore,
    /// The request is forwarded, and the connection reset instead of the answer.
    DropAfter,
    /// The request is neither forwarded nor answered; its connection stays open.
    HangBefore,
    /// The request is forwarded, and not answered; its connection stays open.
    HangAfter,
    /// Gets and lists are answered as the first one of the same path and query was since the rule stands.
    Stale,
    /// A watch, also one that is open already, delivers nothing, and its connection stays open.
    Freeze,
    /// The connection of a watch, also of one that is open already, is reset after this time.
    Cut(Duration),
    /// A watch, also one that is open already, delivers everything so much later.
    Lag(Duration),
    /// A watch, also one that is open already, loses so many of a hundred events and says nothing; its bookmarks
    /// come.
    Lose(u8),
}

impl Fault {
    fn is_about_streams(self) -> bool {
        matches!(self, Self::Freeze | Self::Cut(_) | Self::Lag(_) | Self::Lose(_))
    }
}

/// Which requests a fault happens to.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Any of `get`, `list`, `watch`, `create`, `update`, `apply`, `patch`, `delete`, `deletecollection`; where
    /// there are none, all. Server-side applies are no `patch` here, as nothing else tells the two apart.
    pub verbs: &'static [&'static str],
    /// The plural; where it is empty, all.
    pub resource: &'static str,
    /// For example `status`; empty for the object itself; `None` for any.
    pub subresource: Option<&'static str>,
    /// `None` for any.
    pub namespace: Option<String>,
    /// `None` for any.
    pub name: Option<String>,
    /// So many that fit are let through first.
    pub skip: usize,
    /// So many that fit are let through in each second after that; `None` for none.
    pub per_second: Option<usize>,
    /// How often it happens; `None` for always.
    pub times: Option<usize>,
    /// How likely it happens, from 0 to 1; decided once per request and once per watch.
    pub probability: f64,
    /// What happens.
    pub fault: Fault,
}

impl Rule {
    /// A fault that happens to every request, or to every watch.
    pub fn every(fault: Fault) -> Self {
        Self {
            verbs: &[],
            resource: "",
            subresource: None,
            namespace: None,
            name: None,
            skip: 0,
            per_second: None,
            times: None,
            probability: 1.0,
            fault,
        }
    }

    fn is_about(&self, asked: &Asked) -> bool {
        let is_possible = match self.fault {
            Fault::Freeze | Fault::Cut(_) | Fault::Lag(_) | Fault::Lose(_) => asked.verb == "watch",
            Fault::Stale => asked.verb == "get" || asked.verb == "list",
            Fault::Delay(_)
            | Fault::Answer { .. }
            | Fault::AnswerAfter(_)
            | Fault::DropBefore
            | Fault::DropAfter
            | Fault::HangBefore
            | Fault::HangAfter => true,
        };
        is_possible
            && (self.verbs.is_empty() || self.verbs.contains(&&*asked.verb))
            && (self.resource.is_empty() || self.resource == asked.resource)
            && self.subresource.is_none_or(|subresource| subresource == asked.subresource)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == asked.namespace)
            && self.name.as_ref().is_none_or(|name| *name == asked.name)
    }
}

/// A request that came through, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// As in [`Rule::verbs`], or an HTTP method in lower case when the request was not about an object.
    pub verb: String,
    /// The plural; empty when the request was not about an object.
    pub resource: String,
    /// For example `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for all namespaces and for objects outside of them.
    pub namespace: String,
    /// Empty where the request named none.
    pub name: String,
    /// Path and query.
    pub uri: String,
    /// What the proxy did to it; of several faults of a watch the last.
    pub fault: Option<Fault>,
    /// What the API server answered; `None` while it has not, or where it was not asked.
    pub code: Option<u16>,
}

/// A rule that stands until this is dropped, or [`Proxy::clear`] is called.
#[derive(Debug)]
#[must_use = "the rule ends when this is dropped"]
pub struct Standing {
    id: u64,
    shared: Arc<Shared>,
}

impl Standing {
    /// How many requests and watches it happened to.
    pub fn hits(&self) -> usize {
        self.shared.state().rules.get(&self.id).map_or(0, |entry| entry.hits)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.shared.state().rules.remove(&self.id);
        self.shared.changed.send_replace(());
    }
}

/// A running proxy; it ends when it is dropped, and so do the connections through it.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    kubeconfig: PathBuf,
    /// Dropping it ends the thread.
    _running: oneshot::Sender<()>,
}

impl Proxy {
    /// Starts a proxy to the API server; probabilities are drawn from the seed.
    pub async fn start(plane: &ControlPlane, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port for the proxy")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let kubeconfig = plane.dir().join(format!("proxy-{port}.kubeconfig"));
        write_kubeconfig(&kubeconfig, port)?;

        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                rules: BTreeMap::new(),
                last: 0,
                rng: Rng::with_seed(seed),
                seen: Vec::new(),
            }),
            changed: watch::Sender::new(()),
        });
        let (running, ended) = oneshot::channel();
        let (tell, started) = oneshot::channel();
        let (serving, credentials) = (shared.clone(), plane.kubeconfig_host());
        thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || serve::run(listener, &credentials, &serving, tell, ended))
            .context("no thread for the proxy")?;
        started.await.context("the proxy ended")??;
        Ok(Self { shared, kubeconfig, _running: running })
    }

    /// The kubeconfig of whoever should go through it. It has no credentials: the proxy has the host's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Sets a rule. Of several that fit a request, the one that was set first and happens, happens alone; a
    /// watch that is open has them all.
    pub fn rule(&self, rule: Rule) -> Standing {
        let mut state = self.shared.state();
        state.last += 1;
        let id = state.last;
        state.rules.insert(id, Entry::new(rule));
        drop(state);
        self.shared.changed.send_replace(());
        Standing { id, shared: self.shared.clone() }
    }

    /// Ends all rules; how often they happened can still be asked.
    pub fn clear(&self) {
        self.shared.state().rules.values_mut().for_each(|entry| entry.stands = false);
        self.shared.changed.send_replace(());
    }

    /// Every request so far, in the order in which they came.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.clone()
    }
}

fn write_kubeconfig(path: &Path, port: u16) -> Result<()> {
    let content = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: proxy\n\
         clusters: [{{name: proxy, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\n\
         users: [{{name: nobody, user: {{}}}}]\n\
         contexts: [{{name: proxy, context: {{cluster: proxy, user: nobody}}}}]\n"
    );
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// What the thread and the test share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes open watches when rules come and go.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    rules: BTreeMap<u64, Entry>,
    /// The number of the last rule.
    last: u64,
    rng: Rng,
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Entry {
    rule: Rule,
    /// How many have been let through, over all and since then.
    skipped: usize,
    spared: (Instant, usize),
    hits: usize,
    since: Instant,
    /// Answers by path and query, for [`Fault::Stale`].
    recorded: HashMap<String, Response<Bytes>>,
    stands: bool,
}

/// What rules do to a watch now.
#[derive(Debug, Default)]
struct Faults {
    frozen: bool,
    lag: Duration,
    cut: Option<Instant>,
    lost_percent: u8,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Notes a request; its place in `seen`, and the rule that happens to it.
    fn arrive(&mut self, asked: &Asked, uri: &str) -> (usize, Option<(u64, Fault)>) {
        let mut happens = None;
        for (id, entry) in &mut self.rules {
            if !entry.rule.fault.is_about_streams() && entry.draw(asked, &mut self.rng) {
                happens = Some((*id, entry.rule.fault));
                break;
            }
        }
        let asked = asked.clone();
        self.seen.push(Seen {
            verb: asked.verb,
            resource: asked.resource,
            subresource: asked.subresource,
            namespace: asked.namespace,
            name: asked.name,
            uri: uri.to_owned(),
            fault: happens.map(|(_, fault)| fault),
            code: None,
        });
        (self.seen.len() - 1, happens)
    }

    /// What was recorded of this path and query while a rule stands.
    fn recorded(&self, rule: u64, uri: &str) -> Option<Response<Bytes>> {
        self.rules.get(&rule)?.recorded.get(uri).cloned()
    }

    /// Whether an event is lost.
    fn draw_lost(&mut self, percent: u8) -> bool {
        self.rng.u8(..100) < percent
    }

    fn record(&mut self, rule: u64, uri: String, answer: Response<Bytes>) {
        if let Some(entry) = self.rules.get_mut(&rule) {
            entry.recorded.insert(uri, answer);
        }
    }

    /// What happens to a watch that was opened then; `drawn` remembers what was decided about it.
    fn on_stream(
        &mut self,
        asked: &Asked,
        seen: usize,
        opened: Instant,
        drawn: &mut BTreeMap<u64, bool>,
    ) -> Faults {
        let mut faults = Faults::default();
        for (id, entry) in &mut self.rules {
            let fault = entry.rule.fault;
            if !entry.stands || !fault.is_about_streams() {
                continue;
            }
            if !*drawn.entry(*id).or_insert_with(|| entry.draw(asked, &mut self.rng)) {
                continue;
            }
            self.seen[seen].fault = Some(fault);
            match fault {
                Fault::Freeze => faults.frozen = true,
                Fault::Lose(percent) => faults.lost_percent = faults.lost_percent.max(percent),
                Fault::Lag(lag) => faults.lag = faults.lag.max(lag),
                Fault::Cut(after) => {
                    let at = opened.max(entry.since) + after;
                    faults.cut = Some(faults.cut.map_or(at, |cut| cut.min(at)));
                }
                Fault::Delay(_)
                | Fault::Answer { .. }
                | Fault::AnswerAfter(_)
                | Fault::DropBefore
                | Fault::DropAfter
                | Fault::HangBefore
                | Fault::HangAfter
                | Fault::Stale => {}
            }
        }
        faults
    }
}

impl Entry {
    fn new(rule: Rule) -> Self {
        let now = Instant::now();
        Self {
            rule,
            skipped: 0,
            spared: (now, 0),
            hits: 0,
            since: now,
            recorded: HashMap::new(),
            stands: true,
        }
    }

    /// Whether it happens, which counts.
    fn draw(&mut self, asked: &Asked, rng: &mut Rng) -> bool {
        let happens = self.stands
            && self.rule.is_about(asked)
            && self.rule.times.is_none_or(|times| self.hits < times)
            && !self.lets_through()
            && rng.f64() < self.rule.probability;
        self.hits += usize::from(happens);
        happens
    }

    fn lets_through(&mut self) -> bool {
        if self.skipped < self.rule.skip {
            self.skipped += 1;
            return true;
        }
        let Some(per_second) = self.rule.per_second else { return false };
        if self.spared.0.elapsed() >= Duration::from_secs(1) {
            self.spared = (Instant::now(), 0);
        }
        self.spared.1 += 1;
        self.spared.1 <= per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(verb: &str) -> Asked {
        Asked {
            verb: verb.to_owned(),
            resource: "pods".to_owned(),
            subresource: String::new(),
            namespace: "demo".to_owned(),
            name: "p".to_owned(),
        }
    }

    fn state(rules: impl IntoIterator<Item = Rule>) -> State {
        State {
            rules: (1..).zip(rules.into_iter().map(Entry::new)).collect(),
            last: 9,
            rng: Rng::with_seed(7),
            seen: Vec::new(),
        }
    }

    #[test]
    fn rule_fits_what_all_its_words_fit() {
        let every = Rule::every(Fault::DropBefore);
        let fits = |rule: Rule| state([rule]).arrive(&asked("apply"), "/").1.is_some();
        assert!(fits(every.clone()));
        assert!(fits(Rule { verbs: &["get", "apply"], resource: "pods", ..every.clone() }));
        assert!(!fits(Rule { verbs: &["patch"], ..every.clone() }));
        assert!(!fits(Rule { resource: "services", ..every.clone() }));
        assert!(!fits(Rule { subresource: Some("status"), ..every.clone() }));
        assert!(fits(Rule { subresource: Some(""), namespace: Some("demo".to_owned()), ..every.clone() }));
        assert!(!fits(Rule { namespace: Some("other".to_owned()), ..every.clone() }));
        assert!(!fits(Rule { name: Some("q".to_owned()), ..every }));
        assert!(!fits(Rule::every(Fault::Stale)), "only reads can be stale");
    }

    #[test]
    fn rule_happens_as_often_as_it_says_and_then_the_next_does() {
        let conflict = Fault::Answer { code: 409, retry_after: None };
        let first = Rule { times: Some(2), ..Rule::every(Fault::DropAfter) };
        let mut state = state([first, Rule::every(conflict)]);
        let mut next = || state.arrive(&asked("get"), "/").1.map(|(_, fault)| fault);
        assert_eq!(
            [(); 3].map(|()| next()),
            [Some(Fault::DropAfter), Some(Fault::DropAfter), Some(conflict)]
        );
        assert_eq!((state.rules[&1].hits, state.rules[&2].hits), (2, 1));
        assert_eq!(state.seen.len(), 3);
    }

    #[test]
    fn rule_lets_the_first_through_and_then_so_many_a_second() {
        let hang = |fault, times| Rule { skip: 2, times, ..Rule::every(fault) };
        let mut rules = state([hang(Fault::HangAfter, Some(1)), hang(Fault::HangBefore, None)]);
        let mut next = || rules.arrive(&asked("apply"), "/").1.map(|(_, fault)| fault);
        let (after, before) = (Some(Fault::HangAfter), Some(Fault::HangBefore));
        assert_eq!([(); 5].map(|()| next()), [None, None, after, before, before]);

        let mut state = state([Rule { per_second: Some(10), ..Rule::every(Fault::DropBefore) }]);
        let mut pass = || (0..25).filter(|_| state.arrive(&asked("get"), "/").1.is_none()).count();
        assert_eq!(pass(), 10);
        assert_eq!(pass(), 0);
        state.rules.values_mut().for_each(|entry| entry.spared.0 -= Duration::from_secs(1));
        let passed = (0..25).filter(|_| state.arrive(&asked("get"), "/").1.is_none()).count();
        assert_eq!(passed, 10);
    }

    #[test]
    fn rule_happens_about_as_likely_as_it_says() {
        let mut state = state([Rule { probability: 0.25, ..Rule::every(Fault::DropBefore) }]);
        let hits = (0..1000).filter(|_| state.arrive(&asked("get"), "/").1.is_some()).count();
        assert!((200..300).contains(&hits), "{hits}");
    }

    #[test]
    fn stream_is_decided_about_once_and_has_all_its_faults() {
        let lag = Duration::from_secs(3);
        let mut state = state([Rule::every(Fault::Lag(lag)), Rule::every(Fault::Freeze)]);
        let (seen, none) = state.arrive(&asked("watch"), "/");
        assert!(none.is_none());
        let mut drawn = BTreeMap::new();
        for _ in 0..3 {
            let faults = state.on_stream(&asked("watch"), seen, Instant::now(), &mut drawn);
            assert!(faults.frozen && faults.lag == lag && faults.cut.is_none());
        }
        assert_eq!(state.rules[&1].hits, 1);
        assert_eq!(state.seen[seen].fault, Some(Fault::Freeze));
    }
}
