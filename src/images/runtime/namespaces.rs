//! User and mount namespaces: the kernel changes the root directory of the program's process, which keeps its user and its PID.
//!
//! The new root is a tmpfs with the entries of the image's root, so mount points of any name can be created in it. If a mount point is missing deeper
//! in the image, its deepest existing parent directory becomes a tmpfs with the same entries, too: nothing is ever created in the image.
//!
//! docker/seccomp-userns.json allows this module's system calls with exactly the flags that it uses.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_dumpable;
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{
    Gid, Uid, UnlinkatFlags, chdir, getegid, geteuid, pipe2, pivot_root, setgid, setuid, symlinkat, unlinkat,
};
use sys::system_calls::fork;

use super::Program;
use super::binds::Bind;
use crate::tree::{kind, names};

/// The ID of the user and group that a probe by root changes to, because jobs do not have root's rights.
const NOBODY: u32 = 65_534;
/// The mount point of the tmpfs until the tmpfs is the root directory.
const STAGE: &str = "/tmp";
/// The path of the container's root directory in the new root until everything is mounted.
const FORMER: &str = "/.slurminit-former";
/// Mount flags that cannot be cleared in a user namespace.
const LOCKED_FLAGS: [(FsFlags, MsFlags); 3] = [
    (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
    (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
    (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
];

/// Changes the root directory of this process. After an error the process is in an intermediate state.
pub(super) fn enter(program: &Program) -> Result<(), String> {
    unshare_user()?;
    // The paths are opened before the root changes, because their links refer to the container's root.
    let opened = |path: &Path| open_path(path).map_err(|error| format!("cannot open {}: {error}", path.display()));
    let image = opened(&program.root)?;
    let sources: Vec<(OwnedFd, &Bind)> =
        program.binds.0.iter().map(|bind| Ok((opened(&bind.from)?, bind))).collect::<Result<_, String>>()?;
    replace_root()?;
    let mut root =
        Root::new(program.is_read_only).map_err(|error| format!("cannot create a root directory: {error}"))?;
    let failure = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("cannot mount {path} in the image: {error}")
    };
    root.fill(Path::new("/"), &image)
        .map_err(|error| format!("cannot mount the files of the image {}: {error}", program.root.display()))?;
    for (source, bind) in sources {
        root.bind(&source, bind).map_err(failure(&bind.to))?;
    }
    root.finish().map_err(|error| format!("cannot leave the container's root directory: {error}"))?;
    // As for slurmstepd, a missing working directory does not end the job.
    let _ = chdir(&program.directory).or_else(|_| chdir("/"));
    Ok(())
}

/// Whether this process can create the namespaces and mount in them; otherwise the reason. The mounts are tried, too, because an engine may allow
/// namespaces but refuse mounts. A child process tries both, because this process could not return from the new namespaces.
pub(super) fn attempt() -> Result<(), String> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(|error| not_tried(&error))?;
    let mut writer = fs::File::from(writer);
    let child = fork(|| match create() {
        Ok(()) => 0,
        Err(why) => i32::from(writer.write_all(why.as_bytes()).is_ok()).max(1),
    });
    drop(writer);
    let child = child.map_err(|error| not_tried(&error))?;
    let why = io::read_to_string(fs::File::from(reader)).unwrap_or_default();
    outcome(waitpid(child, None), why)
}

/// The outcome of a child of [`attempt`] that ended with this status after it wrote this reason.
fn outcome(status: nix::Result<WaitStatus>, why: String) -> Result<(), String> {
    match status {
        Ok(WaitStatus::Exited(_, 0)) => Ok(()),
        _ if !why.is_empty() => Err(why),
        other => Err(not_tried(&format!("{other:?}"))),
    }
}

fn not_tried(error: &dyn std::fmt::Display) -> String {
    format!("cannot try namespaces: {error}")
}

/// Creates the namespaces and an empty root directory.
fn create() -> Result<(), String> {
    unshare_user()?;
    replace_root()?;
    umount2(FORMER, MntFlags::MNT_DETACH).map_err(|error| format!("umount: {error}"))
}

/// Creates the namespaces, in which this process keeps its user and group.
fn unshare_user() -> Result<(), String> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(|error| format!("unshare: {error}"))?;
    let write = |path: &str, text: String| fs::write(path, text).map_err(|error| format!("{path}: {error}"));
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    // Mounts in this namespace must not propagate to the container.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|error| format!("mount: {error}"))
}

