//! An API server in memory: what `kube-apiserver` answers, in microseconds and without chance.
//!
//! In: requests, by [`Server::answer`] or through a [`kube::Client`] of [`Server::client`]. Out: the answers that a
//! real API server gives, status codes, reasons and words included; watches as bodies that stay open.
//! Every request is one step: it sees one moment and takes no time. Delays and faults are the business of whoever
//! stands in between ([`crate::faults`]), and what controllers of the cluster do is [`crate::cluster`]'s.
//! Same requests, same answers: uids count up, and the time is tokio's, which a simulation pauses.

mod admission;
mod asked;
pub(crate) mod delete;
mod discovery;
mod read;
mod rights;
mod service;
mod store;
mod watch;
mod write;

pub use admission::{Policy, Verdict};
pub use asked::{Asked, qualified};
pub use rights::Rights;
pub use service::{Answer, Body, Lines, Request};
pub use store::{Change, Key, Objects, Store};

use crate::{
    refusal::Refusal,
    schema::{self, Kind},
};
use jiff::Timestamp;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

/// When simulated time begins.
pub const EPOCH: &str = "2026-01-01T00:00:00Z";

/// The user who may do everything, also what only the API server and its controllers do.
pub const ADMIN: &str = "admin";

/// The status of a request that a fault happened to, in the records: what it was answered is another one, if any.
pub const FAULT: u16 = 0;

/// Who restores backups, in the records.
pub const ETCD: &str = "etcd";

/// The server; clones are the same one.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Wakes whoever waits for changes, in the order in which they came: a watch channel would do so in any.
    changed: Notify,
    /// Open watches of an earlier number end.
    connections: AtomicU64,
    start: Instant,
}

/// One request that was answered.
#[derive(Clone, Debug)]
pub struct Record {
    /// Since the start.
    pub at: Duration,
    /// Who asked.
    pub user: String,
    /// For what.
    pub asked: Asked,
    /// The HTTP status.
    pub code: u16,
    /// Why it was refused, in the server's words.
    pub refused: Option<String>,
    /// What it changed; more than one thing in the case of a collection.
    pub changes: Vec<Arc<Change>>,
}

