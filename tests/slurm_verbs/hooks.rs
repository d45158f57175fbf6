//! `slurminit hook`, `prolog`, `epilog` and `job-map`, which slurmd runs as programs of a job.

use std::fs;

use super::fake::Fake;
use machine::protocol::{MAX_REQUEST_BYTES, Reply, Request};

/// Runs a verb for job 70 of this user, whose name is known; returns the exit code and standard error.
fn run(fake: &Fake, arguments: &[&str], user: &str) -> (Option<i32>, String) {
    let mut command = fake.command(arguments);
    command.env("SLURM_JOB_ID", "70").env("SLURM_JOB_UID", "2000000001").env("SLURM_JOB_USER", user);
    let output = command.env("SLURM_JOB_GPUS", "0,1,2").env("SLURMD_NODENAME", "c1").output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn failed_hook_is_reported_with_its_last_line() {
    let hook = |seconds: &str, command: &[&str]| {
        run(&Fake::new(), &[&["hook", "pre_job", "--timeout", seconds, "--"], command].concat(), "alice")
    };
    assert_eq!(hook("60", &["sh", "-c", "[ $PWD = / ]"]), (Some(0), String::new()));
    for (seconds, command, why) in [
        (
            "60",
            &["sh", "-c", "echo out; echo one >&2; echo two >&2; exit 3"][..],
            "sh of job 70 failed: exit status: 3: two",
        ),
        ("60", &["sh", "-c", "echo one; echo two; exit 3"], "sh of job 70 failed: exit status: 3: two"),
        ("60", &["false"], "false of job 70 failed: exit status: 1: no output"),
        ("0.1", &["sleep", "60"], "sleep of job 70 failed: timed out after 0.1 s and was killed"),
        ("60", &["/no/such"], "/no/such of job 70 failed: cannot be executed: No such file"),
    ] {
        let (code, log) = hook(seconds, command);
        assert!(code == Some(1) && log.starts_with(&format!("the pre_job hook {why}")), "{log}");
    }
}

#[test]
fn prolog_reports_names_that_programs_cannot_resolve() {
    // The controller has no addresses, so that /etc/hosts stays unchanged.
    let prolog = |nodes: Option<&str>, fake: Fake| {
        let fake =
            fake.reply("scontrol show hostnames *", &["no-such-1\nno-such-2\n"]).reply("scontrol getaddrs *", &[""]);
        let mut command = fake.command(&["prolog", "--names-nodes"]);
        let output =
            command.env("SLURM_JOB_ID", "70").envs(nodes.map(|nodes| ("SLURM_JOB_NODELIST", nodes))).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8(output.stderr).unwrap(), fake.calls("scontrol getaddrs ").len())
    };
    let missing = "programs of job 70 may fail to resolve the names of its nodes: ";
    let (log, _) = prolog(None, Fake::new());
    assert!(log.starts_with(&format!("{missing}SLURM_JOB_NODELIST is not in the environment")), "{log}");
    assert_eq!(prolog(Some("no-such-1"), Fake::new()), (String::new(), 0), "a job of one node");
    let (log, queries) = prolog(Some("no-such-[1-2]"), Fake::new());
    let unknown = format!("{missing}the controller has no addresses for these nodes");
    assert!(log.starts_with(&unknown) && queries == 1, "{log}");
    // A container with such a host name is in Docker's default network, which resolves no names.
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let has_id = host.len() == 12 && host.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let (_, queries) =
        prolog(Some("no-such-[1-2]"), Fake::new().reply("getent -s hosts:dns hosts no-such-1 no-such-2", &[""]));
    assert_eq!(queries, usize::from(has_id));
    let output = Fake::new().run(&["prolog", "--gives-gpus"]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && log.contains("to its user: SLURM_JOB_ID is not in"), "{log}");
}

#[test]
fn epilog_reports_what_it_cannot_do_and_never_fails() {
    let fake = Fake::new();
    fs::write(
        fake.path("gres.conf"),
        "NodeName=c1 Name=gpu File=/no/a\nNodeName=c1 Name=gpu File=/no/b\nNodeName=c1 Name=gpu File=/no/b\n",
    )
    .unwrap();
    let (code, log) = run(&fake, &["epilog"], "alice");
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].starts_with("cannot revoke users' access to /no/a after job 70 of alice: No such file"), "{log}");
    assert!(lines[1].starts_with("cannot search for leftover processes of job 70 of alice"), "{log}");
    assert_eq!(lines.len(), 2, "a file of several GPUs can belong to another job: {log}");
    let output = fake.run(&["epilog"]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && log.starts_with("the epilog of a job failed: SLURM_JOB_ID is not in"), "{log}");
}

#[test]
fn report_of_job_fits_into_a_request_to_pid_1() {
    for (length, is_whole) in [(20, true), (5000, false)] {
        let fake = Fake::new();
        let pid_1 = fake.answer(Reply::Done);
        let directory = format!("/no/{}", "d".repeat(length));
        assert_eq!(run(&fake, &["job-map", "begin", &directory], "alice"), (Some(0), String::new()));
        let line = pid_1.join().unwrap();
        assert!(line.len() <= MAX_REQUEST_BYTES);
        let Request::Report { report } = serde_json::from_slice(&line).unwrap() else { panic!("not a report") };
        assert_eq!(report.message.text.contains(&directory), is_whole, "{}", report.message.text);
    }
}

#[test]
fn job_map_names_job_of_each_gpu_until_it_ends() {
    let fake = Fake::new();
    let map = fake.path("map");
    let change = |when: &str| run(&fake, &["job-map", when, map.to_str().unwrap()], "alice");
    fs::write(fake.path("gres.conf"), "NodeName=c1 Name=gpu File=/dev/nvidia[0-3]\n").unwrap();
    let (code, log) = change("begin");
    assert_eq!(code, Some(0));
    assert!(log.starts_with("cannot record the start of job 70 in the job map"), "{log}");
    fs::create_dir(&map).unwrap();
    assert_eq!(change("begin"), (Some(0), String::new()));
    let jobs = || [0, 1, 2, 3].map(|gpu| fs::read_to_string(map.join(gpu.to_string())).unwrap_or_default());
    assert_eq!(jobs(), ["70\n", "70\n", "70\n", ""]);
    assert_eq!(change("end"), (Some(0), String::new()));
    assert_eq!(jobs(), [""; 4]);
}
