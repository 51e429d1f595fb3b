//! Compiled code on disk, by digest and engine, so that a restart compiles nothing (rule P4).
//!
//! One file per component, in a folder that only this user can enter: the code, then digest, engine and a
//! checksum of all. Whatever is wrong with a file or the folder, the component is compiled again; a folder that
//! cannot be written means that nothing is kept.

use super::engine::Engine;
use sha2::{Digest, Sha256};
use std::{
    fs,
    hash::Hash,
    io,
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};
use wasmtime::component::Component;

/// All files together; the oldest go first. A Rust guest takes 0.2 to 1 MB, an interpreter 33 MB.
const MAX_BYTES: u64 = 1 << 30;

/// Ends every file; the number is that of the layout.
const MAGIC: &[u8; 8] = b"oarlock1";

/// The folder of compiled code.
#[derive(Debug)]
pub(super) struct CodeCache {
    dir: PathBuf,
    max_bytes: u64,
    engine: u128,
}

/// What stands against a file.
#[derive(Debug, thiserror::Error)]
enum Defect {
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error("it belongs to somebody else, others may write it, or it is no file")]
    Foreign,
    #[error("it is damaged, or holds another component's code")]
    Damaged,
    #[error("wasmtime refuses it: {0}")]
    Refused(String),
}

/// Where verified code is.
enum Code<'a> {
    File(&'a Path),
    Memory(&'a [u8]),
}

impl CodeCache {
    pub(super) fn new(cache_dir: &Path, engine: &wasmtime::Engine) -> Self {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        // Another version of the host may inspect more strictly: what is in the cache was inspected by this one.
        env!("CARGO_PKG_VERSION").hash(&mut hasher);
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Self { dir: cache_dir.join("code"), max_bytes: MAX_BYTES, engine: hasher.digest128() }
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(format!("{digest}-{:032x}", self.engine))
    }

    fn trailer(&self, digest: &str) -> Vec<u8> {
        [digest.as_bytes(), &self.engine.to_le_bytes(), MAGIC].concat()
    }

    /// Checks everything before a byte of the file is trusted.
    fn verify(&self, digest: &str) -> Result<PathBuf, Defect> {
        let path = self.path(digest);
        let mut file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(Defect::Read)?;
        let metadata = file.metadata().map_err(Defect::Read)?;
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
        if !metadata.is_file() || !is_ours {
            return Err(Defect::Foreign);
        }
        if metadata.len() > self.max_bytes {
            return Err(Defect::Damaged);
        }
        let mut content = Vec::with_capacity(metadata.len() as usize + 1);
        file.read_to_end(&mut content).map_err(Defect::Read)?;
        let Some((rest, checksum)) = content.split_last_chunk::<32>() else { return Err(Defect::Damaged) };
        if !rest.ends_with(&self.trailer(digest)) || Sha256::digest(rest)[..] != checksum[..] {
            return Err(Defect::Damaged);
        }
        // Used now, so evicted later. Not being able to say so (a read-only folder) changes nothing else.
        let _ = file.set_modified(SystemTime::now());
        Ok(path)
    }

    fn store(&self, digest: &str, code: &[u8]) -> io::Result<()> {
        make_private(&self.dir)?;
        let trailer = self.trailer(digest);
        let checksum = Sha256::new().chain_update(code).chain_update(&trailer).finalize();
        let mut file = tempfile::Builder::new().prefix("new-").tempfile_in(&self.dir)?;
        for part in [code, &trailer, &checksum[..]] {
            file.write_all(part)?;
        }
        file.persist(self.path(digest))?;
        self.evict()
    }

    /// Removes the files that were used least recently until the rest fits.
    fn evict(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_file() {
                files.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in files {
            if total <= self.max_bytes {
                break;
            }
            fs::remove_file(path)?;
            total -= size;
        }
        Ok(())
    }
}

/// A folder that only this user can enter.
fn make_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let metadata = fs::symlink_metadata(dir)?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the folder of compiled code belongs to somebody else",
        ));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Only a digest makes a file's name.
