//! What a file is, before anything of it is compiled: structure, contract, imports, size.
//!
//! In: bytes from anywhere. Out: the facts, or what its author has to do. Nothing is run, and no structure is
//! followed before it was counted.

mod contract;

use super::engine::Engine;
use crate::config::Limits;
use std::panic;
use wasmparser::{Chunk, Encoding, Parser, Payload};

/// What a plugin's file is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Facts {
    /// Bytes of the file.
    pub size: usize,
    /// What it imports: the honest list of what it can do.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
    /// Whether it needs the sealed WASI, which costs a little in every call.
    pub wasi: bool,
}

/// Why a file is no plugin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No bytes at all.
    #[error("the file is empty; build the component and upload it again")]
    Empty,
    /// More than allowed.
    #[error(
        "the component has {size} bytes, at most {limit} are allowed; build it with --release, without debug information"
    )]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A text file.
    #[error("the file is text, not WebAssembly; it starts with {start:?}{remedy}")]
    Text {
        /// Its first characters.
        start: String,
        /// What it probably is, and what to do.
        remedy: &'static str,
    },
    /// Other bytes.
    #[error("the file is not WebAssembly; it starts with the bytes {start}{remedy}")]
    NotWasm {
        /// Its first bytes in hex.
        start: String,
        /// What it probably is, and what to do.
        remedy: &'static str,
    },
    /// The beginning of a component.
    #[error("the file is cut off after {size} bytes, in the middle of a section; upload it again")]
    Truncated {
        /// What is there.
        size: usize,
    },
    /// A core module.
    #[error(
        "the file is a core WebAssembly module, not a component; build it with `oarlock build` or `cargo component build --release`"
    )]
    CoreModule,
    /// It breaks the format.
    #[error("the component is malformed: {reason}; build it again with current tools")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// It has too many parts.
    #[error("the component has {count} {what}, at most {limit} are allowed; make it smaller")]
    Structure {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many may be.
        limit: usize,
    },
    /// It exports no plugin, or half of one.
    #[error(
        "the component does not export {}; a plugin exports describe, reconcile and finalize of {ours} \
         (in Rust: oarlock_sdk::export!)",
        list(missing)
    )]
    Exports {
        /// The functions that are missing.
        missing: Vec<String>,
        /// The contract of this host.
        ours: String,
    },
    /// Another contract.
    #[error(
        "the component is built for {theirs}, this host speaks {ours}; build it with the SDK of this host's version"
    )]
    Contract {
        /// Its contract.
        theirs: String,
        /// The contract of this host.
        ours: String,
    },
    /// A function of the contract with another type.
    #[error(
        "the component's {function} does not have the type it has in {ours}: {difference}; build it with the SDK of this host's version"
    )]
    Type {
        /// The function.
        function: String,
        /// Where the types differ.
        difference: String,
        /// The contract of this host.
        ours: String,
    },
    /// It imports what nobody provides.
    #[error("the component imports {}, which this host does not provide; {remedy}", list(names))]
    Imports {
        /// The imports.
        names: Vec<String>,
        /// What to do.
        remedy: &'static str,
    },
}

fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}

/// Looks at a file: its facts, if it is a plugin for this host.
///
/// # Errors
/// The first thing that stands against it, with what to do.
pub fn inspect(bytes: &[u8], limits: &Limits) -> Result<Facts, Error> {
    check_size(bytes, limits)?;
    check_start(bytes)?;
    check_structure(bytes, limits)?;
    // The decoder is not ours: a panic in it, too, says that the file is at fault.
    let checked = panic::catch_unwind(|| contract::check(bytes));
    checked.unwrap_or_else(|_| Err(undecodable()))
}

/// [`inspect`] on a thread for such work: a large component takes a tenth of a second.
pub(super) async fn inspect_apart(engine: &Engine, bytes: &[u8], limits: &Limits) -> Result<Facts, Error> {
    let (bytes, limits) = (bytes.to_vec(), limits.clone());
    let task = engine.apart(move || inspect(&bytes, &limits));
    task.await.unwrap_or_else(|| Err(undecodable()))
}

fn undecodable() -> Error {
    Error::Malformed { reason: "it cannot be decoded".to_owned() }
}

pub(super) fn check_size(bytes: &[u8], limits: &Limits) -> Result<(), Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    if bytes.len() > limits.component_bytes {
        return Err(Error::TooLarge { size: bytes.len(), limit: limits.component_bytes });
    }
    Ok(())
}

