//! Isolation: the user of each process, its privileges, secrets, and access to GPU device files.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use crate::answer::Report;
use crate::docker::{Container, DEMO, Image, Outcome, PLAIN, directory, docker};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn every_daemon_runs_as_its_user() {
    let container = Image::new(PLAIN).serve();
    let line = "for p in /proc/[0-9]*; do echo $(cat $p/comm) $(stat -c %U $p) ${p#/proc/}; done 2>/dev/null";
    let processes = container.sh(line);
    let users = |name: &str| -> Vec<&str> {
        let of_name = processes.lines().filter(|line| line.split(' ').next() == Some(name));
        of_name.filter_map(|line| line.split(' ').nth(1)).collect()
    };
    assert_eq!(users("munged"), ["munge"], "{processes}");
    assert_eq!(users("slurmctld"), ["slurm"], "{processes}");
    assert_eq!(users("slurmd"), ["root"], "{processes}");
    assert!(processes.lines().any(|line| line == "slurminit-init root 1"), "{processes}");
}

/// PID 1 inherits the task and the lock from `slurminit run` as open file descriptors; no child may inherit them.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn passes_secrets_only_to_pid_1() {
    let container = Image::new(PLAIN).serve();
    let open = container.sh("for p in /proc/[0-9]*; do ls -l $p/fd | sed \"s|^|${p#/proc/} |\"; done 2>/dev/null");
    assert!(!open.contains("slurminit task"), "task descriptor still open: {open}");
    let locks: Vec<&str> = open.lines().filter(|line| line.ends_with("/slurminit/lock")).collect();
    assert!(matches!(locks[..], [lock] if lock.starts_with("1 ")), "{locks:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requires_no_special_docker_options() {
    let image = Image::new(PLAIN).with(["--hostname", "node1"]);
    for option in
        ["--security-opt=no-new-privileges", "--cap-drop=NET_RAW", "--cgroupns=private", "--memory=2g", "--cpus=1.5"]
    {
        let outcome = image.clone().with([option]).run(&["srun", "hostname"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{option}: {}", outcome.stderr);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn leaves_no_zombie() {
    let container = Image::new(PLAIN).serve();
    for _ in 0..5 {
        container.sh("srun sh -c 'sh -c \"(sleep 0.05 &)\" &'");
    }
    let zombies = "timeout 120 sh -c 'while grep -ls \"State:.Z\" /proc/[0-9]*/status; do sleep 0.1; done'";
    container.sh(zombies);
}

/// The metrics server and the GPU watcher parse untrusted input, so they drop root privileges.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn unprivileged_processes_have_no_secret_in_environment() {
    let config = directory(&[("slurminit.toml", "[metrics]\nlisten = '127.0.0.1:9835'\n")]);
    let image = Image::new(DEMO).with(["--env", "API_KEY=secret"]).mount(config.path(), "/config");
    let container = image.serve();
    for program in ["slurminit metrics ", "slurminit look "] {
        container.until(&format!("pgrep -f \"^[^ ]*{program}\""));
        let all = docker(["top", &container.name, "-eo", "pid,args"]).ok();
        let pid = all.lines().find(|line| line.contains(program)).and_then(|line| line.split_whitespace().next());
        let environment = std::fs::read(format!("/proc/{}/environ", pid.expect(&all))).expect("needs root");
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(environment.contains("PATH=") && !environment.contains("secret"), "{program}: {environment:?}");
    }
}

/// With `--pid=host` /proc has processes of the host. slurminit leaves them alone.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn processes_outside_of_container_are_left_alone() {
    let mut other = std::process::Command::new("sleep").arg("600").uid(1501).spawn().expect("these tests run as root");
    let container = Image::new(PLAIN).with(["--pid", "host"]).json_log().serve();
    let own = container.sh("setpriv --reuid=1501 --regid=1501 --clear-groups sleep 600 >/dev/null 2>&1 & echo $!");
    let score = |pid: &str| container.sh(&format!("cat /proc/{pid}/oom_score_adj"));
    container.until(&format!("grep -qx 500 /proc/{own}/oom_score_adj"));
    let (after, warnings) = (score(&other.id().to_string()), container.records("start-warning"));
    other.kill().expect("an own process");
    other.wait().expect("an own process");
    assert_eq!(after, "0");
    assert!(warnings.iter().any(|record| record["text"].to_string().contains("PID namespace")), "{}", container.log());
}

const USERS: &str = "[[user]]\nname = \"alice\"\nuid = 1234\n[[user]]\nname = \"bob\"\nuid = 1235\n";

/// A demo cluster with the users alice and bob.
struct Lab {
    container: Container,
    _config: tempfile::TempDir,
}

impl Lab {
    fn new(image: &Image, toml: &str) -> Self {
        let config = directory(&[("slurminit.toml", &format!("{toml}{USERS}"))]);
        Self { container: image.clone().json_log().mount(config.path(), "/config").serve(), _config: config }
    }

    fn demo(toml: &str) -> Self {
        Self::new(&Image::new(DEMO).with(["--hostname", "node1", "--env", "DEMO_GPUS=2"]), toml)
    }

    fn user(&self, user: &str, line: &str) -> Outcome {
        docker(["exec", "--user", user, &self.container.name, "timeout", "60", "sh", "-c", line])
    }

    fn files(&self) -> String {
        self.container.sh("stat -c '%n %U:%G %a' /dev/nvidia[0-9]")
    }
}

/// Prints the indexes of the GPUs that the shell can open.
const PRINT_OPENABLE: &str = "for gpu in 0 1; do (: <>/dev/nvidia$gpu) 2>/dev/null && printf $gpu; done; echo";
const CLOSED: &str = "/dev/nvidia0 root:slurminit 660\n/dev/nvidia1 root:slurminit 660";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn only_user_of_job_can_open_its_gpu() {
    let lab = Lab::demo("");
    assert_eq!(lab.files(), CLOSED);
    assert_eq!(lab.user("alice", PRINT_OPENABLE).ok(), "\n", "without a job");
    lab.user("alice", "cd /tmp; sbatch --gres=gpu:1 -o /tmp/alice --wrap 'echo $SLURM_JOB_GPUS; exec sleep 300'").ok();
    lab.container.until("[ -s /tmp/alice ]");
    let own = lab.container.sh("cat /tmp/alice");
    let other = if own == "0" { "1" } else { "0" };
    // In a job without GPUs, outside a job, and in a job with the other GPU.
    assert_eq!(lab.user("bob", &format!("srun sh -c '{PRINT_OPENABLE}'")).ok(), "\n");
    assert_eq!(lab.user("bob", PRINT_OPENABLE).ok(), "\n");
    assert_eq!(lab.user("bob", &format!("srun --gres=gpu:1 sh -c '{PRINT_OPENABLE}'")).ok(), format!("{other}\n"));
    let error = lab.user("bob", &format!(": <>/dev/nvidia{own}"));
    assert!(error.stderr.contains("Permission denied"), "{error:?}");
    lab.user("alice", "scancel --user alice").ok();
    lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
    assert_eq!(lab.files(), CLOSED);
}

/// NVIDIA's libraries set the mode of a device file to 0666 if the calling user owns it:
/// docs/decisions/give-a-gpus-device-file-to-the-jobs-user.md.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn driver_libraries_do_not_open_job_gpu_to_other_users() {
    let lab = Lab::demo("");
    let load_library = "slurminit detect >/dev/null";
    let job =
        format!("cd /tmp; sbatch --gres=gpu:2 -o /dev/null --wrap '{load_library}; echo >/tmp/up; exec sleep 300'");
    lab.user("alice", &job).ok();
    lab.container.until("[ -s /tmp/up ]");
    assert_eq!(lab.user("alice", PRINT_OPENABLE).ok(), "01\n");
    for line in [load_library, "slurminit doctor >/dev/null || true", "slurminit reload"] {
        lab.container.sh(line);
        assert_eq!((lab.files().as_str(), lab.user("bob", PRINT_OPENABLE).ok().as_str()), (CLOSED, "\n"), "{line}");
    }
    // The stand-in opens files owned by its user; root's nvidia-smi opens all. The job's end and the next job restore the mode.
    lab.container.sh("chown alice /dev/nvidia0");
    lab.user("alice", load_library).ok();
    assert_eq!(lab.user("bob", PRINT_OPENABLE).ok(), "0\n");
    lab.container.sh("chown root:root /dev/nvidia[01]; chmod 0666 /dev/nvidia[01]");
    lab.user("alice", "scancel --user alice").ok();
    lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
    assert_eq!(lab.files(), CLOSED);
    lab.container.sh("chown root:root /dev/nvidia[01]; chmod 0666 /dev/nvidia[01]");
    lab.container.sh("srun --gres=gpu:2 chmod 0666 /dev/nvidia0 /dev/nvidia1");
    lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
    assert_eq!(lab.files(), CLOSED, "after a job of root");
    lab.container.sh("chown root:root /dev/nvidia[01]; chmod 0666 /dev/nvidia[01]");
    let next = "srun --gres=gpu:2 sh -c 'stat -c \"%n %U:%G %a\" /dev/nvidia[0-9]'";
    assert_eq!(lab.user("bob", next).ok().trim(), CLOSED);
}

