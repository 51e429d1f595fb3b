//! What strangers may hand to the host, each by the function that meets it first: nothing may panic, hang, or take more
//! memory than the input is worth.

use oarlock::{
    config::Limits,
    decide::{
        guest::inspect,
        plan::{Plan, RawPlan},
    },
    manifest::Manifest,
    object::{Gvk, Object, ObjectKey},
    observe::{client::Scope, reads::Sources, watch::WatchKey},
    plugins::{recording::Recording, source},
};
use serde_json::Value;

/// The bytes of a component.
pub fn component(bytes: &[u8]) {
    let _ = inspect::inspect(bytes, &Limits::STANDARD);
}

/// What `describe` returns.
pub fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(manifest) = Manifest::parse(text) {
        let _ = (
            manifest.permit(&std::sync::Arc::default()),
            manifest.sensitive_kinds(),
            manifest.brings_kinds(),
        );
    }
}

/// What `reconcile` returns: one line of JSON for the status, one for metadata, and one for each child.
pub fn plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.lines().map(str::to_owned);
    let raw = RawPlan {
        status: lines.next().filter(|line| !line.is_empty()),
        metadata: lines.next().filter(|line| !line.is_empty()),
        children: lines.collect(),
        ..RawPlan::default()
    };
    let manifest = r#"{"name": "p", "version": "1", "parent": {"apiVersion": "demo/v1", "kind": "Site"},
        "children": [{"apiVersion": "v1", "kind": "ConfigMap"}, {"apiVersion": "v1", "kind": "Secret"}]}"#;
    let manifest = Manifest::parse(manifest).expect("it is a manifest");
    let parent =
        ObjectKey { gvk: Gvk::new("demo/v1", "Site"), namespace: Some("demo".into()), name: "s".into() };
    let mut sources = Sources::new("p".into());
    for gvk in &manifest.children {
        let watch = WatchKey { gvk: gvk.clone(), scope: Scope::default() };
        sources.children.insert(gvk.clone(), (watch, true));
    }
    let _ = Plan::check(raw, &parent, &manifest, &sources, "oarlock-system", &Limits::STANDARD);
}

/// A ConfigMap that holds a component.
pub fn source(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(config_map) = Object::decode(&Gvk::new("v1", "ConfigMap"), text) {
        let _ = source::needed(&config_map);
        let itself = std::sync::Arc::new(config_map.clone());
        let _ = source::component(&config_map, |_| Some(itself.clone()), 1 << 20);
    }
}

/// The file of a recording.
pub fn recording(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(recording) = Recording::parse(text) {
        let _: Value = serde_json::to_value(&recording).unwrap_or_default();
    }
}
