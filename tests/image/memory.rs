//! The memory guard: `[memory] guard`.

use crate::docker::{Container, Image, PLAIN, directory, docker, records};

/// A container with 1 GiB of memory, and a guard that samples every 0.5 s.
fn serve(toml: &str) -> (Container, tempfile::TempDir) {
    serve_with(toml, [])
}

fn serve_with<const N: usize>(toml: &str, options: [&str; N]) -> (Container, tempfile::TempDir) {
    let text = format!("[agent]\ninterval = 0.5\n[memory]\nguard = true\n{toml}");
    let config = directory(&[("slurminit.toml", &text)]);
    let image = Image::new(PLAIN).json_log().with(["--memory", "1g", "--memory-swap", "1g"]).with(options);
    (image.mount(config.path(), "/config").serve(), config)
}

/// Submits a job that allocates `mib` MiB and keeps them. Returns the job ID.
fn fill(container: &Container, mib: u32) -> String {
    fill_after(container, "true", mib)
}

fn fill_after(container: &Container, condition: &str, mib: u32) -> String {
    let line = format!(
        "until {condition}; do sleep 0.1; done; exec perl -e \"read(STDIN, \\$x, {mib} << 20); sleep 600\" </dev/zero"
    );
    container.sh(&format!("sbatch --parsable --mem 10 --output /dev/null --wrap '{line}'"))
}

fn state(container: &Container) -> String {
    container.sh("sinfo --noheader --format '%T %E'")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn drains_node_before_memory_runs_out_and_resumes_it() {
    let (container, _config) = serve("");
    let first = fill(&container, 680);
    container.until("sinfo --noheader --format %T | grep -q draining");
    assert!(state(&container).starts_with("draining slurminit: "), "{}", state(&container));
    // The drain survives a restart of the agent, a restart of a daemon, and a reload.
    container.sh("slurminit restart agent; slurminit restart slurmd; slurminit reload");
    container.until("scontrol ping | grep -q UP");
    assert!(state(&container).starts_with("draining"), "{}", state(&container));
    // The drain does not survive a restart of the container.
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    assert!(state(&container).starts_with("idle") || state(&container).starts_with("mixed"), "{}", state(&container));
    container.sh(&format!("scancel {first} || true"));
    container.until("! squeue --noheader | grep -q .");
    let first = fill(&container, 680);
    container.until("sinfo --noheader --format %T | grep -q draining");
    container.sh(&format!("scancel {first}"));
    container.until("sinfo --noheader --format %T | grep -q idle");
}

/// An administrator's drain stays. When it ends and memory is still low, the guard drains the node.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn drains_node_once_drain_of_administrator_has_ended() {
    let (container, _config) = serve("");
    let job = fill_after(&container, "[ -e /tmp/fill ]", 680);
    container.until("squeue --noheader --format %T | grep -q RUNNING");
    let update = "scontrol update nodename=$(sinfo --noheader --Node --format %N)";
    container.sh(&format!("{update} state=drain reason=maintenance; touch /tmp/fill"));
    container.until_logged("memory-low", None);
    assert!(state(&container).ends_with(" maintenance"), "{}", state(&container));
    container.sh(&format!("{update} state=resume"));
    container.until("sinfo --noheader --format %E | grep -q ^slurminit:");
    container.sh(&format!("scancel {job}"));
    container.until("sinfo --noheader --format %T | grep -q idle");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cancels_youngest_job_before_kernel_oom_kill() {
    let (container, _config) = serve("close_below = 20\n");
    let first = fill(&container, 500);
    container.until(&format!("squeue --noheader --jobs {first} --format %T | grep -q RUNNING"));
    let second = fill(&container, 390);
    container.until(&format!("scontrol show job {second} | grep -q JobState=CANCELLED"));
    let job = container.sh(&format!("scontrol show job {second}"));
    assert!(job.contains("AdminComment=slurminit: "), "{job}");
    container.until_logged("job-cancelled-for-memory", None);
    assert_eq!(container.records("job-cancelled-for-memory")[0]["fields"]["job"], second.as_str());
    assert_eq!(container.sh(&format!("squeue --noheader --jobs {first} --format %T")), "RUNNING");
    container.until("sinfo --noheader --format %T | grep -q -e mixed -e draining");
}

/// A user without a job fills /dev/shm and starts processes with the job ID of root's job. That job stays within its request.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_within_request_survives_memory_exhaustion_by_other_user() {
    let (container, _config) = serve_with("close_below = 30\ncancel_below = 25\n", ["--shm-size", "900m"]);
    let line = "exec perl -e \"read(STDIN, \\$x, 20 << 20); sleep 600\" </dev/zero";
    let job = container.sh(&format!("sbatch --parsable --mem 100 --output /dev/null --wrap '{line}'"));
    container.until(&format!("squeue --noheader --jobs {job} --format %T | grep -q RUNNING"));
    let forged = format!("SLURM_JOB_ID={job} exec perl -e 'read(STDIN, $x, 150 << 20); sleep 600' </dev/zero");
    docker(["exec", "--detach", "--user", "nobody", &container.name, "sh", "-c", &forged]).ok();
    docker(["exec", "--user", "nobody", &container.name, "sh", "-c", "head -c 600M /dev/zero >/dev/shm/full"]).ok();
    // The first decision may precede the last bytes of the file.
    container.until_log("the user of the memory", |log| {
        let decisions = records(log).into_iter().filter(|record| record["kind"] == "no-job-cancelled-for-memory");
        let users = decisions.map(|record| record["fields"]["users"].to_string()).collect::<Vec<_>>();
        users.iter().any(|users| users.contains("nobody (uid 65534): 600 MiB") && users.contains("/dev/shm"))
    });
    docker(["exec", "--user", "nobody", &container.name, "rm", "/dev/shm/full"]).ok();
    assert_eq!(container.sh(&format!("squeue --noheader --jobs {job} --format %T")), "RUNNING");
    assert!(container.records("job-cancelled-for-memory").is_empty(), "{}", container.log());
}