/// A user's changes to a device file are reverted after the job and after a daemon crash.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn revokes_gpu_access_despite_user_changes() {
    let lab = Lab::demo("");
    // A POSIX ACL: version 2, then entries of tag, permission and ID. It grants user 1234 read and write access.
    let acl = "$e = pack 'L', 2; $e .= pack 'SSL', @$_ for [1,6,~0], [2,6,1234], [4,6,~0], [16,6,~0], [32,6,~0];\n\
        $n = 'system.posix_acl_access'; \
        for (glob '/dev/nvidia[0-9]') { $f = $_; syscall(188, $f, $n, $e, length $e, 0) == 0 or die $! }\n";
    lab.container.sh(&format!("cat >/tmp/acl.pl <<'END'\n{acl}END"));
    for attack in ["chmod 0666 /dev/nvidia[01]", "chmod 0 /dev/nvidia[01]", "perl /tmp/acl.pl"] {
        assert_ne!(lab.user("alice", &format!("srun --gres=gpu:2 sh -c '{attack}'")).code, 0, "{attack}");
        lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
        assert_eq!(lab.files(), CLOSED, "{attack}");
        assert_eq!(lab.user("alice", PRINT_OPENABLE).ok(), "\n", "{attack}");
        assert_eq!(lab.user("bob", &format!("srun --gres=gpu:2 sh -c '{PRINT_OPENABLE}'")).ok(), "01\n", "{attack}");
    }
    // The next job removes an ACL that no Epilog has removed.
    lab.container.sh("perl /tmp/acl.pl && srun --gres=gpu:2 true");
    assert_eq!(lab.user("alice", PRINT_OPENABLE).ok(), "\n", "after a job of root");
    for victims in ["slurmd", "slurmstepd", "slurmd | slurmstepd"] {
        lab.user(
            "alice",
            "cd /tmp; sbatch --no-requeue --gres=gpu:2 -o /tmp/out --wrap 'echo up >/tmp/up; exec sleep 300'",
        )
        .ok();
        lab.container.sh("timeout 120 sh -c 'until [ -e /tmp/up ]; do sleep 0.1; done'; rm /tmp/up");
        assert_eq!(lab.user("alice", PRINT_OPENABLE).ok(), "01\n", "{victims}");
        let each = format!("case $(cat $p/comm) in {victims}) kill -KILL ${{p#/proc/}} ;; esac");
        lab.container.sh(&format!("for p in /proc/[0-9]*; do {each}; done 2>/dev/null; true"));
        lab.container.until("scontrol ping | grep -q UP && scancel --user alice");
        lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
        assert_eq!(lab.files(), CLOSED, "{victims}");
    }
}

