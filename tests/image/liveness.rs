//! Daemons that run but do not respond, and paused containers.

use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, Image, PLAIN, directory, docker};

fn cluster() -> Container {
    Image::new(DEMO).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=1"]).json_log().serve()
}

fn pid(container: &Container, daemon: &str) -> String {
    container.unit(daemon)["pid"].to_string()
}

/// A shell line that succeeds when `daemon` responds.
fn probe_command(daemon: &str) -> &'static str {
    match daemon {
        "munged" => "munge --no-input | unmunge",
        "slurmctld" => "scontrol ping | grep UP",
        _ => "scontrol show slurmd localhost",
    }
}

/// Sends SIGSTOP to `daemon` and waits until its replacement responds.
fn hang(container: &Container, daemon: &str) {
    let before = pid(container, daemon);
    let probe = probe_command(daemon);
    let line = format!(
        "kill -STOP {before}; while kill -0 {before} || ! timeout 20 sh -c '{probe}'; do sleep 0.1; done >/dev/null 2>&1"
    );
    let outcome = container.exec(&["timeout", "180", "sh", "-c", &line]);
    assert_eq!(outcome.code, 0, "{daemon}: {outcome:?}\n{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hung_daemon_is_restarted_alone() {
    let container = cluster();
    container.sh("sbatch --output /tmp/count --wrap 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done'; \
         timeout 120 sh -c 'until test -s /tmp/count; do sleep 0.1; done'");
    for daemon in ["munged", "slurmctld", "slurmd"] {
        let others: Vec<_> = ["munged", "slurmctld", "slurmd"].into_iter().filter(|name| *name != daemon).collect();
        let before: Vec<_> = others.iter().map(|name| pid(&container, name)).collect();
        hang(&container, daemon);
        let after: Vec<_> = others.iter().map(|name| pid(&container, name)).collect();
        assert_eq!(before, after, "hung {daemon} restarted another daemon\n{}", container.log());
        let unresponsive = container.records("unit-unresponsive");
        assert!(unresponsive.iter().any(|record| record["unit"] == daemon), "{unresponsive:?}");
        let unit = container.unit(daemon);
        assert!(unit["restarts"] == 1 && unit["last_exit_why"].is_string(), "{unit:#}");
    }
    container
        .sh("timeout 30 sh -c 'n=$(wc -l < /tmp/count); until test $(wc -l < /tmp/count) -gt $n; do sleep 0.1; done'");
    assert_eq!(container.sh("awk '$1 != NR' /tmp/count"), "", "the job ran without interruption");
    assert_eq!(container.sh("srun --overlap --jobid 1 echo step"), "step");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn paused_container_restarts_nothing() {
    // A probe of a stopped slurmctld ends only after the pause, however long the commands in between take.
    let config = directory(&[("slurminit.toml", "[supervise]\nprobe_interval = 12\nprobe_timeout = 12\n")]);
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().mount(config.path(), "/config").serve();
    let controller = pid(&container, "slurmctld");
    // Pauses during a probe, for longer than the probe timeout.
    container.sh(&format!(
        "kill -STOP {controller}; timeout 120 sh -c 'until pgrep -f \"scontrol [p]ing\"; do sleep 0.02; done'"
    ));
    // On a busy machine the cgroup freezes slowly, and runc then rejects the pause.
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
fn probes_leave_no_log_lines_and_no_zombies() {
    let container = cluster();
    let lines = container.log().lines().count();
    container.until_liveness_rounds(3);
    let log = container.log();
    let new: Vec<_> = log.lines().skip(lines).collect();
    let logged = |source: &str| new.iter().any(|line| line.contains(&format!("\"source\":\"{source}\"")));
    assert!(!logged("munged") && !logged("slurmd"), "{new:#?}");
    container.until("! ps -eo stat= | grep -q Z");
}
