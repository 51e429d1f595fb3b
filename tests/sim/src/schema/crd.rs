//! The kinds that a `CustomResourceDefinition` defines.

use super::{Kind, Source, builtin::definitions, node::Schema};
use crate::refusal::{Cause, Refusal};
use serde_json::Value;
use std::sync::Arc;

/// The kinds of a `CustomResourceDefinition`, one per served version. The error says what is wrong with it: a schema
/// that is not structural, or one that uses what the simulator does not support.
pub fn of_crd(crd: &Value) -> Result<Vec<Arc<Kind>>, Refusal> {
    let name = crd["metadata"]["name"].as_str().unwrap_or_default();
    let spec = &crd["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = &spec["names"];
    let kind = text(&names["kind"]);
    let or = |value: &Value, other: String| value.as_str().map_or(other, str::to_owned);
    let mut kinds = Vec::new();
    for (index, version) in spec["versions"].as_array().into_iter().flatten().enumerate() {
        if version["served"] != true {
            continue;
        }
        let custom = &version["schema"]["openAPIV3Schema"];
        let schema = Schema::custom(definitions(), custom).map_err(|(path, why)| {
            invalid(name, format!("spec.versions[{index}].schema.openAPIV3Schema{path}"), &why)
        })?;
        let has_status = version["subresources"].get("status").is_some();
        kinds.push(Arc::new(Kind {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            plural: text(&names["plural"]),
            singular: or(&names["singular"], kind.to_lowercase()),
            list_kind: or(&names["listKind"], format!("{kind}List")),
            kind: kind.clone(),
            namespaced: spec["scope"] == "Namespaced",
            status: has_status,
            generation: true,
            schema: Arc::new(schema),
            source: Source::Custom(Arc::new(custom.clone())),
        }));
    }
    Ok(kinds)
}

fn invalid(name: &str, field: String, why: &str) -> Refusal {
    let message = format!(
        "CustomResourceDefinition.apiextensions.k8s.io \"{name}\" is invalid: {field}: Invalid value: {why}"
    );
    Refusal::new(422, "Invalid", message).because(vec![Cause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {why}"),
        field,
    }])
}
