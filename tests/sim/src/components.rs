//! The plugins' components, as they are pushed.

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, env, fmt::Write, fs, path::PathBuf};

/// Those that may be pushed, and whether they do what parents ask for.
const NAMES: [(&str, bool); 8] = [
    ("widget", true),
    ("widget-v2", true),
    ("widget-finalizes", true),
    ("widget-cluster", true),
    ("widget-fewer", false),
    ("widget-failing", false),
    ("bad-manifest", false),
    ("describe-panics", false),
];

/// Components by name.
pub struct Components(BTreeMap<&'static str, Component>);

struct Component {
    /// Compressed, in base64.
    text: String,
    digest: String,
}

impl Components {
    /// Reads them from the folder that `OARLOCK_GUESTS` names, where `./dev guests` builds them.
    ///
    /// # Errors
    /// One is not there.
    pub fn read() -> Result<Self> {
        let folder =
            env::var("OARLOCK_GUESTS").context("OARLOCK_GUESTS is not set; run this with ./dev sim")?;
        let folder = PathBuf::from(folder);
        let components = NAMES.map(|(name, _)| {
            let path = folder.join(format!("{name}.wasm"));
            let bytes = fs::read(&path)
                .with_context(|| format!("cannot read {}; build it with ./dev guests", path.display()))?;
            let compressed = zstd::encode_all(&*bytes, 3)?;
            let digest = Sha256::digest(&bytes).iter().fold(String::new(), |mut text, byte| {
                // A String takes everything.
                let _ = write!(text, "{byte:02x}");
                text
            });
            Ok((name, Component { text: STANDARD.encode(compressed), digest }))
        });
        Ok(Self(components.into_iter().collect::<Result<_>>()?))
    }

    /// Whether a component does what parents ask for.
    pub fn is_good(name: &str) -> bool {
        NAMES.contains(&(name, true))
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |component| &component.text)
    }

    pub(crate) fn digest(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |component| &component.digest)
    }
}
