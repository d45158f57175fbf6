//! Several jobs on one GPU, on the real Slurm.

use super::kfd::{Chip, MI210, RYZEN};
use super::machine::Machine;
use crate::docker::Container;

/// A shell function that starts a job and waits until it runs. The job holds its GRES until /tmp/done exists.
const HOLD: &str = r#"
hold() {
    timeout 60 srun --gres="$1" sh -c "env | grep -E '^(CUDA|ROCR)_(VISIBLE_DEVICES|MPS_ACTIVE)' | sort > /tmp/job$2; until [ -e /tmp/done ]; do sleep 0.02; done" &
    until [ -s "/tmp/job$2" ]; do sleep 0.02; done
}
"#;

fn run(container: &Container, script: &str) -> String {
    container.sh(&format!("{HOLD}\n{script}"))
}

fn gres(container: &Container) -> String {
    container.sh("sinfo --noheader -N -o '%T %G' | sed 's/(S:[^)]*)//g'")
}

/// Two jobs share one GPU. Meanwhile a job can be allocated the other GPU whole, but not both GPUs.
fn two_jobs_share_a_gpu(machine: &Machine) {
    let container = machine.serve();
    assert_eq!(gres(&container), "idle gpu:nvidia:2,shard:nvidia:4", "{}", container.log());
    let variable = "CUDA_VISIBLE_DEVICES=0";
    let both = run(&container, "hold shard:1 1; hold shard:1 2; touch /tmp/done; wait; cat /tmp/job1 /tmp/job2");
    assert_eq!(both, format!("{variable}\n{variable}"), "{}", container.log());
    let script = "rm /tmp/done /tmp/job*; hold shard:1 1; timeout 30 srun --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES;\n\
                  ! timeout 5 srun --immediate=1 --gres=gpu:2 true 2>/tmp/refused; touch /tmp/done; wait; cat /tmp/job1";
    assert_eq!(run(&container, script), format!("1\n{variable}"), "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn two_jobs_share_gpu_by_shards() {
    let machine = Machine::nvidia("shards", "gpus = 2").gpus(2).config("[gpu]\nshards = 2");
    two_jobs_share_a_gpu(&machine.option(["--cpuset-cpus", "0-1"]));
}

/// Only the GPU without MIG is shared. Jobs get CUDA's UUIDs for both kinds.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn does_not_share_mig_instances() {
    let nvml = "[[gpu]]\n[[gpu]]\n[[gpu.mig]]\ngi = 9\n";
    let machine = Machine::nvidia("shards beside MIG", nvml)
        .gpus(2)
        .mig("gpu1/gi9/access 219\ngpu1/gi9/ci0/access 220\n")
        .config("[gpu]\nshards = 2");
    let container = machine.serve();
    let node = gres(&container);
    assert!(node.starts_with("idle gpu:nvidia:1,gpu:nvidia_h200_1g.18gb:1,shard:"), "{node}: {}", container.log());
    let script = "hold shard:2 1; ! timeout 5 srun --immediate=1 --gres=shard:1 true 2>/tmp/refused;\n\
                  timeout 30 srun --overlap --gres=gpu:nvidia_h200_1g.18gb:1 printenv CUDA_VISIBLE_DEVICES;\n\
                  touch /tmp/done; wait; cat /tmp/job1";
    let instance = "MIG-fa4e0000-0000-0000-0000-000000000001";
    let whole = "CUDA_VISIBLE_DEVICES=GPU-fa4e0000-0000-0000-0000-000000000000";
    assert_eq!(run(&container, script), format!("{instance}\n{whole}"), "{}", container.log());
}

/// MPS shares are percentages of a GPU. All GPUs can be shared at the same time.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn jobs_share_gpus_by_percent() {
    let container = Machine::nvidia("mps", "gpus = 2").gpus(2).config("[gpu]\nmps = true").serve();
    assert_eq!(gres(&container), "idle gpu:nvidia:2,mps:nvidia:200", "{}", container.log());
    let script = "hold mps:60 1; hold mps:60 2; touch /tmp/done; wait; sort /tmp/job1 /tmp/job2";
    let percent = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60";
    let seen = run(&container, script);
    assert_eq!(seen, format!("{percent}\n{percent}\nCUDA_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=1"));
}

/// A job with shards of an AMD GPU gets ROCr's number of that GPU.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn shard_of_amd_gpu_sets_rocr_number() {
    let chips = [RYZEN, Chip { bus: 0x83, minor: 129, ..MI210 }];
    let container = Machine::amd("shards of AMD", &chips).config("[gpu]\nshards = 3").serve();
    assert_eq!(gres(&container), "idle gpu:amd:1,shard:amd:3", "{}", container.log());
    let script = "hold shard:1 1; hold shard:2 2; touch /tmp/done; wait; cat /tmp/job1 /tmp/job2";
    assert_eq!(run(&container, script), "ROCR_VISIBLE_DEVICES=1\nROCR_VISIBLE_DEVICES=1");
}

/// AMD GPUs do not support MPS. They are allocated whole, and a node with AMD GPUs only has no MPS.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn mps_applies_to_nvidia_gpus_only() {
    let both = Machine::nvidia("mps beside AMD", "gpus = 1").gpus(1).with_amd(&[MI210]).config("[gpu]\nmps = true");
    let container = both.serve();
    // Slurm lists the AMD GPU with a count of 0.
    assert_eq!(gres(&container), "idle gpu:nvidia:1,gpu:amd:1,mps:nvidia:100,mps:amd:0", "{}", container.log());
    let script = "hold mps:50 1; timeout 30 srun --gres=gpu:amd:1 printenv ROCR_VISIBLE_DEVICES; touch /tmp/done; wait; cat /tmp/job1";
    let seen = run(&container, script);
    let share = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50\nCUDA_VISIBLE_DEVICES=0";
    assert_eq!(seen, format!("0\n{share}"), "{}", container.log());
    let amd = Machine::amd("mps on AMD alone", &[MI210]).config("[gpu]\nmps = true").serve();
    assert_eq!(gres(&amd), "idle gpu:amd:1", "{}", amd.log());
    assert_eq!(amd.sh("timeout 30 srun --gres=gpu:1 printenv ROCR_VISIBLE_DEVICES"), "0");
}
