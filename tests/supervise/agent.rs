//! `slurminit agent` with a simulated driver, and stand-ins for Slurm's commands, receivers of notifications and PID 1.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use faults::report::{self, Release, Report};
use machine::protocol::{self, Reply, Request};
use machine::{LastReload, Outcome, STATUS_FILE, Snapshot, Status};
use model::prepared::{OfferedGpu, Prepared};
use serde_json::{Value, json};

use super::*;

/// The commands of Slurm for one node, `c1`: they log each call, and a drain and its end change the node's record.
const SLURM: &str = r#"#!/bin/sh
here=${0%/*}/..
call="${0##*/} $*"
printf '%s\n' "$call" >>"$here/calls"
state() { # STATES REASON WORD
    printf '{"nodes": [{"name": "c1", "state": [%s], "reason": "%s", "gres": "gpu:2"}]}\n' "$1" "$2" >"$here/node.new"
    mv "$here/node.new" "$here/node"
    printf '%s root|%s\n' "$3" "${2:-none}" >"$here/record"
}
case "$call" in
    'sinfo '*) cat "$here/record" ;;
    'squeue '*) cat "$here/jobs" ;;
    'scontrol --details --json show node'*) cat "$here/node" ;;
    'scontrol show job '*) printf 'JobId=%s\n   StdOut=%s\n' "$3" "$here/output" ;;
    'scontrol show config') printf 'SLURM_VERSION = 24.11.5\nAccountingStorageType = accounting_storage/slurmdbd\n' ;;
    'sacct '*) echo '17|2026-11-28T09:13:07|1|00:10||' ;;
    'sacctmgr '*) ;;
    'scontrol update nodename=c1 state=drain reason='*) state '"IDLE", "DRAIN"' "${4#reason=}" drained ;;
    'scontrol update nodename=c1 state='*) state '"IDLE"' '' idle ;;
    'scontrol notify '* | 'scontrol update jobid='* | 'scancel '*) ;;
    *) exit 1 ;;
esac
"#;

const NO_JOBS: &str = r#"{"jobs": []}"#;

