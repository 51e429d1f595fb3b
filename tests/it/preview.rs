//! What a version would change, shown without a write.

use anyhow::{Result, ensure};
use oarlock_tests::host;
use serde_json::{Value, json};
use std::process::Output;

use crate::world::{Lab, World, condition, oarlock, string, text};

fn diff(world: &World, component: &str, more: &[&str]) -> Result<Output> {
    let file = host::component_path(component)?;
    let mut args = vec!["diff".to_owned(), file.display().to_string(), "--plugin=widget".to_owned()];
    args.extend(more.iter().map(|&arg| arg.to_owned()));
    oarlock(world.plane, args)
}

/// A diff that exits so and says all of this.
fn check(world: &World, component: &str, more: &[&str], code: i32, said: &[&str]) -> Result<()> {
    let output = diff(world, component, more)?;
    let all = text(&output);
    ensure!(output.status.code() == Some(code), "{component} {more:?}: {:?}: {all}", output.status);
    for words in said {
        ensure!(all.contains(words), "{component} {more:?}: no {words:?} in {all}");
    }
    Ok(())
}

#[tokio::test]
async fn diff_tells_what_a_version_would_change_and_changes_nothing() -> Result<()> {
    let lab = Lab::enter("preview-diff").await?;
    let world = &lab.world;
    let running = lab.host().await?;
    world.plugin("widget", "widget").await?;
    for name in ["w1", "w2"] {
        world.set("Widget", name, json!({"text": "one"})).await?;
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    world.until_at_rest().await?;
    let before = world.get("ConfigMap", "w1-cm").await?;

    let place = |name: &str| format!("{}/{name}", world.namespace);
    check(world, "widget", &[], 0, &["nothing would change: 2 objects were looked at"])?;
    let child = format!("~ ConfigMap {}", place("w1-cm"));
    let changed =
        [&*child, r#"data.version: "2", new"#, "2 of 2 objects would change: 0 children added, 2 changed"];
    check(world, "widget-v2", &[], 1, &changed)?;
    check(world, "widget-v2", &["--exit-code=false"], 0, &changed[..2])?;
    check(world, "widget-v2", &[&place("w2")], 1, &["1 of 1 objects would change"])?;
    check(world, "widget-v2", &["-l", "no=such"], 0, &["0 objects were looked at"])?;
    let removed = format!("- ConfigMap {}", place("w1-cm"));
    check(world, "widget-fewer", &[], 1, &[&removed, "2 removed"])?;
    check(world, "widget-failing", &[], 1, &["! fails: the guest trapped", "2 would fail"])?;
    check(world, "no-exports", &[], 2, &["oarlock check"])?;
    let json: Value = serde_json::from_slice(&diff(world, "widget-v2", &["-o", "json"])?.stdout)?;
    assert_eq!((&json["kind"], &json["looked"]), (&json!("Diff"), &json!(2)));
    let fields = &json["objects"][0]["changed"][0]["fields"];
    assert_eq!(*fields, json!([{"path": "data.version", "from": null, "to": "\"2\""}]));

    // What is in the ConfigMap is compared by the plugin's name.
    let same = oarlock(world.plane, ["diff", "widget"])?;
    ensure!(same.status.success(), "{}", text(&same));
    world.until_at_rest().await?;
    let after = world.get("ConfigMap", "w1-cm").await?;
    assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);

    // The host tells the same of a version that waits.
    world.merge("Plugin", "widget", json!({"spec": {"rollout": "Preview"}})).await?;
    world.source("widget", &[("plugin.wasm", &host::component("widget-v2")?)]).await?;
    world
        .until("Plugin", "widget", "says what would change", |plugin| {
            let progressing = condition(plugin, "Progressing").map(|one| string(one, "/message"));
            let message = progressing.unwrap_or_default();
            ensure!(
                message.contains("2 of 2 objects would change: 0 children added, 2 changed"),
                "{message}"
            );
            Ok(())
        })
        .await?;
    let waiting = oarlock(world.plane, ["diff", "widget"])?;
    ensure!(waiting.status.code() == Some(1), "{}", text(&waiting));
    running.stop().await
}