/// That alice cannot open the GPUs is no evidence of their state or of the installed files.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn doctor_draws_no_conclusion_from_what_a_user_cannot_see() {
    let lab = Lab::demo("[gpu]\nisolate = true\n");
    let report: Report =
        serde_json::from_str(&lab.container.exec(&["slurminit", "doctor", "--json"]).stdout).expect("JSON");
    for entry in ["gpu-type", "device-rules", "stale-files"] {
        assert_eq!(report.of(entry).verdict, "ok", "{entry}");
    }
    let outcome = lab.user("alice", "slurminit doctor --json");
    let report: Report = serde_json::from_str(&outcome.stdout).expect("the report is JSON");
    for entry in ["gpu-type", "device-rules", "munge-key", "stale-files"] {
        assert_eq!(report.of(entry).seen, "not checked: needs root", "{entry}");
    }
    assert_eq!((report.of("controller").verdict, report.of("node").verdict), ("ok".to_owned(), "ok".to_owned()));
}

/// Device files of the host, and GPUs that are shared or not isolated, keep their mode.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn leaves_host_and_shared_device_files_unchanged() {
    let devices = tempfile::tempdir().unwrap();
    let file = devices.path().join("nvidia0");
    let status =
        std::process::Command::new("mknod").args(["-m", "0666"]).arg(&file).args(["c", "1", "3"]).status().unwrap();
    assert!(status.success());
    let image = Image::new(DEMO).with(["--hostname", "node1", "--env", "DEMO_GPUS=1"]).mount(&file, "/dev/nvidia0");
    let lab = Lab::new(&image, "");
    assert_eq!(lab.user("alice", "srun --gres=gpu:1 stat -c %a /dev/nvidia0").ok(), "666\n");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o666);
    for toml in ["[gpu]\nisolate = false\n", "[gpu]\nshards = 4\n", "[slurm.conf]\nProlog = \"/bin/true\"\n"] {
        let lab = Lab::demo(toml);
        assert_eq!(lab.user("alice", &format!("srun --gres=gpu:1 sh -c '{PRINT_OPENABLE}'")).ok(), "01\n", "{toml}");
        assert_eq!(lab.files(), CLOSED.replace("slurminit 660", "root 666"), "{toml}");
    }
}

