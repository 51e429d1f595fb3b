//! `oarlock build`: from a crate to a plugin, with nothing installed but Rust.
//!
//! Compiles for wasm32-unknown-unknown and makes the result a component without WASI: the smallest kind, and a
//! deterministic one.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is what a command is for")]

use crate::{config::Limits, decide::guest::inspect};
use anyhow::{Context, ensure};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
};
use tokio::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";
/// A stack of 64 KiB rather than 1 MiB: so little memory that the host keeps it between calls. A plan is data on
/// the heap; a stack that is too small shows as a trap that says so.
const LINK_ARGUMENT: &str = "-Clink-arg=-zstack-size=65536";

/// Builds a plugin from its crate.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The crate's folder
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Features of the crate, separated by commas
    #[arg(long, value_delimiter = ',')]
    features: Vec<String>,
    /// Where to write the component [default: the crate's name with .wasm, in its folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the component even if this host would refuse it
    #[arg(long)]
    no_check: bool,
}

/// Builds, and prints where the component is and how large.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.dir.join("Cargo.toml").is_file(),
        "{} holds no Cargo.toml; name the plugin's crate",
        args.dir.display()
    );
    check_target(&args.dir).await?;
    let artifact = compile(&args).await?;
    let module =
        fs::read(&artifact.wasm).with_context(|| format!("cannot read {}", artifact.wasm.display()))?;
    let component = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|mut encoder| encoder.encode())
        .with_context(|| format!("cannot make {} a component", artifact.wasm.display()))?;
    if !args.no_check {
        inspect::inspect(&component, &Limits::STANDARD).context("the crate builds, but it is no plugin")?;
    }
    let output = args.output.unwrap_or(artifact.default_output);
    fs::write(&output, &component).with_context(|| format!("cannot write {}", output.display()))?;
    writeln!(io::stdout(), "{}: {} bytes", output.display(), component.len())?;
    Ok(ExitCode::SUCCESS)
}

/// Says what to install before cargo fails with hundreds of lines.
async fn check_target(dir: &Path) -> anyhow::Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(dir)
        .stderr(Stdio::inherit())
        .output()
        .await;
    let output = explain_missing(output, "rustc")?;
    ensure!(output.status.success(), "rustc does not know the target {TARGET}; run: rustup update stable");
    let lib_dir = String::from_utf8_lossy(&output.stdout);
    let is_installed = fs::read_dir(lib_dir.trim()).is_ok_and(|mut entries| entries.next().is_some());
    ensure!(is_installed, "the Rust target {TARGET} is not installed; run: rustup target add {TARGET}");
    Ok(())
}

fn explain_missing<T>(result: io::Result<T>, program: &str) -> anyhow::Result<T> {
    result.map_err(|source| {
        let is_missing = source.kind() == io::ErrorKind::NotFound;
        let remedy = if is_missing { "; install Rust, see https://rustup.rs" } else { "" };
        anyhow::Error::new(source).context(format!("cannot run {program}{remedy}"))
    })
}

/// What cargo made.
#[derive(Debug, PartialEq, Eq)]
struct Artifact {
    wasm: PathBuf,
    default_output: PathBuf,
}

async fn compile(args: &Args) -> anyhow::Result<Artifact> {
    // `cargo rustc` gives an argument to the last step alone: flags that are set elsewhere stay as they are, and a
    // crate need not say that it is a `cdylib`.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["rustc", "--release", "--lib", "--crate-type", "cdylib", "--target", TARGET])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(&args.dir)
        .stderr(Stdio::inherit());
    if !args.features.is_empty() {
        cargo.args(["--features", &args.features.join(",")]);
    }
    if !sets_stack_size(&args.dir) {
        cargo.args(["--", LINK_ARGUMENT]);
    }
    let output = explain_missing(cargo.output().await, "cargo")?;
    ensure!(output.status.success(), "the crate does not build");
    artifact(&output.stdout)?
        .context("cargo built no WebAssembly module; the crate needs a library (src/lib.rs)")
}

/// The last module among cargo's messages: the crate's own, as its dependencies come before it.
fn artifact(messages: &[u8]) -> anyhow::Result<Option<Artifact>> {
    #[derive(serde::Deserialize)]
    struct Message {
        #[serde(default)]
        manifest_path: PathBuf,
        #[serde(default)]
        filenames: Vec<PathBuf>,
        target: Option<Target>,
    }
    #[derive(serde::Deserialize)]
    struct Target {
        name: String,
    }
    let mut last = None;
    for line in messages.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
        let message: Message = serde_json::from_slice(line).context("cannot read what cargo says")?;
        let is_module = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "wasm");
        let (Some(target), Some(wasm)) = (message.target, message.filenames.into_iter().find(is_module))
        else {
            continue;
        };
        let name = format!("{}.wasm", target.name.replace('_', "-"));
        last = Some(Artifact { wasm, default_output: message.manifest_path.with_file_name(name) });
    }
    Ok(last)
}

/// Whether flags or files that cargo reads set the stack size already: the author's choice wins.
fn sets_stack_size(dir: &Path) -> bool {
    let variables = ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS"];
    let in_variables = variables.iter().filter_map(|name| std::env::var(name).ok());
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let folders = dir.ancestors().map(|folder| folder.join(".cargo")).chain(home);
    let in_files = folders
        .flat_map(|folder| ["config.toml", "config"].map(|name| folder.join(name)))
        .filter_map(|file| fs::read_to_string(file).ok());
    in_variables.chain(in_files).any(|text| text.contains("stack-size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifact_is_the_last_module_of_cargos_messages() {
        let messages = br#"
{"reason":"compiler-artifact","manifest_path":"/d/Cargo.toml","target":{"name":"dep"},"filenames":["/t/libdep.rlib"]}
{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","target":{"name":"my_site"},"filenames":["/t/libmy_site.rlib","/t/my_site.wasm"]}
{"reason":"build-finished","success":true}
"#;
        let expected = Artifact { wasm: "/t/my_site.wasm".into(), default_output: "/c/my-site.wasm".into() };
        assert_eq!(artifact(messages).unwrap(), Some(expected));
        assert_eq!(artifact(b"").unwrap(), None);
        artifact(b"{").unwrap_err();
    }

    #[test]
    fn stack_size_is_left_alone_when_a_file_sets_it() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("plugins/site");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(dir.path().join(".cargo")).unwrap();
        let config = dir.path().join(".cargo/config.toml");
        fs::write(
            &config,
            "[target.wasm32-unknown-unknown]\nrustflags = [\"-Clink-arg=-zstack-size=1048576\"]\n",
        )
        .unwrap();
        assert!(sets_stack_size(&inner));
    }
}