struct Agent {
    directory: tempfile::TempDir,
    process: Child,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Agent {
    /// Starts the agent of a node with two GPUs and these jobs, and waits for its first sample of both.
    fn start(toml: &str, jobs: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        // The process that samples the GPUs has no rights of root.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        ["tools", "run", "state"].iter().for_each(|name| fs::create_dir(path(name)).unwrap());
        for (name, text) in [
            ("tools/slurm", SLURM),
            ("driver.toml", "[[gpu]]\npersistence = true\n[[gpu]]\npersistence = true\n"),
            ("record", "idle root|none\n"),
            ("node", r#"{"nodes": [{"name": "c1", "state": ["IDLE"], "gres": "gpu:2"}]}"#),
            ("jobs", jobs),
            ("calls", ""),
        ] {
            fs::write(path(name), text).unwrap();
        }
        fs::set_permissions(path("tools/slurm"), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["sacct", "sacctmgr", "sinfo", "squeue", "scontrol", "scancel"] {
            std::os::unix::fs::symlink("slurm", path("tools").join(name)).unwrap();
        }
        fs::copy(harness::fake_nvml(), path("libnvidia-ml.so.1")).unwrap();
        let paths = format!("[paths]\nrun = {:?}\nstate = {:?}\n", path("run"), path("state"));
        let agent = "[agent]\ninterval = 0.1\ntimeout = 5\n";
        fs::write(path("slurminit.toml"), format!("{paths}{agent}{toml}")).unwrap();
        serve_as_pid_1(&path("run"));
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs tmpfs /proc/driver && mkdir /proc/driver/nvidia && exec \"$0\" agent";
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, slurminit()]).env_clear();
        command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", path("tools").display()));
        command.env("SLURMINIT_CONFIG", path("slurminit.toml")).env("FAKE_NVML", path("driver.toml"));
        command.env("SLURMINIT_NVML_LIBRARY", path("libnvidia-ml.so.1"));
        command.stderr(fs::File::create(path("log")).unwrap());
        let agent = Self { process: command.spawn().unwrap(), directory };
        agent.until("a sample of both GPUs", |report| {
            (report.gpus.len() == 2 && report.gpus.iter().all(|gpu| gpu.condition.temperature == Some(35)))
                .then_some(())
        });
        agent
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn report(&self) -> Option<Report> {
        serde_json::from_slice(&fs::read(self.path("run").join(report::FILE)).ok()?).ok()
    }

    /// Waits until `probe` accepts a report.
    fn until<T>(&self, what: &str, probe: impl Fn(&Report) -> Option<T>) -> T {
        wait_for(what, || probe(&self.report()?))
    }

    /// Waits until a call of Slurm's commands begins with this text, and returns the rest of it.
    fn until_called(&self, start: &str) -> String {
        wait_for(start, || {
            let calls = fs::read_to_string(self.path("calls")).unwrap();
            calls.lines().find_map(|call| call.strip_prefix(start)).map(str::to_owned)
        })
    }

    /// Waits until the log contains this text.
    fn until_logged(&self, text: &str) {
        wait_for(text, || self.log().contains(text).then_some(()));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// Replaces a file of the stand-ins.
    fn set(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    /// Adds an event or a fault to the driver.
    fn driver(&self, text: &str) {
        let old = fs::read_to_string(self.path("driver.toml")).unwrap();
        self.set("driver.toml", &format!("{old}{text}"));
    }

    /// Starts `slurminit gpu VERB GPU`.
    fn gpu(&self, verb: &str, gpu: &str) -> Child {
        let mut command = Command::new(slurminit());
        command.args(["gpu", verb, gpu]).env("SLURMINIT_CONFIG", self.path("slurminit.toml"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Stops the agent and returns its log.
    fn stop(mut self) -> (String, Report) {
        kill(i32::try_from(self.process.id()).unwrap(), 15);
        assert!(exit(&mut self.process).success());
        (self.log(), self.report().unwrap())
    }
}

/// The status of PID 1, which offers these GPUs to jobs, after this many reloads.
fn write_status(run: &Path, gpus: &[u32], reloads: u64) {
    let gpu = |index: &u32| OfferedGpu {
        index: *index,
        file: format!("/dev/nvidia{index}"),
        pci_address: format!("0000:{:02x}:00.0", 0x10 + index).parse().ok(),
        ..OfferedGpu::default()
    };
    let gpus = gpus.iter().map(gpu).collect();
    let prepared = Prepared { node_name: "c1".to_owned(), gpus, ..Prepared::default() };
    let mut snapshot = Snapshot { prepared: Some(prepared), ..Snapshot::default() };
    let last = LastReload { serves: reloads, at_ms: 0, outcome: Outcome::Applied, text: "applied".to_owned() };
    snapshot.reload.last = (reloads > 0).then_some(last);
    let status = Status { version: "0".to_owned(), process: sys::proc::own_id(), started_ms: 0, snapshot };
    fs::write(run.join("new"), serde_json::to_string(&status).unwrap()).unwrap();
    fs::rename(run.join("new"), run.join(STATUS_FILE)).unwrap();
}

/// Answers requests for a reload like PID 1: offers the GPUs that `gpus-out.json` does not name.
fn serve_as_pid_1(run: &Path) {
    write_status(run, &[0, 1], 0);
    let (run, listener) = (run.to_owned(), UnixListener::bind(protocol::socket(run)).unwrap());
    std::thread::spawn(move || {
        for (asked, stream) in (1..).zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            let mut line = Vec::new();
            BufReader::new(&stream).read_until(b'\n', &mut line).unwrap();
            assert_eq!(serde_json::from_slice::<Request>(&line).unwrap(), Request::Reload);
            let out: Value = serde_json::from_slice(&fs::read(run.join("gpus-out.json")).unwrap()).unwrap();
            let is_out = |index: &u32| out.as_array().unwrap().iter().any(|gpu| gpu["gpu"]["index"] == *index);
            stream.write_all(&protocol::line(&Reply::Reloading { asked })).unwrap();
            write_status(&run, &[0, 1].into_iter().filter(|index| !is_out(index)).collect::<Vec<_>>(), asked);
        }
    });
}

/// A webhook for one message: its URL, and a thread that returns the body.
fn webhook() -> (String, JoinHandle<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let serve = move || {
        let mut stream = listener.accept().unwrap().0;
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
        assert!(head.starts_with("POST /hook "), "{head}");
        let body = serde_json::Deserializer::from_reader(reader).into_iter().next().unwrap().unwrap();
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        body
    };
    (url, std::thread::spawn(serve))
}

#[test]
fn gpu_with_xid_is_excluded_and_receivers_are_notified() {
    let (url, hook) = webhook();
    let message = tempfile::NamedTempFile::new().unwrap();
    let notify = |receiver: &str| format!("[[notify]]\nuser = 'root'\n{receiver}\n");
    let command = format!("command = ['/bin/sh', '-c', 'cat >{}']", message.path().display());
    let toml = [command.as_str(), "command = ['/bin/false']", &format!("url = '{url}'")].map(notify).concat();
    let agent = Agent::start(&toml, NO_JOBS);
    agent.driver("[[xid]]\ngpu = 1\ncode = 79\n");
    let reason = agent.until_called("scontrol update nodename=c1 state=drain reason=");
    assert!(reason.starts_with("slurminit: GPU 1 (/dev/nvidia1"), "{reason}");
    let received: Value = serde_json::from_str(&wait_for_file(message.path())).unwrap();
    assert_eq!(
        (&received["node"], &received["gpu"], &received["kind"]["xid"]),
        (&"c1".into(), &1.into(), &79.into()),
        "{received}"
    );
    assert_eq!((&received["skipped"], &received["text"]), (&0.into(), &Value::Null), "{received}");
    let posted = hook.join().unwrap();
    assert_eq!(
        (&posted["text"], &posted["line"]),
        (&received["line"], &received["line"]),
        "chat services show the text"
    );
    agent.until("the exclusion", |report| {
        let offered: Vec<&[usize]> = report.gpus.iter().map(|gpu| gpu.offered.as_slice()).collect();
        (offered == [&[0][..], &[]] && report.gpus[1].is_out).then_some(())
    });
    agent.until_called("scontrol update nodename=c1 state=undrain");
    agent.until("the end of the drain", |report| (report.node.as_deref() == Some("GPU 1 excluded")).then_some(()));
    agent.until_logged("notification failed: /bin/false of [[notify]]: exit status: 1");
    let (log, last) = agent.stop();
    assert!(!log.contains("notification failed: /bin/sh"), "{log}");
    let left = |report: &Report| (report.process.pid, report.gpus.iter().map(|gpu| gpu.faults.len()).sum::<usize>());
    assert_eq!(left(&last), (0, 0), "the next agent starts without faults");
}

#[test]
fn released_gpu_is_closed_until_it_is_returned() {
    let agent = Agent::start("", NO_JOBS);
    let released = end(agent.gpu("release", "/dev/nvidia1"));
    assert_eq!(released.code, 0, "{}", released.stderr);
    let release = |gpu: usize| agent.report().unwrap().gpus[gpu].release;
    assert_eq!((release(0), release(1)), (None, Some(Release::Done)));
    let returned = end(agent.gpu("return", "1"));
    assert!(returned.stdout.contains("responds"), "{}{}", returned.stdout, returned.stderr);
    agent.until("both GPUs", |report| report.gpus.iter().all(|gpu| gpu.offered.len() == 1).then_some(()));
    agent.stop();
}

#[test]
fn lost_gpu_is_checked_again_and_returns() {
    let agent = Agent::start("", NO_JOBS);
    let healthy = fs::read_to_string(agent.path("driver.toml")).unwrap();
    agent.driver("[[fault]]\nat = \"handle\"\ngpu = 1\nkind = \"gpu-is-lost\"\n");
    let offered = |report: &Report| report.gpus.iter().map(|gpu| gpu.offered.len()).collect::<Vec<_>>();
    agent.until("the exclusion", |report| (offered(report) == [1, 0]).then_some(()));
    agent.set("driver.toml", &healthy);
    agent.until("the return", |report| (offered(report) == [1, 1] && report.node.is_none()).then_some(()));
    agent.until_logged("all GPUs available to jobs again (2 in total)");
    agent.stop();
}

/// squeue's JSON for a job with this GPU of `c1`, which is the first of its nodes.
fn job(id: u64, gpu: u32, nodes: &[&str], state: &str, start: u64) -> Value {
    let seconds = |number: u64| json!({ "set": true, "infinite": false, "number": number });
    let allocation: Vec<Value> = nodes.iter().map(|name| json!({ "name": name })).collect();
    let details = vec![format!("gpu:1(IDX:{gpu})"); nodes.len()];
    json!({ "job_id": id, "job_state": [state], "user_name": "alice", "user_id": 1501, "partition": "main",
        "start_time": seconds(start), "end_time": seconds(start + 10),
        "batch_host": nodes[0], "mail_type": ["END"], "gres_detail": details,
        "job_resources": { "nodes": { "allocation": allocation } } })
}

#[test]
fn idle_job_is_warned_then_cancelled_and_its_end_is_reported() {
    let messages = tempfile::NamedTempFile::new().unwrap();
    let notify = |on: &str| {
        let command = format!("command = ['/bin/sh', '-c', 'cat >>{}']", messages.path().display());
        format!("[[notify]]\nuser = 'root'\non = '{on}'\n{command}\n")
    };
    let idle = "[gpu.idle]\naction = 'cancel'\nafter = 1\nbelow = 5\n";
    let start = watch::agent::unix() - 10;
    let jobs = |state: &str| {
        let other = job(18, 1, &["c1", "c2"], "RUNNING", start);
        json!({ "jobs": [job(17, 0, &["c1"], state, start), other] }).to_string()
    };
    let toml = format!("{idle}{}", ["job-end", "idle-job"].map(notify).concat());
    let agent = Agent::start(&toml, &jobs("RUNNING"));
    // On a slow machine, the window is longer than 1 s.
    let is_time = |text: &str| text.strip_suffix(" s").is_some_and(|time| (1..60).contains(&time.parse().unwrap_or(0)));
    let warning = agent.until_called("scontrol notify 17 slurminit: GPU use of this job was below 5 % for ");
    assert!(
        is_time(warning.strip_suffix("; the job will be cancelled if this continues for as long again").unwrap()),
        "{warning}"
    );
    let mark = agent.until_called("scontrol update jobid=18 admincomment=slurminit-idle:c1=");
    assert!(mark.parse::<u64>().unwrap().abs_diff(watch::agent::unix()) < 60, "{mark}");
    assert_eq!(agent.until_called("scancel "), "17");
    agent.set("jobs", &jobs("CANCELLED"));
    let received = wait_for("three messages", || {
        let text = fs::read_to_string(messages.path()).unwrap();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() == 3).then_some(lines)
    });
    let begins = |index: usize, kind: &str, start: &str| {
        let line = received[index]["line"].as_str().unwrap().strip_prefix(start);
        assert!(received[index]["kind"] == kind && line.is_some(), "{received:?}");
        line.unwrap()
    };
    for (index, kind) in ["idle-job", "idle-job-cancelled"].into_iter().enumerate() {
        assert!(is_time(begins(index, kind, "job 17 of alice: GPU use was below 5 % for ")));
        assert_eq!(received[index]["job"], 17);
    }
    begins(2, "job-end", "job 17 of alice cancelled: ");
    agent.until("the ended job", |report| {
        let uses: Vec<_> = report.job_uses.iter().map(|one| (one.job, one.end.is_some())).collect();
        (uses == [(18, false), (17, true)]).then_some(())
    });
    let (log, _) = agent.stop();
    let logged = [
        "warning: job 17 of alice: GPU use below 5 % for ",
        "warning: cancelling job 17 of alice: GPU use below 5 % for ",
    ];
    assert!(logged.iter().all(|start| log.lines().any(|line| line.starts_with(start))), "{log}");
}

#[test]
fn report_of_ended_batch_job_is_written_to_its_output_and_the_database() {
    let start = watch::agent::unix() - 10;
    let jobs = |state: &str| {
        let mut batch = job(17, 0, &["c1"], state, start);
        (batch["user_name"], batch["batch_flag"]) = ("root".into(), true.into());
        json!({ "jobs": [batch] }).to_string()
    };
    let agent = Agent::start("[report]\noutput = true\n[gpu.idle]\naction = 'report'\nafter = 1\n", &jobs("RUNNING"));
    fs::write(agent.path("output"), "of the job\n").unwrap();
    agent.until("the running job", |report| (report.job_uses.len() == 1).then_some(()));
    agent.set("jobs", &jobs("COMPLETED"));
    let lines = wait_for("the report", || {
        let text = fs::read_to_string(agent.path("output")).unwrap();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() == 3).then_some(lines)
    });
    assert_eq!(lines[0], "of the job");
    assert!(lines[1].starts_with("slurminit: 1 GPU of c1 for 0:00:10: "), "{lines:?}");
    assert!(lines[2].starts_with("slurminit: `slurminit report 17` "), "{lines:?}");
    agent.until_called("sacctmgr --immediate modify job where jobid=17 set admincomment=JS1:");
    agent.stop();
}

#[test]
fn node_is_drained_while_a_limited_directory_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    let full = directory.path().display();
    let agent =
        Agent::start(&format!("[node]\ndirectory_limits = ['{full}=1', '/nonexistent/directory=1']\n"), NO_JOBS);
    let reason = agent.until_called("scontrol update nodename=c1 state=drain reason=");
    assert_eq!(reason, format!("slurminit: directory {full} is nearly full: 0 of 1 MiB free (0 %)"));
    fs::remove_file(file).unwrap();
    agent.until_called("scontrol update nodename=c1 state=undrain");
    let (log, _) = agent.stop();
    assert_eq!(log.matches("cannot measure /nonexistent/directory").count(), 1, "{log}");
}
