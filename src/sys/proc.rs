//! Reads processes from /proc (proc(5)).

mod handle;
pub mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc;
use std::time::Instant;

use nix::unistd::{Gid, Uid, getppid, setfsgid, setfsuid};

pub use handle::Handle;
pub use parse::Stat;

use crate::container::Container;
use model::process_id::ProcessId;

/// The PIDs of all processes in this container.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let container = Some(Container::of_this_process()).filter(Container::shares_pid_namespace);
    let is_own = move |pid: &i32| container.as_ref().is_none_or(|container| container.has_process(*pid));
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_own)
}

/// The PIDs of a process's children, including those forked by its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The PID and start time of this process.
pub fn own_id() -> ProcessId {
    let pid = nix::unistd::getpid().as_raw();
    ProcessId { pid, start_ticks: stat(pid).map_or(0, |stat| stat.start) }
}

/// Whether the process is running. A process with the same PID but another start time is a different process. A zombie is not running: a
/// PID 1 other than slurminit may leave zombies unreaped.
pub fn is_running(id: ProcessId) -> bool {
    stat(id.pid).is_some_and(|stat| stat.start == id.start_ticks && !stat.is_dead())
}

/// Reads `/proc/PID/stat`; `None` if the process does not exist. A zombie still exists.
pub fn stat(pid: i32) -> Option<Stat> {
    Stat::parse(&text(pid, "stat")?)
}

/// The process name (`comm`) of the program that supervises the daemons.
const SUPERVISOR: &str = "slurminit-init";

/// The ancestors of this process, from the parent upwards, up to the top of this PID namespace.
pub fn ancestors() -> impl Iterator<Item = Stat> {
    std::iter::successors(stat(getppid().as_raw()), |child| stat(child.parent))
}

/// The PID of the `slurminit-init` from which this process descends; 1 if there is none. Another program may be PID 1
/// (`docker run --init`, `slurminit up`).
pub fn supervisor() -> i32 {
    ancestors().find(|ancestor| ancestor.name == SUPERVISOR).map_or(1, |ancestor| ancestor.pid)
}

/// Reads `/proc/PID/status`.
pub fn status(pid: i32) -> Option<String> {
    text(pid, "status")
}

/// Reads `/proc/PID/cmdline`, which the process can overwrite. Empty for a zombie.
pub fn title(pid: i32) -> Option<String> {
    text(pid, "cmdline")
}

/// Whether the real user is root. The effective one may differ: slurmstepd switches to the job's user to open files.
pub fn is_root_process(pid: i32) -> bool {
    status(pid).and_then(|status| parse::numbers(&status, "Uid")).is_some_and(|[real]| real == 0)
}

/// The title of the process if it is a slurmstepd. Any user can forge the title and name, but not the real user root.
pub fn step_title(stat: &Stat) -> Option<String> {
    (stat.name == "slurmstepd" && is_root_process(stat.pid)).then(|| title(stat.pid)).flatten()
}

/// A process, as it was when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The PID.
    pub pid: i32,
    /// The parent's PID.
    pub parent: i32,
    /// The session ID, which the processes of a daemon or service share.
    pub session: i32,
    /// The start time in clock ticks, to detect a reused PID.
    pub start: u64,
    /// The state: `S` is sleeping, `Z` is a zombie, or a process whose first thread has ended.
    pub state: char,
    /// Whether the process is a zombie.
    pub is_dead: bool,
    /// The real user ID.
    pub uid: u32,
    /// The effective group ID, which the kernel requires for reading the environment and the descriptors.
    pub gid: u32,
    /// The size of the process's descriptor table.
    pub slots: u32,
    /// The name that the process chose, in printable characters.
    pub name: String,
    /// The role in Slurm.
    pub role: Role,
    /// Whether the process has the mark of slurmd's descendants; set and read only by [`crate::leftovers`].
    pub is_marked: bool,
}

/// The role of a process in Slurm. A process of a user other than root is always `Other`, because a user can choose any name for a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// slurmd.
    Daemon,
    /// A slurmstepd, with its step once its title shows it.
    Step(Option<Step>),
    /// Another process.
    #[default]
    Other,
}

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The job ID.
    pub job: u32,
    /// The step ID, such as `batch`.
    pub name: String,
}

