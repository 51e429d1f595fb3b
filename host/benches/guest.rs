//! What the sandbox costs: a metered call against the bare wasmtime call of the same component on the same engine,
//! loading from the code cache, and compiling.
//!
//! Budgets (design.md, 6): call ≤ 1.1 × bare; load ≤ 200 µs. The last lines give the ratios of this run.

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark")]

use criterion::{Criterion, criterion_group, criterion_main};
use oarlock::{
    config::Limits,
    decide::guest::{Function, Guest, engine::Engine},
    manifest::Manifest,
    object::Object,
    observe::{
        cache::{Cache, Snapshot},
        reads::{Sources, View},
    },
};
use serde_json::{Map, Value, json};
use std::{
    fs,
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

const LIMITS: Limits = Limits::STANDARD;

/// The same component without the host: the least that wasmtime asks for a metered call.
mod bare {
    use super::{LIMITS, black_box};
    use wasmtime::{
        Store, StoreLimits, StoreLimitsBuilder,
        component::{Component, HasSelf, Linker},
    };

    mod generated {
        wasmtime::component::bindgen!({ path: "../wit", world: "plugin", exports: { default: async } });
    }
    use generated::{
        Plugin, PluginPre,
        oarlock::plugin::{children, clock, cluster, log, previous, types},
    };

    pub(super) struct State(StoreLimits);

    impl types::Host for State {}
    impl cluster::Host for State {
        fn get(
            &mut self,
            _: types::ObjectKind,
            _: Option<String>,
            _: String,
        ) -> Result<Option<String>, types::ReadError> {
            Ok(None)
        }
        fn list(
            &mut self,
            _: types::ObjectKind,
            _: Option<String>,
            _: Option<String>,
        ) -> Result<Vec<String>, types::ReadError> {
            Ok(Vec::new())
        }
    }
    impl children::Host for State {
        fn list(&mut self) -> Result<Vec<children::Child>, types::ReadError> {
            Ok(Vec::new())
        }
    }
    impl previous::Host for State {
        fn status(&mut self) -> Option<String> {
            None
        }
    }
    impl clock::Host for State {
        fn now(&mut self) -> String {
            String::new()
        }
    }
    impl log::Host for State {
        fn write(&mut self, _: log::Level, _: String) {}
    }

    pub(super) struct Bare {
        engine: wasmtime::Engine,
        pre: PluginPre<State>,
    }

    impl Bare {
        pub(super) fn new(engine: &wasmtime::Engine, bytes: &[u8]) -> Self {
            let component = Component::new(engine, bytes).expect("it compiles");
            let mut linker = Linker::new(engine);
            Plugin::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state).expect("it links");
            let pre = linker.instantiate_pre(&component).and_then(PluginPre::new).expect("it is a plugin");
            Self { engine: engine.clone(), pre }
        }

        pub(super) async fn call(&self, object: &str) {
            let memory = StoreLimitsBuilder::new().memory_size(LIMITS.memory_bytes).build();
            let mut store = Store::new(&self.engine, State(memory));
            store.limiter(|state| &mut state.0);
            store.set_fuel(LIMITS.fuel).expect("fuel is on");
            store.fuel_async_yield_interval(Some(10_000_000)).expect("fuel is on");
            let plugin = self.pre.instantiate_async(&mut store).await.expect("it starts");
            black_box(plugin.call_reconcile(&mut store, object).await.expect("it answers").expect("a plan"));
        }
    }
}

