//! `oarlock get`: what is in the cluster, as kubectl would show it.

use super::cluster::{Ask, Cluster, Connection};
use crate::plugins::source::short;
use clap::ValueEnum;
use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::{
    api::ListParams,
    core::DynamicObject,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
};

/// Shows what is in the cluster.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to show
    what: What,
    /// Only the one of this name
    name: Option<String>,
    /// How to show it [default: a table]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Go on with what changes
    #[arg(short, long)]
    watch: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    #[value(alias = "plugin")]
    Plugins,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
    Wide,
    Name,
}

/// Shows, and goes on if asked to.
pub async fn run(args: Args, connection: &Connection) -> anyhow::Result<ExitCode> {
    let What::Plugins = args.what;
    let cluster = connection.connect().await?;
    let name = args.name.as_deref();
    let plugins = fetch(&cluster, name).await?;
    if plugins.is_empty() && !args.watch {
        writeln!(io::stderr(), "No plugins found")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut printer = Printer::new(args.output);
    let is_one = args.name.is_some() || args.watch;
    printer.all(&plugins, is_one, Timestamp::now(), &mut io::stdout())?;
    if args.watch {
        follow(&cluster, name, plugins, printer).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn fetch(cluster: &Cluster, name: Option<&str>) -> anyhow::Result<Vec<Value>> {
    let ask = |verb| Ask { verb, resource: "plugins.oarlock.dev", namespace: None };
    let objects = if let Some(name) = name {
        vec![cluster.ask(ask("get"), cluster.plugins().get(name)).await?]
    } else {
        cluster.ask(ask("list"), cluster.plugins().list(&ListParams::default())).await?.items
    };
    objects.iter().map(to_value).collect()
}

/// Prints what changes, until the reader has enough.
async fn follow(
    cluster: &Cluster,
    name: Option<&str>,
    plugins: Vec<Value>,
    mut printer: Printer,
) -> anyhow::Result<()> {
    let version = |plugin: &Value| text(plugin, "/metadata/resourceVersion").to_owned();
    let mut seen: BTreeMap<String, String> =
        plugins.iter().map(|plugin| (text(plugin, "/metadata/name").to_owned(), version(plugin))).collect();
    let config = name.map_or_else(watcher::Config::default, |name| {
        watcher::Config::default().fields(&format!("metadata.name={name}"))
    });
    let mut changes = std::pin::pin!(watcher(cluster.plugins(), config).default_backoff().touched_objects());
    loop {
        // A watch that ends is opened again, and lists: what was printed as it is now is not printed again.
        let change = match changes.try_next().await {
            Ok(None) => return Ok(()),
            Ok(Some(change)) => to_value(&change)?,
            Err(error) => {
                tracing::warn!(error = %error, "watch interrupted, trying again");
                continue;
            }
        };
        let key = text(&change, "/metadata/name").to_owned();
        let version = version(&change);
        if seen.insert(key, version.clone()).is_none_or(|before| before != version) {
            printer.all(&[change], true, Timestamp::now(), &mut io::stdout())?;
        }
    }
}

/// As kubectl prints it: with apiVersion and kind, which items of lists lack, and without managedFields.
fn to_value(object: &DynamicObject) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = "oarlock.dev/v1alpha1".into();
    value["kind"] = "Plugin".into();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Ok(value)
}

/// A text in an object; empty where there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The `Ready` condition.
pub(super) fn ready(plugin: &Value) -> Option<&Value> {
    condition(plugin, "Ready")
}

/// A condition.
pub(super) fn condition<'a>(plugin: &'a Value, r#type: &str) -> Option<&'a Value> {
    let conditions = plugin.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().find(|condition| condition["type"] == r#type)
}

/// Prints objects one way; a table keeps the widths of its first rows.
struct Printer {
    output: Option<Output>,
    widths: Option<Vec<usize>>,
}

impl Printer {
    fn new(output: Option<Output>) -> Self {
        Self { output, widths: None }
    }

    fn all(
        &mut self,
        plugins: &[Value],
        is_one: bool,
        now: Timestamp,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        match self.output {
            None | Some(Output::Wide) => self.table(plugins, now, out)?,
            Some(Output::Name) => {
                for plugin in plugins {
                    writeln!(out, "plugin.oarlock.dev/{}", text(plugin, "/metadata/name"))?;
                }
            }
            Some(format @ (Output::Json | Output::Yaml)) => {
                let list = [json!({"apiVersion": "v1", "kind": "List", "items": plugins})];
                for object in if is_one { plugins } else { &list } {
                    if format == Output::Json {
                        writeln!(out, "{}", serde_json::to_string_pretty(object)?)?;
                    } else {
                        writeln!(out, "---\n{}", serde_saphyr::to_string(object)?.trim_end())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn table(&mut self, plugins: &[Value], now: Timestamp, out: &mut impl Write) -> io::Result<()> {
        let mut rows: Vec<Vec<String>> = plugins.iter().map(|plugin| row(plugin, now)).collect();
        let columns = if self.output == Some(Output::Wide) { HEADER.len() } else { HEADER.len() - 1 };
        let widths = self.widths.take().unwrap_or_else(|| {
            rows.insert(0, HEADER.map(str::to_owned).into());
            (0..columns)
                .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
                .collect()
        });
        for row in rows {
            let cells: Vec<String> =
                row[..columns].iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            writeln!(out, "{}", cells.join("   ").trim_end())?;
        }
        self.widths = Some(widths);
        Ok(())
    }
}

/// The last column is for `wide`.
const HEADER: [&str; 8] = ["NAME", "VERSION", "DIGEST", "READY", "REASON", "PARENT", "AGE", "MESSAGE"];

fn row(plugin: &Value, now: Timestamp) -> Vec<String> {
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    let digest = text(plugin, "/status/active/digest");
    let said = |field| ready(plugin).map(|condition| text(condition, field)).unwrap_or_default();
    vec![
        or(text(plugin, "/metadata/name"), "<none>"),
        or(text(plugin, "/status/active/version"), "<none>"),
        or(short(digest), "<none>"),
        or(said("/status"), "Unknown"),
        or(said("/reason"), "<none>"),
        or(text(plugin, "/status/active/parent"), "<none>"),
        text(plugin, "/metadata/creationTimestamp")
            .parse()
            .map_or_else(|_| "<unknown>".to_owned(), |at| age(at, now)),
        or(&said("/message").split_whitespace().collect::<Vec<_>>().join(" "), "<none>"),
    ]
}

/// How long ago, as kubectl says it: two units where the second still matters.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let seconds = now.duration_since(since).as_secs().max(0);
    let two = |large: i64, one: &str, small: i64, other: &str| match seconds % large / small {
        0 => format!("{}{one}", seconds / large),
        rest => format!("{}{one}{rest}{other}", seconds / large),
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        _ => two(365 * DAY, "y", DAY, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugins() -> Vec<Value> {
        vec![
            json!({
                "apiVersion": "oarlock.dev/v1alpha1", "kind": "Plugin",
                "metadata": {"name": "website", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "status": {
                    "active": {"digest": "0123456789abcdef", "version": "1.2.0", "parent": "Website (demo.oarlock.dev/v1)"},
                    "conditions": [
                        {"type": "Other", "status": "False"},
                        {"type": "Ready", "status": "True", "reason": "Active", "message": "serves\nall"},
                    ],
                },
            }),
            json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": "new"}}),
        ]
    }

    fn print(printer: &mut Printer, plugins: &[Value], is_one: bool) -> String {
        let mut out = Vec::new();
        printer.all(plugins, is_one, "2026-01-01T01:00:00Z".parse().unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn table_is_aligned_and_keeps_its_widths() {
        let mut table = Printer::new(None);
        let expected = "\
NAME      VERSION   DIGEST         READY     REASON   PARENT                          AGE
website   1.2.0     0123456789ab   True      Active   Website (demo.oarlock.dev/v1)   60m
new       <none>    <none>         Unknown   <none>   <none>                          <unknown>
";
        assert_eq!(print(&mut table, &plugins(), false), expected);
        let again = "new       <none>    <none>         Unknown   <none>   <none>                          <unknown>\n";
        assert_eq!(print(&mut table, &plugins()[1..], true), again);
        let wide = print(&mut Printer::new(Some(Output::Wide)), &plugins(), false);
        assert!(wide.lines().nth(1).unwrap().ends_with("60m         serves all"), "{wide}");
    }

    #[test]
    fn objects_are_printed_whole_for_programs() {
        let names = print(&mut Printer::new(Some(Output::Name)), &plugins(), false);
        assert_eq!(names, "plugin.oarlock.dev/website\nplugin.oarlock.dev/new\n");
        let all: Value =
            serde_json::from_str(&print(&mut Printer::new(Some(Output::Json)), &plugins(), false)).unwrap();
        assert_eq!((&all["kind"], &all["items"][0]), (&json!("List"), &plugins()[0]));
        let one = print(&mut Printer::new(Some(Output::Json)), &plugins()[..1], true);
        assert_eq!(serde_json::from_str::<Value>(&one).unwrap(), plugins()[0]);
        let yaml = print(&mut Printer::new(Some(Output::Yaml)), &plugins()[..1], true);
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), plugins()[0]);
    }

    #[test]
    fn age_is_told_as_kubectl_does() {
        let then: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (seconds, expected) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (27_000, "7h30m"),
            (172_799, "47h"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_072_000 + 86_400 * 30, "2y30d"),
        ] {
            assert_eq!(age(then, then + jiff::SignedDuration::from_secs(seconds)), expected, "{seconds}");
        }
    }
}
