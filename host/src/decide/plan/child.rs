//! One planned child, checked; and the order in which children are applied.

use super::{
    Child, Error, cut,
    options::{Options, UNSUPPORTED},
    parse, without_nulls,
};
use crate::{
    manifest::{Access, Manifest},
    object::{Gvk, ObjectKey, PREFIX},
    observe::reads::Sources,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// What the API server alone writes: no wish is behind it, as typed clients send it along with everything else.
const SERVER_WRITTEN: [&str; 6] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "selfLink",
];
/// Labels that relax what the pods of a namespace may do.
const POD_SECURITY: &str = "pod-security.kubernetes.io/";
/// Bytes of a name; no kind allows longer ones.
const MAX_NAME: usize = 253;

pub(super) fn check(
    index: usize,
    text: &str,
    parent: &ObjectKey,
    manifest: &Manifest,
    sources: &Sources,
    brought: &Brought,
    host_namespace: &str,
) -> Result<Child, Error> {
    let unreadable = |source| Error::ChildJson { index, source };
    let mut object: Map<String, Value> = parse(text, || format!("child {index}"), unreadable)?;
    object.retain(|_, member| !member.is_null());
    object.values_mut().for_each(without_nulls);

    let mut named = String::new();
    let api_version = required(index, &named, &object, "apiVersion", "apiVersion")?.to_owned();
    let kind = required(index, &named, &object, "kind", "kind")?.to_owned();
    named = format!(" ({})", cut(&kind, 64));
    let mut metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        None => Map::new(),
        Some(_) => return Err(wrong_type(index, &named, "metadata", "an object")),
    };
    if metadata.contains_key("generateName") {
        let field = "stable name: metadata.generateName gives another one at each apply; set metadata.name, for \
                     example derived from the parent's name";
        return Err(Error::ChildField { index, named, field });
    }
    let name = required(index, &named, &metadata, "name", "metadata.name")?.to_owned();
    named = format!("{} {}", named, cut(&name, 64));
    let namespace = optional(index, &named, &metadata, "namespace", "metadata.namespace")?.map(str::to_owned);
    for (field, name) in [("metadata.name", Some(&name)), ("metadata.namespace", namespace.as_ref())] {
        if name.is_some_and(|name| !is_path_segment(name)) {
            let expected = "a name: at most 253 visible ASCII characters without / % ? #, and not . or ..";
            return Err(wrong_type(index, &named, field, expected));
        }
    }

    let gvk = Gvk::new(&api_version, &kind);
    let (key, namespaced) =
        place(index, named.clone(), gvk, name, namespace, parent, manifest, sources, brought)?;
    let options = check_metadata(index, &named, &key, &mut metadata)?;
    let access = Access::Write { child: &key, namespaced, adopt: options.adopt };
    manifest
        .check(host_namespace, parent, access)
        .map_err(|source| Error::Denied { child: key.clone(), source: Box::new(source) })?;
    if key.identity() == parent.identity() {
        return Err(Error::IsParent { child: key });
    }

    match &key.namespace {
        Some(namespace) => metadata.insert("namespace".to_owned(), Value::from(&**namespace)),
        None => metadata.remove("namespace"),
    };
    object.insert("metadata".to_owned(), Value::Object(metadata));
    refuse_sensitive(&key, &object)?;
    Ok(Child { key, object, options })
}

/// Kinds whose definition is among the children themselves, by group and kind: whether each is namespaced.
pub(super) struct Brought(BTreeMap<(Arc<str>, Arc<str>), bool>);

impl Brought {
    /// Those of a plan; what is malformed there is refused when the child itself is checked.
    pub(super) fn by(children: &[String], manifest: &Manifest) -> Self {
        #[derive(Deserialize)]
        struct Definition {
            kind: String,
            spec: DefinitionSpec,
        }
        #[derive(Deserialize)]
        struct DefinitionSpec {
            group: String,
            names: DefinitionNames,
            scope: String,
        }
        #[derive(Deserialize)]
        struct DefinitionNames {
            kind: String,
        }
        if !manifest.brings_kinds() {
            return Self(BTreeMap::new());
        }
        let definitions = children.iter().filter_map(|text| serde_json::from_str::<Definition>(text).ok());
        let definitions = definitions.filter(|definition| definition.kind == "CustomResourceDefinition");
        let kinds = definitions.map(|Definition { spec, .. }| {
            ((spec.group.into(), spec.names.kind.into()), spec.scope == "Namespaced")
        });
        Self(kinds.collect())
    }
}

