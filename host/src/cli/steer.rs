//! `oarlock approve`, `rollback`, `pause` and `resume`: what an operator decides about a plugin's versions.
//!
//! Each writes the settings of the `Plugin`, as `kubectl patch` could; the host does the rest.

use super::{
    Failure,
    cluster::{Ask, Cluster, Connection},
    get::text,
    push::parse_duration,
};
use crate::plugins::source::{bare, short};
use anyhow::{Context as _, bail};
use kube::{
    api::{Patch, PatchParams},
    core::DynamicObject,
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

const MANAGER: &str = "oarlock-cli";

const fn ask(verb: &'static str) -> Ask<'static> {
    Ask { verb, resource: "plugins.oarlock.dev", namespace: None }
}

/// Names a plugin.
#[derive(clap::Args, Debug)]
pub struct Named {
    /// The plugin
    plugin: String,
}

/// Lets a version into force that waits for it, that was held, or that was taken back.
#[derive(clap::Args, Debug)]
pub struct Approve {
    #[command(flatten)]
    named: Named,
    /// Only if it is this one
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
}

/// Puts an earlier version in force, until another one is pushed.
#[derive(clap::Args, Debug)]
pub struct Rollback {
    #[command(flatten)]
    named: Named,
    /// Which one [default: the one before]
    #[arg(long, value_name = "DIGEST")]
    to: Option<String>,
    /// How long to wait for the host
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
}

/// `oarlock approve`.
pub async fn approve(args: Approve, connection: &Connection) -> anyhow::Result<ExitCode> {
    let cluster = connection.connect().await?;
    let name = &args.named.plugin;
    let plugin = fetch(&cluster, name).await?;
    let Some(digest) = awaits(&plugin) else {
        bail!(Failure::new(
            format!("no version of {name} waits for approval"),
            format!("see what it does: oarlock get plugins {name} -o wide"),
        ));
    };
    if let Some(wanted) = args.digest.as_deref().filter(|wanted| !digest.starts_with(bare(wanted))) {
        bail!(Failure::new(
            format!("version {} of {name} waits for approval, not {}", short(digest), short(bare(wanted))),
            format!("look at it again: oarlock diff {name}"),
        ));
    }
    set(&cluster, name, &json!({"approved": digest})).await?;
    writeln!(io::stdout(), "{name}: version {} is approved", short(digest))?;
    Ok(ExitCode::SUCCESS)
}

/// The version that an approval lets go on.
fn awaits(plugin: &Value) -> Option<&str> {
    let digest = |pointer| Some(text(plugin, pointer)).filter(|digest| !digest.is_empty());
    let is_held = plugin["status"]["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one["type"] == "Progressing" && one["reason"] == "Held"));
    let is_failed = text(plugin, "/status/refused/reason") == "RolledBack";
    digest("/status/candidate/digest")
        .or_else(|| digest("/status/active/digest").filter(|_| is_held))
        .or_else(|| digest("/status/refused/digest").filter(|_| is_failed))
}

/// `oarlock rollback`.
pub async fn rollback(args: Rollback, connection: &Connection) -> anyhow::Result<ExitCode> {
    let cluster = connection.connect().await?;
    let name = &args.named.plugin;
    let plugin = fetch(&cluster, name).await?;
    let Back { to, settings } = back(name, &plugin, args.to.as_deref())?;
    set(&cluster, name, &settings).await?;
    writeln!(io::stdout(), "{name}: going to version {}", short(&to))?;
    let serves = |plugin: Option<&DynamicObject>| {
        plugin.is_some_and(|plugin| text(&plugin.data, "/status/active/digest") == to)
    };
    match tokio::time::timeout(args.timeout, await_condition(cluster.plugins(), name, serves)).await {
        Ok(Ok(_)) => {
            writeln!(io::stdout(), "{name}: version {} serves", short(&to))?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(Err(error)) => Err(error).context("cannot watch plugins.oarlock.dev"),
        Err(_) => bail!(Failure::new(
            format!("version {} does not serve after {:?}", short(&to), args.timeout),
            format!("see what the host says: oarlock get plugins {name} -o wide"),
        )),
    }
}

/// Where a rollback leads.
#[derive(Debug)]
struct Back {
    /// The version to be in force.
    to: String,
    /// What says so.
    settings: Value,
}

fn back(name: &str, plugin: &Value, wanted: Option<&str>) -> anyhow::Result<Back> {
    if !text(plugin, "/spec/digest").is_empty() {
        bail!(Failure::new(
            format!("spec.digest of {name} says which version serves"),
            format!(
                "change it: kubectl patch plugin {name} --type merge -p '{{\"spec\": {{\"digest\": DIGEST}}}}'"
            ),
        ));
    }
    let (active, content) = (text(plugin, "/status/active/digest"), text(plugin, "/status/sourceDigest"));
    let history = plugin["status"]["history"].as_array().into_iter().flatten();
    let mut kept: Vec<&str> = history.map(|one| text(one, "/digest")).collect();
    if !content.is_empty() && !kept.contains(&content) {
        kept.push(content);
    }
    let others: Vec<&str> = kept.iter().copied().filter(|one| *one != active).collect();
    let found = match wanted {
        Some(wanted) => {
            let fits: Vec<_> = kept.iter().copied().filter(|one| one.starts_with(bare(wanted))).collect();
            match &*fits {
                [one] => Some(*one),
                [] => None,
                _ => bail!(Failure::new(
                    format!("{wanted} may be any of {}", list(&fits)),
                    "name more of its digits",
                )),
            }
        }
        None => others.first().copied(),
    };
    let Some(to) = found else {
        let what = wanted.map_or_else(
            || format!("no earlier version of {name} is kept"),
            |wanted| format!("no version {wanted} of {name} is kept"),
        );
        let help = match list(&others) {
            kept if kept.is_empty() => "push the one you want: oarlock push FILE".to_owned(),
            kept => format!("these are: {kept}"),
        };
        bail!(Failure::new(what, help));
    };
    let settings = if to == content {
        // Nothing replaces it any more; and it is wanted, whatever it did before.
        json!({"rollback": null, "approved": to})
    } else {
        let from = if content.is_empty() { active } else { content };
        json!({"rollback": {"from": from, "to": to}})
    };
    Ok(Back { to: to.to_owned(), settings })
}

/// `oarlock pause` and `oarlock resume`.
pub async fn pause(named: Named, paused: bool, connection: &Connection) -> anyhow::Result<ExitCode> {
    let cluster = connection.connect().await?;
    let name = &named.plugin;
    fetch(&cluster, name).await?;
    set(&cluster, name, &json!({"paused": paused})).await?;
    let done = if paused { "paused: its objects stay as they are" } else { "resumed" };
    writeln!(io::stdout(), "{name}: {done}")?;
    Ok(ExitCode::SUCCESS)
}

async fn fetch(cluster: &Cluster, name: &str) -> anyhow::Result<Value> {
    match cluster.ask(ask("get"), cluster.plugins().get_opt(name)).await? {
        Some(plugin) => Ok(serde_json::to_value(&plugin)?),
        None => {
            bail!(Failure::new(format!("there is no plugin {name}"), "list them with `oarlock get plugins`"))
        }
    }
}

async fn set(cluster: &Cluster, name: &str, spec: &Value) -> anyhow::Result<()> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({ "spec": spec }));
    cluster.ask(ask("patch"), cluster.plugins().patch(name, &params, &patch)).await.map(drop)
}

fn list(digests: &[&str]) -> String {
    digests.iter().map(|digest| short(digest)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> Value {
        json!({
            "spec": {},
            "status": {
                "active": {"digest": "bbbb"}, "sourceDigest": "bbbb",
                "history": [{"digest": "aaaa2"}, {"digest": "aaaa1"}],
            },
        })
    }

    fn check(plugin: &Value, wanted: Option<&str>, expected: Result<(&str, Value), &str>) {
        match (back("site", plugin, wanted), expected) {
            (Ok(back), Ok((to, settings))) => assert_eq!((&*back.to, back.settings), (to, settings)),
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn rollback_goes_to_the_version_before_or_the_one_that_is_named() {
        let back_to = |to: &str| json!({"rollback": {"from": "bbbb", "to": to}});
        check(&plugin(), None, Ok(("aaaa2", back_to("aaaa2"))));
        check(&plugin(), Some("sha256:aaaa1"), Ok(("aaaa1", back_to("aaaa1"))));
        check(&plugin(), Some("aaaa"), Err("may be any of aaaa2, aaaa1"));
        check(&plugin(), Some("cc"), Err("no version cc of site is kept"));
        let mut back = plugin();
        back["status"]["active"]["digest"] = "aaaa2".into();
        back["status"]["history"] = json!([{"digest": "bbbb"}]);
        let forward = json!({"rollback": null, "approved": "bbbb"});
        check(&back, Some("bb"), Ok(("bbbb", forward.clone())));
        check(&back, None, Ok(("bbbb", forward)));
        let mut first = plugin();
        first["status"]["history"] = json!([]);
        check(&first, None, Err("no earlier version of site is kept"));
        let mut pinned = plugin();
        pinned["spec"]["digest"] = "bbbb".into();
        check(&pinned, None, Err("spec.digest"));
    }

    #[test]
    fn approval_is_for_what_waits_is_held_or_was_taken_back() {
        let mut waits = plugin();
        assert_eq!(awaits(&waits), None);
        waits["status"]["refused"] = json!({"digest": "cccc", "reason": "NotWasm"});
        assert_eq!(awaits(&waits), None);
        waits["status"]["refused"]["reason"] = "RolledBack".into();
        assert_eq!(awaits(&waits), Some("cccc"));
        waits["status"]["conditions"] = json!([{"type": "Progressing", "reason": "Held"}]);
        assert_eq!(awaits(&waits), Some("bbbb"));
        waits["status"]["candidate"] = json!({"digest": "dddd"});
        assert_eq!(awaits(&waits), Some("dddd"));
    }
}
