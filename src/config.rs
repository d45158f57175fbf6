//! What the operator wants: `/config/slurminit.toml` and the environment, as validated types.
//!
//! PURE. The file is read by [`crate::commands::load_config`]; every key is explained in `config/slurminit.toml`, which is
//! embedded as [`EXAMPLE`]. A value that got here is valid: nobody checks it again.

mod account;
mod daemons;
mod environment;
mod error;
mod floors;
mod held;
mod jobs;
mod liveness;
mod paths;
mod selector;
mod sharing;
mod slurm;
mod supervise;
mod unknown_variables;
mod value;

pub use account::{AccountName, Group, User};
pub use daemons::{DaemonName, DaemonSettings, Hook, Hooks, Readiness, ReadinessTest, RestartPolicy, Service};
pub use error::{ConfigError, Fault, Place, Step};
pub use floors::{ComputeCapability, Floors};
pub use held::Held;
pub use jobs::{Jobs, OnStop};
pub use liveness::Liveness;
pub use paths::Paths;
pub use selector::GpuSelector;
pub use sharing::{Shards, Sharing};
pub use slurm::{Partition, Slurm, SlurmKey, SlurmSettings, SlurmValue};
pub use supervise::{OnGiveUp, Supervise};
pub use unknown_variables::unknown_variables;
pub use value::{FeatureName, NodeName};

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// The commented example: every key with its default and one line of why.
pub const EXAMPLE: &str = include_str!("../config/slurminit.toml");

/// Where the file is looked for when no `--config` names one.
pub const DEFAULT_FILE: &str = "/config/slurminit.toml";

/// Everything that the operator can decide.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Which daemons this container runs.
    pub role: Role,
    /// What the image was built for; `None` where nobody said.
    pub gpu_type: Option<GpuType>,
    /// What to do when `gpu_type` and the visible GPUs differ.
    pub on_mismatch: OnMismatch,
    /// The cluster's name; `None` takes `CLUSTER_NAME`, else `slurminit`.
    pub cluster_name: Option<NodeName>,
    /// Whether the user's own Slurm files count as theirs without a marker line.
    pub user_customized: bool,
    /// The logs.
    pub log: Log,
    /// Where files are.
    pub paths: Paths,
    /// How GPUs are found and written down.
    pub gpu: GpuSettings,
    /// This node's line.
    pub node: NodeSettings,
    /// slurm.conf.
    pub slurm: Slurm,
    /// Partitions in place of the default one; empty is the default one.
    #[serde(rename = "partition")]
    pub partitions: Vec<Partition>,
    /// How the daemons are run, where it differs from the default.
    #[serde(rename = "daemon")]
    pub daemons: BTreeMap<DaemonName, DaemonSettings>,
    /// What runs beside Slurm.
    #[serde(rename = "service")]
    pub services: Vec<Service>,
    /// Commands at fixed moments of the start.
    pub hooks: Hooks,
    /// People's groups.
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
    /// People, whose accounts are made at the start.
    #[serde(rename = "user")]
    pub users: Vec<User>,
    /// What becomes of running jobs when the container stops.
    pub jobs: Jobs,
    /// Restarts and deadlines.
    pub supervise: Supervise,
}

impl Config {
    /// Reads the operator's TOML. `origin` is the file's name for messages.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line, column and key.
    pub fn parse(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| ConfigError::from_toml(&error, text, origin))?;
        config.check_grace(text).map_err(|fault| fault.at(text, origin))?;
        daemons::check_services(&config.services)
            .and_then(|()| slurm::check_partitions(&config.partitions))
            .and_then(|()| sharing::check(&config.gpu))
            .and_then(|()| account::check_accounts(&config.users, &config.groups))
            .map_err(|fault| fault.at(text, origin))?;
        Ok(config)
    }

    /// Jobs cannot have more time than the stop has. What nobody wrote gives way.
    fn check_grace(&mut self, text: &str) -> Result<(), Fault> {
        let (grace, stop) = (self.jobs.grace, self.supervise.stop_timeout);
        if grace <= stop {
            return Ok(());
        }
        let path: Vec<Step> = vec!["jobs".into(), "grace".into()];
        if Fault::is_written(&path, text) {
            let (grace, stop) = (grace.as_secs_f64(), stop.as_secs_f64());
            let what = format!(
                "jobs have {grace} s to end, and all of the stop has {stop} s: write at most stop_timeout of [supervise]"
            );
            return Err(Fault::new(path, what));
        }
        self.jobs.grace = stop;
        Ok(())
    }

    /// Lays the environment over the file: `SLURMINIT_*` wins over it; `GPU_TYPE`, `DSHPC_GPU_TYPE` and `CLUSTER_NAME`,
    /// which say what an image was built with, only fill what it leaves open. An empty variable is an unset one, for
    /// that is what compose makes of an unset one.
    ///
    /// # Errors
    /// The variable whose value is not valid.
    pub fn apply_environment(self, variable: &impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        environment::apply(self, variable)
    }
}

