//! The same input gives the same bytes and the same fuel: in every instance, in every host, and after a restart.

use oarlock::{
    config::Limits,
    decide::guest::{Guest, engine::Engine},
    manifest::Manifest,
    plugins::{
        recording::{Recording, Replayed},
        source,
    },
};
use serde_json::{Value, json};
use std::{fs, path::Path, sync::Arc};

/// The example plugins, each with what is there when it is asked.
const PLUGINS: [(&str, &[&str]); 5] = [
    ("bundle", &["bundle/tests/fixtures/shop.yaml"]),
    ("configmap-set", &["configmap-set/tests/fixtures/app.yaml"]),
    ("namespace-quota", &["namespace-quota/tests/fixtures/namespaces.yaml"]),
    ("pod-service", &["pod-service/tests/fixtures/pods.yaml"]),
    ("website", &["website/tests/fixtures/blog.yaml"]),
];

fn component(name: &str) -> Vec<u8> {
    let guests = std::env::var_os("OARLOCK_GUESTS").expect("OARLOCK_GUESTS is set by ./dev test");
    fs::read(Path::new(&guests).join(format!("{name}.wasm")))
        .unwrap_or_else(|error| panic!("{name}: {error}; build it with ./dev guests"))
}

fn yaml(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins").join(path));
    serde_saphyr::from_multiple(&text.expect("a file")).expect("the file is YAML")
}

async fn load(engine: &Engine, bytes: &[u8]) -> (Guest, Arc<Manifest>) {
    let guest =
        Guest::load(engine, &source::digest(bytes), bytes, &Limits::STANDARD).await.expect("it loads");
    let manifest = guest.describe(&Limits::STANDARD).await.expect("it describes itself");
    (guest, Arc::new(Manifest::parse(&manifest).expect("its manifest is good")))
}

/// A call for the plugin's own example, with its fixtures there.
fn recording(plugin: &str, fixtures: &[&str], manifest: &Manifest) -> Recording {
    let mut objects: Vec<Value> = fixtures.iter().flat_map(|path| yaml(path)).collect();
    let mut all = yaml(&format!("{plugin}/example.yaml")).into_iter().chain(objects.clone());
    let mut parent = all.find(|one| one["kind"] == *manifest.parent.gvk.kind).expect("an example");
    for (number, object) in objects.iter_mut().chain([&mut parent]).enumerate() {
        object["metadata"]["uid"] = format!("u-{number}").into();
        if object["kind"] != "Namespace" && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "demo".into();
        }
    }
    let children = manifest.children.iter();
    let kinds = children.chain(manifest.reads.iter().map(|read| &read.gvk)).map(|gvk| {
        let namespaced = &*gvk.kind != "Namespace";
        json!({"apiVersion": gvk.api_version(), "kind": &*gvk.kind, "namespaced": namespaced})
    });
    let recording = json!({
        "apiVersion": "oarlock.dev/v1alpha1", "kind": "Recording", "plugin": plugin, "version": "", "digest": "",
        "now": "2026-01-01T00:00:00Z", "hostNamespace": "oarlock-system",
        "limits": {
            "memoryBytes": 64 << 20, "fuel": 2_000_000_000_u64, "deadlineMilliseconds": 60_000,
            "outputBytes": 8 << 20, "logBytes": 64 << 10, "reads": 1_000, "readBytes": 32 << 20,
        },
        "parent": parent, "kinds": kinds.collect::<Vec<_>>(), "objects": objects,
        "reads": [], "answer": null, "fuel": 0,
    });
    Recording::parse(&recording.to_string()).expect("a recording")
}

#[tokio::test]
async fn same_input_gives_the_same_answer_and_fuel_in_every_instance_host_and_after_a_restart() {
    let cache = tempfile::tempdir().expect("a folder");
    let compiler = || env!("CARGO_BIN_EXE_oarlock").into();
    let engine = |calls, cache| Engine::with(calls, cache, compiler()).expect("wasmtime runs here");
    let engines = [engine(1, None), engine(4, Some(cache.path())), engine(2, Some(cache.path()))];
    for (plugin, fixtures) in PLUGINS {
        let bytes = component(plugin);
        let mut all: Vec<Replayed> = Vec::new();
        for engine in &engines {
            let (guest, manifest) = load(engine, &bytes).await;
            let recording = recording(plugin, fixtures, &manifest);
            for _ in 0..3 {
                all.push(recording.replay(&guest, manifest.clone()).await.expect("it is replayed"));
            }
        }
        assert!(all[0].answer["plan"]["children"].is_array(), "{plugin}: {}", all[0].answer);
        assert!(all[0].fuel > 0);
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{plugin}: {all:#?}");
    }
}

#[tokio::test]
async fn recording_of_something_else_is_refused_with_what_it_is() {
    for (text, expected) in [
        ("{", "the file is no recording"),
        (r#"{"apiVersion": "v1", "kind": "Pod"}"#, "the file is Pod of v1, and a Recording"),
        (r#"{"apiVersion": "oarlock.dev/v1alpha1", "kind": "Recording"}"#, "the file is no recording"),
    ] {
        let error = Recording::parse(text).expect_err("it is none");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let engine = Engine::with(1, None, env!("CARGO_BIN_EXE_oarlock").into()).expect("wasmtime runs here");
    let (_, website) = load(&engine, &component("website")).await;
    let (guest, manifest) = load(&engine, &component("configmap-set")).await;
    let error = recording("website", &[], &website).replay(&guest, manifest).await.expect_err("other kinds");
    assert!(
        error.to_string().contains("declares ConfigMap (v1), of which the recording has nothing"),
        "{error}"
    );
}