/// The Epilog closes the device files before it runs the hook.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gpus_are_closed_although_a_hook_drains_the_node() {
    let lab = Lab::demo("[[hooks.post_job]]\ncommand = [\"false\"]\non_failure = \"drain\"\n");
    assert_eq!(lab.files(), CLOSED);
    let openable = lab.user("alice", &format!("srun --gres=gpu:1 sh -c '{PRINT_OPENABLE}'")).ok();
    assert!(["0\n", "1\n"].contains(&openable.as_str()), "{openable}");
    lab.container.until("sinfo --noheader --format=%T%E | grep -q 'drained.*pilog'");
    assert_eq!(lab.files(), CLOSED);
}

/// Keeps both GPUs open. If the first argument is `hides`, the process hides its descriptors; the second identifies it for pgrep.
const HOLD: &str = r#"exec perl -e 'syscall(157, 4, 0, 0, 0, 0) if $ARGV[0] eq "hides"; open $f{$_}, "+<", "/dev/nvidia$_" for 0, 1; sleep 600' "#;

/// A service of root that resembles sshd: alice has a session, and leaves an orphan behind. Both processes hide their descriptors.
const LOGIN_SERVICE: &str = r#"
[[service]]
name = "login"
command = ["sh", "-c", """
    until [ -e /tmp/open ]; do sleep 0.1; done
    setpriv --reuid=1234 --regid=1234 --clear-groups perl /tmp/hold session &
    setpriv --reuid=1234 --regid=1234 --clear-groups sh -c 'setsid perl /tmp/hold orphan &'
    wait"""]
"#;

/// If slurminit is not PID 1, it adopts the orphans of logins, which must not be mistaken for sessions.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hidden_orphan_of_login_loses_gpu_under_another_init() {
    let image = Image::new(DEMO).with(["--init", "--hostname", "node1", "--env", "DEMO_GPUS=2"]);
    let lab = Lab::new(&image, LOGIN_SERVICE);
    let hold = "syscall(157, 4, 0, 0, 0, 0); open $f{$_}, '+<', \"/dev/nvidia$_\" or die for 0, 1; \
                open $ready, '>', \"/tmp/$ARGV[0]\"; close $ready; sleep 600";
    lab.container.sh(&format!("cat >/tmp/hold <<'END'\n{hold}\nEND"));
    lab.user("alice", "cd /tmp; sbatch --gres=gpu:2 -o /dev/null --wrap 'touch open; exec sleep 600'").ok();
    lab.container.until("[ -e /tmp/session ] && [ -e /tmp/orphan ]");
    lab.container.sh("[ $(ps -o ppid= -p $(pgrep -f '^perl .* orphan$')) != 1 ]");
    lab.user("alice", "scancel --user alice").ok();
    lab.container.until("! squeue --noheader | grep -q .");
    lab.user("bob", "srun --gres=gpu:2 true").ok();
    let is_alive = |title: &str| lab.container.exec(&["pgrep", "-f", &format!("^perl .* {title}$")]).code == 0;
    assert_eq!(["session", "orphan"].map(is_alive), [true, false], "{}", lab.container.log());
}

