//! `oarlock push`: from a file, or a crate, to a plugin in force.

use super::{
    Failure, build, check,
    cluster::{Ask, Cluster, Connection},
    get::{ready, text},
};
use anyhow::{Context as _, bail};
use base64::Engine as _;
use clap::FromArgMatches;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::DynamicObject,
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::{
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// What makes a ConfigMap a plugin (rule P1).
const LABEL: &str = "oarlock.dev/plugin";
const MANAGER: &str = "oarlock-push";
/// Above this a component is compressed: etcd and every watcher carry it.
const PLAIN_BYTES: usize = 700_000;
/// What a ConfigMap holds, by the API server's rule.
const CONFIG_MAP_BYTES: usize = 1 << 20;

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
    let entry = Entry::pack(&name, &bytes)?;
    let digest = hex(&Sha256::digest(&bytes));

    let cluster = connection.connect().await?;
    let namespace = &*connection.host_namespace();
    // Before anything is written: is there a host to wait for at all?
    cluster.ask(ASK_PLUGIN, cluster.plugins().get_opt(&name)).await?;
    upload(&cluster, namespace, &name, &entry).await?;
    writeln!(
        io::stdout(),
        "{name}: {} bytes (sha256 {}) are in ConfigMap {namespace}/{name}; waiting for the host",
        entry.bytes.len(),
        &digest[..12]
    )?;
    match verdict(&cluster, namespace, &name, &digest, args.timeout).await? {
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
fn default_name(source: &Path) -> anyhow::Result<String> {
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The entry of the ConfigMap.
#[derive(Debug)]
struct Entry {
    key: String,
    bytes: Vec<u8>,
}

impl Entry {
    /// The component as it is if it is small, else compressed.
    fn pack(name: &str, component: &[u8]) -> anyhow::Result<Self> {
        if !component.starts_with(b"\0asm") {
            bail!(Failure::new(
                "the file is no WebAssembly",
                "name a component, or the crate to build it from"
            ));
        }
        if component.len() <= PLAIN_BYTES {
            return Ok(Self { key: format!("{name}.wasm"), bytes: component.to_owned() });
        }
        // The highest level without long windows: seconds for the largest plugins, once.
        let bytes = zstd::encode_all(component, 19).context("cannot compress the component")?;
        if bytes.len() > CONFIG_MAP_BYTES {
            bail!(Failure::new(
                format!(
                    "the component has {} bytes, {} compressed, and a ConfigMap holds {CONFIG_MAP_BYTES}",
                    component.len(),
                    bytes.len()
                ),
                "make it smaller: opt-level = \"s\", lto = true, strip = true and panic = \"abort\" in the crate's \
                 release profile, and fewer dependencies",
            ));
        }
        Ok(Self { key: format!("{name}.wasm.zst"), bytes })
    }
}

fn is_component(key: &str) -> bool {
    [".wasm", ".wasm.gz", ".wasm.zst"].iter().any(|ending| key.ends_with(ending))
}

async fn upload(cluster: &Cluster, namespace: &str, name: &str, entry: &Entry) -> anyhow::Result<()> {
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let ask = |verb| Ask { verb, resource: "configmaps", namespace: Some(namespace) };
    let live = cluster.ask(ask("get"), config_maps.get_opt(name)).await?;
    let stale =
        live.as_ref().map_or(Ok(Vec::new()), |live| stale_entries(live, namespace, name, &entry.key))?;
    let content = base64::engine::general_purpose::STANDARD.encode(&entry.bytes);
    let labels = json!({ LABEL: "true" });
    let request = async {
        if stale.is_empty() {
            let body = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "labels": labels},
                "binaryData": {(&*entry.key): content},
            });
            // Whoever pushes means it: the content is taken over from `kubectl create` as well.
            config_maps.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await
        } else {
            // Entries of others stay in an apply, and two components are none: here both change in one write.
            let mut binary_data = json!({(&*entry.key): content});
            let mut data = json!({});
            for (field, key) in stale {
                let of_field = if field == "data" { &mut data } else { &mut binary_data };
                of_field[key] = Value::Null;
            }
            let body = json!({"metadata": {"labels": labels}, "binaryData": binary_data, "data": data});
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            config_maps.patch(name, &params, &Patch::Merge(body)).await
        }
    };
    cluster.ask(ask("patch"), request).await.map(drop)
}

/// Components under another name, by the field they are in. A ConfigMap that is no plugin is left alone.
fn stale_entries<'a>(
    live: &'a ConfigMap,
    namespace: &str,
    name: &str,
    key: &str,
) -> anyhow::Result<Vec<(&'static str, &'a str)>> {
    if live.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)).is_none_or(|value| value != "true")
    {
        bail!(Failure::new(
            format!("ConfigMap {namespace}/{name} exists already and is no plugin"),
            format!(
                "choose another name with --name, or make it one: kubectl -n {namespace} label configmap {name} {LABEL}=true"
            ),
        ));
    }
    let data = live.data.iter().flatten().map(|(key, _)| ("data", &**key));
    let binary_data = live.binary_data.iter().flatten().map(|(key, _)| ("binaryData", &**key));
    let is_stale = |(_, other): &(_, &str)| is_component(other) && *other != key;
    let same_key_as_text = |(field, other): &(&str, &str)| *field == "data" && *other == key;
    Ok(data.chain(binary_data).filter(|entry| is_stale(entry) || same_key_as_text(entry)).collect())
}

/// What the host says of a digest.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ready { version: String, parent: String },
    Refused { reason: String, message: String },
}

/// The host's word about a digest, if it has one yet.
fn said(plugin: &Value, digest: &str) -> Option<Verdict> {
    let field = |pointer| text(plugin, pointer).to_owned();
    if text(plugin, "/status/refused/digest") == digest {
        let (reason, message) = (field("/status/refused/reason"), field("/status/refused/message"));
        return Some(Verdict::Refused { reason, message });
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
    let has_word = move |plugin: Option<&DynamicObject>| plugin.and_then(of).is_some();
    match tokio::time::timeout(timeout, await_condition(plugins.clone(), name, has_word)).await {
        Ok(Ok(plugin)) => plugin.as_ref().and_then(of).context("the Plugin vanished"),
        Ok(Err(error)) => Err(error).context("cannot watch plugins.oarlock.dev"),
        Err(_) => {
            let last = cluster.ask(ASK_PLUGIN, plugins.get_opt(name)).await?;
            bail!(overdue(last.as_ref().map(|plugin| &plugin.data), namespace, name, digest, timeout))
        }
    }
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
            format!("the host has not taken sha256 {} {waited}", &digest[..12]),
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
