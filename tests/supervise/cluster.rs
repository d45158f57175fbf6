//! The role `all` with stand-ins for the daemons: order, restarts, give-up, stop. tests/image.rs uses real daemons.

use super::*;

/// A cluster of shell scripts that log their starts and stops to the shared file `events`.
pub(crate) struct Cluster {
    _keep: tempfile::TempDir,
    pub(crate) directory: PathBuf,
}

/// A daemon that logs its start with its name and PID, and its stop on SIGTERM, which slurminit repeats.
const DAEMON: &str = r#"#!/bin/sh
name=$1; log=$2/events
trap 'trap "" TERM; echo stop $name >> $log; exit 0' TERM
echo start $name $$ >> $log
while :; do sleep 1000 & wait; done
"#;

impl Cluster {
    pub(crate) fn new(extra: &str) -> Self {
        let (keep, directory) = scratch();
        let bin = directory.join("bin");
        fs::create_dir(&bin).unwrap();
        let script = |name: &str, text: &str| {
            let file = bin.join(name);
            fs::write(&file, text).unwrap();
            Command::new("chmod").arg("+x").arg(file).status().unwrap();
        };
        script("daemon", DAEMON);
        script("sinfo", "#!/bin/sh\ncase \"$*\" in *%a*) echo 'up|idle|none';; *) echo 'idle|none';; esac\n");
        let d = directory.display();
        let mut config = format!(
            "[paths]\nslurm = '{d}/slurm'\nconfig = '{d}/config'\nstate = '{d}/state'\nrun = '{d}/run'\n\
             munge_key = '{d}/munge/munge.key'\nmunge_socket = '{d}/munge-run/socket'\nmunge_secret = '{d}/no-secret'\n"
        );
        // The agent has no GPU to monitor.
        config += "[agent]\ninterval = 0\n";
        for name in ["munged", "slurmctld", "slurmd"] {
            if !extra.contains(&format!("[daemon.{name}]")) {
                config += &format!("[daemon.{name}]\n{}", stand_in(&directory, name));
            }
        }
        config += &extra.replace("DIR", &directory.display().to_string());
        fs::write(directory.join("slurminit.toml"), config).unwrap();
        Self { _keep: keep, directory }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let config = self.directory.join("slurminit.toml");
        let mut command = as_pid_1(&[&["--config", config.to_str().unwrap()], arguments].concat());
        command.env("PATH", self.search_path()).env_remove("GPU_TYPE");
        // No kill at a timeout: a stop completes only if every process exits by itself.
        command.env("SLURMINIT_STOP_TIMEOUT", NEVER.to_string());
        command
    }

    /// `PATH` with the directory of the stand-ins in front.
    pub(crate) fn search_path(&self) -> String {
        format!("{}:{}", self.directory.join("bin").display(), std::env::var("PATH").unwrap())
    }

    pub(crate) fn start(&self) -> Init {
        Init::start(self.command(&[]))
    }

    pub(crate) fn start_with_json_log(&self) -> Init {
        let mut command = self.command(&[]);
        command.env(JSON_LOG.0, JSON_LOG.1);
        Init::start(command)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn events(&self) -> Vec<String> {
        let events = fs::read_to_string(self.directory.join("events")).unwrap_or_default();
        events.lines().map(str::to_owned).collect()
    }

    /// The events `start NAME` and `stop NAME` without PIDs.
    pub(crate) fn transitions(&self) -> Vec<String> {
        let without_pid = |line: String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        self.events().into_iter().map(without_pid).collect()
    }

    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&fs::read(self.directory.join("run/status.json")).ok()?).ok()
    }

    pub(crate) fn wait_until_ready(&self) {
        wait_for("ready", || self.status().filter(|status| status["ready"] == true));
    }

    /// The unit `name` in the status.
    pub(crate) fn unit(&self, name: &str) -> serde_json::Value {
        let status = self.status().unwrap();
        status["units"].as_array().unwrap().iter().find(|unit| unit["name"] == name).unwrap().clone()
    }

    /// The current PID of `name` in the outer namespace. The status has the PID in the inner namespace.
    pub(crate) fn pid_of(&self, init: &Init, name: &str) -> i32 {
        let inside = self.unit(name)["pid"].as_i64().unwrap().to_string();
        let matches = |pid: &i32| {
            status_field(*pid, "NSpid").is_some_and(|pids| pids.split_whitespace().last() == Some(inside.as_str()))
        };
        init.children().into_iter().find(matches).unwrap()
    }
}

fn stand_in(directory: &Path, name: &str) -> String {
    let d = directory.display();
    format!("command = ['{d}/bin/daemon', '{name}', '{d}']\nuser = 'root'\nreadiness = 'started'\nliveness = 'off'\n")
}

#[test]
fn stops_daemons_in_reverse_order() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for("three starts", || (cluster.events().len() == 3).then_some(()));
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    let transitions = cluster.transitions();
    assert_eq!(transitions[3..], ["stop slurmd", "stop slurmctld", "stop munged"], "{transitions:?}");
}

