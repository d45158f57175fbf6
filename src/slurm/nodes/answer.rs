//! Parses Slurm's JSON about nodes and their jobs. In JSON, users' text cannot imitate Slurm's own.
//!
//! The keys are those of `scontrol --json` and `squeue --json` of Slurm 24.11 (data_parser v0.0.42), which later releases kept.

use serde::Serialize;
use serde_json::Value;

use machine::node_report::{NodeReport, NodeVerdict};
use model::inventory::gres;
use model::prepared::OfferedGpu;
use model::prepared::announced;
use model::prepared::announced::Announced;
use model::printable;
use model::queued_job::OwnedJob;

/// Maximum length of a text in Slurm's report, such as a name or a reason, in characters.
const MAX_TEXT_LENGTH: usize = 400;

/// Nodes of the cluster: all of them, or the one that was queried by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterNodes {
    /// The nodes, sorted by name.
    pub nodes: Vec<ClusterNode>,
    /// The maximum number of nodes; `None` if it was not queried, or Slurm does not report it.
    pub most_nodes: Option<u64>,
}

/// A node of the cluster, as reported by slurmctld.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterNode {
    /// The node's name in Slurm.
    pub name: String,
    /// The node's state and reason.
    #[serde(flatten)]
    pub report: NodeReport,
    /// Whether the node is drained or draining, in addition to any other state.
    pub drained: bool,
    /// The state and all flags in capitals: `IDLE`, `MAINTENANCE`.
    #[serde(skip)]
    pub state_flags: Vec<String>,
    /// The partitions of the node.
    pub partitions: Vec<String>,
    /// The CPUs for jobs.
    pub cpus: u64,
    /// The allocated CPUs.
    pub cpus_allocated: u64,
    /// The node's memory (RealMemory), in MiB, including memory that is reserved for the system (MemSpecLimit).
    pub memory_mib: u64,
    /// The allocated memory, in MiB.
    pub memory_allocated_mib: u64,
    /// The GPUs, by Slurm's index.
    pub gpus: Vec<NodeGpu>,
    /// The jobs that are on the node, if they were queried.
    pub jobs: Vec<OwnedJob>,
    /// The resources of the node that each job holds.
    #[serde(skip)]
    pub shares: Vec<NodeShare>,
    /// The number of threads per core. Slurm allocates whole cores.
    #[serde(skip)]
    pub threads: u64,
    /// The node's features.
    #[serde(skip)]
    pub features: Vec<String>,
    /// When the node last had a job, in seconds since 1970.
    #[serde(skip)]
    pub last_busy: Option<u64>,
}

/// The resources of a node that a job holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeShare {
    /// The job ID.
    pub job: u64,
    /// The number of CPUs.
    pub cpus: u64,
    /// The memory, in MiB.
    pub memory_mib: u64,
    /// The number of whole GPUs.
    pub gpus: u64,
}

/// A GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeGpu {
    /// The driver's index, which a MIG instance shares with its GPU; Slurm's index if the node has not reported the driver's.
    pub index: u32,
    /// Slurm's index on the node, from 0.
    pub slurm_index: usize,
    /// The device file; for a MIG instance the last one. `None` if the node has not reported it.
    pub file: Option<String>,
    /// The GPU's GRES type.
    #[serde(rename = "type")]
    pub gres_type: String,
    /// The model, or the GPU's model and the profile of a MIG instance; `None` if the node has not reported it.
    pub model: Option<String>,
    /// The GPU's memory, in MiB, if known.
    pub memory_mib: Option<u64>,
    /// The GPU's state.
    #[serde(flatten)]
    pub state: GpuState,
}

/// The state of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum GpuState {
    /// Free for jobs.
    Free,
    /// Allocated to a job.
    Allocated {
        /// The job, if known.
        #[serde(flatten)]
        job: Option<OwnedJob>,
    },
    /// Jobs hold parts of the GPU (shards, MPS).
    Shared {
        /// The jobs, as far as known.
        jobs: Vec<OwnedJob>,
    },
    /// No job holds the GPU, and the node accepts no jobs.
    Unavailable,
}

