//! `oarlock diff`: what a version of a plugin would change in the cluster, without changing it.

pub(super) mod fields;

use super::{
    cluster::{Cluster, Connection},
    live::{From, Live, is_named},
};
use crate::{
    act::preview::Changed,
    object::{Gvk, ObjectKey, Selector},
    plugins::preview::{Preview, Summary},
};
use anyhow::Context as _;
use clap::ValueEnum;
use fields::Difference;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// Nothing differs, something does, and it could not be told.
const DIFFERS: u8 = 1;
const FAILED: u8 = 2;

/// Shows what a version would change, object by object, and changes nothing.
///
/// The objects are read with your own rights. What would become of a child that changes is asked of the API server, as a
/// dry run, for which you need the right to patch it; without that the fields that the plugin sets are compared.
///
/// Exits with 0 if nothing would change, 1 if something would, 2 if that cannot be told.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A component's file, or a plugin: what its ConfigMap holds
    #[arg(value_name = "FILE|PLUGIN")]
    source: String,
    /// Only this object
    #[arg(value_name = "[NAMESPACE/]NAME")]
    object: Option<String>,
    /// The plugin that the file would be pushed to [default: that of the file's name]
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
    /// Only objects with these labels
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// How to show it [default: for people]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Exit with 1 if something would change
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    exit_code: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
}

/// What would change of one object.
struct Told {
    parent: ObjectKey,
    preview: Preview,
    /// Of the children that change, in their order.
    differences: Vec<(ObjectKey, Vec<Difference>)>,
}

/// Compares, and prints.
pub async fn run(args: Args, connection: &Connection) -> anyhow::Result<ExitCode> {
    match diff(&args, connection).await {
        Ok(0) => Ok(ExitCode::SUCCESS),
        Ok(_) => Ok(if args.exit_code { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS }),
        Err(error) => {
            super::said(&error);
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// How many objects would change.
async fn diff(args: &Args, connection: &Connection) -> anyhow::Result<usize> {
    let selector =
        args.selector.as_deref().map(Selector::parse).transpose().context("--selector is malformed")?;
    let cluster = connection.connect().await?;
    let from = From::FileOrSource(&args.source, args.plugin.as_deref());
    let (live, _) = Live::load(&cluster, &connection.host_namespace(), from).await?;
    let mut summary = Summary::default();
    let mut all = Vec::new();
    for parent in live.snapshot.list(&live.plugin.parents, None) {
        let is_named = args.object.as_deref().is_none_or(|object| is_named(&parent.key, object));
        if !is_named || selector.as_ref().is_some_and(|selector| !selector.matches(&parent.labels)) {
            continue;
        }
        let Live { plugin, snapshot, discovery, namespace, now } = &live;
        let preview = Preview::of(plugin, discovery, snapshot, parent, namespace, now).await?;
        summary.add(&parent.key, &preview);
        let mut differences = Vec::new();
        for changed in &preview.children.changed {
            differences.push((changed.live.key.clone(), compare(&cluster, &live, changed).await?));
        }
        let told = Told { parent: parent.key.clone(), preview, differences };
        if !told.preview.is_empty() {
            if args.output.is_none() {
                write!(io::stdout(), "{}", text(&told))?;
            }
            all.push(told);
        }
    }
    if args.output == Some(Output::Json) {
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&to_json(&live, &all, &summary))?)?;
    } else if all.is_empty() {
        writeln!(io::stderr(), "nothing would change: {} objects were looked at", summary.objects())?;
    } else {
        writeln!(io::stdout(), "{summary}")?;
    }
    Ok(summary.differing())
}

/// A child as it is and as it would be.
async fn compare(cluster: &Cluster, live: &Live, changed: &Changed) -> anyhow::Result<Vec<Difference>> {
    let key = &changed.live.key;
    let now: Value = serde_json::from_str(&changed.live.to_json())?;
    let kind = live.discovery.kind(&key.gvk).await?;
    let resource = ApiResource::from_gvk_with_plural(&to_kube(&key.gvk), &kind.plural);
    let api: Api<DynamicObject> = match &key.namespace {
        Some(namespace) => Api::namespaced_with(cluster.client.clone(), namespace, &resource),
        None => Api::all_with(cluster.client.clone(), &resource),
    };
    let params = PatchParams { dry_run: true, ..PatchParams::apply(&changed.manager).force() };
    let is_secret = fields::is_secret(&key.gvk);
    match api.patch(&key.name, &params, &Patch::Apply(&changed.body)).await {
        Ok(then) => Ok(fields::between(&now, &serde_json::to_value(&then)?, is_secret)),
        // What the API server would make of it is not told: what the plugin wants is.
        Err(kube::Error::Api(status)) => {
            let mut differences = fields::wanted(&now, &changed.body, is_secret);
            differences.push(Difference::note(format!("the API server says: {}", status.message)));
            Ok(differences)
        }
        Err(error) => Err(error).with_context(|| format!("cannot ask what would become of {key}")),
    }
}

fn to_kube(gvk: &Gvk) -> kube::core::GroupVersionKind {
    kube::core::GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind)
}

fn text(told: &Told) -> String {
    let Told { parent, preview, differences } = told;
    let children = &preview.children;
    let mut lines = vec![parent.to_string()];
    lines.extend(preview.failure.iter().map(|failure| format!("  ! fails: {failure}")));
    lines.extend(children.added.iter().map(|child| format!("  + {child}")));
    for (child, differences) in differences {
        lines.push(format!("  ~ {child}"));
        lines.extend(differences.iter().map(|difference| format!("      {difference}")));
    }
    lines.extend(children.removed.iter().map(|child| format!("  - {child}")));
    lines.extend(children.refused.iter().map(|(child, why)| format!("  ! {child}: {why}")));
    lines.extend(preview.conditions.iter().map(|(r#type, now, then)| {
        let now = if now.is_empty() { "absent" } else { now };
        format!("  condition {type}: {now} → {then}")
    }));
    lines.join("\n") + "\n"
}

fn to_json(live: &Live, all: &[Told], summary: &Summary) -> Value {
    let keys = |keys: &[ObjectKey]| keys.iter().map(reference).collect::<Vec<_>>();
    let objects = all.iter().map(|told| {
        let children = &told.preview.children;
        let changed = told.differences.iter().map(|(child, differences)| {
            let fields: Vec<_> = differences.iter().map(Difference::to_json).collect();
            json!({"object": reference(child), "fields": fields})
        });
        let refused =
            children.refused.iter().map(|(key, why)| json!({"object": reference(key), "message": why}));
        let conditions = told.preview.conditions.iter();
        let conditions =
            conditions.map(|(r#type, now, then)| json!({"type": r#type, "from": now, "to": then}));
        json!({
            "object": reference(&told.parent), "failure": told.preview.failure,
            "added": keys(&children.added), "changed": changed.collect::<Vec<_>>(),
            "removed": keys(&children.removed), "refused": refused.collect::<Vec<_>>(),
            "conditions": conditions.collect::<Vec<_>>(),
        })
    });
    json!({
        "apiVersion": "oarlock.dev/v1alpha1", "kind": "Diff",
        "plugin": &*live.plugin.name, "digest": &*live.plugin.digest, "version": live.plugin.manifest.version,
        "looked": summary.objects(), "objects": objects.collect::<Vec<_>>(),
    })
}

fn reference(key: &ObjectKey) -> Value {
    json!({
        "apiVersion": key.gvk.api_version(), "kind": &*key.gvk.kind,
        "namespace": key.namespace.as_deref(), "name": &*key.name,
    })
}
