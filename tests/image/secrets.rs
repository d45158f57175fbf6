//! Secrets in the environment of the container: `docker run --env`.

use std::collections::BTreeSet;

use crate::docker::{Image, PLAIN, directory, docker};

const KEY: &str = "of-no-other-cluster/the-munge-key-of-this-test-0123456789";
const TOML: &str = "[[notify]]\nurl = \"https://chat.example.org/the-webhook\"\n\
                    [[service]]\nname = \"other\"\ncommand = [\"sleep\", \"inf\"]\n";
const USER: &str = "[[user]]\nname = \"alice\"\nuid = 1501\n";

fn with_key(image: &str) -> Image {
    Image::new(image).with(["--env", &format!("SLURMINIT_MUNGE_KEY={KEY}")])
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn secret_of_container_is_refused_where_users_can_read_it() {
    let config = directory(&[("slurminit.toml", USER)]);
    for (image, file) in [
        (with_key(PLAIN).mount(config.path(), "/config"), "/run/secrets/munge.key"),
        (with_key(PLAIN).with(["--env", "SLURMINIT_LOGIN_PORT=22"]), "/run/secrets/munge.key"),
        // With `--pid host`, PID 1 is a process of the host.
        (with_key(PLAIN).with(["--env", "SLURMINIT_LOGIN_PORT=22", "--pid", "host"]), "/run/secrets/munge.key"),
        (Image::new(PLAIN).with(["--env", &format!("SLURMINIT_TOML={TOML}{USER}")]), "/config/slurminit.toml"),
    ] {
        let outcome = image.run(&["true"]);
        assert!(outcome.code == 78 && outcome.stderr.contains(file), "{file}: {outcome:?}");
        assert!(!outcome.stderr.contains(KEY) && !outcome.stderr.contains("the-webhook"), "{outcome:?}");
    }
    // Without users the start only warns, but then a reload that adds a user is rejected.
    let config = directory(&[("slurminit.toml", "")]);
    let container = with_key(PLAIN).json_log().mount(config.path(), "/config").serve();
    assert_eq!(container.records("exposed-secrets").len(), 1, "{}", container.log());
    std::fs::write(config.path().join("slurminit.toml"), USER).expect("own file");
    let reload = container.exec(&["slurminit", "reload"]);
    assert!(reload.code != 0 && reload.stderr.contains("/run/secrets/munge.key"), "{reload:?}");
    assert_eq!(container.exec(&["id", "alice"]).code, 1, "the reload added a user");
    let restarted = docker(["restart", &container.name]);
    assert_eq!((restarted.code, container.exit_code()), (0, 78));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_secret_of_container_reaches_job_service_or_saved_state() {
    let container = with_key(PLAIN).with(["--env", &format!("SLURMINIT_TOML={TOML}")]).serve();
    let secrets =
        |text: &str| text.contains("SLURMINIT_MUNGE_KEY") || text.contains(KEY) || text.contains("the-webhook");
    assert!(secrets(&container.sh("env")), "docker exec has the variables");
    for submission in [
        "srun env",
        "srun sh -c 'srun --overlap env'",
        "salloc srun env",
        "salloc env",
        "sbatch --wait --output=/root/out --wrap env >/dev/null; cat /root/out",
        "cd /root; slurminit submit --target localhost --wait -- env >/dev/null; cat /root/slurm-*.out",
        "printf '#!/bin/sh\\nsrun env\\n' | sbatch --wait --output=/root/in >/dev/null; cat /root/in",
    ] {
        let seen = container.sh(submission);
        assert!(seen.contains("SLURM_JOB_ID") && !secrets(&seen), "{submission}: {seen}");
    }
    container.sh("cd /root; sbatch --hold --wrap env");
    container.until_saved();
    assert_ne!(container.sh("find /var/lib/slurm -name environment"), "", "the held job is saved");
    assert_eq!(container.sh("grep -rlE 'SLURMINIT_MUNGE_KEY|the-webhook' /var/lib/slurm || true"), "");
    let service = container.sh("tr '\\0' '\\n' </proc/$(pgrep -x sleep)/environ");
    assert!(service.contains("PATH=") && !secrets(&service), "{service}");
}

/// Links of a user in the working directory of root's sbatch. The kernel follows them if the host has fs.protected_symlinks=0.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn sbatch_of_root_warns_of_directory_in_which_users_place_links() {
    let config = directory(&[("slurminit.toml", USER)]);
    let container = Image::new(PLAIN).with(["--hostname", "node"]).mount(config.path(), "/config").serve();
    let submit = |directory: &str, options: &str| {
        let line = format!("cd {directory} && sbatch --wait {options} --wrap 'echo of-root'");
        container.exec(&["sh", "-c", &line])
    };
    let is_warned = |directory: &str, options: &str| {
        let outcome = submit(directory, options);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        outcome.stderr.contains("users can place links")
    };
    container
        .sh("install -d -m 0777 /data/open; install -d /data/own; install -d -o alice /data/alice; touch /root/victim");
    let is_protected = container.sh("cat /proc/sys/fs/protected_* | grep -cx 0 || true") == "0";
    for (directory, options, expected) in [
        ("/data/open", "", true),
        ("/data/alice", "", true),
        ("/data", "", !is_protected),
        ("/data/own", "", false),
        ("/data/open", "--output=/dev/null", false),
        ("/root", "-o /data/open/out", true),
        ("/data/open", "--chdir=/root", false),
    ] {
        assert_eq!(is_warned(directory, options), expected, "{directory} {options}");
    }
    // The attack: the link is followed in the directory that sbatch warned about, and cannot be created in the recommended directory.
    let next = container.sh("scontrol show config | sed -n 's/^NEXT_JOB_ID *= //p'");
    let plant = format!("su alice -s /bin/sh -c 'ln -s /root/victim $0/slurm-{next}.out'");
    assert!(
        container.exec(&["sh", "-c", &format!("{plant} /data/own")]).code != 0,
        "a user wrote into root's directory"
    );
    container.sh(&format!("{plant} /data/open"));
    assert!(is_warned("/data/open", ""));
    assert_eq!(container.sh("cat /root/victim"), "of-root");
    // Users get no warning in their homes, and their jobs cannot follow the link.
    let own =
        container.exec(&["su", "alice", "-s", "/bin/sh", "-c", "cd && sbatch --wait --wrap id && cat slurm-*.out"]);
    assert!(own.stdout.contains("alice") && own.stderr.is_empty(), "{own:?}");
    let answer = crate::doctor::report(&container, "").of("link-protection");
    assert_eq!(answer.verdict, if is_protected { "ok" } else { "warn" }, "{answer:?}");
}

/// `srun`, `sbatch` and `salloc` behave like Slurm's own commands.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn linked_commands_pass_arguments_signals_and_exit_codes() {
    let container = Image::new(PLAIN).serve();
    let both = |line: &str| {
        let run = |path: &str| {
            // srun reports on standard error that it waits for resources.
            container.until("[ -z \"$(squeue --noheader)\" ]");
            container.exec(&["sh", "-c", &line.replace("PATH_", path)])
        };
        (run(""), run("/usr/bin/"))
    };
    for line in [
        "PATH_srun sh -c 'exit 7'",
        "PATH_srun --no-such-option",
        "PATH_salloc --no-shell --no-such-option",
        "PATH_sbatch /no/such/file",
        "PATH_srun --version",
        "PATH_srun sleep 30 & pid=$!; until pgrep -f '^[^ ]*sleep 30$' >/dev/null; do sleep 0.1; done; kill -TERM $pid; wait $pid",
    ] {
        let (linked, own) = both(line);
        assert_eq!((linked.code, &linked.stdout), (own.code, &own.stdout), "{line}: {linked:?} {own:?}");
        // The programs that wrote lines. slurmstepd's message may arrive after srun's last one, or not at all.
        let names = |text: &str| -> BTreeSet<String> {
            let names = text.lines().filter_map(|line| Some(line.split_once(':')?.0.replace("/usr/bin/", "")));
            names.filter(|name| !name.starts_with("slurmstepd")).collect()
        };
        assert_eq!(names(&linked.stderr), names(&own.stderr), "{line}: {linked:?} {own:?}");
    }
    let links = "/usr/local/bin/srun\n/usr/local/bin/sbatch\n/usr/local/bin/salloc";
    assert_eq!(container.sh("command -v srun; command -v sbatch; command -v salloc"), links);
}
