//! Whether the GPUs' device files are this container's own.
//!
//! `docker run --device`, CDI and Kubernetes create the files in the container's own /dev, a tmpfs. libnvidia-container's older mode
//! bind-mounts the host's files, and so does an engine with a user namespace. A change to such a file affects the whole host.

use std::fs::{DirEntry, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use super::{capabilities, regular};
use model::inventory::{DeviceFiles, Inventory};
use sys::proc::parse::Mount;
use sys::users;

/// The user and group of the GPU watchers, which may open a GPU that is closed to other users.
pub const WATCHER_USER: &str = "slurminit";
/// The user and group ID if the image has no such user.
const UNPRIVILEGED: u32 = 65534;

/// `CAP_CHOWN` of `linux/capability.h`.
const CHOWN: u32 = 0;

/// Whether this container can close the usable GPUs' device files to other users, and whether they are closed.
pub(super) fn detect(root: &Path, inventory: &Inventory) -> DeviceFiles {
    let files = inventory.usable_gpus().flat_map(|gpu| {
        let instances = gpu.mig.iter().flatten().filter_map(|instance| instance.device_files.last());
        let gpu_file = gpu.device_file.iter().filter(|_| gpu.mig.is_none());
        let can_be_closed = gpu.vendor.traits().runtime.ignores_closed_files;
        gpu_file.chain(instances).map(move |file| container_device(root, file).filter(|_| can_be_closed))
    });
    state(files, capabilities::has(root, CHOWN).unwrap_or(false))
}

/// The state of files with these modes and owners. `None` is a file that this container cannot close.
fn state(files: impl Iterator<Item = Option<(u32, u32)>>, can_chown: bool) -> DeviceFiles {
    let isolated: Option<Vec<bool>> = files.map(|file| file.map(|(mode, uid)| is_isolated(mode, uid))).collect();
    match isolated.filter(|isolated| can_chown && !isolated.is_empty()) {
        Some(isolated) if isolated.contains(&false) => DeviceFiles::Open,
        Some(_) => DeviceFiles::Closed,
        None => DeviceFiles::Hosts,
    }
}

/// The mode and owner of a device file, if it was created in the container's own /dev.
fn container_device(root: &Path, file: &Path) -> Option<(u32, u32)> {
    let mounts = regular::text(&root.join("proc/self/mountinfo")).ok()?;
    // The host's /dev is a devtmpfs.
    Mount::all(&mounts).filter(|mount| mount.at == "/dev").last().filter(|mount| mount.kind == "tmpfs")?;
    let own = root.join("dev").symlink_metadata().ok()?;
    let found = root.join(file.strip_prefix("/").ok()?).symlink_metadata().ok()?;
    (found.file_type().is_char_device() && found.dev() == own.dev()).then(|| (found.mode(), found.uid()))
}

/// Gives up root if one of NVIDIA's device files is open only to the watchers' group. In a root process, NVIDIA's libraries would open the
/// files to all users, unless `ModifyDeviceFiles` in /proc/driver/nvidia/params is 0 (nvidia-modprobe, `mknod_helper`). Call it in a process
/// that only uses such a library.
pub(super) fn give_up_root_if_closed(root: &Path) {
    let watcher = users::local(WATCHER_USER).filter(|_| Uid::effective().is_root() && root == Path::new("/"));
    let Some(watcher) = watcher else { return };
    let files = ["/dev", "/dev/nvidia-caps"].into_iter().filter_map(|directory| Path::new(directory).read_dir().ok());
    let is_nvidias = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"nvidia");
    let has_watcher_group = files
        .flatten()
        .flatten()
        .filter(is_nvidias)
        .filter_map(|entry| entry.metadata().ok())
        .any(|file| is_closed_device(&file, watcher.gid));
    // If the switch fails, the process remains root and detects the same GPUs.
    if has_watcher_group && become_watcher(&[]).is_ok() {
        // The kernel clears the parent-death signal when the user changes.
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    }
}

/// Whether this is a device file of this group that other users cannot open.
fn is_closed_device(file: &Metadata, gid: u32) -> bool {
    file.file_type().is_char_device() && file.gid() == gid && is_closed(file.mode())
}

