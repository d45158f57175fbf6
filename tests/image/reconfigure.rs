//! A configuration change in a large cluster.

use crate::docker::{Container, PLAIN};
use crate::members::Cluster;

const COMPUTES: usize = 20;

/// Each container reads the change, but only the controller's container sends a reconfiguration to slurmctld, which then makes every
/// slurmd read its files again.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn one_change_reconfigures_cluster_of_twenty_computes_once() {
    let cluster = Cluster::new("");
    let file = cluster.config.path().join("slurminit.toml");
    let member = |role: &str, name: &str| {
        cluster.member(PLAIN, role, name).json_log().mount(cluster.config.path(), "/config").start()
    };
    let names: Vec<String> = (1..=COMPUTES).map(|number| format!("c{number}")).collect();
    let mut members: Vec<Container> = names.iter().map(|name| member("compute", name)).collect();
    members.push(member("login", "login"));
    cluster.until(&format!("[ \"$(sinfo -h -N -t idle -o %N | wc -l)\" = {COMPUTES} ]"));
    let job = cluster.submit("");
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));

    std::fs::write(&file, "[[partition]]\nname = \"debug\"\nDefault = true\n[[partition]]\nname = \"wide\"\n").unwrap();
    let computes = &members[..COMPUTES];
    for member in computes.iter().chain([&cluster.controller]) {
        member.until_logged("reload-applied", None);
    }
    members[COMPUTES].until_logged("reload-unchanged", None);
    assert_eq!(cluster.controller.sh("timeout 60 srun -p wide -N20 hostname | wc -l"), "20");
    let log = cluster.controller.log();
    eprintln!("{} registrations with a different slurm.conf", log.matches("different slurm.conf").count());
    assert_eq!(log.matches("Processing Reconfiguration Request").count(), 1, "{log}");
    assert_eq!(cluster.controller.sh(&format!("squeue -h -j {job} -o %T")), "RUNNING");
}
