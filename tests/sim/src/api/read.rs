//! Gets and lists.

use super::{Asked, State, not_found, store::Objects, text};
use crate::{refusal::Refusal, schema::Kind};
use oarlock::object::Selector;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

/// So many moments are kept for lists that go on.
const PAGES: usize = 16;

/// Which objects of a kind are asked for.
#[derive(Clone)]
pub(super) struct Filter {
    namespace: String,
    name: Option<String>,
    selector: Selector,
    pub(super) is_plain: bool,
}

impl Filter {
    pub(super) fn new(asked: &Asked) -> Result<Self, Refusal> {
        let bad = |what: String| Refusal::new(400, "BadRequest", what);
        let labels = asked.option("labelSelector");
        let selector =
            Selector::parse(labels).map_err(|error| bad(format!("unable to parse requirement: {error}")))?;
        let mut filter = Self {
            namespace: asked.namespace.clone(),
            name: None,
            selector,
            is_plain: labels.is_empty() && asked.option("fieldSelector").is_empty(),
        };
        for term in asked.option("fieldSelector").split(',').filter(|term| !term.is_empty()) {
            let (field, value) = term.split_once('=').unwrap_or((term, ""));
            let value = value.trim_start_matches('=');
            match field {
                "metadata.name" => filter.name = Some(value.to_owned()),
                "metadata.namespace" => value.clone_into(&mut filter.namespace),
                _ => return Err(bad(format!("field label not supported: {field}"))),
            }
        }
        Ok(filter)
    }

    /// Whether an object is among them.
    pub(super) fn has(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || self.namespace == text(object, "/metadata/namespace"))
            && self.name.as_ref().is_none_or(|name| name == text(object, "/metadata/name"))
            && (self.is_plain || self.selector.matches(&labels(object)))
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    labels.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

/// In which form objects are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    Metadata,
}

impl Form {
    pub(super) fn of(accept: &str) -> Self {
        if accept.contains("as=PartialObjectMetadata") { Self::Metadata } else { Self::Whole }
    }

    /// An object as it is shown to whoever asked for this kind, which may be another version than it was stored in.
    pub(super) fn shown(self, kind: &Kind, object: &Arc<Value>) -> Arc<Value> {
        match self {
            Self::Metadata => Arc::new(json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"],
            })),
            Self::Whole => {
                let api_version = kind.api_version();
                if text(object, "/apiVersion") == api_version {
                    return Arc::clone(object);
                }
                let mut object = (**object).clone();
                object["apiVersion"] = api_version.into();
                Arc::new(object)
            }
        }
    }
}

impl Form {
    /// An object in a list: one of a built-in kind does not say which.
    pub(super) fn listed(self, kind: &Kind, object: &Arc<Value>) -> Arc<Value> {
        if kind.is_custom() || self == Self::Metadata {
            return self.shown(kind, object);
        }
        let members = object.as_object().into_iter().flatten();
        let rest = members.filter(|(name, _)| !matches!(&***name, "apiVersion" | "kind"));
        Arc::new(rest.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

impl State {
    pub(super) fn get(&self, asked: &Asked, form: Form) -> Result<Arc<Value>, Refusal> {
        let kind = self.kind(asked)?;
        let key = (asked.namespace.clone(), asked.name.clone());
        let found = self.store.get(&kind.qualified(), &key).ok_or_else(|| not_found(&kind, &asked.name))?;
        Ok(form.shown(&kind, found))
    }

    /// A list, as text: it may be of many thousand objects.
    pub(super) fn list(&mut self, asked: &Asked, form: Form) -> Result<String, Refusal> {
        let kind = self.kind(asked)?;
        let filter = Filter::new(asked)?;
        let limit: usize = asked.option("limit").parse().unwrap_or(0);
        let (version, objects, after) = match asked.option("continue") {
            "" => (self.store.version(), self.store.objects(&kind.qualified()), None),
            token => {
                let (version, key) = read_token(token)?;
                let objects = self.pages.get(&(version, kind.qualified())).cloned().ok_or_else(expired)?;
                (version, objects, Some(key))
            }
        };
        let start = match &after {
            Some(key) => Bound::Excluded(key.clone()),
            None if filter.namespace.is_empty() => Bound::Unbounded,
            None => Bound::Included((filter.namespace.clone(), String::new())),
        };
        let mut items = Vec::new();
        let mut last = None;
        let mut rest = objects.range((start, Bound::Unbounded)).filter(|(_, object)| filter.has(object));
        while limit == 0 || items.len() < limit {
            let Some((key, object)) = rest.next() else { break };
            items.push(form.listed(&kind, object).to_string());
            last = Some(key);
        }
        let remaining = rest.count();
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        if let Some(last) = last.filter(|_| remaining > 0) {
            metadata.insert("continue".to_owned(), token(version, last).into());
            if filter.is_plain {
                metadata.insert("remainingItemCount".to_owned(), remaining.into());
            }
            self.keep_page(version, kind.qualified(), objects.clone());
        }
        let (api_version, list_kind) = match form {
            Form::Whole => (kind.api_version(), &*kind.list_kind),
            Form::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList"),
        };
        // Of metadata, none is not an empty list.
        let items = if items.is_empty() && form == Form::Metadata {
            "null".to_owned()
        } else {
            format!("[{}]", items.join(","))
        };
        Ok(format!(
            r#"{{"apiVersion":"{api_version}","kind":"{list_kind}","metadata":{},"items":{items}}}"#,
            Value::Object(metadata),
        ))
    }

    fn keep_page(&mut self, version: u64, resource: String, objects: Objects) {
        self.pages.insert((version, resource), objects);
        while self.pages.len() > PAGES {
            self.pages.pop_first();
        }
    }
}

/// Where a list goes on: the version it began with, and the last object it has had.
fn token(version: u64, (namespace, name): &(String, String)) -> String {
    format!("{version}:{namespace}:{name}")
}

fn read_token(token: &str) -> Result<(u64, (String, String)), Refusal> {
    let mut parts = token.splitn(3, ':');
    let version = parts.next().and_then(|version| version.parse().ok());
    match (version, parts.next(), parts.next()) {
        (Some(version), Some(namespace), Some(name)) => {
            Ok((version, (namespace.to_owned(), name.to_owned())))
        }
        _ => Err(Refusal::new(400, "BadRequest", "continue key is not valid")),
    }
}

fn expired() -> Refusal {
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a \
                   new list without the continue parameter.";
    Refusal::new(410, "Expired", message).about("", "", "")
}
