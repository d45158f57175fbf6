//! Jobs in images from registries: Debian's docker-registry and a proxy in a container with two simulated nodes.

use tempfile::TempDir;

use crate::built_image::BuiltImage;
use crate::docker::{Container, Image, Outcome, PLAIN, Volume, directory, docker, tag};

const CONFIGURATION: &str = r#"
[simulate]
nodes = 2
[[user]]
name = "alice"
uid = 1501
[[user]]
name = "bob"
uid = 1502
[[user]]
name = "carol"
uid = 1503
"#;
const TOOLS: &str = "docker://localhost:5000/lab/tools:1";
const BIG: &str = "docker://localhost:5000/lab/big:1";
const STORE: &str = "/home/alice/.local/share/slurminit/images";

struct Registries {
    container: Container,
    config: TempDir,
    _image: BuiltImage,
}

impl Registries {
    fn serve() -> Self {
        Self::serve_with(&[])
    }

    fn serve_with(options: &[&str]) -> Self {
        let base = format!("IMAGE={}", tag(PLAIN));
        let image = BuiltImage::new("registry", "tests/image/images/registry", &[&base]);
        let config = directory(&[("slurminit.toml", CONFIGURATION)]);
        let served = Image::new(&image.0).mount(config.path(), "/config").with(["--hostname", "node1"]);
        let container = options.iter().fold(served, |image, option| image.with([option])).serve();
        container.sh("registries");
        Self { container, config, _image: image }
    }

    fn run(&self, user: &str, line: &str) -> Outcome {
        let home = if user == "root" { "/root".to_owned() } else { format!("/home/{user}") };
        docker(["exec", "--user", user, "--workdir", &home, &self.container.name, "sh", "-c", line])
    }

    /// How often an image was pulled from the registry of this machine.
    fn pulls(&self, image: &str) -> usize {
        self.container.sh(&format!("{} || true", Self::count(image))).parse().expect("grep prints a number")
    }

    fn count(image: &str) -> String {
        format!("grep -c 'GET /v2/lab/{image}/manifests' /tmp/local.log")
    }

