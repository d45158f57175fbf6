//! Memory that becomes free when the container's limit is reached.
//!
//! The kernel kills processes when memory runs out, but files in a tmpfs stay: the next process is killed, and at last PID 1. So a child
//! keeps some memory, and is the first that the kernel kills (`oom_score_adj` 1000). Its end is the event that memory has run out, and what
//! it had is enough for emptying the files of the user who has most of them. Only where the tmpfs mounts can exceed the limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::printable::{count, short};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::people::{self, FIRST_USER_UID};
use crate::stopped::{self, Stopped};
use model::message;
use probe::{memory, tmpfs};
use sys::leftovers::Handle;
use sys::open_files::{self, Process, SearchTarget};
use sys::proc::{self, parse};
use sys::report;
use sys::system_calls::pidfd_open;
use sys::unnamed_files::{self, UnnamedFile};
use sys::users;
use watch::memory_use::{self, FileInMemory};

/// Maximum size of the reserve in MiB: what a process can fill before it is stopped.
const MAX_RESERVE_MIB: u64 = 64;
/// The reserve is at most the container's limit divided by this.
const LIMIT_FRACTION: u64 = 8;
/// Files are emptied until this much is free, in percent.
const ENOUGH_FREE_PERCENT: u64 = 25;
/// The limit for the start of the child, in ms.
const START_TIMEOUT_MS: u16 = 1_000;
/// The pause before another attempt to keep memory.
const PAUSE: Duration = Duration::from_secs(1);

/// What is done when memory has run out.
#[derive(Debug)]
struct Reserve {
    mib: u64,
    limit_mib: u64,
    spared: BTreeSet<u32>,
    /// How often memory has run out because of files.
    shortages: u32,
}

/// Starts a thread that reacts at once when memory has run out; `planned` counts the kills of its child. Not where files in memory cannot
/// exceed the container's limit, and not before Linux 5.3.
pub(super) fn start(spared: &BTreeSet<u32>, planned: Arc<AtomicU64>) {
    let root = Path::new("/");
    let found = memory::detect(root);
    if let Some(limit_mib) = found.limit_mib.filter(|_| tmpfs::detect(root, &found).is_some()) {
        let mib = MAX_RESERVE_MIB.min(limit_mib / LIMIT_FRACTION);
        let reserve = Reserve { mib, limit_mib, spared: spared.clone(), shortages: 0 };
        // Without a thread there is no reserve.
        let _ = std::thread::Builder::new().spawn(move || reserve.run(&planned));
    }
}

impl Reserve {
    fn run(mut self, planned: &AtomicU64) -> ! {
        let (mut child, mut is_short) = (None, false);
        // Starting a process takes as long as filling the reserve.
        let mut stopped = Stopped::prepared();
        loop {
            child = child.or_else(|| self.start_child());
            let Some((process, descriptor)) = &mut child else {
                // Nothing was freed, or it was filled again before the child ran.
                if is_short {
                    self.free_memory(&mut stopped);
                    std::mem::replace(&mut stopped, Stopped::prepared()).finish();
                }
                pause();
                continue;
            };
            is_short = false;
            let _ = poll(&mut [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
            let status = process.try_wait().ok().flatten();
            child = None;
            if status.is_some_and(|status| status.signal() == Some(Signal::SIGKILL as i32)) {
                planned.fetch_add(1, Ordering::Relaxed);
                self.free_memory(&mut stopped);
                is_short = true;
                // There is memory again for the next time before the processes run.
                child = self.start_child();
                std::mem::replace(&mut stopped, Stopped::prepared()).finish();
            }
        }
    }

    /// `None` while there is too little memory.
    fn start_child(&self) -> Option<(Child, OwnedFd)> {
        let free = memory::sample(Path::new("/"))?.free_mib;
        (free >= 2 * self.mib).then(|| start_child(self.mib).ok().flatten())?
    }
}

#[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and may have children")]
fn start_child(mib: u64) -> io::Result<Option<(Child, OwnedFd)>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["oom-score", "--reserve", &mib.to_string()]).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(output) = child.stdout.take() {
        // The helper writes a line when it has the memory.
        let _ = poll(&mut [PollFd::new(output.as_fd(), PollFlags::POLLIN)], PollTimeout::from(START_TIMEOUT_MS));
    }
    let descriptor = i32::try_from(child.id()).ok().and_then(pidfd_open);
    Ok(descriptor.map(|descriptor| (child, descriptor)))
}

