//! The cluster that a command speaks to, and what its answers mean to the one who called it.

use super::{Failure, NAMESPACE};
use anyhow::anyhow;
use kube::{
    Api, Config,
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, DynamicObject, GroupVersionKind, Status},
};
use std::{error::Error, future::Future, path::PathBuf, time::Duration};

/// An API server that answers at all does so in milliseconds; an address where nobody is should be named soon.
const CONNECT: Duration = Duration::from_secs(5);
/// One request: longer than an admission webhook may take.
const REQUEST: Duration = Duration::from_secs(35);

const INSTALL: &str = "install Oarlock there: kubectl apply --server-side -k deploy";

/// Which cluster, and where in it.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Connection {
    /// The kubeconfig file; otherwise $KUBECONFIG, ~/.kube/config, or the pod's service account
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// The context in it
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
    // Neither default nor variable are clap's: `explain` has an option of this name for another namespace.
    /// The host's namespace, where plugins are; see [`host_namespace`](Self::host_namespace)
    #[arg(
        short,
        long,
        global = true,
        value_name = "NAME",
        help_heading = "Cluster",
        help = "The host's namespace, where plugins are [env: OARLOCK_NAMESPACE=] [default: oarlock-system]"
    )]
    pub namespace: Option<String>,
}

impl Connection {
    /// The host's namespace.
    pub fn host_namespace(&self) -> String {
        let given = self.namespace.clone().or_else(|| std::env::var("OARLOCK_NAMESPACE").ok());
        given.filter(|name| !name.is_empty()).unwrap_or_else(|| NAMESPACE.to_owned())
    }

    /// Whether the command line says which cluster is meant.
    pub fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// What kube needs to connect: the kubeconfig, or the service account inside a cluster.
    ///
    /// # Errors
    /// There is none, or it cannot be read, or lacks the context.
    pub async fn config(&self) -> anyhow::Result<Config> {
        Ok(self.locate().await?.0)
    }

    /// The configuration, and where it leads, in words.
    async fn locate(&self) -> anyhow::Result<(Config, String)> {
        let read = self.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
        let kubeconfig = match read {
            Ok(kubeconfig) => kubeconfig,
            Err(error) => {
                if let (None, None, Ok(mut config)) = (&self.kubeconfig, &self.context, Config::incluster()) {
                    config.connect_timeout = Some(CONNECT);
                    let place = format!("{} (as a ServiceAccount)", config.cluster_url);
                    return Ok((config, place));
                }
                return Err(anyhow!(root_cause(&error)).context(Failure::new(
                    format!("cannot read the kubeconfig {}", self.file()),
                    "name another with --kubeconfig or KUBECONFIG; `./dev cluster up` starts a cluster",
                )));
            }
        };
        let context = self.context.clone().or_else(|| kubeconfig.current_context.clone()).unwrap_or_default();
        let root_cert_file = root_cert_file(&kubeconfig, &context);
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
            let what = match &*context {
                "" => format!("the kubeconfig {} has no current context", self.file()),
                name => format!("context {name} of the kubeconfig {} cannot be used", self.file()),
            };
            let help = "list them with `kubectl config get-contexts`, name one with --context";
            anyhow!(root_cause(&error)).context(Failure::new(what, help))
        })?;
        config.connect_timeout = Some(CONNECT);
        config.root_cert_file = root_cert_file;
        let place = format!("{} (context {context} of {})", config.cluster_url, self.file());
        Ok((config, place))
    }

    fn file(&self) -> String {
        let file = self.kubeconfig.clone().or_else(|| std::env::var_os("KUBECONFIG").map(PathBuf::from));
        file.map_or_else(|| "~/.kube/config".to_owned(), |file| file.display().to_string())
    }

    /// A client, which has asked nothing yet.
    ///
    /// # Errors
    /// There is no configuration, or it makes no client.
    pub async fn connect(&self) -> anyhow::Result<Cluster> {
        let (config, place) = self.locate().await?;
        match kube::Client::try_from(config) {
            Ok(client) => Ok(Cluster { client, place }),
            Err(error) => Err(anyhow!(root_cause(&error)).context(Failure::new(
                format!("cannot connect to {place}"),
                "check the credentials in the kubeconfig",
            ))),
        }
    }
}

/// The file of the certificates that a context trusts, which kube reads again and again: they may be renewed.
fn root_cert_file(kubeconfig: &Kubeconfig, context: &str) -> Option<PathBuf> {
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()?;
    // What stands in the kubeconfig itself goes before the file.
    let file =
        cluster.certificate_authority.as_ref().filter(|_| cluster.certificate_authority_data.is_none());
    file.map(PathBuf::from)
}

/// A cluster to speak to.
pub struct Cluster {
    /// kube's client.
    pub client: kube::Client,
    /// Where it is, in words: URL, context, kubeconfig.
    place: String,
}

/// What is asked of the cluster, as in RBAC.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// `get`, `list`, `patch`, ….
    pub verb: &'static str,
    /// `plugins.oarlock.dev`, ….
    pub resource: &'static str,
    /// Where.
    pub namespace: Option<&'a str>,
}

impl Ask<'_> {
    fn place(&self) -> String {
        self.namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default()
    }
}

