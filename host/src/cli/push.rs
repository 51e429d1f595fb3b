//! `oarlock push`: from a file, or a crate, to a plugin in force.

mod upload;

use super::{
    Failure, build, check,
    cluster::{Ask, Cluster, Connection},
    get::{self, ready, text},
};
use crate::plugins::source;
use anyhow::{Context as _, bail};
use clap::FromArgMatches;
use futures::StreamExt as _;
use kube::{core::DynamicObject, runtime::watcher::watch_object};
use serde_json::Value;
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    time::Duration,
};
use upload::Upload;

const ASK_PLUGIN: Ask<'_> = Ask { verb: "get", resource: "plugins.oarlock.dev", namespace: None };

/// Puts a plugin into the cluster, and waits until it is in force.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The component, or the crate to build it from
    #[arg(value_name = "FILE|DIR")]
    source: PathBuf,
    /// The plugin's name [default: that of the file or folder]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long to wait for the host
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
    /// Upload without checking the file first
    #[arg(long)]
    no_check: bool,
}

/// A duration as people write it.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration: jiff::SignedDuration =
        text.parse().map_err(|_| "a duration is like 90s or 2m".to_owned())?;
    Duration::try_from(duration).map_err(|_| "a duration is not negative".to_owned())
}

/// Builds if need be, checks, uploads, and waits for the host's word.
pub async fn run(args: Args, connection: &Connection) -> anyhow::Result<ExitCode> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => default_name(&args.source)?,
    };
    check_name(&name)?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let file = if args.source.is_dir() {
        let file = folder.path().join(format!("{name}.wasm"));
        let built = build::run(parse(&["build".as_ref(), &args.source, "-o".as_ref(), &file])?).await?;
        if built != ExitCode::SUCCESS {
            return Ok(built);
        }
        file
    } else {
        args.source
    };
    if !args.no_check {
        let checked = check::run(parse(&["check".as_ref(), &file])?).await?;
        if checked != ExitCode::SUCCESS {
            return Ok(checked);
        }
    }
    let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let upload = Upload::pack(&name, &bytes)?;
    let digest = source::digest(&bytes);

    let cluster = connection.connect().await?;
    let namespace = &*connection.host_namespace();
    // Before anything is written: is there a host to wait for at all?
    cluster.ask(ASK_PLUGIN, cluster.plugins().get_opt(&name)).await?;
    upload.send(&cluster, namespace).await?;
    writeln!(
        io::stdout(),
        "{name}: {} bytes (sha256 {}) are in ConfigMap {namespace}/{name}{}; waiting for the host",
        bytes.len(),
        source::short(&digest),
        match upload.len() {
            1 => String::new(),
            several => format!(" and {} more", several - 1),
        }
    )?;
    let verdict = verdict(&cluster, namespace, &name, &digest, args.timeout).await?;
    upload.clean_up(&cluster, namespace).await?;
    match verdict {
        Verdict::Waits { message } => {
            writeln!(
                io::stdout(),
                "{name}: accepted, and not in force yet: {message}\n{name}: `oarlock approve {name}` lets it go on"
            )?;
            Ok(ExitCode::SUCCESS)
        }
        Verdict::Ready { version, parent } => {
            writeln!(io::stdout(), "{name}: Ready, version {version} reconciles {parent}")?;
            Ok(ExitCode::SUCCESS)
        }
        Verdict::Refused { reason, message } => {
            writeln!(io::stderr(), "{name}: refused ({reason}): {message}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The arguments of another command, as if it had been called.
fn parse<T: clap::Args + FromArgMatches>(args: &[&Path]) -> anyhow::Result<T> {
    let matches = T::augment_args(clap::Command::new("oarlock")).try_get_matches_from(args)?;
    Ok(T::from_arg_matches(&matches)?)
}

/// `target/my_site.wasm` is `my-site`, and so is a crate in a folder of that name.
pub(super) fn default_name(source: &Path) -> anyhow::Result<String> {
    let absolute = source.canonicalize().with_context(|| format!("cannot find {}", source.display()))?;
    let stem = absolute.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok(stem.trim_end_matches(".wasm").replace('_', "-").to_lowercase())
}

/// A plugin's name is the name of an object, and ends up in label values and finalizers.
fn check_name(name: &str) -> anyhow::Result<()> {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty()
        || name.len() > 63
        || !name.bytes().all(is_inner)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        bail!(Failure::new(
            format!("{name:?} cannot be a plugin's name"),
            "a name has up to 63 lower-case letters, digits and hyphens; give one with --name",
        ));
    }
    Ok(())
}

/// What the host says of a digest.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ready {
        version: String,
        parent: String,
    },
    /// Somebody has to approve it, or it is tried on a part of the objects.
    Waits {
        message: String,
    },
    Refused {
        reason: String,
        message: String,
    },
}

