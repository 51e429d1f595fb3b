//! What the API server writes in another way than the plan, or others write beside it, is no difference: a child is
//! applied once, and then nothing is written any more.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::world::{Lab, World, condition, string};

/// As a plan that is looked at all the time.
fn plan(children: &[Value]) -> Value {
    json!({"children": children, "requeueAfterMs": 300})
}

fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// A Deployment or a `StatefulSet` without `replicas`.
fn workload(kind: &str, name: &str, pod: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    })
}

/// Makes a Widget with these children, waits until they are ready, and sees that nothing is written after that.
/// The children as they are then.
async fn apply_once(world: &World, children: &[Value]) -> Result<Vec<Value>> {
    world.set_plan("w1", plan(children)).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    let mut live = Vec::new();
    for child in children {
        let (kind, name) = (string(child, "/kind"), string(child, "/metadata/name"));
        let object = world.get(kind, name).await?;
        // Of those who have no say in it: a Service and a ConfigMap have no generation.
        let generation = &object["metadata"]["generation"];
        ensure!(generation.is_null() || *generation == 1, "{kind} {name} has generation {generation}");
        live.push(object);
    }
    Ok(live)
}

/// What the host owns of an object, and since when.
fn ours(object: &Value) -> Result<&Value> {
    let managers = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let ours: Vec<_> = managers.filter(|entry| entry["manager"] == "oarlock/widget").collect();
    ensure!(ours.len() == 1, "{ours:?}");
    Ok(ours[0])
}

/// B004, in maps, in lists, nested, and in the status.
#[tokio::test]
async fn nulls_are_absent() -> Result<()> {
    let world = World::new("forms-null").await?;
    let mut web = workload(
        "Deployment",
        "web",
        &json!({
            "nodeSelector": null, "affinity": null, "tolerations": [null],
            "containers": [
                null,
                {"name": "main", "image": "nginx", "command": null, "resources": {"limits": {"cpu": null}},
                 "env": [{"name": "A", "value": null}]},
            ],
        }),
    );
    web["spec"]["template"]["metadata"]["annotations"] = Value::Null;
    web["metadata"]["labels"] = json!({"gone": null, "kept": "yes"});
    web["spec"]["strategy"] = Value::Null;
    let children = [
        web,
        config_map("empty", &Value::Null),
        config_map("some", &json!({"gone": null, "kept": "yes"})),
        service("db", &json!({"clusterIP": null, "selector": null, "ports": [{"port": 1, "name": null}]})),
    ];
    let live = apply_once(&world, &children).await?;
    let pod = &live[0]["spec"]["template"];
    ensure!(pod["metadata"]["annotations"].is_null() && pod["spec"]["nodeSelector"].is_null(), "{pod}");
    ensure!(live[0]["metadata"]["labels"]["gone"].is_null(), "{}", live[0]["metadata"]);
    assert_eq!(live[2]["data"], json!({"kept": "yes"}));

    // Again, in another pass and with a status of nulls: the same objects, as they were.
    let mut again = plan(&children);
    again["status"] = json!({"note": null});
    world.set_plan("w1", again).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    let web = world.get("Deployment", "web").await?;
    assert_eq!(
        (&web["metadata"]["uid"], &web["metadata"]["generation"]),
        (&live[0]["metadata"]["uid"], &json!(1))
    );
    assert_eq!(ours(&web)?, ours(&live[0])?);
    Ok(())
}

