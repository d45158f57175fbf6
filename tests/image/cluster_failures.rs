//! Nodes of a cluster of several containers that are killed, cannot join, or are replicas. Each test waits for Slurm's
//! timeouts.

use crate::docker::{DEMO, Image, PLAIN, Volume, docker};
use crate::members::Cluster;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_node_goes_down_and_its_job_is_requeued() {
    let cluster = Cluster::new("");
    let first = cluster.compute("c1", 1);
    let job = cluster.submit("--gres=gpu:1");
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    let other = cluster.compute("c2", 1);
    docker(["kill", &first.name]).ok();
    cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c1 down\"");
    cluster.until(&format!("squeue -h -j {job} -t R -o %N | grep -qx c2"));
    docker(["start", &first.name]).ok();
    first.wait_until_healthy();
    cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c1 idle\"");
    drop(other);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_why_node_cannot_join_and_how_to_fix_it() {
    let cluster = Cluster::new("");
    // A different munge key.
    let key = Volume::new("other-key");
    docker(["run", "--rm", "--volume", &format!("{}:/etc/munge", key.name), &crate::docker::tag(PLAIN), "true"]).ok();
    let without_key = Image::new(DEMO).with(["--hostname", "c1", "--network", &cluster.network.0]).with([
        "--env",
        "SLURMINIT_ROLE=compute",
        "--env",
        "SLURMINIT_CONTROLLER=controller",
    ]);
    let foreign = without_key.clone().json_log().volume(&key, "/etc/munge").start();
    foreign.until_logged("waiting-for-controller", None);
    let cause = foreign.records("waiting-for-controller")[0]["fields"]["cause"].clone();
    assert!(cause.as_str().is_some_and(|cause| cause.contains("munge")), "{cause}");
    assert_eq!(foreign.stop(), 0, "{}", foreign.log());
    // A controller name that does not resolve.
    let image = cluster.member(DEMO, "compute", "c2").with(["--env", "SLURMINIT_CONTROLLER=nowhere"]);
    let unresolved = image.json_log().start();
    unresolved.until_logged("waiting-for-controller", None);
    assert_eq!(unresolved.exec(&["slurminit", "health", "--ready"]).code, 1);
    assert_eq!(unresolved.stop(), 0, "{}", unresolved.log());
    // No munge key; no controller name.
    let outcome = without_key.run(&["true"]);
    assert!(outcome.code == 104 && outcome.stderr.contains("/etc/munge/munge.key"), "{outcome:?}");
    let outcome = Image::new(DEMO).with(["--env", "SLURMINIT_ROLE=compute"]).run(&["true"]);
    assert!(outcome.code != 0 && outcome.stderr.contains("SLURMINIT_CONTROLLER"), "{outcome:?}");
    assert_eq!(cluster.nodes(), "");
}

/// `docker compose up --scale` sets no host name for replicas: the host name is the container ID, and Docker's name
/// server resolves the container name.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn replica_nodes_have_container_names_that_jobs_can_resolve() {
    let cluster = Cluster::new("");
    let image = Image::new(DEMO)
        .with(["--network", &cluster.network.0, "--env", "DEMO_GPUS=1"])
        .with(["--env", "SLURMINIT_ROLE=compute", "--env", "SLURMINIT_CONTROLLER=controller"])
        .volume(&cluster.key, "/etc/munge");
    let replicas = [image.serve(), image.serve()];
    let mut names: Vec<&str> = replicas.iter().map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(cluster.controller.sh("sinfo --noheader -N -o %N | sort"), names.join("\n"));
    let warning = |script: &str| cluster.controller.exec(&["sbatch", "-o", "/dev/null", "--wrap", script]).stderr;
    assert!(warning("echo on $(hostname)").contains("SLURMD_NODENAME"), "the host name is a container ID");
    assert_eq!(warning("true"), "");
    // Every node of a job resolves the name of the first node, as PyTorch requires for MASTER_ADDR.
    let first = "getent ahostsv4 $(scontrol show hostnames | head -n 1) | head -n 1 | cut -d ' ' -f 1";
    let found = cluster.controller.sh(&format!("srun -N2 sh -c \"{}\"", first.replace('$', "\\$")));
    let addresses: Vec<&str> = found.lines().collect();
    assert!(addresses.len() == 2 && addresses[0] == addresses[1] && !addresses[0].starts_with("127."), "{found}");
    // Any user can read /etc/hosts and therefore lock it.
    let lock = "exec flock --exclusive /etc/hosts sleep 1000";
    docker(["exec", "--detach", &replicas[1].name, "su", "-s", "/bin/sh", "nobody", "-c", lock]).ok();
    replicas[1].sh("timeout 120 sh -c 'while flock --nonblock /etc/hosts true; do sleep 0.1; done'");
    // A replica that returns with another address is the same node.
    let old = replicas[0].sh("hostname -i");
    docker(["kill", &replicas[0].name]).ok();
    let filler = Image::new(PLAIN).with(["--network", &cluster.network.0]).command(["sleep", "600"]).start();
    docker(["start", &replicas[0].name]).ok();
    replicas[0].wait_until_healthy();
    let new = replicas[0].sh("hostname -i");
    assert_ne!(new, old);
    assert_eq!(cluster.controller.sh("srun -N2 printenv SLURMD_NODENAME | sort"), names.join("\n"));
    let found = format!("getent hosts {} | cut -d ' ' -f 1 | sort -u", replicas[0].name);
    assert_eq!(cluster.controller.sh(&format!("srun -N2 sh -c \"{found}\" | sort -u")), new);
    drop(filler);
}

/// slurmctld ends a job that names a deleted node at its next start.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn node_that_jobs_name_is_not_deleted() {
    let cluster = Cluster::new("");
    let stays = cluster.compute("c1", 1);
    let gone = cluster.compute("c2", 1);
    docker(["kill", &gone.name]).ok();
    cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c2 down\"");
    let delete = || cluster.controller.exec(&["slurminit", "drain", "c2", "--delete"]);
    let states = |job: &str| cluster.controller.sh(&format!("squeue --noheader --jobs={job} --format=%T | sort -u"));
    let options = ["--nodelist=c2", "--exclude=c2", "--nodelist=c[1-2] --nodes=2", "--array=1-2 --nodelist=c2"];
    let jobs = options.map(|options| cluster.submit(&format!("--hold {options}")));
    let outcome = delete();
    assert!(outcome.code == 1 && jobs.iter().all(|job| outcome.stderr.contains(job.as_str())), "{outcome:?}");
    docker(["restart", &cluster.controller.name]).ok();
    cluster.controller.wait_until_healthy();
    assert!(jobs.iter().all(|job| states(job) == "PENDING"), "{}", cluster.controller.log());
    // A single one of these jobs is enough to keep the node.
    for (at, job) in jobs.iter().enumerate() {
        assert_eq!(delete().code, 1, "{}", options[at]);
        cluster.controller.sh(&format!("scancel {job}"));
    }
    let outcome = delete();
    assert!(outcome.code == 0 && outcome.stdout.ends_with("c2 is deleted\n"), "{outcome:?}");
    assert!(cluster.nodes().starts_with("c1 ") && !cluster.nodes().contains("c2"), "{}", cluster.nodes());
    docker(["restart", &cluster.controller.name]).ok();
    cluster.controller.wait_until_healthy();
    cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c1 idle\"");
    drop(stays);
}
