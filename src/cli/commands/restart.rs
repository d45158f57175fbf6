//! `slurminit restart`: restarts a daemon or service, and waits for the result.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::output::print_line;
use anyhow::Context as _;

use super::Configuration;
use super::health::parse_wait;
use config::DaemonName;
use control::StatusWatcher;
use control::client;
use control::status;
use machine::protocol::{self, Reply, Request};
use machine::{LastExit, Snapshot, UnitSnapshot, UnitState};
use slurm::client::{Client, limit};
use slurm::nodes;
use slurm::nodes::ClusterNode;
use startup::state_disk;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The daemon or service
    name: String,
    /// Timeout, in seconds [default: the sum of stop_timeout and ready_timeout in `[supervise]`]
    #[arg(long, value_name = "SECONDS", value_parser = parse_wait)]
    timeout: Option<Duration>,
}

/// The maximum interval between two reads of the status.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let config = configuration.load()?;
    let configured = || config.supervise.stop_timeout() + config.supervise.ready_timeout;
    let limit = args.timeout.unwrap_or_else(configured);
    let (name, directory) = (&args.name, &config.paths.run);
    // PID 1 itself rejects requests of users other than root.
    if *name == DaemonName::Slurmctld.as_str() && nix::unistd::geteuid().is_root() {
        state_disk::try_to_save(&state_disk::directory(&config.paths)).context("slurmctld was not restarted")?;
    }
    let watcher = StatusWatcher::of(directory);
    let was_ready = is_ready(directory);
    let start = Instant::now();
    let request = Request::Restart { name: name.clone() };
    let (reply, _) = client::ask(&protocol::socket(directory), &request)?;
    let Reply::Restarting { starts } = reply else { anyhow::bail!("unexpected reply from slurminit: {reply:?}") };
    loop {
        let Ok(status) = status::read(directory) else {
            anyhow::ensure!(start.elapsed() < limit, "cannot read slurminit's status file; see `docker logs`");
            watcher.wait(Duration::from_millis(10));
            continue;
        };
        let unit = status.snapshot.unit(name);
        let unit = unit.with_context(|| format!("{name} no longer exists"))?;
        match restart_outcome(unit, starts) {
            RestartOutcome::Ready => {
                let pid = unit.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                wait_for_node(directory, &status.snapshot, name, was_ready, start + limit);
                print_line(format_args!("{name} is ready again after {} ms{pid}", start.elapsed().as_millis()))?;
                return Ok(());
            }
            RestartOutcome::Ended => {
                print_line(format_args!("{name} ran and {}", unit.how_it_ended()))?;
                return Ok(());
            }
            RestartOutcome::Failed => anyhow::bail!(
                "{name} was restarted and is {}: it {}; see `slurminit logs {name}`",
                unit.state,
                unit.how_it_ended(),
            ),
            RestartOutcome::UnderWay => {}
        }
        let remaining = limit.checked_sub(start.elapsed()).filter(|remaining| !remaining.is_zero());
        let timed_out = || format!("{name} is {} after {} s; see `slurminit logs {name}`", unit.state, limit.as_secs());
        let remaining = remaining.with_context(timed_out)?;
        // On a full disk the status file is overwritten in place, which causes no event.
        watcher.wait(remaining.min(MAX_POLL_INTERVAL));
    }
}

/// Timeout for a node to register after a restart of slurmctld or slurmd.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval, because Slurm has no event for a registration.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// After a restart of slurmctld or slurmd, waits until this container's nodes have registered, because no job starts on them before that, and
/// until the container is ready again if it was ready before. Gives up after [`REGISTRATION_TIMEOUT`], or at the deadline if that is earlier.
#[expect(clippy::disallowed_methods, reason = "Slurm has no event for a registration")]
fn wait_for_node(directory: &Path, snapshot: &Snapshot, daemon: &str, was_ready: bool, deadline: Instant) {
    // `slurmd-2` is the slurmd of a simulated node.
    let program = daemon.split('-').next().unwrap_or_default();
    let is_slurm_daemon = [DaemonName::Slurmctld, DaemonName::Slurmd].iter().any(|name| program == name.as_str());
    let name = snapshot.prepared.as_ref().map(|prepared| prepared.node_name.as_str()).filter(|name| !name.is_empty());
    let Some(name) = name.filter(|_| is_slurm_daemon) else { return };
    let deadline = deadline.min(Instant::now() + REGISTRATION_TIMEOUT);
    // The state name of a drained node does not show whether it has registered, so the flags are checked.
    let is_registered =
        |node: &ClusterNode| node.report.responding && !node.state_flags.iter().any(|flag| flag == "UNKNOWN");
    let is_cluster_registered = || {
        nodes::query_node(name, &Client::with_total_timeout(limit::STATUS))
            .is_ok_and(|cluster| cluster.nodes.iter().all(is_registered))
    };
    while !(is_cluster_registered() && (!was_ready || is_ready(directory))) && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether PID 1 reports that the container is ready.
fn is_ready(directory: &Path) -> bool {
    status::read(directory).is_ok_and(|status| status.snapshot.ready)
}

/// The outcome of a restart.
#[derive(Debug, PartialEq, Eq)]
enum RestartOutcome {
    UnderWay,
    Ready,
    /// The service exited with 0, as a one-shot service does.
    Ended,
    Failed,
}

/// Judges the new state of a restarted unit. `starts` is the number of its earlier starts.
fn restart_outcome(unit: &UnitSnapshot, starts: u32) -> RestartOutcome {
    match unit.state {
        _ if unit.starts <= starts => RestartOutcome::UnderWay,
        UnitState::Ready => RestartOutcome::Ready,
        UnitState::Finished if unit.last_exit == Some(LastExit::Success) => RestartOutcome::Ended,
        UnitState::BackingOff | UnitState::GivenUp | UnitState::Finished => RestartOutcome::Failed,
        UnitState::Waiting | UnitState::Starting | UnitState::Stopping => RestartOutcome::UnderWay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_exits_before_restart() {
        let outcome = |starts, state, last: Option<&str>| {
            let last_exit = last.map_or(LastExit::Success, |last| LastExit::Failure(last.to_owned()));
            let unit = UnitSnapshot { state, starts, last_exit: Some(last_exit), ..UnitSnapshot::default() };
            restart_outcome(&unit, 3)
        };
        assert_eq!(outcome(3, UnitState::Ready, None), RestartOutcome::UnderWay, "previous run has not exited yet");
        assert_eq!(
            outcome(3, UnitState::BackingOff, Some("exited with code 1")),
            RestartOutcome::UnderWay,
            "exit before the restart"
        );
        assert_eq!(outcome(4, UnitState::Starting, None), RestartOutcome::UnderWay);
        assert_eq!(outcome(4, UnitState::Ready, None), RestartOutcome::Ready);
        assert_eq!(outcome(4, UnitState::Finished, None), RestartOutcome::Ended);
        assert_eq!(outcome(4, UnitState::Finished, Some("exited with code 2")), RestartOutcome::Failed);
        assert_eq!(outcome(4, UnitState::BackingOff, Some("was killed by signal 9 (SIGKILL)")), RestartOutcome::Failed);
    }
}
