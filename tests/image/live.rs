//! What `status`, `health` and Docker say is what holds at that moment.

use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, Image, PLAIN, debians, docker};

/// From readiness to Docker's word.
const BAR: Duration = Duration::from_secs(2);

/// From a question to its answer, which is nothing older than the question; other tests run beside this one.
const ANSWER: Duration = Duration::from_secs(10);

fn cluster(image: &str) -> Container {
    Image::new(image).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=3"]).serve()
}

/// What `health` says, and how soon.
fn health(container: &Container) -> (i32, String) {
    let begin = Instant::now();
    let outcome = container.exec(&["slurminit", "health", "--ready"]);
    assert!(begin.elapsed() < ANSWER, "{:?}", begin.elapsed());
    (outcome.code, outcome.stdout.trim().to_owned())
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn health_is_false_as_soon_as_no_job_can_run_and_says_why_on_each_debian() {
    for image in debians(DEMO) {
        let container = cluster(image);
        assert_eq!(health(&container), (0, "ready".to_owned()));
        let slurm = |line: &str| container.sh(&format!("scontrol update {line}"));
        slurm("nodename=localhost state=drain reason='fan broken'");
        assert_eq!(health(&container), (1, "the node is drained (fan broken)".to_owned()), "{image}");
        assert!(container.sh("slurminit status").contains("not ready: the node is drained (fan broken)"));
        assert_eq!(
            container.sh("slurminit status --json | tr -d ' \n' | grep -o '\"ready\":[a-z]*'"),
            "\"ready\":false"
        );
        // slurmctld waits for slurmd's word then.
        container.sh("scontrol update nodename=localhost state=resume; slurminit health --wait 30");
        // A registration that is under way brings the node back (ReturnToService=2).
        let is_down = || {
            slurm("nodename=localhost state=down reason=gone");
            health(&container) == (1, "the node is down (gone)".to_owned())
        };
        assert!((0..3).any(|_| is_down()), "{image}: {:?}", health(&container));
        container.sh("scontrol update nodename=localhost state=resume; slurminit health --wait 30");
        slurm("partitionname=debug state=down");
        assert_eq!(health(&container).0, 1, "{image}");
        slurm("partitionname=debug state=up");
        assert_eq!(health(&container).0, 0, "{image}");
        // Who waits hears of it when it is so.
        slurm("nodename=localhost state=drain reason=x");
        container.sh("(sleep 2; scontrol update nodename=localhost state=resume) & slurminit health --wait 20");
        assert_eq!(container.exec(&["slurminit", "health", "--wait", "0.1"]).code, 0);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn status_shows_each_gpu_with_its_job_and_user_in_eighty_columns_on_each_debian() {
    for image in debians(DEMO) {
        let container = cluster(image);
        container.sh("useradd --create-home alice; cd /tmp; su alice -c 'sbatch --quiet --gres=gpu:1 --output=/dev/null --wrap \"sleep 1000\"'; \
             timeout 30 sh -c 'until squeue -h -t R | grep -q .; do sleep 0.1; done'");
        // A name that looks like Slurm's own line about the GPU of another job.
        container.sh("sbatch --quiet --gres=gpu:1 --output=/dev/null -J \"$(printf 'x\n     Nodes=localhost CPU_IDs=0 Mem=1 GRES=gpu:nvidia:1(IDX:0)')\" \
             --wrap 'sleep 1000'; timeout 30 sh -c 'until [ $(squeue -h -t R -o %A | wc -l) = 2 ]; do sleep 0.1; done'");
        let table = container.sh("slurminit status");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        let gpu = |number: &str| {
            let line =
                table.lines().find(|line| line.trim_start().starts_with(&format!("{number} "))).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(gpu("0"), "0 Simulated NVIDIA H200 job 1 alice /dev/nvidia0", "{image}: {table}");
        assert_eq!(gpu("1"), "1 Simulated NVIDIA H200 in use ? /dev/nvidia1", "{image}: {table}");
        assert_eq!(gpu("2"), "2 Simulated NVIDIA H200 free - /dev/nvidia2", "{image}: {table}");
        container.sh("rm /dev/nvidia2");
        assert!(container.sh("slurminit status").contains("GPU 2: /dev/nvidia2 is gone"));
        // Everyone may ask.
        assert!(container.sh("cd /; su alice -c 'slurminit status'").contains("job 1"));
    }
}

/// A second answer could be another one, and nobody would wait on.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn health_asks_slurm_no_more_once_it_is_ready() {
    let container = Image::new(PLAIN).serve();
    let counts = r#"#!/bin/sh
grep -qa health /proc/$PPID/cmdline && echo >>/tmp/asked
exec /tmp/sinfo "$@"
"#;
    container.sh(&format!(
        "mv $(readlink -f /usr/bin/sinfo) /tmp/sinfo; rm -f /usr/bin/sinfo; printf %s '{counts}' >/usr/bin/sinfo; chmod 755 /usr/bin/sinfo"
    ));
    assert_eq!(container.exec(&["slurminit", "health", "--wait", "60"]).code, 0);
    assert_eq!(container.sh("wc -l </tmp/asked"), "1");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn docker_hears_of_readiness_within_two_seconds() {
    let state = |container: &Container, what: &str| {
        docker(["inspect", "--format", &format!("{{{{.State.{what}}}}}"), &container.name]).ok()
    };
    let heard = || {
        let container = Image::new(PLAIN).with_healthcheck().serve();
        let begin = Instant::now();
        while state(&container, "Health.Status").trim() != "healthy" {
            assert!(begin.elapsed() < Duration::from_secs(60), "still {}", state(&container, "Health"));
        }
        (begin.elapsed(), container)
    };
    // The others of this run may make one late.
    let (took, container) = std::iter::repeat_with(heard).take(5).find(|(took, _)| *took < BAR).expect("soon");
    eprintln!("healthy {:.1} s after it was ready", took.as_secs_f64());
    // One command in ten seconds, not one each second.
    container.sh("sleep 12");
    let commands = state(&container, "Health").matches("ready").count();
    assert!(commands <= 3, "{commands} health commands in 12 s");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn a_cluster_can_be_started_beside_another_pid_1() {
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
        "slurminit stop; timeout 20 sh -c 'while pgrep slurmctld || pgrep munged || pgrep slurmd; do sleep 0.1; done'",
    );
    assert_eq!(container.exec(&["slurminit", "health"]).code, 1);
}
