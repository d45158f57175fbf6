//! Keeps `oom_score_adj` of jobs' and users' processes above that of the daemons.
//!
//! PID 1 runs this in a child while the cluster runs. The kernel has no unprivileged event for a new
//! process. But each dynamically linked program opens the loader's cache when it starts, and that wakes this process.
//! Children inherit the raised value, so only the first process of a family has to be caught in time. What the kernel kills all the same
//! is reported with its job. `reserve` handles memory that no kill frees: files in a tmpfs.

mod kills;
mod people;
mod reserve;

pub(crate) use kills::clear_record;
pub use reserve::keep_memory;

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use kills::Kills;
use sys::proc;

/// The first file that ld.so(8) opens.
const LOADERS_CACHE: &str = "/etc/ld.so.cache";
/// The longest pause after a look, so that a flood of new processes costs at most five looks per second.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The shortest pause: what the first programs of a job do must be seen before the kernel kills one.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// A flood has ended if nothing happened for so long.
const QUIET: Duration = Duration::from_secs(1);
/// The longest time between two looks: a program may be statically linked, and a user may lower the value again.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// How often the count of OOM kills is read on cgroup v1, which has no event for it.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is killed. `spared` are the names of users whose processes are daemons or services; `run` is the run directory.
pub fn keep(spared: &[String], run: &Path) -> ! {
    // Without inotify (fs.inotify.max_user_instances is the host's) only the timeout remains.
    let starts = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
    let spared = people::uids(spared);
    let mut kills = Kills::watch(run);
    reserve::start(&spared, kills.planned());
    let mut interval = SHORT_PAUSE;
    loop {
        if let Some(starts) = &starts {
            // ldconfig replaces the file.
            let _ = starts.add_watch(LOADERS_CACHE, AddWatchFlags::IN_OPEN);
            let _ = starts.read_events();
        }
        // Before the list: a process that is killed afterwards is missing in the next one.
        let count = kills.read_count();
        let job_processes = proc::job_processes();
        people::raise_scores(&spared, &job_processes.processes);
        kills.update(count, job_processes);
        pause(interval);
        let begin = Instant::now();
        wait(starts.as_ref(), &kills);
        interval = if begin.elapsed() >= QUIET { SHORT_PAUSE } else { (interval * 2).min(LONGEST_PAUSE) };
    }
}

/// Waits for a new program, an OOM kill, or the longest time between two looks.
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

#[expect(clippy::disallowed_methods, reason = "it bounds what a flood of new processes, or a comment, costs")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
