//! The agent's queries and updates of Slurm.

use config::Victim;
use machine::node_report::{GPUS_REASON, MEMORYS_REASON, NodeReport, OUR_REASON};
use model::faults::ward::{Drained, OnNode};
use slurm::client::{Client, Jobs, limit};
use slurm::nodes;

const SLURM: Client = Client::each(limit::COMMAND);

/// The longest reason, in characters.
const LONGEST: usize = 400;

/// Drains the node, unless another cause has closed it: Slurm keeps one reason, and a drain ends FAIL.
pub(super) fn drain(node: &str, reason: &str) -> Drained {
    if let Some(report) = report(node).filter(NodeReport::is_closed_by_others) {
        return Drained::Others(report.reason);
    }
    let reason = format!("reason={OUR_REASON}{}", model::printable::short(reason, LONGEST));
    match update(node, &["state=drain", &reason]) {
        Ok(()) => Drained::Ours,
        Err(why) => Drained::Failed(why),
    }
}

/// Removes the agent's own drain because of a GPU, and no other.
pub(super) fn resume(node: &str) -> Result<(), String> {
    resume_from(node, GPUS_REASON)
}

fn resume_from(node: &str, reason: &str) -> Result<(), String> {
    let Some(report) = report(node) else { return Err("slurmctld does not report the node".to_owned()) };
    if !report.is_drained_because(reason) {
        return Ok(());
    }
    // `resume` would also end a DOWN, a reboot and a power-down of other causes. The reason stays: slurmctld adds none
    // to a node that has one, so a later drain by slurmctld is still recognized as removable.
    update(node, &["state=undrain"])
}

/// Whether the node is drained because of its memory; `None` if slurmctld does not report the node.
pub(super) fn is_closed_for_memory(node: &str) -> Option<bool> {
    report(node).map(|report| report.is_drained_because(MEMORYS_REASON))
}

/// Drains the node because of its memory, unless it accepts no jobs anyway.
pub(super) fn close_for_memory(node: &str, reason: &str) -> Result<(), String> {
    let Some(report) = report(node) else { return Err("slurmctld does not report the node".to_owned()) };
    if report.state.starts_with("drain") || report.is_closed_by_others() {
        return Ok(());
    }
    update(node, &["state=drain", &format!("reason={OUR_REASON}{reason}")])
}

/// Removes the drain because of memory.
pub(super) fn open_after_memory(node: &str) -> Result<(), String> {
    resume_from(node, MEMORYS_REASON)
}

/// Cancels the node's youngest or oldest job with a note to its user; returns the job's ID.
pub(super) fn cancel(node: &str, victim: Victim, why: &str) -> Result<Option<String>, String> {
    // Sorted by start time.
    let which = Jobs { states: &["RUNNING"], node: Some(node), options: &["--sort=S"] };
    let mut jobs = SLURM.jobs(&which)?.into_iter().map(|job| job.number.to_string());
    let job = match victim {
        Victim::Youngest => jobs.next_back(),
        Victim::Oldest => jobs.next(),
        Victim::None => None,
    };
    let Some(job) = job else { return Ok(None) };
    let word = format!("slurminit: cancelled, because the node's {why}");
    // Only srun shows it; the comment stays with the job.
    let _ = SLURM.run("scontrol", &["notify", &job, &word]);
    let _ = SLURM.update_job(&job, &[format!("admincomment={word}")]);
    SLURM.run("scancel", &[&job])?;
    Ok(Some(job))
}

/// The jobs that have GPUs of the node.
pub(super) fn on_node(node: &str) -> anyhow::Result<OnNode> {
    let cluster = nodes::cluster_of(node, &Client::together(limit::COMMAND))?;
    let node = cluster.node(node)?;
    Ok(OnNode {
        is_closed: node.drained || ["FAIL", "DOWN"].iter().any(|flag| node.words.iter().any(|word| word == flag)),
        is_ours: node.drained && node.report.reason.starts_with(GPUS_REASON),
        gpus: node.gpus.iter().map(|gpu| gpu.state.jobs().to_vec()).collect(),
        held: node.gpus.iter().filter(|gpu| gpu.state.is_held()).count(),
        is_empty: node.cpus_allocated == 0 && !node.words.iter().any(|word| word == "COMPLETING"),
    })
}

fn report(node: &str) -> Option<NodeReport> {
    SLURM.node_reports(node).ok()?.into_iter().next()
}

fn update(node: &str, what: &[&str]) -> Result<(), String> {
    Ok(SLURM.update_node(node, what)?)
}
