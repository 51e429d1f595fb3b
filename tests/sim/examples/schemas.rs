//! Makes a file of `tests/sim/schemas` from an API server's document:
//!
//! ```text
//! kubectl get --raw /openapi/v3/apis/batch/v1 | cargo run -p oarlock-sim --example schemas > tests/sim/schemas/batch.v1.json
//! ```
#![expect(clippy::print_stdout, reason = "the file goes to where the caller wants it")]

use anyhow::{Context, Result};
use oarlock_sim::schema::{builtin, trim};
use serde_json::Value;

fn main() -> Result<()> {
    let document: Value = serde_json::from_reader(std::io::stdin()).context("the document is JSON")?;
    let kinds = builtin();
    let kinds: Vec<_> = kinds.iter().map(|kind| kind.kind.as_str()).collect();
    println!("{}", trim(&document, &kinds));
    Ok(())
}
