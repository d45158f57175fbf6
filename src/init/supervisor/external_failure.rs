//! Detects external causes that ended a unit or keep it from starting.

use nix::errno::Errno;
use nix::libc;

use model::daemons::ReadinessTest;

use super::{RunningChild, Supervisor};
use crate::{limits, readiness};
use machine::UnitId;
use machine::{Child, Exit, ExternalCause, SpawnFailure};

/// The C library's text for EAGAIN, which fork(2) and pthread_create(3) return at a process limit.
const CANNOT_FORK: &str = "Resource temporarily unavailable";

impl Supervisor {
    /// If a port listens before its daemon was started, another process owns it. It must not pass for readiness.
    pub(super) fn port_conflict(&self, child: Child) -> Option<SpawnFailure> {
        let ReadinessTest::Port(port) = self.machine.units()[child.unit()?].spec.readiness else { return None };
        readiness::port_listens(port, &|_| true).then(|| SpawnFailure {
            code: model::exit_code::FAILURE,
            message: format!(
                "port {port} is in use by another process in this network; end it, or set controller_port and daemon_port under [slurm]"
            ),
            shortage: Some(ExternalCause::Port(port)),
        })
    }

    /// A slurmd that starts without spare threads gets no answer from its slurmstepd processes and reports their jobs
    /// as lost.
    pub(super) fn thread_shortage(&self, child: Child) -> Option<SpawnFailure> {
        self.machine.units()[child.unit()?].spec.daemon?;
        let free = limits::process_shortage()?;
        Some(SpawnFailure {
            code: model::exit_code::FAILURE,
            message: format!(
                "too few free processes below the process limit: {free}; end some processes, or raise --pids-limit"
            ),
            shortage: Some(ExternalCause::Processes),
        })
    }

    /// The user that must own this unit's listening port, if it is a Slurm daemon. A service's port may be anyone's.
    pub(super) fn owner(&self, id: UnitId) -> Option<u32> {
        self.machine.units()[id].spec.daemon?;
        Some(self.find(Child::Unit(id))?.started.uid.as_raw())
    }

    /// The external cause that ended this process, if any.
    pub(super) fn shortage(&self, running: &RunningChild, exit: &Exit) -> Option<ExternalCause> {
        let id = running.child.unit()?;
        if let Exit::NotStarted(failure) = exit {
            return failure.shortage;
        }
        let shortage = running.started.limits.shortage(exit, limits::LimitCounts::now());
        // Another process may have hit the limit, so a Slurm daemon must have logged that it cannot start a thread or a
        // process.
        let is_cause = |shortage: &ExternalCause| {
            *shortage != ExternalCause::Processes
                || self.machine.units()[id].spec.daemon.is_none()
                || self.has_logged(id, CANNOT_FORK)
        };
        self.port_conflict_at_exit(id, exit).or_else(|| shortage.filter(is_cause))
    }

    /// Whether the last lines of the process contain this text.
    fn has_logged(&self, id: UnitId, text: &str) -> bool {
        self.logs.lines_of_last_run(&self.machine.units()[id].spec.name).iter().any(|line| line.contains(text))
    }

    /// The port, if the process ended before it was ready because its port was taken. The port's owner may be gone by
    /// now, so the daemon's own log counts as evidence. The message in the log is the C library's.
    fn port_conflict_at_exit(&self, id: UnitId, exit: &Exit) -> Option<ExternalCause> {
        let unit = &self.machine.units()[id];
        let ReadinessTest::Port(port) = unit.spec.readiness else { return None };
        if matches!(exit, Exit::Code(0) | Exit::Signal(libc::SIGKILL | libc::SIGTERM)) || !unit.is_starting() {
            return None;
        }
        self.has_logged(id, Errno::EADDRINUSE.desc()).then_some(ExternalCause::Port(port))
    }
}
