//! The harness itself: a control plane that behaves like a cluster, and an audit log that tells the truth.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use oarlock_tests::cluster::{Component, ControlPlane};
use oarlock_tests::eventually;
use serde_json::json;

/// Generous: it is only used up by what fails.
const DEADLINE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn control_plane_runs_and_collects_what_a_deployment_owns() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let client = plane.client_admin().await?;
    let mut audit = plane.audit().await?;
    create_namespace(&client, "collects").await?;

    let before = audit.mark().await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "collects");
    deployments.create(&PostParams::default(), &deployment("demo")).await?;
    eventually(DEADLINE, "two ready replicas", async || -> Result<()> {
        let status = deployments.get("demo").await?.status.unwrap_or_default();
        ensure!(status.ready_replicas == Some(2), "{:?} are ready", status.ready_replicas);
        Ok(())
    })
    .await?;

    deployments.delete("demo", &DeleteParams::background()).await?;
    let replica_sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "collects");
    let pods: Api<Pod> = Api::namespaced(client, "collects");
    eventually(DEADLINE, "nothing left", async || -> Result<()> {
        let left = replica_sets.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} replica sets");
        let left = pods.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} pods");
        Ok(())
    })
    .await?;

    let after = audit.mark().await?;
    let writes: Vec<_> = audit
        .writes_by(plane.user_admin(), before, after)
        .into_iter()
        .filter(|write| write.namespace == "collects")
        .map(|write| (&*write.verb, &*write.resource, &*write.name, write.code))
        .collect();
    assert_eq!(
        writes,
        [("create", "deployments", "demo", Some(201)), ("delete", "deployments", "demo", Some(200))]
    );
    let collected = audit
        .writes_by("system:serviceaccount:kube-system:generic-garbage-collector", before, after)
        .iter()
        .any(|write| {
            write.resource == "replicasets" && write.verb == "delete" && write.namespace == "collects"
        });
    assert!(collected, "the garbage collector deleted the replica set");
    Ok(())
}

#[tokio::test]
async fn namespace_takes_its_objects_along() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let client = plane.client_admin().await?;
    create_namespace(&client, "ends").await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "ends");
    maps.create(&PostParams::default(), &config_map("settings")).await?;

    let namespaces: Api<Namespace> = Api::all(client);
    namespaces.delete("ends", &DeleteParams::default()).await?;
    eventually(DEADLINE, "the namespace is gone", async || match namespaces.get_opt("ends").await {
        Ok(None) => Ok(()),
        Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
        Err(error) => Err(error.to_string()),
    })
    .await?;
    assert!(maps.get_opt("settings").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn host_may_do_nothing_that_it_was_not_given() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let mut audit = plane.audit().await?;
    let before = audit.mark().await?;
    let secrets: Api<Secret> = Api::namespaced(plane.client_host().await?, "default");
    let secret = serde_json::from_value(json!({"metadata": {"name": "forbidden"}}))?;
    match secrets.create(&PostParams::default(), &secret).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{status}"),
        answer => bail!("the host got {answer:?}"),
    }

    let after = audit.mark().await?;
    let codes: Vec<_> = audit
        .writes_by(plane.user_host(), before, after)
        .iter()
        .filter(|write| write.namespace == "default" && write.resource == "secrets")
        .map(|write| write.code)
        .collect();
    assert_eq!(codes, [Some(403)]);
    Ok(())
}

#[tokio::test]
async fn objects_outlive_the_api_server() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let plane = ControlPlane::start(dir.path().join("cluster")).await?;
    let client = plane.client_admin().await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &config_map("kept")).await?;

    plane.kill(Component::ApiServer)?;
    assert!(maps.get("kept").await.is_err(), "nobody listens");
    plane.launch(Component::ApiServer)?;
    plane.wait_until_ready().await?;
    assert!(maps.get_opt("kept").await?.is_some());

    plane.restart_api_server().await?;
    let mut audit = plane.audit().await?;
    let before = audit.mark().await?;
    maps.delete("kept", &DeleteParams::default()).await?;
    let after = audit.mark().await?;
    assert_eq!(audit.writes_by(plane.user_admin(), before, after).len(), 1);
    plane.stop_all().await
}

#[tokio::test]
async fn failed_start_names_the_process_and_its_last_words() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // etcd cannot make its folder where a file is.
    std::fs::write(dir.path().join("etcd"), "not a folder")?;
    let error = format!("{:#}", ControlPlane::start(dir.path()).await.unwrap_err());
    let log = dir.path().canonicalize()?.join("etcd.log");
    assert!(error.contains("etcd has ended"), "{error}");
    assert!(error.contains(&*log.to_string_lossy()), "{error}");
    assert!(error.contains("not a directory"), "{error}");
    Ok(())
}

#[tokio::test]
async fn cluster_command_leaves_a_control_plane_running_until_down() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path().join("cluster");
    let up = cluster(&dir, "up")?;
    assert!(up.status.success(), "{up:?}");
    let apiserver = std::fs::read_to_string(dir.join("kube-apiserver.pid"))?;
    let kubeconfig = cluster(&dir, "kubeconfig")?;
    let kubeconfig = String::from_utf8(kubeconfig.stdout)?;
    let client = oarlock_tests::cluster::client(Path::new(kubeconfig.trim())).await?;
    client.apiserver_version().await?;

    let again = cluster(&dir, "up")?;
    assert!(again.status.success(), "{again:?}");
    assert_eq!(std::fs::read_to_string(dir.join("kube-apiserver.pid"))?, apiserver, "it was left alone");

    let down = cluster(&dir, "down")?;
    assert!(down.status.success(), "{down:?}");
    assert!(client.apiserver_version().await.is_err(), "nobody listens");
    assert!(!dir.exists());
    let down = cluster(&dir, "down")?;
    assert!(down.status.success(), "{down:?}");
    assert!(!cluster(&dir, "kubeconfig")?.status.success());
    Ok(())
}

#[test]
fn cluster_command_refuses_a_folder_that_is_not_its_own() -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("precious"), "")?;
    for command in ["up", "down"] {
        let refused = cluster(dir.path(), command)?;
        assert!(!refused.status.success(), "{refused:?}");
    }
    assert!(dir.path().join("precious").exists());
    Ok(())
}

fn cluster(dir: &Path, command: &str) -> Result<Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_cluster")).arg("--dir").arg(dir).arg(command).output()?)
}

async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(())
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn deployment(name: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "nothing-runs"}]},
            },
        },
    }))
    .unwrap()
}
