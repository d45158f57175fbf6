//! A reload with stand-ins for the daemons. tests/image/reload.rs tests the real daemons.

use super::cluster::Cluster;
use super::*;

/// A cluster with stand-ins for `scontrol`, which logs all calls except `show`, and for the `slurmd -G` that checks new
/// files: `slurmd` is its script, in which `$3` is the slurm.conf.
fn cluster(extra: &str, slurmd: &str) -> Cluster {
    let cluster = Cluster::new(extra);
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

/// Runs `slurminit reload`.
fn reload(cluster: &Cluster) -> End {
    let mut command = verb_command();
    command.arg("reload").arg("--config").arg(cluster.directory().join("slurminit.toml"));
    command.env("SLURMINIT_CONFIG", "").stdout(Stdio::piped()).stderr(Stdio::piped());
    run(command)
}

/// Appends to slurminit.toml.
fn append(cluster: &Cluster, text: &str) {
    let file = cluster.directory().join("slurminit.toml");
    let old = fs::read_to_string(&file).unwrap();
    fs::write(file, old + text).unwrap();
}

fn pids(cluster: &Cluster) -> Vec<serde_json::Value> {
    ["munged", "slurmctld", "slurmd"].iter().map(|name| cluster.unit(name)["pid"].clone()).collect()
}

fn last_reload(cluster: &Cluster) -> Option<serde_json::Value> {
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
    wait_for("the second reload", || last_reload(&cluster).filter(|last| last["serves"] == 2));
    assert_eq!(pids(&cluster), before);
    assert_eq!(cluster.transitions().len(), 3, "{:?}", cluster.transitions());
    stop(init);
}

#[test]
fn new_partition_reconfigures_and_new_node_line_restarts() {
    let cluster = cluster(QUIET, "exit 0");
    let init = serve(&cluster);
    let before = pids(&cluster);
    append(&cluster, "[[partition]]\nname = 'short'\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert!(end.stdout.starts_with("new: the partitions; "), "{}", end.stdout);
    assert_eq!(pids(&cluster), before);
    // `short` replaces `debug`, which is closed before slurmctld is queried for jobs in it.
    assert_eq!(cluster.transitions()[3..], ["scontrol update", "scontrol reconfigure"]);

    append(&cluster, "[node]\nfeatures = ['new']\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 0, "{}", end.stderr);
    // The stand-ins are ready once started, so the order of their start events is not deterministic.
    let mut transitions = wait_for("the starts", || cluster.transitions().get(5..9).map(<[String]>::to_vec));
    transitions[2..].sort();
    assert_eq!(transitions, ["stop slurmd", "stop slurmctld", "start slurmctld", "start slurmd"]);
    let after = pids(&cluster);
    assert!(after[0] == before[0] && after[1] != before[1] && after[2] != before[2], "{before:?} {after:?}");
    let log = stop(init);
    assert!(log.contains("+PartitionName=short") && log.contains("Feature=new"), "{log}");
}

#[test]
fn rejects_invalid_file_with_line_number_and_keeps_running() {
    let cluster = cluster(QUIET, "exit 0");
    let init = serve(&cluster);
    let before = pids(&cluster);
    let conf = fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap();
    let lines = fs::read_to_string(cluster.directory().join("slurminit.toml")).unwrap().lines().count();
    append(&cluster, "nonsense = [\n");
    init.signal(1);
    let last = wait_for("the rejection", || last_reload(&cluster));
    assert_eq!(last["outcome"], "refused");
    let text = last["text"].as_str().unwrap();
    assert!(text.contains(&format!("slurminit.toml:{}:", lines + 1)), "{text}");
    assert_eq!(pids(&cluster), before);
    assert_eq!(fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap(), conf);
    let log = stop(init);
    assert_eq!(logged(&log, "reload-refused", ""), 1, "{log}");
}

#[test]
fn does_not_install_files_that_slurm_rejects() {
    let slurmd = "grep -qi broken $3 && { echo 'slurmd: error: Parsing error at unrecognized key: Broken' >&2; exit 1; }; exit 0";
    let cluster = cluster(QUIET, slurmd);
    let init = serve(&cluster);
    let before = pids(&cluster);
    append(&cluster, "[slurm.conf]\nBroken = 1\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 1, "{}", end.stdout);
    let location = "slurminit.toml:";
    assert!(end.stderr.contains("unrecognized key: Broken") && end.stderr.contains(location), "{}", end.stderr);
    assert_eq!(pids(&cluster), before);
    assert!(!fs::read_to_string(cluster.directory().join("slurm/slurm.conf")).unwrap().contains("Broken"));
    stop(init);
}

#[test]
fn rolls_back_files_that_crash_daemon() {
    let deadly = "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\n\
        command = ['sh', '-c', 'grep -q Deadly DIR/slurm/slurm.conf && { echo it is deadly; exit 1; }; exec DIR/bin/daemon slurmctld DIR']\n";
    let cluster = cluster(&format!("{deadly}{QUIET}"), "exit 0");
    let init = serve(&cluster);
    let conf = fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap();
    append(&cluster, "[slurm.conf]\nDeadly = 1\n");
    // A stand-in counts as ready once started, so it may die after the reload reports success.
    reload(&cluster);
    let rollback = wait_for("the rollback", || last_reload(&cluster).filter(|last| last["outcome"] == "went-back"));
    assert!(rollback["text"].as_str().unwrap().contains("it is deadly"), "{rollback}");
    assert_eq!(fs::read(cluster.directory().join("slurm/slurm.conf")).unwrap(), conf);
    cluster.wait_until_ready();
    let log = stop(init);
    let reports = log.lines().filter(|line| line.contains(r#""source":"slurminit""#) && line.contains("it is deadly"));
    assert!(reports.count() >= 1 && logged(&log, "reload-rollback", "slurmctld") == 1, "{log}");
}

#[test]
fn reports_changes_that_need_container_restart() {
    let cluster = cluster(QUIET, "exit 0");
    let init = serve(&cluster);
    append(&cluster, "[[service]]\nname = 'api'\ncommand = ['sleep', '1000']\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert!(end.stdout.contains("[[service]] api in slurminit.toml"), "{}", end.stdout);
    append(&cluster, "[slurm]\ncontroller_port = 7001\n");
    let end = reload(&cluster);
    assert_eq!(end.code, 1, "{}", end.stdout);
    assert!(end.stderr.contains("SlurmctldPort"), "{}", end.stderr);
    stop(init);
}

#[test]
fn ten_quick_writes_cause_one_reload() {
    let cluster = cluster("", "exit 0");
    let init = serve(&cluster);
    // Stop PID 1 until all writes are done, however slow they are.
    init.signal(19);
    for i in 0..10 {
        append(&cluster, &format!("# {i}\n"));
    }
    // An unrelated file causes no reload.
    fs::write(cluster.directory().join("notes.txt"), "x").unwrap();
    init.signal(18);
    wait_for("the reload", || last_reload(&cluster));
    let log = stop(init);
    assert_eq!(logged(&log, "reload-started", ""), 1, "{log}");
}

#[test]
fn detects_created_renamed_and_symlinked_files() {
    let cluster = cluster("", "exit 0");
    let config = cluster.directory().join("config");
    let init = serve(&cluster);
    let mut served = 0;
    let mut wait_for_reload = |what: &str| {
        served = wait_for(what, || last_reload(&cluster)?["serves"].as_u64().filter(|count| *count > served));
        wait_for("the end of the reload", || (cluster.status()?["reload"]["running"] == false).then_some(()));
    };
    // The directory did not exist at startup.
    fs::create_dir(&config).unwrap();
    wait_for_reload("the directory");
    // Editors write a temporary file and rename it.
    fs::write(config.join(".slurm.conf.swp"), "# mine\n").unwrap();
    fs::rename(config.join(".slurm.conf.swp"), config.join("slurm.conf")).unwrap();
    wait_for_reload("a renamed file");
    // Kubernetes replaces a symbolic link.
    std::os::unix::fs::symlink("1", config.join("..data_tmp")).unwrap();
    fs::rename(config.join("..data_tmp"), config.join("..data")).unwrap();
    wait_for_reload("the new ..data");
    // Replace the whole directory.
    fs::rename(&config, cluster.directory().join("old")).unwrap();
    fs::create_dir(&config).unwrap();
    wait_for_reload("the new directory");
    fs::write(config.join("gres.conf"), "").unwrap();
    wait_for_reload("a file in the new directory");
    stop(init);
}

/// Replaces `scontrol` with a script that logs each state that it is asked to set, and then runs `then`.
fn log_states(cluster: &Cluster, then: &str) {
    let d = cluster.directory().display();
    script(cluster, "scontrol", &format!("#!/bin/sh\n[ $1 = show ] || echo scontrol $3 >> {d}/events\n{then}\n"));
}

#[test]
fn reload_refused_by_hanging_check_closes_no_partition() {
    let cluster = cluster(&format!("{QUIET}prepare_timeout = 12\n"), "exec sleep 1000");
    log_states(&cluster, "");
    let init = serve(&cluster);
    append(&cluster, "[[partition]]\nname = 'short'\n");
    let end = reload(&cluster);
    assert!(end.code != 0 && end.stderr.contains("cannot be checked"), "{}", end.stderr);
    assert_eq!(cluster.transitions()[3..], [""; 0]);
    stop(init);
}

#[test]
fn partition_closed_by_killed_reload_is_opened_again() {
    let cluster = cluster(QUIET, "exit 0");
    log_states(&cluster, "[ $3 != State=DRAIN ] || kill -9 $PPID");
    let init = serve(&cluster);
    append(&cluster, "[[partition]]\nname = 'short'\n");
    assert_ne!(reload(&cluster).code, 0);
    let states = wait_for("the opening", || cluster.transitions().get(3..5).map(<[String]>::to_vec));
    assert_eq!(states, ["DRAIN", "UP"].map(|state| format!("scontrol State={state}")));
    wait_for("the end of the record", || (!cluster.directory().join("run/closed-partitions").exists()).then_some(()));
    stop(init);
}

#[test]
fn stop_cancels_running_reload() {
    let extra = format!("{QUIET}prepare_timeout = {NEVER}\n");
    let cluster = cluster(&extra, "echo > $(dirname $3)/../asked; exec sleep 1000");
    let init = serve(&cluster);
    append(&cluster, "[node]\nfeatures = ['new']\n");
    init.signal(1);
    wait_for_file(&cluster.directory().join("run/asked"));
    stop(init);
}

#[test]
fn sighup_goes_to_command_and_reload_command_still_works() {
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

#[test]
fn dry_run_shows_effect_and_changes_nothing() {
    let cluster = cluster(QUIET, "grep -qi broken $3 && { echo 'slurmd: error: Broken' >&2; exit 1; }; exit 0");
    let init = serve(&cluster);
    let (toml, conf) = (cluster.directory().join("slurminit.toml"), cluster.directory().join("slurm/slurm.conf"));
    let [original, installed] = [&toml, &conf].map(|file| fs::read_to_string(file).unwrap());
    let dry_run = |added: &str| {
        fs::write(&toml, format!("{original}{added}")).unwrap();
        let mut command = verb_command();
        command.args(["reload", "--dry-run", "--config"]).arg(&toml).env("PATH", cluster.search_path());
        // As for PID 1.
        command.env(JSON_LOG.0, JSON_LOG.1).env("SLURMINIT_STOP_TIMEOUT", NEVER.to_string());
        let end = run(command.env("SLURMINIT_CONFIG", "").stdout(Stdio::piped()).stderr(Stdio::piped()));
        (end.code, end.stdout, end.stderr)
    };
    assert_eq!(dry_run(""), (0, "the daemons need no restart\n".to_owned(), String::new()));
    let (code, effect, _) = dry_run("[[partition]]\nname = 'short'\n");
    assert_eq!((code, effect.lines().last()), (0, Some("needs `scontrol reconfigure`: the partitions")), "{effect}");
    assert!(effect.lines().any(|line| line.starts_with("+PartitionName=short ")), "{effect}");
    let (code, effect, _) = dry_run("[node]\nfeatures = ['new']\n[[service]]\nname = 'api'\ncommand = ['true']\n");
    assert_eq!(code, 0, "{effect}");
    let end: Vec<&str> = effect.lines().rev().take(2).collect();
    assert!(end[1].starts_with("needs a restart of slurmctld and slurmd: "), "{effect}");
    assert_eq!(end[0], "takes effect at the next start of the container: [[service]] api", "{effect}");
    for (added, why) in [
        ("[slurm.conf]\nBroken = 1\n", "Broken"),
        ("[slurm]\ncontroller_port = 7001\n", "SlurmctldPort"),
        ("[[user]]\nname = 'root'\nuid = 1501\n", "root"),
        ("[node]\nname = 'other'\n", "the node's name changed from "),
    ] {
        let (code, effect, refusal) = dry_run(added);
        assert!(code == 1 && effect.is_empty(), "{added}: {code} {effect}");
        assert!(refusal.starts_with("slurminit: refused: ") && refusal.contains(why), "{added}: {refusal}");
    }
    assert_eq!(fs::read_to_string(&conf).unwrap(), installed);
    assert_eq!(cluster.transitions().len(), 3, "{:?}", cluster.transitions());
    stop(init);
}
