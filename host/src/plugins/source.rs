//! A ConfigMap's content to the bytes of a component (rule P1).
//!
//! Never: I/O, clocks.

mod parts;

pub use parts::pack;

use crate::object::Object;
use base64::Engine as _;
use parts::Parts;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fmt::Write as _, io::Read, sync::Arc};

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
    /// The list of parts cannot be read.
    #[error("entry parts.json cannot be read; let `oarlock push` write it")]
    List(#[source] serde_json::Error),
    /// The list of parts is empty.
    #[error("entry parts.json lists no parts; let `oarlock push` write it")]
    NoParts,
    /// Parts are not there, or not yet.
    #[error("the component is incomplete: {missing} are missing; it is looked at again when they arrive")]
    Incomplete {
        /// Which, and where they should be.
        missing: String,
    },
    /// A part is not the one that is listed.
    #[error(
        "part {entry} in ConfigMap {config_map} is damaged, or of another upload; push the component again"
    )]
    Damaged {
        /// The part.
        entry: String,
        /// Where it is.
        config_map: String,
    },
    /// The parts together are not the component that is listed.
    #[error("the parts together are not the component that parts.json says; push it again")]
    Mismatch,
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

/// The other ConfigMaps that a component is in: none, unless it is in parts.
pub fn needed(config_map: &Object) -> Vec<String> {
    let content: Option<ConfigMap> = serde_json::from_str(&config_map.body).ok();
    let list = content.and_then(|content| Parts::parse(content.data.get(parts::LIST)?).ok());
    list.map(Parts::config_maps).unwrap_or_default()
}

/// Finds the one component in a ConfigMap and decompresses it, up to `limit` bytes. `find` has the other ConfigMaps of
/// one in parts.
///
/// # Errors
/// None or several entries, broken base64 or compression, too large, parts that are missing or damaged; each says what
/// to do.
pub fn component(
    config_map: &Object,
    find: impl Fn(&str) -> Option<Arc<Object>>,
    limit: usize,
) -> Result<Component, Error> {
    if config_map.key.name.len() > 63 {
        return Err(Error::NameTooLong);
    }
    let content: ConfigMap = serde_json::from_str(&config_map.body).map_err(Error::Json)?;
    let binary = content.binary_data.iter().map(|(name, text)| (name, text, false));
    let text = content.data.iter().map(|(name, text)| (name, text, true));
    let is_source = |name: &str| format(name).is_some() || name == parts::LIST;
    let entries: Vec<_> = binary.chain(text).filter(|(name, ..)| is_source(name)).collect();
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
    if entry == parts::LIST {
        let list = Parts::parse(text)?;
        let component = unpack(list.entry(), &list.join(find, limit)?, limit)?;
        return if component.digest == list.digest { Ok(component) } else { Err(Error::Mismatch) };
    }
    // Base64 in `data` may be wrapped, as `base64` prints it; in `binaryData` it never is.
    let packed: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let raw = match base64::engine::general_purpose::STANDARD.decode(packed) {
        Ok(raw) if !is_data || is_binary(&raw) => raw,
        // `kubectl create configmap --from-file` puts a text file into `data` as it is: so it is looked at.
        _ if is_data => text.clone().into_bytes(),
        Ok(raw) => raw,
        Err(source) => return Err(Error::Base64 { entry: entry.clone(), source }),
    };
    unpack(entry, &raw, limit)
}

