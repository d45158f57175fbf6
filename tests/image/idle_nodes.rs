//! A job on two nodes is idle if its GPUs on both nodes are idle. Each node marks the job, and the job's first node acts.

use crate::docker::{Container, DEMO, Image, Network, Volume, directory};

/// Sets the utilization of all GPUs of a node, in percent.
fn set(node: &Container, percent: u32) {
    let line = format!("condition = {{ utilization = {percent} }}");
    let replace = format!("/^condition/ {{ next }} {{ print }} /^uuid/ {{ print \"{line}\" }}");
    node.sh(&format!("awk '{replace}' /etc/fake-nvml.toml >/tmp/new && mv /tmp/new /etc/fake-nvml.toml"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_on_two_nodes_is_cancelled_once_its_gpus_on_both_are_idle() {
    let (network, key) = (Network::new(), Volume::new("key"));
    let toml = "[agent]\ninterval = 1\n[gpu.idle]\naction = 'cancel'\nafter = 16\n";
    let config = directory(&[("slurminit.toml", toml)]);
    let member = |role: &str, name| {
        Image::new(DEMO)
            .with(["--hostname", name, "--network-alias", name, "--network", &network.0, "--env", "DEMO_GPUS=1"])
            .with(["--env", &format!("SLURMINIT_ROLE={role}"), "--env", "SLURMINIT_CONTROLLER=head"])
            .mount(config.path(), "/config")
            .volume(&key, "/etc/munge")
            .serve()
    };
    let _head = member("controller", "head");
    let nodes = [member("compute", "c1"), member("compute", "c2")];
    set(&nodes[0], 0);
    set(&nodes[1], 50);
    let id = nodes[0].sh("sbatch --parsable -N2 --gres=gpu:1 -o /tmp/out --wrap 'sleep 600'");
    let comment = || nodes[0].sh(&format!("squeue --noheader --jobs {id} --Format admin_comment:500"));
    // c1 is idle and c2 is not: only c1 marks the job, and nothing else happens for two windows.
    nodes[0].until(&format!("squeue --noheader --jobs {id} --Format admin_comment:500 | grep -q slurminit-idle:c1="));
    let marked: u64 = comment().split('=').nth(1).unwrap().trim().parse().unwrap();
    nodes[0].until(&format!("[ $(date +%s) -gt {} ]", marked + 32));
    assert!(!comment().contains("c2="), "{}", comment());
    let output = nodes[0].sh("cat /tmp/out");
    assert!(!output.contains("GPU use"), "{output}");
    // Both are idle: the job is warned and then cancelled.
    set(&nodes[1], 0);
    nodes[0].until("grep -q \"the job will be cancelled\" /tmp/out");
    nodes[0].until(&format!("! squeue --noheader --jobs {id} --states RUNNING | grep -q ."));
    let output = nodes[0].sh("cat /tmp/out");
    assert!(output.contains("cancelled: GPU use of this job was below 2 %"), "{output}");
}