/// Tells common mistakes by the first bytes.
fn check_start(bytes: &[u8]) -> Result<(), Error> {
    const MAGIC: &[u8] = b"\0asm";
    let head = &bytes[..bytes.len().min(16)];
    if Parser::is_core_wasm(bytes) {
        return Err(Error::CoreModule);
    }
    if Parser::is_component(bytes) {
        return Ok(());
    }
    if bytes.starts_with(MAGIC) || MAGIC.starts_with(bytes) {
        let is_cut = bytes.len() < 8;
        let reason = "its version is unknown".to_owned();
        return Err(if is_cut {
            Error::Truncated { size: bytes.len() }
        } else {
            Error::Malformed { reason }
        });
    }
    let text = String::from_utf8_lossy(head);
    let is_text = !text.contains(char::REPLACEMENT_CHARACTER)
        || text.trim_end_matches(char::REPLACEMENT_CHARACTER).len() >= 12;
    if is_text
        && text
            .chars()
            .all(|char| !char.is_control() || char.is_whitespace() || char == char::REPLACEMENT_CHARACTER)
    {
        let remedy = match text.trim_start() {
            text if text.starts_with("(module") || text.starts_with("(component") => {
                "; this is the text format: build the binary one"
            }
            text if text.starts_with("AGFzb") => {
                "; this is base64: kubectl and binaryData do that themselves"
            }
            text if text.starts_with("version https://git-lfs") => {
                "; this is a pointer of Git LFS: fetch the file itself"
            }
            _ => "; upload the .wasm file that `oarlock build` writes",
        };
        return Err(Error::Text {
            start: text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned(),
            remedy,
        });
    }
    let remedy = match head {
        [0x1f, 0x8b, ..] => "; it is compressed with gzip: name it .wasm.gz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "; it is compressed with zstd: name it .wasm.zst",
        [0x7f, b'E', b'L', b'F', ..] => {
            "; it is a program for this machine: build for wasm32-unknown-unknown"
        }
        _ => "; upload the .wasm file that `oarlock build` writes",
    };
    let start = head.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    Err(Error::NotWasm { start, remedy })
}

/// Walks through all sections, those of nested modules too, and counts.
fn check_structure(bytes: &[u8], limits: &Limits) -> Result<(), Error> {
    let malformed = |source: &wasmparser::BinaryReaderError| Error::Malformed { reason: source.to_string() };
    let (mut functions, mut modules, mut names) = (0_usize, 0_usize, 0_usize);
    let mut parser = Parser::new(0);
    let mut outer = Vec::new();
    let mut rest = bytes;
    loop {
        // Without "end of file", the parser tells what is cut off from what is wrong.
        let (payload, consumed) = match parser.parse(rest, false).map_err(|source| malformed(&source))? {
            Chunk::NeedMoreData(_) if rest.is_empty() && outer.is_empty() => return Ok(()),
            Chunk::NeedMoreData(_) => return Err(Error::Truncated { size: bytes.len() }),
            Chunk::Parsed { payload, consumed } => (payload, consumed),
        };
        match payload {
            Payload::Version { encoding: Encoding::Module, .. } => modules += 1,
            Payload::CodeSectionStart { count, .. } => functions += count as usize,
            Payload::CodeSectionEntry(body) => {
                let size = body.range().len();
                within("bytes in one function", size, limits.function_bytes)?;
            }
            Payload::ImportSection(section) => names += section.count() as usize,
            Payload::ExportSection(section) => names += section.count() as usize,
            Payload::ComponentImportSection(section) => names += section.count() as usize,
            Payload::ComponentExportSection(section) => names += section.count() as usize,
            Payload::ModuleSection { parser: inner, .. }
            | Payload::ComponentSection { parser: inner, .. } => {
                outer.push(std::mem::replace(&mut parser, inner));
            }
            Payload::End(_) => match outer.pop() {
                Some(next) => parser = next,
                None => return Ok(()),
            },
            _ => {}
        }
        within("functions", functions, limits.functions)?;
        within("imports and exports", names, limits.names)?;
        within("modules", modules, limits.modules)?;
        within("levels of nesting", outer.len(), limits.nesting)?;
        rest = &rest[consumed..];
    }
}

fn within(what: &'static str, count: usize, limit: usize) -> Result<(), Error> {
    if count > limit { Err(Error::Structure { what, count, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
