//! Daemons that live and do not answer, and machines that only stand still for a while.

use std::time::Duration;

use crate::docker::{Container, DEMO, Image, debians, docker};

/// The bar is 10 s, two intervals of 5; the rest is what looking from outside costs on a busy machine.
const BAR: Duration = Duration::from_secs(12);

fn cluster(image: &str) -> Container {
    Image::new(image).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=1"]).serve()
}

fn pid(container: &Container, daemon: &str) -> String {
    container.sh(&format!("slurminit status > /tmp/status; awk '$1 == \"{daemon}\" {{ print $3 }}' /tmp/status"))
}

/// What shows that it answers.
fn question(daemon: &str) -> &'static str {
    match daemon {
        "munged" => "munge --no-input | unmunge",
        "slurmctld" => "scontrol ping | grep UP",
        _ => "scontrol show slurmd localhost",
    }
}

/// Stops the process of `daemon`; returns how long it took until another one answered.
fn hang(container: &Container, daemon: &str) -> Duration {
    let before = pid(container, daemon);
    let question = question(daemon);
    let line = format!(
        "exec 2>&1; begin=$(date +%s%N); kill -STOP {before}; \
         while kill -0 {before} || ! timeout 1 sh -c '{question}'; do sleep 0.02; done >/dev/null; \
         echo $(( ($(date +%s%N) - begin) / 1000000 ))"
    );
    let said = container.exec(&["timeout", "100", "sh", "-c", &line]).stdout;
    let ms: Option<u64> = said.lines().last().and_then(|line| line.parse().ok());
    assert!(ms.is_some(), "{daemon} was not cured: {said}\n{}", container.log());
    let took = Duration::from_millis(ms.unwrap_or_default());
    eprintln!("{daemon} answers {:.1} s after its hang began", took.as_secs_f64());
    took
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn a_hung_daemon_is_restarted_within_two_intervals_and_alone_on_each_debian() {
    for image in debians(DEMO) {
        let container = cluster(image);
        container.sh("sbatch --output /tmp/count --wrap 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done'; \
             timeout 30 sh -c 'until test -s /tmp/count; do sleep 0.1; done'");
        for daemon in ["munged", "slurmctld", "slurmd"] {
            let others: Vec<_> = ["munged", "slurmctld", "slurmd"].into_iter().filter(|name| *name != daemon).collect();
            let before: Vec<_> = others.iter().map(|name| pid(&container, name)).collect();
            let took = hang(&container, daemon);
            // A machine without a free CPU makes everybody slow, and the slow have a minute.
            let bar = if container.log().contains("is slow") { 8 * BAR } else { BAR };
            assert!(took < bar, "{image}: {daemon} took {took:?}\n{}", container.log());
            let after: Vec<_> = others.iter().map(|name| pid(&container, name)).collect();
            assert_eq!(before, after, "{image}: a hang of {daemon} restarts nothing else\n{}", container.log());
            let log = container.log();
            assert!(log.contains(&format!("{daemon} lives and does not answer")), "{log}");
            assert!(container.sh("slurminit status").contains("it did not answer ("));
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
fn a_paused_container_restarts_nothing() {
    let container = cluster(DEMO);
    let controller = pid(&container, "slurmctld");
    // The pause comes while a question is under way, and is longer than any answer may take.
    container.sh(&format!(
        "kill -STOP {controller}; timeout 30 sh -c 'until pgrep -f \"scontrol [p]ing\"; do sleep 0.02; done'"
    ));
    docker(["pause", &container.name]).ok();
    #[expect(clippy::disallowed_methods, reason = "the pause is what is tested")]
    std::thread::sleep(Duration::from_secs(15));
    docker(["unpause", &container.name]).ok();
    container.sh(&format!("kill -CONT {controller}"));
    // Two more rounds, both with answers.
    container.sh("sleep 11; scontrol ping | grep UP");
    assert_eq!(pid(&container, "slurmctld"), controller, "{}", container.log());
    assert!(!container.log().contains("does not answer"), "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn probes_leave_nothing_behind_neither_lines_nor_processes() {
    let container = cluster(DEMO);
    let lines = container.log().lines().count();
    container.sh("sleep 16");
    let log = container.log();
    let new: Vec<_> = log.lines().skip(lines).filter(|line| !line.contains("sched")).collect();
    assert!(new.iter().all(|line| !line.contains("munged") && !line.contains("slurmd:")), "{new:#?}");
    assert_eq!(container.sh("ps -eo stat= | grep -c Z || true"), "0");
}
