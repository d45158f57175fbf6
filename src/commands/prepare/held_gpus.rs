//! The running jobs that hold GPUs. slurmctld aborts them when it starts with another number of GPUs on their node
//! (24.11, `_find_invalid_job_gres_on_node`: "gres/gpu count mismatch"), whichever GPU they hold.

use std::process::Command;

use super::Failure;
use crate::exit_code;

/// How long slurmctld may take to answer, in seconds.
const PATIENCE: &str = "5";
/// What `timeout` ends with then.
const TIMED_OUT: i32 = 124;

/// Fails if there is one, and if nobody can say.
#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1, and waits for its own children only")]
pub(super) fn check_nobody_holds_gpus() -> Result<(), Failure> {
    let ask = ["--kill-after=1", PATIENCE, "scontrol", "--details", "--oneliner", "show", "job"];
    let answer = match Command::new("timeout").args(ask).output() {
        Ok(answer) if answer.status.success() => String::from_utf8_lossy(&answer.stdout).into_owned(),
        Ok(answer) if answer.status.code() == Some(TIMED_OUT) => {
            return Err(refusal("slurmctld does not say whether jobs hold GPUs", "see why it does not answer"));
        }
        // Without a controller there is nothing to lose by a restart of it.
        other => {
            eprintln!("warning: slurmctld was not asked whether jobs hold GPUs: {other:?}");
            return Ok(());
        }
    };
    let jobs = holders(&answer);
    if jobs.is_empty() {
        return Ok(());
    }
    Err(refusal(
        &format!("the node has other GPUs now, and jobs hold some of the former ones: {}", jobs.join(", ")),
        "run `slurminit reload` when they have ended, or end them with scancel or `scontrol requeue`",
    ))
}

fn refusal(what: &str, repair: &str) -> Failure {
    let cause = "Slurm aborts every job with a GPU when the number of GPUs of its node changes";
    Failure::new(exit_code::FAILURE, what, cause, repair)
}

/// The ids of the jobs in `scontrol --details --oneliner show job` that hold GRES on a node.
fn holders<'a>(answer: &'a str) -> Vec<&'a str> {
    // A part of a GPU (shard, mps) is held like a whole one.
    let has_gpu = |line: &str| ["gpu", "shard", "mps"].iter().any(|gres| line.contains(&format!(" GRES={gres}:")));
    let holds = |line: &&str| has_gpu(line) && !line.contains(" JobState=PENDING");
    let id = |line: &'a str| line.split_whitespace().next()?.strip_prefix("JobId=");
    answer.lines().filter(holds).filter_map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_running_jobs_with_gpus_count() {
        let answer = "JobId=7 JobName=a JobState=RUNNING Nodes=n CPU_IDs=0 Mem=10 GRES=gpu:nvidia:1(IDX:0) Command=x\n\
            JobId=8 JobName=b JobState=RUNNING Nodes=n CPU_IDs=1 Mem=10 GRES= Command=x\n\
            JobId=9 JobName=c JobState=PENDING GRES=gpu:1\nNo jobs in the system\n\
            JobId=10 JobName=d JobState=RUNNING Nodes=n CPU_IDs=0 Mem=10 GRES=shard:nvidia:2(0/4,2/4) Command=x\n\
            JobId=11 JobName=e JobState=RUNNING Nodes=n CPU_IDs=0 Mem=10 GRES=mps:60(60/100,0/100) Command=x\n";
        assert_eq!(holders(answer), ["7", "10", "11"]);
    }
}
