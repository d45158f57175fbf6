//! The operator's configuration: `/config/slurminit.toml` and the environment, as validated types.
//!
//! `install::load_config` reads the file. `config/reference.toml`, embedded as [`EXAMPLE`], explains
//! every key. Each value in these types is valid; `plan` rejects further combinations that cannot work.

#![forbid(unsafe_code)]

mod account;
mod accounting;
mod agent;
mod association;
mod autoscale;
mod compute_capability;
mod directory_limit;
pub mod effective;
mod error;
pub mod example;
pub mod given;
mod gpu;
mod host_users;
mod images;
mod job_reports;
mod joined;
mod layers;
mod login;
mod memory;
mod metrics;
mod notify;
mod ports;
mod rest;
pub mod secret;
mod selector;
mod services;
mod sharing;
mod simulate;
mod slurm;
mod start_only;
pub mod token;
mod unknown_variables;

pub use account::{AccountName, Group, User};
pub use accounting::{Accounting, AccountingMode};
pub use agent::Agent;
pub use association::Limits;
pub use autoscale::{Autoscale, CloudNodes, GpuCount, NodeRange};
pub use compute_capability::ComputeCapability;
pub use directory_limit::DirectoryLimit;
pub use error::{ConfigError, Fault, Step};
pub use gpu::{CudaDevices, GpuSettings, GresMode, TypeName};
pub use host_users::HostUsers;
pub use images::Images;
pub use job_reports::JobReports;
pub use joined::{TokenSettings, check_joined_role, is_shared};
pub use layers::{Layers, VARIABLES};
pub use login::{Login, PublicKey};
pub use memory::{Memory, Victim};
pub use metrics::Metrics;
pub use notify::{Event, Notify, Receiver, WebhookUrl};
pub use rest::Rest;
pub use selector::GpuSelector;
pub use sharing::{Shards, Sharing};
pub use simulate::{OtherNodes, Simulate, SimulatedGroup, SimulatedNodes};
pub use slurm::{Partition, Preempt, Slurm, SlurmKey, SlurmSettings, SlurmValue};
pub use start_only::StartOnlyTables;
pub use unknown_variables::unknown_variables;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

pub use faults::fault::Faults;
pub use model::daemons::{
    DaemonName, DaemonSettings, Hook, Hooks, JobHook, OnHookFailure, Readiness, ReadinessTest, RestartPolicy, Service,
};
pub use model::inventory::GpuType;
pub use model::jobs::{Jobs, OnStop};
pub use model::liveness_test::LivenessTest;
pub use model::log::{Level, Log, LogFormat};
pub use model::paths::Paths;
pub use model::role::Role;
pub use model::supervise::{OnGiveUp, Supervise};
pub use model::value::{FeatureName, NodeName};

/// The commented example: every key with its default or an example value, and an explanation.
pub const EXAMPLE: &str = include_str!("../../config/reference.toml");

