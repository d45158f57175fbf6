//! This container's node and its GPUs, for `status` and `health`.
//!
//! Both commands query slurmctld directly, so the result is current, and PID 1 makes no query.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{GpuState, query_node};
use crate::client::{Client, limit};
use crate::error::QueryError;
use machine::node_report::{NodeReport, NodeVerdict, SINFO_FORMAT};
use machine::{PhaseName, Snapshot};
use model::prepared::OfferedGpu;
use model::queued_job::OwnedJob;
use sys::sandbox::Sandbox;
use sys::under;

/// Timeout for reading the PCI bus.
const PCI_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The current state of the node and its GPUs.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// slurmctld's report about the node, or why there is none.
    pub node: Result<OwnNode, String>,
    /// The node's GPUs; empty if the nodes are simulated.
    pub gpus: Vec<OwnGpu>,
}

impl NodeStatus {
    /// Why no job can start, in one line; `None` if jobs can start.
    pub fn closed_reason(&self) -> Option<String> {
        self.node.as_ref().map_or_else(|why| Some(why.clone()), OwnNode::closed_reason)
    }
}

/// slurmctld's report about the node; for a container without a node, about slurmctld itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnNode {
    /// The state and reason.
    pub report: NodeReport,
    /// Whether any of the node's partitions accepts jobs; true for a container without a node.
    pub has_open_partition: bool,
}

impl OwnNode {
    fn parse(text: &str) -> Option<Self> {
        let mut has_open_partition = false;
        let mut report: Option<NodeReport> = None;
        for (available, rest) in text.lines().filter_map(|line| line.trim_start().split_once('|')) {
            has_open_partition |= available.trim() == "up";
            let other = NodeReport::parse(rest);
            report = match &report {
                // With simulated nodes, the first node that accepts jobs determines the report.
                Some(known) if known.verdict() == NodeVerdict::Usable => report,
                known => other.filter(|other| known.is_none() || other.verdict() == NodeVerdict::Usable).or(report),
            };
        }
        Some(Self { report: report?, has_open_partition })
    }

    /// Whether the node responds, is drained, and still has jobs.
    pub fn is_draining(&self) -> bool {
        self.report.responding && self.report.state == "draining"
    }

    /// Why no job can start on the node, in one line; `None` if jobs can start.
    pub fn closed_reason(&self) -> Option<String> {
        if self.report.verdict() == NodeVerdict::Usable {
            return (!self.has_open_partition)
                .then(|| "all partitions of the node are closed (see `scontrol show partition`)".to_owned());
        }
        let response_note = if self.report.responding { "" } else { ", and slurmd has not responded to slurmctld" };
        Some(format!("the node is {}{response_note}", self.report))
    }
}

/// The use of one GPU, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnGpu {
    /// The driver's index, which a MIG instance shares with its GPU.
    pub index: u32,
    /// The index in gres.conf, from 0, which is Slurm's index.
    pub slurm_index: usize,
    /// The model, or the GPU's model and the profile of a MIG instance.
    pub model: String,
    /// The device file; for a MIG instance the last one.
    pub file: String,
    /// The GPU's state.
    #[serde(flatten)]
    pub state: OwnGpuState,
}

/// The state of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum OwnGpuState {
    /// Free for jobs.
    Free,
    /// Allocated to a job.
    Allocated {
        /// The job ID, if known.
        job: Option<String>,
        /// The job's user, if known.
        user: Option<String>,
    },
    /// Jobs hold parts of the GPU (shards, MPS).
    Shared {
        /// The jobs, as far as known.
        jobs: Vec<OwnedJob>,
    },
    /// No job holds the GPU, and the node accepts no jobs.
    Unavailable,
    /// The GPU is no longer reachable, or the check of its PCI slot failed.
    Lost {
        /// The reason.
        why: String,
    },
    /// slurmctld did not report the GPU's state, or was not queried.
    Unknown,
}

/// Queries slurmctld, if the cluster is ready. `lost` is the result of [`lost_gpus`].
pub fn node_status(snapshot: &Snapshot, lost: &[Option<String>]) -> NodeStatus {
    let (name, gpus) =
        snapshot.prepared.as_ref().map_or(("", &[][..]), |prepared| (&prepared.node_name, &prepared.gpus));
    let node = if snapshot.ready { node(name, limit::STATUS) } else { Err(why_not_ready(snapshot, limit::STATUS)) };
    // GPUs of simulated nodes are not listed here; `slurminit nodes` lists them for each node.
    let is_simulated = snapshot.prepared.as_ref().is_some_and(|prepared| prepared.simulated_nodes > 0);
    let gpus = if is_simulated { &[][..] } else { gpus };
    let states = (node.is_ok() && !name.is_empty()).then(|| gpu_states(name)).flatten();
    NodeStatus { gpus: gpu_usage(gpus, lost, states.as_deref()), node }
}

