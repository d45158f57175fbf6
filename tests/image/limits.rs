//! Node resources match the resource limits of the container.

use serde_json::Value;

use crate::docker::{FULL, Image, PLAIN, directory};

/// Prints the node, then the result of jobs that request more than its resources and of one that requests all, then the node again.
const SCRIPT: &str = r#"
sinfo --noheader -N -o "%T %c %m %E"
memory=$(sinfo --noheader -o %m)
cpus=$(sinfo --noheader -o %c)
# Beyond what the node has; Slurm says so at once, and does not let it wait.
for more in "--cpus-per-task=$((cpus + 1))" "--mem=$((memory + 1))M"; do
    srun --immediate=1 $more true 2>/dev/null && echo "$more was granted"
done
timeout 30 srun --cpus-per-task="$cpus" --mem="${memory}M" sh -c 'squeue --noheader -j "$SLURM_JOB_ID" -o "%C granted"'
timeout 120 sh -c 'while squeue --noheader --states=all -o %T | grep -q COMPLETING; do sleep 0.05; done'
sinfo --noheader -N -o "%T %E"
"#;

/// Docker options, and the expected CPUs and maximum MiB of the node.
const LIMITS: [(&[&str], u32, u32); 6] = [
    (&["--cpus=1.5"], 1, u32::MAX),
    (&["--cpus=0.5"], 1, u32::MAX),
    (&["--cpuset-cpus=1"], 1, u32::MAX),
    (&["--cpuset-cpus=0-1"], 2, u32::MAX),
    (&["--memory=2g"], u32::MAX, 2048),
    (&["--cpus=1.5", "--cpuset-cpus=1", "--memory=512m"], 1, 512),
];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn node_resources_never_exceed_container_limits() {
    for (options, cpus, memory) in LIMITS {
        let container = options.iter().fold(Image::new(PLAIN), |image, option| image.with([*option]));
        let outcome = container.run(&["bash", "-c", SCRIPT]);
        let lines: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
        let [before, job, after] = lines.as_slice() else { panic!("{options:?}: {outcome:?}") };
        let ["idle", node_cpus, node_memory, "none"] = before.as_slice() else { panic!("{options:?}: {outcome:?}") };
        let configured: (u32, u32) = (node_cpus.parse().unwrap(), node_memory.parse().unwrap());
        if cpus != u32::MAX {
            assert_eq!(configured.0, cpus, "{options:?}");
        }
        assert!((256..=memory).contains(&configured.1), "{options:?}: {outcome:?}");
        assert_eq!(job, &[*node_cpus, "granted"], "{options:?}: {outcome:?}");
        assert_eq!(after, &["idle", "none"], "{options:?}: {outcome:?}");
    }
}

/// Configured values above the limits are capped, with a warning.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn caps_configured_resources_at_container_limits() {
    let config = directory(&[("slurminit.toml", "[node]\ncpus = 64\nmemory_mib = 1000000\n")]);
    let image = Image::new(PLAIN).mount(config.path(), "/config").with(["--cpus=1.5", "--memory=2g"]);
    let outcome = image.run(&["sinfo", "--noheader", "-N", "-o", "%T %c %m %E"]);
    assert_eq!(outcome.stdout.split_whitespace().collect::<Vec<_>>(), ["idle", "1", "2048", "none"], "{outcome:?}");
    assert!(outcome.stderr.contains("cpus = 64"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("memory_mib = 1000000"), "{}", outcome.stderr);
}

/// Under a quota a program still finds all CPUs of the machine, and OpenMP would start a thread for each.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn openmp_has_a_thread_for_each_cpu_of_its_task_under_quota() {
    // A batch script with two tasks, and a step with one of them; then the same with a value that the job sets itself.
    let script = r#"
        nproc
        cd /tmp; threads='echo "$OMP_NUM_THREADS"; srun -n1 printenv OMP_NUM_THREADS'
        sbatch --wait --quiet --overcommit -n2 --output=batch --wrap "$threads" && cat batch
        OMP_NUM_THREADS=7 sbatch --wait --quiet --output=own --wrap "$threads" && cat own"#;
    let outcome = Image::new(PLAIN).with(["--cpus=1.5"]).run(&["bash", "-c", script]);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines[0] != "1" && lines[1..] == ["1", "1", "7", "7"], "{outcome:?}");
    let outcome = Image::new(PLAIN).run(&["srun", "printenv", "OMP_NUM_THREADS"]);
    assert_eq!(outcome.stdout, "", "{outcome:?}");
}

