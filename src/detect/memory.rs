//! The memory of the machine, and how much of it this container may use.

use std::fs;
use std::path::Path;

use super::cgroup::Hierarchies;
use crate::inventory::{CgroupVersion, Memory};

/// cgroup v1 has no word for "unlimited": it shows the highest multiple of the page size (4 or 64 KiB) below 2^63.
const V1_UNLIMITED: u64 = i64::MAX as u64 - 65_536;

/// `/proc/meminfo` shows the machine even in a container, so the limit is read from the control groups.
pub fn detect(root: &Path) -> Memory {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let limit = limit_bytes(root).map(|bytes| bytes / (1024 * 1024));
    Memory { total_mib: parse_total_kib(&meminfo).unwrap_or_default() / 1024, limit_mib: limit }
}

/// The tightest limit of this group and of every ancestor that can be seen.
fn limit_bytes(root: &Path) -> Option<u64> {
    let (version, groups) = Hierarchies::read(root).groups("memory")?;
    let limit = |group: &Path| {
        let text = |file: &str| fs::read_to_string(group.join(file)).unwrap_or_default();
        match version {
            CgroupVersion::V2 => parse_limit(&text("memory.max")),
            // memory.stat knows also the limit of the ancestors that are outside of the mount.
            _ => [parse_limit(&text("memory.limit_in_bytes")), parse_hierarchical_limit(&text("memory.stat"))]
                .into_iter()
                .flatten()
                .min(),
        }
    };
    groups.iter().filter_map(|group| limit(group)).min()
}

/// `MemTotal:       32780488 kB`
fn parse_total_kib(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Bytes; `max` (v2) and v1's huge number are no limit.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < V1_UNLIMITED)
}

/// The line `hierarchical_memory_limit 536870912` of v1's `memory.stat`.
fn parse_hierarchical_limit(stat: &str) -> Option<u64> {
    parse_limit(stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       32780488 kB\nMemFree:         1000 kB\n");
    const V1: (&str, &str) =
        ("proc/self/mountinfo", "36 31 0:33 /docker/4f2 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");

    fn memory(files: &[(&str, &str)]) -> Memory {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        detect(root.path())
    }

    #[test]
    fn a_v1_limit_is_read_and_its_unlimited_is_none() {
        let limit = |text| memory(&[MEMINFO, V1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", text)]);
        assert_eq!(limit("536870912\n"), Memory { total_mib: 32_012, limit_mib: Some(512) });
        assert_eq!(limit("9223372036854771712\n").limit_mib, None);
        assert_eq!(limit("9223372036854710272\n").limit_mib, None, "64 KiB pages");
    }

    #[test]
    fn a_v1_ancestor_outside_of_the_mount_counts() {
        let files = [
            MEMINFO,
            V1,
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.stat", "cache 0\nhierarchical_memory_limit 1073741824\n"),
        ];
        assert_eq!(memory(&files).limit_mib, Some(1024));
    }

    #[test]
    fn the_tightest_v2_limit_counts() {
        let files = [
            MEMINFO,
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ];
        assert_eq!(memory(&files).limit_mib, Some(2048));
    }

    #[test]
    fn without_files_nothing_is_known() {
        assert_eq!(memory(&[]), Memory::default());
    }

    proptest::proptest! {
        #[test]
        fn no_content_panics(text in "(?s).{0,64}") {
            parse_limit(&text);
            parse_hierarchical_limit(&format!("hierarchical_memory_limit {text}"));
            parse_total_kib(&format!("MemTotal:{text}"));
            parse_total_kib(&format!("MemTotal:{text}kB"));
        }
    }
}
