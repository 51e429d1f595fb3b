//! Makes components of core modules in text form: guests that no compiler would write.
//!
//! `encode FOLDER FILE.wat...` writes `FOLDER/FILE.wasm` for each, with the contract's types and nothing checked.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

fn main() -> Result<()> {
    let mut args = env::args_os().skip(1).map(PathBuf::from);
    let folder = args.next().context("usage: encode FOLDER FILE.wat...")?;
    let mut contract = Resolve::default();
    let wit = concat!(env!("CARGO_MANIFEST_DIR"), "/../wit");
    let (package, _) = contract.push_dir(wit).context("cannot read the contract")?;
    let world = contract.select_world(&[package], Some("plugin"))?;
    for file in args {
        let encode = || -> Result<Vec<u8>> {
            let mut module = wat::parse_file(&file)?;
            embed_component_metadata(&mut module, &contract, world, StringEncoding::UTF8)?;
            ComponentEncoder::default().module(&module)?.encode()
        };
        let component = encode().with_context(|| format!("cannot encode {}", file.display()))?;
        let name = file.with_extension("wasm");
        fs::write(folder.join(name.file_name().context("a file has a name")?), component)?;
    }
    Ok(())
}
