//! Attributes the container's memory to users and jobs: processes, and files in a tmpfs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use sys::proc::parse::Mount;
use sys::proc::{self, Stat, parse};

/// The limit for reading all processes, and for reading all files.
const DEADLINE: Duration = Duration::from_secs(1);
/// The maximum number of files read. A user can create any number.
const MAX_FILES: usize = 200_000;
/// Users named in a message.
const MAX_NAMED: usize = 3;
/// How much of an environment is read.
const MAX_ENVIRONMENT: u64 = 1 << 20;

/// A process, or processes in sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The real user.
    pub uid: u32,
    /// The job: that of its slurmstepd, or else the one in its environment, which its user can choose.
    pub job: Option<u64>,
    /// Bytes, with its share of what it shares with others.
    pub bytes: u64,
}

/// A user's memory in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMemory {
    processes: u64,
    /// By mount point.
    files: BTreeMap<PathBuf, u64>,
}

impl UserMemory {
    fn sum(&self) -> u64 {
        self.files.values().sum::<u64>() + self.processes
    }
}

/// The memory of the container's processes, except those of root outside of jobs.
pub fn processes() -> Vec<ProcessMemory> {
    let all: BTreeMap<i32, Stat> = proc::pids().filter_map(|pid| Some((pid, proc::stat(pid)?))).collect();
    let mut found = Vec::new();
    for (pid, stat) in &all {
        let Some(status) = proc::status(*pid).filter(|_| !stat.is_dead()) else { continue };
        let (Some([uid]), Some([_, gid])) = (parse::numbers(&status, "Uid"), parse::numbers(&status, "Gid")) else {
            continue;
        };
        let job = job_above(&all, stat);
        if uid != 0 || job.is_some() {
            // Memory of a process that hides from its own user counts in full.
            let kib = ["RssAnon", "RssShmem"].iter().filter_map(|key| kib(&status, key)).sum::<u64>();
            found.push((*pid, gid, ProcessMemory { uid, job, bytes: kib << 10 }));
        }
    }
    let (deadline, processes) = (Instant::now() + DEADLINE, found.clone());
    let (sender, receiver) = mpsc::channel();
    let is_root = Uid::effective().is_root();
    // Root without CAP_SYS_PTRACE reads these files with the user's ID for file access. If the thread hangs, it ends with the program.
    let thread = std::thread::Builder::new().spawn(move || {
        for (pid, gid, memory) in processes {
            if is_root {
                setfsgid(Gid::from_raw(gid));
                setfsuid(Uid::from_raw(memory.uid));
            }
            if sender.send((share(pid), memory.job.or_else(|| job_of_environment(pid)))).is_err() {
                return;
            }
        }
    });
    let mut answers = thread.ok().map(|_| receiver);
    for (_, _, memory) in &mut found {
        let answer =
            answers.as_ref().map(|receiver| receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())));
        match answer {
            Some(Ok((bytes, job))) => {
                memory.bytes = bytes.unwrap_or(memory.bytes);
                memory.job = job;
            }
            _ => answers = None,
        }
    }
    found.into_iter().map(|(_, _, memory)| memory).collect()
}

fn job_above(all: &BTreeMap<i32, Stat>, stat: &Stat) -> Option<u64> {
    let parents = std::iter::successors(all.get(&stat.parent), |stat| all.get(&stat.parent)).take(all.len());
    parents.filter_map(proc::step_title).find_map(|title| Some(parse::step(&title)?.0.into()))
}

/// The process's proportional share of memory that is not the cache of a file on disk.
fn share(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let parts = ["Pss_Anon", "Pss_Shmem"].iter().map(|key| kib(&text, key)).sum::<Option<u64>>();
    // Before Linux 5.9 there is only the sum with such caches.
    Some(parts.or_else(|| kib(&text, "Pss"))? << 10)
}

fn kib(text: &str, key: &str) -> Option<u64> {
    parse::field(text, key)?.strip_suffix("kB")?.trim().parse().ok()
}

