//! Random rounds of jobs and changes of the configuration, taken by a reload, a stop, a restart or a kill: no job is lost, and none becomes
//! NODE_FAIL.
//!
//! `SLURMINIT_ROUNDS` is how many, 3 without it; `SLURMINIT_SEED` makes a run's choices again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::jobs_rounds::{Random, lost, rounds_and_seed};
use crate::docker::{Container, DEMO, Image, Volume, directory, docker, records};
use crate::members::Cluster;

/// What is submitted, beside the partition. BEFORE is the job before it.
const KINDS: [&str; 7] = [
    "",
    "--hold",
    "--nodelist=localhost",
    "--hold --nodelist=localhost",
    "--array=1-3",
    "--dependency=afterany:BEFORE",
    "--hold --array=1-2",
];

fn pick<'a, T: ?Sized>(random: &mut Random, of: &[&'a T]) -> &'a T {
    of[random.below(of.len() as u64) as usize]
}

/// Any configuration: partitions, the node's CPUs, a user.
fn configuration(random: &mut Random) -> String {
    let partitions = pick(random, &["", "short", "short long", "debug long", "long", "debug short"]);
    let table = |name| format!("[[partition]]\nname = \"{name}\"\nOverSubscribe = \"FORCE:64\"\n");
    let mut toml: String = partitions.split_whitespace().map(table).collect();
    toml += pick(random, &["", "", "", "[node]\ncpus = 1\n", "[node]\nfeatures = [\"x\"]\n"]);
    toml += pick(random, &["", "[[user]]\nname = \"ann\"\nuid = 2001\n", "[[user]]\nname = \"ann\"\nuid = 2001\n"]);
    format!("{toml}[supervise]\nreload_on_change = false\nreset_after = 0.001\ngive_up_after = 1000\n")
}

