use std::fs;

use super::*;

const DOCKER_V1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
40 31 0:37 /docker/4f2 /sys/fs/cgroup/systemd ro,nosuid master:11 - cgroup cgroup rw,xattr,name=systemd
36 31 0:33 /docker/4f2 /sys/fs/cgroup/memory ro,nosuid master:15 - cgroup cgroup rw,memory
32 31 0:29 /docker/4f2 /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:16 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw
99 31 0:33 / /host/cgroup/memory rw - cgroup cgroup rw,memory
";

fn hierarchies(root: &Path, mountinfo: &str, membership: &str) -> Hierarchies {
    Hierarchies { mounts: parse_mountinfo(mountinfo, root), memberships: parse_membership(membership) }
}

#[test]
fn hybrid_layout_is_v1_without_mounts_outside_sys_fs_cgroup() {
    let found = hierarchies(Path::new("/nowhere"), DOCKER_V1, "0::/\n");
    assert_eq!(found.version(), CgroupVersion::V1);
    let controllers: Vec<&str> = found.mounts().flat_map(|mount| &mount.controllers).map(String::as_str).collect();
    assert_eq!(controllers, ["memory", "cpu", "cpuacct"]);
    assert!(found.mounts().all(|mount| mount.read_only));
}

#[test]
fn finds_group_below_mounted_group() {
    let root = tempfile::tempdir().unwrap();
    let memory = root.path().join("sys/fs/cgroup/memory");
    fs::create_dir_all(memory.join("job")).unwrap();
    let groups = |membership| hierarchies(root.path(), DOCKER_V1, membership).groups("memory").unwrap();
    let own = (CgroupVersion::V1, vec![memory.clone()]);
    assert_eq!(groups("4:memory:/docker/4f2\n"), own);
    assert_eq!(groups("4:memory:/docker/4f2/job\n"), (CgroupVersion::V1, vec![memory.join("job"), memory.clone()]));
    for elsewhere in [
        "4:memory:/docker/4f22\n",
        "4:memory:/\n",
        "4:memory:/docker/4f2/../other\n",
        "4:memory:/docker/4f2/gone\n",
        "",
    ] {
        assert_eq!(groups(elsewhere), own, "{elsewhere}");
    }
}

#[test]
fn later_mount_hides_earlier() {
    let text =
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n31 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
    let found = hierarchies(Path::new("/"), text, "");
    assert!(found.mounts().map(|mount| mount.read_only).eq([true]));
}

#[test]
fn ignores_mount_point_with_parent_components() {
    let text = "30 23 0:26 / /sys/fs/cgroup/../../../etc rw - cgroup2 cgroup rw\n";
    assert_eq!(hierarchies(Path::new("/root"), text, "").version(), CgroupVersion::None);
}

proptest::proptest! {
    #[test]
    fn arbitrary_input_does_not_panic(text in "(?s).{0,80}", fields in "[a-z0-9:/ ,.-]{0,80}") {
        for text in [text, fields] {
            parse_mountinfo(&text, Path::new("/"));
            parse_mountinfo(&format!("1 1 1 / /sys/fs/cgroup {text} - cgroup {text}"), Path::new("/"));
            parse_membership(&text);
        }
    }
}
