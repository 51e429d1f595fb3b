//! A control plane that outlives the command which starts it: `dev cluster up` and `down`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::files::{self, User};
use super::process::{Lifetime, Process};
use super::{Component, ControlPlane, client, ready};

/// Starts a control plane in `dir` that runs until [`down`]; does nothing when one runs there already.
///
/// Returns the kubeconfig of its administrator.
pub async fn up(dir: &Path) -> Result<PathBuf> {
    let _lock = lock(dir)?;
    if let Ok(dir) = dir.canonicalize() {
        let kubeconfig = User::Admin.kubeconfig(&dir);
        if is_running(&dir, &kubeconfig).await {
            return Ok(kubeconfig);
        }
        // Half a control plane, after a crash or a reboot, is of no use to anyone.
        stop_and_remove(&dir).await?;
    }
    let plane = ControlPlane::start_for(dir, Lifetime::Detached).await?;
    Ok(plane.kubeconfig_admin())
}

/// Stops the control plane in `dir` and removes the folder; does nothing when there is none.
///
/// Returns whether there was one.
pub async fn down(dir: &Path) -> Result<bool> {
    if !dir.exists() {
        return Ok(false);
    }
    let _lock = lock(dir)?;
    let Ok(dir) = dir.canonicalize() else { return Ok(false) };
    stop_and_remove(&dir).await?;
    Ok(true)
}

async fn stop_and_remove(dir: &Path) -> Result<()> {
    ensure!(
        files::is_written_by_us(dir),
        "{} holds something else than a control plane; remove it yourself or name another folder",
        dir.display()
    );
    for component in Component::ALL.into_iter().rev() {
        if let Some(process) = Process::find(component.name(), dir) {
            process.stop().await?;
        }
    }
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Waits until no other command starts or stops the control plane in `dir`; the lock ends with its file.
fn lock(dir: &Path) -> Result<File> {
    // Beside the folder, which comes and goes. Collecting the components drops a slash at the end.
    let mut path = dir.components().collect::<PathBuf>().into_os_string();
    path.push(".lock");
    let path = PathBuf::from(path);
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| File::create(&path))
        .and_then(|file| file.lock().map(|()| file))
        .with_context(|| format!("cannot lock {}", path.display()))
}

async fn is_running(dir: &Path, kubeconfig: &Path) -> bool {
    if Component::ALL.into_iter().any(|component| Process::find(component.name(), dir).is_none()) {
        return false;
    }
    let Ok(client) = client(kubeconfig).await else { return false };
    ready(&client).await.is_ok()
}

/// The kubeconfig of the administrator, when a control plane is up in `dir`.
pub fn kubeconfig(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    Process::find(Component::ApiServer.name(), &dir).map(|_| User::Admin.kubeconfig(&dir))
}
