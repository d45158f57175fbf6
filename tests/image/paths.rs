//! Malicious volumes and directories: symlinks, pipes, hard links, foreign owners.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::docker::{Image, PLAIN, Volume, directory, docker, records, tag};

/// Runs a shell line as root in a separate container, with the volume at /v and the victim's at /victim.
fn shell(volume: &Volume, victim: &Volume, line: &str) -> String {
    let mounts = [format!("{}:/v", volume.name), format!("{}:/victim", victim.name)];
    let options = ["run", "--rm", "--volume", &mounts[0], "--volume", &mounts[1], "--entrypoint", "sh"];
    docker(options.into_iter().chain([tag(PLAIN).as_str(), "-ec", line])).ok().trim_end().to_owned()
}

/// Owner, mode and content of the victim's files.
fn victim_state(volume: &Volume, victim: &Volume) -> String {
    shell(volume, victim, "cd /victim; stat -c '%n %u %g %a' . bin bin/* group; cat group")
}

/// A volume with a directory like /usr/local/bin and a file like /etc/group, and its state.
fn victim(volume: &Volume) -> (Volume, String) {
    let victim = Volume::new("victim");
    shell(volume, &victim, "mkdir /victim/bin; echo ours >/victim/bin/program; echo root:x:0: >/victim/group");
    let before = victim_state(volume, &victim);
    (victim, before)
}

/// The paths of a start's findings and warnings, repaired or not: the first one of each.
fn paths(records: &[Value]) -> BTreeSet<&str> {
    let messages = records.iter().filter_map(|record| match record["kind"].as_str()? {
        "files" => record["fields"]["what"].as_str(),
        "start-warning" => record["fields"]["warning"].as_str(),
        _ => None,
    });
    messages.filter_map(|message| message.split([' ', ':']).find(|word| word.starts_with('/'))).collect()
}

