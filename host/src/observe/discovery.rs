//! What the API server knows about a kind: its path, its scope, its status.
//!
//! Answers are kept, and asked for again when a kind is missing or a request says that it has changed.

mod schema;

use super::client::{Answer, Client, Error, root};
use crate::object::Gvk;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use tracing::debug;

/// One served kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Group, version and kind.
    pub gvk: Gvk,
    /// The name in paths, such as `deployments`.
    pub plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// What its status looks like; `None` without the status subresource.
    pub status: Option<StatusSchema>,
}

/// What the schema says of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSchema {
    /// How `status.conditions` merges; `None` where the schema has no place for conditions.
    pub conditions: Option<ConditionList>,
    /// What it may hold: the API server drops the rest, or refuses it.
    pub fields: Fields,
    /// Of the kind's whole schema as text: also what may stand in a field is another after a change.
    pub hash: u64,
}

/// What a schema declares of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fields {
    /// Nothing that the host looks at: a scalar, or whatever is given.
    Any,
    /// An object.
    Object {
        /// Its members by name.
        members: BTreeMap<Box<str>, Fields>,
        /// What members of other names may hold; `None` where there are no others.
        others: Option<Box<Fields>>,
    },
    /// A list, by what each element may hold.
    List(Box<Fields>),
}

impl StatusSchema {
    /// Where no schema says anything: any field is kept, with conditions as one value.
    pub fn any() -> Self {
        Self { conditions: Some(ConditionList::Atomic), fields: Fields::Any, hash: 0 }
    }
}

impl Fields {
    /// An object that can have no members.
    pub fn none() -> Self {
        Self::Object { members: BTreeMap::new(), others: None }
    }

    /// What a member of an object may hold; `None` where there is no such member.
    pub fn member(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Any => Some(self),
            Self::Object { members, others } => members.get(name).or(others.as_deref()),
            Self::List(_) => None,
        }
    }
}

/// How a list of conditions merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionList {
    /// A list map by `type`: each condition has its own owner.
    Map,
    /// One value as a whole: written with a resourceVersion precondition.
    Atomic,
}

/// How long a kind with a status may be without a schema before it counts as "has none". The API server publishes
/// the schema of a new CRD about a second after it serves it; aggregated APIs may never.
const SCHEMA_PATIENCE: Duration = Duration::from_secs(30);

/// Kinds by name, kept after the first look.
pub struct Discovery {
    client: Client,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    kinds: BTreeMap<Gvk, Arc<Kind>>,
    /// Kinds that are served without a schema so far, and since when that is known.
    without_schema: BTreeMap<Gvk, Instant>,
    /// What the schemas of a group's version say of `status`, by kind: one document holds them all.
    schemas: BTreeMap<(Arc<str>, Arc<str>), Arc<schema::Statuses>>,
    /// Which documents there were at the last look, by place (`apis/apps/v1`): where each is, which has a hash of it.
    documents: Option<BTreeMap<String, String>>,
}

/// The list of all `OpenAPI` documents.
#[derive(serde::Deserialize)]
struct Index {
    paths: BTreeMap<String, Document>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(rename = "serverRelativeURL")]
    url: String,
}

impl Discovery {
    /// Asks nothing yet.
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// The kind as the API server serves it.
    ///
    /// A kind whose schema is not published yet is an error that passes; one whose schema stays away is taken
    /// to keep any status field, with conditions as one value.
    ///
    /// # Errors
    /// `Answer::KindNotFound` where it is not served (the answer is not kept), or the request's error.
    pub async fn kind(&self, gvk: &Gvk) -> Result<Arc<Kind>, Error> {
        if let Some(kind) = self.known().kinds.get(gvk) {
            return Ok(Arc::clone(kind));
        }
        let resources = self.resources(gvk).await?;
        let Some(resource) = resources.iter().find(|resource| is_of_kind(resource, gvk)) else {
            return Err(missing(gvk));
        };
        let status = format!("{}/status", resource.name);
        let status = if resources.iter().any(|resource| resource.name == status) {
            Some(self.status(gvk).await?)
        } else {
            None
        };
        let kind =
            Kind { gvk: gvk.clone(), plural: resource.name.clone(), namespaced: resource.namespaced, status };
        let kind = Arc::new(kind);
        self.known().kinds.insert(gvk.clone(), Arc::clone(&kind));
        Ok(kind)
    }