impl GpuState {
    /// Whether a job holds the GPU, or a part of it.
    pub const fn is_in_use(&self) -> bool {
        matches!(self, Self::Allocated { .. } | Self::Shared { .. })
    }

    /// The jobs that hold the GPU or parts of it, as far as known.
    pub fn jobs(&self) -> &[OwnedJob] {
        match self {
            Self::Allocated { job } => job.as_slice(),
            Self::Shared { jobs } => jobs,
            Self::Free | Self::Unavailable => &[],
        }
    }
}

impl ClusterNode {
    /// Whether jobs can start on the node: now, after other jobs have ended, or after slurmctld has powered it up.
    pub fn accepts_jobs(&self) -> bool {
        self.report.verdict() == NodeVerdict::Usable || self.is_on_demand()
    }

    /// Why jobs cannot start on the node: `down and does not respond: the reason`.
    pub fn closed_state(&self) -> String {
        let NodeReport { state, reason, .. } = &self.report;
        let silence = if self.report.responding { "" } else { " and does not respond" };
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!("{state}{silence}{reason}")
    }

    /// Whether slurmctld powers the node up for a job, or is doing so.
    fn is_on_demand(&self) -> bool {
        matches!(self.report.state.as_str(), "powered_down" | "powering_up")
    }

    fn parse(value: &Value) -> Option<Self> {
        let words = state_words(value);
        let report = NodeReport {
            state: state(&words),
            responding: !words.iter().any(|word| word == "NOT_RESPONDING"),
            reason: text(value, "reason"),
            is_roots: text(value, "reason_set_by_user") == "root",
        };
        let in_use = value["gres_used"].as_str().unwrap_or_default();
        let (used, shared) = (gres::indices(in_use), gres::shared(in_use));
        let state_of = |index: usize, free: &GpuState| match index {
            _ if used.contains(&index) => GpuState::Allocated { job: None },
            _ if shared.contains(&index) => GpuState::Shared { jobs: Vec::new() },
            _ => free.clone(),
        };
        let announced = announced::parse(value["extra"].as_str().unwrap_or_default());
        let mut node = Self {
            name: Some(text(value, "name")).filter(|name| !name.is_empty())?,
            report,
            drained: words.iter().any(|word| word == "DRAIN"),
            state_flags: words,
            partitions: value["partitions"].as_array().into_iter().flatten().filter_map(word).collect(),
            cpus: number(&value["effective_cpus"]).or_else(|| number(&value["cpus"])).unwrap_or_default(),
            cpus_allocated: number(&value["alloc_cpus"]).unwrap_or_default(),
            memory_mib: number(&value["real_memory"]).unwrap_or_default(),
            memory_allocated_mib: number(&value["alloc_memory"]).unwrap_or_default(),
            gpus: Vec::new(),
            jobs: Vec::new(),
            shares: Vec::new(),
            threads: number(&value["threads"]).unwrap_or(1).max(1),
            features: value["active_features"].as_array().into_iter().flatten().filter_map(word).collect(),
            last_busy: number(&value["last_busy"]),
        };
        let free = if node.accepts_jobs() { GpuState::Free } else { GpuState::Unavailable };
        let types = gres::types(value["gres"].as_str().unwrap_or_default()).into_iter().enumerate();
        let gpu = |(index, gres_type): (usize, &str)| NodeGpu {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            slurm_index: index,
            file: None,
            gres_type: printable::short(gres_type, MAX_TEXT_LENGTH),
            model: None,
            memory_mib: None,
            state: state_of(index, &free),
        };
        node.gpus = types.map(gpu).collect();
        node.describe(announced);
        Some(node)
    }

    /// Sets the indices, device files, models and memory, unless the number of GPUs differs: `announced` then describes other hardware.
    fn describe(&mut self, announced: Vec<Announced>) {
        if announced.len() == self.gpus.len() {
            for (gpu, announced) in self.gpus.iter_mut().zip(announced) {
                let line = |text: &String| printable::line(text).into_owned();
                gpu.index = announced.index.unwrap_or(gpu.index);
                (gpu.file, gpu.memory_mib) = (announced.file.as_ref().map(line), announced.memory_mib);
                gpu.model = Some(line(&announced.model));
            }
        }
    }

