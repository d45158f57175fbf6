//! Fake commands of Slurm. They reply from a table, and record their calls.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use machine::protocol::{self, Reply};
use tempfile::TempDir;

const COMMANDS: [&str; 13] = [
    "getent",
    "sacct",
    "sacctmgr",
    "sbatch",
    "scancel",
    "scontrol",
    "sdiag",
    "sinfo",
    "slurmd",
    "squeue",
    "srun",
    "ssh-keygen",
    "start-node",
];

/// A command that no reply matches fails.
const HEAD: &str = "#!/bin/sh
here=${0%/*}/..
call=\"${0##*/} $*\"
printf '%s\\n' \"$call\" >>\"$here/calls\"
# The outputs of a reply are used one after the other; the last one stays.
reply() { # DIRECTORY
    set -- \"$here/replies/$1\"/*
    /bin/cat \"$1\"
    [ $# = 1 ] || /bin/rm \"$1\"
}
case \"$call\" in
";

/// A container with fake commands.
pub(crate) struct Fake {
    directory: TempDir,
    cases: String,
    replies: usize,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let fake = Self { directory: TempDir::new().unwrap(), cases: String::new(), replies: 0 };
        for name in ["tools", "replies", "state", "spool", "run"] {
            fs::create_dir(fake.path(name)).unwrap();
        }
        for name in COMMANDS {
            symlink("fake", fake.path("tools").join(name)).unwrap();
        }
        fs::write(fake.path("calls"), "").unwrap();
        let paths = format!(
            "[paths]\nrun = {:?}\nstate = {:?}\nslurm = {:?}\n[images]\ndirectory = {:?}\n",
            fake.path("run"),
            fake.path("state"),
            fake.path("etc"),
            fake.path("images")
        );
        fs::write(fake.path("slurminit.toml"), paths).unwrap();
        fake
    }

    /// Adds keys or tables to slurminit.toml.
    pub(crate) fn configure(&self, text: &str) {
        let file = self.path("slurminit.toml");
        let paths = fs::read_to_string(&file).unwrap();
        fs::write(file, format!("{text}\n{paths}")).unwrap();
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Replies with these outputs to the calls that match the pattern. `*` matches any text; the first pattern counts.
    pub(crate) fn reply(self, pattern: &str, outputs: &[&str]) -> Self {
        self.reply_after(":", pattern, outputs)
    }

    /// Like [`Self::reply`], after this part of a shell script.
    pub(crate) fn reply_after(self, script: &str, pattern: &str, outputs: &[&str]) -> Self {
        let number = self.replies;
        let folder = self.path("replies").join(number.to_string());
        fs::create_dir(&folder).unwrap();
        for (index, output) in outputs.iter().enumerate() {
            fs::write(folder.join(format!("{index:03}")), output).unwrap();
        }
        self.case(pattern, &format!("{script}; reply {number}"))
    }

    /// Fails with this error for the calls that match the pattern.
    pub(crate) fn fail(self, pattern: &str, error: &str) -> Self {
        self.case(pattern, &format!("echo '{error}' >&2; exit 1"))
    }

    /// Runs this part of a shell script for the calls that match the pattern. `$here` is the container's directory.
    pub(crate) fn script(self, pattern: &str, script: &str) -> Self {
        self.case(pattern, script)
    }

    pub(crate) fn hang(self, pattern: &str) -> Self {
        self.case(pattern, "exec /bin/sleep 600")
    }

    fn case(mut self, pattern: &str, action: &str) -> Self {
        let quoted: Vec<String> = pattern.split('*').map(|text| format!("'{text}'")).collect();
        writeln!(self.cases, "{}) {action} ;;", quoted.join("*")).unwrap();
        self.replies += 1;
        self
    }

    /// slurmctld's configuration, with the directories of this container.
    pub(crate) fn config(self, lines: &str) -> Self {
        let (state, spool) = (self.path("state"), self.path("spool"));
        let text = format!(
            "BOOT_TIME = 2026-11-28T09:00:00\nNEXT_JOB_ID = 100\nStateSaveLocation = {}\nSlurmdSpoolDir = {}\n{lines}\n",
            state.display(),
            spool.display()
        );
        self.reply("scontrol show config", &[&text])
    }

    /// Answers one request at PID 1's control socket; returns the request.
    pub(crate) fn answer(&self, reply: Reply) -> JoinHandle<Vec<u8>> {
        let socket = UnixListener::bind(protocol::socket(&self.path("run"))).unwrap();
        std::thread::spawn(move || {
            let mut client = BufReader::new(socket.accept().unwrap().0);
            let mut request = Vec::new();
            client.read_until(b'\n', &mut request).unwrap();
            client.get_mut().write_all(&protocol::line(&reply)).unwrap();
            request
        })
    }

    /// Runs `slurminit` with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let script = self.path("tools").join("fake");
        fs::write(&script, format!("{HEAD}{}*) exit 1 ;;\nesac\n", self.cases)).unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", self.path("tools").display());
        let mut command = Command::new(harness::slurminit());
        command.env_clear().env("PATH", path).env("SLURMINIT_CONFIG", self.path("slurminit.toml"));
        command.env("SLURM_CONF", self.path("slurm.conf")).args(arguments);
        command
    }

    /// Runs `slurminit`, which must succeed, and returns its standard output.
    pub(crate) fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}\n{}", self.calls("").join("\n"));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The calls so far that begin with this text, without it.
    pub(crate) fn calls(&self, start: &str) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap();
        calls.lines().filter_map(|call| call.strip_prefix(start)).map(str::to_owned).collect()
    }

    /// The calls so far that change something.
    pub(crate) fn changes(&self) -> Vec<String> {
        let starts = ["scontrol update ", "scontrol requeue", "scontrol delete ", "scontrol notify ", "scancel "];
        self.calls("").into_iter().filter(|call| starts.iter().any(|start| call.starts_with(start))).collect()
    }
}

/// Waits until this process sleeps or has ended.
pub(crate) fn wait_for_sleep(process: &Child) {
    let is_running = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        ["R", "D"].contains(&stat.rsplit(") ").next().unwrap().split(' ').next().unwrap())
    };
    while is_running() {
        std::thread::yield_now();
    }
}

/// A line of squeue.
pub(crate) fn job(id: &str, state: &str) -> String {
    job_that(id, state, "", "(null)", "None")
}

/// A line of squeue with requested nodes, dependency and reason.
pub(crate) fn job_that(id: &str, state: &str, nodes: &str, dependency: &str, reason: &str) -> String {
    let number = id.split('_').next().unwrap();
    format!("{number}|{id}|{state}|1|0:10|main|alice|1501|c1|{nodes}||{dependency}|{reason}|N/A\n")
}

/// A line of `squeue --Format`.
pub(crate) fn columns(columns: &[(&str, usize)]) -> String {
    columns.iter().map(|(text, width)| format!("{text:<width$}")).collect::<String>() + "\n"
}

/// Starts root's process that looks like the slurmstepd of this step, `70.batch`, and runs a script. Returns once the script has written a
/// line. The process ends with the exit status of the script.
pub(crate) fn slurmstepd(fake: &Fake, step: &str, script: &str) -> Child {
    let program = fake.path("slurmstepd");
    if !program.exists() {
        symlink("/bin/sh", &program).unwrap();
    }
    let task = format!("sh -c \"{script}\" & wait $!");
    let mut command = Command::new(program);
    command.arg0(format!("slurmstepd: [{step}]")).args(["-c", &task]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    child
}
