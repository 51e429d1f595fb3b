//! The modes that attack a limit of the host.

use std::hint::black_box;

use oarlock_sdk::{Failure, Reads};

/// Runs one mode; those that are about the plan are left to `exports`.
pub(crate) fn run(mode: &str, reads: &Reads) -> Result<(), Failure> {
    match mode {
        "loop" => spin(),
        "grow" => {
            grow();
            std::process::abort();
        }
        "grow-spin" => {
            grow();
            spin();
        }
        "recurse" => drop(black_box(recurse(black_box(1)))),
        "recurse-data" => drop(black_box(recurse_with_data(black_box(1)))),
        "stderr" => fail_on_stderr(),
        "many-logs" => {
            for i in 0..100_000 {
                oarlock_sdk::info!(
                    "line {i} of a hundred thousand, each of them a hundred bytes long{:30}",
                    ""
                );
            }
        }
        "many-reads" => {
            for i in 0..100_000 {
                reads.get::<serde_json::Value>(("v1", "ConfigMap"), &format!("none-{i}"))?;
            }
        }
        "same-read" => {
            for _ in 0..1_000_000 {
                reads.get::<serde_json::Value>(("v1", "ConfigMap"), "none")?;
            }
        }
        "big-output" | "many-children" | "deep" | "bad-json" => {}
        other => return Err(Failure::permanent("UnknownMode", format!("no mode `{other}`"))),
    }
    Ok(())
}

pub(crate) fn fail() -> ! {
    panic!("this version fails on every object");
}

fn spin() -> ! {
    loop {
        black_box(());
    }
}

/// Takes memory until there is no more.
fn grow() {
    let mut block = Vec::<u8>::new();
    while block.try_reserve_exact(1 << 20).is_ok() {
        std::mem::forget(block);
        block = Vec::new();
    }
}

/// Overflows the call stack: nothing of this is in memory.
#[expect(unconditional_recursion, reason = "that is the point")]
fn recurse(n: u64) -> u64 {
    recurse(n + 1).wrapping_mul(3) ^ n
}

/// Overflows the stack in memory.
#[expect(unconditional_recursion, reason = "that is the point")]
fn recurse_with_data(n: u64) -> u64 {
    let frame = black_box([n; 128]);
    recurse_with_data(n + 1) ^ frame[7]
}

/// All that ordinary programs ask their surroundings for, in one line; for a component built for WASI.
pub(crate) fn reach_out() -> String {
    let files = [std::fs::read_dir("/").is_ok(), std::fs::write("/tmp/x", "x").is_ok()];
    let network = std::net::TcpStream::connect("127.0.0.1:443").is_ok();
    let surroundings = std::env::vars().count() + std::env::args().count();
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), "x");
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let time = time.map_or(0, |time| time.as_secs());
    let start = std::time::Instant::now();
    let passed = start.elapsed().as_nanos();
    format!(
        "files {files:?} network {network} surroundings {surroundings} random {random} time {time} passed {passed}"
    )
}

#[expect(clippy::print_stderr, reason = "heard only from a component built for WASI")]
fn fail_on_stderr() {
    eprintln!("the last words of a guest");
    std::process::abort();
}
