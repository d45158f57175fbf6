//! The Slurm that is installed beside us: its version and its plugins.

use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::regular;
use crate::inventory::{SlurmInstall, SlurmVersion};

/// Where the image notes the output of `slurmd -V`: a file is read in no time, and slurmd loads a dozen libraries first.
const NOTE: &str = "usr/share/slurminit/slurm-version";

/// The kinds of plugins on which a line of a configuration file depends.
const KINDS: [&str; 7] = ["auth_", "cgroup_", "gpu_", "jobacct_gather_", "proctrack_", "select_", "task_"];

/// No version line is longer; a file or program that goes on is not Slurm's.
const LONGEST_ANSWER: u64 = 4096;

/// Reads the image's note, else asks `slurmd -V` for at most `deadline` (only where `root` is this system's own).
pub fn detect(root: &Path, deadline: Duration) -> SlurmInstall {
    let noted = read_note(&root.join(NOTE)).and_then(|text| parse_version(&text));
    let version =
        noted.or_else(|| (root == Path::new("/")).then(|| ask(Command::new("slurmd").arg("-V"), deadline)).flatten());
    SlurmInstall { version, plugins: plugins(root) }
}

fn read_note(path: &Path) -> Option<String> {
    regular::text(path).ok()
}

/// `slurm 24.11.5`, or `slurm-wlm 22.05.8` as Debian spells it.
fn parse_version(text: &str) -> Option<SlurmVersion> {
    let words = text.split_whitespace();
    words.skip_while(|word| !word.starts_with("slurm")).skip(1).find_map(|word| {
        let mut numbers = word.split('.').map(|number| number.parse::<u16>().ok());
        let (year, month) = (numbers.next()??, numbers.next()??);
        (year < 100 && (1..=12).contains(&month)).then_some(SlurmVersion { year, month })
    })
}

/// What `command` answers within `deadline`.
#[expect(clippy::disallowed_methods, reason = "detection runs in a child of PID 1, which reaps only its own children")]
fn ask(command: &mut Command, deadline: Duration) -> Option<SlurmVersion> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let answer = child.stdout.take().map(|pipe| read_until(pipe, Instant::now() + deadline)).unwrap_or_default();
    // It has answered, or never will. Nobody waits for it: a process that hangs in the kernel ignores even KILL, and
    // PID 1 gets what is left as soon as this process has ended.
    let _ = child.kill();
    let _ = child.try_wait();
    parse_version(&answer)
}

/// What comes out of `pipe` until its end or `end`.
fn read_until(mut pipe: ChildStdout, end: Instant) -> String {
    let mut answer = Vec::new();
    while (answer.len() as u64) < LONGEST_ANSWER {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
            Err(nix::errno::Errno::EINTR) => continue,
            Ok(1..) => {}
            Ok(_) | Err(_) => break,
        }
        let mut chunk = [0; 512];
        match pipe.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(length) => answer.extend_from_slice(&chunk[..length]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The plugins of the kinds that matter, sorted, without `.so`.
fn plugins(root: &Path) -> Vec<String> {
    let files = plugin_directories(root).into_iter().flat_map(|directory| names_in(&directory));
    let mut plugins: Vec<String> = files
        .filter_map(|file| file.strip_suffix(".so").map(str::to_owned))
        .filter(|name| KINDS.iter().any(|kind| name.starts_with(kind)))
        .collect();
    plugins.sort();
    plugins.dedup();
    plugins
}

/// Debian's multiarch directories, and those of a Slurm that was built from source or comes from an RPM.
fn plugin_directories(root: &Path) -> Vec<PathBuf> {
    let usr_lib = root.join("usr/lib");
    let multiarch = names_in(&usr_lib).map(|name| usr_lib.join(name)).collect::<Vec<_>>();
    let others = ["usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64"].map(|path| root.join(path));
    let bases = multiarch.into_iter().chain(others);
    bases.flat_map(|base| ["slurm-wlm", "slurm"].map(|name| base.join(name))).collect()
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME_TIME: Duration = Duration::from_secs(20);

    #[test]
    fn versions_of_debian_and_upstream_are_read() {
        let version = |year, month| Some(SlurmVersion { year, month });
        assert_eq!(parse_version("slurm 24.11.5\n"), version(24, 11));
        assert_eq!(parse_version("slurm-wlm 22.05.8\n"), version(22, 5));
        assert_eq!(parse_version("slurm 25.05.0-0rc1\n"), version(25, 5));
        for bad in ["", "slurm", "24.11.5", "slurm x.y", "slurm 2411", "slurm 24.13.1", "munge-0.5.16 (2024-03-15)"] {
            assert_eq!(parse_version(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_note_and_the_plugins_are_found() {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "usr/lib/x86_64-linux-gnu/slurm-wlm/gpu_nvml.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/cgroup_v2.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/gpu_nvml.a",
            "usr/lib64/slurm/task_cgroup.so",
        ] {
            fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
            fs::write(root.path().join(path), "").unwrap();
        }
        fs::create_dir_all(root.path().join("usr/share/slurminit")).unwrap();
        fs::write(root.path().join(NOTE), "slurm 24.11.5\n").unwrap();
        let found = detect(root.path(), SOME_TIME);
        assert_eq!(found.version, Some(SlurmVersion { year: 24, month: 11 }));
        assert_eq!(found.plugins, ["cgroup_v2", "gpu_nvml", "task_cgroup"]);
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_is_asked() {
        let version = Some(SlurmVersion { year: 23, month: 11 });
        assert_eq!(ask(&mut shell("echo slurm 23.11.4"), SOME_TIME), version);
        assert_eq!(ask(&mut Command::new("/nowhere/slurmd"), SOME_TIME), None);
    }

    #[test]
    fn a_program_that_hangs_is_left_at_the_deadline() {
        let start = Instant::now();
        assert_eq!(ask(&mut shell("exec sleep 600"), Duration::from_millis(50)), None);
        assert!(start.elapsed() < SOME_TIME);
    }

    #[test]
    fn a_program_that_babbles_is_cut_off() {
        assert_eq!(ask(&mut shell("exec yes"), SOME_TIME), None);
    }

    proptest::proptest! {
        #[test]
        fn no_version_text_panics(text in "(?s).{0,40}", number in "[0-9.]{0,12}") {
            parse_version(&text);
            parse_version(&format!("slurm {number}"));
        }
    }
}
