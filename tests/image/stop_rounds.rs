//! Random rounds of stops, kills, restarts, reloads, refused and killed reloads and an administrator's drains, with a command, services
//! and jobs that save themselves at a stop: only a kill loses jobs, no drain is lost or added, and no partition stays closed.
//!
//! `SLURMINIT_ROUNDS` is the number of rounds, and `SLURMINIT_SEED` repeats a run.

use std::fs;
use std::path::Path;

use crate::docker::{Container, DEMO, Image, Volume, directory, docker};
use crate::long::change_rounds::{JobLedger, pick, release_held_jobs};
use crate::long::jobs_rounds::{Random, rounds_and_seed};

/// On SIGTERM, submits its successor, whose ID it records, and exits.
const CHECKPOINT: &str = r#"#!/bin/sh
trap 'next=$(sbatch --parsable --requeue --mem=8 -p debug --output=/dev/null /config/checkpoint.sh) && echo "$next" >>/var/lib/slurm/next; exit 0' TERM
tenths=0
while [ $tenths -lt 300 ]; do sleep 0.1; tenths=$((tenths + 1)); done
"#;

/// The behaviour of the container's command at a stop.
const COMMANDS: [&str; 3] = [
    "trap 'exit 0' TERM; while :; do sleep 0.1; done",
    "trap '' TERM; while :; do sleep 0.1; done",
    "trap 'sbatch --parsable --mem=8 -p debug --output=/dev/null --wrap true >>/var/lib/slurm/next; exit 0' TERM; while :; do sleep 0.1; done",
];

/// Script and options of each kind of job.
const JOBS: [&str; 6] = [
    "--requeue /config/checkpoint.sh",
    "--requeue /config/checkpoint.sh",
    "--requeue --wrap \"trap '' TERM; sleep 15 & wait; wait\"",
    "--requeue --hold --wrap true",
    "--requeue --array=1-3 --wrap 'exec sleep 2'",
    "--requeue --wrap 'exec sleep 6'",
];

const SERVICES: &str = "[[service]]\nname = \"short\"\ncommand = [\"sleep\", \"8\"]\n\
    [[service]]\nname = \"stubborn\"\ncommand = [\"sh\", \"-c\", \"trap '' TERM; while :; do sleep 1; done\"]\nstop_timeout = 1\n";

/// A random configuration. The partition debug is always there.
fn configuration(random: &mut Random) -> String {
    let others = pick(random, &["", "short", "short long", "long"]);
    let table = |name| format!("[[partition]]\nname = \"{name}\"\nOverSubscribe = \"FORCE:64\"\n");
    let mut toml: String = others.split_whitespace().chain(["debug"]).map(table).collect();
    toml += pick(random, &["", "", "[node]\nfeatures = [\"x\"]\n", "[jobs]\ngrace = 2\n"]);
    format!("{toml}{SERVICES}[supervise]\nreload_on_change = false\nreset_after = 0.001\ngive_up_after = 1000\n")
}

fn partitions(toml: &str) -> Vec<&str> {
    let names = toml.split("[[partition]]\nname = \"").skip(1);
    names.filter_map(|rest| rest.split('"').next()).collect()
}

/// Makes a random change that keeps the container. Returns its name, and whether the container is certain to have the configuration
/// of the file.
fn change(container: &Container, config: &Path, random: &mut Random) -> (&'static str, bool) {
    let write = |text: &str| fs::write(config.join("slurminit.toml"), text).expect("slurminit.toml is writable");
    match random.below(8) {
        0 => {
            docker(["stop", "--time", "30", &container.name]).ok();
            docker(["start", &container.name]).ok();
            ("stop", true)
        }
        1 => {
            docker(["kill", &container.name]).ok();
            docker(["start", &container.name]).ok();
            ("kill", true)
        }
        2 => {
            docker(["restart", "--time", "30", &container.name]).ok();
            ("restart", true)
        }
        3 => {
            let former = fs::read_to_string(config.join("slurminit.toml")).expect("slurminit.toml is readable");
            write("[[partition]]\nname = \"short\"\nMaxTime = \"often\"\n");
            assert_ne!(container.exec(&["slurminit", "reload"]).code, 0, "{}", container.log());
            write(&former);
            ("refused reload", false)
        }
        4 | 5 => {
            let tenths = random.below(15);
            let line = format!(
                "slurminit reload & sleep {}.{}; pkill -KILL -f '^slurminit prepare' ; wait",
                tenths / 10,
                tenths % 10
            );
            container.exec(&["bash", "-c", &line]);
            ("killed reload", false)
        }
        _ => ("reload", container.exec(&["slurminit", "reload"]).code == 0),
    }
}

/// Waits until the start, or a reload that PID 1 repeats or undoes, has ended.
fn wait_until_serving(container: &Container) {
    let serving =
        "slurminit status --json 2>/dev/null | grep -q \"phase.: *.ready\" && sinfo --noheader --all | grep -q .";
    container.until(serving);
}

