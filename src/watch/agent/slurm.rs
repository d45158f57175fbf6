//! The agent's queries and updates of Slurm.

use crate::memory_guard::JobMemory;
use faults::controller::{DrainOutcome, SlurmNodeState};
use faults::usage::Job;
use machine::node_report::{GPU_REASON, NodeReport, OUR_REASON};
use slurm::client::{Client, Jobs, limit};
use slurm::{gpu_jobs, nodes};

/// The client of the agent.
pub(super) const SLURM: Client = Client::with_timeout(limit::COMMAND);

/// The longest reason of a drain for a GPU, in characters, without the prefix.
const MAX_REASON: usize = 400;

/// Drains the node, unless [`NodeReport::is_closed_externally`]: Slurm keeps only one reason, and a drain would end the state FAIL.
pub(super) fn drain(slurm: &Client, node: &str, reason: &str) -> DrainOutcome {
    if let Some(report) = report(slurm, node).filter(NodeReport::is_closed_externally) {
        return DrainOutcome::Others(report.reason);
    }
    let reason = format!("reason={OUR_REASON}{}", model::printable::short(reason, MAX_REASON));
    match update(slurm, node, &["state=drain", &reason]) {
        Ok(()) => DrainOutcome::Ours,
        Err(why) => DrainOutcome::Failed(why),
    }
}

/// Removes the drain that the agent set because of a GPU, and no other drain.
pub(super) fn resume(slurm: &Client, node: &str) -> Result<(), String> {
    resume_from(slurm, node, GPU_REASON).map(drop)
}

/// Removes a drain whose reason has this prefix. Returns `false` if the node has no such drain.
pub(super) fn resume_from(slurm: &Client, node: &str, reason: &str) -> Result<bool, String> {
    let Some(report) = report(slurm, node) else {
        return Err("slurmctld does not respond, or does not list the node".to_owned());
    };
    if !report.is_drained_for(reason) {
        return Ok(false);
    }
    // `resume` would also end a DOWN state, a reboot or a power-down with another cause. `undrain` does not remove the reason, and
    // slurmctld does not replace a reason. So a later drain by slurmctld has the same reason and can be removed here, too.
    update(slurm, node, &["state=undrain"]).map(|()| true)
}

/// Whether the node is drained with a reason that has this prefix. `None` if slurmctld does not respond or does not list the node.
pub(super) fn is_drained_for(slurm: &Client, node: &str, reason: &str) -> Option<bool> {
    report(slurm, node).map(|report| report.is_drained_for(reason))
}

/// Drains the node: the reason is `prefix` and `why`. A node that already accepts no jobs is not changed. Returns whether the node is drained
/// with a reason that has `prefix`.
pub(super) fn drain_for(slurm: &Client, node: &str, prefix: &str, why: &str) -> Result<bool, String> {
    let Some(report) = report(slurm, node) else {
        return Err("slurmctld does not respond, or does not list the node".to_owned());
    };
    if report.state.starts_with("drain") || report.is_closed_externally() {
        return Ok(report.is_drained_for(prefix));
    }
    update(slurm, node, &["state=drain", &format!("reason={prefix}{why}")]).map(|()| true)
}

/// The node's running jobs in the order of their start, with the memory allocated to them on this node.
pub(super) fn running(slurm: &Client, node: &str) -> Result<Vec<JobMemory>, String> {
    const COLUMNS: [(&str, usize); 3] = [("JobID", 30), ("UserID", 30), ("tres-alloc", 1000)];
    let which = Jobs { states: &["RUNNING"], node: Some(node), options: &["--sort=S"] };
    let jobs = slurm.job_columns(&which, &COLUMNS)?;
    let memory = |[job, uid, tres]: [String; 3]| {
        let (job, uid) = (job.parse().ok()?, uid.parse().ok()?);
        Some(JobMemory { job, uid, requested: mib_per_node(&tres), used: 0 })
    };
    Ok(jobs.into_iter().filter_map(memory).collect())
}

/// The memory per node in MiB, from `cpu=2,mem=1.50G,node=2,billing=2`. A job on several nodes is assumed to have the same amount on each.
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
pub(super) fn warn(slurm: &Client, job: u64, note: &str) -> Result<(), String> {
    let (job, note) = (job.to_string(), format!("{OUR_REASON}{note}"));
    // The note appears in the output of srun or of the batch job. AdminComment remains in the job's record.
    let notified = slurm.run("scontrol", &["notify", &job, &note]);
    slurm.update_job(&job, &[format!("admincomment={note}")])?;
    Ok(notified?)
}

/// Sets or removes the mark of this node in a job's AdminComment. Other nodes write to the comment, too, so it is
/// read again just before the update.
pub(super) fn mark_idle(slurm: &Client, node: &str, job: u64, at: Option<u64>) -> Result<(), String> {
    let id = job.to_string();
    let which = Jobs { states: &["all"], node: None, options: &["--all", "--json", "--jobs", &id] };
    let comment = gpu_jobs::admin_comment(&slurm.jobs_json(&which)?).unwrap_or_default();
    let marked = faults::usage::with_mark(&comment, node, at);
    slurm.update_job(&id, &[format!("admincomment={marked}")])?;
    Ok(())
}

