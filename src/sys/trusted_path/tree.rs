//! Changes the owner of everything in a directory, or removes it.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use super::{Dir, RepairedPath, is_ours};

/// The deepest tree that is followed. Slurm's trees have two levels.
const DEEPEST: u32 = 32;

impl Dir {
    /// Gives everything in it to `owner`. Possible traps by `former`, who could write here, keep their owner: links,
    /// and hard links to files that are not theirs.
    ///
    /// # Errors
    /// The first entry that cannot be given away.
    pub fn give(&self, owner: (u32, u32), former: u32, repaired: &mut Vec<RepairedPath>) -> io::Result<()> {
        self.give_to_depth(owner, former, DEEPEST, repaired)
    }

    fn give_to_depth(
        &self,
        owner: (u32, u32),
        former: u32,
        depth: u32,
        repaired: &mut Vec<RepairedPath>,
    ) -> io::Result<()> {
        for name in self.names()? {
            let entry = self.look(&name)?;
            let (metadata, path) = (entry.metadata(), entry.path().to_owned());
            let kind = metadata.file_type();
            let (uid, nlink) = (metadata.uid(), metadata.nlink());
            let is_safe = metadata.is_dir() && depth > 0
                || metadata.is_file() && (nlink == 1 || uid == owner.0 || uid == former && !is_ours(uid));
            if !is_safe {
                if !kind.is_socket() && !kind.is_fifo() {
                    repaired.push(RepairedPath::LeftAlone { path });
                }
                continue;
            }
            if uid != owner.0 {
                entry.chown(owner)?;
            }
            if metadata.is_dir() {
                entry.give_to_depth(owner, former, depth - 1, repaired)?;
            }
        }
        Ok(())
    }

    /// Removes everything in the directory.
    ///
    /// # Errors
    /// The first entry that cannot be removed: a mount point, or a tree deeper than any daemon makes.
    pub fn clear(&self) -> io::Result<()> {
        self.clear_to_depth(DEEPEST)
    }

    fn clear_to_depth(&self, depth: u32) -> io::Result<()> {
        for name in self.names()? {
            let entry = self.look(&name)?;
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
