//! Parents of every scope: kinds that Kubernetes brings along, cluster-scoped ones, and several plugins on one kind.

use anyhow::{Result, ensure};
use oarlock_tests::host::NAMESPACE;
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, grant, say, says, string};

fn owner(object: &Value) -> &str {
    string(object, "/metadata/ownerReferences/0/uid")
}

fn uid(object: &Value) -> &str {
    string(object, "/metadata/uid")
}

#[tokio::test]
async fn each_pod_of_a_stateful_set_has_a_service_as_long_as_it_lives() -> Result<()> {
    let world = World::new("scopes-pods").await?;
    grant(world.plane, "pod-service")?;
    world.plugin("pod-service", "pod-service").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let labels = json!({"app": "db", "demo.oarlock.dev/pod-service": "true"});
    let container = json!({"name": "db", "image": "db:1", "ports": [{"containerPort": 5432}]});
    let set = |replicas: u32| {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
            "spec": {
                "replicas": replicas, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        })
    };
    // One that nobody's StatefulSet has made is no parent, whatever its label.
    let stray = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stray", "labels": labels},
        "spec": {"containers": [container]},
    });
    world.apply(&stray, "tests").await?;
    world.apply(&set(2), "tests").await?;
    for name in ["db-0", "db-1"] {
        let service = world
            .until("Service", name, "is there", |service| {
                let selector = &service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"];
                ensure!(*selector == *name, "{selector}");
                Ok(())
            })
            .await?;
        let pod = world
            .until("Pod", name, "tells its Service", |pod| {
                let told = &pod["metadata"]["annotations"]["demo.oarlock.dev/service"];
                ensure!(*told == *name, "{}", pod["metadata"]);
                Ok(())
            })
            .await?;
        assert_eq!(owner(&service), uid(&pod));
        assert!(pod["metadata"].get("finalizers").is_none(), "owner references do it: {}", pod["metadata"]);
    }

    // Another Pod of the same name is another parent.
    let before = world.get("Pod", "db-0").await?;
    world.delete("Pod", "db-0").await?;
    world
        .until("Service", "db-0", "belongs to the new Pod", |service| {
            ensure!(owner(service) != uid(&before), "still the one before");
            Ok(())
        })
        .await?;
    assert_eq!(owner(&world.get("Service", "db-0").await?), uid(&world.get("Pod", "db-0").await?));
    world.apply(&set(1), "tests").await?;
    world.until_gone("Service", "db-1").await?;
    world.until_at_rest().await?;
    assert!(world.find("Service", "stray").await?.is_none());
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    ensure!(!writes.iter().any(|write| write.contains("pods/status")), "a status of kubelet's: {writes:?}");
    world.delete("StatefulSet", "db").await?;
    world.until_gone("Service", "db-0").await?;
    world.delete_plugin("pod-service").await
}

#[tokio::test]
async fn each_namespace_that_asks_has_a_quota_but_never_the_hosts() -> Result<()> {
    let world = World::new("scopes-quota").await?;
    grant(world.plane, "namespace-quota")?;
    world.plugin("namespace-quota", "namespace-quota").await?;
    let label = |size: Option<&str>| json!({"metadata": {"labels": {"demo.oarlock.dev/quota": size}}});
    let until_pods = async |pods: &str| {
        world
            .until("ResourceQuota", "default", &format!("allows {pods} pods"), |quota| {
                let found = &quota["spec"]["hard"]["pods"];
                ensure!(*found == *pods, "{found}");
                Ok(())
            })
            .await
    };
    let namespace = world.merge("Namespace", "scopes-quota", label(Some("small"))).await?;
    let quota = until_pods("10").await?;
    assert_eq!(owner(&quota), uid(&namespace));
    world.merge("Namespace", "scopes-quota", label(Some("large"))).await?;
    until_pods("100").await?;
    world.delete("ResourceQuota", "default").await?;
    until_pods("100").await?;

    // A plan that fails removes nothing, and says so where people look.
    world.merge("Namespace", "scopes-quota", label(Some("huge"))).await?;
    let why = "takes small or large, not \"huge\"";
    world.until_told("Namespace", "scopes-quota", ["Warning", "UnknownSize", why]).await?;
    until_pods("100").await?;

    // Without the label it is nobody's parent any more, and what it has stays.
    world.merge("Namespace", "scopes-quota", label(None)).await?;
    world.until_at_rest().await?;
    until_pods("100").await?;

    // The host's own namespace may be a parent like any, but nothing is made in it.
    world.merge("Namespace", NAMESPACE, label(Some("small"))).await?;
    let why = "in the host's namespace oarlock-system, where plugins may not write";
    world.until_told("Namespace", NAMESPACE, ["Warning", "InvalidPlan", why]).await?;
    let hosts = World { namespace: NAMESPACE.to_owned(), client: world.client.clone(), plane: world.plane };
    assert!(hosts.find("ResourceQuota", "default").await?.is_none());
    world.merge("Namespace", NAMESPACE, label(None)).await?;

    // It ends as any other, with everything in it.
    world.merge("Namespace", "scopes-quota", label(Some("small"))).await?;
    until_pods("10").await?;
    world.until_at_rest().await?;
    world.delete("Namespace", "scopes-quota").await?;
    world.until_gone("Namespace", "scopes-quota").await?;
    world.delete_plugin("namespace-quota").await
}

