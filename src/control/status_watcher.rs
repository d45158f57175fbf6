//! Waits for the next status file, without polling if inotify is available.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// How often the file is checked if no inotify watch is available (`fs.inotify.max_user_instances`).
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until PID 1 replaces the status file.
#[derive(Debug)]
pub struct StatusWatcher(Option<Inotify>);

impl StatusWatcher {
    /// Starts to watch this directory, into which PID 1 renames each new status file.
    pub fn of(directory: &Path) -> Self {
        let watch = || {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            inotify.add_watch(directory, AddWatchFlags::IN_MOVED_TO)?;
            nix::Result::Ok(inotify)
        };
        Self(watch().ok())
    }

    /// Waits up to `limit` for a new status file. May return earlier: a caller has to check the file itself.
    pub fn wait(&self, limit: Duration) {
        let limit = if self.0.is_some() { limit } else { limit.min(POLL_INTERVAL) };
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let mut fds: Vec<_> = self.0.iter().map(|inotify| PollFd::new(inotify.as_fd(), PollFlags::POLLIN)).collect();
        // An interrupted poll only makes the caller check sooner.
        let _ = poll(&mut fds, timeout);
        while self.0.as_ref().is_some_and(|inotify| inotify.read_events().is_ok()) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_renamed_file_as_change() {
        let directory = tempfile::tempdir().unwrap();
        let watcher = StatusWatcher::of(directory.path());
        let path = directory.path().join("status.json");
        std::fs::write(directory.path().join("new"), "x").unwrap();
        std::fs::rename(directory.path().join("new"), &path).unwrap();
        let start = std::time::Instant::now();
        watcher.wait(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
        watcher.wait(Duration::from_millis(1));
    }
}
