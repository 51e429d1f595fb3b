//! Fields of objects that are somebody else's (rule A10): taken, held, and given back.
//!
//! Each parent is a field manager of its own, so that several may own fields of one object, and that giving back is an
//! apply with nothing in it. The object carries a label, by which it is found, and an annotation per parent, which
//! says where that is; whose fields are on it is what the API server keeps of managers.
//! Never: clocks.

use super::{
    apply::{Context, hash},
    drift, identity,
};
use crate::{
    decide::plan::Child,
    object::{ANNOTATION_FIELDS_PREFIX, FIELD_MANAGER_PREFIX, Gvk, LABEL_FIELDS, Object, ObjectKey},
    observe::{
        client::{self, Answer, Client},
        discovery::Kind,
    },
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The field manager of one parent's fields.
pub(super) fn manager(plugin: &str, uid: &str) -> String {
    format!("{FIELD_MANAGER_PREFIX}{plugin}/{uid}")
}

/// The annotation that says whose fields are on an object.
pub(super) fn annotation(uid: &str) -> String {
    format!("{ANNOTATION_FIELDS_PREFIX}{uid}")
}

/// Whose fields are on an object, as an annotation says.
#[derive(Debug, PartialEq)]
pub struct Claim<'a> {
    /// The plugin.
    pub plugin: &'a str,
    /// The parent's namespace.
    pub namespace: Option<&'a str>,
    /// The parent's name.
    pub name: &'a str,
    /// The parent's uid.
    pub uid: &'a str,
    /// The hash of the fields.
    content: &'a str,
}

/// Everyone whose fields are on an object. An annotation that does not read so is not the host's.
pub fn claims(object: &Object) -> impl Iterator<Item = Claim<'_>> {
    object.annotations.iter().filter_map(|(name, value)| {
        let uid = name.strip_prefix(ANNOTATION_FIELDS_PREFIX)?;
        let mut words = value.split(' ');
        let (plugin, parent, content) = (words.next()?, words.next()?, words.next()?);
        let (namespace, name) = match parent.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, parent),
        };
        Some(Claim { plugin, namespace, name, uid, content })
    })
}

/// The uids of the parents whose plans own fields of an object for this plugin.
pub fn holders<'a>(object: &'a Object, plugin: &'a str) -> impl Iterator<Item = &'a str> {
    object.owned_fields.iter().filter_map(move |entry| {
        let (of, uid) = entry.manager.strip_prefix(FIELD_MANAGER_PREFIX)?.split_once('/')?;
        (of == plugin).then_some(uid)
    })
}

fn is_held(object: &Object, plugin: &str, uid: &str) -> bool {
    holders(object, plugin).any(|holder| holder == uid)
}

/// What is to be done about the fields of one object.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// They are as planned.
    Nothing,
    /// There is nothing to own fields of; why.
    Missing(&'static str),
    /// They are applied.
    Apply {
        body: Value,
        /// Whether they are taken from whoever has them.
        force: bool,
    },
}

/// Decides, from what is planned and what is there.
pub(super) fn decide(
    child: &Child,
    kind: &Kind,
    live: Option<&Object>,
    plugin: &str,
    parent: &Object,
) -> Decision {
    let Some(live) = live else { return Decision::Missing("does not exist, and is not created") };
    if live.is_terminating() {
        return Decision::Missing("is being deleted");
    }
    let (body, content) = desired(child, kind, live, plugin, parent);
    let manager = manager(plugin, &parent.uid);
    let mut claims = claims(live).filter(|claim| claim.plugin == plugin && claim.uid == &*parent.uid);
    // Anybody can write an annotation.
    let is_ours = is_held(live, plugin, &parent.uid);
    let is_applied = is_ours && claims.any(|claim| claim.content == content);
    if is_applied && drift::first_difference(&body, live, &manager).is_none() {
        return Decision::Nothing;
    }
    // What was ours before is put back; what never was, such as a field that a later plan adds, is taken only if the
    // plan says so (rule A4).
    let was_ours = is_applied && is_held(live, plugin, &parent.uid);
    Decision::Apply { force: was_ours || child.options.adopt, body }
}

