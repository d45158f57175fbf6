//! The directories that the daemons want, each with its owner.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::{InstallError, Owner, under};
use crate::config::{Config, DaemonName};

/// Makes the run, state and socket directories, and gives them to the user that writes there. State from another image,
/// where the user had another number, is given over with all that is in it.
///
/// # Errors
/// A directory that cannot be made or given away.
pub fn make_directories(config: &Config, root: &Path) -> Result<(), InstallError> {
    let paths = &config.paths;
    let slurm_state = paths.state.join("slurmctld");
    let slurm = Owner::of(DaemonName::Slurmctld, config, &slurm_state)?;
    plain(root, &paths.run)?;
    plain(root, &paths.state)?;
    plain(root, &paths.state.join("slurmd"))?;
    owned(root, &paths.run.join("slurm"), &slurm, 0o755)?;
    owned(root, &slurm_state, &slurm, 0o700)?;
    if let Some(directory) = paths.munge_socket.parent() {
        let munge = Owner::of(DaemonName::Munged, config, directory)?;
        owned(root, directory, &munge, 0o755)?;
    }
    Ok(())
}

fn plain(root: &Path, path: &Path) -> Result<(), InstallError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(under(root, path))
        .map_err(|error| InstallError::directory(path, error))
}

/// Makes a directory that `owner` owns. Nothing is touched that is right already.
pub(super) fn owned(root: &Path, path: &Path, owner: &Owner, mode: u32) -> Result<(), InstallError> {
    plain(root, path)?;
    let real = under(root, path);
    let fault = |error| InstallError::directory(path, error);
    let metadata = fs::metadata(&real).map_err(fault)?;
    if !owner.owns(&metadata) {
        give_tree(&real, owner).map_err(|error| owner.error(path, error))?;
    }
    if metadata.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(&real, fs::Permissions::from_mode(mode)).map_err(fault)?;
    }
    Ok(())
}

/// Gives a directory and what is in it away; a symbolic link is not followed, a socket or pipe is left alone.
fn give_tree(path: &Path, owner: &Owner) -> std::io::Result<()> {
    owner.own(&File::open(path)?)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            give_tree(&entry.path(), owner)?;
        } else if kind.is_file() {
            owner.own(&File::open(entry.path())?)?;
        }
    }
    Ok(())
}
