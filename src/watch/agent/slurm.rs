//! The agent's queries and updates of Slurm.

use crate::memory_guard::JobMemory;
use faults::controller::{DrainOutcome, SlurmNodeState};
use faults::usage::Job;
use machine::node_report::{GPU_REASON, NodeReport, OUR_REASON};
use slurm::client::{Client, Jobs, limit};
use slurm::{gpu_jobs, nodes};

const SLURM: Client = Client::with_timeout(limit::COMMAND);

/// The longest reason, in characters.
const MAX_REASON: usize = 400;

/// Drains the node, unless another cause has closed it: Slurm keeps only one reason, and a drain would end the state FAIL.
pub(super) fn drain(node: &str, reason: &str) -> DrainOutcome {
    if let Some(report) = report(node).filter(NodeReport::is_closed_externally) {
        return DrainOutcome::Others(report.reason);
    }
    let reason = format!("reason={OUR_REASON}{}", model::printable::short(reason, MAX_REASON));
    match update(node, &["state=drain", &reason]) {
        Ok(()) => DrainOutcome::Ours,
        Err(why) => DrainOutcome::Failed(why),
    }
}

/// Removes the agent's own drain because of a GPU, and no other.
pub(super) fn resume(node: &str) -> Result<(), String> {
    resume_from(node, GPU_REASON).map(drop)
}

/// Removes a drain whose reason has this prefix. Returns whether the node had one.
pub(super) fn resume_from(node: &str, reason: &str) -> Result<bool, String> {
    let Some(report) = report(node) else { return Err("slurmctld does not report the node".to_owned()) };
    if !report.has_drain_reason(reason) {
        return Ok(false);
    }
    // `resume` would also end a DOWN, a reboot and a power-down of other causes. The reason stays: slurmctld adds none
    // to a node that has one, so a later drain by slurmctld is still recognized as removable.
    update(node, &["state=undrain"]).map(|()| true)
}

/// Whether the node is drained with a reason that has this prefix; `None` if slurmctld does not report the node.
pub(super) fn is_drained_for(node: &str, reason: &str) -> Option<bool> {
    report(node).map(|report| report.has_drain_reason(reason))
}

/// Drains the node: the reason is `prefix` and `why`. Returns `false` if it already accepts no jobs for another reason,
/// which is kept.
pub(super) fn drain_for(node: &str, prefix: &str, why: &str) -> Result<bool, String> {
    let Some(report) = report(node) else { return Err("slurmctld does not report the node".to_owned()) };
    if report.state.starts_with("drain") || report.is_closed_externally() {
        return Ok(report.has_drain_reason(prefix));
    }
    update(node, &["state=drain", &format!("reason={prefix}{why}")]).map(|()| true)
}

/// The node's running jobs in the order of their start, with the memory that they have been allocated here.
pub(super) fn running(node: &str) -> Result<Vec<JobMemory>, String> {
    const COLUMNS: [(&str, usize); 3] = [("JobID", 30), ("UserID", 30), ("tres-alloc", 1000)];
    let which = Jobs { states: &["RUNNING"], node: Some(node), options: &["--sort=S"] };
    let jobs = SLURM.job_columns(&which, &COLUMNS)?;
    let memory = |[job, uid, tres]: [String; 3]| {
        let (job, uid) = (job.parse().ok()?, uid.parse().ok()?);
        Some(JobMemory { job, uid, requested: mib_per_node(&tres), used: 0 })
    };
    Ok(jobs.into_iter().filter_map(memory).collect())
}

/// The memory per node in MiB, from `cpu=2,mem=1.50G,node=2,billing=2`. A job of several nodes has an equal part on each.
pub(super) fn mib_per_node(tres: &str) -> Option<u64> {
    let value = |key: &str| tres.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
    let memory = value("mem")?;
    let (number, unit) = memory.split_at_checked(memory.len().checked_sub(1)?)?;
    let (number, exponent) = match unit {
        "K" => (number, -1),
        "M" => (number, 0),
        "G" => (number, 1),
        "T" => (number, 2),
        "P" => (number, 3),
        _ => (memory, 0),
    };
    let nodes = value("node").and_then(|nodes| nodes.parse::<f64>().ok()).filter(|nodes| *nodes >= 1.0).unwrap_or(1.0);
    let mib = number.parse::<f64>().ok()? * 1024_f64.powi(exponent) / nodes;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    Some(mib.ceil() as u64)
}

