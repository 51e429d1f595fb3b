//! Who takes part: parents, their specs, what they read, and the components that decide for them.

use super::Dice;
use fastrand::Rng;
use serde_json::{Value, json};

/// Widgets whose plan is written out in their spec.
pub const SCRIPTED: [&str; 2] = ["script-a", "script-b"];
/// A Widget of the ordinary kind, which also fails.
pub const PLAIN: &str = "plain";
/// A Widget that copies the `ConfigMap` [`SOURCE`].
pub const READS: &str = "reads";
/// A `ClusterWidget`, which is another plugin's: it reads the same as [`READS`].
pub const FLEET: &str = "fleet";
/// What [`READS`] and [`FLEET`] read.
pub const SOURCE: &str = "src";
/// What they list, while it has the label.
pub const PICKS: [&str; 3] = ["pick-0", "pick-1", "pick-2"];
/// All parents.
pub const PARENTS: [&str; 5] = [SCRIPTED[0], SCRIPTED[1], PLAIN, READS, FLEET];

/// The resources of children.
pub const KINDS: [&str; 4] = ["configmaps", "services", "deployments.apps", "jobs.batch"];

/// What may be swapped in; after six good ones come those that do not work, or cannot be loaded.
pub(super) const COMPONENTS: [&str; 10] = [
    "widget",
    "widget",
    "widget",
    "widget-v2",
    "widget-v2",
    "widget-finalizes",
    "widget-fewer",
    "widget-failing",
    "bad-manifest",
    "describe-panics",
];

/// What the host may be forbidden.
pub(super) const RIGHTS: [&str; 6] = [
    "list configmaps",
    "watch configmaps",
    "patch configmaps",
    "delete configmaps",
    "patch deployments.apps",
    "list deployments.apps",
];

/// The kind of a parent.
pub fn kind(parent: &str) -> &'static str {
    if parent == FLEET { "ClusterWidget" } else { "Widget" }
}

/// The resource of a parent.
pub fn resource(parent: &str) -> &'static str {
    if parent == FLEET { "clusterwidgets.cases.example.com" } else { "widgets.cases.example.com" }
}

/// Some of three `ConfigMap`s, of which the second comes in a later wave and the third is immutable and replaced.
pub fn config_maps(rng: &mut Rng, parent: &str, text: &str) -> Vec<Value> {
    let mut children = Vec::new();
    for number in 0..3 {
        if rng.u8(..3) > 0 {
            let mut child = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{parent}-{number}")},
                "data": {"text": text},
            });
            match number {
                1 => child["metadata"]["annotations"] = json!({"oarlock.dev/wave": "1"}),
                2 => {
                    child["immutable"] = true.into();
                    child["metadata"]["annotations"] = json!({"oarlock.dev/update": "replace"});
                }
                _ => {}
            }
            children.push(child);
        }
    }
    children
}

impl Dice {
    /// A child that there may be.
    pub(super) fn child(&mut self) -> (&'static str, String) {
        let scripted = self.one(&SCRIPTED);
        match self.rng.u8(..8) {
            0 => ("configmaps", format!("{PLAIN}-cm")),
            1 => ("configmaps", format!("{READS}-cm")),
            2 => ("configmaps", format!("{FLEET}-cm")),
            3 => ("services", format!("{scripted}-svc")),
            4 => ("deployments.apps", format!("{scripted}-web")),
            _ => ("configmaps", format!("{scripted}-{}", self.rng.u8(..3))),
        }
    }

    pub(super) fn spec(&mut self, parent: &'static str) -> Value {
        let text = self.text();
        match parent {
            PLAIN => {
                let mode = self.one(&["normal", "normal", "normal", "transient", "permanent", "panic"]);
                json!({"mode": mode, "text": text})
            }
            READS => json!({"mode": "reads", "read": SOURCE, "selector": "pick=yes", "text": text}),
            FLEET => json!({
                "mode": "reads", "read": SOURCE, "selector": "pick=yes", "text": text, "namespace": "demo",
            }),
            _ => self.script(parent, &text),
        }
    }

    /// A plan: `ConfigMap`s, and what a web application has.
    fn script(&mut self, parent: &str, text: &str) -> Value {
        let mut children = config_maps(&mut self.rng, parent, text);
        let labels = json!({"app": parent});
        if self.rng.u8(..3) == 0 {
            children.push(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("{parent}-svc"), "annotations": {"text": text}},
                "spec": {"ports": [{"port": 80}], "selector": labels},
            }));
        }
        if self.rng.u8(..3) == 0 {
            children.push(json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": format!("{parent}-web"), "annotations": {"text": text}},
                "spec": {"replicas": self.rng.u8(1..3), "selector": {"matchLabels": labels}, "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "web", "image": format!("web:{text}")}]},
                }},
            }));
        }
        if self.rng.u8(..5) == 0 {
            children.push(json!({
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"name": format!("{parent}-job"), "annotations": {"text": text}},
                "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "j", "image": "j"}]}}},
            }));
        }
        let mut plan = json!({"children": children, "status": {"note": text}});
        if self.rng.u8(..4) > 0 {
            let status = self.one(&["True", "False", "Unknown"]);
            plan["conditions"] =
                json!([{"type": "Synced", "status": status, "reason": "Told", "message": text}]);
        }
        json!({"plan": plan})
    }
}
