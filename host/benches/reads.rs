//! What a change costs that concerns few or none of many parents, and what a plan costs that is still valid.
//!
//! Budgets (design.md, 6): a change that touches no recorded read ≤ 2 µs; a memo hit ≤ 5 µs.

#![allow(missing_docs, reason = "a benchmark")]

use criterion::{Criterion, criterion_group, criterion_main};
use oarlock::{
    manifest::{Manifest, Selection},
    object::{ContentHash, Gvk, Object, ObjectKey, ResourceVersion, Selector},
    observe::{
        cache::{Cache, Change},
        client::Scope,
        reads::{Check, Memo, Memos, ParentRef, Planned, Read, Sources, View},
        watch::WatchKey,
    },
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    hint::black_box,
    sync::Arc,
    time::Instant,
};

const PARENTS: usize = 10_000;

fn watch(gvk: Gvk, label_selector: Option<&str>) -> WatchKey {
    WatchKey { gvk, scope: Scope { namespace: None, label_selector: label_selector.map(Into::into) } }
}

fn object(gvk: &Gvk, name: &str, labels: &serde_json::Value, replicas: u32) -> Object {
    let text = json!({
        "metadata": {
            "name": name, "namespace": "demo", "uid": name, "generation": 1, "resourceVersion": "1", "labels": labels,
            "ownerReferences": [
                {"apiVersion": "demo.example.com/v1", "kind": "Website", "name": "w0", "uid": "w0", "controller": true}
            ],
        },
        "spec": {"replicas": replicas, "filler": "x".repeat(3_000)},
        "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas},
    });
    Object::decode(gvk, &text.to_string()).expect("valid")
}

fn parent(index: usize) -> ParentRef {
    let gvk = Gvk::new("demo.example.com/v1", "Website");
    let parent = ObjectKey { gvk, namespace: Some("demo".into()), name: format!("w{index}").into() };
    ParentRef { plugin: "website".into(), parent }
}

/// Every parent reads one ConfigMap by name and lists Pods by a label of its own.
fn index() -> (Memos, WatchKey, WatchKey) {
    let (config_maps, pods) = (watch(Gvk::new("v1", "ConfigMap"), None), watch(Gvk::new("v1", "Pod"), None));
    let memos = Memos::default();
    for i in 0..PARENTS {
        let get = Read::Get {
            watch: config_maps.clone(),
            namespace: Some("demo".into()),
            name: format!("settings-{i}").into(),
        };
        let selector = Some(Selector::parse(&format!("app=w{i}")).expect("valid"));
        let list = Read::List { watch: pods.clone(), namespace: Some("demo".into()), selector };
        let memo = Memo {
            digest: "d".into(),
            parent: ("uid".into(), ContentHash::default()),
            reads: [get, list].map(|read| (read, ContentHash::default())).into(),
            answer: Ok(Planned::default()),
            called: Instant::now(),
        };
        let _ = memos.record(&parent(i), memo);
    }
    (memos, config_maps, pods)
}

fn affected(criterion: &mut Criterion) {
    let (memos, config_maps, pods) = index();
    let change = |watch: &WatchKey, name: &str, app: &str| Change {
        watch: watch.clone(),
        before: Some(Arc::new(object(&watch.gvk, name, &json!({"app": app, "tier": "web"}), 1))),
        after: Some(Arc::new(object(&watch.gvk, name, &json!({"app": app, "tier": "web"}), 2))),
        is_own: false,
        is_first_seen: false,
    };
    for (name, change, readers) in [
        ("change of a kind that nobody reads", change(&watch(Gvk::new("v1", "Secret"), None), "s", "a"), 0),
        ("change of an object that nobody reads", change(&config_maps, "other", "a"), 0),
        ("change of an object that nobody lists", change(&pods, "pod", "other"), 0),
        ("change of an object that one parent reads", change(&config_maps, "settings-77", "a"), 1),
        ("change of an object that one parent lists", change(&pods, "pod", "w77"), 1),
    ] {
        assert_eq!(memos.affected(&change).len(), readers, "{name}");
        criterion.bench_function(name, |bencher| bencher.iter(|| memos.affected(black_box(&change))));
    }
}

fn valid(criterion: &mut Criterion) {
    let cache = Cache::default();
    let config_maps = watch(Gvk::new("v1", "ConfigMap"), None);
    let children = watch(Gvk::new("apps/v1", "Deployment"), Some("oarlock.dev/owned-by"));
    let labels = json!({"oarlock.dev/owned-by": "website", "oarlock.dev/parent": "w0"});
    let version = ResourceVersion::new("1");
    let deployments = ["a", "b"].map(|name| object(&children.gvk, name, &labels, 1));
    cache.replace(&children, deployments.into(), &version);
    let settings = ["s1", "s2", "s3"].map(|name| object(&config_maps.gvk, name, &json!({"app": "w0"}), 1));
    cache.replace(&config_maps, settings.into(), &version);
    let json = r#"{"name": "w", "version": "1", "parent": {"apiVersion": "demo.example.com/v1", "kind": "Website"}}"#;
    let manifest = Arc::new(Manifest {
        children: BTreeSet::from([children.gvk.clone()]),
        reads: vec![Selection { gvk: config_maps.gvk.clone(), label_selector: None, namespace: None }],
        ..Manifest::parse(json).expect("valid")
    });
    let sources = Arc::new(Sources {
        fields: BTreeMap::new(),
        plugin: "website".into(),
        children: BTreeMap::from([(children.gvk.clone(), (children, true))]),
        reads: BTreeMap::from([(config_maps.gvk.clone(), (config_maps.clone(), true))]),
    });
    let website = Arc::new(object(&parent(0).parent.gvk, "w0", &json!({}), 1));
    let (host, now) = ("oarlock-system".into(), "2026-01-01T00:00:00Z".into());
    let view = || {
        let (manifest, sources) = (Arc::clone(&manifest), Arc::clone(&sources));
        let (host, now) = (Arc::clone(&host), Arc::clone(&now));
        View::new(cache.snapshot(), Arc::clone(&website), manifest, sources, host, now, (100, 1 << 20))
    };
    let memos = Memos::default();
    let mut first = view();
    first.get(&config_maps.gvk, None, "s1").expect("allowed");
    first.list(&config_maps.gvk, None, Some("app=w0")).expect("allowed");
    first.children().expect("allowed");
    let memo = Memo {
        digest: "d".into(),
        parent: (Arc::clone(&website.uid), website.body_hash),
        reads: first.into_recorded().into(),
        answer: Ok(Planned::default()),
        called: Instant::now(),
    };
    let _ = memos.record(&parent(0), memo);
    criterion.bench_function("memo hit: one get, a list of three, two children", |bencher| {
        bencher.iter(|| matches!(memos.check(black_box(&parent(0)), "d", &view()), Check::Valid(..)));
    });
}

criterion_group!(benches, affected, valid);
criterion_main!(benches);
