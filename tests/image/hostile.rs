//! Attacks by an unprivileged user or another container that Slurm itself does not handle.

use serde_json::Value;

use crate::docker::{Container, Image, Outcome, PLAIN, directory, docker};

fn as_nobody(container: &Container, line: &str) -> Outcome {
    docker(["exec", "--user", "nobody", "--workdir", "/tmp", &container.name, "sh", "-c", line])
}

/// slurmstepd blocks in open(2) on the FIFO; only SIGKILL ends it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cancelled_job_that_waits_for_fifo_blocks_no_other_job() {
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().serve();
    let submit = "mkfifo /tmp/$NAME && sbatch --parsable --exclusive --output=/tmp/$NAME --wrap 'echo written'";
    let until_blocked =
        "until pidof slurmstepd && [ \"$(squeue --noheader --jobs=$JOB --format=%T)\" = RUNNING ]; do sleep 0.2; done";
    let start = |name: &str| {
        let job = as_nobody(&container, &submit.replace("$NAME", name)).ok().trim().to_owned();
        container.exec(&["timeout", "30", "sh", "-c", &until_blocked.replace("$JOB", &job)]).ok();
        job
    };
    // A job that is not cancelled may stay blocked: no liveness round kills its step.
    start("read");
    container.until_liveness_rounds(2);
    assert_eq!(as_nobody(&container, "timeout 60 cat /tmp/read").ok(), "written\n", "{}", container.log());
    let job = start("unread");
    as_nobody(&container, &format!("scancel {job}")).ok();
    let next = container.exec(&["timeout", "120", "srun", "--exclusive", "echo", "next"]);
    assert_eq!(next.stdout, "next\n", "{next:?}\n{}", container.log());
    let killed = container.records("step-killed");
    assert!(killed.iter().any(|record| record["fields"]["job"] == job), "{killed:#?}");
    assert_eq!(container.sh("sinfo --noheader --format=%E"), "none", "{}", container.log());
}

/// A request with more than 262,144 ranges crashes slurmctld; any user can send it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn crashing_slurmctld_by_requests_does_not_end_container() {
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().serve();
    let attack = "{ printf '#!/bin/sh\\n#SBATCH --exclude=n['; yes 1, | head -n 270000 | tr -d '\\n'; printf '1]\\ntrue\\n'; } >/tmp/many; \
         n=0; while [ $n -lt 8 ]; do old=$(pidof slurmctld) && { timeout 10 sbatch /tmp/many >/tmp/out 2>&1; [ \"$(pidof slurmctld)\" = \"$old\" ] || n=$((n + 1)); }; \
         sleep 0.1; done; echo killed";
    let killed = as_nobody(&container, &format!("timeout 300 sh -c '{}'", attack.replace('\'', "'\\''")));
    let log = container.log();
    assert_eq!(killed.stdout, "killed\n", "{killed:?}\n{log}");
    let crash_loops = container.records("unit-crash-loop");
    assert!(crash_loops.iter().any(|record| record["unit"] == "slurmctld"), "{log}");
    container.until("scontrol ping | grep -q UP");
    assert_eq!(container.sh("timeout 60 srun echo works"), "works", "{}", container.log());
}

