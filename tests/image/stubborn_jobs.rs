//! Jobs that ignore SIGTERM when the container stops, and jobs that crash slurmd.

use crate::docker::{Container, Image, PLAIN, Volume, directory, docker};

/// State and restart count of a job.
fn state(container: &Container, job: &str) -> String {
    container.sh(&format!("scontrol --oneliner show job {job} | grep -oE '(JobState|Restarts)=[A-Z0-9_]+' | xargs"))
}

/// A step that ignores SIGTERM, in a script that does not.
const DEAF_STEP: &str = "srun --mem=16 sh -c 'trap : TERM; echo up; while :; do sleep 0.1; done'";
/// A script that ignores SIGTERM.
const DEAF_SCRIPT: &str = "trap : TERM; echo up; while :; do sleep 0.1; done";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn kills_jobs_that_ignore_sigterm_and_no_daemon() {
    for on_stop in ["requeue", "cancel"] {
        let slurm = Volume::new("state");
        let config = directory(&[(
            "slurminit.toml",
            &format!(
                "[jobs]\ngrace = 1\non_stop = \"{on_stop}\"\n[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:16\"\n"
            ),
        )]);
        let image = Image::new(PLAIN).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm");
        let image = image.mount(config.path(), "/config").json_log();
        let first = image.serve();
        let submit = |name: &str, options: &str, script: &str| {
            first.sh(&format!(
                "cat >/tmp/{name} <<'END'\n#!/bin/sh\n{script}\nEND\n\
                 sbatch --parsable --mem=16 {options} --open-mode=append --output /var/lib/slurm/{name} /tmp/{name}"
            ))
        };
        let jobs = [
            submit("step", "", DEAF_STEP),
            submit("script", "", DEAF_SCRIPT),
            submit("once", "--no-requeue", DEAF_SCRIPT),
        ];
        docker(["exec", "--detach", &first.name, "sh", "-c", &format!("{DEAF_STEP} >/var/lib/slurm/srun")]).ok();
        for name in ["step", "script", "once", "srun"] {
            first.until(&format!("grep -qsx up /var/lib/slurm/{name}"));
        }
        assert_eq!(first.stop(), 0);
        let log = first.log();
        assert!(first.records("unit-killed").is_empty() && first.records("unit-died").is_empty(), "{on_stop}: {log}");
        // slurmd must not stop before slurmctld has processed the end of all jobs.
        drop(first);
        let second = image.serve();
        // A busy machine may need longer than slurminit waits after SIGKILL; slurminit then warns.
        if !log.contains("jobs-still-ending") {
            assert!(second.records("jobs-of-last-start").is_empty(), "{on_stop}: {}", second.log());
        }
        let [step, script, once] = jobs.map(|job| state(&second, &job));
        if on_stop == "requeue" {
            for (name, job) in [("step", &step), ("script", &script)] {
                assert!(job.ends_with("Restarts=1"), "{name}: {job}: {log}");
                second.until(&format!("[ $(grep -cx up /var/lib/slurm/{name}) = 2 ]"));
            }
            assert_eq!(once, "JobState=FAILED Restarts=0", "{log}");
        } else {
            assert_eq!(step, "JobState=FAILED Restarts=0", "SIGTERM ends the script: {log}");
            for job in [script, once] {
                assert_eq!(job, "JobState=CANCELLED Restarts=0", "{log}");
            }
        }
    }
}

/// Unpatched slurmd 25.05 and newer crashes this way with any configuration.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_that_crashes_slurmd_repeatedly_is_held() {
    let config = directory(&[("slurminit.toml", "[slurm.conf]\nGetEnvTimeout = 2\nBatchStartTimeout = 1\n")]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").json_log().serve();
    assert_eq!(container.records("settings").len(), 1, "no warning at startup: {}", container.log());
    let job = container.sh("sbatch --parsable --export=NONE --output=/dev/null --wrap true");
    let held = format!("squeue --noheader --jobs={job} --states=PENDING --format=%r | grep -qi held");
    let outcome = container.wait_until(300, &held);
    assert_eq!(outcome.code, 0, "{}\n{}", state(&container, &job), container.log());
    assert_eq!(container.records("job-held").len(), 1, "{}", container.log());
    // The node works again, and the job can be released.
    container.until("timeout 60 srun true");
    container.sh(&format!("scontrol release {job}"));
}
