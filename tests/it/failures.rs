//! What goes wrong around a plan, and what its object says then: the API server's refusals and failures, rights
//! that are withdrawn, kinds that go. Each is told with its reason, deletes nothing, and is taken back when it
//! passes.

use anyhow::{Result, ensure};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use oarlock_tests::cluster::ControlPlane;
use oarlock_tests::host;
use serde_json::{Value, json};

use crate::world::{Lab, REPOSITORY, World, condition, grant, kubectl, says, string};

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

fn message<'a>(object: &'a Value, r#type: &str) -> &'a str {
    condition(object, r#type).map(|condition| string(condition, "/message")).unwrap_or_default()
}

fn apply(plane: &ControlPlane, objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    kubectl(plane, ["apply", "--server-side", "-f", "-"], Some(&list.to_string())).map(drop)
}

fn apply_file(plane: &ControlPlane, path: &str) -> Result<()> {
    let path = format!("{REPOSITORY}/{path}");
    kubectl(plane, ["apply", "--server-side", "--force-conflicts", "-f", &path], None).map(drop)
}

/// Waits until the API server answers the host's attempt at a ConfigMap like this.
async fn until_host_is_told(world: &World, words: &str) -> Result<()> {
    let client = world.plane.client_host().await?;
    let resource = kube::api::ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&());
    let config_maps: Api<DynamicObject> = Api::namespaced_with(client, &world.namespace, &resource);
    let probe = serde_json::from_value(config_map("probe", ""))?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    world
        .eventually("admission is as the test wants it", async || {
            let answer = config_maps.create(&params, &probe).await;
            let said = answer.err().map(|error| format!("{error:#}")).unwrap_or_default();
            ensure!(said.contains(words), "the host is told {said:?}");
            Ok(())
        })
        .await
}

