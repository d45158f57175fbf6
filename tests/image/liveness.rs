//! Daemons that live and do not answer, and machines that only stand still for a while.

use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, Image, debians, docker};

fn cluster(image: &str) -> Container {
    Image::new(image).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=1"]).json_log().serve()
}

fn pid(container: &Container, daemon: &str) -> String {
    container.unit(daemon)["pid"].to_string()
}

/// What shows that it answers.
fn question(daemon: &str) -> &'static str {
    match daemon {
        "munged" => "munge --no-input | unmunge",
        "slurmctld" => "scontrol ping | grep UP",
        _ => "scontrol show slurmd localhost",
    }
}

/// Stops the process of `daemon`, and waits until another one answers.
fn hang(container: &Container, daemon: &str) {
    let before = pid(container, daemon);
    let question = question(daemon);
    let line = format!(
        "kill -STOP {before}; while kill -0 {before} || ! timeout 20 sh -c '{question}'; do sleep 0.1; done >/dev/null 2>&1"
    );
    let cured = container.exec(&["timeout", "180", "sh", "-c", &line]);
    assert_eq!(cured.code, 0, "{daemon}: {cured:?}\n{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hung_daemon_is_restarted_alone_on_each_debian() {
    for image in debians(DEMO) {
        let container = cluster(image);
        container.sh("sbatch --output /tmp/count --wrap 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done'; \
             timeout 120 sh -c 'until test -s /tmp/count; do sleep 0.1; done'");
        for daemon in ["munged", "slurmctld", "slurmd"] {
            let others: Vec<_> = ["munged", "slurmctld", "slurmd"].into_iter().filter(|name| *name != daemon).collect();
            let before: Vec<_> = others.iter().map(|name| pid(&container, name)).collect();
            hang(&container, daemon);
            let after: Vec<_> = others.iter().map(|name| pid(&container, name)).collect();
            assert_eq!(before, after, "{image}: a hang of {daemon} restarts nothing else\n{}", container.log());
            let silent = container.records("unit-unresponsive");
            assert!(silent.iter().any(|record| record["unit"] == daemon), "{silent:?}");
            let unit = container.unit(daemon);
            assert!(unit["restarts"] == 1 && unit["last_exit_why"].is_string(), "{unit:#}");
        }
        container.sh(
            "timeout 30 sh -c 'n=$(wc -l < /tmp/count); until test $(wc -l < /tmp/count) -gt $n; do sleep 0.1; done'",
        );
        assert_eq!(container.sh("awk '$1 != NR' /tmp/count"), "", "the job ran through all of it");
        assert_eq!(container.sh("srun --overlap --jobid 1 echo step"), "step");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn paused_container_restarts_nothing() {
    let container = cluster(DEMO);
    let controller = pid(&container, "slurmctld");
    // The pause comes while a question is under way, and is longer than any answer may take.
    container.sh(&format!(
        "kill -STOP {controller}; timeout 120 sh -c 'until pgrep -f \"scontrol [p]ing\"; do sleep 0.02; done'"
    ));
    // runc refuses it while the container's cgroup freezes slowly, on a busy machine.
    let begin = Instant::now();
    loop {
        let paused = docker(["pause", &container.name]);
        if paused.code == 0 {
            break;
        }
        assert!(begin.elapsed().as_secs() < 60, "{paused:?}");
    }
    #[expect(clippy::disallowed_methods, reason = "the pause is what is tested")]
    std::thread::sleep(Duration::from_secs(15));
    docker(["unpause", &container.name]).ok();
    container.sh(&format!("kill -CONT {controller}"));
    container.until_liveness_rounds(2);
    container.sh("scontrol ping | grep UP");
    assert_eq!(pid(&container, "slurmctld"), controller, "{}", container.log());
    assert!(container.records("unit-unresponsive").is_empty(), "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn probes_leave_nothing_behind_neither_lines_nor_processes() {
    let container = cluster(DEMO);
    let lines = container.log().lines().count();
    container.until_liveness_rounds(3);
    let log = container.log();
    let new: Vec<_> = log.lines().skip(lines).collect();
    let of = |source: &str| new.iter().any(|line| line.contains(&format!("\"source\":\"{source}\"")));
    assert!(!of("munged") && !of("slurmd"), "{new:#?}");
    assert_eq!(container.sh("ps -eo stat= | grep -c Z || true"), "0");
}
