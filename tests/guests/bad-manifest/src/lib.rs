//! A plugin whose manifest has a field the host does not know.
#![cfg(target_arch = "wasm32")]

use oarlock_sdk::Failure;
use oarlock_sdk::bindings::{Guest, oarlock::plugin::types};

struct Plugin;

impl Guest for Plugin {
    fn describe() -> String {
        r#"{"name": "bad-manifest", "version": "0.1.0", "parent": {"apiVersion": "cases.example.com/v1",
            "kind": "Widget"}, "children": [], "reads": [], "finalizes": false, "status": true, "crds": [],
            "owns": ["ConfigMap"]}"#
            .to_owned()
    }

    fn reconcile(_object: String) -> Result<types::Plan, Failure> {
        Err(Failure::permanent("Loaded", "a plugin with a bad manifest was loaded"))
    }

    fn finalize(_object: String) -> Result<types::Teardown, Failure> {
        Err(Failure::permanent("Loaded", "a plugin with a bad manifest was loaded"))
    }
}

oarlock_sdk::bindings::export_plugin!(Plugin with_types_in oarlock_sdk::bindings);
