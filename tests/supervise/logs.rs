//! The log: prefixed, whole lines that never block slurminit, even if unread.

use std::sync::{Arc, Mutex};

use super::cluster::Cluster;
use super::*;

fn chatty(script: &str) -> Cluster {
    Cluster::new(&format!("[[service]]\nname = 'chatty'\ncommand = ['sh', '-c', '{script}']\nrestart = 'never'\n"))
}

/// Waits for the exit of the service. The status reports it only after the service's output was read.
fn wait_for_last_line(cluster: &Cluster) {
    cluster.wait_until_ready();
    wait_for("the exit", || (cluster.unit("chatty")["state"] == "finished").then_some(()));
}

#[test]
fn lines_have_unit_name_and_level() {
    let cluster = chatty("echo chatty: error: too hot >&2; printf no-end-of-line");
    let init = cluster.start();
    wait_for_last_line(&cluster);
    init.signal(15);
    let end = init.end();
    assert!(end.stderr.lines().any(|line| line.ends_with("error chatty: too hot")), "{}", end.stderr);
    assert!(end.stderr.lines().any(|line| line.ends_with(" info chatty: no-end-of-line")), "{}", end.stderr);
    assert_eq!(end.stdout, "", "standard output belongs to CMD");
}

#[test]
fn json_log_has_one_object_per_line() {
    let cluster = chatty("echo hello; printf \"\\\\377\\n\"");
    let mut command = cluster.command(&[]);
    command.env("SLURMINIT_LOG_FORMAT", "json");
    let init = Init::start(command);
    wait_for_last_line(&cluster);
    init.signal(15);
    let end = init.end();
    let objects: Vec<serde_json::Value> =
        end.stderr.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    assert!(objects.iter().any(|line| line["source"] == "chatty" && line["message"] == "hello"), "{}", end.stderr);
}

#[test]
fn line_of_one_mebibyte_is_not_split() {
    let cluster = chatty("head -c 1048576 /dev/zero | tr \"\\\\0\" x; echo");
    let mut init = cluster.start();
    // At its exit, slurminit waits for the log's reader for only 0.2 s, so the reader must keep up.
    let log = text_of(init.unshare.stderr.take());
    wait_for_last_line(&cluster);
    init.signal(15);
    exit(&mut init.unshare);
    let log = log.join().unwrap();
    let line = log.lines().find(|line| line.contains(" chatty: ")).unwrap();
    assert_eq!(line.matches('x').count(), 1 << 20);
}

#[test]
fn unread_log_blocks_neither_restart_nor_stop() {
    let cluster = chatty("while :; do echo flood; done");
    let mut init = cluster.start();
    cluster.wait_until_ready();
    // The unread pipe is full, and the buffer soon fills up as well.
    kill(cluster.pid_of(&init, "slurmctld"), 9);
    wait_for("a restart", || (cluster.unit("slurmctld")["restarts"] == 1).then_some(()));
    init.signal(15);
    assert_eq!(exit(&mut init.unshare).code(), Some(0));
}

#[test]
fn bounds_memory_of_unread_log_and_reports_dropped_lines() {
    let cluster =
        chatty("i=0; while [ $i -lt 400 ]; do head -c 65536 /dev/zero | tr \"\\\\0\" x; echo; i=$((i+1)); done");
    let mut init = cluster.start_with_json_log();
    wait_for_last_line(&cluster);
    let resident = kib(init.pid, "VmRSS");
    assert!(resident < 32 * 1024, "{resident} KiB resident for 25 MB of unread log");
    let mut stderr = init.unshare.stderr.take().unwrap();
    let text = Arc::new(Mutex::new(Vec::new()));
    let reader = std::thread::spawn({
        let text = Arc::clone(&text);
        move || {
            let mut buffer = [0; 65536];
            while let Ok(n @ 1..) = stderr.read(&mut buffer) {
                text.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        }
    });
    wait_for("the report of dropped lines", || {
        // Each SIGHUP logs a line. The count of dropped lines precedes the first line that fits.
        kill(init.pid, 1);
        String::from_utf8_lossy(&text.lock().unwrap()).contains("log-lines-dropped").then_some(())
    });
    init.signal(15);
    assert_eq!(exit(&mut init.unshare).code(), Some(0));
    reader.join().unwrap();
}

#[test]
fn message_of_daemon_is_read_whole_from_pipe_for_64_messages() {
    let cluster = Cluster::new(
        "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\nliveness = 'off'\n\
         command = ['sh', '-c', 'printf \"%03000d\\n\" 0; exec DIR/bin/daemon slurmctld DIR']\n",
    );
    let init = cluster.start();
    cluster.wait_until_ready();
    let pipe = fs::File::open(format!("/proc/{}/fd/2", cluster.pid_of(&init, "slurmctld"))).unwrap();
    assert_eq!(nix::fcntl::fcntl(&pipe, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap(), 64 * 4096);
    drop(pipe);
    wait_for("the start", || cluster.transitions().contains(&"start slurmctld".to_owned()).then_some(()));
    init.signal(15);
    let log = init.end().stderr;
    let expected = format!(" slurmctld: {}... (1976 more bytes)", "0".repeat(1024));
    assert!(log.lines().any(|line| line.ends_with(&expected)), "{log}");
}

#[test]
fn status_that_cannot_be_written_is_reported_once() {
    let cluster = Cluster::new("");
    let init = cluster.start_with_json_log();
    cluster.wait_until_ready();
    let starts = |count| wait_for("a start", || (cluster.events().len() == count).then_some(()));
    starts(3);
    let daemons = ["slurmctld", "slurmd"].map(|name| cluster.pid_of(&init, name));
    fs::create_dir(cluster.path("run/status.json.new")).unwrap();
    for (count, daemon) in [(4, daemons[0]), (5, daemons[1])] {
        kill(daemon, 9);
        starts(count);
    }
    assert!(cluster.status().is_none(), "an outdated status must not pass for the current one");
    init.signal(15);
    let end = init.end();
    assert_eq!(end.logged("status-not-written", ""), 1, "{}", end.stderr);
}
