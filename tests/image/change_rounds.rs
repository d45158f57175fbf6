//! Random rounds of jobs and configuration changes, applied by a reload, stop, restart or kill: no job is lost and none
//! becomes NODE_FAIL.
//!
//! `SLURMINIT_ROUNDS` is the number of rounds (default 3). `SLURMINIT_SEED` repeats a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::jobs_rounds::{Random, lost, rounds_and_seed};
use crate::docker::{Container, DEMO, Image, Volume, directory, docker, records};
use crate::members::Cluster;

/// Options of sbatch in addition to the partition. BEFORE is the ID of the previous job.
const SUBMIT_OPTIONS: [&str; 7] = [
    "",
    "--hold",
    "--nodelist=localhost",
    "--hold --nodelist=localhost",
    "--array=1-3",
    "--dependency=afterany:BEFORE",
    "--hold --array=1-2",
];

pub(crate) fn pick<'a, T: ?Sized>(random: &mut Random, choices: &[&'a T]) -> &'a T {
    choices[random.below(choices.len() as u64) as usize]
}

/// A random configuration of partitions, node settings and a user.
fn configuration(random: &mut Random) -> String {
    let partitions = pick(random, &["", "short", "short long", "debug long", "long", "debug short"]);
    let table = |name| format!("[[partition]]\nname = \"{name}\"\nOverSubscribe = \"FORCE:64\"\n");
    let mut toml: String = partitions.split_whitespace().map(table).collect();
    toml += pick(random, &["", "", "", "[node]\ncpus = 1\n", "[node]\nfeatures = [\"x\"]\n"]);
    toml += pick(random, &["", "[[user]]\nname = \"ann\"\nuid = 2001\n", "[[user]]\nname = \"ann\"\nuid = 2001\n"]);
    format!("{toml}[supervise]\nreload_on_change = false\nreset_after = 0.001\ngive_up_after = 1000\n")
}

/// Submits a job as a random user to one or all of the partitions that accept jobs. Returns the job ID.
fn submit(container: &Container, options: &[&str], previous: Option<&str>, random: &mut Random) -> Option<String> {
    let up = container.sh("sinfo --noheader --all --format='%R %a' | sed -n 's/ up$//p' | sort -u");
    let up: Vec<&str> = up.lines().collect();
    let mut partition = pick(random, &up).to_owned();
    if up.len() > 1 && random.below(3) == 0 {
        partition = up.join(",");
    }
    let options = match previous {
        Some(id) => pick(random, options).replace("BEFORE", id),
        None => String::new(),
    };
    let seconds = pick(random, &["0", "1", "4", "20"]);
    let line = format!(
        "cd /tmp; sbatch --parsable --requeue --mem=8 -p {partition} {options} --output=/dev/null --wrap 'exec sleep {seconds}'"
    );
    let has_ann = container.exec(&["id", "ann"]).code == 0;
    let user = if has_ann && random.below(3) == 0 { "ann" } else { "root" };
    let outcome = container.exec(&["timeout", "30", "su", user, "-s", "/bin/sh", "-c", &line]);
    (outcome.code == 0).then(|| outcome.stdout.trim().to_owned())
}

/// The jobs submitted so far and their outcomes.
#[derive(Debug, Default)]
pub(crate) struct JobLedger {
    /// IDs of the jobs whose end was not yet observed.
    unfinished: BTreeSet<String>,
    submitted: usize,
    ended: usize,
    pub(crate) reported_lost: usize,
    steps: BTreeMap<String, u32>,
}

impl JobLedger {
    pub(crate) fn add(&mut self, id: String) {
        self.submitted += 1;
        self.unfinished.insert(id);
    }

    pub(crate) fn count(&mut self, step: &str) {
        *self.steps.entry(step.to_owned()).or_default() += 1;
    }