    fn assign(&mut self, job: &OwnedJob, held: &Allocation, ambiguous_gpus: &mut Vec<(String, usize)>) {
        self.jobs.push(job.clone());
        let (allocated, shared) = (gres::indices(&held.detail), gres::shared(&held.detail));
        let gpus = allocated.len() as u64;
        self.shares.push(NodeShare { job: job.job, cpus: held.cpus, memory_mib: held.memory_mib, gpus });
        for gpu in &mut self.gpus {
            // The nodes are queried before the jobs. A GPU that was free then stays `Free` here, even if it has been allocated since.
            match &mut gpu.state {
                GpuState::Allocated { job: owner @ None } if allocated.contains(&gpu.slurm_index) => {
                    *owner = Some(job.clone());
                }
                GpuState::Allocated { job: Some(_) } if allocated.contains(&gpu.slurm_index) => {
                    ambiguous_gpus.push((self.name.clone(), gpu.slurm_index));
                }
                GpuState::Shared { jobs } if shared.contains(&gpu.slurm_index) => jobs.push(job.clone()),
                _ => {}
            }
        }
    }
}

impl ClusterNodes {
    /// Parses the JSON of the nodes and of the jobs that hold resources.
    ///
    /// # Errors
    /// A text is not JSON, or contains no list of nodes or jobs.
    pub fn parse(nodes: &str, jobs: &str) -> anyhow::Result<Self> {
        let list = |text: &str, key: &str| -> anyhow::Result<Vec<Value>> {
            let mut all: Value = serde_json::from_str(text)?;
            match all.get_mut(key).map(Value::take) {
                Some(Value::Array(list)) => Ok(list),
                _ => anyhow::bail!("missing key: {key}"),
            }
        };
        let mut nodes: Vec<ClusterNode> = list(nodes, "nodes")?.iter().filter_map(ClusterNode::parse).collect();
        nodes.sort_by_cached_key(|node| numeric_sort_key(&node.name));
        let mut cluster = Self { nodes, most_nodes: None };
        let mut ambiguous_gpus = Vec::new();
        for value in list(jobs, "jobs")? {
            let Some(job) = job(&value) else { continue };
            for held in allocations(&value) {
                let nodes = cluster.nodes.iter_mut().filter(|known| known.name == held.node);
                nodes.for_each(|node| node.assign(&job, &held, &mut ambiguous_gpus));
            }
        }
        for (name, index) in ambiguous_gpus {
            let node = cluster.nodes.iter_mut().find(|node| node.name == name);
            node.and_then(|node| node.gpus.get_mut(index))
                .into_iter()
                .for_each(|gpu| gpu.state = GpuState::Allocated { job: None });
        }
        Ok(cluster)
    }

    /// Adds the details of the GPUs that a start detected on the node `name`, if the node has reported no models to the controller.
    pub(super) fn describe(&mut self, name: &str, gpus: &[OfferedGpu]) {
        for node in self.nodes.iter_mut().filter(|node| node.name == name) {
            if node.gpus.iter().all(|gpu| gpu.model.is_none()) {
                node.describe(gpus.iter().map(Announced::from).collect());
            }
        }
    }

    /// The node with this name.
    ///
    /// # Errors
    /// There is no such node. The error lists the first 20 nodes.
    pub fn node(&self, name: &str) -> anyhow::Result<&ClusterNode> {
        let known = self.nodes.iter().find(|node| node.name == name);
        known.ok_or_else(|| anyhow::anyhow!("no node named {name}; {}", self.describe_nodes()))
    }

    fn describe_nodes(&self) -> String {
        const MAX_NAMES: usize = 20;
        let mut names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).take(MAX_NAMES).collect();
        if self.nodes.len() > MAX_NAMES {
            names.push("...");
        }
        if names.is_empty() {
            return "the cluster has no nodes yet".to_owned();
        }
        format!("the cluster has {}", names.join(", "))
    }
}

/// The sort key of a name: `c2` comes before `c10`.
fn numeric_sort_key(name: &str) -> (String, u64, String) {
    let digits = name.chars().rev().take_while(char::is_ascii_digit).count();
    let (stem, number) = name.split_at(name.len() - digits);
    (stem.to_owned(), number.parse().unwrap_or_default(), name.to_owned())
}

