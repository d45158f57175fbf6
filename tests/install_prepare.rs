//! `slurminit prepare` and `slurminit render` as a process: the events on standard output, the files, the exit code.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test waits for its own child; there is no reaper here")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use model::exit_code;
use model::prepared::{PrepareEvent, PrepareInput, Prepared};
use tempfile::TempDir;

const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/render/01-two-linked-h200/inventory.json");

/// A root with a configuration whose users every machine has.
fn fixture(toml: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let users = "\n[daemon.munged]\nuser = \"nobody\"\n[daemon.slurmctld]\nuser = \"nobody\"\n";
    fs::write(root.path().join("slurminit.toml"), format!("{toml}{users}")).unwrap();
    root
}

/// `sh -c 'before; exec slurminit VERB ...'` without the caller's own settings.
fn slurminit(root: &Path, before: &str, verb: &str, more: &[&str]) -> Output {
    Command::new("/bin/sh")
        .args(["-c", &format!("{before}; exec \"$0\" \"$@\"")])
        .arg(harness::slurminit())
        .arg(verb)
        .args(["--inventory", CASE, "--root"])
        .arg(root)
        .arg("--config")
        .arg(root.join("slurminit.toml"))
        .args(more)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap()
}

fn events(output: &Output) -> Vec<PrepareEvent> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn prepared(root: &Path) -> Prepared {
    let output = slurminit(root, "true", "prepare", &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    match <[PrepareEvent; 3]>::try_from(events(&output)).unwrap() {
        [PrepareEvent::MungeKeyReady, PrepareEvent::Detected, PrepareEvent::Done(prepared)] => prepared,
        other => unreachable!("{other:?}"),
    }
}

fn failure(output: &Output) -> (u8, String) {
    let Some(PrepareEvent::Failed { exit_code, finding }) = events(output).pop() else { unreachable!("{output:?}") };
    assert_eq!(output.status.code(), Some(exit_code.into()));
    (exit_code, format!("{} | {} | {}", finding.what, finding.cause, finding.repair))
}

#[test]
fn first_start_writes_everything_and_second_nothing() {
    let root = fixture("gpu_type = \"nvidia\"");
    // What the NVIDIA runtime brings in.
    let libraries = root.path().join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&libraries).unwrap();
    fs::write(libraries.join("libcuda.so.1"), "").unwrap();
    let first = prepared(root.path());
    assert_eq!(first.changed.len(), 5);
    assert_eq!((first.node_name.as_str(), first.gres.as_str()), ("localhost", "gpu:nvidia:2"));
    assert_eq!(first.summary, "2 NVIDIA H200, 4 CPUs, 20009 MiB");
    let said: Vec<&str> = first.findings.iter().map(|finding| finding.cause.as_str()).collect();
    assert_eq!(said, ["cgroup v2 is mounted read-only in this container"], "{:?}", first.findings);
    assert_eq!(prepared(root.path()).changed, [] as [std::path::PathBuf; 0]);
}

#[test]
fn mismatch_prevents_start_if_configured() {
    let root = fixture("gpu_type = \"amd\"\non_mismatch = \"fail\"");
    let (code, words) = failure(&slurminit(root.path(), "true", "prepare", &[]));
    assert_eq!(code, exit_code::MISMATCH);
    assert!(words.contains("built for AMD") && words.contains("GPU_TYPE=nvidia"), "{words}");
    assert!(!root.path().join("etc/slurm/slurm.conf").exists());
}

#[test]
fn wrong_configuration_stops_start_with_its_place() {
    let root = fixture("on_mismatch = \"explode\"");
    let (code, words) = failure(&slurminit(root.path(), "true", "prepare", &[]));
    assert_eq!(code, exit_code::CONFIG);
    assert!(words.contains("slurminit.toml:1:15: on_mismatch:"), "{words}");
}

#[test]
fn requires_named_file() {
    let root = fixture("");
    fs::remove_file(root.path().join("slurminit.toml")).unwrap();
    let (code, words) = failure(&slurminit(root.path(), "true", "prepare", &[]));
    assert_eq!(code, exit_code::CONFIG);
    assert!(words.contains("file not found; correct --config"), "{words}");
}

#[test]
fn every_verb_requires_its_named_file() {
    for verb in [
        &["status"][..],
        &["health"],
        &["reload"],
        &["reload", "--dry-run"],
        &["render"],
        &["run"],
        &["logs", "slurmd"],
    ] {
        let mut command = Command::new(harness::slurminit());
        let output = command.args(verb).args(["--config", "/no/such/slurminit.toml"]).env_clear().output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{verb:?}: {said}");
        assert!(said.contains("/no/such/slurminit.toml: file not found"), "{verb:?}: {said}");
    }
}

