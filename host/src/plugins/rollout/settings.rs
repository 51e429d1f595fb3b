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
