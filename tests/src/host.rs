//! The host, as a process that a test starts, stops and kills.
//!
//! Its log is `oarlock.log` in the folder of its control plane; a start appends to it.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cluster::{ControlPlane, Lifetime, Process, dev_cache, find_file, free_port};
use crate::eventually;

/// How long a start may take: well below a second on an idle machine.
const START_DEADLINE: Duration = Duration::from_mins(1);

/// How long the admin endpoint may take to answer.
const ADMIN_DEADLINE: Duration = Duration::from_secs(5);

/// The namespace in which hosts run unless a test says otherwise: that of their service account.
pub const NAMESPACE: &str = "oarlock-system";

/// How a host is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where its plugins are.
    pub namespace: String,
    /// Whose rights it has.
    pub kubeconfig: PathBuf,
    /// Where it keeps compiled code.
    pub cache_dir: PathBuf,
    /// Reconciles at the same time.
    pub workers: usize,
    /// More flags of `oarlock run`.
    pub flags: Vec<String>,
    /// What a shell does in the folder of the control plane before it becomes the host; empty for no shell.
    pub shell: String,
}

impl Options {
    /// As it runs in a cluster: with the rights of its service account.
    pub fn standard(plane: &ControlPlane) -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            kubeconfig: plane.kubeconfig_host(),
            cache_dir: plane.dir().join("code-cache"),
            workers: 4,
            flags: Vec::new(),
            shell: String::new(),
        }
    }
}

/// A running host; it ends when it is dropped, or with the process that started it.
#[derive(Debug)]
pub struct Host {
    process: Process,
    admin: String,
}

impl Host {
    /// Starts a host; [`ready`](Self::ready) waits until it serves.
    pub fn start(plane: &ControlPlane, options: &Options) -> Result<Self> {
        let admin = format!("127.0.0.1:{}", free_port()?);
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let mut args = vec![
            "--kubeconfig".to_owned(),
            path(&options.kubeconfig),
            "--namespace".to_owned(),
            options.namespace.clone(),
            "run".to_owned(),
            "--admin".to_owned(),
            admin.clone(),
            "--cache-dir".to_owned(),
            path(&options.cache_dir),
            "--workers".to_owned(),
            options.workers.to_string(),
        ];
        args.extend(options.flags.iter().cloned());
        let mut program = program()?;
        if !options.shell.is_empty() {
            let script = format!("{}\nexec \"$0\" \"$@\"", options.shell);
            args.splice(..0, ["-c".to_owned(), script, path(&program)]);
            program = "/bin/sh".into();
        }
        let process = Process::spawn("oarlock", &program, &args, plane.dir(), Lifetime::Owner)?;
        Ok(Self { process, admin })
    }

    /// Waits until it says that it is ready.
    pub async fn ready(&self) -> Result<()> {
        let ready = eventually(START_DEADLINE, "a ready host", async || {
            self.check_running()?;
            self.get("/readyz").await
        });
        ready.await.map(drop).map_err(|error| error.context(self.log_tail()))
    }

    /// Where it serves its admin endpoint: `127.0.0.1:40123`.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The process number, which tells two starts apart.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Fails when the host has ended.
    pub fn check_running(&self) -> Result<()> {
        self.process.check_running()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// The body of an answer of the admin endpoint; any status but 200 is an error.
    pub async fn get(&self, path: &str) -> Result<String> {
        let answer = timeout(ADMIN_DEADLINE, http_get(&self.admin, path)).await;
        answer.with_context(|| format!("no answer to {path}"))?.with_context(|| format!("cannot get {path}"))
    }

    /// What `/metrics` says now.
    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&self.get("/metrics").await?)
    }

    /// Stops it in an orderly way, which takes at most ten seconds and succeeds.
    pub async fn stop(mut self) -> Result<()> {
        let status = self.process.terminate().await?;
        ensure!(status.success(), "the host ended with {status}");
        Ok(())
    }

    /// Ends it at once, as a crash would.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if thread::panicking() {
            complain(&self.log_tail());
        }
    }
}

#[expect(clippy::print_stderr, reason = "a failed test is explained by it")]
fn complain(text: &str) {
    eprintln!("{text}");
}

/// The program under test.
pub fn program() -> Result<PathBuf> {
    let program = match env::var_os("OARLOCK_BIN") {
        Some(program) => program.into(),
        None => dev_cache()?.join("target/debug/oarlock"),
    };
    ensure!(program.is_file(), "{} is missing; run `./dev test`, which builds it", program.display());
    Ok(program)
}

/// The component of an example plugin or a test guest.
pub fn component(name: &str) -> Result<Vec<u8>> {
    let path = component_path(name)?;
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Where the component of an example plugin or a test guest is.
pub fn component_path(name: &str) -> Result<PathBuf> {
    let folder = match env::var_os("OARLOCK_GUESTS") {
        Some(folder) => folder.into(),
        None => dev_cache()?.join("guests/out"),
    };
    let path = folder.join(format!("{name}.wasm"));
    ensure!(path.is_file(), "{} is missing; run `./dev guests`", path.display());
    Ok(path)
}

/// Where kubectl is.
pub fn kubectl() -> Result<PathBuf> {
    find_file("kubectl")
}

/// The samples of a Prometheus endpoint.
#[derive(Debug)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').with_context(|| format!("no sample: {line}"))?;
            let value = value.parse().with_context(|| format!("no number: {line}"))?;
            Ok((name.to_owned(), value))
        });
        Ok(Self(samples.collect::<Result<_>>()?))
    }

    /// The sum of the samples of this name that have all these labels, each given as `name="value"`.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let samples = self.0.iter().filter(|(sample, _)| {
            let (found, rest) = sample.split_once('{').unwrap_or((sample, ""));
            found == name && labels.iter().all(|label| rest.contains(label))
        });
        samples.map(|(_, value)| value).sum()
    }
}

/// One request, one answer: the admin endpoint speaks plain HTTP on loopback.
async fn http_get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("no HTTP answer: {answer:?}") };
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "{status}: {body}");
    ensure!(!head.to_ascii_lowercase().contains("transfer-encoding"), "the answer comes in chunks: {head}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_by_name_and_labels() {
        let text = "# HELP calls Calls.\n# TYPE calls counter\n\
                    calls_total{plugin=\"a\",result=\"ok\"} 2\ncalls_total{plugin=\"b\",result=\"ok\"} 3\nup 1\n# EOF\n";
        let metrics = Metrics::parse(text).unwrap();
        assert!((metrics.sum("calls_total", &[]) - 5.0).abs() < f64::EPSILON);
        assert!((metrics.sum("calls_total", &["plugin=\"b\""]) - 3.0).abs() < f64::EPSILON);
        assert!((metrics.sum("up", &[]) - 1.0).abs() < f64::EPSILON);
        assert!(metrics.sum("calls", &[]).abs() < f64::EPSILON);
    }
}
