//! What Slurm's commands print, read so that no user's text can pass for it.
//!
//! PURE.

use serde::Serialize;

use crate::report::OfferedGpu;
use crate::supervise::node::{NodeReport, NodeVerdict};

/// A line for each partition of the node: whether the partition is open, then the node's state and reason. The reason comes last: it
/// may hold anything but a newline.
pub(super) const SINFO: &str = "--format=%a|%T|%E";

/// The states in which a job has its GPUs.
pub(super) const HOLDING: &str = "--states=RUNNING,SUSPENDED,CONFIGURING,STOPPED,COMPLETING";

/// A job's id and its user's name: nothing of it is the submitter's to choose.
pub(super) const SQUEUE: &str = "--format=%A %u";

/// A node and the partitions that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNow {
    /// Its state and the reason for it.
    pub report: NodeReport,
    /// Whether a partition that it is in takes jobs.
    pub has_open_partition: bool,
}

impl NodeNow {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut has_open_partition = false;
        let mut report = None;
        for (available, rest) in text.lines().filter_map(|line| line.trim_start().split_once('|')) {
            has_open_partition |= available.trim() == "up";
            report = report.or_else(|| NodeReport::parse(rest));
        }
        Some(Self { report: report?, has_open_partition })
    }

    /// Why no job can start here, in one line; `None` where jobs can.
    pub fn why_closed(&self) -> Option<String> {
        let NodeReport { state, reason, responding } = &self.report;
        if self.report.verdict() == NodeVerdict::Usable {
            return (!self.has_open_partition)
                .then(|| "every partition is closed (scontrol show partition)".to_owned());
        }
        let answers = if *responding { "" } else { ", and slurmd has not answered slurmctld" };
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        Some(format!("the node is {state}{reason}{answers}"))
    }
}

/// A GPU that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// Its position in gres.conf, from 0.
    index: usize,
    /// The job and its user. `None` where it is not known, or where several jobs would have it.
    job: Option<(String, String)>,
    /// Whether another job was found that would have it too.
    is_doubtful: bool,
}

impl Holder {
    pub(super) fn unknown(index: usize) -> Self {
        Self { index, job: None, is_doubtful: false }
    }
}

/// One GPU, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuUse {
    /// Its position in gres.conf, from 0: what Slurm calls its index.
    pub index: usize,
    /// The model, or the GPU's model and the profile of a MIG instance.
    pub model: String,
    /// Its device file; the last of them for a MIG instance.
    pub file: String,
    /// What it is at.
    #[serde(flatten)]
    pub state: GpuState,
}

/// What a GPU is at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum GpuState {
    /// A job can be given it.
    Free,
    /// A job has it.
    Allocated {
        /// The job's id, if it is known.
        job: Option<String>,
        /// The job's user, if it is known.
        user: Option<String>,
    },
    /// The machine does not reach it any more.
    Lost {
        /// Why.
        why: String,
    },
    /// slurmctld does not say.
    Unknown,
}

/// What each GPU is at.
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

/// The GPUs of the node that are in use, by `GresUsed=gpu:nvidia:3(IDX:0-1,3)` of `scontrol --details show node`.
pub(super) fn used(text: &str) -> Vec<usize> {
    let value = text.lines().find_map(|line| line.trim_start().strip_prefix("GresUsed="));
    value.map(indices).unwrap_or_default()
}

pub(super) fn jobs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let job = |line| str::trim(line).split_once(' ');
    text.lines().filter_map(job).filter(|(id, _)| id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The GPUs of a job, by the line `Nodes=n CPU_IDs=0 Mem=1 GRES=gpu:nvidia:1(IDX:2)` of `scontrol --details show job`. A job's name, comment
/// and paths can hold such a line too, for they can hold newlines: where there are two, none is believed.
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

/// `gpu:nvidia:2(IDX:0-1),gpu:amd:1(IDX:4)` as 0, 1, 4. Other GRES are left out, and shards of a GPU with them.
fn indices(gres: &str) -> Vec<usize> {
    let mut all = Vec::new();
    let mut rest = gres.trim();
    while let Some((name, after)) = rest.split_once("(IDX:") {
        let Some((list, next)) = after.split_once(')') else { break };
        if name.trim_start_matches(',').starts_with("gpu") {
            all.extend(list.split(',').filter_map(range).flatten());
        }
        rest = next;
    }
    all
}

/// No node has more, so a longer range is nonsense.
const MOST_GPUS: usize = 4096;

fn range(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (last < MOST_GPUS).then_some(first..=last)
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
        // Also where the forger holds no GPU at all, what another job holds too is nobody's for sure.
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