/// The child: keeps so much memory until its parent ends.
pub fn keep_memory(mib: u64) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "1000")?;
    let memory = vec![1_u8; usize::try_from(mib << 20).unwrap_or_default()];
    // A parent that has stopped waiting on a slow machine has closed the pipe.
    let _ = writeln!(io::stdout(), "ready");
    let mut end = [0];
    // Standard input is a pipe that nothing is written to.
    let _ = io::Read::read(&mut io::stdin(), &mut end);
    drop(std::hint::black_box(memory));
    Ok(())
}

/// A user's memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    files: u64,
    processes: u64,
}

/// The user with most memory, if it is mostly files and these are at least `minimum` bytes. Otherwise the kernel's kills free memory, and a
/// user whose processes fill it must not have the files of another one emptied.
fn user_of_files(usage: &BTreeMap<u32, Usage>, minimum: u64) -> Option<(u32, u64)> {
    let (uid, highest) = usage.iter().max_by_key(|(_, usage)| usage.files + usage.processes)?;
    (highest.files >= highest.processes && highest.files >= minimum).then_some((*uid, highest.files))
}

/// Anonymous memory of the process, in bytes.
fn private_bytes(pid: i32) -> u64 {
    let status = proc::status(pid).unwrap_or_default();
    let kib = parse::field(&status, "RssAnon").and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

impl Reserve {
    /// Empties files of the user who has most memory, and ends this user's processes that have them open, or hide what they have open.
    /// The processes of users stay stopped.
    fn free_memory(&mut self, stopped: &mut Stopped) {
        let is_users = |uid: u32| uid >= FIRST_USER_UID && !self.spared.contains(&uid);
        stopped.stop_users(is_users);
        let all = open_files::user_processes();
        let mut files: Vec<FileInMemory> =
            memory_use::writable_tmpfs().iter().flat_map(|place| memory_use::files(place)).collect();
        files.retain(|file| is_users(file.uid));
        let mut usage: BTreeMap<u32, Usage> = BTreeMap::new();
        for file in &files {
            usage.entry(file.uid).or_default().files += file.bytes;
        }
        let unnamed = unnamed_files_of(&all);
        for file in unnamed.iter().map(|(_, file)| file).collect::<BTreeSet<_>>() {
            usage.entry(file.owner).or_default().files += file.bytes;
        }
        for process in all.iter().filter(|process| is_users(process.uid)) {
            usage.entry(process.uid).or_default().processes += private_bytes(process.pid);
        }
        let Some((uid, bytes)) = user_of_files(&usage, (self.limit_mib << 20) / LIMIT_FRACTION) else {
            // Processes have the memory: the kernel ends them, and that frees it.
            return;
        };
        // If the next time memory is filled faster than this takes, the kernel's choice is this user's.
        people::raise_user_scores(uid);
        files.retain(|file| file.uid == uid && file.bytes > 0);
        files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        let sample = || memory::sample(Path::new("/"));
        let is_enough = || sample().is_some_and(|sample| sample.free_percent() >= ENOUGH_FREE_PERCENT);
        let emptied: Vec<FileInMemory> =
            files.into_iter().take_while(|_| !is_enough()).filter(|file| empty(file).is_ok()).collect();
        let paths: BTreeSet<String> = emptied.iter().filter_map(|file| Some(file.path.to_str()?.to_owned())).collect();
        let own_processes = all.into_iter().filter(|process| process.uid == uid).collect();
        let writers = open_files::find(own_processes, &SearchTarget::Files(paths));
        let mut ended = stopped::handles(writers.proven.into_iter().chain(writers.hidden).collect());
        ended.iter().for_each(|(_, handle)| kill(handle));
        // A file without a name is freed when the last process that has it open ends.
        for (process, _) in unnamed.into_iter().filter(|(process, file)| process.uid == uid && file.owner == uid) {
            if !is_enough() && ended.iter().all(|(other, _)| other.key() != process.key()) {
                let handles = stopped::handles(vec![process]);
                handles.iter().for_each(|(_, handle)| kill(handle));
                ended.extend(handles);
            }
        }
        self.shortages += 1;
        // A user who fills memory for days must not fill the log.
        if self.shortages.is_power_of_two() {
            let freed = emptied.iter().map(|file| file.bytes).sum::<u64>() >> 20;
            let first = emptied.first().map(|file| short(&file.path.display().to_string(), 200));
            let first =
                first.map(|path| format!("emptied {} of {freed} MiB, such as {path}, ", count(emptied.len(), "file")));
            report::warn(message!(
                "memory-ran-out",
                "memory ran out: {user} had {used} MiB of files (limit {limit} MiB); {emptied}killed {processes}",
                user = users::display_name(uid),
                used = bytes >> 20,
                limit = self.limit_mib,
                emptied = first.unwrap_or_default(),
                processes =
                    if ended.len() == 1 { "1 process".to_owned() } else { format!("{} processes", ended.len()) },
            ));
            report::info(message!(
                "repair",
                "repair: give each tmpfs and /dev/shm a size that leaves the daemons 64 MiB"
            ));
        }
    }
}

fn kill(handle: &Handle) {
    handle.send(Signal::SIGKILL);
    stopped::await_end(handle);
}

/// The files in memory without a name that these have open, the largest first.
fn unnamed_files_of(all: &[Process]) -> Vec<(Process, UnnamedFile)> {
    let devices: BTreeSet<u64> =
        memory_use::writable_tmpfs().iter().filter_map(|place| Some(place.symlink_metadata().ok()?.dev())).collect();
    let files = unnamed_files::find(all.to_vec()).into_iter();
    let files = files.flat_map(|(process, files)| files.into_iter().map(move |file| (process.clone(), file)));
    let mut files: Vec<_> = files.filter(|(_, file)| file.is_memfd || devices.contains(&file.device)).collect();
    files.sort_by_key(|(_, file)| std::cmp::Reverse(file.bytes));
    files
}

#[expect(clippy::disallowed_methods, reason = "there is no event for free memory")]
fn pause() {
    std::thread::sleep(PAUSE);
}

/// Empties a file that processes may have open, so that its memory is free at once. Its path may lead elsewhere by now.
fn empty(file: &FileInMemory) -> io::Result<()> {
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(&file.path)?;
    let metadata = found.metadata()?;
    if !metadata.is_file() || (metadata.uid(), metadata.ino()) != (file.uid, file.inode) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file: File = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    file.set_len(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empties_files_only_if_largest_user_has_mostly_files() {
        let selected = |users: &[(u32, u64, u64)]| {
            let usage =
                users.iter().map(|(uid, files, processes)| (*uid, Usage { files: *files, processes: *processes }));
            user_of_files(&usage.collect(), 64)
        };
        assert_eq!(selected(&[(1, 300, 10), (2, 200, 0)]), Some((1, 300)));
        assert_eq!(selected(&[(1, 0, 300), (2, 200, 0)]), None, "user 1 uses the most memory, in processes");
        assert_eq!(selected(&[(1, 63, 0)]), None);
        assert_eq!(selected(&[(1, 100, 101)]), None);
        assert_eq!(selected(&[]), None);
    }

    #[test]
    fn empties_only_file_that_was_found() {
        let directory = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| directory.path().join(name));
        for path in [&path, &other] {
            std::fs::write(path, "text").unwrap();
        }
        let found = memory_use::files(directory.path());
        let file = found.iter().find(|file| file.path == path).unwrap();
        std::fs::rename(&path, directory.path().join("moved")).unwrap();
        assert!(empty(file).is_err());
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(empty(file).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(empty(file).is_err(), "a different inode");
        std::fs::rename(directory.path().join("moved"), &path).unwrap();
        empty(file).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
