//! A stop sends jobs the signal that they requested with --signal, before TERM.

use crate::docker::{Container, Image, PLAIN, Volume, directory};

/// Submits a script with these `#SBATCH` options, which writes into `/var/lib/slurm/NAME`.
fn submit(container: &Container, name: &str, options: &str, script: &str) -> String {
    let line = format!(
        "printf '%s\\n' '#!/bin/sh' '#SBATCH --mem=16 --open-mode=append {options}' \"$1\" | \
         sbatch --parsable --output=/var/lib/slurm/{name}"
    );
    container.exec(&["sh", "-c", &line, "sh", script]).ok().trim().to_owned()
}

pub(crate) fn show(container: &Container, job: &str) -> String {
    container.sh(&format!("scontrol --oneliner show job {job}"))
}

/// A shell program that records these signals and exits with `code` at the last one. It writes to the job's file
/// itself, because the output of a step passes through srun, which may exit before it forwards all lines.
fn program(name: &str, signals: &[&str], code: u8) -> String {
    let (last, others) = signals.split_last().unwrap_or((&"TERM", &[]));
    let echo = |word: &str| format!("echo {word} >>/var/lib/slurm/{name}");
    let traps: String = others.iter().map(|signal| format!("trap \"{}\" {signal}; ", echo(signal))).collect();
    let (last_echo, up) = (echo(last), echo("up"));
    format!("{traps}trap \"{last_echo}; exit {code}\" {last}; {up}; while :; do sleep 0.05; done")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_sends_requested_signal_before_term() {
    let slurm = Volume::new("state");
    // Long enough that even on a busy machine the commands before TERM take only a part of it.
    let shared = "[supervise]\nstop_timeout = 30\n[jobs]\ngrace = 15\n[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:16\"\n";
    let config = directory(&[("slurminit.toml", shared)]);
    let cluster = Image::new(PLAIN)
        .with(["--hostname", "node1"])
        .volume(&slurm, "/var/lib/slurm")
        .mount(config.path(), "/config");
    let first = cluster.serve();
    let step = |name: &str, signals: &[&str], code| format!("srun --mem=16 sh -c '{}'", program(name, signals, code));
    // The steps receive the signal: their exit code 0 does not complete the job.
    let steps = submit(&first, "steps", "--signal=USR2@90", &step("steps", &["USR2"], 0));
    let failing = submit(&first, "failing", "--signal=USR1", &step("failing", &["USR1"], 3));
    let slow = submit(&first, "slow", "--signal=USR2@90", &step("slow", &["USR2", "TERM"], 0));
    // The script receives the signal: its exit code decides.
    let script = submit(&first, "script", "--signal=B:USR1@60", &program("script", &["USR1"], 0));
    let unfinished = submit(&first, "unfinished", "--signal=B:USR1@60", &program("unfinished", &["USR1"], 3));
    let itself = submit(
        &first,
        "itself",
        "--signal=B:USR1@60",
        "trap 'echo USR1; scontrol requeue $SLURM_JOB_ID; exit 1' USR1; echo up; while :; do sleep 0.05; done",
    );
    let without = submit(&first, "without", "--time=5", &step("without", &["USR2", "USR1", "TERM"], 0));
    let jobs = ["steps", "failing", "slow", "script", "unfinished", "itself", "without"];
    jobs.iter().for_each(|name| first.until(&format!("grep -qsx up /var/lib/slurm/{name}")));
    let waiting = first.sh(&format!("sbatch --parsable --output=/dev/null --dependency=afterany:{steps} --wrap true"));
    assert_eq!(first.stop(), 0, "{}", first.log());
    let log = first.log();
    drop(first);

    let second = cluster.serve();
    for (name, job) in [
        ("steps", &steps),
        ("failing", &failing),
        ("slow", &slow),
        ("unfinished", &unfinished),
        ("itself", &itself),
        ("without", &without),
    ] {
        // Requeued jobs must start at once, not after two minutes.
        let started_twice = format!("[ $(grep -cx up /var/lib/slurm/{name}) = 2 ]");
        let outcome = second.wait_until(110, &started_twice);
        assert_eq!(outcome.code, 0, "{name}: {log}\n{}\n{}", second.log(), show(&second, job));
        let shown = show(&second, job);
        assert!(shown.contains("JobState=RUNNING") && shown.contains("Restarts=1"), "{name}: {shown}");
    }
    assert!(show(&second, &script).contains("JobState=COMPLETED"), "{}", show(&second, &script));
    assert!(show(&second, &waiting).contains("JobState=PENDING Reason=Dependency"), "{}", show(&second, &waiting));
    let signals = |name: &str| second.sh(&format!("grep -E '^(USR1|USR2|TERM)$' /var/lib/slurm/{name} | tr '\\n' ' '"));
    for (name, expected) in [
        ("steps", "USR2 "),
        ("failing", "USR1 "),
        ("slow", "USR2 TERM "),
        ("script", "USR1 "),
        ("unfinished", "USR1 "),
        ("itself", "USR1 "),
        ("without", "TERM "),
    ] {
        assert_eq!(signals(name).trim_end(), expected.trim_end(), "{name}: {log}");
    }
}