#[test]
fn disk_that_takes_no_more_leaves_old_files() {
    let root = fixture("");
    prepared(root.path());
    let path = root.path().join("etc/slurm/slurm.conf");
    let old = fs::read_to_string(&path).unwrap();
    let long = "x".repeat(4000);
    fs::write(root.path().join("slurminit.toml"), format!("[slurm.conf]\nA = \"{long}\"\nB = \"{long}\"\n[daemon.munged]\nuser=\"nobody\"\n[daemon.slurmctld]\nuser=\"nobody\"\n")).unwrap();
    // A write past the limit fails half-way, as on a full disk, whoever we are.
    let (code, words) = failure(&slurminit(root.path(), "trap '' XFSZ; ulimit -f 4", "prepare", &[]));
    assert_eq!(code, exit_code::PREPARE);
    assert!(words.contains("cannot write /etc/slurm/slurm.conf") && words.contains("is unchanged"), "{words}");
    assert_eq!(fs::read_to_string(&path).unwrap(), old);
    assert!(!path.with_file_name("slurm.conf.new").exists());
}

#[test]
fn file_of_user_is_installed_as_it_is_and_never_overwritten() {
    let root = fixture("");
    let own = "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nProctrackType=proctrack/linuxproc\nGresTypes=gpu\n\
               NodeName=gpu-box CPUs=1 Gres=gpu:nvidia:2\n";
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/slurm.conf"), own).unwrap();
    let start = prepared(root.path());
    assert_eq!((start.node_name.as_str(), start.gres.as_str()), ("gpu-box", "gpu:nvidia:2"));
    let installed = root.path().join("etc/slurm/slurm.conf");
    assert_eq!(fs::read_to_string(&installed).unwrap(), own);
}

/// Its copy has the marker line too, and must not stay the user's for ever.
#[test]
fn file_that_came_from_operators_directory_goes_with_it() {
    let root = fixture("");
    let own = |name: &str| {
        format!(
            "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nProctrackType=proctrack/linuxproc\nNodeName={name} CPUs=1\n"
        )
    };
    let (config, installed) = (root.path().join("config/slurm.conf"), root.path().join("etc/slurm/slurm.conf"));
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(&config, own("gpu-box")).unwrap();
    // A gres.conf beside it is the user's without a line of its own.
    fs::write(root.path().join("config/gres.conf"), "Name=gpu File=/dev/null\n").unwrap();
    prepared(root.path());
    for file in ["slurm.conf", "gres.conf"] {
        fs::remove_file(root.path().join("config").join(file)).unwrap();
    }
    let start = prepared(root.path());
    assert_eq!(start.node_name, "localhost");
    assert!(fs::read_to_string(&installed).unwrap().starts_with("# Generated"));
    let said = |what: &str| start.findings.iter().any(|finding| finding.what.contains(what));
    assert!(said("/config/slurm.conf was removed") && said("/config/gres.conf was removed"), "{:?}", start.findings);
    assert_eq!(fs::read_to_string(installed.with_file_name("slurm.conf.previous")).unwrap(), own("gpu-box"));

    // A file that a person put there is theirs, also where it was a copy before they changed it.
    fs::write(&config, own("gpu-box")).unwrap();
    prepared(root.path());
    fs::remove_file(&config).unwrap();
    fs::write(&installed, own("localhost")).unwrap();
    prepared(root.path());
    assert_eq!(fs::read_to_string(&installed).unwrap(), own("localhost"));
}

