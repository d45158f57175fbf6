//! Who runs what, and with how little it does.

use crate::docker::{Image, PLAIN};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn every_daemon_runs_as_its_own_user() {
    let container = Image::new(PLAIN).serve();
    let line = "for p in /proc/[0-9]*; do echo $(cat $p/comm) $(stat -c %U $p) ${p#/proc/}; done 2>/dev/null";
    let processes = container.sh(line);
    let users = |name: &str| -> Vec<&str> {
        let of_name = processes.lines().filter(|line| line.split(' ').next() == Some(name));
        of_name.filter_map(|line| line.split(' ').nth(1)).collect()
    };
    assert_eq!(users("munged"), ["munge"], "{processes}");
    assert_eq!(users("slurmctld"), ["slurm"], "{processes}");
    assert_eq!(users("slurmd"), ["root"], "{processes}");
    assert!(processes.lines().any(|line| line == "slurminit root 1"), "{processes}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn nothing_special_is_asked_of_docker() {
    let image = Image::new(PLAIN).with(["--hostname", "node1"]);
    for option in
        ["--security-opt=no-new-privileges", "--cap-drop=NET_RAW", "--cgroupns=private", "--memory=2g", "--cpus=1.5"]
    {
        let outcome = image.clone().with([option]).run(&["srun", "hostname"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{option}: {}", outcome.stderr);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn nothing_is_left_undead() {
    let container = Image::new(PLAIN).serve();
    for _ in 0..5 {
        container.sh("srun sh -c 'sh -c \"(sleep 0.05 &)\" &'");
    }
    let zombies = "timeout 10 sh -c 'while grep -ls \"State:.Z\" /proc/[0-9]*/status; do sleep 0.1; done'";
    container.sh(zombies);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn docker_itself_sees_its_health() {
    let container = Image::new(PLAIN).with(["--health-interval=1s"]).serve();
    let status = format!("docker inspect --format '{{{{.State.Health.Status}}}}' {}", container.name);
    let wait = format!("timeout 30 sh -c \"until [ \\$({status}) = healthy ]; do sleep 0.1; done\"");
    let output = std::process::Command::new("sh").args(["-c", &wait]).output().unwrap();
    assert!(output.status.success(), "{output:?}\n{}", container.log());
}
