//! Attributes the container's memory to users and jobs: processes, and files in a tmpfs. Also attributes the space of a directory to users.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::stat::makedev;
use nix::sys::statvfs::statvfs;

use sys::proc::parse::Mount;
use sys::proc::{self, Process, Processes, parse};

/// The time limit for reading all processes, and for reading the files of a tmpfs.
const DEADLINE: Duration = Duration::from_secs(1);
/// The maximum number of files and directories read in a tmpfs. A user can create any number of files.
const MAX_FILES: usize = 200_000;
/// The maximum number of files and directories to read in a limited directory.
const MAX_ENTRIES: u32 = 1_000_000;
/// The maximum number of users named in a message.
const MAX_NAMED: usize = 3;
/// The maximum number of bytes to read from a process's environment.
const MAX_ENVIRONMENT: u64 = 1 << 20;

/// The memory of the container's users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// The processes, except those of root outside of jobs.
    pub processes: Vec<ProcessMemory>,
    /// The memory of each user. `None` is the memory of files that are not attributed: beyond the limits, or deleted and not mapped by
    /// exactly one user.
    pub users: BTreeMap<Option<u32>, UserMemory>,
}

/// The memory of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The real user.
    pub uid: u32,
    /// The job: that of its slurmstepd, or else the one in its environment, which its user can choose.
    pub job: Option<u64>,
    /// Bytes, including the process's share of shared memory. Files of other users are not counted, because one user could use them to make
    /// another's job exceed its request. If the process's mappings cannot be read, all of its shared memory is counted.
    pub bytes: u64,
}

/// A file in memory: device number and inode.
type FileId = (u64, u64);

/// The files in a tmpfs that a process has mapped, with its share of each in bytes.
type Mapped = Vec<(FileId, u64)>;

/// A file system in memory that users may write to.
#[derive(Debug)]
struct Tmpfs {
    mount: PathBuf,
    device: u64,
    /// Bytes of all files, including deleted files that are still open.
    used: u64,
    files: Vec<FileInMemory>,
}

/// A user's memory in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMemory {
    processes: u64,
    /// Bytes of files that are not part of `processes`, by mount point or directory.
    files: BTreeMap<PathBuf, u64>,
}

impl UserMemory {
    /// A user with this many bytes of files below a directory, and no processes.
    pub fn of_files(directory: &Path, bytes: u64) -> Self {
        Self { processes: 0, files: [(directory.to_owned(), bytes)].into() }
    }

    /// Bytes of processes and files.
    pub fn sum(&self) -> u64 {
        self.files.values().sum::<u64>() + self.processes
    }
}

/// Reads the memory of processes and files, and attributes it to users.
pub fn read() -> MemoryUse {
    let all = tmpfs();
    let devices = all.iter().map(|tmpfs| tmpfs.device).collect();
    attribute(processes(devices), &all)
}

/// The processes, each with the files that it has mapped from the tmpfs with these device numbers.
fn processes(devices: BTreeSet<u64>) -> Vec<(ProcessMemory, Mapped)> {
    let all = Processes::read();
    let is_counted = |process: &&Process| !process.is_dead && (process.uid != 0 || all.job(process).is_some());
    let counted: Vec<Process> = all.iter().filter(is_counted).cloned().collect();
    let read = move |pid| (share(pid, &devices), job_of_environment(pid));
    let shares = proc::read_as_owner(&counted, Instant::now() + DEADLINE, read);
    let mut found = Vec::new();
    for (process, read) in counted.iter().zip(shares) {
        let (share, claimed_job) = read.unwrap_or_default();
        let job = all.job(process).map(u64::from).or(claimed_job);
        let (bytes, mapped) = share.unwrap_or_else(|| (own_bytes(process.pid), Mapped::new()));
        found.push((ProcessMemory { uid: process.uid, job, bytes }, mapped));
    }
    found
}

/// Memory of a process whose mappings cannot be read, in bytes. Shared memory is counted in full.
fn own_bytes(pid: i32) -> u64 {
    let status = proc::status(pid).unwrap_or_default();
    ["RssAnon", "RssShmem"].iter().filter_map(|key| kib(&status, key)).sum::<u64>() << 10
}

/// The process's proportional share of memory, without the cache of files on disk, and the part of it that is in files on these devices.
fn share(pid: i32, devices: &BTreeSet<u64>) -> Option<(u64, Mapped)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let shared = kib(&text, "Pss_Shmem");
    // Older kernels report only a sum that includes this cache.
    let parts = kib(&text, "Pss_Anon").zip(shared).map(|(anonymous, shared)| anonymous + shared);
    let bytes = parts.or_else(|| kib(&text, "Pss"))? << 10;
    let maps = if shared == Some(0) { None } else { fs::read_to_string(format!("/proc/{pid}/smaps")).ok() };
    Some((bytes, mapped_files(&maps.unwrap_or_default(), devices)))
}

