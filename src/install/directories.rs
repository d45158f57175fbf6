//! The directories that the daemons want, each with its owner.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

use super::{InstallError, Owner, under};
use crate::config::{Config, DaemonName};
use crate::inventory::{Finding, Severity};

/// Makes the run, state and socket directories, and gives them to the user that writes there. State from another image,
/// where the user had another number, is given over with all that is in it. Returns what will not work there.
///
/// # Errors
/// A directory that cannot be made or given away, or that lies on a read-only mount.
pub fn make_directories(config: &Config, root: &Path) -> Result<Vec<Finding>, InstallError> {
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
    plain(root, &paths.slurm)?;
    keep_from_others(&under(root, &paths.slurm));
    if flags(root, &slurm_state).contains(FsFlags::ST_RDONLY) {
        return Err(InstallError::directory(&paths.state, nix::Error::EROFS.into()));
    }
    Ok(no_batch_jobs(root, &paths.state).into_iter().collect())
}

/// A volume or tmpfs can be everybody's to write (Kubernetes' emptyDir is), and what lies in Slurm's directory root obeys.
/// Where this cannot be changed, it is the mount's own business.
fn keep_from_others(path: &Path) {
    if let Ok(mode) = fs::metadata(path).map(|metadata| metadata.permissions().mode() & 0o7777) {
        if mode & 0o022 != 0 {
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o1022));
        }
    }
}

fn flags(root: &Path, path: &Path) -> FsFlags {
    statvfs(&under(root, path)).map_or(FsFlags::empty(), |found| found.flags())
}

/// slurmd writes batch scripts into its spool directory and executes them there. Docker's tmpfs are `noexec`.
fn no_batch_jobs(root: &Path, state: &Path) -> Option<Finding> {
    flags(root, &state.join("slurmd")).contains(FsFlags::ST_NOEXEC).then(|| Finding {
        severity: Severity::Warning,
        what: format!("{} does not let programs be executed, so no batch job (sbatch) can run", state.display()),
        cause: "it is mounted noexec, which Docker's --tmpfs does unless told otherwise".to_owned(),
        repair: format!("put a volume there, or mount it with exec: --tmpfs {}:exec", state.display()),
    })
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
    if metadata.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(&real, fs::Permissions::from_mode(mode)).map_err(fault)?;
    }
    if !owner.owns(&metadata) {
        give_tree(&real, owner).map_err(|error| owner.error(path, error))?;
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