/// A string of a node or job, as one line of limited length; empty if it is missing.
pub(crate) fn text(value: &Value, key: &str) -> String {
    printable::short(value[key].as_str().unwrap_or_default().trim(), MAX_TEXT_LENGTH)
}

fn word(value: &Value) -> Option<String> {
    value.as_str().map(|word| printable::short(word, MAX_TEXT_LENGTH))
}

/// Parses a number, which can also have the form `{"set": true, "infinite": false, "number": 7}`.
pub(crate) fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value["number"].as_u64())
}

/// The words of the state, in capitals.
fn state_words(node: &Value) -> Vec<String> {
    node["state"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_ascii_uppercase).collect()
}

/// The state as sinfo prints it (`node_state_string` of `slurm_protocol_defs.c`), in lower case. Flags such as MAINTENANCE and RESERVED, which sinfo
/// would print instead, are ignored.
fn state(words: &[String]) -> String {
    let has = |word: &str| words.iter().any(|known| known == word);
    let is_busy = ["ALLOCATED", "MIXED", "COMPLETING"].into_iter().any(has);
    let flags = ["DOWN", "INVALID_REG", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "COMPLETING"];
    // sinfo reports `planned` only for an idle node: a busy node with a backfill plan is `mixed-`.
    let flag = flags.into_iter().find(|flag| has(flag)).or((has("PLANNED") && has("IDLE")).then_some("PLANNED"));
    match flag {
        _ if has("DRAIN") => if is_busy { "draining" } else { "drained" }.to_owned(),
        _ if has("FAIL") => if is_busy { "failing" } else { "fail" }.to_owned(),
        Some("INVALID_REG") => "inval".to_owned(),
        Some(flag) => flag.to_ascii_lowercase(),
        None => words.first().map_or("unknown".to_owned(), |word| printable::short(&word.to_ascii_lowercase(), 20)),
    }
}

pub(crate) fn job(value: &Value) -> Option<OwnedJob> {
    let user_name = Some(text(value, "user_name")).filter(|user| !user.is_empty());
    let user = user_name.or_else(|| number(&value["user_id"]).map(|id| id.to_string()));
    Some(OwnedJob { job: number(&value["job_id"])?, user: user.unwrap_or_else(|| "?".to_owned()) })
}

/// The resources of a node that a job holds.
pub(crate) struct Allocation {
    pub(crate) node: String,
    cpus: u64,
    memory_mib: u64,
    /// The job's GRES on the node, with indices.
    pub(crate) detail: String,
}

/// The resources that a job holds on each of its nodes. `gres_detail` has slurmctld's order of the nodes, which is also that of
/// `job_resources`, and not the order of the names.
pub(crate) fn allocations(job: &Value) -> Vec<Allocation> {
    let resources = &job["job_resources"];
    let nodes = resources["nodes"]["allocation"].as_array().into_iter().flatten();
    let detail = job["gres_detail"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let detail = detail.chain(std::iter::repeat("")).map(str::to_owned);
    let of_node = |(node, detail): (&Value, String)| {
        Some(Allocation {
            node: node["name"].as_str()?.to_owned(),
            cpus: number(&node["cpus"]["count"]).unwrap_or_default(),
            memory_mib: number(&node["memory"]["allocated"]).unwrap_or_default(),
            detail,
        })
    };
    nodes.zip(detail).filter_map(of_node).collect()
}

#[cfg(test)]
impl ClusterNode {
    /// A node of 8 CPUs without jobs and GPUs.
    pub(crate) fn empty(state: &str, responding: bool, reason: &str) -> Self {
        Self {
            name: "c1".to_owned(),
            report: NodeReport { state: state.to_owned(), responding, reason: reason.to_owned(), is_roots: false },
            drained: state.starts_with("drain"),
            state_flags: Vec::new(),
            partitions: Vec::new(),
            cpus: 8,
            cpus_allocated: 0,
            memory_mib: 1,
            memory_allocated_mib: 0,
            gpus: Vec::new(),
            jobs: Vec::new(),
            shares: Vec::new(),
            threads: 1,
            features: Vec::new(),
            last_busy: None,
        }
    }
}

#[cfg(test)]
mod tests;
