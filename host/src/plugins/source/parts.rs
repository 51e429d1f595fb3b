//! A component in parts, as one ConfigMap holds 1 MiB: content of several ConfigMaps, and a list with their digests.
//!
//! Parts are named after the component's digest, so an upload never changes those of another one; the list is written
//! last, so half an upload is never taken for a whole one.

use super::{Error, digest, short};
use crate::object::{LABEL_PART_OF, LABEL_PLUGIN, Object};
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The entry that lists the parts.
pub(super) const LIST: &str = "parts.json";
/// Bytes of a part; a ConfigMap may have 1,048,576 with all that it holds.
const PART_BYTES: usize = 900 << 10;

/// The parts of a component.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Parts {
    /// sha256 of the component, decompressed.
    pub(super) digest: String,
    /// In their order.
    pub(super) parts: Vec<Part>,
}

/// One part.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Part {
    /// The ConfigMap that it is in.
    config_map: String,
    /// Its name there, such as `website.wasm.zst.0`.
    entry: String,
    /// sha256 of its bytes.
    digest: String,
}

impl Parts {
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let parts: Self = serde_json::from_str(text).map_err(Error::List)?;
        if parts.parts.is_empty() {
            return Err(Error::NoParts);
        }
        Ok(parts)
    }

    /// The ConfigMaps that they are in.
    pub(super) fn config_maps(self) -> Vec<String> {
        let mut names: Vec<_> = self.parts.into_iter().map(|part| part.config_map).collect();
        names.dedup();
        names
    }

    /// The entry that they are parts of, such as `website.wasm.zst`.
    pub(super) fn entry(&self) -> &str {
        let first = self.parts.first().map(|part| &*part.entry).unwrap_or_default();
        first.rsplit_once('.').map_or(first, |(entry, _)| entry)
    }

    /// All of them, one after the other, up to `limit` bytes.
    pub(super) fn join(
        &self,
        find: impl Fn(&str) -> Option<Arc<Object>>,
        limit: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut joined = Vec::new();
        let mut missing = Vec::new();
        for part in &self.parts {
            let Some(bytes) = find(&part.config_map).and_then(|config_map| part.bytes(&config_map)) else {
                missing.push(format!("{} in {}", part.entry, part.config_map));
                continue;
            };
            if digest(&bytes) != part.digest {
                return Err(Error::Damaged {
                    entry: part.entry.clone(),
                    config_map: part.config_map.clone(),
                });
            }
            if joined.len() + bytes.len() > limit {
                return Err(Error::TooLarge { entry: self.entry().to_owned(), limit });
            }
            joined.extend(bytes);
        }
        if missing.is_empty() { Ok(joined) } else { Err(Error::Incomplete { missing: missing.join(", ") }) }
    }
}

impl Part {
    fn bytes(&self, config_map: &Object) -> Option<Vec<u8>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Content {
            #[serde(default)]
            binary_data: BTreeMap<String, String>,
        }
        let content: Content = serde_json::from_str(&config_map.body).ok()?;
        base64::engine::general_purpose::STANDARD.decode(content.binary_data.get(&self.entry)?).ok()
    }
}

/// The ConfigMaps that hold a component, compressed: one if it fits, else its parts, and last the one of that name,
/// which lists them. They are labelled as a plugin's source.
///
/// # Errors
/// It cannot be compressed: no memory.
pub fn pack(name: &str, component: &[u8]) -> std::io::Result<Vec<Value>> {
    // The highest level without long windows: seconds for the largest plugins, once. Its memory goes by the size.
    let packed = zstd::bulk::compress(component, 19)?;
    let entry = format!("{name}.wasm.zst");
    let config_map = |name: &str, labels: Value, content: Value| {
        let mut config_map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels},
        });
        if let (Some(config_map), Some(content)) = (config_map.as_object_mut(), content.as_object()) {
            config_map.extend(content.clone());
        }
        config_map
    };
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    if packed.len() <= PART_BYTES {
        let content = json!({"binaryData": {(&*entry): encode(&packed)}});
        return Ok(vec![config_map(name, json!({LABEL_PLUGIN: "true"}), content)]);
    }
    let whole = digest(component);
    let (mut parts, mut config_maps) = (Vec::new(), Vec::new());
    for (number, bytes) in packed.chunks(PART_BYTES).enumerate() {
        let part = Part {
            config_map: format!("{name}-{}-{number}", short(&whole)),
            entry: format!("{entry}.{number}"),
            digest: digest(bytes),
        };
        let labels = json!({LABEL_PLUGIN: "part", LABEL_PART_OF: name});
        config_maps.push(config_map(
            &part.config_map,
            labels,
            json!({"binaryData": {(&*part.entry): encode(bytes)}}),
        ));
        parts.push(part);
    }
    let list = json!(Parts { digest: whole, parts }).to_string();
    config_maps.push(config_map(name, json!({LABEL_PLUGIN: "true"}), json!({"data": {LIST: list}})));
    Ok(config_maps)
}
