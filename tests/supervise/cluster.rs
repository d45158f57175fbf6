//! The role `all` with stand-ins for the daemons: order, restarts, give-up, stop. tests/image.rs has the real ones.

use super::*;

/// A cluster of shell scripts, each of which writes what happens to it into one file.
pub(crate) struct Cluster {
    _keep: tempfile::TempDir,
    pub(crate) directory: PathBuf,
}

/// Says its name, its pid, and later that it was told to stop.
const DAEMON: &str = r#"#!/bin/sh
name=$1; log=$2/events
trap 'echo stop $name >> $log; exit 0' TERM
echo start $name $$ >> $log
while :; do sleep 1000 & wait; done
"#;

impl Cluster {
    pub(crate) fn new(more: &str) -> Self {
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
        // There is no GPU to look after.
        config += "[agent]\ninterval = 0\n";
        for name in ["munged", "slurmctld", "slurmd"] {
            if !more.contains(&format!("[daemon.{name}]")) {
                config += &format!("[daemon.{name}]\n{}", stand_in(&directory, name));
            }
        }
        config += &more.replace("DIR", &directory.display().to_string());
        fs::write(directory.join("slurminit.toml"), config).unwrap();
        Self { _keep: keep, directory }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let config = self.directory.join("slurminit.toml");
        let mut command = as_pid_1(&[&["--config", config.to_str().unwrap()], arguments].concat());
        command.env("PATH", self.search_path()).env_remove("GPU_TYPE");
        // A stop that ends is one in which everything ended by itself.
        command.env("SLURMINIT_STOP_TIMEOUT", NEVER.to_string());
        command
    }

    /// Where the stand-ins are, and then everything else.
    fn search_path(&self) -> String {
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

    /// The words `start NAME` and `stop NAME`, without pids.
    pub(crate) fn story(&self) -> Vec<String> {
        let two = |line: String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        self.events().into_iter().map(two).collect()
    }

    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&fs::read(self.directory.join("run/status.json")).ok()?).ok()
    }

    pub(crate) fn wait_until_ready(&self) {
        wait_for("ready", || self.status().filter(|status| status["ready"] == true));
    }

    /// The unit of this name in the status.
    pub(crate) fn unit(&self, name: &str) -> serde_json::Value {
        let status = self.status().unwrap();
        status["units"].as_array().unwrap().iter().find(|unit| unit["name"] == name).unwrap().clone()
    }

    /// The pid outside of the last start of `name`; the status has the one inside.
    pub(crate) fn pid_of(&self, init: &Init, name: &str) -> i32 {
        let inside = self.unit(name)["pid"].as_i64().unwrap().to_string();
        let is_it = |pid: &i32| {
            status_field(*pid, "NSpid").is_some_and(|pids| pids.split_whitespace().last() == Some(inside.as_str()))
        };
        init.children().into_iter().find(is_it).unwrap()
    }
}

fn stand_in(directory: &Path, name: &str) -> String {
    let d = directory.display();
    format!("command = ['{d}/bin/daemon', '{name}', '{d}']\nuser = 'root'\nreadiness = 'started'\nliveness = 'off'\n")
}

#[test]
fn daemons_start_in_order_and_stop_in_reverse() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for("three starts", || (cluster.events().len() == 3).then_some(()));
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    let story = cluster.story();
    assert_eq!(story[3..], ["stop slurmd", "stop slurmctld", "stop munged"], "{story:?}");
}

#[test]
fn runs_command_when_cluster_is_ready_and_keeps_its_code() {
    let cluster = Cluster::new("");
    let events = cluster.directory.join("events");
    // They count as ready when they are started, which is before they say so.
    let script =
        format!("until [ \"$(grep -c start {})\" = 3 ]; do sleep 0.01; done; echo 3; exit 7", events.display());
    let mut command = cluster.command(&["--", "sh", "-c", &script]);
    command.env("SLURMINIT_LOG_LEVEL", "warn");
    let end = run(command);
    assert_eq!((end.code, end.stdout.trim()), (7, "3"), "{}", end.stderr);
}

