//! A ConfigMap's content to the bytes of a component (rule P1).
//!
//! Never: I/O, clocks.

use crate::object::Object;
use base64::Engine as _;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fmt::Write as _, io::Read};

/// A component as it was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Component {
    /// The entry it came from, such as `website.wasm`.
    pub entry: String,
    /// The decompressed bytes.
    pub bytes: Vec<u8>,
    /// sha256 of `bytes`, lower-case hex: the identity of the version (rule P2).
    pub digest: String,
}

/// Why there is no component.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ConfigMap's JSON has an unexpected shape.
    #[error("the ConfigMap cannot be read")]
    Json(#[source] serde_json::Error),
    /// No entry is a component.
    #[error(
        "the ConfigMap has no entry that ends in .wasm, .wasm.gz or .wasm.zst ({found}); \
         put one in with `oarlock push FILE` or `kubectl create configmap NAME --from-file=FILE`"
    )]
    None {
        /// What it has instead.
        found: String,
    },
    /// Several entries are.
    #[error(
        "the ConfigMap has several components ({entries}); one plugin is one component, remove all but one"
    )]
    Several {
        /// Their names.
        entries: String,
    },
    /// The entry is not base64.
    #[error(
        "entry {entry} is not valid base64; let `kubectl create configmap --from-file` or `oarlock push` encode it"
    )]
    Base64 {
        /// The entry.
        entry: String,
        /// Where it goes wrong.
        #[source]
        source: base64::DecodeError,
    },
    /// The entry cannot be decompressed.
    #[error("entry {entry} cannot be decompressed; compress it again with gzip or zstd, matching its ending")]
    Decompress {
        /// The entry.
        entry: String,
        /// What the decompressor says.
        #[source]
        source: std::io::Error,
    },
    /// Too large.
    #[error("entry {entry} is larger than {limit} bytes once decompressed")]
    TooLarge {
        /// The entry.
        entry: String,
        /// The limit.
        limit: usize,
    },
    /// The plugin's name ends up in label values and finalizers.
    #[error(
        "the ConfigMap's name has more than 63 characters, which is as long as a label value may be; rename it"
    )]
    NameTooLong,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigMap {
    #[serde(default)]
    binary_data: BTreeMap<String, String>,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

/// Finds the one component in a ConfigMap and decompresses it, up to `limit` bytes.
///
/// # Errors
/// None or several entries, broken base64 or compression, too large; each says what to do.
pub fn component(config_map: &Object, limit: usize) -> Result<Component, Error> {
    if config_map.key.name.len() > 63 {
        return Err(Error::NameTooLong);
    }
    let content: ConfigMap = serde_json::from_str(&config_map.body).map_err(Error::Json)?;
    let binary = content.binary_data.iter().map(|(name, text)| (name, text, false));
    let text = content.data.iter().map(|(name, text)| (name, text, true));
    let entries: Vec<_> = binary.chain(text).filter(|(name, ..)| format(name).is_some()).collect();
    let (entry, text, is_data) = match entries.as_slice() {
        [one] => *one,
        [] => {
            let names: Vec<_> = content.binary_data.keys().chain(content.data.keys()).cloned().collect();
            let found = if names.is_empty() {
                "it is empty".to_owned()
            } else {
                format!("it has {}", names.join(", "))
            };
            return Err(Error::None { found });
        }
        several => {
            let names: Vec<_> = several.iter().map(|(name, ..)| name.as_str()).collect();
            return Err(Error::Several { entries: names.join(", ") });
        }
    };
    // Base64 in `data` may be wrapped, as `base64` prints it; in `binaryData` it never is.
    let packed: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let raw = match base64::engine::general_purpose::STANDARD.decode(packed) {
        Ok(raw) if !is_data || is_binary(&raw) => raw,
        // `kubectl create configmap --from-file` puts a text file into `data` as it is: so it is looked at.
        _ if is_data => text.clone().into_bytes(),
        Ok(raw) => raw,
        Err(source) => return Err(Error::Base64 { entry: entry.clone(), source }),
    };
    let mut bytes = Vec::new();
    let read = match format(entry) {
        Some(Format::Gzip) => read_up_to(flate2::read::GzDecoder::new(raw.as_slice()), limit, &mut bytes),
        Some(Format::Zstd) => {
            zstd::Decoder::new(raw.as_slice()).and_then(|decoder| read_up_to(decoder, limit, &mut bytes))
        }
        Some(Format::Plain) | None => read_up_to(raw.as_slice(), limit, &mut bytes),
    };
    read.map_err(|source| Error::Decompress { entry: entry.clone(), source })?;
    if bytes.len() > limit {
        return Err(Error::TooLarge { entry: entry.clone(), limit });
    }
    Ok(Component { entry: entry.clone(), digest: digest(&bytes), bytes })
}

/// One byte more than `limit` is enough to know that it is too much: a bomb is never unpacked.
fn read_up_to(reader: impl Read, limit: usize, into: &mut Vec<u8>) -> std::io::Result<()> {
    reader.take(limit as u64 + 1).read_to_end(into).map(|_| ())
}

/// Whether bytes start as WebAssembly, gzip or zstd do.
fn is_binary(bytes: &[u8]) -> bool {
    [&b"\0asm"[..], b"\x1f\x8b", b"\x28\xb5\x2f\xfd"].iter().any(|magic| bytes.starts_with(magic))
}

#[derive(Clone, Copy)]
enum Format {
    Plain,
    Gzip,
    Zstd,
}

fn format(entry: &str) -> Option<Format> {
    let endings = [("wasm", Format::Plain), ("wasm.gz", Format::Gzip), ("wasm.zst", Format::Zstd)];
    let is_ending = |ending: &str| entry.strip_suffix(ending).is_some_and(|stem| stem.ends_with('.'));
    endings.into_iter().find(|(ending, _)| is_ending(ending)).map(|(_, format)| format)
}

/// The identity of a version: sha256 in lower-case hex.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The ConfigMaps that hold a component, those that others wait for last.
pub fn pack(name: &str, bytes: &[u8]) -> Vec<serde_json::Value> {
    let packed = zstd::encode_all(bytes, 19).unwrap_or_default();
    let entry = base64::engine::general_purpose::STANDARD.encode(packed);
    vec![serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "binaryData": {"plugin.wasm.zst": entry},
    })]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;
    use std::io::Write as _;

    fn base64(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    fn config_map(content: &serde_json::Value) -> Object {
        let mut object = serde_json::json!({"metadata": {"name": "website", "namespace": "oarlock-system"}});
        for (key, value) in content.as_object().unwrap() {
            object[key] = value.clone();
        }
        Object::decode(&Gvk::new("v1", "ConfigMap"), &object.to_string()).unwrap()
    }

    fn check(content: &serde_json::Value, expected: Result<&[u8], &str>) {
        let found = component(&config_map(content), 1_000);
        match (found, expected) {
            (Ok(component), Ok(bytes)) => assert_eq!(component.bytes, bytes),
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn component_is_found_plain_compressed_and_as_text() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"abc").unwrap();
        let gzip = base64(&gzip.finish().unwrap());
        let zstd = base64(&zstd::encode_all(&b"abc"[..], 3).unwrap());
        check(&serde_json::json!({"binaryData": {"a.wasm": base64(b"abc")}}), Ok(b"abc"));
        check(&serde_json::json!({"binaryData": {"a.wasm.gz": gzip}}), Ok(b"abc"));
        check(&serde_json::json!({"binaryData": {"a.wasm.zst": zstd}, "data": {"note": "x"}}), Ok(b"abc"));
        check(&serde_json::json!({"data": {"a.wasm": "AGFz\nbQ==\n"}}), Ok(b"\0asm"));
    }

    #[test]
    fn component_is_the_text_itself_where_a_text_file_was_uploaded() {
        for text in ["hello", "hell", "§"] {
            check(&serde_json::json!({"data": {"a.wasm": text}}), Ok(text.as_bytes()));
        }
    }

    #[test]
    fn component_says_what_is_wrong() {
        check(&serde_json::json!({}), Err("it is empty"));
        check(&serde_json::json!({"data": {"readme.md": "x"}}), Err("it has readme.md"));
        check(
            &serde_json::json!({"binaryData": {"a.wasm": "", "b.wasm": ""}}),
            Err("several components (a.wasm, b.wasm)"),
        );
        check(&serde_json::json!({"binaryData": {"a.wasm": "§"}}), Err("not valid base64"));
        check(
            &serde_json::json!({"binaryData": {"a.wasm.gz": base64(b"abc")}}),
            Err("cannot be decompressed"),
        );
    }

    #[test]
    fn component_stops_unpacking_at_the_limit() {
        let bomb = base64(&zstd::encode_all(&vec![0u8; 10_000_000][..], 3).unwrap());
        check(&serde_json::json!({"binaryData": {"a.wasm.zst": bomb}}), Err("larger than 1000 bytes"));
    }
}