/// The default configuration file, used if none of `--config`, `SLURMINIT_CONFIG` and `SLURMINIT_TOML` is given.
pub const DEFAULT_FILE: &str = "/config/slurminit.toml";

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Which daemons this container runs.
    pub role: Role,
    /// The GPU vendor that the image was built for; `None` if unknown.
    pub gpu_type: Option<GpuType>,
    /// The reaction if `gpu_type` and the visible GPUs differ.
    pub on_mismatch: OnMismatch,
    /// The cluster's name; `None` means `slurminit`.
    pub cluster_name: Option<NodeName>,
    /// Whether the user's own Slurm files are used even if they have no marker line.
    pub user_customized: bool,
    /// The format and level of the log.
    pub log: Log,
    /// The paths of files and directories.
    pub paths: Paths,
    /// How GPUs are detected and offered to jobs.
    pub gpu: GpuSettings,
    /// The node's name, resources and features, and the limits of directories that jobs use.
    pub node: NodeSettings,
    /// The controller, the ports, mail, and keys of slurm.conf.
    pub slurm: Slurm,
    /// Partitions that replace the default one; if empty, there is only the default one.
    #[serde(rename = "partition")]
    pub partitions: Vec<Partition>,
    /// Overrides for the daemons.
    #[serde(rename = "daemon")]
    pub daemons: BTreeMap<DaemonName, DaemonSettings>,
    /// Slurm's accounting database.
    pub accounting: Accounting,
    /// Slurm's REST API.
    pub rest: Rest,
    /// The agent, which monitors the GPUs, the memory and the limited directories.
    pub agent: Agent,
    /// The report of each job's GPUs.
    pub report: JobReports,
    /// The policies for GPU faults.
    pub faults: Faults,
    /// Notifications of GPU faults and jobs.
    #[serde(rename = "notify")]
    pub notifies: Vec<Notify>,
    /// Protection of the container's memory.
    pub memory: Memory,
    /// Prometheus metrics, and the web page.
    pub metrics: Metrics,
    /// Container images for jobs.
    pub images: Images,
    /// Accounts in the accounting database.
    #[serde(rename = "account")]
    pub accounts: Vec<Limits>,
    /// QOS in the accounting database.
    pub qos: Vec<Limits>,
    /// Autoscaled nodes.
    pub autoscale: Autoscale,
    /// Simulated nodes.
    pub simulate: Simulate,
    /// Processes that run alongside Slurm.
    #[serde(rename = "service")]
    pub services: Vec<Service>,
    /// Commands that run at fixed points of the start and of each job.
    pub hooks: Hooks,
    /// Groups of users.
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
    /// User accounts that are created at a start or reload.
    #[serde(rename = "user")]
    pub users: Vec<User>,
    /// User accounts for the host's users.
    #[serde(rename = "users")]
    pub host_users: HostUsers,
    /// Logins with SSH.
    pub login: Login,
    /// The handling of jobs when the container stops, or when its command has ended.
    pub jobs: Jobs,
    /// Restart policy and deadlines.
    pub supervise: Supervise,
}

impl Config {
    /// Parses the operator's TOML. `origin` is the file name for messages.
    ///
    /// # Errors
    /// The first error, with its line, column and key.
    pub fn parse(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        error::list_in_place_of_table(text).map_or(Ok(()), |fault| Err(fault.at(text, origin)))?;
        let mut config: Self = toml::from_str(text).map_err(|error| ConfigError::from_toml(&error, text, origin))?;
        config.supervise.allow_for_detection(config.gpu.detect_timeout);
        config.check_grace(text).and_then(|()| config.check()).map_err(|fault| fault.at(text, origin))?;
        Ok(config)
    }

    /// Checks rules that involve several keys.
    fn check(&self) -> Result<(), Fault> {
        services::check_services(&self.services)
            .and_then(|()| slurm::check_partitions(&self.partitions))
            .and_then(|()| sharing::check(&self.gpu))
            .and_then(|()| autoscale::check(self))
            .and_then(|()| accounting::check(self))
            .and_then(|()| memory::check(&self.memory))
            .and_then(|()| ports::check(self))
            .and_then(|()| simulate::check(self))
            .and_then(|()| association::check(self))
            .and_then(|()| account::check_accounts(&self.users, &self.groups))
            .and_then(|()| host_users::check(self))
    }

    /// Checks that the grace period fits into the stop timeout. If `text` does not set the grace period, shortens it
    /// instead.
    fn check_grace(&mut self, text: &str) -> Result<(), Fault> {
        let budget = self.supervise.stop_budget();
        let (grace, longest) = (self.jobs.grace, budget.max_grace());
        if grace <= longest {
            return Ok(());
        }
        let path: Vec<Step> = vec!["jobs".into(), "grace".into()];
        if Fault::is_set(&path, text) {
            let [grace, longest, total, rest] =
                [grace, longest, budget.total, budget.total - longest].map(|time| time.as_secs_f64());
            let what = format!(
                "{grace} s does not fit into the stop timeout of {total} s, of which Slurm needs {rest} s: use at most {longest} s, or a longer `[supervise] stop_timeout`"
            );
            return Err(Fault::new(path, what));
        }
        self.jobs.grace = longest;
        Ok(())
    }

    /// The cluster's name.
    pub fn cluster_name(&self) -> &str {
        self.cluster_name.as_ref().map_or("slurminit", NodeName::as_str)
    }

    /// Whether GPU device files are restricted to the job's user if no cgroup restricts jobs to their GPUs.
    pub fn isolates_gpus(&self) -> bool {
        self.gpu.isolate.unwrap_or(self.users.len() > 1 || self.host_users.from.is_some())
    }

