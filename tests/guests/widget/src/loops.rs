//! The modes that wake themselves: what they answer depends on what they answered.

use std::time::Duration;

use oarlock_sdk::{Condition, Failure, Plan, Reads};
use serde_json::{Value, json};

use crate::{Widget, child_name, config_map, next};

/// Changes the plan as the mode says; false if it is no mode of these.
pub(crate) fn run(widget: &Widget, reads: &Reads, plan: &mut Plan) -> Result<bool, Failure> {
    let name = &widget.metadata.name;
    match &*widget.spec.mode {
        // Counts up to `size`, and has settled then.
        "settles" => {
            let count: u32 = next(reads)?.parse().unwrap_or_default();
            plan.status = Some(json!({"note": count.min(widget.spec.size).to_string()}));
        }
        // Another name at each second.
        "clock-name" => {
            let time = reads.now().to_lowercase().replace(':', "-");
            plan.children = vec![config_map(&format!("{name}-{time}"), &widget.spec.text).into()];
            plan.requeue_after = Some(Duration::from_secs(1));
        }
        // A name from what no guest is shown.
        "version-name" => {
            let version = widget.metadata.annotations.get("resourceVersion").cloned();
            let version = version.unwrap_or_else(|| "none".to_owned());
            plan.children = vec![config_map(&format!("{name}-{version}"), &widget.spec.text).into()];
        }
        // The same ports, in turn one way and the other.
        "flip" => {
            let previous: Option<Value> = reads.previous_status()?;
            let is_there = previous.is_some_and(|status| status["note"] == "there");
            let mut ports = [("a", 80), ("b", 81)].map(|(name, port)| json!({"name": name, "port": port}));
            if is_there {
                ports.reverse();
            }
            plan.children = vec![
                json!({
                    "apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": ports},
                })
                .into(),
            ];
            plan.status = Some(json!({"note": if is_there { "back" } else { "there" }}));
        }
        // One more than in its own child.
        "own-child" => {
            let child: Option<Value> = reads.get(("v1", "ConfigMap"), &child_name(widget))?;
            let count: u64 = child
                .and_then(|child| child["data"]["text"].as_str().and_then(|text| text.parse().ok()))
                .unwrap_or(0);
            plan.children = vec![config_map(&child_name(widget), &(count + 1).to_string()).into()];
        }
        // One more than in the annotation that it owns on its object.
        "own-annotation" => {
            let key = "cases.example.com/count";
            let count: u64 =
                widget.metadata.annotations.get(key).and_then(|count| count.parse().ok()).unwrap_or(0);
            plan.metadata.annotations.insert(key.to_owned(), (count + 1).to_string());
        }
        // Called again and again, with a condition that is always the same: `text` is its status.
        "stamp" => {
            reads.now();
            plan.conditions = vec![Condition::new("Stamped", widget.spec.text != "False", "Ok", "fine")];
            plan.requeue_after = Some(Duration::from_millis(300));
        }
        _ => return Ok(false),
    }
    Ok(true)
}
