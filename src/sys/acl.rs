//! POSIX access control lists, in the kernel's format for extended attributes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;

use crate::system_calls::{get_xattr, set_xattr};

/// The extended attribute that holds a file's access list.
pub const ACCESS: &CStr = c"system.posix_acl_access";
/// The extended attribute that holds a directory's default list, which new entries inherit.
const DEFAULT: &CStr = c"system.posix_acl_default";

/// The format version of a list (`linux/posix_acl_xattr.h`). The tags below are from `linux/posix_acl.h`.
const VERSION: u32 = 2;
/// Tag of the owner's entry.
pub const OWNER: u16 = 1;
/// Tag of an entry for the user whose ID it contains.
pub const USER: u16 = 2;
/// Tag of the entry for the file's group.
pub const GROUP: u16 = 4;
/// Tag of the mask: the maximum rights of the listed users, the group and the listed groups. If a list has a mask, the mode's group bits are
/// the mask.
pub const MASK: u16 = 0x10;
/// Tag of the entry for all others.
pub const OTHER: u16 = 0x20;
/// The ID in an entry that refers to no specific user or group.
pub const NO_ID: u32 = u32::MAX;

/// Encodes a list of entries: tag, permission (as in a mode, 0 to 7) and ID. The entries must be in the kernel's order.
pub fn encode(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, permission, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permission.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    VERSION.to_le_bytes().into_iter().chain(entries.iter().flat_map(entry)).collect()
}

/// Decodes the entries of a list.
pub fn decode(list: &[u8]) -> impl Iterator<Item = (u16, u16, u32)> {
    list.get(4..).unwrap_or_default().chunks_exact(8).map(|entry| {
        let [a, b, c, d, e, f, g, h] = *entry else { return (0, 0, NO_ID) };
        (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]), u32::from_le_bytes([e, f, g, h]))
    })
}

/// Makes the kernel deny all users but the creator access to everything that is created in the directory. A later chmod(2) by the
/// creator grants access only through the bits for others, not through those for the group. Returns whether the file system supports
/// access control lists.
///
/// # Errors
/// The system call fails.
pub fn close_new_entries(directory: &impl AsFd) -> io::Result<bool> {
    let list = encode(&[(OWNER, 7, NO_ID), (GROUP, 0, NO_ID), (MASK, 7, NO_ID), (OTHER, 0, NO_ID)]);
    match set_xattr(&path_of(directory)?, DEFAULT, &list) {
        Err(Errno::EOPNOTSUPP) => Ok(false),
        set => Ok(set.map(|()| true)?),
    }
}

/// Whether an open file has an access list that grants access to no user but the owner.
///
/// # Errors
/// The system call fails.
pub fn is_owner_only(file: &impl AsFd) -> io::Result<bool> {
    match get_xattr::<1024>(&path_of(file)?, ACCESS) {
        Ok(list) => Ok(decode(&list).all(|(tag, permission, _)| matches!(tag, OWNER | MASK) || permission == 0)),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The path of an open file, for system calls that take a path.
///
/// # Errors
/// None in practice.
pub fn path_of(file: &impl AsFd) -> io::Result<CString> {
    Ok(CString::new(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn directory_with_default_list_stays_closed_to_group_after_chmod() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("child");
        assert!(
            close_new_entries(&File::open(parent.path()).unwrap()).unwrap(),
            "{} has no lists",
            parent.path().display()
        );
        // A directory as slurmstepd creates it for a step.
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o770);
        assert!(is_owner_only(&File::open(&path).unwrap()).unwrap());
        fs::set_permissions(&path, Permissions::from_mode(0o771)).unwrap();
        assert!(!is_owner_only(&File::open(&path).unwrap()).unwrap());
        assert!(!is_owner_only(&File::open(parent.path()).unwrap()).unwrap(), "a directory without a list");
    }

    #[test]
    fn decodes_what_it_encodes_and_ignores_the_rest() {
        let entries = [(OWNER, 6, NO_ID), (USER, 6, 1234), (OTHER, 0, NO_ID)];
        let list = encode(&entries);
        assert_eq!(decode(&list).collect::<Vec<_>>(), entries);
        assert_eq!([&list[..4], &list[..11], &[]].map(|list| decode(list).count()), [0; 3]);
    }
}