/// OOM kill order: jobs of any user, then their slurmstepd, then the daemons.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn oom_scores_rank_jobs_before_daemons() {
    let container = Image::new(PLAIN).serve();
    container.sh("sbatch --output=/dev/null --wrap 'exec sleep 612' >/dev/null
        sbatch --uid=nobody --chdir=/ --output=/dev/null --wrap 'exec tail -f /dev/null' >/dev/null");
    container.until("[ \"$(squeue --noheader --states=RUNNING | wc -l)\" = 2 ]");
    // The processes of a liveness round must not change the scores.
    container.until_liveness_rounds(1);
    let expected = "sleep 500\ntail 500\nslurmstepd 250\nslurmd 0\nslurmctld 0\nmunged 0\nslurminit 0\n";
    // The score of a new process is raised shortly after its start.
    let script = r#"value() { for p in /proc/[0-9]*; do
            [ "$(cat $p/comm 2>/dev/null)" = "$1" ] && cat $p/oom_score_adj && return
        done; }
        for name in sleep tail; do echo "$name $(value $name)"; done
        # The parent of a job: slurmstepd also forks children of the same name, whose value is that of a job.
        echo "slurmstepd $(cat /proc/$(ps -o ppid= -p $(pgrep -xf 'sleep 612') | tr -d ' ')/oom_score_adj)"
        for name in slurmd slurmctld munged slurminit; do echo "$name $(value $name)"; done"#;
    container.sh(&format!("cat >/tmp/values <<'END'\n{script}\nEND\nprintf '{expected}' >/tmp/want"));
    let outcome = container.wait_until(60, "sh /tmp/values | cmp -s - /tmp/want");
    assert_eq!(outcome.code, 0, "{}\n{}", container.sh("sh /tmp/values"), container.log());
}

/// Without cgroups Slurm does not detect an OOM kill: a batch script that survives is COMPLETED, one that is killed is FAILED.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn oom_kill_is_reported_in_log_job_output_comment_and_doctor() {
    let container = Image::new(PLAIN).json_log().with(["--memory=400m", "--memory-swap=400m"]).serve();
    let script = r#"perl -e 'sleep 1; $x = "a" x (900 << 20)'; until grep -q '(perl, ' /tmp/out; do sleep 0.1; done"#;
    container.sh(&format!("cat >/tmp/job <<'END'\n#!/bin/sh\n{script}\nEND\nsbatch --output=/tmp/out /tmp/job"));
    container.until("squeue --noheader --states=all --format=%T | grep -q COMPLETED");
    let kills = container.records("job-oom-kill");
    let matches =
        |fields: &Value| fields["job"] == "1" && fields["process"].as_str().is_some_and(|it| it.contains("(perl, "));
    assert!(kills.iter().any(|record| matches(&record["fields"])), "{}", container.log());

    let comment = container.sh("scontrol --oneliner show job 1");
    assert!(comment.contains("AdminComment=slurminit: OOM kill: process") && comment.contains("(perl, "), "{comment}");
    let doctor = container.sh("slurminit doctor --json || true");
    assert!(doctor.contains("job 1 (perl, "), "{doctor}");
}

/// If the script itself is killed, the job ends before its comment can be set, so the comment is set in the database.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn accounting_records_oom_kill_that_ended_job() {
    let container = Image::new(FULL).json_log().with(["--memory=700m", "--memory-swap=700m"]).serve();
    container.sh(r#"sbatch --output=/dev/null --wrap 'exec perl -e "sleep 1; \$x = qq(a) x (1200 << 20)"'"#);
    container.until("sacct --noheader --allocations --jobs=1 --format=State,AdminComment%80 | grep -q \"FAILED.*slurminit: OOM kill\"");
    let kills = container.records("job-oom-kill");
    assert!(kills.iter().any(|record| record["fields"]["job"] == "1"), "{}", container.log());
}
