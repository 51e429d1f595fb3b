//! `oarlock check`: what a host would say about a plugin's file, before it is uploaded.

mod rbac;

use crate::{
    config::Limits,
    decide::guest::{CallError, Guest, LoadError, compile, engine::Engine, inspect},
    manifest::{Manifest, Selection},
    object::Gvk,
    plugins::source::digest,
    report::chain,
};
use anyhow::Context;
use serde::Serialize;
use std::{
    error::Error,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// A plugin was looked at and refused.
const REFUSED: u8 = 1;
/// It could not be looked at.
const NOT_CHECKED: u8 = 2;

/// Above this, `kubectl apply` of a `ConfigMap` fails: it keeps a copy in an annotation, in base64, and annotations
/// end at 262,144 bytes.
const CLIENT_APPLY_BYTES: usize = 190_000;
/// What a `ConfigMap` holds.
const CONFIG_MAP_BYTES: usize = 1 << 20;

/// Checks a plugin's file as a host would: structure, contract, manifest.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit status: 0 good, 1 refused, 2 could not be checked.")]
pub struct Args {
    /// The component
    file: PathBuf,
    /// Print the rights that the plugin's kinds need, as YAML for `kubectl apply`
    #[arg(long)]
    rbac: bool,
    /// The host's service account, for --rbac
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "oarlock-system/oarlock", value_parser = rbac::parse_account)]
    service_account: rbac::Account,
    /// Print the verdict for programs
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

/// How a verdict is printed for programs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Json,
    Yaml,
}

/// What is known about a file, as far as the check got.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    file: PathBuf,
    accepted: bool,
    /// Why it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    digest: String,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<inspect::Facts>,
    /// As `describe` returns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<serde_json::Value>,
    warnings: Vec<String>,
}

