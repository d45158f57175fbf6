//! Opening what a path names without being led astray by somebody who could put something in the way.
//!
//! EDGE. Root's files lie in directories, and whoever may write one of those decides what the path leads to. So a path is
//! walked one name at a time, each opened in the directory before it and without following a link, and what is done there
//! is done by the open directory, never by the path once more.
//!
//! A link is followed only where root alone could have made it: those of the image (`/var/run`) and the operator's. The
//! kernel's openat2(2) has no such distinction, and knows nothing of owners; so the walk is our own.

mod dir;
mod mended;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::OFlag;

pub use dir::{Dir, is_ours};
pub use mended::Mended;

/// As many links as the kernel follows.
const LINKS: u32 = 40;
/// No file that slurminit reads whole is nearly as long.
const LONGEST: u64 = 64 << 20;

/// Why a path is not gone.
#[derive(Debug, thiserror::Error)]
pub enum Astray {
    /// Somebody else's directory.
    #[error(
        "{path} belongs to uid {uid}, who can put anything in place of what is in it, and root would obey that; \
         chown root {path}, or choose another place in [paths]"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// A directory that others may write.
    #[error(
        "others may write to {path} (mode {mode:04o}), and so put anything in place of what is in it; chmod go-w {path}, \
         or choose another place in [paths]"
    )]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A link that others could have made.
    #[error("{path} is a symbolic link that is not followed: others than root could have made it; remove it")]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// The kernel says no.
    #[error("{path}: {source}")]
    Io {
        /// The name that could not be opened or made.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl From<Astray> for io::Error {
    fn from(astray: Astray) -> Self {
        match astray {
            Astray::Io { source, .. } => source,
            other => Self::other(other),
        }
    }
}

impl Astray {
    fn io(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.to_owned(), source: source.into() }
    }

    /// Whether there is nothing at the path.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// How a path is gone.
#[derive(Debug)]
enum Manner<'a> {
    /// Only what is there, and only where root alone decides.
    Strict,
    /// The same, but what lacks is made, and what others could change is taken away from them.
    Mend(&'a mut Vec<Mended>),
    /// What lacks is made, whosesoever the directories are; a link of others is not followed.
    Anybodys,
}

/// Opens a directory.
///
/// # Errors
/// It is not there, or somebody else than root can decide what the path leads to.
pub fn open(root: &Path, path: &Path) -> Result<Dir, Astray> {
    walk(root, path, Manner::Strict).map(|(dir, _)| dir)
}

/// Opens a directory, makes what lacks of it, and mends the directories above it where others may write. Returns whether
/// it is new.
///
/// # Errors
/// It cannot be made, or belongs to somebody else further up.
pub fn make(root: &Path, path: &Path, mended: &mut Vec<Mended>) -> Result<(Dir, bool), Astray> {
    walk(root, path, Manner::Mend(mended))
}

/// The same in directories that may be anybody's: for what is to be somebody's as well.
///
/// # Errors
/// It cannot be made, or there is a link in the way that root did not make.
pub fn make_anywhere(root: &Path, path: &Path) -> Result<Dir, Astray> {
    walk(root, path, Manner::Anybodys).map(|(dir, _)| dir)
}

/// Opens a file for reading if only root could have put it there; its own owner does not matter then. A mounted secret
/// keeps the owner that it has on the host.
///
/// # Errors
/// It is not there, no regular file, or somebody else can decide what the path leads to.
pub fn open_file(root: &Path, path: &Path) -> Result<File, Astray> {
    let mut way = Way::begin(root, path)?;
    let last = way.go(&mut Manner::Strict, true)?;
    let dir = way.holder(path)?;
    match last {
        Some(name) => dir.open_file(&name).map_err(|error| Astray::io(path, error)),
        None => Err(Astray::io(path, nix::Error::EISDIR)),
    }
}

