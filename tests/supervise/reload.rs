//! A reload with stand-ins for the daemons. tests/image/reload.rs has the real ones.

use super::cluster::Cluster;
use super::*;

/// A cluster that knows `scontrol`, whose questions are no events, and the `slurmd -G` that reads new files: `$3` is the slurm.conf.
fn cluster(more: &str, slurmd: &str) -> Cluster {
    let cluster = Cluster::new(more);
    let d = cluster.directory().display();
    script(&cluster, "slurmd", &format!("#!/bin/sh\n{slurmd}\n"));
    script(&cluster, "scontrol", &format!("#!/bin/sh\n[ $1 = show ] || echo scontrol $1 >> {d}/events\n"));
    cluster
}

fn script(cluster: &Cluster, name: &str, text: &str) {
    let file = cluster.directory().join("bin").join(name);
    fs::write(&file, text).unwrap();
    Command::new("chmod").arg("+x").arg(file).status().unwrap();
}

fn serve(cluster: &Cluster) -> Init {
    let init = cluster.start_with_json_log();
    cluster.wait_until_ready();
    wait_for("three starts", || (cluster.events().len() == 3).then_some(()));
    init
}

/// `slurminit reload`.
fn reload(cluster: &Cluster) -> End {
    let mut command = Command::new(slurminit());
    command.arg("reload").arg("--config").arg(cluster.directory().join("slurminit.toml"));
    command.env("SLURMINIT_CONFIG", "").stdout(Stdio::piped()).stderr(Stdio::piped());
    run(command)
}

/// Adds to the operator's file.
fn add(cluster: &Cluster, text: &str) {
    let file = cluster.directory().join("slurminit.toml");
    let old = fs::read_to_string(&file).unwrap();
    fs::write(file, old + text).unwrap();
}

fn pids(cluster: &Cluster) -> Vec<serde_json::Value> {
    ["munged", "slurmctld", "slurmd"].iter().map(|name| cluster.unit(name)["pid"].clone()).collect()
}

fn last(cluster: &Cluster) -> Option<serde_json::Value> {
    cluster.status().map(|status| status["reload"]["last"].clone()).filter(|last| !last.is_null())
}

fn stop(init: Init) -> String {
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    end.stderr
}

const QUIET: &str = "[supervise]\nreload_on_change = false\n";

#[test]
fn unchanged_configuration_keeps_every_process() {
    let cluster = cluster(QUIET, "exit 0");
    let init = serve(&cluster);
    let before = pids(&cluster);
    let end = reload(&cluster);
    assert_eq!((end.code, end.stdout.as_str()), (0, "nothing changed\n"), "{}", end.stderr);
    init.signal(1);
    wait_for("the second reload", || last(&cluster).filter(|last| last["serves"] == 2));
    assert_eq!(pids(&cluster), before);
    assert_eq!(cluster.story().len(), 3, "{:?}", cluster.story());
    stop(init);
}

