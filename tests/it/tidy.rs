//! The rules of the source text that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};

use crate::world::REPOSITORY;

/// A source file without its tests and comments.
struct Source {
    /// From the root of the repository on.
    path: String,
    code: Vec<String>,
    lines: usize,
}

impl Source {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap().to_owned()).collect();
        let path = path.strip_prefix(REPOSITORY).unwrap().to_string_lossy().into_owned();
        Self { path, code, lines: text.lines().count() }
    }

    fn is_below(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// The lines that have one of these words.
    fn lines_with(&self, words: &[&str]) -> impl Iterator<Item = String> {
        let lines = self.code.iter().enumerate();
        let hits = lines.filter(|(_, line)| words.iter().any(|word| line.contains(word)));
        hits.map(|(at, line)| format!("{}:{}: {}", self.path, at + 1, line.trim()))
            .collect::<Vec<_>>()
            .into_iter()
    }
}

fn sources(folder: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![PathBuf::from(REPOSITORY).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(Source::read(&path));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// The host's sources without test modules.
fn host() -> Vec<Source> {
    let mut sources = sources("host/src");
    sources.retain(|source| !source.path.ends_with("/tests.rs") && !source.path.contains("/tests/"));
    assert!(sources.len() > 30, "only {} files were found", sources.len());
    sources
}

/// Fails with every line of `sources` outside of `places` that has one of these words.
fn check_absence<'a>(sources: impl IntoIterator<Item = &'a Source>, places: &[&str], words: &[&str]) {
    let elsewhere = sources.into_iter().filter(|source| !source.is_below(places));
    let found: Vec<_> = elsewhere.flat_map(|source| source.lines_with(words)).collect();
    assert!(found.is_empty(), "{words:?} belong in {places:?} only:\n{}", found.join("\n"));
}

#[test]
fn wasmtime_is_named_by_the_sandbox_only() {
    check_absence(&host(), &["host/src/decide/guest"], &["wasmtime"]);
}

#[test]
fn pure_files_do_no_io_and_read_no_clock() {
    let mut pure = host();
    pure.retain(|source| {
        let places = ["object", "config.rs", "manifest", "report", "observe/reads", "schedule", "decide"];
        let places = places.map(|place| format!("host/src/{place}"));
        source.is_below(&places.each_ref().map(String::as_str))
            && !source.is_below(&["host/src/decide/guest"])
    });
    assert!(pure.len() > 10);
    let words = [
        "async ",
        ".await",
        "tokio",
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "std::thread",
        "std::io",
        "Instant::now",
        "SystemTime",
        "jiff",
        "clock::",
        "tracing",
    ];
    check_absence(&pure, &[], &words);
}

#[test]
fn requests_are_built_by_the_client_and_commands_only() {
    let places = ["host/src/observe/client", "host/src/cli", "host/src/main.rs"];
    check_absence(
        &host(),
        &places,
        &[
            "http::Request",
            "Request::get",
            "Request::builder",
            "kube::Api",
            "Api::<",
            "Api::all",
            "Api::namespaced",
        ],
    );
    // kube's recorder of events takes a client of its own.
    let places = [&places[..], &["host/src/act/events"]].concat();
    check_absence(&host(), &places, &[".kube()"]);
}

#[test]
fn no_channel_is_unbounded() {
    check_absence(&host(), &[], &["unbounded", "mpsc::channel()"]);
}

/// What would make two runs of one seed differ, see `tests/sim`: clocks and chance of one's own, tasks and threads that
/// end when nobody decides it, and channels that wake those who wait in any order.
#[test]
fn time_chance_and_tasks_come_from_one_place_each() {
    let clocks = ["host/src/clock.rs", "host/src/cli", "host/src/decide/guest/code_cache.rs"];
    check_absence(&host(), &clocks, &["SystemTime::now", "Timestamp::now", "std::time::Instant::now"]);
    let draws = ["u8(", "u32(", "u64(", "usize(", "f64(", "bool(", "shuffle("]
        .map(|draw| format!("fastrand::{draw}"));
    let draws: Vec<_> = draws.iter().map(String::as_str).collect();
    check_absence(&host(), &["host/src/run.rs"], &draws);
    check_absence(&host(), &[], &["RandomState", "thread_rng", "getrandom"]);
    // The admin endpoint is no part of a simulated host.
    check_absence(&host(), &["host/src/operate/admin.rs"], &["tokio::spawn"]);
    check_absence(&host(), &["host/src/decide/guest/engine.rs"], &["spawn_blocking"]);
    check_absence(&host(), &["host/src/run.rs"], &["watch::channel", "watch::Sender", "broadcast::"]);
}

#[test]
fn every_select_is_biased() {
    for source in host() {
        let mut lines = source.code.iter();
        while let Some(line) = lines.next() {
            let first = if line.contains("select! {") { lines.next() } else { continue };
            assert!(first.is_some_and(|line| line.contains("biased;")), "{}: {}", source.path, line.trim());
        }
    }
}

/// Their order is another one in every process, so nothing may follow from it.
#[test]
fn hash_maps_are_where_nothing_follows_from_their_order() {
    let places = [
        // Looked up by key, and emptied by rules about each entry alone.
        "host/src/act/contested.rs",
        "host/src/act/events/allowance.rs",
        "host/src/decide/stability.rs",
        "host/src/operate/journal.rs",
        "host/src/operate/metrics",
        "host/src/reconcile/doubt.rs",
        "host/src/observe/reads/memo.rs",
        // What is found is sorted before it goes on.
        "host/src/observe/reads/index.rs",
        // Only asked whether something is in it.
        "host/src/act/prune.rs",
        "host/src/decide/plan/child.rs",
        "host/src/decide/stability/difference.rs",
        "host/src/reconcile/conclude.rs",
        // Commands end, and print what they have sorted.
        "host/src/cli",
    ];
    check_absence(&host(), &places, &["HashMap", "HashSet"]);
}

#[test]
fn stages_do_not_know_what_comes_after_them() {
    let later = ["crate::plugins", "crate::reconcile", "crate::run", "crate::cli"];
    let mut stages = host();
    stages.retain(|source| {
        source.is_below(&[
            "host/src/observe",
            "host/src/schedule",
            "host/src/decide",
            "host/src/act",
            "host/src/object",
        ])
    });
    check_absence(&stages, &[], &later);
}

#[test]
fn files_have_one_reason_to_change() {
    let long: Vec<_> = host()
        .iter()
        .filter(|source| source.lines > 400)
        .map(|source| format!("{} has {} lines without tests", source.path, source.lines))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn tests_poll_and_do_not_wait() {
    let sleep = concat!("sleep", "(");
    let tests = ["tests/src", "tests/it", "plugins", "guest-sdk"].into_iter().flat_map(sources);
    check_absence(&tests.collect::<Vec<_>>(), &[], &[sleep]);
}