#[tokio::test]
async fn cluster_scoped_parent_has_children_of_both_scopes_and_they_go_with_it() -> Result<()> {
    let lab = Lab::enter("scopes-cluster").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.cluster_plugin().await?;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "scopes-cluster"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"},
        },
    });
    let config_map = |name: &str, namespace: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"text": "hi"},
        })
    };
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "scopes-cluster-own"}});
    let here = config_map("here", "scopes-cluster");
    let children = json!([volume, here, config_map("there", "scopes-cluster-own"), namespace]);
    let mut plan = json!({"children": children, "labels": {"cases.example.com/told": "yes"},
        "annotations": {"cases.example.com/told": "👋"}});
    let own = World {
        namespace: "scopes-cluster-own".to_owned(),
        client: world.client.clone(),
        plane: world.plane,
    };
    world.set("ClusterWidget", "scopes", json!({"plan": plan})).await?;
    let parent = world.until_says("ClusterWidget", "scopes", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(string(&parent, "/metadata/labels/cases.example.com~1told"), "yes");
    assert_eq!(string(&parent, "/metadata/annotations/cases.example.com~1told"), "👋");
    for child in [
        world.get("PersistentVolume", "scopes-cluster").await?,
        world.get("ConfigMap", "here").await?,
        own.get("ConfigMap", "there").await?,
        world.get("Namespace", "scopes-cluster-own").await?,
    ] {
        assert_eq!(owner(&child), uid(&parent));
    }
    // A child is put back in whatever namespace it is.
    own.delete("ConfigMap", "there").await?;
    own.until("ConfigMap", "there", "is back", |_| Ok(())).await?;
    // What is no longer planned goes, in both scopes; so do the labels of the parent.
    plan = json!({"children": [volume, namespace]});
    world.set("ClusterWidget", "scopes", json!({"plan": plan})).await?;
    world.until_gone("ConfigMap", "here").await?;
    own.until_gone("ConfigMap", "there").await?;
    world
        .until("ClusterWidget", "scopes", "has no labels of the plan any more", |parent| {
            let told = parent.pointer("/metadata/labels/cases.example.com~1told");
            ensure!(told.is_none(), "{told:?}");
            says(parent, "Ready", "True", "ChildrenReady")
        })
        .await?;
    world.until_at_rest().await?;
    // A namespace of its own can be no child's without naming it.
    let nowhere = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nowhere"}});
    world.set("ClusterWidget", "scopes", json!({"plan": {"children": [nowhere]}})).await?;
    world.until_says("ClusterWidget", "scopes", ["Ready", "False", "InvalidPlan"]).await?;
    world.get("PersistentVolume", "scopes-cluster").await?;
    world.delete("ClusterWidget", "scopes").await?;
    for (kind, name) in [
        ("ClusterWidget", "scopes"),
        ("PersistentVolume", "scopes-cluster"),
        ("Namespace", "scopes-cluster-own"),
    ] {
        world.until_gone(kind, name).await?;
    }
    world.delete_plugin("cluster").await?;
    host.stop().await
}

