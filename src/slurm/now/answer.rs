//! Parses the output of Slurm's commands. Text chosen by users cannot pass for Slurm's own.

use serde::Serialize;

use machine::node_report::{NodeReport, NodeVerdict};
use model::inventory::gres::indices;
use model::prepared::OfferedGpu;

/// One line per partition of the node: whether the partition is up, then the node's state and reason. The reason comes
/// last, because it can contain anything but a newline.
pub(super) const SINFO: &str = "--format=%a|%T|%E";

/// The states in which a job holds its GPUs.
pub(super) const HOLDING: &str = "--states=RUNNING,SUSPENDED,CONFIGURING,STOPPED,COMPLETING";

/// Job ID and user name: the submitter controls neither.
pub(super) const SQUEUE: &str = "--format=%A %u";

/// The node and its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNow {
    /// The node's state and reason.
    pub report: NodeReport,
    /// Whether any of its partitions accepts jobs.
    pub has_open_partition: bool,
}

impl NodeNow {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut has_open_partition = false;
        let mut report: Option<NodeReport> = None;
        for (available, rest) in text.lines().filter_map(|line| line.trim_start().split_once('|')) {
            has_open_partition |= available.trim() == "up";
            let other = NodeReport::parse(rest);
            report = match &report {
                // Of simulated nodes, the first that takes jobs.
                Some(known) if known.verdict() == NodeVerdict::Usable => report,
                known => other.filter(|other| known.is_none() || other.verdict() == NodeVerdict::Usable).or(report),
            };
        }
        Some(Self { report: report?, has_open_partition })
    }

    /// Why no job can start here, in one line; `None` if jobs can start.
    pub fn why_closed(&self) -> Option<String> {
        if self.report.verdict() == NodeVerdict::Usable {
            return (!self.has_open_partition)
                .then(|| "every partition is closed (scontrol show partition)".to_owned());
        }
        let answers = if self.report.responding { "" } else { ", and slurmd has not answered slurmctld" };
        Some(format!("the node is {}{answers}", self.report))
    }
}

/// A GPU in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// The index in gres.conf, from 0.
    index: usize,
    /// The job and its user; `None` if unknown, or if several jobs claim the GPU.
    job: Option<(String, String)>,
    /// Whether another job claims the GPU too.
    is_doubtful: bool,
}

impl Holder {
    pub(super) fn unknown(index: usize) -> Self {
        Self { index, job: None, is_doubtful: false }
    }
}

/// The use of one GPU, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuUse {
    /// The index in gres.conf, from 0, which is Slurm's index.
    pub index: usize,
    /// The model, or the GPU's model and the profile of a MIG instance.
    pub model: String,
    /// The device file; for a MIG instance the last one.
    pub file: String,
    /// The state.
    #[serde(flatten)]
    pub state: GpuState,
}

/// The state of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum GpuState {
    /// Jobs can get it.
    Free,
    /// A job holds it.
    Allocated {
        /// The job ID, if known.
        job: Option<String>,
        /// The job's user, if known.
        user: Option<String>,
    },
    /// The machine can no longer reach it.
    Lost {
        /// The reason.
        why: String,
    },
    /// slurmctld did not say.
    Unknown,
}

/// The use of each GPU.
pub(super) fn gpu_uses(gpus: &[OfferedGpu], lost: &[Option<String>], holders: Option<&[Holder]>) -> Vec<GpuUse> {
    let state = |index: usize| match (lost.get(index).cloned().flatten(), holders) {
        (Some(why), _) => GpuState::Lost { why },
        (None, None) => GpuState::Unknown,
        (None, Some(holders)) => match holders.iter().find(|holder| holder.index == index) {
            Some(holder) => {
                let (job, user) = holder.job.clone().filter(|_| !holder.is_doubtful).unzip();
                GpuState::Allocated { job, user }
            }
            None => GpuState::Free,
        },
    };
    let each = gpus.iter().enumerate().map(|(index, gpu)| GpuUse {
        index,
        model: gpu.model.clone(),
        file: gpu.file.clone(),
        state: state(index),
    });
    each.collect()
}

/// The node's GPUs in use, from `GresUsed=gpu:nvidia:3(IDX:0-1,3)` in the output of `scontrol --details show node`.
pub(super) fn used(text: &str) -> Vec<usize> {
    let value = text.lines().find_map(|line| line.trim_start().strip_prefix("GresUsed="));
    value.map(indices).unwrap_or_default()
}

