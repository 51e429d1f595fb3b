//! Bytes to a version that could serve: inspected, compiled, linked, smoke-tested, its manifest checked (rule P2).

use crate::{
    config::Limits,
    decide::guest::{CallError, Guest, LoadError, compile, engine::Engine, inspect},
    manifest::{self, Manifest, Permissions},
    plugins::{ActivePlugin, source::Component},
    report::Reason,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// A version that could serve.
#[derive(Clone)]
pub struct Version {
    /// sha256 of the component.
    pub digest: Arc<str>,
    /// What it declares.
    pub manifest: Arc<Manifest>,
    /// Its code.
    pub guest: Guest,
    /// When its loading began.
    pub seen: Instant,
    /// See [`Version::bytes`].
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Version {
    /// The component, until it is kept in the cluster.
    pub fn bytes(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        // It is there or not, never half-way.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version under what the operator allows now; `None` if that is not enough.
    pub fn permitted(self, permissions: &Arc<Permissions>) -> Option<Self> {
        let manifest = Arc::new(self.manifest.permit(permissions).ok()?);
        Some(Self { manifest, ..self })
    }

    /// The version of a plugin in force.
    pub fn of(plugin: &ActivePlugin) -> Self {
        let ActivePlugin { digest, manifest, guest, .. } = plugin.clone();
        Self { digest, manifest, guest, seen: Instant::now(), bytes: Arc::default() }
    }
}

/// Why a version is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Structure, contract, compiling, linking or the first call.
    #[error(transparent)]
    Guest(#[from] LoadError),
    /// The manifest.
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
}

impl Error {
    /// The reason that conditions and metrics carry.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Manifest(_) => Reason::ManifestInvalid,
            Self::Guest(LoadError::Inspect(error)) => inspect_reason(error),
            Self::Guest(LoadError::Compile(compile::Error::TimedOut { .. })) => Reason::CompileTimeExceeded,
            Self::Guest(LoadError::Compile(compile::Error::Killed { .. })) => Reason::CompileMemoryExceeded,
            Self::Guest(LoadError::Compile(_)) => Reason::CompileFailed,
            Self::Guest(LoadError::Link(_)) => Reason::ContractMismatch,
            Self::Guest(LoadError::Describe(_)) => Reason::SmokeTestFailed,
        }
    }

    /// Whether the same bytes may be accepted another time: the machine was at fault, not they.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Guest(LoadError::Compile(_) | LoadError::Describe(CallError::Host(_))))
    }
}

fn inspect_reason(error: &inspect::Error) -> Reason {
    match error {
        inspect::Error::Empty
        | inspect::Error::Text { .. }
        | inspect::Error::NotWasm { .. }
        | inspect::Error::Truncated { .. }
        | inspect::Error::Malformed { .. } => Reason::NotWasm,
        inspect::Error::CoreModule => Reason::NotComponent,
        inspect::Error::TooLarge { .. } | inspect::Error::Structure { .. } => Reason::TooLarge,
        inspect::Error::Exports { .. }
        | inspect::Error::Contract { .. }
        | inspect::Error::Type { .. }
        | inspect::Error::Imports { .. } => Reason::ContractMismatch,
    }
}

/// Loads a component; nothing of it is in force yet.
///
/// # Errors
/// Its digest, and what stands against it, in words its author can act on.
pub async fn version(
    engine: &Engine,
    component: Component,
    limits: &Limits,
    permissions: &Arc<Permissions>,
) -> Result<Version, (String, Error)> {
    let seen = Instant::now();
    let Component { digest, bytes, .. } = component;
    let load = async {
        let guest = Guest::load(engine, &digest, &bytes, limits).await?;
        let manifest = guest.describe(limits).await.map_err(LoadError::Describe)?;
        let manifest = Manifest::parse(&manifest)?.permit(permissions)?;
        Ok((guest, Arc::new(manifest)))
    };
    match load.await {
        Ok((guest, manifest)) => {
            let bytes = Arc::new(Mutex::new(Some(bytes)));
            Ok(Version { digest: digest.into(), manifest, guest, seen, bytes })
        }
        Err(error) => Err((digest, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_refusal_has_its_reason_and_only_the_machine_is_tried_again() {
        let guest = |error| Error::Guest(error);
        let host = CallError::Host("no memory".to_owned());
        let rows = [
            (
                guest(LoadError::Compile(compile::Error::TimedOut { limit: Duration::ZERO })),
                "CompileTimeExceeded",
                true,
            ),
            (
                guest(LoadError::Compile(compile::Error::Killed { signal: 6, memory: 1 })),
                "CompileMemoryExceeded",
                true,
            ),
            (guest(LoadError::Compile(compile::Error::Garbage)), "CompileFailed", true),
            (guest(LoadError::Inspect(inspect::Error::TooLarge { size: 2, limit: 1 })), "TooLarge", false),
            (guest(LoadError::Inspect(inspect::Error::Empty)), "NotWasm", false),
            (guest(LoadError::Inspect(inspect::Error::CoreModule)), "NotComponent", false),
            (guest(LoadError::Link("no such import".to_owned())), "ContractMismatch", false),
            (guest(LoadError::Describe(CallError::Fuel { limit: 1 })), "SmokeTestFailed", false),
            (guest(LoadError::Describe(host)), "SmokeTestFailed", true),
            (Error::Manifest(Manifest::parse("{").unwrap_err()), "ManifestInvalid", false),
        ];
        for (error, reason, is_transient) in rows {
            assert_eq!((error.reason().as_str(), error.is_transient()), (reason, is_transient), "{error}");
        }
    }
}
