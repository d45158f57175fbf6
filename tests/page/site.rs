//! The real metrics server with a sample report and stubs of Slurm's commands.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};

use faults::fault::{FaultKind, Policy};
use faults::report;
use faults::report::{GpuReport, OpenFault, Report, ReportedFault};
use faults::sample::Identity;
use machine::{STATUS_FILE, Status};
use machine::{Snapshot, UnitSnapshot, UnitState};
use model::inventory::{Condition, Readings};
use model::prepared::Prepared;
use model::queued_job::OwnedJob;
use tempfile::TempDir;

/// Hostile strings that a driver or a name service could return.
pub(crate) const EVIL_MODEL: &str =
    "<img src=x onerror=alert(1)> a model with a name that goes on and on and on and on";
pub(crate) const EVIL_USER: &str = "<b>eve</b><script>alert(1)</script>";

const NODES: &str = r#"{"nodes": [
  {"name": "gpu-node-1", "state": ["MIXED"], "reason": "", "cpus": 128, "effective_cpus": 128, "alloc_cpus": 3, "real_memory": 1030000, "alloc_memory": 4000,
   "partitions": ["main", "gpu"], "gres": "gpu:nvidia:3", "gres_used": "gpu:nvidia:2(IDX:0-1)"},
  {"name": "a-node-with-a-rather-long-name-2", "state": ["IDLE", "DRAIN"], "reason": "the fan of the power supply is loud, somebody has to look at it", "cpus": 4,
   "alloc_cpus": 0, "real_memory": 8000, "partitions": ["main"]},
  {"name": "c3", "state": ["DOWN"], "reason": "x", "cpus": 4, "real_memory": 8000, "partitions": ["main"]}]}"#;
const JOBS: &str = r#"{"jobs": [
  {"job_id": 17, "user_name": "alice", "job_state": ["RUNNING"],
   "job_resources": {"nodes": {"allocation": [{"name": "gpu-node-1"}]}}, "gres_detail": ["gpu:nvidia:1(IDX:0)"]},
  {"job_id": 18, "user_name": "EVIL", "job_state": ["RUNNING"],
   "job_resources": {"nodes": {"allocation": [{"name": "gpu-node-1"}]}}, "gres_detail": ["gpu:nvidia:1(IDX:1)"]}]}"#;

pub(crate) struct Site {
    run: TempDir,
    server: Child,
    port: u16,
}

