//! How daemons, services and hooks are run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::value;
use crate::liveness_test::LivenessTest;

/// The daemons that slurminit can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DaemonName {
    /// munge's authentication daemon.
    Munged,
    /// The accounting database.
    Mariadbd,
    /// The accounting daemon.
    Slurmdbd,
    /// The controller.
    Slurmctld,
    /// The node's daemon.
    Slurmd,
    /// The REST API.
    Slurmrestd,
    /// slurminit's agent, which monitors GPUs, memory and directories.
    Agent,
    /// slurminit's server for the metrics and the web page.
    Metrics,
    /// The SSH server, for logins.
    Sshd,
}

impl DaemonName {
    /// All daemons, in start order.
    pub const ALL: [Self; 9] = [
        Self::Munged,
        Self::Mariadbd,
        Self::Slurmdbd,
        Self::Slurmctld,
        Self::Slurmd,
        Self::Slurmrestd,
        Self::Agent,
        Self::Metrics,
        Self::Sshd,
    ];

    /// The daemon's name in logs and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Munged => "munged",
            Self::Mariadbd => "mariadbd",
            Self::Slurmdbd => "slurmdbd",
            Self::Slurmctld => "slurmctld",
            Self::Slurmd => "slurmd",
            Self::Slurmrestd => "slurmrestd",
            Self::Agent => "agent",
            Self::Metrics => "metrics",
            Self::Sshd => "sshd",
        }
    }

    /// The unit name of the daemon on a simulated node, by the node's number, starting at 1. The daemon on the first node
    /// keeps its plain name, so that `after` can refer to it.
    pub fn of_simulated_node(self, number: u32) -> String {
        if number == 1 { self.to_string() } else { format!("{self}-{number}") }
    }

    /// The default user of the daemon; `None` means slurminit's own.
    pub const fn user(self) -> Option<&'static str> {
        match self {
            Self::Munged => Some("munge"),
            Self::Mariadbd => Some("mysql"),
            Self::Slurmdbd | Self::Slurmctld => Some("slurm"),
            Self::Slurmrestd => Some("slurmrestd"),
            Self::Slurmd | Self::Agent | Self::Metrics | Self::Sshd => None,
        }
    }

    /// Whether a cheap liveness check for the daemon exists.
    pub const fn has_liveness_check(self) -> bool {
        matches!(self, Self::Munged | Self::Slurmctld | Self::Slurmd)
    }

    /// Whether this is an accounting daemon. A running cluster survives its failure.
    pub const fn is_for_accounting(self) -> bool {
        matches!(self, Self::Mariadbd | Self::Slurmdbd)
    }
}

impl fmt::Display for DaemonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Overrides for one daemon; `None` keeps the default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonSettings {
    /// Program and arguments.
    #[serde(deserialize_with = "value::optional_command")]
    pub command: Option<Vec<String>>,
    /// The user to run as.
    pub user: Option<String>,
    /// Variables added to the environment.
    pub env: BTreeMap<String, String>,
    /// The time from SIGTERM to SIGKILL.
    #[serde(deserialize_with = "value::optional_seconds")]
    pub stop_timeout: Option<Duration>,
    /// When the daemon counts as ready.
    pub readiness: Option<Readiness>,
    /// The liveness check.
    pub liveness: Option<LivenessTest>,
    /// When the daemon is restarted.
    pub restart: Option<RestartPolicy>,
}

/// A process that the operator runs alongside Slurm.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The name in logs and in `after`.
    pub name: String,
    /// Program and arguments.
    #[serde(deserialize_with = "value::command")]
    pub command: Vec<String>,
    /// The user to run as; `None` means root.
    #[serde(default)]
    pub user: Option<String>,
    /// Daemons and services that must be ready before this service starts.
    #[serde(default)]
    pub after: Vec<String>,
    /// When the service counts as ready; `None` means as soon as it runs.
    #[serde(default)]
    pub readiness: Option<Readiness>,
    /// The liveness check; `None` disables it.
    #[serde(default)]
    pub liveness: Option<LivenessTest>,
    /// When the service is restarted.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Whether the container exits if slurminit gives up restarting the service, unless `supervise.on_give_up` is `hold`.
    #[serde(default)]
    pub essential: bool,
    /// Variables added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The time from SIGTERM to SIGKILL; `None` means `supervise.stop_timeout`.
    #[serde(default, deserialize_with = "value::optional_seconds")]
    pub stop_timeout: Option<Duration>,
}

