//! A container created by the output of `slurminit join-command` gets the cluster's shared volumes and users.

use std::process::{Command, Stdio};

use crate::docker::{Container, Image, Network, PLAIN, Volume, directory, docker, tag, unique};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gives_joined_node_volumes_and_users_of_cluster() {
    let data = Volume::new("data");
    let config = directory(&[("slurminit.toml", "[[user]]\nname = \"alice\"\nuid = 1000\n")]);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(config.path(), mode).expect("own directory");
    let network = Network::new();
    let controller = Image::new(PLAIN)
        .with(["--hostname", "head", "--network", &network.0, "--env", "SLURMINIT_ROLE=controller"])
        .with(["--env", &format!("SLURMINIT_IMAGE={}", tag(PLAIN))])
        .mount(config.path(), "/config")
        .volume(&data, "/data")
        .serve();
    let node = Container { name: unique("joined") };
    let line =
        controller.sh(&format!("slurminit join-command --network {} --name {} 2>/dev/null", network.0, node.name));
    let shell = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output().expect("there is a shell");
    assert!(shell.status.success(), "{line}: {shell:?}");
    node.wait_until_healthy();
    let policy = docker(["inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", &node.name]).ok();
    assert_eq!(policy.trim(), "unless-stopped");
    // The output of a user job is visible on the controller.
    assert_eq!(node.sh("stat -c %a /data"), "1777");
    controller.sh("su -s /bin/sh alice -c 'cd /data && sbatch --wait --wrap hostname'");
    assert_eq!(controller.sh("cat /data/slurm-1.out"), node.sh("hostname"));
}
