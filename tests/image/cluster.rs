//! A cluster of several containers: computes that join and leave, and the controller's view of them.

use crate::docker::{Container, DEMO, Image, Network, PLAIN, Volume, directory, docker};
use crate::members::Cluster;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn nodes_register_their_gpus_with_one_shared_slurm_conf() {
    let cluster = Cluster::new("[[partition]]\nname = \"big\"\nfeature = \"nvidia\"\n[[partition]]\nname = \"any\"\n");
    let toml = "[[partition]]\nname = \"big\"\nfeature = \"nvidia\"\n[[partition]]\nname = \"any\"\n";
    let config = directory(&[("slurminit.toml", toml)]);
    let member = |role, name, gpus: &str| {
        let image = cluster.member(DEMO, role, name).with(["--env", &format!("DEMO_GPUS={gpus}")]);
        image.mount(&config.path().join("slurminit.toml"), "/config/slurminit.toml").serve()
    };
    let computes = [member("compute", "c1", "2"), member("compute", "c2", "1")];
    let login = member("login", "login", "0");
    assert!(cluster.nodes().contains("c1 idle gpu:nvidia:2") && cluster.nodes().contains("c2 idle gpu:nvidia:1"));
    let sum = |container: &Container| container.sh("sha256sum </etc/slurm/slurm.conf");
    for other in computes.iter().chain([&login]) {
        assert_eq!(sum(other), sum(&cluster.controller), "{}", other.sh("cat /etc/slurm/slurm.conf"));
    }
    assert_eq!(login.sh("srun -p big -N2 --gres=gpu:1 hostname | sort"), "c1\nc2");
    let refused = login.exec(&["srun", "-N2", "--gres=gpu:2", "true"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    for container in computes.iter().chain([&login, &cluster.controller]) {
        assert_eq!(container.sh("slurminit health --ready"), "ready");
    }
    let node = |container: &Container| container.status()["prepared"]["node_name"].clone();
    assert_eq!((node(&cluster.controller), node(&computes[0])), ("".into(), "c1".into()));
}

/// A job's user can read slurm.conf and use munged on the node, but cannot remove or add a node.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn unprivileged_user_on_node_cannot_change_nodes() {
    let cluster = Cluster::new("");
    let compute = cluster.compute("c1", 1);
    for command in [
        "scontrol delete nodename=c1",
        "scontrol update nodename=c1 state=down reason=x",
        "scontrol create nodename=c9 state=cloud",
        "scontrol shutdown",
    ] {
        let outcome = compute.exec(&["su", "-s", "/bin/sh", "nobody", "-c", command]);
        assert!(outcome.code != 0 && outcome.stderr.contains("Invalid user id"), "{command}: {outcome:?}");
    }
    // A slurmd that the user starts on a different port.
    let own = "mkdir /tmp/own && cp /etc/slurm/gres.conf /etc/slurm/cgroup.conf /tmp/own && \
        sed 's#^SlurmdSpoolDir=.*#SlurmdSpoolDir=/tmp/own#; s#^SlurmdPidFile=.*#SlurmdPidFile=/tmp/own/pid#; s#^SlurmdPort=.*#SlurmdPort=7001#' \
            /etc/slurm/slurm.conf >/tmp/own/slurm.conf && echo SlurmdUser=nobody >>/tmp/own/slurm.conf && \
        exec slurmd -D -f /tmp/own/slurm.conf -Z -N c9 --conf CPUs=1 >/tmp/own/log 2>&1";
    docker(["exec", "--detach", &compute.name, "su", "-s", "/bin/sh", "nobody", "-c", own]).ok();
    cluster.controller.until_said("NODE_REGISTER RPC from uid=65534");
    assert_eq!(cluster.nodes(), "c1 idle gpu:nvidia:1");
}

/// Without slurminit, Slurm drains a node that returns with fewer GPUs: "gres/gpu count reported lower than configured".
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn node_returning_with_fewer_gpus_registers_without_drain() {
    let cluster = Cluster::new("");
    let first = cluster.compute("c1", 2);
    let job = cluster.submit("--gres=gpu:2");
    let waiting = cluster.submit("--gres=gpu:1");
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    docker(["kill", &first.name]).ok();
    drop(first);
    let _second = cluster.compute("c1", 1);
    assert!(cluster.nodes().starts_with("c1 ") && cluster.nodes().ends_with("gpu:nvidia:1"), "{}", cluster.nodes());
    // The job that fits runs. The other job was requeued and stays pending.
    cluster.until(&format!("squeue -h -j {waiting} -t R | grep -q ."));
    assert_eq!(cluster.controller.sh(&format!("squeue -h -j {job} -o %T")), "PENDING");
    let log = cluster.controller.log();
    assert!(!log.contains("lower than configured"), "{log}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stopped_node_is_removed_and_its_job_requeued_elsewhere() {
    let cluster = Cluster::new("");
    let first = cluster.compute("c1", 1);
    let idle = cluster.compute("c2", 1);
    // A node without jobs is removed at once.
    assert_eq!(idle.stop(), 0, "{}", idle.log());
    assert_eq!(cluster.nodes(), "c1 idle gpu:nvidia:1");
    drop(idle);

    let job = cluster.submit("--gres=gpu:1");
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    let second = cluster.compute("c2", 1);
    assert_eq!(first.stop(), 0, "{}", first.log());
    cluster.until("! sinfo -h -N -o %N | grep -qx c1");
    cluster.until(&format!("squeue -h -j {job} -t R -o %N | grep -qx c2"));
    assert!(!cluster.controller.log().contains("JobId=1 WEXITSTATUS"), "{}", cluster.controller.log());
    drop(second);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn controller_restart_keeps_job_and_admin_drain_survives_node() {
    let cluster = Cluster::new("");
    let compute = cluster.compute("c1", 2);
    let job = cluster.submit("--gres=gpu:1");
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    // slurmctld saves a dynamic node after up to five seconds.
    cluster.controller.until_saved();
    for how in ["stop", "kill"] {
        docker([how, &cluster.controller.name]).ok();
        docker(["start", &cluster.controller.name]).ok();
        cluster.controller.wait_until_healthy();
        cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c1 mixed$\"");
        assert_eq!(cluster.controller.sh(&format!("squeue -h -j {job} -o %T")), "RUNNING", "{how}");
        assert_eq!(compute.sh("pgrep -c sleep"), "1", "{how}: {}", compute.log());
    }
    cluster.controller.sh(&format!("scancel {job}; scontrol update nodename=c1 state=drain reason='fan broken'"));
    // Neither a clean stop nor changed hardware removes an administrator's drain.
    let drained = "scontrol show node c1 | tr \"\\n\" \" \" | grep -q \"DRAIN.*Reason=fan broken\"";
    assert_eq!(compute.stop(), 0, "{}", compute.log());
    cluster.until(drained);
    docker(["start", &compute.name]).ok();
    cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c1 drained$\"");
    cluster.until(drained);
    docker(["kill", &compute.name]).ok();
    drop(compute);
    let image = cluster.member(DEMO, "compute", "c1").with(["--env", "DEMO_GPUS=1"]);
    let compute = image.start();
    cluster.until("scontrol show node c1 | grep -q gpu:nvidia:1");
    let node = cluster.controller.sh("scontrol show node c1");
    assert!(node.contains("DRAIN") && node.contains("Reason=fan broken"), "{node}\n{}", compute.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_of_combined_controller_and_node_or_compute_loses_no_job() {
    let (network, key, state) = (Network::new(), Volume::new("key"), Volume::new("state"));
    let member = |name: &str| {
        Image::new(DEMO)
            .with(["--hostname", name, "--network-alias", name, "--network", &network.0])
            .with(["--env", "SLURMINIT_CONTROLLER=head", "--env", "DEMO_GPUS=2"])
            .volume(&key, "/etc/munge")
    };
    let head = member("head").volume(&state, "/var/lib/slurm").serve();
    let compute = member("c1").with(["--env", "SLURMINIT_ROLE=compute"]).serve();
    assert_eq!(head.sh("srun -N2 --gres=gpu:2 hostname | sort"), "c1\nhead");
    let sum = |container: &Container| container.sh("sha256sum </etc/slurm/slurm.conf");
    assert_eq!(sum(&head), sum(&compute), "{}", head.sh("cat /etc/slurm/slurm.conf"));

    let submit = |node: &str| {
        head.sh(&format!("cd /tmp; sbatch --parsable --output=/dev/null -w {node} --wrap 'exec sleep 1000'"))
    };
    let (head_job, compute_job) = (submit("head"), submit("c1"));
    let until = |condition: &str| {
        let outcome = head.wait_until(180, condition);
        assert_eq!(outcome.code, 0, "{condition}\n{}\n{}", head.sh("squeue; sinfo -N -l"), head.log());
    };
    let runs = |job: &str, node: &str| until(&format!("squeue -h -j {job} -t R -o %N | grep -qx {node}"));
    runs(&head_job, "head");
    runs(&compute_job, "c1");
    let start_time = |job: &str| head.sh(&format!("squeue -h -j {job} -o %S"));
    let compute_job_start = start_time(&compute_job);
    for how in ["stop", "kill"] {
        docker([how, &head.name]).ok();
        docker(["start", &head.name]).ok();
        head.wait_until_healthy();
        runs(&head_job, "head");
        until("pgrep -x sleep");
        runs(&compute_job, "c1");
        assert_eq!(start_time(&compute_job), compute_job_start, "{how}");
        assert_eq!(compute.sh("pgrep -cx sleep"), "1", "{how}");
    }
    assert_eq!(compute.stop(), 0, "{}", compute.log());
    // The job requests c1 by name, so the node is not removed.
    until("sinfo -h -N -n c1 -o %T | grep -qE \"^(down|drain)\"");
    until(&format!("squeue -h -j {compute_job} -t PD | grep -q ."));
    docker(["start", &compute.name]).ok();
    compute.wait_until_healthy();
    runs(&compute_job, "c1");
    assert_eq!(head.sh("squeue -h -t R -o %N | sort"), "c1\nhead");
    drop((compute, head, network));
}

/// slurmctld responds, but with an authentication error.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn container_with_another_munge_key_names_the_key() {
    let cluster = Cluster::new("");
    let login = Image::new(PLAIN)
        .with(["--hostname", "desk", "--network", &cluster.network.0])
        .with(["--env", "SLURMINIT_ROLE=login", "--env", "SLURMINIT_CONTROLLER=controller"])
        .with(["--env", "SLURMINIT_MUNGE_KEY=another-key-0123456789-0123456789-0123456789"])
        .start();
    login.wait_until(60, "slurminit health 2>&1 | grep -q \"munge key\"").ok();
    let health = login.exec(&["slurminit", "health"]);
    let text = format!("{}{}", health.stdout, health.stderr);
    assert!(health.code != 0 && text.contains("slurmctld failed (") && text.contains("munge key"), "{health:?}");
    assert!(!text.contains("has not responded"), "{health:?}");
    let answer = crate::doctor::report(&login, "").of("controller");
    assert!(answer.verdict == "fail" && format!("{answer:?}").contains("authentication"), "{answer:?}");
}
