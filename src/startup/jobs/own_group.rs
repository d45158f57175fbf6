//! Runs slurmd in a separate cgroup.
//!
//! slurmd moves every process of its cgroup into a child cgroup, and exits if one of them ends meanwhile. Each restart would nest the cgroups
//! one level deeper (24.11, `_empty_pids` in `cgroup_v2.c`; since 25.11, this happens only in the container's own cgroup). If slurmd is alone in its
//! cgroup, it moves only itself. The container's cgroup must not contain processes either: otherwise its controllers cannot be enabled for
//! the cgroups of jobs.

use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use anyhow::Context as _;
use model::message;
use plan::last_value;
use sys::report;

const MOUNT: &str = "/sys/fs/cgroup";
const PROCESSES: &str = "cgroup.procs";
/// Slurm's name for the cgroup of all processes except slurmd.
const OTHERS: &str = "system";
/// Maximum number of rounds of moving processes. Processes that start during a round are moved in the next.
const MAX_ROUNDS: usize = 100;

/// Executes slurmd, in a separate cgroup if Slurm uses cgroup v2 and the container has its own cgroup namespace.
pub fn execute(command: &[String]) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("no command")?;
    enter_own_group();
    let error = report::end(Command::new(program).args(arguments)).exec();
    Err(error).with_context(|| format!("`{program}` cannot be executed"))
}

/// Moves this process to a separate cgroup, if Slurm uses cgroup v2 and the container has its own cgroup namespace.
fn enter_own_group() {
    let conf = env::var_os("SLURM_CONF").map_or_else(|| PathBuf::from("/etc/slurm/slurm.conf"), PathBuf::from);
    let text = fs::read_to_string(conf.with_file_name("cgroup.conf")).unwrap_or_default();
    if last_value(&text, "CgroupPlugin").is_none_or(|plugin| plugin != "cgroup/v2") {
        return;
    }
    // In the host's cgroup namespace, the mount shows the host's cgroups, which must not be changed.
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if !is_container_group(&cgroup) {
        return;
    }
    if let Err(error) = move_to_group(Path::new(MOUNT), process::id()) {
        report::warn(message!(
            "slurmd-without-cgroup",
            "cannot move slurmd to a separate cgroup, so it may exit when it starts on a busy node: {error}",
            error
        ));
    }
}

/// Whether the mount's root is the container's cgroup: this process is in it, or in a cgroup of an earlier start.
fn is_container_group(cgroup: &str) -> bool {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
    path.is_some_and(|path| path.is_empty() || path == OTHERS || path.starts_with("slurmd."))
}

fn move_to_group(mount: &Path, pid: u32) -> io::Result<()> {
    let others = mount.join(OTHERS);
    create_group(&others)?;
    for _ in 0..MAX_ROUNDS {
        let processes = fs::read_to_string(mount.join(PROCESSES))?;
        if processes.is_empty() {
            break;
        }
        // The write fails for a process that has ended. In the list, 0 is a process of another container or of the host; written to the
        // file, it would mean this process.
        let moved = processes.lines().filter(|process| *process != "0");
        moved.for_each(|process| drop(fs::write(others.join(PROCESSES), process)));
    }
    // A controller that cannot be enabled is skipped.
    for controller in fs::read_to_string(mount.join("cgroup.controllers"))?.split_whitespace() {
        let _ = fs::write(mount.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    let own_group = mount.join(format!("slurmd.{pid}"));
    create_group(&own_group)?;
    fs::write(own_group.join(PROCESSES), pid.to_string())?;
    remove_former_groups(mount, &own_group)
}

fn create_group(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Removes the cgroups of earlier starts. The kernel refuses to remove a cgroup that contains processes.
fn remove_former_groups(mount: &Path, own_group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(mount)?.flatten() {
        let is_slurmds = entry.file_name().to_string_lossy().starts_with("slurmd.");
        if is_slurmds && entry.path() != own_group {
            let _ = fs::remove_dir(entry.path().join(OTHERS));
            let _ = fs::remove_dir(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_container_groups_from_host_groups() {
        for own in ["0::/\n", "0::/system\n", "0::/slurmd.12/system\n", "1:name=systemd:/\n0::/\n"] {
            assert!(is_container_group(own), "{own}");
        }
        for own in ["0::/docker/5f3a\n", "0::/system.slice/docker-5f3a.scope\n", "0::/../5f3a\n", "4:memory:/\n", ""] {
            assert!(!is_container_group(own), "{own}");
        }
    }

    #[test]
    fn moves_slurmd_to_own_group_and_removes_old_groups() {
        let mount = tempfile::tempdir().unwrap();
        let path = |name: &str| mount.path().join(name);
        fs::write(path(PROCESSES), "1\n12\n").unwrap();
        fs::write(path("cgroup.controllers"), "cpuset memory\n").unwrap();
        fs::create_dir_all(path("slurmd.7/system")).unwrap();
        fs::create_dir_all(path("system.slice")).unwrap();
        move_to_group(mount.path(), 12).unwrap();
        assert_eq!(fs::read_to_string(path("slurmd.12/cgroup.procs")).unwrap(), "12");
        assert!(fs::read_to_string(path("system/cgroup.procs")).is_ok());
        assert!(!path("slurmd.7").exists() && path("system.slice").exists());
    }

    #[test]
    fn existing_group_is_reused_and_other_errors_are_returned() {
        let mount = tempfile::tempdir().unwrap();
        let group = mount.path().join("system");
        (0..2).for_each(|_| create_group(&group).unwrap());
        assert_eq!(create_group(&mount.path().join("missing/system")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
