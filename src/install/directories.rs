//! The directories of the daemons, each with its owner.
//!
//! A user who can write to a directory can replace its contents. So everything that root uses belongs to root, including all parent
//! directories. In the state directory, each daemon's part belongs to that daemon's user. slurmd's spool belongs to root, because slurmd
//! executes batch scripts from it as root.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;

use super::{InstallError, Owner};
use config::{Config, DaemonName, Paths};
use model::inventory::{Finding, Kind, Severity};
use sys::proc::parse::Mount;
use sys::trusted_path;
use sys::trusted_path::{Dir, RepairedPath, UntrustedPath};

/// Creates the run, state, socket and Slurm's configuration directories, and makes the user that writes to a directory its owner. If the state comes
/// from an image in which this user had another ID, the owner of all its contents is changed, too. Returns findings about obstacles and repairs.
///
/// # Errors
/// A daemon's user does not exist, or a directory cannot be created, its owner cannot be changed, or it is on a read-only mount or in a directory of
/// another user.
pub fn make_directories(config: &Config, root: &Path) -> Result<Vec<Finding>, InstallError> {
    let (paths, mut repaired) = (&config.paths, Vec::new());
    let slurm = Owner::of(DaemonName::Slurmctld, config, &paths.state.join("slurmctld"))?;
    let (run, _) = root_directory(root, &paths.run, &mut repaired)?;
    make_owned(run.child("slurm")?, &slurm, 0o755, &mut repaired)?;
    let (state, was_writable) = root_directory(root, &paths.state, &mut repaired)?;
    let spool = prepare_spool(&state, was_writable, &mut repaired)?;
    make_node_directories(&spool, &run, config, &mut repaired)?;
    let slurm_state = make_owned(state.child("slurmctld")?, &slurm, 0o700, &mut repaired)?;
    if let Some(directory) = paths.munge_socket.parent() {
        let munge = Owner::of(DaemonName::Munged, config, directory)?;
        let (socket_directory, is_new) = trusted_path::make(root, directory, &mut repaired)?;
        // `/tmp/munge.socket` must not make /tmp belong to munge.
        if is_new || directory.file_name().is_some_and(|name| name == "munge") {
            make_owned((socket_directory, is_new), &munge, 0o755, &mut repaired)?;
        }
    }
    let mountinfo = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    // A tmpfs at /run may be writable by all users: a user could create an entry there first.
    if let Ok(mut run) = trusted_path::open(root, Path::new("/run")) {
        restrict_to_root(&mut run, &mut repaired)?;
    }
    // A new volume may be missing the sticky bit of /tmp (Kubernetes' `emptyDir` on a disk).
    if let Ok(tmp) = trusted_path::open(root, Path::new("/tmp")) {
        tmp.ensure_sticky_bit(&mut repaired);
        // A /tmp that may be a directory of the host is not opened to users.
        if is_own_tmp(&mountinfo) {
            tmp.open_to_users(&mut repaired);
        }
    }
    let (slurm_files, was_writable) = root_directory(root, &paths.slurm, &mut repaired)?;
    if was_writable && nix::unistd::geteuid().is_root() {
        // Root trusts these files, so they must belong to root. A hard link to another user's file keeps its owner.
        let failure = |error| InstallError::take(&paths.slurm, error);
        slurm_files.chown_contents((0, 0), 0, &mut repaired).map_err(failure)?;
    }
    if slurm_state.is_read_only() {
        return Err(InstallError::directory(&paths.state, nix::Error::EROFS.into()));
    }
    prepare_job_record(&make_owned(state.child(Paths::JOBCOMP)?, &slurm, 0o750, &mut repaired)?, &slurm);
    let (state_path, slurm_path) = (paths.state.display(), paths.slurm.display());
    let mut findings = Vec::new();
    // slurmd writes batch scripts to its spool directory and executes them there.
    findings.extend(noexec(
        &spool,
        format!("{state_path} is mounted noexec, so no batch job (sbatch) can run"),
        format!("mount a volume, or a tmpfs with exec: --tmpfs {state_path}:exec"),
    ));
    // slurmd runs the epilog from this directory, and drains the node if the epilog fails.
    findings.extend(noexec(
        &slurm_files,
        format!("{slurm_path} is mounted noexec, so the node is drained after the first job (Epilog error)"),
        format!("mount the directory with exec: --tmpfs {slurm_path}:exec,size=4m"),
    ));
    // Earlier versions gave the whole state directory to slurm, and in images it belongs to slurm even if SlurmUser is another user.
    let default_owner = Owner::of(DaemonName::Slurmctld, &Config::default(), &paths.state).ok();
    let slurm_users = [Some(slurm), default_owner].into_iter().flatten();
    let slurm_uids: Vec<u32> = slurm_users.filter_map(|owner| Some(owner.ids()?.0)).collect();
    let is_from_slurm =
        |path: &RepairedPath| matches!(path, RepairedPath::OwnerChanged { uid, .. } if slurm_uids.contains(uid));
    findings.extend(writable_configuration(root, &paths.config));
    findings.extend(repaired.iter().map(|repaired| match is_from_slurm(repaired) {
        true => Finding { severity: Severity::Info, ..finding(repaired) },
        false => finding(repaired),
    }));
    Ok(findings)
}

