//! First use of the image: commands that a new user types, and their output.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::docker::{Container, DEMO, Image, PLAIN, Volume, docker, is_of_a_busy_machine, records, text};

/// Records above level info, except the announcement of simulated GPUs.
fn unexpected_warnings(container: &Container) -> Vec<Value> {
    container.warnings().into_iter().filter(|record| !is_announcement(record)).collect()
}

fn is_announcement(record: &Value) -> bool {
    text(record).contains("SIMULATED")
}

/// Text that suggests a failure.
const ALARMING: [&str; 6] =
    ["lost", "Unauthorized", "No such file", "to recover", "No memory enforcing", "SRUN_JOB_COMPLETE"];

/// srun has usually exited already when slurmctld notifies it of the end of its job.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn successful_command_writes_nothing_to_stderr() {
    let image = Image::new(PLAIN).with(["--hostname", "node1"]).json_log();
    for round in 0..12 {
        let outcome = image.run(&["srun", "hostname"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{}", outcome.stderr);
        // slurminit also logs the slowness of a machine that is busy with other tests.
        let is_expected = |line: &&str| {
            serde_json::from_str(line).is_ok_and(|record| is_announcement(&record) || is_of_a_busy_machine(&record))
        };
        let unexpected: Vec<_> = outcome.stderr.lines().filter(|line| !is_expected(line)).collect();
        assert!(unexpected.is_empty(), "round {round}: {unexpected:#?}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn first_and_second_start_log_no_warnings() {
    let container = Image::new(PLAIN).json_log().serve();
    container.sh("srun hostname");
    let log = container.log();
    for words in ALARMING {
        assert!(!log.contains(words), "{words}\n{log}");
    }
    assert!(unexpected_warnings(&container).is_empty(), "{:#?}", unexpected_warnings(&container));
    // `slurminit logs` shows them at level debug.
    let all = container.sh("slurminit logs slurmctld -n 1000; slurminit logs munged -n 1000");
    let messages = ["Could not open node state file", "No node state file"];
    assert!(messages.iter().any(|words| all.contains(&format!("debug slurmctld: {words}"))), "{all}");

    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    assert!(unexpected_warnings(&container).is_empty(), "{:#?}", unexpected_warnings(&container));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn restart_before_first_job_logs_no_warnings() {
    let container = Image::new(PLAIN).json_log().serve();
    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    assert!(unexpected_warnings(&container).is_empty(), "{:#?}", unexpected_warnings(&container));
    assert_eq!(container.sh("sbatch --parsable --wrap true"), "1", "job IDs have a gap");
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
        let matches = |record: &Value| text(record).contains(words);
        assert!(unexpected_warnings(&second).iter().any(matches), "{words}: {log}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn logs_user_who_decodes_foreign_credential() {
    let container = Image::new(PLAIN).serve();
    let read = container.exec(&["sh", "-c", "munge -n -u root -U games | runuser -u nobody -- unmunge"]);
    assert_ne!(read.code, 0);
    let nobody = container.sh("id -u nobody");
    container.until_said(&format!("Unauthorized credential for client UID={nobody}"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn prints_help_and_version() {
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
        // Keys in parentheses belong to list elements.
        let mut depth = 0;
        let top_level: String =
            keys.chars().filter(|c| (depth += i32::from(*c == '(') - i32::from(*c == ')'), depth == 0).1).collect();
        let documented = |is_optional: bool| -> BTreeSet<&str> {
            let parts = top_level.split('`').collect::<Vec<_>>();
            let keys = parts.chunks_exact(2).zip(parts.iter().skip(2).step_by(2));
            keys.filter(|(_, after)| after.starts_with('?') == is_optional).map(|(pair, _)| pair[1]).collect()
        };
        if verb == "usage" {
            // This verb needs a database.
            continue;
        }
        let words: Vec<&str> = ["slurminit"].into_iter().chain(verb.split(' ')).chain(["--json"]).collect();
        let printed = container.exec(&words).stdout;
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&printed).expect("an object");
        let found: BTreeSet<&str> =
            json.keys().map(String::as_str).filter(|key| !documented(true).contains(key)).collect();
        assert_eq!(found, documented(false), "{verb} --json");
        assert_eq!(json["shape"], 1, "{verb}");
        verbs += 1;
    }
    assert_eq!(verbs, 8);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn verb_as_command_runs_slurminit_unless_program_exists() {
    let image = Image::new(DEMO);
    let status = image.run(&["status"]).ok();
    assert!(status.contains(" · ready") && status.contains("2 Simulated NVIDIA H200"), "{status}");
    let detect = image.run(&["detect", "--json"]).ok();
    assert!(serde_json::from_str::<serde_json::Value>(&detect).is_ok(), "{detect}");
    let unknown = image.run(&["statu"]);
    assert_eq!(unknown.code, 127);
    // A program with the name of a verb takes precedence.
    let own = image.with(["--tmpfs", "/opt:exec", "--env", "PATH=/opt:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]);
    let own =
        own.run(&["sh", "-c", "printf '#!/bin/sh\necho mine\n' > /opt/status; chmod +x /opt/status; status"]).ok();
    assert_eq!(own, "mine\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_docker_option_after_image_name() {
    let outcome = Image::new(PLAIN).run(&["--gpus", "all", "srun", "hostname"]);
    assert_eq!(outcome.code, 127);
    assert!(outcome.stderr.contains("`--gpus`"), "{outcome:?}");
}

/// Submits a job of 1 s that writes to the container's standard output.
const JOB: &str = "sbatch -o /dev/null --wrap 'sleep 1; echo the job has ended > /proc/1/fd/1'";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn suggests_wait_jobs_when_command_leaves_jobs() {
    let outcome = Image::new(PLAIN).run(&["sh", "-c", &JOB.replace("sleep 1;", "sleep 1000;")]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "Submitted batch job 1\n"), "{outcome:?}");
    assert_eq!(outcome.stderr.matches("SLURMINIT_WAIT_JOBS=true").count(), 1, "{outcome:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn waits_for_jobs_and_keeps_commands_exit_code() {
    let image = Image::new(PLAIN).json_log().with(["--env", "SLURMINIT_WAIT_JOBS=true"]);
    // A held job is logged, but the container does not wait for it.
    let outcome = image.run(&["sh", "-c", &format!("{JOB}; {JOB}; sbatch --hold --wrap true; exit 5")]);
    let expected =
        "Submitted batch job 1\nSubmitted batch job 2\nSubmitted batch job 3\nthe job has ended\nthe job has ended\n";
    assert_eq!((outcome.code, sorted(&outcome.stdout)), (5, sorted(expected)), "{outcome:?}");
    let not_awaited: Vec<Value> =
        records(&outcome.stderr).into_iter().filter(|record| record["kind"] == "job-not-waited-for").collect();
    assert!(not_awaited.len() == 1 && not_awaited[0]["fields"]["job"] == "3", "{outcome:?}");
    assert!(!outcome.stderr.contains("SLURMINIT_WAIT_JOBS"), "{outcome:?}");

    // The command-line option has the same effect.
    let plain = Image::new(PLAIN).with(["--entrypoint", "slurminit"]);
    let outcome = plain.run(&["run", "--wait-jobs", "--", "sh", "-c", JOB]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "Submitted batch job 1\nthe job has ended\n"),
        "{outcome:?}"
    );
}

/// The sorted lines: a job may start before sbatch prints its ID.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_while_waiting_for_jobs_exits_with_143() {
    let image = Image::new(PLAIN).with(["--env", "SLURMINIT_WAIT_JOBS=true", "--env", "SLURMINIT_LOG_LEVEL=info"]);
    let container = image.json_log().command(["sbatch", "-o", "/dev/null", "--wrap", "sleep 1000"]).start();
    container.until_logged("waiting-for-jobs", None);
    // A restart of slurmctld does not end the wait.
    container.sh("slurminit restart slurmctld");
    container.wait_until_healthy();
    assert_eq!(container.sh("squeue -h | wc -l"), "1");
    let code = container.stop();
    assert_eq!(code, 143, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn logs_follow_continues_after_daemon_restart() {
    let container = Image::new(PLAIN).serve();
    container.sh("slurminit logs -f slurmd -n 0 > /tmp/followed 2>&1 & echo $! > /tmp/follower");
    // slurmctld sends the end of a job again only after a minute, if slurmd restarts at that moment.
    container.sh(
        "srun hostname; until [ -z \"$(squeue -h)\" ]; do sleep 0.1; done; slurminit restart slurmd; srun hostname",
    );
    container.until("test $(grep -c \"launch task\" /tmp/followed) = 2");
    assert!(container.sh("cat /tmp/followed").contains("slurmd version"), "output of the restarted daemon is missing");
    container.sh("kill -INT $(cat /tmp/follower)");
}
