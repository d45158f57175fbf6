//! The control socket and the commands that use it.

mod clients;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use super::cluster::Cluster;
use super::*;

/// Runs a slurminit command for this cluster. The stand-in `scontrol` lists no node, so a restart waits for none.
fn verb(cluster: &Cluster, arguments: &[&str]) -> End {
    let tools = cluster.directory().join("tools");
    fs::create_dir_all(&tools).unwrap();
    fs::write(tools.join("scontrol"), "#!/bin/sh\necho '{\"nodes\":[]}'\n").unwrap();
    fs::set_permissions(tools.join("scontrol"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = verb_command();
    command.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
    command.args(arguments).arg("--config").arg(cluster.directory().join("slurminit.toml"));
    run(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

fn socket(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("run/control")
}

fn connect(cluster: &Cluster) -> UnixStream {
    let stream = UnixStream::connect(socket(cluster)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The server's reply up to the end of the connection.
fn read_reply(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    // If the server left bytes unread, the connection ends with a reset.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

#[track_caller]
fn assert_still_serving(cluster: &Cluster, init: Init) {
    let restart = verb(cluster, &["restart", "slurmctld"]);
    assert_eq!(restart.code, 0, "{}{}", restart.stdout, restart.stderr);
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
}

#[test]
fn restart_replaces_one_daemon_and_waits_until_it_is_ready() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let pids = || ["munged", "slurmctld", "slurmd"].map(|name| cluster.unit(name)["pid"].clone());
    let before = pids();
    // More restarts than the number of failures that makes a crash loop.
    for round in 1..=8 {
        let restart = verb(&cluster, &["restart", "slurmctld"]);
        assert_eq!(restart.code, 0, "{}{}", restart.stdout, restart.stderr);
        assert!(restart.stdout.starts_with("slurmctld is ready again after "), "{}", restart.stdout);
        assert_eq!(cluster.unit("slurmctld")["restarts"], round);
    }
    let after = pids();
    assert_eq!((&before[0], &before[2]), (&after[0], &after[2]), "another daemon was restarted");
    assert_ne!(before[1], after[1]);
    assert_eq!(cluster.unit("slurmctld")["last_exit_why"], "a restart was requested");
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn restart_reports_crash_loop_and_retries_given_up_unit() {
    let cluster = Cluster::new(
        "[[service]]\nname = 'api'\ncommand = ['sh', '-c', 'echo no port left; test -e DIR/ok && exec sleep 1000; exit 3']\n\
         readiness = { command = ['test', '-e', 'DIR/ok'] }\n\
         [supervise]\nrestart_initial_delay = 0.01\n",
    );
    let init = cluster.start();
    wait_for("the give-up", || (cluster.status()?["units"][3]["state"] == "given up").then_some(()));
    let failed = verb(&cluster, &["restart", "api"]);
    assert_eq!(failed.code, 1, "{}", failed.stdout);
    assert!(
        failed.stderr.contains("exited with code 3") && failed.stderr.contains("slurminit logs api"),
        "{}",
        failed.stderr
    );
    wait_for("the give-up", || (cluster.status()?["units"][3]["state"] == "given up").then_some(()));
    fs::write(cluster.directory().join("ok"), "").unwrap();
    assert_eq!(verb(&cluster, &["restart", "api"]).code, 0, "the given-up unit did not restart");
    let unknown = verb(&cluster, &["restart", "slurmdbd"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("`slurmdbd`; known: munged, slurmctld, slurmd, api"), "{}", unknown.stderr);
    init.signal(15);
    init.end();
}

#[test]
fn stop_command_shuts_down_like_sigterm() {
    // The last daemon stays until the client has ended, because the stop ends all processes of the container.
    let cluster = Cluster::new(
        "[daemon.munged]\nuser = 'root'\nreadiness = 'started'\nliveness = 'off'\ncommand = ['sh', '-c', '''\n\
         trap \"trap : TERM; until [ -e DIR/go ]; do sleep 0.01; done; echo stop munged >> DIR/events; exit 0\" TERM\n\
         echo start munged >> DIR/events; while :; do sleep 0.1; done''']\n",
    );
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for("three starts", || (cluster.transitions().len() == 3).then_some(()));
    let stop = verb(&cluster, &["stop"]);
    fs::write(cluster.path("go"), "").unwrap();
    assert_eq!((stop.code, stop.stdout.as_str()), (0, "stopping the container\n"), "{}", stop.stderr);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert_eq!(cluster.transitions()[3..], ["stop slurmd", "stop slurmctld", "stop munged"]);
    let gone = verb(&cluster, &["stop"]);
    assert_eq!(gone.code, 1);
    assert!(gone.stderr.contains("run/control: no cluster is running in this container"), "{}", gone.stderr);
}

#[test]
fn logs_prints_last_lines_including_those_below_log_level() {
    let cluster = Cluster::new(
        "[[service]]\nname = 'api'\ncommand = ['sh', '-c', 'i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; \
         head -c 300000 /dev/zero | tr \"\\\\0\" x; echo; echo last; touch DIR/said; exec sleep 1000']\n[log]\nlevel = 'error'\n",
    );
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for("the output of api", || {
        let logs = verb(&cluster, &["logs", "api", "--lines", "3"]);
        assert_eq!(logs.code, 0, "{}", logs.stderr);
        let lines: Vec<_> = logs.stdout.lines().collect();
        (lines.len() == 3 && lines[2].ends_with(" info api: last")).then(|| {
            assert!(lines[0].ends_with("api: line 4999"), "{}", lines[0]);
            assert!(lines[1].ends_with("xxx...") && lines[1].len() < 5000, "line not truncated: {}", lines[1].len());
        })
    });
    let all = verb(&cluster, &["logs", "api", "--lines", "1000000"]).stdout;
    assert!(all.len() <= 64 << 10 && all.len() > 50 << 10, "{} bytes", all.len());
    assert!(all.lines().all(|line| line.contains(" info api: ")), "a line is incomplete");
    let own = verb(&cluster, &["logs", "slurminit"]).stdout;
    assert!(own.contains("slurminit: ready"), "{own}");
    let names = verb(&cluster, &["logs"]).stdout;
    assert!(names.starts_with("slurminit\nmunged\n") && names.ends_with("api\n"), "{names}");
    assert_eq!(verb(&cluster, &["logs", "nobody"]).code, 1);
    init.signal(15);
    assert_eq!(init.end().stderr, "", "the log has lines below level error");
}

/// Starts `slurminit logs -f NAME` with standard output in a file.
fn spawn_follower(cluster: &Cluster, name: &str, options: &[&str], file: &Path) -> Child {
    let mut command = Command::new("env");
    command.args(["--default-signal", slurminit(), "logs", "-f", name]).args(options);
    command.arg("--config").arg(cluster.directory().join("slurminit.toml"));
    command.stdin(Stdio::null()).stdout(fs::File::create(file).unwrap()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn logs_follow_continues_across_restart_until_sigint() {
    let cluster = Cluster::new(
        "[[service]]\nname = 'api'\ncommand = ['sh', '-c', 'echo start $$; exec cat DIR/pipe']\n\
         [supervise]\nrestart_initial_delay = 0.01\n",
    );
    let pipe = cluster.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let init = cluster.start();
    cluster.wait_until_ready();
    let write_line = |line: &str| fs::write(&pipe, format!("{line}\n")).unwrap();
    let file = cluster.path("followed");
    let mut follower = spawn_follower(&cluster, "api", &["--lines", "1"], &file);
    let wait_for_output = |text: &str| {
        wait_for(text, || fs::read_to_string(&file).ok().filter(|output| output.contains(text)));
    };
    wait_for_output("api: start");
    // When the writer closes the pipe, the service exits and is restarted.
    for round in 0..3 {
        write_line(&format!("round {round}"));
        wait_for_output(&format!("api: round {round}"));
        wait_for("the restart", || (cluster.unit("api")["restarts"] == round + 1).then_some(()));
    }
    // PID 1 sleeps while there is no output.
    let switches = || status_field(init.pid, "voluntary_ctxt_switches").unwrap().parse::<u64>().unwrap();
    wait_for("idle", || {
        let before = switches();
        std::thread::sleep(Duration::from_millis(400)); // the window without wake-ups
        (switches() - before <= 1).then_some(())
    });
    kill(i32::try_from(follower.id()).unwrap(), 2);
    assert_eq!(exit(&mut follower).signal(), Some(2));
    write_line("alone");
    assert!(!fs::read_to_string(&file).unwrap().contains("alone"));
    let unknown = run(verb_command()
        .args(["logs", "-f", "nobody", "--config"])
        .arg(cluster.path("slurminit.toml"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped()));
    assert!(unknown.code == 1 && unknown.stderr.contains("`nobody`; known: "), "{}", unknown.stderr);
    assert!(unknown.stderr.contains(", slurminit"), "{}", unknown.stderr);
    assert_still_serving(&cluster, init);
}

#[test]
fn unread_followers_block_nothing_and_are_limited() {
    // With probes, slurminit itself occupies follower slots.
    let cluster = Cluster::new(
        "[[service]]\nname = 'flood'\ncommand = ['sh', '-c', 'while :; do echo flood; done']\n[log]\nlevel = 'warn'\n\
         [supervise]\nprobe_interval = 0\n",
    );
    let init = cluster.start();
    cluster.wait_until_ready();
    let follow = || {
        let mut stream = connect(&cluster);
        stream.write_all(b"{\"verb\":\"follow\",\"name\":\"flood\",\"lines\":1}\n").unwrap();
        stream
    };
    let mut followers: Vec<_> = (0..6).map(|_| follow()).collect();
    for follower in &mut followers {
        let mut first = [0; 17];
        follower.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"{\"reply\":\"lines\"}");
    }
    assert!(read_reply(&mut follow()).contains("clients already follow a log"));
    // A follower that resumes reading is notified of skipped lines.
    let mut text = String::new();
    wait_for("the gap", || {
        let mut bytes = [0; 65536];
        let length = match followers[0].read(&mut bytes) {
            // SIGCHLD from a child of another test interrupts the read.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return None,
            read => read.unwrap(),
        };
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
        (text.contains("lines left out")).then_some(())
    });
    drop(followers);
    wait_for("a free follower slot", || {
        let mut stream = follow();
        let mut first = [0; 17];
        stream.read_exact(&mut first).unwrap();
        first.ends_with(b"lines\"}").then_some(())
    });
    assert_still_serving(&cluster, init);
}

#[test]
fn health_distinguishes_live_from_ready() {
    let cluster = Cluster::new(
        "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\ncommand = ['sh', '-c', 'echo no disk; exit 4']\n\
         [supervise]\nrestart_initial_delay = 0.01\non_give_up = 'hold'\n\
         [[hooks.pre_start]]\ncommand = ['sh', '-c', 'until test -e DIR/go; do sleep 0.01; done']\n",
    );
    assert_eq!(verb(&cluster, &["health", "--live"]).code, 1);
    let init = cluster.start();
    wait_for("the hook", || (cluster.status()?["phase"] == "hooks").then_some(()));
    assert_eq!(verb(&cluster, &["health"]).code, 1);
    assert_eq!(verb(&cluster, &["health", "--ready"]).code, 1);
    let live = verb(&cluster, &["health", "--live"]);
    assert_eq!((live.code, live.stdout.as_str()), (0, "alive; phase: hooks\n"));
    fs::write(cluster.directory().join("go"), "").unwrap();
    wait_for("the give-up", || (cluster.status()?["units"][1]["state"] == "given up").then_some(()));
    let dead = verb(&cluster, &["health", "--live"]);
    assert_eq!(dead.code, 1);
    assert!(
        dead.stdout.starts_with("slurmctld is no longer restarted (last failure: exited with code 4)"),
        "{}",
        dead.stdout
    );
    init.signal(15);
    init.end();
}

#[test]
fn health_live_fails_when_pid_1_is_unresponsive() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    init.signal(19);
    let dead = verb(&cluster, &["health", "--live"]);
    init.signal(18);
    assert_eq!(dead.code, 1, "{}", dead.stdout);
    assert!(dead.stdout.contains("does not answer"), "{}", dead.stdout);
    assert_still_serving(&cluster, init);
}

#[test]
fn status_shows_memory_and_watch_refreshes() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let json: serde_json::Value = serde_json::from_str(&verb(&cluster, &["status", "--json"]).stdout).unwrap();
    assert_eq!(json["units"][0]["name"], "munged");
    assert!(json["memory_kib"].as_u64() > Some(100), "{json}");
    let mut command = verb_command();
    command.args(["status", "--watch", "--config"]).arg(cluster.directory().join("slurminit.toml"));
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    let mut skip_to = |text: &str| lines.any(|line| line.unwrap().contains(text));
    assert!(skip_to("slurmctld    ready") && skip_to("slurmctld    ready"), "the status is not refreshed");
    verb(&cluster, &["restart", "slurmctld"]);
    assert!(skip_to("a restart was requested"));
    watch.kill().unwrap();
    exit(&mut watch);
    init.signal(15);
    init.end();
}
