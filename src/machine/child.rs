//! The child processes of slurminit, and how they end.

use std::fmt;

use crate::UnitId;

/// A child process, named by its purpose. At most one process of each kind runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Child {
    /// The pre-start hook with this index.
    Hook(usize),
    /// `slurminit prepare`.
    Prepare,
    /// `slurminit environments`.
    Environments,
    /// `slurminit associations`.
    Associations,
    /// `slurminit test-job`.
    TestJob,
    /// `slurminit prepare --died`: checks whether the configuration caused this unit's death.
    Explain(UnitId),
    /// A daemon or a service.
    Unit(UnitId),
    /// A unit's readiness command.
    Probe(UnitId),
    /// `slurminit free-port`: ends the process that took a unit's port.
    FreePort(UnitId),
    /// `slurminit liveness`: checks that the ready units still answer.
    Liveness,
    /// `slurminit oom-score`: sets the OOM scores of jobs' and users' processes, reports OOM kills, and closes slurmstepd's sockets to users.
    OomScore,
    /// `sinfo`, which reports the node's state; in a container without a node `scontrol ping`.
    NodeCheck,
    /// `scontrol`, which resumes a node because the cause of its drain is gone.
    NodeResume,
    /// `slurminit jobs recover`: requeues or fails the jobs that the previous start left in slurmctld's state as running.
    JobsRecover,
    /// Prevents duplicate launches of jobs with --no-requeue, and reports jobs that slurmctld has forgotten, after slurmctld or slurmd has restarted.
    JobsAccount,
    /// Releases allocations that slurmctld lists but that have no process, after slurmctld or slurmd has restarted.
    JobsReclaim,
    /// Requeues or cancels jobs whose slurmstepd died.
    JobsReclaimDeadSteps,
    /// Notifies running jobs of the stop, and requeues or ends those that remain after the grace period. In a compute container, also removes the
    /// node from the cluster if possible. In a container whose jobs run elsewhere, only records the next job ID.
    JobsQuiesce,
    /// Follows the daemons' logs, mainly to record which jobs slurmctld assigns to the node and slurmd starts.
    JobsFollow,
    /// Reports if the controller in another container cannot reach this node, and restarts slurmd if the controller's record of the node is missing
    /// or outdated.
    JobsReached,
    /// Waits for the jobs that the container's command has left in the queue.
    JobsWait,
    /// `slurminit prepare --reload`.
    Reload,
    /// `scontrol reconfigure`.
    Reconfigure,
    /// `slurminit prepare --restore`.
    Restore,
    /// `slurminit prepare --reopen`: opens the partitions that a killed or crashed reload has closed.
    Reopen,
    /// The container's command.
    Cmd,
}

impl Child {
    /// The unit whose process this is; `None` for all other children, such as a unit's readiness command.
    pub fn unit(self) -> Option<UnitId> {
        match self {
            Self::Unit(id) => Some(id),
            _ => None,
        }
    }
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(u8),
    /// The process was killed by this signal.
    Signal(i32),
    /// The process was never started.
    NotStarted(SpawnFailure),
}

/// `exited with code 1`, `was killed by signal 9 (SIGKILL)`.
impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => {
                let name = signal_hook::low_level::signal_name(*signal).unwrap_or("a real-time signal");
                write!(f, "was killed by signal {signal} ({name})")
            }
            Self::NotStarted(failure) => write!(f, "did not start: {}", failure.message),
        }
    }
}

/// Why a child was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnFailure {
    /// The exit code: as in a shell, 127 for a program that is not found and 126 for one that cannot be executed; 1 for all other failures.
    pub code: u8,
    /// The reason, for the log.
    pub message: String,
    /// The external cause, if neither the program nor its configuration is at fault.
    pub shortage: Option<ExternalCause>,
}

/// An external cause that ended a unit or kept it from starting. It does not count towards giving up the unit, except for a
/// port that `slurminit free-port` cannot free while the unit has never been ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalCause {
    /// The process limit was reached, or leaves too few processes for the unit.
    Processes,
    /// The process's user has reached RLIMIT_NPROC, which counts the user's processes in all containers of the host.
    UserProcesses,
    /// The kernel killed the process (OOM), or had no memory to start it.
    Memory,
    /// No file descriptors were left.
    Descriptors,
    /// Another process occupies this port.
    Port(u16),
}

impl Exit {
    /// The exit code that a shell would report: 128+n for signal n.
    pub fn code(&self) -> u8 {
        match self {
            Self::Code(code) => *code,
            Self::Signal(signal) => 128_u8.saturating_add(u8::try_from(*signal).unwrap_or(127)),
            Self::NotStarted(failure) => failure.code,
        }
    }
}