/// B031, both variants, where nothing has a namespace.
#[tokio::test]
async fn cluster_scoped_child_stays_with_its_first_parent_or_with_nobody() -> Result<()> {
    let lab = Lab::enter("scopes-taken").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.cluster_plugin().await?;
    let volume = |name: &str, size: &str| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"},
            },
        })
    };
    let plan = |size: &str| json!({"plan": {"children": [volume("scopes-shared", size), volume("scopes-theirs", size)]}});
    let size = |volume: &Value| string(volume, "/spec/capacity/storage").to_owned();
    world.apply(&volume("scopes-theirs", "7Gi"), "somebody").await?;
    let theirs = world.get("PersistentVolume", "scopes-theirs").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    for (name, size, owner) in [("a", "1Gi", "has no owner"), ("b", "2Gi", "belongs to ClusterWidget a")] {
        world.set("ClusterWidget", name, plan(size)).await?;
        let parent = world.until_says("ClusterWidget", name, ["Ready", "False", "ChildNotOwned"]).await?;
        let told = string(condition(&parent, "Ready").unwrap(), "/message");
        ensure!(told.contains("PersistentVolume scopes-theirs exists already and has no owner"), "{told}");
        ensure!(told.contains(owner) && told.contains("oarlock.dev/adopt"), "{told}");
    }
    assert_eq!(size(&world.get("PersistentVolume", "scopes-shared").await?), "1Gi");
    world.delete("ClusterWidget", "b").await?;
    world.until_gone("ClusterWidget", "b").await?;
    // The one that has it can still change it.
    world.set("ClusterWidget", "a", plan("3Gi")).await?;
    world
        .until("PersistentVolume", "scopes-shared", "follows its parent", |volume| {
            ensure!(size(volume) == "3Gi", "{}", volume["spec"]);
            Ok(())
        })
        .await?;
    let to = audit.mark().await?;
    let writes = audit.writes_by(world.plane.user_host(), from, to).into_iter();
    let writes: Vec<_> = writes.filter(|write| write.resource == "persistentvolumes").map(say).collect();
    let (created, changed) =
        ("patch persistentvolumes scopes-shared 201", "patch persistentvolumes scopes-shared 200");
    assert_eq!(writes, [created, changed]);
    let untouched = world.get("PersistentVolume", "scopes-theirs").await?;
    for field in ["/metadata/uid", "/metadata/labels", "/metadata/ownerReferences", "/spec"] {
        assert_eq!(untouched.pointer(field), theirs.pointer(field), "{field}");
    }
    world.delete("ClusterWidget", "a").await?;
    world.until_gone("PersistentVolume", "scopes-shared").await?;
    world.delete("PersistentVolume", "scopes-theirs").await?;
    world.delete_plugin("cluster").await?;
    host.stop().await
}

#[tokio::test]
async fn plugins_without_a_status_share_a_kind_with_each_other_and_with_one_that_has_it() -> Result<()> {
    let lab = Lab::enter("scopes-shared").await?;
    let world = &lab.world;
    for component in ["widget-beside", "widget-beyond"] {
        grant(world.plane, component)?;
    }
    let host = lab.host().await?;
    let beside = [("beside", "widget-beside"), ("beyond", "widget-beyond")];
    world.plugin("widget", "widget").await?;
    for (plugin, component) in beside {
        world.plugin(plugin, component).await?;
    }
    world.set("Widget", "w1", json!({"text": "one"})).await?;
    let all = [("w1-cm", "widget"), ("w1-beside", "beside"), ("w1-beyond", "beyond")];
    let until_all = async |text: &str| -> Result<()> {
        for (name, plugin) in all {
            world
                .until("ConfigMap", name, "is as its plugin says", |child| {
                    ensure!(child["data"]["text"] == *text, "{}", child["data"]);
                    let owned_by = string(child, "/metadata/labels/oarlock.dev~1owned-by");
                    ensure!(owned_by == plugin, "{owned_by}");
                    Ok(())
                })
                .await?;
        }
        Ok(())
    };
    until_all("one").await?;
    world.set("Widget", "w1", json!({"text": "two"})).await?;
    until_all("two").await?;
    let widget = world
        .until("Widget", "w1", "has the labels of both", |widget| {
            let labels = &widget["metadata"]["labels"];
            for (plugin, _) in beside {
                ensure!(labels[format!("cases.example.com/{plugin}")] == "true", "{labels}");
            }
            says(widget, "Ready", "True", "ChildrenReady")
        })
        .await?;
    // Only the one that has it writes the status.
    let managers = widget["metadata"]["managedFields"].as_array().unwrap().iter();
    let of_status: Vec<_> =
        managers.filter(|entry| entry["subresource"] == "status").map(|entry| &entry["manager"]).collect();
    assert_eq!(of_status, ["oarlock/widget"]);
    world.until_at_rest().await?;
    // One that goes takes nothing of the others along, and leaves what it made.
    world.delete_source("beyond").await?;
    world.until_says("Plugin", "beyond", ["Ready", "False", "SourceMissing"]).await?;
    world.set("Widget", "w1", json!({"text": "three"})).await?;
    world
        .until("ConfigMap", "w1-beside", "goes on", |child| {
            ensure!(child["data"]["text"] == "three", "{}", child["data"]);
            Ok(())
        })
        .await?;
    assert_eq!(world.get("ConfigMap", "w1-beyond").await?["data"]["text"], "two");
    world.delete("Widget", "w1").await?;
    for (name, _) in all {
        world.until_gone("ConfigMap", name).await?;
    }
    for plugin in ["widget", "beside", "beyond"] {
        world.delete_plugin(plugin).await?;
    }
    host.stop().await
}