/// When a process is restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// The process is restarted after every exit.
    #[default]
    Always,
    /// The process is restarted if it exits with a code other than 0, is killed by a signal, does not become ready, or stops responding.
    OnFailure,
    /// The process is not restarted.
    Never,
}

/// When a process counts as ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The condition to check.
    pub test: ReadinessTest,
    /// The timeout; `None` means `supervise.ready_timeout`.
    pub timeout: Option<Duration>,
}

/// The condition under which a process is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadinessTest {
    /// The process is running.
    #[default]
    Started,
    /// This Unix socket is listening.
    Socket(PathBuf),
    /// This TCP port is listening.
    Port(u16),
    /// This command exits with 0.
    Command(Vec<String>),
}

impl<'de> Deserialize<'de> for Readiness {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const FORMS: &str = r#""started", { socket = "/path" }, { port = 6817 } or { command = ["..."] }"#;
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            socket: Option<PathBuf>,
            port: Option<u16>,
            #[serde(default, deserialize_with = "value::optional_command")]
            command: Option<Vec<String>>,
            #[serde(default, deserialize_with = "value::optional_seconds")]
            timeout: Option<Duration>,
        }
        let Some(table) = value::word_or_table(deserializer, "started", FORMS)? else {
            return Ok(Self { test: ReadinessTest::Started, timeout: None });
        };
        let Table { socket, port, command, timeout } = table;
        let test = match (socket, port, command) {
            (Some(path), None, None) => ReadinessTest::Socket(path),
            (None, Some(port), None) if port != 0 => ReadinessTest::Port(port),
            (None, None, Some(command)) => ReadinessTest::Command(command),
            _ => return Err(de::Error::custom(format_args!("expected exactly one of {FORMS}"))),
        };
        Ok(Self { test, timeout })
    }
}

/// Commands that run at fixed points of the container's start and of each job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hooks {
    /// Run one after the other, before the preparation.
    pub pre_start: Vec<Hook>,
    /// Run on each node of a job, before the job's first process on that node.
    pub pre_job: Vec<JobHook>,
    /// Run on each node of a job, after the job.
    pub post_job: Vec<JobHook>,
}

/// A command that runs for each job.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobHook {
    /// Program and arguments.
    #[serde(deserialize_with = "value::command")]
    pub command: Vec<String>,
    /// The timeout.
    #[serde(default = "one_minute", deserialize_with = "value::seconds")]
    pub timeout: Duration,
    /// The consequence of a failure.
    #[serde(default)]
    pub on_failure: OnHookFailure,
}

const fn one_minute() -> Duration {
    Duration::from_secs(60)
}

/// The consequence of a failed job hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnHookFailure {
    /// The failure is logged.
    #[default]
    Warn,
    /// Slurm also drains the node. If a hook before a job failed, Slurm requeues and holds the job as well.
    Drain,
}

/// A command that must succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// Program and arguments.
    #[serde(deserialize_with = "value::command")]
    pub command: Vec<String>,
    /// The timeout.
    #[serde(default = "five_minutes", serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub timeout: Duration,
}

const fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn readiness_is_one_condition() {
        let parse = |value: serde_json::Value| serde_json::from_value::<Readiness>(value).ok().map(|own| own.test);
        assert_eq!(parse(json!("started")), Some(ReadinessTest::Started));
        assert_eq!(parse(json!({"socket": "/run/x"})), Some(ReadinessTest::Socket("/run/x".into())));
        assert_eq!(parse(json!({"port": 1})), Some(ReadinessTest::Port(1)));
        assert_eq!(parse(json!({"command": ["x"]})), Some(ReadinessTest::Command(vec!["x".to_owned()])));
        for bad in [json!("soon"), json!({}), json!({"port": 0}), json!({"port": 1, "socket": "/run/x"})] {
            assert_eq!(parse(bad.clone()), None, "{bad}");
        }
    }

    #[test]
    fn cluster_runs_without_its_accounting() {
        let for_accounting: Vec<_> = DaemonName::ALL.into_iter().filter(|name| name.is_for_accounting()).collect();
        assert_eq!(for_accounting, [DaemonName::Mariadbd, DaemonName::Slurmdbd]);
        let names = [1, 2].map(|number| DaemonName::Slurmd.of_simulated_node(number));
        assert_eq!(names, ["slurmd", "slurmd-2"]);
    }
}
