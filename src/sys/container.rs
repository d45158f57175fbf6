//! Which processes belong to this container. With a shared PID namespace (`--pid=host`, `--pid=container:NAME`, `shareProcessNamespace`)
//! /proc also lists processes of other containers or the host.

use std::fs;

use crate::proc;

/// The name of the host's cgroup namespace. Its inode is fixed (`PROC_CGROUP_INIT_INO`, `linux/proc_ns.h`).
const HOST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// This container, identified by the cgroups of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The text of /proc/self/cgroup.
    cgroups: String,
    is_host_namespace: bool,
}

impl Container {
    /// The container of this process.
    pub fn of_this_process() -> Self {
        let namespace = fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { cgroups, is_host_namespace: namespace.as_os_str() == HOST_CGROUP_NAMESPACE }
    }

    /// Whether PID 1 belongs to another container or to the host.
    pub fn shares_pid_namespace(&self) -> bool {
        !self.has_process(1)
    }

    /// The PID of the container's first process, which the engine started: PID 1, or in a shared PID namespace the topmost ancestor of this
    /// process that belongs to the container (this process itself if no ancestor does).
    pub fn first_process(&self) -> i32 {
        if self.has_process(1) {
            return 1;
        }
        let own = proc::ancestors().map(|ancestor| ancestor.pid).take_while(|pid| self.has_process(*pid));
        own.last().unwrap_or_else(|| nix::unistd::getpid().as_raw())
    }

    /// Whether the process belongs to this container. A process that has ended does not.
    pub fn has_process(&self, pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|cgroups| self.has(&cgroups))
    }

    /// Whether the process with these cgroups (the text of /proc/PID/cgroup) belongs to this container. The cgroups of other containers are
    /// outside the root of this process's cgroup namespace. If that is the host's namespace, they are outside this process's own cgroup.
    pub fn has(&self, cgroups: &str) -> bool {
        fn split(line: &str) -> Option<(&str, &str)> {
            let (hierarchy, rest) = line.split_once(':')?;
            Some((hierarchy, rest.split_once(':')?.1))
        }
        let own_lines = || self.cgroups.lines().filter_map(split);
        let is_outside = |(hierarchy, path): (&str, &str)| {
            let own = own_lines().find(|(name, _)| *name == hierarchy).map_or("/", |(_, path)| path);
            let below = path.strip_prefix(own.trim_end_matches('/'));
            let is_below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            path == "/.." || path.starts_with("/../") || self.is_host_namespace && !is_below
        };
        !cgroups.lines().filter_map(split).any(is_outside)
    }
}

#[cfg(test)]
mod tests {
    use super::Container;

    #[test]
    fn distinguishes_containers_by_cgroup() {
        let has =
            |own: &str, is_host_namespace, other| Container { cgroups: own.to_owned(), is_host_namespace }.has(other);
        let same = |own, other| has(own, false, other);
        assert!(same("0::/\n", "0::/\n") && same("0::/init\n", "0::/system.slice/job_1\n"));
        assert!(!same("0::/\n", "0::/../other\n") && !same("0::/\n", "0::/..\n"));
        assert!(same("4:memory:/\n0::/\n", "4:memory:/\n0::/\n") && same("", ""));
        assert!(!same("4:memory:/\n0::/\n", "4:memory:/../b\n0::/\n"));
        let host = |other| has("0::/docker/a\n", true, other);
        assert!(host("0::/docker/a\n") && host("0::/docker/a/job\n"));
        assert!(!host("0::/docker/ab\n") && !host("0::/user.slice\n") && !host("0::/\n"));
    }
}
