//! See `targets::source`.
#![no_main]

#[allow(dead_code, reason = "each program has one of them")]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::source(data));
