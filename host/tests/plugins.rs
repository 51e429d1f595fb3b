//! The example plugins as components, built both ways: what `oarlock build` makes and what cargo-component makes
//! answer alike.
//!
//! The components are built by `./dev guests` and `./dev test`; without them these tests fail.

use oarlock::{
    config::Limits,
    decide::{
        guest::{Function, Guest, engine::Engine},
        plan::Plan,
    },
    manifest::Manifest,
    object::Object,
    observe::{
        cache::Cache,
        client::Scope,
        reads::{Sources, View},
        watch::WatchKey,
    },
};
use std::{fs, path::Path, sync::Arc};

/// The plan of a plugin's component for its own example, with nothing there yet.
async fn plan(component: &str, example: &str) -> Plan {
    let guests = std::env::var_os("OARLOCK_GUESTS").expect("OARLOCK_GUESTS is set by ./dev test");
    let bytes = fs::read(Path::new(&guests).join(component))
        .unwrap_or_else(|error| panic!("{component}: {error}; build it with ./dev guests"));
    let engine = Engine::with(1, None, env!("CARGO_BIN_EXE_oarlock").into()).expect("wasmtime runs here");
    let limits = Limits::STANDARD;
    let digest = oarlock::plugins::source::digest(&bytes);
    let guest = Guest::load(&engine, &digest, &bytes, &limits).await.expect("it loads");
    let manifest = guest.describe(&limits).await.expect("it describes itself");
    let manifest = Arc::new(Manifest::parse(&manifest).expect("its manifest is good"));
    let watch = |gvk: &oarlock::object::Gvk| (WatchKey { gvk: gvk.clone(), scope: Scope::default() }, true);
    let mut sources = Sources::new("plugin".into());
    sources.children = manifest.children.iter().map(|gvk| (gvk.clone(), watch(gvk))).collect();
    sources.reads = manifest.reads.iter().map(|read| (read.gvk.clone(), watch(&read.gvk))).collect();

    let example = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins").join(example));
    let mut object: serde_json::Value =
        serde_saphyr::from_str(&example.expect("an example")).expect("the example is YAML");
    object["metadata"]["namespace"] = "demo".into();
    object["metadata"]["uid"] = "u1".into();
    let parent = Object::decode(&manifest.parent.gvk, &object.to_string()).expect("the example is an object");
    let view = View::new(
        Cache::default().snapshot(),
        Arc::new(parent),
        manifest.clone(),
        Arc::new(sources.clone()),
        "oarlock-system".into(),
        "2026-01-01T00:00:00Z".into(),
        (limits.reads, limits.read_bytes),
    );
    let key = view.parent.key.clone();
    let called = guest.call(Function::Reconcile, view, &limits).await.expect("it answers");
    let (raw, _) = called.answer.expect("it has a plan");
    Plan::check(raw, &key, &manifest, &sources, "oarlock-system", &limits).expect("its plan is good")
}

async fn check(plugin: &str, children: &[&str]) {
    let example = format!("{plugin}/example.yaml");
    let ours = plan(&format!("{plugin}.wasm"), &example).await;
    let keys: Vec<_> = ours.children.iter().map(|child| child.key.to_string()).collect();
    assert_eq!(keys, children);
    let with_wasi = plan(&format!("{plugin}-wasip1.wasm"), &example).await;
    assert_eq!(ours, with_wasi);
}

#[tokio::test]
async fn website_plans_its_example_the_same_however_it_was_built() {
    check("website", &["Deployment demo/blog", "Service demo/blog"]).await;
}

#[tokio::test]
async fn configmap_set_plans_its_example_the_same_however_it_was_built() {
    check("configmap-set", &["ConfigMap demo/app-production", "ConfigMap demo/app-staging"]).await;
}

#[tokio::test]
async fn bundle_plans_its_example_the_same_however_it_was_built() {
    check("bundle", &["ConfigMap demo/shop", "Job demo/shop-003a6335", "Service demo/shop"]).await;
}
