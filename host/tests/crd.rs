//! `deploy/crd.yaml` is what the code says a `Plugin` is.

use kube::CustomResourceExt as _;
use oarlock::plugins::resource::Plugin;
use std::{env, fs};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crd.yaml");
const REMEDY: &str = "OARLOCK_UPDATE=1 cargo test -p oarlock --test crd";

#[test]
fn crd_in_deploy_is_the_one_that_the_code_defines() {
    let crd = serde_json::to_value(Plugin::crd()).unwrap();
    let crd = serde_saphyr::to_string(&crd).unwrap();
    let expected = format!("# Made from host/src/plugins/resource.rs by `{REMEDY}`.\n{crd}");
    if env::var_os("OARLOCK_UPDATE").is_some() {
        fs::write(FILE, &expected).unwrap();
    }
    let found = fs::read_to_string(FILE).unwrap_or_default();
    let differs = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    let line = differs.unwrap_or_else(|| found.lines().count().min(expected.lines().count())) + 1;
    assert!(
        found == expected,
        "deploy/crd.yaml is not the CRD that host/src/plugins/resource.rs defines (line {line}); \
         to rewrite it, run: {REMEDY}"
    );
}
