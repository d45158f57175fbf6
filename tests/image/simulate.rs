//! Several simulated nodes in one container.

use crate::docker::{DEMO, FULL, Image, PLAIN, directory};

const CONFIG: &str = "[simulate]\nnodes = 3\ncpus = 64\nmemory_mib = 256000\ngpus = 8\ngpu_type = 'a100'\n\
                      [[user]]\nname = 'alice'\nuid = 1501\n";

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn command_runs_on_several_nodes() {
    let outcome = Image::new(PLAIN).run(&["--nodes", "4", "srun", "-N4", "sh", "-c", "echo $SLURMD_NODENAME"]);
    assert_eq!(
        (outcome.code, sorted(&outcome.stdout)),
        (0, vec!["node1", "node2", "node3", "node4"]),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("SIMULATED"), "{}", outcome.stderr);
    let demo = Image::new(DEMO).with(["--env", "DEMO_GPUS=2", "--env", "SLURMINIT_NODES=2"]);
    let outcome = demo.run(&["srun", "-N2", "--gres=gpu:2", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"]);
    assert_eq!((outcome.code, sorted(&outcome.stdout)), (0, vec!["node1 0,1", "node2 0,1"]), "{}", outcome.stderr);
    for (arguments, error) in
        [(["--nodes", "0"], "expected 1 to 512 nodes"), (["--nodes", "x"], "--nodes requires a number")]
    {
        let outcome = Image::new(PLAIN).run(&arguments);
        assert!(outcome.code == 78 && outcome.stderr.contains(error), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn simulated_nodes_have_configured_resources_and_fail_one_by_one() {
    let config = directory(&[("slurminit.toml", CONFIG)]);
    let container = Image::new(PLAIN).json_log().mount(config.path(), "/config").serve();
    let nodes = container.sh("sinfo --noheader --Node --format '%N %T %c %m %G'");
    assert_eq!(nodes, ["node1", "node2", "node3"].map(|node| format!("{node} idle 64 256000 gpu:a100:8")).join("\n"));
    let job = "srun -N3 -c 32 --gres=gpu:a100:2 sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'";
    let output = container.exec(&["su", "alice", "-c", &format!("cd /tmp; {job}")]).ok();
    assert_eq!(sorted(&output), ["node1 0,1", "node2 0,1", "node3 0,1"]);
    // Concurrent steps on several nodes must not mistake each other's files or processes for leftovers.
    container.sh("for i in $(seq 20); do srun -N3 true || exit 1; done");
    container.until("sinfo --noheader --format %T | grep -qx idle");
    assert!(container.records("leftover-ended").is_empty(), "{}", container.log());
    assert!(container.sh("slurminit status").contains("3 SIMULATED"));
    assert_eq!(container.sh("slurminit reload --dry-run"), "the daemons need no restart");
    // A killed slurmd is restarted and its jobs keep running.
    container.sh("sbatch --output /dev/null -N2 --wrap 'srun sleep 600'");
    container.until("[ $(pgrep -xc sleep) = 2 ]");
    container.sh("kill -KILL $(slurminit status --json | grep -A3 '\"name\": \"slurmd-2\"' | grep -o '\"pid\": [0-9]*' | grep -o '[0-9]*')");
    container.until("slurminit status | grep slurmd-2 | grep -q ready");
    assert_eq!(container.sh("pgrep -xc sleep; squeue --noheader --format %T"), "2\nRUNNING");
    // The container stops cleanly; the job is requeued and runs in the next start.
    container.stop();
    crate::docker::docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    container.until("[ $(pgrep -xc sleep) = 2 ]");
    assert_eq!(container.sh("squeue --noheader --format %T"), "RUNNING");
}

const DIFFERENT: &str = "[supervise]\nreload_on_change = false\n[simulate]\nnodes = 2\ncpus = 4\nmemory_mib = 8000\n\
                         [[simulate.node]]\nname = 'big[01-02]'\ncpus = 64\nmemory_mib = 256000\ngpus = 8\ngpu_type = 'a100'\n\
                         features = ['fat']\n\
                         [[simulate.node]]\nname = 'small'\ncpus = 1\ngpus = 1\n";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn simulates_and_accounts_heterogeneous_nodes() {
    let config = directory(&[("slurminit.toml", DIFFERENT)]);
    let container = Image::new(FULL).mount(config.path(), "/config").serve();
    let nodes = container.sh("sinfo --noheader --Node --format '%N %T %c %m %G %f'");
    let expected = [
        "big01 idle 64 256000 gpu:a100:8 fat",
        "big02 idle 64 256000 gpu:a100:8 fat",
        "node1 idle 4 8000 (null) (null)",
        "node2 idle 4 8000 (null) (null)",
        "small idle 1 8000 gpu:simulated:1 (null)",
    ];
    assert_eq!(nodes, expected.join("\n"));
    let job = "srun -N2 --constraint=fat --gres=gpu:a100:2 sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'";
    assert_eq!(sorted(&container.sh(job)), ["big01 0,1", "big02 0,1"]);
    assert_eq!(container.sh("srun --gres=gpu:simulated:1 printenv SLURMD_NODENAME"), "small");
    let status = container.sh("slurminit status");
    assert!(status.contains("5 SIMULATED") && status.contains("small"), "{status}");
    container.until("[ \"$(sacct --noheader --allocations --format State | grep -c COMPLETED)\" = 2 ]");
    let ended = container.sh("sacct --noheader --parsable2 --allocations --format NodeList,State");
    assert_eq!(ended, "big[01-02]|COMPLETED\nsmall|COMPLETED");
    // A reload can change the resources of a node, but not the set of nodes.
    let reload = |from: &str, to: &str, options: &[&str]| {
        std::fs::write(config.path().join("slurminit.toml"), DIFFERENT.replace(from, to)).unwrap();
        container.exec(&[&["slurminit", "reload"], options].concat())
    };
    let dry_run = |from: &str, to: &str| reload(from, to, &["--dry-run"]);
    for (from, to) in [("'small'", "'tiny'"), ("nodes = 2", "nodes = 3")] {
        for refused in [dry_run(from, to), reload(from, to, &[])] {
            assert!(refused.code != 0 && refused.stderr.contains("the nodes of [simulate]"), "{}", refused.stderr);
        }
    }
    let accepted = dry_run("cpus = 64", "cpus = 32").ok();
    assert!(accepted.contains("CPUs=32"), "{accepted}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_runs_on_64_simulated_nodes() {
    let outcome =
        Image::new(PLAIN).run(&["--nodes", "64", "sh", "-c", "srun -N64 true && sinfo --noheader --format %D"]);
    assert!(outcome.code == 0 && outcome.stdout.contains("64"), "{}\n{}", outcome.stdout, outcome.stderr);
}
