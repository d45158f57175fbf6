//! Observations, before any verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::RootOnly;
use crate::configure::assess::Trials;
use crate::configure::situation::Situation;
use config::DaemonName;
use faults::report::Report;
use machine::Snapshot;
use machine::node_report::NodeReport;
use model::inventory::{Condition, Finding, Inventory, Kind, Observations};
use model::oom_kill::OomKill;
use model::queued_job::QueuedJob;
use sys::secret_variables::SecretVariable;

/// An observed value, or the reason why it is unknown.
pub type Observed<T> = Result<T, String>;

/// Everything that was observed, before any verdict.
#[derive(Debug)]
pub struct Facts {
    /// Whether this process can observe everything: it is root, or the owner of the examined root directory. On the
    /// host, every user can.
    pub is_root: bool,
    /// The facts that only root can observe.
    pub root: RootOnly<RootFacts>,
    /// The environment variables that entries refer to.
    pub environment: Environment,
    /// The observations that are possible only on the host, or only in the container.
    pub side: Side,
}

impl Facts {
    /// The result of detection.
    pub(super) fn inventory(&self) -> &Inventory {
        &self.root.read().inventory
    }

    /// The findings of the given kinds, as observations.
    pub(super) fn findings_of(&self, kinds: &[Kind]) -> Vec<Observations> {
        let findings = self.root.read().findings.iter();
        findings.filter(|finding| kinds.contains(&finding.kind)).cloned().map(Observations::from).collect()
    }
}

/// Facts that only root can observe: other users may be denied the GPUs, the configuration and Slurm's files.
#[derive(Debug)]
pub struct RootFacts {
    /// The result of detection.
    pub inventory: Inventory,
    /// The condition of NVIDIA's GPUs.
    pub conditions: Observed<Vec<Condition>>,
    /// The error in slurminit.toml or a variable, if any.
    pub configuration: Observed<()>,
    /// The findings of detection, and those of the plan or of its refusal.
    pub findings: Vec<Finding>,
    /// Installed files that differ from what a start would write now.
    pub stale_files: Observed<Vec<String>>,
    /// The hosts whose munge credentials slurmctld or slurmd has rejected in the last 5 minutes.
    pub rejected_peers: Observed<BTreeSet<String>>,
}

/// The side of the container boundary on which doctor runs.
#[derive(Debug)]
pub enum Side {
    /// Doctor runs on the host.
    Host(Box<HostFacts>),
    /// Doctor runs in the container.
    Container(Box<ContainerFacts>),
}

/// The environment variables that entries refer to; an empty variable counts as unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CUDA_VISIBLE_DEVICES`.
    pub cuda_visible_devices: Option<String>,
    /// `CUDA_VERSION`, which the CUDA base images set.
    pub cuda_version: Option<String>,
    /// `NVIDIA_DRIVER_CAPABILITIES`.
    pub driver_capabilities: Option<String>,
    /// `NVIDIA_REQUIRE_CUDA`.
    pub require_cuda: Option<String>,
    /// Which of `NVIDIA_MIG_CONFIG_DEVICES` and `NVIDIA_MIG_MONITOR_DEVICES` are set.
    pub mig_variables: Vec<&'static str>,
    /// The name of the first variable of a GPU-sharing scheme that is set.
    pub gpu_share: Option<&'static str>,
    /// The name of the first of `http_proxy` and its variants that is set. The value is omitted, because it can contain a password.
    pub proxy: Option<&'static str>,
    /// `no_proxy` or `NO_PROXY`.
    pub no_proxy: Option<String>,
    /// Whether `KUBERNETES_SERVICE_HOST` is set.
    pub is_in_kubernetes: bool,
    /// Whether the GPUs are simulated: `SLURMINIT_DEMO`.
    pub is_demo: bool,
}

/// Observations made only on the host.
#[derive(Debug)]
pub struct HostFacts {
    /// The observations of `slurminit configure`.
    pub situation: Situation,
    /// The result of passing the GPUs to a trial container.
    pub trials: Trials,
    /// The requested image; `None` if it does not exist.
    pub image: Observed<Option<ImageFacts>>,
    /// The running containers of slurminit's images.
    pub containers: Observed<Vec<RunningContainer>>,
    /// Kubernetes; `None` without kubectl or a configured cluster.
    pub kubernetes: Observed<Option<Kubernetes>>,
    /// Whether the clock is synchronized (NTP).
    pub clock: Observed<bool>,
}