/// Why the cluster is not ready. While a container without a node starts, it waits for the controller, which may reject its credentials.
pub fn why_not_ready(snapshot: &Snapshot, limit: Duration) -> String {
    why_not_ready_of(&Client::with_timeout(limit), snapshot)
}

fn why_not_ready_of(client: &Client, snapshot: &Snapshot) -> String {
    let waits_for_controller = snapshot.phase == PhaseName::Starting
        && snapshot.prepared.as_ref().is_some_and(|prepared| prepared.node_name.is_empty());
    match waits_for_controller.then(|| client.rejection()).flatten() {
        Some(error) => rejected(&error),
        None => snapshot.why.clone(),
    }
}

fn rejected(error: &QueryError) -> String {
    format!(
        "authentication between this container and slurmctld failed ({error}): the munge key or clock of this container differs from the controller's"
    )
}

/// slurmctld's report about the node, by one or two commands of at most `limit` each. Without a name, the report is about slurmctld itself.
///
/// # Errors
/// The reason why there is no report: the query or the authentication fails, slurmctld has no such node, or no partition contains it.
pub fn node(name: &str, limit: Duration) -> Result<OwnNode, String> {
    node_of(&Client::with_timeout(limit), name, limit)
}

fn node_of(client: &Client, name: &str, limit: Duration) -> Result<OwnNode, String> {
    let describe_error = |error| match error {
        QueryError::TimedOut(program) => {
            format!("slurmctld does not respond ({program}: timeout {:.1} s)", limit.as_secs_f64())
        }
        error => error.to_string(),
    };
    if name.is_empty() {
        // A container without a node is ready if the controller responds.
        return client.ping().map(|report| OwnNode { report, has_open_partition: true }).map_err(|error| {
            client.rejection().map_or_else(|| describe_error(error), |rejection| rejected(&rejection))
        });
    }
    // One line per partition of the node: whether the partition is up, then the node's state and reason.
    let format = format!("--format=%a|{SINFO_FORMAT}");
    let text =
        client.output("sinfo", &["--noheader", "--all", "--Node", "--nodes", name, &format]).map_err(describe_error)?;
    OwnNode::parse(&text).ok_or_else(|| format!("node {name} is in no partition, or slurmctld has no such node"))
}

/// The reason why each GPU is unreachable; `None` if the check found no fault. If the check itself fails, that is the reason for all GPUs. Opens no
/// device file, because that would wake a sleeping GPU.
///
/// Reading the PCI configuration of a device that is being reset blocks, so a separate process reads it.
pub fn lost_gpus(root: &Path, gpus: &[OfferedGpu]) -> Vec<Option<String>> {
    let probe = || gpus.iter().map(|gpu| loss_reason(root, gpu)).collect::<Vec<_>>();
    let unknown = |verdict| vec![Some(format!("the check of the PCI slot {verdict}")); gpus.len()];
    Sandbox::start(probe).finish(Instant::now() + PCI_READ_TIMEOUT).unwrap_or_else(unknown)
}

/// Why the GPU is unreachable, if it is. Reads from a device that has fallen off the bus return all ones (PCI Express Base Specification,
/// "Completion Timeout").
fn loss_reason(root: &Path, gpu: &OfferedGpu) -> Option<String> {
    if !under(root, Path::new(&gpu.file)).exists() {
        return Some(format!("{} no longer exists", gpu.file));
    }
    let address = gpu.pci_address?.to_string();
    let mut vendor = [0; 2];
    let config = under(root, &Path::new("/sys/bus/pci/devices").join(&address).join("config"));
    File::open(config).and_then(|mut file| file.read_exact(&mut vendor)).ok()?;
    (vendor == [0xff; 2]).then(|| format!("no response at {address}: the GPU has fallen off the PCI bus"))
}

/// The state of each GPU by Slurm's index, if slurmctld reports it.
fn gpu_states(name: &str) -> Option<Vec<GpuState>> {
    let cluster = query_node(name, &Client::with_total_timeout(limit::STATUS)).ok()?;
    Some(cluster.node(name).ok()?.gpus.iter().map(|gpu| gpu.state.clone()).collect())
}