fn is_digest(digest: &str) -> bool {
    digest.len() == 64 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The component of this digest, if its compiled code is there and in order.
pub(super) async fn load(engine: &Engine, digest: &str) -> Option<Component> {
    if engine.0.codes.is_none() || !is_digest(digest) {
        return None;
    }
    let (here, engine, digest) = (engine, engine.clone(), digest.to_owned());
    let work = here.apart(move || {
        let codes = engine.0.codes.as_ref()?;
        let loaded =
            codes.verify(&digest).and_then(|path| map(&engine, &Code::File(&path)).map_err(Defect::Refused));
        match loaded {
            Ok(component) => Some(component),
            Err(Defect::Read(source)) if source.kind() == io::ErrorKind::NotFound => None,
            Err(defect) => {
                let error: &dyn std::error::Error = &defect;
                tracing::warn!(
                    digest,
                    error,
                    "a file of compiled code is not used; the component is compiled again"
                );
                None
            }
        }
    });
    // A panic in there is a defect like any other.
    work.await.flatten()
}

/// Keeps compiled code, and loads it. What cannot be kept is loaded all the same.
pub(super) async fn store_and_load(
    engine: &Engine,
    digest: &str,
    code: Vec<u8>,
) -> Result<Component, String> {
    let (here, engine, digest) = (engine, engine.clone(), digest.to_owned());
    let work = here.apart(move || {
        if let Some(codes) = engine.0.codes.as_ref().filter(|_| is_digest(&digest)) {
            if let Err(error) = codes.store(&digest, &code) {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(digest, error, "compiled code cannot be kept; the next start compiles again");
            } else if let Ok(component) = codes
                .verify(&digest)
                .and_then(|path| map(&engine, &Code::File(&path)).map_err(Defect::Refused))
            {
                // Mapped from the file, so that its pages are shared and can be dropped.
                return Ok(component);
            }
        }
        map(&engine, &Code::Memory(&code))
    });
    work.await.unwrap_or_else(|| Err("loading it panicked".to_owned()))
}

fn map(engine: &Engine, code: &Code<'_>) -> Result<Component, String> {
    // SAFETY: the code was made by wasmtime in a process of this program, for this engine: it comes straight from
    // there, or from a file which only this user can write and whose checksum, digest and engine were just
    // verified. Files are never changed in place, only replaced and removed, so what is mapped stays.
    #[expect(unsafe_code, reason = "wasmtime trusts compiled code")]
    let component = unsafe {
        match code {
            Code::File(path) => Component::deserialize_file(&engine.0.wasmtime, path),
            Code::Memory(bytes) => Component::deserialize(&engine.0.wasmtime, bytes),
        }
    };
    component.map_err(|source| super::one_line(&format!("{source:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(dir: &Path) -> CodeCache {
        let engine =
            wasmtime::Engine::new(&super::super::engine::settings(super::super::engine::Reservation::Full));
        CodeCache::new(dir, &engine.expect("wasmtime runs here"))
    }

    fn digest(of: u8) -> String {
        format!("{of:064x}")
    }

    type Harm = fn(&CodeCache, &Path);

    #[test]
    fn file_is_not_trusted_when_anything_is_wrong_with_it() {
        let cases: &[(&str, Harm)] = &[
            ("gone", |_, path| fs::remove_file(path).expect("it is there")),
            ("empty", |_, path| fs::write(path, "").expect("writes")),
            ("truncated", |_, path| {
                let content = fs::read(path).expect("reads");
                fs::write(path, &content[..content.len() - 1]).expect("writes");
            }),
            ("flipped in the code", |_, path| flip(path, 3)),
            ("flipped in the trailer", |_, path| flip(path, 100)),
            ("swapped", |cache, path| fs::copy(cache.path(&digest(2)), path).map(drop).expect("copies")),
            ("a link", |cache, path| {
                fs::remove_file(path).expect("it is there");
                std::os::unix::fs::symlink(cache.path(&digest(2)), path).expect("links");
            }),
            ("a folder", |_, path| {
                fs::remove_file(path).expect("it is there");
                fs::create_dir(path).expect("makes it");
            }),
            ("writable by others", |_, path| {
                fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("sets it");
            }),
        ];
        for (name, harm) in cases {
            let dir = tempfile::tempdir().expect("a folder");
            let cache = cache(dir.path());
            for of in [1, 2] {
                cache.store(&digest(of), &[of; 50]).expect("stores");
            }
            cache.verify(&digest(1)).expect("in order");
            harm(&cache, &cache.path(&digest(1)));
            assert!(cache.verify(&digest(1)).is_err(), "{name}");
            if *name != "a folder" {
                cache.store(&digest(1), &[1; 50]).expect("stores again");
                cache.verify(&digest(1)).expect("in order again");
            }
        }
    }

    fn flip(path: &Path, at: usize) {
        let mut content = fs::read(path).expect("reads");
        content[at] ^= 1;
        fs::write(path, content).expect("writes");
    }

    #[test]
    fn folder_is_made_private() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir(dir.path().join("code")).expect("makes it");
        fs::set_permissions(dir.path().join("code"), fs::Permissions::from_mode(0o777)).expect("sets it");
        let cache = cache(dir.path());
        cache.store(&digest(1), b"code").expect("stores");
        assert_eq!(fs::metadata(&cache.dir).expect("it is there").mode() & 0o777, 0o700);
    }

    #[test]
    fn eviction_removes_what_was_used_least_recently() {
        let dir = tempfile::tempdir().expect("a folder");
        let cache = CodeCache { max_bytes: 600, ..cache(dir.path()) };
        let ages = [(1, 30), (2, 20), (3, 10)];
        for (of, _) in ages {
            cache.store(&digest(of), &[of; 50]).expect("stores");
        }
        for (of, age) in ages {
            let file = fs::File::options().append(true).open(cache.path(&digest(of))).expect("opens");
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).expect("sets it");
        }
        cache.verify(&digest(1)).expect("in order");
        cache.store(&digest(4), &[4; 50]).expect("stores");
        let left: Vec<_> = (1..=4).filter(|of| cache.verify(&digest(*of)).is_ok()).collect();
        assert_eq!(left, [1, 3, 4]);
    }
}