#[test]
fn term_at_any_moment_of_the_start_ends_it_soon() {
    for ms in (0..60).step_by(3) {
        let cluster = Cluster::new("");
        let init = cluster.start();
        // The kernel drops what comes for a PID 1 that has not said that it listens, whoever that is.
        wait_for("the handlers", || {
            let caught = u64::from_str_radix(&status_field(init.pid, "SigCgt")?, 16).ok()?;
            (caught & (1 << 14) != 0).then_some(())
        });
        std::thread::sleep(Duration::from_millis(ms)); // the moment is what is tested
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
    wait_for("its restart", || (cluster.unit("slurmctld")["restarts"] == 1).then_some(()));
    wait_for("its readiness", || (cluster.unit("slurmctld")["state"] == "ready").then_some(()));
    assert_eq!(cluster.unit("slurmctld")["last_exit"], "was killed by signal 9 (SIGKILL)");
    let after: Vec<_> = ["munged", "slurmd"].iter().map(|name| cluster.unit(name)["pid"].clone()).collect();
    assert_eq!(before, after);
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn port_that_rest_of_dead_daemon_still_holds_is_waited_for() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // The kernel takes back a dead process's memory first, and its port later.
    let script = r#"use Socket; socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1);
        bind(S, sockaddr_in(PORT, INADDR_LOOPBACK)) or die; listen(S, 9);
        if (!fork) { $x = "x" x 6e7; open(F, ">>", "DIR/held"); print F "held\n"; close(F) } sleep 1000"#;
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
    wait_for("its restart", || (cluster.unit("slurmctld")["restarts"] == 1).then_some(()));
    wait_for("its readiness", || (cluster.unit("slurmctld")["state"] == "ready").then_some(()));
    assert_eq!(
        cluster.unit("slurmctld")["last_exit"],
        "was killed by signal 9 (SIGKILL)",
        "and not a port that is taken"
    );
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn restart_of_slurmd_leaves_job_steps_alone() {
    // The stand-in for a job step has a session of its own, as slurmstepd has.
    let step = "[daemon.slurmd]\nuser = 'root'\nreadiness = 'started'\n\
        command = ['sh', '-c', 'setsid sh -c \"echo \\$\\$ >> DIR/steps; exec sleep 1000\" & exec sleep 1000']\n";
    let cluster = Cluster::new(step);
    let init = cluster.start();
    cluster.wait_until_ready();
    let step = wait_for_file(&cluster.directory.join("steps"));
    kill(cluster.pid_of(&init, "slurmd"), 9);
    wait_for("its restart", || (cluster.unit("slurmd")["restarts"] == 1).then_some(()));
    let lives = |inside: &str| {
        init.children()
            .iter()
            .any(|pid| status_field(*pid, "NSpid").is_some_and(|pids| pids.split_whitespace().last() == Some(inside)))
    };
    assert!(lives(step.trim()), "the step is now PID 1's child, and lives");
    init.signal(15);
    init.end();
}

#[test]
fn daemon_in_crash_loop_ends_container_with_its_code_and_last_lines() {
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
    wait_for("the verdict", || (cluster.status()?["units"][1]["state"] == "given up").then_some(()));
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn missing_daemon_is_named() {
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
fn fifty_services_that_end_at_once_are_all_attributed() {
    let service = |i: usize| format!("[[service]]\nname = 'short-{i}'\ncommand = ['true']\nrestart = 'never'\n");
    for _ in 0..5 {
        let cluster = Cluster::new(&(0..50).map(service).collect::<String>());
        let init = cluster.start();
        cluster.wait_until_ready();
        wait_for("fifty ends", || {
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
fn term_during_a_hook_ends_it() {
    let cluster = Cluster::new("[[hooks.pre_start]]\ncommand = ['sh', '-c', 'echo > DIR/in-hook; exec sleep 1000']\n");
    let init = cluster.start();
    wait_for_file(&cluster.directory.join("in-hook"));
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn daemon_that_ignores_term_is_killed_at_its_deadline_and_second_term_hurries() {
    let deaf = "[daemon.slurmd]\nuser = 'root'\nreadiness = 'started'\nstop_timeout = TIME\n\
        command = ['sh', '-c', 'trap \"\" TERM; echo up > DIR/deaf; while :; do sleep 0.1; done']\n";
    for (time, second) in [("0.5".to_owned(), false), (NEVER.to_string(), true)] {
        let cluster = Cluster::new(&deaf.replace("TIME", &time));
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
fn health_and_status_tell_the_truth() {
    let cluster = Cluster::new("");
    let config = cluster.directory.join("slurminit.toml");
    let verb = |verb: &str| {
        let mut command = Command::new(slurminit());
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
fn bad_configuration_is_refused_with_file_and_line() {
    let cases = [
        ("nonsense = ", ":1:"),
        ("[gpu]\ntype_nam = 'x'", "type_nam"),
        ("[supervise]\ngive_up_after = 'x'", "give_up_after"),
    ];
    for (text, word) in cases {
        let (_keep, directory) = scratch();
        let file = directory.join("slurminit.toml");
        fs::write(&file, text).unwrap();
        let end = run(as_pid_1(&["--config", file.to_str().unwrap()]));
        assert_eq!(end.code, 78, "{}", end.stderr);
        assert!(end.stderr.contains(file.to_str().unwrap()) && end.stderr.contains(word), "{}", end.stderr);
    }
}
