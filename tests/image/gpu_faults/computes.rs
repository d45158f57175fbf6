//! GPU faults of a compute node: its controller is another container and must delete the node before it can register
//! with other hardware. Also a fault that takes long to detect.

use crate::docker::{DEMO, directory};
use crate::gpu_faults::{append, count, fault, node, repair, serve, until_sampled, xid};
use crate::members::Cluster;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn compute_loses_and_regains_one_gpu_without_intervention() {
    let cluster = Cluster::new("");
    let config = directory(&[("slurminit.toml", "[agent]\ninterval = 1\n")]);
    let image = cluster.member(DEMO, "compute", "c1").with(["--env", "DEMO_GPUS=4"]);
    let compute = image.mount(&config.path().join("slurminit.toml"), "/config/slurminit.toml").serve();
    compute.until("grep -q recovery_action.:0 /run/slurminit/gpus.json");
    let until_node = |line: &str| cluster.until(&format!("sinfo -h -N -o \"%N %T %G\" | grep -q \"^{line}$\""));
    count(&cluster.controller, "step");
    let other = cluster.submit("--mem 100");
    cluster.until(&format!("squeue -h -j {other} -t R | grep -q ."));
    append(&compute, &fault("handle", 3, "gpu-is-lost"));
    until_node("c1 draining gpu:nvidia:4");
    let reason = cluster.controller.sh("sinfo --noheader --format %E");
    assert!(reason.starts_with("slurminit: GPU 3 (/dev/nvidia3): "), "{reason}");
    // A job that is pending for this node survives the node's deletion.
    let waiting = cluster.submit("--nodelist c1 --gres=gpu:3 --mem 100");
    let before = cluster.controller.sh("wc -l < /tmp/step").parse::<u64>().unwrap();
    cluster.controller.until(&format!("[ $(wc -l < /tmp/step) -gt {} ]", before + 100));
    cluster.controller.sh("scancel --name step");
    assert_eq!(cluster.controller.sh("head -n -1 /tmp/step | awk '$1 != NR - 1 { print NR, $1; exit }'"), "");
    // A job without a GPU keeps the controller from deleting the node.
    compute.until("grep -q node_stage.:.draining /run/slurminit/gpus.json");
    until_sampled(&compute, 3);
    until_node("c1 draining gpu:nvidia:4");
    assert_eq!(cluster.controller.sh(&format!("squeue -h -j {other} -o %T")), "RUNNING");
    cluster.controller.sh(&format!("scancel {other}"));
    cluster.until("sinfo -h -N -o \"%N %T %G\" | grep -qE \"^c1 (idle|mixed|allocated) gpu:nvidia:3$\"");
    cluster.until(&format!("squeue -h -j {waiting} -t R | grep -q ."));
    // The GPU recovers while a job uses the others: it is added once that job has ended.
    repair(&compute);
    compute.until("grep -q node_stage.:.returning /run/slurminit/gpus.json");
    assert_eq!(cluster.controller.sh(&format!("squeue -h -j {waiting} -o %T")), "RUNNING");
    cluster.controller.sh(&format!("scancel {waiting}"));
    until_node("c1 idle gpu:nvidia:4");
    let devices = "printenv CUDA_VISIBLE_DEVICES | awk -F , '{ print NF }'";
    assert_eq!(cluster.controller.sh(&format!("srun --gres=gpu:4 {devices}")), "4");
    // An administrator's drain is kept, also when the node registers again with other hardware.
    cluster.controller.sh("scontrol update nodename=c1 state=drain reason='fan is loud'");
    append(&compute, &xid(0, 79));
    until_node("c1 drained gpu:nvidia:3");
    assert_eq!(cluster.controller.sh("sinfo --noheader --format %E"), "fan is loud");
    compute.sh("slurminit restart agent");
    until_node("c1 drained gpu:nvidia:4");
    assert_eq!(cluster.controller.sh("sinfo --noheader --format %E"), "fan is loud");
    cluster.controller.sh("scontrol update nodename=c1 state=resume");
    until_node("c1 idle gpu:nvidia:4");
    assert_eq!(compute.sh("slurminit health --ready"), "ready");
    let log = cluster.controller.log();
    assert!(!log.contains("lower than configured"), "{log}");
}

