//! Random rounds of jobs and faults: no job is unaccounted for, none runs twice unasked, no id is given twice.
//!
//! `SLURMINIT_ROUNDS` is how many, 8 without it; `SLURMINIT_SEED` makes a run again.

use std::collections::{BTreeMap, BTreeSet};

use crate::docker::{Container, DEMO, Image, Volume, directory, docker};

/// What each job runs: a line in the ledger at each begin and end, with its id and how often Slurm says it was requeued.
const JOB: &str = r#"#!/bin/sh
echo "begin $LEDGER_ID $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}" >>/var/lib/slurm/ledger
sleep "${1:-0}"
echo "end $LEDGER_ID $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}" >>/var/lib/slurm/ledger
"#;

/// Numbers of a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What was asked for, by the name that the job's ledger lines have.
#[derive(Debug)]
struct Asked {
    id: String,
    may_run_again: bool,
    tasks: usize,
}

fn submit(container: &Container, name: &str, random: &mut Random) -> Option<Asked> {
    let seconds = ["0", "0.3", "2", "8"][random.below(4) as usize];
    let kind = random.below(5);
    let options = ["", "--no-requeue", "--array=1-3", "--no-requeue --array=1-2", ""][kind as usize];
    if kind == 4 {
        let srun = format!("export LEDGER_ID={name}; exec timeout 60 srun --quiet --mem=8 /config/job.sh {seconds}");
        docker(["exec", "--detach", &container.name, "sh", "-c", &srun]).ok();
        return None;
    }
    let line = format!(
        "LEDGER_ID={name} sbatch --parsable --mem=8 {options} --output=/dev/null --job-name={name} /config/job.sh {seconds}"
    );
    // One that is refused while a daemon is away was not taken, and has no id.
    let outcome = container.exec(&["timeout", "30", "sh", "-c", &line]);
    let tasks = [1, 1, 3, 2][kind as usize];
    (outcome.code == 0).then(|| Asked {
        id: outcome.stdout.trim().to_owned(),
        may_run_again: !options.contains("--no-requeue"),
        tasks,
    })
}

fn fault(container: &Container, random: &mut Random) -> &'static str {
    let daemon = |signal: &str, name: &str| {
        let line = format!(
            "for p in /proc/[0-9]*; do read -r n <$p/comm && [ \"$n\" = {name} ] && kill -{signal} ${{p#/proc/}}; done 2>/dev/null; true"
        );
        container.exec(&["sh", "-c", &line]);
    };
    let start = || drop(docker(["start", &container.name]).ok());
    match random.below(9) {
        0 => {
            docker(["stop", &container.name]).ok();
            start();
            "docker stop"
        }
        1 => {
            docker(["kill", &container.name]).ok();
            start();
            "docker kill"
        }
        2 => {
            docker(["restart", &container.name]).ok();
            "docker restart"
        }
        3 | 4 => {
            daemon("KILL", "slurmctld");
            "slurmctld KILL"
        }
        5 => {
            daemon("KILL", "slurmd");
            "slurmd KILL"
        }
        6 => {
            daemon("KILL", "munged");
            "munged KILL"
        }
        7 => {
            daemon("TERM", "slurmctld");
            "slurmctld TERM"
        }
        _ => {
            daemon("STOP", "slurmctld");
            "slurmctld STOP"
        }
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_job_is_lost_silently_or_runs_twice_and_no_id_is_given_twice() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("SLURMINIT_ROUNDS").unwrap_or(8);
    let seed = number("SLURMINIT_SEED").unwrap_or_else(|| u64::from(std::process::id()) + 1);
    eprintln!("{rounds} rounds, SLURMINIT_SEED={seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let partition = "[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:64\"\n";
    let files = directory(&[("job.sh", JOB), ("slurminit.toml", partition)]);
    let slurm = Volume::new("rounds");
    let container = Image::new(DEMO)
        .with(["--hostname", "node1"])
        .volume(&slurm, "/var/lib/slurm")
        .mount(files.path(), "/config")
        .serve();
    container.sh("touch /var/lib/slurm/ledger; chmod 666 /var/lib/slurm/ledger");
    let mut asked: BTreeMap<String, Asked> = BTreeMap::new();
    let mut faults: BTreeMap<&str, u32> = BTreeMap::new();
    for round in 0..rounds {
        for job in 0..=random.below(3) {
            let name = format!("r{round}j{job}");
            if let Some(job) = submit(&container, &name, &mut random) {
                asked.insert(name, job);
            }
        }
        let fault = fault(&container, &mut random);
        *faults.entry(fault).or_default() += 1;
        container.wait_until_healthy();
        if round % 10 == 9 || round + 1 == rounds {
            check(&container, &asked, &format!("round {round}, seed {seed}, last fault {fault}"));
            asked.clear();
        }
    }
    eprintln!("{rounds} rounds: {faults:?}");
}

/// After all that can run has run.
fn check(container: &Container, asked: &BTreeMap<String, Asked>, when: &str) {
    let empty = "until squeue --noheader >/tmp/queue && [ ! -s /tmp/queue ]; do sleep 0.5; done";
    let outcome = container.exec(&["timeout", "280", "sh", "-c", empty]);
    let log = || container.log().lines().filter(|line| line.contains("slurminit")).collect::<Vec<_>>().join("\n");
    assert_eq!(outcome.code, 0, "{when}: {}\n{}", container.sh("squeue; scontrol show jobs"), log());
    let ledger = container.sh("cat /var/lib/slurm/ledger");
    let known = container.sh("squeue --noheader --states=all --array --format='%A %F'; true");
    let known: BTreeSet<&str> = known.split_whitespace().collect();
    let lost: BTreeSet<String> = container
        .log()
        .lines()
        .filter_map(|line| line.split_once("jobs ")?.1.split_once(" are lost: "))
        .flat_map(|(ids, _)| ids.split(',').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    let mut begun: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for line in ledger.lines().filter_map(|line| line.strip_prefix("begin ")) {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words.len(), 3, "{when}: {line}");
        let [name, id, restarts] = [words[0], words[1], words[2]];
        let owner = *owners.entry(id).or_insert(name);
        assert_eq!(owner, name, "{when}: id {id} was given twice\n{ledger}\n{}", log());
        begun.entry((name, id)).or_default().push(restarts);
    }
    let mut ids = BTreeSet::new();
    for (name, job) in asked {
        assert!(ids.insert(&job.id), "{when}: id {} was given twice", job.id);
        let ran = begun.iter().filter(|((of, _), _)| of == name).count();
        let is_known = known.contains(job.id.as_str()) || lost.contains(&job.id) || ran == job.tasks;
        assert!(is_known, "{when}: {name} ({job:?}) is unaccounted for\n{ledger}\n{}", log());
    }
    for ((name, id), runs) in &begun {
        let Some(job) = asked.get(*name) else { continue };
        let asked_for = job.may_run_again || runs.len() == 1;
        assert!(asked_for, "{when}: {name}, job {id}, ran {} times with --no-requeue\n{ledger}\n{}", runs.len(), log());
    }
    container.sh(": >/var/lib/slurm/former; cat /var/lib/slurm/ledger >>/var/lib/slurm/former");
}
