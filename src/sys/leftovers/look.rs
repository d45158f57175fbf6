//! Reads /proc.
//!
//! `stat`, `status` and `limits` are readable for everybody. The environment and open files of another user's
//! process are hidden even from root without CAP_SYS_PTRACE, which Docker withholds. So a thread takes on that user and
//! group for file access (setfsuid(2)), and remains root for signals and ptrace. A process can make reads of its memory
//! block, so these reads have a deadline.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::sync::mpsc;
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::proc::{self, Stat, parse};

use super::{Evidence, Process, Processes, Role, is_gpu_device_file, printable};

/// The number of bytes of an environment that are read. Variables beyond that count as missing.
const MAX_ENVIRONMENT: u64 = 1 << 20;

/// The maximum number of open files to inspect per process.
const MAX_FILES: usize = 4096;

/// The mark inherited by slurmd's descendants: a hard limit on file locks below that of slurminit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The mark of this process, a descendant of slurmd; `None` if it has none.
    pub fn of_this_process() -> Option<Self> {
        let (_, own) = getrlimit(Resource::RLIMIT_LOCKS).ok()?;
        let unmarked = hard_limit(proc::supervisor())?;
        (own < unmarked).then_some(Self(own))
    }

    /// A hard limit cannot be raised, and lowering it further keeps the mark.
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

/// `Max file locks            unlimited            unlimited            locks`
fn parse_hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// All processes, and the PIDs that were listed but had ended when they were read; for those of `uid`, also whether they
/// are marked.
pub fn processes(mark: Mark, uid: u32) -> (Processes, Vec<i32>) {
    let mut listed: Vec<i32> = proc::pids().collect();
    // Newest first, to catch a chain of short-lived processes.
    listed.sort_unstable_by(|one, other| other.cmp(one));
    let all: Processes = listed.iter().filter_map(|pid| process(mark, uid, *pid)).collect();
    listed.retain(|pid| all.get(*pid).is_none());
    (all, listed)
}

fn living_stat(pid: i32) -> Option<Stat> {
    proc::stat(pid).filter(|stat| !stat.is_dead())
}

/// The start time of a living process, in clock ticks.
pub fn start_time(pid: i32) -> Option<u64> {
    living_stat(pid).map(|stat| stat.start)
}

/// Whether this is still the same process and not exiting. An exiting process has released its memory, and with it its
/// environment and program name.
pub fn is_running(process: &Process) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", process.pid));
    start_time(process.pid) == Some(process.start) && !program.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether the process is a slurmd that slurminit supervises.
pub fn is_supervised_slurmd(pid: i32) -> bool {
    living_stat(pid).is_some_and(|stat| stat.parent == proc::supervisor() && role(pid, &stat.name) == Role::Daemon)
        && is_slurmd_or_descendant(pid)
}

fn process(mark: Mark, uid: u32, pid: i32) -> Option<Process> {
    let stat = living_stat(pid)?;
    let status = proc::status(pid)?;
    // The real user, and the effective group.
    let ([real], [_, gid]) = (parse::numbers(&status, "Uid")?, parse::numbers(&status, "Gid")?);
    let role = if real == 0 { role(pid, &stat.name) } else { Role::Other };
    Some(Process {
        pid,
        parent: stat.parent,
        session: stat.session,
        start: stat.start,
        uid: real,
        gid,
        name: printable(&stat.name),
        role,
        is_marked: real == uid && mark.marks(pid),
    })
}

/// A user can choose any process name, but root's processes have their real names.
fn role(pid: i32, name: &str) -> Role {
    match plain_name(name) {
        "slurmd" => Role::Daemon,
        "slurmstepd" => Role::Step(proc::title(pid).and_then(|title| Some(parse::step(&title)?.0))),
        _ => Role::Other,
    }
}

/// Debian's slurmd is a link to `slurmd-wlm`, and uses that name after a reconfiguration.
pub fn plain_name(name: &str) -> &str {
    name.strip_suffix("-wlm").unwrap_or(name)
}

/// The evidence about these processes that can be read until the deadline.
pub fn evidence(processes: &[&Process], deadline: Instant) -> BTreeMap<i32, Evidence> {
    let identities: Vec<(i32, Uid, Gid)> =
        processes.iter().map(|process| (process.pid, Uid::from_raw(process.uid), Gid::from_raw(process.gid))).collect();
    let (sender, receiver) = mpsc::channel();
    // If the thread hangs, it ends with the program.
    let thread = std::thread::Builder::new().spawn(move || {
        for (pid, uid, gid) in identities {
            setfsgid(gid);
            setfsuid(uid);
            let evidence = read_evidence(pid);
            setfsuid(Uid::from_raw(0));
            if sender.send((pid, evidence)).is_err() {
                return;
            }
        }
    });
    if thread.is_err() {
        return BTreeMap::new();
    }
    let next = || receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).collect()
}

fn read_evidence(pid: i32) -> Evidence {
    let mut environment = Vec::new();
    // An unreadable environment counts as empty.
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
    fn recognizes_slurmd_and_slurmd_wlm_as_daemon() {
        assert_eq!([role(0, "slurmd"), role(0, "slurmd-wlm")], [Role::Daemon, Role::Daemon]);
        assert_eq!([role(0, "sh"), role(0, "slurmd-other")], [Role::Other, Role::Other]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test waits for its own child; the rule is PID 1's")]
    fn process_with_reused_pid_and_zombie_are_not_running() {
        let process = |pid: u32| {
            let pid = i32::try_from(pid).unwrap();
            let start = proc::stat(pid).unwrap().start;
            let (parent, session, uid, gid, name, role) = (0, 0, 0, 0, String::new(), Role::Other);
            Process { pid, parent, session, start, uid, gid, name, role, is_marked: true }
        };
        let own = process(std::process::id());
        assert!(is_running(&own));
        assert!(!is_running(&Process { start: own.start + 1, ..own }), "the PID was reused");
        // A zombie.
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let cat = process(child.id());
        drop(child.stdin.take());
        while living_stat(cat.pid).is_some() {
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