    /// Whether this container belongs to a cluster of several containers. A container with the role `all` belongs to such a
    /// cluster if its configuration names a controller, which is the container itself.
    pub fn shares_a_cluster(&self) -> bool {
        match self.role {
            Role::Controller | Role::Compute | Role::Login => true,
            Role::All => self.slurm.controller.is_some(),
            Role::None => false,
        }
    }

    /// Whether this container's node is registered by slurmd with its resources. Unless it is autoscaled, it is dynamic: not in slurm.conf.
    pub fn has_dynamic_node(&self) -> bool {
        self.shares_a_cluster() && matches!(self.role, Role::All | Role::Compute)
    }

    /// Whether the configuration contains secrets, according to [`secret::is_secret`].
    pub fn has_secrets(&self) -> bool {
        let is_secret = |key: &SlurmKey| secret::is_secret(&format!("slurm.conf.{}", key.as_str()));
        self.notifies.iter().any(|notify| notify.urls().next().is_some())
            || self.services.iter().any(|service| !service.env.is_empty())
            || self.daemons.values().any(|daemon| !daemon.env.is_empty())
            || self.slurm.conf.iter().any(|(key, _)| is_secret(key))
    }

    /// Whether the accounting daemons run here, in the same container as slurmctld.
    pub fn runs_accounting(&self) -> bool {
        self.accounting.is_on() && matches!(self.role, Role::All | Role::Controller)
    }

    /// Whether the accounting daemons run here, and the configuration defines accounts, users or QOS for the database.
    pub fn has_associations(&self) -> bool {
        let has_hosts_users = self.host_users.from.is_some() && self.host_users.account.is_some();
        let has_user = has_hosts_users || self.users.iter().any(|user| user.account.is_some());
        self.runs_accounting() && (has_user || !self.accounts.is_empty() || !self.qos.is_empty())
    }

    /// Whether slurmrestd runs here, in the same container as slurmctld.
    pub fn runs_rest(&self) -> bool {
        self.rest.listen.is_some() && matches!(self.role, Role::All | Role::Controller)
    }

    /// Whether sshd runs here.
    pub fn runs_sshd(&self) -> bool {
        self.login.port.is_some() && self.role != Role::None
    }

    /// Whether a `[[notify]]` reports the end of jobs submitted with `--mail-type`.
    pub fn notifies_job_ends(&self) -> bool {
        self.notifies.iter().any(|notify| notify.on == Event::JobEnd)
    }

    /// Whether metrics are served here.
    pub fn runs_metrics(&self) -> bool {
        self.metrics.listen.is_some() && self.role != Role::None
    }

    /// Whether the agent runs here: alongside a single slurmd, not alongside the slurmds of simulated nodes, and only if it has something to
    /// monitor.
    pub fn runs_agent(&self) -> bool {
        let may_have_gpus = self.gpu_type != Some(GpuType::None);
        self.agent.interval.is_some()
            && (may_have_gpus || self.memory.guard || !self.node.directory_limits.is_empty())
            && self.simulated().is_none()
            && matches!(self.role, Role::All | Role::Compute)
    }

    /// Whether the node has the container's name, because no other name is configured.
    pub fn names_node_after_container(&self) -> bool {
        self.has_dynamic_node() && self.node.name == NodeName::default()
    }
}

/// The reaction if the image and the visible GPUs do not match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMismatch {
    /// Log a warning and start with the GPUs that exist.
    #[default]
    Warn,
    /// Log an error and do not start.
    Fail,
}

/// The table `[node]`: the node's name, resources and features, and the limits of directories that jobs use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSettings {
    /// The node's name.
    pub name: NodeName,
    /// CPUs for jobs; `None` means all that the container may use, which is also the maximum.
    pub cpus: Option<u32>,
    /// Memory for jobs in MiB; `None` means the container's memory minus the reserve.
    pub memory_mib: Option<u64>,
    /// Memory reserved for the system in MiB; `None` means a value derived from the container's memory.
    pub reserve_mib: Option<u64>,
    /// The size of /tmp for `--tmp` in MiB; `None` means its real size in whole GiB, 0 offers none.
    pub tmp_disk_mib: Option<u64>,
    /// Directories that jobs use and whose size is limited from outside the container.
    pub directory_limits: Vec<DirectoryLimit>,
    /// Features in addition to the detected ones.
    pub features: Vec<FeatureName>,
}

#[cfg(test)]
mod tests;
