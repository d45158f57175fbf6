//! Builds a file tree from untrusted names.
//!
//! Every name is resolved one component at a time, relative to an open directory, so that the kernel follows no link. A link in
//! the tree is followed as if the tree were the root of a file system: `..` stops there, and an absolute target starts there. The tree is
//! in a directory that only root and this user can write to, so no other user can change anything between a check and its use.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstatat, futimens, mkdirat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use super::ImageError;
use super::tar::lossy;

/// The maximum depth of directories. A removal opens one descriptor per level.
const MAX_DEPTH: usize = 200;
/// The maximum number of links in a path, as in the kernel.
const MAX_LINKS: u32 = 40;
/// The permissions that files and directories of an image keep: no write permission for other users, and no set-user-id or set-group-id.
const FILE_BITS: u32 = 0o755;

/// The name of root's home directory in an image. Most images close this directory (0700).
const HOME_OF_ROOT: &str = "root";

/// The limits of an import.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// A tree that is being built.
pub(crate) struct Tree {
    root: OwnedFd,
    /// The path of the last parent, and the directories on it, which stay open: an archive lists the files of a directory together.
    parent: Option<(Vec<OsString>, Vec<OwnedFd>)>,
    budget: Budget,
    /// The bytes and entries added so far.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// The number of device nodes and FIFOs that were left out, not counting those in /dev.
    pub(crate) skipped: u64,
    /// The number of programs for this machine so far, and the machine type (ELF's `e_machine`) of the last program for another machine. Only 64-bit
    /// little-endian programs count.
    pub(crate) programs: (u32, Option<u16>),
}

fn rejected(path: &[u8], what: &'static str) -> ImageError {
    ImageError::Rejected { path: lossy(path), what }
}

pub(crate) fn open_directory(at: impl AsFd, name: &OsStr) -> nix::Result<OwnedFd> {
    openat(at, name, OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY, Mode::empty())
}

/// The status of an entry; of a link, the status of the link itself. `None` if the entry does not exist.
fn status(at: impl AsFd, name: &OsStr) -> nix::Result<Option<FileStat>> {
    match fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(None),
        status => status.map(Some),
    }
}

pub(crate) fn kind(status: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits())
}

/// The components of a path in an archive. A leading `/` is the root of the image.
///
/// # Errors
/// The path contains `..` or a name longer than 255 bytes, or has too many directories.
pub(crate) fn components(path: &[u8]) -> Result<Vec<OsString>, ImageError> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<OsString> = parts.map(|part| OsString::from_vec(part.to_vec())).collect();
    if parts.iter().any(|part| part == "..") {
        return Err(rejected(path, "path with `..`"));
    }
    if parts.len() > MAX_DEPTH {
        return Err(rejected(path, "path with too many directories"));
    }
    if parts.iter().any(|part| part.len() > 255) {
        return Err(rejected(path, "name longer than 255 bytes"));
    }
    Ok(parts)
}

impl Tree {
    pub(crate) fn new(root: OwnedFd, budget: Budget) -> Self {
        Self { root, parent: None, budget, bytes: 0, entries: 0, skipped: 0, programs: (0, None) }
    }

    /// Counts an entry, and fails if there are too many.
    fn count(&mut self) -> Result<(), ImageError> {
        self.entries += 1;
        if self.entries > self.budget.entries {
            return Err(ImageError::TooLarge("the image has too many files"));
        }
        Ok(())
    }

    /// Leaves out a device node or a FIFO. Jobs have the container's own /dev.
    pub(crate) fn skip(&mut self, path: &[OsString]) -> Result<(), ImageError> {
        self.skipped += u64::from(path.first().is_none_or(|first| first != "dev"));
        self.count()
    }

    /// Opens the parent directory of the path, creates missing directories, and calls `action` with the parent. `label`
    /// is the path for messages.
    fn in_parent<T>(
        &mut self,
        path: &[OsString],
        label: &[u8],
        action: impl FnOnce(&OwnedFd, &OsStr) -> Result<T, ImageError>,
    ) -> Result<T, ImageError> {
        let Some((name, parents)) = path.split_last() else {
            return Err(rejected(label, "path that is the root directory itself"));
        };
        if self.parent.as_ref().is_none_or(|(path, _)| path != parents) {
            self.parent = None;
            let open = self.open_path(parents, label)?;
            self.parent = Some((parents.to_vec(), open));
        }
        let open = self.parent.as_ref().and_then(|(_, open)| open.last()).unwrap_or(&self.root);
        action(open, name)
    }