/// The child's key, with the parent's namespace where it gives none, and whether its kind is namespaced.
#[allow(clippy::too_many_arguments, reason = "one step of `check`, which has all of these")]
fn place(
    index: usize,
    named: String,
    gvk: Gvk,
    name: String,
    namespace: Option<String>,
    parent: &ObjectKey,
    manifest: &Manifest,
    sources: &Sources,
    brought: &Brought,
) -> Result<(ObjectKey, bool), Error> {
    let name = name.into();
    let served = sources.children.get(&gvk).map(|(_, namespaced)| *namespaced);
    let Some(namespaced) = served.or_else(|| brought.0.get(&(gvk.group.clone(), gvk.kind.clone())).copied())
    else {
        // A kind that is declared, not watched and not brought along is missing in the cluster; else it is the
        // plugin's mistake, which the authority check tells.
        if manifest.children.contains(&gvk) {
            return Err(Error::UnknownKind { gvk });
        }
        return Ok((ObjectKey { gvk, namespace: namespace.map(Into::into), name }, true));
    };
    let namespace = match (namespaced, namespace) {
        (true, Some(namespace)) => Some(namespace.into()),
        (true, None) if parent.namespace.is_none() => {
            let field = "metadata.namespace: its parent is cluster-scoped, so there is none to take over";
            return Err(Error::ChildField { index, named, field });
        }
        (true, None) => parent.namespace.clone(),
        (false, None) => None,
        (false, Some(namespace)) => {
            return Err(Error::ClusterScoped { child: ObjectKey { gvk, namespace: None, name }, namespace });
        }
    };
    Ok((ObjectKey { gvk, namespace, name }, namespaced))
}

/// Checks what is left of a child's metadata, and reads the options.
fn check_metadata(
    index: usize,
    named: &str,
    key: &ObjectKey,
    metadata: &mut Map<String, Value>,
) -> Result<Options, Error> {
    let refused = |field, reason| Err(Error::ChildMetadata { child: key.clone(), field, reason });
    for field in SERVER_WRITTEN {
        metadata.remove(field);
    }
    let is_set = |field: &str| metadata.get(field).is_some_and(|value| value.as_str() != Some(""));
    if is_set("uid") {
        return refused("metadata.uid", "the host writes, as the object it means to change");
    }
    if is_set("resourceVersion") {
        return refused("metadata.resourceVersion", "only the API server writes");
    }
    metadata.remove("uid");
    metadata.remove("resourceVersion");
    for field in ["ownerReferences", "finalizers"] {
        if metadata.get(field).is_some_and(|list| !list.is_array()) {
            return Err(wrong_type(index, named, &format!("metadata.{field}"), "a list"));
        }
    }
    let elements = |field: &str| metadata.get(field).and_then(Value::as_array).into_iter().flatten();
    if elements("ownerReferences").any(|owner| owner.get("controller") == Some(&Value::Bool(true))) {
        return refused(
            "metadata.ownerReferences with a controller",
            "is always the parent, set by the host",
        );
    }
    if elements("finalizers").filter_map(Value::as_str).any(|name| name.starts_with(PREFIX)) {
        return refused("an oarlock.dev finalizer", "only the host adds and removes");
    }
    let mut options = Options::default();
    for field in ["labels", "annotations"] {
        let Some(map) = metadata.get_mut(field) else { continue };
        let Value::Object(map) = map else {
            return Err(wrong_type(index, named, &format!("metadata.{field}"), "an object"));
        };
        if let Some((name, _)) = map.iter().find(|(_, value)| !value.is_string()) {
            let path = format!("metadata.{field}[{}]", cut(name, MAX_NAME));
            return Err(wrong_type(index, named, &path, "text; numbers and booleans need quotes"));
        }
        if field == "annotations" {
            options = Options::take(key, map)?;
        }
        let is_option = |name: &str| field == "annotations" && Options::is_one(name);
        if let Some(name) = map.keys().find(|name| name.starts_with(PREFIX) && !is_option(name)) {
            let (child, name) = (key.clone(), cut(name, MAX_NAME));
            return Err(if field == "annotations" && UNSUPPORTED.contains(&&*name) {
                Error::OptionUnsupported { child, name }
            } else {
                Error::Reserved { child, name }
            });
        }
    }
    Ok(options)
}

