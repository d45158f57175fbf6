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
    crate::docker::share::hold(2);
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

/// Forks of a user that failed before do not hide the cause of a crash, and the request's text does not fill the log.
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

/// slurmd, or once a program that ends as slurmd does when it cannot create a thread.
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

/// Maintains four child processes that bind the port whenever it is free. Kills every process of its user whose name contains slurminit.
/// The children can hide the socket: with PR_SET_DUMPABLE, by exhausting the descriptor limit, or in flight in an unread Unix socket.
const SQUATTER: &str = r#"
    use POSIX ();
    use Socket;
    my ($port, $hides) = @ARGV;
    my $family = $$;
    sub send_to_self { # sendmsg(2) of x86-64, with the file as SCM_RIGHTS
        my $file = fileno shift;
        socketpair(my $one, my $other, AF_UNIX, SOCK_STREAM, 0);
        my ($byte, $control) = ("x", pack("Qiiix4", 20, SOL_SOCKET, 1, $file));
        my $text = pack("PQ", $byte, 1);
        my $message = pack("QIx4PQPQix4", 0, 0, $text, 1, $control, 24, 0);
        syscall(46, fileno $one, $message, 0) == 1 or die "sendmsg: $!";
        return ($one, $other);
    }
    sub take {
        syscall(157, 4, 0, 0, 0, 0) if $hides eq "dumpable"; # prctl(PR_SET_DUMPABLE, 0) of x86-64
        if ($hides eq "many") {
            my @last;
            while (defined(my $copy = POSIX::dup(0))) { push @last, $copy; shift @last if @last > 9 }
            POSIX::close($_) for @last;
        }
        if (open my $ready, ">>", "/tmp/ready") { syswrite $ready, "ready\n" }
        while (kill 0, $family) {
            socket(my $s, PF_INET, SOCK_STREAM, 0);
            setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1);
            if (bind($s, sockaddr_in($port, INADDR_ANY)) && listen($s, 5)) {
                my @pair = send_to_self($s) if $hides eq "flight";
                close($s) if $hides eq "flight";
                select(undef, undef, undef, 3600);
            }
            close($s);
            select(undef, undef, undef, 0.001);
        }
        exit;
    }
    $SIG{CHLD} = "IGNORE";
    my @children;
    while (1) {
        @children = grep { kill 0, $_ } @children;
        while (@children < 4) { my $child = fork // last; take() unless $child; push @children, $child }
        for my $name (glob "/proc/[0-9]*/comm") {
            open(my $file, "<", $name) or next;
            kill 9, $name =~ /(\d+)/ if (<$file> // "") =~ /slurminit/;
        }
        select(undef, undef, undef, 0.002);
    }
"#;

/// No process that inspects the squatter runs with its user ID. Only the port owner is killed.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reclaims_port_from_persistent_squatter() {
    for hides in ["", "dumpable", "many", "flight"] {
        let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().serve();
        let spawn = |user: &str, command: &[&str]| {
            let options = ["exec", "--detach", "--user", user, &container.name];
            docker(options.into_iter().chain(command.iter().copied())).ok();
        };
        spawn("nobody", &["sleep", "7001"]);
        spawn("daemon", &["sleep", "7002"]);
        spawn("nobody", &["perl", "-e", SQUATTER, "6817", hides]);
        container.until("[ \"$(wc -l </tmp/ready)\" -ge 4 ]");
        // Retry: slurmctld may bind the port before the squatters do.
        let has_killed_owner =
            || container.records("port-owner-killed").iter().any(|record| record["fields"]["port"] == "6817");
        for _ in 0..3 {
            let begin = std::time::Instant::now();
            container.sh("kill -KILL $(pidof slurmctld)");
            let outcome = container.exec(&[
                "timeout",
                "60",
                "sh",
                "-c",
                "until scontrol ping | grep -q UP && timeout 5 srun true; do sleep 0.1; done",
            ]);
            let took = begin.elapsed();
            let log = container.log();
            assert_eq!(outcome.code, 0, "{hides}: {log}");
            assert!(took.as_secs() < 10, "{hides}: {took:?} until a job runs\n{log}");
            if has_killed_owner() {
                break;
            }
        }
        let log = container.log();
        assert!(has_killed_owner(), "{log}");
        // Processes without the port are resumed and alive.
        container.until("for process in /proc/[0-9]*; do [ \"$(stat -c %U $process)\" != nobody ] || ! grep -q ^State:.T $process/status || exit 1; done 2>/dev/null");
        let sleeps = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 700[12]' | sort -u | xargs";
        assert_eq!(container.sh(sleeps), "sleep 7001 sleep 7002", "{log}");
    }
}

/// Kills `slurminit free-port` as soon as it has stopped the port owner's processes.
const KILLER: &str = r#"
    use POSIX ":sys_wait_h";
    my $victim = shift;
    sub state { open(my $f, "<", "/proc/$victim/stat") or return ""; (<$f> =~ /\) (\S)/)[0] }
    for (1 .. 50) {
        my $child = fork // die;
        exec qw(slurminit free-port --port 7777 --unit test --again) unless $child;
        while (!waitpid($child, WNOHANG)) { if (state() eq "T") { kill 9, $child; waitpid($child, 0); last } }
        if (($? & 127) == 9) { print "killed\n"; exit }
        # Until the port is taken again.
        select(undef, undef, undef, 0.1);
    }