    fn begin_pull_of_big(&self) {
        let before = self.pulls("big");
        self.container.sh("rm -f /tmp/step");
        let step =
            format!("srun --quiet -N2 -n2 --container={BIG} cat /kind >/tmp/step 2>&1; echo \"code $?\" >>/tmp/step");
        docker(["exec", "--detach", "--user", "alice", "--workdir", "/tmp", &self.container.name, "sh", "-c", &step])
            .ok();
        // A cancelled job leaves its part of the image until the next pull.
        self.container.until(&format!(
            "[ $({}) -gt {before} ] && [ $(du -s /home/alice/.local/share/slurminit/images | cut -f 1) -gt 5000 ]",
            Self::count("big")
        ));
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn tasks_and_jobs_pull_image_once_for_each_user() {
    let registries = Registries::serve();
    let ok = |user: &str, line: &str| registries.run(user, line).ok();
    let step = registries.run("alice", &format!("srun --quiet -N2 -n2 --container={TOOLS} cat /kind"));
    assert_eq!((step.code, step.stdout.as_str()), (0, "pulled\npulled\n"), "{step:?}");
    assert!(step.stderr.contains("pulling localhost:5000/lab/tools:1 into /home/alice/"), "{step:?}");
    assert_eq!(registries.pulls("tools"), 1);
    // bob has a separate store, so the image is pulled again.
    ok("bob", &format!("printf '#!/bin/sh\n#SBATCH --container={TOOLS}\ncat /kind >kind-$SLURM_ARRAY_TASK_ID\n' >job"));
    ok("bob", "sbatch --quiet --wait --array=1-20 --output=out-%a job || { cat out-*; exit 1; }");
    // Some tasks end while others start in the same image: no task may remove the mount points of another.
    assert_eq!(ok("bob", "cat kind-*"), "pulled\n".repeat(20));
    assert_eq!(registries.pulls("tools"), 2);
    // A tag that has moved is pulled again only on request.
    registries.container.sh("skopeo copy --quiet --src-tls-verify=false --dest-tls-verify=false docker://localhost:5000/lab/tools:2 docker://localhost:5000/lab/tools:1");
    let pulls = registries.pulls("tools");
    let kind = |image: &str| ok("alice", &format!("srun --quiet --container={image} cat /kind"));
    assert_eq!(kind(TOOLS), "pulled\n");
    assert_eq!(registries.pulls("tools"), pulls);
    ok("alice", &format!("slurminit image pull {TOOLS}"));
    assert_eq!(kind(TOOLS), "changed\n");
    assert_eq!(registries.pulls("tools"), pulls + 1);
    // A digest is pulled once.
    let digest = ok("alice", &format!("skopeo inspect --tls-verify=false --format '{{{{.Digest}}}}' {TOOLS}"));
    let pinned = format!("docker://localhost:5000/lab/tools@{}", digest.trim());
    let pulls = registries.pulls("tools");
    for _ in 0..2 {
        ok("alice", &format!("slurminit image pull {pinned}"));
        assert_eq!(kind(&pinned), "changed\n");
    }
    assert_eq!(registries.pulls("tools"), pulls + 1);
    // Root's images are available to all users, even if the registry does not respond.
    ok("root", &format!("slurminit image pull {TOOLS} && slurminit image pull {TOOLS} --name tools"));
    ok("alice", &format!("slurminit image remove {TOOLS} && slurminit image remove {pinned}"));
    registries.container.sh("pkill docker-registry");
    assert_eq!((kind(TOOLS), kind("tools")), ("changed\n".to_owned(), "changed\n".to_owned()));
    assert_eq!(registries.container.sh(&format!("ls -A {STORE}")), "");
    assert_eq!(registries.container.sh("find /home/alice/.local /data/images -perm /6022 ! -type l | wc -l"), "0");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn failed_pull_names_image_registry_and_fix() {
    let registries = Registries::serve_with(&["--tmpfs", "/home/carol:size=300m,mode=1777"]);
    let run = |line: &str| registries.run("alice", line);
    let refused = |image: &str, texts: &[&str]| {
        let step = run(&format!("srun --quiet --container={image} cat /kind"));
        assert_eq!((step.code, step.stdout.as_str()), (126, ""), "{step:?}");
        assert!(!step.stderr.contains("secret-word"), "{step:?}");
        texts.iter().for_each(|text| assert!(step.stderr.contains(text), "{text}: {step:?}"));
    };
    let works = |image: &str| {
        assert_eq!(run(&format!("srun --quiet --container={image} cat /kind")).ok(), "pulled\n");
        run(&format!("slurminit image remove {image}")).ok();
    };
    refused("docker://localhost:5000/lab/none:1", &["localhost:5000/lab/none:1", "check the name and the tag"]);
    refused("docker://localhost:5001/lab/tools:1", &["connection refused", "this node to localhost:5001"]);
    refused("docker://registry.invalid/x", &["this node to registry.invalid"]);
    refused("docker://Python", &["invalid image", "such as docker://python:3.13"]);
    refused("docker://localhost:5000/lab/foreign:1", &["lab/foreign:1", "is for linux/s390x"]);
    // 256 MiB stay free.
    let full = registries.run("carol", &format!("srun --quiet --container={BIG} cat /kind"));
    assert!(full.code == 126 && full.stderr.contains("lab/big:1") && full.stderr.contains("larger disk"), "{full:?}");
    assert_eq!(registries.container.sh("find /home/carol -type f"), "");
    // Without TLS, and with an unknown certificate.
    let plain = "docker://node1:5002/lab/tools:1";
    refused(plain, &["insecure = true", "node1:5002 does not use TLS"]);
    run("mkdir -p ~/.config/containers && printf '[[registry]]\nlocation = \"node1:5002\"\ninsecure = true\n' >~/.config/containers/registries.conf").ok();
    works(plain);
    let closed = "docker://node1:5003/lab/tools:1";
    refused(closed, &["certs.d/node1:5003/ca.crt"]);
    run("mkdir -p ~/.config/containers/certs.d/node1:5003 && cp /srv/registry/cert.pem ~/.config/containers/certs.d/node1:5003/ca.crt").ok();
    // The password is found in both files, but is not used for another user.
    refused(closed, &["skopeo login --authfile ~/.config/containers/auth.json node1:5003"]);
    run("echo secret-word | skopeo login --authfile ~/.config/containers/auth.json -u alice --password-stdin node1:5003").ok();
    works(closed);
    run("mkdir ~/.docker && mv ~/.config/containers/auth.json ~/.docker/config.json").ok();
    works(closed);
    let bob = registries.run("bob", "mkdir -p ~/.config && cp -r /srv/registry/cert.pem /tmp/ca.crt; mkdir -p ~/.config/containers/certs.d/node1:5003 && \
        cp /tmp/ca.crt ~/.config/containers/certs.d/node1:5003/ && srun --quiet --container=docker://node1:5003/lab/tools:1 cat /kind");
    assert!(bob.code != 0 && bob.stderr.contains("authentication required"), "{bob:?}");
    // With a proxy.
    let by = |port: u32| format!("HTTPS_PROXY=http://localhost:{port} srun --quiet --container={closed} cat /kind");
    let refused = run(&by(3129));
    assert!(refused.code == 126 && refused.stderr.contains("check HTTPS_PROXY"), "{refused:?}");
    assert_eq!(run(&by(3128)).ok(), "pulled\n");
    registries.container.until("grep -q CONNECT.node1:5003 /var/log/squid/access.log");
    assert!(!registries.container.log().contains("secret-word"));
    // Root pulls images under chosen names.
    let pull = |arguments: &str| registries.run("root", &format!("slurminit image pull {arguments}"));
    for source in [TOOLS, "localhost:5000/lab/tools:1"] {
        pull(&format!("{source} --replace --name tools")).ok();
    }
    for (arguments, cause) in [
        ("localhost:5000/lab/tools:1 --name tools", "exists"),
        ("localhost:5000/lab/none:1 --name other", "lab/none:1"),
        ("dir:/etc", "dir:/etc"),
        ("-- --help", "--help"),
        ("localhost:5000/lab/tools:1 --name ../x", "../x"),
    ] {
        let outcome = pull(arguments);
        assert_ne!(outcome.code, 0, "{arguments}: {outcome:?}");
        assert!(outcome.stderr.contains(cause) && outcome.stdout.is_empty(), "{arguments}: {outcome:?}");
    }
    assert_eq!(registries.container.sh("ls -A /data/images"), "tools");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn containers_that_share_homes_pull_image_once() {
    let homes = Volume::new("homes");
    let registries = Registries::serve_with(&["--volume", &format!("{}:/home", homes.name)]);
    let first = &registries.container;
    let address =
        docker(["inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", &first.name]).ok();
    let node1 = format!("node1:{}", address.trim());
    let other = Image::new(PLAIN).mount(registries.config.path(), "/config").with([
        "--hostname",
        "other",
        "--add-host",
        &node1,
    ]);
    let other = other.volume(&homes, "/home").serve();
    let insecure = "mkdir -p ~/.config/containers && printf '[[registry]]\nlocation = \"node1:5002\"\ninsecure = true\n' >~/.config/containers/registries.conf";
    registries.run("alice", insecure).ok();
    let step = "srun --quiet --container=docker://node1:5002/lab/big:1 cat /kind";
    let begin = format!("{step} >/tmp/step 2>&1; echo \"code $?\" >>/tmp/step");
    docker(["exec", "--detach", "--user", "alice", "--workdir", "/tmp", &first.name, "sh", "-c", &begin]).ok();
    first.until("grep -qs pulling /tmp/step");
    let waiting = docker(["exec", "--user", "alice", "--workdir", "/tmp", &other.name, "sh", "-c", step]);
    assert_eq!((waiting.code, waiting.stdout.as_str()), (0, "big\n"), "{waiting:?}");
    assert!(waiting.stderr.contains("another process is pulling"), "{waiting:?}");
    first.until("grep -qs code /tmp/step");
    assert!(first.sh("cat /tmp/step").ends_with("big\ncode 0"), "{}", first.sh("cat /tmp/step"));
    assert_eq!(first.sh("grep -c 'GET /v2/lab/big/manifests' /tmp/http.log"), "1");
    assert_eq!(first.sh(&format!("ls -A {STORE} | wc -l")), "1");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn interrupted_pull_is_taken_over_and_leaves_nothing() {
    let registries = Registries::serve();
    let step = || registries.container.sh("cat /tmp/step");
    // The task that pulls is killed: the other task pulls.
    registries.begin_pull_of_big();
    registries.container.sh("kill -KILL $(ps -o ppid= -C skopeo)");
    registries.container.until("grep -qs code /tmp/step");
    assert!(step().lines().any(|line| line == "big"), "{}", step());
    assert_eq!(registries.pulls("big"), 2);
    registries.run("alice", &format!("slurminit image remove {BIG}")).ok();
    // The download is killed: both tasks report it.
    registries.begin_pull_of_big();
    registries.container.sh("pkill -KILL -x skopeo");
    registries.container.until("grep -qs code /tmp/step");
    assert_eq!(step().matches("skopeo failed: signal: 9").count(), 2, "{}", step());
    assert_eq!(registries.container.sh(&format!("ls -A {STORE}")), "");
    // The job is cancelled.
    registries.begin_pull_of_big();
    registries.run("alice", "scancel --user alice").ok();
    registries.container.until("test -z \"$(squeue --noheader)\"");
    registries.container.until("test -z \"$(pgrep -u alice skopeo)\"");
    // The registry goes away: both tasks report it, without a second timeout.
    registries.begin_pull_of_big();
    let pulls = registries.pulls("big");
    registries.container.sh("kill -KILL $(cat /tmp/local.pid)");
    registries.container.until("grep -qs code /tmp/step");
    let failed = step();
    assert_eq!(failed.matches("cannot pull localhost:5000/lab/big:1").count(), 2, "{failed}");
    assert!(failed.contains("this node to localhost:5000"), "{failed}");
    assert_eq!(registries.pulls("big"), pulls);
    let restart = "cd /srv/registry && docker-registry serve local.yml >>/tmp/local.log 2>&1";
    docker(["exec", "--detach", &registries.container.name, "sh", "-c", restart]).ok();
    registries.container.until("skopeo inspect --tls-verify=false docker://localhost:5000/lab/big:1");
    let step = registries.run("alice", &format!("srun --quiet -N2 -n2 --container={BIG} cat /kind"));
    assert_eq!((step.code, step.stdout.as_str()), (0, "big\nbig\n"), "{step:?}");
    assert_eq!(registries.container.sh(&format!("ls -A {STORE} | wc -l")), "1");
}
