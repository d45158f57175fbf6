//! Sessions whose login container, slurmd or compute is killed.

use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, FULL, Volume, docker};
use crate::members::Cluster;

const CONFIG: &str = "[[user]]\nname = 'alice'\nuid = 1501\n[[user]]\nname = 'bob'\nuid = 1502\n";

/// A login, a compute with two GPUs and their controller, with the homes on a volume.
struct Site {
    login: Container,
    compute: Container,
    cluster: Cluster,
    _homes: Volume,
}

impl Site {
    fn new() -> Self {
        let (cluster, homes) = (Cluster::new(CONFIG), Volume::new("homes"));
        let member = |image, role, name| {
            let member = cluster.member(image, role, name).mount(cluster.config.path(), "/config");
            member.volume(&homes, "/home").with(["--env", "DEMO_GPUS=2"]).json_log().serve()
        };
        let (compute, login) = (member(DEMO, "compute", "c1"), member(FULL, "login", "login"));
        // The demo image has no sshd.
        compute.sh("printf '#!/bin/sh\\nexec sleep 600\\n' >/usr/local/bin/sshd && chmod 755 /usr/local/bin/sshd");
        let site = Self { login, compute, cluster, _homes: homes };
        site.controller().until("sinfo --noheader --Node --format=%T | grep -qx idle");
        site
    }

    const fn controller(&self) -> &Container {
        &self.cluster.controller
    }

    /// Starts a command of `slurminit session` in a login. Its output and its exit code are in the file `out` of the home.
    fn start(&self, user: &str, command: &str) {
        let running = "squeue --steps --noheader --format=%i | grep -c \"[.][0-9]\"";
        let before: u32 = self.controller().sh(&format!("{running} || true")).parse().unwrap_or(0);
        let line = format!("(setsid sh -c 'slurminit session {command}; echo code $?' >out 2>&1 </dev/null &)");
        self.login.exec(&["su", "-", user, "-s", "/bin/bash", "-c", &line]).ok();
        self.controller().until(&format!("[ \"$({running})\" -gt {before} ]"));
        // The batch script has found the step's client.
        let connected = "grep -qE \" 01 [0-9A-F:]+ 02:[0-9A-F]+ +[0-9]+ +{} \" /proc/net/tcp";
        self.compute.until(&connected.replace("{}", if user == "alice" { "1501" } else { "1502" }));
    }

    /// Starts a shell of alice that prints the time each second.
    fn start_clock(&self) {
        self.start("alice", "-- sh -c \"while sleep 1; do date; done\"");
    }

    /// Waits until this user has no job. Returns the time since `begin`.
    fn free(&self, user: &str, begin: Instant) -> Duration {
        self.controller().until(&format!("! squeue --noheader --user={user} | grep -q ."));
        begin.elapsed()
    }

    #[track_caller]
    fn assert_nothing_is_left(&self) {
        let left = "pgrep -u alice,bob; ls -d /tmp/slurminit-session-* 2>/dev/null; true";
        assert_eq!(self.compute.sh(left), "");
        assert_eq!(self.controller().sh("sinfo --noheader --Node --format=%T"), "idle");
    }
}

fn seconds(what: &str, time: Duration) -> Duration {
    eprintln!("{what}: free after {:.1} s", time.as_secs_f64());
    time
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_login_container_leaves_no_job() {
    let site = Site::new();
    site.login.sh("mkdir -p ~bob/.ssh && echo ssh-ed25519 AAAA >~bob/.ssh/authorized_keys && chown -R bob ~bob/.ssh");
    site.start("alice", "-- sleep 600");
    site.start("bob", "proxy --keep 1");
    let begin = Instant::now();
    docker(["kill", &site.login.name]).ok();
    // The processes are gone long before slurmstepd, which tries six times to reach the dead srun, for two seconds each (Slurm 24.11).
    site.compute.until("! pgrep -x sleep");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let shell = seconds("login container, shell", site.free("alice", begin));
    let kept = seconds("login container, keep 60 s", site.free("bob", begin));
    assert!(shell < Duration::from_secs(18), "{shell:?}");
    assert!((Duration::from_secs(55)..Duration::from_secs(70)).contains(&kept), "{kept:?}");
    site.assert_nothing_is_left();
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn session_outlives_slurmd_and_ends_with_its_slurmstepd() {
    let site = Site::new();
    site.start_clock();
    let printed = "wc -l <~alice/out";
    site.compute.sh("pkill -KILL -x slurmd");
    let before: u32 = site.login.sh(printed).parse().expect("a number");
    site.login.until(&format!("[ $({printed}) -gt {} ]", before + 5));
    site.compute.until("pgrep -x slurmd");
    let begin = Instant::now();
    site.compute.sh("pkill -KILL -x slurmd; pkill -KILL slurmstepd");
    let time = seconds("slurmd and its slurmstepd", site.free("alice", begin));
    assert!(time < Duration::from_secs(10), "{time:?}");
    site.assert_nothing_is_left();
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_compute_leaves_no_session() {
    let site = Site::new();
    // The compute returns before slurmctld considers it down.
    site.start_clock();
    docker(["kill", &site.compute.name]).ok();
    docker(["start", &site.compute.name]).ok();
    let begin = Instant::now();
    let time = seconds("compute that returns, since its start", site.free("alice", begin));
    assert!(time < Duration::from_secs(10), "{time:?}");
    site.login.until("grep -q ^code ~alice/out");
    site.assert_nothing_is_left();

    // The compute does not return: slurmctld ends the job when the node has not responded for SlurmdTimeout.
    site.start_clock();
    let begin = Instant::now();
    docker(["kill", &site.compute.name]).ok();
    let time = seconds("compute that is gone", site.free("alice", begin));
    assert!(time < Duration::from_secs(90), "{time:?}");
    site.login.until("grep -q \"Node failure on c1\" ~alice/out && grep -q \"^code 1\" ~alice/out");
    docker(["start", &site.compute.name]).ok();
    let begin = Instant::now();
    site.controller().until("sinfo --noheader --Node --format=%T | grep -qx idle");
    let time = seconds("compute that was gone, since its start", begin.elapsed());
    assert!(time < Duration::from_secs(10), "{time:?}");
    site.assert_nothing_is_left();
}
