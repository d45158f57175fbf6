//! Node states and reasons set by an administrator, in combination with slurminit's drains.

use crate::docker::{Container, docker};
use crate::gpu_faults::{append, fault, repair, serve};

/// The node's state and reason in Slurm.
fn node(container: &Container) -> String {
    container.sh("sinfo --noheader --format '%T|%E'")
}

/// Waits until the node has this many GPUs. The agent writes gpus.json after its decision about the node.
fn until_gpus(container: &Container, count: u32) {
    container.until(&format!("sinfo --noheader --format %G | grep -qx gpu:nvidia:{count}"));
    let not = if count < 2 { "" } else { "! " };
    container.until(&format!(
        "grep -q node_stage.:.open /run/slurminit/gpus.json && {not}grep -q is_out.:true /run/slurminit/gpus.json"
    ));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_fail_state_that_precedes_a_fault() {
    let (container, _config) = serve(2, "");
    container.sh("scontrol update nodename=localhost state=fail reason=disk");
    append(&container, &fault("handle", 1, "gpu-is-lost"));
    until_gpus(&container, 1);
    assert_eq!(node(&container), "fail|disk", "{}", container.log());
    repair(&container);
    until_gpus(&container, 2);
    assert_eq!(node(&container), "fail|disk", "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_an_administrators_fail_state_and_its_reason() {
    let (container, _config) = serve(2, "");
    // `restart` and `resume` return when the node accepts jobs (or would, without the administrator's state).
    container.sh("scontrol update nodename=localhost state=fail reason=disk");
    container.sh("slurminit restart slurmctld");
    assert_eq!(node(&container), "fail|disk");
    container.sh("slurminit resume localhost && srun --immediate=1 true");
    container.until("sinfo --noheader --format %T | grep -qx idle");
    assert_eq!(node(&container), "idle|none");

    // State set while the agent waits for a job on the other GPU.
    let job = container.sh("sbatch --parsable --gres=gpu:1 --output /dev/null --wrap 'exec sleep 1000'");
    container.until(&format!("squeue --noheader --jobs {job} --states R | grep -q ."));
    append(&container, &fault("handle", 1, "gpu-is-lost"));
    container.until("sinfo --noheader --format \"%T|%E\" | grep -q \"^draining|slurminit: GPU 1\"");
    container.sh("scontrol update nodename=localhost state=fail reason=disk");
    container.sh(&format!("scancel {job}"));
    until_gpus(&container, 1);
    assert_eq!(node(&container), "fail|disk", "{}", container.log());
    container.sh("slurminit resume localhost && srun --immediate=1 true");

    // The agent removes its own drain.
    repair(&container);
    until_gpus(&container, 2);
    container.until("sinfo --noheader --format %T | grep -qx idle");

    // State set before a stop with a running job.
    container.sh("sbatch --output /dev/null --wrap 'exec sleep 1000'");
    container.until("squeue --noheader --states R | grep -q .");
    container.sh("scontrol update nodename=localhost state=fail reason=disk");
    container.stop();
    docker(["start", &container.name]).ok();
    // The agent starts last.
    container.until("pgrep -f \"^[^ ]*slurminit agent\" && sinfo --noheader --format %T | grep -qx fail");
    assert_eq!(node(&container), "fail|disk", "{}", container.log());

    // An administrator sets a reason that slurmctld itself uses.
    container.sh("scontrol update nodename=localhost state=resume");
    container.sh("scontrol update nodename=localhost state=drain reason='Low CPUs'");
    docker(["restart", &container.name]).ok();
    container.until("pgrep -f \"^[^ ]*slurminit agent\" && sinfo --noheader --format %T | grep -qx drained");
    assert_eq!(node(&container), "drained|Low CPUs", "{}", container.log());
}
