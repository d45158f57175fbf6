//! Liveness and readiness of the cluster, each with a one-line reason.
//!
//! Reads the status of PID 1, and queries PID 1 and slurmctld.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use control::StatusWatcher;
use control::client;
use control::client::ControlError;
use control::status;
use machine::protocol::{self, Request};
use machine::{STATUS_FILE, Status};
use machine::{Snapshot, UnitState};
use slurm::client::limit;
use slurm::nodes::own;

/// The first interval between two queries of slurmctld while the cluster is not ready: Slurm has no event for this. The interval doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest interval between two queries.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// With a shorter time limit a command may fail only because of the limit, so the result of the previous check is reported.
const LEAST_LIMIT: Duration = Duration::from_secs(1);

/// Whether PID 1 responds and no essential daemon has been given up.
pub fn check_liveness(directory: &Path) -> (bool, String) {
    match running_status(status::read(directory), directory) {
        Err(why) => (false, why),
        Ok(status) => {
            // Only a missing answer counts as a failure. After another error, for example if the caller may not use the socket, only the status
            // file is checked.
            let answer = client::ask(&protocol::socket(directory), &Request::Ping);
            is_live(&status.snapshot, answer.err())
        }
    }
}

/// The conditions under which the cluster is reported as ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readiness {
    /// How long to wait for the cluster to become ready.
    pub wait: Duration,
    /// If the cluster first became ready at least this long ago, PID 1's status is watched for the same time, and slurmctld is queried again
    /// at the end. A cluster that became ready more recently is reported as ready at once. Zero: the status is not watched.
    pub hold: Duration,
    /// Whether a drained node is reported as ready while it still has jobs.
    pub allows_draining: bool,
}

/// Whether the cluster is ready, and `ready` or the reason why it is not.
pub fn check_readiness(directory: &Path, readiness: Readiness) -> (bool, String) {
    let Readiness { wait, hold, allows_draining } = readiness;
    let begin = Instant::now();
    let watcher = StatusWatcher::of(directory);
    let (mut pause, mut last_reason) = (FIRST_PAUSE, None);
    loop {
        let limit = command_limit(wait, wait.saturating_sub(begin.elapsed()));
        let why = match ready_duration(directory, limit, allows_draining) {
            Ok(since) if !hold.is_zero() && hold <= since => return stay_ready(directory, &watcher, readiness),
            Ok(_) => return (true, READY.to_owned()),
            Err(why) if limit < LEAST_LIMIT => last_reason.unwrap_or(why),
            Err(why) => why,
        };
        let remaining = wait.saturating_sub(begin.elapsed());
        if remaining.is_zero() {
            return (false, why);
        }
        last_reason = Some(why);
        // PID 1 sends events; Slurm has to be polled.
        watcher.wait(remaining.min(pause));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

const READY: &str = "ready";

/// Watches the status of PID 1 for `hold`, then queries slurmctld once more.
fn stay_ready(directory: &Path, watcher: &StatusWatcher, readiness: Readiness) -> (bool, String) {
    let Readiness { hold, allows_draining, .. } = readiness;
    let begin = Instant::now();
    while let Some(left) = hold.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        watcher.wait(left);
        match running_status(status::read(directory), directory) {
            Ok(status) if status.snapshot.ready => {}
            Ok(status) => return (false, status.snapshot.why),
            Err(why) => return (false, why),
        }
    }
    ready_duration(directory, limit::STATUS, allows_draining)
        .map_or_else(|why| (false, why), |_| (true, READY.to_owned()))
}

/// The time limit of one command. A check runs at most two commands, and `wait` includes the last check. If busy jobs use up a CPU quota,
/// a command takes seconds.
fn command_limit(wait: Duration, remaining: Duration) -> Duration {
    if wait.is_zero() { limit::STATUS } else { (remaining / 2).min(limit::COMMAND) }
}

/// How long ago the cluster first became ready, or why it is not ready now.
fn ready_duration(directory: &Path, limit: Duration, allows_draining: bool) -> Result<Duration, String> {
    let Status { snapshot, started_ms, .. } = running_status(status::read(directory), directory)?;
    if !snapshot.ready {
        return Err(own::why_not_ready(&snapshot, limit));
    }
    let name = snapshot.prepared.as_ref().map(|prepared| prepared.node_name.as_str()).unwrap_or_default();
    let node = own::node(name, limit)?;
    if let Some(why) = node.closed_reason().filter(|_| !(allows_draining && node.is_draining())) {
        return Err(why);
    }
    let start_took = snapshot.timeline.iter().filter_map(|span| span.until_us).max().unwrap_or_default();
    let ready_ms = started_ms + start_took / 1000;
    Ok(Duration::from_millis(sys::monotonic_ms().saturating_sub(ready_ms)))
}

/// The status, if the process that wrote it is alive; otherwise the reason why no current status is available.
fn running_status(status: std::io::Result<Status>, directory: &Path) -> Result<Status, String> {
    match status {
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidData) => {
            Err(format!("cannot read {}: {error}", directory.join(STATUS_FILE).display()))
        }
        Err(error) => {
            let file = directory.join(STATUS_FILE);
            Err(format!("no cluster is running in this container ({}: {error})", file.display()))
        }
        Ok(status) if !status::is_process_alive(&status) => {
            Err(format!("slurminit (pid {}) is not running", status.process.pid))
        }
        Ok(status) => Ok(status),
    }
}

