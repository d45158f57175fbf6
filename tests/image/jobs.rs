//! Jobs when the container stops and at the next start.

use tempfile::TempDir;

use crate::docker::{Container, DEMO, Image, Volume, directory, docker};

/// Prints a notice on SIGTERM and exits with 0.
const WILLING: &str = "trap 'echo notice; exit 0' TERM; echo up; while :; do sleep 0.1; done";
/// Ignores SIGTERM.
const DEAF: &str = "trap '' TERM; echo up; while :; do sleep 0.1; done";

/// Submits a batch job on one GPU with its output in `/var/lib/slurm/NAME`. Returns the job ID.
fn submit(container: &Container, name: &str, options: &str, script: &str) -> String {
    let line = format!("sbatch --parsable --gres=gpu:1 {options} --output /var/lib/slurm/{name} --wrap \"{script}\"");
    container.sh(&line).trim().to_owned()
}

fn wait_until_up(container: &Container, name: &str) {
    container.until(&format!("grep -qs up /var/lib/slurm/{name}"));
}

fn state(container: &Container, job: &str) -> String {
    container.sh(&format!("scontrol show job {job} | grep -o 'JobState=[A-Z_]*'")).trim().to_owned()
}

fn cluster(slurm: &Volume) -> Image {
    Image::new(DEMO).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=2"]).volume(slurm, "/var/lib/slurm")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_notifies_jobs_and_next_start_lists_no_stale_job() {
    let slurm = Volume::new("state");
    let first = cluster(&slurm).serve();
    let willing = submit(&first, "willing", "", WILLING);
    let deaf = submit(&first, "deaf", "--no-requeue", DEAF);
    wait_until_up(&first, "willing");
    wait_until_up(&first, "deaf");
    let held = first.sh("sbatch --parsable --hold --wrap true").trim().to_owned();
    let code = first.stop();
    assert_eq!(code, 0);
    drop(first);

    let second = cluster(&slurm).serve();
    assert_eq!(second.sh("tail -n 1 /var/lib/slurm/willing"), "notice", "no SIGTERM before the stop");
    assert_eq!(state(&second, &willing), "JobState=COMPLETED");
    // NODE_FAIL if slurmctld stopped before slurmd had reported the end.
    let deaf = state(&second, &deaf);
    assert!(
        ["JobState=FAILED", "JobState=NODE_FAIL"].contains(&deaf.as_str()),
        "--no-requeue job ended by SIGKILL: {deaf}"
    );
    assert_eq!(state(&second, &held), "JobState=PENDING");
    assert_eq!(second.sh("sinfo --noheader --format %T"), "idle");
}

/// The command and a job ignore SIGTERM, so each uses up its part of the stop timeout. A job that another job submits during the stop,
/// as checkpointing scripts do, must not be lost: slurmctld needs time to save it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_keeps_jobs_that_are_submitted_during_it() {
    let slurm = Volume::new("state");
    let deaf_command = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"];
    let first = cluster(&slurm).json_log().command(deaf_command).serve();
    submit(&first, "deaf", "", DEAF);
    let checkpoint = "trap 'sbatch --parsable --output /dev/null --wrap true >/var/lib/slurm/next; exit 0' TERM; \
        echo up; while :; do sleep 0.1; done";
    submit(&first, "saver", "", checkpoint);
    wait_until_up(&first, "deaf");
    wait_until_up(&first, "saver");
    first.stop();
    let killed: Vec<_> = first.records("unit-killed").iter().map(|record| record["unit"].clone()).collect();
    assert!(killed.iter().any(|unit| unit == "the command"), "{}", first.log());
    drop(first);

    let second = cluster(&slurm).serve();
    let next = second.sh("cat /var/lib/slurm/next");
    assert!(!next.is_empty());
    second.until(&format!("scontrol show job {next} | grep -q JobState=COMPLETED"));
}

