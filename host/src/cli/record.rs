//! `oarlock record` and `oarlock replay`: one call with everything that the guest saw, made again anywhere.

use super::{
    Failure,
    cluster::{Ask, Cluster, Connection},
    diff::fields,
    get::text,
    live::{From, Live, is_named, place},
};
use crate::{
    config::Limits,
    decide::guest::{Guest, engine::Engine},
    manifest::Manifest,
    plugins::{
        recording::{Recording, Replayed},
        source,
    },
};
use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::api::ListParams;
use serde_json::Value;
use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

/// It came to something else.
const DIFFERS: u8 = 1;
/// It could not be made again.
const FAILED: u8 = 2;

/// Calls a plugin's version in force for one object, here, and keeps what it saw and said.
///
/// The file has the object and everything that was read, but not what is in Secrets; `oarlock replay` makes the call again
/// from it, without a cluster. Attach it to a report of a fault.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kind, such as Website
    kind: String,
    /// The object
    #[arg(value_name = "[NAMESPACE/]NAME")]
    object: String,
    /// The plugin, if several reconcile the kind
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
    /// Where to write it [default: KIND-NAME.recording.json]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// With the component, so that nothing else is needed to replay it
    #[arg(long)]
    with_component: bool,
    /// With what is in Secrets
    #[arg(long)]
    with_secrets: bool,
}

/// Makes a recorded call again, without a cluster, and tells whether it comes to the same.
///
/// Exits with 0 if it does, 1 if it does not, 2 if it cannot be made.
#[derive(clap::Args, Debug)]
pub struct ReplayArgs {
    /// The recording
    file: PathBuf,
    /// The component: the recorded one, or another to compare with it
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
}

