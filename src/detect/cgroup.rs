//! The cgroup hierarchy as this container sees it.

mod hierarchy;

use std::fs;
use std::path::Path;

use nix::unistd::{AccessFlags, access};

pub(super) use hierarchy::Hierarchies;
use hierarchy::Mount;

use crate::inventory::{Cgroup, CgroupVersion};

/// Which interface is mounted, whether groups can be made in it, and with which controllers. Nothing is changed.
pub fn detect(root: &Path) -> Cgroup {
    let hierarchies = Hierarchies::read(root);
    let version = hierarchies.version();
    match version {
        CgroupVersion::None => Cgroup::default(),
        CgroupVersion::V1 => v1(&hierarchies),
        CgroupVersion::V2 => v2(&hierarchies),
    }
}

/// Slurm needs its groups in each controller that it uses, so one read-only controller makes the whole unwritable.
fn v1(hierarchies: &Hierarchies) -> Cgroup {
    let mounts: Vec<&Mount> = hierarchies.mounts().filter(|mount| !mount.controllers.is_empty()).collect();
    let writable =
        !mounts.is_empty() && mounts.iter().all(|mount| !mount.read_only && is_writable(&hierarchies.own_group(mount)));
    let mut controllers: Vec<String> = mounts.iter().flat_map(|mount| mount.controllers.clone()).collect();
    controllers.sort();
    Cgroup { version: CgroupVersion::V1, writable, controllers }
}

fn v2(hierarchies: &Hierarchies) -> Cgroup {
    let Some(mount) = hierarchies.mounts().next() else { return Cgroup::default() };
    // Only the machine's own root group lacks `cgroup.type`. Any other group that is mounted is the container's: this
    // process can sit deeper, because slurmd 24.11 moves everything of its root into a group `system`.
    let group = match mount.point.join("cgroup.type").exists() {
        true => mount.point.clone(),
        false => hierarchies.own_group(mount),
    };
    let text = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    let mut controllers: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    controllers.sort();
    Cgroup { version: CgroupVersion::V2, writable: !mount.read_only && is_writable(&group), controllers }
}

/// The kernel refuses with EROFS on a read-only mount, with EACCES where a user namespace does not own the group.
fn is_writable(group: &Path) -> bool {
    access(group, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n";

    fn container(mountinfo: &str, membership: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let proc = [("proc/self/mountinfo", mountinfo), ("proc/self/cgroup", membership)];
        for (path, content) in proc.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn nothing_mounted_is_none() {
        assert_eq!(detect(tempfile::tempdir().unwrap().path()), Cgroup::default());
    }

    #[test]
    fn a_v2_container_uses_its_own_root_also_after_slurmd_moved_it() {
        let files = [
            ("sys/fs/cgroup/cgroup.type", "domain\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("sys/fs/cgroup/system/cgroup.controllers", "memory\n"),
        ];
        let controllers = ["cpu", "cpuset", "io", "memory", "pids"].map(str::to_owned).to_vec();
        let want = Cgroup { version: CgroupVersion::V2, writable: true, controllers };
        assert_eq!(detect(container(V2, "0::/system\n", &files).path()), want);
        let read_only = container(&V2.replace("rw - ", "ro - "), "0::/\n", &files);
        assert_eq!(detect(read_only.path()), Cgroup { writable: false, ..want });
    }

    /// Docker's `--cgroupns host`: the machine's whole tree is mounted, and only the own group is ours.
    #[test]
    fn in_the_machines_tree_the_own_group_counts() {
        let files = [
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            ("sys/fs/cgroup/docker/4f2/cgroup.controllers", "memory\n"),
        ];
        assert_eq!(detect(container(V2, "0::/docker/4f2\n", &files).path()).controllers, ["memory"]);
    }

    #[test]
    fn one_read_only_controller_makes_v1_unwritable() {
        let mounts = "36 31 0:33 /docker/4f2 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      37 31 0:34 /docker/4f2 /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        let files = [("sys/fs/cgroup/memory/cgroup.procs", ""), ("sys/fs/cgroup/freezer/cgroup.procs", "")];
        let controllers = vec!["freezer".to_owned(), "memory".to_owned()];
        let want = Cgroup { version: CgroupVersion::V1, writable: true, controllers };
        assert_eq!(detect(container(mounts, "", &files).path()), want);
        let read_only = mounts.replace("freezer rw", "freezer ro");
        assert_eq!(detect(container(&read_only, "", &files).path()), Cgroup { writable: false, ..want });
    }
}