/// Ends by the default action of SIGTERM.
const PLAIN_SLEEP: &str = "echo up; sleep 3000";
/// Prints a notice on SIGTERM and exits with 3.
const FAILS: &str = "trap 'echo notice; exit 3' TERM; echo up; while :; do sleep 0.1; done";

/// `docker stop` and start requeue the jobs that a crash would requeue.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_requeues_jobs_like_crash() {
    let slurm = Volume::new("state");
    let partition = directory(&[("slurminit.toml", "[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:16\"\n")]);
    let cluster = Image::new(DEMO).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm");
    let cluster = cluster.mount(partition.path(), "/config");
    let first = cluster.serve();
    let submit = |name: &str, options: &str, script: &str| {
        let line = format!(
            "sbatch --parsable --mem=16 {options} --open-mode=append --output /var/lib/slurm/{name} --wrap \"{script}\""
        );
        first.sh(&line).trim().to_owned()
    };
    let plain = submit("plain", "", PLAIN_SLEEP);
    let fails = submit("fails", "", FAILS);
    let willing = submit("willing", "", WILLING);
    let once = submit("once", "--no-requeue", PLAIN_SLEEP);
    let array = submit("array-%a", "--array=1-2", PLAIN_SLEEP);
    docker(["exec", "--detach", &first.name, "srun", "--mem=16", "sleep", "3000"]).ok();
    for name in ["plain", "fails", "willing", "once", "array-1", "array-2"] {
        wait_until_up(&first, name);
    }
    first.until("squeue --noheader --states=RUNNING --format=%j | grep -q sleep");
    let srun = first.sh("squeue --noheader --states=RUNNING --name=sleep --format=%A");
    let after = |how: &str, job: &str| submit("after", &format!("--dependency={how}:{job}"), "true");
    let waiting = [after("afternotok", &plain), after("afterany", &fails), after("afterok", &fails)];
    let code = first.stop();
    let log = first.log();
    assert_eq!(code, 0, "{log}");
    drop(first);

    let second = cluster.serve();
    // All restart at once, not after two minutes, and their earlier output is kept.
    for name in ["plain", "fails", "array-1", "array-2"] {
        let ran_twice =
            format!("timeout 120 sh -c 'until [ $(grep -c up /var/lib/slurm/{name}) = 2 ]; do sleep 0.1; done'");
        let outcome = second.exec(&["sh", "-c", &ran_twice]);
        let jobs = || second.sh("squeue; scontrol show jobs; grep -r . /var/lib/slurm/plain /var/lib/slurm/fails");
        assert_eq!(outcome.code, 0, "{name}: {log}\n{}{}", second.log(), jobs());
    }
    let show = |job: &str| second.sh(&format!("scontrol --oneliner show job {job}"));
    for job in [&plain, &fails] {
        let shown = show(job);
        assert!(shown.contains("JobState=RUNNING") && shown.contains("Restarts=1"), "{shown}");
        assert!(shown.contains("AdminComment=slurminit: "), "{shown}");
    }
    assert_eq!(show(&array).matches("Restarts=1").count(), 2, "{}", show(&array));
    assert!(show(&willing).contains("JobState=COMPLETED"), "{}", show(&willing));
    for job in [&once, &srun] {
        let shown = show(job);
        let ended = ["FAILED", "CANCELLED", "NODE_FAIL"].map(|state| format!("JobState={state} "));
        assert!(ended.iter().any(|state| shown.contains(state)), "{shown}");
        assert!(shown.contains("AdminComment=slurminit: the container stopped"), "{shown}");
        assert!(shown.contains("Restarts=0"), "{shown}");
    }
    for job in waiting {
        let shown = show(&job);
        assert!(shown.contains("JobState=PENDING Reason=Dependency"), "{shown}");
    }
    // The node is mixed or allocated, depending on its CPUs. The drain of the stop is removed.
    let node = second.sh("sinfo --noheader --format %T");
    assert!(["mixed", "allocated"].contains(&node.as_str()), "{node}");
}