/// Cancels a job with a note to its user.
pub(super) fn cancel(slurm: &Client, job: u64, note: &str) -> Result<(), String> {
    let _ = warn(slurm, job, note);
    Ok(slurm.run("scancel", &[job.to_string()])?)
}

/// The state of the node, with the jobs that have its GPUs.
pub(super) fn on_node(slurm: &Client, node: &str) -> anyhow::Result<SlurmNodeState> {
    let cluster = nodes::query_node(node, slurm)?;
    let node = cluster.node(node)?;
    Ok(SlurmNodeState {
        is_closed: node.drained || ["FAIL", "DOWN"].iter().any(|flag| node.state_flags.iter().any(|word| word == flag)),
        is_ours: node.drained && node.report.reason.starts_with(GPU_REASON),
        gpus: node.gpus.iter().map(|gpu| gpu.state.jobs().to_vec()).collect(),
        allocated_gpus: node.gpus.iter().filter(|gpu| gpu.state.is_in_use()).count(),
        is_empty: node.cpus_allocated == 0 && !node.state_flags.iter().any(|word| word == "COMPLETING"),
    })
}

/// The jobs of the node, with those that ended in the last few minutes.
pub(super) fn gpu_jobs(slurm: &Client, node: &str) -> anyhow::Result<Vec<Job>> {
    gpu_jobs::query(slurm, node)
}

/// Whether Slurm's PrivateData hides jobs from other users; `None` if slurmctld does not respond.
pub(super) fn hides_jobs(slurm: &Client) -> Option<bool> {
    Some(has_private_jobs(&slurm.config().ok()?.get("PrivateData").unwrap_or_default()))
}

fn has_private_jobs(private: &str) -> bool {
    private.split(',').any(|what| ["jobs", "all"].contains(&what.trim()))
}

fn report(slurm: &Client, node: &str) -> Option<NodeReport> {
    slurm.node_reports(node).ok()?.into_iter().next()
}

