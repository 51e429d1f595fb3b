//! The sandbox with real components: every limit has a hostile guest, every fault at loading its file.
//!
//! The components are built by `./dev guests` from tests/guests/; without them these tests fail.

use oarlock::{
    config::Limits,
    decide::guest::{CallError, Called, Function, Growth, Guest, LoadError, Trace, compile, engine::Engine},
    manifest::Manifest,
    object::{Gvk, LABEL_OWNED_BY, Object, ResourceVersion},
    observe::{
        cache::Cache,
        client::Scope,
        reads::{Read, Sources, View},
        watch::WatchKey,
    },
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

const OARLOCK: &str = env!("CARGO_BIN_EXE_oarlock");

/// Compiled code is shared by the tests of one run, except where it is what is tested.
static ENGINE: LazyLock<(Engine, tempfile::TempDir)> = LazyLock::new(|| {
    let cache = tempfile::tempdir().expect("a folder for compiled code");
    (Engine::with(4, Some(cache.path()), OARLOCK.into()).expect("wasmtime runs here"), cache)
});

fn engine() -> &'static Engine {
    &ENGINE.0
}

fn component(name: &str) -> Vec<u8> {
    let cache = |variable: &str, rest: &str| std::env::var_os(variable).map(|dir| Path::new(&dir).join(rest));
    let dir = cache("OARLOCK_GUESTS", "")
        .or_else(|| cache("OARLOCK_DEV_CACHE", "guests/out"))
        .or_else(|| cache("HOME", ".cache/oarlock-dev/guests/out"))
        .unwrap_or_default();
    let path = dir.join(format!("{name}.wasm"));
    fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "cannot read the test guest {} ({error}); build the test guests with `./dev guests`",
            path.display()
        )
    })
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes everything");
        hex
    })
}

async fn try_load(engine: &Engine, bytes: &[u8], limits: &Limits) -> Result<Guest, LoadError> {
    Guest::load(engine, &digest(bytes), bytes, limits).await
}

async fn guest(name: &str) -> Guest {
    let loaded = try_load(engine(), &component(name), &LIMITS).await;
    loaded.unwrap_or_else(|error| panic!("{name} does not load: {error}"))
}

/// A ConfigMap to read, a child, and a Widget with this spec.
async fn view(guest: &Guest, spec: &Value, limits: &Limits) -> View {
    let manifest = guest.describe(&LIMITS).await.expect("it describes itself");
    let manifest = Arc::new(Manifest::parse(&manifest).expect("its manifest is good"));
    let cache = Cache::default();
    let config_map = Gvk::new("v1", "ConfigMap");
    let ours = Scope { namespace: None, label_selector: Some(LABEL_OWNED_BY.to_owned()) };
    let read = WatchKey { gvk: config_map.clone(), scope: Scope::default() };
    let child = WatchKey { gvk: config_map.clone(), scope: ours };
    let object = |json: Value| Object::decode(&config_map, &json.to_string()).expect("an object");
    let settings = json!({"metadata": {"name": "settings", "namespace": "demo", "uid": "s", "resourceVersion": "2",
        "labels": {"app": "w"}}, "data": {"color": "blue"}});
    let written = json!({"metadata": {"name": "w1-cm", "namespace": "demo", "uid": "c", "resourceVersion": "2",
        "labels": {"oarlock.dev/owned-by": "widget", "oarlock.dev/parent": "w"},
        "ownerReferences": [{"apiVersion": "cases.example.com/v1", "kind": "Widget", "name": "w1", "uid": "w", "controller": true}]}});
    cache.replace(&read, vec![object(settings)], &ResourceVersion::new("2"));
    cache.replace(&child, vec![object(written)], &ResourceVersion::new("2"));
    let sources = Sources {
        children: [(config_map.clone(), (child, true))].into(),
        reads: [(config_map, (read, true))].into(),
        ..Sources::new("widget".into())
    };
    let parent = json!({"metadata": {"name": "w1", "namespace": "demo", "uid": "w", "resourceVersion": "2", "generation": 1},
        "spec": spec, "status": {"note": "41"}});
    let parent = Object::decode(&manifest.parent.gvk, &parent.to_string()).expect("a widget");
    View::new(
        cache.snapshot(),
        Arc::new(parent),
        manifest,
        Arc::new(sources),
        "oarlock-system".into(),
        "2026-11-29T12:00:00Z".into(),
        (limits.reads, limits.read_bytes),
    )
}