/// Notifying the jobs requires a fork. If fork fails, the log reports the jobs that were not notified.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn logs_unnotified_jobs_when_stop_cannot_fork() {
    let slurm = Volume::new("state");
    let container = cluster(&slurm).json_log().serve();
    let job = submit(&container, "job", "", WILLING);
    wait_until_up(&container, "job");
    // Below the current process count, so every fork fails.
    docker(["update", "--pids-limit", "2", &container.name]).ok();
    let code = container.stop();
    let log = container.log();
    assert_eq!(code, 0, "{log}");
    assert_eq!(container.records("jobs-not-notified").len(), 1, "{log}");

    docker(["update", "--pids-limit", "-1", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    let state = state(&container, &job);
    assert!(["JobState=RUNNING", "JobState=PENDING", "JobState=COMPLETED"].contains(&state.as_str()), "{state}");
}

/// A stop drains the node while jobs end; a start after SIGKILL drains it while lost jobs are cleared. A drain set by the administrator
/// persists, with its reason.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn administrator_drain_persists_after_stop_and_kill_with_jobs() {
    for how in ["stop", "kill"] {
        let slurm = Volume::new("state");
        let first = cluster(&slurm).serve();
        first.sh("sbatch --output=/dev/null --wrap 'exec sleep 1000' && \
             timeout 120 sh -c 'until squeue --noheader --states=RUNNING | grep -q .; do sleep 0.2; done' && \
             scontrol update nodename=localhost state=drain reason=upgrade && sbatch --output=/dev/null --wrap true");
        first.until_saved();
        docker([how, &first.name]).ok();
        drop(first);
        let second = cluster(&slurm).start();
        second.until("sinfo --noheader 2>/dev/null | grep -q drain");
        second.until("slurminit status | head -n 1 | grep -q ready");
        let states = second.sh("sinfo --noheader --format='%T|%E'; squeue --noheader --format=%T");
        assert_eq!(states, "drained|upgrade\nPENDING\nPENDING", "{how}: {}", second.log());
        second.sh("scancel 1; scontrol update nodename=localhost state=resume; \
             timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requeues_job_soon_after_container_kill() {
    let slurm = Volume::new("state");
    let first = cluster(&slurm).serve();
    let job = submit(&first, "job", "", DEAF);
    wait_until_up(&first, "job");
    first.until_saved();
    first.sh("rm /var/lib/slurm/job");
    docker(["kill", &first.name]).ok();
    drop(first);

    let second = cluster(&slurm).serve();
    // The requeued job restarts soon; with Slurm's default settings that takes two minutes.
    second.until("grep -qs up /var/lib/slurm/job");
    assert_eq!(state(&second, &job), "JobState=RUNNING");
    second.sh(&format!("scancel {job}"));
}

/// Job IDs continue without a gap after a stop. After a kill the last assigned ID is unknown, so a range is skipped.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_ids_continue_after_stop_and_skip_after_kill() {
    let slurm = Volume::new("state");
    let container = Image::new(DEMO).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm").serve();
    let submit = || container.sh("sbatch --parsable --hold --wrap true").parse::<u32>().expect("a job ID");
    let restart = || {
        docker(["start", &container.name]).ok();
        container.wait_until_healthy();
    };
    assert_eq!(submit(), 1);
    for next in [2, 3] {
        assert_eq!(container.stop(), 0);
        restart();
        assert_eq!(submit(), next, "{}", container.log());
    }
    docker(["kill", &container.name]).ok();
    restart();
    let after = submit();
    assert!(after > 1000, "{after}: {}", container.log());
    assert_eq!(container.stop(), 0);
    restart();
    assert_eq!(submit(), after + 1, "{}", container.log());
}

/// slurmd's spool files of a job are stale after a container kill; Slurm's commands would warn about them at each call.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_container_leaves_nothing_in_spool() {
    let slurm = Volume::new("state");
    let cluster = Image::new(DEMO).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm");
    let first = cluster.serve();
    let once = "sbatch --parsable --no-requeue --output /var/lib/slurm/job --wrap 'echo up; srun --overlap sleep 3000'";
    let job = first.sh(once);
    wait_until_up(&first, "job");
    let list_spool = r"left() { ls -A /var/lib/slurm/slurmd | grep -E '^job[0-9]+$|_[0-9]+\.[0-9]+$'; }; ";
    // The batch script and the sockets of two steps.
    let until_begun = "i=0; until [ $(left | wc -l) = 3 ]; do [ $((i += 1)) -lt 300 ] || exit 1; sleep 0.1; done";
    first.sh(&(list_spool.to_owned() + until_begun));
    first.until_saved();
    docker(["kill", &first.name]).ok();
    drop(first);

    let second = cluster.serve();
    assert_eq!(second.sh(&(list_spool.to_owned() + "left; true")), "", "{}", second.log());
    assert_eq!(state(&second, &job), "JobState=NODE_FAIL");
    let output =
        second.sh("for i in 1 2 3; do scontrol listpids 2>&1; scontrol show slurmd 2>&1; srun true 2>&1; done; true");
    assert!(!(output + &second.log()).contains("vestigial"), "{}", second.log());
}