/// Makes an empty tmpfs the root directory, with the container's root directory below it.
fn replace_root() -> Result<(), String> {
    mount_tmpfs(Path::new(STAGE), 0o755).map_err(|error| format!("mount a tmpfs: {error}"))?;
    let former = format!("{STAGE}{FORMER}");
    fs::create_dir(&former).map_err(|error| format!("mkdir {former}: {error}"))?;
    pivot_root(STAGE, former.as_str()).and_then(|()| chdir("/")).map_err(|error| format!("pivot_root: {error}"))
}

fn mount_tmpfs(at: &Path, mode: u32) -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // The tmpfs contains only mount points and links, so a small size suffices.
    mount(Some("slurminit"), at, Some("tmpfs"), flags, Some(format!("size=16m,mode={mode:04o}").as_str()))
}

fn open_path(path: &Path) -> nix::Result<OwnedFd> {
    nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
}

/// The path of an open file, for as long as the container's root is mounted.
fn path_of(file: &OwnedFd) -> PathBuf {
    Path::new(FORMER).join("proc/self/fd").join(file.as_raw_fd().to_string())
}

fn is_directory(file: &OwnedFd) -> nix::Result<bool> {
    Ok(kind(&fstat(file)?) == SFlag::S_IFDIR)
}

/// The new root directory.
struct Root {
    root: OwnedFd,
    /// Whether the image's files are read-only.
    is_read_only: bool,
    /// Each tmpfs of this root: its device number and its path.
    made: Vec<(u64, PathBuf)>,
    /// The paths of the container's directories and files in this root.
    bound: Vec<PathBuf>,
}

impl Root {
    fn new(is_read_only: bool) -> nix::Result<Self> {
        let root = open_path(Path::new("/"))?;
        let device = fstat(&root)?.st_dev;
        Ok(Self { root, is_read_only, made: vec![(device, "/".into())], bound: Vec::new() })
    }

    /// Opens a path. The image's links are not trusted, so the kernel resolves them inside this root.
    fn open(&self, path: &Path) -> nix::Result<OwnedFd> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
        openat2(&self.root, relative, how.resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS))
    }

    /// Puts the entries of a directory of the image into the tmpfs at `at`.
    fn fill(&self, at: &Path, from: &OwnedFd) -> io::Result<()> {
        let directory = self.open(at)?;
        let target = path_of(&directory);
        for name in names(from)? {
            if at.join(&name) == Path::new(FORMER) {
                continue;
            }
            let status = fstatat(from, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
            if kind(&status) == SFlag::S_IFLNK {
                symlinkat(readlinkat(from, name.as_os_str())?.as_os_str(), &directory, name.as_os_str())?;
                continue;
            }
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let entry = openat(from, name.as_os_str(), flags, Mode::empty())?;
            make_entry(&directory, &name, is_directory(&entry)?)?;
            mount_at(&entry, &target.join(&name))?;
            if self.is_read_only {
                make_read_only(&self.open(&at.join(&name))?)?;
            }
        }
        Ok(())
    }

    fn bind(&mut self, source: &OwnedFd, bind: &Bind) -> io::Result<()> {
        let target = self.mount_point(&bind.to, is_directory(source)?)?;
        self.bound.push(fs::read_link(path_of(&target))?);
        mount_at(source, &path_of(&target))?;
        if bind.is_read_only {
            make_read_only(&self.open(&bind.to)?)?;
        }
        Ok(())
    }

    /// Opens a directory or file to mount on. It is created if the image has none at this path, or an entry of another type.
    fn mount_point(&mut self, path: &Path, needs_directory: bool) -> io::Result<OwnedFd> {
        match self.open(path) {
            Ok(found) if is_directory(&found)? == needs_directory => return Ok(found),
            _ => {}
        }
        let (parent, missing) = self.deepest_directory(path)?;
        let parent = self.expand(&parent)?;
        let mut directory = self.open(&parent)?;
        let Some((last, between)) = missing.split_last() else { return Err(nix::Error::ENOTDIR.into()) };
        for name in between {
            directory = replace_entry(&directory, name, true)?;
        }
        replace_entry(&directory, last, needs_directory)
    }

    /// The deepest existing parent directory of a path, and the names below it.
    fn deepest_directory<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, Vec<&'a OsStr>)> {
        for parent in path.ancestors().skip(1) {
            let Ok(found) = self.open(parent) else { continue };
            if is_directory(&found)? {
                let names = path.strip_prefix(parent).unwrap_or(path).components();
                let names = names.map(|name| match name {
                    Component::Normal(name) => Ok(name),
                    _ => Err(nix::Error::EINVAL.into()),
                });
                return Ok((found, names.collect::<io::Result<_>>()?));
            }
        }
        Err(nix::Error::ENOENT.into())
    }

    /// Covers a directory of the image with a tmpfs that has the same entries, so that new entries can be created. A directory in such a tmpfs
    /// is left unchanged. Returns the directory's path.
    fn expand(&mut self, directory: &OwnedFd) -> io::Result<PathBuf> {
        let path = fs::read_link(path_of(directory))?;
        let status = fstat(directory)?;
        if self.made.iter().any(|(device, _)| *device == status.st_dev) {
            return Ok(path);
        }
        if self.bound.iter().any(|bound| path.starts_with(bound)) {
            return Err(io::Error::other(format!(
                "the mount point is missing in the container's directory {}; create it there",
                path.display()
            )));
        }
        mount_tmpfs(&path_of(directory), status.st_mode & 0o777)?;
        self.made.push((fstat(&self.open(&path)?)?.st_dev, path.clone()));
        self.fill(&path, directory)?;
        Ok(path)
    }

    /// Detaches the container's root directory, and makes each tmpfs of the new root read-only.
    fn finish(self) -> nix::Result<()> {
        umount2(FORMER, MntFlags::MNT_DETACH)?;
        unlinkat(&self.root, FORMER.trim_start_matches('/'), UnlinkatFlags::RemoveDir)?;
        for (_, path) in &self.made {
            // The seccomp profile of an older release refuses the remount. In that case new entries remain possible, and disappear with the step.
            let _ = remount_read_only(path, MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
        }
        Ok(())
    }
}