#[test]
fn new_partition_is_for_scontrol_and_new_node_line_for_both_daemons() {
    let cluster = cluster(QUIET, "exit 0");
    let init = serve(&cluster);
    let before = pids(&cluster);
    add(&cluster, "[[partition]]\nname = 'short'\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert!(end.stdout.starts_with("new: the partitions; "), "{}", end.stdout);
    assert_eq!(pids(&cluster), before);
    // `short` takes the place of `debug`, which is closed before slurmctld is asked for jobs in it.
    assert_eq!(cluster.story()[3..], ["scontrol update", "scontrol reconfigure"]);

    add(&cluster, "[node]\nfeatures = ['new']\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 0, "{}", end.stderr);
    // These stand-ins are ready as soon as they run: which of the two writes first is the scheduler's choice.
    let mut story = wait_for("the starts", || cluster.story().get(5..9).map(<[String]>::to_vec));
    story[2..].sort();
    assert_eq!(story, ["stop slurmd", "stop slurmctld", "start slurmctld", "start slurmd"]);
    let after = pids(&cluster);
    assert!(after[0] == before[0] && after[1] != before[1] && after[2] != before[2], "{before:?} {after:?}");
    let log = stop(init);
    assert!(log.contains("+PartitionName=short") && log.contains("Feature=new"), "{log}");
}

#[test]
fn refuses_broken_file_with_its_line_and_keeps_running() {
    let cluster = cluster(QUIET, "exit 0");
    let init = serve(&cluster);
    let before = pids(&cluster);
    let conf = fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap();
    let lines = fs::read_to_string(cluster.directory().join("slurminit.toml")).unwrap().lines().count();
    add(&cluster, "nonsense = [\n");
    init.signal(1);
    let last = wait_for("the refusal", || last(&cluster));
    assert_eq!(last["outcome"], "refused");
    let text = last["text"].as_str().unwrap();
    assert!(text.contains(&format!("slurminit.toml:{}:", lines + 1)), "{text}");
    assert_eq!(pids(&cluster), before);
    assert_eq!(fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap(), conf);
    let log = stop(init);
    assert_eq!(logged(&log, "reload-refused", ""), 1, "{log}");
}

#[test]
fn files_that_slurm_refuses_are_not_installed() {
    let refuse = "grep -qi broken $3 && { echo 'slurmd: error: Parsing error at unrecognized key: Broken' >&2; exit 1; }; exit 0";
    let cluster = cluster(QUIET, refuse);
    let init = serve(&cluster);
    let before = pids(&cluster);
    add(&cluster, "[slurm.conf]\nBroken = 1\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 1, "{}", end.stdout);
    let place = "slurminit.toml:";
    assert!(end.stderr.contains("unrecognized key: Broken") && end.stderr.contains(place), "{}", end.stderr);
    assert_eq!(pids(&cluster), before);
    assert!(!fs::read_to_string(cluster.directory().join("slurm/slurm.conf")).unwrap().contains("Broken"));
    stop(init);
}

#[test]
fn files_that_a_daemon_dies_of_are_taken_back() {
    let deadly = "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\n\
        command = ['sh', '-c', 'grep -q Deadly DIR/slurm/slurm.conf && { echo it is deadly; exit 1; }; exec DIR/bin/daemon slurmctld DIR']\n";
    let cluster = cluster(&format!("{deadly}{QUIET}"), "exit 0");
    let init = serve(&cluster);
    let conf = fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap();
    add(&cluster, "[slurm.conf]\nDeadly = 1\n");
    // A stand-in counts as ready as soon as it runs, so its death may come after the reload seems done.
    reload(&cluster);
    let back = wait_for("the way back", || last(&cluster).filter(|last| last["outcome"] == "went-back"));
    assert!(back["text"].as_str().unwrap().contains("it is deadly"), "{back}");
    assert_eq!(fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap(), conf);
    cluster.wait_until_ready();
    let log = stop(init);
    let told = log.lines().filter(|line| line.contains(r#""source":"slurminit""#) && line.contains("it is deadly"));
    assert!(told.count() >= 1 && logged(&log, "reload-rollback", "slurmctld") == 1, "{log}");
}

#[test]
fn names_changes_that_need_a_start() {
    let cluster = cluster(QUIET, "exit 0");
    let init = serve(&cluster);
    add(&cluster, "[[service]]\nname = 'api'\ncommand = ['sleep', '1000']\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert!(end.stdout.contains("[[service]] api in slurminit.toml"), "{}", end.stdout);
    add(&cluster, "[slurm]\ncontroller_port = 7001\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 1, "{}", end.stdout);
    assert!(end.stderr.contains("SlurmctldPort"), "{}", end.stderr);
    stop(init);
}

#[test]
fn ten_quick_writes_are_one_reload() {
    let cluster = cluster("", "exit 0");
    let init = serve(&cluster);
    // However slowly they come here, they have all come when slurminit looks.
    init.signal(19);
    for i in 0..10 {
        add(&cluster, &format!("# {i}\n"));
    }
    // A name of no interest is no reason.
    fs::write(cluster.directory().join("notes.txt"), "x").unwrap();
    init.signal(18);
    wait_for("the reload", || last(&cluster));
    let log = stop(init);
    assert_eq!(logged(&log, "reload-started", ""), 1, "{log}");
}

#[test]
fn however_a_file_is_put_there_it_is_noticed() {
    let cluster = cluster("", "exit 0");
    let own = cluster.directory().join("config");
    let init = serve(&cluster);
    let mut served = 0;
    let mut noticed = |what: &str| {
        served = wait_for(what, || last(&cluster)?["serves"].as_u64().filter(|now| *now > served));
        wait_for("an end", || (cluster.status()?["reload"]["running"] == false).then_some(()));
    };
    // The directory was not there at the start.
    fs::create_dir(&own).unwrap();
    noticed("the directory");
    // As editors do.
    fs::write(own.join(".slurm.conf.swp"), "# mine\n").unwrap();
    fs::rename(own.join(".slurm.conf.swp"), own.join("slurm.conf")).unwrap();
    noticed("a file that was renamed");
    // As Kubernetes does.
    std::os::unix::fs::symlink("1", own.join("..data_tmp")).unwrap();
    fs::rename(own.join("..data_tmp"), own.join("..data")).unwrap();
    noticed("another ..data");
    // A whole directory in place of it.
    fs::rename(&own, cluster.directory().join("old")).unwrap();
    fs::create_dir(&own).unwrap();
    noticed("another directory");
    fs::write(own.join("gres.conf"), "").unwrap();
    noticed("a file in that one");
    stop(init);
}

#[test]
fn stop_during_reload_wins() {
    let patient = format!("{QUIET}prepare_timeout = {NEVER}\n");
    let cluster = cluster(&patient, "echo > $(dirname $3)/../asked; exec sleep 1000");
    let init = serve(&cluster);
    add(&cluster, "[node]\nfeatures = ['new']\n");
    init.signal(1);
    wait_for_file(&cluster.directory().join("run/asked"));
    stop(init);
}

#[test]
fn with_command_hangup_is_commands_and_verb_still_reloads() {
    let cluster = cluster(QUIET, "exit 0");
    let script = format!(
        "trap 'echo hangup; exit 0' HUP; echo > {}/up; while :; do sleep 0.05; done",
        cluster.directory().display()
    );
    let init = Init::start(cluster.command(&["--", "sh", "-c", &script]));
    wait_for_file(&cluster.directory().join("up"));
    assert_eq!(reload(&cluster).code, 0);
    init.signal(1);
    let end = init.end();
    assert_eq!((end.code, end.stdout.trim()), (0, "hangup"), "{}", end.stderr);
}
