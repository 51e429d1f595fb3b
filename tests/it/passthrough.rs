//! What goes in at the parent comes out at the child, whatever it is: numbers, text, fields nobody knows, depth, size.

use anyhow::{Result, ensure};
use kube::api::{DynamicObject, PostParams};
use oarlock_tests::host::Host;
use serde_json::{Value, json};

use crate::world::{Lab, REPOSITORY, World, grant, kubectl, string};

/// What one way or another has been mangled on its way through somebody's JSON.
fn odd() -> Value {
    json!({
        "integers": [0, -1, 9_007_199_254_740_993_i64, i64::MAX, i64::MIN, -9_007_199_254_740_993_i64],
        "beyond": u64::MAX,
        "floats": [0.1, -2.5, 1.0, 1e21, 1e-7, 1.797_693_134_862_315_7e308, 5e-324],
        "texts": ["", " ", "ä", "e\u{301}", "👩‍👩‍👧", "\u{202e}abc", "\u{2028}\u{2029}", "\u{0}", "\u{7f}\u{1b}", "\u{fffd}\u{feff}",
                  "\\u0000", "\"quoted\"\r\n\t", "</script>&", "{{ .Values }}", "\u{85}\u{9f}\u{ffff}", "1", "true", "null", "1e3", "~"],
        "empty": [{}, [], ""],
        "unknown": {"": 1, "with space": 2, "with/slash~1": 3, "with.dot": 4, "ключ": 5, "\u{2028}": 6, "$ref": "#", "__proto__": {}, "<<": {"a": 7}, "true": 8, "1": 9, "~": 10, "\u{7f}": 11},
        "order": {"b": 1, "a": 2, "c": {"z": 0, "y": 0}},
        "truth": [true, false],
    })
}

/// Equal as the API server sees it: a number is a number.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (!(one.is_i64() && other.is_i64()) && one.as_f64() == other.as_f64())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, one)| other.get(name).is_some_and(|other| is_same(one, other)))
        }
        (one, other) => one == other,
    }
}

/// A lab with the plugin that may make Gadgets, whose spec takes anything.
async fn enter(namespace: &str) -> Result<(Lab, Host)> {
    let lab = Lab::enter(namespace).await?;
    let world = &lab.world;
    let crd = format!("{REPOSITORY}/tests/guests/widget/gadget.yaml");
    kubectl(world.plane, ["apply", "--server-side", "-f", &crd], None)?;
    grant(world.plane, "widget-gadgets")?;
    let host = lab.host().await?;
    world.plugin("widget", "widget-gadgets").await?;
    Ok((lab, host))
}

async fn leave(lab: &Lab, host: Host) -> Result<()> {
    lab.world.delete_plugin("widget").await?;
    host.stop().await
}

fn gadget(spec: &Value) -> Value {
    json!({"apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": {"name": "g1"}, "spec": spec})
}

/// Creates a Widget by POST: another client than ours.
async fn create(world: &World, name: &str, spec: &Value) -> Result<()> {
    let widget = json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec,
    });
    let widget: DynamicObject = serde_json::from_value(widget)?;
    world.api("Widget").create(&PostParams::default(), &widget).await?;
    Ok(())
}

#[tokio::test]
async fn values_reach_the_child_as_they_stand_in_the_parent() -> Result<()> {
    let (lab, host) = enter("through-values").await?;
    let world = &lab.world;
    let texts = odd()["texts"].as_array().cloned().unwrap_or_default();
    let data: serde_json::Map<_, _> =
        texts.iter().enumerate().map(|(number, text)| (format!("t{number}"), text.clone())).collect();
    let config_map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts"}, "data": data});
    let plan = json!({
        "children": [gadget(&odd()), config_map], "status": {"note": "👩‍👩‍👧 \u{2028} \u{0} e\u{301}"}, "requeueAfterMs": 300,
    });
    create(world, "w1", &json!({"plan": plan})).await?;
    let widget = world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(widget["status"]["note"], plan["status"]["note"]);
    let gadget = world.get("Gadget", "g1").await?;
    for (name, value) in odd().as_object().unwrap() {
        let found = &gadget["spec"][name];
        ensure!(is_same(value, found), "{name} is {found}, not {value}");
    }
    assert_eq!(world.get("ConfigMap", "texts").await?["data"], Value::Object(data));
    // What the API server writes in another way is no difference: nothing is written any more, also after a restart.
    world.until_at_rest().await?;
    let version = |object: &Value| string(object, "/metadata/resourceVersion").to_owned();
    host.kill()?;
    let host = lab.host().await?;
    world.until_at_rest().await?;
    assert_eq!(version(&world.get("Gadget", "g1").await?), version(&gadget));
    leave(&lab, host).await
}