#[test]
fn runs_command_when_cluster_is_ready_and_returns_its_exit_code() {
    let cluster = Cluster::new("");
    let events = cluster.directory.join("events");
    // Stand-ins count as ready once started, which is before they log the event.
    let script =
        format!("until [ \"$(grep -c start {})\" = 3 ]; do sleep 0.01; done; echo 3; exit 7", events.display());
    let mut command = cluster.command(&["--", "sh", "-c", &script]);
    command.env("SLURMINIT_LOG_LEVEL", "warn");
    let end = run(command);
    assert_eq!((end.code, end.stdout.trim()), (7, "3"), "{}", end.stderr);
}

#[test]
fn sigterm_at_any_point_of_startup_stops_with_code_0() {
    for ms in (0..60).step_by(3) {
        let cluster = Cluster::new("");
        let init = cluster.start();
        // The kernel drops signals for which PID 1 has no handler.
        wait_for("the handlers", || {
            let caught = u64::from_str_radix(&status_field(init.pid, "SigCgt")?, 16).ok()?;
            (caught & (1 << 14) != 0).then_some(())
        });
        std::thread::sleep(Duration::from_millis(ms)); // the time of the signal is the tested variable
        init.signal(15);
        let end = init.end();
        assert_eq!(end.code, 0, "after {ms} ms: {}", end.stderr);
    }
}

#[test]
fn restarts_killed_daemon_without_affecting_others() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let before: Vec<_> = ["munged", "slurmd"].iter().map(|name| cluster.unit(name)["pid"].clone()).collect();
    kill(cluster.pid_of(&init, "slurmctld"), 9);
    wait_for("the restart", || (cluster.unit("slurmctld")["restarts"] == 1).then_some(()));
    wait_for("readiness", || (cluster.unit("slurmctld")["state"] == "ready").then_some(()));
    assert_eq!(cluster.unit("slurmctld")["last_exit"], "was killed by signal 9 (SIGKILL)");
    let after: Vec<_> = ["munged", "slurmd"].iter().map(|name| cluster.unit(name)["pid"].clone()).collect();
    assert_eq!(before, after);
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn restart_waits_for_port_held_by_child_of_killed_daemon() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // The kernel releases the memory of a dead process before its port, so the large child delays the release.
    let script = r#"use Socket; socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1);
        bind(S, sockaddr_in(PORT, INADDR_LOOPBACK)) or die; listen(S, 9);
        if (!fork) { $x = "x" x 1e7; open(F, ">>", "DIR/held"); print F "held\n"; close(F) } sleep 1000"#;
    let script = script.replace("PORT", &port.to_string());
    let daemon = format!(
        "[daemon.slurmctld]\nuser = 'root'\nliveness = 'off'\nreadiness = {{ port = {port} }}\n\
         command = ['perl', '-e', '''{script}''']\n"
    );
    let cluster = Cluster::new(&daemon);
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for_file(&cluster.directory.join("held"));
    kill(cluster.pid_of(&init, "slurmctld"), 9);
    wait_for("the restart", || (cluster.unit("slurmctld")["restarts"] == 1).then_some(()));
    wait_for("readiness", || (cluster.unit("slurmctld")["state"] == "ready").then_some(()));
    assert_eq!(
        cluster.unit("slurmctld")["last_exit"],
        "was killed by signal 9 (SIGKILL)",
        "the restart failed on the occupied port"
    );
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn slurmd_restart_keeps_job_steps_running() {
    // Like slurmstepd, the stand-in for a job step runs in a separate session.
    let step = "[daemon.slurmd]\nuser = 'root'\nreadiness = 'started'\n\
        command = ['sh', '-c', 'setsid sh -c \"echo \\$\\$ >> DIR/steps; exec sleep 1000\" & exec sleep 1000']\n";
    let cluster = Cluster::new(step);
    let init = cluster.start();
    cluster.wait_until_ready();
    let step = wait_for_file(&cluster.directory.join("steps"));
    kill(cluster.pid_of(&init, "slurmd"), 9);
    wait_for("the restart", || (cluster.unit("slurmd")["restarts"] == 1).then_some(()));
    let is_alive = |inside: &str| {
        init.children()
            .iter()
            .any(|pid| status_field(*pid, "NSpid").is_some_and(|pids| pids.split_whitespace().last() == Some(inside)))
    };
    assert!(is_alive(step.trim()), "the step is no child of PID 1");
    init.signal(15);
    init.end();
}

#[test]
fn crash_loop_exits_101_and_logs_last_lines_of_daemon() {
    let cluster = Cluster::new(
        "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\n\
         command = ['sh', '-c', 'echo slurmctld: error: no state directory >&2; exit 3']\n\
         [supervise]\nrestart_initial_delay = 0.01\n",
    );
    let end = cluster.start_with_json_log().end();
    assert_eq!(end.code, 101, "{}", end.stderr);
    let last: Vec<_> = end.stderr.lines().rev().take(2).collect();
    assert_eq!(logged(last[0], "stopped", "slurmctld"), 1, "{last:?}");
    assert!(last[1].contains("no state directory"), "{last:?}");
}

