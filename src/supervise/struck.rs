//! What in a unit's surroundings ended it, or keeps it from starting.

use nix::errno::Errno;
use nix::libc;

use crate::config::ReadinessTest;

use super::machine::{Child, Exit, Fault, SpawnFailure};
use super::{Living, World, limits, readiness, unit_of};

impl World {
    /// A port that listens before its daemon was started is another process's, and must not pass for readiness.
    pub(super) fn taken_port(&self, child: Child) -> Option<SpawnFailure> {
        let ReadinessTest::Port(port) = self.machine.units().get(unit_of(child)?)?.readiness else { return None };
        readiness::port_listens(port, &|_| true).then(|| SpawnFailure {
            code: crate::exit_code::FAILURE,
            message: format!(
                "port {port} is taken by another process in this network; end it, give the container a network of its own \
                 (no `--network host`), or set controller_port and daemon_port under [slurm]"
            ),
            fault: Some(Fault::Port(port)),
        })
    }

    /// Whose a listening port of this unit must be, if it is one of Slurm's daemons. A service may be anybody's.
    pub(super) fn owner(&self, unit: usize) -> Option<u32> {
        self.machine.units().get(unit)?.daemon?;
        Some(self.find(Child::Unit(unit))?.started.uid.as_raw())
    }

    /// What ended this process, if it was not itself.
    pub(super) fn fault(&self, living: &Living, exit: &Exit) -> Option<Fault> {
        let unit = unit_of(living.child)?;
        if let Exit::NotStarted(failure) = exit {
            return failure.fault;
        }
        self.robbed(unit, exit).or_else(|| living.started.limits.fault(exit, limits::Counts::now()))
    }

    /// One that ended before it was ready, and found its port taken: a process may have been there first. It may be gone
    /// already, so the daemon's own words count as well; they are the C library's.
    fn robbed(&self, unit: usize, exit: &Exit) -> Option<Fault> {
        let spec = self.machine.units().get(unit)?;
        let ReadinessTest::Port(port) = spec.readiness else { return None };
        if matches!(exit, Exit::Code(0) | Exit::Signal(libc::SIGKILL | libc::SIGTERM))
            || !self.machine.is_starting(unit)
        {
            return None;
        }
        let in_use = Errno::EADDRINUSE.desc();
        let says = || self.logs.last_words(&spec.name).iter().any(|line| line.contains(in_use));
        says().then_some(Fault::Port(port))
    }
}
