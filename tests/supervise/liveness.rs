//! Services that run but do not respond, with a stand-in probe. tests/image tests Slurm's daemons.

use super::cluster::Cluster;
use super::*;

/// A probe that succeeds until the file `hung` exists; then it records its PID and hangs.
const PROBE: &str = "test ! -e DIR/hung || { echo $$ >> DIR/probes; sleep 1000; }; echo asked >> DIR/asked";

fn cluster(service: &str) -> Cluster {
    Cluster::new(&format!(
        "[supervise]\nprobe_interval = 1\nprobe_timeout = 1\n\
         [[service]]\nname = 'api'\ncommand = ['sh', '-c', '{service}']\n\
         liveness = {{ command = ['sh', '-c', '{PROBE}'] }}\n"
    ))
}

/// Waits until slurminit has evaluated a response. Until then, the service counts as starting.
fn wait_for_response(cluster: &Cluster) {
    let asked = || fs::read_to_string(cluster.path("asked")).unwrap_or_default();
    // The second probe starts after the evaluation of the first one.
    wait_for("two rounds", || (asked().lines().count() >= 2).then_some(()));
}

fn pids(cluster: &Cluster) -> Vec<String> {
    ["munged", "slurmctld", "slurmd", "api"].iter().map(|name| cluster.unit(name)["pid"].to_string()).collect()
}

#[test]
fn restarts_only_hung_service_and_status_shows_reason() {
    let cluster = cluster("rm -f DIR/hung; echo up >> DIR/up; exec sleep 1000");
    let init = cluster.start_with_json_log();
    cluster.wait_until_ready();
    wait_for_response(&cluster);
    let before = pids(&cluster);
    fs::write(cluster.path("hung"), "").unwrap();
    let reason = wait_for("the restart", || {
        let api = cluster.unit("api");
        (api["restarts"] == 1 && api["state"] == "ready").then(|| api["last_exit_why"].as_str().unwrap().to_owned())
    });
    assert!(reason.contains("did not answer (no answer within 1.0 s"), "{reason}");
    let after = pids(&cluster);
    assert_eq!(before[..3], after[..3]);
    assert_ne!(before[3], after[3]);
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert_eq!(end.logged("unit-unresponsive", "api"), 1, "{}", end.stderr);
}

#[test]
fn hung_probes_do_not_accumulate() {
    // The service uses CPU time, so it counts as slow, not hung, and the rounds continue.
    let cluster = cluster("while :; do :; done");
    let init = cluster.start_with_json_log();
    cluster.wait_until_ready();
    wait_for_response(&cluster);
    fs::write(cluster.path("hung"), "").unwrap();
    let probes = wait_for("six probes", || {
        let probes: Vec<i32> =
            fs::read_to_string(cluster.path("probes")).ok()?.lines().map_while(|pid| pid.parse().ok()).collect();
        (probes.len() >= 6).then_some(probes)
    });
    let own_pid = |pid| status_field(pid, "NSpid")?.split_whitespace().last()?.parse::<i32>().ok();
    let running: Vec<i32> = descendants(init.pid).into_iter().filter_map(own_pid).collect();
    let left: Vec<&i32> = probes[..probes.len() - 1].iter().filter(|pid| running.contains(pid)).collect();
    assert!(left.is_empty(), "{left:?} of the probes {probes:?} still run");
    let sleepers = descendants(init.pid).into_iter().filter(|pid| command_line(*pid).starts_with("sleep 1000")).count();
    // One per stand-in and one for the current probe.
    assert!(sleepers <= 4, "{sleepers} sleep processes after {} probes", probes.len());
    assert_eq!(cluster.unit("api")["restarts"], 0);
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert_eq!(end.logged("unit-slow", "api"), 1, "{}", end.stderr);
}

#[test]
fn healthy_service_causes_no_restart_and_no_log() {
    let cluster = cluster("exec sleep 1000");
    let init = cluster.start_with_json_log();
    cluster.wait_until_ready();
    wait_for("five rounds", || {
        let asked = fs::read_to_string(cluster.path("asked")).unwrap_or_default();
        (asked.lines().count() >= 5).then_some(())
    });
    assert_eq!(cluster.unit("api")["restarts"], 0);
    init.signal(15);
    let end = init.end();
    // A busy machine may make it slow.
    for kind in ["unit-unresponsive", "unit-not-checked"] {
        assert_eq!(end.logged(kind, "api"), 0, "{}", end.stderr);
    }
}

#[test]
fn idle_pid_1_wakes_twice_per_liveness_round() {
    // The file `asked` is in a directory that slurminit does not watch.
    let cluster = Cluster::new(
        "[supervise]\nprobe_interval = 0.3\n[[service]]\nname = 'api'\ncommand = ['sleep', '1000']\n\
         liveness = { command = ['sh', '-c', 'echo asked >> DIR/bin/asked'] }\n",
    );
    let init = cluster.start_with_json_log();
    cluster.wait_until_ready();
    let rounds = || fs::read_to_string(cluster.path("bin/asked")).unwrap_or_default().lines().count();
    let switches = || status_field(init.pid, "voluntary_ctxt_switches").unwrap().parse::<usize>().unwrap();
    let sample = || (rounds(), switches());
    wait_for("a round", || (rounds() >= 3).then_some(()));
    // Load adds switches, for example one per major page fault, so take the minimum of several windows.
    let window = || {
        let begin = sample();
        let end = wait_for("four rounds", || Some(sample()).filter(|sample| sample.0 >= begin.0 + 4));
        (end.1 - begin.1, end.0 - begin.0)
    };
    let (wakes, rounds) = (0..8).map(|_| window()).min().unwrap();
    // One wake-up for the timer and one for the child's exit. The first exit may belong to the round before the window.
    assert!(wakes <= 2 * rounds + 1, "{wakes} wake-ups in {rounds} rounds");
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

fn descendants(pid: i32) -> Vec<i32> {
    let children = children(u32::try_from(pid).unwrap());
    children.iter().flat_map(|child| descendants(*child)).chain(children.clone()).collect()
}

fn command_line(pid: i32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ")
}
