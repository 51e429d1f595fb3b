//! What the component exports: the SDK's answers, and some that the SDK would not let a plugin give.

use oarlock_sdk::Failure;
use oarlock_sdk::bindings::{Guest, oarlock::plugin::types};

use crate::{Widget, Widgets};

struct Plugin;

impl Guest for Plugin {
    fn describe() -> String {
        oarlock_sdk::export::describe::<Widgets>(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
    }

    fn reconcile(object: String) -> Result<types::Plan, Failure> {
        let mut plan = oarlock_sdk::export::reconcile::<Widgets>(&object)?;
        let widget: Widget = serde_json::from_str(&object)?;
        if let Some(children) = children(&widget.spec.mode) {
            plan.children = children;
        }
        Ok(plan)
    }

    fn finalize(object: String) -> Result<types::Teardown, Failure> {
        oarlock_sdk::export::finalize::<Widgets>(&object)
    }
}

oarlock_sdk::bindings::export_plugin!(Plugin with_types_in oarlock_sdk::bindings);

/// The children of a mode whose text no typed plan could hold.
fn children(mode: &str) -> Option<Vec<String>> {
    let config_map = |name: &str, rest: &str| {
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}{rest}}}"#)
    };
    match mode {
        "big-output" => {
            // One buffer, written once: a second copy would be over the memory limit, which is another case.
            let mut json = String::with_capacity((50 << 20) + 128);
            json.push_str(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"x":""#);
            json.extend(std::iter::repeat_n("0123456789abcdef", (50 << 20) / 16));
            json.push_str(r#""}}"#);
            Some(vec![json])
        }
        "many-children" => Some((0..100_000).map(|i| config_map(&format!("c{i}"), "")).collect()),
        "deep" => {
            let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
            Some(vec![config_map("deep", &format!(r#","data":{open}{close}"#))])
        }
        "bad-json" => {
            Some(vec![r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "#.to_owned()])
        }
        _ => None,
    }
}
