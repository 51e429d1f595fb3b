//! What an operator has set in a `Plugin`.
//!
//! Never: I/O, clocks.

use crate::{config::Limits, object::Object, plugins::resource::PluginSpec};
use std::time::Duration;
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
            warn!(plugin = &*settings.key.name, error = %error, "settings cannot be read, standard ones apply");
            PluginSpec::default()
        }
    }
}

/// The limits of a plugin: the host's, unless its settings say otherwise.
pub(super) fn limits(standard: &Limits, spec: &PluginSpec) -> Limits {
    let mut limits = standard.clone();
    if let Some(own) = &spec.limits {
        if let Some(mebibytes) = own.memory_mebibytes {
            limits.memory_bytes = (mebibytes.max(1) as usize) << 20;
        }
        if let Some(millions) = own.fuel_millions {
            limits.fuel = millions.max(1) as u64 * 1_000_000;
        }
        if let Some(milliseconds) = own.deadline_milliseconds {
            limits.deadline = Duration::from_millis(milliseconds.max(1) as u64);
        }
    }
    limits
}
