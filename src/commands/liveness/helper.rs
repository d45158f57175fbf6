//! slurmctld's helper, which runs prologs and the like for it. slurmctld does not notice its death: a ping answers, and
//! the first script that is to run does not.

use std::fs;

use super::Failure;

/// What the helper calls itself (Slurm 22.05 to 25.11, `slurmscriptd.c`).
const NAME: &str = "slurmscriptd";

/// Whether a helper of this daemon, if it has one, can do its work.
pub(super) fn look(pid: u32) -> Result<(), Failure> {
    match children(pid).iter().find_map(|child| fault(&fs::read_to_string(format!("/proc/{child}/stat")).ok()?)) {
        Some(fault) => Err(Failure::Failed { why: format!("its helper {NAME} {fault}"), broken: true }),
        None => Ok(()),
    }
}

fn children(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// `/proc/PID/stat`: `PID (NAME) STATE ...` (proc(5)).
fn fault(stat: &str) -> Option<&'static str> {
    let (_, rest) = stat.split_once('(')?;
    let (name, rest) = rest.rsplit_once(')')?;
    if !name.contains(NAME) {
        return None;
    }
    match rest.trim_start().chars().next()? {
        'Z' | 'X' => Some("is dead"),
        'T' => Some("is stopped"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_cannot_work_is_told_from_one_that_can_and_from_other_children() {
        assert_eq!(fault("80 (slurmscriptd) Z 13 13 13 0"), Some("is dead"));
        assert_eq!(fault("80 (slurmscriptd) T 13 13 13 0"), Some("is stopped"));
        assert_eq!(fault("80 (slurmscriptd) S 13 13 13 0"), None);
        assert_eq!(fault("80 (a) prolog) Z 13 13 13 0"), None);
        assert_eq!(fault(""), None);
    }

    #[test]
    fn a_daemon_without_a_helper_is_not_blamed() {
        assert!(look(std::process::id()).is_ok());
    }
}
