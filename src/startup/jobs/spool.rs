//! Removes files that jobs of an earlier start left in slurmd's spool directory.
//!
//! The spool directory contains a directory for each running batch job and a socket for each step. After a crash both remain
//! without a process: Slurm's commands log "Purging vestigial job script" each time they read the directory. The directories of
//! jobs also show which batch jobs had started.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::step_sockets::StepSocket;

/// The batch jobs that have a directory because slurmd launched them.
pub(super) fn started_jobs(spool: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(spool).into_iter().flatten().flatten();
    entries.filter_map(|entry| job_of_directory(entry.file_name().to_str()?)).collect()
}

/// Removes the sockets of this node on which no slurmstepd listens, and the scripts and directories of batch jobs without a listening
/// slurmstepd. Follows no links. Fails if the spool directory cannot be read or belongs to another user, or if other users can write to it.
pub(super) fn clean(spool: &str, node: &str) -> nix::Result<()> {
    let directory = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = nix::fcntl::open(spool, directory, Mode::empty())?;
    let metadata = fstat(dir.as_fd())?;
    if metadata.st_uid != nix::unistd::geteuid().as_raw() || metadata.st_mode & 0o022 != 0 {
        return Err(nix::Error::EPERM);
    }
    let entries = std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_err(|_| nix::Error::EIO)?;
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let mut running = BTreeSet::new();
    for name in &names {
        let Some(job) = job_of_socket(name, node) else { continue };
        let is_socket = fstatat(dir.as_fd(), &**name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .is_ok_and(|found| found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFSOCK.bits());
        if !is_socket {
            continue;
        }
        // A running slurmstepd accepts the connection.
        let path = std::path::Path::new(spool).join(std::ffi::OsStr::from_bytes(name.as_bytes()));
        match UnixStream::connect(path) {
            Ok(_) => drop(running.insert(job)),
            Err(_) => drop(unlinkat(dir.as_fd(), &**name, UnlinkatFlags::NoRemoveDir)),
        }
    }
    for name in names.iter().filter(|name| job_of_directory(name).is_some_and(|job| !running.contains(&job))) {
        if let Ok(job) = nix::fcntl::openat(dir.as_fd(), &**name, directory, Mode::empty()) {
            let _ = unlinkat(&job, "slurm_script", UnlinkatFlags::NoRemoveDir);
            let _ = unlinkat(dir.as_fd(), &**name, UnlinkatFlags::RemoveDir);
        }
    }
    Ok(())
}

/// Parses a directory name such as `job00007`.
fn job_of_directory(name: &str) -> Option<String> {
    let id = name.strip_prefix("job")?;
    (id.len() >= 5).then(|| id.parse::<u32>().ok())?.map(|id| id.to_string())
}

/// The job ID in a socket name such as `NODE_7.0`; `None` if the name has another form or another node.
fn job_of_socket(name: &str, node: &str) -> Option<String> {
    StepSocket::parse(name).filter(|socket| socket.node == node).map(|socket| socket.job.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::{clean, started_jobs};

    #[test]
    fn removes_only_entries_without_process() {
        let spool = tempfile::tempdir().unwrap();
        let path = |name: &str| spool.path().join(name);
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("slurm_script"), "").unwrap();
        for job in ["job00007", "job00008"] {
            std::fs::create_dir(path(job)).unwrap();
            std::fs::write(path(job).join("slurm_script"), "").unwrap();
        }
        std::os::unix::fs::symlink(outside.path(), path("job00009")).unwrap();
        drop(UnixListener::bind(path("node_7.4294967291")).unwrap());
        let listening = UnixListener::bind(path("node_8.0")).unwrap();
        drop(UnixListener::bind(path("other_7.0")).unwrap());
        std::fs::write(path("node_5.0"), "a file").unwrap();
        let directory = spool.path().to_str().unwrap();
        assert_eq!(started_jobs(directory).into_iter().collect::<Vec<_>>(), ["7", "8", "9"]);

        clean(directory, "node").unwrap();
        for gone in ["job00007", "node_7.4294967291"] {
            assert!(!path(gone).exists(), "{gone}");
        }
        for kept in ["job00008/slurm_script", "node_8.0", "other_7.0", "node_5.0", "job00009/slurm_script"] {
            assert!(path(kept).exists(), "{kept}");
        }
        drop(listening);
    }
}