fn job_of_environment(pid: i32) -> Option<u64> {
    use std::io::Read as _;
    let mut environment = Vec::new();
    fs::File::open(format!("/proc/{pid}/environ")).ok()?.take(MAX_ENVIRONMENT).read_to_end(&mut environment).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"SLURM_JOB_ID="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Bytes by user, of processes and of files in memory.
pub fn by_user(processes: &[ProcessMemory]) -> BTreeMap<Option<u32>, UserMemory> {
    let mut users: BTreeMap<Option<u32>, UserMemory> = BTreeMap::new();
    for process in processes {
        users.entry(Some(process.uid)).or_default().processes += process.bytes;
    }
    for mount in writable_tmpfs() {
        let mut by_owner: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for file in files(&mount) {
            *by_owner.entry(Some(file.uid)).or_default() += file.bytes;
        }
        // Deleted files that a process has open, and what the limits left out.
        let used = statvfs(&mount)
            .map_or(0, |disk| disk.blocks().saturating_sub(disk.blocks_free()).saturating_mul(disk.fragment_size()));
        let unattributed = used.saturating_sub(by_owner.values().sum());
        for (uid, bytes) in by_owner.into_iter().chain([(None, unattributed)]) {
            *users.entry(uid).or_default().files.entry(mount.clone()).or_default() += bytes;
        }
    }
    users
}

/// The mount points of file systems in memory that users may write to.
pub fn writable_tmpfs() -> Vec<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_writable = |mount: &Mount<'_>| mount.kind == "tmpfs" && !mount.read_only && mount.at != "/dev";
    Mount::all(&mountinfo).filter(is_writable).map(|mount| PathBuf::from(mount.at)).collect()
}

/// A file, or directory, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInMemory {
    /// The owner, which only root can change.
    pub uid: u32,
    /// The path, which its owner may have changed since.
    pub path: PathBuf,
    /// The number of the file in its file system.
    pub inode: u64,
    /// The memory that the file occupies, in bytes.
    pub bytes: u64,
}

/// The files below a mount point. Follows no link and stays in the file system; a file with several names counts once.
pub fn files(mount: &Path) -> Vec<FileInMemory> {
    let deadline = Instant::now() + DEADLINE;
    let Ok(top) = mount.symlink_metadata() else { return Vec::new() };
    let (mut all, mut seen, mut waiting) = (Vec::new(), BTreeSet::new(), vec![mount.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if seen.len() >= MAX_FILES || Instant::now() >= deadline {
                return all;
            }
            let Ok(found) = entry.metadata() else { continue };
            if found.dev() == top.dev() && seen.insert(found.ino()) {
                if found.is_dir() {
                    waiting.push(entry.path());
                }
                let (uid, inode, bytes) = (found.uid(), found.ino(), found.blocks() * 512);
                all.push(FileInMemory { uid, path: entry.path(), inode, bytes });
            }
        }
    }
    all
}

/// The users with the most memory: `alice (uid 1000): 400 MiB of files in /dev/shm, 10 MiB of processes`.
pub fn describe_users(users: &BTreeMap<Option<u32>, UserMemory>, name: impl Fn(u32) -> String) -> String {
    let mut top_users: Vec<_> = users.iter().filter(|(_, memory)| memory.sum() >= 1 << 20).collect();
    top_users.sort_by_key(|(_, memory)| std::cmp::Reverse(memory.sum()));
    let descriptions = top_users.into_iter().take(MAX_NAMED).map(|(uid, memory)| {
        let files = memory.files.iter().filter(|(_, bytes)| **bytes >= 1 << 20);
        let files = files.map(|(mount, bytes)| format!("{} MiB of files in {}", bytes >> 20, mount.display()));
        let processes = (memory.processes >= 1 << 20).then(|| format!("{} MiB of processes", memory.processes >> 20));
        let parts: Vec<String> = files.chain(processes).collect();
        format!("{}: {}", uid.map_or_else(|| "deleted, but open".to_owned(), &name), parts.join(", "))
    });
    descriptions.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_share_includes_allocated_memory() {
        let filled = vec![1_u8; 64 << 20];
        let own = share(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own >= 64 << 20, "{own}");
        drop(filled);
        assert_eq!(kib("Rss: 1 kB\nPss:    12 kB\n", "Pss"), Some(12));
    }

    #[test]
    fn counts_hard_links_once_and_follows_no_symlink() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        fs::hard_link(&file, directory.path().join("other")).unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("below/link")).unwrap();
        let bytes: u64 = files(directory.path()).iter().map(|file| file.bytes).sum();
        assert!((1 << 20..(1 << 20) + 100_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn lists_users_by_memory_use() {
        let user = |processes: u64, files: &[(&str, u64)]| UserMemory {
            processes: processes << 20,
            files: files.iter().map(|(place, mib)| (PathBuf::from(place), mib << 20)).collect(),
        };
        let users = [
            (Some(1), user(5, &[("/dev/shm", 0)])),
            (Some(2), user(7, &[("/dev/shm", 300), ("/tmp", 2)])),
            (None, user(0, &[("/dev/shm", 9)])),
            (Some(3), user(0, &[])),
        ];
        assert_eq!(
            describe_users(&users.into(), |uid| format!("u{uid}")),
            "u2: 300 MiB of files in /dev/shm, 2 MiB of files in /tmp, 7 MiB of processes; \
             deleted, but open: 9 MiB of files in /dev/shm; u1: 5 MiB of processes"
        );
    }
}
