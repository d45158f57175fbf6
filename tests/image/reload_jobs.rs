//! Partitions and nodes that jobs use are kept: at a reload, at a start with another configuration, and when a compute
//! node leaves.

use std::fs;
use std::path::Path;

use crate::docker::{Container, DEMO, Image, Volume, directory, docker};
use crate::members::Cluster;

const NO_AUTOMATIC_RELOAD: &str = "[supervise]\nreload_on_change = false\n";

fn write(config: &Path, toml: &str) {
    fs::write(config.join("slurminit.toml"), format!("{NO_AUTOMATIC_RELOAD}{toml}")).expect("a configuration");
}

fn serve(config: &Path, slurm: &Volume) -> Container {
    let image = Image::new(DEMO).with(["--hostname", "node1", "--env", "DEMO_GPUS=2"]);
    image.mount(config, "/config").volume(slurm, "/var/lib/slurm").serve()
}

fn submit(container: &Container, options: &str) -> String {
    let line = format!("cd /tmp; sbatch --parsable --mem=8 --output=/dev/null {options} --wrap 'exec sleep 1000'");
    container.sh(&line)
}

/// One line per job, such as `1 RUNNING`, including ended jobs.
fn states(container: &Container) -> String {
    container.sh("squeue --noheader --all --states=all --format='%i %T' | sort -n")
}

fn partitions(container: &Container) -> String {
    container.sh("sinfo --noheader --all --format='%R %a' | sort")
}

