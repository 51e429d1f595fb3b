use super::*;
use crate::{
    config::Limits,
    decide::plan::{Plan, RawPlan},
    object::{Object, ObjectKey, ResourceVersion},
    observe::{
        cache::Cache,
        client::Scope,
        reads::{Sources, View},
        watch::WatchKey,
    },
    report::chain,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const HOST: &str = "oarlock-system";
const PARENT: &str = "demo.example.com/v1";

fn parse(reads: &str) -> Result<Manifest, Error> {
    let parent = r#"{"apiVersion": "v1", "kind": "Namespace"}"#;
    Manifest::parse(&format!(r#"{{"name": "p", "version": "1", "parent": {parent}, "reads": [{reads}]}}"#))
}

/// One that reads `ConfigMap`s and `StorageClass`es, and makes these kinds.
fn manifest() -> Manifest {
    let kind = |(api_version, kind)| json!({"apiVersion": api_version, "kind": kind});
    let children = [("v1", "ConfigMap"), ("v1", "Secret"), ("v1", "Namespace"), ("apps/v1", "Deployment")];
    let reads = [("v1", "ConfigMap"), ("storage.k8s.io/v1", "StorageClass")];
    let manifest = json!({
        "name": "p", "version": "1", "parent": kind((PARENT, "Website")),
        "children": children.map(kind), "reads": reads.map(kind),
    });
    Manifest::parse(&manifest.to_string()).unwrap()
}

fn sources() -> Sources {
    let at = |api_version: &str, kind: &str, namespaced| {
        let gvk = Gvk::new(api_version, kind);
        (gvk.clone(), (WatchKey { gvk, scope: Scope::default() }, namespaced))
    };
    Sources {
        children: BTreeMap::from([
            at("v1", "ConfigMap", true),
            at("v1", "Secret", true),
            at("v1", "Namespace", false),
            at("apps/v1", "Deployment", true),
        ]),
        reads: BTreeMap::from([at("v1", "ConfigMap", true), at("storage.k8s.io/v1", "StorageClass", false)]),
        ..Sources::new("p".into())
    }
}

fn parent(namespace: Option<&str>) -> ObjectKey {
    ObjectKey { gvk: Gvk::new(PARENT, "Website"), namespace: namespace.map(Into::into), name: "w".into() }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Kinds with the namespaces that an operator gives for each; none means that there are none given.
fn kinds(kinds: &[(&str, &[&str])]) -> BTreeMap<String, Namespaces> {
    let given = |(kind, namespaces): &(&str, &[&str])| {
        ((*kind).to_owned(), Some(names(namespaces)).filter(|names| !names.is_empty()))
    };
    kinds.iter().map(given).collect()
}

fn permitted(permissions: Permissions) -> Result<Manifest, String> {
    manifest().permit(&Arc::new(permissions)).map_err(|error| error.to_string())
}

#[test]
fn kind_is_read_by_one_selection() {
    let one = r#"{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}"#;
    let other = r#"{"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": "b"}"#;
    let error = parse(&format!("{one}, {other}")).unwrap_err();
    assert!(error.to_string().starts_with("the manifest has ConfigMap (v1) twice under reads"), "{error}");
    assert!(parse(one).is_ok() && parse(other).is_ok());
}

#[test]
fn read_outside_of_the_narrowed_namespace_is_refused_not_empty() {
    let manifest = parse(r#"{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}"#).unwrap();
    let parent = ObjectKey { gvk: Gvk::new("v1", "Namespace"), namespace: None, name: "n".into() };
    let read = |namespace| {
        let gvk = &Gvk::new("v1", "ConfigMap");
        let access = Access::Read { gvk, namespace, namespaced: true };
        manifest.check("host", &parent, access).map_err(|denied| denied.to_string())
    };
    assert_eq!(read(Some("a")), Ok(()));
    for (asked, named) in [(Some("b"), "namespace b"), (None, "all namespaces")] {
        let expected = format!(
            "ConfigMap (v1) in {named} is outside of namespace a, to which the manifest narrows it under reads"
        );
        assert_eq!(read(asked), Err(expected));
    }
}

#[test]
fn manifest_that_declares_more_than_is_permitted_is_refused_with_the_remedy() {
    let all = [("ConfigMap", &[][..]), ("Secret", &[]), ("Namespace", &[]), ("Deployment.apps", &[])];
    for (permissions, expected) in [
        (Permissions::default(), Ok(())),
        (Permissions { write: Some(kinds(&all)), ..Permissions::default() }, Ok(())),
        (
            Permissions { write: Some(kinds(&all[..3])), ..Permissions::default() },
            Err(
                "the manifest asks for Deployment (apps/v1) under children, which spec.permissions.write of the \
                 Plugin leaves out: add \"kind: Deployment.apps\" there, or take it out of the manifest",
            ),
        ),
        (
            // Another group is another kind.
            Permissions {
                read: Some(kinds(&[("ConfigMap", &[]), ("StorageClass", &[])])),
                ..Permissions::default()
            },
            Err(
                "the manifest asks for StorageClass (storage.k8s.io/v1) under reads, which spec.permissions.read of \
                 the Plugin leaves out: add \"kind: StorageClass.storage.k8s.io\" there, or take it out of the manifest",
            ),
        ),
        (
            Permissions { read: Some(kinds(&[])), ..Permissions::default() },
            Err(
                "the manifest asks for ConfigMap (v1) under reads, which spec.permissions.read of the Plugin leaves \
                 out: add \"kind: ConfigMap\" there, or take it out of the manifest",
            ),
        ),
    ] {
        assert_eq!(permitted(permissions).map(drop), expected.map_err(str::to_owned));
    }
    // What a list permits is still off where it gives rights over the cluster.
    let secrets = r#"{"apiVersion": "v1", "kind": "Secret"}"#;
    let read = Permissions { read: Some(kinds(&[("Secret", &[])])), ..Permissions::default() };
    let error = parse(secrets).unwrap().permit(&Arc::new(read)).unwrap_err().to_string();
    assert!(error.contains("add \"Secret\" to spec.permissions.sensitiveKinds"), "{error}");
}

/// Each way that was thought of around the namespace of a read.
#[test]
fn reads_are_where_the_operator_or_the_parent_says() {
    let [standard, shared, both, cluster] = [
        None,
        Some(kinds(&[("ConfigMap", &["shared"]), ("StorageClass.storage.k8s.io", &[])])),
        Some(kinds(&[("ConfigMap", &[".", "shared"]), ("StorageClass.storage.k8s.io", &["shared"])])),
        Some(kinds(&[("ConfigMap", &["a", "b"]), ("StorageClass.storage.k8s.io", &[])])),
    ]
    .map(|read| permitted(Permissions { read, ..Permissions::default() }).unwrap());
    let outside = "outside of the parent's namespace demo; the operator can allow it, by the namespaces in \
                   spec.permissions.read of the Plugin";
    let gives = "outside of the namespaces that spec.permissions.read of the Plugin gives for the kind: ";
    let rows = [
        (&standard, Some("demo"), Some("demo"), ""),
        (&standard, Some("demo"), Some("shared"), outside),
        // A list of all namespaces never falls out of a namespaced parent.
        (&standard, Some("demo"), None, outside),
        (&standard, None, None, ""),
        (&standard, None, Some("any"), ""),
        (&shared, Some("demo"), Some("shared"), ""),
        (&shared, Some("demo"), Some("demo"), gives),
        (&shared, Some("demo"), Some("."), gives),
        (&shared, Some("demo"), None, gives),
        (&both, Some("demo"), Some("demo"), ""),
        (&both, Some("demo"), Some("shared"), ""),
        (&both, Some("demo"), Some("other"), "gives for the kind: the parent's, shared"),
        (&both, None, None, gives),
        (&cluster, None, Some("b"), ""),
        (&cluster, None, None, "ConfigMap (v1) in all namespaces is outside of the namespaces"),
        (&cluster, None, Some("c"), gives),
    ];
    for (manifest, own, namespace, expected) in rows {
        let gvk = &Gvk::new("v1", "ConfigMap");
        let access = Access::Read { gvk, namespace, namespaced: true };
        let told = manifest.check(HOST, &parent(own), access).map_err(|denied| denied.to_string());
        let told = told.err().unwrap_or_default();
        assert!(
            told.contains(expected) && told.is_empty() == expected.is_empty(),
            "{own:?} {namespace:?}: {told}"
        );
        // What is in no namespace is the same from everywhere.
        let gvk = &Gvk::new("storage.k8s.io/v1", "StorageClass");
        let access = Access::Read { gvk, namespace: None, namespaced: false };
        assert_eq!(manifest.check(HOST, &parent(own), access), Ok(()));
    }
}

/// Checks a plan with this child, or with these labels for the parent.
fn plan(manifest: &Manifest, sources: &Sources, parent: &ObjectKey, child: &Value) -> Result<(), String> {
    let raw = if child["apiVersion"].is_string() {
        RawPlan { children: vec![child.to_string()], ..RawPlan::default() }
    } else {
        RawPlan { metadata: Some(child.to_string()), ..RawPlan::default() }
    };
    let checked = Plan::check(raw, parent, manifest, sources, HOST, &Limits::STANDARD);
    checked.map(drop).map_err(|error| chain(&error))
}

fn object(api_version: &str, kind: &str, metadata: &Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata})
}

/// Each way that was thought of to write what is not the plugin's.
#[test]
fn writes_are_refused_whichever_way_they_are_tried() {
    for (own, child, expected) in writes_elsewhere().into_iter().chain(writes_of_what_is_not_the_plugins()) {
        let told = plan(&manifest(), &sources(), &parent(own), &child).err().unwrap_or_default();
        assert!(
            told.contains(expected) && told.is_empty() == expected.is_empty(),
            "{own:?} {child}: {told:?}"
        );
    }
}

/// The namespace of a parent; a child, or labels and annotations for the parent; what is said.
type Write = (Option<&'static str>, Value, &'static str);

fn config_map(metadata: &Value) -> Value {
    object("v1", "ConfigMap", metadata)
}

fn writes_elsewhere() -> Vec<Write> {
    let elsewhere = "ConfigMap other/x is outside of the parent's namespace demo";
    vec![
        (Some("demo"), config_map(&json!({"name": "x"})), ""),
        (Some("demo"), config_map(&json!({"name": "x", "namespace": "demo"})), ""),
        // Another namespace, as it may stand in a spec; and names that would be more than one segment of a path.
        (Some("demo"), config_map(&json!({"name": "x", "namespace": "other"})), elsewhere),
        (Some("demo"), config_map(&json!({"name": "x", "namespace": "other/"})), "must be a name"),
        (Some("demo"), config_map(&json!({"name": "../../other/configmaps/x"})), "must be a name"),
        (Some("demo"), config_map(&json!({"name": "x?fieldManager=kubectl"})), "must be a name"),
        (Some("demo"), config_map(&json!({"name": "x", "namespace": "."})), "must be a name"),
        // A cluster-scoped kind, with a namespace forced on it and without.
        (Some("demo"), object("v1", "Namespace", &json!({"name": "x"})), "cluster-scoped, its parent is in"),
        (
            Some("demo"),
            object("v1", "Namespace", &json!({"name": "x", "namespace": "demo"})),
            "its kind is cluster-scoped",
        ),
        // Kinds that the manifest does not have, in whatever writing.
        (
            Some("demo"),
            object("v1", "Pod", &json!({"name": "x"})),
            "does not declare Pod (v1) under children",
        ),
        (Some("demo"), object("v1", "configmap", &json!({"name": "x"})), "does not declare configmap (v1)"),
        (Some("demo"), object("/v1", "ConfigMap", &json!({"name": "x"})), ""),
        (Some("demo"), object("v1/v1", "ConfigMap", &json!({"name": "x"})), "does not declare"),
        (Some("demo"), object("oarlock.dev/v1alpha1", "Plugin", &json!({"name": "x"})), "does not declare"),
        // It installs itself: a plugin's ConfigMap, the host's namespace, that namespace itself.
        (
            Some("demo"),
            config_map(&json!({"name": "x", "labels": {"oarlock.dev/plugin": "true"}})),
            "carries oarlock.dev/plugin, which belongs to the host",
        ),
        (None, config_map(&json!({"name": "x", "namespace": HOST})), "in the host's namespace"),
        (Some(HOST), config_map(&json!({"name": "x"})), "in the host's namespace"),
        (
            None,
            object("v1", "Namespace", &json!({"name": HOST})),
            "Namespace oarlock-system is the host's namespace",
        ),
        (Some(HOST), json!({"labels": {"a": "b"}}), "in the host's namespace"),
        (Some("demo"), json!({"labels": {"a": "b"}}), ""),
    ]
}

fn writes_of_what_is_not_the_plugins() -> Vec<Write> {
    let mut token = object("v1", "Secret", &json!({"name": "x"}));
    token["type"] = "kubernetes.io/service-account-token".into();
    vec![
        // What is the host's to write.
        (Some("demo"), json!({"annotations": {"oarlock.dev/applied": "v1:0"}}), "belongs to the host"),
        (
            Some("demo"),
            config_map(&json!({"name": "x", "labels": {"oarlock.dev/owned-by": "other"}})),
            "oarlock.dev/owned-by, which belongs to the host",
        ),
        (
            Some("demo"),
            config_map(&json!({"name": "x", "annotations": {"oarlock.dev/applied": "v1:0"}})),
            "oarlock.dev/applied, which belongs to the host",
        ),
        (
            Some("demo"),
            config_map(&json!({"name": "x", "finalizers": ["oarlock.dev/other"]})),
            "an oarlock.dev finalizer",
        ),
        (
            Some("demo"),
            config_map(&json!({"name": "x", "ownerReferences": [{"uid": "u", "controller": true}]})),
            "ownerReferences with a controller",
        ),
        // Which object is meant, and whether it is a new one at each apply.
        (Some("demo"), config_map(&json!({"generateName": "x-"})), "metadata.generateName"),
        (Some("demo"), config_map(&json!({"name": "x", "uid": "u"})), "sets metadata.uid"),
        (
            Some("demo"),
            config_map(&json!({"name": "x", "resourceVersion": "1"})),
            "sets metadata.resourceVersion",
        ),
        // Content that gives rights.
        (Some("demo"), token, "makes the API server issue a token"),
        (
            None,
            object(
                "v1",
                "Namespace",
                &json!({"name": "x", "labels": {"pod-security.kubernetes.io/enforce": "a"}}),
            ),
            "pod-security.kubernetes.io/enforce, which plugins may not write",
        ),
        // Taking over.
        (
            Some("demo"),
            config_map(&json!({"name": "x", "annotations": {"oarlock.dev/adopt": "true"}})),
            "set spec.permissions.adopt of the Plugin to true, or leave the annotation out",
        ),
        (Some("demo"), config_map(&json!({"name": "x", "annotations": {"oarlock.dev/adopt": "false"}})), ""),
    ]
}

#[test]
fn writes_are_where_the_operator_and_the_parent_say() {
    let write = kinds(&[
        ("ConfigMap", &["team-a", "team-b"]),
        ("Secret", &["."]),
        ("Namespace", &[]),
        ("Deployment.apps", &[]),
    ]);
    let write = Some(write);
    let manifest = permitted(Permissions { write, adopt: true, ..Permissions::default() }).unwrap();
    let gives = "outside of the namespaces that spec.permissions.write of the Plugin gives for the kind: ";
    for (own, kind, namespace, expected) in [
        (Some("team-a"), "ConfigMap", "team-a", ""),
        // Each alone would allow it.
        (Some("team-a"), "ConfigMap", "team-b", "outside of the parent's namespace team-a"),
        (Some("team-c"), "ConfigMap", "team-c", gives),
        (Some("team-c"), "Secret", "team-c", ""),
        (None, "ConfigMap", "team-b", ""),
        (None, "ConfigMap", "team-c", gives),
        (None, "Secret", "team-a", gives),
    ] {
        let child = object("v1", kind, &json!({"name": "x", "namespace": namespace}));
        let told = plan(&manifest, &sources(), &parent(own), &child).err().unwrap_or_default();
        assert!(
            told.contains(expected) && told.is_empty() == expected.is_empty(),
            "{own:?} {child}: {told:?}"
        );
    }
    let adopting = json!({"name": "x", "annotations": {"oarlock.dev/adopt": "true"}});
    let adopting = object("v1", "ConfigMap", &adopting);
    assert_eq!(plan(&manifest, &sources(), &parent(Some("team-a")), &adopting), Ok(()));
}

#[test]
fn kind_whose_scope_has_changed_is_checked_as_it_is_now() {
    let key = Gvk::new("v1", "ConfigMap");
    let mut sources = sources();
    let child = object("v1", "ConfigMap", &json!({"name": "x"}));
    assert_eq!(plan(&manifest(), &sources, &parent(Some("demo")), &child), Ok(()));
    if let Some((_, namespaced)) = sources.children.get_mut(&key) {
        *namespaced = false;
    }
    let told = plan(&manifest(), &sources, &parent(Some("demo")), &child).unwrap_err();
    assert!(told.contains("cluster-scoped, its parent is in namespace demo"), "{told}");
}

type IsKept = fn(&mut View) -> bool;

/// What a guest can ask the host for, each with what keeps it to what it may.
#[test]
fn every_import_of_the_contract_has_a_check() {
    let mut resolve = wit_parser::Resolve::default();
    let (package, _) = resolve.push_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../wit")).unwrap();
    let world = resolve.select_world(&[package], Some("plugin")).unwrap();
    let imports = resolve.worlds[world].imports.iter().flat_map(|(name, item)| match item {
        wit_parser::WorldItem::Interface { id, .. } => {
            let interface = &resolve.interfaces[*id];
            let of = interface.name.clone().unwrap_or_default();
            interface.functions.keys().map(|function| format!("{of}.{function}")).collect()
        }
        wit_parser::WorldItem::Function(_) => vec![resolve.name_world_key(name)],
        wit_parser::WorldItem::Type { .. } => Vec::new(),
    });
    let imports: BTreeSet<String> = imports.collect();
    let checked: [(&str, IsKept); 6] = [
        // Of what it names, each is asked for a kind that is declared and not permitted there, and for another.
        ("cluster.get", |view| {
            let [config_map, pod] = [Gvk::new("v1", "ConfigMap"), Gvk::new("v1", "Pod")];
            view.get(&config_map, Some("other"), "x").is_err() && view.get(&pod, None, "x").is_err()
        }),
        ("cluster.list", |view| {
            let [config_map, pod] = [Gvk::new("v1", "ConfigMap"), Gvk::new("v1", "Pod")];
            view.list(&config_map, Some("other"), None).is_err() && view.list(&pod, None, None).is_err()
        }),
        // These name nothing: the answers are about the parent, its own children, the time, and nobody.
        ("children.list", |view| view.children().is_ok_and(|children| children.is_empty())),
        ("previous.status", |view| view.previous_status().is_none()),
        ("clock.now", |view| &*view.now() == "2026-01-01T00:00:00Z"),
        ("log.write", |_| true),
    ];
    let known: BTreeSet<String> = checked.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(imports, known, "an import of wit/plugin.wit needs a check, and a row here that shows it");
    for (name, is_kept) in checked {
        assert!(is_kept(&mut view()), "{name} answers what it may not");
    }
}

/// Of a parent in `demo`, with somebody else's objects around it.
fn view() -> View {
    let cache = Cache::default();
    let theirs = json!({"metadata": {"name": "x", "namespace": "other", "uid": "x", "resourceVersion": "2",
        "labels": {"oarlock.dev/owned-by": "p", "oarlock.dev/parent": "somebody"}}});
    let sources = sources();
    for (watch, _) in sources.children.values().chain(sources.reads.values()) {
        let is_config_map = &*watch.gvk.kind == "ConfigMap";
        let objects = is_config_map.then(|| Object::decode(&watch.gvk, &theirs.to_string()).unwrap());
        cache.replace(watch, objects.into_iter().collect(), &ResourceVersion::new("2"));
    }
    let parent = json!({"metadata": {"name": "w", "namespace": "demo", "uid": "w", "resourceVersion": "2"}});
    View::new(
        cache.snapshot(),
        Arc::new(Object::decode(&Gvk::new(PARENT, "Website"), &parent.to_string()).unwrap()),
        Arc::new(manifest()),
        Arc::new(sources),
        HOST.into(),
        "2026-01-01T00:00:00Z".into(),
        (100, 100_000),
    )
}
