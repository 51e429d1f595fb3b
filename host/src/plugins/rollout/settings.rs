//! What an operator has set in a `Plugin`.
//!
//! Never: I/O, clocks.

use crate::{
    config::Limits,
    manifest::{Namespaces, Permissions},
    object::Object,
    plugins::resource::{KindPermission, PluginSpec},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tracing::warn;

/// The settings of a `Plugin`; the API server has validated them.
pub(super) fn spec(settings: &Object) -> PluginSpec {
    #[derive(serde::Deserialize)]
    struct Whole {
        #[serde(default)]
        spec: PluginSpec,
    }
    match serde_json::from_str::<Whole>(&settings.body) {
        Ok(whole) => whole.spec,
        Err(error) => {
            // The standard may allow what they forbid.
            warn!(plugin = &*settings.key.name, error = %error, "settings cannot be read, so the plugin is paused");
            PluginSpec { paused: true, ..PluginSpec::default() }
        }
    }
}

/// What a plugin may do.
pub(super) fn permissions(spec: &PluginSpec) -> Arc<Permissions> {
    let own = spec.permissions.clone().unwrap_or_default();
    let kinds = |kinds: Vec<KindPermission>| -> BTreeMap<String, Namespaces> {
        let namespaces =
            |kind: KindPermission| (kind.kind, kind.namespaces.map(|all| all.into_iter().collect()));
        kinds.into_iter().map(namespaces).collect()
    };
    Arc::new(Permissions {
        read: own.read.map(kinds),
        write: own.write.map(kinds),
        adopt: own.adopt,
        sensitive_kinds: own.sensitive_kinds.into_iter().collect(),
    })
}

/// The limits of a plugin: the host's, unless its settings say otherwise.
pub(super) fn limits(standard: &Limits, spec: &PluginSpec) -> Limits {
    let mut limits = standard.clone();
    if let Some(own) = &spec.limits {
        let mebibytes = |limit: &mut usize, own: Option<i32>| {
            *limit = own.map_or(*limit, |own| (own.max(1) as usize) << 20);
        };
        let count = |limit: &mut usize, own: Option<i32>| {
            *limit = own.map_or(*limit, |own| own.max(1) as usize);
        };
        mebibytes(&mut limits.memory_bytes, own.memory_mebibytes);
        mebibytes(&mut limits.output_bytes, own.output_mebibytes);
        mebibytes(&mut limits.read_bytes, own.read_mebibytes);
        count(&mut limits.children, own.children);
        count(&mut limits.reads, own.reads);
        if let Some(millions) = own.fuel_millions {
            limits.fuel = millions.max(1) as u64 * 1_000_000;
        }
        if let Some(milliseconds) = own.deadline_milliseconds {
            limits.deadline = Duration::from_millis(milliseconds.max(1) as u64);
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;
    use serde_json::{Value, json};

    fn read(settings: &Value) -> PluginSpec {
        let plugin = json!({"metadata": {"name": "p"}, "spec": settings}).to_string();
        spec(&Object::decode(&Gvk::new("oarlock.dev/v1alpha1", "Plugin"), &plugin).unwrap())
    }

    #[test]
    fn limits_are_the_hosts_but_for_what_is_set() {
        let own = json!({"limits": {
            "memoryMebibytes": 3, "fuelMillions": 5, "deadlineMilliseconds": 70, "outputMebibytes": 11,
            "children": 13, "reads": 17, "readMebibytes": 19,
        }});
        let expected = Limits {
            memory_bytes: 3 << 20,
            fuel: 5_000_000,
            deadline: Duration::from_millis(70),
            output_bytes: 11 << 20,
            children: 13,
            reads: 17,
            read_bytes: 19 << 20,
            ..Limits::STANDARD
        };
        assert_eq!(limits(&Limits::STANDARD, &read(&own)), expected);
        assert_eq!(limits(&Limits::STANDARD, &read(&json!({}))), Limits::STANDARD);
    }

    #[test]
    fn permissions_are_the_standard_but_for_what_is_set() {
        assert_eq!(*permissions(&read(&json!({}))), Permissions::default());
        let own = json!({"permissions": {
            "read": [{"kind": "ConfigMap", "namespaces": [".", "shared"]}, {"kind": "Deployment.apps"}],
            "write": [], "adopt": true, "sensitiveKinds": ["Secret"],
        }});
        let namespaces = [".".to_owned(), "shared".to_owned()].into();
        let expected = Permissions {
            read: Some(
                [("ConfigMap".to_owned(), Some(namespaces)), ("Deployment.apps".to_owned(), None)].into(),
            ),
            write: Some(BTreeMap::new()),
            adopt: true,
            sensitive_kinds: ["Secret".to_owned()].into(),
        };
        assert_eq!(*permissions(&read(&own)), expected);
    }

    #[test]
    fn plugin_whose_settings_cannot_be_read_is_paused() {
        assert!(read(&json!({"paused": "perhaps", "permissions": {"write": []}})).paused);
    }
}
