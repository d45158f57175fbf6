//! A cluster for the tests of others: in GitHub's jobs and services, by the action, and in a container whose PID 1 is another program.
#![expect(clippy::panic, reason = "a test fails by panicking")]

#[path = "ci/workflow.rs"]
mod workflow;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::docker::{Container, Image, Outcome, PLAIN, directory, docker, label, tag};
use workflow::{Job, KEY, printed};

/// A container as GitHub makes one for a job.
fn bare() -> Container {
    Image::new(PLAIN).with(["--entrypoint", "tail"]).command(["-f", "/dev/null"]).start()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn jobs_container_runs_workflow_that_is_printed() {
    let job = Job::start(&printed(".github/workflows/container.yml"));
    let said = job.run_all();
    assert!(said[0].lines().count() == 1, "{said:?}");
    assert_eq!((said[1].lines().count(), said[2].lines().count()), (4, 2), "{said:?}");
    assert_eq!(job.run("sinfo --noheader -N -o %N | wc -l", &[]).ok(), "4\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn service_accepts_jobs_of_job_container_and_hides_key() {
    let job = Job::start(&printed(".github/workflows/service.yml"));
    let said = job.run_all();
    assert_eq!((said[1].as_str(), said[2].as_str()), ("slurm\n", "from standard input\n"), "{said:?}");
    assert!(said[3].ends_with("\nslurm\n"), "{said:?}");
    assert!(said[4].contains("COMPLETED") && !said[4].contains("FAILED"), "{said:?}");

    // Who looks for the key: a job of root's and of anybody's, a step, whoever reads logs and environments. Docker hands it to what it
    // executes itself, which has no parent inside, and slurminit's verbs drop it before they start anything.
    let look = "env; cat $(grep -L '^PPid:.0$' /proc/[0-9]*/status 2>/dev/null | sed s,status,environ,) \
                /proc/1/environ /proc/*/cmdline /run/slurminit.given/* 2>/dev/null | tr '\\0' '\\n'";
    let service = &job.services[0];
    let seen = [
        job.run(look, &[]).stdout,
        job.run(
            &format!("cat >/tmp/look <<'END'\n{look}\nEND\nsrun sh </tmp/look; srun --uid=65534 sh </tmp/look 2>&1"),
            &[],
        )
        .stdout,
        job.run("cat /var/log/slurminit.log", &[]).stdout,
        service.sh("cat /proc/1/environ $(pgrep slurm | sed 's,.*,/proc/&/environ,') /proc/*/cmdline | tr '\\0' '\\n'"),
        service.log(),
    ];
    for text in &seen {
        assert!(!text.is_empty() && !text.contains(KEY) && !text.contains("SLURMINIT_MUNGE_KEY="), "{text}");
    }
    assert!(seen[1].contains("SLURM_JOB_ID"), "{}", seen[1]);
    for container in [&job.container, service] {
        assert_eq!(container.sh("stat -c '%U %a' /etc/munge/munge.key; ls /run/slurminit.given"), "munge 400");
    }
    // Where Docker hands the variable on, the log names it; in the step that alone has it there is nothing to say.
    assert!(seen[4].contains("SLURMINIT_MUNGE_KEY") && !seen[2].contains("SLURMINIT_MUNGE_KEY"), "{seen:?}");
    let variable = format!("SLURMINIT_JOIN={KEY}");
    let waits = ["slurminit", "logs", "-f", "slurmctld"];
    docker(["exec", "--detach", "--env", &variable, &service.name].into_iter().chain(waits)).ok();
    service.until(
        "pid=$(pgrep -f \"^slurminit logs\") && ! grep -qa -e SLURMINIT_MUNGE_KEY= -e SLURMINIT_JOIN= /proc/$pid/environ",
    );
    // Another key is another cluster's.
    job.run("slurminit stop", &[]).ok();
    let other = [("SLURMINIT_MUNGE_KEY".to_owned(), KEY.to_lowercase())];
    job.run("slurminit up --role login --timeout 20", &other);
    let refused = job.run("srun hostname", &[]);
    assert!(refused.code != 0, "{refused:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn up_starts_persistent_cluster_and_reports_gpus() {
    let container = bare();
    // One command first, in a cluster of its own.
    assert_eq!(container.exec(&["slurminit", "run", "--", "srun", "sh", "-c", "exit 7"]).code, 7);
    // A terminal that goes away takes nothing with it, and a pipe is not held open.
    docker(["exec", "--tty", &container.name, "sh", "-c", "slurminit up --nodes 2"]).ok();
    let pid = "pgrep -o -x slurminit-init";
    let first = container.sh(pid);
    assert_eq!(container.sh("srun -N2 true; slurminit up --nodes 2 >/dev/null; slurminit health"), "ready");
    assert_eq!(container.sh(pid), first, "it is up already");
    assert_eq!(container.sh("stat -c '%U %a' /var/log/slurminit.log; cat /proc/1/comm"), "root 600\ntail");
    // It holds nothing of who started it.
    let held = "pid=$(pgrep -o -x slurminit-init); readlink /proc/$pid/cwd /proc/$pid/fd/0; cut -d' ' -f6 /proc/$pid/stat | grep -cx $pid";
    assert_eq!(container.sh(held), "/\n/dev/null\n1");
    let other = container.exec(&["slurminit", "up", "--nodes", "3"]);
    assert!(other.code == 1 && other.stderr.contains("--nodes") | other.stderr.contains(&first), "{other:?}");
    let other = container.exec(&["slurminit", "up", "--role", "controller"]);
    assert!(other.code == 1 && other.stderr.contains("controller"), "{other:?}");
    // A command is run in it, and has its own exit code.
    for (command, code) in [("srun sh -c 'exit 7'", 7), ("no-such-command", 127), ("/etc/slurm", 126)] {
        let outcome = container.exec(&["sh", "-c", &format!("slurminit run -- {command}")]);
        assert_eq!(outcome.code, code, "{command}: {outcome:?}");
    }
    let waited =
        "slurminit run --wait-jobs -- sbatch --output=/tmp/waited --wrap 'sleep 1; echo done'; cat /tmp/waited";
    assert!(container.sh(waited).ends_with("\ndone"));
    // After the end nothing passes for a cluster, though nobody reaps it; and the next one comes.
    container.sh("slurminit stop");
    let gone = container.exec(&["slurminit", "status"]);
    assert!(gone.code == 1 && gone.stdout.is_empty(), "{gone:?}");
    let logs = container.exec(&["slurminit", "logs", "slurmctld"]);
    assert!(logs.code == 1 && logs.stderr.contains("/var/log/slurminit.log"), "{logs:?}");
    container.sh("slurminit up && srun true");
    // What a killed container left is not taken for a cluster, whoever has its number now.
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.sh("slurminit up && srun true");
    // Two at a time.
    container.sh(
        "slurminit stop; slurminit up >/tmp/a 2>&1 & first=$!; slurminit up >/tmp/b 2>&1; other=$?; wait $first && [ $other = 0 ] && srun true",
    );
    assert_eq!(container.sh("pgrep -cx slurmctld"), "1");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_failed_start_with_reason_and_exit_code() {
    let container = bare();
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
    let dies = up("[daemon.slurmctld]\ncommand = ['false']", "");
    assert!(dies.code == 101 && dies.stderr.contains("slurmctld"), "{dies:?}");
    assert!(dies.stderr.contains("/var/log/slurminit.log"), "{dies:?}");
    let late = up(
        "[[service]]\nname = 's'\ncommand = ['sleep', 'inf']\nreadiness = { port = 9 }\nessential = true",
        "--timeout 3",
    );
    assert!(late.code == 107 && late.stderr.contains("3 s"), "{late:?}");
    assert_eq!(container.exec(&["pgrep", "-x", "slurmctld"]).code, 1, "nothing is left running");
    let short = container.exec(&["env", "SLURMINIT_MUNGE_KEY=short", "slurminit", "up"]);
    assert!(short.code == 78 && short.stderr.contains("SLURMINIT_MUNGE_KEY"), "{short:?}");
    assert!(container.sh("slurminit up; srun echo good").ends_with("good"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn uses_configuration_variable_as_whole_configuration_and_hides_it() {
    let toml = "cluster_name = \"variable\"\n[[service]]\nname = \"bot\"\ncommand = [\"sleep\", \"inf\"]\nenv = { PASSWORD = \"of-the-bot\" }\n\
                [[partition]]\nname = \"short\"\n";
    let config = directory(&[("slurminit.toml", "cluster_name = \"file\"\n")]);
    let given = format!("SLURMINIT_TOML={toml}");
    let image = Image::new(PLAIN).with(["--env", &given]);
    let container = image.clone().mount(config.path(), "/config").serve();
    let log = container.log();
    assert!(log.contains("/config/slurminit.toml") && log.contains("SLURMINIT_TOML"), "{log}");
    let without = "env -u SLURMINIT_TOML";
    assert_eq!(
        container.sh("scontrol show config | grep -o 'ClusterName.*'; sinfo -h -o %P"),
        "ClusterName             = variable\nshort*"
    );
    // Nothing that runs here has it, and a reload does.
    let seen = "cat $(pgrep slurm | sed 's,.*,/proc/&/environ,') /proc/1/environ | tr '\\0' '\\n'";
    let seen = container.sh(&format!("{without} sh -c \"{seen}; srun env\""));
    assert!(
        seen.contains("SLURM_JOB_ID") && !seen.contains("SLURMINIT_TOML") && !seen.contains("of-the-bot"),
        "{seen}"
    );
    assert_eq!(container.sh(&format!("{without} slurminit reload")), "nothing changed");
    assert_eq!(container.sh("stat -c '%U %a' /run/slurminit.given/slurminit.toml"), "root 400");
    // TERM still reaches what it was started as.
    let code = container.stop();
    assert_eq!(code, 0, "{}", container.log());
    let both = image.with(["--env", "SLURMINIT_CONFIG=/config/slurminit.toml"]).run(&["true"]);
    assert!(
        both.code == 78 && both.stderr.contains("SLURMINIT_TOML") && both.stderr.contains("SLURMINIT_CONFIG"),
        "{both:?}"
    );
    // The next start of the same container without it: none of it is left.
    let (bare, toml) = (bare(), toml.replace("cluster_name = \"variable\"\n", ""));
    bare.sh(&format!(
        "SLURMINIT_TOML='{toml}' slurminit up; slurminit up; slurminit reload; slurminit stop; slurminit up"
    ));
    assert_eq!(bare.sh("sinfo -h -o %P; ls /run/slurminit.given"), "debug*");
}

/// Runs a script of the action with stand-ins for the runner's files.
struct Runner {
    directory: tempfile::TempDir,
}

impl Runner {
    fn new() -> Self {
        let directory = directory(&[("output", ""), ("path", "")]);
        for name in ["work/repo/repo", "work/_temp", "bin"] {
            let path = directory.path().join(name);
            fs::create_dir_all(&path).expect("a directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("own directory");
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("own directory");
        Self { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("a file of the runner's").trim().to_owned()
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
fn action_puts_slurms_commands_within_reach_of_runners_user() {
    let runner = Runner::new();
    // The runner of GitHub is user 1001.
    let id = "#!/bin/sh\necho 1001\n";
    fs::write(runner.path("bin/id"), id).expect("a program");
    fs::set_permissions(runner.path("bin/id"), fs::Permissions::from_mode(0o755)).expect("own file");
    fs::write(runner.path("work/repo/repo/slurminit.toml"), "[[partition]]\nname = \"ci\"\n").expect("a file");
    let started = runner.start(&[
        ("SLURM_NODES", "2"),
        ("SLURM_CONFIG", "slurminit.toml"),
        ("SLURM_OPTIONS", &format!("--label {}", label())),
    ]);
    let _container = Container { name: runner.read("output").trim_start_matches("container=").to_owned() };
    assert_eq!(started.code, 0, "{started:?}");
    let script = "srun -N2 --partition=ci sh -c 'echo $SLURMD_NODENAME $(id -u) $PWD \"$OWN\"' | sort";
    let said = runner.bash(script, &[("OWN", "two\nlines")]).ok();
    let workspace = runner.path("work/repo/repo");
    assert_eq!(said.matches(&format!("1001 {workspace} two")).count(), 2, "{said}");
    assert!(said.contains("node1") && said.contains("node2"), "{said}");
    let script = "printf '#!/bin/sh\\nid -u\\n' | sbatch --wait --output=job.out; cat job.out; stat -c %u job.out";
    assert!(runner.bash(script, &[]).ok().ends_with("1001\n1001\n"));
    assert_eq!(runner.bash("srun sh -c 'exit 5'", &[]).code, 5);
    let published = [("SLURM_IMAGE", ""), ("SLURM_REPOSITORY", "Some/Fork")];
    for (env, words) in [
        (&[("SLURM_NODES", "x")][..], "'x'"),
        (&[("SLURM_CONFIG", "none.toml")], "none.toml"),
        (&[("SLURM_IMAGE", "no-such-image-here")], "no-such-image-here"),
        (&published, "ghcr.io/some/slurminit:latest"),
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
fn action_starts_cluster_of_jobs_container() {
    let job = Job::start(&printed(".github/workflows/container.yml"));
    let action = harness::root().join("docker/action");
    docker(["cp", &action.display().to_string(), &format!("{}:/__w/action", job.container.name)]).ok();
    let env = [("GITHUB_WORKSPACE", "/__w/repo/repo"), ("GITHUB_OUTPUT", "/tmp/output"), ("GITHUB_PATH", "/tmp/path")];
    let more = [("RUNNER_TEMP", "/__w/_temp"), ("SLURM_NODES", "3")];
    let env: Vec<_> = env.iter().chain(&more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    job.run("bash /__w/action/start", &env).ok();
    assert_eq!(job.run("srun -N3 hostname | wc -l; cat /tmp/output", &[]).ok(), "3\ncontainer=\n");
}
