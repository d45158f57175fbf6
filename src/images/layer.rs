//! Applies the archive of a layer to a tree.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::BuildHasher as _;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;

use super::ImageError;
use super::tar::{Archive, Kind, Member, lossy};
use super::tree::{Tree, components};

/// The prefix of a whiteout: a file `.wh.NAME` removes the entry `NAME` that the layers below added (OCI image-spec,
/// layer.md).
const WHITEOUT: &[u8] = b".wh.";
/// The name of an opaque whiteout, which removes everything in its directory that the layers below added.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The handling of file names with the prefix of a whiteout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    Apply,
    /// Whiteout names are ordinary names, as in an exported file system.
    Literal,
}

/// Applies all members of an archive, and reads the archive to its end.
pub(crate) fn apply(reader: &mut impl Read, tree: &mut Tree, whiteouts: Whiteouts) -> Result<(), ImageError> {
    let archive = Archive::new(&mut *reader);
    // The digest of a layer shows whether it is complete. An exported file system has no digest, so its archive must
    // have an end mark.
    let mut archive = if whiteouts == Whiteouts::Apply { archive.without_end() } else { archive };
    let hasher = RandomState::new();
    // Hashes of the paths in this layer, which an opaque whiteout keeps.
    let mut layer_paths: HashSet<u64> = HashSet::new();
    while let Some(member) = archive.next()? {
        let path = components(&member.path)?;
        if whiteouts == Whiteouts::Apply
            && apply_whiteout(tree, &path, &member, &|path| layer_paths.contains(&hasher.hash_one(path)))?
        {
            continue;
        }
        if whiteouts == Whiteouts::Apply {
            (1..=path.len()).for_each(|length| _ = layer_paths.insert(hasher.hash_one(&path[..length])));
        }
        add(tree, &path, &member, &mut archive)?;
    }
    // The digest also covers the bytes after the end of the archive, so they are read.
    io::copy(reader, &mut io::sink())?;
    Ok(())
}

fn add(tree: &mut Tree, path: &[OsString], member: &Member, content: &mut impl Read) -> Result<(), ImageError> {
    let label = &member.path;
    match member.kind {
        Kind::Directory => tree.directory(path, label, member.mode, member.mtime),
        Kind::File => tree.file(path, label, (member.mode, member.mtime), content),
        Kind::Symlink => tree.symlink(path, label, &member.link),
        Kind::Hardlink => tree.hardlink(path, label, &member.link),
        Kind::Special => tree.skip(path),
    }
}

/// Applies the member if it is a whiteout, and returns whether it is one.
fn apply_whiteout(
    tree: &mut Tree,
    path: &[OsString],
    member: &Member,
    keeps: &impl Fn(&[OsString]) -> bool,
) -> Result<bool, ImageError> {
    let Some((name, parents)) = path.split_last() else { return Ok(false) };
    let Some(removed_name) = name.as_bytes().strip_prefix(WHITEOUT) else { return Ok(false) };
    if name.as_bytes() == OPAQUE {
        tree.clear(parents, &member.path, keeps)?;
    } else if matches!(removed_name, b"" | b"." | b"..") {
        return Err(ImageError::Rejected {
            path: lossy(&member.path),
            what: "a whiteout entry that would remove a directory that contains it",
        });
    } else if !removed_name.starts_with(WHITEOUT) {
        // Names with two prefixes, other than `OPAQUE`, are markers of the builder's file system and remove nothing.
        let removed_name = std::ffi::OsStr::from_bytes(removed_name).to_owned();
        tree.remove(&[parents, &[removed_name]].concat(), &member.path)?;
    }
    Ok(true)
}
