//! `slurminit session`: shells, and logins with a real ssh, in jobs.

use std::time::{Duration, Instant};

use crate::docker::{Container, FULL, Image, Outcome, directory};
use tempfile::TempDir;

const CONFIG: &str = "[simulate]\nnodes = 1\ncpus = 8\nmemory_mib = 16384\ngpus = 2\ngpu_type = 'a100'\n\
                      [[user]]\nname = 'alice'\nuid = 1501\n[[user]]\nname = 'bob'\nuid = 1502\n";

/// A cluster with logins; the users' clients run in the same container.
pub(crate) struct Site {
    pub(crate) container: Container,
    _config: TempDir,
}

impl Site {
    pub(crate) fn start() -> Self {
        Self::start_on(Image::new(FULL))
    }

    pub(crate) fn start_on(image: Image) -> Self {
        let config = directory(&[("slurminit.toml", CONFIG)]);
        let image = image.with(["--env", "SLURMINIT_LOGIN_PORT=22", "--env", "SLURMINIT_ACCOUNTING=none"]);
        Self { container: image.json_log().mount(config.path(), "/config").serve(), _config: config }
    }

    /// Runs a line in a login of this user.
    pub(crate) fn login(&self, user: &str, line: &str) -> Outcome {
        self.container.exec(&["su", "-", user, "-s", "/bin/bash", "-c", line])
    }

    /// Gives a user a key, and the lines of `slurminit session ssh-config`.
    pub(crate) fn configure(&self, user: &str, options: &str) {
        let login = format!("{user}@localhost");
        let line = format!(
            "mkdir -p .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519 && cp .ssh/id_ed25519.pub .ssh/authorized_keys \
             && ssh -o StrictHostKeyChecking=accept-new {login} slurminit session ssh-config --login {login} {options} >.ssh/config"
        );
        self.login(user, &line).ok();
    }