#[test]
fn on_give_up_hold_keeps_container_for_inspection() {
    let cluster = Cluster::new(
        "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\ncommand = ['false']\n\
         [supervise]\nrestart_initial_delay = 0.01\non_give_up = 'hold'\n",
    );
    let init = cluster.start();
    wait_for("the give-up", || (cluster.status()?["units"][1]["state"] == "given up").then_some(()));
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn reports_path_of_missing_daemon() {
    let cluster = Cluster::new(
        "[daemon.munged]\nuser = 'root'\nreadiness = 'started'\ncommand = ['/nonexistent/munged']\n\
         [supervise]\nrestart_initial_delay = 0.01\n",
    );
    let end = run(cluster.command(&[]));
    assert_eq!(end.code, 100, "{}", end.stderr);
    let last = end.stderr.lines().last().unwrap();
    assert!(last.contains("`/nonexistent/munged`"), "{last}");
}

#[test]
fn attributes_fifty_simultaneous_exits_to_their_services() {
    let service = |i: usize| format!("[[service]]\nname = 'short-{i}'\ncommand = ['true']\nrestart = 'never'\n");
    for _ in 0..5 {
        let cluster = Cluster::new(&(0..50).map(service).collect::<String>());
        let init = cluster.start();
        cluster.wait_until_ready();
        wait_for("fifty exits", || {
            let status = cluster.status()?;
            let units = status["units"].as_array()?;
            let ended =
                |unit: &&serde_json::Value| unit["last_exit"] == "exited with code 0" && unit["state"] == "finished";
            (units.iter().filter(ended).count() == 50).then_some(())
        });
        init.signal(15);
        assert_eq!(init.end().code, 0);
    }
}

#[test]
fn runs_hooks_first_and_failing_hook_prevents_start() {
    let cluster = Cluster::new("[[hooks.pre_start]]\ncommand = ['sh', '-c', 'echo hook >> DIR/events']\n");
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for("four events", || (cluster.events().len() == 4).then_some(()));
    assert_eq!(cluster.events()[0], "hook");
    init.signal(15);
    init.end();

    let cluster = Cluster::new("[[hooks.pre_start]]\ncommand = ['sh', '-c', 'echo no disk; exit 4']\n");
    let end = run(cluster.command(&[]));
    assert_eq!(end.code, 106, "{}", end.stderr);
    assert!(end.stderr.contains("hook-1: no disk"), "{}", end.stderr);
    assert!(cluster.events().is_empty());
}

#[test]
fn sigterm_during_pre_start_hook_stops_container() {
    let cluster = Cluster::new("[[hooks.pre_start]]\ncommand = ['sh', '-c', 'echo > DIR/in-hook; exec sleep 1000']\n");
    let init = cluster.start();
    wait_for_file(&cluster.directory.join("in-hook"));
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn kills_daemon_ignoring_sigterm_at_timeout_or_second_sigterm() {
    let ignores_term = "[daemon.slurmd]\nuser = 'root'\nreadiness = 'started'\nstop_timeout = TIME\n\
        command = ['sh', '-c', 'trap \"\" TERM; echo up > DIR/deaf; while :; do sleep 0.1; done']\n";
    for (time, second) in [("0.5".to_owned(), false), (NEVER.to_string(), true)] {
        let cluster = Cluster::new(&ignores_term.replace("TIME", &time));
        let init = cluster.start_with_json_log();
        cluster.wait_until_ready();
        wait_for_file(&cluster.directory.join("deaf"));
        init.signal(15);
        if second {
            wait_for("the stop", || (cluster.status()?["phase"] == "stopping").then_some(()));
            init.signal(15);
        }
        let end = init.end();
        assert_eq!(end.code, 0, "{}", end.stderr);
        assert_eq!(end.logged("unit-killed", "slurmd"), 1, "{}", end.stderr);
    }
}

#[test]
fn health_and_status_report_readiness() {
    let cluster = Cluster::new("");
    let config = cluster.directory.join("slurminit.toml");
    let verb = |verb: &str| {
        let mut command = verb_command();
        command.arg(verb).arg("--config").arg(&config).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("PATH", cluster.search_path());
        run(command)
    };
    assert_eq!(verb("health").code, 1);
    let init = cluster.start();
    cluster.wait_until_ready();
    let health = verb("health");
    assert_eq!((health.code, health.stdout.as_str()), (0, "ready\n"));
    let status = verb("status");
    assert!(status.stdout.contains("slurmctld    ready"), "{}{}", status.stdout, status.stderr);
    init.signal(15);
    init.end();
}

#[test]
fn rejects_invalid_configuration_with_file_and_location() {
    let cases = [
        ("nonsense = ", ":1:"),
        ("[gpu]\ntype_nam = 'x'", "type_nam"),
        ("[supervise]\ngive_up_after = 'x'", "give_up_after"),
    ];
    for (text, location) in cases {
        let (_keep, directory) = scratch();
        let file = directory.join("slurminit.toml");
        fs::write(&file, text).unwrap();
        let end = run(as_pid_1(&["--config", file.to_str().unwrap()]));
        assert_eq!(end.code, 78, "{}", end.stderr);
        assert!(end.stderr.contains(file.to_str().unwrap()) && end.stderr.contains(location), "{}", end.stderr);
    }
}