impl Process {
    /// Reads a process; `None` if it does not exist.
    pub fn read(pid: i32) -> Option<Self> {
        let (stat, status) = (stat(pid)?, status(pid)?);
        // The real user, and the effective group.
        let ([uid], [_, gid]) = (parse::numbers(&status, "Uid")?, parse::numbers(&status, "Gid")?);
        Some(Self {
            pid,
            parent: stat.parent,
            session: stat.session,
            start: stat.start,
            state: stat.state,
            is_dead: stat.is_dead(),
            uid,
            gid,
            slots: parse::numbers(&status, "FDSize").map_or(0, |[slots]| slots),
            name: printable(&stat.name),
            role: if uid == 0 { role(pid, &stat.name) } else { Role::Other },
            is_marked: false,
        })
    }

    /// PID and start time, which together are unique.
    pub const fn key(&self) -> (i32, u64) {
        (self.pid, self.start)
    }

    /// A handle of the process; `None` if it has ended.
    pub fn handle(&self) -> Option<Handle> {
        Handle::of(self.pid, self.start)
    }

    /// The step that the process runs, if it is a slurmstepd.
    pub fn step(&self) -> Option<&Step> {
        match &self.role {
            Role::Step(step) => step.as_ref(),
            Role::Daemon | Role::Other => None,
        }
    }
}

fn role(pid: i32, name: &str) -> Role {
    match plain_name(name) {
        "slurmd" => Role::Daemon,
        "slurmstepd" => Role::Step(title(pid).and_then(|title| {
            let (job, name) = parse::step(&title)?;
            Some(Step { job, name: name.to_owned() })
        })),
        _ => Role::Other,
    }
}

/// Removes Debian's suffix from a process name: Debian's slurmd is a link to `slurmd-wlm`, and uses that name after a reconfiguration.
pub fn plain_name(name: &str) -> &str {
    name.strip_suffix("-wlm").unwrap_or(name)
}

/// Makes a name chosen by another user safe for a terminal or a log line.
pub fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).take(64).collect()
}

/// Processes of this container, by PID.
#[derive(Clone, Debug, Default)]
pub struct Processes(BTreeMap<i32, Process>);

impl FromIterator<Process> for Processes {
    fn from_iter<I: IntoIterator<Item = Process>>(processes: I) -> Self {
        Self(processes.into_iter().map(|process| (process.pid, process)).collect())
    }
}

impl Processes {
    /// Reads all processes. The result is not a consistent snapshot: each process is read at a different moment.
    pub fn read() -> Self {
        pids().filter_map(Process::read).collect()
    }

    /// The process with this PID.
    pub fn get(&self, pid: i32) -> Option<&Process> {
        self.0.get(&pid)
    }

    /// All processes.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.0.values()
    }

    /// The ancestors, from the parent upwards. A PID may have been reused between two reads and form a loop, so the number of processes
    /// limits the walk.
    pub fn ancestors(&self, process: &Process) -> impl Iterator<Item = &Process> {
        let first = self.get(process.parent);
        std::iter::successors(first, |process| self.get(process.parent)).take(self.0.len())
    }

    /// The jobs that have a slurmstepd.
    pub fn jobs(&self) -> BTreeSet<u32> {
        self.iter().filter_map(|process| Some(process.step()?.job)).collect()
    }

    /// The job of the slurmstepd above the process; `None` for a slurmstepd itself.
    pub fn job(&self, process: &Process) -> Option<u32> {
        let mut steps = self.ancestors(process).filter_map(Process::step);
        process.step().is_none().then(|| steps.next().map(|step| step.job))?
    }
}