"#;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn resumes_stopped_processes_when_free_port_is_killed() {
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).serve();
    let spawn = |command: &[&str]| {
        let options = ["exec", "--detach", "--user", "nobody", &container.name];
        docker(options.into_iter().chain(command.iter().copied())).ok();
    };
    spawn(&["sleep", "7001"]);
    for _ in 0..30 {
        spawn(&["sleep", "7002"]);
    }
    spawn(&["perl", "-e", SQUATTER, "7777", ""]);
    container.until("pgrep --uid nobody --count perl | grep -q 5 && [ \"$(pgrep -c -f \"^sleep 700[12]\")\" = 31 ]");
    let victim = container.sh("pgrep -f '^sleep 7001'");
    let killed = container.exec(&["timeout", "60", "perl", "-e", KILLER, &victim]);
    assert_eq!(killed.stdout, "killed\n", "{killed:?}\n{}", container.log());
    container.until("! ps -o stat= -u nobody | grep -q T");
    assert_eq!(container.sh("pgrep -c -f \"^sleep 700[12]\""), "31");
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
    crate::docker::share::hold(2);
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().serve();
    let neighbour = Image::new(PLAIN).with(["--entrypoint", "sleep"]).command(["infinity"]).start();
    let address = |container: &Container| {
        docker(["inspect", "--format", "{{.NetworkSettings.IPAddress}}", &container.name]).ok().trim().to_owned()
    };
    let (own, other) = (address(&container), address(&neighbour));
    // 45 s: long enough for an unresponsive daemon to be restarted.
    for port in ["6817", "6818"] {
        let line = ["exec", &neighbour.name, "timeout", "45", "perl", "-e", NEIGHBOUR, &own, port, "3000"];
        assert_eq!(docker(line).code, 124);
        let begin = std::time::Instant::now();
        container.until("timeout 5 srun true");
        let took = begin.elapsed();
        assert!(took.as_secs() < 10, "{port}: {took:?} until a job runs\n{}", container.log());
    }
    for daemon in ["munged", "slurmctld", "slurmd"] {
        assert_eq!(container.unit(daemon)["starts"], 1, "{daemon}: {}", container.log());
    }
    let overloaded = container.records("unit-overloaded");
    let names_client = |record: &Value| record["fields"]["why"].as_str().is_some_and(|why| why.contains(&other));
    assert!(overloaded.iter().any(names_client), "{}", container.log());
}
