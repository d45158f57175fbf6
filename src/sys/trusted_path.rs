//! Opens paths safely, although other users may be able to tamper with parts of them.
//!
//! A user who can write to a directory controls where paths through it lead. So a path is resolved one name at a time:
//! each name is opened relative to the previous directory and without following links. All work is done through the
//! open directory, never through the path again.
//!
//! A link is followed only if no user other than root could have created it: the image's links (`/var/run`) and the operator's.
//! openat2(2) does not take the owner of a link into account, hence this module.

mod dir;
mod repaired;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::statvfs::{FsFlags, fstatvfs};

pub use dir::{Dir, is_ours};
pub use repaired::RepairedPath;

/// The maximum number of links in a path, as in the kernel.
const LINKS: u32 = 40;
/// The maximum size of a file that is read whole. slurminit's files are much shorter.
const LONGEST: u64 = 64 << 20;

/// Why a path was refused.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum UntrustedPath {
    #[error("untrusted path: {path} belongs to uid {uid}; run `chown root {path}`, or configure another path")]
    Foreign { path: PathBuf, uid: u32 },
    #[error(
        "untrusted path: {path} is writable by others (mode {mode:04o}); run `chmod go-w {path}`, or configure another path"
    )]
    Open { path: PathBuf, mode: u32 },
    #[error("untrusted symbolic link: {path} may have been created by a user other than root; remove it")]
    Link { path: PathBuf },
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

impl From<UntrustedPath> for io::Error {
    fn from(untrusted: UntrustedPath) -> Self {
        match untrusted {
            UntrustedPath::Io { error, .. } => error,
            other => Self::other(other),
        }
    }
}

impl UntrustedPath {
    fn io(path: &Path, error: impl Into<io::Error>) -> Self {
        Self::Io { path: path.to_owned(), error: error.into() }
    }

    /// The reason without a fix, for paths outside of `[paths]`.
    pub fn reason(&self) -> String {
        match self {
            Self::Foreign { path, uid } => format!("{} belongs to uid {uid}", path.display()),
            Self::Open { path, mode } => format!("others may write to {} (mode {mode:04o})", path.display()),
            Self::Link { path } => {
                format!("{} is a symbolic link that a user other than root may have created", path.display())
            }
            Self::Io { path, error } => format!("{}: {error}", path.display()),
        }
    }

    /// Whether nothing exists at the path.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

/// How a path is walked.
#[derive(Debug)]
enum WalkMode<'a> {
    /// Only through existing directories in which only root can replace root's entries, including sticky ones such as `/tmp`.
    Strict,
    /// Like `Strict`, but missing directories are created. Other users' write permission is removed from root-owned directories without the
    /// sticky bit, and links and files that other users may have created are removed.
    Fix(&'a mut Vec<RepairedPath>),
    /// Through directories of any owner. Other users' links are not followed.
    Anywhere { creates_missing: bool },
}

impl WalkMode<'_> {
    fn creates_missing(&self) -> bool {
        matches!(self, Self::Fix(_) | Self::Anywhere { creates_missing: true })
    }

    fn accepts_foreign_files(&self) -> bool {
        matches!(self, Self::Anywhere { .. })
    }
}

/// Opens a directory.
///
/// # Errors
/// It does not exist, is not a directory, or someone other than root controls where the path leads.
pub fn open(root: &Path, path: &Path) -> Result<Dir, UntrustedPath> {
    walk(root, path, WalkMode::Strict).map(|(dir, _)| dir)
}

/// Opens a directory, creates missing parts, and fixes parent directories to which others may write. Also returns whether the directory is
/// new.
///
/// # Errors
/// It cannot be created, a parent or link in the path belongs to another user, or a parent cannot be fixed.
pub fn make(root: &Path, path: &Path, repaired: &mut Vec<RepairedPath>) -> Result<(Dir, bool), UntrustedPath> {
    walk(root, path, WalkMode::Fix(repaired))
}

/// Opens a directory and creates missing parts, within directories of any owner: for a path that will belong to another user.
///
/// # Errors
/// It cannot be created, or the path contains a link that root did not make.
pub fn make_anywhere(root: &Path, path: &Path) -> Result<Dir, UntrustedPath> {
    walk(root, path, WalkMode::Anywhere { creates_missing: true }).map(|(dir, _)| dir)
}

/// Opens a file for reading if only root could have created its name. The file's own owner does not matter, because a
/// mounted secret keeps its owner from the host.
///
/// # Errors
/// It does not exist, is not a regular file, or cannot be read, or someone other than root controls where the path leads.
pub fn open_file(root: &Path, path: &Path) -> Result<File, UntrustedPath> {
    let mut walk = Walk::start(root, path)?;
    let last = walk.resolve(&mut WalkMode::Strict, true)?;
    let dir = walk.into_directory(path)?;
    match last {
        Some(name) => dir.open_file(&name).map_err(|error| UntrustedPath::io(path, error)),
        None => Err(UntrustedPath::io(path, nix::Error::EISDIR)),
    }
}

/// Opens untrusted content for reading: a file or directory of any owner, in directories of any owner. Other users' links are not
/// followed, because they could lead to files that only the user of this process may read.
///
/// # Errors
/// It does not exist, is neither a regular file nor a directory, or cannot be read, or the path contains a link that another user may have
/// made.
pub fn open_untrusted(root: &Path, path: &Path) -> Result<File, UntrustedPath> {
    let mut walk = Walk::start(root, path)?;
    let last = walk.resolve(&mut WalkMode::Anywhere { creates_missing: false }, true)?;
    let dir = walk.into_directory(path)?;
    let opened = match last {
        Some(name) => dir.open_file(&name),
        None => dir.reopened().map_err(io::Error::from),
    };
    opened.map_err(|error| UntrustedPath::io(path, error))
}

