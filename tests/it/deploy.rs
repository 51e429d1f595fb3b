//! The manifests of `deploy/`, as an API server sees them.

use anyhow::Result;

use crate::world::{REPOSITORY, World, kubectl};

#[tokio::test]
async fn every_object_of_deploy_is_accepted() -> Result<()> {
    let world = World::new("deploy").await?;
    let objects = kubectl(world.plane, ["kustomize", &format!("{REPOSITORY}/deploy")], None)?;
    let count = objects.lines().filter(|line| line.starts_with("kind: ")).count();
    let args = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-o",
        "name",
        "-f",
        "-",
    ];
    let accepted = kubectl(world.plane, args, Some(&objects))?;
    assert_eq!(accepted.lines().count(), count, "{accepted}");
    for kind in ["customresourcedefinition", "deployment", "serviceaccount", "clusterrole"] {
        assert!(accepted.lines().any(|line| line.starts_with(kind)), "no {kind} in {accepted}");
    }
    Ok(())
}

/// Rule Z5.
#[tokio::test]
async fn host_has_no_wildcard_rights() -> Result<()> {
    let world = World::new("deploy-rights").await?;
    let objects = kubectl(world.plane, ["kustomize", &format!("{REPOSITORY}/deploy")], None)?;
    let rules: Vec<_> = objects
        .lines()
        .skip_while(|line| !line.starts_with("kind: ClusterRole"))
        .filter(|line| line.contains("'*'") || line.contains("\"*\""))
        .collect();
    assert!(rules.is_empty(), "{rules:?}");
    Ok(())
}