/// Which daemons this container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// munged, slurmctld and slurmd: a whole cluster in one container.
    #[default]
    All,
    /// No daemon: a plain init for CMD.
    None,
    /// munged and slurmctld; not available in this version.
    Controller,
    /// munged and slurmd; not available in this version.
    Compute,
    /// munged only; not available in this version.
    Login,
}

/// What the image was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum GpuType {
    /// NVIDIA GPUs.
    Nvidia,
    /// AMD GPUs.
    Amd,
    /// No GPU.
    None,
}

impl GpuType {
    /// As in `GPU_TYPE`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
            Self::None => "none",
        }
    }
}

/// What to do when the image and the visible GPUs differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMismatch {
    /// Say so and start with the GPUs that are there.
    #[default]
    Warn,
    /// Say so and do not start.
    Fail,
}

/// The logs, slurminit's own and the daemons'.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Text for people or JSON for collectors.
    pub format: LogFormat,
    /// The least severe level that is written; `None` is `warn` with a CMD and `info` without.
    pub level: Option<Level>,
}

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One readable line, prefixed with its daemon.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How severe a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the words are the field's own")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How GPUs are found and written down.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSettings {
    /// What the GRES type says.
    pub type_name: TypeName,
    /// Who names the devices in gres.conf.
    pub gres: GresMode,
    /// How long a driver may take to answer.
    #[serde(deserialize_with = "value::seconds")]
    pub detect_timeout: Duration,
    /// The compute capability that every NVIDIA GPU should have.
    pub min_compute: Option<ComputeCapability>,
    /// The memory that every GPU should have, in MiB.
    pub min_memory_mib: Option<u64>,
    /// The GPUs that jobs may have; empty is all.
    pub only: Vec<GpuSelector>,
    /// The GPUs that jobs may not have.
    pub except: Vec<GpuSelector>,
    /// Into how many shards each whole GPU is counted for jobs that share it.
    pub shards: Option<Shards>,
    /// Whether jobs may share NVIDIA GPUs by percent, through NVIDIA's MPS.
    pub mps: bool,
}

impl GpuSettings {
    /// How several jobs can be on one GPU, besides those that have it alone.
    pub fn sharing(&self) -> Option<Sharing> {
        self.shards.map(Sharing::Shards).or_else(|| self.mps.then_some(Sharing::Mps))
    }

    /// What each GPU should have at least.
    pub fn floors(&self) -> Floors {
        Floors { compute: self.min_compute, memory_mib: self.min_memory_mib }
    }
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            type_name: TypeName::default(),
            gres: GresMode::default(),
            detect_timeout: Duration::from_secs(10),
            min_compute: None,
            min_memory_mib: None,
            only: Vec::new(),
            except: Vec::new(),
            shards: None,
            mps: false,
        }
    }
}

/// What the GRES type of a GPU says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TypeName {
    /// `gpu:nvidia:2`.
    #[default]
    Vendor,
    /// `gpu:nvidia_h200:2`, the name that Slurm's own plugin gives.
    Model,
    /// `gpu:gpu0:1,gpu:gpu1:1`: a job can ask for a given GPU.
    Index,
}

/// Who names the devices in gres.conf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GresMode {
    /// slurminit, one line for each GPU that it opened.
    #[default]
    Explicit,
    /// Slurm's own plugin (`AutoDetect=nvml` or `rsmi`), where it is installed.
    Autodetect,
}

/// This node's line in slurm.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSettings {
    /// Its name.
    pub name: NodeName,
    /// CPUs for jobs; `None` is all that the container may use, which is also the most.
    pub cpus: Option<u32>,
    /// Memory for jobs in MiB; `None` is what the container may use less the reserve.
    pub memory_mib: Option<u64>,
    /// Memory kept for the system in MiB; `None` decides by the container's size.
    pub reserve_mib: Option<u64>,
    /// Features besides those that detection finds.
    pub features: Vec<FeatureName>,
}

#[cfg(test)]
mod tests;