    /// Forgets what is kept of a kind: it vanished, or is another now.
    pub fn forget(&self, gvk: &Gvk) {
        self.ask_again(gvk);
        self.known().without_schema.remove(gvk);
    }

    /// Asks the API server the next time: the kind's schema or subresources may have changed.
    pub fn ask_again(&self, gvk: &Gvk) {
        let mut known = self.known();
        known.kinds.remove(gvk);
        known.schemas.remove(&(Arc::clone(&gvk.group), Arc::clone(&gvk.version)));
    }

    /// Looks whether what is known of the kinds in use has changed since the last look: one small list tells which
    /// groups did. Whether a kind is another now.
    ///
    /// # Errors
    /// The list's. A kind that cannot be looked at stays as it was known until the next look.
    pub async fn refresh(&self) -> Result<bool, Error> {
        let text = self.client.raw_get("/openapi/v3").await?;
        let index: Index = serde_json::from_str(&text).map_err(|error| Error {
            verb: "get",
            target: "/openapi/v3".into(),
            answer: Answer::Undecodable,
            message: format!("the answer cannot be decoded: {error}"),
            retry_after: None,
        })?;
        let mut documents: BTreeMap<_, _> =
            index.paths.into_iter().map(|(place, document)| (place, document.url)).collect();
        let outdated: Vec<_> = {
            let known = self.known();
            let is_same = |gvk: &Gvk| {
                let place = place(gvk);
                known.documents.as_ref().is_some_and(|before| before.get(&place) == documents.get(&place))
            };
            known.kinds.iter().filter(|(gvk, _)| !is_same(gvk)).map(|(_, kind)| Arc::clone(kind)).collect()
        };
        for kind in &outdated {
            self.ask_again(&kind.gvk);
        }
        let mut is_other = false;
        for before in outdated {
            match self.kind(&before.gvk).await {
                Ok(now) => is_other |= now != before,
                // Its watch says so.
                Err(error) if error.answer == Answer::KindNotFound => {}
                // Kept is what was known, which is the best there is until the next look.
                Err(error) => {
                    debug!(error = %error, "a kind cannot be looked at again");
                    documents.remove(&place(&before.gvk));
                    self.known().kinds.entry(before.gvk.clone()).or_insert(before);
                }
            }
        }
        self.known().documents = Some(documents);
        Ok(is_other)
    }

    /// What the API server serves in the kind's group and version.
    async fn resources(&self, gvk: &Gvk) -> Result<Vec<APIResource>, Error> {
        let text = self.client.raw_get(&root(&gvk.group, &gvk.version)).await.map_err(|error| match error
            .answer
        {
            Answer::KindNotFound | Answer::NotFound => missing(gvk),
            _ => Error { target: gvk.to_string(), ..error },
        })?;
        let list: APIResourceList = serde_json::from_str(&text).map_err(|error| undecodable(gvk, &error))?;
        Ok(list.resources)
    }

