//! Logins with a real ssh, in the image built with --target full.

use std::fs;

use tempfile::TempDir;

use crate::docker::{Container, FULL, Image, Outcome, Volume, directory, docker};
use crate::doctor::{record, report, with_n_for_numbers};

/// A container with sshd. alice has a key in slurminit.toml, bob has none.
struct Logins {
    container: Container,
    _config: TempDir,
    _keys: Volume,
}

/// The image with sshd as its only addition.
fn image() -> Image {
    Image::new(FULL).with(["--env", "SLURMINIT_LOGIN_PORT=22", "--env", "SLURMINIT_ACCOUNTING=none"])
}

/// A directory with the client's key pair, to be mounted at /work.
pub(crate) fn client() -> TempDir {
    let work = directory(&[]);
    let mount = format!("{}:/work", work.path().display());
    let keygen = Image::new(FULL).with(["--volume", &mount]).with(["--entrypoint", "ssh-keygen"]);
    keygen.run(&["-q", "-t", "ed25519", "-N", "", "-C", "alice@laptop", "-f", "/work/id"]).ok();
    work
}

fn serve(client: &TempDir) -> Logins {
    let key = fs::read_to_string(client.path().join("id.pub")).expect("ssh-keygen created the key");
    let toml = format!(
        "[login]\nkeys = \"/keys\"\n[[user]]\nname = \"alice\"\nuid = 1501\nssh_keys = [\"{}\"]\n[[user]]\nname = \"bob\"\nuid = 1502\n",
        key.trim()
    );
    let (config, keys) = (directory(&[("slurminit.toml", &toml)]), Volume::new("keys"));
    let image = image().json_log().mount(config.path(), "/config").mount(client.path(), "/work");
    let container = image.volume(&keys, "/keys").serve();
    Logins { container, _config: config, _keys: keys }
}

const OPTIONS: &str = "-i /work/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR";

impl Logins {
    /// Runs `ssh USER@localhost LINE`.
    fn ssh(&self, user: &str, line: &str) -> Outcome {
        let batch = "-o BatchMode=yes";
        self.container.exec(&["sh", "-c", &format!("timeout 60 ssh {OPTIONS} {batch} {user}@localhost '{line}'")])
    }