fn update(slurm: &Client, node: &str, what: &[&str]) -> Result<(), String> {
    Ok(slurm.update_node(node, what)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;

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

    /// Runs `action` with the report of the node, and returns its result and the updates.
    fn with_node<T>(report: &str, update: Result<&str, &str>, action: impl Fn(&Client) -> T) -> (T, Vec<String>) {
        let slurm = FakeSlurm::new(&[("sinfo", Ok(report)), ("scontrol update nodename=c1", update)]);
        let outcome = action(&Client::with_runner(&slurm.run()));
        let updates = slurm.commands("scontrol update nodename=c1 ");
        (outcome, updates.iter().map(|update| update["scontrol update nodename=c1 ".len()..].to_owned()).collect())
    }

    #[test]
    fn drain_for_gpu_keeps_reason_of_others() {
        let drained = |report: &str, update| with_node(report, update, |slurm| drain(slurm, "c1", "GPU 1 is lost"));
        let ours = (DrainOutcome::Ours, vec!["state=drain reason=slurminit: GPU 1 is lost".to_owned()]);
        for report in ["idle root|none", "drained root|slurminit: memory is low", ""] {
            assert_eq!(drained(report, Ok("")), ours, "{report}");
        }
        assert_eq!(drained("drained root|fan", Ok("")), (DrainOutcome::Others("fan".to_owned()), vec![]));
        assert!(matches!(drained("idle root|none", Err("no permission")), (DrainOutcome::Failed(_), _)));
    }

    #[test]
    fn resume_removes_only_drain_for_gpu() {
        let resumed = |report: &str| with_node(report, Ok(""), |slurm| resume(slurm, "c1").is_ok());
        for report in ["drained root|slurminit: GPU 1 is lost", "draining* root|slurminit: GPU 1 is lost"] {
            assert_eq!(resumed(report), (true, vec!["state=undrain".to_owned()]), "{report}");
        }
        for report in ["drained root|slurminit: memory is low", "drained root|fan", "idle root|none"] {
            assert_eq!(resumed(report), (true, vec![]), "{report}");
        }
        assert_eq!(resumed(""), (false, vec![]));
    }

    #[test]
    fn drain_for_resource_keeps_existing_drain() {
        let drained = |report: &str| {
            with_node(report, Ok(""), |slurm| {
                (
                    drain_for(slurm, "c1", "slurminit: memory ", "is low").ok(),
                    is_drained_for(slurm, "c1", "slurminit: memory "),
                )
            })
        };
        let drain = || vec!["state=drain reason=slurminit: memory is low".to_owned()];
        for (report, expected, updates) in [
            ("idle root|none", (Some(true), Some(false)), drain()),
            ("drained root|slurminit: memory is low", (Some(true), Some(true)), vec![]),
            ("drained* root|slurminit: memory is low", (Some(true), Some(true)), vec![]),
            ("draining root|slurminit: GPU 1 is lost", (Some(false), Some(false)), vec![]),
            ("down root|broken", (Some(false), Some(false)), vec![]),
            ("", (None, None), vec![]),
        ] {
            assert_eq!(drained(report), (expected, updates), "{report}");
        }
    }

    #[test]
    fn reads_users_and_memory_of_running_jobs() {
        let line = |job: &str, uid: &str, tres: &str| format!("{job:<30}{uid:<30}{tres:<1000}\n");
        let jobs = line("7", "1501", "cpu=2,mem=1G,node=2")
            + &line("8", "1502", "cpu=1,node=1")
            + &line("x", "1502", "mem=1G");
        let slurm = FakeSlurm::new(&[("squeue", Ok(&jobs))]);
        let memory = |job, uid, requested| JobMemory { job, uid, requested, used: 0 };
        let expected = vec![memory(7, 1501, Some(512)), memory(8, 1502, None)];
        assert_eq!(running(&Client::with_runner(&slurm.run()), "c1"), Ok(expected));
    }

    #[test]
    fn cancels_job_whose_user_cannot_be_notified() {
        let slurm = FakeSlurm::new(&[
            ("scontrol notify", Err("job has no srun")),
            ("scontrol update", Ok("")),
            ("scancel", Ok("")),
        ]);
        let run = slurm.run();
        let client = Client::with_runner(&run);
        assert!(warn(&client, 7, "idle").is_err());
        let warned = ["scontrol notify 7 slurminit: idle", "scontrol update jobid=7 admincomment=slurminit: idle"];
        assert_eq!(slurm.commands(""), warned);
        assert_eq!(cancel(&client, 7, "idle"), Ok(()));
        assert_eq!(slurm.commands("scancel"), ["scancel 7"]);
    }

    #[test]
    fn mark_of_idle_job_keeps_comment_and_marks_of_other_nodes() {
        let comment = faults::usage::with_mark("a note", "c2", Some(50));
        let jobs = serde_json::json!({"jobs": [{"job_id": 7, "admin_comment": comment}]}).to_string();
        let slurm = FakeSlurm::new(&[("squeue", Ok(&jobs)), ("scontrol update", Ok(""))]);
        mark_idle(&Client::with_runner(&slurm.run()), "c1", 7, Some(60)).unwrap();
        let both = faults::usage::with_mark(&comment, "c1", Some(60));
        assert_eq!(slurm.commands("scontrol"), [format!("scontrol update jobid=7 admincomment={both}")]);
    }

    #[test]
    fn node_state_shows_drain_and_jobs_of_gpus() {
        let state = |words: &[&str], reason: &str, cpus: u64, used: &str| {
            let node = serde_json::json!({"name": "c1", "state": words, "reason": reason, "alloc_cpus": cpus,
                "gres": "gpu:a:2", "gres_used": used});
            let job = serde_json::json!({"job_id": 7, "job_state": ["RUNNING"], "user_name": "alice", "nodes": "c1",
                "gres_detail": ["gpu:a:1(IDX:1)"], "job_resources": {"nodes": {"allocation": [{"name": "c1"}]}}});
            let (nodes, jobs) = (serde_json::json!({"nodes": [node]}), serde_json::json!({"jobs": [job]}));
            let (nodes, jobs) = (nodes.to_string(), jobs.to_string());
            let slurm = FakeSlurm::new(&[("scontrol", Ok(&nodes)), ("squeue", Ok(&jobs))]);
            on_node(&Client::with_runner(&slurm.run()), "c1").unwrap()
        };
        let flags = |state: &SlurmNodeState| (state.is_closed, state.is_ours, state.is_empty);
        let unused = "gpu:a:0(IDX:N/A)";
        for (words, reason, expected) in [
            (&["IDLE"][..], "", (false, false, true)),
            (&["IDLE", "DRAIN"], "slurminit: GPU 1 is lost", (true, true, true)),
            (&["IDLE", "DRAIN"], "fan", (true, false, true)),
            (&["DOWN"], "slurminit: GPU 1 is lost", (true, false, true)),
            (&["IDLE", "FAIL"], "disk", (true, false, true)),
            (&["IDLE", "COMPLETING"], "", (false, false, false)),
        ] {
            assert_eq!(flags(&state(words, reason, 0, unused)), expected, "{words:?} {reason}");
        }
        let busy = state(&["MIXED"], "", 2, "gpu:a:1(IDX:1)");
        assert_eq!((flags(&busy), busy.allocated_gpus), ((false, false, false), 1));
        let jobs: Vec<Vec<u64>> = busy.gpus.iter().map(|jobs| jobs.iter().map(|job| job.job).collect()).collect();
        assert_eq!(jobs, [vec![], vec![7]]);
    }
}
