//! User and mount namespaces: the kernel itself gives the program another root directory. The process keeps its user and its PID.
//!
//! docker/seccomp-userns.json allows exactly these system calls with these flags.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Gid, Uid, chdir, getegid, geteuid, pivot_root, setgid, setuid};

use super::Program;
use super::binds::{Bind, SLURMINIT_DIRECTORY};

/// The user of the probe: nobody, because jobs do not have root's rights.
const NOBODY: u32 = 65_534;

/// Changes the root directory of this process. The error is the reason why it cannot.
pub(super) fn enter(program: &Program) -> Result<(), String> {
    if !program.root.join(SLURMINIT_DIRECTORY.trim_start_matches('/')).is_dir() {
        return Err(format!("{} was not imported and has no {SLURMINIT_DIRECTORY}", program.root.display()));
    }
    unshare_user()?;
    let failure = |what: &'static str| move |error: nix::Error| format!("cannot {what}: {error}");
    bind(&program.root, &program.root, MsFlags::MS_BIND | MsFlags::MS_REC).map_err(failure("bind the image"))?;
    let root = nix::fcntl::open(
        &program.root,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    );
    let root = root.map_err(failure("open the image"))?;
    let directory = path_of(&root).join(SLURMINIT_DIRECTORY.trim_start_matches('/'));
    mount_tmpfs(&directory).map_err(failure("mount a tmpfs"))?;
    for entry in &program.binds.0 {
        if let Err(error) = bind_in(&root, entry) {
            // Paths without a mount point in the image are left out, but programs require these.
            if ["/proc", "/dev", "/tmp"].iter().any(|path| entry.to == Path::new(path)) {
                return Err(format!("bind {}: {error}", entry.to.display()));
            }
        }
    }
    chdir(&path_of(&root)).map_err(failure("chdir"))?;
    pivot_root(".", ".").map_err(failure("pivot_root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(failure("umount"))?;
    // A missing directory is no reason to end the job, as it is none for slurmstepd.
    let _ = chdir(&program.directory).or_else(|_| chdir("/"));
    Ok(())
}

/// Creates the namespaces, in which this process keeps its user and group.
fn unshare_user() -> Result<(), String> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(|error| format!("unshare: {error}"))?;
    let write = |path: &str, text: String| fs::write(path, text).map_err(|error| format!("{path}: {error}"));
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    // Mounts here must not appear outside.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|error| format!("mount: {error}"))
}

fn mount_tmpfs(at: &Path) -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("slurminit"), at, Some("tmpfs"), flags, Some("size=1m,mode=0755"))
}

fn bind(from: &Path, to: &Path, flags: MsFlags) -> nix::Result<()> {
    mount(Some(from), to, None::<&str>, flags, None::<&str>)
}

fn path_of(file: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_raw_fd().to_string())
}

/// Mounts onto a path of the image. The image controls its links, so the kernel follows them as if the image were the
/// root directory.
fn bind_in(root: &OwnedFd, entry: &Bind) -> io::Result<()> {
    if let Ok(relative) = entry.to.strip_prefix(SLURMINIT_DIRECTORY) {
        make_target(root, relative, fs::metadata(&entry.from)?.is_dir())?;
    }
    let relative = entry.to.strip_prefix("/").map_err(io::Error::other)?;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    let how = how.resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let target = openat2(root, relative, how)?;
    Ok(bind(&entry.from, &path_of(&target), MsFlags::MS_BIND | MsFlags::MS_REC)?)
}

/// Creates a file or directory in the tmpfs.
fn make_target(root: &OwnedFd, relative: &Path, is_directory: bool) -> io::Result<()> {
    let path = path_of(root).join(SLURMINIT_DIRECTORY.trim_start_matches('/')).join(relative);
    if is_directory {
        return fs::create_dir_all(path);
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    File::create(path).map(drop)
}

/// Becomes an ordinary user, as jobs are.
#[expect(clippy::disallowed_methods, reason = "a process of its own, which has read no secret")]
pub(super) fn become_nobody() -> Result<(), String> {
    if geteuid().is_root() {
        setgid(Gid::from_raw(NOBODY)).map_err(|error| format!("setgid: {error}"))?;
        setuid(Uid::from_raw(NOBODY)).map_err(|error| format!("setuid: {error}"))?;
        // Otherwise the files of this process in /proc stay root's.
        set_dumpable(true).map_err(|error| format!("prctl: {error}"))?;
    }
    Ok(())
}

/// Whether an ordinary user of this container can run programs in namespaces; otherwise the reason. Changes this process.
pub(super) fn probe() -> Result<(), String> {
    unshare_user()?;
    let refused = |error: nix::Error| format!("mount a tmpfs: {error}");
    mount_tmpfs(Path::new("/tmp")).map_err(refused)?;
    bind(Path::new("/proc"), Path::new("/tmp"), MsFlags::MS_BIND | MsFlags::MS_REC)
        .map_err(|error| format!("bind /proc: {error}"))
}