/// B005: lists and maps that merge and that are replaced, at the top, nested, and in the metadata.
#[tokio::test]
async fn empties_are_applied_once() -> Result<()> {
    let world = World::new("forms-empty").await?;
    let pod = json!({
        "tolerations": [], "nodeSelector": {}, "affinity": {}, "securityContext": {}, "imagePullSecrets": [],
        "hostAliases": [], "initContainers": [],
        "containers": [{
            "name": "main", "image": "db", "args": [], "command": [], "env": [], "envFrom": [], "ports": [],
            "resources": {"limits": {}, "requests": {}}, "securityContext": {"capabilities": {"add": [], "drop": []}},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    });
    let mut db = workload("StatefulSet", "db", &pod);
    db["metadata"]["annotations"] = json!({});
    db["metadata"]["finalizers"] = json!([]);
    db["metadata"]["ownerReferences"] = json!([]);
    db["spec"]["serviceName"] = "db".into();
    db["spec"]["volumeClaimTemplates"] = json!([]);
    db["spec"]["updateStrategy"] = json!({});
    db["spec"]["template"]["metadata"]["annotations"] = json!({});
    let mut web = workload("Deployment", "web", &pod);
    web["spec"]["strategy"] = json!({});
    let mut data = config_map("data", &json!({}));
    data["binaryData"] = json!({});
    let children = [
        db,
        web,
        data,
        config_map("text", &json!({"empty": ""})),
        service(
            "db",
            &json!({"selector": {}, "externalIPs": [], "loadBalancerSourceRanges": [], "ports": [{"port": 1}]}),
        ),
    ];
    let live = apply_once(&world, &children).await?;
    for object in &live {
        let is_at_rest = world.get(string(object, "/kind"), string(object, "/metadata/name")).await?;
        assert_eq!(ours(&is_at_rest)?, ours(object)?);
    }
    Ok(())
}

/// B007: as text and as numbers, with every kind of suffix, rounded up, in maps and in fields.
#[tokio::test]
async fn quantities_are_applied_once_whatever_their_form() -> Result<()> {
    let world = World::new("forms-quantity").await?;
    // Each beside what the API server stores.
    let cpu = [
        (json!("1000m"), "1"),
        (json!("1.5"), "1500m"),
        (json!(2), "2"),
        (json!(0.5), "500m"),
        (json!("100e-3"), "100e-3"),
        (json!("0"), "0"),
        (json!("0.0001"), "1m"),
    ];
    let memory = [
        (json!("1000M"), "1G"),
        (json!("1024Mi"), "1Gi"),
        (json!("1.5Gi"), "1536Mi"),
        (json!(1_000_000), "1M"),
        (json!("1e9"), "1e9"),
        (json!("128974848"), "128974848"),
        (json!("0.5Ki"), "512"),
    ];
    let requests =
        cpu.iter().zip(&memory).map(|((cpu, _), (memory, _))| json!({"cpu": cpu, "memory": memory}));
    let containers: Vec<_> = requests
        .enumerate()
        .map(|(at, requests)| json!({"name": format!("c{at}"), "image": "db", "resources": {"requests": requests}}))
        .collect();
    let volumes = json!([{"name": "tmp", "emptyDir": {"sizeLimit": "0.5Gi"}}]);
    let mut db = workload("StatefulSet", "db", &json!({"containers": containers, "volumes": volumes}));
    db["spec"]["serviceName"] = "db".into();
    // None runs: their sizes are no matter.
    db["spec"]["replicas"] = 0.into();
    db["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}},
    }]);
    let live = apply_once(&world, &[db]).await?;
    let stored = |pointer: &str| string(&live[0]["spec"], pointer);
    for (at, ((_, cpu), (_, memory))) in cpu.iter().zip(&memory).enumerate() {
        let requests = format!("/template/spec/containers/{at}/resources/requests");
        assert_eq!(stored(&format!("{requests}/cpu")), *cpu);
        assert_eq!(stored(&format!("{requests}/memory")), *memory);
    }
    assert_eq!(stored("/volumeClaimTemplates/0/spec/resources/requests/storage"), "1Gi");
    Ok(())
}