/// The files on `devices` that a process has mapped, from /proc/PID/smaps. Each mapping has a line with address, rights, offset, device,
/// inode and path, and then lines such as `Pss: 4 kB`.
fn mapped_files(smaps: &str, devices: &BTreeSet<u64>) -> Mapped {
    let (mut mapped, mut is_on_device) = (Mapped::new(), false);
    for line in smaps.lines() {
        if line.starts_with(|first: char| first.is_ascii_digit() || first.is_ascii_lowercase()) {
            let file = file_of_mapping(line).filter(|(device, _)| devices.contains(device));
            is_on_device = file.is_some();
            mapped.extend(file.map(|file| (file, 0)));
        } else if let Some((_, bytes)) = mapped.last_mut().filter(|_| is_on_device) {
            // A private mapping has its own copies of changed pages.
            *bytes += kib(line, "Pss").unwrap_or_default() << 10;
            *bytes = bytes.saturating_sub(kib(line, "Anonymous").unwrap_or_default() << 10);
        }
    }
    mapped
}

/// Parses `7f0e8f400000-7f0e8f600000 rw-s 00000000 00:2f 12 /dev/shm/file`.
fn file_of_mapping(line: &str) -> Option<FileId> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((makedev(number(major)?, number(minor)?), fields.next()?.parse().ok()?))
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

/// Attributes a mapped file to the processes of its owner that have mapped it, or, if it is deleted, to the only user who has mapped it.
/// The rest is attributed to the owner as files.
fn attribute(processes: Vec<(ProcessMemory, Mapped)>, all: &[Tmpfs]) -> MemoryUse {
    let owner = |tmpfs: &Tmpfs, file: &FileInMemory| ((tmpfs.device, file.inode), file.uid);
    let owners: BTreeMap<FileId, u32> =
        all.iter().flat_map(|tmpfs| tmpfs.files.iter().map(|file| owner(tmpfs, file))).collect();
    let mut mappers: BTreeMap<FileId, BTreeSet<u32>> = BTreeMap::new();
    for (process, mapped) in &processes {
        for (file, _) in mapped {
            mappers.entry(*file).or_default().insert(process.uid);
        }
    }
    let mut found = MemoryUse::default();
    let mut in_processes: BTreeMap<(u64, Option<u32>), u64> = BTreeMap::new();
    for (mut process, mapped) in processes {
        for (file, bytes) in mapped {
            let owner = owners.get(&file).copied();
            let is_own = owner
                .map_or_else(|| mappers.get(&file).is_some_and(|users| users.len() == 1), |uid| uid == process.uid);
            match is_own {
                true => *in_processes.entry((file.0, owner)).or_default() += bytes,
                false => process.bytes = process.bytes.saturating_sub(bytes),
            }
        }
        found.users.entry(Some(process.uid)).or_default().processes += process.bytes;
        found.processes.push(process);
    }
    for tmpfs in all {
        let mut by_owner: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for file in &tmpfs.files {
            *by_owner.entry(Some(file.uid)).or_default() += file.bytes;
        }
        // Deleted files, and files beyond the limits.
        by_owner.insert(None, tmpfs.used.saturating_sub(by_owner.values().sum()));
        for (uid, bytes) in by_owner {
            let bytes = bytes.saturating_sub(in_processes.get(&(tmpfs.device, uid)).copied().unwrap_or_default());
            found.users.entry(uid).or_default().files.insert(tmpfs.mount.clone(), bytes);
        }
    }
    found
}

/// Bytes of all files in memory, except those without a file system (memfd_create(2)), which end with their processes.
pub fn bytes_of_files() -> u64 {
    tmpfs().iter().map(|tmpfs| tmpfs.used).sum()
}

/// The file systems in memory that users may write to, each once.
fn tmpfs() -> Vec<Tmpfs> {
    let mut devices = BTreeSet::new();
    let read = |mount: PathBuf| {
        let device = mount.symlink_metadata().ok()?.dev();
        let used = statvfs(&mount)
            .map_or(0, |disk| disk.blocks().saturating_sub(disk.blocks_free()).saturating_mul(disk.fragment_size()));
        devices.insert(device).then(|| Tmpfs { device, used, files: files(&mount), mount })
    };
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    writable_tmpfs(&mountinfo).into_iter().filter_map(read).collect()
}

/// The mount points of file systems in memory that users may write to.
fn writable_tmpfs(mountinfo: &str) -> Vec<PathBuf> {
    let is_writable = |mount: &Mount<'_>| mount.kind == "tmpfs" && !mount.read_only && mount.at != "/dev";
    Mount::all(mountinfo).filter(is_writable).map(|mount| PathBuf::from(mount.at)).collect()
}