/// The use of each GPU.
fn gpu_usage(gpus: &[OfferedGpu], lost: &[Option<String>], states: Option<&[GpuState]>) -> Vec<OwnGpu> {
    let state = |index: usize| match (lost.get(index).cloned().flatten(), states) {
        (Some(why), _) => OwnGpuState::Lost { why },
        (None, None) => OwnGpuState::Unknown,
        (None, Some(states)) => match states.get(index) {
            Some(GpuState::Allocated { job }) => {
                let (job, user) = job.as_ref().map(|job| (job.job.to_string(), job.user.clone())).unzip();
                OwnGpuState::Allocated { job, user }
            }
            Some(GpuState::Shared { jobs }) => OwnGpuState::Shared { jobs: jobs.clone() },
            Some(GpuState::Free) => OwnGpuState::Free,
            Some(GpuState::Unavailable) => OwnGpuState::Unavailable,
            None => OwnGpuState::Unknown,
        },
    };
    let each = gpus.iter().enumerate().map(|(slurm_index, gpu)| OwnGpu {
        index: gpu.index,
        slurm_index,
        model: gpu.model.clone(),
        file: gpu.file.clone(),
        state: state(slurm_index),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Run, answers};
    use model::prepared::Prepared;
    use sys::tool::answer::Answer;

    fn closed_reason(text: &str) -> Option<String> {
        OwnNode::parse(text).expect("a node record").closed_reason()
    }

    #[test]
    fn reports_why_node_accepts_no_jobs() {
        assert_eq!(closed_reason("up|idle|none\n"), None);
        assert_eq!(closed_reason("up|mixed|none\ndown|mixed|none\n"), None, "one open partition is enough");
        assert_eq!(closed_reason("up|allocated|none\n"), None, "a job can wait there");
        assert_eq!(closed_reason("up|drained|fan | broken\n").as_deref(), Some("the node is drained (fan | broken)"));
        assert_eq!(closed_reason("up|draining|x\n").as_deref(), Some("the node is draining (x)"));
        let silent = "the node is idle, and slurmd has not responded to slurmctld";
        assert_eq!(closed_reason("up|idle*|none\n").as_deref(), Some(silent));
        assert!(closed_reason("down|idle|none\ndrain|idle|none\n").is_some_and(|why| why.contains("all partitions")));
        assert_eq!(OwnNode::parse(""), None);
        assert_eq!(OwnNode::parse("sinfo: error\n"), None);
    }

    #[test]
    fn first_simulated_node_that_accepts_jobs_decides() {
        let state = |text: &str| OwnNode::parse(text).expect("a node record").report.state;
        assert_eq!(state("up|drained|fan\nup|mixed|none\nup|idle|none\n"), "mixed");
        assert_eq!(state("up|drained|fan\nup|idle*|none\n"), "drained");
        let is_draining = |text: &str| OwnNode::parse(text).expect("a node record").is_draining();
        assert!(is_draining("up|draining|fan\n") && !is_draining("up|drained|fan\n"));
        assert!(!is_draining("up|draining*|fan\n"));
    }

    #[test]
    fn reports_why_there_is_no_node() {
        let limit = Duration::from_millis(1500);
        let state = |run: Run, name: &str| {
            node_of(&Client::with_runner(run), name, limit).map(|node| (node.report.state, node.has_open_partition))
        };
        let nodes = answers([
            ("sinfo --noheader --all --Node --nodes c1 --format=%a|%T ", Ok("down|idle|none\n")),
            ("sinfo --noheader --all --Node --nodes c2 ", Ok("")),
            ("scontrol ping", Ok("Slurmctld(primary) at c1 is UP\n")),
        ]);
        assert_eq!(state(&nodes, "c1"), Ok(("idle".to_owned(), false)));
        assert_eq!(state(&nodes, "c2"), Err("node c2 is in no partition, or slurmctld has no such node".to_owned()));
        assert_eq!(state(&nodes, ""), Ok(("up".to_owned(), true)));
        let down = answers([("scontrol ping", Err("is DOWN")), ("sinfo", Err("Unable to contact slurm controller"))]);
        assert_eq!(state(&down, ""), Err("scontrol: is DOWN".to_owned()));
        let other_key = answers([("scontrol ping", Err("is DOWN")), ("sinfo", Err("Protocol authentication error"))]);
        assert!(state(&other_key, "").is_err_and(|why| why.contains("munge key or clock")));
        let silent = |_: &str, _: &[&str]| Answer::Silent;
        assert_eq!(state(&silent, "c1"), Err("slurmctld does not respond (sinfo: timeout 1.5 s)".to_owned()));
    }

    #[test]
    fn detects_gpu_that_fell_off_the_bus() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, content: &[u8]| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        let gpu = |number: usize, address: Option<&str>| OfferedGpu {
            file: format!("/dev/nvidia{number}"),
            pci_address: address.and_then(|address| address.parse().ok()),
            ..OfferedGpu::default()
        };
        let gpus = [
            gpu(0, Some("0000:10:00.0")),
            gpu(1, Some("0000:11:00.0")),
            gpu(2, Some("0000:12:00.0")),
            gpu(3, None),
            gpu(4, None),
        ];
        for number in 0..4 {
            file(&format!("dev/nvidia{number}"), b"");
        }
        file("sys/bus/pci/devices/0000:10:00.0/config", b"\xde\x10\x35\x23");
        file("sys/bus/pci/devices/0000:11:00.0/config", b"\xff\xff\xff\xff");
        let lost = lost_gpus(root.path(), &gpus);
        assert_eq!(lost[0], None);
        assert!(lost[1].as_ref().is_some_and(|why| why.contains("fallen off the PCI bus")), "{lost:?}");
        assert_eq!((&lost[2], &lost[3]), (&None, &None));
        assert_eq!(lost[4].as_deref(), Some("/dev/nvidia4 no longer exists"));
    }

    #[test]
    fn assigns_jobs_and_never_shows_lost_or_unknown_gpu_as_free() {
        let gpu = |number| OfferedGpu { file: format!("/dev/nvidia{number}"), ..OfferedGpu::default() };
        let gpus = [gpu(0), gpu(1), gpu(2), gpu(3), gpu(4), gpu(5)];
        let job = OwnedJob { job: 7, user: "alice".to_owned() };
        let shared = GpuState::Shared { jobs: vec![job.clone()] };
        let allocated = |job| GpuState::Allocated { job };
        let states = [allocated(Some(job)), allocated(None), GpuState::Free, shared, GpuState::Unavailable];
        let states_and_jobs = |lost: &[Option<String>], states: Option<&[GpuState]>| {
            let json = serde_json::to_value(gpu_usage(&gpus, lost, states)).unwrap();
            json.as_array().unwrap().iter().map(|gpu| format!("{} {}", gpu["state"], gpu["job"])).collect::<Vec<_>>()
        };
        assert_eq!(
            states_and_jobs(&[], Some(&states)),
            [
                "\"allocated\" \"7\"",
                "\"allocated\" null",
                "\"free\" null",
                "\"shared\" null",
                "\"unavailable\" null",
                "\"unknown\" null"
            ]
        );
        let lost = [Some("gone".to_owned())];
        let unknown = states_and_jobs(&lost, None);
        assert_eq!(
            (unknown[0].as_str(), unknown[1..].iter().all(|state| state == "\"unknown\" null")),
            ("\"lost\" null", true)
        );
    }

    #[test]
    fn container_that_is_not_ready_shows_its_gpus_without_a_query() {
        let mut snapshot = Snapshot { why: "slurmctld is starting".to_owned(), ..Snapshot::default() };
        snapshot.prepared = Some(Prepared {
            node_name: "c1".to_owned(),
            gpus: vec![OfferedGpu::default(), OfferedGpu::default()],
            ..Prepared::default()
        });
        let status = node_status(&snapshot, &[Some("gone".to_owned()), None]);
        assert_eq!(status.closed_reason().as_deref(), Some("slurmctld is starting"));
        let states: Vec<_> = status.gpus.iter().map(|gpu| gpu.state.clone()).collect();
        assert_eq!(states, [OwnGpuState::Lost { why: "gone".to_owned() }, OwnGpuState::Unknown]);
        // The GPUs of simulated nodes are those of `slurminit nodes`.
        snapshot.prepared.as_mut().unwrap().simulated_nodes = 2;
        assert_eq!(node_status(&snapshot, &[]).gpus, []);
        let report = NodeReport::parse("idle|none").unwrap();
        let open = NodeStatus { node: Ok(OwnNode { report, has_open_partition: true }), gpus: Vec::new() };
        assert_eq!(open.closed_reason(), None);
    }

    #[test]
    fn only_container_that_waits_for_controller_asks_why() {
        let other_key = answers([("sinfo", Err("Protocol authentication error"))]);
        let is_rejected = |phase, node: Option<&str>| {
            let prepared = node.map(|node| Prepared { node_name: node.to_owned(), ..Prepared::default() });
            let snapshot = Snapshot { phase, prepared, why: "waiting".to_owned(), ..Snapshot::default() };
            let why = why_not_ready_of(&Client::with_runner(&other_key), &snapshot);
            assert!(why == "waiting" || why.contains("munge key"), "{why}");
            why != "waiting"
        };
        assert!(is_rejected(PhaseName::Starting, Some("")));
        assert!(!is_rejected(PhaseName::Starting, Some("c1")) && !is_rejected(PhaseName::Starting, None));
        assert!(!is_rejected(PhaseName::Ready, Some("")) && !is_rejected(PhaseName::Stopping, Some("")));
    }
}