/// `oarlock record`.
pub async fn record(args: Args, connection: &Connection) -> anyhow::Result<ExitCode> {
    let cluster = connection.connect().await?;
    let name = plugin(&cluster, &args).await?;
    let (live, component) = Live::load(&cluster, &connection.host_namespace(), From::InForce(&name)).await?;
    let parents: Vec<_> = live
        .snapshot
        .list(&live.plugin.parents, None)
        .filter(|parent| is_named(&parent.key, &args.object))
        .collect();
    let parent = match &*parents {
        [parent] => *parent,
        [] => bail!(Failure::new(
            format!("plugin {name} has no object {}", args.object),
            format!("name one: kubectl get {} -A", args.kind.to_lowercase()),
        )),
        several => bail!(Failure::new(
            format!(
                "{} may be any of {}",
                args.object,
                several.iter().map(|one| place(&one.key)).collect::<Vec<_>>().join(", ")
            ),
            "name its namespace, as in demo/blog",
        )),
    };
    let moment = (&*live.namespace, &*live.now);
    let mut recording =
        Recording::make(&live.plugin, &live.snapshot, parent, moment, args.with_secrets).await?;
    if args.with_component {
        recording.component = Some(STANDARD.encode(component));
    }
    let file = args
        .output
        .unwrap_or_else(|| format!("{}-{}.recording.json", args.kind.to_lowercase(), parent.key.name).into());
    let json = serde_json::to_string_pretty(&recording)? + "\n";
    fs::write(&file, json).with_context(|| format!("cannot write {}", file.display()))?;
    let masked = if recording.masked { ", Secrets masked" } else { "" };
    writeln!(
        io::stdout(),
        "{}: version {} ({}) of {name} on {}, {} reads{masked}; make the call again with `oarlock replay {}`",
        file.display(),
        recording.version,
        source::short(&recording.digest),
        parent.key,
        recording.reads.len(),
        file.display()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The plugin that reconciles a kind.
async fn plugin(cluster: &Cluster, args: &Args) -> anyhow::Result<String> {
    if let Some(name) = &args.plugin {
        return Ok(name.clone());
    }
    let ask = Ask { verb: "list", resource: "plugins.oarlock.dev", namespace: None };
    let all = cluster.ask(ask, cluster.plugins().list(&ListParams::default())).await?;
    let wanted = args.kind.to_lowercase();
    // `Website (demo.oarlock.dev/v1)`; people write website, websites, or with the group.
    let is_called = |parent: &str| {
        let kind = parent.split(' ').next().unwrap_or_default().to_lowercase();
        let group = parent.split_once('(').and_then(|(_, rest)| rest.split_once('/')).map(|(group, _)| group);
        [kind.clone(), format!("{kind}s"), format!("{kind}es")]
            .iter()
            .any(|kind| wanted == *kind || group.is_some_and(|group| wanted == format!("{kind}.{group}")))
    };
    let found = all.items.iter().filter(|plugin| is_called(text(&plugin.data, "/status/active/parent")));
    let names: Vec<_> = found.filter_map(|plugin| plugin.metadata.name.clone()).collect();
    match &*names {
        [name] => Ok(name.clone()),
        [] => bail!(Failure::new(
            format!("no plugin in force reconciles {}", args.kind),
            "see which do: oarlock get plugins",
        )),
        several => bail!(Failure::new(
            format!("{} is reconciled by {}", args.kind, several.join(", ")),
            "name one of them with --plugin",
        )),
    }
}

/// `oarlock replay`.
pub async fn replay(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    match try_replay(&args).await {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::from(DIFFERS)),
        Err(error) => {
            super::said(&error);
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// Whether it came to the same.
async fn try_replay(args: &ReplayArgs) -> anyhow::Result<bool> {
    let read =
        fs::read_to_string(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let recording =
        Recording::parse(&read).with_context(|| format!("cannot replay {}", args.file.display()))?;
    let bytes = match (&args.component, &recording.component) {
        (Some(file), _) => fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
        (None, Some(component)) => {
            STANDARD.decode(component).context("the recording's component is damaged")?
        }
        (None, None) => bail!(Failure::new(
            format!("the recording does not have its component, version {}", recording.version),
            "name it with --component, or record the call again with --with-component",
        )),
    };
    let compiler = std::env::current_exe().context("cannot tell which program this is")?;
    let engine = Engine::with(1, None, compiler)?;
    let digest = source::digest(&bytes);
    let guest = Guest::load(&engine, &digest, &bytes, &Limits::STANDARD).await?;
    let manifest = Manifest::parse(&guest.describe(&Limits::STANDARD).await?)?;
    let replayed = recording.replay(&guest, Arc::new(manifest)).await?;
    let is_same_component = digest == recording.digest;
    let differences = differences(&recording, &replayed, is_same_component);
    if recording.masked {
        writeln!(
            io::stderr(),
            "Secrets were masked in the recording, so the answer may differ for that alone"
        )?;
    }
    let what = if is_same_component { "the recorded component" } else { "another component" };
    if differences.is_empty() {
        let fuel =
            if is_same_component { format!(", {} units of fuel", replayed.fuel) } else { String::new() };
        writeln!(io::stdout(), "identical, by {what}: {} reads{fuel}", replayed.reads.len())?;
        return Ok(true);
    }
    writeln!(io::stdout(), "{what} comes to something else:")?;
    for difference in &differences {
        writeln!(io::stdout(), "  {difference}")?;
    }
    Ok(false)
}

/// What differs; of another component only the answer counts.
fn differences(recording: &Recording, replayed: &Replayed, is_same_component: bool) -> Vec<String> {
    let mut found = Vec::new();
    if is_same_component && recording.reads != replayed.reads {
        let at = recording.reads.iter().zip(&replayed.reads).take_while(|(one, other)| one == other).count();
        let read = |reads: &[String]| reads.get(at).cloned().unwrap_or_else(|| "no further read".to_owned());
        found.push(format!("reads[{at}]: {} → {}", read(&recording.reads), read(&replayed.reads)));
    }
    let answers: (&Value, &Value) = (&recording.answer, &replayed.answer);
    found.extend(fields::between(answers.0, answers.1, false).iter().map(ToString::to_string));
    if is_same_component && found.is_empty() && recording.fuel != replayed.fuel {
        found.push(format!("fuel: {} → {}", recording.fuel, replayed.fuel));
    }
    found
}