/// Whether /tmp exists only in this container: a tmpfs of its own, or a part of its root file system.
fn is_own_tmp(mountinfo: &str) -> bool {
    let mount = Mount::all(mountinfo).filter(|mount| mount.at == "/tmp").last();
    mount.is_none_or(|mount| mount.kind == "tmpfs" && mount.from == "/")
}

/// The finding about a repaired path.
pub(super) fn finding(repaired: &RepairedPath) -> Finding {
    let severity = if repaired.is_suspicious() { Severity::Warning } else { Severity::Info };
    let cause = match repaired {
        RepairedPath::Sticky { .. } => "without the sticky bit users could remove each other's files",
        RepairedPath::Opened { .. } => "users' jobs need to write there",
        _ => "only root, or the daemon that uses this path, may change it",
    };
    Finding::new(Kind::Files, severity, repaired.to_string(), cause, repaired.fix())
}

/// Creates a directory that only root may own and write. Returns whether others could write to an existing one.
fn root_directory(root: &Path, path: &Path, repaired: &mut Vec<RepairedPath>) -> Result<(Dir, bool), InstallError> {
    let (mut dir, _) = trusted_path::make(root, path, repaired)?;
    let was_writable = restrict_to_root(&mut dir, repaired)?;
    Ok((dir, was_writable))
}

fn restrict_to_root(dir: &mut Dir, repaired: &mut Vec<RepairedPath>) -> Result<bool, InstallError> {
    let path = dir.path().to_owned();
    dir.restrict_to_root(repaired).map_err(|error| InstallError::take(&path, error))
}

/// slurmd's spool directory. If other users could write to it or to `state`, it is emptied.
fn prepare_spool(state: &Dir, was_writable: bool, repaired: &mut Vec<RepairedPath>) -> Result<Dir, InstallError> {
    let (mut spool, is_new) = state.child("slurmd")?;
    let mut repairs = Vec::new();
    let was_writable = restrict_to_root(&mut spool, &mut repairs)? || was_writable;
    let failure = |error| InstallError::directory(spool.path(), error);
    if !is_new && was_writable && !spool.names().map_err(failure)?.is_empty() {
        spool.clear().map_err(failure)?;
        repairs.push(RepairedPath::Emptied { path: spool.path().to_owned() });
    }
    repaired.extend(repairs);
    Ok(spool)
}

/// Creates the directories of each simulated node: its spool, and its `TmpFS`, which separates its job steps' files from those of other nodes.
fn make_node_directories(
    spool: &Dir,
    run: &Dir,
    config: &Config,
    repaired: &mut Vec<RepairedPath>,
) -> Result<(), InstallError> {
    let Some(nodes) = config.simulated() else { return Ok(()) };
    let (mut temporary, _) = run.child("tmp")?;
    restrict_to_root(&mut temporary, repaired)?;
    for (name, _) in nodes.iter() {
        restrict_to_root(&mut spool.child(name)?.0, repaired)?;
        let (mut shared, _) = temporary.child(name)?;
        settle(&mut shared, ROOT, 0o1777)?;
    }
    Ok(())
}

/// Root's user and group.
pub(super) const ROOT: (u32, u32) = (0, 0);

/// Sets a directory's owner and mode; without root's rights only the mode. Returns whether other users could write to the directory before.
pub(super) fn settle(directory: &mut Dir, owner: (u32, u32), mode: u32) -> Result<bool, InstallError> {
    let settled = directory.set_owner_and_mode(geteuid().is_root().then_some(owner), mode, &mut Vec::new());
    settled.map_err(|error| InstallError::directory(directory.path(), error))
}

