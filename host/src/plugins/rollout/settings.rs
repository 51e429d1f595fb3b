//! What an operator has set in a `Plugin`.
//!
//! Never: I/O, clocks.

use super::say;
use crate::{
    config::Limits,
    manifest::{Namespaces, Permissions},
    object::{Gvk, Object, ParseSelectorError, Selector},
    plugins::{
        Part,
        resource::{Canary, KindPermission, PluginSpec},
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tracing::warn;

/// On a `Plugin` that the host made for a bare ConfigMap.
pub(super) const MADE_HERE: &str = "oarlock.dev/made-by-host";

/// Whether the host made it, rather than an operator.
pub(super) fn is_made_here(settings: &Object) -> bool {
    settings.annotations.contains_key(MADE_HERE)
}

/// The name of the ConfigMap that holds its component.
pub(crate) fn source(settings: &Object) -> String {
    spec(settings).source.map_or_else(|| settings.key.name.to_string(), |source| source.config_map)
}

/// Kinds of whose objects a plugin may have children, or own fields, by what its `Plugin` says of all versions so far.
pub(crate) struct RecordedKinds {
    pub(crate) kinds: Vec<Gvk>,
    pub(crate) field_kinds: Vec<Gvk>,
}

/// The digest of the version that a `Plugin` says is in force.
pub(crate) fn active(settings: &Object) -> Option<String> {
    say::recorded(settings).active.map(|active| active.digest)
}

/// What a `Plugin` says of the kinds so far.
pub(crate) fn recorded_kinds(settings: &Object) -> RecordedKinds {
    let recorded = say::recorded(settings);
    RecordedKinds {
        kinds: say::from_texts(&recorded.kinds).collect(),
        field_kinds: say::from_texts(&recorded.field_kinds).collect(),
    }
}

/// The part of the objects that a new version is tried on first; a tenth unless it is said otherwise.
///
/// # Errors
/// The selector is malformed.
pub(super) fn part(canary: &Canary) -> Result<Part, ParseSelectorError> {
    match &canary.label_selector {
        Some(selector) => Selector::parse(selector).map(Part::Labels),
        None => Ok(Part::Percent(canary.percent.unwrap_or(10).clamp(1, 100) as u64)),
    }
}

/// The settings of a `Plugin`; the API server has validated them.
pub(crate) fn spec(settings: &Object) -> PluginSpec {
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
pub(crate) fn permissions(spec: &PluginSpec) -> Arc<Permissions> {
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
pub(crate) fn limits(standard: &Limits, spec: &PluginSpec) -> Limits {
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
