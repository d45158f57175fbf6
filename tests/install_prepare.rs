//! `slurminit prepare` and `slurminit render` as a process: events on standard output, files and exit code.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test waits for its own child; there is no reaper here")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use model::exit_code;
use model::prepared::{PrepareEvent, PrepareInput, Prepared};
use tempfile::TempDir;

const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/render/inventory.json");

/// A root directory with a configuration whose users exist everywhere.
fn fixture(toml: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let users = "\n[daemon.munged]\nuser = \"nobody\"\n[daemon.slurmctld]\nuser = \"nobody\"\n";
    fs::write(root.path().join("slurminit.toml"), format!("{toml}{users}")).unwrap();
    root
}

/// Runs `sh -c 'before; exec slurminit VERB ...'` with PATH as the only variable.
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
    (exit_code, format!("{} | {} | {}", finding.what, finding.cause, finding.fix))
}

#[test]
fn first_start_writes_all_files_and_second_none() {
    let root = fixture("gpu_type = \"nvidia\"");
    // Mounted by the NVIDIA container runtime.
    let libraries = root.path().join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&libraries).unwrap();
    fs::write(libraries.join("libcuda.so.1"), "").unwrap();
    let first = prepared(root.path());
    assert_eq!(first.changed.len(), 5);
    assert_eq!((first.node_name.as_str(), first.gres.as_str()), ("localhost", "gpu:nvidia:2"));
    assert_eq!(first.summary, "2 NVIDIA H200, 4 CPUs, 20009 MiB");
    let causes: Vec<&str> = first.findings.iter().map(|finding| finding.cause.as_str()).collect();
    assert_eq!(causes, ["cgroup v2 is not writable in this container"], "{:?}", first.findings);
    assert_eq!(prepared(root.path()).changed, [] as [std::path::PathBuf; 0]);
}

#[test]
fn mismatch_prevents_start_if_configured() {
    let root = fixture("gpu_type = \"amd\"\non_mismatch = \"fail\"");
    let (code, message) = failure(&slurminit(root.path(), "true", "prepare", &[]));
    assert_eq!(code, exit_code::MISMATCH);
    assert!(message.contains("built for AMD") && message.contains("GPU_TYPE=nvidia"), "{message}");
    assert!(!root.path().join("etc/slurm/slurm.conf").exists());
}

#[test]
fn invalid_configuration_stops_start_and_names_position() {
    let root = fixture("on_mismatch = \"explode\"");
    let (code, message) = failure(&slurminit(root.path(), "true", "prepare", &[]));
    assert_eq!(code, exit_code::CONFIG);
    assert!(message.contains("slurminit.toml:1:15: on_mismatch:"), "{message}");
}

#[test]
fn requires_named_file() {
    let root = fixture("");
    fs::remove_file(root.path().join("slurminit.toml")).unwrap();
    let (code, message) = failure(&slurminit(root.path(), "true", "prepare", &[]));
    assert_eq!(code, exit_code::CONFIG);
    assert!(message.contains("file not found; correct --config"), "{message}");
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
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{verb:?}: {stderr}");
        assert!(stderr.contains("/no/such/slurminit.toml: file not found"), "{verb:?}: {stderr}");
    }
}

#[test]
fn full_disk_keeps_old_files() {
    let root = fixture("");
    prepared(root.path());
    let path = root.path().join("etc/slurm/slurm.conf");
    let old = fs::read_to_string(&path).unwrap();
    let long = "x".repeat(4000);
    fs::write(root.path().join("slurminit.toml"), format!("[slurm.conf]\nA = \"{long}\"\nB = \"{long}\"\n[daemon.munged]\nuser=\"nobody\"\n[daemon.slurmctld]\nuser=\"nobody\"\n")).unwrap();
    // A write past the limit fails half-way, as on a full disk, also for root.
    let (code, message) = failure(&slurminit(root.path(), "trap '' XFSZ; ulimit -f 4", "prepare", &[]));
    assert_eq!(code, exit_code::PREPARE);
    assert!(message.contains("cannot write /etc/slurm/slurm.conf: File too large"), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), old);
    assert!(!path.with_file_name("slurm.conf.new").exists());
}

