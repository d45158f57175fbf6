//! `scontrol reconfigure` with the real daemons. They hand over to new processes.

use crate::docker::{Container, DEMO, Image, directory, docker};

/// A job that counts into `/tmp/numbers`, ten lines per second, until it is cancelled.
const COUNTING: &str =
    "sbatch --parsable --output=/tmp/numbers --gres=gpu:1 --wrap 'i=0; while sleep 0.1; do echo $((i += 1)); done'";

#[track_caller]
fn counting_job(container: &Container) -> String {
    let job = container.sh(COUNTING);
    container.until("grep -q . /tmp/numbers");
    job
}

/// Asserts that the job is running and that its count has no gap.
#[track_caller]
fn assert_untouched(container: &Container, job: &str) {
    container.until("scontrol ping | grep -q UP");
    assert_eq!(
        container.sh(&format!("squeue --noheader --format='%i %T %r' --jobs={job}")),
        format!("{job} RUNNING None")
    );
    let last = container.sh("tail -n 1 /tmp/numbers");
    container.until(&format!("[ \"$(tail -n 1 /tmp/numbers)\" -gt {last} ]"));
    assert_eq!(container.sh("awk '$1 != NR' /tmp/numbers"), "", "gap in the count");
}

/// Name, state and restart count of each Slurm daemon.
fn daemons(container: &Container) -> Vec<String> {
    let status: serde_json::Value = serde_json::from_str(&container.sh("slurminit status --json")).unwrap_or_default();
    let line = |unit: &serde_json::Value| format!("{} {} {}", unit["name"], unit["state"], unit["restarts"]);
    let units = status["units"].as_array().into_iter().flatten();
    units.filter(|unit| unit["name"] != "agent").map(line).collect()
}

/// The command line of each slurmctld and slurmd process.
fn commands(container: &Container) -> Vec<String> {
    let all = "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $file; echo; done 2> /dev/null";
    let lines = container.sh(&format!("{all} | grep -E '^slurm(ctld|d) ' | sort"));
    lines.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Under load, scontrol can lose the reply ("Zero Bytes were transmitted or received").
const RECONFIGURE: &str = "scontrol reconfigure || scontrol reconfigure";

const UNTOUCHED: [&str; 3] = [r#""munged" "ready" 0"#, r#""slurmctld" "ready" 0"#, r#""slurmd" "ready" 0"#];

#[track_caller]
fn reconfigure_twenty_times(container: &Container) {
    let job = counting_job(container);
    for _ in 0..20 {
        container.sh(RECONFIGURE);
    }
    container.until("sinfo --noheader --format=%T | grep -qx mixed");
    assert_eq!(daemons(container), UNTOUCHED, "{}", container.log());
    assert_untouched(container, &job);
    container.sh(&format!("scancel {job}"));
    container.until("sinfo --noheader --format=%T | grep -qx idle");
    assert_eq!(container.sh("srun --gres=gpu:1 echo works"), "works");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn twenty_reconfigurations_in_row_cause_no_restart_and_touch_no_job() {
    let container = Image::new(DEMO).json_log().serve();
    reconfigure_twenty_times(&container);
    let handed_over = container.records("unit-handed-over");
    let count = |unit: &str| handed_over.iter().filter(|record| record["unit"] == unit).count();
    assert!(count("slurmctld") >= 20, "{handed_over:?}");
    // slurmctld does not wait for slurmd, so slurmd may merge consecutive requests.
    assert!((1..=count("slurmctld")).contains(&count("slurmd")), "{handed_over:?}");
    // One process per daemon and no zombie.
    assert_eq!(commands(&container), ["slurmctld --systemd", "slurmd --systemd"]);
    container.until("! cat /proc/[0-9]*/status 2>/dev/null | grep -q ^State:.Z");
    let code = container.stop();
    assert_eq!(code, 0);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reconfiguration_with_invalid_file_keeps_daemons_and_job() {
    let container = Image::new(DEMO).json_log().serve();
    let job = counting_job(&container);

    // slurmctld rejects the file. scontrol rejects it too, so send the equivalent signal.
    let pid = "slurminit status --json | tr -d ' \\n' | grep -oE '\"name\":\"slurmctld\"[^}]*\"pid\":[0-9]+' | grep -oE '[0-9]+$'";
    container.sh("cp /etc/slurm/slurm.conf /tmp/good && echo NoSuchKey=1 >> /etc/slurm/slurm.conf");
    container.sh(&format!("kill -s HUP $({pid})"));
    container.until_said("Resuming operation, reconfigure failed");
    // The liveness commands reject the file as well.
    container.until_logged("unit-not-checked", Some("slurmctld"));
    assert_eq!(daemons(&container), UNTOUCHED, "{}", container.log());
    container.sh("cp /tmp/good /etc/slurm/slurm.conf");
    assert_untouched(&container, &job);

    // slurmctld accepts the file; slurmd rejects it.
    container.sh("cp /etc/slurm/gres.conf /tmp/gres && sed -i '$ s/$/ Count=7/' /etc/slurm/gres.conf");
    container.sh(RECONFIGURE);
    container.until_log("slurmd's failure", |log| {
        log.lines().any(|line| {
            line.contains(r#""source":"slurmd""#) && line.contains("Resuming operation, reconfigure failed")
        })
    });
    assert_eq!(daemons(&container), UNTOUCHED, "{}", container.log());
    assert_untouched(&container, &job);

    container.sh("cp /tmp/gres /etc/slurm/gres.conf");
    container.sh(RECONFIGURE);
    assert_untouched(&container, &job);
    container.sh(&format!("scancel {job}"));
    assert_eq!(container.sh("srun --gres=gpu:1 echo works"), "works");
    assert_eq!(daemons(&container), UNTOUCHED, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_operators_command_and_user() {
    let toml = "[daemon.slurmctld]\nuser = \"slurm\"\n[daemon.slurmd]\ncommand = [\"slurmd\", \"--systemd\", \"-v\"]\n";
    let directory = directory(&[("slurminit.toml", toml)]);
    let container = Image::new(DEMO).mount(directory.path(), "/config").json_log().serve();
    assert_eq!(commands(&container), ["slurmctld -D", "slurmd --systemd -v"]);
    container.sh(RECONFIGURE);
    container.until_logged("unit-handed-over", Some("slurmd"));
    assert_eq!(daemons(&container), UNTOUCHED, "{}", container.log());
}

/// Slurm's daemons look up the name of 0.0.0.0 at startup and block until the name server replies.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn unresponsive_name_server_restarts_no_daemon() {
    // A server that receives queries and never replies. Without it the kernel would report a closed port.
    let listen =
        "$s = IO::Socket::INET->new(Proto => 'udp', LocalPort => 53) or die; $| = 1; print qq(listens\n); sleep";
    let server = Image::new(DEMO).with(["--entrypoint", "perl"]).command(["-MIO::Socket::INET", "-e", listen]).start();
    server.until_said("listens");
    let address = docker(["inspect", "--format", "{{.NetworkSettings.IPAddress}}", &server.name]).ok();
    let container = Image::new(DEMO).with(["--dns", address.trim()]).serve();
    for _ in 0..2 {
        container.sh(RECONFIGURE);
        container.sh("srun true");
    }
    assert_eq!(daemons(&container), UNTOUCHED, "{}", container.log());
}
