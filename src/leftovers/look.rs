//! Reads /proc.
//!
//! EDGE. `stat`, `status` and `limits` are open to all. The environment and the open files of another user's process are not
//! even root's without CAP_SYS_PTRACE, which Docker does not give: a thread takes that user's and group's part in the
//! kernel's eyes of files (setfsuid(2)), and remains root for signals and ptrace. What it reads lies in memory that the
//! process has hold of and may keep from being read, so it has a deadline.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::sync::mpsc;
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use super::{Evidence, Process, Processes, Role, is_gpu, printable};

/// The most of an environment that is read; what hides its variables behind more counts as without.
const LONGEST_ENVIRONMENT: u64 = 1 << 20;

/// How many open files of a process are looked at.
const MOST_FILES: usize = 4096;

/// The mark that slurmd's descendants inherit: a hard limit of file locks below that of PID 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// This process's own, which slurmd has started; `None` if it has none.
    pub fn own() -> Option<Self> {
        let (_, own) = getrlimit(Resource::RLIMIT_LOCKS).ok()?;
        let unmarked = hard_limit(1)?;
        (own < unmarked).then_some(Self(own))
    }

    /// Nobody can raise a hard limit; who lowers it has the mark still.
    fn is_on(self, pid: i32) -> bool {
        hard_limit(pid).is_some_and(|limit| limit <= self.0)
    }
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

/// All processes, and of those of `uid` whether they are marked.
pub fn processes(mark: Mark, uid: u32) -> Processes {
    let mut all = Vec::new();
    each(mark, uid, |process| {
        all.push(process);
        true
    });
    all.into_iter().collect()
}

/// Hands over one process after the other, those that start meanwhile among them, until `go_on` says no.
pub fn each(mark: Mark, uid: u32, mut go_on: impl FnMut(Process) -> bool) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(process) = process(mark, uid, pid) else { continue };
        if !go_on(process) {
            return;
        }
    }
}

/// When that process started.
pub fn start(pid: i32) -> Option<u64> {
    Stat::read(pid).map(|stat| stat.start)
}

fn process(mark: Mark, uid: u32, pid: i32) -> Option<Process> {
    let stat = Stat::read(pid)?;
    let (real, gid) = parse_ids(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?))?;
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
        is_marked: real == uid && mark.is_on(pid),
    })
}

/// A user's process may have any name, one of root's has its own.
fn role(pid: i32, name: &str) -> Role {
    match plain_name(name) {
        "slurmd" => Role::Daemon,
        "slurmstepd" => {
            let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            Role::Step(parse_title(&String::from_utf8_lossy(&title)))
        }
        _ => Role::Other,
    }
}

/// Debian's slurmd is a link to `slurmd-wlm`, by which name it starts itself again at a reconfiguration.
pub fn plain_name(name: &str) -> &str {
    name.strip_suffix("-wlm").unwrap_or(name)
}

/// The job in `slurmstepd: [JOB.STEP]` (Slurm 22.05 to 24.11, `slurmstepd.c`).
pub fn parse_title(title: &str) -> Option<u32> {
    title.strip_prefix("slurmstepd: [")?.split_once('.')?.0.parse().ok()
}

/// What /proc/PID/stat says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    parent: i32,
    session: i32,
    start: u64,
}

impl Stat {
    /// `None` for a process that has ended.
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
    }

    /// `PID (NAME) STATE PPID PGRP SESSION ...`, and the time of its start as the 22nd of all (proc(5)).
    fn parse(stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once(" (")?.1.rsplit_once(')')?;
        let rest: Vec<&str> = rest.split_whitespace().collect();
        if rest.first()?.starts_with(['Z', 'X']) {
            return None;
        }
        let (parent, session) = (rest.get(1)?.parse().ok()?, rest.get(3)?.parse().ok()?);
        Some(Self { name: name.to_owned(), parent, session, start: rest.get(19)?.parse().ok()? })
    }
}

/// The real user id, and the effective group id.
fn parse_ids(status: &str) -> Option<(u32, u32)> {
    // The name is in the first line, with its newlines escaped.
    let field = |key: &str, at: usize| {
        status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().nth(at)?.parse().ok()
    };
    Some((field("Uid:", 0)?, field("Gid:", 1)?))
}

/// What these processes tell, as far as it can be read until then.
pub fn evidence(of: &[&Process], until: Instant) -> BTreeMap<i32, Evidence> {
    let wanted: Vec<(i32, Uid, Gid)> =
        of.iter().map(|process| (process.pid, Uid::from_raw(process.uid), Gid::from_raw(process.gid))).collect();
    let (tell, told) = mpsc::channel();
    // The end of the program ends it, whatever it waits for.
    let thread = std::thread::Builder::new().spawn(move || {
        for (pid, uid, gid) in wanted {
            setfsgid(gid);
            setfsuid(uid);
            let told = read_evidence(pid);
            setfsuid(Uid::from_raw(0));
            if tell.send((pid, told)).is_err() {
                return;
            }
        }
    });
    if thread.is_err() {
        return BTreeMap::new();
    }
    let next = || told.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).collect()
}

fn read_evidence(pid: i32) -> Evidence {
    let mut environment = Vec::new();
    // What cannot be read tells nothing.
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        let _ = file.take(LONGEST_ENVIRONMENT).read_to_end(&mut environment);
    }
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().take(MOST_FILES);
    let path = |file: fs::DirEntry| Some(fs::read_link(file.path()).ok()?.to_str()?.to_owned());
    let mut devices: Vec<String> = files.filter_map(path).filter(|path| is_gpu(path)).collect();
    devices.sort_unstable();
    devices.dedup();
    Evidence { job: parse_job(&environment), devices }
}

fn parse_job(environment: &[u8]) -> Option<u32> {
    let value = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"SLURM_JOB_ID="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_pretend_to_be_other_fields() {
        let stat = "7 (a) R 1 1 1 (\n) S 5 6 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 99 0";
        let expected = Stat { name: "a) R 1 1 1 (\n".to_owned(), parent: 5, session: 7, start: 99 };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("7 (a) Z 5 6 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 99 0"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn slurmd_has_two_names() {
        assert_eq!([role(0, "slurmd"), role(0, "slurmd-wlm")], [Role::Daemon, Role::Daemon]);
        assert_eq!([role(0, "sh"), role(0, "slurmd-other")], [Role::Other, Role::Other]);
    }

    #[test]
    fn the_mark_is_the_hard_limit() {
        let line =
            |hard: &str| format!("Limit  Soft Limit\nMax file locks            5            {hard}        locks \n");
        assert_eq!(parse_hard_limit(&line("unlimited")), Some(u64::MAX));
        assert_eq!(parse_hard_limit(&line("18446744073709551614")), Some(u64::MAX - 1));
        assert_eq!(parse_hard_limit(""), None);
    }

    #[test]
    fn ids_titles_and_environments_are_read() {
        assert_eq!(parse_ids("Name:\tx\\nUid:\t0\nUid:\t1000\t0\t0\t0\nGid:\t5\t6\t7\t8\n"), Some((1000, 6)));
        assert_eq!(parse_title("slurmstepd: [7.batch]\0"), Some(7));
        assert_eq!(parse_title("slurmstepd infinity"), None);
        assert_eq!(parse_job(b"A=1\0SLURM_JOB_ID=12\0"), Some(12));
        assert_eq!(parse_job(b"XSLURM_JOB_ID=12\0SLURM_JOB_ID=-1\0"), None);
    }
}
