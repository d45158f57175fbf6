//! The users who may open a GPU's device file during a job: docs/decisions/give-a-gpus-device-file-to-the-jobs-user.md.
//!
//! The file still belongs to root, and the job's user gets access through an access control list. NVIDIA's libraries set the mode of each
//! device file that belongs to their user to 0666, unless `ModifyDeviceFiles` in /proc/driver/nvidia/params is 0 (nvidia-modprobe,
//! `mknod_helper`), so a user who owned the file would open it to all by starting a CUDA program.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::{Gid, Group, Uid, fchownat};

use probe::device_files::{self, WATCHER_USER};
use sys::acl;
use sys::system_calls::{get_xattr, remove_xattr, set_xattr};

/// Closes a device file to all users but root, the GPU watchers and the user whose job has it. A file of the host stays unchanged.
///
/// # Errors
/// The file cannot be found or changed.
pub fn close_device_file(file: &Path) -> io::Result<()> {
    match open_own(file)? {
        Some(handle) if handle.metadata()?.uid() == 0 => restrict_to_root(&handle),
        _ => Ok(()),
    }
}

/// Revokes the access of a job's user to a device file. A file that was not given to this user stays unchanged.
///
/// # Errors
/// The file cannot be found or changed.
pub fn revoke_device_file(file: &Path, user: u32) -> io::Result<()> {
    let Some(handle) = open_own(file)? else { return Ok(()) };
    if user_with_access(&handle)? != Some(user) {
        return Ok(());
    }
    revoke_access(&handle)
}

/// Gives a closed device file to a job's user. If that user is root, this only closes the file to all other users. A file that all users
/// can open stays unchanged.
///
/// # Errors
/// The file cannot be found or changed.
pub fn give_device_file(file: &Path, user: u32) -> io::Result<()> {
    let Some(handle) = open_own(file)? else { return Ok(()) };
    if !device_files::is_closed(handle.metadata()?.mode()) {
        return Ok(());
    }
    if user == 0 {
        return revoke_access(&handle);
    }
    match set_xattr(&acl::path_of(&handle)?, acl::ACCESS, &acl_of_user(user)) {
        // Without access control lists, the user becomes the owner of the file.
        Err(Errno::EOPNOTSUPP) => change_owner(&handle, user),
        set => Ok(set?),
    }
}

/// The user other than root with access to a device file, through its access control list or as its owner.
pub fn device_file_user(file: &Path) -> Option<u32> {
    open_own(file).ok().flatten().and_then(|handle| user_with_access(&handle).ok().flatten())
}

/// Whether a device file belongs to root and is closed to users outside of its access control list, so that it can be given to a job's user.
pub fn is_restricted_device_file(file: &Path) -> bool {
    let found = open_own(file).ok().flatten().and_then(|handle| handle.metadata().ok());
    found.is_some_and(|found| found.uid() == 0 && device_files::is_closed(found.mode()))
}

/// Opens the file with `O_PATH`, which does not open the device; `None` for a file that is not the container's own.
fn open_own(file: &Path) -> io::Result<Option<File>> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(file)?;
    Ok(device_files::is_container_device(file).then_some(handle))
}

fn change_owner(handle: &File, user: u32) -> io::Result<()> {
    Ok(fchownat(handle, "", Some(Uid::from_raw(user)), Some(watcher_group()), AtFlags::AT_EMPTY_PATH)?)
}

/// The group of the GPU watchers; root's group in an image without that group.
fn watcher_group() -> Gid {
    Group::from_name(WATCHER_USER).ok().flatten().map_or(Gid::from_raw(0), |group| group.gid)
}

fn restrict_to_root(handle: &File) -> io::Result<()> {
    change_owner(handle, 0)?;
    fs::set_permissions(format!("/proc/self/fd/{}", handle.as_raw_fd()), Permissions::from_mode(0o660))
}

/// Revokes the access of every job's user, including that in the access control list: the last job may have ended without an Epilog.
fn revoke_access(handle: &File) -> io::Result<()> {
    // Only the owner may change the list and the mode: in containers with minimal capabilities root has no CAP_FOWNER.
    change_owner(handle, 0)?;
    match remove_xattr(&acl::path_of(handle)?, acl::ACCESS) {
        Ok(()) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => restrict_to_root(handle),
        Err(error) => Err(error.into()),
    }
}

fn user_with_access(handle: &File) -> io::Result<Option<u32>> {
    let acl_user = match get_xattr::<1024>(&acl::path_of(handle)?, acl::ACCESS) {
        Ok(list) => user_in_acl(&list),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => None,
        Err(error) => return Err(error.into()),
    };
    let owner = handle.metadata()?.uid();
    Ok(acl_user.or((owner != 0).then_some(owner)))
}

/// The access control list with which the owner, the group and this user may read and write.
fn acl_of_user(user: u32) -> Vec<u8> {
    acl::encode(&[
        (acl::OWNER, 6, acl::NO_ID),
        (acl::USER, 6, user),
        (acl::GROUP, 6, acl::NO_ID),
        (acl::MASK, 6, acl::NO_ID),
        (acl::OTHER, 0, acl::NO_ID),
    ])
}

/// The user in an access control list.
fn user_in_acl(list: &[u8]) -> Option<u32> {
    acl::decode(list).find_map(|(tag, _, id)| (tag == acl::USER).then_some(id))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// A regular file in place of a device file. Requires root, who gives it to another user.
    #[test]
    fn revokes_ownership_and_access_list_of_another_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nvidia0");
        fs::write(&path, "").unwrap();
        let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        chown(&path, Some(1234), None).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(user_with_access(&handle).unwrap(), Some(1234));
        revoke_access(&handle).unwrap();
        assert_eq!((user_with_access(&handle).unwrap(), handle.metadata().unwrap().mode() & 0o777), (None, 0o660));
        match set_xattr(&acl::path_of(&handle).unwrap(), acl::ACCESS, &acl_of_user(4321)) {
            Err(Errno::EOPNOTSUPP) => return,
            set => set.unwrap(),
        }
        assert_eq!(user_with_access(&handle).unwrap(), Some(4321));
        revoke_access(&handle).unwrap();
        assert_eq!(user_with_access(&handle).unwrap(), None);
    }

    #[test]
    fn access_list_contains_its_user_id() {
        let list = acl_of_user(1234);
        assert_eq!((list.len(), user_in_acl(&list)), (4 + 5 * 8, Some(1234)));
        assert_eq!([&list[..4], &list[..11], &[]].map(user_in_acl), [None; 3]);
    }
}
