//! The task of PID 1: its parameters from the configuration and the command line.
//!
//! `slurminit run` reads the configuration, creates the task, and replaces itself with `slurminit-init`, which gets the task and never parses
//! operator input.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::daemons::Hook;
use crate::jobs::OnStop;
use crate::log::{Level, LogFormat};
use crate::paths::Paths;
use crate::role::Role;
use crate::supervise::Supervise;
use crate::unit::{JobCare, Spec};

/// The task of PID 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The parameters of the state machine.
    pub setup: Setup,
    /// Whether slurmctld runs here for nodes in other containers.
    pub has_other_nodes: bool,
    /// What happens to jobs that a stop of the container ends.
    pub on_stop: OnStop,
    /// The role, passed on to the children. A reload refuses to change it.
    pub role: Role,
    /// The role from the command line, passed on to the preparation.
    pub requested_role: Option<Role>,
    /// The number of simulated nodes from the command line, passed on to the preparation.
    pub simulated_nodes: Option<u32>,
    /// The configured name of the node, for use until the preparation has reported the node's actual name.
    pub node: String,
    /// slurmd's port.
    pub daemon_port: u16,
    /// The directories and files.
    pub paths: Paths,
    /// The format of the log.
    pub log_format: LogFormat,
    /// The least severe level that is logged.
    pub log_level: Level,
    /// The configuration file that was named explicitly. The preparation reads it again.
    pub config_file: Option<OsString>,
    /// The configuration file to watch: the named one, or the default path.
    pub watched_file: OsString,
    /// The checksums of the tables of slurminit.toml that take effect only at a start: `config::StartOnlyTables` as text.
    pub held: String,
    /// Warnings about this start, logged first.
    pub warnings: Vec<String>,
}

/// The state machine's fixed parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Whether there is a cluster. Without a cluster, only the container's command runs.
    pub has_cluster: bool,
    /// The jobs to handle at the start and at the stop.
    pub jobs: JobCare,
    /// The daemons and services.
    pub units: Vec<Spec>,
    /// The pre-start hooks.
    pub hooks: Vec<Hook>,
    /// Whether the container has a command.
    pub has_cmd: bool,
    /// Restart policy and deadlines.
    pub supervise: Supervise,
    /// The time that jobs have to end when the container stops, before they are killed.
    pub jobs_grace: Duration,
    /// Whether to wait for the jobs in the queue when the command has ended.
    pub wait_jobs: bool,
    /// Seed for the jitter that keeps many containers from restarting their daemons in lockstep.
    pub seed: u64,
}
