//! The GPUs that this process has opened. As in the real library, getting a handle opens the GPU's device file until
//! `nvmlShutdown`, and the first use of a GPU without persistence mode initialises the GPU.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::machine::Gpu;

static OPENED: Mutex<BTreeMap<u32, Option<File>>> = Mutex::new(BTreeMap::new());

/// Opens the GPU unless it is already open. A missing device file is not an error.
pub(crate) fn open(gpu: &Gpu) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if opened.contains_key(&gpu.index) {
        return;
    }
    if gpu.is_cold() {
        #[expect(clippy::disallowed_methods, reason = "it simulates a slow driver")]
        std::thread::sleep(Duration::from_millis(gpu.init_ms));
    }
    set_permissions(&file(gpu));
    opened.insert(gpu.index, File::options().read(true).open(file(gpu)).ok());
}

/// Sets the mode and owner of a device file from the driver's parameters (default 0666 and root), with the rights of the process.
/// The driver's libraries do this before they open the file (nvidia-modprobe, `mknod_helper`; observed with R580).
fn set_permissions(file: &Path) {
    let parameters = fs::read_to_string("/proc/driver/nvidia/params").unwrap_or_default();
    let value = |name: &str, default| {
        let value = parameters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok());
        value.unwrap_or(default)
    };
    let is_device = file.symlink_metadata().is_ok_and(|found| found.file_type().is_char_device());
    if is_device && value("ModifyDeviceFiles", 1) == 1 {
        // The libraries ignore errors, too.
        let _ = fs::set_permissions(file, Permissions::from_mode(value("DeviceFileMode", 0o666)))
            .and_then(|()| chown(file, Some(value("DeviceFileUID", 0)), Some(value("DeviceFileGID", 0))));
    }
}

pub(crate) fn close_all() {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

pub(crate) fn file(gpu: &Gpu) -> PathBuf {
    format!("/dev/nvidia{}", gpu.minor()).into()
}

/// Whether another process has the file open. The real driver keeps a count; this searches /proc as the caller.
pub(crate) fn is_in_use(file: &Path) -> bool {
    let own = std::process::id().to_string();
    let is_other = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()) && name != own;
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter(|process| process.file_name().to_str().is_some_and(is_other)).any(|process| {
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        open.map(|descriptor| fs::read_link(descriptor.path())).any(|target| target.is_ok_and(|target| target == file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
    fn file_is_in_use_while_another_process_has_it_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_in_use(file.path()), "only this process has it open");
        let mut child = std::process::Command::new("cat");
        let input = std::process::Stdio::piped();
        let mut child = child.stdin(input).stderr(file.reopen().unwrap()).spawn().unwrap();
        assert!(is_in_use(file.path()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_in_use(file.path()));
    }
}
