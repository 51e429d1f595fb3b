//! The files a control plane starts with: keys, tokens, kubeconfigs, audit policy.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, KeyPair};

/// Who talks to the API server.
#[derive(Debug, Clone, Copy)]
pub(super) enum User {
    Admin,
    Host,
    ControllerManager,
    Scheduler,
    Kwok,
}

impl User {
    const ALL: [Self; 5] = [Self::Admin, Self::Host, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    /// The name in the audit log and in role bindings.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Host => "system:serviceaccount:oarlock-system:oarlock",
            // The names that the bootstrap roles of every cluster are bound to.
            Self::ControllerManager => "system:kube-controller-manager",
            Self::Scheduler => "system:kube-scheduler",
            Self::Kwok => "kwok",
        }
    }

    fn groups(self) -> &'static str {
        match self {
            Self::Admin | Self::Kwok => "system:masters",
            // What the API server itself adds to the token of a service account.
            Self::Host => "system:serviceaccounts,system:serviceaccounts:oarlock-system",
            Self::ControllerManager | Self::Scheduler => "",
        }
    }

    /// Where the kubeconfig of this user is.
    pub(super) fn kubeconfig(self, dir: &Path) -> PathBuf {
        dir.join(match self {
            Self::Admin => "admin.kubeconfig",
            Self::Host => "host.kubeconfig",
            Self::ControllerManager => "kube-controller-manager.kubeconfig",
            Self::Scheduler => "kube-scheduler.kubeconfig",
            Self::Kwok => "kwok.kubeconfig",
        })
    }
}

/// The name of the file that holds [`AUDIT_POLICY`].
pub(super) const AUDIT_POLICY_FILE: &str = "audit-policy.yaml";

/// Every request at level Metadata, in all its stages.
///
/// The stage `RequestReceived` is kept on purpose: it is logged before the request is handled, while
/// `ResponseComplete` is logged after the client has its answer, too late for a test that looks at once.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
";

/// Tells a folder that a control plane was started in, or an empty one, from any other.
pub(super) fn is_written_by_us(dir: &Path) -> bool {
    dir.join(AUDIT_POLICY_FILE).is_file()
        || fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// Writes everything into `dir`, readable by its owner only.
pub(super) fn write_all(dir: &Path, api_port: u16) -> Result<()> {
    fs::set_permissions(dir, Permissions::from_mode(0o700))
        .with_context(|| format!("cannot close {} to others", dir.display()))?;

    let serving = KeyPair::generate().context("cannot generate the serving key")?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])
        .and_then(|params| params.self_signed(&serving))
        .context("cannot sign the serving certificate")?;
    write(dir, "apiserver.key", &serving.serialize_pem())?;
    write(dir, "apiserver.crt", &certificate.pem())?;

    let service_accounts = KeyPair::generate().context("cannot generate the service account key")?;
    write(dir, "service-account.key", &service_accounts.serialize_pem())?;
    write(dir, "service-account.pub", &service_accounts.public_key_pem())?;

    write(dir, AUDIT_POLICY_FILE, AUDIT_POLICY)?;

    let mut tokens = Vec::new();
    for user in User::ALL {
        let token = random_token()?;
        let (name, groups) = (user.name(), user.groups());
        tokens.push(format!("{token},{name},{name},\"{groups}\"\n"));
        let path = user.kubeconfig(dir);
        write(dir, &path.to_string_lossy(), &kubeconfig(dir, api_port, user, &token))?;
    }
    write(dir, "tokens.csv", &tokens.concat())
}

fn kubeconfig(dir: &Path, api_port: u16, user: User, token: &str) -> String {
    let certificate = dir.join("apiserver.crt");
    let (name, certificate) = (user.name(), certificate.display());
    format!(
        r#"apiVersion: v1
kind: Config
clusters:
- name: oarlock
  cluster:
    server: https://127.0.0.1:{api_port}
    certificate-authority: "{certificate}"
users:
- name: {name}
  user:
    token: {token}
contexts:
- name: oarlock
  context:
    cluster: oarlock
    user: {name}
current-context: oarlock
"#
    )
}

fn write(dir: &Path, name: &str, content: &str) -> Result<()> {
    let path = dir.join(name);
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
