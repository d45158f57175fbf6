//! The first ten minutes with the image: what a new user types, and reads.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::docker::{Container, DEMO, Image, PLAIN, Volume, debians, docker, is_of_a_busy_machine, records, text};

/// What in the log is worse than information. The simulated GPUs are announced, and Debian 12's image has them.
fn bad(container: &Container) -> Vec<Value> {
    container.warnings().into_iter().filter(|record| !is_announcement(record)).collect()
}

fn is_announcement(record: &Value) -> bool {
    text(record).contains("SIMULATED")
}

/// What sounds as if something were broken.
const FRIGHTENING: [&str; 6] =
    ["lost", "Unauthorized", "No such file", "to recover", "No memory enforcing", "SRUN_JOB_COMPLETE"];

/// srun has mostly ended by itself when slurmctld tells it that its job is over.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn command_that_works_leaves_nothing_on_standard_error_on_each_debian() {
    for image in debians(PLAIN) {
        let image = Image::new(image).with(["--hostname", "node1"]).json_log();
        for round in 0..12 {
            let outcome = image.run(&["srun", "hostname"]);
            assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{}", outcome.stderr);
            // A machine that other tests keep busy is slow, and that is said, too.
            let is_ours = |line: &&str| {
                serde_json::from_str(line).is_ok_and(|record| is_announcement(&record) || is_of_a_busy_machine(&record))
            };
            let said: Vec<_> = outcome.stderr.lines().filter(|line| !is_ours(line)).collect();
            assert!(said.is_empty(), "round {round}: {said:#?}");
        }
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn first_and_second_start_log_no_warnings_on_each_debian() {
    for image in debians(PLAIN) {
        let container = Image::new(image).json_log().serve();
        container.sh("srun hostname");
        let log = container.log();
        for words in FRIGHTENING {
            assert!(!log.contains(words), "{image}: {words}\n{log}");
        }
        assert!(bad(&container).is_empty(), "{image}: {:#?}", bad(&container));
        // All of it is there for those who look for it.
        let all = container.sh("slurminit logs slurmctld -n 1000; slurminit logs munged -n 1000");
        let is_there = ["Could not open node state file", "No node state file"];
        assert!(is_there.iter().any(|words| all.contains(&format!("debug slurmctld: {words}"))), "{image}: {all}");

        docker(["restart", &container.name]).ok();
        container.wait_until_healthy();
        assert!(bad(&container).is_empty(), "{image}: {:#?}", bad(&container));
    }
}

/// Also one that never had a job.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn restart_before_first_job_is_ordered_one() {
    let container = Image::new(PLAIN).json_log().serve();
    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    assert!(bad(&container).is_empty(), "{:#?}", bad(&container));
    assert_eq!(container.sh("sbatch --parsable --wrap true"), "1", "and ids go on without a gap");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn later_start_reports_lost_state() {
    let state = Volume::new("lost");
    let image = Image::new(PLAIN).volume(&state, "/var/lib/slurm");
    let first = image.serve();
    first.sh("srun hostname");
    first.stop();
    let outcome = image
        .clone()
        .with(["--entrypoint", "sh"])
        .run(&["-c", "cd /var/lib/slurm/slurmctld; rm node_state* job_state*; ls"]);
    assert!(outcome.stdout.contains("clustername"), "{outcome:?}");
    let second = image.json_log().serve();
    let log = second.log();
    for words in ["Could not open node state file", "Information may be lost!", "Jobs may be lost!"] {
        let is_it = |record: &Value| text(record).contains(words);
        assert!(bad(&second).iter().any(is_it), "{words}: {log}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn person_who_reads_anothers_credential_is_in_log() {
    let container = Image::new(PLAIN).serve();
    let read = container.exec(&["sh", "-c", "munge -n -u root -U games | runuser -u nobody -- unmunge"]);
    assert_ne!(read.code, 0);
    let nobody = container.sh("id -u nobody");
    assert!(
        container.log().contains(&format!("Unauthorized credential for client UID={nobody}")),
        "{}",
        container.log()
    );
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_helps() {
    for image in [PLAIN, DEMO] {
        for word in ["--help", "-h", "help"] {
            let outcome = Image::new(image).run(&[word]);
            assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{word}");
            for words in
                ["slurminit ", "srun hostname", "SLURMINIT_WAIT_JOBS", "docker exec", "/config", "/var/lib/slurm"]
            {
                assert!(outcome.stdout.contains(words), "{word}: {words}\n{}", outcome.stdout);
            }
        }
        let version = Image::new(image).run(&["--version"]).ok();
        assert!(version.starts_with("slurminit ") && version.contains(", Slurm 24.11"), "{version}");
        let from_git = Command::new("git").args(["rev-parse", "HEAD"]).output().is_ok_and(|git| git.status.success());
        assert!(!from_git || version.contains(" (commit "), "{version}");
        assert_eq!(Image::new(image).with(["--entrypoint", "slurminit"]).run(&["--version"]).ok(), version);
    }
}

/// The table in docs/reference/commands.md.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn json_has_documented_keys() {
    let container = Image::new(DEMO).serve();
    let page = include_str!("../../docs/reference/commands.md");
    let (_, table) = page.split_once("| verb | keys |\n").expect("the table");
    let mut verbs = 0;
    for row in table.lines().skip(1).map_while(|line| line.strip_prefix("| `")) {
        let (verb, keys) = row.split_once("` | ").expect("a verb");
        // Those in parentheses are of what is listed.
        let mut depth = 0;
        let own: String =
            keys.chars().filter(|c| (depth += i32::from(*c == '(') - i32::from(*c == ')'), depth == 0).1).collect();
        let named = |is_optional: bool| -> BTreeSet<&str> {
            let parts = own.split('`').collect::<Vec<_>>();
            let keys = parts.chunks_exact(2).zip(parts.iter().skip(2).step_by(2));
            keys.filter(|(_, after)| after.starts_with('?') == is_optional).map(|(pair, _)| pair[1]).collect()
        };
        if verb == "usage" {
            // It needs a database.
            continue;
        }
        let words: Vec<&str> = ["slurminit"].into_iter().chain(verb.split(' ')).chain(["--json"]).collect();
        let printed = container.exec(&words).stdout;
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&printed).expect("an object");
        let found: BTreeSet<&str> = json.keys().map(String::as_str).filter(|key| !named(true).contains(key)).collect();
        assert_eq!(found, named(false), "{verb} --json");
        assert_eq!(json["shape"], 1, "{verb}");
        verbs += 1;
    }
    assert_eq!(verbs, 7);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn verb_in_place_of_command_is_slurminits() {
    let image = Image::new(DEMO);
    let status = image.run(&["status"]).ok();
    assert!(status.contains(" · ready") && status.contains("2 Simulated NVIDIA H200"), "{status}");
    let detect = image.run(&["detect", "--json"]).ok();
    assert!(serde_json::from_str::<serde_json::Value>(&detect).is_ok(), "{detect}");
    let unknown = image.run(&["statu"]);
    assert_eq!(unknown.code, 127);
    // A program of that name comes first.
    let own = image.with(["--tmpfs", "/opt:exec", "--env", "PATH=/opt:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]);
    let own =
        own.run(&["sh", "-c", "printf '#!/bin/sh\necho mine\n' > /opt/status; chmod +x /opt/status; status"]).ok();
    assert_eq!(own, "mine\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn option_behind_images_name_is_named() {
    let outcome = Image::new(PLAIN).run(&["--gpus", "all", "srun", "hostname"]);
    assert_eq!(outcome.code, 127);
    assert!(outcome.stderr.contains("`--gpus`"), "{outcome:?}");
}

/// A job of some time, and its output on the standard output that the container shares with it.
const JOB: &str = "sbatch -o /dev/null --wrap 'sleep 1; echo the job has ended > /proc/1/fd/1'";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn tells_how_to_wait_when_command_leaves_jobs() {
    let outcome = Image::new(PLAIN).run(&["sh", "-c", JOB]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "Submitted batch job 1\n"), "{outcome:?}");
    assert_eq!(outcome.stderr.matches("SLURMINIT_WAIT_JOBS=true").count(), 1, "{outcome:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn waits_for_jobs_and_keeps_commands_exit_code() {
    let image = Image::new(PLAIN).json_log().with(["--env", "SLURMINIT_WAIT_JOBS=true"]);
    // One that needs a person is named, and not waited for.
    let outcome = image.run(&["sh", "-c", &format!("{JOB}; {JOB}; sbatch --hold --wrap true; exit 5")]);
    let expected =
        "Submitted batch job 1\nSubmitted batch job 2\nSubmitted batch job 3\nthe job has ended\nthe job has ended\n";
    assert_eq!((outcome.code, sorted(&outcome.stdout)), (5, sorted(expected)), "{outcome:?}");
    let left: Vec<Value> =
        records(&outcome.stderr).into_iter().filter(|record| record["kind"] == "job-not-waited-for").collect();
    assert!(left.len() == 1 && left[0]["fields"]["job"] == "3", "{outcome:?}");
    assert!(!outcome.stderr.contains("SLURMINIT_WAIT_JOBS"), "{outcome:?}");

    // The same on the command line.
    let plain = Image::new(PLAIN).with(["--entrypoint", "slurminit"]);
    let outcome = plain.run(&["run", "--wait-jobs", "--", "sh", "-c", JOB]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "Submitted batch job 1\nthe job has ended\n"),
        "{outcome:?}"
    );
}

/// A job may well begin before sbatch has said its number.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_ends_wait_for_jobs_and_is_no_success() {
    let image = Image::new(PLAIN).with(["--env", "SLURMINIT_WAIT_JOBS=true", "--env", "SLURMINIT_LOG_LEVEL=info"]);
    let container = image.json_log().command(["sbatch", "-o", "/dev/null", "--wrap", "sleep 1000"]).start();
    container.until_logged("waiting-for-jobs", None);
    // slurmctld's death does not end it either.
    container.sh("slurminit restart slurmctld");
    container.wait_until_healthy();
    assert_eq!(container.sh("squeue -h | wc -l"), "1");
    let code = container.stop();
    assert_eq!(code, 143, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn daemons_log_is_followed() {
    let container = Image::new(PLAIN).serve();
    container.sh("slurminit logs -f slurmd -n 0 > /tmp/followed 2>&1 & echo $! > /tmp/follower");
    container.sh("srun hostname; slurminit restart slurmd; srun hostname");
    container.until("test $(grep -c \"launch task\" /tmp/followed) = 2");
    assert!(container.sh("cat /tmp/followed").contains("slurmd version"), "the next process speaks there, too");
    container.sh("kill -INT $(cat /tmp/follower)");
}