    /// Whether the end of each job was observed.
    pub(crate) fn is_empty(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// Asserts that each job is queued, completed, cancelled or reported as lost.
    pub(crate) fn check(&mut self, container: &Container, log: &str, when: &str) {
        let queue = container.sh("squeue --noheader --all --array --format='%F %T'");
        let ended = container
            .sh("cat /var/lib/slurm/jobcomp/*; squeue --noheader --all --states=all --format='JobId=%F JobState=%T'");
        let queued: BTreeSet<&str> = queue.lines().filter_map(|line| line.split(' ').next()).collect();
        let lost = lost(log);
        for id in self.unfinished.clone() {
            if queued.contains(id.as_str()) {
                continue;
            }
            let prefix = format!("JobId={id} ");
            let states: Vec<&str> = ended
                .lines()
                .filter(|line| line.starts_with(&prefix))
                .filter_map(|line| line.split_once("JobState=")?.1.split(' ').next())
                .collect();
            let is_lost = lost.contains(&id) || may_be_lost(log, &id);
            self.reported_lost += usize::from(is_lost);
            let has_ended_well = states.last().is_some_and(|state| ["COMPLETED", "CANCELLED"].contains(state));
            assert!(
                has_ended_well || is_lost,
                "{when}: job {id} {states:?}\n{}\n{log}",
                container.sh("squeue --all --states=all")
            );
            self.ended += usize::from(!is_lost);
            self.unfinished.remove(&id);
        }
    }
}

/// Whether the log has a `jobs-may-be-lost` range with this job: slurmctld was killed before it saved the job. A
/// controller without a node cannot name the lost jobs.
fn may_be_lost(log: &str, id: &str) -> bool {
    let id: u32 = id.parse().unwrap_or_default();
    let number = |record: &Value, name: &str| record["fields"][name].as_str()?.parse::<u32>().ok();
    let range = |record: &Value| Some(number(record, "from")?..number(record, "next")?);
    let lost = records(log).into_iter().filter(|record| record["kind"] == "jobs-may-be-lost");
    lost.filter_map(|record| range(&record)).any(|range| range.contains(&id))
}

/// Releases all held jobs. With `all`, repeats this until the queue is empty.
pub(crate) fn release_held_jobs(container: &Container, all: bool) {
    let line = "for job in $(squeue --noheader --all --states=PENDING --format='%A %r' | sed -n 's/ JobHeld.*//p'); do scontrol release $job; done";
    container.sh(&format!("{line} 2>/dev/null; true"));
    if all {
        // Slurm holds the jobs of a user whose account was removed by a restart.
        container.sh("id ann || echo 'ann:x:2001:2001:rounds:/tmp:/bin/sh' >>/etc/passwd");
        let empty = format!("until [ -z \"$(squeue --noheader --all)\" ]; do {line}; sleep 1; done 2>/dev/null");
        let outcome = container.exec(&["timeout", "280", "sh", "-c", &empty]);
        container.sh("sed '/:rounds:/d' /etc/passwd >/tmp/passwd && cat /tmp/passwd >/etc/passwd");
        assert_eq!(
            outcome.code,
            0,
            "{}\n{}",
            container.sh("squeue --all; scontrol show jobs; sinfo --all -R"),
            container.log()
        );
    }
}

fn serve(config: &Path, slurm: &Volume) -> Container {
    let image = Image::new(DEMO).json_log().with(["--hostname", "node1"]).mount(config, "/config");
    image.volume(slurm, "/var/lib/slurm").serve()
}

/// In each run of docker/test.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn one_configuration_change_loses_no_job() {
    change_configuration(1, 6);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn configuration_change_loses_no_job() {
    let (rounds, seed) = rounds_and_seed(3, 27);
    change_configuration(rounds, seed);
}

fn change_configuration(rounds: u64, seed: u64) {
    let mut random = Random::of(seed);
    let files = directory(&[("slurminit.toml", &configuration(&mut random))]);
    let slurm = Volume::new("changes");
    let mut container = serve(files.path(), &slurm);
    let (mut ledger, mut previous_log, mut previous) = (JobLedger::default(), String::new(), None);
    for round in 0..rounds {
        for _ in 0..=random.below(3) {
            let id = submit(&container, &SUBMIT_OPTIONS, previous.as_deref(), &mut random);
            id.iter().for_each(|id| ledger.add(id.clone()));
            previous = id.or(previous);
        }
        fs::write(files.path().join("slurminit.toml"), configuration(&mut random)).expect("slurminit.toml is writable");
        let step = match random.below(6) {
            0 => {
                docker(["stop", &container.name]).ok();
                docker(["start", &container.name]).ok();
                "stop".to_owned()
            }
            1 => {
                docker(["kill", &container.name]).ok();
                docker(["start", &container.name]).ok();
                "kill".to_owned()
            }
            2 => {
                docker(["restart", &container.name]).ok();
                "restart".to_owned()
            }
            3 => {
                docker(["stop", &container.name]).ok();
                previous_log += &container.log();
                drop(container);
                container = serve(files.path(), &slurm);
                "another container".to_owned()
            }
            _ => format!("reload {}", container.exec(&["slurminit", "reload"]).code),
        };
        container.wait_until_healthy();
        ledger.count(&step);
        if round % 4 == 3 || round + 1 == rounds {
            release_held_jobs(&container, round % 20 == 19 || round + 1 == rounds);
        }
        ledger.check(
            &container,
            &(previous_log.clone() + &container.log()),
            &format!("round {round}, seed {seed}, {step}"),
        );
        if round % 10 == 9 || round + 1 == rounds {
            eprintln!("{} rounds, seed {seed}: {ledger:?}", round + 1);
        }
    }
    assert!(ledger.is_empty(), "{ledger:?}");
}

/// Options of sbatch in a cluster. MEMBER is one of its nodes; BEFORE is the ID of the previous job.
const CLUSTER_SUBMIT_OPTIONS: [&str; 5] = [
    "--nodelist=MEMBER",
    "--hold --nodelist=MEMBER",
    "--exclude=MEMBER",
    "--hold --array=1-2 --nodelist=MEMBER",
    "--dependency=afterany:BEFORE --nodelist=MEMBER",
];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn membership_change_loses_no_job() {
    let (rounds, seed) = rounds_and_seed(3, 27);
    let mut random = Random::of(seed);
    let cluster = Cluster::new("[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:64\"\n");
    let computes = ["c1", "c2"].map(|name| cluster.compute(name, 1));
    let members = [&computes[0], &computes[1], &cluster.controller];
    let (mut ledger, mut previous) = (JobLedger::default(), None);
    for round in 0..rounds {
        for _ in 0..=random.below(2) {
            let options =
                CLUSTER_SUBMIT_OPTIONS.map(|options| options.replace("MEMBER", pick(&mut random, &["c1", "c2"])));
            let options = options.each_ref().map(String::as_str);
            let id = submit(&cluster.controller, &options, previous.as_deref(), &mut random);
            id.iter().for_each(|id| ledger.add(id.clone()));
            previous = id.or(previous);
        }
        let action = pick(&mut random, &["stop", "stop", "kill"]);
        let targets = [&[0][..], &[1], &[2], &[0, 1], &[0, 1, 2]][random.below(5) as usize];
        targets.iter().for_each(|member| drop(docker([action, &members[*member].name]).ok()));
        targets.iter().rev().for_each(|member| drop(docker(["start", &members[*member].name]).ok()));
        members.iter().rev().for_each(|member| member.wait_until_healthy());
        let step = format!("{action} {targets:?}");
        ledger.count(&step);
        if round % 4 == 3 || round + 1 == rounds {
            release_held_jobs(&cluster.controller, round % 20 == 19 || round + 1 == rounds);
        }
        ledger.check(&cluster.controller, &cluster.controller.log(), &format!("round {round}, seed {seed}, {step}"));
        if round % 10 == 9 || round + 1 == rounds {
            eprintln!("{} rounds, seed {seed}: {ledger:?}", round + 1);
        }
    }
    assert!(ledger.is_empty(), "{ledger:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn many_stops_kills_and_reloads_lose_no_job_and_no_drain() {
    crate::stop_rounds::run(40);
}
