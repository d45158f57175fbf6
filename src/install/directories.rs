//! The directories that the daemons want, each with its owner.
//!
//! What root uses is root's, and lies in what is root's: whoever may write to a directory can put something else in place
//! of what is in it. So of the state directory only slurmctld's part is slurm's; the spool, from which slurmd executes
//! batch scripts as root, is not.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{InstallError, Owner};
use crate::config::{Config, DaemonName};
use crate::inventory::{Finding, Severity};
use crate::walk::{self, Astray, Dir, Mended};

/// Makes the run, state and socket directories, and gives them to the user that writes there. State from another image,
/// where the user had another number, is given over with all that is in it. Returns what will not work there, and what was
/// mended.
///
/// # Errors
/// A directory that cannot be made or given away, that lies on a read-only mount, or in a directory of somebody else.
pub fn make_directories(config: &Config, root: &Path) -> Result<Vec<Finding>, InstallError> {
    let (paths, mut mended) = (&config.paths, Vec::new());
    let slurm = Owner::of(DaemonName::Slurmctld, config, &paths.state.join("slurmctld"))?;
    let (run, _) = ours(root, &paths.run, &mut mended)?;
    owned(run.child("slurm")?, &slurm, 0o755, &mut mended)?;
    let (state, was_anybodys) = ours(root, &paths.state, &mut mended)?;
    let spool = spool(&state, was_anybodys, &mut mended)?;
    let slurm_state = owned(state.child("slurmctld")?, &slurm, 0o700, &mut mended)?;
    if let Some(directory) = paths.munge_socket.parent() {
        let munge = Owner::of(DaemonName::Munged, config, directory)?;
        let (found, is_new) = walk::make(root, directory, &mut mended)?;
        // `/tmp/munge.socket` does not make /tmp munge's.
        if is_new || directory.file_name().is_some_and(|name| name == "munge") {
            owned((found, is_new), &munge, 0o755, &mut mended)?;
        }
    }
    let (slurm_files, was_anybodys) = ours(root, &paths.slurm, &mut mended)?;
    if was_anybodys && nix::unistd::geteuid().is_root() {
        // Root obeys these files, so they are root's as well; a second name of somebody's file stays theirs.
        let fault = |error| InstallError::take(&paths.slurm, error);
        slurm_files.give((0, 0), 0, &mut mended).map_err(fault)?;
    }
    if slurm_state.is_read_only() {
        return Err(InstallError::directory(&paths.state, nix::Error::EROFS.into()));
    }
    let mut findings: Vec<Finding> = no_batch_jobs(&spool, &paths.state).into_iter().collect();
    findings.extend(no_scripts(&slurm_files));
    // Earlier versions gave all of the state directory to slurm.
    let slurms = |mended: &Mended| matches!(mended, Mended::Taken { uid, .. } if slurm.ids().is_some_and(|(slurm, _)| *uid == slurm));
    findings.extend(open_configuration(root, &paths.config));
    findings.extend(mended.iter().map(|mended| match slurms(mended) {
        true => Finding { severity: Severity::Info, ..finding(mended) },
        false => finding(mended),
    }));
    Ok(findings)
}

/// What was mended, for the operator.
pub(super) fn finding(mended: &Mended) -> Finding {
    Finding {
        severity: if mended.is_doubtful() { Severity::Warning } else { Severity::Info },
        what: mended.to_string(),
        cause: "root obeys what is there, so nobody else may decide it".to_owned(),
        repair: mended.repair().to_owned(),
    }
}

/// A directory that is root's alone. Returns whether it was not until now.
fn ours(root: &Path, path: &Path, mended: &mut Vec<Mended>) -> Result<(Dir, bool), InstallError> {
    let (mut dir, _) = walk::make(root, path, mended)?;
    let was_anybodys = keep_ours(&mut dir, mended)?;
    Ok((dir, was_anybodys))
}

fn keep_ours(dir: &mut Dir, mended: &mut Vec<Mended>) -> Result<bool, InstallError> {
    let path = dir.path().to_owned();
    dir.keep_ours(mended).map_err(|error| InstallError::take(&path, error))
}

/// slurmd's directory. What others could have put there is removed: none of it must outlive a start.
fn spool(state: &Dir, was_anybodys: bool, mended: &mut Vec<Mended>) -> Result<Dir, InstallError> {
    let (mut spool, is_new) = state.child("slurmd")?;
    let mut told = Vec::new();
    let was_anybodys = keep_ours(&mut spool, &mut told)? || was_anybodys;
    let fault = |error| InstallError::directory(spool.path(), error);
    if !is_new && was_anybodys && !spool.names().map_err(fault)?.is_empty() {
        spool.clear().map_err(fault)?;
        told.push(Mended::Emptied { path: spool.path().to_owned() });
    }
    mended.extend(told);
    Ok(spool)
}

/// A directory that `owner` owns, with all that is in it. Nothing is touched that is right already.
pub(super) fn owned(
    (mut dir, is_new): (Dir, bool),
    owner: &Owner,
    mode: u32,
    mended: &mut Vec<Mended>,
) -> Result<Dir, InstallError> {
    let (former, path, was_owners) = (dir.metadata().uid(), dir.path().to_owned(), owner.owns(dir.metadata()));
    let fault = |error| owner.error(&path, error);
    let mut told = Vec::new();
    match owner.ids() {
        _ if was_owners => {
            dir.settle(owner.ids(), mode, &mut told).map(drop).map_err(|error| InstallError::directory(&path, error))?
        }
        None => {}
        Some(ids) => {
            dir.settle(Some(ids), mode, &mut told).map_err(fault)?;
            dir.give(ids, former, &mut told).map_err(fault)?;
        }
    }
    if !is_new {
        mended.extend(told);
    }
    Ok(dir)
}

/// The operator's directory is read whosesoever it is; but whoever can write to it in here is root.
fn open_configuration(root: &Path, config: &Path) -> Option<Finding> {
    match walk::open(root, config).and_then(|dir| dir.require_ours()) {
        Ok(()) | Err(Astray::Io { .. }) => None,
        Err(astray) => Some(Finding {
            severity: Severity::Warning,
            what: format!("whoever can write to {} is root here: {astray}", config.display()),
            cause: "hooks and services of slurminit.toml run as root, and so do programs that slurm.conf names"
                .to_owned(),
            repair: format!("mount it read-only: {}:ro", config.display()),
        }),
    }
}

/// slurmd executes what is to be done at the end of a job from there, and takes a node that cannot do it out of service.
fn no_scripts(slurm_files: &Dir) -> Option<Finding> {
    let path = slurm_files.path().display();
    slurm_files.is_noexec().then(|| Finding {
        severity: Severity::Warning,
        what: format!(
            "{path} does not let programs be executed, so the node is drained after the first job (Epilog error)"
        ),
        cause: "it is mounted noexec, which Docker's --tmpfs does unless told otherwise".to_owned(),
        repair: format!("mount it with exec: --tmpfs {path}:exec,size=4m"),
    })
}

/// slurmd writes batch scripts into its spool directory and executes them there. Docker's tmpfs are `noexec`.
fn no_batch_jobs(spool: &Dir, state: &Path) -> Option<Finding> {
    spool.is_noexec().then(|| Finding {
        severity: Severity::Warning,
        what: format!("{} does not let programs be executed, so no batch job (sbatch) can run", state.display()),
        cause: "it is mounted noexec, which Docker's --tmpfs does unless told otherwise".to_owned(),
        repair: format!("put a volume there, or mount it with exec: --tmpfs {}:exec", state.display()),
    })
}
