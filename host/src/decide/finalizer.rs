//! What an object's metadata asks for: reconcile, finalize, or nothing any more.
//!
//! Never: I/O, clocks, wasm.

use crate::object::{Object, PREFIX};
use serde_json::json;

/// What to do with a parent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It lives: reconcile. `add_finalizer`: before anything is applied.
    Reconcile {
        /// The plugin finalizes and the object does not carry its finalizer yet.
        add_finalizer: bool,
    },
    /// It is being deleted and waits for us: finalize, or release it where this version of the plugin does not
    /// finalize any more.
    Finalize,
    /// It is being deleted and does not wait for us: nothing (rule D1: never add a finalizer now).
    Gone,
}

/// The finalizer of a plugin: `oarlock.dev/<plugin>`.
pub fn name(plugin: &str) -> String {
    format!("{PREFIX}{plugin}")
}

/// Tells what to do, from two facts: is the object being deleted, does it carry our finalizer?
pub fn phase(object: &Object, plugin: &str, finalizes: bool) -> Phase {
    match (object.is_terminating(), is_carried(object, plugin)) {
        (false, carried) => Phase::Reconcile { add_finalizer: finalizes && !carried },
        (true, true) => Phase::Finalize,
        (true, false) => Phase::Gone,
    }
}

/// The JSON patch that adds the plugin's finalizer, in force for exactly this version of the object.
pub fn add_patch(object: &Object, plugin: &str) -> String {
    let name = name(plugin);
    let others =
        object.finalizers.iter().filter(|finalizer| ***finalizer != *name).map(|finalizer| &**finalizer);
    patch(object, &others.chain([&*name]).collect::<Vec<_>>())
}

/// The JSON patch that removes the plugin's finalizer and no other, in force for exactly this version of the
/// object; `None` if the object does not carry it.
pub fn remove_patch(object: &Object, plugin: &str) -> Option<String> {
    let name = name(plugin);
    let others =
        object.finalizers.iter().filter(|finalizer| ***finalizer != *name).map(|finalizer| &**finalizer);
    is_carried(object, plugin).then(|| patch(object, &others.collect::<Vec<_>>()))
}

/// Whether the object carries the plugin's finalizer.
pub fn is_carried(object: &Object, plugin: &str) -> bool {
    let name = name(plugin);
    object.finalizers.iter().any(|carried| **carried == *name)
}

/// Puts the whole list in place of the one that this version of the object has.
///
/// A resourceVersion set by a patch is a precondition: whatever happened to the object meanwhile, another
/// finalizer, a new object of the same name, is answered with a version conflict and changes nothing. A `test` of
/// an element by its index would be answered as an invalid patch as soon as a list moves (B010), which cannot be
/// told from a mistake.
fn patch(object: &Object, finalizers: &[&str]) -> String {
    json!([
        {"op": "add", "path": "/metadata/resourceVersion", "value": object.version.as_str()},
        {"op": "add", "path": "/metadata/finalizers", "value": finalizers},
    ])
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;
    use serde_json::Value;

    fn parent(finalizers: &[&str], terminating: bool) -> Object {
        let mut object = json!({
            "apiVersion": "cases.example.com/v1",
            "kind": "Widget",
            "metadata": {"name": "w1", "namespace": "demo", "uid": "u1", "resourceVersion": "41"},
        });
        if !finalizers.is_empty() {
            object["metadata"]["finalizers"] = json!(finalizers);
        }
        if terminating {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Object::decode(&Gvk::new("cases.example.com/v1", "Widget"), &object.to_string()).unwrap()
    }

    #[test]
    fn phase_follows_from_deletion_and_finalizer() {
        let (ours, others) = (["x/hold", "oarlock.dev/web"], ["x/hold", "oarlock.dev/other"]);
        for (terminating, finalizers, finalizes, expected) in [
            (false, others, true, Phase::Reconcile { add_finalizer: true }),
            (false, others, false, Phase::Reconcile { add_finalizer: false }),
            (false, ours, true, Phase::Reconcile { add_finalizer: false }),
            (false, ours, false, Phase::Reconcile { add_finalizer: false }),
            (true, ours, true, Phase::Finalize),
            // The version before this one finalized: somebody has to release it.
            (true, ours, false, Phase::Finalize),
            // B019: a finalizer is never added to what is being deleted.
            (true, others, true, Phase::Gone),
            (true, others, false, Phase::Gone),
        ] {
            let found = phase(&parent(&finalizers, terminating), "web", finalizes);
            assert_eq!(found, expected, "terminating {terminating}, {finalizers:?}, finalizes {finalizes}");
        }
    }

    #[test]
    fn patches_change_one_finalizer_of_one_version() {
        fn check(patch: &str, expected: &[&str]) {
            let patch: Value = serde_json::from_str(patch).unwrap();
            let expected = json!([
                {"op": "add", "path": "/metadata/resourceVersion", "value": "41"},
                {"op": "add", "path": "/metadata/finalizers", "value": expected},
            ]);
            assert_eq!(patch, expected);
        }
        check(&add_patch(&parent(&[], false), "web"), &["oarlock.dev/web"]);
        check(&add_patch(&parent(&["a/x"], false), "web"), &["a/x", "oarlock.dev/web"]);
        check(&add_patch(&parent(&["oarlock.dev/web"], false), "web"), &["oarlock.dev/web"]);
        // B010: the others stay as they are.
        let both_sides = parent(&["a.example.org/x", "oarlock.dev/web", "b.example.org/y"], true);
        check(&remove_patch(&both_sides, "web").unwrap(), &["a.example.org/x", "b.example.org/y"]);
        check(&remove_patch(&parent(&["oarlock.dev/web"], true), "web").unwrap(), &[]);
        assert_eq!(remove_patch(&parent(&["oarlock.dev/web2"], true), "web"), None);
    }
}
