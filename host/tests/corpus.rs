//! What strangers may hand to the host: a fixed corpus and a fixed number of odd forms of each, without a panic or a hang.
//!
//! The same functions are targets of cargo-fuzz, see `fuzz/`; what that finds belongs into its corpus.

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "a crate of its own")]
mod targets;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Odd forms of each file.
const FORMS: usize = 10_000;
/// One input may take so long on the slowest of machines, without optimisation.
const PATIENCE: Duration = Duration::from_secs(20);

fn files(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = read.map(|file| file.expect("a file").path()).collect();
    files.sort();
    files
}

/// One odd form: bytes that differ, are missing, come twice, or come from elsewhere in it.
fn form(bytes: &[u8], chance: &mut fastrand::Rng) -> Vec<u8> {
    let mut odd = bytes.to_vec();
    for _ in 0..chance.usize(1..4) {
        if odd.is_empty() {
            return vec![chance.u8(..)];
        }
        let (at, length) = (chance.usize(..odd.len()), chance.usize(1..=16));
        let end = (at + length).min(odd.len());
        match chance.u8(..6) {
            0 => odd[at] = chance.u8(..),
            1 => odd[at] ^= 1 << chance.u8(..8),
            2 => drop(odd.drain(at..end)),
            3 => {
                let again = odd[at..end].to_vec();
                odd.splice(at..at, again);
            }
            4 => odd.truncate(at),
            _ => {
                let from = chance.usize(..odd.len());
                let piece: Vec<u8> = odd[from..].iter().take(length).copied().collect();
                odd.splice(at..at, piece);
            }
        }
    }
    odd
}

fn run(name: &str, target: fn(&[u8]), more: &[PathBuf]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let files: Vec<_> = files(&folder).into_iter().chain(more.iter().cloned()).collect();
    assert!(files.len() > 2, "{name} has a corpus");
    for (number, file) in files.iter().enumerate() {
        let bytes = fs::read(file).expect("it can be read");
        let mut chance = fastrand::Rng::with_seed(number as u64);
        // Large ones take their time, and are alike.
        let forms = if bytes.len() > 10_000 { FORMS / 50 } else { FORMS };
        for index in 0..=forms {
            let input = if index == 0 { bytes.clone() } else { form(&bytes, &mut chance) };
            let begun = Instant::now();
            target(&input);
            let took = begun.elapsed();
            assert!(took < PATIENCE, "{}, form {index}, took {took:?}", file.display());
        }
    }
}

#[test]
fn component_is_accepted_or_refused_whatever_it_is() {
    let guests = std::env::var_os("OARLOCK_GUESTS").expect("OARLOCK_GUESTS is set by ./dev test");
    let guests =
        ["website.wasm", "widget-wasip1.wasm", "no-exports.wasm"].map(|name| Path::new(&guests).join(name));
    run("component", targets::component, &guests);
}

#[test]
fn manifest_is_accepted_or_refused_whatever_it_is() {
    run("manifest", targets::manifest, &[]);
}

#[test]
fn plan_is_accepted_or_refused_whatever_it_is() {
    run("plan", targets::plan, &[]);
}

#[test]
fn source_is_accepted_or_refused_whatever_it_is() {
    run("source", targets::source, &[]);
}

#[test]
fn recording_is_accepted_or_refused_whatever_it_is() {
    run("recording", targets::recording, &[]);
}
