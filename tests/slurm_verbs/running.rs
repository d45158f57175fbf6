//! `slurminit up`, `run` and `restart` in a container whose cluster is already running.

use std::process::Output;

use super::fake::Fake;
use super::health::container;
use machine::protocol::Reply;
use machine::{UnitSnapshot, UnitState};
use model::exit_code;

/// A container whose cluster of slurmctld and slurmd is ready, or not.
fn cluster(is_ready: bool) -> Fake {
    container(60, |status| {
        let unit =
            |name: &str| UnitSnapshot { name: name.to_owned(), state: UnitState::Ready, ..UnitSnapshot::default() };
        status.snapshot.units = ["slurmctld", "slurmd"].map(unit).to_vec();
        (status.snapshot.ready, status.snapshot.why) = (is_ready, "slurmd is starting".to_owned());
    })
}

fn outcome(output: &Output) -> (Option<u8>, String) {
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    (code, [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat())
}

#[test]
fn up_reports_cluster_that_is_already_running() {
    let up = |is_ready, options: &[&str]| outcome(&cluster(is_ready).run(&[&["up"], options].concat()));
    let running = format!("the cluster is already running (pid {})\n", std::process::id());
    assert_eq!(up(true, &[]), (Some(exit_code::SUCCESS), running));
    let (code, why) = up(true, &["--role", "compute"]);
    assert!(code == Some(exit_code::FAILURE) && why.contains("has the role all, not compute"), "{why}");
    let (code, why) = up(false, &["--timeout", "0.2"]);
    assert_eq!(code, Some(exit_code::NOT_READY));
    assert!(why.contains("was not ready after 0.2 s: slurmd is starting"), "{why}");
}

#[test]
fn command_runs_in_cluster_that_is_already_running() {
    let run = |is_waiting: bool, command: &[&str]| {
        let fake = cluster(true).reply("squeue *", &[""]);
        fake.configure(if is_waiting { "[jobs]\nwait = true" } else { "" });
        let outcome = outcome(&fake.run(&[&["run", "--"], command].concat()));
        (outcome, fake.calls("squeue").len())
    };
    for (is_waiting, queries) in [(false, 0), (true, 1)] {
        let ended = run(is_waiting, &["sh", "-c", "echo $SLURM_JWT $HOME x; exit 5"]);
        assert_eq!(ended, ((Some(5), "x\n".to_owned()), queries), "{is_waiting}");
        for (program, code) in [("/no/such", exit_code::CMD_NOT_FOUND), ("/etc/passwd", exit_code::CMD_NOT_EXECUTABLE)]
        {
            let ((actual, why), _) = run(is_waiting, &[program]);
            assert_eq!(actual, Some(code), "{why}");
            assert!(why.contains(&format!("`{program}` cannot be executed")), "{why}");
        }
    }
    let waiting = cluster(false);
    waiting.configure("[supervise]\nready_timeout = 0.1\nprepare_timeout = 0.1");
    let (code, why) = outcome(&waiting.run(&["run", "--", "true"]));
    assert_eq!(code, Some(exit_code::NOT_READY), "{why}");
}

#[test]
fn restart_waits_until_node_has_registered_again() {
    let node = |state: &str| format!(r#"{{"nodes": [{{"name": "c1", "state": [{state}]}}]}}"#);
    let nodes = [node(r#""IDLE", "NOT_RESPONDING""#), node(r#""UNKNOWN""#), node(r#""IDLE""#)];
    for is_ready in [true, false] {
        let fake = container(60, |status| {
            let (name, state) = ("slurmd".to_owned(), UnitState::Ready);
            status.snapshot.units =
                vec![UnitSnapshot { name, state, starts: 2, pid: Some(7), ..UnitSnapshot::default() }];
            status.snapshot.ready = is_ready;
        });
        let fake = fake.reply("scontrol --details --json show node c1", &nodes.each_ref().map(String::as_str));
        let pid_1 = fake.answer(Reply::Restarting { starts: 1 });
        let text = fake.succeed(&["restart", "slurmd", "--timeout", "60"]);
        assert!(text.starts_with("slurmd is ready again after ") && text.ends_with(" ms (pid 7)\n"), "{text}");
        assert_eq!(fake.calls("scontrol ").len(), 3, "{is_ready}");
        assert!(String::from_utf8(pid_1.join().unwrap()).unwrap().contains("\"slurmd\""));
    }
}
