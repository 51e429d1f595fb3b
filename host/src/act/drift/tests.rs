use super::*;
use crate::object::Gvk;
use serde_json::json;

const MANAGER: &str = "oarlock/web";

/// An object as it was applied, and as kube-apiserver 1.37 answered: with defaults, quantities rewritten, empties
/// and zeros dropped.
#[derive(serde::Deserialize)]
struct Recorded {
    name: String,
    desired: Value,
    live: Value,
}

fn recorded() -> Vec<Recorded> {
    serde_json::from_str(include_str!("recorded.json")).unwrap()
}

fn recorded_as(name: &str) -> Recorded {
    recorded().into_iter().find(|recorded| recorded.name == name).unwrap()
}

fn decode(live: &Value) -> Object {
    let text = |field: &str| live[field].as_str().unwrap();
    Object::decode(&Gvk::new(text("apiVersion"), text("kind")), &live.to_string()).unwrap()
}

/// What the API server does with our entry when somebody else writes the field at a path: the node goes, and with
/// it the nodes above that are left empty.
fn lose(live: &mut Value, path: &[&str]) {
    fn take_out(node: &mut Value, path: &[&str]) {
        let (step, below) = path.split_first().unwrap();
        let members = node.as_object_mut().unwrap();
        let child = members.get_mut(*step).unwrap_or_else(|| panic!("no {step}"));
        if !below.is_empty() {
            take_out(child, below);
        }
        if below.is_empty() || child.as_object().unwrap().is_empty() {
            members.remove(*step);
        }
    }
    let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
    let entry = entries.iter_mut().find(|entry| entry["manager"] == MANAGER).unwrap();
    take_out(&mut entry["fieldsV1"], path);
}

#[test]
fn everything_holds_as_the_api_server_answered_it() {
    let recorded = recorded();
    assert!(recorded.len() > 20);
    for Recorded { name, desired, live } in recorded {
        assert_eq!(first_difference(&desired, &decode(&live), MANAGER), None, "{name}");
        let missing = first_difference(&desired, &decode(&live), "oarlock/other");
        assert!(missing.is_some(), "{name} is not another plugin's");
    }
}

#[test]
fn difference_is_where_somebody_else_wrote() {
    let container = r#"k:{"name":"web"}"#;
    let template = ["f:spec", "f:template", "f:spec", "f:containers", container];
    let of_container = |path: &[&'static str]| [&template[..], path].concat();
    for (kind, path, expected) in [
        ("Deployment", of_container(&["f:image"]), "spec.template.spec.containers[web].image"),
        ("Deployment", template.to_vec(), "spec.template.spec.containers"),
        (
            "Deployment",
            of_container(&["f:resources", "f:requests", "f:cpu"]),
            "spec.template.spec.containers[web].resources.requests.cpu",
        ),
        // A zero that the API server does not store is still ours, until somebody sets it.
        ("Deployment", vec!["f:spec", "f:paused"], "spec.paused"),
        (
            "Deployment",
            of_container(&["f:env", r#"k:{"name":"EMPTY"}"#, "f:value"]),
            "spec.template.spec.containers[web].env[EMPTY].value",
        ),
        // The one without a protocol, of two ports of that number.
        (
            "Deployment",
            of_container(&["f:ports", r#"k:{"containerPort":53,"protocol":"TCP"}"#]),
            "spec.template.spec.containers[web].ports[53]",
        ),
        (
            "Deployment",
            of_container(&["f:ports", r#"k:{"containerPort":53,"protocol":"UDP"}"#]),
            "spec.template.spec.containers[web].ports[53]",
        ),
        ("Deployment", vec!["f:metadata", "f:labels", "f:oarlock.dev/owned-by"], "metadata.labels"),
        ("Deployment", vec!["f:metadata", "f:ownerReferences"], "metadata.ownerReferences"),
        ("StatefulSet", vec!["f:spec", "f:volumeClaimTemplates"], "spec.volumeClaimTemplates"),
        ("ConfigMap", vec!["f:data", "f:empty"], "data.empty"),
        ("ConfigMap", vec!["f:metadata", "f:finalizers", r#"v:"example.org/x""#], "metadata.finalizers"),
        ("Widget", vec!["f:spec", "f:flag"], "spec.flag"),
        ("Widget", vec!["f:spec", "f:atomic"], "spec.atomic"),
        ("Widget", vec!["f:spec", "f:map", r#"k:{"name":"x"}"#, "f:v"], "spec.map[x].v"),
        ("Widget", vec!["f:spec", "f:set", r#"v:"p""#], "spec.set"),
    ] {
        let Recorded { desired, mut live, .. } = recorded_as(kind);
        lose(&mut live, &path);
        assert_eq!(
            first_difference(&desired, &decode(&live), MANAGER).as_deref(),
            Some(expected),
            "{kind} {path:?}"
        );
    }
}

#[test]
fn fields_of_others_and_rewritten_values_are_no_difference() {
    let Recorded { desired, mut live, .. } = recorded_as("Deployment");
    // B013.
    live["spec"]["replicas"] = json!(5);
    live["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "sidecar"}));
    live["metadata"]["labels"]["team"] = json!("a");
    // F29: admission rewrites it at each apply, and it is still ours.
    live["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mirror.example.org/nginx:1");
    assert_eq!(first_difference(&desired, &decode(&live), MANAGER), None);
}

#[test]
fn empty_list_holds_until_somebody_fills_it() {
    // B005: `subjects: []` is not stored.
    let Recorded { desired, mut live, .. } = recorded_as("RoleBinding");
    assert_eq!(first_difference(&desired, &decode(&live), MANAGER), None);
    live["subjects"] = json!([{"kind": "User", "name": "eve"}]);
    lose(&mut live, &["f:subjects"]);
    assert_eq!(first_difference(&desired, &decode(&live), MANAGER).as_deref(), Some("subjects"));

    let Recorded { desired, mut live, .. } = recorded_as("Widget of empties");
    live["spec"]["set"] = json!(["theirs"]);
    assert_eq!(first_difference(&desired, &decode(&live), MANAGER).as_deref(), Some("spec.set"));
}

#[test]
fn nothing_holds_when_managed_fields_were_cleared() {
    let Recorded { desired, mut live, .. } = recorded_as("ConfigMap");
    live["metadata"]["managedFields"] = json!([]);
    assert!(first_difference(&desired, &decode(&live), MANAGER).is_some());
}