/// Of whom and in what: any user there is, and one or two of the partitions that take jobs.
fn submit(container: &Container, kinds: &[&str], before: Option<&str>, random: &mut Random) -> Option<String> {
    let up = container.sh("sinfo --noheader --all --format='%R %a' | sed -n 's/ up$//p' | sort -u");
    let up: Vec<&str> = up.lines().collect();
    let mut partition = pick(random, &up).to_owned();
    if up.len() > 1 && random.below(3) == 0 {
        partition = up.join(",");
    }
    let options = match before {
        Some(id) => pick(random, kinds).replace("BEFORE", id),
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

/// What the rounds came to.
#[derive(Debug, Default)]
struct Books {
    /// Those that have not been seen to end.
    open: BTreeSet<String>,
    submitted: usize,
    ended: usize,
    lost_and_named: usize,
    steps: BTreeMap<String, u32>,
}

impl Books {
    /// Each job is in the queue, has ended well, or is named as lost.
    fn check(&mut self, container: &Container, log: &str, when: &str) {
        let queue = container.sh("squeue --noheader --all --array --format='%F %T'");
        let ended = container
            .sh("cat /var/lib/slurm/jobcomp/*; squeue --noheader --all --states=all --format='JobId=%F JobState=%T'");
        let waits: BTreeSet<&str> = queue.lines().filter_map(|line| line.split(' ').next()).collect();
        let lost = lost(log);
        for id in self.open.clone() {
            if waits.contains(id.as_str()) {
                continue;
            }
            let of = format!("JobId={id} ");
            let states: Vec<&str> = ended
                .lines()
                .filter(|line| line.starts_with(&of))
                .filter_map(|line| line.split_once("JobState=")?.1.split(' ').next())
                .collect();
            let is_lost = lost.contains(&id) || may_be_lost(log, &id);
            self.lost_and_named += usize::from(is_lost);
            let is_well = states.last().is_some_and(|state| ["COMPLETED", "CANCELLED"].contains(state));
            assert!(
                is_well || is_lost,
                "{when}: job {id} {states:?}\n{}\n{log}",
                container.sh("squeue --all --states=all")
            );
            self.ended += usize::from(!is_lost);
            self.open.remove(&id);
        }
    }
}

/// Whether the log says that slurmctld was killed before it had saved this job, which a controller without a node does not name.
fn may_be_lost(log: &str, id: &str) -> bool {
    let id: u32 = id.parse().unwrap_or_default();
    let number = |record: &Value, name: &str| record["fields"][name].as_str()?.parse::<u32>().ok();
    let range = |record: &Value| Some(number(record, "from")?..number(record, "next")?);
    let lost = records(log).into_iter().filter(|record| record["kind"] == "jobs-may-be-lost");
    lost.filter_map(|record| range(&record)).any(|range| range.contains(&id))
}

/// Everything that waits for a person is let go, until a part of it has ended; all of it at the end.
fn let_go(container: &Container, all: bool) {
    let line = "for job in $(squeue --noheader --all --states=PENDING --format='%A %r' | sed -n 's/ JobHeld.*//p'); do scontrol release $job; done";
    container.sh(&format!("{line} 2>/dev/null; true"));
    if all {
        // Slurm holds the jobs of a user whose account a start has removed.
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

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn configuration_change_loses_no_job() {
    let (rounds, seed) = rounds_and_seed(3, 27);
    let mut random = Random::of(seed);
    let files = directory(&[("slurminit.toml", &configuration(&mut random))]);
    let slurm = Volume::new("changes");
    let mut container = serve(files.path(), &slurm);
    let (mut books, mut former_log, mut before) = (Books::default(), String::new(), None);
    for round in 0..rounds {
        for _ in 0..=random.below(3) {
            let id = submit(&container, &KINDS, before.as_deref(), &mut random);
            books.submitted += usize::from(id.is_some());
            books.open.extend(id.clone());
            before = id.or(before);
        }
        fs::write(files.path().join("slurminit.toml"), configuration(&mut random)).expect("a configuration");
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
                former_log += &container.log();
                drop(container);
                container = serve(files.path(), &slurm);
                "another container".to_owned()
            }
            _ => format!("reload {}", container.exec(&["slurminit", "reload"]).code),
        };
        container.wait_until_healthy();
        *books.steps.entry(step.clone()).or_default() += 1;
        if round % 4 == 3 || round + 1 == rounds {
            let_go(&container, round % 20 == 19 || round + 1 == rounds);
        }
        books.check(
            &container,
            &(former_log.clone() + &container.log()),
            &format!("round {round}, seed {seed}, {step}"),
        );
        if round % 10 == 9 || round + 1 == rounds {
            eprintln!("{} rounds, seed {seed}: {books:?}", round + 1);
        }
    }
    assert!(books.open.is_empty(), "{books:?}");
}

/// What is submitted in a cluster: MEMBER is a node of it.
const PINNED: [&str; 5] = [
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
    let (mut books, mut before) = (Books::default(), None);
    for round in 0..rounds {
        for _ in 0..=random.below(2) {
            let kinds = PINNED.map(|kind| kind.replace("MEMBER", pick(&mut random, &["c1", "c2"])));
            let kinds = kinds.each_ref().map(String::as_str);
            let id = submit(&cluster.controller, &kinds, before.as_deref(), &mut random);
            books.submitted += usize::from(id.is_some());
            books.open.extend(id.clone());
            before = id.or(before);
        }
        let how = pick(&mut random, &["stop", "stop", "kill"]);
        let who = [&[0][..], &[1], &[2], &[0, 1], &[0, 1, 2]][random.below(5) as usize];
        who.iter().for_each(|member| drop(docker([how, &members[*member].name]).ok()));
        who.iter().rev().for_each(|member| drop(docker(["start", &members[*member].name]).ok()));
        members.iter().rev().for_each(|member| member.wait_until_healthy());
        let step = format!("{how} {who:?}");
        *books.steps.entry(step.clone()).or_default() += 1;
        if round % 4 == 3 || round + 1 == rounds {
            let_go(&cluster.controller, round % 20 == 19 || round + 1 == rounds);
        }
        books.check(&cluster.controller, &cluster.controller.log(), &format!("round {round}, seed {seed}, {step}"));
        if round % 10 == 9 || round + 1 == rounds {
            eprintln!("{} rounds, seed {seed}: {books:?}", round + 1);
        }
    }
    assert!(books.open.is_empty(), "{books:?}");
}