/// Earlier failed forks of a user do not hide the cause of a crash, and the request's text does not fill the log.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn crash_by_request_is_not_attributed_to_process_limit() {
    let container = Image::new(PLAIN).with(["--hostname", "node1", "--pids-limit", "300"]).json_log().serve();
    let bomb = "perl -e 'while (1) { my $child = fork; last unless defined $child; sleep 600 unless $child }'; \
                kill -KILL -1";
    as_nobody(&container, bomb);
    container
        .until("cat /sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events 2>/dev/null | grep -q \"max [1-9]\"");
    let attack = "{ printf '#!/bin/sh\\n#SBATCH --exclude=n['; yes 1, | head -n 270000 | tr -d '\\n'; printf '1]\\ntrue\\n'; } >/tmp/many; \
                  timeout 10 sbatch /tmp/many";
    let pid = container.sh("pidof slurmctld");
    as_nobody(&container, attack);
    container.until(&format!("pidof slurmctld && [ \"$(pidof slurmctld)\" != {pid} ]"));
    container.until("scontrol ping | grep -q UP");
    assert_eq!(container.records("external-failure"), [] as [Value; 0], "{}", container.log());
    let longest = container.log().lines().filter(|line| line.contains(r#""source":"slurmctld""#)).map(str::len).max();
    assert!(longest.is_some_and(|longest| longest < 1200), "{longest:?}");
}

/// Runs slurmd. If /tmp/limit exists, it removes that file and instead fails as slurmd does when it cannot create a thread.
const SLURMD_AT_LIMIT: &str = r#"
    exec "slurmd", "-D" unless unlink "/tmp/limit";
    my @children;
    while (defined(my $child = fork)) { $child or exec "sleep", "600"; push @children, $child }
    print STDERR "slurmd: fatal: slurm_thread_create: pthread_create error $!\n";
    kill "KILL", @children;
    exit 1;
"#;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn daemon_that_cannot_create_thread_is_not_at_fault() {
    let toml = "[daemon.slurmd]\ncommand = [\"perl\", \"/config/slurmd\"]\n";
    let config = directory(&[("slurminit.toml", toml), ("slurmd", SLURMD_AT_LIMIT)]);
    let image = Image::new(PLAIN).with(["--pids-limit", "300"]).json_log().mount(config.path(), "/config");
    let container = image.serve();
    container.sh("touch /tmp/limit; kill -KILL $(pidof slurmd)");
    container.until_logged("external-failure", Some("slurmd"));
    container.until("! [ -e /tmp/limit ] && timeout 60 srun true");
}

/// Four processes that bind the port whenever it is free. They can hide their descriptors.
const SQUATTERS: &str = r#"
    use Socket;
    my ($port, $hides) = @ARGV;
    fork, fork;
    syscall(157, 4, 0, 0, 0, 0) if $hides; # prctl(PR_SET_DUMPABLE, 0) of x86-64
    if (open my $ready, ">>", "/tmp/ready") { syswrite $ready, "ready\n" }
    while (1) {
        socket(my $s, PF_INET, SOCK_STREAM, 0);
        setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1);
        select(undef, undef, undef, 3600) if bind($s, sockaddr_in($port, INADDR_ANY)) && listen($s, 5);
        close($s);
        select(undef, undef, undef, 0.001);
    }
"#;

/// A container in which processes of user nobody occupy slurmctld's port, with other processes of nobody and of a second user.
fn with_squatters(hides: &str) -> Container {
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().serve();
    let spawn = |user: &str, command: &[&str]| {
        let options = ["exec", "--detach", "--user", user, &container.name];
        docker(options.into_iter().chain(command.iter().copied())).ok();
    };
    spawn("nobody", &["sleep", "7001"]);
    spawn("daemon", &["sleep", "7002"]);
    spawn("nobody", &["perl", "-e", SQUATTERS, "6817", hides]);
    container.until("[ \"$(wc -l </tmp/ready)\" -ge 4 ]");
    container
}

/// slurmctld may bind the port before the squatters do; then it is killed again.
const KILL_UNTIL_TAKEN: &str = "for n in 1 2 3 4 5; do kill -KILL $(pidof slurmctld); sleep 2; \
    pidof slurmctld && timeout 2 scontrol ping | grep -q UP || exit 0; done";

/// Only the owners of the port are killed, and no process that searches for them runs with their user ID.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reclaims_port_from_its_owners() {
    let container = with_squatters("");
    for _ in 0..3 {
        let begin = std::time::Instant::now();
        container.sh("kill -KILL $(pidof slurmctld)");
        container.until("scontrol ping | grep -q UP && timeout 5 srun true");
        assert!(begin.elapsed().as_secs() < 60, "{:?} until a job runs\n{}", begin.elapsed(), container.log());
        if !container.records("port-owner-killed").is_empty() {
            break;
        }
    }
    let killed = container.records("port-owner-killed");
    assert!(killed.iter().any(|record| record["fields"]["port"] == "6817"), "{}", container.log());
    let sleeps = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 700[12]' | sort -u | xargs";
    assert_eq!(container.sh(sleeps), "sleep 7001 sleep 7002", "{}", container.log());
}

