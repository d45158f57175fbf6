//! The task of PID 1: what it has to know of the configuration, and of the command line, for as long as the container lives.
//!
//! `slurminit run` makes it, and hands it to `slurminit-init`: PID 1 itself reads nothing that an operator has written.

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
    /// What the state machine knows.
    pub setup: Setup,
    /// Whether slurmctld is here and its nodes are other containers.
    pub has_other_nodes: bool,
    /// What becomes of jobs that do not end in time when the container stops.
    pub on_stop: OnStop,
    /// The role, which the preparation is told.
    pub role: Role,
    /// The number of simulated nodes, if the command line gives one; the preparation is told that, too.
    pub simulated_nodes: Option<u32>,
    /// The configured name of the node.
    pub node: String,
    /// slurmd's port.
    pub daemon_port: u16,
    /// The directories and files.
    pub paths: Paths,
    /// The format of the log.
    pub log_format: LogFormat,
    /// The least severe level that is logged.
    pub log_level: Level,
    /// The configuration file that was named, which the preparation reads again.
    pub config_file: Option<OsString>,
    /// The file to watch for changes, even if none was named.
    pub watched_file: OsString,
    /// The part of the configuration that only a restart changes, without what the command line says instead: [`Held`] as text.
    pub held: String,
    /// What is odd about this start, to be logged first.
    pub warnings: Vec<String>,
}

/// The machine's fixed parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Whether there is a cluster; without one only the command runs.
    pub has_cluster: bool,
    /// Whose jobs are looked after at the start and at the stop.
    pub jobs: JobCare,
    /// The daemons and services.
    pub units: Vec<Spec>,
    /// The pre-start hooks.
    pub hooks: Vec<Hook>,
    /// Whether the container has a command.
    pub has_cmd: bool,
    /// Restart policy and deadlines.
    pub supervise: Supervise,
    /// Whether the accounting database gets accounts before the cluster serves.
    pub has_associations: bool,
    /// How long jobs may run on after they were notified of the stop.
    pub jobs_grace: Duration,
    /// Whether to wait for the jobs in the queue when the command has ended.
    pub wait_jobs: bool,
    /// Seed for the jitter that keeps many containers from restarting in lockstep.
    pub seed: u64,
}
