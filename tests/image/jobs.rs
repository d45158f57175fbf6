//! Jobs when the container stops, and at the start after it.

use std::time::Duration;

use crate::docker::{Container, DEMO, Image, Volume, docker};

/// Counts; on TERM says so and ends well.
const WILLING: &str = "trap 'echo notice; exit 0' TERM; echo up; while :; do sleep 0.1; done";
/// Hears nothing.
const DEAF: &str = "trap '' TERM; echo up; while :; do sleep 0.1; done";

/// Submits a batch job on one GPU that writes into `/var/lib/slurm/NAME`.
fn submit(container: &Container, name: &str, options: &str, script: &str) -> String {
    let line = format!("sbatch --parsable --gres=gpu:1 {options} --output /var/lib/slurm/{name} --wrap \"{script}\"");
    container.sh(&line).trim().to_owned()
}

fn wait_until_up(container: &Container, name: &str) {
    container.sh(&format!("timeout 30 sh -c 'until grep -qs up /var/lib/slurm/{name}; do sleep 0.1; done'"));
}

fn state(container: &Container, job: &str) -> String {
    container.sh(&format!("scontrol show job {job} | grep -o 'JobState=[A-Z_]*'")).trim().to_owned()
}

fn cluster(slurm: &Volume) -> Image {
    Image::new(DEMO).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=2"]).volume(slurm, "/var/lib/slurm")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn a_stop_gives_jobs_notice_and_the_next_start_has_no_ghost() {
    let slurm = Volume::new("state");
    let first = cluster(&slurm).serve();
    let willing = submit(&first, "willing", "", WILLING);
    let deaf = submit(&first, "deaf", "--no-requeue", DEAF);
    wait_until_up(&first, "willing");
    wait_until_up(&first, "deaf");
    let held = first.sh("sbatch --parsable --hold --wrap true").trim().to_owned();
    let (took, code) = first.stop();
    assert_eq!(code, 0);
    assert!(took < Duration::from_secs(5), "{took:?}: grace is 3 s");
    drop(first);

    let second = cluster(&slurm).serve();
    assert_eq!(second.sh("tail -n 1 /var/lib/slurm/willing"), "notice", "the job had its notice");
    assert_eq!(state(&second, &willing), "JobState=COMPLETED");
    assert_eq!(state(&second, &deaf), "JobState=NODE_FAIL");
    assert_eq!(state(&second, &held), "JobState=PENDING");
    assert_eq!(second.sh("sinfo --noheader --format %T"), "idle");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn a_killed_container_leaves_no_ghost() {
    let slurm = Volume::new("state");
    let first = cluster(&slurm).serve();
    let job = submit(&first, "job", "", DEAF);
    wait_until_up(&first, "job");
    // slurmctld saves what it knows within 5 seconds.
    first.sh("timeout 30 sh -c 'until grep -q wrap /var/lib/slurm/slurmctld/job_state; do sleep 0.2; done'");
    first.sh("sleep 6");
    first.sh("rm /var/lib/slurm/job");
    docker(["kill", &first.name]).ok();
    drop(first);

    let second = cluster(&slurm).serve();
    let log = second.log();
    assert!(log.contains("ran when the container last ended"), "{log}");
    // It runs again, as a job that may be requeued does, and soon.
    second.sh("timeout 5 sh -c 'until grep -qs up /var/lib/slurm/job; do sleep 0.1; done'");
    assert_eq!(state(&second, &job), "JobState=RUNNING");
    second.sh(&format!("scancel {job}"));
}
