//! Faults between the machines of a cluster: real daemons in containers on a network, one table row per case.
//!
//! A case removes the fault and does nothing else to recover the cluster. `SLURMINIT_BETWEEN=WORD` runs only the
//! cases with that word; `UPDATE=1` writes the rows of tests/image/faults/expected.md.

mod lab;

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, Image, PLAIN, directory, docker, side_by_side, tag};
use crate::long::faults::report::{self, Marks};
use crate::members::Cluster;
use lab::Lab;

const MARKS: Marks = Marks {
    begin: "<!-- between machines: made by the command above -->\n",
    end: "<!-- end of what is between machines -->\n",
};

/// Number of parallel cases. May exceed the number of CPUs: a case mostly waits.
const SIDE_BY_SIDE: usize = 3;

/// A component, its fault, and the function that runs the case.
#[derive(Clone, Copy)]
struct Case {
    component: &'static str,
    fault: &'static str,
    run: fn() -> CaseResult,
}

struct CaseResult {
    outcome: String,
    /// The outcome of the running jobs.
    jobs: &'static str,
}

const CASES: [Case; 14] = [
    Case { component: "controller", fault: "KILL, then started", run: || controller("kill") },
    Case { component: "controller", fault: "stopped, then started", run: || controller("stop") },
    Case { component: "controller", fault: "KILL, then started with another address", run: controller_moves },
    Case { component: "controller", fault: "KILL, and its record of the nodes is lost", run: controller_loses_nodes },
    Case { component: "network", fault: "half of the computes cut off from the controller for 60 s", run: partition },
    Case { component: "compute", fault: "paused for 15 s", run: || paused(15) },
    Case { component: "compute", fault: "paused for 60 s", run: || paused(60) },
    Case { component: "compute", fault: "KILL, then started with another address", run: compute_moves },
    Case { component: "munge key", fault: "another key in all containers, and munged restarted in each", run: new_key },
    Case { component: "clock", fault: "of one compute 10 min ahead, then right", run: || clock("+600") },
    Case { component: "clock", fault: "of one compute 10 min behind, then right", run: || clock("-600") },
    Case { component: "20 computes", fault: "KILL of all at once, then started", run: kill_all_computes },
    Case { component: "3 computes", fault: "replaced by another image, one after the other", run: rolling_upgrade },
    Case { component: "compute", fault: "another one with the same name; then the first is gone", run: same_name },
];

