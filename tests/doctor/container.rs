//! A simulated container: a root directory, a machine description for fake-nvml, and fake Slurm commands.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};

use machine::Status;
use machine::{PhaseName, Snapshot, UnitSnapshot, UnitState};
use tempfile::TempDir;

pub(crate) struct Container {
    directory: TempDir,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    machine: String,
    has_library: bool,
}

impl Container {
    /// A ready cluster with one H200.
    pub(crate) fn healthy() -> Self {
        let container = Self {
            directory: TempDir::new().unwrap(),
            arguments: Vec::new(),
            environment: Vec::new(),
            machine: "driver = \"550.127.05\"\ncuda = \"12.4\"\n[[gpu]]\nnuma = 0\npersistence = true\n".to_owned(),
            has_library: true,
        };
        for name in ["root", "tools", "answers"] {
            fs::create_dir(container.path(name)).unwrap();
        }
        for tool in ["scontrol", "sinfo", "squeue", "sh", "getent", "date", "slurminit"] {
            let fake = harness::root().join("tests/doctor/fake-tool");
            symlink(fake, container.path("tools").join(tool)).unwrap();
        }
        let unit =
            |name: &str| UnitSnapshot { name: name.to_owned(), state: UnitState::Ready, ..UnitSnapshot::default() };
        container
            .device("dev/nvidia0")
            .file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "")
            .file("usr/bin/nvidia-smi", "")
            .file("proc/meminfo", "MemTotal: 16777216 kB\n")
            .file("proc/self/status", "Cpus_allowed_list:\t0-7\n")
            .file("var/lib/slurm/slurmctld/clustername", "slurminit|89")
            .file("sys/fs/cgroup/memory.events", "oom 0\noom_kill 0\n")
            .status(["munged", "slurmctld", "slurmd"].map(unit).to_vec())
            .answer("scontrol", "ping", "Slurmctld(primary) at here is UP\n")
            .answer("sinfo", "node", "gpu:nvidia:1|idle|none\n")
            .answer("squeue", "running", "")
            .answer("squeue", "waiting", "")
            .answer("squeue", "comments", "")
            .answer("sh", "munge", &credential("Success (0)", 0))
            .answer("slurminit", "images", "")
            .answer("slurminit", "proot", "")
            .answer("date", "date", "2026-11-28T04:30:00\n")
            .answer("slurminit", "controller-log", "")
            .answer("slurminit", "node-log", "")
            .answer("getent", "address", "172.17.0.2 here\n")
            .toml("[slurm]\ncontroller_port = 1\ndaemon_port = 2\n")
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Writes a file below the root.
    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        let path = self.path("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn program(self, path: &str) -> Self {
        let container = self.file(path, "#!/bin/sh\n");
        let path = container.path("root").join(path);
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a file of the test");
        container
    }

    pub(crate) fn without(self, path: &str) -> Self {
        fs::remove_file(self.path("root").join(path)).unwrap();
        self
    }

    /// Sets a file's modification time, in seconds since 1970.
    pub(crate) fn modified_at(self, path: &str, seconds: i64) -> Self {
        let time = nix::sys::time::TimeVal::new(seconds, 0);
        nix::sys::stat::utimes(&self.path("root").join(path), &time, &time).unwrap();
        self
    }

    /// A device file that can be opened.
    pub(crate) fn device(self, path: &str) -> Self {
        let path = self.path("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink("/dev/null", path).unwrap();
        self
    }

    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    pub(crate) fn argument(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Writes slurminit.toml.
    pub(crate) fn toml(self, text: &str) -> Self {
        fs::write(self.path("slurminit.toml"), text).unwrap();
        self
    }

    /// Sets the machine description for fake-nvml.
    pub(crate) fn machine(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.machine);
        self
    }

    pub(crate) fn without_library(mut self) -> Self {
        self.has_library = false;
        self
    }

    /// Adds a driver fault. `at` and `kind` are those of tests/fake-nvml.
    pub(crate) fn fault(mut self, at: &str, kind: &str) -> Self {
        self.machine += &format!("[[fault]]\nat = \"{at}\"\nkind = \"{kind}\"\n");
        self
    }

    /// Sets the output of a fake command.
    pub(crate) fn answer(self, _tool: &str, name: &str, stdout: &str) -> Self {
        fs::write(self.path(&format!("answers/{name}.out")), stdout).unwrap();
        self
    }

    pub(crate) fn failure(self, name: &str, code: u8, stdout: &str) -> Self {
        fs::write(self.path(&format!("answers/{name}.code")), code.to_string()).unwrap();
        self.answer("", name, stdout)
    }

    pub(crate) fn hangs(self, name: &'static str) -> Self {
        fs::write(self.path(&format!("answers/{name}.hangs")), "").unwrap();
        self
    }

    /// Writes the status file of PID 1, with this process as PID 1.
    pub(crate) fn status(self, units: Vec<UnitSnapshot>) -> Self {
        let ready = || "ready".to_owned();
        let snapshot = Snapshot { phase: PhaseName::Ready, ready: true, why: ready(), units, ..Snapshot::default() };
        let status = Status { version: "0.1.0".to_owned(), process: sys::proc::own_id(), started_ms: 1000, snapshot };
        self.file("run/slurminit/status.json", &serde_json::to_string(&status).unwrap())
    }

    pub(crate) fn command_as_json(&self) -> Command {
        self.with_arguments(super::doctor())
    }

    pub(crate) fn command_as_text(&self) -> Command {
        let mut command = Command::new(harness::slurminit());
        command.env_clear().arg("doctor");
        self.with_arguments(command)
    }

    fn with_arguments(&self, mut command: Command) -> Command {
        fs::write(self.path("fake-nvml.toml"), &self.machine).unwrap();
        let library = if self.has_library { super::fake_nvml() } else { self.path("libnvidia-ml.so.1") };
        command
            .arg("--container")
            .arg("--root")
            .arg(self.path("root"))
            .arg("--config")
            .arg(self.path("slurminit.toml"));
        command.args(&self.arguments);
        command.env("PATH", self.path("tools")).env("SLURMINIT_NVML_LIBRARY", library);
        command
            .env("FAKE_NVML", self.path("fake-nvml.toml"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn examine(&self) -> Output {
        self.command_as_json().output().unwrap()
    }
}

/// Output of unmunge for a credential that is `age` seconds old.
pub(crate) fn credential(status: &str, age: i64) -> String {
    let now = 1_795_278_308;
    format!(
        "STATUS:          {status}\nENCODE_HOST:     other (10.0.0.2)\nENCODE_TIME:     2026-11-21 16:24:58 +0000 ({})\n\
         DECODE_TIME:     2026-11-21 16:25:08 +0000 ({now})\nTTL:             300\n",
        now - age
    )
}