fn check_drain(container: &Container, drain: Option<&str>, when: &str) {
    let node = "sinfo --noheader --Node --nodes=localhost --format=\"%T|%E\" | sort -u";
    let expected = match drain {
        Some(reason) => format!("{node} | grep -q \"^drain.*|{reason}$\""),
        None => format!("{node} | grep -qE \"^(idle|mixed|allocated|completing|planned)[|]\""),
    };
    let outcome = container.wait_until(90, &expected);
    let states = container.sh("sinfo --noheader --all --Node --format='%N %R %a %T|%E'");
    assert_eq!(outcome.code, 0, "{when}: expected the drain {drain:?}, found {states}\n{}", container.log());
}

fn check_partitions(container: &Container, names: &[&str], when: &str) {
    for name in names {
        let outcome =
            container.wait_until(60, &format!("sinfo --noheader --all --format=\"%R %a\" | grep -qx \"{name} up\""));
        let states = || container.sh("sinfo --noheader --all --format='%R %a'; cat /etc/slurm/slurm.conf");
        assert_eq!(outcome.code, 0, "{when}: partition {name} is closed: {}\n{}", states(), container.log());
    }
}

fn serve(config: &Path, slurm: &Volume, random: &mut Random) -> Container {
    let image = Image::new(DEMO).json_log().with(["--hostname", "node1"]).mount(config, "/config");
    let container = image.volume(slurm, "/var/lib/slurm").command(["sh", "-c", pick(random, &COMMANDS)]).start();
    wait_until_serving(&container);
    container
}

/// Runs the rounds. Also checks the jobs that other jobs submit (`next`).
pub(crate) fn run(default_rounds: u64) {
    let (rounds, seed) = rounds_and_seed(default_rounds, 49);
    let mut random = Random::of(seed);
    let mut toml = configuration(&mut random);
    let files = directory(&[("slurminit.toml", &toml), ("checkpoint.sh", CHECKPOINT)]);
    let slurm = Volume::new("stops");
    let mut container = serve(files.path(), &slurm, &mut random);
    container.sh("touch /var/lib/slurm/next; chmod 666 /var/lib/slurm/next");
    let (mut ledger, mut recorded, mut former_log, mut drain) = (JobLedger::default(), 0, String::new(), None);
    // The configurations that the container may have: a killed or refused reload keeps the previous one.
    let mut configurations = vec![toml.clone()];
    for round in 0..rounds {
        for _ in 0..=random.below(2) {
            let line = format!(
                "cd /tmp; sbatch --parsable --mem=8 --partition=debug --output=/dev/null {}",
                pick(&mut random, &JOBS)
            );
            ledger.add(container.sh(&line));
        }
        if random.below(4) == 0 {
            let (state, reason) = match drain {
                None => ("drain", Some(format!("round {round}, ask Bob"))),
                Some(_) => ("resume", None),
            };
            let words = reason.as_ref().map(|reason| format!("reason='{reason}'")).unwrap_or_default();
            container.sh(&format!("scontrol update nodename=localhost state={state} {words}"));
            // A kill may lose what slurmctld has not saved.
            container.until_saved();
            drain = reason;
        }
        if random.below(2) == 0 {
            toml = configuration(&mut random);
            fs::write(files.path().join("slurminit.toml"), &toml).expect("slurminit.toml is writable");
        }
        let (step, is_applied) = if random.below(8) == 0 {
            container.stop();
            former_log += &container.log();
            drop(container);
            container = serve(files.path(), &slurm, &mut random);
            ("another container", true)
        } else {
            change(&container, files.path(), &mut random)
        };
        let when = format!("round {round}, seed {seed}, {step}, drain {drain:?}");
        wait_until_serving(&container);
        check_drain(&container, drain.as_deref(), &when);
        if is_applied {
            configurations.clear();
        }
        configurations.push(toml.clone());
        let is_in_all = |name: &&str| configurations.iter().all(|toml| partitions(toml).contains(name));
        check_partitions(&container, &partitions(&toml).into_iter().filter(is_in_all).collect::<Vec<_>>(), &when);
        let next = container.sh("cat /var/lib/slurm/next");
        next.lines().skip(recorded).for_each(|id| ledger.add(id.to_owned()));
        recorded = next.lines().count();
        if round % 5 == 4 || round + 1 == rounds {
            if drain.take().is_some() {
                container.sh("scontrol update nodename=localhost state=resume");
                container.until_saved();
            }
            release_held_jobs(&container, round % 20 == 19 || round + 1 == rounds);
        }
        let former_losses = ledger.reported_lost;
        ledger.check(&container, &(former_log.clone() + &container.log()), &when);
        assert!(step == "kill" || ledger.reported_lost == former_losses, "{when}: {ledger:?}\n{}", container.log());
        ledger.count(step);
        if round % 10 == 9 || round + 1 == rounds {
            eprintln!("{} rounds, seed {seed}: {ledger:?}", round + 1);
        }
    }
    assert!(ledger.is_empty(), "{ledger:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_kill_and_reload_lose_no_job_no_drain_and_close_no_partition() {
    run(3);
}
