//! The fixes that doctor prints, applied in the situation that prints them. `tests/doctor/fixes.rs` lists where other fixes are tested.

use crate::answer::Answer;
use crate::docker::{Container, DEMO, Image, PLAIN, directory, docker};
use crate::doctor::report;

fn faulty(container: &Container, entry: &str) -> Answer {
    let answer = report(container, "").of(entry);
    assert!(["warn", "fail", "note"].contains(&answer.verdict.as_str()) && answer.fix.is_some(), "{answer:?}");
    answer
}

#[track_caller]
fn assert_ok(container: &Container, entry: &str) {
    let answer = report(container, "").of(entry);
    assert_eq!(answer.verdict, "ok", "{answer:?}");
}

/// The option of `docker run` in a fix: "docker run --shm-size=1g ..., or ...", or with backquotes and a semicolon.
fn options(fix: &str) -> Vec<String> {
    let (_, rest) = fix.split_once("docker run ").expect("an option of docker run");
    let end = rest.find([',', '(', '`']).unwrap_or(rest.len());
    rest[..end].split_whitespace().filter(|word| *word != "...").map(str::to_owned).collect()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn printed_options_of_docker_run_end_their_fault() {
    let files = [("hosts", "127.0.0.1 localhost\n"), ("nsswitch.conf", "hosts: files dns\n")];
    let directory = directory(&files);
    let mount = |name: &str| format!("--volume={}:/etc/{name}:ro", directory.path().join(name).display());
    let cases = [
        ("shared-memory", DEMO, vec![], vec![]),
        ("stack-limit", PLAIN, vec![], vec!["--ulimit=stack=1048576".to_owned()]),
        (
            "address",
            PLAIN,
            vec![mount("nsswitch.conf"), "--env=SLURMINIT_ON_GIVE_UP=hold".to_owned()],
            vec![mount("hosts"), "--network=none".to_owned()],
        ),
    ];
    crate::docker::side_by_side(2, &cases, |(entry, image, always, fault)| {
        let with = |options: &[String]| {
            let image = Image::new(image).with(["--hostname", "box"]);
            options.iter().fold(image, |image, option| image.with([option.as_str()])).start()
        };
        let container = with(&[always.as_slice(), fault.as_slice()].concat());
        container.until("test -e /run/slurminit/status.json");
        let fix = faulty(&container, entry).fix.unwrap_or_default().replace("NAME:ADDRESS", "box:127.0.0.1");
        drop(container);
        let container = with(&[always.as_slice(), options(&fix).as_slice()].concat());
        container.until("slurminit health");
        assert_ok(&container, entry);
    });
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn printed_commands_end_their_fault() {
    let generated = Image::new(DEMO).with(["--hostname", "box"]).run(&["cat", "/etc/slurm/slurm.conf"]).ok();
    let another = generated.replace("Gres=gpu:nvidia:", "Gres=gpu:nvidia:4").replace("RealMemory=", "RealMemory=9");
    let config = directory(&[("slurm.conf", &format!("# USER_CUSTOMIZED=true\n{another}"))]);
    let restart = |container: &Container| {
        docker(["restart", &container.name]).ok();
        container.until("slurminit health");
    };
    let container = Image::new(DEMO).with(["--hostname", "box"]).mount(config.path(), "/config").start();
    container.until("sinfo --noheader --format=%T 2>/dev/null | grep -q inval");
    let entries = ["gres", "real-memory", "node"];
    // "remove config/slurm.conf, then docker compose restart slurm"
    for entry in entries {
        faulty(&container, entry);
    }
    std::fs::remove_file(config.path().join("slurm.conf")).expect("the file is there");
    restart(&container);
    for entry in entries {
        assert_ok(&container, entry);
    }
    container.sh("echo '# edited' >>/etc/slurm/slurm.conf");
    let fix = faulty(&container, "stale-files").fix.unwrap_or_default();
    assert!(fix.contains("docker compose restart slurm"), "{fix}");
    restart(&container);
    assert_ok(&container, "stale-files");
    container.sh("chmod 0444 /etc/munge/munge.key");
    let fix = faulty(&container, "munge-key").fix.unwrap_or_default();
    container.sh(fix.split(';').next().unwrap_or_default());
    assert_ok(&container, "munge-key");
    // "set `controller_port` or `daemon_port` in `[slurm]` of slurminit.toml to a free port"
    let toml = directory(&[("slurminit.toml", "[slurm]\ncontroller_port = 7817\ndaemon_port = 7818\n")]);
    let beside = || Image::new(PLAIN).with(["--network", &format!("container:{}", container.name)]);
    let taken = beside().with(["--env", "SLURMINIT_ON_GIVE_UP=hold"]).start();
    taken.until("slurminit status 2>/dev/null | grep -q \"given up\"");
    let fix = faulty(&taken, "ports").fix.unwrap_or_default();
    assert!(fix.contains("`controller_port`"), "{fix}");
    drop(taken);
    assert_ok(&beside().mount(toml.path(), "/config").serve(), "ports");
    // "mount ... /run/secrets/munge.key ... in place of the variable"
    let key = "a-key-0123456789-0123456789-0123456789-0123456789";
    let exposed = Image::new(PLAIN).with(["--env", &format!("SLURMINIT_MUNGE_KEY={key}")]).serve();
    let fix = faulty(&exposed, "exposed-secrets").fix.unwrap_or_default();
    assert!(fix.contains("/run/secrets/munge.key"), "{fix}");
    let secrets = directory(&[("munge.key", key)]);
    assert_ok(&Image::new(PLAIN).mount(secrets.path(), "/run/secrets").serve(), "exposed-secrets");
    // The disk of the saved state is full: "free disk space".
    let disk = Image::new(PLAIN).with(["--tmpfs", "/var/lib/slurm:size=120m"]).serve();
    disk.sh("fallocate --length 50M /var/lib/slurm/large");
    faulty(&disk, "disk");
    disk.sh("rm /var/lib/slurm/large");
    assert_ok(&disk, "disk");
}