/// Of the kind of B004 to B007: the API server adds defaults, and a zero is as good as a value.
#[tokio::test]
async fn defaults_and_zeros_are_applied_once() -> Result<()> {
    let world = World::new("forms-default").await?;
    let probe = json!({"tcpSocket": {"port": "http"}, "initialDelaySeconds": 0});
    let pod = json!({
        "hostNetwork": false, "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "main", "image": "nginx", "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 81}],
            "env": [{"name": "EMPTY", "value": ""}], "readinessProbe": probe, "stdin": false,
        }],
        "volumes": [{"name": "settings", "configMap": {"name": "settings", "optional": true}}],
    });
    let mut web = workload("Deployment", "web", &pod);
    web["spec"]["replicas"] = 0.into();
    web["spec"]["paused"] = false.into();
    web["spec"]["minReadySeconds"] = 0.into();
    let mut immutable = config_map("immutable", &json!({"a": "b"}));
    immutable["immutable"] = false.into();
    let ports = json!([
        {"port": 80, "name": "web", "targetPort": "http"},
        {"port": 53, "name": "dns", "protocol": "UDP"},
        {"port": 53, "name": "dns-tcp"},
    ]);
    let children = [
        web,
        immutable,
        service("web", &json!({"ports": ports, "sessionAffinity": "None", "clusterIP": "None"})),
    ];
    apply_once(&world, &children).await.map(drop)
}

/// Of the kind of B005: the order of a list that merges by key, or of a set, is nobody's field.
#[tokio::test]
async fn lists_in_another_order_are_left_alone() -> Result<()> {
    let world = World::new("forms-order").await?;
    let (env, ports) = (
        [json!({"name": "A", "value": "1"}), json!({"name": "B", "value": "2"})],
        [json!({"name": "a", "port": 80}), json!({"name": "b", "port": 81})],
    );
    let children = |turned: bool| {
        let (mut env, mut ports) = (env.clone(), ports.clone());
        let mut holds = ["a.example.org/x", "b.example.org/y"];
        if turned {
            env.reverse();
            ports.reverse();
            holds.reverse();
        }
        let web = workload(
            "Deployment",
            "web",
            &json!({"containers": [{"name": "main", "image": "nginx", "env": env}]}),
        );
        let mut held = config_map("held", &json!({}));
        held["metadata"]["finalizers"] = json!(holds);
        [web, service("web", &json!({"ports": ports})), held]
    };
    let live = apply_once(&world, &children(false)).await?;

    // Somebody turns them round.
    let mut containers = live[0]["spec"]["template"]["spec"]["containers"].clone();
    containers[0]["env"] = json!([env[1], env[0]]);
    let turned = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    world.merge("Deployment", "web", turned).await?;
    let mut service_ports = live[1]["spec"]["ports"].clone();
    service_ports.as_array_mut().unwrap().reverse();
    world.merge("Service", "web", json!({"spec": {"ports": service_ports}})).await?;
    let turned = json!({"metadata": {"finalizers": ["b.example.org/y", "a.example.org/x"]}});
    world.merge("ConfigMap", "held", turned).await?;
    world.until_at_rest().await?;
    assert_eq!(world.get("Service", "web").await?["spec"]["ports"][0]["name"], "b");

    // The plan does: applied once more.
    world.set_plan("w1", plan(&children(true))).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    world.merge("ConfigMap", "held", json!({"metadata": {"finalizers": null}})).await.map(drop)
}