struct State {
    store: Store,
    /// By group, version and plural.
    kinds: BTreeMap<(String, String, String), Arc<Kind>>,
    /// What lists go on with, by version and resource.
    pages: BTreeMap<(u64, String), Objects>,
    rights: BTreeMap<String, Rights>,
    policies: Vec<Policy>,
    /// Counts whatever needs a new name: uids, names, addresses.
    serial: u64,
    is_expiry_a_status: bool,
    /// `None` where nobody reads them.
    records: Option<Vec<Record>>,
    /// The schemas that are published, see `discovery`.
    published: discovery::Published,
    /// The time as it is written into objects, and since the start.
    now: String,
    at: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// An empty cluster: the built-in kinds, and the namespaces `default` and `kube-system`.
    pub fn new() -> Self {
        let kinds = schema::builtin().into_iter().map(|kind| (place(&kind), kind)).collect();
        let state = State {
            store: Store::default(),
            kinds,
            pages: BTreeMap::new(),
            rights: BTreeMap::new(),
            policies: Vec::new(),
            serial: 0,
            is_expiry_a_status: false,
            records: Some(Vec::new()),
            published: discovery::Published::default(),
            now: EPOCH.to_owned(),
            at: Duration::ZERO,
        };
        let server = Self(Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            connections: AtomicU64::new(0),
            start: Instant::now(),
        }));
        for name in ["default", "kube-system"] {
            let namespace =
                serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            server.create(ADMIN, &namespace).expect("a namespace can be made in an empty cluster");
        }
        server
    }

    /// What a user may do; everything unless said.
    pub fn set_rights(&self, user: &str, rights: Rights) {
        self.state().rights.insert(user.to_owned(), rights);
    }

    /// Adds an admission policy.
    pub fn add_policy(&self, policy: Policy) {
        self.state().policies.push(policy);
    }

    /// Takes all policies of this name off.
    pub fn remove_policy(&self, name: &str) {
        self.state().policies.retain(|policy| policy.name != name);
    }

    /// Whether a watch from a version that is gone is refused with the HTTP status 410, as without a watch cache,
    /// rather than with an error in the stream.
    pub fn set_expiry_as_status(&self, is_status: bool) {
        self.state().is_expiry_a_status = is_status;
    }

    /// Forgets the log: watches and lists from before go on with 410.
    pub fn compact(&self) {
        let mut state = self.state();
        state.store.compact();
        state.pages.clear();
    }

    /// A backup of everything stored.
    pub fn backup(&self) -> Store {
        self.state().store.clone()
    }

    /// Puts a backup in the place of everything stored, as a restored etcd does: versions go backwards, and all
    /// watches end.
    pub fn restore(&self, backup: Store) {
        let mut state = self.state();
        state.store = backup;
        state.pages.clear();
        state.read_definitions();
        let changes = state.store.everything();
        let request = Request::new(ETCD, "RESTORE", "/", "", "");
        state.record(&request, 200, None, changes);
        drop(state);
        self.disconnect();
    }

    /// Ends all watches, as a restart of the server does.
    pub fn disconnect(&self) {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }

    /// Keeps no records of requests: for long runs that nobody looks back at.
    pub fn forget_records(&self) {
        self.state().records = None;
    }

    /// What was asked, from a number on.
    pub fn records(&self, from: usize) -> Vec<Record> {
        self.state().records.as_ref().and_then(|records| records.get(from..)).unwrap_or_default().to_vec()
    }

    /// How many requests are on record.
    pub fn records_count(&self) -> usize {
        self.state().records.as_ref().map_or(0, Vec::len)
    }

    /// Does something with every record from a number on; the number of the next.
    pub fn each_record(&self, from: usize, each: impl FnMut(&Record)) -> usize {
        let state = self.state();
        let records = state.records.as_deref().unwrap_or_default();
        records.get(from..).unwrap_or_default().iter().for_each(each);
        records.len()
    }

    /// The objects of a resource as they are stored: `configmaps`, `deployments.apps`.
    pub fn objects(&self, resource: &str) -> Objects {
        self.state().store.objects(resource)
    }

    /// One object as it is stored.
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.state().store.get(resource, &(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// The names of all resources that have objects.
    pub fn resources(&self) -> Vec<Arc<str>> {
        self.state().store.resources().cloned().collect()
    }

    /// The kind of a resource, in its first version: `deployments.apps`.
    pub fn kind(&self, resource: &str) -> Option<Arc<Kind>> {
        let state = self.state();
        let found = state.kinds.values().find(|kind| kind.qualified() == resource);
        found.cloned()
    }

    /// The version of the last write.
    pub fn version(&self) -> u64 {
        self.state().store.version()
    }

    /// Is notified of every write.
    pub fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }

    /// The changes of all resources after a version; `None` if the log does not reach back to it, or not forward.
    pub fn all_changes(&self, after: u64) -> Option<Vec<Arc<Change>>> {
        let state = self.state();
        if after > state.store.version() { None } else { state.store.all_changes(after) }
    }

    /// Publishes the schemas of all kinds that are served now, which the server does some time after it serves them.
    pub fn publish(&self) {
        self.state().publish();
    }

    /// Lets versions go on without a write that anybody sees.
    pub fn advance(&self, versions: u64) {
        self.state().store.advance(versions);
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// The time that the server writes into objects.
    pub fn now(&self) -> Timestamp {
        let start: Timestamp = EPOCH.parse().expect("the epoch is a time");
        start + self.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every request leaves the state whole: it is checked first and stored last.
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.at = self.elapsed();
        state.now = self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        state
    }
}

/// Group, version and plural.
fn place(kind: &Kind) -> (String, String, String) {
    (kind.group.clone(), kind.version.clone(), kind.plural.clone())
}

impl State {
    /// The kind of a request.
    fn kind(&self, asked: &Asked) -> Result<Arc<Kind>, Refusal> {
        let place = (asked.group.clone(), asked.version.clone(), asked.resource.clone());
        let found = self.kinds.get(&place).filter(|kind| match &*asked.subresource {
            "" => true,
            "status" => kind.status,
            "finalize" => kind.qualified() == "namespaces",
            _ => false,
        });
        let is_known = self.kinds.get(&place).is_some_and(|kind| kind.is_custom());
        found.cloned().ok_or_else(|| if is_known { no_subresource() } else { no_page() })
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A new uid: the number in the form of one.
    fn next_uid(&mut self) -> String {
        let serial = self.next_serial();
        format!("00000000-0000-4000-8000-{serial:012x}")
    }
}

/// A path that nothing is served under.
fn no_page() -> Refusal {
    Refusal::new(404, "", "404 page not found\n")
}

/// A subresource that a custom kind does not have.
fn no_subresource() -> Refusal {
    Refusal::new(404, "NotFound", "the server could not find the requested resource").about("", "", "")
}

/// No object of this name.
fn not_found(kind: &Kind, name: &str) -> Refusal {
    Refusal::new(404, "NotFound", format!("{} {name:?} not found", kind.qualified()))
}

/// A text within an object; empty where it is absent.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
