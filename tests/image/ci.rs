//! A cluster for CI: in GitHub job and service containers, through the action, and with a different PID 1.
#![expect(clippy::panic, reason = "a test fails by panicking")]

#[path = "ci/workflow.rs"]
mod workflow;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::docker::{Container, Image, Outcome, PLAIN, directory, docker, label, tag};
use workflow::{Job, KEY, documented_workflow};

/// A container with the entry point that GitHub gives a job container.
fn job_container() -> Container {
    Image::new(PLAIN).with(["--entrypoint", "tail"]).command(["-f", "/dev/null"]).start()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn documented_workflow_runs_in_job_container() {
    let job = Job::start(&documented_workflow(".github/workflows/container.yml"));
    let outputs = job.run_all();
    assert!(outputs[0].lines().count() == 1, "{outputs:?}");
    assert_eq!((outputs[1].lines().count(), outputs[2].lines().count()), (4, 2), "{outputs:?}");
    assert_eq!(job.run("sinfo --noheader -N -o %N | wc -l", &[]).ok(), "4\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn service_accepts_jobs_of_job_container_and_hides_key() {
    let job = Job::start(&documented_workflow(".github/workflows/service.yml"));
    let outputs = job.run_all();
    assert_eq!((outputs[1].as_str(), outputs[2].as_str()), ("slurm\n", "from standard input\n"), "{outputs:?}");
    assert!(outputs[3].ends_with("\nslurm\n"), "{outputs:?}");
    assert!(outputs[4].contains("COMPLETED") && !outputs[4].contains("FAILED"), "{outputs:?}");

    // Search for the key from a step, a root job, an unprivileged job, the logs and the environments. Processes without
    // a parent are excluded: Docker itself executes them with the key, and slurminit's verbs drop it before they start
    // another process.
    let search = "env; cat $(grep -L '^PPid:.0$' /proc/[0-9]*/status 2>/dev/null | sed s,status,environ,) \
                /proc/1/environ /proc/*/cmdline /run/slurminit.given/* 2>/dev/null | tr '\\0' '\\n'";
    let service = &job.services[0];
    let found = [
        job.run(search, &[]).stdout,
        job.run(
            &format!("cat >/tmp/look <<'END'\n{search}\nEND\nsrun sh </tmp/look; srun --uid=65534 sh </tmp/look 2>&1"),
            &[],
        )
        .stdout,
        job.run("cat /var/log/slurminit.log", &[]).stdout,
        service.sh("{ cat /proc/1/environ /proc/*/cmdline; \
             for process in $(pgrep slurm); do \
               grep -qs '^PPid:.0$' /proc/$process/status || cat /proc/$process/environ; \
             done; } 2>/dev/null | tr '\\0' '\\n'"),
        service.log(),
    ];
    for text in &found {
        assert!(!text.is_empty() && !text.contains(KEY) && !text.contains("SLURMINIT_MUNGE_KEY="), "{text}");
    }
    assert!(found[1].contains("SLURM_JOB_ID"), "{}", found[1]);
    for container in [&job.container, service] {
        assert_eq!(
            container.sh("stat -c '%U %a' /etc/munge/munge.key; find /run/slurminit.given -type f -size +0"),
            "munge 400"
        );
    }
    // The service's log has a warning because Docker passes the variable to every process. The job container's log has
    // none: only one step has the variable.
    assert!(found[4].contains("SLURMINIT_MUNGE_KEY") && !found[2].contains("SLURMINIT_MUNGE_KEY"), "{found:?}");
    let variable = format!("SLURMINIT_JOIN={KEY}");
    let follow_log = ["slurminit", "logs", "-f", "slurmctld"];
    docker(["exec", "--detach", "--env", &variable, &service.name].into_iter().chain(follow_log)).ok();
    service.until(
        "pid=$(pgrep -f \"^slurminit logs\") && ! grep -qa -e SLURMINIT_MUNGE_KEY= -e SLURMINIT_JOIN= /proc/$pid/environ",
    );
    // The service rejects a different key.
    job.run("slurminit stop", &[]).ok();
    let other_key = [("SLURMINIT_MUNGE_KEY".to_owned(), KEY.to_lowercase())];
    job.run("slurminit up --role login --timeout 20", &other_key);
    let refused = job.run("srun hostname", &[]);
    assert!(refused.code != 0, "{refused:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn up_starts_persistent_cluster_and_reports_gpus() {
    let container = job_container();
    // Without a running cluster, `run` starts a temporary one for its command.
    assert_eq!(container.exec(&["slurminit", "run", "--", "srun", "sh", "-c", "exit 7"]).code, 7);
    // The cluster survives the terminal of `up` and does not keep a pipe open.
    docker(["exec", "--tty", &container.name, "sh", "-c", "slurminit up --nodes 2"]).ok();
    let pid = "pgrep -o -x slurminit-init";
    let first = container.sh(pid);
    assert_eq!(container.sh("srun -N2 true; slurminit up --nodes 2 >/dev/null; slurminit health"), "ready");
    assert_eq!(container.sh(pid), first, "a second `up` started another cluster");
    assert_eq!(container.sh("stat -c '%U %a' /var/log/slurminit.log; cat /proc/1/comm"), "root 600\ntail");
    // The cluster inherits no working directory, standard input or session.
    let inherited = "pid=$(pgrep -o -x slurminit-init); readlink /proc/$pid/cwd /proc/$pid/fd/0; cut -d' ' -f6 /proc/$pid/stat | grep -cx $pid";
    assert_eq!(container.sh(inherited), "/\n/dev/null\n1");
    let other = container.exec(&["slurminit", "up", "--nodes", "3"]);
    assert!(other.code == 1 && other.stderr.contains("--nodes") | other.stderr.contains(&first), "{other:?}");
    let other = container.exec(&["slurminit", "up", "--role", "controller"]);
    assert!(other.code == 1 && other.stderr.contains("controller"), "{other:?}");
    // `run` uses the running cluster and exits with the command's code.
    for (command, code) in [("srun sh -c 'exit 7'", 7), ("no-such-command", 127), ("/etc/slurm", 126)] {
        let outcome = container.exec(&["sh", "-c", &format!("slurminit run -- {command}")]);
        assert_eq!(outcome.code, code, "{command}: {outcome:?}");
    }
    let waited =
        "slurminit run --wait-jobs -- sbatch --output=/tmp/waited --wrap 'sleep 1; echo done'; cat /tmp/waited";
    assert!(container.sh(waited).ends_with("\ndone"));
    // After `stop` no cluster is detected, although PID 1 does not reap it, and `up` works again.
    container.sh("slurminit stop");
    let gone = container.exec(&["slurminit", "status"]);
    assert!(gone.code == 1 && gone.stdout.is_empty(), "{gone:?}");
    let logs = container.exec(&["slurminit", "logs", "slurmctld"]);
    assert!(logs.code == 1 && logs.stderr.contains("/var/log/slurminit.log"), "{logs:?}");
    container.sh("slurminit up && srun true");
    // Files left by a killed container are not mistaken for a cluster, even if the PID was reused.
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.sh("slurminit up && srun true");
    // Two concurrent `up`.
    container.sh(
        "slurminit stop; slurminit up >/tmp/a 2>&1 & first=$!; slurminit up >/tmp/b 2>&1; other=$?; wait $first && [ $other = 0 ] && srun true",
    );
    assert_eq!(container.sh("pgrep -cx slurmctld"), "1");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_failed_start_with_reason_and_exit_code() {
    let container = job_container();
    let up = |toml: &str, more: &str| {
        container.exec(&["env", &format!("SLURMINIT_TOML={toml}"), "sh", "-c", &format!("slurminit up {more}")])
    };
    let nobody = docker(["exec", "--user", "65534", &container.name, "slurminit", "up"]);
    assert!(nobody.code == 1 && nobody.stderr.contains("root"), "{nobody:?}");
    let refused = up("[gpu]\nx = 1", "");
    assert!(refused.code == 78 && refused.stderr.contains("SLURMINIT_TOML:2:1: gpu.x"), "{refused:?}");
    let refused = up("[gpu]", "--config /etc/slurm/plugstack.conf");
    assert!(
        refused.code == 78 && refused.stderr.contains("SLURMINIT_TOML") && refused.stderr.contains("--config"),
        "{refused:?}"
    );
    let failed = up("[daemon.slurmctld]\ncommand = ['false']", "");
    assert!(failed.code == 101 && failed.stderr.contains("slurmctld"), "{failed:?}");
    assert!(failed.stderr.contains("/var/log/slurminit.log"), "{failed:?}");
    let timed_out = up(
        "[[service]]\nname = 's'\ncommand = ['sleep', 'inf']\nreadiness = { port = 9 }\nessential = true",
        "--timeout 3",
    );
    assert!(timed_out.code == 107 && timed_out.stderr.contains("3 s"), "{timed_out:?}");
    assert_eq!(container.exec(&["pgrep", "-x", "slurmctld"]).code, 1, "slurmctld is still running");
    let short_key = container.exec(&["env", "SLURMINIT_MUNGE_KEY=short", "slurminit", "up"]);
    assert!(short_key.code == 78 && short_key.stderr.contains("SLURMINIT_MUNGE_KEY"), "{short_key:?}");
    assert!(container.sh("slurminit up; srun echo good").ends_with("good"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn configuration_variable_replaces_config_file_and_stays_hidden() {
    let toml = "cluster_name = \"variable\"\n[[service]]\nname = \"bot\"\ncommand = [\"sleep\", \"inf\"]\nenv = { PASSWORD = \"of-the-bot\" }\n\
                [[partition]]\nname = \"short\"\n";
    let config = directory(&[("slurminit.toml", "cluster_name = \"file\"\n")]);
    let variable = format!("SLURMINIT_TOML={toml}");
    let image = Image::new(PLAIN).with(["--env", &variable]);
    let container = image.clone().mount(config.path(), "/config").serve();
    let log = container.log();
    assert!(log.contains("/config/slurminit.toml") && log.contains("SLURMINIT_TOML"), "{log}");
    let without = "env -u SLURMINIT_TOML";
    assert_eq!(
        container.sh("scontrol show config | grep -o 'ClusterName.*'; sinfo -h -o %P"),
        "ClusterName             = variable\nshort*"
    );
    // No process has the variable in its environment, but a reload still uses its value.
    let print_environments = "cat $(pgrep slurm | sed 's,.*,/proc/&/environ,') /proc/1/environ | tr '\\0' '\\n'";
    let environments = container.sh(&format!("{without} sh -c \"{print_environments}; srun env\""));
    assert!(environments.contains("SLURM_JOB_ID"), "{environments}");
    assert!(!environments.contains("SLURMINIT_TOML") && !environments.contains("of-the-bot"), "{environments}");
    assert_eq!(container.sh(&format!("{without} slurminit reload")), "nothing changed");
    assert_eq!(container.sh("stat -c '%U %a' /run/slurminit.given/slurminit.toml"), "root 400");
    // SIGTERM still stops the container.
    let code = container.stop();
    assert_eq!(code, 0, "{}", container.log());
    let both = image.with(["--env", "SLURMINIT_CONFIG=/config/slurminit.toml"]).run(&["true"]);
    assert!(
        both.code == 78 && both.stderr.contains("SLURMINIT_TOML") && both.stderr.contains("SLURMINIT_CONFIG"),
        "{both:?}"
    );
    // The next start of the same container without the variable uses none of it.
    let (container, toml) = (job_container(), toml.replace("cluster_name = \"variable\"\n", ""));
    container.sh(&format!(
        "SLURMINIT_TOML='{toml}' slurminit up; slurminit up; slurminit reload; slurminit stop; slurminit up"
    ));
    assert_eq!(container.sh("sinfo -h -o %P; ls /run/slurminit.given"), "debug*");
}

/// A stand-in for a GitHub runner, with the files and directories that the action's scripts use.
struct Runner {
    directory: tempfile::TempDir,
}

impl Runner {
    fn new() -> Self {
        let directory = directory(&[("output", ""), ("path", "")]);
        for name in ["work/repo/repo", "work/_temp", "bin"] {
            let path = directory.path().join(name);
            fs::create_dir_all(&path).expect("a directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("the test owns the directory");
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("the test owns the directory");
        Self { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("the runner file exists").trim().to_owned()
    }

    fn bash(&self, script: &str, env: &[(&str, &str)]) -> Outcome {
        let path = format!("{}:{}:{}", self.read("path"), self.path("bin"), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("timeout")
            .args(["--kill-after=1", "120", "bash", "-eo", "pipefail", "-c", script])
            .current_dir(self.path("work/repo/repo"))
            .env("GITHUB_WORKSPACE", self.path("work/repo/repo"))
            .env("GITHUB_OUTPUT", self.path("output"))
            .env("GITHUB_PATH", self.path("path"))
            .env("RUNNER_TEMP", self.path("work/_temp"))
            .env("SLURM_IMAGE", tag(PLAIN))
            .env("PATH", path.trim_start_matches(':'))
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .output()
            .expect("bash is installed");
        Outcome::of(&output)
    }

    fn start(&self, env: &[(&str, &str)]) -> Outcome {
        self.bash(&format!("{}/docker/action/start", harness::root().display()), env)
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn action_makes_slurm_commands_available_to_runner_user() {
    let runner = Runner::new();
    // GitHub's runner has UID 1001.
    let id = "#!/bin/sh\necho 1001\n";
    fs::write(runner.path("bin/id"), id).expect("a program");
    fs::set_permissions(runner.path("bin/id"), fs::Permissions::from_mode(0o755)).expect("the test owns the file");
    fs::write(runner.path("work/repo/repo/slurminit.toml"), "[[partition]]\nname = \"ci\"\n").expect("a file");
    let started = runner.start(&[
        ("SLURM_NODES", "2"),
        ("SLURM_CONFIG", "slurminit.toml"),
        ("SLURM_OPTIONS", &format!("--label {}", label())),
    ]);
    let _container = Container { name: runner.read("output").trim_start_matches("container=").to_owned() };
    assert_eq!(started.code, 0, "{started:?}");
    let script = "srun -N2 --partition=ci sh -c 'echo $SLURMD_NODENAME $(id -u) $PWD \"$OWN\"' | sort";
    let output = runner.bash(script, &[("OWN", "two\nlines")]).ok();
    let workspace = runner.path("work/repo/repo");
    assert_eq!(output.matches(&format!("1001 {workspace} two")).count(), 2, "{output}");
    assert!(output.contains("node1") && output.contains("node2"), "{output}");
    let script = "printf '#!/bin/sh\\nid -u\\n' | sbatch --wait --output=job.out; cat job.out; stat -c %u job.out";
    assert!(runner.bash(script, &[]).ok().ends_with("1001\n1001\n"));
    assert_eq!(runner.bash("srun sh -c 'exit 5'", &[]).code, 5);
    let published = [("SLURM_IMAGE", ""), ("SLURM_REPOSITORY", "Some/Fork"), ("SLURM_REF", "main")];
    let of_version = [("SLURM_IMAGE", ""), ("SLURM_REPOSITORY", "Some/Fork"), ("SLURM_REF", "v1.2.3")];
    for (env, words) in [
        (&[("SLURM_NODES", "x")][..], "'x'"),
        (&[("SLURM_CONFIG", "none.toml")], "none.toml"),
        (&[("SLURM_IMAGE", "no-such-image-here")], "no-such-image-here"),
        (&published, "ghcr.io/some/slurminit:latest"),
        (&of_version, "ghcr.io/some/slurminit:1.2.3"),
    ] {
        let refused = runner.start(env);
        assert!(
            refused.code == 1 && refused.stdout.contains("::error") && format!("{refused:?}").contains(words),
            "{refused:?}"
        );
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn action_starts_cluster_in_job_container() {
    let job = Job::start(&documented_workflow(".github/workflows/container.yml"));
    let action = harness::root().join("docker/action");
    docker(["cp", &action.display().to_string(), &format!("{}:/__w/action", job.container.name)]).ok();
    let env = [("GITHUB_WORKSPACE", "/__w/repo/repo"), ("GITHUB_OUTPUT", "/tmp/output"), ("GITHUB_PATH", "/tmp/path")];
    let more = [("RUNNER_TEMP", "/__w/_temp"), ("SLURM_NODES", "3")];
    let env: Vec<_> = env.iter().chain(&more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    job.run("bash /__w/action/start", &env).ok();
    assert_eq!(job.run("srun -N3 hostname | wc -l; cat /tmp/output", &[]).ok(), "3\ncontainer=\n");
}