/// Checks a file and prints the verdict.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (verdict, manifest) = match check(&args.file).await {
        Ok(checked) => checked,
        Err(error) => {
            writeln!(io::stderr(), "error: {error:#}")?;
            return Ok(ExitCode::from(NOT_CHECKED));
        }
    };
    let text = match (args.rbac, args.output) {
        (false, None) => to_text(&verdict, manifest.as_ref()),
        (false, Some(Format::Json)) => serde_json::to_string_pretty(&verdict)? + "\n",
        (false, Some(Format::Yaml)) => serde_saphyr::to_string(&verdict)?,
        (true, _) => match &manifest {
            Some(manifest) => rbac::yaml(&plugin_name(&args.file), manifest, &args.service_account)?,
            None => String::new(),
        },
    };
    write!(io::stdout(), "{text}")?;
    if args.rbac && !verdict.accepted {
        // Whatever reads stdout expects objects.
        write!(io::stderr(), "{}", to_text(&verdict, None))?;
    }
    Ok(if verdict.accepted { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

/// The verdict, and the manifest if the plugin is good.
async fn check(file: &Path) -> anyhow::Result<(Verdict, Option<Manifest>)> {
    let limits = &Limits::STANDARD;
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut verdict =
        Verdict { file: file.to_owned(), size: bytes.len(), digest: digest(&bytes), ..Verdict::default() };
    let refused = |mut verdict: Verdict, reason: &dyn Error| {
        verdict.reason = Some(chain(reason));
        Ok((verdict, None))
    };
    match inspect::inspect(&bytes, limits) {
        Ok(facts) => verdict.facts = Some(facts),
        Err(error) => return refused(verdict, &error),
    }
    let compiler = std::env::current_exe().context("cannot tell which program this is")?;
    let engine = Engine::with(1, None, compiler)?;
    let text = match describe(&engine, &verdict.digest, &bytes, limits).await {
        Ok(text) => text,
        Err(error) if is_host_fault(&error) => return Err(error).context("cannot run the plugin here"),
        Err(error) => return refused(verdict, &error),
    };
    verdict.manifest = serde_json::from_str(&text).ok();
    verdict.warnings = warnings(bytes.len());
    match Manifest::parse(&text) {
        Ok(manifest) => {
            verdict.accepted = true;
            let switches = manifest.sensitive_kinds();
            if !switches.is_empty() {
                let switches = switches.into_iter().collect::<Vec<_>>().join(", ");
                verdict.warnings.push(format!(
                    "it is in force only where the operator allows it sensitive kinds: its Plugin needs \
                     spec.permissions.sensitiveKinds: [{switches}]"
                ));
            }
            Ok((verdict, Some(manifest)))
        }
        Err(error) => refused(verdict, &error),
    }
}

async fn describe(engine: &Engine, digest: &str, bytes: &[u8], limits: &Limits) -> Result<String, LoadError> {
    let guest = Guest::load(engine, digest, bytes, limits).await?;
    guest.describe(limits).await.map_err(LoadError::Describe)
}

fn is_host_fault(error: &LoadError) -> bool {
    matches!(
        error,
        LoadError::Compile(compile::Error::Spawn(_) | compile::Error::Garbage)
            | LoadError::Describe(CallError::Host(_))
    )
}

fn warnings(size: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    if size > CONFIG_MAP_BYTES {
        warnings.push(format!("{size} bytes do not fit into a ConfigMap ({CONFIG_MAP_BYTES}); `oarlock push` compresses it, which brings a Rust plugin to less than half"));
    } else if size > CLIENT_APPLY_BYTES {
        warnings.push(
            "too large for plain `kubectl apply` of a ConfigMap; use `oarlock push`, `kubectl create configmap`, or \
             `kubectl apply --server-side`"
                .to_owned(),
        );
    }
    warnings
}

/// A plugin is named after its `ConfigMap`, and that usually after the file.
fn plugin_name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    stem.chars().map(|char| if char.is_ascii_alphanumeric() || char == '.' { char } else { '-' }).collect()
}

fn to_text(verdict: &Verdict, manifest: Option<&Manifest>) -> String {
    let mut lines = vec![match &verdict.reason {
        None => format!("{}: good", verdict.file.display()),
        Some(reason) => format!("{}: refused: {reason}", verdict.file.display()),
    }];
    let mut line = |title: &str, text: String| lines.push(format!("  {title:<10}{text}"));
    line("size", format!("{} bytes, sha256 {}", verdict.size, verdict.digest));
    if let Some(facts) = &verdict.facts {
        line("imports", names(&facts.imports));
        line(
            "WASI",
            if facts.wasi { "sealed; a plugin built with `oarlock build` does without" } else { "none" }
                .to_owned(),
        );
    }
    if let Some(manifest) = manifest {
        line("plugin", format!("{} {}", manifest.name, manifest.version));
        line("parent", selection(&manifest.parent));
        line("children", names(manifest.children.iter().map(Gvk::to_string).collect::<Vec<_>>().as_slice()));
        line("reads", names(manifest.reads.iter().map(selection).collect::<Vec<_>>().as_slice()));
        line("finalizes", yes_or_no(manifest.finalizes));
        line("status", yes_or_no(manifest.status));
        if !manifest.crds.is_empty() {
            line("CRDs", manifest.crds.len().to_string());
        }
    }
    for warning in &verdict.warnings {
        line("warning", warning.clone());
    }
    lines.join("\n") + "\n"
}

fn names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn selection(selection: &Selection) -> String {
    let mut text = selection.gvk.to_string();
    if let Some(selector) = &selection.label_selector {
        let _ = write!(text, " with labels {selector}");
    }
    if let Some(namespace) = &selection.namespace {
        let _ = write!(text, " in namespace {namespace}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_name_is_a_valid_name_made_of_the_files() {
        for (file, name) in [("/x/My_Site.wasm", "my-site"), ("site.v1.wasm", "site.v1")] {
            assert_eq!(plugin_name(Path::new(file)), name);
        }
    }

    #[tokio::test]
    async fn check_says_what_is_wrong_with_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.wasm");
        fs::write(&file, "hello").unwrap();
        let (verdict, manifest) = check(&file).await.unwrap();
        let text = to_text(&verdict, manifest.as_ref());
        assert!(!verdict.accepted && text.contains("site.wasm: refused: the file is text"), "{text}");
        check(&dir.path().join("missing.wasm")).await.unwrap_err();
    }

    #[test]
    fn warnings_come_with_the_size() {
        for (size, expected) in
            [(190_000, None), (190_001, Some("kubectl apply")), (2 << 20, Some("oarlock push"))]
        {
            let warnings = warnings(size);
            assert_eq!(warnings.len(), usize::from(expected.is_some()), "{size}");
            assert!(
                warnings.iter().all(|warning| warning.contains(expected.unwrap_or_default())),
                "{warnings:?}"
            );
        }
    }
}