/// Starts a cluster with two GPUs. `files` is mounted at `/config`.
fn server(files: &TempDir) -> Container {
    Image::new(DEMO).with(["--hostname", "node1"]).with(["--env", "DEMO_GPUS=2"]).mount(files.path(), "/config").serve()
}

/// Shell functions for tests that kill slurmctld before it saves its state.
pub(crate) const SHELL: &str = r#"
pid() { # NAME: the oldest process of that name
    for p in $(ls /proc | grep '^[0-9][0-9]*$' | sort -n); do
        read -r name 2>/dev/null <"/proc/$p/comm" && [ "$name" = "$1" ] && echo "$p" && return
    done
    return 1
}
processes() { # PATTERN: those whose command line begins with it
    for p in /proc/[0-9]*; do
        tr '\0' ' ' 2>/dev/null <"$p/cmdline" | grep -q "^$1" && echo "${p#/proc/}"
    done
}
soon() { # CONDITION, within a minute
    tries=0
    until eval "$1"; do [ $((tries += 1)) -lt 1200 ] || { { echo "never: $1"; squeue; slurminit logs slurmctld; } >&2; exit 1; }; sleep 0.2; done
}
state=/var/lib/slurm/slurmctld/job_state
saved() { # JOB: slurmctld has written down that it runs
    touch /tmp/mark; sleep 0.05; scontrol update jobid="$1" comment=saved
    soon '[ $state -nt /tmp/mark ]'
    cp -p $state /tmp/job_state
}
die() { # kills slurmctld and restores its last saved state, as if the save that is due every 5 s had not happened
    old=$(pid slurmctld)
    kill -STOP "$old"; cp -p /tmp/job_state $state; kill -KILL "$old"
}
is_empty() { squeue --noheader >/tmp/queue && [ ! -s /tmp/queue ]; }
running() { squeue --noheader --states=RUNNING --format=%A; }
"#;

/// If srun ends just before slurmctld is killed, the next slurmctld restores the job as running, and Slurm never ends it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cancels_srun_that_ended_just_before_slurmctld_crash() {
    let files = directory(&[("library", SHELL)]);
    let container = server(&files);
    let printed = container.sh(r#". /config/library
        srun --gres=gpu:2 sh -c 'echo "$SLURM_JOB_ID" >/tmp/up; until [ -e /tmp/end ]; do sleep 0.05; done' &
        soon '[ -s /tmp/up ]'
        job=$(cat /tmp/up)
        saved "$job"
        touch /tmp/end; wait
        die
        soon 'scontrol ping 2>/dev/null | grep -q UP'
        soon 'is_empty'
        timeout 60 srun --gres=gpu:2 true 2>/dev/null && echo free
        scontrol show job "$job" | grep -o 'JobState=[A-Z_]*'
        scontrol show job "$job" | grep -o 'AdminComment=.*'"#);
    let why = "AdminComment=slurminit: the job's srun or salloc no longer runs";
    let expected = ["free", "JobState=CANCELLED", why];
    assert_eq!(printed.lines().map(str::trim).collect::<Vec<_>>(), expected, "{}", container.log());
}