/// Content that gives rights over the cluster, in kinds that are allowed otherwise (rule Z4).
fn refuse_sensitive(key: &ObjectKey, object: &Map<String, Value>) -> Result<(), Error> {
    let what = match (&*key.gvk.group, &*key.gvk.kind) {
        ("", "Secret")
            if object.get("type").and_then(Value::as_str) == Some("kubernetes.io/service-account-token") =>
        {
            "the type kubernetes.io/service-account-token, which makes the API server issue a token"
                .to_owned()
        }
        ("", "Namespace") => {
            let labels =
                object.get("metadata").and_then(|metadata| metadata.get("labels")).and_then(Value::as_object);
            let labels = labels.into_iter().flat_map(|labels| labels.keys());
            return check_labels(key, labels);
        }
        _ => return Ok(()),
    };
    Err(Error::Sensitive { object: key.clone(), what })
}

/// Refuses duplicates and sorts by wave, then by rank; the guest's order stays within a rank.
pub(super) fn in_order(mut children: Vec<Child>) -> Result<Vec<Child>, Error> {
    let mut seen = HashSet::with_capacity(children.len());
    if let Some(child) = children.iter().find(|child| !seen.insert(child.key.identity())) {
        return Err(Error::Twice { child: child.key.clone() });
    }
    children.sort_by_key(|child| (child.options.wave, rank(&child.key.gvk)));
    Ok(children)
}

pub(super) fn rank(gvk: &Gvk) -> u8 {
    match (&*gvk.group, &*gvk.kind) {
        ("", "Namespace") => 0,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => 1,
        ("", "ServiceAccount") => 2,
        ("", "ConfigMap" | "Secret" | "LimitRange" | "ResourceQuota")
        | ("scheduling.k8s.io", "PriorityClass") => 3,
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage.k8s.io", _) => 4,
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => 5,
        ("rbac.authorization.k8s.io", _) => 6,
        ("apps" | "batch", _) | ("", "Pod" | "ReplicationController") => 7,
        _ => 8,
    }
}

/// Whether this can stand in the path of a request and mean nothing else there. What a kind takes for a name
/// beyond that is the API server's to say.
fn is_path_segment(name: &str) -> bool {
    name.len() <= MAX_NAME
        && !matches!(name, "." | "..")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%' | b'?' | b'#' | b'\\'))
}

fn required<'a>(
    index: usize,
    named: &str,
    object: &'a Map<String, Value>,
    member: &str,
    path: &'static str,
) -> Result<&'a str, Error> {
    optional(index, named, object, member, path)?.ok_or_else(|| Error::ChildField {
        index,
        named: named.to_owned(),
        field: path,
    })
}

/// The text of a member; empty text counts as absent.
fn optional<'a>(
    index: usize,
    named: &str,
    object: &'a Map<String, Value>,
    member: &str,
    path: &str,
) -> Result<Option<&'a str>, Error> {
    match object.get(member) {
        None => Ok(None),
        Some(Value::String(text)) => Ok((!text.is_empty()).then_some(text)),
        Some(_) => Err(wrong_type(index, named, path, "text")),
    }
}

fn wrong_type(index: usize, named: &str, field: &str, expected: &'static str) -> Error {
    Error::ChildType { index, named: named.to_owned(), field: field.to_owned(), expected }
}

/// Whether these labels may be written on an object, be it a child or the parent itself.
pub(super) fn check_labels<'a>(
    key: &ObjectKey,
    mut labels: impl Iterator<Item = &'a String>,
) -> Result<(), Error> {
    let is_namespace = (&*key.gvk.group, &*key.gvk.kind) == ("", "Namespace");
    match labels.find(|name| is_namespace && name.starts_with(POD_SECURITY)) {
        Some(label) => {
            Err(Error::Sensitive { object: key.clone(), what: format!("the label {}", cut(label, MAX_NAME)) })
        }
        None => Ok(()),
    }
}
