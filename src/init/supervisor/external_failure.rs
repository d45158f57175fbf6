//! Detects external causes that ended a unit or keep it from starting.

use nix::errno::Errno;
use nix::libc;

use model::daemons::{DaemonName, ReadinessTest};

use super::{RunningChild, Supervisor};
use crate::{limits, readiness};
use machine::UnitId;
use machine::{Child, Exit, ExternalCause, SpawnFailure};

/// The C library's text for EAGAIN, which fork(2) and pthread_create(3) return at a process limit.
const CANNOT_FORK: &str = "Resource temporarily unavailable";

/// The fix that moves the unit to another port.
const fn other_port(daemon: Option<DaemonName>) -> &'static str {
    match daemon {
        Some(DaemonName::Slurmctld) => "set `controller_port` under [slurm]",
        Some(DaemonName::Slurmd) => "set `daemon_port` under [slurm]",
        Some(DaemonName::Slurmdbd) => "set `port` under [accounting]",
        Some(DaemonName::Slurmrestd) => "set `listen` under [rest]",
        Some(DaemonName::Metrics) => "set `listen` under [metrics]",
        Some(DaemonName::Sshd) => "set `port` under [login]",
        Some(DaemonName::Munged | DaemonName::Mariadbd | DaemonName::Agent) | None => "configure another port",
    }
}

impl Supervisor {
    /// The failure of a unit's start, if a socket already listens on its port. The socket belongs to another process, and must not be mistaken for
    /// the unit's.
    pub(super) fn port_conflict(&self, child: Child) -> Option<SpawnFailure> {
        let spec = &self.machine.units()[child.unit()?].spec;
        let ReadinessTest::Port(port) = spec.readiness else { return None };
        readiness::port_listens(port, &|_| true).then(|| SpawnFailure {
            code: model::exit_code::FAILURE,
            message: format!(
                "port {port} is in use by another process in this network namespace; stop that process, or {}",
                other_port(spec.daemon)
            ),
            shortage: Some(ExternalCause::Port(port)),
        })
    }

    /// The failure of a daemon's start, if a fork has failed at the process limit and the limit still leaves too few threads: a slurmd without spare
    /// threads gets no answer from its slurmstepd processes and reports their jobs as lost.
    pub(super) fn thread_shortage(&self, child: Child) -> Option<SpawnFailure> {
        self.machine.units()[child.unit()?].spec.daemon?;
        let free = limits::process_shortage()?;
        Some(SpawnFailure {
            code: model::exit_code::FAILURE,
            message: format!("the process limit leaves too few threads for the daemon (free: {free})"),
            shortage: Some(ExternalCause::Processes),
        })
    }

    /// The UID of the unit's process, if the unit is a running daemon. The port of a service may belong to any user.
    pub(super) fn owner(&self, id: UnitId) -> Option<u32> {
        self.machine.units()[id].spec.daemon?;
        Some(self.find(Child::Unit(id))?.started.uid.as_raw())
    }

    /// The external cause that ended this process or prevented its start, if any.
    pub(super) fn shortage(&self, running: &RunningChild, exit: &Exit) -> Option<ExternalCause> {
        let id = running.child.unit()?;
        if let Exit::NotStarted(failure) = exit {
            return failure.shortage;
        }
        let shortage = running.started.limits.shortage(exit, limits::LimitCounts::now());
        // Another process may have hit the limit. So the limit counts as the cause of a daemon's end only if the daemon logged that it could not start
        // a thread or a process.
        let is_cause = |shortage: &ExternalCause| {
            *shortage != ExternalCause::Processes
                || self.machine.units()[id].spec.daemon.is_none()
                || self.has_logged(id, CANNOT_FORK)
        };
        self.port_conflict_at_exit(id, exit).or_else(|| shortage.filter(is_cause))
    }

    /// Whether the last lines of the unit's latest process contain this text.
    fn has_logged(&self, id: UnitId, text: &str) -> bool {
        self.logs.lines_of_last_run(&self.machine.units()[id].spec.name).iter().any(|line| line.contains(text))
    }

    /// The port, if it was in use and the process therefore ended before it was ready. The owner of the port may have exited since, so the daemon's
    /// own log is the evidence. The text in the log is that of the C library.
    fn port_conflict_at_exit(&self, id: UnitId, exit: &Exit) -> Option<ExternalCause> {
        let unit = &self.machine.units()[id];
        let ReadinessTest::Port(port) = unit.spec.readiness else { return None };
        if matches!(exit, Exit::Code(0) | Exit::Signal(libc::SIGKILL | libc::SIGTERM)) || !unit.is_starting() {
            return None;
        }
        self.has_logged(id, Errno::EADDRINUSE.desc()).then_some(ExternalCause::Port(port))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use machine::{Event, ExternalCause};
    use model::log::Level;
    use model::prepared::{PrepareEvent, Prepared};

    use super::*;
    use crate::supervisor::fixture::supervisor;

    #[test]
    fn port_was_taken_if_daemon_logged_it_before_it_was_ready() {
        let mut all = supervisor("").prepared(Prepared::default());
        let (munged, slurmctld) = (all.unit("munged"), all.unit("slurmctld"));
        let failed = Exit::Code(1);
        let log = |all: &Supervisor, line: &[u8]| {
            let mut batch = all.logs.batch("slurmctld");
            batch.add(Level::Error, line);
            batch.end();
        };
        log(&all, b"error: Address already in use");
        assert_eq!(all.port_conflict_at_exit(slurmctld, &failed), None, "not started");
        for event in [Event::Prepare(PrepareEvent::MungeKeyReady), Event::ReadinessChecked(munged, true)] {
            all.machine.step(Duration::ZERO, event);
        }
        assert!(all.machine.units()[slurmctld].is_starting());
        assert_eq!(all.port_conflict_at_exit(slurmctld, &failed), Some(ExternalCause::Port(6817)));
        for other in [Exit::Code(0), Exit::Signal(libc::SIGKILL), Exit::Signal(libc::SIGTERM)] {
            assert_eq!(all.port_conflict_at_exit(slurmctld, &other), None, "{other}");
        }
        assert_eq!(all.port_conflict_at_exit(munged, &failed), None, "it has no port");
        // The line of an earlier process proves nothing.
        all.logs.begin_process("slurmctld");
        log(&all, b"error: out of memory");
        assert_eq!(all.port_conflict_at_exit(slurmctld, &failed), None);
    }

    #[test]
    fn fix_for_port_names_the_key_of_the_unit() {
        for daemon in [None, Some(DaemonName::Sshd), Some(DaemonName::Slurmdbd)] {
            assert!(!other_port(daemon).contains("[slurm]"), "{daemon:?}");
        }
    }
}