impl Cluster {
    /// The cluster's `Plugin`s.
    pub fn plugins(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "Plugin");
        Api::all_with(self.client.clone(), &ApiResource::from_gvk_with_plural(&kind, "plugins"))
    }

    /// Awaits an answer, for a while.
    ///
    /// # Errors
    /// Said for the one who called the command: what was not possible, and what to do.
    pub async fn ask<T>(
        &self,
        ask: Ask<'_>,
        request: impl Future<Output = kube::Result<T>>,
    ) -> anyhow::Result<T> {
        match tokio::time::timeout(REQUEST, request).await {
            Ok(answer) => answer.map_err(|error| self.explain(ask, error)),
            Err(_) => Err(anyhow!("no answer within {} s", REQUEST.as_secs()).context(self.unreachable())),
        }
    }

    /// A request's error in words.
    pub fn explain(&self, ask: Ask<'_>, error: kube::Error) -> anyhow::Error {
        match error {
            kube::Error::Api(status) => {
                let failure = self.refused(ask, &status);
                anyhow!(status.message).context(failure)
            }
            error @ (kube::Error::Service(_) | kube::Error::HyperError(_)) => {
                anyhow!(root_cause(&error)).context(self.unreachable())
            }
            error => {
                let Ask { verb, resource, .. } = ask;
                anyhow!(root_cause(&error)).context(format!("cannot {verb} {resource}{}", ask.place()))
            }
        }
    }

    fn refused(&self, ask: Ask<'_>, status: &Status) -> Failure {
        let Ask { verb, resource, namespace } = ask;
        let missing =
            status.details.as_ref().filter(|_| status.reason == "NotFound").map(|details| &*details.kind);
        match (status.code, missing) {
            (401, _) => Failure::new(
                format!("{} does not accept the credentials", self.place),
                "log in again, or name another context with --context",
            ),
            (403, _) => {
                let option = namespace.map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
                Failure::new(
                    format!("not allowed to {verb} {resource}{}", ask.place()),
                    format!(
                        "ask for the right; `kubectl auth can-i {verb} {resource}{option}` tells whether you have it"
                    ),
                )
            }
            (404, Some("namespaces")) => Failure::new(
                format!("there is no namespace {}", namespace.unwrap_or_default()),
                format!("name the host's with -n; if there is none: {INSTALL}"),
            ),
            (404, None | Some("")) => {
                Failure::new(format!("{} does not know {resource}", self.place), INSTALL)
            }
            (_, _) => Failure::new(format!("cannot {verb} {resource}{}", ask.place()), "see the cause above"),
        }
    }

    fn unreachable(&self) -> Failure {
        Failure::new(
            format!("cannot reach the cluster at {}", self.place),
            "is it running? `kubectl cluster-info` tells; name another with --context or --kubeconfig",
        )
    }
}

/// The innermost cause; what is around it repeats it, or tells of layers that nobody asked about.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let client = kube::Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        Cluster { client, place: "http://127.0.0.1:1 (context c of k)".into() }
    }

    fn status(code: u16, reason: &str, kind: Option<&str>) -> kube::Error {
        let details =
            kind.map(|kind| serde_json::from_value(serde_json::json!({"kind": kind, "name": "x"})).unwrap());
        let status =
            Status { code, reason: reason.into(), message: "words".into(), details, ..Status::success() };
        kube::Error::Api(Box::new(status))
    }

    #[tokio::test]
    async fn errors_name_what_was_asked_and_what_to_do() {
        let patch = Ask { verb: "patch", resource: "configmaps", namespace: Some("oarlock-system") };
        let list = Ask { verb: "list", resource: "plugins.oarlock.dev", namespace: None };
        for (ask, error, what, help) in [
            (
                patch,
                status(403, "Forbidden", Some("configmaps")),
                "not allowed to patch configmaps in namespace oarlock-system",
                "kubectl auth can-i patch configmaps -n oarlock-system",
            ),
            (
                list,
                status(403, "Forbidden", None),
                "not allowed to list plugins.oarlock.dev",
                "kubectl auth can-i list plugins.oarlock.dev`",
            ),
            (
                list,
                status(404, "Failed to parse error data", None),
                "http://127.0.0.1:1 (context c of k) does not know plugins.oarlock.dev",
                "kubectl apply --server-side -k deploy",
            ),
            (
                patch,
                status(404, "NotFound", Some("namespaces")),
                "there is no namespace oarlock-system",
                "name the host's with -n",
            ),
            (
                patch,
                status(401, "Unauthorized", None),
                "http://127.0.0.1:1 (context c of k) does not accept the credentials",
                "log in again",
            ),
            (
                patch,
                status(422, "Invalid", Some("ConfigMap")),
                "cannot patch configmaps in namespace oarlock-system",
                "cause",
            ),
        ] {
            let error = cluster().explain(ask, error);
            assert_eq!(error.to_string(), what);
            assert_eq!(error.root_cause().to_string(), "words");
            let failure = error.downcast_ref::<Failure>().unwrap();
            assert!(failure.help.contains(help), "{}", failure.help);
        }
    }

    #[tokio::test]
    async fn a_cluster_that_nobody_serves_is_named_with_its_context() {
        let cluster = cluster();
        let list = Ask { verb: "list", resource: "plugins.oarlock.dev", namespace: None };
        let error =
            cluster.ask(list, cluster.plugins().list(&kube::api::ListParams::default())).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot reach the cluster at http://127.0.0.1:1 (context c of k)");
        assert!(error.root_cause().to_string().contains("refused"), "{error:#}");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let connection = Connection { kubeconfig: Some("/nonexistent/k".into()), ..Connection::default() };
        let error = connection.config().await.unwrap_err();
        assert_eq!(error.to_string(), "cannot read the kubeconfig /nonexistent/k");
    }
}