/// `{"a": {"a": … 1}}`.
fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!({"a": inner}))
}

/// B050, the second part. No client of ours reads what is nested so deep: kubectl does.
#[tokio::test]
async fn parent_that_is_nested_deep_is_no_obstacle_for_others() -> Result<()> {
    let (lab, host) = enter("through-depth").await?;
    let world = &lab.world;
    // The one is deep where the guest does not look, the other where it does.
    let specs = [
        ("deep", json!({"text": "deep", "ignored": nested(200)})),
        ("deeper", json!({"text": "deep", "plan": {"status": nested(200)}})),
    ];
    for (name, spec) in specs {
        let widget = json!({
            "apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec,
        });
        kubectl(world.plane, ["create", "-n", &world.namespace, "-f", "-"], Some(&widget.to_string()))?;
    }
    let result = beside_deep(&lab, host).await;
    kubectl(world.plane, ["delete", "-n", &world.namespace, "widget", "deep", "deeper"], None)?;
    leave(&lab, result?).await
}

async fn beside_deep(lab: &Lab, host: Host) -> Result<Host> {
    let world = &lab.world;
    for number in 0..10 {
        world.set("Widget", &format!("w{number}"), json!({"text": "plain"})).await?;
    }
    let child = nested(60);
    create(world, "child", &json!({"plan": {"children": [gadget(&child)]}})).await?;
    let all_well = async || -> Result<()> {
        for number in 0..10 {
            let name = format!("w{number}");
            world.until_says("Widget", &name, ["Ready", "True", "ChildrenReady"]).await?;
            assert_eq!(world.get("ConfigMap", &format!("{name}-cm")).await?["data"]["text"], "plain");
        }
        world.until_says("Widget", "child", ["Ready", "True", "ChildrenReady"]).await?;
        assert_eq!(world.get("Gadget", "g1").await?["spec"], child);
        for (name, told) in
            [("deep", ["ChildrenReady", "True"]), ("deeper", ["InvalidObject", "recursion limit exceeded"])]
        {
            world
                .eventually("the deep one works, or is told alone", async || {
                    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")]}"#;
                    let args = ["get", "-n", &world.namespace, "widget", name, "-o", path];
                    let ready = kubectl(world.plane, args, None)?;
                    ensure!(told.iter().all(|words| ready.contains(words)), "{name}: {ready}");
                    Ok(())
                })
                .await?;
        }
        world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await.map(drop)
    };
    all_well().await?;
    host.kill()?;
    let host = lab.host().await?;
    all_well().await?;
    world.until_at_rest().await?;
    host.check_running()?;
    Ok(host)
}

#[tokio::test]
async fn object_of_almost_a_mebibyte_goes_through() -> Result<()> {
    let (lab, host) = enter("through-size").await?;
    let world = &lab.world;
    let spec = json!({"text": "ä".repeat(480_000), "last": "end"});
    create(world, "large", &json!({"plan": {"children": [gadget(&spec)]}})).await?;
    world.until_says("Widget", "large", ["Ready", "True", "ChildrenReady"]).await?;
    assert_eq!(world.get("Gadget", "g1").await?["spec"], spec);
    world.until_at_rest().await?;
    leave(&lab, host).await
}
