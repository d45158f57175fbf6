//! Whether this container may open a GPU's device file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::unistd::AccessFlags;

use model::inventory::{Access, Obstacle};

/// Opens the device file at `path` for reading and writing, as a job would, and closes it again.
///
/// The first open can wake a sleeping GPU and take seconds; with a stuck driver it never returns. Call it only inside
/// the sandbox.
pub fn access(path: &Path) -> Access {
    open(path, true)
}

/// Like [`access`], but read-only, as for NVIDIA's capability files (mode 0444).
pub fn access_for_reading(path: &Path) -> Access {
    open(path, false)
}

/// Whether this process may open the device file, without opening it: opening initializes a GPU without persistence mode, or wakes one that
/// sleeps. The kernel also checks the device cgroup here (fs/namei.c, `inode_permission`). An unloaded driver or a GPU that has fallen off
/// the bus is not detected.
pub fn access_without_open(path: &Path) -> Access {
    let is_device = path.metadata().map(|metadata| metadata.file_type().is_char_device());
    match is_device {
        Ok(false) => no_device(path),
        Ok(true) => match nix::unistd::access(path, AccessFlags::R_OK | AccessFlags::W_OK) {
            Ok(()) => Access::Usable,
            Err(errno) => open_failure(path, &errno.into()),
        },
        Err(error) => open_failure(path, &error),
    }
}

fn no_device(path: &Path) -> Access {
    Access::unusable(Obstacle::NoDevice, format!("{} is not a device file", path.display()))
}

/// The group of the device file at `path`, if only its owner and this group may open the file for reading and writing.
pub fn restricting_group(path: &Path) -> Option<u32> {
    let metadata = path.metadata().ok()?;
    is_only_for_group(metadata.mode()).then(|| metadata.gid())
}

fn is_only_for_group(mode: u32) -> bool {
    mode & 0o060 == 0o060 && mode & 0o006 != 0o006
}

fn open(path: &Path, write: bool) -> Access {
    let opened = File::options().read(true).write(write).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    match opened.and_then(|file| file.metadata()) {
        // slurmd rejects a regular file as a GRES file ("not a valid character or block device"), and no GPU is a block device.
        Ok(metadata) if !metadata.file_type().is_char_device() => no_device(path),
        Ok(_) => Access::Usable,
        Err(error) => open_failure(path, &error),
    }
}

fn open_failure(path: &Path, error: &io::Error) -> Access {
    let (obstacle, why) = match error.raw_os_error() {
        Some(libc::ENOENT) => (Obstacle::NotGiven, "is not in this container"),
        // The kernel checks the file's mode, which yields EACCES, before the device cgroup, which yields EPERM (`inode_permission`).
        Some(libc::EPERM) => (Obstacle::Denied, "is denied by the container's device rules (device cgroup)"),
        Some(libc::EACCES) => (Obstacle::Mode, "cannot be opened by this user (file mode, or a nodev mount)"),
        Some(libc::EISDIR) => (Obstacle::NoDevice, "is a directory, not a device file"),
        Some(libc::ENXIO | libc::ENODEV) => (Obstacle::NoDriver, "has no device behind it (is the driver loaded?)"),
        Some(libc::EIO) => {
            (Obstacle::Lost, "returns an input/output error when opened (the GPU may have fallen off the bus)")
        }
        _ => return Access::unusable(Obstacle::Other, format!("{} cannot be opened: {error}", path.display())),
    };
    Access::unusable(obstacle, format!("{} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(path: &Path) -> String {
        match access(path) {
            Access::Unusable { reason, .. } => reason,
            Access::Usable => panic!("{} is usable", path.display()),
        }
    }

    #[test]
    fn accepts_character_device_and_rejects_other_files() {
        assert_eq!(access(Path::new("/dev/null")), Access::Usable);
        assert_eq!(access_without_open(Path::new("/dev/null")), Access::Usable);
        let obstacle = |path: &Path| access_without_open(path).obstacle();
        assert_eq!(obstacle(Path::new("/dev/no/such")), Some(Obstacle::NotGiven));
        assert_eq!(obstacle(Path::new("/proc/self/status")), Some(Obstacle::NoDevice));
    }

    /// Opening a FIFO blocks until it has a writer.
    #[test]
    fn access_check_opens_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("nvidia0");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(access_without_open(&pipe).obstacle(), Some(Obstacle::NoDevice));
    }

    #[test]
    fn detects_device_file_for_its_group() {
        let modes = [0o020_660, 0o020_664, 0o020_666, 0o020_600, 0o020_640];
        assert_eq!(modes.map(is_only_for_group), [true, true, false, false, false]);
        assert_eq!(restricting_group(Path::new("/dev/null")), None);
        assert_eq!(restricting_group(Path::new("/no/such")), None);
    }

    #[test]
    fn maps_each_open_error_to_obstacle_and_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("nvidia0");
        assert!(reason(&file).ends_with("nvidia0 is not in this container"));
        std::fs::write(&file, "").unwrap();
        assert!(reason(&file).ends_with("nvidia0 is not a device file"));
        assert!(reason(directory.path()).contains("is a directory"));
        for (errno, want, word) in [
            (libc::EPERM, Obstacle::Denied, "device cgroup"),
            (libc::EACCES, Obstacle::Mode, "file mode"),
            (libc::EIO, Obstacle::Lost, "bus"),
            (libc::ENODEV, Obstacle::NoDriver, "driver"),
            (libc::EMFILE, Obstacle::Other, "cannot be opened"),
        ] {
            let Access::Unusable { obstacle, reason: why } = open_failure(&file, &io::Error::from_raw_os_error(errno))
            else {
                panic!("{errno}")
            };
            assert!(obstacle == want && why.contains(word) && why.contains("nvidia0"), "{why}");
        }
    }
}