struct Bench {
    runtime: Runtime,
    engine: Engine,
    bytes: Vec<u8>,
    digest: String,
    guest: Guest,
    bare: bare::Bare,
    snapshot: Snapshot,
    parent: Arc<Object>,
    manifest: Arc<Manifest>,
    _cache: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let dir = std::env::var("OARLOCK_GUESTS")
            .or_else(|_| std::env::var("OARLOCK_DEV_CACHE").map(|cache| format!("{cache}/guests/out")));
        let dir = dir.unwrap_or_else(|_| {
            format!("{}/.cache/oarlock-dev/guests/out", std::env::var("HOME").unwrap_or_default())
        });
        let bytes = fs::read(Path::new(&dir).join("widget.wasm"))
            .expect("the test guests; build them with `./dev guests`");
        let digest = oarlock::plugins::source::digest(&bytes);
        let cache = tempfile::tempdir().expect("a folder");
        let engine =
            Engine::with(2, Some(cache.path()), env!("CARGO_BIN_EXE_oarlock").into()).expect("an engine");
        let guest = runtime.block_on(Guest::load(&engine, &digest, &bytes, &LIMITS)).expect("it loads");
        let manifest = runtime.block_on(guest.describe(&LIMITS)).expect("it describes itself");
        let manifest = Arc::new(Manifest::parse(&manifest).expect("its manifest is good"));
        let bare = bare::Bare::new(engine.wasmtime(), &bytes);
        // 3.7 KB, as an ordinary custom resource has.
        let annotations: Map<String, Value> = (0..40)
            .map(|i| {
                (format!("example.com/annotation-{i}"), json!("a value of ordinary length, more or less"))
            })
            .collect();
        let object = json!({"apiVersion": "cases.example.com/v1", "kind": "Widget",
            "metadata": {"name": "w1", "namespace": "demo", "uid": "w", "resourceVersion": "1", "annotations": annotations},
            "spec": {"text": "x".repeat(500), "size": 3}});
        let parent = Arc::new(Object::decode(&manifest.parent.gvk, &object.to_string()).expect("an object"));
        let snapshot = Cache::default().snapshot();
        Self { runtime, engine, bytes, digest, guest, bare, snapshot, parent, manifest, _cache: cache }
    }

    fn call(&self) {
        let view = View::new(
            self.snapshot.clone(),
            self.parent.clone(),
            self.manifest.clone(),
            Arc::new(Sources::new("widget".into())),
            "oarlock-system".into(),
            "2026-11-29T12:00:00Z".into(),
            (LIMITS.reads, LIMITS.read_bytes),
        );
        let called = self.runtime.block_on(self.guest.call(Function::Reconcile, view, &LIMITS));
        black_box(called.unwrap_or_else(|(error, _)| panic!("{error}")));
    }

    fn call_bare(&self) {
        self.runtime.block_on(self.bare.call(&self.parent.body));
    }

    fn load(&self, engine: &Engine) {
        let loaded = self.runtime.block_on(Guest::load(engine, &self.digest, &self.bytes, &LIMITS));
        black_box(loaded.expect("it loads"));
    }
}

fn guest(criterion: &mut Criterion) {
    let bench = Bench::new();
    println!("the component has {} bytes, the object {}", bench.bytes.len(), bench.parent.body.len());
    criterion.bench_function("call/bare", |bencher| bencher.iter(|| bench.call_bare()));
    criterion.bench_function("call/host", |bencher| bencher.iter(|| bench.call()));
    criterion.bench_function("load/cached", |bencher| bencher.iter(|| bench.load(&bench.engine)));
    let uncached = Engine::with(1, None, env!("CARGO_BIN_EXE_oarlock").into()).expect("an engine");
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10).bench_function("compiled", |bencher| bencher.iter(|| bench.load(&uncached)));
    group.finish();

    let (bare, host) = interleaved(|| bench.call_bare(), || bench.call());
    println!(
        "call: host {host:?}, bare {bare:?}, ratio {:.3} (budget 1.1)",
        host.as_secs_f64() / bare.as_secs_f64()
    );
    let (load, compile) = interleaved_few(|| bench.load(&bench.engine), || bench.load(&uncached));
    println!(
        "load: cached {load:?} (budget 200µs), compiled {compile:?}, ratio {:.0}",
        compile.as_secs_f64() / load.as_secs_f64()
    );
}

/// Medians of two things measured in turn, so that what the machine does besides hits both.
fn interleaved(first: impl Fn(), second: impl Fn()) -> (Duration, Duration) {
    medians(400, 20, first, second)
}

fn interleaved_few(first: impl Fn(), second: impl Fn()) -> (Duration, Duration) {
    medians(11, 1, first, second)
}

fn medians(samples: usize, calls: u32, first: impl Fn(), second: impl Fn()) -> (Duration, Duration) {
    let time = |call: &dyn Fn()| {
        let started = Instant::now();
        for _ in 0..calls {
            call();
        }
        started.elapsed() / calls
    };
    let (mut firsts, mut seconds): (Vec<_>, Vec<_>) =
        (0..samples).map(|_| (time(&first), time(&second))).unzip();
    firsts.sort();
    seconds.sort();
    (firsts[samples / 2], seconds[samples / 2])
}

criterion_group!(benches, guest);
criterion_main!(benches);