/// The fields with what finds them, for exactly this object, and their hash.
fn desired(child: &Child, kind: &Kind, live: &Object, plugin: &str, parent: &Object) -> (Value, String) {
    let mut object = child.object.clone();
    if kind.status.is_some() {
        object.remove("status");
    }
    let content = hash(&Value::Object(object.clone()).to_string());
    let key = &parent.key;
    let name = key.namespace.as_ref().map_or_else(|| key.name.to_string(), |ns| format!("{ns}/{}", key.name));
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    for (field, name, value) in [
        ("labels", LABEL_FIELDS.to_owned(), "true".to_owned()),
        ("annotations", annotation(&parent.uid), format!("{plugin} {name} {content}")),
    ] {
        if metadata[field].is_null() {
            metadata[field] = Value::Object(Map::new());
        }
        metadata[field][name] = value.into();
    }
    metadata["uid"] = Value::from(&*live.uid);
    (Value::Object(object), content)
}

/// Gives back what the parent's plan no longer asks for; the objects, and the first error.
pub async fn give_back(
    context: Context<'_>,
    is_planned: impl Fn(&ObjectKey) -> bool,
) -> (Vec<Arc<Object>>, Option<client::Error>) {
    let Context { snapshot, sources, plugin, parent, discovery, client, cache, .. } = context;
    let on_others = sources.fields.values().flat_map(|watch| snapshot.list(watch, None));
    let ours = on_others.filter(|object| is_held(object, plugin, &parent.uid) && !is_planned(&object.key));
    let (mut given, mut first_error) = (Vec::new(), None);
    for object in ours {
        let kind = match discovery.kind(&object.key.gvk).await {
            Ok(kind) => kind,
            // They went with the kind.
            Err(error) if error.answer == Answer::KindNotFound => continue,
            Err(error) => {
                first_error.get_or_insert(error);
                continue;
            }
        };
        match give_one_back(client, &kind, object, plugin, &parent.uid).await {
            Ok(Some(after)) => {
                let after = Arc::new(after);
                drop(cache.wrote(Arc::clone(&after)));
                given.push(after);
            }
            Ok(None) => {}
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    (given, first_error)
}

/// Gives back what one parent's plan owned of an object; the object afterwards, or nothing if it is gone.
///
/// # Errors
/// The request's error.
pub async fn give_one_back(
    client: &Client,
    kind: &Kind,
    object: &Object,
    plugin: &str,
    uid: &str,
) -> Result<Option<Object>, client::Error> {
    let body = identity(object).to_string();
    let manager = manager(plugin, uid);
    let apply = client::Apply { manager: &manager, force: true, status: false, body: &body };
    match client.apply(kind, &object.key, apply).await {
        Ok(after) => Ok(Some(after)),
        Err(error) if matches!(error.answer, Answer::UidMismatch | Answer::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The parent that a claim speaks of.
pub fn parent_of(claim: &Claim<'_>, parents: &Gvk) -> ObjectKey {
    ObjectKey { gvk: parents.clone(), namespace: claim.namespace.map(Into::into), name: claim.name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::plan::Options;

    fn object(kind: &str, metadata: &Value) -> Object {
        Object::decode(&Gvk::new("v1", kind), &json!({"metadata": metadata, "data": {"a": "1"}}).to_string())
            .unwrap()
    }

    fn parent() -> Object {
        object("Widget", &json!({"name": "w1", "namespace": "demo", "uid": "p1"}))
    }

    fn child(adopt: bool) -> Child {
        let text =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}});
        Child {
            key: ObjectKey { gvk: Gvk::new("v1", "ConfigMap"), namespace: None, name: "c".into() },
            object: text.as_object().unwrap().clone(),
            options: Options { adopt, fields: true, ..Options::default() },
        }
    }

    fn decided(adopt: bool, live: Option<&Object>) -> Decision {
        let kind =
            Kind { gvk: Gvk::new("v1", "ConfigMap"), plural: String::new(), namespaced: true, status: None };
        decide(&child(adopt), &kind, live, "web", &parent())
    }

    /// The object after the fields were applied to it.
    fn owned(change: impl Fn(&mut Value)) -> Object {
        let plain = object("ConfigMap", &json!({"name": "c", "uid": "u1"}));
        let Decision::Apply { body, .. } = decided(false, Some(&plain)) else { panic!("not applied") };
        let mut metadata = body["metadata"].clone();
        metadata["managedFields"] = json!([{"manager": "oarlock/web/p1", "fieldsV1": {
            "f:data": {"f:a": {}},
            "f:metadata": {
                "f:labels": {"f:oarlock.dev/fields": {}}, "f:annotations": {"f:oarlock.dev/fields-p1": {}},
            },
        }}]);
        change(&mut metadata);
        object("ConfigMap", &metadata)
    }

    #[test]
    fn claims_are_read_as_they_are_written() {
        let found = object(
            "ConfigMap",
            &json!({"name": "c", "annotations": {
                "oarlock.dev/fields-u1": "web demo/w1 aa", "oarlock.dev/fields-u2": "web w2 bb",
                "oarlock.dev/fields-u3": "odd", "other": "web demo/w1 aa",
            }}),
        );
        let claim = |namespace, name, uid, content| Claim { plugin: "web", namespace, name, uid, content };
        assert_eq!(
            claims(&found).collect::<Vec<_>>(),
            [claim(Some("demo"), "w1", "u1", "aa"), claim(None, "w2", "u2", "bb")]
        );
        let parents = Gvk::new("v1", "Widget");
        let keys: Vec<_> = claims(&found).map(|claim| parent_of(&claim, &parents).to_string()).collect();
        assert_eq!(keys, ["Widget demo/w1", "Widget w2"]);
    }

    #[test]
    fn fields_are_taken_without_force_and_put_back_with_it() {
        assert!(matches!(decided(false, None), Decision::Missing(why) if why.contains("not created")));
        let going = object(
            "ConfigMap",
            &json!({"name": "c", "uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
        );
        assert!(matches!(decided(true, Some(&going)), Decision::Missing("is being deleted")));

        let plain = object("ConfigMap", &json!({"name": "c", "uid": "u1"}));
        for adopt in [false, true] {
            let Decision::Apply { body, force } = decided(adopt, Some(&plain)) else { panic!("not applied") };
            assert_eq!(force, adopt);
            let content = body["metadata"]["annotations"]["oarlock.dev/fields-p1"].as_str().unwrap();
            assert!(content.starts_with("web demo/w1 "), "{content}");
            assert_eq!(body["metadata"]["labels"], json!({"oarlock.dev/fields": "true"}));
            assert_eq!(body["metadata"]["uid"], "u1", "never another object");
            assert_eq!(body["data"], json!({"a": "1"}));
        }

        assert_eq!(decided(false, Some(&owned(|_| {}))), Decision::Nothing);
        let lost = |metadata: &mut Value| {
            metadata["managedFields"][0]["fieldsV1"]["f:data"] = json!({"f:other": {}});
        };
        let decision = decided(false, Some(&owned(lost)));
        assert!(matches!(decision, Decision::Apply { force: true, .. }), "{decision:?}");
        // What another plan had says nothing of the fields that this one adds.
        let planned_before = |metadata: &mut Value| {
            let claim = &mut metadata["annotations"]["oarlock.dev/fields-p1"];
            *claim = format!("{}0", claim.as_str().unwrap()).into();
        };
        let forgotten = |metadata: &mut Value| metadata["annotations"] = json!({});
        // Nobody owns anything: nothing has to be taken from anybody.
        let unowned = |metadata: &mut Value| metadata["managedFields"] = json!([]);
        for change in [&planned_before as &dyn Fn(&mut Value), &forgotten, &unowned] {
            let decision = decided(false, Some(&owned(change)));
            assert!(matches!(decision, Decision::Apply { force: false, .. }), "{decision:?}");
        }
        // Another parent's are not ours, whatever an annotation says.
        let of_another = |metadata: &mut Value| {
            metadata["managedFields"][0]["manager"] = json!("oarlock/web/p2");
        };
        let of_another = owned(of_another);
        assert!(matches!(decided(false, Some(&of_another)), Decision::Apply { force: false, .. }));
        assert_eq!(holders(&of_another, "web").collect::<Vec<_>>(), ["p2"]);
        assert_eq!(holders(&of_another, "other").collect::<Vec<_>>(), [""; 0]);
    }
}