/// Waits until a Widget's `Ready` condition has this status and reason, and a message with these words.
async fn until_ready_says(world: &World, name: &str, [status, reason, words]: [&str; 3]) -> Result<()> {
    let what = format!("Ready {status} {reason}: {words}");
    let told = world.until("Widget", name, &what, |widget| {
        says(widget, "Ready", status, reason)?;
        let told = string(condition(widget, "Ready").unwrap(), "/message");
        ensure!(told.contains(words), "{told}");
        Ok(())
    });
    told.await.map(drop)
}

#[tokio::test]
async fn operator_says_what_a_plugin_reads_writes_and_adopts() -> Result<()> {
    let lab = Lab::enter("scopes-permits").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let shared = World::within(world.plane, "scopes-permits-shared").await?;
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"text": "shared"},
    });
    shared.apply(&settings, "somebody").await?;

    // A read elsewhere: off, on, and off again, though nothing but the permission has changed.
    world
        .set(
            "Widget",
            "reads",
            json!({"mode": "note-elsewhere", "namespace": "scopes-permits-shared", "read": "settings"}),
        )
        .await?;
    let off =
        ["False", "ReadDenied", "the operator can allow it, by the namespaces in spec.permissions.read"];
    until_ready_says(world, "reads", off).await?;
    let everywhere = json!([{"kind": "ConfigMap", "namespaces": [".", "scopes-permits-shared"]}]);
    world.permit("widget", json!({"read": everywhere})).await?;
    let noted = |widget: &Value| {
        ensure!(widget["status"]["note"] == "shared", "{}", widget["status"]);
        Ok(())
    };
    world.until("Widget", "reads", "has what it read elsewhere", noted).await?;
    let elsewhere = json!([{"kind": "ConfigMap", "namespaces": ["somewhere"]}]);
    world.permit("widget", json!({"read": elsewhere})).await?;
    let off = ["False", "ReadDenied", "spec.permissions.read of the Plugin gives for the kind: somewhere"];
    until_ready_says(world, "reads", off).await?;
    world.permit("widget", json!({"read": null})).await?;

    // What exists already.
    let child = |annotations: Value| {
        json!({"children": [{
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "annotations": annotations},
        }]})
    };
    world
        .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}}), "somebody")
        .await?;
    world.set_plan("adopts", child(json!({"oarlock.dev/adopt": "true"}))).await?;
    let off = ["False", "InvalidPlan", "set spec.permissions.adopt of the Plugin to true"];
    until_ready_says(world, "adopts", off).await?;
    assert!(world.get("ConfigMap", "theirs").await?["metadata"].get("ownerReferences").is_none());
    world.permit("widget", json!({"adopt": true})).await?;
    world.until_says("Widget", "adopts", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(owner(&world.get("ConfigMap", "theirs").await?), uid(&world.get("Widget", "adopts").await?));

    // A namespace in which nothing may be written any more: what is there stays.
    let kinds = ["ConfigMap", "Service", "Deployment.apps", "StatefulSet.apps", "Job.batch"];
    let elsewhere = kinds.map(|kind| json!({"kind": kind, "namespaces": ["somewhere"]}));
    world.permit("widget", json!({"write": elsewhere})).await?;
    let off = ["False", "InvalidPlan", "spec.permissions.write of the Plugin gives for the kind: somewhere"];
    until_ready_says(world, "adopts", off).await?;
    assert_eq!(owner(&world.get("ConfigMap", "theirs").await?), uid(&world.get("Widget", "adopts").await?));

    // A kind that it declares and may not write puts it out of force, until it may.
    world.permit("widget", json!({"write": [{"kind": "ConfigMap"}]})).await?;
    let refused = world
        .until("Plugin", "widget", "is refused", |plugin| says(plugin, "Ready", "False", "ManifestInvalid"));
    let refused = refused.await?;
    let told = string(condition(&refused, "Ready").unwrap(), "/message");
    assert!(told.contains("spec.permissions.write of the Plugin leaves out: add \"kind: "), "{told}");
    world.permit("widget", json!({"write": null})).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    world.until_says("Widget", "adopts", ["Ready", "True", "ChildrenReady"]).await?;

    // What makes no sense does not get as far as the host.
    for (wrong, words) in [
        (json!({"read": [{"kind": "configmap"}]}), "spec.permissions.read[0].kind"),
        (json!({"read": [{"kind": "ConfigMap", "namespaces": []}]}), "spec.permissions.read[0].namespaces"),
        (
            json!({"read": [{"kind": "ConfigMap", "namespaces": ["*"]}]}),
            "spec.permissions.read[0].namespaces[0]",
        ),
        (json!({"write": [{"kind": "Plugin.oarlock.dev"}]}), "belong to the host"),
    ] {
        let error = world.permit("widget", wrong).await.unwrap_err();
        assert!(format!("{error:#}").contains(words), "{error:#}");
    }
    host.stop().await
}