/// A slurminit image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// The name of the image.
    pub name: String,
    /// The GPU type in the image's label.
    pub gpu_type: Option<String>,
}

/// Whether slurmctld responds, and whether authentication succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// slurmctld responds, and authentication succeeds.
    Responds,
    /// slurmctld rejects the credentials of this container, or this container rejects slurmctld's.
    Rejects,
    /// slurmctld does not respond.
    Silent,
}

/// A running container of one of slurminit's images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// The container's name.
    pub name: String,
    /// Whether the container was created with a GPU: by a device request, a device file or NVIDIA's runtime.
    pub has_gpu: bool,
}

/// The nodes and device plugins of the Kubernetes cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// The nodes of the cluster.
    pub nodes: Vec<KubernetesNode>,
    /// The device plugins: name, ready pods, desired pods.
    pub plugins: Vec<(String, u64, u64)>,
}

/// A Kubernetes node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesNode {
    /// The node's name.
    pub name: String,
    /// Whether a label marks the node as having GPUs.
    pub has_gpu_label: bool,
    /// The number of GPUs and MIG instances that pods can request.
    pub gpus: u64,
}

/// Observations made only in the container.
#[derive(Debug)]
pub struct ContainerFacts {
    /// The status of the running cluster, or why it is unknown.
    pub status: Observed<Snapshot>,
    /// The output of Slurm's commands.
    pub slurm: SlurmFacts,
    /// The result of encoding and decoding a credential.
    pub munge: Observed<Credential>,
    /// The result of decoding a credential from another machine; `None` if no credential was passed.
    pub foreign_credential: Option<Observed<Credential>>,
    /// The age in seconds, by slurmd's clock, at which slurmd rejects the credential of a step.
    pub step_credential_lifetime: i64,
    /// Whether this host's name resolves to an address.
    pub has_address: Observed<bool>,
    /// The agent's report about the GPUs.
    pub gpu_health: Observed<Report>,
    /// Whether jobs in container images can use user namespaces.
    pub namespaces: Observed<()>,
    /// Whether jobs in container images can run with PRoot.
    pub proot: Observed<()>,
    /// Why users other than root can run processes in this container; `None` if they cannot.
    pub ordinary_user: Option<String>,
    /// The number of connections to sshd by address; `None` without sshd.
    pub ssh_clients: Option<BTreeMap<IpAddr, usize>>,
    /// The observations that each start also makes.
    pub cheap: CheapFacts,
}

/// The input of the checks that each start also runs.
#[derive(Debug)]
pub struct StartFacts<'a> {
    /// The result of detection. A start always runs as root, but any user can run `slurminit doctor`.
    pub inventory: RootOnly<&'a Inventory>,
    /// The environment variables.
    pub environment: &'a Environment,
    /// The observations that each start also makes.
    pub cheap: &'a CheapFacts,
}

/// Observations that are fast enough to be made at every start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheapFacts {
    /// The munge key, if there is one.
    pub key: Observed<Option<KeyFacts>>,
    /// The name of this cluster; empty without a plan.
    pub cluster: String,
    /// The name of the cluster whose jobs are in the state directory; `None` if no jobs are saved.
    pub saved_cluster: Observed<Option<String>>,
    /// The state directory (`[paths] state`).
    pub state: String,
    /// The file system of the state directory.
    pub state_disk: Observed<Disk>,
    /// The daemons' ports, with the process that listens on each.
    pub ports: Vec<Port>,
    /// CUDA in this container; searched only if there is a driver.
    pub cuda: CudaFacts,
    /// The OOM kills in this container.
    pub memory_kills: Observed<MemoryKills>,
    /// Whether an OOM kill ends all processes of the container.
    pub has_oom_group: bool,
    /// Whether AMD's compute device exists in the container.
    pub has_kfd: bool,
    /// Container settings besides GPUs.
    pub settings: ContainerSettings,
    /// Secrets in the container's environment.
    pub exposed_secrets: Vec<SecretVariable>,
}

/// OOM kills in this container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryKills {
    /// The kernel's count since the container's start.
    pub count: u64,
    /// The most recent kills of jobs' processes, oldest first.
    pub job_kills: Vec<OomKill>,
}