/// Warns a job's user.
pub(super) fn warn(job: u64, note: &str) -> Result<(), String> {
    let (job, note) = (job.to_string(), format!("{OUR_REASON}{note}"));
    // The note appears in the output of srun or of the batch job. The comment stays with the job.
    let notified = SLURM.run("scontrol", &["notify", &job, &note]);
    SLURM.update_job(&job, &[format!("admincomment={note}")])?;
    Ok(notified?)
}

/// Sets or removes the mark of this node in a job's AdminComment. Other nodes write to the comment too, so it is
/// read again just before.
pub(super) fn mark_idle(node: &str, job: u64, at: Option<u64>) -> Result<(), String> {
    let id = job.to_string();
    let which = Jobs { states: &["all"], node: None, options: &["--all", "--json", "--jobs", &id] };
    let comment = gpu_jobs::admin_comment(&SLURM.jobs_json(&which)?).unwrap_or_default();
    let marked = faults::usage::with_mark(&comment, node, at);
    SLURM.update_job(&id, &[format!("admincomment={marked}")])?;
    Ok(())
}

/// Cancels a job with a note to its user.
pub(super) fn cancel(job: u64, note: &str) -> Result<(), String> {
    let _ = warn(job, note);
    Ok(SLURM.run("scancel", &[job.to_string()])?)
}

/// The state of the node, with the jobs that have its GPUs.
pub(super) fn on_node(node: &str) -> anyhow::Result<SlurmNodeState> {
    let cluster = nodes::query_node(node, &Client::with_total_timeout(limit::COMMAND))?;
    let node = cluster.node(node)?;
    Ok(SlurmNodeState {
        is_closed: node.drained || ["FAIL", "DOWN"].iter().any(|flag| node.state_flags.iter().any(|word| word == flag)),
        is_ours: node.drained && node.report.reason.starts_with(GPU_REASON),
        gpus: node.gpus.iter().map(|gpu| gpu.state.jobs().to_vec()).collect(),
        allocated_gpus: node.gpus.iter().filter(|gpu| gpu.state.is_in_use()).count(),
        is_empty: node.cpus_allocated == 0 && !node.state_flags.iter().any(|word| word == "COMPLETING"),
    })
}

/// The jobs of the node, with those that ended in the last minutes.
pub(super) fn gpu_jobs(node: &str) -> anyhow::Result<Vec<Job>> {
    gpu_jobs::query(&SLURM, node)
}

/// Whether Slurm's PrivateData hides jobs from other users.
pub(super) fn hides_jobs() -> Option<bool> {
    Some(has_private_jobs(&SLURM.config().ok()?.get("PrivateData").unwrap_or_default()))
}

fn has_private_jobs(private: &str) -> bool {
    private.split(',').any(|what| ["jobs", "all"].contains(&what.trim()))
}

fn report(node: &str) -> Option<NodeReport> {
    SLURM.node_reports(node).ok()?.into_iter().next()
}

fn update(node: &str, what: &[&str]) -> Result<(), String> {
    Ok(SLURM.update_node(node, what)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_private_only_if_slurm_hides_them() {
        assert!(["jobs", "cloud,jobs", "usage, jobs", "all"].iter().all(|private| has_private_jobs(private)));
        assert!(!["", "none", "cloud", "accounts,usage"].iter().any(|private| has_private_jobs(private)));
    }

    #[test]
    fn parses_memory_per_node_from_tres() {
        let of = |tres| mib_per_node(tres);
        assert_eq!(of("cpu=1,mem=10M,node=1,billing=1"), Some(10));
        assert_eq!(of("cpu=2,mem=1.50G,node=2,billing=2,gres/gpu=1"), Some(768));
        assert_eq!((of("mem=2T"), of("mem=7")), (Some(2 << 20), Some(7)));
        assert_eq!([of("cpu=1,node=1"), of(""), of("mem="), of("mem=M"), of("N/A")], [None; 5]);
    }
}