/// Creates links in place of the device files of simulated GPUs.
///
/// # Errors
/// A link cannot be created.
pub fn make_simulated_gpus(root: &Path, directory: &Path, count: u32) -> Result<(), InstallError> {
    let (dir, _) = trusted_path::make(root, directory, &mut Vec::new())?;
    for index in 0..count {
        match dir.symlink("/dev/null", &format!("gpu{index}")) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            outcome => outcome.map_err(|error| InstallError::directory(directory, error))?,
        }
    }
    Ok(())
}

/// Makes `owner` the owner of a directory, and sets its mode. If the directory belonged to another user, also changes the owner of its contents.
pub(super) fn make_owned(
    (mut dir, is_new): (Dir, bool),
    owner: &Owner,
    mode: u32,
    repaired: &mut Vec<RepairedPath>,
) -> Result<Dir, InstallError> {
    let (former, path, was_owners) = (dir.metadata().uid(), dir.path().to_owned(), owner.owns(dir.metadata()));
    let failure = |error| owner.error(&path, error);
    let mut repairs = Vec::new();
    match owner.ids() {
        _ if was_owners => dir
            .set_owner_and_mode(owner.ids(), mode, &mut repairs)
            .map(drop)
            .map_err(|error| InstallError::directory(&path, error))?,
        None => {}
        Some(ids) => {
            dir.set_owner_and_mode(Some(ids), mode, &mut repairs).map_err(failure)?;
            dir.chown_contents(ids, former, &mut repairs).map_err(failure)?;
        }
    }
    if !is_new {
        repaired.extend(repairs);
    }
    Ok(dir)
}

/// A start rotates the record of ended jobs if it has at least this size, which is about 40,000 jobs.
const MAX_RECORD_BYTES: u64 = 16 * 1024 * 1024;

/// Prepares the record of ended jobs, which slurmctld only appends to. A full record replaces the previously rotated one. A
/// missing record is created for slurm: otherwise `sacct -c`, run by root, would create it as a root-owned file, and slurmctld exits if
/// it cannot open it. Root does not open anything in slurm's directory here, so links in it are harmless. Without
/// DAC_OVERRIDE root can do neither: slurmctld then creates the record, and a full one keeps growing. Only slurm and root can read it:
/// Slurm's PrivateData does not apply to the file.
fn prepare_job_record(jobcomp: &Dir, slurm: &Owner) {
    let record = jobcomp.metadata_of(Paths::ENDED_JOBS);
    if record.is_ok_and(|record| record.is_file() && record.len() >= MAX_RECORD_BYTES) {
        let _ = jobcomp.rename(Paths::ENDED_JOBS, &format!("{}.previous", Paths::ENDED_JOBS));
    }
    if let Ok(record) = jobcomp.create(Paths::ENDED_JOBS, 0o640) {
        let _ = slurm.give(&record);
    }
}

/// A warning if users other than root can write to the operator's directory: they can become root. slurminit reads the directory regardless of its
/// owner.
fn writable_configuration(root: &Path, config: &Path) -> Option<Finding> {
    match trusted_path::open(root, config).and_then(|dir| dir.require_ours()) {
        Ok(()) | Err(UntrustedPath::Io { .. }) => None,
        Err(untrusted) => Some(Finding::warning(
            Kind::Files,
            format!("a user other than root can change {} and become root: {}", config.display(), untrusted.reason()),
            "hooks and services of slurminit.toml, and programs of slurm.conf, run as root",
            format!("mount the directory read-only: {}:ro", config.display()),
        )),
    }
}