/// It cannot be proven which process owns the port, so none is killed; the log names the user, and slurmctld waits.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_hidden_owner_of_port_and_waits_for_its_end() {
    let container = with_squatters("hides");
    container.exec(&["sh", "-c", KILL_UNTIL_TAKEN]);
    container.until_logged("port-taken", None);
    let taken = container.records("port-taken");
    let names_user = |record: &Value| record["fields"]["user"].as_str().is_some_and(|user| user.contains("uid 65534"));
    assert!(taken.iter().any(names_user), "{}", container.log());
    assert_eq!(container.sh("pgrep -c -f '^sleep 700[12]'; pgrep -c -U 65534 perl"), "2\n4", "{}", container.log());
    container.sh("pkill -KILL -U 65534");
    container.until("timeout 5 srun true");
}

/// To take back a GPU, the prolog stops processes. They are resumed even if the prolog is killed.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn resumes_stopped_process_when_prolog_is_killed() {
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).serve();
    docker(["exec", "--detach", "--user", "nobody", &container.name, "sleep", "7001"]).ok();
    container.until("pgrep -xf \"sleep 7001\"");
    let victim = container.sh("pgrep -xf 'sleep 7001'");
    let entry = container.sh(&format!("echo {victim}:$(cut -d ' ' -f 22 /proc/{victim}/stat)"));
    let state = |state: char| format!("grep -q ^State:.{state} /proc/{victim}/status");
    let prolog = format!("(echo {entry}; exec sleep 7002) | slurminit prolog --resume");
    docker(["exec", "--detach", &container.name, "sh", "-c", &prolog]).ok();
    container.until("pgrep -xf \"sleep 7002\"");
    container.sh(&format!("kill -STOP {victim}"));
    container.until(&state('T'));
    container.sh("pkill -KILL -xf 'sleep 7002'");
    container.until(&state('S'));
}

/// Keeps the given number of idle connections open and reopens closed ones.
const NEIGHBOUR: &str = r#"
    use IO::Socket::INET;
    my ($address, $port, $count) = @ARGV;
    my @held;
    while (1) {
        @held = grep { my $bits = ""; vec($bits, fileno $_, 1) = 1; !(select($bits, undef, undef, 0) && !sysread($_, my $byte, 1)) } @held;
        while (@held < $count) {
            my $new = IO::Socket::INET->new(PeerAddr => $address, PeerPort => $port, Timeout => 1) or last;
            push @held, $new;
        }
        select(undef, undef, undef, 0.1);
    }
"#;

/// A container on the same network without the cluster key cannot cause daemon restarts.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn idle_connections_from_other_container_restart_no_daemon() {
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().serve();
    let neighbour = Image::new(PLAIN).with(["--entrypoint", "sleep"]).command(["infinity"]).start();
    let own = docker(["inspect", "--format", "{{.NetworkSettings.IPAddress}}", &container.name]).ok().trim().to_owned();
    // 45 s: long enough for an unresponsive daemon to be restarted.
    for port in ["6817", "6818"] {
        let line = ["exec", &neighbour.name, "timeout", "45", "perl", "-e", NEIGHBOUR, &own, port, "3000"];
        assert_eq!(docker(line).code, 124);
        let begin = std::time::Instant::now();
        container.until("timeout 5 srun true");
        let took = begin.elapsed();
        assert!(took.as_secs() < 60, "{port}: {took:?} until a job runs\n{}", container.log());
    }
    for daemon in ["munged", "slurmctld", "slurmd"] {
        assert_eq!(container.unit(daemon)["starts"], 1, "{daemon}: {}", container.log());
    }
    assert!(!container.records("unit-slow").is_empty(), "{}", container.log());
}