fn is_live(snapshot: &Snapshot, error: Option<ControlError>) -> (bool, String) {
    if let Some(error @ ControlError::NoAnswer { .. }) = error {
        return (false, error.to_string());
    }
    match snapshot.units.iter().find(|unit| unit.essential && unit.state == UnitState::GivenUp) {
        Some(unit) => {
            let (name, how) = (&unit.name, unit.how_it_ended());
            (false, format!("{name} is no longer restarted (last failure: {how}); run `slurminit restart {name}`"))
        }
        None if snapshot.ready => (true, "alive, and ready".to_owned()),
        None => (true, format!("alive; phase: {}", snapshot.phase)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::{PhaseName, UnitSnapshot};

    #[test]
    fn wait_of_probe_includes_its_last_check() {
        let wait = Duration::from_secs(8);
        for elapsed in (0..=80).map(|tenth| Duration::from_millis(100 * tenth)) {
            assert!(elapsed + 2 * command_limit(wait, wait - elapsed) <= wait, "{elapsed:?}");
        }
        assert_eq!(command_limit(Duration::ZERO, Duration::ZERO), limit::STATUS);
    }

    #[test]
    fn reason_names_missing_status_file() {
        let directory = tempfile::tempdir().unwrap();
        let why = running_status(status::read(directory.path()), directory.path()).unwrap_err();
        assert!(why.contains("status.json"), "{why}");
    }

    #[test]
    fn is_not_live_after_giving_up_essential_unit() {
        let unit = |name: &str, essential, state| UnitSnapshot {
            name: name.to_owned(),
            essential,
            state,
            ..UnitSnapshot::default()
        };
        let snapshot = |units| Snapshot { phase: PhaseName::Starting, units, ..Snapshot::default() };
        let starting =
            snapshot(vec![unit("munged", true, UnitState::BackingOff), unit("api", false, UnitState::GivenUp)]);
        assert_eq!(is_live(&starting, None), (true, "alive; phase: starting".to_owned()));
        let (is_alive, why) = is_live(&snapshot(vec![unit("munged", true, UnitState::GivenUp)]), None);
        assert!(!is_alive && why.contains("munged is no longer restarted"), "{why}");
        let silent = ControlError::NoAnswer { socket: "/run/slurminit/control".into() };
        assert!(!is_live(&starting, Some(silent)).0);
        let not_root = ControlError::NotPermitted { socket: "/run/slurminit/control".into() };
        assert!(is_live(&starting, Some(not_root)).0);
    }
}
