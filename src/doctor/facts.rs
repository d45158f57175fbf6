//! What was seen, before anybody judged it. PURE.

use crate::configure::assess::Trials;
use crate::configure::situation::Situation;
use crate::inventory::{Condition, Finding, Inventory};
use crate::supervise::machine::Snapshot;
use crate::supervise::node::NodeReport;

/// What was looked at, or why it could not be.
pub type Looked<T> = Result<T, String>;

/// Everything that was seen.
#[derive(Debug)]
pub struct Facts {
    /// What detection found.
    pub inventory: Inventory,
    /// How NVIDIA's GPUs fare.
    pub conditions: Looked<Vec<Condition>>,
    /// The variables of the environment that entries speak of.
    pub environment: Environment,
    /// What is there on this side only.
    pub side: Side,
}

/// On which side of the container's wall this was seen.
#[derive(Debug)]
pub enum Side {
    /// On the host.
    Host(Box<HostFacts>),
    /// In the container.
    Container(Box<ContainerFacts>),
}

/// The variables of the environment that entries speak of; an empty one is an unset one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CUDA_VISIBLE_DEVICES`.
    pub cuda_visible_devices: Option<String>,
    /// `CUDA_VERSION`, which the CUDA base images set.
    pub cuda_version: Option<String>,
    /// `NVIDIA_DRIVER_CAPABILITIES`.
    pub driver_capabilities: Option<String>,
    /// The first of `http_proxy` and its sisters that is set: its name, never its value, which can hold a password.
    pub proxy: Option<&'static str>,
    /// `no_proxy` or `NO_PROXY`.
    pub no_proxy: Option<String>,
    /// Whether `KUBERNETES_SERVICE_HOST` is set.
    pub is_in_kubernetes: bool,
    /// Whether the GPUs are simulated: `SLURMINIT_DEMO`.
    pub is_demo: bool,
}

/// What can be seen on the host only.
#[derive(Debug)]
pub struct HostFacts {
    /// What `slurminit configure` sees.
    pub situation: Situation,
    /// What a container could do with the GPUs.
    pub trials: Trials,
    /// The image that is asked about, and what it was built for; `None` where there is no such image.
    pub image: Looked<Option<ImageFacts>>,
    /// The containers of slurminit's image that run.
    pub containers: Looked<Vec<RunningContainer>>,
    /// Kubernetes; `None` where there is none.
    pub kubernetes: Looked<Option<Kubernetes>>,
    /// Whether something keeps the clock right.
    pub clock: Looked<bool>,
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// Its name.
    pub name: String,
    /// What its label says that it was built for.
    pub gpu_type: Option<String>,
}

/// A container of slurminit's image that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// Its name.
    pub name: String,
    /// Whether it was started with a GPU, in any of Docker's ways.
    pub has_gpu: bool,
}

/// What a Kubernetes cluster says of its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// The nodes.
    pub nodes: Vec<KubernetesNode>,
    /// The device plugins: name, pods ready, pods wanted.
    pub plugins: Vec<(String, u64, u64)>,
}

/// A node of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesNode {
    /// Its name.
    pub name: String,
    /// Whether a label says that it has GPUs.
    pub has_gpu_label: bool,
    /// The GPUs that pods can ask for.
    pub gpus: u64,
}

/// What can be seen in the container only.
#[derive(Debug)]
pub struct ContainerFacts {
    /// What is wrong with slurminit.toml or a variable.
    pub configuration: Looked<()>,
    /// What the plan and the detection found, or the reason why there is no plan.
    pub findings: Vec<Finding>,
    /// The installed files that differ from what a start would write now.
    pub stale_files: Looked<Vec<String>>,
    /// What PID 1 says; the reason where there is none.
    pub status: Looked<Snapshot>,
    /// What Slurm says.
    pub slurm: SlurmFacts,
    /// What munge says of a credential of its own.
    pub munge: Looked<Credential>,
    /// What munge says of a credential that another machine made just now.
    pub foreign_credential: Option<Looked<Credential>>,
    /// Whether this host's own name has an address.
    pub has_address: Looked<bool>,
    /// Why jobs are not held to their GPUs by the kernel; `None` where they are.
    pub isolation: Option<String>,
    /// What the disk and the kernel tell at once.
    pub cheap: CheapFacts,
}

/// What the checks at the start of a container have to go by.
#[derive(Debug)]
pub struct Start<'a> {
    /// What detection found.
    pub inventory: &'a Inventory,
    /// The variables of the environment.
    pub environment: &'a Environment,
    /// What the disk and the kernel tell at once.
    pub cheap: &'a CheapFacts,
}

/// What costs next to nothing to look at, so that every start does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheapFacts {
    /// The munge key.
    pub key: Option<KeyFacts>,
    /// The cluster that this is, and the one whose jobs are in the state directory.
    pub cluster: String,
    /// The second of these; `None` where no jobs are saved.
    pub saved_cluster: Option<String>,
    /// Where the controller keeps its jobs.
    pub state: String,
    /// The file system of that directory.
    pub state_disk: Looked<Disk>,
    /// The daemons' ports that listen, with who holds them.
    pub ports: Vec<Port>,
    /// Where CUDA's libraries are.
    pub cuda: CudaFacts,
    /// How many processes the kernel killed in this container for want of memory.
    pub memory_kills: Looked<u64>,
    /// Whether AMD's compute device is in the container.
    pub has_kfd: bool,
}

/// The munge key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// Where it is.
    pub path: String,
    /// Its mode.
    pub mode: u32,
    /// Whether it is older than the container and lies in the container's own file system: it came with the image.
    pub is_of_the_image: bool,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// In MiB.
    pub free_mib: u64,
    /// In MiB.
    pub whole_mib: u64,
    /// Whether nobody can write to it.
    pub is_read_only: bool,
}

/// A port that a daemon wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Who wants it.
    pub daemon: &'static str,
    /// Its number.
    pub number: u16,
    /// Who listens there.
    pub holder: Holder,
}

/// Who listens on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A process of this container, by its name.
    Process(String),
    /// A process that cannot be seen from here: the host's, or another container's with the same network.
    Stranger,
}

/// CUDA in this container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaFacts {
    /// The driver's half of CUDA, `libcuda.so.1`.
    pub driver_library: Option<String>,
    /// The version of the toolkit or its libraries, such as `12.4`.
    pub toolkit: Option<String>,
    /// Whether `nvidia-smi` is there.
    pub has_smi: bool,
}

/// What Slurm's commands say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmFacts {
    /// Whether the controller answers.
    pub controller: Looked<bool>,
    /// The node.
    pub node: Looked<NodeFacts>,
    /// The jobs that run with GPUs: id, what they asked for, for how long.
    pub gpu_jobs: Looked<Vec<RunningJob>>,
    /// The jobs that wait, and why.
    pub waiting_jobs: Looked<Vec<WaitingJob>>,
}

/// The node, as the controller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// State and reason.
    pub report: NodeReport,
    /// Its GRES, `gpu:nvidia:2`; empty without.
    pub gres: String,
}

/// A job that runs and was given GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningJob {
    /// Its number.
    pub id: String,
    /// What it asked for.
    pub gres: String,
    /// For how long it has run, in seconds.
    pub seconds: u64,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingJob {
    /// Its number.
    pub id: String,
    /// Slurm's word for why.
    pub reason: String,
}

/// What `unmunge` says of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Its word: `Success`, `Expired credential`, `Invalid credential`.
    pub status: String,
    /// When it was made, in seconds since 1970 by its maker's clock.
    pub encoded: Option<i64>,
    /// When it was read, by this machine's clock.
    pub decoded: Option<i64>,
}
