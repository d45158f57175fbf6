//! A machine joins a cluster with the command that `slurminit join-command` prints on the controller.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use config::token::Token;

use crate::docker::{Container, DEMO, Image, Network, Outcome, PLAIN, Volume, directory, docker, tag, unique};

/// A secret in the controller's file outside the shared cluster settings. It must not leave the controller.
const SECRETS: &str =
    "[[service]]\nname = \"bot\"\ncommand = [\"sleep\", \"inf\"]\nenv = { PASSWORD = \"of-the-bot\" }\n";

/// A controller whose key is in no shared volume.
struct Cluster {
    controller: Container,
    network: Network,
    _config: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let network = Network::new();
        let toml = format!("cluster_name = \"lab\"\n[[partition]]\nname = \"big\"\nfeature = \"nvidia\"\n{SECRETS}");
        let config = directory(&[("slurminit.toml", &toml)]);
        let controller = Image::new(PLAIN)
            .with(["--hostname", "head", "--network", &network.0, "--env", "SLURMINIT_ROLE=controller"])
            .mount(&config.path().join("slurminit.toml"), "/config/slurminit.toml")
            .serve();
        Self { controller, network, _config: config }
    }

    /// Runs `slurminit join-command` with additional options.
    fn command(&self, name: &str, more: &[&str]) -> Outcome {
        let image = tag(DEMO);
        let fixed = ["slurminit", "join-command", "--network", &self.network.0, "--name", name, "--image", &image];
        self.controller.exec(&[&fixed, more].concat())
    }

    fn token(&self) -> Token {
        let line = self.command("x", &[]).ok();
        Token::decode(line.split_whitespace().last().unwrap_or_default()).expect("the last word is a token")
    }

    /// A container with this host name that joins with this token.
    fn with_token(&self, host: &str, token: &str) -> Image {
        Image::new(DEMO).json_log().with(["--hostname", host, "--network", &self.network.0]).command(["--join", token])
    }

    /// Asserts that the container rejects the token: exit code 78 and an error that contains `words`.
    #[track_caller]
    fn assert_rejected(&self, image: &Image, token: &str, words: &str) {
        let outcome = image.run(&["--join", token]);
        assert!(outcome.code == 78 && outcome.stderr.contains(words), "{words}: {outcome:?}");
    }

    #[track_caller]
    fn until(&self, condition: &str) {
        let outcome = self.controller.wait_until(180, condition);
        let nodes = self.controller.sh("scontrol show nodes");
        assert_eq!(outcome.code, 0, "{condition}: {}\n{nodes}\n{}", outcome.stderr, self.controller.log());
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn printed_command_joins_node_without_exposing_key() {
    let cluster = Cluster::new();
    let begin = Instant::now();
    let node = Container { name: unique("joined") };
    let printed = cluster.command(&node.name, &["--expires", "60s"]);
    assert!(printed.stderr.contains("SECRET") && printed.stdout.lines().count() == 1, "{printed:?}");
    assert!(printed.stdout.starts_with("docker run -d "), "{printed:?}");
    let shell =
        Command::new("sh").args(["-c", &printed.stdout]).stdin(Stdio::null()).output().expect("there is a shell");
    assert!(shell.status.success(), "{shell:?}");
    node.wait_until_healthy();
    let host = node.sh("hostname");
    cluster.until(&format!("sinfo -h -N -o \"%N %T\" | grep -q \"{host} idle\""));
    assert_eq!(cluster.controller.sh("srun -p big --gres=gpu:2 hostname"), host);
    let sum = |container: &Container| container.sh("sha256sum </etc/slurm/slurm.conf");
    assert_eq!(sum(&node), sum(&cluster.controller), "{}", node.sh("cat /etc/slurm/slurm.conf"));
    // The step may still be completing.
    node.until(&format!("slurminit status | grep -q \"node {host} is idle\""));
    assert_eq!(node.sh("stat -c '%U %a' /etc/munge/munge.key"), "munge 400");
    assert_eq!(node.sh("ls /run/slurminit.join"), "cluster.toml");

    // Neither a user of the node nor a job can read the secrets.
    let look = "env; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /run/slurminit.join/* 2>/dev/null | tr \"\\0\" \"\\n\"; \
                cat /etc/munge/munge.key";
    let job = format!(
        "cd /tmp; su -s /bin/sh nobody -c 'srun -w {host} sh -c '\\''{}'\\'' 2>&1 || true'",
        look.replace('"', "\\\"")
    );
    let seen = cluster.controller.sh(&job)
        + &node.sh("cat /proc/1/environ /proc/1/cmdline | tr '\\0' '\\n'")
        + &node.sh("env");
    assert!(seen.contains("SLURM_JOB_ID") && seen.contains("Permission denied"), "{seen}");
    let token = printed.stdout.split_whitespace().last().expect("a token").to_owned();
    for text in [&seen, &node.log(), &cluster.controller.log()] {
        assert!(!text.contains(&token[4..40]) && !text.contains("sj1-") && !text.contains("of-the-bot"), "{text}");
    }
    let own = Token::decode(&token).expect("the token is complete");
    assert!(!own.contents.settings.contains("of-the-bot") && !own.contents.settings.contains("service"), "{own:?}");

    // A joined node has the key and restarts after its token has expired.
    std::thread::sleep(Duration::from_secs(62).saturating_sub(begin.elapsed()));
    for how in ["restart", "kill"] {
        docker([how, &node.name]).ok();
        docker(["start", &node.name]).ok();
        node.wait_until_healthy();
        cluster.until(&format!("sinfo -h -N -o \"%N %T\" | grep -q \"{host} idle\""));
    }
    // A new container is rejected.
    cluster.assert_rejected(&cluster.with_token("c9", ""), &token, "expired");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_invalid_token_before_start() {
    let cluster = Cluster::new();
    let token = cluster.token();
    let text = token.encode();
    let node = Image::new(DEMO).with(["--hostname", "c1", "--network", &cluster.network.0]);
    cluster.assert_rejected(&node, &text[..text.len() / 2], "");
    let other = if &text[60..61] == "A" { "B" } else { "A" };
    cluster.assert_rejected(&node, &format!("{}{other}{}", &text[..60], &text[61..]), "");
    cluster.assert_rejected(&node, "sj2-AAAA", "format 2");
    cluster.assert_rejected(&node, "", "sj1-");
    let changed = |change: &dyn Fn(&mut Token)| {
        let mut other = token.clone();
        change(&mut other);
        other.encode()
    };
    let version = changed(&|token| token.contents.slurm = "23.11".to_owned());
    cluster.assert_rejected(&node, &version, "23.11");
    let behind = changed(&|token| token.contents.issued += 7200);
    cluster.assert_rejected(&node, &behind, "clock");
    for hostile in [
        "[[service]]\nname = 'x'\ncommand = ['sh']\n",
        "[paths]\nmunge_key = '/tmp/x'\n",
        "[[user]]\nname = 'eve'\nuid = 1001\n",
    ] {
        let token = changed(&|token| token.contents.settings.push_str(hostile));
        cluster.assert_rejected(&node, &token, "");
    }
    // Variables that conflict with the token.
    for variable in ["SLURMINIT_ROLE=all", "SLURMINIT_CONTROLLER=other", "SLURMINIT_CLUSTER_NAME=other"] {
        let name = variable.split('=').next().unwrap_or_default();
        cluster.assert_rejected(&node.clone().with(["--env", variable]), &text, name);
    }
    let config = directory(&[("slurminit.toml", "[node]\nfeatures = [\"own\"]\n[slurm]\nmax_nodes = 3\n")]);
    let mounted = node.clone().mount(&config.path().join("slurminit.toml"), "/config/slurminit.toml");
    cluster.assert_rejected(&mounted, &text, "/config/slurminit.toml:4:13: slurm.max_nodes");
    // Another cluster's key is not overwritten.
    let key = Volume::new("other-key");
    docker(["run", "--rm", "--volume", &format!("{}:/etc/munge", key.name), &tag(PLAIN), "true"]).ok();
    cluster.assert_rejected(&node.clone().volume(&key, "/etc/munge"), &text, "/etc/munge/munge.key");
    cluster.assert_rejected(&node.clone().with(["--init"]), &text, "--init");
    // No rejected container has registered with the controller.
    assert_eq!(cluster.controller.sh("sinfo -h -N"), "");
    let outcome = Image::new(PLAIN).run(&["slurminit", "join-command"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("controller"), "{outcome:?}");
    let outcome = cluster.controller.exec(&["slurminit", "join-command"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("--network NAME"), "{outcome:?}");
    let outcome =
        cluster.controller.exec(&["su", "-s", "/bin/sh", "nobody", "-c", "slurminit join-command --network host"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("root") && outcome.stdout.is_empty(), "{outcome:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn second_node_waits_for_name_until_first_is_killed() {
    let cluster = Cluster::new();
    let token = cluster.token().encode();
    let first = cluster.with_token("c1", &token).serve();
    let second = cluster.with_token("c1", &token).start();
    second.until_logged("node-name-taken", None);
    cluster.controller.until_said("node c1 reason set to: slurminit: ");
    assert_eq!(cluster.controller.sh("srun -w c1 cat /etc/hostname"), "c1");
    assert_eq!(first.sh("slurminit health --ready"), "ready");
    assert_eq!(second.exec(&["slurminit", "health", "--ready"]).code, 1);
    // After SIGKILL the first node cannot deregister. The second one has another address.
    docker(["kill", &first.name]).ok();
    second.wait_until_healthy();
    cluster.until("sinfo -h -N -o \"%N %T\" | grep -q \"c1 idle\"");
    docker(["kill", &second.name]).ok();
    // Another node takes over the address.
    let other = cluster.with_token("c2", &token).serve();
    let _third = cluster.with_token("c1", &token).serve();
    drop(other);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_node_that_controller_cannot_reach() {
    let cluster = Cluster::new();
    let mut token = cluster.token();
    // slurmd listens on a port that the controller does not use.
    let settings = token.contents.settings.replacen("slurm = { ", "slurm = { daemon_port = 7000, ", 1);
    assert_ne!(settings, token.contents.settings);
    token.contents.settings = settings;
    let node = cluster.with_token("c1", &token.encode()).start();
    node.until_logged("node-unreachable", None);
    let unreachable = node.records("node-unreachable");
    assert!(unreachable[0]["fields"]["cause"].as_str().is_some_and(|cause| cause.contains("6818")), "{unreachable:#?}");
    cluster.controller.until_said("Nodes c1 not responding");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn accepts_token_from_secret_file_and_login_node_joins() {
    let cluster = Cluster::new();
    let mut token = cluster.token();
    token.contents.pinned = true;
    let secret = directory(&[("token", &token.encode())]);
    let file = secret.path().join("token");
    let login = Image::new(PLAIN)
        .with(["--hostname", "login", "--network", &cluster.network.0, "--env", "SLURMINIT_ROLE=login"])
        .mount(&file, "/run/secrets/slurminit.join");
    let mode =
        |mode| std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("own file");
    mode(0o644);
    let outcome = login.run(&["true"]);
    assert!(outcome.code == 78 && outcome.stderr.contains("/run/secrets/slurminit.join"), "{outcome:?}");
    mode(0o400);
    let login = login.serve();
    assert!(login.sh("scontrol ping").contains("UP"));
    // The variable is removed from the environment of PID 1 and its children.
    let variable = format!("SLURMINIT_JOIN={}", token.encode());
    let node = Image::new(DEMO).with(["--hostname", "c1", "--network", &cluster.network.0, "--env", &variable]).serve();
    assert!(node.log().contains("SLURMINIT_JOIN"), "{}", node.log());
    let seen = node.sh("env -u SLURMINIT_JOIN sh -c 'cat /proc/1/environ $(pgrep slurmd | sed s,.*,/proc/\\&/environ,)' | tr '\\0' '\\n'");
    assert!(seen.contains("PATH=") && !seen.contains("sj1-") && !seen.contains("SLURMINIT_JOIN"), "{seen}");
    // `docker exec` passes the variable to every user.
    assert!(docker(["exec", "--user", "65534", &node.name, "env"]).ok().contains("sj1-"));
    let users = directory(&[("slurminit.toml", "[[user]]\nname = \"alice\"\nuid = 1501\n")]);
    let node = Image::new(DEMO).with(["--hostname", "c2", "--network", &cluster.network.0, "--env", &variable]);
    let outcome = node.mount(users.path(), "/config").run(&["true"]);
    assert!(outcome.code == 78 && outcome.stderr.contains("/run/secrets/slurminit.join"), "{outcome:?}");
}
