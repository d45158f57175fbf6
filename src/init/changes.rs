//! Watches the operator's configuration files and /etc/passwd for changes.
//!
//! Uses inotify in the event loop, so nothing wakes up until something is written. A configuration directory is also
//! watched through its parent, because it may appear later or be replaced as a whole. A file is also watched directly,
//! because its directory gets no event if the file is bind-mounted on its own. Kubernetes replaces the symlink `..data`,
//! not the files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use crate::logs::warn;
use machine::Event;
use model::file_name::FileName;
use model::message;
use model::task::Task;
use sys::system_calls::async_fd;

const KUBERNETES_LINK: &str = "..data";

/// The directory and file name of the user database.
const ACCOUNTS: (&str, &str) = ("/etc", "passwd");

/// From now on, sends [`Event::AccountsChanged`] and, with `reload_on_change`, [`Event::ConfigurationChanged`]. Without
/// a cluster, nothing is watched. If inotify is unavailable, logs a warning and watches nothing.
pub(super) fn watch_for_changes(task: &Task, events: &UnboundedSender<Event>) {
    if !task.setup.has_cluster {
        return;
    }
    match ChangeWatcher::new(task) {
        Ok(changes) => drop(tokio::task::spawn_local(changes.run(events.clone()))),
        Err(error) => warn(&message!(
            "files-not-watched",
            "cannot watch files for changes: {error}; raise the host's fs.inotify.max_user_instances, or run `slurminit reload` after each \
             change of the configuration, and `slurminit environments` after each change of /etc/passwd",
            error
        )),
    }
}

#[derive(Debug)]
struct ChangeWatcher {
    inotify: Inotify,
    readable: AsyncFd<OwnedFd>,
    /// The watched directories and their parents.
    directories: BTreeMap<PathBuf, Option<WatchDescriptor>>,
    /// The configuration files that are watched directly.
    files: Vec<PathBuf>,
    /// The names of the files and directories whose events concern the configuration.
    names: Vec<OsString>,
    /// The watches of /etc and of /etc/passwd itself.
    accounts: [Option<WatchDescriptor>; 2],
}

impl ChangeWatcher {
    fn new(task: &Task) -> std::io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let readable = async_fd(inotify.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        let config_directory = &task.paths.config;
        let mut files = Vec::new();
        if task.setup.supervise.reload_on_change {
            files.push(task.watched_file.clone().into());
            files.extend(FileName::ALL.iter().map(|name| config_directory.join(name.as_str())));
        }
        let mut names: Vec<OsString> = vec![KUBERNETES_LINK.into()];
        names.extend(files.iter().filter_map(|file| file.file_name()).map(OsStr::to_owned));
        let mut directories = BTreeMap::new();
        for directory in files.iter().filter_map(|file| file.parent()) {
            directories.insert(directory.to_owned(), None);
            directories.insert(directory.parent().unwrap_or(Path::new("/")).to_owned(), None);
            names.extend(directory.file_name().map(OsStr::to_owned));
        }
        let mut changes = Self { inotify, readable, directories, files, names, accounts: [None; 2] };
        changes.update_watches();
        Ok(changes)
    }

    async fn run(mut self, events: UnboundedSender<Event>) {
        while let Ok(mut guard) = self.readable.readable().await {
            let mut batch = Vec::new();
            while let Ok(more) = self.inotify.read_events() {
                batch.extend(more);
            }
            guard.clear_ready();
            drop(guard);
            let is_configuration_changed = batch.iter().any(|event| self.concerns_configuration(event));
            let are_accounts_changed = batch.iter().any(|event| self.concerns_accounts(event));
            if is_configuration_changed || are_accounts_changed {
                self.update_watches();
            }
            if is_configuration_changed {
                let _ = events.send(Event::ConfigurationChanged);
            }
            if are_accounts_changed {
                let _ = events.send(Event::AccountsChanged);
            }
        }
    }

    fn concerns_configuration(&self, event: &InotifyEvent) -> bool {
        match &event.name {
            // Only /etc/passwd is watched.
            _ if self.files.is_empty() => false,
            Some(name) => self.names.contains(name),
            // The events of a directly watched file have no name.
            None => is_queue_overflow(event) || (!is_watch_removed(event) && self.accounts[1] != Some(event.wd)),
        }
    }

    fn concerns_accounts(&self, event: &InotifyEvent) -> bool {
        match &event.name {
            Some(name) => self.accounts[0] == Some(event.wd) && name == ACCOUNTS.1,
            None => is_queue_overflow(event) || (!is_watch_removed(event) && self.accounts[1] == Some(event.wd)),
        }
    }

    /// Watches the files and directories that the paths refer to now. A watch is kept if its path still refers to the
    /// same inode.
    fn update_watches(&mut self) {
        let in_directory = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        for (directory, watch) in &mut self.directories {
            let new_watch = self.inotify.add_watch(directory, in_directory).ok();
            if let Some(old_watch) = watch.filter(|_| new_watch != *watch) {
                // The kernel may have removed the watch already.
                let _ = self.inotify.rm_watch(old_watch);
            }
            *watch = new_watch;
        }
        for file in &self.files {
            // A failure is ignored, because most of these files do not exist.
            let _ = self.inotify.add_watch(file, AddWatchFlags::IN_CLOSE_WRITE);
        }
        let (directory, name) = (Path::new(ACCOUNTS.0), ACCOUNTS.1);
        self.accounts = [
            self.inotify.add_watch(directory, in_directory).ok(),
            self.inotify.add_watch(&directory.join(name), AddWatchFlags::IN_CLOSE_WRITE).ok(),
        ];
    }
}

/// Whether the kernel's event queue overflowed.
fn is_queue_overflow(event: &InotifyEvent) -> bool {
    event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)
}

/// Whether the kernel removed the watch. The event of the parent directory already reports the change.
fn is_watch_removed(event: &InotifyEvent) -> bool {
    event.mask.contains(AddWatchFlags::IN_IGNORED)
}