fn mount_at(source: &OwnedFd, target: &Path) -> nix::Result<()> {
    mount(Some(&path_of(source)), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
}

/// Prevents writes through this mount, but not through mounts below it.
fn make_read_only(mounted: &OwnedFd) -> nix::Result<()> {
    let present = fstatvfs(mounted)?.flags();
    let locked = LOCKED_FLAGS.iter().filter(|(flag, _)| present.contains(*flag)).map(|(_, flag)| *flag);
    remount_read_only(&path_of(mounted), locked.collect())
}

fn remount_read_only(path: &Path, locked: MsFlags) -> nix::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | locked;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>)
}

/// Creates a directory or an empty file in a tmpfs of this root, in place of the image's entry, if any, and opens it.
fn replace_entry(directory: &OwnedFd, name: &OsStr, is_directory: bool) -> io::Result<OwnedFd> {
    if let Ok(found) = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        if kind(&found) != SFlag::S_IFLNK {
            // Removes the mount of the image's entry.
            let _ = umount2(&path_of(directory).join(name), MntFlags::MNT_DETACH);
        }
        let flags = if kind(&found) == SFlag::S_IFDIR { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
        unlinkat(directory, name, flags)?;
    }
    make_entry(directory, name, is_directory)?;
    Ok(openat(directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?)
}

fn make_entry(directory: &OwnedFd, name: &OsStr, is_directory: bool) -> nix::Result<()> {
    if is_directory {
        return mkdirat(directory, name, Mode::from_bits_truncate(0o755));
    }
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    openat(directory, name, flags, Mode::from_bits_truncate(0o644)).map(drop)
}

/// If this process runs as root, changes its user and group to `nobody`, because jobs do not have root's rights.
#[expect(clippy::disallowed_methods, reason = "a separate process that has read no secret")]
pub(super) fn become_nobody() -> Result<(), String> {
    if geteuid().is_root() {
        setgid(Gid::from_raw(NOBODY)).map_err(|error| format!("setgid: {error}"))?;
        setuid(Uid::from_raw(NOBODY)).map_err(|error| format!("setuid: {error}"))?;
        // Without this, the files of this process in /proc would still belong to root.
        set_dumpable(true).map_err(|error| format!("prctl: {error}"))?;
    }
    Ok(())
}

/// Whether this process can create the namespaces and a root directory; otherwise the reason. This process remains in them.
pub(super) fn probe() -> Result<(), String> {
    create()
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn failed_attempt_has_the_reason_of_the_child_or_its_status() {
        let exited = |code| Ok(WaitStatus::Exited(Pid::from_raw(5), code));
        assert_eq!(outcome(exited(0), String::new()), Ok(()));
        assert_eq!(outcome(exited(1), "unshare: EPERM".to_owned()), Err("unshare: EPERM".to_owned()));
        let killed = Ok(WaitStatus::Signaled(Pid::from_raw(5), Signal::SIGSYS, false));
        let why = outcome(killed, String::new()).unwrap_err();
        assert!(why.starts_with("cannot try namespaces: ") && why.contains("SIGSYS"), "{why}");
    }
}
