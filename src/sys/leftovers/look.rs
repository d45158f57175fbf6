//! Reads the evidence about processes from /proc.
//!
//! All users can read `limits`. Root without CAP_SYS_PTRACE needs [`proc::read_as_owner`] to read the environment and open files of another
//! user's process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit};

use crate::proc::{self, Process, Processes};

use super::{Evidence, is_gpu_device_file};

/// The maximum number of bytes to read from a process's environment. Variables beyond that are treated as missing.
const MAX_ENVIRONMENT: u64 = 1 << 20;

/// The maximum number of open files to inspect per process.
const MAX_FILES: usize = 4096;

/// The mark inherited by slurmd's descendants: a hard limit on file locks below that of slurminit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub(super) u64);

impl Mark {
    /// The mark of this process, a descendant of slurmd; `None` if it has none.
    pub fn of_this_process() -> Option<Self> {
        let (_, own) = getrlimit(Resource::RLIMIT_LOCKS).ok()?;
        let unmarked = hard_limit(proc::supervisor())?;
        (own < unmarked).then_some(Self(own))
    }

    /// Whether a process has this mark. An unprivileged process cannot raise its hard limit, and a lower limit is still a mark.
    fn marks(self, pid: i32) -> bool {
        hard_limit(pid).is_some_and(|limit| limit <= self.0)
    }
}

/// Whether a process is slurmd or one of its descendants.
pub fn is_slurmd_or_descendant(pid: i32) -> bool {
    hard_limit(proc::supervisor()).zip(hard_limit(pid)).is_some_and(|(unmarked, own)| own < unmarked)
}

fn hard_limit(pid: i32) -> Option<u64> {
    parse_hard_limit(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

/// Parses the hard limit, which is the second value: `Max file locks            unlimited            unlimited            locks`
fn parse_hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// All living processes, and the listed PIDs that are zombies or had ended before they were read. Only processes of `uid` are checked for
/// the mark.
pub fn processes(mark: Mark, uid: u32) -> (Processes, Vec<i32>) {
    let mut listed: Vec<i32> = proc::pids().collect();
    // Newest first, to catch a chain of short-lived processes.
    listed.sort_unstable_by(|one, other| other.cmp(one));
    let read = |pid: &i32| {
        let process = Process::read(*pid).filter(|process| !process.is_dead)?;
        Some(Process { is_marked: process.uid == uid && mark.marks(*pid), ..process })
    };
    let all: Processes = listed.iter().filter_map(read).collect();
    listed.retain(|pid| all.get(*pid).is_none());
    (all, listed)
}

/// Whether this is still the same process and not exiting. An exiting process has released its memory, and with it its
/// environment and the target of `/proc/PID/exe`.
pub fn is_running(process: &Process) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", process.pid));
    process.handle().is_some() && !program.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The evidence about these processes that can be read before the deadline.
pub fn evidence(processes: &[Process], deadline: Instant) -> BTreeMap<i32, Evidence> {
    let read = proc::read_as_owner(processes, deadline, read_evidence);
    processes.iter().zip(read).filter_map(|(process, evidence)| Some((process.pid, evidence?))).collect()
}

fn read_evidence(pid: i32) -> Evidence {
    let mut environment = Vec::new();
    // An unreadable environment is treated as empty.
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        let _ = file.take(MAX_ENVIRONMENT).read_to_end(&mut environment);
    }
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().take(MAX_FILES);
    let path = |file: fs::DirEntry| Some(fs::read_link(file.path()).ok()?.to_str()?.to_owned());
    let mut devices: Vec<String> = files.filter_map(path).filter(|path| is_gpu_device_file(path)).collect();
    devices.sort_unstable();
    devices.dedup();
    Evidence { job: parse_job(&environment), is_script: is_script(&environment), devices }
}

fn parse_job(environment: &[u8]) -> Option<u32> {
    let value = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"SLURM_JOB_ID="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Whether the environment is that of slurmd's prolog or epilog (`SLURM_SCRIPT_CONTEXT`, Slurm 20.11 and later).
fn is_script(environment: &[u8]) -> bool {
    environment.split(|byte| *byte == 0).any(|pair| {
        let context = pair.strip_prefix(b"SLURM_SCRIPT_CONTEXT=");
        context.is_some_and(|context| context == b"prolog_slurmd" || context == b"epilog_slurmd")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for a child")]
    fn process_with_reused_pid_and_zombie_are_not_running() {
        let process = |pid: u32| {
            let pid = i32::try_from(pid).unwrap();
            Process::read(pid).unwrap()
        };
        let own = process(std::process::id());
        assert!(is_running(&own));
        assert!(!is_running(&Process { start: own.start + 1, ..own }), "the PID was reused");
        // A zombie.
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let cat = process(child.id());
        drop(child.stdin.take());
        while proc::stat(cat.pid).is_some_and(|stat| !stat.is_dead()) {
            std::thread::yield_now();
        }
        assert!(!is_running(&cat));
        child.wait().unwrap();
    }

    #[test]
    fn parses_hard_limit_of_file_locks() {
        let line =
            |hard: &str| format!("Limit  Soft Limit\nMax file locks            5            {hard}        locks \n");
        assert_eq!(parse_hard_limit(&line("unlimited")), Some(u64::MAX));
        assert_eq!(parse_hard_limit(&line("18446744073709551614")), Some(u64::MAX - 1));
        assert_eq!(parse_hard_limit(""), None);
    }

    #[test]
    fn parses_job_and_script_context_from_environment() {
        assert_eq!(parse_job(b"A=1\0SLURM_JOB_ID=12\0"), Some(12));
        assert_eq!(parse_job(b"XSLURM_JOB_ID=12\0SLURM_JOB_ID=-1\0"), None);
        assert!(is_script(b"A=1\0SLURM_SCRIPT_CONTEXT=epilog_slurmd\0"));
        assert!(!is_script(b"SLURM_SCRIPT_CONTEXT=prolog_task\0XSLURM_SCRIPT_CONTEXT=epilog_slurmd\0"));
    }
}
