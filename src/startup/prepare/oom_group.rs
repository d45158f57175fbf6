//! Makes the kernel kill one process when memory runs out, instead of the container with all its jobs. This requires a
//! writable cgroup.

use std::fs;
use std::path::Path;

use model::inventory::{Finding, Kind};

/// Turns memory.oom.group off, and returns a message about it. If a file cannot be written, the check of `slurminit doctor` that each start
/// runs reports it.
pub(super) fn turn_off(root: &Path) -> Option<Finding> {
    let files = probe::memory::oom_groups(root);
    let written = files.iter().filter(|file| fs::write(file, "0").is_ok()).count();
    (written > 0).then(|| {
        Finding::info(
            Kind::OomGroup,
            "memory.oom.group was 1; set to 0",
            "with 1, an OOM kill ends the container and all its jobs; the kubelet sets 1 since Kubernetes 1.28",
            "nothing to do",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_only_groups_that_are_set() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
        file("proc/self/cgroup", "0::/\n");
        let group = "sys/fs/cgroup/memory.oom.group";
        file(group, "0\n");
        assert!(turn_off(root.path()).is_none());
        file(group, "1\n");
        assert!(turn_off(root.path()).is_some());
        assert_eq!(fs::read_to_string(root.path().join(group)).unwrap(), "0");
        assert!(turn_off(root.path()).is_none());
    }
}