/// Of the kind of B013: another manager owns fields beside ours, and some of ours with us.
#[tokio::test]
async fn another_manager_beside_us_costs_no_write() -> Result<()> {
    let world = World::new("forms-manager").await?;
    let pod =
        json!({"containers": [{"name": "main", "image": "nginx", "env": [{"name": "A", "value": "1"}]}]});
    let data = |data: &Value| config_map("settings", data);
    let children = [workload("Deployment", "web", &pod), data(&json!({"a": "1", "b": "1"}))];
    let live = apply_once(&world, &children).await?;

    let mut theirs = workload(
        "Deployment",
        "web",
        &json!({"containers": [
            {"name": "main", "image": "nginx", "env": [{"name": "THEIRS", "value": "1"}]},
            {"name": "sidecar", "image": "proxy"},
        ]}),
    );
    theirs["spec"]["template"]["metadata"]["annotations"] = json!({"example.org/injected": "true"});
    world.apply(&theirs, "mesh").await?;
    world.apply(&data(&json!({"a": "1", "b": "1", "c": "1"})), "mesh").await?;
    world.until_at_rest().await?;
    let web = world.get("Deployment", "web").await?;
    assert_eq!(web["spec"]["template"]["spec"]["containers"].as_array().map(Vec::len), Some(2));
    assert_eq!(ours(&web)?, ours(&live[0])?);

    // Without us it stays, as it is theirs as well; without them, too, as it was ours.
    world.set_plan("w1", plan(&[children[0].clone(), data(&json!({"a": "1"}))])).await?;
    world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    world.until_at_rest().await?;
    assert_eq!(world.get("ConfigMap", "settings").await?["data"], json!({"a": "1", "b": "1", "c": "1"}));
    world.apply(&data(&json!({"c": "1"})), "mesh").await?;
    world.until_at_rest().await?;
    assert_eq!(world.get("ConfigMap", "settings").await?["data"], json!({"a": "1", "c": "1"}));
    Ok(())
}

/// B013.
#[tokio::test]
async fn replicas_stay_with_the_autoscaler() -> Result<()> {
    let lab = Lab::enter("forms-scale").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.plugin("widget", "widget").await?;
    let web = |image: &str| {
        workload("Deployment", "web", &json!({"containers": [{"name": "main", "image": image}]}))
    };
    let is_scaled = async |image: &str| {
        let web = world.until("Deployment", "web", "five pods, all of this image", |deployment| {
            let (spec, status) = (&deployment["spec"], &deployment["status"]);
            ensure!(
                string(spec, "/template/spec/containers/0/image") == image && spec["replicas"] == 5,
                "{spec}"
            );
            ensure!(status["updatedReplicas"] == 5 && status["readyReplicas"] == 5, "{status}");
            ensure!(ours(deployment)?["fieldsV1"]["f:spec"]["f:replicas"].is_null(), "{}", ours(deployment)?);
            Ok(())
        });
        web.await?;
        world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await
    };
    apply_once(world, &[web("nginx:1.29")]).await?;
    let params = PatchParams { field_manager: Some("autoscaler".to_owned()), ..PatchParams::default() };
    let scale = Patch::Merge(json!({"spec": {"replicas": 5}}));
    world.api("Deployment").patch_scale("web", &params, &scale).await?;
    is_scaled("nginx:1.29").await?;
    world.until_at_rest().await?;

    host.stop().await?;
    let host = lab.host().await?;
    world.until_at_rest().await?;
    world.set_plan("w1", plan(&[web("nginx:1.30")])).await?;
    let widget = is_scaled("nginx:1.30").await?;
    ensure!(condition(&widget, "Stalled").is_none(), "{}", widget["status"]);
    world.until_at_rest().await?;
    host.stop().await
}

/// The other side of B013: replicas that the plan says are the plan's, also against the scale subresource.
#[tokio::test]
async fn replicas_of_the_plan_are_put_back() -> Result<()> {
    let world = World::new("forms-replicas").await?;
    let mut web = workload("Deployment", "web", &json!({"containers": [{"name": "main", "image": "nginx"}]}));
    web["spec"]["replicas"] = 2.into();
    apply_once(&world, &[web]).await?;
    let scale = Patch::Merge(json!({"spec": {"replicas": 5}}));
    world.api("Deployment").patch_scale("web", &PatchParams::default(), &scale).await?;
    world
        .until("Deployment", "web", "has two pods again", |web| {
            ensure!(web["spec"]["replicas"] == 2 && web["status"]["replicas"] == 2, "{}", web["status"]);
            Ok(())
        })
        .await?;
    world.until_at_rest().await
}
