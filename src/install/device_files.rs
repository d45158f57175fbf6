//! Owner and mode of a GPU's device file during a job: docs/decisions/give-a-gpus-device-file-to-the-jobs-user.md.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::{Gid, Group, Uid, fchownat};

use probe::device_files;
use sys::system_calls::remove_xattr;

/// The user and group of the GPU watchers, which may open a GPU that belongs to a job's user.
pub const LOOKERS: &str = "slurminit";

/// An access control list, which the owner of a file can add to its mode.
const ACL: &CStr = c"system.posix_acl_access";

/// Restricts a device file to root: one that no user owns yet, or one that belongs to the job's user `from`.
///
/// # Errors
/// The file cannot be found or changed.
pub fn close_device_file(file: &Path, from: Option<u32>) -> io::Result<()> {
    let Some(handle) = own(file)? else { return Ok(()) };
    let found = handle.metadata()?;
    if found.uid() != from.unwrap_or(0) || from == Some(0) {
        return Ok(());
    }
    // Only the owner may change the rest: root lacks the capability FOWNER where it has only what it needs.
    change_owner(&handle, 0)?;
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    remove_acl(&path)?;
    fs::set_permissions(path, Permissions::from_mode(0o660))
}

/// Gives a restricted device file to a job's user. A file open to all users stays unchanged.
///
/// # Errors
/// The file cannot be found or changed.
pub fn give_device_file(file: &Path, user: u32) -> io::Result<()> {
    match own(file)? {
        Some(handle) if device_files::is_closed(handle.metadata()?.mode()) => change_owner(&handle, user),
        _ => Ok(()),
    }
}

/// Whether a device file is restricted to root, so that it can be given to a job's user.
pub fn is_restricted_device_file(file: &Path) -> bool {
    let found = own(file).ok().flatten().and_then(|handle| handle.metadata().ok());
    found.is_some_and(|found| found.uid() == 0 && device_files::is_closed(found.mode()))
}

/// `None` for a file that is not the container's own. Nothing of the device is opened.
fn own(file: &Path) -> io::Result<Option<File>> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(file)?;
    Ok(device_files::is_own(file).then_some(handle))
}

fn change_owner(handle: &File, user: u32) -> io::Result<()> {
    Ok(fchownat(handle, "", Some(Uid::from_raw(user)), Some(lookers()), AtFlags::AT_EMPTY_PATH)?)
}

/// The group of the GPU watchers; root's group in an image without that group.
fn lookers() -> Gid {
    Group::from_name(LOOKERS).ok().flatten().map_or(Gid::from_raw(0), |group| group.gid)
}

fn remove_acl(path: &str) -> io::Result<()> {
    match remove_xattr(&CString::new(path)?, ACL) {
        Ok(()) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
