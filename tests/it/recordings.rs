//! A call on a live object, recorded and made again without the cluster.

use anyhow::{Result, ensure};
use oarlock_tests::host;
use serde_json::{Value, json};
use std::{fs, process::Command};

use crate::world::{Lab, oarlock, run, text};

/// `oarlock replay`, with no cluster in reach.
fn replay(args: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(host::program()?);
    command.env("KUBECONFIG", "/nonexistent").arg("replay").args(args);
    let output = run(command, None)?;
    Ok((output.status.code(), text(&output)))
}

#[tokio::test]
async fn call_that_was_recorded_is_made_again_without_a_cluster() -> Result<()> {
    let lab = Lab::enter("recordings").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let data = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"text": "read"},
    });
    world.apply(&data, "test").await?;
    world.set("Widget", "w1", json!({"mode": "reads", "read": "settings", "selector": "pick=yes"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.set("Widget", "odd", json!({"mode": "panic"})).await?;
    world.until_says("Widget", "odd", ["Ready", "False", "GuestTrapped"]).await?;

    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let record = |object: &str, file: &str, more: &[&str]| -> Result<Value> {
        let object = format!("{}/{object}", world.namespace);
        let file = path(file);
        let mut args = vec!["record", "widget", &object, "-o", &file];
        args.extend(more);
        let recorded = oarlock(world.plane, args)?;
        ensure!(recorded.status.success(), "{}", text(&recorded));
        Ok(serde_json::from_str(&fs::read_to_string(&file)?)?)
    };
    let recording = record("w1", "w1.json", &["--with-component"])?;
    assert_eq!(recording["objects"][0]["data"], json!({"text": "read"}));
    assert!(recording["reads"].as_array().is_some_and(|reads| reads.len() == 2), "{}", recording["reads"]);

    // What is in the file is all that it takes.
    let (code, said) = replay(&[&path("w1.json")])?;
    ensure!(code == Some(0) && said.contains("identical, by the recorded component: 2 reads"), "{said}");
    let second = host::component_path("widget-fewer")?.display().to_string();
    let (code, said) = replay(&[&path("w1.json"), "--component", &second])?;
    ensure!(
        code == Some(1) && said.contains("plan.children[ConfigMap/w1-cm]: {") && said.contains(", gone"),
        "{said}"
    );
    // A recording that does not tell the truth is found out.
    let mut odd = recording.clone();
    odd["objects"][0]["data"]["text"] = "other".into();
    fs::write(path("odd.json"), odd.to_string())?;
    let (code, said) = replay(&[&path("odd.json")])?;
    ensure!(
        code == Some(1) && said.contains(r#"plan.children[ConfigMap/w1-cm].data.text: "read" → "other""#),
        "{said}"
    );

    // A trap is an answer like any other.
    record("odd", "panic.json", &[])?;
    let (code, said) = replay(&[&path("panic.json")])?;
    ensure!(code == Some(2) && said.contains("--component"), "{said}");
    let first = host::component_path("widget")?.display().to_string();
    let (code, said) = replay(&[&path("panic.json"), "--component", &first])?;
    ensure!(code == Some(0), "{said}");
    let unknown = oarlock(world.plane, ["record", "gizmo", "w1"])?;
    ensure!(!unknown.status.success() && text(&unknown).contains("no plugin in force reconciles gizmo"));
    running.stop().await
}
