//! The control socket and its verbs.

mod clients;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use super::cluster::Cluster;
use super::*;

/// A verb of slurminit for this cluster, whose slurmctld lists no node that a restart would have to wait for.
fn verb(cluster: &Cluster, words: &[&str]) -> End {
    let tools = cluster.directory().join("tools");
    fs::create_dir_all(&tools).unwrap();
    fs::write(tools.join("scontrol"), "#!/bin/sh\necho '{\"nodes\":[]}'\n").unwrap();
    fs::set_permissions(tools.join("scontrol"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(slurminit());
    command.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
    command.args(words).arg("--config").arg(cluster.directory().join("slurminit.toml"));
    // status and health ask whether the pid in the status file lives: 1 does, here too.
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

/// What the server says until it ends the connection.
fn answer(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    // With bytes that the server did not read, the end is a reset.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

#[track_caller]
fn still_serves(cluster: &Cluster, init: Init) {
    let restart = verb(cluster, &["restart", "slurmctld"]);
    assert_eq!(restart.code, 0, "{}{}", restart.stdout, restart.stderr);
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
}

#[test]
fn restart_starts_one_daemon_again_and_waits_until_it_is_ready() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let pids = || ["munged", "slurmctld", "slurmd"].map(|name| cluster.unit(name)["pid"].clone());
    let before = pids();
    // More often than a daemon may fail.
    for round in 1..=8 {
        let restart = verb(&cluster, &["restart", "slurmctld"]);
        assert_eq!(restart.code, 0, "{}{}", restart.stdout, restart.stderr);
        assert!(restart.stdout.starts_with("slurmctld is ready again after "), "{}", restart.stdout);
        assert_eq!(cluster.unit("slurmctld")["restarts"], round);
    }
    let after = pids();
    assert_eq!((&before[0], &before[2]), (&after[0], &after[2]), "the others stay");
    assert_ne!(before[1], after[1]);
    assert_eq!(cluster.unit("slurmctld")["last_exit_why"], "a restart was asked for");
    init.signal(15);
    assert_eq!(init.end().code, 0);
}

#[test]
fn reports_restart_of_unit_in_crash_loop() {
    let cluster = Cluster::new(
        "[[service]]\nname = 'api'\ncommand = ['sh', '-c', 'echo no port left; test -e DIR/ok && exec sleep 1000; exit 3']\n\
         readiness = { command = ['test', '-e', 'DIR/ok'] }\n\
         [supervise]\nrestart_initial_delay = 0.01\n",
    );
    let init = cluster.start();
    wait_for("the verdict", || (cluster.status()?["units"][3]["state"] == "given up").then_some(()));
    let failed = verb(&cluster, &["restart", "api"]);
    assert_eq!(failed.code, 1, "{}", failed.stdout);
    assert!(
        failed.stderr.contains("exited with code 3") && failed.stderr.contains("slurminit logs api"),
        "{}",
        failed.stderr
    );
    wait_for("the verdict", || (cluster.status()?["units"][3]["state"] == "given up").then_some(()));
    fs::write(cluster.directory().join("ok"), "").unwrap();
    assert_eq!(verb(&cluster, &["restart", "api"]).code, 0, "what was given up is tried anew");
    let nobody = verb(&cluster, &["restart", "slurmdbd"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.stderr.contains("`slurmdbd`; known: munged, slurmctld, slurmd, api"), "{}", nobody.stderr);
    init.signal(15);
    init.end();
}

#[test]
fn stop_stops_as_term_does() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for("three starts", || (cluster.story().len() == 3).then_some(()));
    let stop = verb(&cluster, &["stop"]);
    assert_eq!((stop.code, stop.stdout.as_str()), (0, "stopping the container\n"), "{}", stop.stderr);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert_eq!(cluster.story()[3..], ["stop slurmd", "stop slurmctld", "stop munged"]);
    let gone = verb(&cluster, &["stop"]);
    assert_eq!(gone.code, 1);
    assert!(gone.stderr.contains("run/control: no slurminit runs here"), "{}", gone.stderr);
}

#[test]
fn logs_are_last_lines_of_one_daemon_also_those_that_log_leaves_out() {
    let cluster = Cluster::new(
        "[[service]]\nname = 'api'\ncommand = ['sh', '-c', 'i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; \
         head -c 300000 /dev/zero | tr \"\\\\0\" x; echo; echo last; touch DIR/said; exec sleep 1000']\n[log]\nlevel = 'error'\n",
    );
    let init = cluster.start();
    cluster.wait_until_ready();
    wait_for("its words", || {
        let logs = verb(&cluster, &["logs", "api", "--lines", "3"]);
        assert_eq!(logs.code, 0, "{}", logs.stderr);
        let lines: Vec<_> = logs.stdout.lines().collect();
        (lines.len() == 3 && lines[2].ends_with(" info api: last")).then(|| {
            assert!(lines[0].ends_with("api: line 4999"), "{}", lines[0]);
            assert!(lines[1].ends_with("xxx...") && lines[1].len() < 5000, "a long line is cut: {}", lines[1].len());
        })
    });
    let all = verb(&cluster, &["logs", "api", "--lines", "1000000"]).stdout;
    assert!(all.len() <= 64 << 10 && all.len() > 50 << 10, "{} bytes", all.len());
    assert!(all.lines().all(|line| line.contains(" info api: ")), "whole lines");
    let own = verb(&cluster, &["logs", "slurminit"]).stdout;
    assert!(own.contains("slurminit: ready"), "{own}");
    let names = verb(&cluster, &["logs"]).stdout;
    assert!(names.starts_with("slurminit\nmunged\n") && names.ends_with("api\n"), "{names}");
    assert_eq!(verb(&cluster, &["logs", "nobody"]).code, 1);
    init.signal(15);
    assert_eq!(init.end().stderr, "", "the log itself has errors only");
}

/// `slurminit logs -f NAME`, its standard output in a file.
fn following(cluster: &Cluster, name: &str, more: &[&str], file: &Path) -> Child {
    let mut command = Command::new("env");
    command.args(["--default-signal", slurminit(), "logs", "-f", name]).args(more);
    command.arg("--config").arg(cluster.directory().join("slurminit.toml"));
    command.stdin(Stdio::null()).stdout(fs::File::create(file).unwrap()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn log_is_followed_over_restart_of_its_daemon_until_ctrl_c() {
    let cluster = Cluster::new(
        "[[service]]\nname = 'api'\ncommand = ['sh', '-c', 'echo start $$; exec cat DIR/pipe']\n\
         [supervise]\nrestart_initial_delay = 0.01\n",
    );
    let pipe = cluster.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let init = cluster.start();
    cluster.wait_until_ready();
    let say = |line: &str| fs::write(&pipe, format!("{line}\n")).unwrap();
    let file = cluster.path("followed");
    let mut follower = following(&cluster, "api", &["--lines", "1"], &file);
    let said = |text: &str| {
        wait_for(text, || fs::read_to_string(&file).ok().filter(|said| said.contains(text)));
    };
    said("api: start");
    // The writer's end is the service's; it is started again.
    for round in 0..3 {
        say(&format!("round {round}"));
        said(&format!("api: round {round}"));
    }
    // PID 1 does nothing while nobody speaks.
    let switches = || status_field(init.pid, "voluntary_ctxt_switches").unwrap().parse::<u64>().unwrap();
    wait_for("quiet", || {
        let before = switches();
        std::thread::sleep(Duration::from_millis(400)); // the time in which nothing may happen
        (switches() - before <= 1).then_some(())
    });
    kill(i32::try_from(follower.id()).unwrap(), 2);
    assert_eq!(exit(&mut follower).signal(), Some(2));
    say("alone");
    assert!(!fs::read_to_string(&file).unwrap().contains("alone"));
    let nobody = run(Command::new(slurminit())
        .args(["logs", "-f", "nobody", "--config"])
        .arg(cluster.path("slurminit.toml"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped()));
    assert!(nobody.code == 1 && nobody.stderr.contains("`nobody`"), "{}", nobody.stderr);
    still_serves(&cluster, init);
}

#[test]
fn followers_that_do_not_read_hold_nothing_up_and_are_few() {
    // Without probes slurminit itself follows none.
    let cluster = Cluster::new(
        "[[service]]\nname = 'flood'\ncommand = ['sh', '-c', 'while :; do echo flood; done']\n[log]\nlevel = 'warn'\n\
         [supervise]\nprobe_interval = 0\n",
    );
    let init = cluster.start();
    cluster.wait_until_ready();
    let ask = || {
        let mut stream = connect(&cluster);
        stream.write_all(b"{\"verb\":\"follow\",\"name\":\"flood\",\"lines\":1}\n").unwrap();
        stream
    };
    let mut followers: Vec<_> = (0..6).map(|_| ask()).collect();
    for follower in &mut followers {
        let mut first = [0; 17];
        follower.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"{\"reply\":\"lines\"}");
    }
    assert!(answer(&mut ask()).contains("clients follow a log already"));
    // Who reads again is told what it has missed.
    let mut text = String::new();
    wait_for("the gap", || {
        let mut bytes = [0; 65536];
        let length = match followers[0].read(&mut bytes) {
            // By the end of a child of another test.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return None,
            read => read.unwrap(),
        };
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
        (text.contains("lines are left out")).then_some(())
    });
    drop(followers);
    wait_for("a place", || {
        let mut stream = ask();
        let mut first = [0; 17];
        stream.read_exact(&mut first).unwrap();
        first.ends_with(b"lines\"}").then_some(())
    });
    still_serves(&cluster, init);
}

#[test]
fn health_tells_alive_from_ready() {
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
    assert_eq!((live.code, live.stdout.as_str()), (0, "alive, and hooks\n"));
    fs::write(cluster.directory().join("go"), "").unwrap();
    wait_for("the verdict", || (cluster.status()?["units"][1]["state"] == "given up").then_some(()));
    let dead = verb(&cluster, &["health", "--live"]);
    assert_eq!(dead.code, 1);
    assert!(dead.stdout.starts_with("slurmctld was given up (last failure: exited with code 4)"), "{}", dead.stdout);
    init.signal(15);
    init.end();
}

#[test]
fn pid_1_that_does_not_answer_is_not_alive() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    init.signal(19);
    let dead = verb(&cluster, &["health", "--live"]);
    init.signal(18);
    assert_eq!(dead.code, 1, "{}", dead.stdout);
    assert!(dead.stdout.contains("does not answer"), "{}", dead.stdout);
    still_serves(&cluster, init);
}

#[test]
fn status_shows_memory_and_is_watched() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let json: serde_json::Value = serde_json::from_str(&verb(&cluster, &["status", "--json"]).stdout).unwrap();
    assert_eq!(json["units"][0]["name"], "munged");
    assert!(json["memory_kib"].as_u64() > Some(100), "{json}");
    let mut command = Command::new(slurminit());
    command.args(["status", "--watch", "--config"]).arg(cluster.directory().join("slurminit.toml"));
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    let mut saw = |text: &str| lines.any(|line| line.unwrap().contains(text));
    assert!(saw("slurmctld    ready") && saw("slurmctld    ready"), "it is shown again");
    verb(&cluster, &["restart", "slurmctld"]);
    assert!(saw("a restart was asked for"));
    watch.kill().unwrap();
    exit(&mut watch);
    init.signal(15);
    init.end();
}
