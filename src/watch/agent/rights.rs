//! The rights of the process that reads the GPUs: those of an unprivileged user, and the right to open GPUs.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Pid, Uid, getppid};

use probe::device_files;

/// Gives up root and its capabilities for good. This process is killed when `parent` ends.
///
/// # Errors
/// The rights cannot be given up, the parent-death signal cannot be set, or `parent` has ended.
pub fn give_up(parent: Pid) -> anyhow::Result<()> {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if Uid::effective().is_root() {
        device_files::become_watcher(&groups()).context("cannot change the user or the groups of this process")?;
    }
    prctl::set_no_new_privs().context("cannot set no_new_privs")?;
    // This comes after the change of user, which resets the setting.
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot set the parent-death signal")?;
    anyhow::ensure!(getppid() == parent, "the agent has ended");
    Ok(())
}

/// The groups, except root's, of the GPU device files that are closed to other users: for example `render`, `video`, or slurminit's own
/// group, which owns the device files that slurminit has closed to other users.
fn groups() -> Vec<Gid> {
    let directories = ["/dev", "/dev/dri"].map(Path::new);
    let entries = directories.into_iter().flat_map(|directory| directory.read_dir().into_iter().flatten().flatten());
    let is_gpus = |name: &str| ["nvidia", "renderD", "kfd"].iter().any(|start| name.starts_with(start));
    let files = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_gpus));
    let closed = files.filter_map(|entry| entry.metadata().ok()).filter(|file| device_files::is_closed(file.mode()));
    // Group 0 may open more than GPUs.
    let mut groups: Vec<u32> = closed.map(|file| file.gid()).filter(|gid| *gid != 0).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.into_iter().map(Gid::from_raw).collect()
}

/// Redirects standard output, to which libraries may print, to /dev/null. Returns the original standard output.
///
/// # Errors
/// No file descriptor is left, or /dev/null cannot be opened.
pub fn redirect_stdout() -> io::Result<std::fs::File> {
    let stdout = nix::unistd::dup(io::stdout())?;
    nix::fcntl::fcntl(&stdout, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(std::fs::File::from(stdout))
}
