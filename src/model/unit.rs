//! A unit is a daemon or service. This is its definition: what runs, and how it is kept alive.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::daemons::{DaemonName, ReadinessTest, RestartPolicy};

/// A process that slurminit supervises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The unit's name in logs, in `after` and in `status`.
    pub name: String,
    /// Program and arguments. The first word is also argv\[0\], which Slurm's daemons inspect.
    pub command: Vec<String>,
    /// The user to run as; `None` means slurminit's own user.
    pub user: Option<String>,
    /// Variables added to the environment.
    pub env: BTreeMap<String, String>,
    /// Variables added unless the operator or the container sets them.
    pub default_env: Vec<(String, String)>,
    /// Units that must be ready before this one starts, and must stop after it.
    pub after: Vec<String>,
    /// The step of the start that must be done first.
    pub gate: Gate,
    /// When the unit counts as ready.
    pub readiness: ReadinessTest,
    /// How long it may take to become ready.
    pub ready_timeout: Duration,
    /// How to check that the unit still answers; `None` disables the check.
    pub liveness: Option<Probe>,
    /// When the unit is started again.
    pub restart: RestartPolicy,
    /// The container's exit code if this unit cannot be kept alive; `None` means that the others go on without it.
    pub essential: Option<u8>,
    /// How long after the stop signal SIGKILL follows.
    pub stop_timeout: Duration,
    /// Whether a successor may take its place.
    pub handover: Handover,
    /// Which Slurm daemon this is; `None` for a service.
    pub daemon: Option<DaemonName>,
    /// The node that it is, where the container has several.
    pub node: Option<String>,
}

/// Whether a daemon hands over to a successor, as Slurm's do with [`HANDS_OVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handover {
    /// It does not.
    Never,
    /// Where this version of Slurm can.
    WhereItCan,
    /// The operator's own command says so.
    Always,
}

/// The option with which Slurm's daemons hand over.
pub const HANDS_OVER: &str = "--systemd";

/// The liveness check of a ready unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What is asked.
    pub test: ProbeTest,
    /// How long the answer may take; `None` is `supervise.probe_timeout`.
    pub timeout: Option<Duration>,
}

/// What a liveness check does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeTest {
    /// Sends this daemon a request that it normally serves.
    Daemon(DaemonName),
    /// Runs this command; it must exit with 0.
    Command(Vec<String>),
}

impl ProbeTest {
    /// The commands to run; all must exit with 0. For slurmd, the controller's view is no evidence: it takes five
    /// minutes to notice.
    pub fn commands(&self, munge_socket: &Path, node: &str) -> Vec<Vec<String>> {
        let command = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let socket = format!("--socket={}", munge_socket.display());
        match self {
            Self::Daemon(DaemonName::Munged) => {
                vec![command(&["munge", "--no-input", &socket]), command(&["unmunge", "--no-output", &socket])]
            }
            Self::Daemon(DaemonName::Slurmctld) => vec![command(&["scontrol", "ping"])],
            Self::Daemon(DaemonName::Slurmd) => vec![command(&["scontrol", "show", "slurmd", node])],
            // They have no question that costs little.
            Self::Daemon(_) => Vec::new(),
            Self::Command(own) => vec![own.clone()],
        }
    }
}

/// The step of the start that a unit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Gate {
    /// Only the pre-start hooks.
    Hooks,
    /// The munge key.
    MungeKey,
    /// Slurm's configuration files.
    Files,
    /// The jobs of the previous start are accounted for.
    Jobs,
    /// The cluster can be used, or is overdue: nothing that it needs has to wait for this unit.
    Served,
}

/// Whose jobs a container looks after when it starts and stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobCare {
    /// The cluster's: slurmctld and the only slurmd are here, and their jobs end with them.
    #[default]
    Cluster,
    /// Those of this node: the controller is another container, and learns that the node comes and goes.
    Node,
    /// None: jobs run in other containers, and continue without this one.
    OtherContainers,
}
