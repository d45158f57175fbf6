//! Parses files of proc(5).

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The PID.
    pub pid: i32,
    /// The name, at most 15 bytes, which the process can set to any value.
    pub name: String,
    /// The state: `S` is sleeping, `Z` is a zombie, or a process whose first thread has ended.
    pub state: char,
    /// Whether the process has more than one thread.
    pub has_threads: bool,
    /// The parent's PID.
    pub parent: i32,
    /// The session ID: the PID of the session leader.
    pub session: i32,
    /// The start time in clock ticks since boot. PID and start time together are unique.
    pub start: u64,
}

impl Stat {
    /// Parses `PID (NAME) STATE PPID PGRP SESSION ...`; the start time is field 22.
    pub fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            has_threads: fields.get(17)?.parse().is_ok_and(|threads: u32| threads > 1),
            parent: number(1)?,
            session: number(3)?,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether the process is a zombie. If only its first thread has ended, the kernel shows the same state, but the process is running.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && !self.has_threads
    }
}

/// The value of a line of `/proc/PID/status`. The kernel escapes newlines in the process name on the first line.
pub fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim()))
}

/// The first `N` numbers in a line of `/proc/PID/status`. The order of IDs is real, effective, saved, file system.
pub fn numbers<const N: usize>(status: &str, key: &str) -> Option<[u32; N]> {
    let numbers = field(status, key)?.split_ascii_whitespace().map_while(|number| number.parse().ok());
    numbers.take(N).collect::<Vec<_>>().try_into().ok()
}

/// The effective capabilities, as a bit mask (`linux/capability.h`).
pub fn capabilities(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapEff")?, 16).ok()
}

/// Job and step in a slurmstepd's title, `slurmstepd: [JOB.STEP]` (Slurm 24.11, `slurmstepd.c`).
pub fn step(title: &str) -> Option<(u32, &str)> {
    let (job, step) = title.strip_prefix("slurmstepd: [")?.split_once(']')?.0.split_once('.')?;
    Some((job.parse().ok()?, step))
}

/// A line of `/proc/PID/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The path within the file system that is mounted.
    pub from: String,
    /// The mount point.
    pub at: String,
    /// The file system type, such as `ext4`.
    pub kind: &'a str,
    /// The options of the file system.
    pub options: &'a str,
    /// Whether the mount or the file system is read-only.
    pub read_only: bool,
}

impl<'a> Mount<'a> {
    /// All mounts. A later one hides an earlier one at the same path.
    pub fn all(mountinfo: &'a str) -> impl Iterator<Item = Self> {
        mountinfo.lines().filter_map(Self::parse)
    }

    /// Parses `36 31 0:33 /docker/4f2 /sys/fs/cgroup/memory ro,relatime master:9 - cgroup cgroup rw,memory`
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (from, at, mounted) = (unescaped(mount.next()?), unescaped(mount.next()?), mount.next()?);
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1).unwrap_or_default());
        let read_only = [mounted, options].iter().any(|options| options.split(',').any(|option| option == "ro"));
        Some(Self { from, at, kind, options, read_only })
    }
}

/// The kernel writes a space, a tab, a line feed and a backslash in a path as `\ooo`.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_cannot_forge_other_fields() {
        let rest = "S 5 6 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 99 0";
        for name in ["slurmctld", "a) R 1 1 1 (\n", "", "\n", "\u{fffd}"] {
            let (name, state) = (name.to_owned(), 'S');
            let stat = Stat::parse(&format!("42 ({name}) {rest}\n"));
            assert_eq!(stat, Some(Stat { pid: 42, name, state, has_threads: false, parent: 5, session: 7, start: 99 }));
        }
        assert!(Stat::parse(&format!("7 (a) {}", rest.replace('S', "Z"))).unwrap().is_dead());
        let first_ended =
            Stat::parse(&format!("7 (a) {}", rest.replace('S', "Z").replace("0 1 0 99", "0 2 0 99"))).unwrap();
        assert!(!first_ended.is_dead() && first_ended.has_threads);
        assert_eq!([Stat::parse("42 (x) S 1"), Stat::parse("")], [None, None]);
    }

    #[test]
    fn parses_ids_and_step_titles() {
        let status = "Name:\tx\\nUid:\t0\nUid:\t1000\t0\t0\t0\nGid:\t5\t6\t7\t8\nCapEff:\t0000000000000003\n";
        assert_eq!((numbers(status, "Uid"), numbers(status, "Gid")), (Some([1000]), Some([5, 6])));
        assert_eq!((capabilities(status), field(status, "State")), (Some(3), None));
        assert_eq!(step("slurmstepd: [7.batch]\0"), Some((7, "batch")));
        for other in ["", "slurmstepd infinity", "sh\0-c\0echo [7.0]", "slurmstepd: [7]", "sh -c [7.batch]"] {
            assert_eq!(step(other), None, "{other}");
        }
    }

    #[test]
    fn parses_mountinfo_and_skips_invalid_lines() {
        let table = "1 0 0:1 /a /my\\040disk rw,relatime shared:1 - ext4 /dev/a ro,x\n\n2 1 0:2 / /tmp\n";
        let disk = Mount { from: "/a".into(), at: "/my disk".into(), kind: "ext4", options: "ro,x", read_only: true };
        assert_eq!(Mount::all(table).collect::<Vec<_>>(), [disk]);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_input_does_not_panic(text in "(?s).{0,300}") {
            let _ = (Stat::parse(&text), numbers::<2>(&text, "Uid"), step(&text), Mount::all(&text).count());
        }
    }
}
