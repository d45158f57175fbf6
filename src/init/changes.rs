//! Watches the operator's configuration directory and /etc/passwd for changes.
//!
//! Uses inotify in the event loop, so nothing wakes up until something is written. A directory is also watched
//! through its parent, because it may appear later or be replaced as a whole. A file is also watched directly, because
//! a file that is bind-mounted alone sends its events to its own inode. Kubernetes replaces the symlink `..data`, not
//! the files.

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

/// The directory and name of the account database.
const ACCOUNTS: (&str, &str) = ("/etc", "passwd");

/// From now on, sends [`Event::AccountsChanged`], and [`Event::ConfigurationChanged`] if the operator enabled that. If
/// inotify is unavailable, logs that once.
pub(super) fn watch_for_changes(task: &Task, events: &UnboundedSender<Event>) {
    if !task.setup.has_cluster {
        return;
    }
    match Changes::new(task) {
        Ok(changes) => drop(tokio::task::spawn_local(changes.run(events.clone()))),
        Err(error) => warn(&message!(
            "files-not-watched",
            "cannot watch files for changes: {error}; raise the host's fs.inotify.max_user_instances, or use `slurminit reload`",
            error = error
        )),
    }
}

#[derive(Debug)]
struct Changes {
    inotify: Inotify,
    readable: AsyncFd<OwnedFd>,
    /// The watched directories and their parents.
    directories: BTreeMap<PathBuf, Option<WatchDescriptor>>,
    files: Vec<PathBuf>,
    names: Vec<OsString>,
    accounts: [Option<WatchDescriptor>; 2],
}

impl Changes {
    fn new(task: &Task) -> std::io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let readable = async_fd(inotify.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        let own = &task.paths.config;
        let mut files = Vec::new();
        if task.setup.supervise.reload_on_change {
            files.push(task.watched_file.clone().into());
            files.extend(FileName::ALL.iter().map(|name| own.join(name.as_str())));
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
        changes.look_again();
        Ok(changes)
    }

    async fn run(mut self, events: UnboundedSender<Event>) {
        while let Ok(mut guard) = self.readable.readable().await {
            let mut seen = Vec::new();
            while let Ok(more) = self.inotify.read_events() {
                seen.extend(more);
            }
            guard.clear_ready();
            drop(guard);
            let configuration = seen.iter().any(|event| self.is_of_configuration(event));
            let accounts = seen.iter().any(|event| self.is_of_accounts(event));
            if configuration || accounts {
                self.look_again();
            }
            if configuration {
                let _ = events.send(Event::ConfigurationChanged);
            }
            if accounts {
                let _ = events.send(Event::AccountsChanged);
            }
        }
    }

    fn is_of_configuration(&self, event: &InotifyEvent) -> bool {
        match &event.name {
            Some(name) => self.names.contains(name),
            // A file that is watched directly reports its own events.
            None => is_lost(event) || (!is_gone(event) && self.accounts[1] != Some(event.wd)),
        }
    }

    fn is_of_accounts(&self, event: &InotifyEvent) -> bool {
        match &event.name {
            Some(name) => self.accounts[0] == Some(event.wd) && name == ACCOUNTS.1,
            None => is_lost(event) || (!is_gone(event) && self.accounts[1] == Some(event.wd)),
        }
    }

    /// Watches whatever the paths refer to now. Existing watches are kept.
    fn look_again(&mut self) {
        let in_directory = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        for (directory, known) in &mut self.directories {
            let now = self.inotify.add_watch(directory, in_directory).ok();
            if let Some(gone) = known.filter(|_| now != *known) {
                // The kernel may have removed the watch already.
                let _ = self.inotify.rm_watch(gone);
            }
            *known = now;
        }
        for file in &self.files {
            // Most of the watched files do not exist.
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
fn is_lost(event: &InotifyEvent) -> bool {
    event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)
}

/// Whether the kernel dropped the watch. The event in the directory already covers it.
fn is_gone(event: &InotifyEvent) -> bool {
    event.mask.contains(AddWatchFlags::IN_IGNORED)
}