/// Slurm itself would detect the end of this batch job only after up to half an hour, when it polls the node.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requeues_or_cancels_batch_job_that_ended_before_slurmctld_crash() {
    // A script counts as missing after BatchStartTimeout + 10 s; Slurm's default makes that 20 s.
    let files = directory(&[("library", SHELL), ("slurminit.toml", "[slurm.conf]\nBatchStartTimeout = \"1\"\n")]);
    let container = server(&files);
    let printed = container.sh(
        r#". /config/library
        script='echo "$SLURM_JOB_ID" >>/tmp/ran; until [ -e /tmp/end ]; do sleep 0.05; done'
        again=$(sbatch --parsable --gres=gpu:1 --output=/dev/null --wrap "$script")
        once=$(sbatch --parsable --gres=gpu:1 --no-requeue --output=/dev/null --wrap "$script")
        soon '[ "$(wc -l </tmp/ran)" = 2 ]'
        saved "$once"
        touch /tmp/end
        soon 'is_empty'
        die
        soon 'scontrol ping 2>/dev/null | grep -q UP'
        soon '[ "$(wc -l </tmp/ran)" = 3 ]'
        soon 'is_empty'
        for job in "$again" "$once"; do
            scontrol --oneliner show job "$job" | grep -o 'JobState=[A-Z_]*\|Restarts=[0-9]*\|AdminComment=slurminit[^=]* '
        done"#,
    );
    let why =
        "AdminComment=slurminit: the job's script ended, or was about to start, while slurmctld or slurmd was down";
    let expected = ["JobState=COMPLETED", "Restarts=1", why, "JobState=CANCELLED", "Restarts=0", why];
    assert_eq!(printed.lines().map(str::trim).collect::<Vec<_>>(), expected, "{}", container.log());
}

/// Allocations in use are kept: an srun, a stopped srun, a salloc without a step, and a salloc without a shell.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn allocations_in_use_survive_slurmctld_crash() {
    // Oversubscription, so that all allocations fit on one CPU.
    let partition = "[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:8\"\n";
    let files = directory(&[("library", SHELL), ("slurminit.toml", partition)]);
    let container = server(&files);
    let commands = ["srun --mem=16 sleep 1000", "srun --mem=16 sleep 1001", "salloc --mem=16 sleep 1000"];
    for command in commands {
        docker(["exec", "--detach", &container.name, "sh", "-c", &format!("exec {command}")]).ok();
    }
    let printed = container.sh(r#". /config/library
        salloc --mem=16 --no-shell 2>/dev/null
        soon '[ "$(running | wc -l)" = 4 ]'
        held=$(running | sort)
        for process in $(processes 'srun .*1001'); do kill -STOP "$process"; done
        # One more job, whose srun ends. slurmctld examines it last, because it was submitted last.
        srun --mem=16 sh -c 'echo "$SLURM_JOB_ID" >/tmp/up; until [ -e /tmp/end ]; do sleep 0.05; done' &
        soon '[ -s /tmp/up ]'
        saved "$(cat /tmp/up)"
        touch /tmp/end; wait
        die
        soon 'scontrol ping 2>/dev/null | grep -q UP'
        soon 'running >/tmp/running && ! grep -qx "$(cat /tmp/up)" /tmp/running'
        [ "$(running | sort)" = "$held" ] && echo untouched"#);
    assert_eq!(printed, "untouched", "{}", container.log());
}
