//! Jobs that may run only once run once, even if slurmctld has lost state.

use crate::docker::{DEMO, Image, Volume, directory, docker};
use crate::jobs::SHELL;

/// slurmctld is killed after it saved the jobs as pending and before it saved that they ran. The next slurmctld launches them again.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_requeue_job_runs_once_after_slurmctld_loses_state() {
    assert_job_runs_once(Image::new(DEMO));
}

/// slurminit must restart slurmd, which in this case is not a child of PID 1.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_requeue_job_runs_once_below_another_pid_1() {
    assert_job_runs_once(Image::new(DEMO).with(["--init"]));
}

#[track_caller]
fn assert_job_runs_once(image: Image) {
    let toml = "[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:8\"\n";
    let script = "#!/bin/sh\necho ${SLURM_ARRAY_TASK_ID:-alone} >>/tmp/ran\n";
    let files = directory(&[("slurminit.toml", toml), ("job.sh", script), ("library", SHELL)]);
    let container = image.with(["--hostname", "node1"]).json_log().mount(files.path(), "/config").serve();
    let printed = container.sh(r#". /config/library
        touch /tmp/ran; chmod 666 /tmp/ran
        once="sbatch --parsable --no-requeue --output=/dev/null --begin=now+30"
        $once --array=1-3 /config/job.sh >/dev/null
        saved "$($once /config/job.sh)"
        soon '[ "$(wc -l </tmp/ran)" = 4 ]'
        soon is_empty
        # A new job makes slurmctld consider all pending jobs as soon as it responds.
        die
        until sbatch --output=/dev/null --wrap true >/dev/null 2>&1; do :; done &
        soon 'scontrol ping 2>/dev/null | grep -q UP'
        soon is_empty
        srun true && sort /tmp/ran | tr '\n' ' '"#);
    let log = container.log();
    assert_eq!(printed.trim(), "1 2 3 alone", "{log}");
    assert!(!container.records("job-cancelled-once").is_empty(), "no state was lost: {log}");
    for record in container.records("jobs-launched-again") {
        let of_slurmd =
            |other: &serde_json::Value| other["unit"] == "slurmd" && other["time"].as_str() > record["time"].as_str();
        let after = crate::docker::records(&log).into_iter().filter(of_slurmd).count();
        assert!(after > 0, "slurmd was not restarted: {log}");
    }
}

/// An array's last task has the array's job ID. Requeueing this task must not requeue the array.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requeued_array_task_does_not_affect_other_tasks() {
    let toml = "[slurm.conf]\nBatchStartTimeout = 5\n[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:8\"\n";
    let script = "#!/bin/sh\necho $SLURM_ARRAY_TASK_ID >>/tmp/ran\nuntil [ -e /tmp/end-$SLURM_ARRAY_TASK_ID ]; do sleep 0.1; done\n";
    let files = directory(&[("slurminit.toml", toml), ("job.sh", script), ("library", SHELL)]);
    let container = Image::new(DEMO).with(["--hostname", "node1"]).json_log().mount(files.path(), "/config").serve();
    let printed = container.sh(r#". /config/library
        touch /tmp/ran; chmod 666 /tmp/ran
        array=$(sbatch --parsable --output=/dev/null --array=1-3 /config/job.sh)
        soon '[ "$(wc -l </tmp/ran)" = 3 ]'
        saved "$array"
        touch /tmp/end-3
        soon '[ -z "$(squeue --noheader --jobs=${array}_3)" ]'
        die
        soon '[ "$(wc -l </tmp/ran)" = 4 ]'
        soon '[ -z "$(squeue --noheader --jobs=${array}_3)" ]'
        squeue --noheader --states=RUNNING --format=%K | sort | tr '\n' ' '
        touch /tmp/end-1 /tmp/end-2
        soon is_empty
        sort /tmp/ran | tr '\n' ' '"#);
    let log = container.log();
    assert_eq!(printed.trim(), "1 2 1 2 3 3", "{log}");
    let requeued = container.records("job-without-process");
    let is_task = |record: &serde_json::Value| record["fields"]["job"].as_str().is_some_and(|id| id.ends_with("_3"));
    assert!(requeued.iter().any(is_task), "{log}");
}

/// slurmctld does not save its state when its backfill scheduler starts a job. After a crash the next slurmctld would abort the job
/// and start it again. slurminit therefore makes slurmctld save, so that the job continues.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_started_by_backfill_continues_under_next_slurmctld() {
    let script = "#!/bin/sh\necho $$ >>/tmp/ran\nexec sleep 1000\n";
    let files = directory(&[("job.sh", script), ("library", SHELL)]);
    let container = Image::new(DEMO).with(["--hostname", "node1"]).mount(files.path(), "/config").serve();
    // Whether backfill or the main scheduler starts the job depends on timing, so retry.
    let printed = container.sh(r#". /config/library
        touch /tmp/ran; chmod 666 /tmp/ran
        begun_by_backfill() { slurminit logs slurmctld --lines 1000 | grep -q "backfill: _start_job: Started JobId=$job "; }
        until job=$(sbatch --parsable --output=/dev/null /config/job.sh); soon '[ "$(running)" = "$job" ]'; begun_by_backfill; do
            scancel "$job"; soon is_empty; sleep 0.6; : >/tmp/ran
        done
        touch /tmp/mark
        soon '[ $state -nt /tmp/mark ]'
        kill -KILL "$(pid slurmctld)"
        soon 'scontrol ping 2>/dev/null | grep -q UP'
        soon '[ "$(sinfo --noheader --format=%T)" = mixed ]'
        srun true && [ "$(running)" = "$job" ] && kill -0 "$(cat /tmp/ran)" && wc -l </tmp/ran"#);
    assert_eq!(printed.trim(), "1", "{}", container.log());
}

/// Only slurmctld maps array tasks to job IDs, and it saves the mapping late. `slurminit.begun` on the volume keeps it across a kill.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn array_task_started_before_container_kill_runs_once() {
    let toml = "[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:8\"\n";
    let script = "#!/bin/sh\necho $SLURM_ARRAY_TASK_ID >>/var/lib/slurm/ran\nexec sleep 1000\n";
    let files = directory(&[("slurminit.toml", toml), ("job.sh", script), ("library", SHELL)]);
    let slurm = Volume::new("state");
    let cluster = Image::new(DEMO).with(["--hostname", "node1"]).json_log();
    let cluster = cluster.mount(files.path(), "/config").volume(&slurm, "/var/lib/slurm");
    let first = cluster.serve();
    first.sh(r#". /config/library
        ran=/var/lib/slurm/ran; touch $ran; chmod 666 $ran
        saved "$(sbatch --parsable --no-requeue --output=/dev/null --begin=now+30 --array=1-3 /config/job.sh)"
        soon '[ "$(wc -l <$ran)" = 3 ]'
        soon '[ "$(grep -c _ /var/lib/slurm/slurmctld/slurminit.begun)" = 3 ]'
        kill -STOP "$(pid slurmctld)"; cp -p /tmp/job_state $state"#);
    docker(["kill", &first.name]).ok();
    drop(first);

    let second = cluster.serve();
    let printed = second.sh(". /config/library; soon is_empty; srun true; sort /var/lib/slurm/ran | tr '\\n' ' '");
    let log = second.log();
    assert_eq!(printed.trim(), "1 2 3", "{log}");
    assert!(!second.records("job-cancelled-once").is_empty(), "no state was lost: {log}");
}
