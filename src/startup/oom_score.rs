//! Keeps `oom_score_adj` of jobs' and users' processes above that of the daemons.
//!
//! PID 1 runs this in a child for as long as the cluster lives. The kernel has no unprivileged event for a new
//! process. But each dynamically linked program opens the loader's cache when it starts, and that wakes this process.
//! Children inherit the raised value, so only the first process of a family has to be caught in time.

mod people;

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The first file that ld.so(8) opens.
const LOADERS_CACHE: &str = "/etc/ld.so.cache";
/// The pause after a look, so that a flood of new processes costs at most five looks per second.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest time between two looks, in ms: a program may be statically linked, and a user may lower the value again.
const AT_LEAST_EVERY: u16 = 5_000;

/// Runs until it is killed. `spared` are the names of users whose processes are daemons or services.
pub fn keep(spared: &[String]) -> ! {
    // Without inotify (fs.inotify.max_user_instances is the host's) only the timeout remains.
    let starts = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
    let spared = people::uids(spared);
    loop {
        if let Some(starts) = &starts {
            // ldconfig replaces the file.
            let _ = starts.add_watch(LOADERS_CACHE, AddWatchFlags::IN_OPEN);
            let _ = starts.read_events();
        }
        people::offer(&spared);
        pause();
        let mut news = starts.iter().map(|starts| PollFd::new(starts.as_fd(), PollFlags::POLLIN)).collect::<Vec<_>>();
        let _ = poll(&mut news, PollTimeout::from(AT_LEAST_EVERY));
    }
}

#[expect(clippy::disallowed_methods, reason = "it bounds what a flood of new processes costs")]
fn pause() {
    std::thread::sleep(PAUSE);
}