/// A warning if a directory from which Slurm runs programs is mounted noexec, as Docker mounts a tmpfs.
fn noexec(directory: &Dir, what: String, fix: String) -> Option<Finding> {
    let cause = "Docker mounts a --tmpfs with noexec by default";
    directory.is_noexec().then(|| Finding::warning(Kind::Files, what, cause, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_mode_of_tmp_only_if_it_belongs_to_container() {
        let mount = |kind: &str, from: &str, at: &str| format!("36 31 0:33 {from} {at} rw - {kind} x rw\n");
        for (mounts, expected) in [
            (String::new(), true),
            (mount("tmpfs", "/", "/tmp"), true),
            (mount("tmpfs", "/", "/run") + &mount("ext4", "/", "/tmp/data"), true),
            (mount("tmpfs", "/job7", "/tmp"), false),
            (mount("ext4", "/srv/tmp", "/tmp"), false),
            (mount("tmpfs", "/", "/tmp") + &mount("ext4", "/", "/tmp"), false),
        ] {
            assert_eq!(super::is_own_tmp(&mounts), expected, "{mounts}");
        }
    }

    #[test]
    fn full_record_of_jobs_replaces_previous_one() {
        let directory = tempfile::tempdir().unwrap();
        let (name, config) = (Paths::ENDED_JOBS, Config::default());
        let (record, previous) = (directory.path().join(name), directory.path().join(format!("{name}.previous")));
        // slurmd runs as root, which exists everywhere.
        let owner = Owner::of(DaemonName::Slurmd, &config, directory.path()).unwrap();
        let prepare = || prepare_job_record(&Dir::open_unchecked(directory.path()).unwrap(), &owner);
        prepare();
        assert_eq!((record.metadata().unwrap().len(), previous.exists()), (0, false));
        let fill = |bytes| std::fs::File::options().write(true).open(&record).unwrap().set_len(bytes).unwrap();
        fill(16 * 1024 * 1024 - 1);
        prepare();
        assert!(!previous.exists());
        fill(16 * 1024 * 1024);
        prepare();
        assert_eq!(previous.metadata().unwrap().len(), 16 * 1024 * 1024);
        assert_eq!(record.metadata().unwrap().len(), 0);
    }

    #[test]
    fn repaired_path_is_reported_with_its_cause() {
        let path = std::path::PathBuf::from("/tmp");
        for (repaired, severity, cause) in [
            (RepairedPath::Sticky { path: path.clone(), mode: 0o777 }, Severity::Info, "without the sticky bit"),
            (RepairedPath::Opened { path: path.clone(), mode: 0o755 }, Severity::Info, "need to write there"),
            (
                RepairedPath::Closed { path: path.clone(), mode: 0o777 },
                Severity::Info,
                "only root, or the daemon that uses this path",
            ),
            (RepairedPath::Removed { path }, Severity::Warning, "only root, or the daemon that uses this path"),
        ] {
            let found = finding(&repaired);
            assert_eq!((&found.what, found.severity), (&repaired.to_string(), severity));
            assert!(found.cause.contains(cause), "{}", found.cause);
        }
    }

    #[test]
    fn state_of_slurms_user_is_taken_without_warning() {
        // nobody stands for slurm, a user that does not exist everywhere.
        let users = "[daemon.munged]\nuser = 'nobody'\n[daemon.slurmctld]\nuser = 'nobody'\n";
        let config = Config::parse(users, Path::new("test.toml")).unwrap();
        for (uid, severity) in [(65534, Severity::Info), (1234, Severity::Warning)] {
            let root = tempfile::tempdir().unwrap();
            let state = root.path().join("var/lib/slurm");
            std::fs::create_dir_all(&state).unwrap();
            std::os::unix::fs::chown(&state, Some(uid), None).unwrap();
            let findings = make_directories(&config, root.path()).unwrap();
            let what = format!("/var/lib/slurm belonged to uid {uid}; changed its owner to uid 0");
            let found: Vec<_> = findings.iter().filter(|finding| finding.what == what).collect();
            assert!(found.len() == 1 && found[0].severity == severity, "{findings:?}");
        }
    }

    #[test]
    fn device_files_of_simulated_gpus_are_links_that_stay() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("run/gpus");
        let make = || make_simulated_gpus(root.path(), Path::new("/run/gpus"), 2);
        make().unwrap();
        std::fs::remove_file(devices.join("gpu1")).unwrap();
        make().unwrap();
        for name in ["gpu0", "gpu1"] {
            assert_eq!(std::fs::read_link(devices.join(name)).unwrap(), Path::new("/dev/null"));
        }
        assert_eq!(std::fs::read_dir(&devices).unwrap().count(), 2);
        std::fs::write(root.path().join("file"), "").unwrap();
        let error = make_simulated_gpus(root.path(), Path::new("/file"), 1).unwrap_err().to_string();
        assert!(error.contains("/file"), "{error}");
    }
}