#[test]
fn user_file_is_installed_unchanged_and_never_overwritten() {
    let root = fixture("");
    let custom_conf = "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nStateSaveLocation=/var/lib/slurm/slurmctld\nProctrackType=proctrack/linuxproc\n\
                       GresTypes=gpu\nNodeName=gpu-box CPUs=1 Gres=gpu:nvidia:2\n";
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/slurm.conf"), custom_conf).unwrap();
    let start = prepared(root.path());
    assert_eq!((start.node_name.as_str(), start.gres.as_str()), ("gpu-box", "gpu:nvidia:2"));
    let installed = root.path().join("etc/slurm/slurm.conf");
    assert_eq!(fs::read_to_string(&installed).unwrap(), custom_conf);
}

/// The installed copy also has the marker line, but must not outlive its source.
#[test]
fn removing_file_from_config_directory_removes_installed_copy() {
    let root = fixture("");
    let custom_conf = |name: &str| {
        format!(
            "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nStateSaveLocation=/var/lib/slurm/slurmctld\nProctrackType=proctrack/linuxproc\nNodeName={name} CPUs=1\n"
        )
    };
    let (config, installed) = (root.path().join("config/slurm.conf"), root.path().join("etc/slurm/slurm.conf"));
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(&config, custom_conf("gpu-box")).unwrap();
    // A gres.conf next to it needs no marker line.
    fs::write(root.path().join("config/gres.conf"), "Name=gpu File=/dev/null\n").unwrap();
    prepared(root.path());
    for file in ["slurm.conf", "gres.conf"] {
        fs::remove_file(root.path().join("config").join(file)).unwrap();
    }
    let start = prepared(root.path());
    assert_eq!(start.node_name, "localhost");
    assert!(fs::read_to_string(&installed).unwrap().starts_with("# Generated"));
    let reports = |what: &str| start.findings.iter().any(|finding| finding.what.contains(what));
    assert!(
        reports("/config/slurm.conf was removed") && reports("/config/gres.conf was removed"),
        "{:?}",
        start.findings
    );
    assert_eq!(fs::read_to_string(installed.with_file_name("slurm.conf.previous")).unwrap(), custom_conf("gpu-box"));

    // A copy that a user edited in /etc/slurm is kept.
    fs::write(&config, custom_conf("gpu-box")).unwrap();
    prepared(root.path());
    fs::remove_file(&config).unwrap();
    fs::write(&installed, custom_conf("localhost")).unwrap();
    prepared(root.path());
    assert_eq!(fs::read_to_string(&installed).unwrap(), custom_conf("localhost"));
}