/// slurmctld exits at a partition with an unknown node.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn partition_kept_without_its_nodes_does_not_stop_the_controller() {
    const NODES: &str = "[autoscale]\nresume = ['true']\nsuspend = ['true']\n[[autoscale.nodes]]\nname = 'burst-[1-2]'\n\
                         cpus = 1\nmemory_mib = 1000\n[[partition]]\nname = 'burst'\nNodes = 'burst-[1-2]'\n";
    let kept = "[slurm]\ncontroller = 'node1'\n[[partition]]\nname = 'debug'\nDefault = 'YES'\n";
    let (config, slurm) = (directory(&[]), Volume::new("kept"));
    write(config.path(), &format!("{kept}{NODES}"));
    let container = serve(config.path(), &slurm);
    let held = submit(&container, "--hold --partition=burst");
    container.until_saved();
    write(config.path(), kept);
    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    assert_eq!(partitions(&container), "burst drain\ndebug up");
    assert_eq!(states(&container), format!("{held} PENDING"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_partitions_and_nodes_that_jobs_use() {
    let (config, slurm) = (directory(&[("slurminit.toml", NO_AUTOMATIC_RELOAD)]), Volume::new("jobs"));
    let first = serve(config.path(), &slurm);
    let running = submit(&first, "");
    let held = submit(&first, "--hold");
    submit(&first, "--hold --array=1-2");
    submit(&first, &format!("--dependency=afterok:{running}"));
    let pinned = submit(&first, "--hold --nodelist=localhost");
    first.until(&format!("[ \"$(squeue -h -j {running} -o %T)\" = RUNNING ]"));
    let before = states(&first);

    write(config.path(), "[[partition]]\nname = \"short\"\n");
    let dry = first.sh("slurminit reload --dry-run");
    assert!(dry.contains(&format!("jobs {running}, ")) || dry.contains(&format!(", {running}")), "{dry}");
    assert_eq!(partitions(&first), "debug up");
    first.sh("slurminit reload");
    assert_eq!(partitions(&first), "debug drain\nshort up");
    assert_eq!(states(&first), before);
    assert_ne!(first.exec(&["sbatch", "--partition=debug", "--wrap=true"]).code, 0);
    // Another reload changes nothing.
    assert_eq!(first.exec(&["slurminit", "reload"]).code, 0);
    assert_eq!(partitions(&first), "debug drain\nshort up");

    let elsewhere = submit(&first, "--hold --partition=short");
    let remaining = [&held, &pinned, &elsewhere].map(|id| format!("{id} PENDING")).join("\n");
    first.sh(&format!(
        "scancel {running} && squeue -h -o %A | grep -vxE '{held}|{pinned}|{elsewhere}' | xargs -r scancel"
    ));
    first.stop();
    drop(first);
    write(config.path(), "[node]\nname = \"gpu1\"\n[[partition]]\nname = \"long\"\n");
    let second = serve(config.path(), &slurm);
    assert_eq!(partitions(&second), "debug drain\nlong up\nshort drain");
    assert_eq!(second.sh("squeue --noheader --all --format='%i %T' | sort -n"), remaining);
    assert_eq!(second.sh("sinfo --noheader --Node --format='%N %T' | sort -u"), "gpu1 idle\nlocalhost down");
    second.sh(&format!("scontrol update jobid={pinned} reqnodelist=gpu1 && scontrol release {held} {pinned}"));
    second.until(&format!("[ \"$(squeue -h -j {held},{pinned} -o %T | sort -u)\" = RUNNING ]"));
    assert_eq!(second.exec(&["slurminit", "reload"]).code, 0);
    assert_eq!(partitions(&second), "debug drain\nlong up\nshort drain");

    second.sh(
        "scancel --user=root && timeout 30 sh -c 'until [ -z \"$(squeue --noheader --all)\" ]; do sleep 0.1; done'",
    );
    assert_eq!(second.exec(&["slurminit", "reload"]).code, 0);
    assert_eq!(partitions(&second), "long up");
    assert_eq!(second.sh("sinfo --noheader --Node --format='%N %T' | sort -u"), "gpu1 idle");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn refuses_reload_that_would_end_jobs() {
    let ann = "[[user]]\nname = \"ann\"\nuid = 2001\n";
    let (config, slurm) = (directory(&[]), Volume::new("jobs"));
    write(config.path(), ann);
    let container = serve(config.path(), &slurm);
    let running = submit(&container, "--no-requeue");
    let anns_job = container.sh("cd /tmp; su ann -s /bin/sh -c 'sbatch --parsable --hold --mem=8 --wrap true'");
    container.until(&format!("[ \"$(squeue -h -j {running} -o %T)\" = RUNNING ]"));
    let before = (states(&container), partitions(&container));
    let assert_refused = |job: &str| {
        for command in [&["slurminit", "reload", "--dry-run"][..], &["slurminit", "reload"]] {
            let outcome = container.exec(command);
            assert_eq!((outcome.code, outcome.stderr.contains(&format!(": {job};"))), (1, true), "{outcome:?}");
        }
        assert_eq!((states(&container), partitions(&container)), before);
    };
    write(config.path(), &format!("{ann}[node]\ncpus = 1\n"));
    assert_refused(&running);
    write(config.path(), "[[partition]]\nname = \"short\"\n");
    assert_refused(&anns_job);
    write(config.path(), ann);
    let renamed = container.sh("sed 's/^PartitionName=debug/PartitionName=short/' /etc/slurm/slurm.conf");
    fs::write(config.path().join("slurm.conf"), format!("# USER_CUSTOMIZED=true\n{renamed}\n")).expect("slurm.conf");
    assert_refused(&format!("{running}, {anns_job}"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_nodes_named_by_jobs_when_all_containers_stop() {
    let cluster = Cluster::new("");
    let computes = ["c1", "c2", "c3"].map(|name| cluster.compute(name, 1));
    let pinned = cluster.submit("--hold --nodelist=c1");
    let kept_off = cluster.submit("--hold --exclude=c2");
    let running = cluster.submit("--nodelist=c1");
    cluster.until(&format!("[ \"$(squeue -h -j {running} -o %T)\" = RUNNING ]"));
    for compute in &computes {
        compute.stop();
    }
    // No job names c3.
    assert_eq!(cluster.controller.sh("sinfo --noheader --Node --format=%N | sort -u"), "c1\nc2");
    cluster.controller.stop();
    docker(["start", &cluster.controller.name]).ok();
    cluster.controller.wait_until_healthy();
    for compute in &computes {
        docker(["start", &compute.name]).ok();
        compute.wait_until_healthy();
    }
    cluster.controller.sh(&format!("scontrol release {pinned} {kept_off}"));
    let nodes = |job: &str| cluster.controller.sh(&format!("squeue --noheader --jobs={job} --format='%T %N'"));
    for job in [&pinned, &kept_off, &running] {
        cluster.until(&format!("[ \"$(squeue -h -j {job} -o %T)\" = RUNNING ]"));
    }
    assert_eq!((nodes(&pinned), nodes(&running)), ("RUNNING c1".to_owned(), "RUNNING c1".to_owned()));
    assert_ne!(nodes(&kept_off), "RUNNING c2");
    cluster.controller.sh("scancel --user=root");
    cluster.until("[ -z \"$(squeue --noheader)\" ]");
    for compute in &computes {
        compute.stop();
    }
    assert_eq!(cluster.controller.sh("sinfo --noheader --Node --format=%N"), "");
}