impl Site {
    pub(crate) fn start() -> Self {
        let run = TempDir::new().unwrap();
        // The server drops root privileges, so other users need access to these files.
        let make_accessible = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        make_accessible(run.path());
        let add_stub = |name: &str, script: &str| {
            let path = run.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            make_accessible(&path);
        };
        let queue = format!(
            "17|17|RUNNING|3|1:02|gpu|alice|1|||||None|1|gres/gpu:1|lab|train\n18|18|RUNNING|64|2-03:04:05|gpu|{EVIL_USER}|2|||||None|1|gres/gpu:1|lab|{EVIL_USER}\n\
             19|19_[1-99]|PENDING|2|0:00|main,gpu|bob|3||||afterok:17(unfulfilled)|Dependency|1|N/A|lab|after\n20|20|PENDING|2|0:00|main|{EVIL_USER}|2|||||Resources|1|gres/gpu:2|lab|more\n"
        );
        for (file, text) in [("nodes", NODES), ("jobs", &JOBS.replace("EVIL", EVIL_USER)), ("queue", &queue)] {
            fs::write(run.path().join(file), text).unwrap();
        }
        add_stub("scontrol", "cat \"${0%/*}/nodes\"");
        add_stub(
            "squeue",
            "case \"$*\" in *--json*) cat \"${0%/*}/jobs\" ;; *--array*--states=all*) mark=${*#*--format=}; sed \"s/^/${mark%%%*}/\" \"${0%/*}/queue\" ;; esac",
        );
        add_stub("sdiag", "echo");
        // Another process could take the port before the server does.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(harness::slurminit());
        command.args(["metrics", "--listen", &format!("127.0.0.1:{port}"), "--run"]).arg(run.path());
        command.env("PATH", format!("{}:/usr/bin:/bin", run.path().display()));
        let site = Self { server: command.spawn().unwrap(), run, port };
        site.write(STATUS_FILE, &serde_json::to_string(&status()).unwrap());
        site.set_utilization(97);
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "the server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        site
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Writes a new report with this utilization of the first GPU.
    pub(crate) fn set_utilization(&self, percent: u32) {
        self.write(report::FILE, &serde_json::to_string(&report(percent)).unwrap());
    }

    /// The response to a request with this first line and this host.
    pub(crate) fn response(&self, request: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let (start, end) = (format!("{request} HTTP/1.1\r\n"), format!("Host: {host}\r\n\r\n"));
        [start, end].iter().for_each(|part| stream.write_all(part.as_bytes()).unwrap());
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// A field of the server's `/proc/PID/status`.
    pub(crate) fn process_field(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap();
        let mut lines = status.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        lines.next().unwrap().trim().to_owned()
    }

    /// Renames the first node in slurmctld's answers.
    pub(crate) fn rename_node(&self, name: &str) {
        self.write("nodes", &NODES.replace("gpu-node-1", name));
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }

    fn write(&self, name: &str, text: &str) {
        let new = self.run.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.run.path().join(name)).unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn report(percent: u32) -> Report {
    let now = now();
    let condition_of = |index, used, utilization| Condition {
        index,
        memory_mib: Some((used, 143_771)),
        temperature: Some(52),
        utilization: Some(utilization),
        ..Condition::default()
    };
    let watts = |mw| Readings { power_mw: Some(mw), power_limit_mw: Some(700_000), ..Readings::default() };
    let gpu = |index: u32, model: &str, jobs: Vec<OwnedJob>| GpuReport {
        identity: Identity {
            index,
            uuid: Some(format!("GPU-1c67088e-9ecb-4564-bb97-6151ecc2ef6{index}")),
            model: Some(model.to_owned()),
            file: Some(format!("/dev/nvidia{index}")),
            ..Identity::default()
        },
        jobs,
        since: now - 90,
        ..GpuReport::default()
    };
    let job = |job, user: &str| vec![OwnedJob { job, user: user.to_owned() }];
    let what = "it fell off the bus: reboot the host".to_owned();
    let fault = OpenFault {
        kind: FaultKind::Lost,
        policy: Policy::Drain,
        since: now - 60,
        what: what.clone(),
        fix: "reboot the host".to_owned(),
    };
    let xid = ReportedFault {
        at: now - 60,
        gpu: 1,
        kind: FaultKind::Xid(79),
        policy: Policy::Drain,
        jobs: job(18, EVIL_USER),
        line: format!("GPU 1 ({EVIL_MODEL}, job 18 of {EVIL_USER}): XID 79: {what}"),
    };
    let busy = GpuReport {
        condition: condition_of(0, 33_934, percent),
        readings: watts(627_000),
        offered: vec![0],
        ..gpu(0, "NVIDIA H200", job(17, "alice"))
    };
    let lost =
        GpuReport { faults: vec![fault], offered: vec![1], is_out: true, ..gpu(1, EVIL_MODEL, job(18, EVIL_USER)) };
    let free = GpuReport {
        condition: condition_of(2, 0, 0),
        readings: watts(70_000),
        offered: vec![2],
        ..gpu(2, "NVIDIA H200", Vec::new())
    };
    Report {
        process: sys::proc::own_id(),
        at: now,
        interval_ms: 3_600_000,
        gpus: vec![busy, lost, free],
        recent: vec![xid],
        ..Report::default()
    }
}

/// Status of a running slurminit, with the PID of this process.
fn status() -> Status {
    let unit = |name: &str, state, restarts| UnitSnapshot {
        name: name.to_owned(),
        state,
        restarts,
        since_ms: Some(0),
        essential: true,
        ..UnitSnapshot::default()
    };
    let prepared = Prepared { node_name: "gpu-node-1".to_owned(), ..Prepared::default() };
    let snapshot = Snapshot {
        ready: true,
        why: "ready".to_owned(),
        units: vec![unit("munged", UnitState::Ready, 0), unit("slurmd", UnitState::BackingOff, 3)],
        prepared: Some(prepared),
        ..Snapshot::default()
    };
    let started_ms = sys::monotonic_ms().saturating_sub(100_000);
    Status { version: "0".to_owned(), process: sys::proc::own_id(), started_ms, snapshot }
}
