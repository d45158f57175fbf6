//! `slurminit liveness`: what follows a round of checks in which all daemons responded.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};

use super::fake::{Fake, job};
use super::health::container;
use machine::liveness_result::CHECKS_VARIABLE;

/// Returns the log.
fn liveness_and_log(fake: &Fake, options: &[&str]) -> String {
    let output = fake.command(&[&["liveness"], options].concat()).env(CHECKS_VARIABLE, "[]").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn liveness(fake: &Fake, options: &[&str]) {
    liveness_and_log(fake, options);
}

#[test]
fn requests_registration_of_nodes_that_are_reachable_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let returned = "slurminit: the node was unresponsive and is registering again";
    let recall = |nodes: &str| {
        let fake = Fake::new().reply("sinfo *", &[nodes]).reply("scontrol update *", &[""]);
        liveness(&fake, &["--recall", &port]);
        fake.calls("scontrol update ")
    };
    // A node has a line for each of its partitions.
    let nodes = format!(
        "c1|127.0.0.1|down*|Not responding\nc1|127.0.0.1|down*|Not responding\nc2|127.0.0.1|drained*|{returned}\n\
         c3|127.0.0.1|drained|{returned}\nc4|127.0.0.1|down*|fan\nc5|host.invalid|down*|Not responding\n"
    );
    let [undrain, resume, drain] = recall(&nodes).try_into().unwrap();
    assert_eq!(undrain, "nodename=c3 state=undrain");
    let (first, second) = ("nodename=c1,c2", "nodename=c2,c1");
    assert!([first, second].map(|nodes| format!("{nodes} state=resume")).contains(&resume), "{resume}");
    assert!([first, second].map(|nodes| format!("{nodes} state=drain reason={returned}")).contains(&drain), "{drain}");
    assert_eq!(recall("c4|127.0.0.1|down*|fan\n"), [""; 0]);
}

#[test]
fn node_is_resumed_once_its_disk_has_space_again() {
    for (answer, is_resumed) in [("drained root|SlurmdSpoolDir is full\n", true), ("drained root|fan\n", false)] {
        let fake = container(0, |_| {}).reply("sinfo *", &[answer]).reply("scontrol update *", &[""]);
        let (run, spool) = (fake.path("run"), fake.path("spool"));
        let status = fs::read_to_string(run.join("status.json")).unwrap();
        let mut status: machine::Status = serde_json::from_str(&status).unwrap();
        status.snapshot.prepared.iter_mut().for_each(|prepared| prepared.spool_directories = vec![spool.clone()]);
        fs::write(run.join("status.json"), serde_json::to_string(&status).unwrap()).unwrap();
        let check = || liveness(&fake, &["--run", run.to_str().unwrap()]);
        check();
        assert_eq!([fake.calls("sinfo"), fake.calls("scontrol")], [[""; 0]; 2], "the disk was not full");
        fs::write(run.join("spool-was-full"), "").unwrap();
        check();
        let updates = if is_resumed { vec!["nodename=c1 state=resume"] } else { vec![] };
        assert_eq!(fake.calls("scontrol update "), updates);
        assert!(!run.join("spool-was-full").exists());
    }
}

/// Starts root's process that looks like a slurmstepd of this job, and waits with the rights of this user.
fn waiting_step(fake: &Fake, job: u32, uid: u32) -> Child {
    let program = fake.path("slurmstepd");
    if !program.exists() {
        symlink("/usr/bin/perl", &program).unwrap();
    }
    let mut command = Command::new(program);
    let script = format!("$> = {uid}; syswrite(STDOUT, qq(started\\n)); sleep 600");
    command.arg0(format!("slurmstepd: [{job}.0]")).args(["-e", &script]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    super::fake::wait_for_sleep(&child);
    child
}

#[test]
fn kills_blocked_step_of_completing_job_only() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let completing = "squeue --noheader --states=COMPLETING *";
    let fake = Fake::new().reply(completing, &[&(job("970071", "COMPLETING") + &job("970072", "COMPLETING"))]);
    let mut blocked = waiting_step(&fake, 970_071, 65_534);
    let mut others = [(970_072, 0), (970_073, 65_534)].map(|(job, uid)| waiting_step(&fake, job, uid));
    let log = liveness_and_log(&fake, &[]);
    let killed = format!("killed slurmstepd (process {}) of ended job 970071 of alice: ", blocked.id());
    assert!(log.contains(&killed) && log.matches("killed").count() == 1, "{log}");
    assert_eq!(blocked.wait().unwrap().signal(), Some(9));
    for other in &mut others {
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