/// The directory of a socket, and its name there. The kernel makes sockets by their path alone; but where only root can
/// write to the directory and to those above it, the path goes on leading there.
///
/// # Errors
/// It is not there, or others may write to it.
pub fn socket_place(socket: &Path) -> io::Result<(Dir, String)> {
    let dir = open(Path::new("/"), socket.parent().unwrap_or(Path::new("/")))?;
    dir.require_ours()?;
    let name = socket.file_name().and_then(OsStr::to_str).ok_or(io::ErrorKind::InvalidInput)?;
    Ok((dir, name.to_owned()))
}

/// Reads a regular file that may lie anywhere and be a link: the operator's own. A pipe or device in its place is an
/// error, and nothing that one waits for.
///
/// # Errors
/// It is not there, no regular file, or too long.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    read_whole(&File::options().read(true).custom_flags(flags).open(path)?)
}

/// Reads an open file whole, if it is a regular one.
///
/// # Errors
/// It is none, or too long, or the disk's.
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

fn walk(root: &Path, path: &Path, mut manner: Manner<'_>) -> Result<(Dir, bool), Astray> {
    let mut way = Way::begin(root, path)?;
    way.go(&mut manner, false)?;
    let made = way.made;
    way.holder(path).map(|dir| (dir, made))
}

/// The directories that were gone through, and the names that are left.
struct Way {
    gone: Vec<Dir>,
    rest: VecDeque<OsString>,
    links: u32,
    /// Whether the last name had to be made.
    made: bool,
}

impl Way {
    fn begin(root: &Path, path: &Path) -> Result<Self, Astray> {
        let path = std::path::absolute(path).map_err(|error| Astray::io(path, error))?;
        let top = Dir::top(root).map_err(|error| Astray::io(root, error))?;
        Ok(Self { gone: vec![top], rest: names(&path).collect(), links: 0, made: false })
    }

    fn holder(mut self, path: &Path) -> Result<Dir, Astray> {
        self.gone.pop().ok_or_else(|| Astray::io(path, nix::Error::ENOENT))
    }

    /// Goes on to the end. With `to_a_file` the last name may be one, which is then given back.
    fn go(&mut self, manner: &mut Manner<'_>, to_a_file: bool) -> Result<Option<OsString>, Astray> {
        while let Some(name) = self.rest.pop_front() {
            if name == ".." {
                if self.gone.len() > 1 {
                    self.gone.pop();
                }
                continue;
            }
            let Some(holder) = self.gone.last() else { break };
            let place = holder.path().join(&name);
            let others_may_add = holder.judge(manner)?;
            self.made = false;
            let entry = match holder.look(&name) {
                Err(error) if error == nix::Error::ENOENT && !matches!(manner, Manner::Strict) => {
                    self.made = true;
                    holder.make(&name).map_err(|error| Astray::io(&place, error))?
                }
                entry => entry.map_err(|error| Astray::io(&place, error))?,
            };
            if entry.is_dir() {
                self.gone.push(entry);
                continue;
            }
            let is_anybodys = others_may_add && !entry.is_roots();
            if let Manner::Mend(mended) = manner {
                if is_anybodys {
                    // Root owns the directory: what somebody else has put there goes.
                    holder.remove(&name).map_err(|error| Astray::io(&place, error))?;
                    mended.push(Mended::Removed { path: place });
                    self.rest.push_front(name);
                    continue;
                }
            }
            if entry.is_link() {
                self.links += 1;
                if is_anybodys || !entry.is_roots() || self.links > LINKS {
                    return Err(Astray::Link { path: place });
                }
                let target = holder.read_link(&name).map_err(|error| Astray::io(&place, error))?;
                if target.is_absolute() {
                    self.gone.truncate(1);
                }
                names(&target).rev().for_each(|name| self.rest.push_front(name));
            } else if to_a_file && self.rest.is_empty() {
                return if is_anybodys { Err(entry.foreign()) } else { Ok(Some(name)) };
            } else {
                return Err(Astray::io(&place, nix::Error::ENOTDIR));
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