/// A file or directory in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileInMemory {
    /// The owner, which only root can change.
    uid: u32,
    /// The inode number.
    inode: u64,
    /// The memory that the file occupies, in bytes.
    bytes: u64,
}

/// The files below a mount point, up to [`MAX_FILES`] and within [`DEADLINE`]. A file with several names is counted once.
fn files(mount: &Path) -> Vec<FileInMemory> {
    let deadline = Instant::now() + DEADLINE;
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    walk(mount, |found| {
        if seen.insert(found.ino()) {
            let (uid, inode, bytes) = (found.uid(), found.ino(), found.blocks() * 512);
            all.push(FileInMemory { uid, inode, bytes });
        }
        seen.len() < MAX_FILES && Instant::now() < deadline
    });
    all
}

/// The bytes of each user's files below a directory on a disk; `None` if the directory is missing or has too many files. A file that was
/// deleted while open is not counted. The kubelet does not count it either, unless it uses quotas.
pub fn of_directory(directory: &Path) -> Option<BTreeMap<u32, u64>> {
    let (mut users, mut left) = (BTreeMap::new(), MAX_ENTRIES);
    let is_complete = walk(directory, |found| {
        // A file with several names is counted in parts, one for each name.
        *users.entry(found.uid()).or_default() +=
            found.blocks() * 512 / if found.is_dir() { 1 } else { found.nlink().max(1) };
        left -= 1;
        left > 0
    });
    is_complete.then_some(users)
}

/// Calls `each` for every file and directory below `top`, until `each` returns `false`. Follows no links and does not leave the file
/// system. Returns `false` if `top` does not exist, or `each` returned `false`.
fn walk(top: &Path, mut each: impl FnMut(&fs::Metadata) -> bool) -> bool {
    let Ok(found) = top.symlink_metadata() else { return false };
    let device = found.dev();
    let mut waiting = vec![(top.to_owned(), found.ino())];
    while let Some((path, inode)) = waiting.pop() {
        for entry in read_directory(&path, (device, inode)).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.dev() != device {
                continue;
            }
            if found.is_dir() {
                waiting.push((path.join(entry.file_name()), found.ino()));
            }
            if !each(&found) {
                return false;
            }
        }
    }
    true
}