/// The host's word about a digest, if it has one yet.
fn said(plugin: &Value, digest: &str) -> Option<Verdict> {
    let field = |pointer| text(plugin, pointer).to_owned();
    if text(plugin, "/status/refused/digest") == digest {
        let (reason, message) = (field("/status/refused/reason"), field("/status/refused/message"));
        return Some(Verdict::Refused { reason, message });
    }
    let rollback = |field: &str| source::bare(text(plugin, &format!("/spec/rollback/{field}")));
    if rollback("from") == digest && rollback("to") == text(plugin, "/status/active/digest") {
        let name = text(plugin, "/metadata/name");
        let message = format!(
            "it was rolled back: `oarlock rollback {name} --to {}` takes that back",
            source::short(digest)
        );
        return Some(Verdict::Refused { reason: "RolledBack".to_owned(), message });
    }
    if text(plugin, "/status/sourceDigest") == digest
        && let Some(loaded) = get::condition(plugin, "Loaded").filter(|one| one["reason"] == "DigestMismatch")
    {
        let message = text(loaded, "/message").to_owned();
        return Some(Verdict::Refused { reason: "DigestMismatch".to_owned(), message });
    }
    let candidate = &plugin["status"]["candidate"];
    if candidate["digest"] == digest {
        let word = if candidate["rollout"] == "Canary" { "a canary" } else { "waits for approval" };
        let message = text(candidate, "/message");
        let message = if message.is_empty() { word.to_owned() } else { format!("{word}: {message}") };
        return Some(Verdict::Waits { message });
    }
    let is_ready = ready(plugin).is_some_and(|condition| condition["status"] == "True");
    let is_active = text(plugin, "/status/active/digest") == digest && is_ready;
    is_active.then(|| Verdict::Ready {
        version: field("/status/active/version"),
        parent: field("/status/active/parent"),
    })
}

async fn verdict(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    digest: &str,
    timeout: Duration,
) -> anyhow::Result<Verdict> {
    let plugins = cluster.plugins();
    // Asked once by itself, as a watch does not tell why it fails.
    let now = cluster.ask(ASK_PLUGIN, plugins.get_opt(name)).await?;
    let of = |plugin: &DynamicObject| said(&plugin.data, digest);
    if let Some(verdict) = now.as_ref().and_then(of) {
        return Ok(verdict);
    }
    let mut changes = pin!(watch_object(plugins.clone(), name));
    let mut told = String::new();
    let wait = async {
        while let Some(change) = changes.next().await {
            // A watch that breaks is begun anew by itself.
            let Ok(Some(plugin)) = change else { continue };
            if let Some(verdict) = of(&plugin) {
                return Ok(verdict);
            }
            let condition = ready(&plugin.data).cloned().unwrap_or_default();
            let word = format!("{}: {}", text(&condition, "/reason"), text(&condition, "/message"));
            if told != word {
                writeln!(io::stderr(), "{name}: waiting; the host says {word}")?;
                told = word;
            }
        }
        bail!("the watch of plugins.oarlock.dev ended")
    };
    if let Ok(verdict) = tokio::time::timeout(timeout, wait).await {
        return verdict;
    }
    let last = cluster.ask(ASK_PLUGIN, plugins.get_opt(name)).await?;
    bail!(overdue(last.as_ref().map(|plugin| &plugin.data), namespace, name, digest, timeout))
}

/// What was waited for in vain, from what the Plugin says.
fn overdue(plugin: Option<&Value>, namespace: &str, name: &str, digest: &str, timeout: Duration) -> Failure {
    let waited = format!("after {timeout:?}");
    let logs = format!("see what it says: kubectl -n {namespace} logs deployment/oarlock");
    let Some(plugin) = plugin else {
        return Failure::new(
            format!("there is no Plugin {name} {waited}: no host has seen the ConfigMap"),
            format!("is the host running, in this namespace? kubectl -n {namespace} get pods; {logs}"),
        );
    };
    if text(plugin, "/status/active/digest") != digest {
        return Failure::new(
            format!("the host has not taken sha256 {} {waited}", source::short(digest)),
            format!("it may not be running: kubectl -n {namespace} get pods; {logs}"),
        );
    }
    let condition = ready(plugin).cloned().unwrap_or_default();
    let (reason, message) = (text(&condition, "/reason"), text(&condition, "/message"));
    Failure::new(
        format!("{name} is in force and not Ready {waited}: {reason}: {message}"),
        format!("it goes on by itself once that is mended: oarlock get plugins {name} -w"),
    )
}

#[cfg(test)]
mod tests;
