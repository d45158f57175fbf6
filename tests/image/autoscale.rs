//! Nodes that slurmctld starts for jobs and stops when idle. The test acts as the cloud.

use std::path::Path;

use crate::docker::{Container, DEMO, Image, directory};
use crate::members::Cluster;

const NODES: &str = "idle = 5\nresume_timeout = 40\nsuspend_timeout = 5\n[[autoscale.nodes]]\nname = \"burst-[1-2]\"\n\
                     cpus = 1\nmemory_mib = 1000\ngpus = \"nvidia:2\"\nfeatures = [\"burst\"]\n";

/// The commands log their arguments to /tmp/asked; `resume` fails while /tmp/broken exists.
const COMMANDS: &str = "[autoscale]\n\
    resume = [\"sh\", \"-c\", \"echo up $@ >>/tmp/asked; if test -e /tmp/broken; then echo no quota left >&2; exit 3; fi\", \"sh\"]\n\
    suspend = [\"sh\", \"-c\", \"echo down $@ >>/tmp/asked\", \"sh\"]\n";

fn cluster() -> Cluster {
    Cluster::new(&format!("{COMMANDS}{NODES}"))
}

fn compute(cluster: &Cluster, name: &str, gpus: u32, config: &Path) -> Image {
    let image = cluster.member(DEMO, "compute", name).with(["--env", &format!("DEMO_GPUS={gpus}")]);
    image.mount(&config.join("slurminit.toml"), "/config/slurminit.toml")
}

/// Submits a job, and starts the node that slurmctld requests for it.
fn start_requested_node(cluster: &Cluster, config: &Path) -> Container {
    let job = cluster.controller.sh("cd /tmp; sbatch --parsable --gres=gpu:2 -o /dev/null --wrap 'hostname; env'");
    cluster.until("grep -qx \"up burst-1\" /tmp/asked");
    let node = compute(cluster, "burst-1", 2, config).serve();
    cluster.until(&format!("scontrol show job {job} | grep -q JobState=COMPLETED"));
    assert!(cluster.controller.sh(&format!("scontrol show job {job}")).contains("BatchHost=burst-1"));
    node
}

/// In each run of docker/test.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_starts_missing_node() {
    let cluster = cluster();
    let config = directory(&[("slurminit.toml", &format!("[autoscale]\n{NODES}"))]);
    // Nodes that are not running are listed, and jobs can request them.
    let nodes = cluster.controller.sh("slurminit nodes");
    assert!(nodes.contains("2 powered_down"), "{nodes}");
    let node = start_requested_node(&cluster, config.path());
    // An interactive job starts immediately and gets its GPUs.
    assert_eq!(cluster.controller.sh("srun -w burst-1 --gres=gpu:2 printenv CUDA_VISIBLE_DEVICES"), "0,1");
    assert_eq!(node.sh("slurminit health --ready"), "ready");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requested_node_restarts_slurmd_and_stops_when_idle() {
    let cluster = cluster();
    let config = directory(&[("slurminit.toml", &format!("[autoscale]\n{NODES}"))]);
    let unlisted = compute(&cluster, "own", 0, config.path()).serve();
    let node = start_requested_node(&cluster, config.path());
    let sum = |container: &Container| container.sh("sha256sum </etc/slurm/slurm.conf");
    assert_eq!(sum(&node), sum(&cluster.controller), "{}", node.sh("cat /etc/slurm/slurm.conf"));
    // slurmd can restart on the node without a new boot.
    let running = cluster.submit("-w burst-1 --gres=gpu:1");
    cluster.until(&format!("squeue -h -j {running} -t R | grep -q ."));
    node.sh("slurminit restart slurmd");
    cluster.until("sinfo -h -n burst-1 -o %T | grep -qx allocated");
    assert_eq!(cluster.controller.sh(&format!("squeue -h -j {running} -o %T")), "RUNNING");
    cluster.controller.sh(&format!("scancel {running}"));
    // The idle node is stopped; the node that registered itself stays.
    cluster.until("grep -qx \"down burst-1\" /tmp/asked");
    assert_eq!(node.stop(), 0, "{}", node.log());
    cluster.until("sinfo -h -n burst-1 -o %t | grep -qx \"idle~\"");
    assert_eq!(cluster.controller.sh("sinfo -h -n own -o %t"), "idle");
    assert_eq!(cluster.controller.sh("cat /tmp/asked"), "up burst-1\ndown burst-1");
    drop(unlisted);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_and_retries_failed_command() {
    let cluster = cluster();
    let notice = "[[service]]\nname = 'notice'\nrestart = 'never'\n\
        command = ['sh', '-c', 'until test -e /tmp/notice; do sleep 0.2; done; slurminit stop']\n";
    let config = directory(&[("slurminit.toml", &format!("[autoscale]\n{NODES}{notice}"))]);
    cluster.controller.sh("touch /tmp/broken");
    let job = cluster.submit("--gres=gpu:1");
    cluster.controller.until_said("no quota left");
    cluster.until("grep -q \"^down .*burst-1\" /tmp/asked");
    cluster.controller.sh("rm /tmp/broken; : >/tmp/asked");
    // slurmctld retries without intervention.
    cluster.until("grep -q \"^up \" /tmp/asked");
    let name = cluster.controller.sh("sed -n 's/^up //p' /tmp/asked | head -n 1");
    let node = compute(&cluster, &name, 2, config.path()).serve();
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    // A node that the cloud takes away requeues its job, and can be started again.
    cluster.controller.sh(": >/tmp/asked");
    node.sh("touch /tmp/notice");
    cluster.until(&format!("grep -qx \"down {name}\" /tmp/asked"));
    assert_eq!(node.exit_code(), 0, "{}", node.log());
    cluster.until("grep -q \"^up \" /tmp/asked");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn does_not_wait_for_node_that_is_missing_or_too_small() {
    let cluster = cluster();
    let config = directory(&[("slurminit.toml", &format!("[autoscale]\n{NODES}"))]);
    let job = cluster.submit("--gres=gpu:2");
    cluster.until("grep -qx \"up burst-1\" /tmp/asked");
    cluster.controller.until_said("node burst-1 not resumed by ResumeTimeout");
    cluster.until("grep -qx \"down burst-1\" /tmp/asked");
    cluster.until("sinfo -h -n burst-1 -o %T | grep -qx \"idle~\" || grep -qc \"up \" /tmp/asked");
    cluster.controller.sh(&format!("scancel {job}; : >/tmp/asked"));
    cluster.until("! sinfo -h -o %T | grep -v \"idle~\"");
    // The node has one GPU instead of the configured two.
    let job = cluster.submit("-w burst-2 --gres=gpu:2");
    cluster.until("grep -qx \"up burst-2\" /tmp/asked");
    let node = compute(&cluster, "burst-2", 1, config.path()).start();
    cluster.until("sinfo -h -R -o \"%N %E\" | grep -q \"^burst-2 slurminit: .*gpu:nvidia:1\"");
    cluster.until(&format!("squeue -h -j {job} -t PD | grep -q ."));
    assert!(node.log().contains("[[autoscale.nodes]]"), "{}", node.log());
    // The node is stopped and not started again for the same job.
    cluster.until("grep -qx \"down burst-2\" /tmp/asked");
    assert_eq!(cluster.controller.sh("sinfo -h -n burst-2 -o %t"), "down~");
    let log = cluster.controller.log();
    assert!(!log.contains("lower than configured") && !log.contains("different slurm.conf"), "{log}");
}
