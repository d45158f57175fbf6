//! Node states and reasons set by an administrator, in combination with slurminit's drains.

use crate::docker::{Container, DEMO, Image, directory, docker};

const MACHINE_FILE: &str = "/etc/fake-nvml.toml";

/// The node's state and reason in Slurm.
fn node(container: &Container) -> String {
    container.sh("sinfo --noheader --format '%T|%E'")
}

/// Adds a fault that makes GPU 1 fail.
fn lose_gpu(container: &Container) {
    let fault = "[[fault]]\\nat = \"handle\"\\ngpu = 1\\nkind = \"gpu-is-lost\"\\n";
    container.sh(&format!("cp {MACHINE_FILE} /tmp/new && printf '{fault}' >>/tmp/new && mv /tmp/new {MACHINE_FILE}"));
}

fn repair_gpu(container: &Container) {
    container.sh(&format!("sed '/^\\[\\[fault/,$d' {MACHINE_FILE} >/tmp/new && mv /tmp/new {MACHINE_FILE}"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_an_administrators_fail_state_and_its_reason() {
    let config = directory(&[("slurminit.toml", "[agent]\ninterval = 1\ntimeout = 2\n")]);
    let container = Image::new(DEMO).with(["--env", "DEMO_GPUS=2"]).mount(config.path(), "/config").serve();
    let until_gpus =
        |count: u32| container.until(&format!("sinfo --noheader --format %G | grep -qx gpu:nvidia:{count}"));
    container.until("grep -q recovery_action.:0 /run/slurminit/gpus.json");
    // The agent writes gpus.json after its decision about the node.
    let until_left_out = |left_out: bool| {
        let not = if left_out { "" } else { "! " };
        container.until(&format!(
            "grep -q node_stage.:.open /run/slurminit/gpus.json && {not}grep -q is_out.:true /run/slurminit/gpus.json"
        ));
    };

    // State set before the fault.
    container.sh("scontrol update nodename=localhost state=fail reason=disk");
    lose_gpu(&container);
    until_gpus(1);
    until_left_out(true);
    assert_eq!(node(&container), "fail|disk", "{}", container.log());
    repair_gpu(&container);
    until_gpus(2);
    until_left_out(false);
    assert_eq!(node(&container), "fail|disk", "{}", container.log());

    // `restart` and `resume` return when the node accepts jobs (or would, without the administrator's state).
    container.sh("slurminit restart slurmctld");
    assert_eq!(node(&container), "fail|disk");
    container.sh("slurminit resume localhost && srun --immediate=1 true");
    container.until("sinfo --noheader --format %T | grep -qx idle");
    assert_eq!(node(&container), "idle|none");

    // State set while the agent waits for a job on the other GPU.
    let job = container.sh("sbatch --parsable --gres=gpu:1 --output /dev/null --wrap 'exec sleep 1000'");
    container.until(&format!("squeue --noheader --jobs {job} --states R | grep -q ."));
    lose_gpu(&container);
    container.until("sinfo --noheader --format \"%T|%E\" | grep -q \"^draining|slurminit: GPU 1\"");
    container.sh("scontrol update nodename=localhost state=fail reason=disk");
    container.sh(&format!("scancel {job}"));
    until_gpus(1);
    until_left_out(true);
    assert_eq!(node(&container), "fail|disk", "{}", container.log());
    container.sh("slurminit resume localhost && srun --immediate=1 true");

    // The agent removes its own drain.
    repair_gpu(&container);
    until_gpus(2);
    container.until("sinfo --noheader --format %T | grep -qx idle");

    // State set before a stop with a running job.
    container.sh("sbatch --output /dev/null --wrap 'exec sleep 1000'");
    container.until("squeue --noheader --states R | grep -q .");
    container.sh("scontrol update nodename=localhost state=fail reason=disk");
    container.stop();
    docker(["start", &container.name]).ok();
    // The agent starts last.
    container.until("pgrep -f \"slurminit agent\" && sinfo --noheader --format %T | grep -qx fail");
    assert_eq!(node(&container), "fail|disk", "{}", container.log());
}