    /// Opens all directories of the path below the root, in order, and creates missing ones.
    fn open_path(&mut self, path: &[OsString], label: &[u8]) -> Result<Vec<OwnedFd>, ImageError> {
        let mut open: Vec<OwnedFd> = Vec::new();
        let mut rest: Vec<OsString> = path.iter().rev().cloned().collect();
        let mut links = 0;
        let fault = |error: Errno| ImageError::io(lossy(label), error);
        while let Some(name) = rest.pop() {
            if name == ".." {
                open.pop();
                continue;
            }
            if open.len() >= MAX_DEPTH {
                return Err(rejected(label, "path with too many directories"));
            }
            let at = open.last().unwrap_or(&self.root);
            match status(at, &name).map_err(fault)? {
                None => {
                    match mkdirat(at, name.as_os_str(), Mode::from_bits_truncate(0o755)) {
                        // Another step may have made the same mount point in the meantime.
                        Ok(()) | Err(Errno::EEXIST) => {}
                        Err(error) => return Err(fault(error)),
                    }
                    let created = open_directory(at, &name).map_err(fault)?;
                    fchmod(&created, Mode::from_bits_truncate(0o755)).map_err(fault)?;
                    open.push(created);
                    self.count()?;
                }
                Some(found) if kind(&found) == SFlag::S_IFDIR => open.push(open_directory(at, &name).map_err(fault)?),
                Some(found) if kind(&found) == SFlag::S_IFLNK => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(rejected(label, "path through too many links"));
                    }
                    let target = readlinkat(at, name.as_os_str()).map_err(fault)?;
                    if target.as_bytes().starts_with(b"/") {
                        open.clear();
                    }
                    let parts = target.as_bytes().split(|byte| *byte == b'/');
                    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
                    rest.extend(parts.rev().map(|part| OsStr::from_bytes(part).to_owned()));
                }
                Some(_) => return Err(rejected(label, "a parent of the path is not a directory")),
            }
        }
        Ok(open)
    }

    /// Creates a directory or an empty file to mount on, if the path does not exist.
    pub(crate) fn mount_point(&mut self, label: &[u8], is_directory: bool) -> Result<(), ImageError> {
        let mut path = components(label)?;
        if is_directory {
            return self.open_path(&path, label).map(drop);
        }
        let fault = |error: Errno| ImageError::io(lossy(label), error);
        for _ in 0..MAX_LINKS {
            let Some((name, parents)) = path.split_last() else { break };
            let opened = self.open_path(parents, label)?;
            let at = opened.last().unwrap_or(&self.root);
            match status(at, name).map_err(fault)? {
                None => {
                    let flags = OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                    let made = openat(at, name.as_os_str(), flags, Mode::from_bits_truncate(0o644));
                    return made.map(drop).map_err(fault);
                }
                Some(found) if kind(&found) == SFlag::S_IFLNK => {
                    let target = readlinkat(at, name.as_os_str()).map_err(fault)?;
                    let is_absolute = target.as_bytes().starts_with(b"/");
                    let mut next = if is_absolute { Vec::new() } else { parents.to_vec() };
                    let parts = target.as_bytes().split(|byte| *byte == b'/');
                    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
                    next.extend(parts.map(|part| OsStr::from_bytes(part).to_owned()));
                    path = next;
                }
                Some(_) => break,
            }
        }
        Ok(())
    }

    /// Removes an entry with everything in it. A missing entry is not an error.
    pub(crate) fn remove(&mut self, path: &[OsString], label: &[u8]) -> Result<(), ImageError> {
        let removed = self.in_parent(path, label, |at, name| {
            remove_entry(at, name, MAX_DEPTH + 1).map_err(|error| ImageError::io(lossy(label), error))
        });
        // The removed directory may be the one that is kept open.
        self.parent = None;
        removed
    }

    /// Adds a directory; an existing one keeps its content.
    pub(crate) fn directory(
        &mut self,
        path: &[OsString],
        label: &[u8],
        mode: u32,
        mtime: i64,
    ) -> Result<(), ImageError> {
        if path.is_empty() {
            return Ok(());
        }
        self.count()?;
        let must_replace = self.in_parent(path, label, |at, name| {
            let found = status(at, name).map_err(|error| ImageError::io(lossy(label), error))?;
            Ok(found.map(|found| kind(&found) != SFlag::S_IFDIR))
        })?;
        if must_replace == Some(true) {
            self.remove(path, label)?;
        }
        // The owner must be able to add and remove files. The home directory of the image's root may contain programs that jobs run as
        // other users, so this directory is opened to them; its files keep their modes.
        let opened = if path == [OsStr::new(HOME_OF_ROOT)] { 0o755 } else { 0o700 };
        self.in_parent(path, label, |at, name| {
            let make = || -> nix::Result<()> {
                if must_replace != Some(false) {
                    mkdirat(at, name, Mode::from_bits_truncate(0o700))?;
                }
                let created = open_directory(at, name)?;
                fchmod(&created, Mode::from_bits_truncate(mode & FILE_BITS | opened))?;
                futimens(&created, &TimeSpec::new(mtime, 0), &TimeSpec::new(mtime, 0))
            };
            make().map_err(|error| ImageError::io(lossy(label), error))
        })
    }

    /// Adds a regular file.
    pub(crate) fn file(
        &mut self,
        path: &[OsString],
        label: &[u8],
        (mode, mtime): (u32, i64),
        content: &mut impl Read,
    ) -> Result<(), ImageError> {
        self.count()?;
        self.remove(path, label)?;
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = self.in_parent(path, label, |at, name| {
            let created = openat(at, name, flags, Mode::from_bits_truncate(0o600));
            created.map_err(|error| ImageError::io(lossy(label), error))
        })?;
        let mut file = std::fs::File::from(file);
        let mut buffer = [0; 64 << 10];
        let mut is_start = true;
        loop {
            let read = super::tar::read_up_to(content, &mut buffer)?;
            if is_start && mode & 0o111 != 0 {
                self.record_program(&buffer[..read]);
            }
            is_start = false;
            self.bytes += read as u64;
            if self.bytes > self.budget.bytes {
                return Err(ImageError::TooLarge(
                    "the image does not fit into the free space (256 MiB must stay free), or is larger than 1 TiB",
                ));
            }
            file.write_all(&buffer[..read]).map_err(|error| ImageError::io(lossy(label), error))?;
            if read < buffer.len() {
                break;
            }
        }
        let finish = || -> nix::Result<()> {
            fchmod(&file, Mode::from_bits_truncate(mode & FILE_BITS | 0o600))?;
            // Python compares the times of sources with those in its compiled files.
            futimens(&file, &TimeSpec::new(mtime, 0), &TimeSpec::new(mtime, 0))
        };
        finish().map_err(|error| ImageError::io(lossy(label), error))
    }

    /// Records the machine type of an ELF program.
    fn record_program(&mut self, start: &[u8]) {
        let Some([low, high]) = start.get(18..20).filter(|_| start.starts_with(b"\x7fELF\x02\x01")) else { return };
        match u16::from_le_bytes([*low, *high]) {
            machine if machine == super::manifest::ELF_MACHINE => self.programs.0 += 1,
            machine => self.programs.1 = Some(machine),
        }
    }

    /// Adds a symbolic link. The link is not followed here; in a job, its target cannot leave the image's root.
    pub(crate) fn symlink(&mut self, path: &[OsString], label: &[u8], target: &[u8]) -> Result<(), ImageError> {
        self.count()?;
        if target.is_empty() || target.len() > 4095 {
            return Err(rejected(label, "link with an invalid target"));
        }
        self.remove(path, label)?;
        self.in_parent(path, label, |at, name| {
            symlinkat(OsStr::from_bytes(target), at, name).map_err(|error| ImageError::io(lossy(label), error))
        })
    }

    /// Adds a hard link to a file of this tree. `target` is the file's path in the archive.
    pub(crate) fn hardlink(&mut self, path: &[OsString], label: &[u8], target: &[u8]) -> Result<(), ImageError> {
        self.count()?;
        let target = components(target).map_err(|_| rejected(label, "hard link with an invalid target"))?;
        if target == path {
            return Ok(());
        }
        let fault = |error: Errno| ImageError::io(lossy(label), error);
        let Some((last, parents)) = target.split_last() else { return Err(rejected(label, "hard link to the root")) };
        let before = self.entries;
        let opened = self.open_path(parents, label)?;
        let source = opened.last().unwrap_or(&self.root);
        let is_file = |found: &FileStat| [SFlag::S_IFREG, SFlag::S_IFLNK].contains(&kind(found));
        let Some(found) = status(source, last).map_err(fault)?.filter(|found| self.entries == before && is_file(found))
        else {
            return Err(rejected(label, "hard link to a directory or a missing file"));
        };
        let source = source.try_clone().map_err(|error| ImageError::io(lossy(label), error))?;
        let present = self.in_parent(path, label, |at, name| status(at, name).map_err(fault))?;
        if present.is_some_and(|present| (present.st_dev, present.st_ino) == (found.st_dev, found.st_ino)) {
            // Both paths already lead to the same file, for example through a link to its directory. Removing one could remove the other.
            return Ok(());
        }
        self.remove(path, label)?;
        self.in_parent(path, label, |at, name| {
            linkat(&source, last.as_os_str(), at, name, AtFlags::empty()).map_err(fault)
        })
    }

    /// Removes the entries of a directory, except those whose paths `keeps` accepts.
    pub(crate) fn clear(
        &mut self,
        path: &[OsString],
        label: &[u8],
        keeps: &impl Fn(&[OsString]) -> bool,
    ) -> Result<(), ImageError> {
        let open = self.open_path(path, label)?;
        let names = names(open.last().unwrap_or(&self.root)).map_err(|error| ImageError::io(lossy(label), error))?;
        drop(open);
        for name in names {
            let entry = [path, &[name]].concat();
            if !keeps(&entry) {
                self.remove(&entry, label)?;
            }
        }
        Ok(())
    }
}

