//! slurmctld's helper, which runs prologs and other scripts for it. slurmctld does not notice when the helper dies: a
//! ping still succeeds, but the next script does not run.

use std::fs;

use super::Failure;
use sys::proc;
use sys::proc::Stat;

/// The helper's process name (Slurm 22.05 to 25.11, `slurmscriptd.c`).
const NAME: &str = "slurmscriptd";

/// Checks that this daemon's helper, if it has one, can work.
pub(super) fn look(pid: u32) -> Result<(), Failure> {
    match children(pid).into_iter().find_map(|child| fault(&proc::stat(child)?)) {
        Some(fault) => Err(Failure::Failed { why: format!("its helper {NAME} {fault}"), broken: true }),
        None => Ok(()),
    }
}

fn children(pid: u32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

fn fault(helper: &Stat) -> Option<&'static str> {
    match helper.state {
        _ if !helper.name.contains(NAME) => None,
        'Z' | 'X' => Some("is dead"),
        'T' => Some("is stopped"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_broken_helper_among_children() {
        let fault = |name: &str, state| {
            fault(&Stat {
                pid: 80,
                name: name.to_owned(),
                state,
                has_threads: false,
                parent: 13,
                session: 13,
                start: 1,
            })
        };
        assert_eq!(
            ["Z", "T", "S"].map(|state| fault(NAME, state.chars().next().unwrap())),
            [Some("is dead"), Some("is stopped"), None]
        );
        assert_eq!(fault("a) prolog", 'Z'), None);
    }

    #[test]
    fn accepts_daemon_without_helper() {
        assert!(look(std::process::id()).is_ok());
    }
}