async fn call_within(name: &str, spec: Value, limits: &Limits) -> Result<Called, (CallError, Trace)> {
    let guest = guest(name).await;
    let view = view(&guest, &spec, limits).await;
    guest.call(Function::Reconcile, view, limits).await
}

async fn call(spec: Value) -> Called {
    match call_within("widget", spec, &LIMITS).await {
        Ok(called) => called,
        Err((error, trace)) => panic!("{error}\n{trace:?}"),
    }
}

async fn fault(mode: &str, limits: &Limits) -> (CallError, Trace) {
    call_within("widget", json!({"mode": mode}), limits).await.expect_err("this guest fails")
}

/// What applies where a limit is not what is tested. Wall time is, apart: elsewhere a busy machine must not matter.
const LIMITS: Limits = Limits { deadline: Duration::from_mins(2), ..Limits::STANDARD };

/// Enough for every well-behaved mode, and soon used up by the others.
const TIGHT: Limits = Limits { fuel: 100_000_000, ..LIMITS };

#[tokio::test]
async fn guest_answers_with_its_plan() {
    let called = call(json!({"text": "hello"})).await;
    let (plan, done) = called.answer.expect("a plan");
    let child: Value = serde_json::from_str(&plan.children[0]).expect("JSON");
    assert_eq!((plan.children.len(), &child["data"]["text"], done), (1, &json!("hello"), false));
    assert_eq!(plan.conditions[0].r#type, "Synced");
    assert!(called.trace.fuel > 10_000 && called.trace.fuel < 5_000_000, "{:?}", called.trace);
    assert_eq!(called.trace.reads, []);
}

#[tokio::test]
async fn guest_answers_with_its_failure() {
    for (mode, transient, reason) in [("transient", true, "Flaky"), ("permanent", false, "Broken")] {
        let failure = call(json!({"mode": mode})).await.answer.expect_err("a failure");
        assert_eq!((failure.transient, &*failure.reason), (transient, reason));
    }
}

#[tokio::test]
async fn guest_is_done_when_its_finalizer_says_so() {
    let guest = guest("widget-finalizes").await;
    for (finalize, expected, children) in [("done", true, 0), ("wait", false, 1)] {
        let view = view(&guest, &json!({"finalize": finalize}), &LIMITS).await;
        let called = guest.call(Function::Finalize, view, &LIMITS).await.expect("an answer");
        let (plan, done) = called.answer.expect("a teardown");
        assert_eq!((done, plan.children.len()), (expected, children), "{finalize}");
    }
}

#[tokio::test]
async fn reads_are_answered_and_recorded() {
    let read = call(json!({"mode": "reads", "read": "settings", "selector": "app=w"})).await;
    let (plan, _) = read.answer.expect("a plan");
    let child: Value = serde_json::from_str(&plan.children[0]).expect("JSON");
    assert_eq!(child["data"], json!({"color": "blue", "names": "settings"}));
    let reads: Vec<_> = read.trace.reads.iter().map(|(read, _)| read).collect();
    assert!(matches!(reads[..], [Read::Get { .. }, Read::List { .. }]), "{reads:?}");

    let cases = [
        ("previous", "42", Read::PreviousStatus),
        ("children", "ConfigMap w1-cm is ready", Read::Children),
        ("clock", "2026-11-29T12:00:00Z", Read::Clock),
    ];
    for (mode, note, expected) in cases {
        let called = call(json!({"mode": mode})).await;
        let status: Value =
            serde_json::from_str(&called.answer.expect("a plan").0.status.expect("a status")).expect("JSON");
        assert_eq!(status["note"], note);
        let reads: Vec<_> = called.trace.reads.iter().map(|(read, _)| read).collect();
        assert_eq!(reads, [&expected]);
    }
}

#[tokio::test]
async fn reads_are_refused_with_the_reason() {
    let cases = [
        ("read-undeclared", "does not declare Secret (v1) under reads"),
        ("read-elsewhere", "outside of the parent's namespace demo"),
        ("bad-selector", "selector"),
    ];
    for (mode, expected) in cases {
        let failure = call(json!({"mode": mode})).await.answer.expect_err("a failure");
        assert!(failure.message.contains(expected), "{mode}: {}", failure.message);
    }
}

#[tokio::test]
async fn reads_are_limited() {
    let limits = Limits { reads: 100, ..LIMITS };
    let called = call_within("widget", json!({"mode": "many-reads"}), &limits).await.expect("an answer");
    let failure = called.answer.expect_err("a failure");
    assert!(
        failure.message.contains("come to 101 different reads, at most 100 are allowed"),
        "{}",
        failure.message
    );
    assert_eq!(called.trace.reads.len(), 100);
}

#[tokio::test]
async fn logs_are_kept_up_to_the_limit() {
    let called = call(json!({"mode": "logs", "text": "hi"})).await;
    let lines: Vec<_> = called.trace.logs.iter().map(|line| (line.level, &*line.message)).collect();
    assert_eq!(
        lines,
        [(tracing::Level::INFO, r#"the text is "hi""#), (tracing::Level::WARN, "and that is all")]
    );

    let many = call(json!({"mode": "many-logs"})).await;
    let bytes: usize = many.trace.logs.iter().map(|line| line.message.len()).sum();
    assert!(bytes <= LIMITS.log_bytes && bytes > LIMITS.log_bytes / 2, "{bytes}");
    let few = Limits { log_lines: 10, ..LIMITS };
    let few = call_within("widget", json!({"mode": "many-logs"}), &few).await.expect("an answer");
    assert_eq!(few.trace.logs.len(), 10);
    assert!(many.trace.logs_dropped > 5_000_000, "{}", many.trace.logs_dropped);
}

#[tokio::test]
async fn a_panic_is_told_with_its_text() {
    let (error, _) = fault("panic", &LIMITS).await;
    let CallError::Trapped { said, trace } = error else { panic!("{error:?}") };
    assert!(said.starts_with("panicked at ") && said.ends_with(": size must be >= 1, got 0"), "{said}");
    assert!(trace.contains("unreachable"), "{trace}");
}

#[tokio::test]
async fn an_endless_loop_runs_out_of_fuel() {
    let (error, trace) = fault("loop", &TIGHT).await;
    assert!(matches!(error, CallError::Fuel { limit } if limit == TIGHT.fuel), "{error:?}");
    assert_eq!(trace.fuel, TIGHT.fuel);
}

#[tokio::test]
async fn a_slow_guest_ends_at_its_deadline() {
    let limits = Limits { fuel: u64::MAX / 4, deadline: Duration::from_millis(300), ..LIMITS };
    let started = Instant::now();
    let (error, trace) = fault("loop", &limits).await;
    assert!(matches!(error, CallError::Deadline { limit } if limit == limits.deadline), "{error:?}");
    assert!(
        trace.duration >= limits.deadline && started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_slow_guest_lets_others_run() {
    // One thread: without yielding, the loop would hold it for as long as its fuel lasts.
    let slow = guest("widget").await;
    let limits = Limits { deadline: Duration::from_secs(5), fuel: u64::MAX / 4, ..LIMITS };
    let hostile = view(&slow, &json!({"mode": "loop"}), &limits).await;
    let friendly = view(&slow, &json!({}), &limits).await;
    let (ended, answered) = tokio::join!(
        async { (slow.call(Function::Reconcile, hostile, &limits).await, Instant::now()) },
        async { (slow.call(Function::Reconcile, friendly, &limits).await, Instant::now()) },
    );
    assert!(matches!(ended.0, Err((CallError::Deadline { .. }, _))));
    assert!(answered.0.is_ok() && answered.1 < ended.1);
}

#[tokio::test]
async fn refused_memory_explains_what_follows() {
    for mode in ["grow", "grow-spin"] {
        let (error, _) = fault(mode, &TIGHT).await;
        assert!(
            matches!(error, CallError::Memory(Growth { asked, limit, .. }) if limit == TIGHT.memory_bytes && asked > limit),
            "{mode}: {error:?}"
        );
    }
    let small = Limits { memory_bytes: 64 << 10, ..TIGHT };
    let (error, _) = fault("normal", &small).await;
    assert!(matches!(error, CallError::Memory(_)), "{error:?}");
}

#[tokio::test]
async fn endless_recursion_is_a_trap() {
    let (error, _) = fault("recurse", &LIMITS).await;
    let CallError::Trapped { said, .. } = error else { panic!("{error:?}") };
    assert_eq!(said, "call stack exhausted");
    let (error, _) = fault("recurse-data", &LIMITS).await;
    assert!(matches!(error, CallError::Trapped { .. }), "{error:?}");
}

#[tokio::test]
async fn a_large_answer_is_refused_before_it_is_copied() {
    let limits = Limits { memory_bytes: 256 << 20, ..Limits::STANDARD };
    for mode in ["big-output", "many-children"] {
        let (error, _) = fault(mode, &limits).await;
        assert!(
            matches!(error, CallError::Output { limit } if limit == limits.output_bytes),
            "{mode}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_guest_is_whole_again_after_each_fault() {
    for mode in ["panic", "loop", "grow", "recurse", "normal"] {
        let _ = call_within("widget", json!({"mode": mode}), &TIGHT).await;
        assert!(call(json!({})).await.answer.is_ok(), "after {mode}");
    }
}

#[tokio::test]
async fn more_calls_than_the_pool_holds_wait() {
    let guest = guest("widget").await;
    let mut calls = Vec::new();
    for _ in 0..64 {
        let (guest, view) = (guest.clone(), view(&guest, &json!({}), &LIMITS).await);
        calls.push(tokio::spawn(async move { guest.call(Function::Reconcile, view, &LIMITS).await.is_ok() }));
    }
    for call in calls {
        assert!(call.await.expect("no panic"));
    }
}

#[tokio::test]
async fn the_same_moment_gives_the_same_plan_and_fuel() {
    for spec in
        [json!({"text": "x"}), json!({"mode": "reads", "read": "settings"}), json!({"mode": "children"})]
    {
        let (first, second) = (call(spec.clone()).await, call(spec).await);
        assert_eq!(first.answer, second.answer);
        assert_eq!((first.trace.fuel, first.trace.reads), (second.trace.fuel, second.trace.reads));
    }
}

#[tokio::test]
async fn describe_is_within_limits_too() {
    let error = guest("describe-panics").await.describe(&TIGHT).await.expect_err("it panics");
    assert!(
        matches!(&error, CallError::Trapped { said, .. } if said.contains("no manifest today")),
        "{error:?}"
    );
    let error = guest("describe-loops").await.describe(&TIGHT).await.expect_err("it loops");
    assert!(matches!(error, CallError::Fuel { .. }), "{error:?}");
    let manifest = guest("bad-manifest").await.describe(&TIGHT).await.expect("text");
    Manifest::parse(&manifest).expect_err("an unknown field");
}

#[tokio::test]
async fn describe_says_the_same_however_often_it_is_asked() {
    let counts = guest("describe-counts").await;
    let first = counts.describe(&LIMITS).await.expect("a manifest");
    assert!(first.contains("Widget"), "{first}");
    for _ in 0..3 {
        assert_eq!(counts.describe(&LIMITS).await.expect("a manifest"), first);
    }
}

#[tokio::test]
async fn faults_below_any_language_are_told() {
    for (name, expected) in [
        ("divides-by-zero", "the guest trapped: integer divide by zero"),
        ("bad-utf8", "the guest trapped: invalid utf-8"),
        ("table-grows", "the guest asked for 100001 elements of a table, a call may have 100000"),
    ] {
        let (error, _) = call_within(name, json!({}), &LIMITS).await.expect_err(name);
        assert!(error.to_string().starts_with(expected), "{name}: {error}");
    }
    for (name, expected) in [
        ("start-loops", "the guest used all of its 100000000 units of fuel"),
        ("huge-memory", "the guest asked for 1073741824 bytes of memory, a call may have 67108864"),
    ] {
        let error = guest(name).await.describe(&TIGHT).await.expect_err(name);
        assert_eq!(error.to_string(), expected, "{name}");
    }
}

#[tokio::test]
async fn files_that_are_no_plugin_are_refused_with_what_to_do() {
    let whole = component("widget");
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("text", b"hello".to_vec(), "is text"),
        ("half", whole[..whole.len() / 2].to_vec(), "cut off"),
        ("no-exports", component("no-exports"), "does not export describe, reconcile, finalize"),
        (
            "old-contract",
            component("old-contract"),
            "is built for oarlock:plugin@0.0.9, this host speaks oarlock:plugin@0.1.0",
        ),
    ];
    for (name, bytes, expected) in cases {
        let error = try_load(engine(), &bytes, &LIMITS).await.map(drop).expect_err(name);
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
}

/// A plugin that cargo-component built: ten WASI interfaces.
mod wasi {
    use super::*;

    #[tokio::test]
    async fn guest_with_wasi_answers_like_one_without() {
        let plain = call(json!({"text": "x"})).await;
        let wasi = call_within("widget-wasip1", json!({"text": "x"}), &LIMITS).await.expect("an answer");
        assert_eq!(plain.answer, wasi.answer);
        assert_eq!(wasi.trace.reads, []);
    }

    #[tokio::test]
    async fn last_lines_of_stderr_reach_the_user() {
        let spec = json!({"mode": "stderr"});
        let (error, trace) = call_within("widget-wasip1", spec, &LIMITS).await.expect_err("it aborts");
        assert!(
            matches!(&error, CallError::Trapped { said, .. } if said == "the last words of a guest"),
            "{error:?}"
        );
        assert!(trace.logs.iter().any(|line| line.message == "the last words of a guest"), "{trace:?}");
    }

    #[tokio::test]
    async fn nothing_outside_is_reached_and_nothing_differs_between_calls() {
        let note = async || {
            let called =
                call_within("widget-wasip1", json!({"mode": "wasi"}), &LIMITS).await.expect("an answer");
            let status = called.answer.expect("a plan").0.status.expect("a status");
            let status: Value = serde_json::from_str(&status).expect("JSON");
            (status["note"].as_str().expect("text").to_owned(), called.trace.reads)
        };
        let (first, second) = (note().await, note().await);
        assert_eq!(first, second);
        let (note, reads) = first;
        let sealed = "files [false, false] network false surroundings 0 random ";
        assert!(note.starts_with(sealed) && note.ends_with(" time 1795953600 passed 0"), "{note}");
        assert!(matches!(reads[..], [(Read::Clock, _)]), "the time is a read: {reads:?}");
    }

    #[tokio::test]
    async fn limits_hold_with_wasi_too() {
        for mode in ["loop", "panic", "grow"] {
            call_within("widget-wasip1", json!({"mode": mode}), &TIGHT).await.expect_err(mode);
        }
    }

    #[tokio::test]
    async fn the_same_moment_gives_the_same_plan_and_fuel() {
        let run = || call_within("widget-wasip1", json!({"text": "x"}), &LIMITS);
        let (first, second) = (run().await.expect("an answer"), run().await.expect("an answer"));
        assert_eq!((first.answer, first.trace.fuel), (second.answer, second.trace.fuel));
    }
}

/// Compiled code on disk.
mod code {
    use super::*;

    fn files(dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir.join("code")).expect("the folder of compiled code");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    /// A compiler that always fails: what loads did not compile.
    const BROKEN: &str = "/bin/false";

    #[tokio::test]
    async fn restart_compiles_nothing() {
        let (cache, bytes) = (tempfile::tempdir().expect("a folder"), component("widget"));
        let first = Engine::with(1, Some(cache.path()), OARLOCK.into()).expect("an engine");
        try_load(&first, &bytes, &LIMITS).await.expect("compiles");
        let second = Engine::with(1, Some(cache.path()), BROKEN.into()).expect("an engine");
        let guest = try_load(&second, &bytes, &LIMITS).await.expect("loads");
        guest.describe(&LIMITS).await.expect("works");
    }

    #[tokio::test]
    async fn defect_file_is_compiled_again() {
        let cache = tempfile::tempdir().expect("a folder");
        let engine = Engine::with(1, Some(cache.path()), OARLOCK.into()).expect("an engine");
        let (bytes, other) = (component("widget"), component("bad-manifest"));
        try_load(&engine, &other, &LIMITS).await.expect("compiles");
        let swapped = files(cache.path()).remove(0);
        try_load(&engine, &bytes, &LIMITS).await.expect("compiles");
        let file = files(cache.path()).into_iter().find(|file| *file != swapped).expect("the other file");
        let whole = fs::read(&file).expect("reads");
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x10;
        let swapped = fs::read(swapped).expect("reads");
        for (name, content) in
            [("truncated", &whole[..whole.len() / 3]), ("flipped", &flipped), ("swapped", &swapped)]
        {
            fs::write(&file, content).expect("writes");
            let guest = try_load(&engine, &bytes, &LIMITS).await.expect(name);
            let manifest = guest.describe(&LIMITS).await.expect(name);
            assert!(manifest.contains("widget"), "{name}: {manifest}");
            assert_eq!(fs::read(&file).expect("reads"), whole, "{name}");
        }
    }

    #[tokio::test]
    async fn folder_that_cannot_be_used_means_running_uncached() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        fs::write(&file, "in the way").expect("writes");
        // A file where the folder should be, and a folder that takes nothing.
        for cache in [None, Some(file.as_path()), Some(Path::new("/proc"))] {
            let engine = Engine::with(1, cache, OARLOCK.into()).expect("an engine");
            let guest = try_load(&engine, &component("bad-manifest"), &LIMITS).await.expect("loads");
            guest.describe(&LIMITS).await.expect("works");
        }
    }
}

/// The child process that compiles.
mod compiling {
    use super::*;

    async fn fail(compiler: &str, limits: &Limits) -> compile::Error {
        let compiler = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compilers").join(compiler);
        let engine = Engine::with(1, None, compiler).expect("an engine");
        match try_load(&engine, &component("bad-manifest"), limits).await.map(drop) {
            Err(LoadError::Compile(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn compiler_that_does_not_end_is_ended() {
        let limits = Limits { compile_time: Duration::from_millis(200), ..Limits::STANDARD };
        let started = Instant::now();
        let error = fail("hangs.sh", &limits).await;
        assert!(matches!(error, compile::Error::TimedOut { .. }), "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(50));
    }

    #[tokio::test]
    async fn compiler_that_fails_is_told_apart() {
        let killed = fail("is-killed.sh", &LIMITS).await;
        assert!(matches!(killed, compile::Error::Killed { signal: 9, .. }), "{killed:?}");
        let failed = fail("fails.sh", &LIMITS).await;
        assert!(
            matches!(&failed, compile::Error::Failed { message } if message == "no; not today"),
            "{failed:?}"
        );
        for compiler in ["writes-nothing.sh", "writes-garbage.sh", "writes-endlessly.sh"] {
            let garbage = fail(compiler, &LIMITS).await;
            assert!(matches!(garbage, compile::Error::Garbage), "{compiler}: {garbage:?}");
        }
        let missing = fail("missing.sh", &LIMITS).await;
        assert!(matches!(missing, compile::Error::Spawn(_)), "{missing:?}");
    }

    #[tokio::test]
    async fn compiler_is_given_nothing_of_the_hosts() {
        // Files are opened for this process alone, unless somebody is careless.
        let file = fs::File::open("/etc/hostname").expect("a file");
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect("it is open");
        let told = fail("tells.sh", &LIMITS).await.to_string();
        let own = ["PWD", "OLDPWD", "SHLVL", "_"];
        let given = told.split("; ").filter_map(|line| line.split_once('=')).map(|(name, _)| name);
        let given: Vec<_> = given.filter(|name| !own.iter().any(|own| name.ends_with(own))).collect();
        assert!(given.iter().all(|name| name.ends_with("RAYON_NUM_THREADS")), "{told}");
        assert!(told.contains("; /; "), "it is where there is nothing: {told}");
    }

    /// The real one, before it is given anything.
    #[tokio::test]
    async fn compiler_gives_up_files_network_and_rights() {
        let file = fs::File::open("/etc/hostname").expect("a file");
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect("it is open");
        let mut compiler = tokio::process::Command::new(OARLOCK)
            .arg(compile::COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let process = PathBuf::from(format!("/proc/{}", compiler.id().expect("it runs")));
        let read = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
        let is_confined = || read("status").lines().any(|line| line == "NoNewPrivs:\t1");
        let is_unshared =
            || fs::read_link(process.join("ns/net")).ok() != fs::read_link("/proc/self/ns/net").ok();
        let may_unshare = std::process::Command::new("unshare").args(["--user", "--net", "true"]).output();
        let may_unshare = may_unshare.is_ok_and(|output| output.status.success());
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_confined() || may_unshare && !is_unshared() {
            assert!(Instant::now() < deadline, "{}", read("status"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let open = fs::read_dir(process.join("fd")).expect("it runs").count();
        assert_eq!(open, 3, "stdin, stdout, stderr");
        let files = read("limits").lines().find(|line| line.starts_with("Max open files")).map(str::to_owned);
        let files = files.expect("a limit");
        assert_eq!(files.split_whitespace().collect::<Vec<_>>()[3..5], ["3", "3"], "{files}");
        if may_unshare {
            let network = read("net/dev");
            let interfaces: Vec<_> = network.lines().skip(2).map(str::trim_start).collect();
            assert!(interfaces.iter().all(|line| line.starts_with("lo:")), "{network}");
        }
        compiler.kill().await.expect("it runs");
    }

    #[tokio::test]
    async fn compiler_has_no_more_memory_than_it_may() {
        let limits = Limits { compile_memory_bytes: 8 << 20, ..Limits::STANDARD };
        let engine = Engine::with(1, None, OARLOCK.into()).expect("an engine");
        let error =
            try_load(&engine, &component("widget"), &limits).await.map(drop).expect_err("too little memory");
        assert!(
            matches!(
                error,
                LoadError::Compile(compile::Error::Killed { .. } | compile::Error::Failed { .. })
            ),
            "{error:?}"
        );
    }
}