/// The only case in a regular run of docker/test.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_recovers_from_killed_controller() {
    check(&CASES[..1]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_recovers_from_controller_failure_and_move() {
    check_all(|component| component == "controller");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_recovers_from_compute_failures_and_moves() {
    check_all(|component| component.contains("compute"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_recovers_from_network_key_and_clock_faults() {
    check_all(|component| ["network", "munge key", "clock"].contains(&component));
}

/// The recorded table has exactly one row per case.
#[test]
fn record_lists_every_case() {
    let names: Vec<String> = CASES.iter().map(|case| format!("| {} | {}", case.component, case.fault)).collect();
    assert_eq!(report::row_names(&record(), &MARKS, 2), names, "regenerate it with the command in {:?}", record());
}

fn record() -> PathBuf {
    harness::root().join("tests/image/faults/expected.md")
}

fn check_all(selects: impl Fn(&str) -> bool) {
    let only = std::env::var("SLURMINIT_BETWEEN").unwrap_or_default();
    let name = |case: &Case| format!("{}: {}", case.component, case.fault);
    let is_selected = |case: &Case| selects(case.component) && name(case).contains(&only);
    check(&CASES.into_iter().filter(is_selected).collect::<Vec<_>>());
}

fn check(cases: &[Case]) {
    let rows = side_by_side(SIDE_BY_SIDE, cases, |case| {
        let CaseResult { outcome, jobs } = (case.run)();
        let row = format!("| {} | {} | {outcome} | {jobs} |\n", case.component, case.fault);
        eprint!("{row}");
        row
    });
    let table = format!("| what | fault | outcome | jobs that ran |\n|---|---|---|---|\n{}", rows.concat());
    println!("{table}");
    harness::write_evidence(&table);
    if std::env::var_os("UPDATE").is_some() {
        report::update(&record(), &MARKS, &table, 2);
    } else {
        report::compare(&record(), &MARKS, &table, 4);
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn controller(how: &str) -> CaseResult {
    let lab = Lab::new(2);
    docker([how, &lab.cluster.controller.name]).ok();
    let begin = Instant::now();
    docker(["start", &lab.cluster.controller.name]).ok();
    lab.until_it_works();
    let took = begin.elapsed();
    lab.assert_nothing_was_lost();
    CaseResult { outcome: format!("works {} after the start", seconds(took)), jobs: "go on" }
}

/// Kills the container and starts it with another address. Returns a container that occupies the old address.
fn move_to_another_address(lab: &Lab, container: &Container, alias: &str) -> Container {
    let address = |name: &str| {
        let format = format!("{{{{(index .NetworkSettings.Networks \"{}\").IPAddress}}}}", lab.network());
        docker(["inspect", "--format", &format, name]).ok()
    };
    let old = address(&container.name);
    docker(["kill", &container.name]).ok();
    docker(["network", "disconnect", lab.network(), &container.name]).ok();
    let other = Image::new(PLAIN).with(["--network", lab.network(), "--entrypoint", "sleep"]).command(["1000"]).start();
    assert_eq!(address(&other.name), old, "the next container gets the freed address");
    docker(["network", "connect", "--alias", alias, lab.network(), &container.name]).ok();
    docker(["start", &container.name]).ok();
    assert_ne!(address(&container.name), old);
    other
}

fn controller_loses_nodes() -> CaseResult {
    let cluster = Cluster::new("");
    let _compute = cluster.compute("c1", 1);
    let lose = "rm -f /var/lib/slurm/slurmctld/node_state*";
    cluster.controller.sh(&format!("pkill -STOP slurmctld; {lose}; pkill -KILL slurmctld"));
    let begin = Instant::now();
    cluster.until("slurminit health --ready >/dev/null && ! scontrol show node c1 >/dev/null 2>&1");
    cluster.until("sinfo -h -n c1 -o %t | grep -qx idle");
    CaseResult { outcome: format!("the node is back {} later", seconds(begin.elapsed())), jobs: "none ran" }
}

fn controller_moves() -> CaseResult {
    let lab = Lab::new(2);
    let other = move_to_another_address(&lab, &lab.cluster.controller, "controller");
    let took = lab.until_it_works();
    lab.assert_nothing_was_lost();
    drop(other);
    CaseResult { outcome: format!("works {} after the start", seconds(took)), jobs: "go on" }
}

fn compute_moves() -> CaseResult {
    let lab = Lab::new(2);
    let other = move_to_another_address(&lab, &lab.computes[0], "c1");
    let took = lab.until_it_works();
    lab.assert_requeued(&["c1"]);
    drop(other);
    CaseResult { outcome: format!("works {} after the start", seconds(took)), jobs: "of that compute are requeued" }
}

/// Drops packets between the container and the address, or stops dropping them. Needs root on the host.
fn set_blocked(container: &Container, address: &str, is_blocked: bool) {
    let pid = docker(["inspect", "--format", "{{.State.Pid}}", &container.name]).ok();
    for (chain, end) in [("INPUT", "--source"), ("OUTPUT", "--destination")] {
        let action = if is_blocked { "--append" } else { "--delete" };
        let command = ["-t", pid.trim(), "-n", "iptables", "--wait", action, chain, end, address, "--jump", "DROP"];
        let outcome = Command::new("nsenter").args(command).output().expect("nsenter is part of Debian");
        assert!(outcome.status.success(), "{outcome:?}");
    }
}

fn partition() -> CaseResult {
    let lab = Lab::new(4);
    let address = lab.cluster.controller.sh("hostname -i");
    let isolated = lab.computes.split_at(2).0;
    isolated.iter().for_each(|compute| set_blocked(compute, &address, true));
    let begin = Instant::now();
    let down = lab.cluster.until("[ $(sinfo -h -N -o %T | grep -c down) = 2 ]");
    // The other computes are not affected.
    lab.cluster.controller.sh("timeout 10 srun -w c3,c4 --overlap --oversubscribe --mem=1 true");
    std::thread::sleep(Duration::from_secs(60).saturating_sub(begin.elapsed()));
    isolated.iter().for_each(|compute| set_blocked(compute, &address, false));
    let back = lab.until_it_works();
    lab.assert_requeued(&["c1", "c2"]);
    // The isolated nodes end their old processes: each job runs once.
    lab.cluster.until("[ $(sinfo -h -N -o %T | grep -Ec \"down|comp\") = 0 ]");
    assert_eq!(lab.processes(), lab.jobs.len());
    CaseResult {
        outcome: format!("down after {}; works {} after the network is back", seconds(down), seconds(back)),
        jobs: "of those computes are requeued; until the network is back their processes run on",
    }
}

fn paused(seconds_long: u64) -> CaseResult {
    let lab = Lab::new(2);
    docker(["pause", &lab.computes[0].name]).ok();
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(seconds_long));
    docker(["unpause", &lab.computes[0].name]).ok();
    let back = lab.until_it_works();
    eprintln!("paused for {:?}", begin.elapsed());
    let outcome = format!("works {} after that", seconds(back));
    // SlurmdTimeout is 30 s.
    if seconds_long < 30 {
        lab.assert_nothing_was_lost();
        return CaseResult { outcome, jobs: "go on" };
    }
    lab.assert_requeued(&["c1"]);
    lab.cluster.until("[ $(sinfo -h -N -o %T | grep -Ec \"down|comp\") = 0 ]");
    assert_eq!(lab.processes(), lab.jobs.len());
    CaseResult { outcome, jobs: "of that compute are requeued" }
}

fn new_key() -> CaseResult {
    let lab = Lab::new(2);
    lab.cluster.controller.sh("head -c 128 /dev/urandom >/etc/munge/new && chown munge: /etc/munge/new && \
         chmod 0400 /etc/munge/new && mv /etc/munge/new /etc/munge/munge.key");
    let begin = Instant::now();
    for container in lab.computes.iter().chain([&lab.cluster.controller]) {
        container.sh("slurminit restart munged");
    }
    lab.until_it_works();
    let took = begin.elapsed();
    lab.assert_nothing_was_lost();
    // Jobs that started with the old key can be cancelled with the new key.
    lab.cluster.controller.sh(&format!("scancel {}", lab.jobs.join(" ")));
    lab.cluster.until("[ $(sinfo -h -N -o %T | grep -c idle) = 2 ]");
    assert_eq!(lab.processes(), 0);
    CaseResult { outcome: format!("works {} after the first restart", seconds(took)), jobs: "go on" }
}

/// A daemon without root's rights does not inherit the container's variables.
const FAKETIME_FOR_MUNGED: &str = "[daemon.munged.env]\nLD_PRELOAD = '/usr/lib/libfaketime.so'\n\
    FAKETIME_TIMESTAMP_FILE = '/clock/offset'\nFAKETIME_NO_CACHE = '1'\nFAKETIME_DONT_FAKE_MONOTONIC = '1'\n\
    FAKETIME_DISABLE_SHM = '1'\n";

fn clock(by: &str) -> CaseResult {
    crate::long::faults::surroundings::build();
    let lab = Lab::new(1);
    let offset = directory(&[("offset", by), ("slurminit.toml", FAKETIME_FOR_MUNGED)]);
    std::fs::set_permissions(offset.path(), std::fs::Permissions::from_mode(0o755)).expect("readable for munged");
    let skewed = lab
        .cluster
        .member(&format!("{PLAIN}-clock"), "compute", "c2")
        .with(["--env", "FAKETIME_TIMESTAMP_FILE=/clock/offset"])
        .mount(offset.path(), "/clock")
        .mount(&offset.path().join("slurminit.toml"), "/config/slurminit.toml")
        .json_log()
        .start();
    let reported = skewed.until_logged("waiting-for-controller", None);
    lab.cluster.controller.sh("timeout 10 srun -N1 --overlap --oversubscribe --mem=1 true");
    // Replaced atomically, because libfaketime could otherwise read an empty file.
    std::fs::write(offset.path().join("new"), "+0").expect("a file");
    std::fs::rename(offset.path().join("new"), offset.path().join("offset")).expect("the clock is set");
    let back = lab.cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c2 idle\"");
    lab.assert_nothing_was_lost();
    CaseResult {
        outcome: format!(
            "waits, and says after {} that the clocks differ; idle {} after it is right",
            seconds(reported),
            seconds(back)
        ),
        jobs: "of others go on",
    }
}

fn kill_all_computes() -> CaseResult {
    let cluster = Cluster::new("");
    let images: Vec<Image> = (1..=20).map(|n| cluster.member(DEMO, "compute", &format!("c{n}"))).collect();
    let computes: Vec<Container> = images.iter().map(Image::start).collect();
    cluster.until("[ $(sinfo -h -N -o %T | grep -c idle) = 20 ]");
    let jobs: Vec<String> = computes.iter().map(|_| cluster.submit("--exclusive")).collect();
    let lab = Lab { computes, jobs, nodes: Vec::new(), cluster };
    lab.until_all_run();
    lab.cluster.controller.until_saved();
    let names = || lab.computes.iter().map(|compute| compute.name.as_str());
    docker(["kill"].into_iter().chain(names())).ok();
    let begin = Instant::now();
    docker(["start"].into_iter().chain(names())).ok();
    let started = begin.elapsed();
    lab.until_all_run();
    let took = begin.elapsed();
    assert!(lab.restarts().iter().all(|restarts| restarts == "1"), "{:?}", lab.restarts());
    lab.cluster.until("[ $(sinfo -h -N -o %T | grep -Ec \"down|comp\") = 0 ]");
    CaseResult {
        outcome: format!(
            "Docker starts them in {}; each has a job again {} after the first",
            seconds(started),
            seconds(took)
        ),
        jobs: "are requeued, each once",
    }
}

fn rolling_upgrade() -> CaseResult {
    // The same program in a separate image.
    let name = format!("{}-upgrade", tag(PLAIN));
    let directory = directory(&[("Dockerfile", &format!("FROM {}\nLABEL of=upgrade\n", tag(DEMO)))]);
    docker(["build", "--quiet", "--tag", &name, directory.path().to_str().expect("a path")]).ok();
    let mut lab = Lab::new(3);
    let begin = Instant::now();
    for at in 0..3 {
        assert_eq!(lab.computes[at].stop(), 0, "{}", lab.computes[at].log());
        let node = format!("c{}", at + 1);
        let image = lab.cluster.member(&format!("{PLAIN}-upgrade"), "compute", &node).with(["--env", "DEMO_GPUS=1"]);
        lab.computes[at] = image.serve();
    }
    lab.until_all_run();
    let took = begin.elapsed();
    let restarts = lab.restarts();
    assert!(restarts.iter().all(|restarts| ["1", "2", "3"].contains(&restarts.as_str())), "{restarts:?}");
    let nodes: Vec<String> = lab.jobs.iter().map(|job| lab.node_of(job)).collect();
    assert_eq!(nodes.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{nodes:?}");
    assert_eq!(lab.processes(), 3);
    CaseResult {
        outcome: format!("all run again {} after the first stop", seconds(took)),
        jobs: "get `jobs.grace`, and are requeued",
    }
}

fn same_name() -> CaseResult {
    let lab = Lab::new(2);
    let second = lab.cluster.member(DEMO, "compute", "c1").with(["--env", "DEMO_GPUS=1"]).json_log().start();
    let reported = second.until_logged("node-name-taken", None);
    lab.until_it_works();
    lab.assert_nothing_was_lost();
    docker(["kill", &lab.computes[0].name]).ok();
    let begin = Instant::now();
    second.wait_until_healthy();
    let took = begin.elapsed();
    lab.cluster.until(&format!("squeue -h -t R -o %i | grep -qx {}", lab.jobs[0]));
    lab.cluster.until(&format!("squeue -h -t R -o %i | grep -qx {}", lab.jobs[1]));
    CaseResult {
        outcome: format!(
            "waits, and says after {} that the name is taken; ready {} after the first is gone",
            seconds(reported),
            seconds(took)
        ),
        jobs: "go on; those of one that is gone are requeued",
    }
}
