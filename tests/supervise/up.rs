//! `slurminit up`: a cluster beside another PID 1.

use super::cluster::Cluster;
use super::*;

/// Runs the script as PID 1 of a container with an empty /var/log. `UP` stands for `slurminit up`.
fn beside(cluster: &Cluster, script: &str) -> End {
    let script = script.replace("UP", r#""$0" up --config "$1/slurminit.toml""#);
    let mut command = container_script(
        "sh",
        &format!("mkdir -p /var/log; mount -t tmpfs -o mode=755 log /var/log\n{script}"),
        cluster.directory(),
    );
    command.env("PATH", cluster.search_path()).env_remove("GPU_TYPE");
    run(command)
}

#[test]
fn cluster_runs_apart_from_its_starter_until_it_is_stopped() {
    let script = r#"
        echo earlier >/var/log/slurminit.log
        exec 9>"$1/kept"
        UP && UP | tee "$1/again" && pid=$(tr -dc 0-9 <"$1/again") || exit
        [ "$(cut -d ' ' -f 6 /proc/$pid/stat)" = $pid ] && readlink /proc/$pid/cwd
        readlink /proc/$pid/fd/* | grep kept
        stat --format=%a /var/log/slurminit.log
        grep -e earlier -e 'ready: ' /var/log/slurminit.log | cut -d ' ' -f 4-
        "$0" stop --config "$1/slurminit.toml"
    "#;
    let end = beside(&Cluster::new(""), script);
    let lines: Vec<&str> = end.stdout.lines().collect();
    let [ready, running, rest @ ..] = lines.as_slice() else { panic!("{}{}", end.stdout, end.stderr) };
    assert!(
        ready.starts_with("the cluster is ready after ") && running.starts_with("the cluster is already running (pid ")
    );
    let log = "slurminit: ready: the node is registered (GPUs: none)";
    assert_eq!(rest, ["/", "600", log, "the cluster has stopped"], "{}", end.stderr);
}

#[test]
fn failed_start_prints_last_lines_of_log() {
    let end = beside(&Cluster::new("[[hooks.pre_start]]\ncommand = ['sh', '-c', 'seq 30; exit 3']\n"), "UP");
    let (lines, last) = end.stderr.trim_end().rsplit_once('\n').unwrap();
    assert_eq!((end.code, lines.lines().count()), (106, 20), "{}", end.stderr);
    assert!(
        lines.contains("pre-start hook 1 exited with code 3, so no daemon was started; its output, if any, is above"),
        "{lines}"
    );
    let why = "exit code 106; see the lines above";
    assert_eq!(last, format!("slurminit: the cluster did not start: {why}. Full log: /var/log/slurminit.log"));
}

#[test]
fn cluster_that_is_not_ready_in_time_is_stopped() {
    // Without a `readiness` it is ready once it listens, which this one never does.
    let munged = "[daemon.munged]\nuser = 'root'\nliveness = 'off'\ncommand = ['DIR/bin/daemon', 'munged', 'DIR']\n";
    let end = beside(&Cluster::new(munged), "UP --timeout 0.5");
    assert_eq!(end.code, 107, "{}", end.stderr);
    assert!(end.stderr.contains("did not start: not ready within 0.5 s ("), "{}", end.stderr);
    assert!(end.stderr.contains("slurminit: stopped; exit code 0"), "{}", end.stderr);
}

#[test]
fn new_cluster_starts_after_end_of_previous_one() {
    let slow = "[daemon.slurmd]\nuser = 'root'\nreadiness = 'started'\nliveness = 'off'\n\
        command = ['sh', '-c', 'trap \"until [ -e DIR/go ]; do sleep 0.01; done; exit 0\" TERM; while :; do sleep 0.1; done']\n";
    let script = r#"
        UP || exit
        "$0" stop --config "$1/slurminit.toml" & stop=$!
        until grep -q '"phase":"stopping"' "$1/run/status.json"; do :; done
        UP >"$1/new" & up=$!
        until readlink /proc/$up/fd/* | grep -q pidfd || [ ! -e /proc/$up ]; do :; done
        touch "$1/go"
        wait $stop && wait $up && cat "$1/new"
    "#;
    let end = beside(&Cluster::new(slow), script);
    assert_eq!(end.code, 0, "{}{}", end.stdout, end.stderr);
    let [first, stopped, second] = end.stdout.lines().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(stopped, "the cluster has stopped");
    assert!([first, second].iter().all(|line| line.starts_with("the cluster is ready after ")), "{}", end.stdout);
}
