//! `status`, `health` and the Docker health check report the current state.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::docker::{Container, DEMO, Image, Network, PLAIN, Volume, docker};

fn cluster() -> Container {
    Image::new(DEMO).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=3"]).serve()
}

/// Exit code and output of `slurminit health`.
fn health(container: &Container) -> (i32, String) {
    let outcome = container.exec(&["timeout", "60", "slurminit", "health", "--ready"]);
    (outcome.code, outcome.stdout.trim().to_owned())
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn health_fails_with_reason_when_no_job_can_run() {
    let container = cluster();
    assert_eq!(health(&container), (0, "ready".to_owned()));
    let slurm = |line: &str| container.sh(&format!("scontrol update {line}"));
    // This is tested before any resume: slurmd registers after a resume, which would return the node to service (ReturnToService=2).
    slurm("nodename=localhost state=down reason=gone");
    assert_eq!(health(&container), (1, "the node is down (gone)".to_owned()));
    container.sh("scontrol update nodename=localhost state=resume; slurminit health --wait 30");
    slurm("nodename=localhost state=drain reason='fan broken'");
    assert_eq!(health(&container), (1, "the node is drained (fan broken)".to_owned()));
    assert_eq!(container.sh("slurminit status --json | tr -d ' \n' | grep -o '\"ready\":[a-z]*'"), "\"ready\":false");
    // After a resume slurmctld waits for slurmd's registration.
    container.sh("scontrol update nodename=localhost state=resume; slurminit health --wait 30");
    slurm("partitionname=debug state=down");
    assert_eq!(health(&container).0, 1);
    slurm("partitionname=debug state=up");
    assert_eq!(health(&container).0, 0);
    // `health --wait` returns once the node is resumed.
    slurm("nodename=localhost state=drain reason=x");
    container.sh("(sleep 2; scontrol update nodename=localhost state=resume) & slurminit health --wait 20");
    assert_eq!(container.exec(&["slurminit", "health", "--wait", "60"]).code, 0);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn status_shows_each_gpu_with_its_job_and_user_in_eighty_columns() {
    let container = cluster();
    container.sh("useradd --create-home alice; cd /tmp; su alice -c 'sbatch --quiet --gres=gpu:1 --output=/dev/null --wrap \"sleep 1000\"'; \
         timeout 120 sh -c 'until squeue -h -t R | grep -q .; do sleep 0.1; done'");
    // A job name that imitates Slurm's output line for the GPU of another job.
    container.sh("sbatch --quiet --gres=gpu:1 --output=/dev/null -J \"$(printf 'x\n     Nodes=localhost CPU_IDs=0 Mem=1 GRES=gpu:nvidia:1(IDX:0)')\" \
         --wrap 'sleep 1000'; timeout 120 sh -c 'until [ $(squeue -h -t R -o %A | wc -l) = 2 ]; do sleep 0.1; done'");
    let table = container.sh("slurminit status");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let gpu = |number: &str| {
        let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{number} "))).unwrap_or_default();
        // The driver's readings follow.
        line.split_whitespace().take(8).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(gpu("0"), "0 nvidia0 Simulated NVIDIA H200 job 1 alice", "{table}");
    assert_eq!(gpu("1"), "1 nvidia1 Simulated NVIDIA H200 job 2 root", "{table}");
    assert!(gpu("2").starts_with("2 nvidia2 Simulated NVIDIA H200 free - "), "{table}");
    container.sh("rm /dev/nvidia2");
    assert!(container.sh("slurminit status").contains("GPU 2: /dev/nvidia2"));
    // An unprivileged user can read the status.
    assert!(container.sh("cd /; su alice -c 'slurminit status'").contains("job 1"));
}

/// A second query could return another result, and `--wait` would not continue to wait.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn health_stops_querying_slurm_once_ready() {
    let container = Image::new(PLAIN).serve();
    let counter = r#"#!/bin/sh
grep -qa health /proc/$PPID/cmdline && echo >>/tmp/asked
exec /tmp/sinfo "$@"
"#;
    container.sh(&format!(
        "mv $(readlink -f /usr/bin/sinfo) /tmp/sinfo; rm -f /usr/bin/sinfo; printf %s '{counter}' >/usr/bin/sinfo; chmod 755 /usr/bin/sinfo"
    ));
    assert_eq!(container.exec(&["slurminit", "health", "--wait", "60"]).code, 0);
    assert_eq!(container.sh("wc -l </tmp/asked"), "1");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn docker_reports_health_with_one_command_in_ten_seconds() {
    let container = Image::new(PLAIN).with_healthcheck().serve();
    // During startup a check returns at once. Later checks last 9 s each; Docker starts the next one when the previous has ended.
    let is_long = |check: &Value| {
        let at = |name: &str| nanoseconds(check[name].as_str().unwrap_or_default());
        check["ExitCode"] == 0 && at("End").saturating_sub(at("Start")) > 8_000_000_000
    };
    let health = || {
        let text = docker(["inspect", "--format", "{{json .State.Health}}", &container.name]).ok();
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let begin = Instant::now();
    loop {
        let report = health();
        if report["Status"] == "healthy" && report["Log"].as_array().is_some_and(|checks| checks.iter().any(is_long)) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{report:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Nanoseconds since midnight of a time such as `2026-11-25T02:07:51.123456789Z`.
fn nanoseconds(time: &str) -> u64 {
    let number = |range: std::ops::Range<usize>| time.get(range).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let fraction: String = time.chars().skip(20).take_while(char::is_ascii_digit).collect();
    let fraction = format!("{fraction:0<9}").parse::<u64>().unwrap_or(0);
    ((number(11..13) * 60 + number(14..16)) * 60 + number(17..19)) * 1_000_000_000 + fraction
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_can_be_started_beside_another_pid_1() {
    let container = Image::new(PLAIN)
        .with(["--hostname", "node1"])
        .with(["--entrypoint", "tail"])
        .command(["-f", "/dev/null"])
        .start();
    let none = container.exec(&["slurminit", "doctor", "--brief"]);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.stdout.contains("slurminit up"), "{none:?}");
    assert_eq!(container.exec(&["slurminit", "health"]).code, 1);
    container.sh("slurminit run >/tmp/log 2>&1 & slurminit health --wait 60");
    assert_eq!(container.sh("srun hostname"), "node1");
    assert!(container.sh("slurminit status").contains("ready"));
    container.sh(
        "slurminit stop; timeout 120 sh -c 'while pgrep slurmctld || pgrep munged || pgrep slurmd; do sleep 0.1; done'",
    );
    assert_eq!(container.exec(&["slurminit", "health"]).code, 1);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn health_does_not_trust_status_of_killed_container() {
    // The controller still reports the node of a killed compute, and a login has no node.
    let (network, key) = (Network::new(), Volume::new("key"));
    let member = |role: &str, name| {
        let role = format!("SLURMINIT_ROLE={role}");
        let image = Image::new(PLAIN).with(["--hostname", name, "--network-alias", name, "--network", &network.0]);
        let image = image.with(["--env", "SLURMINIT_CONTROLLER=head", "--env", &role, "--entrypoint", "sh"]);
        let line = "while [ -e /hold ]; do sleep 0.05; done; exec slurminit run";
        image.volume(&key, "/etc/munge").command(["-c", line]).serve()
    };
    let _head = member("controller", "head");
    for container in [member("compute", "c1"), member("login", "l1")] {
        container.sh("touch /hold");
        docker(["kill", &container.name]).ok();
        docker(["start", &container.name]).ok();
        let outcome = container.exec(&["slurminit", "health"]);
        assert!(outcome.code == 1 && outcome.stdout.contains("is not running"), "{outcome:?}");
        container.sh("rm /hold; slurminit health --wait 180");
    }
}