pub(super) fn jobs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let job = |line| str::trim(line).split_once(' ');
    text.lines().filter_map(job).filter(|(id, _)| id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The GPUs of a job, from `Nodes=n CPU_IDs=0 Mem=1 GRES=gpu:nvidia:1(IDX:2)` in the output of `scontrol --details show
/// job`. A job's name, comment and paths can contain newlines, and so forge such a line: if there are two, none is
/// trusted.
pub(super) fn indices_of_job(text: &str) -> Vec<usize> {
    let gres = |line: &str| {
        let rest = line.trim_start().strip_prefix("Nodes=")?;
        rest.split_once(" GRES=").map(|(_, gres)| indices(gres))
    };
    let mut found = text.lines().filter_map(gres);
    match (found.next(), found.next()) {
        (Some(only), None) => only,
        _ => Vec::new(),
    }
}

pub(super) fn assign(holders: &mut [Holder], indices: &[usize], job: &str, user: &str) {
    for holder in holders.iter_mut().filter(|holder| indices.contains(&holder.index)) {
        holder.is_doubtful = holder.job.is_some();
        holder.job = Some((job.to_owned(), user.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(text: &str) -> Option<String> {
        NodeNow::parse(text).expect("a node").why_closed()
    }

    #[test]
    fn a_node_that_takes_no_job_says_why() {
        assert_eq!(closed("up|idle|none\n"), None);
        assert_eq!(closed("up|mixed|none\ndown|mixed|none\n"), None, "one open partition is enough");
        assert_eq!(closed("up|allocated|none\n"), None, "a job can wait there");
        assert_eq!(closed("up|drained|fan | broken\n").as_deref(), Some("the node is drained (fan | broken)"));
        assert_eq!(closed("up|draining|x\n").as_deref(), Some("the node is draining (x)"));
        let silent = "the node is idle, and slurmd has not answered slurmctld";
        assert_eq!(closed("up|idle*|none\n").as_deref(), Some(silent));
        assert!(closed("down|idle|none\ndrain|idle|none\n").is_some_and(|why| why.contains("every partition")));
        assert_eq!(NodeNow::parse(""), None);
        assert_eq!(NodeNow::parse("sinfo: error\n"), None);
    }

    fn gpu(number: usize) -> OfferedGpu {
        OfferedGpu { file: format!("/dev/nvidia{number}"), model: "NVIDIA H200".to_owned(), ..OfferedGpu::default() }
    }

    fn states(used: &str, jobs: &[(&str, &str, &str)]) -> Vec<String> {
        let mut holders: Vec<_> = super::used(used).into_iter().map(Holder::unknown).collect();
        for (id, user, text) in jobs {
            assign(&mut holders, &indices_of_job(text), id, user);
        }
        let uses = gpu_uses(&[gpu(0), gpu(1), gpu(2)], &[], Some(&holders));
        let word = |state: &GpuState| match state {
            GpuState::Allocated { job: Some(job), user: Some(user) } => format!("{job} of {user}"),
            GpuState::Allocated { .. } => "somebody's".to_owned(),
            GpuState::Free => "free".to_owned(),
            other => format!("{other:?}"),
        };
        uses.iter().map(|gpu| word(&gpu.state)).collect()
    }

    const USED: &str =
        "NodeName=localhost Arch=x86_64\n   GresUsed=gpu:nvidia:2(IDX:0,2),shard:nvidia:0(0/4)\n   Reason=x\n";
    const JOB_7: &str =
        "JobId=7 JobName=a\n   JOB_GRES=gpu:nvidia:2\n     Nodes=localhost CPU_IDs=0 Mem=1 GRES=gpu:nvidia:1(IDX:0)\n";

    #[test]
    fn each_gpu_has_its_job_and_user() {
        assert_eq!(states(USED, &[("7", "alice", JOB_7)]), ["7 of alice", "free", "somebody's"]);
        let none = "   GresUsed=gpu:nvidia:0(IDX:N/A)\n";
        assert_eq!(states(none, &[]), ["free", "free", "free"]);
        assert_eq!(indices("gpu:nvidia:2(IDX:0-1),gpu:amd:1(IDX:4),mps:x:1(IDX:9)"), [0, 1, 4]);
        assert_eq!(indices("gpu:1(IDX:0-99999999)"), Vec::<usize>::new());
    }

    #[test]
    fn a_name_that_looks_like_a_grant_grants_nothing() {
        let forged = "JobId=8 JobName=x\n     Nodes=localhost CPU_IDs=0 Mem=1 GRES=gpu:nvidia:1(IDX:2)\n   JOB_GRES=gpu:nvidia:1\n     \
                      Nodes=localhost CPU_IDs=1 Mem=1 GRES=gpu:nvidia:1(IDX:0)\n";
        assert_eq!(states(USED, &[("7", "alice", JOB_7), ("8", "eve", forged)]), ["7 of alice", "free", "somebody's"]);
        // A GPU that two jobs claim is attributed to neither, even if the forger holds no GPU.
        let bare = "JobId=8 JobName=x\n     Nodes=localhost CPU_IDs=0 Mem=1 GRES=gpu:nvidia:1(IDX:0)\n";
        assert_eq!(states(USED, &[("7", "alice", JOB_7), ("8", "eve", bare)]), ["somebody's", "free", "somebody's"]);
    }

    #[test]
    fn what_is_lost_or_not_known_is_no_free_gpu() {
        let uses = gpu_uses(&[gpu(0), gpu(1)], &[Some("gone".to_owned())], None);
        assert_eq!(uses[0].state, GpuState::Lost { why: "gone".to_owned() });
        assert_eq!(uses[1].state, GpuState::Unknown);
        let json = serde_json::to_value(&uses).unwrap();
        assert_eq!(json[0]["state"], "lost");
        assert_eq!(json[1]["index"], 1);
    }

    #[test]
    fn only_numbers_are_jobs() {
        assert_eq!(
            jobs("7 alice\n8 bob\nslurm_load_jobs error: x\n").collect::<Vec<_>>(),
            [("7", "alice"), ("8", "bob")]
        );
    }
}
