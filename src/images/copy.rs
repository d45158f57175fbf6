//! Copies a directory into a tree. Another user may change the directory during the copy.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};

use super::ImageError;
use super::tree::{Tree, components, kind, names};

/// Opens an entry for reading. Fails for a symbolic link, and does not wait for a FIFO's writer.
pub(crate) fn open(at: &OwnedFd, name: &OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Copies everything in a directory, except sockets, device nodes and FIFOs.
pub(crate) fn copy(from: &OwnedFd, tree: &mut Tree) -> Result<(), ImageError> {
    Copy { tree, links: HashMap::new() }.directory(from, Vec::new())
}

struct Copy<'a> {
    tree: &'a mut Tree,
    /// The paths of files with several names, by device and inode.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl Copy<'_> {
    fn directory(&mut self, from: &OwnedFd, path: Vec<u8>) -> Result<(), ImageError> {
        for name in names(from)? {
            let entry = if path.is_empty() {
                name.as_bytes().to_vec()
            } else {
                [&path, b"/" as &[u8], name.as_bytes()].concat()
            };
            self.entry(from, &name, &entry).map_err(|error| match error {
                ImageError::Read(source) => ImageError::io(super::tar::lossy(&entry), source),
                error => error,
            })?;
        }
        Ok(())
    }

    fn entry(&mut self, at: &OwnedFd, name: &OsStr, label: &[u8]) -> Result<(), ImageError> {
        let read = |error: Errno| ImageError::Read(error.into());
        let path: Vec<OsString> = components(label)?;
        let status = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(read)?;
        if kind(&status) == SFlag::S_IFLNK {
            let target = readlinkat(at, name).map_err(read)?;
            return self.tree.symlink(&path, label, target.as_bytes());
        }
        if kind(&status) != SFlag::S_IFREG && kind(&status) != SFlag::S_IFDIR {
            // A socket is useless without the process that created it. tar leaves sockets out, too.
            return if kind(&status) == SFlag::S_IFSOCK { Ok(()) } else { self.tree.skip(&path) };
        }
        // The name may refer to another file by now, so the open file is inspected.
        let file = open(at, name).map_err(read)?;
        let status = fstat(&file).map_err(read)?;
        if kind(&status) == SFlag::S_IFDIR {
            self.tree.directory(&path, label, status.st_mode, status.st_mtime)?;
            return self.directory(&file, label.to_vec());
        }
        if kind(&status) != SFlag::S_IFREG {
            return Err(ImageError::Rejected {
                path: super::tar::lossy(label),
                what: "file whose type changed while it was read",
            });
        }
        let inode = (status.st_dev, status.st_ino);
        if let Some(first) = self.links.get(&inode).cloned() {
            return self.tree.hardlink(&path, label, &first);
        }
        self.tree.file(&path, label, (status.st_mode, status.st_mtime), &mut File::from(file))?;
        if status.st_nlink > 1 {
            self.links.insert(inode, label.to_vec());
        }
        Ok(())
    }
}
