//! Reload of a running cluster: daemons and jobs keep running.

use std::fs;
use std::path::Path;

use crate::docker::{Container, DEMO, Image, PLAIN, directory};

/// A cluster with two simulated GPUs and the configuration directory `config`.
fn serve(config: &Path) -> Container {
    Image::new(DEMO).with(["--env", "DEMO_GPUS=2"]).mount(config, "/config").json_log().serve()
}

fn write(config: &Path, name: &str, text: &str) {
    fs::write(config.join(name), text).expect("the directory is writable");
}

fn pids(container: &Container) -> String {
    container.sh("pidof munged slurmctld slurmd")
}

/// Adds a third GPU.
fn add_gpu(container: &Container) {
    container.sh(
        "mknod -m 666 /dev/nvidia2 c 1 3 && printf '[[gpu]]\\nname = \"Simulated NVIDIA H200\"\\n' >> /etc/fake-nvml.toml",
    );
}

/// Starts a step that writes consecutive numbers to `/tmp/NAME` until it is cancelled.
fn count(container: &Container, name: &str, options: &str) {
    let line = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.02; done";
    container.sh(&format!(
        "srun --job-name {name} --mem 100 {options} sh -c '{line}' > /tmp/{name} 2> /tmp/{name}.err &\n\
         timeout 120 sh -c 'until [ -s /tmp/{name} ]; do sleep 0.05; done'"
    ));
}

/// Asserts that the step continues and that no number is missing.
fn assert_counts(container: &Container, name: &str) {
    let lines = || container.sh(&format!("wc -l < /tmp/{name}")).parse::<u64>().expect("a number");
    let before = lines();
    container
        .sh(&format!("timeout 120 sh -c 'until [ $(wc -l < /tmp/{name}) -gt {} ]; do sleep 0.05; done'", before + 20));
    assert_eq!(container.sh(&format!("head -n -1 /tmp/{name} | awk '$1 != NR - 1 {{ print NR, $1; exit }}'")), "");
    assert_eq!(container.sh(&format!("cat /tmp/{name}.err")), "");
}

