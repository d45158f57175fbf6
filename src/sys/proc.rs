//! What the kernel tells of processes in /proc: proc(5).

pub mod parse;

use std::fs;

pub use parse::Stat;

/// All processes of this container.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The child processes of a process, of all its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// What it is, where it is not gone. A dead one is there until it is reaped.
pub fn stat(pid: i32) -> Option<Stat> {
    Stat::parse(&text(pid, "stat")?)
}

/// Its `status`.
pub fn status(pid: i32) -> Option<String> {
    text(pid, "status")
}

/// Its command line, or what it has put in its place; empty for one that is dead.
pub fn title(pid: i32) -> Option<String> {
    text(pid, "cmdline")
}

/// Whether its real user is root, whatever rights it has for the moment: a slurmstepd takes on its user's to open files.
pub fn is_roots(pid: i32) -> bool {
    status(pid).and_then(|status| parse::numbers(&status, "Uid")).is_some_and(|[real]| real == 0)
}

/// The title of a slurmstepd. Anybody can give a process of their own such a title and name, but not root's user.
pub fn step_title(stat: &Stat) -> Option<String> {
    (stat.name == "slurmstepd" && is_roots(stat.pid)).then(|| title(stat.pid)).flatten()
}

/// A process may have given itself a name that is no UTF-8.
fn text(pid: i32, file: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use nix::unistd::getuid;

    use super::*;

    /// A process that looks like the slurmstepd of a job.
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn forged(uid: u32, program: &std::path::Path) -> Child {
        Command::new(program).arg0("slurmstepd: [5.batch]").arg("1000").uid(uid).spawn().unwrap()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn only_a_process_of_roots_is_a_slurmstepd() {
        let directory = tempfile::tempdir().unwrap();
        set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let program = directory.path().join("slurmstepd");
        fs::copy("/bin/sleep", &program).unwrap();
        let nobody = if getuid().is_root() { 65534 } else { getuid().as_raw() };
        for (uid, counts) in [(getuid().as_raw(), getuid().is_root()), (nobody, false)] {
            let mut child = forged(uid, &program);
            let pid = child.id().try_into().unwrap();
            let found = stat(pid).unwrap();
            assert_eq!((found.name.as_str(), is_roots(pid)), ("slurmstepd", counts), "{uid}");
            assert_eq!(step_title(&found).as_deref().and_then(parse::step).is_some(), counts, "{uid}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!is_roots(-1));
    }
}