/// Before a GPU is allocated to another user, exactly the processes that have it open are killed.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gpu_changes_user_only_after_processes_using_it_are_killed() {
    let lab = Lab::demo("");
    let spawn = |user: &str, line: &str| {
        docker(["exec", "--detach", "--user", user, &lab.container.name, "sh", "-c", line]).ok();
    };
    let is_alive = |title: &str| lab.container.exec(&["pgrep", "-f", &format!("^perl .* {title}$")]).code == 0;
    let until_alive = |title: &str| lab.container.until(&format!("pgrep -f \"^perl .* {title}$\""));
    let submit = |line: &str| {
        let line =
            format!("cd /tmp; sbatch --parsable --gres=gpu:1 -o /dev/null --wrap \"$(cat <<'END'\n{line}\nEND\n)\"");
        lab.user("alice", &line).ok().trim().to_owned()
    };
    let until_ended = |job: &str| {
        lab.container.until(&format!("! squeue --noheader --jobs={job} 2>/dev/null | grep -q ."));
    };
    // Runs during the whole test with the other GPU. Like NVIDIA's libraries, it opens every GPU that it can.
    let other = submit(&format!("until [ -e /tmp/open ]; do sleep 0.1; done; {HOLD} shows job"));
    lab.container.until(&format!("squeue --noheader --jobs={other} --format=%T | grep -q RUNNING"));
    let first = submit(&format!(
        "(export SLURM_JOB_ID={other}; setsid sh -c '{}' &); touch /tmp/open; exec sleep 600",
        format!("{HOLD} shows claims").replace('\'', "'\\''")
    ));
    lab.container.until("[ -e /tmp/open ]");
    // root's nvidia-smi sets this mode.
    lab.container.sh("chmod 0666 /dev/nvidia[01]");
    spawn("alice", &format!("{HOLD} shows shell"));
    spawn("alice", &format!("{} hides hidden", HOLD.replace("exec", "exec env -i")));
    spawn("daemon", &format!("{HOLD} shows foreign"));
    let gpu_users = ["claims", "shell", "hidden", "foreign"];
    gpu_users.iter().chain(&["job"]).for_each(|title| until_alive(title));
    lab.user("alice", &format!("scancel {first}")).ok();
    until_ended(&first);
    // These processes start after the job and cannot open its GPU.
    spawn("alice", &format!("{HOLD} shows innocent"));
    spawn("bob", &format!("{HOLD} hides innocent-of-bob"));
    spawn("daemon", &format!("{HOLD} hides innocent-of-daemon"));
    let innocent = ["innocent", "innocent-of-bob", "innocent-of-daemon"];
    innocent.iter().for_each(|title| until_alive(title));
    // A job of the same user kills only the process of another user.
    lab.user("alice", "srun --gres=gpu:1 true").ok();
    let log = lab.container.log();
    assert_eq!(gpu_users.map(is_alive), [true, true, true, false], "{log}");
    lab.user("bob", "srun --gres=gpu:1 true").ok();
    let log = lab.container.log();
    assert_eq!(gpu_users.map(is_alive), [false; 4], "{log}");
    assert_eq!(innocent.map(is_alive), [true; 3], "{log}");
    assert_eq!(lab.container.sh(&format!("squeue --noheader --jobs={other} --format=%T")), "RUNNING", "{log}");
    // Three had the GPU visibly open, one may have hidden it: two different messages.
    let mut killed: BTreeMap<String, u32> = BTreeMap::new();
    for record in lab.container.records("gpu-user-killed") {
        *killed.entry(record["message"].to_string()).or_default() += 1;
    }
    let mut counts: Vec<u32> = killed.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 3], "{log}");
    assert!(is_alive("job"), "{log}");
    let kept = lab.container.records("gpu-kept-open");
    assert!(kept.iter().any(|record| record["fields"]["holder"] == other), "{log}");
}
