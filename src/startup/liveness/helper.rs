//! slurmctld's helper, which runs prologs and other scripts for it. slurmctld does not detect that the helper died: a
//! ping still succeeds, but the next script does not run.

use super::Failure;
use sys::proc;
use sys::proc::Stat;

/// The helper's process name (Slurm 24.11 to 25.11, `slurmscriptd.c`).
const NAME: &str = "slurmscriptd";
const STOPPED: &str = "is stopped";

/// Checks that this daemon's helper, if it has one, is neither dead nor stopped.
pub(super) fn check(pid: i32) -> Result<(), Failure> {
    match proc::children(pid).into_iter().find_map(|child| fault(&proc::stat(child)?)) {
        Some(fault) => Err(Failure::Failed { why: format!("its helper {NAME} {fault}"), broken: true }),
        None => Ok(()),
    }
}

/// Why this daemon does not respond, if its helper was stopped by a signal: a daemon that is starting waits for its helper without a
/// deadline. Only root and the helper's user can stop the helper.
pub(super) fn stop_reason(pid: i32) -> Option<String> {
    let is_stopped = |child: i32| proc::stat(child).as_ref().and_then(fault) == Some(STOPPED);
    proc::children(pid).into_iter().any(is_stopped).then(|| format!("its helper {NAME} {STOPPED}"))
}

fn fault(helper: &Stat) -> Option<&'static str> {
    match helper.state {
        _ if !helper.name.contains(NAME) => None,
        'Z' | 'X' => Some("is dead"),
        'T' => Some(STOPPED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::process::Command;

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
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1")]
    fn detects_helper_stopped_by_signal() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(NAME);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut daemon = Command::new("sh").args(["-c", "\"$0\" 60 & wait"]).arg(&program).spawn().unwrap();
        let daemon_pid = i32::try_from(daemon.id()).unwrap();
        let is_helper = |child: &i32| proc::stat(*child).is_some_and(|stat| stat.name.contains(NAME));
        let helper = loop {
            match proc::children(daemon_pid).into_iter().find(is_helper) {
                Some(helper) => break Pid::from_raw(helper),
                None => std::thread::yield_now(),
            }
        };
        let running = stop_reason(daemon_pid);
        kill(helper, Signal::SIGSTOP).unwrap();
        while proc::stat(helper.as_raw()).unwrap().state != 'T' {
            std::thread::yield_now();
        }
        let seen = stop_reason(daemon_pid);
        kill(helper, Signal::SIGKILL).unwrap();
        daemon.wait().unwrap();
        assert_eq!((running, seen.is_some()), (None, true));
    }

    #[test]
    fn accepts_daemon_without_helper() {
        assert!(check(nix::unistd::getpid().as_raw()).is_ok() && stop_reason(nix::unistd::getpid().as_raw()).is_none());
    }
}
