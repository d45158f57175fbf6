//! The cgroup hierarchy of this container.

mod hierarchy;

use std::path::Path;

use nix::unistd::{AccessFlags, access};

pub(super) use hierarchy::Hierarchies;
use hierarchy::Mount;

use super::{capabilities, regular};
use model::inventory::{Cgroup, CgroupVersion};

/// Which cgroup version is mounted, whether groups can be created in it, and with which controllers. Changes nothing.
pub fn detect(root: &Path) -> Cgroup {
    let hierarchies = Hierarchies::read(root);
    let version = hierarchies.version();
    match version {
        CgroupVersion::None => Cgroup::default(),
        CgroupVersion::V1 => v1(&hierarchies),
        CgroupVersion::V2 => Cgroup { device_rules_denied: device_rules_denied(root), ..v2(&hierarchies) },
    }
}

/// The hierarchies of cgroup v1. Slurm needs its groups in each controller that it uses, so a single unwritable hierarchy makes `writable`
/// false.
fn v1(hierarchies: &Hierarchies) -> Cgroup {
    let mounts: Vec<&Mount> = hierarchies.mounts().filter(|mount| !mount.controllers.is_empty()).collect();
    let writable =
        !mounts.is_empty() && mounts.iter().all(|mount| !mount.read_only && is_writable(&hierarchies.own_group(mount)));
    let mut controllers: Vec<String> = mounts.iter().flat_map(|mount| mount.controllers.clone()).collect();
    controllers.sort();
    Cgroup { version: CgroupVersion::V1, writable, controllers, ..Cgroup::default() }
}

fn v2(hierarchies: &Hierarchies) -> Cgroup {
    let Some(mount) = hierarchies.mounts().next() else { return Cgroup::default() };
    // Only the machine's root cgroup has no `cgroup.type`; any other group mounted here is the container's. This
    // process can be in a group below it, because slurmd 24.11 moves all processes of its root group into `system`.
    let whole_machine = !mount.point.join("cgroup.type").exists();
    let group = if whole_machine { hierarchies.own_group(mount) } else { mount.point.clone() };
    let text = regular::text(&group.join("cgroup.controllers")).unwrap_or_default();
    let mut controllers: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    controllers.sort();
    // The kernel shows PIDs of another PID namespace as 0.
    let processes = regular::text(&group.join("cgroup.procs")).unwrap_or_default();
    let foreign_processes = processes.lines().any(|pid| pid.trim() == "0");
    let writable = !mount.read_only && is_writable(&group);
    let version = CgroupVersion::V2;
    Cgroup { version, writable, controllers, whole_machine, foreign_processes, device_rules_denied: false }
}

/// Capabilities of `linux/capability.h`.
const CAP_NET_ADMIN: u32 = 12;
const CAP_BPF: u32 = 39;

/// Whether device rules cannot be set. Loading a device program takes CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN,
/// which covers both (`bpf_prog_load` of Linux 6.12). They must be held in the machine's initial user namespace.
fn device_rules_denied(root: &Path) -> bool {
    let text = |path: &str| regular::text(&root.join(path)).unwrap_or_default();
    let has_capability = |capability: u32| capabilities::has(root, capability).unwrap_or(true);
    let map = text("proc/self/uid_map");
    let own_user_namespace = !map.is_empty() && !map.split_whitespace().eq(["0", "0", "4294967295"]);
    own_user_namespace
        || !(has_capability(capabilities::SYS_ADMIN) || (has_capability(CAP_BPF) && has_capability(CAP_NET_ADMIN)))
}

/// Whether groups can be created. The kernel returns EROFS on a read-only mount, and EACCES if the group belongs to another user namespace.
fn is_writable(group: &Path) -> bool {
    access(group, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::tree;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n";

    fn container(mountinfo: &str, membership: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let proc = [("proc/self/mountinfo", mountinfo), ("proc/self/cgroup", membership)];
        tree(proc.iter().chain(files))
    }

    #[test]
    fn missing_cgroup_mount_yields_default() {
        assert_eq!(detect(tempfile::tempdir().unwrap().path()), Cgroup::default());
    }

    #[test]
    fn v2_uses_mount_root_after_slurmd_moved_process() {
        let files = [
            ("sys/fs/cgroup/cgroup.type", "domain\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("sys/fs/cgroup/system/cgroup.controllers", "memory\n"),
        ];
        let controllers = ["cpu", "cpuset", "io", "memory", "pids"].map(str::to_owned).to_vec();
        let want = Cgroup { version: CgroupVersion::V2, writable: true, controllers, ..Cgroup::default() };
        assert_eq!(detect(container(V2, "0::/system\n", &files).path()), want);
        let read_only = container(&V2.replace("rw - ", "ro - "), "0::/\n", &files);
        assert_eq!(detect(read_only.path()), Cgroup { writable: false, ..want });
    }

    /// `docker run --cgroupns host` mounts the host's whole tree; only the container's own group may be used.
    #[test]
    fn uses_container_group_in_host_tree() {
        let files = [
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            ("sys/fs/cgroup/docker/4f2/cgroup.controllers", "memory\n"),
        ];
        let cgroup = detect(container(V2, "0::/docker/4f2\n", &files).path());
        assert_eq!((cgroup.whole_machine, cgroup.controllers), (true, vec!["memory".to_owned()]));
    }

    #[test]
    fn pid_0_in_cgroup_procs_is_foreign_process() {
        let foreign = |processes| {
            let files = [("sys/fs/cgroup/cgroup.type", "domain\n"), ("sys/fs/cgroup/cgroup.procs", processes)];
            detect(container(V2, "0::/\n", &files).path()).foreign_processes
        };
        assert!(!foreign("1\n10\n20\n"));
        assert!(foreign("1\n0\n20\n"));
    }

    #[test]
    fn device_rules_require_host_capabilities() {
        let denied = |capabilities: &str, uid_map| {
            let status = format!("Name:\tslurminit\nCapEff:\t{capabilities}\n");
            let files = [("proc/self/status", status.as_str()), ("proc/self/uid_map", uid_map)];
            detect(container(V2, "0::/\n", &files).path()).device_rules_denied
        };
        let host_uids = "         0          0 4294967295\n";
        assert!(denied("00000000a80425fb", host_uids), "Docker's default set");
        assert!(!denied("000001ffffffffff", host_uids), "--privileged");
        assert!(!denied("00000000a82425fb", host_uids), "--cap-add SYS_ADMIN");
        assert!(!denied("00000080a80435fb", host_uids), "--cap-add BPF --cap-add NET_ADMIN");
        assert!(denied("00000080a80425fb", host_uids), "--cap-add BPF");
        assert!(denied("000001ffffffffff", "         0     100000      65536\n"), "rootless");
    }

    #[test]
    fn one_read_only_controller_makes_v1_unwritable() {
        let mounts = "36 31 0:33 /docker/4f2 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      37 31 0:34 /docker/4f2 /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        let files = [("sys/fs/cgroup/memory/cgroup.procs", ""), ("sys/fs/cgroup/freezer/cgroup.procs", "")];
        let controllers = vec!["freezer".to_owned(), "memory".to_owned()];
        let want = Cgroup { version: CgroupVersion::V1, writable: true, controllers, ..Cgroup::default() };
        assert_eq!(detect(container(mounts, "", &files).path()), want);
        let read_only = mounts.replace("freezer rw", "freezer ro");
        assert_eq!(detect(container(&read_only, "", &files).path()), Cgroup { writable: false, ..want });
    }
}