/// The names in a directory.
pub(crate) fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let opened = openat(directory, ".", OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(opened)?.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Removes an entry with everything in it, without following links. A missing entry is not an error.
pub(crate) fn remove_entry(at: &OwnedFd, name: &OsStr, max_depth: usize) -> io::Result<()> {
    match unlinkat(at, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(max_depth) = max_depth.checked_sub(1) else {
        return Err(io::Error::other("directories are nested too deeply"));
    };
    let directory = open_directory(at, name)?;
    for entry in names(&directory)? {
        remove_entry(&directory, &entry, max_depth)?;
    }
    Ok(unlinkat(at, name, UnlinkatFlags::RemoveDir)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn makes_missing_mount_points_inside_the_root() {
        let directory = crate::tests::scratch();
        let root = directory.path().join("rootfs");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/kept"), "kept").unwrap();
        symlink("../run/none/resolv.conf", root.join("etc/resolv.conf")).unwrap();
        symlink("/../../outside", root.join("way")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let mut tree = Tree::new(fs::File::open(&root).unwrap().into(), Budget { bytes: 0, entries: u64::MAX });
        for _ in 0..2 {
            for path in ["/people/alice", "/etc", "/way/in"] {
                tree.mount_point(path.as_bytes(), true).unwrap();
            }
            for path in ["/etc/resolv.conf", "/etc/kept", "/.slurminit/bin/srun", "/loop", "/way/file"] {
                tree.mount_point(path.as_bytes(), false).unwrap();
            }
            for path in ["/etc/kept/below", "/../outside"] {
                assert!(tree.mount_point(path.as_bytes(), true).is_err(), "{path}");
            }
        }
        for path in ["people/alice", "outside/in"] {
            assert!(root.join(path).is_dir(), "{path}");
        }
        for path in ["run/none/resolv.conf", ".slurminit/bin/srun", "outside/file"] {
            assert_eq!(fs::read(root.join(path)).unwrap(), b"", "{path}");
        }
        assert_eq!(fs::read(root.join("etc/kept")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing beside the root");
    }
}
