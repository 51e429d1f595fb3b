//! What is fuzzed: everything that reads bytes of a plugin's author before, or outside of, the sandbox.
//!
//! The targets of cargo-fuzz call these, and so does a test of the host, with the corpus and some mutations of it.
//! Each panics on what must never be; an error is fine, as long as it can be told.

use base64::Engine as _;
use oarlock::{
    config::Limits,
    decide::{
        guest::inspect,
        plan::{Plan, RawPlan},
    },
    manifest::{Access, Manifest, Permissions},
    object::{Gvk, Object, ObjectKey},
    observe::{client::Scope, reads::Sources, watch::WatchKey},
    plugins::source,
    report::chain,
};
use serde_json::Value;
use std::{error::Error, sync::Arc};

const HOST: &str = "oarlock-system";
const HOME: &str = "demo";
/// What compressed content may become: enough for the corpus, and soon exceeded.
const COMPONENT_BYTES: usize = 1 << 20;

/// A message goes into a condition, and has one line there.
fn told(error: &dyn Error) {
    let text = chain(error);
    assert!(!text.trim().is_empty(), "an error without words");
}

/// A component, before anything of it is compiled.
pub(crate) fn component(data: &[u8]) {
    match inspect::inspect(data, &Limits::STANDARD) {
        Ok(facts) => assert_eq!(facts.size, data.len()),
        Err(error) => told(&error),
    }
}

/// What `describe` returns.
pub(crate) fn manifest(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let manifest = match Manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(error) => return told(&error),
    };
    let sensitive = manifest.sensitive_kinds();
    let standard = manifest.permit(&Arc::default());
    assert_eq!(standard.is_ok(), sensitive.is_empty(), "only sensitive kinds need a permission");
    let all = Permissions { sensitive_kinds: sensitive, ..Permissions::default() };
    let manifest = manifest.permit(&Arc::new(all)).expect("what it declares is permitted");
    let none =
        Permissions { write: Some([].into()), read: Some([].into()), ..(*manifest.permissions).clone() };
    let is_modest = manifest.children.is_empty() && manifest.reads.is_empty();
    assert_eq!(manifest.permit(&Arc::new(none)).is_ok(), is_modest, "nothing is permitted");
    let parent = parent(&manifest.parent.gvk);
    for gvk in &manifest.children {
        assert!(!is_hosts(gvk), "{gvk} is the host's");
        let elsewhere = ObjectKey { gvk: gvk.clone(), namespace: Some("other".into()), name: "x".into() };
        let access = Access::Write { child: &elsewhere, namespaced: true, adopt: false };
        told(&manifest.check(HOST, &parent, access).expect_err("another namespace"));
    }
    for read in &manifest.reads {
        assert!(!is_hosts(&read.gvk), "{} is the host's", read.gvk);
        let access = Access::Read { gvk: &read.gvk, namespace: Some("elsewhere"), namespaced: true };
        told(&manifest.check(HOST, &parent, access).expect_err("another namespace"));
    }
}

fn is_hosts(gvk: &Gvk) -> bool {
    &*gvk.group == "oarlock.dev"
}

fn parent(gvk: &Gvk) -> ObjectKey {
    ObjectKey { gvk: gvk.clone(), namespace: Some(HOME.into()), name: "w".into() }
}

/// An answer: the status in the first line, labels and annotations in the second, a child in each of the others.
pub(crate) fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n').map(str::to_owned);
    let given = |line: Option<String>| line.filter(|line| !line.is_empty());
    let (status, metadata) = (given(lines.next()), given(lines.next()));
    let raw = RawPlan { status, metadata, children: lines.collect(), ..RawPlan::default() };
    let (manifest, sources) = plugin();
    let parent = parent(&manifest.parent.gvk);
    let check = |raw| Plan::check(raw, &parent, &manifest, &sources, HOST, &Limits::STANDARD);
    let plan = match check(raw) {
        Ok(plan) => plan,
        Err(error) => return told(&error),
    };
    for name in plan.labels.keys().chain(plan.annotations.keys()) {
        assert!(!name.starts_with("oarlock.dev/"), "{name} on the parent");
    }
    for child in &plan.children {
        let key = &child.key;
        assert!(manifest.children.contains(&key.gvk), "{key} is not declared");
        assert_eq!(key.namespace.as_deref(), Some(HOME), "{key} is elsewhere");
        assert_eq!(child.object["metadata"]["name"], *key.name);
        assert_eq!(child.object["metadata"]["namespace"], HOME);
        assert!(!child.options.adopt, "{key} is adopted");
        let labels = child.object["metadata"].get("labels").and_then(Value::as_object);
        let labels = labels.into_iter().flat_map(|labels| labels.keys());
        assert!(
            labels.clone().all(|name| !name.starts_with("oarlock.dev/")),
            "{key} carries a label of the host's"
        );
    }
    // What was checked once is as it is checked again.
    let children = plan.children.iter().filter(|child| !child.options.fields);
    let again = children.clone().map(|child| Value::Object(child.object.clone()).to_string());
    let again =
        check(RawPlan { children: again.collect(), ..RawPlan::default() }).expect("a checked plan is good");
    assert!(again.children.iter().eq(children), "a checked plan changes when it is checked again");
}

/// A plugin that makes ConfigMaps and Deployments.
fn plugin() -> (Manifest, Sources) {
    let text = r#"{"name": "p", "version": "1", "parent": {"apiVersion": "demo.example.com/v1", "kind": "Website"},
        "children": [{"apiVersion": "v1", "kind": "ConfigMap"}, {"apiVersion": "apps/v1", "kind": "Deployment"}]}"#;
    let manifest = Manifest::parse(text).expect("a manifest");
    let watch = |gvk: &Gvk| (gvk.clone(), (WatchKey { gvk: gvk.clone(), scope: Scope::default() }, true));
    let children = manifest.children.iter().map(watch).collect();
    (manifest, Sources { children, ..Sources::new("p".into()) })
}

/// The content of a ConfigMap: how it is named and stored in the first byte, then the content itself.
pub(crate) fn source(data: &[u8]) {
    let Some((form, content)) = data.split_first() else { return };
    let entry = ["p.wasm", "p.wasm.gz", "p.wasm.zst", "p.txt"][usize::from(form & 3)];
    let object = if form & 8 != 0 {
        let content = String::from_utf8_lossy(content);
        serde_json::json!({"metadata": {"name": "p"}, "data": {"parts.json": content}, "binaryData": {"p.wasm.0": ""}})
    } else if form & 4 == 0 {
        let content = base64::engine::general_purpose::STANDARD.encode(content);
        serde_json::json!({"metadata": {"name": "p"}, "binaryData": {entry: content}})
    } else {
        serde_json::json!({"metadata": {"name": "p"}, "data": {entry: String::from_utf8_lossy(content)}})
    };
    let object = Object::decode(&Gvk::new("v1", "ConfigMap"), &object.to_string()).expect("a ConfigMap");
    let itself = Arc::new(object.clone());
    assert!(source::needed(&object).len() <= content.len(), "more parts than bytes");
    match source::component(&object, |_| Some(itself.clone()), COMPONENT_BYTES) {
        Ok(component) => {
            assert!(component.bytes.len() <= COMPONENT_BYTES, "{} bytes", component.bytes.len());
            assert_eq!(component.digest, source::digest(&component.bytes));
        }
        Err(error) => told(&error),
    }
}
