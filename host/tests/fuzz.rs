//! The fuzz targets, with their corpus and a fixed number of mutations of it: what fuzzing has found stays found.
//!
//! For more than that, `fuzz/README.md` says how to run them for as long as you like.

#[path = "../../fuzz/targets.rs"]
mod targets;

use fastrand::Rng;
use std::{fs, iter, panic, sync::mpsc, thread, time::Duration};

/// Mutations of each file of the corpus.
const MUTATIONS: u64 = 3_000;
/// What one of them changes, at most.
const CHANGES: usize = 6;
/// All of them take seconds; what is still busy then, hangs.
const DEADLINE: Duration = Duration::from_mins(5);
/// Bytes at which something ends, begins, or is as large as it can be.
const ODD: [u8; 12] = [0, 1, 0x0a, 0x22, 0x5c, 0x7b, 0x7d, 0x7f, 0x80, 0xc0, 0xfe, 0xff];

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = format!("{}/../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(folder).expect("a corpus").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = files
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(path).expect("a file"))
        })
        .collect();
    files.sort();
    files
}

/// The same for the same seed: some bytes are replaced, inserted, removed, repeated, or those of another file.
fn mutate(bytes: &[u8], other: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(seed);
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(1..=CHANGES) {
        let at = random.usize(..=bytes.len());
        let len = random.usize(..=(bytes.len() - at).min(32));
        let odd = ODD[random.usize(..ODD.len())];
        match random.u8(..6) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.u8(..8)),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = odd),
            2 => bytes.insert(at, odd),
            3 => drop(bytes.drain(at..at + len)),
            4 => {
                let repeated: Vec<_> =
                    iter::repeat_n(&bytes[at..at + len], random.usize(1..64)).flatten().copied().collect();
                bytes.splice(at..at, repeated);
            }
            _ => {
                let from = random.usize(..=other.len());
                let to = from + random.usize(..=(other.len() - from).min(64));
                bytes.splice(at..at + len, other[from..to].iter().copied());
            }
        }
    }
    bytes
}

fn run(target: &'static str, function: fn(&[u8])) {
    let (now, progress) = mpsc::channel();
    let worker = thread::spawn(move || {
        let corpus = corpus(target);
        assert!(corpus.len() >= 5, "the corpus of {target} has only {} files", corpus.len());
        for (number, (name, bytes)) in corpus.iter().enumerate() {
            function(bytes);
            for seed in 0..MUTATIONS {
                let seed = (number as u64) << 32 | seed;
                let other = &corpus[seed as usize % corpus.len()].1;
                let input = mutate(bytes, other, seed);
                // Whoever waits may have given up.
                let _ = now.send(format!("{name} seed {seed}"));
                assert!(
                    panic::catch_unwind(|| function(&input)).is_ok(),
                    "{target}: {name} mutated with seed {seed} fails as said above: {:?}",
                    String::from_utf8_lossy(&input)
                );
            }
        }
    });
    let mut last = String::new();
    loop {
        match progress.recv_timeout(DEADLINE) {
            Ok(input) => last = input,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{target} hangs with {last}"),
        }
    }
    if let Err(panic) = worker.join() {
        panic::resume_unwind(panic);
    }
}

#[test]
fn components_of_any_kind_are_inspected() {
    run("component", targets::component);
}

#[test]
fn manifests_of_any_kind_are_parsed() {
    run("manifest", targets::manifest);
}

#[test]
fn plans_of_any_kind_are_checked() {
    run("plan", targets::plan);
}

#[test]
fn sources_of_any_kind_are_unpacked() {
    run("source", targets::source);
}