/// A reload that is rolled back reinstalls the previous copy.
#[test]
fn copy_restored_by_reload_is_removed_with_its_original() {
    let root = fixture("");
    let custom_conf = |cpus: u32| {
        format!(
            "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nStateSaveLocation=/var/lib/slurm/slurmctld\nProctrackType=proctrack/linuxproc\nNodeName=gpu-box CPUs={cpus}\n"
        )
    };
    let (config, installed) = (root.path().join("config/slurm.conf"), root.path().join("etc/slurm/slurm.conf"));
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(&config, custom_conf(1)).unwrap();
    prepared(root.path());
    for cpus in [2, 3] {
        fs::write(&config, custom_conf(cpus)).unwrap();
        prepared(root.path());
        let output = slurminit(root.path(), "true", "prepare", &["--restore", "slurm.conf"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(fs::read_to_string(&installed).unwrap(), custom_conf(1));
    }
    fs::remove_file(&config).unwrap();
    assert_eq!(prepared(root.path()).node_name, "localhost");
}

/// `prepare` gets the daemon's last log lines from PID 1.
#[test]
fn names_configuration_line_that_crashed_daemon() {
    let root = fixture("[slurm.conf]\nMaxJobCuont = 5\n");
    prepared(root.path());
    let explain = |log: &str| {
        let input = PrepareInput { last_lines: log.to_owned(), ..PrepareInput::default() };
        let file = root.path().join("given");
        fs::write(&file, serde_json::to_vec(&input).unwrap()).unwrap();
        let before = format!("exec <{}", file.display());
        slurminit(root.path(), &before, "prepare", &["--died", "slurmctld", "--given"])
    };
    let output = explain("-x\nParsing error at unrecognized key: MaxJobCuont\nUnable to process configuration file");
    let [PrepareEvent::Failed { exit_code, finding }] = <[PrepareEvent; 1]>::try_from(events(&output)).unwrap() else {
        unreachable!("{output:?}")
    };
    assert_eq!((output.status.code(), exit_code), (Some(0), exit_code::CONFIG));
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

/// slurmctld falls back to `job_state.old` and reads from the StateSaveLocation of slurm.conf.
#[test]
fn detects_saved_jobs_where_slurmctld_reads_them() {
    let root = fixture("");
    let save = |directory: &str, name: &str| {
        let directory = root.path().join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), "slurminit").unwrap();
    };
    let first = prepared(root.path());
    assert!(!first.saved_jobs && first.new_state);
    save("var/lib/slurm/slurmctld/env_cache", "alice");
    assert!(prepared(root.path()).new_state, "env_cache is slurminit's directory, not saved state");
    save("var/lib/slurm/slurmctld", "clustername");
    let lost = prepared(root.path());
    assert!(!lost.saved_jobs && !lost.new_state, "a previous cluster may have lost jobs");
    save("var/lib/slurm/slurmctld", "job_state.old");
    assert!(prepared(root.path()).saved_jobs);

    let custom_conf = "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nStateSaveLocation=/var/spool/slurmctld\nProctrackType=proctrack/linuxproc\nNodeName=gpu-box\n";
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/slurm.conf"), custom_conf).unwrap();
    assert!(!prepared(root.path()).saved_jobs);
    save("var/spool/slurmctld", "job_state");
    assert!(prepared(root.path()).saved_jobs);
}

/// PID 1 needs these values, and slurminit.toml does not contain them.
#[test]
fn passes_user_and_node_of_custom_slurm_conf_to_pid_1() {
    let root = tempfile::tempdir().unwrap();
    let toml = "[node]\nname = \"n2\"\n[daemon.munged]\nuser = \"nobody\"\n";
    fs::write(root.path().join("slurminit.toml"), toml).unwrap();
    let custom_conf = "# USER_CUSTOMIZED=true\nSlurmctldHost=gpu-box\nProctrackType=proctrack/linuxproc\n\
                       SlurmUser=65534\nNodeName=n[1-2] CPUs=1\nStateSaveLocation=/var/lib/slurm/slurmctld\n";
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/slurm.conf"), custom_conf).unwrap();
    let start = prepared(root.path());
    assert_eq!((start.node_name.as_str(), start.configured_node_name.as_deref()), ("n2", Some("n2")));
    assert_eq!(start.slurm_user.as_deref(), Some("nobody"));
    let refused = [
        (custom_conf.replace("65534", "no-such-user"), "/config/slurm.conf:4: "),
        (custom_conf.replace("n[1-2]", "m[1-2]"), "/config/slurm.conf:5: "),
        (custom_conf.replace("proctrack/linuxproc", "proctrack/cgroup"), "/config/slurm.conf:3: "),
        (format!("{custom_conf}Include x.conf\n"), "/config/slurm.conf:7: "),
        (custom_conf.replace("StateSaveLocation", "#"), "/config/slurm.conf: StateSaveLocation is not set"),
    ];
    for (custom_conf, place) in refused {
        fs::write(root.path().join("config/slurm.conf"), custom_conf).unwrap();
        let (code, message) = failure(&slurminit(root.path(), "true", "prepare", &[]));
        assert_eq!(code, exit_code::CONFIG);
        assert!(message.starts_with(place), "{message}");
    }
}

#[test]
fn render_prints_files_and_changes_nothing() {
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

/// A root directory with sshd, and stand-ins for ssh-keygen and ssh, which are in `tools`.
fn fixture_with_sshd(toml: &str) -> TempDir {
    let root = fixture(toml);
    let file = |path: &str, text: &str, mode: u32| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    file("usr/sbin/sshd", "", 0o755);
    file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644);
    file("etc/group", "root:x:0:\n", 0o644);
    let keygen = "#!/bin/sh\numask 077\nfor file; do :; done\necho \"$*\" >\"$file\"\necho public >\"$file.pub\"\n";
    file("tools/ssh-keygen", keygen, 0o755);
    file("tools/ssh", "#!/bin/sh\necho OpenSSH_9.2p1 >&2\n", 0o755);
    root
}

#[test]
fn logins_get_host_key_settings_and_keys_of_users() {
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f alice@home";
    let toml = format!("[login]\nport = 2222\n[[user]]\nname = 'alice'\nuid = 1501\nssh_keys = ['{key}']\n");
    let root = fixture_with_sshd(&toml);
    let path = |path: &str| root.path().join(path);
    let before = format!("PATH={}:$PATH; export PATH", path("tools").display());
    let prepare = || {
        let output = slurminit(root.path(), &before, "prepare", &[]);
        let Some(PrepareEvent::Done(prepared)) = events(&output).pop() else { unreachable!("{output:?}") };
        prepared.findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
    };
    prepare();
    let text = |name: &str| fs::read_to_string(path(name)).unwrap();
    let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o7777;
    let host_key = "var/lib/slurm/ssh/ssh_host_ed25519_key";
    let generated = text(host_key);
    assert!(generated.starts_with("-q -t ed25519 -N  -C  -f ") && generated.ends_with("/new_key\n"), "{generated}");
    assert_eq!(text(&format!("{host_key}.pub")), "public\n");
    assert!(!path("var/lib/slurm/ssh/new_key").exists());
    assert_eq!(text("run/slurminit/ssh/keys/alice"), format!("{key}\n"));
    let config = text("run/slurminit/ssh/sshd_config");
    assert!(config.contains("\nPort 2222\n") && config.contains(&format!("PATH={}", path("tools").display())));
    assert!(config.contains("\nPerSourceMaxStartups ") && !config.contains("PerSourcePenalties"), "of OpenSSH 9.2");
    let modes = ["run/sshd", "var/lib/slurm/ssh", host_key, "run/slurminit/ssh/keys", "run/slurminit/ssh/keys/alice"];
    assert_eq!(modes.map(mode), [0o755, 0o700, 0o600, 0o755, 0o644]);

    // The key stays, because users' ssh would refuse another one, unless others could have read it.
    fs::write(path("tools/ssh-keygen"), "#!/bin/sh\nexit 1\n").unwrap();
    assert!(!prepare().iter().any(|what| what.contains("ssh_host_ed25519_key")));
    assert_eq!(text(host_key), generated);
    fs::set_permissions(path(host_key), fs::Permissions::from_mode(0o640)).unwrap();
    let (code, message) = failure(&slurminit(root.path(), &before, "prepare", &[]));
    assert!(code == exit_code::PREPARE && message.contains("ssh_host_ed25519_key"), "{message}");
    assert_eq!(text(host_key), generated);
}

#[test]
fn image_without_sshd_has_no_logins() {
    let root = fixture("[login]\nport = 2222\n");
    let findings = prepared(root.path()).findings;
    assert!(
        findings.iter().any(|finding| finding.what == "SSH logins are not possible: sshd is not in this image"),
        "{findings:?}"
    );
    assert!(!root.path().join("run/slurminit/ssh").exists());
}

/// slurmctld would end the jobs of a partition that its slurm.conf does not contain.
#[test]
fn partition_of_saved_jobs_is_kept_until_they_have_ended() {
    let both = "[[partition]]\nname = 'long'\n[[partition]]\nname = 'short'\n";
    let root = fixture(both);
    let (toml, conf) = (root.path().join("slurminit.toml"), root.path().join("etc/slurm/slurm.conf"));
    prepared(root.path());
    let with_both = fs::read_to_string(&toml).unwrap();
    let state = root.path().join("var/lib/slurm/slurmctld");
    let head = b"\0\0\0\x11PROTOCOL_VERSION\0\x2a\x00\0\0\0\0\x6b\x02\x0a\x11\0\0\0\x05\0\0\0\0\0\0\0\0";
    for (name, jobs, is_kept) in [
        ("job_state", &b"\0\0\0\x06short\0"[..], true),
        ("job_state", b"\0\0\0\x05long\0", false),
        // slurmctld reads this file if the newer one is missing.
        ("job_state.old", b"\0\0\0\x06short\0", true),
    ] {
        fs::write(&toml, &with_both).unwrap();
        prepared(root.path());
        fs::write(&toml, with_both.replace(both, "[[partition]]\nname = 'long'\n")).unwrap();
        fs::write(state.join(name), [&head[..], jobs].concat()).unwrap();
        let findings = prepared(root.path()).findings;
        fs::remove_file(state.join(name)).unwrap();
        let what = "the partition short is no longer configured; kept with State=DRAIN for saved jobs";
        assert_eq!(findings.iter().any(|finding| finding.what == what), is_kept, "{name} {jobs:?}: {findings:?}");
        let conf = fs::read_to_string(&conf).unwrap();
        assert_eq!(conf.lines().any(|line| line.starts_with("PartitionName=short ")), is_kept, "{conf}");
    }
}