/// Reads a directory. Fails if a user has replaced the directory or a parent with another directory or a link, so that other users' files
/// would be counted.
fn read_directory(path: &Path, (device, inode): (u64, u64)) -> std::io::Result<fs::ReadDir> {
    let directory = fs::File::options().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(path)?;
    let found = directory.metadata()?;
    if (found.dev(), found.ino()) != (device, inode) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))
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
        format!(
            "{}: {}",
            uid.map_or_else(
                || "unknown user (deleted files that are open, or too many files to read)".to_owned(),
                &name
            ),
            parts.join(", ")
        )
    });
    descriptions.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    const USER: u32 = 4711;

    #[test]
    fn own_process_share_includes_allocated_memory() {
        let filled = vec![1_u8; 64 << 20];
        let (own, mapped) = share(i32::try_from(std::process::id()).unwrap(), &BTreeSet::new()).unwrap();
        assert!(own >= 64 << 20 && mapped.is_empty(), "{own}");
        drop(filled);
        assert_eq!(kib("Rss: 1 kB\nPss:    12 kB\n", "Pss"), Some(12));
    }

    /// Without the right to read its mappings, all of a process's own memory is counted.
    #[test]
    fn own_memory_of_a_process_is_in_bytes() {
        let filled = vec![1_u8; 64 << 20];
        let bytes = own_bytes(i32::try_from(std::process::id()).unwrap());
        assert!((64 << 20..1 << 30).contains(&bytes), "{bytes}");
        drop(filled);
        assert_eq!(own_bytes(i32::MAX), 0);
    }

    #[test]
    fn users_write_to_tmpfs_except_dev_and_read_only_ones() {
        let mount = |at: &str, options: &str, kind: &str| format!("30 23 0:26 / {at} {options} - {kind} {kind} rw\n");
        let mounts = [
            mount("/", "rw,relatime", "overlay"),
            mount("/dev", "rw,nosuid", "tmpfs"),
            mount("/dev/shm", "rw,nosuid", "tmpfs"),
            mount("/run/secrets", "ro,relatime", "tmpfs"),
            mount("/scratch", "rw", "ext4"),
            mount("/tmp", "rw", "tmpfs"),
        ];
        assert_eq!(writable_tmpfs(&mounts.concat()), ["/dev/shm", "/tmp"].map(PathBuf::from));
    }

    #[test]
    fn file_in_shared_memory_counts_for_its_owner() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        fs::write(file.path(), vec![1; 8 << 20]).unwrap();
        assert!(bytes_of_files() >= 8 << 20);
        let own = read().users.remove(&Some(nix::unistd::geteuid().as_raw())).unwrap();
        assert!(own.files.get(Path::new("/dev/shm")).is_some_and(|bytes| *bytes >= 8 << 20), "{own:?}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for a child")]
    fn counts_processes_of_users_and_not_those_of_root() {
        let is_root = nix::unistd::geteuid().is_root();
        let mut child = std::process::Command::new("cat");
        child.stdin(std::process::Stdio::piped());
        if is_root {
            child.uid(USER);
        }
        let mut child = child.spawn().unwrap();
        let users: BTreeSet<u32> = processes(BTreeSet::new())
            .into_iter()
            .filter(|(process, _)| process.job.is_none())
            .map(|(process, _)| process.uid)
            .collect();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!users.contains(&0), "{users:?}");
        assert!(users.contains(&if is_root { USER } else { nix::unistd::getuid().as_raw() }), "{users:?}");
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
        let users = of_directory(directory.path()).unwrap();
        assert_eq!(users, [(nix::unistd::geteuid().as_raw(), bytes)].into());
        assert!((1 << 20..(1 << 20) + 100_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn directory_that_its_user_replaced_by_a_link_is_not_read() {
        let root = tempfile::TempDir::new().unwrap();
        let [own, link, other] = ["own", "link", "other"].map(|name| root.path().join(name));
        for directory in [&own, &other] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), "x").unwrap();
        }
        let found = own.metadata().unwrap();
        let identity = (found.dev(), found.ino());
        assert_eq!(read_directory(&own, identity).unwrap().count(), 1);
        std::os::unix::fs::symlink(&other, &link).unwrap();
        fs::rename(&own, root.path().join("moved")).unwrap();
        fs::rename(&link, &own).unwrap();
        assert!(read_directory(&own, identity).is_err());
        // The link itself is counted, but not what it refers to.
        let mut files = 0;
        assert!(walk(root.path(), |found| {
            files += u32::from(found.is_file());
            true
        }));
        assert_eq!(files, 2);
    }

    #[test]
    fn parses_share_of_mapped_tmpfs_files() {
        let smaps = "7f00-7f10 rw-s 00000000 00:2f 12    /dev/shm/a b\nSize: 9 kB\nPss:   8 kB\nAnonymous:   0 kB\n\
                     7f20-7f30 rw-p 00000000 00:2f 13    /dev/shm/c (deleted)\nPss:   8 kB\nAnonymous:   6 kB\n\
                     7f40-7f50 r--p 00000000 08:01 14    /usr/lib/x\nPss:   8 kB\n7f60-7f70 rw-p 00000000 00:00 0 \nPss: 4 kB\n";
        let device = makedev(0, 0x2f);
        let expected = vec![((device, 12), 8 << 10), ((device, 13), 2 << 10)];
        assert_eq!(mapped_files(smaps, &[device].into()), expected);
        assert_eq!(mapped_files("\nPss: 1 kB\n7f\nPss: 1 kB\n", &[device].into()), vec![]);
    }

    #[test]
    fn process_is_not_charged_for_file_of_another_user() {
        const ALICE: u32 = 1;
        const BOB: u32 = 2;
        let process = |uid, bytes, mapped: &[(u64, u64)]| {
            let mapped = mapped.iter().map(|(inode, bytes)| ((7, *inode), *bytes)).collect();
            (ProcessMemory { uid, bytes, ..ProcessMemory::default() }, mapped)
        };
        let file = |uid, inode, bytes| FileInMemory { uid, inode, bytes };
        let files = vec![file(ALICE, 10, 600), file(BOB, 11, 40)];
        // The files 12 and 13 have no name any more, and alice has mapped 13 as well.
        let tmpfs = Tmpfs { mount: "/dev/shm".into(), device: 7, used: 600 + 40 + 30 + 20 + 5, files };
        let bob = process(BOB, 5 + 600 + 40 + 30 + 10, &[(10, 600), (11, 40), (12, 30), (13, 10)]);
        let found = attribute(vec![bob, process(ALICE, 1 + 10, &[(13, 10)])], &[tmpfs]);
        assert_eq!(found.processes.iter().map(|process| process.bytes).collect::<Vec<_>>(), [5 + 40 + 30, 1]);
        let sums: Vec<_> = found.users.iter().map(|(uid, memory)| (*uid, memory.sum())).collect();
        assert_eq!(sums, [(None, 25), (Some(ALICE), 601), (Some(BOB), 75)]);
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
             unknown user (deleted files that are open, or too many files to read): 9 MiB of files in /dev/shm; u1: 5 MiB of processes"
        );
    }
}
