//! The script that Slurm runs before every task of `srun` and `sbatch`, and whose variables it applies.
//!
//! It translates Slurm's device numbers into the names that the vendors' runtimes use, and sets variables that MPI libraries and OpenMP
//! need in this container.
//!
//! With explicit gres.conf lines, Slurm sets `CUDA_VISIBLE_DEVICES` to the position of a device in its list (24.11;
//! only its nvml plugin uses UUIDs, and only those of MIG instances), and on a machine that also has AMD GPUs, it sets
//! `ROCR_VISIBLE_DEVICES` to the same position. If the position is not the runtime's number, the script sets the right value.
//!
//! If users can open only the GPUs of their own jobs, CUDA's numbers change whenever another job of the same user begins or ends. UUIDs do
//! not change.

use std::path::PathBuf;

use config::Config;
use model::inventory::{Finding, Inventory, Kind, Vendor};

use super::{AutoDetect, CgroupPlan, FileName, GresLine, GresPlan, Setting};

/// The script that Slurm runs before every task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProlog {
    /// The path of the installed task prolog.
    pub path: PathBuf,
    /// The device at each position of Slurm's list: its vendor, and its UUID or its name in the vendor's runtime. Empty if device numbers need
    /// no translation.
    pub names: Vec<(Vendor, String)>,
    /// Whether cgroups confine jobs to their devices: Slurm then counts the devices from 0 in each step.
    pub counts_from_zero: bool,
    /// The variables that MPI libraries need.
    pub variables: Vec<TaskVariable>,
    /// Whether the script sets OpenMP's number of threads to the task's CPUs. If programs see more CPUs than the quota allows, OpenMP would
    /// start too many threads.
    pub counts_threads: bool,
    /// The reason for the script. In a cluster of several containers it is the same on all nodes.
    pub why: &'static str,
}

/// The reasons for the script.
const NUMBERS: &str = "translates Slurm's device numbers to those of the vendor's runtime";
const MPI: &str = "sets variables that MPI libraries need in this container";
const THREADS: &str = "sets OMP_NUM_THREADS, because programs see more CPUs than the container's quota";

/// A variable of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskVariable {
    /// The variable's name.
    pub name: &'static str,
    /// The value; sh expands variables in it.
    pub value: &'static str,
    /// Whether the job's own value is kept.
    pub is_default: bool,
}

/// MPICH 4.3 and newer copies large messages with process_vm_readv(2), and aborts or hangs if the kernel refuses this call
/// (`ipc/cma/cma_post.c`). Open MPI detects this itself (5.0, `smsc_cma_module.c`).
const NO_PEER_MEMORY: TaskVariable = TaskVariable { name: "MPIR_CVAR_CH4_CMA_ENABLE", value: "0", is_default: true };

/// Open MPI names a file in /dev/shm after host, user, job and the task's number on its node (5.0, `btl_sm_component.c`). Simulated nodes
/// have one host name and one /dev/shm, so tasks of two nodes would use the same file. Slurm sets the variable to the host name.
const NODE_IS_HOST: TaskVariable = TaskVariable { name: "PMIX_HOSTNAME", value: "$SLURMD_NODENAME", is_default: false };

impl TaskProlog {
    /// Plans the script; `None` if the whole cluster is in this container and no variable has to be set. A cluster of several containers always
    /// has the script, because slurm.conf is the same everywhere.
    ///
    /// Device variables need no change if positions and runtime numbers agree, or if Slurm's own detection numbers the devices as the runtime
    /// does without further settings. `gives_gpus`: users can open only the GPUs of their own jobs; then GPUs with [`GresLine::uuid`] need the
    /// script.
    pub(super) fn plan(
        config: &Config,
        inventory: &Inventory,
        gres: &GresPlan,
        cgroup: &CgroupPlan,
        gives_gpus: bool,
    ) -> Option<Self> {
        let has_settings = |line: &GresLine| {
            let runtime = &line.vendor.traits().runtime;
            !runtime.settings.is_empty() && !runtime.equal_models_in_bus_order
        };
        let uuid = |line: &GresLine| line.uuid.clone().filter(|_| gives_gpus);
        let has_slurm_numbers = gres.auto_detect != AutoDetect::Off && !gres.lines.iter().any(has_settings);
        let has_uuids = gres.lines.iter().any(|line| uuid(line).is_some());
        let is_correct = (has_slurm_numbers || gres.matches_runtime_numbers) && !has_uuids;
        let no_peer_memory = inventory.refuses_peer_memory.then_some(NO_PEER_MEMORY);
        let node_is_host = config.simulated().map(|_| NODE_IS_HOST);
        let variables: Vec<_> = no_peer_memory.into_iter().chain(node_is_host).collect();
        let is_shared = config.shares_a_cluster();
        let counts_threads = inventory.cpu.has_hidden_quota();
        let why = match (is_shared || !is_correct, variables.is_empty()) {
            (true, _) => NUMBERS,
            (false, false) => MPI,
            (false, true) if counts_threads => THREADS,
            (false, true) => return None,
        };
        let lines = if is_correct && !is_shared { &[] } else { gres.lines.as_slice() };
        let name = |line: &GresLine| (line.vendor, uuid(line).unwrap_or_else(|| line.runtime_name.clone()));
        Some(Self {
            path: config.paths.slurm.join(FileName::TaskProlog.as_str()),
            names: lines.iter().map(name).collect(),
            counts_from_zero: cgroup.confines_devices(),
            variables,
            counts_threads,
            why,
        })
    }

    /// Whether the script has a purpose besides the GPUs' names.
    pub(super) fn has_variables(&self) -> bool {
        self.counts_threads || !self.variables.is_empty()
    }

    /// Warns if the operator's own TaskProlog replaces slurminit's.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let used = Setting::is_path(settings, "TaskProlog", &self.path);
        (!used).then(|| self.not_used("[slurm.conf] of slurminit.toml sets TaskProlog")).flatten()
    }

    /// The finding that jobs may get wrong device numbers because Slurm does not run the script; `None` if the script does not translate
    /// device numbers.
    pub(super) fn not_used(&self, cause: &str) -> Option<Finding> {
        let path = self.path.display();
        (!self.names.is_empty()).then(|| Finding::warning(
            Kind::JobDevices,
            format!("jobs may get device numbers that do not match those of the GPU runtime (CUDA, ROCr, Level Zero): Slurm does not run {path}"),
            cause,
            format!(
                "set TaskProlog={path}, or call it at the end of your script; in your own slurm.conf, also list the types in Gres= in the \
                 order of gres.conf"
            ),
        ))
    }
}