/// Switches from root to the user of the GPU watchers, with these supplementary groups.
///
/// # Errors
/// The kernel refuses to change the groups, the GID or the UID.
pub fn become_watcher(groups: &[Gid]) -> nix::Result<()> {
    let (uid, gid) = users::local(WATCHER_USER).map_or((UNPRIVILEGED, UNPRIVILEGED), |user| (user.uid, user.gid));
    setgroups(groups)?;
    setgid(Gid::from_raw(gid))?;
    setuid(Uid::from_raw(uid))
}

/// Whether the device file was created in this container's own /dev.
pub fn is_container_device(file: &Path) -> bool {
    container_device(Path::new("/"), file).is_some()
}

/// Whether a file is closed, or belongs to a job's user, who can change its mode. The engine makes root the owner of all device files.
const fn is_isolated(mode: u32, uid: u32) -> bool {
    is_closed(mode) || uid != 0
}

/// Whether a file's mode denies access to other users.
pub const fn is_closed(mode: u32) -> bool {
    mode & 0o007 == 0
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Mode and owner of a file in a tree with this mount at /dev.
    fn mode_and_owner(mount: &str, file: &str) -> Option<(u32, u32)> {
        let root = tempfile::tempdir().unwrap();
        for directory in ["proc/self", "dev"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        fs::write(root.path().join("proc/self/mountinfo"), mount).unwrap();
        std::os::unix::fs::symlink("/dev/null", root.path().join("dev/nvidia0")).unwrap();
        fs::write(root.path().join("dev/nvidia1"), "").unwrap();
        container_device(root.path(), Path::new(file))
    }

    #[test]
    fn file_with_mode_666_is_isolated_if_owned_by_job_user() {
        assert!(is_isolated(0o660, 0) && is_isolated(0o666, 1001) && !is_isolated(0o666, 0));
    }

    #[test]
    fn files_are_closed_only_if_all_are_and_the_container_owns_them() {
        const CLOSED: Option<(u32, u32)> = Some((0o20660, 0));
        const OPEN: Option<(u32, u32)> = Some((0o20666, 0));
        for (files, expected) in [
            (&[CLOSED, CLOSED][..], DeviceFiles::Closed),
            (&[CLOSED, OPEN], DeviceFiles::Open),
            (&[CLOSED, None], DeviceFiles::Hosts),
            (&[], DeviceFiles::Hosts),
        ] {
            assert_eq!(state(files.iter().copied(), true), expected, "{files:?}");
            assert_eq!(state(files.iter().copied(), false), DeviceFiles::Hosts, "{files:?}");
        }
    }

    #[test]
    fn closed_device_is_of_the_group_and_denied_to_others() {
        // A terminal of this process is a device file that others cannot open.
        let terminal = nix::pty::openpty(None, None).unwrap().slave;
        let device = fs::File::from(terminal);
        device.set_permissions(fs::Permissions::from_mode(0o620)).unwrap();
        let metadata = device.metadata().unwrap();
        assert!(is_closed_device(&metadata, metadata.gid()) && !is_closed_device(&metadata, metadata.gid() + 1));
        device.set_permissions(fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!is_closed_device(&device.metadata().unwrap(), metadata.gid()), "all can open it");
        let regular = tempfile::tempfile().unwrap();
        regular.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        let metadata = regular.metadata().unwrap();
        assert!(!is_closed_device(&metadata, metadata.gid()), "not a device");
    }

    #[test]
    fn links_regular_files_and_host_dev_are_not_own_devices() {
        for kind in ["tmpfs", "devtmpfs", "ext4"] {
            let mount = format!("29 28 0:26 / /dev rw,nosuid - {kind} {kind} rw\n");
            for file in ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "relative"] {
                assert_eq!(mode_and_owner(&mount, file), None, "{kind} {file}");
            }
        }
        // The real /dev: the kernel's devtmpfs, or a container's tmpfs with or without its own /dev/null.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let dev = Mount::all(&mounts).filter(|mount| mount.at == "/dev").last().map(|mount| mount.kind.to_owned());
        let is_bound = Mount::all(&mounts).any(|mount| mount.at == "/dev/null");
        assert_eq!(is_container_device(Path::new("/dev/null")), dev.as_deref() == Some("tmpfs") && !is_bound);
        assert!([0o660, 0o600, 0].into_iter().all(is_closed) && ![0o666, 0o444, 0o662].into_iter().any(is_closed));
    }
}
