//! Changes the owner of a directory's contents, or removes them.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use super::{Dir, RepairedPath, is_ours};

/// The maximum depth of a tree. Slurm's trees have two levels.
const MAX_DEPTH: u32 = 32;

impl Dir {
    /// Changes the owner of all directories and regular files in the directory. The user `former_uid` could write here and may have placed
    /// traps, so links, devices, pipes, sockets, hard links to other users' files and too deeply nested directories keep their owner.
    ///
    /// # Errors
    /// The first entry that cannot be read, or whose owner cannot be changed.
    pub fn chown_contents(
        &self,
        owner: (u32, u32),
        former_uid: u32,
        repaired: &mut Vec<RepairedPath>,
    ) -> io::Result<()> {
        self.chown_contents_to_depth(owner, former_uid, MAX_DEPTH, repaired)
    }

    fn chown_contents_to_depth(
        &self,
        owner: (u32, u32),
        former_uid: u32,
        depth: u32,
        repaired: &mut Vec<RepairedPath>,
    ) -> io::Result<()> {
        for name in self.names()? {
            let entry = self.open_entry(&name)?;
            let (metadata, path) = (entry.metadata(), entry.path().to_owned());
            let kind = metadata.file_type();
            let (uid, nlink) = (metadata.uid(), metadata.nlink());
            let is_safe = metadata.is_dir() && depth > 0
                || metadata.is_file() && (nlink == 1 || uid == owner.0 || uid == former_uid && !is_ours(uid));
            if !is_safe {
                if !kind.is_socket() && !kind.is_fifo() {
                    repaired.push(RepairedPath::OwnerKept { path });
                }
                continue;
            }
            if uid != owner.0 {
                entry.chown(owner)?;
            }
            if metadata.is_dir() {
                entry.chown_contents_to_depth(owner, former_uid, depth - 1, repaired)?;
            }
        }
        Ok(())
    }

    /// Removes everything in the directory.
    ///
    /// # Errors
    /// The first entry that cannot be removed, such as a mount point, or a directory nested more deeply than any daemon creates.
    pub fn clear(&self) -> io::Result<()> {
        self.clear_to_depth(MAX_DEPTH)
    }

    fn clear_to_depth(&self, depth: u32) -> io::Result<()> {
        for name in self.names()? {
            let entry = self.open_entry(&name)?;
            if !entry.is_dir() {
                self.remove(&name)?;
                continue;
            }
            if depth == 0 {
                return Err(io::Error::other("directories are nested too deeply; remove them"));
            }
            if entry.metadata().dev() == self.metadata().dev() {
                entry.clear_to_depth(depth - 1)?;
            }
            self.remove_directory(&name)?;
        }
        Ok(())
    }
}