/// Decompresses what an entry holds, as its ending says.
fn unpack(entry: &str, raw: &[u8], limit: usize) -> Result<Component, Error> {
    let mut bytes = Vec::new();
    let read = match format(entry) {
        Some(Format::Gzip) => read_up_to(flate2::read::GzDecoder::new(raw), limit, &mut bytes),
        Some(Format::Zstd) => {
            zstd::Decoder::new(raw).and_then(|decoder| read_up_to(decoder, limit, &mut bytes))
        }
        Some(Format::Plain) | None => read_up_to(raw, limit, &mut bytes),
    };
    let entry = entry.to_owned();
    read.map_err(|source| Error::Decompress { entry: entry.clone(), source })?;
    if bytes.len() > limit {
        return Err(Error::TooLarge { entry, limit });
    }
    Ok(Component { entry, digest: digest(&bytes), bytes })
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

/// Its first twelve digits: enough for people.
pub fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// A digest as people write it, as we do.
pub fn bare(digest: &str) -> &str {
    digest.strip_prefix("sha256:").unwrap_or(digest)
}

/// The identity of a version: sha256 in lower-case hex.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
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
        let found = component(&config_map(content), |_| None, 1_000);
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

    fn packed(name: &str, bytes: &[u8]) -> Vec<Arc<Object>> {
        let packed = pack(name, bytes).unwrap();
        let gvk = Gvk::new("v1", "ConfigMap");
        packed.iter().map(|one| Arc::new(Object::decode(&gvk, &one.to_string()).unwrap())).collect()
    }

    fn unpacked(all: &[Arc<Object>]) -> Result<Component, Error> {
        let (source, others) = all.split_last().unwrap();
        let find = |name: &str| others.iter().find(|one| *one.key.name == *name).cloned();
        component(source, find, 16 << 20)
    }

    /// Bytes that do not compress.
    fn noise(length: usize) -> Vec<u8> {
        let mut chance = fastrand::Rng::with_seed(length as u64);
        (0..length).map(|_| chance.u8(..)).collect()
    }

    #[test]
    fn what_is_packed_is_found_again_whole_or_in_parts() {
        for (bytes, config_maps) in [
            (Vec::new(), 1),
            (vec![7; 5_000_000], 1),
            (noise(900_000), 1),
            (noise(1_000_000), 3),
            (noise(5_000_000), 7),
        ] {
            let packed = packed("website", &bytes);
            assert_eq!(packed.len(), config_maps, "{} bytes", bytes.len());
            let found = unpacked(&packed).unwrap();
            assert_eq!((found.digest, found.bytes.len()), (digest(&bytes), bytes.len()));
            let source = packed.last().unwrap();
            assert_eq!(needed(source).len() + 1, config_maps);
            assert_eq!(source.labels.get("oarlock.dev/plugin").map(|value| &**value), Some("true"));
            assert!(packed.iter().all(|one| one.body.len() < 1_400_000), "a ConfigMap is too large");
        }
    }

    #[test]
    fn parts_count_only_when_all_of_one_upload_are_there() {
        let (all, other) = (packed("website", &noise(2_000_000)), packed("website", &noise(2_000_001)));
        let fails = |all: &[Arc<Object>]| unpacked(all).unwrap_err().to_string();
        let lacking = fails(&all[1..]);
        assert!(
            lacking.starts_with("the component is incomplete: website.wasm.zst.0 in website-"),
            "{lacking}"
        );
        // Parts of two uploads do not meet: their names differ.
        assert!(
            fails(&[other[0].clone(), all[1].clone(), all[2].clone(), all[3].clone()]).contains("incomplete")
        );
        let damaged = all[0].body.replacen("AAAA", "AAAB", 1).replacen("BB", "BC", 1);
        assert_ne!(damaged, *all[0].body);
        let mut odd: Vec<_> = all.clone();
        odd[0] = Arc::new(Object { body: damaged.into(), ..(*all[0]).clone() });
        assert!(fails(&odd).contains("is damaged"), "{}", fails(&odd));
        for (list, expected) in
            [("{", "cannot be read"), (r#"{"digest": "", "parts": []}"#, "lists no parts")]
        {
            check(&serde_json::json!({"data": {"parts.json": list}}), Err(expected));
        }
        check(
            &serde_json::json!({"data": {"parts.json": "{}"}, "binaryData": {"a.wasm": ""}}),
            Err("several components"),
        );
    }

    #[test]
    fn component_stops_unpacking_at_the_limit() {
        let bomb = base64(&zstd::encode_all(&vec![0u8; 10_000_000][..], 3).unwrap());
        check(&serde_json::json!({"binaryData": {"a.wasm.zst": bomb}}), Err("larger than 1000 bytes"));
    }
}
