//! What goes wrong between the machines of a cluster: real daemons in containers on a network, one row for each.
//!
//! `SLURMINIT_BETWEEN=WORD` runs only the cases with that word; `UPDATE=1` writes the rows of tests/image/faults/expected.md. A case removes the fault, and
//! does nothing else that brings the cluster back.

mod lab;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, Image, PLAIN, directory, docker, share, side_by_side, tag};
use crate::long::faults::report::{self, Marks};
use crate::members::Cluster;
use lab::Lab;

const MARKS: Marks = Marks {
    begin: "<!-- between machines: made by the command above -->\n",
    end: "<!-- end of what is between machines -->\n",
};

/// More than there are CPUs: most of a case is waiting.
const SIDE_BY_SIDE: usize = 3;

/// What is cut, for how long, and what is measured then.
struct Case {
    what: &'static str,
    fault: &'static str,
    run: fn() -> Seen,
}

struct Seen {
    outcome: String,
    /// What became of the jobs that ran.
    jobs: &'static str,
}

const CASES: [Case; 14] = [
    Case { what: "controller", fault: "KILL, then started", run: || controller("kill") },
    Case { what: "controller", fault: "stopped, then started", run: || controller("stop") },
    Case { what: "controller", fault: "KILL, then started with another address", run: controller_moves },
    Case { what: "controller", fault: "KILL, and its record of the nodes is lost", run: nodes_forgotten },
    Case { what: "network", fault: "half of the computes cut off from the controller for 60 s", run: partition },
    Case { what: "compute", fault: "paused for 15 s", run: || paused(15) },
    Case { what: "compute", fault: "paused for 60 s", run: || paused(60) },
    Case { what: "compute", fault: "KILL, then started with another address", run: compute_moves },
    Case { what: "munge key", fault: "another key in all containers, and munged restarted in each", run: new_key },
    Case { what: "clock", fault: "of one compute 10 min ahead, then right", run: || clock("+600") },
    Case { what: "clock", fault: "of one compute 10 min behind, then right", run: || clock("-600") },
    Case { what: "20 computes", fault: "KILL of all at once, then started", run: all_die },
    Case { what: "3 computes", fault: "replaced by another image, one after the other", run: rolling_upgrade },
    Case { what: "compute", fault: "another one with the same name; then the first is gone", run: same_name },
];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn controller_that_fails_or_moves_needs_no_repair() {
    check(|what| what == "controller");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn computes_that_fail_or_move_need_no_repair() {
    check(|what| what.contains("compute"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn network_key_and_clock_faults_need_no_repair() {
    check(|what| ["network", "munge key", "clock"].contains(&what));
}

/// The record has a row for each case and no other.
#[test]
fn record_lists_every_case() {
    let names: Vec<String> = CASES.iter().map(|case| format!("| {} | {}", case.what, case.fault)).collect();
    assert_eq!(report::row_names(&record(), &MARKS, 2), names, "make it again with the command in {:?}", record());
}

fn record() -> PathBuf {
    harness::root().join("tests/image/faults/expected.md")
}

fn check(selects: impl Fn(&str) -> bool) {
    share::hold(2);
    let only = std::env::var("SLURMINIT_BETWEEN").unwrap_or_default();
    let name = |case: &Case| format!("{}: {}", case.what, case.fault);
    let cases: Vec<&Case> = CASES.iter().filter(|case| selects(case.what) && name(case).contains(&only)).collect();
    let rows = side_by_side(SIDE_BY_SIDE, &cases, |case| {
        let Seen { outcome, jobs } = (case.run)();
        let row = format!("| {} | {} | {outcome} | {jobs} |\n", case.what, case.fault);
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

fn controller(how: &str) -> Seen {
    let lab = Lab::new(2);
    docker([how, &lab.cluster.controller.name]).ok();
    let begin = Instant::now();
    docker(["start", &lab.cluster.controller.name]).ok();
    lab.until_it_works();
    let took = begin.elapsed();
    lab.assert_nothing_was_lost();
    Seen { outcome: format!("works {} after the start", seconds(took)), jobs: "go on" }
}

/// Takes the container out of the network, gives its address to another, and puts it back.
fn move_to_another_address(lab: &Lab, container: &Container, alias: &str) -> Container {
    let address = |name: &str| {
        let format = format!("{{{{(index .NetworkSettings.Networks \"{}\").IPAddress}}}}", lab.network());
        docker(["inspect", "--format", &format, name]).ok()
    };
    let old = address(&container.name);
    docker(["kill", &container.name]).ok();
    docker(["network", "disconnect", lab.network(), &container.name]).ok();
    let other = Image::new(PLAIN).with(["--network", lab.network(), "--entrypoint", "sleep"]).command(["1000"]).start();
    assert_eq!(address(&other.name), old, "the address is free, and the next one gets it");
    docker(["network", "connect", "--alias", alias, lab.network(), &container.name]).ok();
    docker(["start", &container.name]).ok();
    assert_ne!(address(&container.name), old);
    other
}

fn nodes_forgotten() -> Seen {
    let cluster = Cluster::new("");
    let _compute = cluster.compute("c1", 1);
    let lose = "rm -f /var/lib/slurm/slurmctld/node_state*";
    cluster.controller.sh(&format!("pkill -STOP slurmctld; {lose}; pkill -KILL slurmctld"));
    let begin = Instant::now();
    cluster.until("slurminit health --ready >/dev/null && ! scontrol show node c1 >/dev/null 2>&1");
    cluster.until("sinfo -h -n c1 -o %t | grep -qx idle");
    Seen { outcome: format!("the node is back {} later", seconds(begin.elapsed())), jobs: "none ran" }
}

fn controller_moves() -> Seen {
    let lab = Lab::new(2);
    let other = move_to_another_address(&lab, &lab.cluster.controller, "controller");
    let took = lab.until_it_works();
    lab.assert_nothing_was_lost();
    drop(other);
    Seen { outcome: format!("works {} after the start", seconds(took)), jobs: "go on" }
}

fn compute_moves() -> Seen {
    let lab = Lab::new(2);
    let other = move_to_another_address(&lab, &lab.computes[0], "c1");
    let took = lab.until_it_works();
    lab.assert_requeued(&["c1"]);
    drop(other);
    Seen { outcome: format!("works {} after the start", seconds(took)), jobs: "of that compute are requeued" }
}

/// Runs as root on the host, in the network of the container: what comes from that address or goes there is dropped.
fn cut(container: &Container, address: &str, is_cut: bool) {
    let pid = docker(["inspect", "--format", "{{.State.Pid}}", &container.name]).ok();
    for (chain, end) in [("INPUT", "--source"), ("OUTPUT", "--destination")] {
        let action = if is_cut { "--append" } else { "--delete" };
        let command = ["-t", pid.trim(), "-n", "iptables", "--wait", action, chain, end, address, "--jump", "DROP"];
        let outcome = Command::new("nsenter").args(command).output().expect("nsenter is part of Debian");
        assert!(outcome.status.success(), "{outcome:?}");
    }
}

fn partition() -> Seen {
    let lab = Lab::new(4);
    let address = lab.cluster.controller.sh("hostname -i");
    let away = lab.computes.split_at(2).0;
    away.iter().for_each(|compute| cut(compute, &address, true));
    let begin = Instant::now();
    let down = lab.cluster.until("[ $(sinfo -h -N -o %T | grep -c down) = 2 ]");
    // Whoever is not cut off notices nothing.
    lab.cluster.controller.sh("timeout 10 srun -w c3,c4 --overlap --oversubscribe --mem=1 true");
    std::thread::sleep(Duration::from_secs(60).saturating_sub(begin.elapsed()));
    away.iter().for_each(|compute| cut(compute, &address, false));
    let back = lab.until_it_works();
    lab.assert_requeued(&["c1", "c2"]);
    // What the nodes had run on with has ended: each job runs once.
    lab.cluster.until("[ $(sinfo -h -N -o %T | grep -Ec \"down|comp\") = 0 ]");
    assert_eq!(lab.processes(), lab.jobs.len());
    Seen {
        outcome: format!("down after {}; works {} after the network is back", seconds(down), seconds(back)),
        jobs: "of those computes are requeued; until the network is back their processes run on",
    }
}

fn paused(seconds_long: u64) -> Seen {
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
        return Seen { outcome, jobs: "go on" };
    }
    lab.assert_requeued(&["c1"]);
    lab.cluster.until("[ $(sinfo -h -N -o %T | grep -Ec \"down|comp\") = 0 ]");
    assert_eq!(lab.processes(), lab.jobs.len());
    Seen { outcome, jobs: "of that compute are requeued" }
}

fn new_key() -> Seen {
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
    // What began under the old key ends under the new one.
    lab.cluster.controller.sh(&format!("scancel {}", lab.jobs.join(" ")));
    lab.cluster.until("[ $(sinfo -h -N -o %T | grep -c idle) = 2 ]");
    assert_eq!(lab.processes(), 0);
    Seen { outcome: format!("works {} after the first restart", seconds(took)), jobs: "go on" }
}

fn clock(by: &str) -> Seen {
    crate::long::faults::surroundings::build();
    let lab = Lab::new(1);
    let offset = directory(&[("offset", by)]);
    let wrong = lab
        .cluster
        .member(&format!("{PLAIN}-clock"), "compute", "c2")
        .with(["--env", "FAKETIME_TIMESTAMP_FILE=/clock/offset"])
        .mount(offset.path(), "/clock")
        .json_log()
        .start();
    let said = wrong.until_logged("waiting-for-controller", None);
    lab.cluster.controller.sh("timeout 10 srun -N1 --overlap --oversubscribe --mem=1 true");
    // At once: libfaketime would read a file that is still empty.
    std::fs::write(offset.path().join("new"), "+0").expect("a file");
    std::fs::rename(offset.path().join("new"), offset.path().join("offset")).expect("the clock is set");
    let back = lab.cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c2 idle\"");
    lab.assert_nothing_was_lost();
    Seen {
        outcome: format!(
            "waits, and says after {} that the clocks differ; idle {} after it is right",
            seconds(said),
            seconds(back)
        ),
        jobs: "of others go on",
    }
}

fn all_die() -> Seen {
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
    Seen {
        outcome: format!(
            "Docker starts them in {}; each has a job again {} after the first",
            seconds(started),
            seconds(took)
        ),
        jobs: "are requeued, each once",
    }
}

fn rolling_upgrade() -> Seen {
    // The same program in an image of its own.
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
    Seen {
        outcome: format!("all run again {} after the first stop", seconds(took)),
        jobs: "get `jobs.grace`, and are requeued",
    }
}

fn same_name() -> Seen {
    let lab = Lab::new(2);
    let second = lab.cluster.member(DEMO, "compute", "c1").with(["--env", "DEMO_GPUS=1"]).json_log().start();
    let said = second.until_logged("node-name-taken", None);
    lab.until_it_works();
    lab.assert_nothing_was_lost();
    docker(["kill", &lab.computes[0].name]).ok();
    let begin = Instant::now();
    second.wait_until_healthy();
    let took = begin.elapsed();
    lab.cluster.until(&format!("squeue -h -t R -o %i | grep -qx {}", lab.jobs[0]));
    lab.cluster.until(&format!("squeue -h -t R -o %i | grep -qx {}", lab.jobs[1]));
    Seen {
        outcome: format!(
            "waits, and says after {} that the name is taken; ready {} after the first is gone",
            seconds(said),
            seconds(took)
        ),
        jobs: "go on; those of one that is gone are requeued",
    }
}