    /// Waits until no job is in the queue; fails after this time.
    pub(crate) fn wait_until_free(&self, within: Duration) {
        let outcome =
            self.container.wait_until(u32::try_from(within.as_secs()).unwrap_or(1), "! squeue --noheader | grep -q .");
        assert_eq!(outcome.code, 0, "{}", self.container.sh("squeue; squeue --steps"));
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn shell_has_gpu_and_frees_it_at_its_end() {
    let site = Site::start();
    let shell = site.login("alice", "slurminit session --cpus 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES; id -un; nproc'");
    assert_eq!(shell.stdout.lines().take(2).collect::<Vec<_>>(), ["0", "alice"], "{shell:?}");
    assert!(
        shell.stderr.contains("is running on node1 until") && shell.stderr.contains("with 1 GPU, 2 CPUs"),
        "{shell:?}"
    );
    assert_eq!(site.login("alice", "slurminit session -- sh -c 'exit 7'").code, 7);
    site.wait_until_free(Duration::from_secs(60));

    // The session reports what it waits for, and an interrupt leaves no job.
    site.login("bob", "sbatch --output=/dev/null --gres=gpu:2 --wrap 'sleep 600'").ok();
    site.container.until("squeue --noheader --format=%T | grep -qx RUNNING");
    let waiting = site.login("alice", "timeout --signal=INT 8 slurminit session -- true");
    let text = "waits for 1 GPU: 2 of 2 in use by bob (without a time limit)";
    assert!(waiting.stderr.contains(text) && waiting.stderr.contains("is cancelled"), "{waiting:?}");
    assert_eq!(site.container.sh("squeue --noheader --format=%u"), "bob");
    site.container.sh("scancel --user=bob");
    site.wait_until_free(Duration::from_secs(60));

    // A session at a terminal prints a warning about the time limit, here at once.
    let line = "script --quiet --command 'slurminit session --time 10m -- sleep 15' typed >/dev/null </dev/null; grep -a 'reaches its time limit' typed";
    assert!(site.login("alice", line).ok().contains("in 10 min; save your work"));
    site.wait_until_free(Duration::from_secs(60));

    // A closed terminal leaves no job.
    site.login("alice", "(setsid slurminit session -- sleep 600 >/dev/null 2>&1 </dev/null & echo $! >pid)").ok();
    site.container.until("squeue --steps --noheader --format=%i | grep -qx '[0-9]*.0'");
    site.container.sh("pkill -HUP --session $(cat ~alice/pid)");
    site.wait_until_free(Duration::from_secs(60));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn named_session_continues_and_is_its_users_own() {
    let site = Site::start();
    let job = |user: &str| site.login(user, "slurminit session --name train -- sh -c 'echo $SLURM_JOB_ID'").ok();
    let first = job("alice");
    assert_eq!(job("alice"), first);
    assert_ne!(job("bob"), first);
    let list = site.login("alice", "slurminit session list").ok();
    assert!(list.lines().count() == 2 && list.contains("train"), "{list}");
    site.login("alice", "slurminit session end train").ok();
    assert_eq!(site.login("alice", "slurminit session end train").code, 1);
    assert_eq!(site.container.sh("squeue --noheader --format=%u --states=RUNNING"), "bob");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn ssh_connections_share_one_job_and_forward_ports_and_files() {
    let site = Site::start();
    site.configure("alice", "--keep 1");
    // Three connections at once, before there is a job.
    let line = "for i in 1 2 3; do ssh -o StrictHostKeyChecking=no gpu 'echo $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME' & done; wait";
    let three = site.login("alice", line).ok();
    let lines: Vec<&str> = three.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.ends_with(" 0 node1") && *line == lines[0]), "{three}");
    let as_alice = |line: &str| site.login("alice", line).ok();
    // A terminal, a command's exit code, standard input.
    assert!(as_alice("ssh -tt gpu tty 2>/dev/null").contains("/dev/pts/"));
    assert_eq!(site.login("alice", "ssh gpu 'exit 9'").code, 9);
    // The start of VS Code's server: a bash script on standard input, and a channel that stays open.
    assert_eq!(as_alice("printf 'uname -s\\necho ready\\n' | ssh -T gpu bash"), "Linux\nready\n");
    // Copies of files.
    as_alice(
        "head -c 64M /dev/urandom >big && scp -q big gpu:copy && cmp big copy && echo 'get copy back' | sftp -q -b - gpu && cmp big back",
    );
    // Port forwarding: in both directions, and dynamic.
    as_alice(
        "ssh gpu 'cd /etc && exec timeout 60 perl -MIO::Socket::INET -e '\"'\"'$s=IO::Socket::INET->new(LocalAddr=>\"127.0.0.1\",LocalPort=>7001,Listen=>5,ReuseAddr=>1); while($c=$s->accept){print $c \"job $ENV{SLURM_JOB_ID}\\n\"; close $c}'\"'\"'' >/dev/null 2>&1 &
         until (exec 3<>/dev/tcp/127.0.0.1/7001) 2>/dev/null; do sleep 0.1; done
         ssh -N -L 7002:127.0.0.1:7001 gpu & forward=$!
         ssh -N -R 7003:127.0.0.1:7001 gpu & reverse=$!
         for port in 7002 7003; do until exec 3<>/dev/tcp/127.0.0.1/$port; do sleep 0.1; done 2>/dev/null; cat <&3 >>answers; done
         kill $forward $reverse",
    );
    as_alice(
        "ssh -N -D 7004 gpu & dynamic=$!
         until exec 3<>/dev/tcp/127.0.0.1/7004; do sleep 0.1; done 2>/dev/null
         printf '\\5\\1\\0\\5\\1\\0\\1\\177\\0\\0\\1\\33\\131' >&3; grep -ao 'job .*' <&3 >>answers; kill $dynamic",
    );
    assert_eq!(as_alice("sort -u answers | wc -l; wc -l <answers"), "1\n3\n");
    // A forwarded ssh-agent offers the user's key.
    let agent = as_alice("eval $(ssh-agent) >&2; ssh-add -q; ssh -A gpu ssh-add -L; kill $SSH_AGENT_PID");
    assert_eq!(agent.split(' ').nth(1), as_alice("cat .ssh/id_ed25519.pub").split(' ').nth(1));
    // The server's host key is on no command line.
    let key = as_alice("sed -n 2p .local/state/slurminit/ssh_host_ed25519_key");
    let open = site.login("alice", "(ssh gpu sleep 30 >/dev/null 2>&1 &) ; until pgrep -x sleep >/dev/null; do sleep 0.1; done; cat /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'").ok();
    assert!(!open.contains(key.trim()), "{open}");
    // Another user gets a separate session.
    site.configure("bob", "--keep 0");
    let other =
        site.login("bob", "ssh -o StrictHostKeyChecking=no gpu 'echo $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES'").ok();
    assert!(other.ends_with(" 1\n") && !lines[0].starts_with(other.split(' ').next().unwrap_or_default()), "{other}");
    // After the client is killed, the job ends once the time of `--keep` is over, and nothing is left.
    let begin = Instant::now();
    site.container.sh("pkill -KILL -u alice -x ssh; true");
    site.wait_until_free(Duration::from_secs(120));
    assert!(begin.elapsed() > Duration::from_secs(30), "the session did not stay for its minute");
    assert_eq!(site.container.sh("ls -d /tmp/slurminit-session-* 2>/dev/null; pgrep -u alice; true"), "");
}

/// The commands of the page for `ssh gpu`.
fn printed_commands() -> Vec<&'static str> {
    let page = include_str!("../../docs/interactive.md");
    let block = page.split("## ssh and VS Code").nth(1).and_then(|rest| rest.split("```").nth(1));
    block.expect("a block below the heading").lines().skip(1).collect()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn three_printed_commands_reach_a_gpu_with_ssh() {
    let site = directory(&[]);
    for name in ["config", ".ssh"] {
        std::fs::create_dir(site.path().join(name)).expect("a directory");
    }
    let without_users = CONFIG.split("[[user]]").next().unwrap_or_default();
    std::fs::write(site.path().join("config/slurminit.toml"), without_users).expect("a file");
    let image = Image::new(FULL).with(["--env", "SLURMINIT_LOGIN_PORT=2222", "--env", "SLURMINIT_ACCOUNTING=none"]);
    let container = image.json_log().mount(&site.path().join("config"), "/config").serve();
    // The key of the reader of the page. Only the first command runs in the directory of the configuration.
    let key = container.sh("ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 && cat ~/.ssh/id_ed25519.pub");
    std::fs::write(site.path().join(".ssh/id_ed25519.pub"), key).expect("a file");
    container.sh("printf '#!/bin/sh\\necho GPU $CUDA_VISIBLE_DEVICES\\n' >/usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi");
    let commands = printed_commands();
    assert_eq!(commands.len(), 3);
    let mut first = std::process::Command::new("bash");
    let status = first.args(["-c", commands[0]]).current_dir(&site).env("HOME", site.path()).status();
    assert!(status.expect("bash runs").success());
    // slurminit detects the change by itself.
    container.until("grep -q alice /etc/passwd && ls /run/slurminit/ssh/keys/alice");
    container.sh(commands[1]);
    assert_eq!(container.sh(commands[2]), "GPU 0");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_clients_leave_no_job() {
    let site = Site::start();
    site.configure("bob", "--keep 0");
    // A shell at a terminal, which ignores SIGTERM, and a connection with SSH.
    site.login(
        "alice",
        "(sleep 600 2>/dev/null | setsid script --quiet --command 'slurminit session' /dev/null >/dev/null 2>&1 &)",
    )
    .ok();
    site.login("bob", "(ssh -o StrictHostKeyChecking=no gpu sleep 601 >/dev/null 2>&1 </dev/null &)").ok();
    site.container.until("pgrep -x -f \"sleep 601\"");
    // The batch scripts hold connections to both clients, with keepalive timers.
    let held =
        "grep -hE \" 01 [0-9A-F:]+ 02:[0-9A-F]+ +[0-9]+ +150[12] \" /proc/net/tcp /proc/net/tcp6 | grep -vc \":0016 \"";
    site.container.until(&format!("[ $({held}) -ge 2 ]"));
    let begin = Instant::now();
    site.container.sh(
        "pkill -KILL -f '^slurminit session$'; pkill -KILL -x srun; pkill -KILL -x ssh; pkill -x -f 'sleep 600'; true",
    );
    site.wait_until_free(Duration::from_secs(60));
    eprintln!("free after {:.1} s", begin.elapsed().as_secs_f64());
    assert_eq!(site.container.sh("ls -d /tmp/slurminit-session-* 2>/dev/null; pgrep -u alice,bob; true"), "");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn ssh_without_key_names_the_fix() {
    let site = Site::start();
    let outcome = site.login("bob", "slurminit session proxy </dev/null");
    assert!(outcome.code == 1 && outcome.stderr.contains("bob has no public key: add `ssh_keys`"), "{outcome:?}");
    assert_eq!(site.container.sh("squeue --noheader"), "");
    let outcome = site.login("bob", "slurminit session ssh-config --login 'bob@host;id'");
    assert!(outcome.code == 1 && outcome.stderr.contains("shells interpret other characters"), "{outcome:?}");
}