/// Command prefix that switches to an unprivileged user.
const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn refuses_links_and_pipes_in_volumes() {
    let attacks = [
        ("/var/lib/slurm", "ln -s /victim/bin /v/slurmctld", "/var/lib/slurm/slurmctld"),
        ("/var/lib/slurm", "rm -rf /v/slurmd; ln -s /victim/bin /v/slurmd", "/var/lib/slurm/slurmd"),
        ("/etc/munge", "rm -f /v/munge.key; ln -s /victim/group /v/munge.key", "/etc/munge/munge.key"),
        ("/etc/munge", "rm -f /v/munge.key; mkfifo /v/munge.key", "/etc/munge/munge.key"),
    ];
    for (place, attack, named) in attacks {
        let volume = Volume::new("trap");
        let (victim, before) = victim(&volume);
        shell(&volume, &victim, &format!("rm -rf /v/slurmctld; {attack}"));
        let image = Image::new(PLAIN).volume(&volume, place).volume(&victim, "/victim");
        let outcome = image.run(&["true"]);
        assert_eq!(outcome.code, 104, "{attack}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(named), "{attack}: {}", outcome.stderr);
        assert_eq!(victim_state(&volume, &victim), before, "{attack}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn changes_owner_of_foreign_state_directory_to_root() {
    let volume = Volume::new("state");
    let (victim, before) = victim(&volume);
    // A user's bind mount: files may be forged, and may be renamed at any time.
    let attack = "mkdir -p /v/slurmd/job00001 /v/slurmctld/hash.0; echo evil >/v/slurmd/job00001/slurm_script; \
                ln -s /victim/group /v/slurmd/cred_state.new; echo x >/v/slurmctld/hash.0/kept; echo mine >/v/output; \
                echo secret >/v/roots; ln /v/roots /v/slurmctld/second; ln -s /victim/group /v/slurmctld/link; \
                mkfifo /v/slurmctld/pipe; chown -hR 1000:1000 /v/slurmd /v/slurmctld/hash.0; \
                chown 1000:1000 /v /v/slurmctld /v/output; chown 0:0 /v/roots";
    shell(&volume, &victim, attack);
    let image = Image::new(PLAIN).json_log().volume(&volume, "/var/lib/slurm").volume(&victim, "/victim");
    let container = image.serve();
    container.sh("srun true");
    let owners = container
        .sh("cd /var/lib/slurm; stat -c '%n %U %a' . slurmd slurmctld; stat -c '%n %u' output roots \
                               slurmctld/hash.0/kept slurmctld/second slurmctld/link");
    let slurm = container.sh("id -u slurm");
    assert_eq!(
        owners,
        format!(
            ". root 755\nslurmd root 755\nslurmctld slurm 700\noutput 1000\nroots 0\nslurmctld/hash.0/kept {slurm}\n\
             slurmctld/second 0\nslurmctld/link 0"
        )
    );
    container.sh("! [ -e /var/lib/slurm/slurmd/job00001 ] && ! [ -L /var/lib/slurm/slurmd/cred_state.new ]");
    let log = container.log();
    let logged = records(&log);
    let repaired = paths(&logged);
    for path in ["", "/slurmctld", "/slurmd", "/slurmctld/second"].map(|path| format!("/var/lib/slurm{path}")) {
        assert!(repaired.contains(path.as_str()), "{path}: {log}");
    }
    let moved = container.exec(&[
        "setpriv",
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "mv",
        "/var/lib/slurm/slurmd",
        "/var/lib/slurm/mine",
    ]);
    assert_ne!(moved.code, 0, "uid 1000 moved root's spool");
    container.stop();
    assert_eq!(victim_state(&volume, &victim), before);
    // The next start does not report the repaired paths again.
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    let new_log = container.log().split_off(log.len());
    let new_records = records(&new_log);
    let reported = paths(&new_records);
    let repaired = ["/var/lib/slurm", "/var/lib/slurm/slurmctld", "/var/lib/slurm/slurmd"];
    assert!(!repaired.iter().any(|path| reported.contains(path)), "{reported:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn starts_safely_with_world_writable_run_directory() {
    for mode in ["0777", "1777"] {
        let volume = Volume::new("run");
        let (victim, before) = victim(&volume);
        // Like an emptyDir that outlives a container. A user has planted files in it before the next start.
        let attack = format!(
            "rm -rf /v/*; chmod {mode} /v; {NOBODY} sh -ec 'ln -s /victim/bin /v/slurminit; mkdir /v/munge /v/secrets; \
             mkfifo /v/munge/munge.socket.2; head -c 64 /dev/zero >/v/secrets/munge.key; \
             echo sj1-x >/v/secrets/slurminit.join; mkdir /v/slurminit.join; echo x >/v/slurminit.join/cluster.toml'"
        );
        shell(&volume, &victim, &attack);
        let image = Image::new(PLAIN).volume(&volume, "/run").volume(&victim, "/victim").with(["--hostname", "node1"]);
        let container = image.json_log().serve();
        container.sh("srun true");
        let stat =
            container.sh("stat -c '%F %U %a' /run/slurminit /run/munge /run/slurminit/slurm /run/slurminit/control");
        assert_eq!(
            stat,
            "directory root 755\ndirectory munge 755\ndirectory slurm 755\nsocket root 600",
            "{mode}: {}",
            container.log()
        );
        container.sh("[ $(stat -c %s /etc/munge/munge.key) = 128 ]");
        let log = container.log();
        assert!(log.contains("/run/secrets/munge.key"), "{mode}: {log}");
        assert!(paths(&records(&log)).contains("/run"), "{mode}: {log}");
        assert!(log.contains("/run/slurminit"), "{mode}: {log}");
        for line in ["mv /run/slurminit /run/mine", "mv /run/munge /run/mine", "touch /run/slurminit/mine"] {
            let outcome = container.exec(&["sh", "-c", &format!("{NOBODY} {line}")]);
            assert_ne!(outcome.code, 0, "{mode}: an unprivileged user can run: {line}");
        }
        container.sh("slurminit status >/dev/null && slurminit restart slurmd");
        container.stop();
        assert_eq!(victim_state(&volume, &victim), before, "{mode}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn mounted_secret_keeps_owner_and_is_used() {
    let directory = directory(&[("munge.key", "0123456789abcdef0123456789abcdef")]);
    let file = directory.path().join("munge.key");
    std::os::unix::fs::chown(&file, Some(1000), Some(1000)).expect("these tests run as root");
    let image = Image::new(PLAIN).mount(&file, "/run/secrets/munge.key");
    let outcome = image.run(&["sh", "-c", "srun true && cat /etc/munge/munge.key"]);
    assert_eq!(outcome.stdout, "0123456789abcdef0123456789abcdef", "{}", outcome.stderr);

    // A world-writable directory with links owned by root, as Kubernetes mounts a secret.
    let volume = Volume::new("secret");
    let line = "mkdir /v/..2026; printf %s fedcba9876543210fedcba9876543210 >/v/..2026/munge.key; ln -s ..2026 /v/..data; \
                ln -s ..data/munge.key /v/munge.key; chmod 1777 /v";
    shell(&volume, &Volume::new("none"), line);
    let image = Image::new(PLAIN).volume(&volume, "/run/secrets");
    let outcome = image.run(&["sh", "-c", "srun true && cat /etc/munge/munge.key"]);
    assert_eq!(outcome.stdout, "fedcba9876543210fedcba9876543210", "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn second_slurminit_in_same_container_is_refused() {
    let container = Image::new(PLAIN).serve();
    let state = "stat -c '%i' /run/slurminit/control /run/munge/munge.socket.2 /etc/slurm/slurm.conf; \
                 slurminit status --json | grep -o '\"pid\": *[0-9]*'";
    let before = container.sh(state);
    let second = container.exec(&["slurminit", "run"]);
    assert_eq!(second.code, 1, "{}", second.stderr);
    assert!(second.stderr.contains("pid 1"), "{}", second.stderr);
    let with_cmd = container.exec(&["slurminit", "run", "--", "sh", "-c", "exit 7"]);
    assert_eq!(with_cmd.code, 7, "a command runs in the existing cluster: {}", with_cmd.stderr);
    let prepare = container.exec(&["slurminit", "prepare"]);
    assert_eq!(prepare.code, 104, "{}", prepare.stderr);
    assert!(prepare.stdout.contains("slurminit reload"), "{}", prepare.stdout);
    assert_eq!(container.sh(state), before);
    // With `--role none` it is only the init of a command and does not conflict.
    container.sh("slurminit run --role none -- true");
    container.sh("slurminit health && slurminit reload && srun true");
}

/// Under another PID 1 there is no other slurminit to conflict with.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn runs_under_another_init_and_after_kill() {
    let container = Image::new(PLAIN).with(["--init"]).serve();
    container.sh("srun true");
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    container.sh("srun true");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn named_pipe_as_configuration_file_does_not_block_start() {
    for name in ["slurminit.toml", "slurm.conf"] {
        let directory = directory(&[]);
        nix::unistd::mkfifo(&directory.path().join(name), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let outcome = Image::new(PLAIN).mount(directory.path(), "/config").run(&["true"]);
        // A start that blocks exits with 124.
        assert!(outcome.code == 78 || outcome.code == 104, "{name}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(&format!("/config/{name}")), "{name}: {}", outcome.stderr);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn untrusted_parent_directory_is_refused_with_fix() {
    let volume = Volume::new("state");
    shell(&volume, &Volume::new("none"), "mkdir /v/theirs; chown 1000:1000 /v/theirs");
    let config = directory(&[("slurminit.toml", "[paths]\nstate = \"/data/theirs/state\"\n")]);
    let image = Image::new(PLAIN).volume(&volume, "/data").mount(config.path(), "/config");
    let outcome = image.run(&["true"]);
    assert_eq!(outcome.code, 104, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("uid 1000"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("chown root /data/theirs"), "{}", outcome.stderr);
}