/// The directory of a socket, and the socket's name. The kernel creates sockets only by path, and no other user can redirect the path if
/// only root can write to the directory and its parents.
///
/// # Errors
/// The directory does not exist, others may write to it or control where its path leads, or the socket's name is missing or not UTF-8.
pub fn socket_place(socket: &Path) -> io::Result<(Dir, String)> {
    let dir = open(Path::new("/"), socket.parent().unwrap_or(Path::new("/")))?;
    dir.require_ours()?;
    let name = socket.file_name().and_then(OsStr::to_str).ok_or(io::ErrorKind::InvalidInput)?;
    Ok((dir, name.to_owned()))
}

/// Reads a regular file of the operator, which may be anywhere and may be a link. If it is a pipe or device, returns an error instead
/// of blocking.
///
/// # Errors
/// It does not exist, is not a regular file, is too long, or cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    read_whole(&File::options().read(true).custom_flags(flags).open(path)?)
}

/// Reads an open regular file completely.
///
/// # Errors
/// It is not a regular file, is too long, or cannot be read.
pub fn read_whole(file: &File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > LONGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The reason why a user other than root and `owner` could change the contents of an open file; `None` if none could. A
/// read-only mount allows no change.
///
/// # Errors
/// The file's owner or mount cannot be read.
pub fn changeable_by_others(file: &File, owner: Option<u32>) -> io::Result<Option<String>> {
    let (found, flags) = (file.metadata()?, fstatvfs(file)?.flags());
    let (uid, mode) = (found.uid(), found.mode() & 0o7777);
    Ok(if flags.contains(FsFlags::ST_RDONLY) {
        None
    } else if !is_ours(uid) && Some(uid) != owner {
        Some(format!("it belongs to uid {uid}"))
    } else {
        (mode & 0o022 != 0).then(|| format!("others may write to it (mode {mode:04o})"))
    })
}

fn walk(root: &Path, path: &Path, mut mode: WalkMode<'_>) -> Result<(Dir, bool), UntrustedPath> {
    let mut walk = Walk::start(root, path)?;
    walk.resolve(&mut mode, false)?;
    let is_new = walk.is_new;
    walk.into_directory(path).map(|dir| (dir, is_new))
}

/// The state of a path walk: the open directories, and the remaining names.
struct Walk {
    opened: Vec<Dir>,
    remaining: VecDeque<OsString>,
    links: u32,
    /// Whether the last name was created.
    is_new: bool,
}

impl Walk {
    fn start(root: &Path, path: &Path) -> Result<Self, UntrustedPath> {
        let path = std::path::absolute(path).map_err(|error| UntrustedPath::io(path, error))?;
        let top = Dir::open_root(root).map_err(|error| UntrustedPath::io(root, error))?;
        Ok(Self { opened: vec![top], remaining: names(&path).collect(), links: 0, is_new: false })
    }

    fn into_directory(mut self, path: &Path) -> Result<Dir, UntrustedPath> {
        self.opened.pop().ok_or_else(|| UntrustedPath::io(path, nix::Error::ENOENT))
    }

    /// Resolves the remaining names. With `allows_file`, the last name may be a file and is then returned.
    fn resolve(&mut self, mode: &mut WalkMode<'_>, allows_file: bool) -> Result<Option<OsString>, UntrustedPath> {
        while let Some(name) = self.remaining.pop_front() {
            if name == ".." {
                if self.opened.len() > 1 {
                    self.opened.pop();
                }
                continue;
            }
            let Some(parent) = self.opened.last() else { break };
            let place = parent.path().join(&name);
            let others_may_add = parent.check_writers(mode)?;
            self.is_new = false;
            let entry = match parent.open_entry(&name) {
                Err(error) if error == nix::Error::ENOENT && mode.creates_missing() => {
                    self.is_new = true;
                    parent.make(&name).map_err(|error| UntrustedPath::io(&place, error))?
                }
                entry => entry.map_err(|error| UntrustedPath::io(&place, error))?,
            };
            if entry.is_dir() {
                self.opened.push(entry);
                continue;
            }
            let may_be_foreign = others_may_add && !entry.is_placed_by_root();
            if let WalkMode::Fix(repaired) = mode {
                if may_be_foreign {
                    // Root owns the directory, so an entry that another user may have created is removed.
                    parent.remove(&name).map_err(|error| UntrustedPath::io(&place, error))?;
                    repaired.push(RepairedPath::Removed { path: place });
                    self.remaining.push_front(name);
                    continue;
                }
            }
            if entry.is_link() {
                self.links += 1;
                if may_be_foreign || !entry.is_placed_by_root() {
                    return Err(UntrustedPath::Link { path: place });
                }
                if self.links > LINKS {
                    return Err(UntrustedPath::io(&place, nix::Error::ELOOP));
                }
                let target = parent.read_link(&name).map_err(|error| UntrustedPath::io(&place, error))?;
                if target.is_absolute() {
                    self.opened.truncate(1);
                }
                names(&target).rev().for_each(|name| self.remaining.push_front(name));
            } else if allows_file && self.remaining.is_empty() {
                let is_accepted = !may_be_foreign || mode.accepts_foreign_files() && entry.is_foreign();
                return if is_accepted { Ok(Some(name)) } else { Err(entry.foreign()) };
            } else {
                return Err(UntrustedPath::io(&place, nix::Error::ENOTDIR));
            }
        }
        Ok(None)
    }
}

/// The names of a path, one by one.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    })
}
