//! The commands people type.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use oarlock_tests::cluster::ControlPlane;
use oarlock_tests::host::{self, component_path};

use crate::world::{REPOSITORY, World, oarlock, run, text, website};

#[tokio::test]
async fn check_tells_good_components_from_bad_ones() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let dir = tempfile::tempdir()?;
    let hello = dir.path().join("hello.wasm");
    fs::write(&hello, "hello")?;
    let missing = dir.path().join("missing.wasm");
    let guest = |name| component_path(name);
    for (path, is_good, said) in [
        (guest("website")?, true, "Website"),
        (guest("widget")?, true, "0.1.0"),
        (hello, false, "not WebAssembly"),
        (guest("no-exports")?, false, "reconcile"),
        (guest("old-contract")?, false, "0.1.0"),
        (guest("bad-manifest")?, false, "owns"),
        (guest("describe-panics")?, false, "no manifest today"),
        (missing, false, "missing.wasm"),
    ] {
        let output = oarlock(plane, ["check".as_ref(), path.as_os_str()])?;
        let printed = text(&output);
        assert_eq!(output.status.success(), is_good, "{}: {printed}", path.display());
        assert!(printed.contains(said), "{}: no {said:?} in {printed}", path.display());
        assert!(!printed.contains("panicked at src"), "{printed}");
    }
    Ok(())
}

#[tokio::test]
async fn check_prints_the_rights_that_a_plugin_needs() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let path = component_path("website-v2")?;
    let output = oarlock(plane, ["check".as_ref(), "--rbac".as_ref(), path.as_os_str()])?;
    assert!(output.status.success(), "{}", text(&output));
    let rights = String::from_utf8(output.stdout)?;
    for word in
        ["ClusterRole", "deployments", "services", "poddisruptionbudgets", "websites/status", "list", "watch"]
    {
        assert!(rights.contains(word), "no {word} in\n{rights}");
    }
    assert!(!rights.contains('*'), "{rights}");
    Ok(())
}

#[tokio::test]
async fn build_makes_a_component_that_check_accepts() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("website.wasm");
    let mut command = Command::new(host::program()?);
    command.args(["build", "plugins/website", "-o"]).arg(&out).current_dir(REPOSITORY);
    // Where the `dev` script builds guests: there is little left to compile.
    let target = std::env::var("OARLOCK_DEV_CACHE")
        .map_or(dir.path().join("target"), |cache| Path::new(&cache).join("guests"));
    command.env("CARGO_TARGET_DIR", target);
    // The toolchain that the script makes on machines where the active one lacks the target.
    let mut rustup = Command::new("rustup");
    rustup.args(["toolchain", "list"]);
    let toolchains = run(rustup, None)?;
    if String::from_utf8_lossy(&toolchains.stdout).contains("wasm-guest") {
        command.env("RUSTUP_TOOLCHAIN", "wasm-guest");
    }
    let output = run(command, None)?;
    assert!(output.status.success(), "{}", text(&output));
    let built = oarlock(plane, ["check".as_ref(), out.as_os_str()])?;
    assert!(built.status.success(), "{}", text(&built));
    assert!(text(&built).contains("Website"), "{}", text(&built));
    Ok(())
}

#[tokio::test]
async fn push_waits_for_the_new_version_or_prints_the_refusal() -> Result<()> {
    let world = World::new("cli-push").await?;
    let _turn = website(&world, "website").await?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("website.wasm");
    fs::copy(component_path("website-v2")?, &file)?;
    let output = oarlock(world.plane, ["push".as_ref(), file.as_os_str()])?;
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("0.2.0"), "{printed}");
    let plugin = world.get("Plugin", "website").await?;
    assert_eq!(plugin["status"]["active"]["version"], "0.2.0");

    fs::copy(component_path("describe-panics")?, &file)?;
    let output = oarlock(world.plane, ["push".as_ref(), file.as_os_str()])?;
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("refused") && printed.contains("no manifest today"), "{printed}");
    let plugin = world.get("Plugin", "website").await?;
    assert_eq!(plugin["status"]["active"]["version"], "0.2.0");
    Ok(())
}

#[tokio::test]
async fn get_plugins_prints_a_table_and_json() -> Result<()> {
    let world = World::new("cli-get").await?;
    let output = oarlock(world.plane, ["get", "plugins"])?;
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let table = String::from_utf8(output.stdout)?;
    assert!(table.starts_with("NAME"), "{table}");
    let row = table.lines().find(|line| line.starts_with("widget")).unwrap_or_default();
    assert!(row.contains("0.1.0") && row.contains("Active"), "{table}");

    let output = oarlock(world.plane, ["get", "plugins", "-o", "json"])?;
    assert!(output.status.success(), "{}", text(&output));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let items = list["items"].as_array().or(list.as_array()).unwrap();
    assert!(items.iter().any(|item| item["metadata"]["name"] == "widget"), "{list}");
    Ok(())
}

#[tokio::test]
async fn completion_prints_a_script() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    for shell in ["bash", "zsh", "fish"] {
        let output = oarlock(plane, ["completion", shell])?;
        assert!(output.status.success(), "{}", text(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("oarlock"), "{}", text(&output));
    }
    Ok(())
}