/// A user without a job fills /dev/shm. One job of root has that file mapped, and one uses more than it requested, but less than the user.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_job_is_cancelled_because_of_file_of_other_user() {
    let (container, _config) = serve_with("close_below = 48\ncancel_below = 45\n", ["--shm-size", "900m"]);
    // mmap(2) of x86-64, with MAP_SHARED | MAP_POPULATE.
    let map = "open F, q(<), q(/dev/shm/full); syscall(9, 0, 640 << 20, 1, 0x8001, fileno F, 0); open R, q(>/tmp/mapped); sleep 600";
    let maps = format!("until [ -e /dev/shm/ready ]; do sleep 0.1; done; exec perl -e \"{map}\"");
    let jobs = [
        container.sh(&format!("sbatch --parsable --mem 200 --output /dev/null --wrap '{maps}'")),
        fill(&container, 40),
    ];
    container.until("[ $(squeue --noheader --states=R | wc -l) = 2 ]");
    let file = "head -c 640M /dev/zero >/dev/shm/full; touch /dev/shm/ready";
    docker(["exec", "--user", "nobody", &container.name, "sh", "-c", file]).ok();
    container.until("[ -e /tmp/mapped ]");
    let before = container.records("no-job-cancelled-for-memory").len();
    container.until_log("a decision", |log| {
        let decisions =
            records(log).into_iter().filter(|record| record["kind"].to_string().contains("job-cancelled-for-memory"));
        decisions.count() > before
    });
    for job in jobs {
        assert_eq!(
            container.sh(&format!("squeue --noheader --jobs {job} --format %T")),
            "RUNNING",
            "{}",
            container.log()
        );
    }
    assert!(container.records("job-cancelled-for-memory").is_empty(), "{}", container.log());
}

/// Files in a tmpfs outlive OOM kills. One that is larger than the memory limit ends the container, and its restart requeues the jobs.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn container_restarts_and_requeues_jobs_when_user_fills_oversized_tmpfs() {
    let limits = ["--memory", "300m", "--memory-swap", "300m", "--shm-size", "1g", "--restart", "always"];
    let container = Image::new(PLAIN).json_log().with(limits).serve();
    assert!(container.log().contains("tmpfs mounts can fill the container's memory limit"), "{}", container.log());
    let job = container.sh("sbatch --parsable --requeue --output /dev/null --wrap 'exec sleep 7001'");
    container.until(&format!("squeue --noheader --jobs {job} --format %T | grep -q RUNNING"));
    container.until_saved();
    let fill = "while :; do head -c 1000M /dev/zero >/dev/shm/full; done";
    docker(["exec", "--detach", "--user", "nobody", &container.name, "sh", "-c", fill]).ok();
    let restarts = || docker(["inspect", "--format", "{{.RestartCount}}", &container.name]).ok().trim().to_owned();
    container.until_log("a restart by the engine", |_| restarts() != "0" && container.exec(&["true"]).code == 0);
    container.wait_until_healthy();
    // The kernel may have killed the job's slurmstepd earlier, which also requeues the job.
    container.until(&format!("scontrol --oneliner show job {job} | grep -q 'Restarts=[1-9]'"));
    container.until(&format!("squeue --noheader --jobs {job} --format %T | grep -q -e PENDING -e RUNNING"));
}