    async fn status(&self, gvk: &Gvk) -> Result<StatusSchema, Error> {
        let place = (Arc::clone(&gvk.group), Arc::clone(&gvk.version));
        let kept = self.known().schemas.get(&place).and_then(|statuses| statuses.get(&*gvk.kind).cloned());
        if let Some(status) = kept {
            return Ok(status);
        }
        let path = format!("/openapi/v3{}", root(&gvk.group, &gvk.version));
        let statuses = match self.client.raw_get(&path).await {
            Ok(text) => {
                schema::statuses(&gvk.group, &gvk.version, &text).map_err(|error| undecodable(gvk, &error))?
            }
            Err(Error { answer: Answer::KindNotFound | Answer::NotFound, .. }) => schema::Statuses::new(),
            Err(error) => return Err(Error { target: gvk.to_string(), ..error }),
        };
        let status = statuses.get(&*gvk.kind).cloned();
        let mut known = self.known();
        known.schemas.insert(place, Arc::new(statuses));
        if let Some(status) = status {
            return Ok(status);
        }
        let since = known.without_schema.entry(gvk.clone()).or_insert_with(Instant::now);
        if since.elapsed() < SCHEMA_PATIENCE {
            return Err(failed(gvk, Answer::Unavailable, "its schema is not published yet".into()));
        }
        Ok(StatusSchema::any())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Only maps that are whole after every statement.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the list of documents calls the kind's group and version.
fn place(gvk: &Gvk) -> String {
    root(&gvk.group, &gvk.version).trim_start_matches('/').to_owned()
}

/// Whether this is the kind itself, not one of its subresources, which may have the same kind.
fn is_of_kind(resource: &APIResource, gvk: &Gvk) -> bool {
    resource.kind == *gvk.kind && !resource.name.contains('/')
}

fn missing(gvk: &Gvk) -> Error {
    failed(gvk, Answer::KindNotFound, format!("the API server does not serve {gvk}"))
}

fn undecodable(gvk: &Gvk, error: &serde_json::Error) -> Error {
    failed(gvk, Answer::Undecodable, format!("the answer cannot be decoded: {error}"))
}

fn failed(gvk: &Gvk, answer: Answer, message: String) -> Error {
    Error { verb: "get", target: gvk.to_string(), answer, message, retry_after: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::client::mock::{Reply, Server};
    use serde_json::json;

    fn widget() -> Gvk {
        Gvk::new("cases.example.com/v1", "Widget")
    }

    const RESOURCES: &str = r#"{"kind":"APIResourceList","groupVersion":"cases.example.com/v1","resources":[
        {"name":"widgets","singularName":"widget","namespaced":true,"kind":"Widget","verbs":["get","list"]},
        {"name":"widgets/status","singularName":"","namespaced":true,"kind":"Widget","verbs":["get","patch"]},
        {"name":"gadgets","singularName":"gadget","namespaced":false,"kind":"Gadget","verbs":["get","list"]}]}"#;

    const SCHEMAS: &str = r#"{"components":{"schemas":{"com.example.cases.v1.Widget":{"type":"object",
        "properties":{"status":{"type":"object","properties":{"note":{"type":"string"}}}},
        "x-kubernetes-group-version-kind":[{"group":"cases.example.com","version":"v1","kind":"Widget"}]}}}}"#;

    const PATH: &str = "GET /apis/cases.example.com/v1";
    const OPENAPI: &str = "GET /openapi/v3/apis/cases.example.com/v1";

    fn text(text: &str) -> Reply {
        Reply::Text(200, text.into())
    }

    #[tokio::test]
    async fn kind_is_kept_until_it_is_forgotten() {
        let (server, client) = Server::start(vec![
            (PATH, text(RESOURCES)),
            (OPENAPI, text(SCHEMAS)),
            (PATH, text(RESOURCES)),
            (OPENAPI, text(SCHEMAS)),
        ]);
        let discovery = Discovery::new(client);
        let kind = discovery.kind(&widget()).await.unwrap();
        assert_eq!((&*kind.plural, kind.namespaced), ("widgets", true));
        let fields = &kind.status.as_ref().unwrap().fields;
        assert!(fields.member("note").is_some() && fields.member("other").is_none(), "{fields:?}");
        discovery.kind(&widget()).await.unwrap();
        assert_eq!(server.seen().len(), 2);
        discovery.forget(&widget());
        discovery.kind(&widget()).await.unwrap();
        assert_eq!(server.seen().len(), 4);
    }

    #[tokio::test]
    async fn kind_without_status_needs_no_schema() {
        let (_server, client) = Server::start(vec![(PATH, text(RESOURCES))]);
        let gadget = Discovery::new(client).kind(&Gvk::new("cases.example.com/v1", "Gadget")).await.unwrap();
        assert_eq!((gadget.namespaced, &gadget.status), (false, &None));
    }

    #[tokio::test]
    async fn kind_that_is_not_served_is_asked_for_again() {
        let page = || Reply::Text(404, "404 page not found\n".into());
        let (_server, client) = Server::start(vec![
            (PATH, page()),
            (PATH, text(r#"{"groupVersion":"x","resources":[]}"#)),
            (PATH, Reply::Text(503, String::new())),
        ]);
        let discovery = Discovery::new(client);
        for expected in [Answer::KindNotFound, Answer::KindNotFound, Answer::Unavailable] {
            let error = discovery.kind(&widget()).await.unwrap_err();
            assert_eq!(error.answer, expected);
            assert!(error.to_string().starts_with("cannot get Widget (cases.example.com/v1): "), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn schema_that_comes_late_is_waited_for_and_one_that_never_comes_is_not() {
        let empty = r#"{"components":{"schemas":{}}}"#;
        let late = [
            (PATH, text(RESOURCES)),
            (OPENAPI, Reply::Text(404, String::new())),
            (PATH, text(RESOURCES)),
            (OPENAPI, text(SCHEMAS)),
        ];
        let (_server, client) = Server::start(late.into());
        let discovery = Discovery::new(client);
        assert_eq!(discovery.kind(&widget()).await.unwrap_err().answer, Answer::Unavailable);
        let kind = discovery.kind(&widget()).await.unwrap();
        assert_eq!(kind.status.as_ref().unwrap().fields.member("other"), None);

        let never = (0..4).flat_map(|_| [(PATH, text(RESOURCES)), (OPENAPI, text(empty))]).collect();
        let (_server, client) = Server::start(never);
        let discovery = Discovery::new(client);
        for _ in 0..2 {
            discovery.kind(&widget()).await.unwrap_err();
            tokio::time::advance(SCHEMA_PATIENCE / 2).await;
        }
        let kind = discovery.kind(&widget()).await.unwrap();
        assert_eq!(kind.status, Some(StatusSchema::any()));
        // Asked again, it has not to be waited for again.
        discovery.ask_again(&widget());
        assert_eq!(discovery.kind(&widget()).await.unwrap(), kind);
    }

    #[tokio::test]
    async fn refresh_asks_again_for_kinds_whose_document_is_another_and_tells_whether_they_are() {
        const INDEX: &str = "GET /openapi/v3";
        let index = |hash: &str| {
            let document = |hash: &str| json!({"serverRelativeURL": format!("/openapi/v3/x?hash={hash}")});
            let paths = json!({"apis/cases.example.com/v1": document(hash), "api/v1": document("1")});
            text(&json!({"paths": paths}).to_string())
        };
        let other = SCHEMAS.replace("note", "other");
        let (server, client) = Server::start(vec![
            (INDEX, index("1")),
            (PATH, text(RESOURCES)),
            (OPENAPI, text(SCHEMAS)),
            // The same, then another document that says the same, then another kind, then a failure.
            (INDEX, index("1")),
            (INDEX, index("2")),
            (PATH, text(RESOURCES)),
            (OPENAPI, text(SCHEMAS)),
            (INDEX, index("3")),
            (PATH, text(RESOURCES)),
            (OPENAPI, text(&other)),
            (INDEX, index("4")),
            (PATH, Reply::Text(503, String::new())),
            (INDEX, index("4")),
            (PATH, text(RESOURCES)),
            (OPENAPI, text(SCHEMAS)),
        ]);
        let discovery = Discovery::new(client);
        assert!(!discovery.refresh().await.unwrap());
        discovery.kind(&widget()).await.unwrap();
        for expected in [false, false, true, false, true] {
            assert_eq!(discovery.refresh().await.unwrap(), expected, "{:?}", server.seen());
            // Known all the same.
            discovery.kind(&widget()).await.unwrap();
        }
        assert_eq!(server.seen().len(), 15);
    }
}