    #[track_caller]
    fn assert_refused(&self, user: &str, reason: &str) {
        let outcome = self.ssh(user, "id");
        assert!(outcome.code == 255 && outcome.stderr.contains("Permission denied"), "{reason}: {outcome:?}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn user_logs_in_with_key_submits_job_and_copies_file() {
    let client = client();
    let logins = serve(&client);
    let ids = "uid=1501(alice) gid=1501(alice) groups=1501(alice)\n";
    assert_eq!(logins.ssh("alice", "srun id").ok(), ids);
    let job = logins
        .ssh("alice", "sbatch --parsable --wait --output=out --wrap id && squeue --noheader >/dev/null && cat out")
        .ok();
    assert_eq!(job.split_once('\n').map(|(_, output)| output), Some(ids), "{job}");
    let sftp = format!("echo 'put /work/id.pub copy' | timeout 60 sftp -q -b - {OPTIONS} alice@localhost");
    logins.container.sh(&sftp);
    assert_eq!(logins.container.sh("stat -c %u /home/alice/copy; cmp /work/id.pub /home/alice/copy"), "1501");
    // Sessions get the image's PATH and /etc/environment.
    logins.container.sh("echo 'COLOR=\"deep \\ blue\"' >>/etc/environment; slurminit reload; slurminit restart sshd");
    assert_eq!(
        logins.ssh("alice", "echo $COLOR; command -v slurminit").ok(),
        "deep \\ blue\n/usr/local/bin/slurminit\n"
    );
    // The home has the files of /etc/skel, so a login shell reads ~/.bashrc.
    let alias = "cmp ~/.profile /etc/skel/.profile && echo \"alias mine=true\" >>~/.bashrc; bash -ilc \"alias mine\"";
    assert!(logins.ssh("alice", alias).ok().contains("alias mine="));

    logins.assert_refused("bob", "has no key yet");
    let reload = logins.container.sh("cp /work/id.pub /keys/bob && slurminit reload");
    assert!(reload.contains("the public keys"), "{reload}");
    assert_eq!(logins.ssh("bob", "srun id -u").ok(), "1502\n");
    logins.container.sh("rm /keys/bob; slurminit reload");
    logins.assert_refused("bob", "the key was removed");
    logins.container.sh("su bob -s /bin/sh -c 'cd; umask 77; mkdir .ssh; cp /work/id.pub .ssh/authorized_keys'");
    assert_eq!(logins.ssh("bob", "id -un").ok(), "bob\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn refuses_passwords_root_and_untrusted_key_files() {
    let client = client();
    let logins = serve(&client);
    let container = &logins.container;
    container.sh("printf 'alice:secret\nroot:secret\n' | chpasswd && printf '#!/bin/sh\necho secret\n' >/tmp/ask && chmod 755 /tmp/ask");
    let methods = "-o PubkeyAuthentication=no -o PreferredAuthentications=password,keyboard-interactive";
    for user in ["alice", "root"] {
        let line = format!(
            "SSH_ASKPASS=/tmp/ask SSH_ASKPASS_REQUIRE=force timeout 60 ssh {OPTIONS} {methods} {user}@localhost id"
        );
        let outcome = container.exec(&["sh", "-c", &line]);
        assert!(outcome.code == 255 && outcome.stderr.contains("(publickey)"), "{user}: {outcome:?}");
    }
    container.sh("install -d -m 700 /root/.ssh && cp /work/id.pub /root/.ssh/authorized_keys && cp /work/id.pub /keys/root && slurminit reload");
    logins.assert_refused("root", "root has a key in both places");

    for change in [
        "cp /work/id.pub /keys/bob; chmod 666 /keys/bob",
        "chmod 644 /keys/bob; chown alice /keys/bob",
        "chown root /keys/bob; chmod 777 /keys",
        "chmod 1777 /keys; rm /keys/bob; su alice -s /bin/sh -c 'cp /work/id.pub /keys/bob'",
        "rm /keys/bob; su alice -s /bin/sh -c 'ln -s /work/id.pub /keys/bob'",
    ] {
        container.sh(&format!("{change}; slurminit reload"));
        logins.assert_refused("bob", change);
    }
    container.sh("rm /keys/bob; chmod 755 /keys; cp /work/id.pub /keys/bob; slurminit reload");
    assert_eq!(logins.ssh("bob", "id -un").ok(), "bob\n");
    container.sh("rm /keys/bob; slurminit reload");

    let install_key = "su bob -s /bin/sh -c 'cd; mkdir -p .ssh; cp /work/id.pub .ssh/authorized_keys; chmod 600 .ssh/authorized_keys; chmod 700 .ssh'";
    for change in ["chmod 666 /home/bob/.ssh/authorized_keys", "chmod 777 /home/bob/.ssh", "chmod 777 /home/bob"] {
        container.sh(&format!("{install_key}; {change}"));
        logins.assert_refused("bob", change);
        container.sh("chmod 700 /home/bob");
    }
    container.sh(install_key);
    assert_eq!(logins.ssh("bob", "id -un").ok(), "bob\n");
}

/// Holds 150 connections that do not log in.
const FLOOD: &str =
    "while :; do bash -c 'for i in $(seq 150); do exec {fd}<>/dev/tcp/HOST/22; done 2>/dev/null; sleep 20'; done";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn address_with_many_connections_locks_out_no_other() {
    let client = client();
    let logins = serve(&client);
    let address = |container: &Container| container.sh("hostname -i");
    let attacker = Image::new(FULL).with(["--env", "SLURMINIT_ROLE=none"]).command(["sleep", "inf"]).start();
    let flood = FLOOD.replace("HOST", &address(&logins.container));
    docker(["exec", "--detach", &attacker.name, "bash", "-c", &flood]).ok();
    let attackers = address(&attacker);
    let dropped = format!(" from [{attackers}]");
    logins.container.until_log("sshd drops the attacker's connections", |log| log.contains(&dropped));
    let mut answer = None;
    for _ in 0..10 {
        assert_eq!(logins.ssh("alice", "id -un").ok(), "alice\n");
        answer = Some(report(&logins.container, "").of("ssh-connections"))
            .filter(|answer| answer.verdict == "warn")
            .or(answer);
    }
    let answer = answer.expect("the flood goes on");
    assert!(answer.seen.starts_with(&attackers), "{answer:?}");
    record("image-ssh-connections", &with_n_for_numbers(answer));
    // sshd logs the address, and the flood does not fill the log.
    let log = logins.container.log();
    assert!(log.matches("drop connection").count() < 10, "{log}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn host_key_is_in_no_image_and_kept_in_state_directory() {
    let files = Image::new(FULL).with(["--entrypoint", "sh"]).run(&["-c", "ls /etc/ssh /var/lib/slurm"]).ok();
    assert!(!files.contains("host") && !files.lines().any(|name| name == "ssh"), "{files}");
    let (state, munge) = (Volume::new("state"), Volume::new("munge"));
    let key = || {
        let image = image().json_log().with(["--hostname", "node1"]);
        let container = image.volume(&state, "/var/lib/slurm").volume(&munge, "/etc/munge").serve();
        assert_eq!(
            container.sh("stat -c '%U %a' /var/lib/slurm/ssh /var/lib/slurm/ssh/ssh_host_ed25519_key"),
            "root 700\nroot 600"
        );
        let key = container.sh("ssh-keyscan -t ed25519 localhost 2>/dev/null");
        assert!(key.contains("ssh-ed25519"), "{key}");
        (key, container)
    };
    let (first, container) = key();
    assert_eq!(container.stop(), 0);
    drop(container);
    let (second, container) = key();
    assert_eq!(first, second);
    // A host key that others could read is replaced at the next start.
    container.sh("chmod 644 /var/lib/slurm/ssh/ssh_host_ed25519_key");
    container.stop();
    drop(container);
    let (third, container) = key();
    assert_ne!(second, third);
    assert_eq!(container.records("files").len(), 1, "{}", container.log());
}
