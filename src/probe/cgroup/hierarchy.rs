//! Locates this container's own cgroups.
//!
//! `/proc/self/cgroup` names groups relative to the cgroup namespace, and often only part of the hierarchy is mounted:
//! with cgroup v1, Docker mounts `/docker/<id>` itself at `/sys/fs/cgroup/memory`. The `root` field of
//! `/proc/self/mountinfo` is that part (proc(5), cgroup_namespaces(7)).

use std::path::{Component, Path, PathBuf};

use crate::regular;
use model::inventory::CgroupVersion;
use sys::proc::parse;

/// The controllers of cgroup v1. The mount options also contain other words (`rw`, `xattr`, `name=systemd`).
const V1_CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// v1 or v2, never `None`.
    pub(crate) version: CgroupVersion,
    /// v1: the controllers of this hierarchy (none for `name=systemd`). v2: empty, because files list them.
    pub(crate) controllers: Vec<String>,
    /// The mount point, below the root directory of detection.
    pub(crate) point: PathBuf,
    /// The group that is mounted there, as named in this cgroup namespace.
    group: PathBuf,
    /// Whether the mount is read-only.
    pub(crate) read_only: bool,
}

/// All mounted hierarchies, and this process's group in each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    mounts: Vec<Mount>,
    memberships: Vec<Membership>,
}

/// A line of `/proc/self/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Membership {
    /// Empty for v2.
    controllers: Vec<String>,
    group: PathBuf,
}

impl Hierarchies {
    /// Reads the mounts, and this process's groups.
    pub(crate) fn read(root: &Path) -> Self {
        let text = |path: &str| regular::text(&root.join(path)).unwrap_or_default();
        let mounts = parse_mountinfo(&text("proc/self/mountinfo"), root);
        Self { mounts, memberships: parse_membership(&text("proc/self/cgroup")) }
    }

    /// The version that holds the controllers. Like Slurm, this treats the hybrid layout, where v2 only tracks
    /// processes, as v1.
    pub(crate) fn version(&self) -> CgroupVersion {
        let has = |version| self.mounts.iter().any(|mount| mount.version == version);
        match (has(CgroupVersion::V1), has(CgroupVersion::V2)) {
            (true, _) => CgroupVersion::V1,
            (false, true) => CgroupVersion::V2,
            (false, false) => CgroupVersion::None,
        }
    }

    /// The mounts of [`Self::version`].
    pub(crate) fn mounts(&self) -> impl Iterator<Item = &Mount> {
        let version = self.version();
        self.mounts.iter().filter(move |mount| mount.version == version)
    }

    /// The directories of this process's group for `controller` and of all visible ancestors, nearest first, with the
    /// cgroup version of their files.
    pub(crate) fn groups(&self, controller: &str) -> Option<(CgroupVersion, Vec<PathBuf>)> {
        let v1 = self.mounts.iter().find(|mount| mount.controllers.iter().any(|name| name == controller));
        let mount = v1.or_else(|| self.mounts.iter().find(|mount| mount.version == CgroupVersion::V2))?;
        let own = self.own_group(mount);
        let visible = own.ancestors().take_while(|group| group.starts_with(&mount.point));
        Some((mount.version, visible.map(Path::to_owned).collect()))
    }

    /// The directory of this process's group in `mount`, or the mount point if `mount` does not contain the group.
    pub(crate) fn own_group(&self, mount: &Mount) -> PathBuf {
        let below = self.memberships.iter().find(|entry| entry.controllers == mount.controllers).and_then(|entry| {
            let below = entry.group.strip_prefix(&mount.group).ok()?;
            // A group outside the namespace's root is shown as `/../name`.
            below.components().all(|part| matches!(part, Component::Normal(_))).then_some(below)
        });
        below.map(|below| mount.point.join(below)).filter(|group| group.is_dir()).unwrap_or_else(|| mount.point.clone())
    }
}

/// The cgroup mounts at and below `/sys/fs/cgroup` in the text of `/proc/self/mountinfo`.
fn parse_mountinfo(text: &str, root: &Path) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for mount in parse::Mount::all(text).filter_map(|mount| hierarchy(mount, root)) {
        // A later mount hides an earlier one at the same mount point.
        mounts.retain(|earlier| earlier.point != mount.point);
        mounts.push(mount);
    }
    mounts
}

fn hierarchy(mount: parse::Mount<'_>, root: &Path) -> Option<Mount> {
    let parse::Mount { from, at, kind, options, read_only } = mount;
    let (version, controllers) = match kind {
        "cgroup" => (CgroupVersion::V1, controllers_among(options)),
        "cgroup2" => (CgroupVersion::V2, Vec::new()),
        _ => return None,
    };
    let point = Path::new(&at);
    if !point.starts_with("/sys/fs/cgroup") || point.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let point = root.join(point.strip_prefix("/").ok()?);
    Some(Mount { version, controllers, point, group: from.into(), read_only })
}

/// The v1 controllers in a comma-separated list, sorted.
fn controllers_among(list: &str) -> Vec<String> {
    let mut controllers: Vec<String> =
        list.split(',').filter(|word| V1_CONTROLLERS.contains(word)).map(str::to_owned).collect();
    controllers.sort();
    controllers
}

/// The lines `4:memory:/docker/4f2` and, for v2, `0::/` of `/proc/self/cgroup`.
fn parse_membership(text: &str) -> Vec<Membership> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (list, group) = (fields.next()?, fields.next()?);
        let controllers = controllers_among(list);
        // `name=systemd` has no controllers and must not be mistaken for v2.
        (list.is_empty() || !controllers.is_empty()).then(|| Membership { controllers, group: group.into() })
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests;
