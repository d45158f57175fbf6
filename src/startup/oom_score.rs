//! Keeps `oom_score_adj` of jobs' and users' processes above that of the daemons.
//!
//! PID 1 runs this in a child while the cluster runs. The kernel has no unprivileged event for a new process. But each dynamically linked
//! program opens the loader's cache when it starts, and that wakes this process. Children inherit the raised value, so only the first
//! process of a process tree has to be found in time. If the kernel kills a job's process nevertheless, the kill is reported with the job.
//! Files in a tmpfs outlive the kills: if they leave the daemons too little memory, PID 1 ends the container.

mod kills;
mod people;

pub(crate) use kills::clear_record;

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::step_sockets;
use kills::Kills;
use model::{exit_code, message};
use probe::{memory, tmpfs};
use slurm::client::{Client, limit};
use sys::proc::Processes;
use sys::{report, users};
use watch::memory_use;

/// A file that ld.so(8) opens when it loads a program.
const LOADERS_CACHE: &str = "/etc/ld.so.cache";
/// The longest pause after a scan, so that a flood of new processes causes at most five scans per second.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The shortest pause after a scan: the first programs of a job must be found before memory runs out.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// A flood is over if no process has started for this time.
const QUIET: Duration = Duration::from_secs(1);
/// The longest time between two scans: a program may be statically linked, and a user may lower the value again.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// How often the count of OOM kills is read on cgroup v1, which has no event for it.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until an OOM kill after which files in memory (tmpfs) still fill the memory limit. Returns the exit code for PID 1. `spared` are
/// the names of users whose processes are daemons or services; `run` is the run directory. Also closes slurmstepd's sockets in `spools`,
/// slurmd's spool directories, to users.
pub fn keep(spared: &[String], run: &Path, spools: Vec<PathBuf>) -> u8 {
    step_sockets::start(spools);
    // inotify may be unavailable (the limit fs.inotify.max_user_instances is shared with the host): new programs are then found only at the
    // timeout.
    let starts = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
    let spared = people::uids(spared);
    let mut kills = Kills::watch(run);
    let limit_mib = memory::detect(Path::new("/")).limit_mib;
    // An OOM kill may have ended the previous instance of this program, so earlier kills count too.
    let mut has_killed = kills.read_count() > 0;
    let mut interval = SHORT_PAUSE;
    loop {
        if let Some(starts) = &starts {
            // ldconfig replaces the file, so the watch is set again each time.
            let _ = starts.add_watch(LOADERS_CACHE, AddWatchFlags::IN_OPEN);
            let _ = starts.read_events();
        }
        // Read the count before the list of processes: a process that is killed later is missing from the next list.
        let count = kills.read_count();
        let processes = Processes::read();
        people::raise_scores(&spared, &processes);
        has_killed |= kills.update(count, &processes);
        if std::mem::take(&mut has_killed) && limit_mib.is_some_and(do_files_fill) {
            let users = memory_use::describe_users(&memory_use::read().users, users::display_name);
            report::warn(message!(
                "memory-full-users",
                "files in memory (tmpfs, /dev/shm) fill the memory limit; users with the most memory: {users}",
                users
            ));
            // These jobs lost processes because files filled the memory, so they have to run again.
            let slurm = Client::with_timeout(limit::COMMAND);
            kills.recent_jobs().for_each(|job| drop(slurm.run("scontrol", &["requeue", &job.to_string()])));
            return exit_code::MEMORY_FULL;
        }
        pause(interval);
        let begin = Instant::now();
        wait(starts.as_ref(), &kills);
        interval = if begin.elapsed() >= QUIET { SHORT_PAUSE } else { (interval * 2).min(LONGEST_PAUSE) };
    }
}

/// Whether files leave the daemons less memory than they need.
fn do_files_fill(limit_mib: u64) -> bool {
    (memory_use::bytes_of_files() >> 20) + tmpfs::RESERVED_MIB > limit_mib
}

/// Waits for a new program, an OOM kill, or the longest time between two scans.
fn wait(starts: Option<&Inotify>, kills: &Kills) {
    let until = Instant::now() + MAX_INTERVAL;
    let starts = starts.map(|starts| PollFd::new(starts.as_fd(), PollFlags::POLLIN));
    let kill = kills.descriptor().map(|file| PollFd::new(file, PollFlags::POLLPRI));
    let mut events: Vec<PollFd<'_>> = starts.into_iter().chain(kill).collect();
    while !kills.has_changed() {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = if kills.has_event() { left } else { left.min(COUNT_INTERVAL) };
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        if left.is_zero() || poll(&mut events, timeout).is_ok_and(|ready| ready > 0) {
            return;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it limits the cost of a flood of new processes, and of repeated attempts to write a comment"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_fill_memory_if_they_leave_less_than_reserve() {
        assert!(do_files_fill(tmpfs::RESERVED_MIB - 1));
        assert!(!do_files_fill(u64::MAX >> 20));
    }
}