const TWO_PARTITIONS: &str =
    "[[partition]]\nname = 'debug'\nDefault = true\n[[partition]]\nname = 'short'\nMaxTime = '01:00:00'\n";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn detects_new_partition_and_applies_it_without_restart() {
    let config = directory(&[("slurminit.toml", "")]);
    let container = serve(config.path());
    write(config.path(), "slurminit.toml", TWO_PARTITIONS);
    container.until("slurminit status --json | grep -q \"\\\"outcome\\\": \\\"applied\\\"\"");
    assert_eq!(container.sh("sinfo --noheader --format %R"), "debug\nshort");
    // With `--systemd` Slurm itself hands over to a new process.
    assert_eq!(container.sh("slurminit status --json | grep -c '\"restarts\": 0'"), "4");
    assert_eq!(container.sh("srun --partition short --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES"), "0");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn added_gpu_restarts_daemons_and_keeps_running_step() {
    let config = directory(&[("slurminit.toml", "")]);
    let container = serve(config.path());
    count(&container, "step", "");
    add_gpu(&container);
    container.sh("slurminit reload");
    for daemon in ["slurmctld", "slurmd"] {
        assert_eq!(container.unit(daemon)["restarts"], 1, "{daemon}");
    }
    assert_eq!(container.sh("sinfo --noheader --format '%T %G'"), "mixed gpu:nvidia:3");
    assert_counts(&container, "step");
    assert_eq!(container.sh("srun --mem 100 --gres=gpu:3 printenv CUDA_VISIBLE_DEVICES"), "0,1,2");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn restart_keeps_gpu_job_and_added_gpu_waits_for_it() {
    let config = directory(&[("slurminit.toml", "")]);
    let container = serve(config.path());
    count(&container, "step", "--gres=gpu:1");
    write(config.path(), "slurminit.toml", "[slurm.conf]\nMaxJobCount = 5000\n");
    container.sh("slurminit reload");
    assert_eq!(container.unit("slurmctld")["restarts"], 1);
    assert_counts(&container, "step");

    add_gpu(&container);
    let dry = container.exec(&["slurminit", "reload", "--dry-run"]);
    assert_eq!(dry.code, 1, "{dry:?}");
    let refused = container.exec(&["slurminit", "reload"]);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert_eq!(container.status()["reload"]["last"]["outcome"], "refused");
    assert_counts(&container, "step");
    container
        .sh("scancel --name step && timeout 120 sh -c 'until [ -z \"$(squeue --noheader)\" ]; do sleep 0.1; done'");
    container.sh("slurminit reload");
    assert_eq!(container.sh("sinfo --noheader --format '%T %G'"), "idle gpu:nvidia:3");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn refuses_broken_slurm_conf_and_keeps_running() {
    let config = directory(&[("slurminit.toml", "[supervise]\nreload_on_change = false\n")]);
    let container = serve(config.path());
    let original = container.sh("cat /etc/slurm/slurm.conf");
    let before = pids(&container);
    write(config.path(), "slurm.conf", &format!("# USER_CUSTOMIZED=true\n{original}\nNoSuchKey=1\n"));
    let refused = container.exec(&["slurminit", "reload"]);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    let line = original.lines().count() + 2;
    let place = format!("/config/slurm.conf:{line}: rejected by Slurm: Parsing error at unrecognized key: NoSuchKey");
    assert!(refused.stderr.contains(&place), "{}", refused.stderr);
    let dry = container.exec(&["slurminit", "reload", "--dry-run"]);
    assert_eq!((dry.code, dry.stderr.contains(&place)), (1, true), "{dry:?}");
    assert_eq!(container.sh("cat /etc/slurm/slurm.conf"), original);
    assert_eq!(pids(&container), before);
    assert_eq!(container.sh("srun --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES"), "0");
    container.sh("slurminit health");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rolls_back_files_that_crash_daemons() {
    let config = directory(&[("slurminit.toml", "[supervise]\nreload_on_change = false\n")]);
    let container = serve(config.path());
    let original = container.sh("cat /etc/slurm/slurm.conf");
    count(&container, "step", "--gres=gpu:1");
    write(
        config.path(),
        "slurminit.toml",
        "[supervise]\nreload_on_change = false\n[slurm.conf]\nSchedulerType = 'sched/none_such'\n",
    );
    let outcome = container.exec(&["slurminit", "reload"]);
    assert_eq!(outcome.code, 1, "{}", outcome.stdout);
    assert_eq!(container.status()["reload"]["last"]["outcome"], "went-back");
    let why = ["slurminit.toml:4:", "slurm.conf.SchedulerType", "sched/none_such"];
    assert!(why.iter().all(|words| outcome.stderr.contains(words)), "no reason in: {}", outcome.stderr);
    assert_eq!(container.sh("cat /etc/slurm/slurm.conf"), original);
    container.wait_until_healthy();
    assert_counts(&container, "step");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn twenty_reloads_in_a_row_restart_nothing() {
    let config = directory(&[("slurminit.toml", "")]);
    let container = serve(config.path());
    let before = pids(&container);
    container.sh("for i in $(seq 20); do slurminit reload || exit; done");
    assert_eq!(pids(&container), before);
    assert_eq!(container.records("reload-unchanged").len(), 20, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn dry_run_refuses_what_reload_refuses_and_changes_nothing() {
    let quiet = "[supervise]\nreload_on_change = false\n";
    let config = directory(&[("slurminit.toml", quiet)]);
    let container = serve(config.path());
    for (toml, words) in [
        ("[slurm.conf]\nMaxJobCuont = 5\n", "slurminit.toml:4:15: slurm.conf.MaxJobCuont"),
        ("cluster_name = 'other'\n", "ClusterName in slurm.conf changed"),
        ("[node]\nname = 'other'\n", "the node's name changed from localhost to other"),
        ("[paths]\nstate = '/var/lib/other'\n", "[paths] in slurminit.toml changed"),
        ("role = 'login'\n", "role in slurminit.toml changed"),
        ("[simulate]\nnodes = 2\n", "the nodes of [simulate] in slurminit.toml changed"),
        ("[[user]]\nname = 'slurm'\nuid = 4711\n", "slurminit.toml:"),
    ] {
        let (top, table) = if toml.starts_with('[') { ("", toml) } else { (toml, "") };
        write(config.path(), "slurminit.toml", &format!("{top}{quiet}{table}"));
        let dry = container.exec(&["slurminit", "reload", "--dry-run"]);
        assert!(dry.code != 0 && dry.stderr.contains(words), "{toml}: {dry:?}");
        let real = container.exec(&["slurminit", "reload"]);
        assert!(real.code != 0 && real.stderr.contains(words), "{toml}: {real:?}");
    }
    write(config.path(), "slurminit.toml", &format!("{quiet}stop_timeout = 7\n[slurm.conf]\nMaxJobCount = 500\n"));
    let dry = container.exec(&["slurminit", "reload", "--dry-run"]).ok();
    assert!(
        dry.contains("a restart of slurmctld and slurmd") && dry.contains("takes effect at the next start"),
        "{dry}"
    );
    assert_eq!(container.sh("scontrol show config | grep -c 'MaxJobCount .*= 500$' || true"), "0");
}

/// The number of nodes and the role can come from the file or from the command line of the start, which a dry run does not have.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reload_accepts_unchanged_values_set_in_file_or_on_command_line() {
    let quiet = "[supervise]\nreload_on_change = false\n";
    let reloads = |container: &Container| {
        let run = |arguments: &[&str]| container.exec(&[&["slurminit", "reload"], arguments].concat()).code == 0;
        (run(&["--dry-run"]), run(&[]))
    };
    let config = directory(&[("slurminit.toml", &format!("{quiet}[simulate]\nnodes = 2\n"))]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    assert_eq!(reloads(&container), (true, true), "{}", container.log());
    write(config.path(), "slurminit.toml", quiet);
    assert_eq!(reloads(&container), (false, false), "{}", container.log());
    drop(container);
    for option in [["--nodes", "2"], ["--role", "controller"]] {
        let words = ["slurminit", "run", option[0], option[1]];
        let container = Image::new(PLAIN).mount(config.path(), "/config").with(["--entrypoint", "/usr/bin/env"]);
        let container = container.command(words).serve();
        assert_eq!(reloads(&container), (true, true), "{option:?}: {}", container.log());
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn regenerates_slurm_conf_after_removal_of_custom_one() {
    let config = directory(&[("slurminit.toml", "[supervise]\nreload_on_change = false\n")]);
    let container = serve(config.path());
    let generated = container.sh("cat /etc/slurm/slurm.conf");
    write(config.path(), "slurm.conf", &format!("# USER_CUSTOMIZED=true\n{generated}\nMaxJobCount=500\n"));
    container.sh("slurminit reload");
    assert_eq!(container.sh("scontrol show config | grep -c 'MaxJobCount .*= 500$'"), "1");
    fs::remove_file(config.path().join("slurm.conf")).expect("the custom slurm.conf");
    let output = container.sh("slurminit reload");
    assert!(output.contains("MaxJobCount"), "{output}");
    assert_eq!(container.sh("cat /etc/slurm/slurm.conf"), generated);
    container.sh("slurminit health");
}