/// A reload that was taken back installed the former copy again.
#[test]
fn copy_restored_by_reload_is_removed_with_its_original() {
    let root = fixture("");
    let own = |cpus: u32| {
        format!(
            "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nProctrackType=proctrack/linuxproc\nNodeName=gpu-box CPUs={cpus}\n"
        )
    };
    let (config, installed) = (root.path().join("config/slurm.conf"), root.path().join("etc/slurm/slurm.conf"));
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(&config, own(1)).unwrap();
    prepared(root.path());
    for cpus in [2, 3] {
        fs::write(&config, own(cpus)).unwrap();
        prepared(root.path());
        let output = slurminit(root.path(), "true", "prepare", &["--restore", "slurm.conf"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(fs::read_to_string(&installed).unwrap(), own(1));
    }
    fs::remove_file(&config).unwrap();
    assert_eq!(prepared(root.path()).node_name, "localhost");
}

/// With Slurm's words, as PID 1 gives them to it.
#[test]
fn line_that_daemon_died_of_is_named() {
    let root = fixture("[slurm.conf]\nMaxJobCuont = 5\n");
    prepared(root.path());
    let explain = |words: &str| {
        let given = PrepareInput { last_lines: words.to_owned(), ..PrepareInput::default() };
        let file = root.path().join("given");
        fs::write(&file, serde_json::to_vec(&given).unwrap()).unwrap();
        let before = format!("exec <{}", file.display());
        slurminit(root.path(), &before, "prepare", &["--died", "slurmctld", "--given"])
    };
    let said = explain("-x\nParsing error at unrecognized key: MaxJobCuont\nUnable to process configuration file");
    let [PrepareEvent::Failed { exit_code, finding }] = <[PrepareEvent; 1]>::try_from(events(&said)).unwrap() else {
        unreachable!("{said:?}")
    };
    assert_eq!((said.status.code(), exit_code), (Some(0), exit_code::CONFIG));
    assert!(finding.what.contains("slurminit.toml:2:15: slurm.conf.MaxJobCuont"), "{}", finding.what);
    assert!(explain("Unable to bind listen port (6817): Address already in use").stdout.is_empty());
}

#[test]
fn refuses_saved_state_of_another_cluster() {
    let root = fixture("cluster_name = \"Lab\"\n");
    let state = root.path().join("var/lib/slurm/slurmctld");
    fs::create_dir_all(&state).unwrap();
    for (saved, code) in [("lab|7", 0), ("other|7", i32::from(exit_code::CONFIG)), ("lab\n", 0)] {
        fs::write(state.join("clustername"), saved).unwrap();
        assert_eq!(slurminit(root.path(), "true", "prepare", &[]).status.code(), Some(code), "{saved}");
    }
}

/// slurmctld takes the older file where the newer one is missing, and looks where slurm.conf says.
#[test]
fn sees_jobs_of_previous_start_where_slurmctld_reads_them() {
    let root = fixture("");
    let save = |directory: &str, name: &str| {
        let directory = root.path().join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), "slurminit").unwrap();
    };
    let first = prepared(root.path());
    assert!(!first.saved_jobs && first.new_state);
    save("var/lib/slurm/slurmctld/env_cache", "alice");
    assert!(prepared(root.path()).new_state, "slurminit's own directory is no state");
    save("var/lib/slurm/slurmctld", "clustername");
    let lost = prepared(root.path());
    assert!(!lost.saved_jobs && !lost.new_state, "jobs of a cluster that was here may be lost");
    save("var/lib/slurm/slurmctld", "job_state.old");
    assert!(prepared(root.path()).saved_jobs);

    let own = "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nStateSaveLocation=/var/spool/slurmctld\nProctrackType=proctrack/linuxproc\nNodeName=gpu-box\n";
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/slurm.conf"), own).unwrap();
    assert!(!prepared(root.path()).saved_jobs);
    save("var/spool/slurmctld", "job_state");
    assert!(prepared(root.path()).saved_jobs);
}

/// PID 1 learns from the files what it cannot know of the configuration.
#[test]
fn passes_user_and_node_of_own_slurm_conf_to_pid_1() {
    let root = tempfile::tempdir().unwrap();
    let toml = "[node]\nname = \"n2\"\n[daemon.munged]\nuser = \"nobody\"\n";
    fs::write(root.path().join("slurminit.toml"), toml).unwrap();
    let own = "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nProctrackType=proctrack/linuxproc\n\
               SlurmUser=65534\nNodeName=n[1-2] CPUs=1\n";
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/slurm.conf"), own).unwrap();
    let start = prepared(root.path());
    assert_eq!((start.node_name.as_str(), start.configured_node_name.as_deref()), ("n2", Some("n2")));
    assert_eq!(start.slurm_user.as_deref(), Some("nobody"));
    let refused = [
        (own.replace("65534", "no-such-user"), "/config/slurm.conf:4: "),
        (own.replace("n[1-2]", "m[1-2]"), "/config/slurm.conf:5: "),
        (own.replace("proctrack/linuxproc", "proctrack/cgroup"), "/config/slurm.conf:3: "),
        (format!("{own}Include x.conf\n"), "/config/slurm.conf:6: "),
    ];
    for (own, place) in refused {
        fs::write(root.path().join("config/slurm.conf"), own).unwrap();
        let (code, words) = failure(&slurminit(root.path(), "true", "prepare", &[]));
        assert_eq!(code, exit_code::CONFIG);
        assert!(words.starts_with(place), "{words}");
    }
}

#[test]
fn render_shows_and_changes_nothing() {
    let root = fixture("");
    let run = |more: &[&str]| {
        let output = slurminit(root.path(), "true", "render", more);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&[]).contains("==> /etc/slurm/gres.conf <=="));
    assert!(run(&["--explain"]).contains("AutoDetect=off\n    explicit lines match the devices"));
    assert!(run(&["--diff"]).contains("+NodeName=localhost CPUs=4"));
    assert!(!root.path().join("etc").exists());

    prepared(root.path());
    assert_eq!(run(&["--diff"]), "");
    let path = root.path().join("etc/slurm/slurm.conf");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("CPUs=4", "CPUs=1")).unwrap();
    let diff = run(&["--diff"]);
    assert!(diff.contains("-NodeName=localhost CPUs=1") && diff.contains("+NodeName=localhost CPUs=4"), "{diff}");
}