/// slurmctld saves a node's new hardware and state within 5 s; a kill before that loses part of it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn controller_killed_after_lost_gpu_recovers_gpu_count() {
    let cluster = Cluster::new("");
    let config = directory(&[("slurminit.toml", "[agent]\ninterval = 1\n")]);
    let image = cluster.member(DEMO, "compute", "c1").with(["--env", "DEMO_GPUS=4"]);
    let compute = image.mount(&config.path().join("slurminit.toml"), "/config/slurminit.toml").serve();
    compute.until("grep -q recovery_action.:0 /run/slurminit/gpus.json");
    let assert_idle_with = |gpus: u32, seconds: u32| {
        let line = format!("sinfo -h -N -o \"%N %T %G\" | grep -q \"^c1 idle gpu:nvidia:{gpus}$\"");
        let outcome = cluster.controller.wait_until(seconds, &line);
        let log = || format!("{}\n{}", cluster.controller.log(), compute.log());
        assert_eq!(outcome.code, 0, "{gpus} GPUs: {}\n{}", cluster.nodes(), log());
    };
    // Delay between the node's return and the kill of slurmctld, in tenths of a second.
    for tenths in [0, 20] {
        cluster.controller.until_saved();
        append(&compute, &fault("handle", 3, "gpu-is-lost"));
        assert_idle_with(3, 60);
        cluster.controller.sh(&format!("sleep {}.{}; kill -KILL $(pidof slurmctld)", tenths / 10, tenths % 10));
        cluster.controller.until("scontrol ping | grep -q UP");
        // The outdated state must be corrected: the node takes jobs for three GPUs, and none for four.
        until_sampled(&compute, 5);
        assert_idle_with(3, 120);
        cluster.controller.sh("timeout 60 srun --gres=gpu:3 true");
        assert_ne!(cluster.controller.exec(&["timeout", "60", "srun", "--gres=gpu:4", "true"]).code, 0);
        repair(&compute);
        assert_idle_with(4, 60);
    }
}

/// Only a drained node can register with other hardware.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reload_on_drained_compute_registers_added_gpu() {
    let cluster = Cluster::new("");
    let compute = cluster.compute("c1", 1);
    compute.sh("mknod -m 666 /dev/nvidia1 c 1 3");
    append(&compute, "[[gpu]]\\nname = \"Simulated NVIDIA H200\"\\n");
    let refused = compute.exec(&["slurminit", "reload"]);
    assert!(refused.code != 0 && refused.stderr.contains("slurminit drain c1"), "{refused:?}");
    assert_eq!(cluster.nodes(), "c1 idle gpu:nvidia:1");
    compute.sh("slurminit drain c1 && slurminit reload && slurminit resume c1");
    cluster.until("sinfo -h -N -o \"%N %T %G\" | grep -q \"^c1 idle gpu:nvidia:2$\"");
    let devices = "printenv CUDA_VISIBLE_DEVICES | awk -F , '{ print NF }'";
    assert_eq!(cluster.controller.sh(&format!("srun --gres=gpu:2 {devices}")), "2");
}

/// A process outside Slurm uses the GPU, or a job's process outlived the job.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn logs_gpu_memory_that_no_job_uses() {
    let (container, _config) = serve(2, "");
    let used = "condition = { used_mib = 20480, processes = [{ pid = 4711, memory_mib = 20000 }] }";
    append(&container, used);
    container.wait_until(180, "grep -q leftover /run/slurminit/gpus.json").ok();
    let log = container.log();
    assert!(log.contains("20480 MiB") && log.contains("4711"), "{log}");
    assert_eq!(node(&container), "idle gpu:nvidia:2");
}
