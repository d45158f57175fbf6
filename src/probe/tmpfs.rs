//! Memory that files in a tmpfs use. It counts against the container's memory limit, and OOM kills do not free it. A tmpfs that exceeds the
//! limit causes OOM kills of all processes, PID 1 last.

use std::path::Path;

use super::regular;
use model::inventory::{Finding, Kind, Memory};
use sys::proc::parse::Mount;

/// The memory that the daemons and PID 1 need, in MiB.
pub const RESERVED_MIB: u64 = 64;

/// Warns if writable tmpfs mounts can leave less than [`RESERVED_MIB`] of the container's memory limit.
pub fn detect(root: &Path, memory: &Memory) -> Option<Finding> {
    finding(&regular::text(&root.join("proc/self/mountinfo")).ok()?, memory)
}

fn finding(mountinfo: &str, memory: &Memory) -> Option<Finding> {
    let limit = memory.limit_mib?;
    // The default size, half of the machine's memory, does not appear in the mount options.
    let size = |tmpfs: &Tmpfs| tmpfs.size_mib.unwrap_or(memory.total_mib / 2);
    let mut all: Vec<Tmpfs> = Mount::all(mountinfo).filter_map(Tmpfs::from_mount).collect();
    all.sort_by_key(|tmpfs| std::cmp::Reverse(size(tmpfs)));
    if all.iter().map(size).sum::<u64>() + RESERVED_MIB <= limit {
        return None;
    }
    let mounts = all.iter().filter(|tmpfs| size(tmpfs) > 0);
    let sizes: Vec<String> = mounts.map(|tmpfs| format!("{} {} MiB", tmpfs.mount_point, size(tmpfs))).collect();
    Some(Finding::warning(
        Kind::Container,
        format!(
            "tmpfs mounts can fill the container's memory limit of {limit} MiB (OOM of the whole container): {}",
            sizes.join(", ")
        ),
        "files in a tmpfs count against the container's memory limit, and the mounts have no size limits, or too large ones",
        "leave at least 64 MiB for the daemons: `--tmpfs /tmp:size=256m`, `--shm-size 64m` (Kubernetes: sizeLimit), or raise the memory limit",
    ))
}

/// A writable tmpfs.
struct Tmpfs {
    mount_point: String,
    /// `None` if it was mounted without a size.
    size_mib: Option<u64>,
}

impl Tmpfs {
    fn from_mount(mount: Mount<'_>) -> Option<Self> {
        let Mount { from, at, kind, options, read_only } = mount;
        // Only root can write to /dev and to mounts below /sys (cgroup v1). A mount of a part of a tmpfs is a file or
        // directory that the container runtime put there.
        if kind != "tmpfs" || read_only || at == "/dev" || at.starts_with("/sys/") || from != "/" {
            return None;
        }
        let size = options.split(',').find_map(|option| option.strip_prefix("size="));
        let size_kib = size.and_then(|size| size.strip_suffix('k')?.parse::<u64>().ok());
        Some(Self { mount_point: at, size_mib: size_kib.map(|kib| kib / 1024) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER_MOUNTS: &str = "1 0 0:9 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755\n\
        2 0 0:9 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size=65536k\n\
        3 0 0:9 / /proc/scsi ro,relatime - tmpfs tmpfs ro\n\
        6 0 0:7 / /sys/fs/cgroup rw,nosuid - tmpfs cgroup rw,mode=755\n\
        4 0 0:8 / / rw - overlay overlay rw\n";

    fn warning(more: &str, limit_mib: Option<u64>) -> Option<String> {
        finding(&format!("{DOCKER_MOUNTS}{more}"), &Memory { total_mib: 24_000, limit_mib, ..Memory::default() })
            .map(|finding| finding.what)
    }

    #[test]
    fn accepts_tmpfs_within_limit_or_without_limit() {
        assert_eq!(warning("", Some(300)), None);
        assert_eq!(warning("5 0 0:9 / /tmp rw - tmpfs tmpfs rw,size=102400k\n", Some(300)), None);
        assert_eq!(warning("5 0 0:9 / /tmp rw - tmpfs tmpfs rw\n", None), None);
    }

    #[test]
    fn reads_mounts_of_its_own_process() {
        let memory = Memory { total_mib: 24_000, limit_mib: Some(100), ..Memory::default() };
        let root = crate::tests::tree(&[("proc/self/mountinfo", DOCKER_MOUNTS)]);
        assert!(detect(root.path(), &memory).is_some());
        assert_eq!(detect(root.path(), &Memory { limit_mib: Some(128), ..memory }), None);
        assert_eq!(detect(tempfile::tempdir().unwrap().path(), &memory), None);
    }

    #[test]
    fn names_oversized_mount_with_size() {
        let unsized_mount = warning("5 0 0:9 / /tmp rw,nosuid - tmpfs tmpfs rw\n", Some(300)).unwrap();
        assert!(
            unsized_mount.contains("300 MiB") && unsized_mount.ends_with(": /tmp 12000 MiB, /dev/shm 64 MiB"),
            "{unsized_mount}"
        );
        assert!(warning("5 0 0:9 / /tmp rw - tmpfs tmpfs rw,size=204800k\n", Some(300)).is_some());
        assert!(warning("", Some(100)).is_some());
    }
}