/// Container settings besides GPUs. A size or a limit is `None` if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSettings {
    /// Whether InfiniBand devices exist in the container.
    pub has_infiniband: bool,
    /// The size of /dev/shm, in MiB.
    pub shared_memory_mib: Option<u64>,
    /// The limit on locked memory per process.
    pub locked_memory: Option<Limit>,
    /// The limit on stack size.
    pub stack: Option<Limit>,
    /// The disabled kernel settings that protect files in directories that all users can write to.
    pub unprotected: Vec<&'static str>,
    /// The preloaded library of a GPU-sharing scheme, if any.
    pub sharing_library: Option<String>,
}

/// A limit on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// There is no limit.
    Unlimited,
    /// The limit in bytes.
    Bytes(u64),
}

/// The munge key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// The path of the key file.
    pub path: String,
    /// The file mode.
    pub mode: u32,
    /// Whether the key came with the image: it is older than the container and is in the container's own file system.
    pub is_from_image: bool,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The free space in MiB.
    pub free_mib: u64,
    /// The total space in MiB.
    pub total_mib: u64,
    /// Whether the file system is read-only.
    pub is_read_only: bool,
}

/// A port of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name of the daemon.
    pub daemon: &'static str,
    /// The port number.
    pub number: u16,
    /// The process that listens on the port.
    pub owner: PortOwner,
}

/// The process that listens on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortOwner {
    /// No process listens on the port.
    Free,
    /// A process of this container, by name.
    Process(String),
    /// Any other process: on the host, in another container of the same network, or with descriptors that cannot be read.
    External,
}

/// CUDA in this container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaFacts {
    /// The path of the driver's CUDA library, `libcuda.so.1`; `None` if it is missing.
    pub driver_library: Option<String>,
    /// The version of the CUDA toolkit, `12.4.1`, or only the major version of its runtime library, `12`.
    pub toolkit: Option<String>,
    /// Whether `nvidia-smi` exists.
    pub has_smi: bool,
}

/// The maximum number of pending jobs that are explained.
pub const MAX_EXPLAINED: usize = 5;

/// The output of Slurm's commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmFacts {
    /// Whether the controller responds.
    pub controller: Observed<Controller>,
    /// The node of this container.
    pub node: Observed<NodeFacts>,
    /// Running jobs with GPUs on this node; if the node is unknown, all running jobs with GPUs.
    pub gpu_jobs: Observed<Vec<QueuedJob>>,
    /// Pending jobs; the first [`MAX_EXPLAINED`] with the reason why they wait.
    pub waiting_jobs: Observed<Vec<QueuedJob>>,
    /// Jobs that were requeued or cancelled because their slurmstepd died, with their states.
    pub lost_jobs: Observed<Vec<(String, String)>>,
}

impl SlurmFacts {
    /// Facts that were not queried; `why` is the reason.
    pub fn not_queried(why: &str) -> Self {
        let reason = || why.to_owned();
        Self {
            controller: Err(reason()),
            node: Err(reason()),
            gpu_jobs: Err(reason()),
            waiting_jobs: Err(reason()),
            lost_jobs: Err(reason()),
        }
    }
}

/// Whether the daemons of this container are known, and slurmd is not one of them.
pub fn has_no_slurmd(status: &Snapshot) -> bool {
    status.daemon(DaemonName::Munged).is_some() && status.daemon(DaemonName::Slurmd).is_none()
}

/// Why a container without slurmd has no node.
pub const NO_SLURMD: &str = "no slurmd in this container";

/// The node, as the controller reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// The node's state and reason.
    pub report: NodeReport,
    /// The node's GRES, `gpu:nvidia:2`; may be empty.
    pub gres: String,
    /// File, line number and text of the node's line in slurm.conf, if slurmctld refuses the node's registration.
    pub refused_line: Option<String>,
}

/// A credential, as `unmunge` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The status: `Success`, `Expired credential`, `Invalid credential`.
    pub status: String,
    /// The time of encoding by the encoding machine's clock, in seconds since 1970.
    pub encoded: Option<i64>,
    /// The time of decoding by this machine's clock, in seconds since 1970.
    pub decoded: Option<i64>,
}