/// What a cluster's policy says no to.
#[tokio::test]
async fn child_that_a_policy_refuses_is_told_and_retried() -> Result<()> {
    let world = World::new("failure-policy").await?;
    let (name, in_namespace) =
        ("failure-policy", json!({"matchLabels": {"kubernetes.io/metadata.name": "failure-policy"}}));
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"namespaceSelector": in_namespace, "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
            }]},
            "validations": [{"expression": "false", "message": "no ConfigMaps today"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    apply(world.plane, &[policy, binding])?;
    until_host_is_told(&world, "no ConfigMaps today").await?;

    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildRefused"]).await?;
    says(&widget, "Reconciling", "True", "ChildRefused")?;
    assert!(message(&widget, "Ready").contains("no ConfigMaps today"), "{}", widget["status"]);
    world.until_told("Widget", "w1", ["Warning", "ChildRefused", "no ConfigMaps today"]).await?;

    kubectl(
        world.plane,
        ["delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name],
        None,
    )?;
    let widget = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert!(condition(&widget, "Reconciling").is_none(), "{}", widget["status"]);
    Ok(())
}

/// An API server that fails says nothing about the objects: what stands is left standing, and is not believed of
/// an edited object.
#[tokio::test]
async fn failing_api_server_leaves_ready_as_it_is_until_the_object_is_edited() -> Result<()> {
    let world = World::new("failure-webhook").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.set("Widget", "w3", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w3", ["Ready", "True", "ChildrenReady"]).await?;
    let first = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let ours = format!("request.userInfo.username == '{}'", world.plane.user_host());
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "failure-webhook"},
        "webhooks": [{
            // Nobody listens: the API server cannot ask, and answers 500.
            "name": "nobody.example.com", "clientConfig": {"url": "https://127.0.0.1:9/"}, "sideEffects": "None",
            "failurePolicy": "Fail", "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "failure-webhook"}},
            "matchConditions": [{"name": "ours", "expression": ours}],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}],
        }],
    });
    apply(world.plane, &[webhook])?;
    until_host_is_told(&world, "failed calling webhook").await?;

    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.merge("ConfigMap", "w1-cm", json!({"data": {"text": "mine"}})).await?;
    let widget = world.until_says("Widget", "w1", ["Reconciling", "True", "ApiUnavailable"]).await?;
    says(&widget, "Ready", "True", "ChildrenReady")?;
    says(&widget, "Synced", "True", "Written")?;
    assert!(message(&widget, "Reconciling").contains("failed calling webhook"), "{}", widget["status"]);
    assert_eq!(condition(&widget, "Ready"), condition(&first, "Ready"));
    let to = audit.mark().await?;
    // It was told once, and not before it had been tried a few times.
    let writes = world.host_writes(&audit, from, to);
    let of = |resource: &str| writes.iter().filter(|write| write.contains(resource)).count();
    assert!(of("widgets/status") == 1 && of("patch configmaps w1-cm 500") > 5, "{writes:?}");

    world.merge("Widget", "w1", json!({"spec": {"text": "ho"}})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ApiUnavailable"]).await?;
    says(&widget, "Reconciling", "True", "ApiUnavailable")?;
    // A child that is gone is known to be.
    world.delete("ConfigMap", "w3-cm").await?;
    let widget = world.until_says("Widget", "w3", ["Ready", "False", "ApiUnavailable"]).await?;
    assert_eq!(widget["metadata"]["generation"], 1);
    // Nothing stands that could be believed of a new object.
    world.set("Widget", "w2", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w2", ["Ready", "False", "ApiUnavailable"]).await?;

    kubectl(world.plane, ["delete", "validatingwebhookconfiguration", "failure-webhook"], None)?;
    for name in ["w1", "w2", "w3"] {
        let widget = world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
        assert!(condition(&widget, "Reconciling").is_none(), "{}", widget["status"]);
    }
    assert_eq!(world.get("ConfigMap", "w1-cm").await?["data"]["text"], "ho");
    Ok(())
}

#[tokio::test]
async fn child_that_is_too_large_is_told() -> Result<()> {
    let world = World::new("failure-large").await?;
    world.set("Widget", "w1", json!({"text": "x".repeat((1 << 20) + 1)})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildInvalid"]).await?;
    assert!(message(&widget, "Ready").contains("1048576"), "{}", message(&widget, "Ready"));
    world.merge("Widget", "w1", json!({"spec": {"text": "hi"}})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    Ok(())
}

/// Labels of the parent itself are refused like a child.
#[tokio::test]
async fn label_that_the_api_server_refuses_is_told() -> Result<()> {
    let world = World::new("failure-label").await?;
    world.set_plan("w1", json!({"labels": {"cases.example.com/seen": "not a label"}})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "ChildInvalid"]).await?;
    assert!(
        message(&widget, "Ready").contains("labels and annotations of the object"),
        "{}",
        widget["status"]
    );
    world.set_plan("w1", json!({"labels": {"cases.example.com/seen": "a-label"}})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    Ok(())
}

/// A namespace on its way out takes no new children.
#[tokio::test]
async fn terminating_namespace_is_told() -> Result<()> {
    let lab = Lab::enter("failure-namespace").await?;
    let world = &lab.world;
    // A test that failed may have left them out.
    grant(world.plane, "widget")?;
    let host = lab.host().await?;
    world.plugin("widget", "widget-finalizes").await?;
    world.set("Widget", "w1", json!({"text": "hi", "finalize": "wait"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.delete("Namespace", "failure-namespace").await?;
    // Its finalizer holds it, and its plugin wants a child while it does.
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "NamespaceTerminating"]).await?;
    says(&widget, "Stalled", "True", "NamespaceTerminating")?;
    world.merge("Widget", "w1", json!({"metadata": {"annotations": {"release": "true"}}})).await?;
    world.until_gone("Widget", "w1").await?;
    host.stop().await
}

/// Leaves the host only these verbs on a resource of the plugin `widget`; [`grant`] gives all of them back.
fn restrict(plane: &ControlPlane, resource: &str, verbs: &[&str]) -> Result<()> {
    let role = kubectl(plane, ["get", "clusterrole", "oarlock-plugin-widget", "-o", "json"], None)?;
    let mut role: Value = serde_json::from_str(&role)?;
    let mut rules = role["rules"].as_array().cloned().unwrap_or_default();
    let has_it = |rule: &&mut Value| rule["resources"].as_array().unwrap().contains(&resource.into());
    let narrowed = rules.iter_mut().find(has_it).unwrap();
    let group = narrowed["apiGroups"].clone();
    narrowed["resources"].as_array_mut().unwrap().retain(|one| one != resource);
    rules.retain(|rule| rule["resources"] != json!([]));
    rules.push(json!({"apiGroups": group, "resources": [resource], "verbs": verbs}));
    role["rules"] = rules.into();
    kubectl(plane, ["replace", "-f", "-"], Some(&role.to_string())).map(drop)
}

#[tokio::test]
async fn right_that_is_withdrawn_is_told_and_noticed_when_it_is_back() -> Result<()> {
    let lab = Lab::enter("failure-rights").await?;
    let world = &lab.world;
    // Another test's plugin has the same rights.
    kubectl(
        world.plane,
        ["delete", "clusterrolebinding", "oarlock-plugin-widget-gadgets", "--ignore-not-found"],
        None,
    )?;
    grant(world.plane, "widget")?;
    let host = lab.host().await?;
    world.plugin("widget", "widget-finalizes").await?;
    world.set("Widget", "w1", json!({"text": "hi"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;

    for resource in ["statefulsets", "widgets"] {
        restrict(world.plane, resource, &["get", "list", "watch"])?;
        let may =
            ["auth", "can-i", "patch", resource, "-n", &world.namespace, "--as", world.plane.user_host()];
        world
            .eventually("the host may not", async || {
                ensure!(kubectl(world.plane, may, None).is_err(), "it may");
                Ok(())
            })
            .await?;
    }
    let stateful_set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "replicas": 0, "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "main", "image": "db"}]}},
        },
    });
    world.set_plan("w1", json!({"children": [stateful_set]})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "False", "Forbidden"]).await?;
    says(&widget, "Reconciling", "True", "Forbidden")?;
    assert!(message(&widget, "Ready").contains("statefulsets"), "{}", widget["status"]);
    // Before anything is applied (rule D1).
    world.set("Widget", "w2", json!({"text": "hi"})).await?;
    let widget = world.until_says("Widget", "w2", ["Ready", "False", "Forbidden"]).await?;
    assert!(message(&widget, "Ready").contains("finalizer"), "{}", widget["status"]);
    assert!(world.find("ConfigMap", "w2-cm").await?.is_none());

    grant(world.plane, "widget")?;
    for name in ["w1", "w2"] {
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    for name in ["w1", "w2"] {
        world.delete("Widget", name).await?;
        world.until_gone("Widget", name).await?;
    }
    host.stop().await
}

/// A kind that is gone, and one that may no longer be listed, leave their parents unknown and untouched.
#[tokio::test]
async fn parents_of_a_kind_that_is_out_of_sight_are_unknown_until_it_is_back() -> Result<()> {
    let lab = Lab::enter("failure-kind").await?;
    let world = &lab.world;
    let crd = "tests/guests/widget/gadget.yaml";
    apply_file(world.plane, crd)?;
    grant(world.plane, "widget-gadgets")?;
    let host = lab.host().await?;
    world.plugin("widget", "widget-gadgets").await?;
    let gadget = json!({"apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": {"name": "g1"}, "spec": {"n": 1}});
    let synced = json!([{"type": "Synced", "status": "True", "reason": "Told"}]);
    let plan = |text: &str| json!({"children": [config_map("w1-cm", text), gadget], "conditions": synced});
    world.set_plan("w1", plan("one")).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let before = world.get("ConfigMap", "w1-cm").await?;
    let is_unknown = async |reason: &str| {
        let plugin = world.until_says("Plugin", "widget", ["Ready", "False", reason]).await?;
        let said = message(&plugin, "Ready");
        ensure!(said.contains("Gadget"), "{said}");
        let wanted = format!("Unknown {said}");
        let told = world.until("Widget", "w1", &wanted, |widget| {
            says(widget, "Ready", "Unknown", reason)?;
            ensure!(message(widget, "Ready") == said, "{}", widget["status"]);
            Ok(())
        });
        told.await
    };

    kubectl(world.plane, ["delete", "crd", "gadgets.cases.example.com"], None)?;
    let widget = is_unknown("KindMissing").await?;
    says(&widget, "Synced", "True", "Told")?;
    // An edit is seen, and nothing is done about it.
    world.set_plan("w1", plan("two")).await?;
    let widget = is_unknown("KindMissing").await?;
    // What the plugin said is about the object that it saw.
    assert_eq!(condition(&widget, "Synced").unwrap()["observedGeneration"], 1);
    // A host that starts meanwhile finds it all said.
    host.stop().await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let host = lab.host().await?;
    world.until_says("Plugin", "widget", ["Ready", "False", "KindMissing"]).await?;
    world
        .eventually("the host has settled", async || {
            let metrics = host.metrics().await?;
            let done = metrics.sum("oarlock_reconcile_total", &["plugin=\"widget\""]);
            ensure!(done >= 1.0, "{done} passes");
            Ok(())
        })
        .await?;
    let to = audit.mark().await?;
    assert_eq!(world.host_writes(&audit, from, to), [""; 0]);
    let after = world.get("ConfigMap", "w1-cm").await?;
    assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);

    apply_file(world.plane, crd)?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let after = world.get("ConfigMap", "w1-cm").await?;
    assert_eq!(
        (&after["data"]["text"], &after["metadata"]["uid"]),
        (&"two".into(), &before["metadata"]["uid"])
    );
    kubectl(world.plane, ["get", "gadget", "g1", "-n", &world.namespace], None)?;

    // A watch that is open is not asked for its rights again: a host that starts is.
    host.stop().await?;
    kubectl(world.plane, ["delete", "clusterrolebinding", "oarlock-plugin-widget-gadgets"], None)?;
    let host = lab.host().await?;
    is_unknown("KindForbidden").await?;
    grant(world.plane, "widget-gadgets")?;
    let widget = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    says(&widget, "Synced", "True", "Told")?;
    assert_eq!(world.get("ConfigMap", "w1-cm").await?["metadata"]["uid"], before["metadata"]["uid"]);
    world.delete_plugin("widget").await?;
    host.stop().await
}

/// B017.
#[tokio::test]
async fn kind_whose_conversion_fails_is_told_and_no_child_of_it_is_touched() -> Result<()> {
    let lab = Lab::enter("failure-conversion").await?;
    let world = &lab.world;
    let crd = "plugins/configmap-set/crd.yaml";
    apply_file(world.plane, crd)?;
    grant(world.plane, "configmap-set")?;
    // Objects are stored in a version that the host does not ask for.
    let found = kubectl(world.plane, ["get", "crd", "configmapsets.demo.oarlock.dev", "-o", "json"], None)?;
    let mut versions = serde_json::from_str::<Value>(&found)?["spec"]["versions"].clone();
    let mut old = versions[0].clone();
    old["name"] = "v1beta1".into();
    versions[0]["storage"] = false.into();
    versions.as_array_mut().unwrap().push(old);
    let conversion = |conversion: Value| {
        let patch = json!({"spec": {"versions": versions, "conversion": conversion}});
        let args =
            ["patch", "crd", "configmapsets.demo.oarlock.dev", "--type=merge", "-p", &patch.to_string()];
        kubectl(world.plane, args, None).map(drop)
    };
    conversion(json!({"strategy": "None", "webhook": null}))?;

    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    world.source("configmap-set", &[("plugin.wasm", &host::component("configmap-set")?)]).await?;
    world.until_says("Plugin", "configmap-set", ["Ready", "True", "Active"]).await?;
    let names = ["a", "b", "c"];
    for name in names {
        let spec = json!({"data": {"v": "1"}, "configMaps": {(format!("{name}-cm")): {}}});
        world.set("ConfigMapSet", name, spec).await?;
        world.until_says("ConfigMapSet", name, ["Ready", "True", "ChildrenReady"]).await?;
    }
    let before = world.list("ConfigMap", Some("oarlock.dev/owned-by=configmap-set")).await?;
    assert_eq!(before.len(), 3);

    host.stop().await?;
    conversion(json!({
        "strategy": "Webhook",
        "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:9/convert"}},
    }))?;
    world
        .eventually("the kind cannot be listed", async || {
            let args = ["get", "configmapsets", "-n", &world.namespace];
            ensure!(kubectl(world.plane, args, None).is_err(), "it can");
            Ok(())
        })
        .await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    let host = lab.host().await?;
    let plugin = world.until_says("Plugin", "configmap-set", ["Ready", "False", "ApiUnavailable"]).await?;
    assert!(message(&plugin, "Ready").contains("conversion webhook"), "{}", plugin["status"]);
    // Other kinds go on.
    world.set("Widget", "w1", json!({"text": "served"})).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    assert!(writes.iter().all(|write| write.contains(" w1") || write.contains(" events")), "{writes:?}");
    assert_eq!(world.list("ConfigMap", Some("oarlock.dev/owned-by=configmap-set")).await?, before);

    conversion(json!({"strategy": "None", "webhook": null}))?;
    world.until_says("Plugin", "configmap-set", ["Ready", "True", "Active"]).await?;
    for name in names {
        world.merge("ConfigMapSet", name, json!({"spec": {"data": {"v": "2"}}})).await?;
        world.until_says("ConfigMapSet", name, ["Ready", "True", "ChildrenReady"]).await?;
        assert_eq!(world.get("ConfigMap", &format!("{name}-cm")).await?["data"]["v"], "2");
    }
    world.delete_plugin("configmap-set").await?;
    kubectl(world.plane, ["delete", "crd", "configmapsets.demo.oarlock.dev"], None)?;
    host.stop().await
}
