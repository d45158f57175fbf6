//! A unit is a daemon or service. This is its definition: what runs, and how it is kept alive.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::daemons::{DaemonName, ReadinessTest, RestartPolicy};

/// The definition of a unit.
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
    /// Variables added unless `env` or the container's environment sets them.
    pub default_env: Vec<(String, String)>,
    /// Units that must be ready, or have exited with code 0, before this one starts. They stop after it.
    pub after: Vec<String>,
    /// The stage of the start that must be reached first.
    pub gate: Gate,
    /// When the unit counts as ready.
    pub readiness: ReadinessTest,
    /// The readiness timeout.
    pub ready_timeout: Duration,
    /// The liveness check; `None` disables it.
    pub liveness: Option<LivenessProbe>,
    /// The restart policy.
    pub restart: RestartPolicy,
    /// The container's exit code if it exits because slurminit gives up on this unit; `None` if it always continues without the unit. With
    /// `on_give_up = "hold"`, it continues without the unit in both cases.
    pub essential: Option<u8>,
    /// The time from the stop signal to SIGKILL.
    pub stop_timeout: Duration,
    /// Whether the daemon can hand over to a successor.
    pub handover: Handover,
    /// Which daemon this is; `None` for a service.
    pub daemon: Option<DaemonName>,
    /// The simulated node of this unit, if any.
    pub node: Option<String>,
}

/// Whether a daemon hands over to a successor, as Slurm's daemons do with [`HANDOVER_OPTION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handover {
    /// The daemon does not hand over.
    Never,
    /// The daemon hands over, unless its notification socket cannot be created or `env` sets NOTIFY_SOCKET.
    WhereItCan,
    /// The daemon hands over, because the operator's own command contains the option.
    Always,
}

/// The option with which Slurm's daemons hand over.
pub const HANDOVER_OPTION: &str = "--systemd";

/// The liveness check of a ready unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessProbe {
    /// The check.
    pub test: ProbeTest,
    /// The timeout, limited to `supervise.probe_interval`; `None` means `supervise.probe_timeout`.
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
    /// The commands to run; all must exit with 0. Empty for a daemon without a check. The controller's record of the node is no substitute
    /// for slurmd's check, because slurmctld notices an unresponsive slurmd only after SlurmdTimeout (300 s, or 30 s in a cluster of several
    /// containers).
    pub fn commands(&self, munge_socket: &Path, node: &str) -> Vec<Vec<String>> {
        let command = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let socket = format!("--socket={}", munge_socket.display());
        match self {
            Self::Daemon(DaemonName::Munged) => {
                vec![command(&["munge", "--no-input", &socket]), command(&["unmunge", "--no-output", &socket])]
            }
            Self::Daemon(DaemonName::Slurmctld) => vec![command(&["scontrol", "ping"])],
            Self::Daemon(DaemonName::Slurmd) => vec![command(&["scontrol", "show", "slurmd", node])],
            // The other daemons have no cheap check.
            Self::Daemon(_) => Vec::new(),
            Self::Command(own) => vec![own.clone()],
        }
    }

    /// Whether slurmd connects to each slurmstepd for this check.
    pub const fn connects_to_steps(&self) -> bool {
        matches!(self, Self::Daemon(DaemonName::Slurmd))
    }
}

/// The stage of the start that a unit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Gate {
    /// The pre-start hooks have ended.
    Hooks,
    /// The munge key is in place.
    MungeKey,
    /// Slurm's configuration files are written.
    Files,
    /// The correction of slurmctld's records of the previous start's jobs has ended, or is not needed.
    Jobs,
    /// The cluster is usable, or its start is overdue. A unit at this gate does not delay the start.
    Served,
}

/// The jobs that a container handles when it starts and stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobCare {
    /// All jobs of the cluster: slurmctld and every slurmd run in this container.
    #[default]
    Cluster,
    /// The jobs of this container's node, in a cluster of several containers.
    Node,
    /// No jobs: if there are any, they run in other containers, and continue without this container.
    OtherContainers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_check_asks_the_daemon_itself() {
        let commands = |test: ProbeTest| {
            let commands = test.commands(Path::new("/run/munge.socket"), "c1");
            commands.iter().map(|command| command.join(" ")).collect::<Vec<_>>()
        };
        let socket = "--socket=/run/munge.socket";
        assert_eq!(
            commands(ProbeTest::Daemon(DaemonName::Munged)),
            [format!("munge --no-input {socket}"), format!("unmunge --no-output {socket}")]
        );
        assert_eq!(commands(ProbeTest::Daemon(DaemonName::Slurmctld)), ["scontrol ping"]);
        assert_eq!(commands(ProbeTest::Daemon(DaemonName::Slurmd)), ["scontrol show slurmd c1"]);
        assert_eq!(commands(ProbeTest::Command(vec!["ask".to_owned(), "me".to_owned()])), ["ask me"]);
        for name in DaemonName::ALL {
            let test = ProbeTest::Daemon(name);
            assert_eq!(test.connects_to_steps(), name == DaemonName::Slurmd);
            assert_eq!(commands(test).is_empty(), !name.has_liveness_check(), "{name}");
        }
    }
}
