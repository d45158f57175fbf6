//! `slurminit jobs follow`: the daemons' logs, from a stand-in for PID 1.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStderr, Stdio};

use machine::protocol::{self, Reply, Request};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::fake::Fake;

/// The running verb, and the connections on which it reads the logs.
struct Follower {
    process: Child,
    messages: Lines<BufReader<ChildStderr>>,
    slurmctld: UnixStream,
    slurmd: UnixStream,
}

impl Follower {
    fn start(fake: &Fake) -> Self {
        let socket = protocol::socket(&fake.path("run"));
        let listener = UnixListener::bind(&socket).unwrap();
        let (conf, state) = (fake.path("slurm.conf"), fake.path("state"));
        let mut command = fake.command(&["jobs", "follow", "--socket"]);
        command.arg(socket).arg("--slurm-conf").arg(conf).arg("--state").arg(state);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let messages = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut connections = [(); 2].map(|()| {
            let mut client = BufReader::new(listener.accept().unwrap().0);
            let mut request = String::new();
            client.read_line(&mut request).unwrap();
            client.get_mut().write_all(&protocol::line(&Reply::Lines)).unwrap();
            let Request::Follow { name, lines: 1000 } = serde_json::from_str(&request).unwrap() else {
                unreachable!("{request}")
            };
            (name, client.into_inner())
        });
        connections.sort_by(|(first, _), (second, _)| first.cmp(second));
        let [(first, slurmctld), (second, slurmd)] = connections;
        assert_eq!([&*first, &*second], ["slurmctld", "slurmd"]);
        Self { process, messages, slurmctld, slurmd }
    }

    fn slurmctld_logs(&mut self, message: &str) {
        writeln!(self.slurmctld, "2026-11-22T10:10:55.002778Z  info slurmctld: {message}").unwrap();
    }

    fn slurmd_logs(&mut self, message: &str) {
        writeln!(self.slurmd, "2026-11-22T10:10:55.002778Z  info slurmd: {message}").unwrap();
    }

    fn next_message(&mut self) -> String {
        self.messages.next().unwrap().unwrap()
    }

    /// Closes slurmctld's log; returns the exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.slurmctld);
        let code = self.process.wait().unwrap().code();
        drop(self.slurmd);
        code
    }
}

fn wait_until(is_done: impl Fn() -> bool) {
    while !is_done() {
        std::thread::yield_now();
    }
}

#[test]
fn records_started_jobs_and_saves_only_running_ones_of_backfill() {
    let fake = Fake::new()
        .reply("squeue *--jobs 72", &["PENDING\n"])
        .reply("squeue *--jobs 12_3", &["PENDING\nRUNNING\n"])
        .reply("scontrol update *", &[""]);
    let mut follower = Follower::start(&fake);
    let file = fake.path("state/slurminit.begun");
    let recorded = || fs::read_to_string(&file).unwrap_or_default();
    follower.slurmd_logs("Launching batch job 15 for UID 1501");
    wait_until(|| recorded() == "15\n");
    follower.slurmctld_logs("sched: Allocate JobId=12_4(16) NodeList=c1 #CPUs=1 Partition=main");
    wait_until(|| recorded() == "15\n16 12_4\n");
    follower.slurmctld_logs("sched/backfill: _start_job: Started JobId=72 in main on c1");
    wait_until(|| fake.calls("squeue").len() == 1);
    follower.slurmctld_logs("sched/backfill: _start_job: Started JobId=12_3(15) in main on c1");
    wait_until(|| !fake.changes().is_empty());
    assert_eq!(fake.changes(), ["scontrol update jobid=12_3 delayboot=0"]);
    assert_eq!(recorded(), "15\n16 12_4\n15 12_3\n");
    assert_eq!(follower.end(), Some(0));
}

#[test]
fn names_files_that_failed_job_could_not_open() {
    let record = |out: &str, err: &str| {
        format!("JobId=9 JobName=StdOut=x UserId=alice(1501) BatchHost=c1 StdErr={err} StdIn=/dev/null StdOut={out}\n")
    };
    let fake = Fake::new()
        .reply("squeue *--jobs 8", &["FAILED NonZeroExitCode\n"])
        .reply("squeue *", &["FAILED RaisedSignal:53(Real-time_signal_19)\n"])
        .reply("scontrol *show job 9", &[&record("/full/out", "/full/out")])
        .reply("scontrol *show job 10", &[&record("/full/out", "/full/err")]);
    let mut follower = Follower::start(&fake);
    for job in [8, 9, 10] {
        follower.slurmctld_logs(&format!("_job_complete: JobId={job} WTERMSIG 53"));
    }
    for (job, files) in [(9, "/full/out"), (10, "/full/out and /full/err")] {
        let expected = format!("cannot open an output file of job {job}: {files}, user alice(1501), node c1; set ");
        let message = follower.next_message();
        assert!(message.contains(&expected), "{message}");
    }
    assert_eq!(follower.end(), Some(0));
}

#[test]
fn reports_full_disk_of_slurmctld() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let fake = Fake::new();
    // Only this thread and its children see the mount.
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None::<&str>).unwrap();
    let state = fake.path("state");
    mount(Some("none"), &state, Some("tmpfs"), MsFlags::empty(), Some("size=128k")).unwrap();
    let mut follower = Follower::start(&fake);
    let message = follower.next_message();
    let expected = format!("disk full: {} has 128 KiB free, but 256 KiB are needed", state.display());
    assert!(message.contains(&expected), "{message}");
    assert_eq!(follower.end(), Some(0));
}