/// Reads each process with its owner's rights to files, in the given order; `None` for a process that cannot be read in time.
///
/// Root without CAP_SYS_PTRACE, which Docker withholds, may not read the environment, memory and descriptors of other users' processes; a
/// process of that user may. So a thread switches to that user and group for file access (setfsuid(2)) and retains root's other IDs: no
/// signal of the user reaches it, and the user cannot forge what it reads. A process can block reads of its memory, hence the deadline.
pub fn read_as_owner<T: Send + 'static>(
    processes: &[Process],
    deadline: Instant,
    read: impl Fn(i32) -> T + Send + 'static,
) -> Vec<Option<T>> {
    let (sender, receiver) = mpsc::channel();
    let owners: Vec<_> = processes.iter().map(|process| (process.pid, process.uid, process.gid)).collect();
    // If the thread hangs, it ends with the program. Without a thread, the sender is dropped and every result is `None`.
    let thread = std::thread::Builder::new().spawn(move || {
        for (pid, uid, gid) in owners {
            setfsgid(Gid::from_raw(gid));
            setfsuid(Uid::from_raw(uid));
            if sender.send(read(pid)).is_err() {
                return;
            }
        }
    });
    drop(thread);
    let next = || receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    processes.iter().map(|_| next()).collect()
}

/// Reads a file of the process. Process names may be invalid UTF-8.
fn text(pid: i32, file: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use nix::unistd::getuid;

    use super::*;

    /// Starts a process that looks like the slurmstepd of a job.
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn start_forged_slurmstepd(uid: u32, program: &std::path::Path) -> Child {
        Command::new(program).arg0("slurmstepd: [5.batch]").arg("1000").uid(uid).spawn().unwrap()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn children_include_those_of_other_threads() {
        let (started, child) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        // The kernel lists a child below the thread that forked it, while the thread lives.
        let thread = std::thread::spawn(move || {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            started.send(child.id()).unwrap();
            let _ = ended.recv();
            child.kill().and_then(|()| child.wait()).unwrap();
        });
        let pid = i32::try_from(child.recv().unwrap()).unwrap();
        let found = children(nix::unistd::getpid().as_raw());
        drop(end);
        thread.join().unwrap();
        assert!(found.contains(&pid), "{found:?}");
    }

    #[test]
    fn recognizes_slurmd_and_slurmd_wlm_as_daemon() {
        assert_eq!([role(0, "slurmd"), role(0, "slurmd-wlm")], [Role::Daemon, Role::Daemon]);
        assert_eq!([role(0, "sh"), role(0, "slurmd-other")], [Role::Other, Role::Other]);
    }

    #[test]
    fn replaces_control_characters_in_process_name() {
        assert_eq!(printable("a\x1b[2J\n\u{202e}b"), "a?[2J??b");
    }

    #[test]
    fn job_of_process_is_that_of_nearest_slurmstepd() {
        let process = |pid, parent, role| Process { pid, parent, role, ..Process::default() };
        let step = |job| Role::Step(Some(Step { job, name: "batch".to_owned() }));
        let all = [
            process(10, 1, step(5)),
            process(11, 10, Role::Other),
            process(12, 11, Role::Other),
            process(20, 11, step(6)),
            process(21, 20, Role::Other),
            // A loop: the PIDs were reused between two reads.
            process(30, 31, Role::Other),
            process(31, 30, Role::Other),
        ];
        let all: Processes = all.into_iter().collect();
        let job = |pid| all.job(all.get(pid).unwrap());
        assert_eq!([10, 11, 12, 20, 21, 30].map(job), [None, Some(5), Some(5), None, Some(6), None]);
        assert_eq!(all.jobs(), [5, 6].into());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn only_root_process_counts_as_slurmstepd() {
        let directory = tempfile::tempdir().unwrap();
        set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let program = directory.path().join("slurmstepd");
        fs::copy("/bin/sleep", &program).unwrap();
        let unprivileged = if getuid().is_root() { 65534 } else { getuid().as_raw() };
        for (uid, counts) in [(getuid().as_raw(), getuid().is_root()), (unprivileged, false)] {
            let mut child = start_forged_slurmstepd(uid, &program);
            let pid = child.id().try_into().unwrap();
            let found = stat(pid).unwrap();
            assert_eq!((found.name.as_str(), is_root_process(pid)), ("slurmstepd", counts), "{uid}");
            assert_eq!(step_title(&found).as_deref().and_then(parse::step).is_some(), counts, "{uid}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!is_root_process(-1));
    }
}
