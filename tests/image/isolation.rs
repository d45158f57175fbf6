//! Who runs what, and with how little it does.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

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

/// What `slurminit run` leaves open for PID 1, its task and the lock, is PID 1's alone.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn passes_secrets_only_to_pid_1() {
    let container = Image::new(PLAIN).serve();
    let open = container.sh("for p in /proc/[0-9]*; do ls -l $p/fd | sed \"s|^|${p#/proc/} |\"; done 2>/dev/null");
    assert!(!open.contains("slurminit task"), "it was read: {open}");
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

/// Metrics and the watcher of GPUs read what others send, and give up root's rights.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn processes_without_rights_have_no_secret_in_their_environment() {
    let config = directory(&[("slurminit.toml", "[metrics]\nlisten = '127.0.0.1:9835'\n")]);
    let image = Image::new(DEMO).with(["--env", "API_KEY=secret"]).mount(config.path(), "/config");
    let container = image.serve();
    for program in ["slurminit metrics ", "slurminit look "] {
        container.until(&format!("pgrep -f \"^[^ ]*{program}\""));
        let all = docker(["top", &container.name, "-eo", "pid,args"]).ok();
        let pid = all.lines().find(|line| line.contains(program)).and_then(|line| line.split_whitespace().next());
        let environment = std::fs::read(format!("/proc/{}/environ", pid.expect(&all))).expect("the test is root's");
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(environment.contains("PATH=") && !environment.contains("secret"), "{program}: {environment:?}");
    }
}

const PEOPLE: &str = "[[user]]\nname = \"alice\"\nuid = 1234\n[[user]]\nname = \"bob\"\nuid = 1235\n";

/// A demo cluster with alice and bob.
struct Lab {
    container: Container,
    _config: tempfile::TempDir,
}

impl Lab {
    fn new(image: &Image, toml: &str) -> Self {
        let config = directory(&[("slurminit.toml", &format!("{toml}{PEOPLE}"))]);
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

/// The GPUs that the shell can open.
const OPENED: &str = "for gpu in 0 1; do (: <>/dev/nvidia$gpu) 2>/dev/null && printf $gpu; done; echo";
const CLOSED: &str = "/dev/nvidia0 root:slurminit 660\n/dev/nvidia1 root:slurminit 660";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn jobs_gpu_can_be_opened_by_its_user_alone() {
    let lab = Lab::demo("");
    assert_eq!(lab.files(), CLOSED);
    assert_eq!(lab.user("alice", OPENED).ok(), "\n", "without a job");
    lab.user("alice", "cd /tmp; sbatch --gres=gpu:1 -o /tmp/alice --wrap 'echo $SLURM_JOB_GPUS; exec sleep 300'").ok();
    lab.container.until("[ -s /tmp/alice ]");
    let own = lab.container.sh("cat /tmp/alice");
    let other = if own == "0" { "1" } else { "0" };
    // In a job without GPUs, in none, and in one that has the other GPU.
    assert_eq!(lab.user("bob", &format!("srun sh -c '{OPENED}'")).ok(), "\n");
    assert_eq!(lab.user("bob", OPENED).ok(), "\n");
    assert_eq!(lab.user("bob", &format!("srun --gres=gpu:1 sh -c '{OPENED}'")).ok(), format!("{other}\n"));
    let error = lab.user("bob", &format!(": <>/dev/nvidia{own}"));
    assert!(error.stderr.contains("Permission denied"), "{error:?}");
    lab.user("alice", "scancel --user alice").ok();
    lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
    assert_eq!(lab.files(), CLOSED);
}

/// NVIDIA's libraries set the mode of a device file that belongs to their user to 0666:
/// docs/decisions/give-a-gpus-device-file-to-the-jobs-user.md.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn drivers_libraries_do_not_open_jobs_gpu_to_others() {
    let lab = Lab::demo("");
    let uses_library = "slurminit detect >/dev/null";
    let job =
        format!("cd /tmp; sbatch --gres=gpu:2 -o /dev/null --wrap '{uses_library}; echo >/tmp/up; exec sleep 300'");
    lab.user("alice", &job).ok();
    lab.container.until("[ -s /tmp/up ]");
    assert_eq!(lab.user("alice", OPENED).ok(), "01\n");
    for line in [uses_library, "slurminit doctor >/dev/null || true", "slurminit reload"] {
        lab.container.sh(line);
        assert_eq!((lab.files().as_str(), lab.user("bob", OPENED).ok().as_str()), (CLOSED, "\n"), "{line}");
    }
    // What the stand-in does to files of its user, and root's nvidia-smi to all. The job's end, and the next job, close them.
    lab.container.sh("chown alice /dev/nvidia0");
    lab.user("alice", uses_library).ok();
    assert_eq!(lab.user("bob", OPENED).ok(), "0\n");
    lab.container.sh("chown root:root /dev/nvidia[01]; chmod 0666 /dev/nvidia[01]");
    lab.user("alice", "scancel --user alice").ok();
    lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
    assert_eq!(lab.files(), CLOSED);
    lab.container.sh("chown root:root /dev/nvidia[01]; chmod 0666 /dev/nvidia[01]");
    lab.container.sh("srun --gres=gpu:2 chmod 0666 /dev/nvidia0 /dev/nvidia1");
    lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
    assert_eq!(lab.files(), CLOSED, "after a job of root's");
    lab.container.sh("chown root:root /dev/nvidia[01]; chmod 0666 /dev/nvidia[01]");
    let next = "srun --gres=gpu:2 sh -c 'stat -c \"%n %U:%G %a\" /dev/nvidia[0-9]'";
    assert_eq!(lab.user("bob", next).ok().trim(), CLOSED);
}

/// What a user tries to do to a file outlives neither the job nor the daemons' death.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn takes_gpu_back_despite_users_changes() {
    let lab = Lab::demo("");
    // An access control list: version 2, and entries of tag, permission and id. 1234 may read and write.
    let acl = "$e = pack 'L', 2; $e .= pack 'SSL', @$_ for [1,6,~0], [2,6,1234], [4,6,~0], [16,6,~0], [32,6,~0];\n\
        $n = 'system.posix_acl_access'; \
        for (glob '/dev/nvidia[0-9]') { $f = $_; syscall(188, $f, $n, $e, length $e, 0) == 0 or die $! }\n";
    lab.container.sh(&format!("cat >/tmp/acl.pl <<'END'\n{acl}END"));
    for attack in ["chmod 0666 /dev/nvidia[01]", "chmod 0 /dev/nvidia[01]", "perl /tmp/acl.pl"] {
        assert_ne!(lab.user("alice", &format!("srun --gres=gpu:2 sh -c '{attack}'")).code, 0, "{attack}");
        lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
        assert_eq!(lab.files(), CLOSED, "{attack}");
        assert_eq!(lab.user("alice", OPENED).ok(), "\n", "{attack}");
        assert_eq!(lab.user("bob", &format!("srun --gres=gpu:2 sh -c '{OPENED}'")).ok(), "01\n", "{attack}");
    }
    // A list that no Epilog has removed.
    lab.container.sh("perl /tmp/acl.pl && srun --gres=gpu:2 true");
    assert_eq!(lab.user("alice", OPENED).ok(), "\n", "after a job of root's");
    for victims in ["slurmd", "slurmstepd", "slurmd | slurmstepd"] {
        lab.user(
            "alice",
            "cd /tmp; sbatch --no-requeue --gres=gpu:2 -o /tmp/out --wrap 'echo up >/tmp/up; exec sleep 300'",
        )
        .ok();
        lab.container.sh("timeout 120 sh -c 'until [ -e /tmp/up ]; do sleep 0.1; done'; rm /tmp/up");
        assert_eq!(lab.user("alice", OPENED).ok(), "01\n", "{victims}");
        let each = format!("case $(cat $p/comm) in {victims}) kill -KILL ${{p#/proc/}} ;; esac");
        lab.container.sh(&format!("for p in /proc/[0-9]*; do {each}; done 2>/dev/null; true"));
        lab.container.until("scontrol ping | grep -q UP && scancel --user alice");
        lab.container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'");
        assert_eq!(lab.files(), CLOSED, "{victims}");
    }
}

/// What is not ours alone stays as it is.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn leaves_host_and_shared_device_files_unchanged() {
    let devices = tempfile::tempdir().unwrap();
    let file = devices.path().join("nvidia0");
    let made =
        std::process::Command::new("mknod").args(["-m", "0666"]).arg(&file).args(["c", "1", "3"]).status().unwrap();
    assert!(made.success());
    let image = Image::new(DEMO).with(["--hostname", "node1", "--env", "DEMO_GPUS=1"]).mount(&file, "/dev/nvidia0");
    let lab = Lab::new(&image, "");
    assert_eq!(lab.user("alice", "srun --gres=gpu:1 stat -c %a /dev/nvidia0").ok(), "666\n");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o666);
    for toml in ["[gpu]\nisolate = false\n", "[gpu]\nshards = 4\n", "[slurm.conf]\nProlog = \"/bin/true\"\n"] {
        let lab = Lab::demo(toml);
        assert_eq!(lab.user("alice", &format!("srun --gres=gpu:1 sh -c '{OPENED}'")).ok(), "01\n", "{toml}");
        assert_eq!(lab.files(), CLOSED.replace("slurminit 660", "root 666"), "{toml}");
    }
}

/// Opens both GPUs and keeps them. The title makes it findable; `hides` hides its descriptors.
const HOLD: &str = r#"exec perl -e 'syscall(157, 4, 0, 0, 0, 0) if $ARGV[0] eq "hides"; open $f{$_}, "+<", "/dev/nvidia$_" for 0, 1; sleep 600' "#;

/// At the hand-over of a GPU to another user, the processes that have it open are killed, and no others.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn a_gpu_is_given_to_another_user_only_when_no_other_process_has_it() {
    let lab = Lab::demo("");
    let meanwhile = |user: &str, line: &str| {
        docker(["exec", "--detach", "--user", user, &lab.container.name, "sh", "-c", line]).ok();
    };
    let lives = |title: &str| lab.container.exec(&["pgrep", "-f", &format!("^perl .* {title}$")]).code == 0;
    let until_alive = |title: &str| lab.container.until(&format!("pgrep -f \"^perl .* {title}$\""));
    let submit = |line: &str| {
        let line =
            format!("cd /tmp; sbatch --parsable --gres=gpu:1 -o /dev/null --wrap \"$(cat <<'END'\n{line}\nEND\n)\"");
        lab.user("alice", &line).ok().trim().to_owned()
    };
    let until_ended = |job: &str| {
        lab.container.until(&format!("! squeue --noheader --jobs={job} 2>/dev/null | grep -q ."));
    };
    // It runs all the time, and has the other GPU. Like NVIDIA's libraries, it opens all that it may.
    let other = submit(&format!("until [ -e /tmp/open ]; do sleep 0.1; done; {HOLD} shows job"));
    lab.container.until(&format!("squeue --noheader --jobs={other} --format=%T | grep -q RUNNING"));
    let first = submit(&format!(
        "(export SLURM_JOB_ID={other}; setsid sh -c '{}' &); touch /tmp/open; exec sleep 600",
        format!("{HOLD} shows claims").replace('\'', "'\\''")
    ));
    lab.container.until("[ -e /tmp/open ]");
    // As root's nvidia-smi does.
    lab.container.sh("chmod 0666 /dev/nvidia[01]");
    meanwhile("alice", &format!("{HOLD} shows shell"));
    meanwhile("alice", &format!("{} hides hidden", HOLD.replace("exec", "exec env -i")));
    meanwhile("daemon", &format!("{HOLD} shows foreign"));
    let holders = ["claims", "shell", "hidden", "foreign"];
    holders.iter().chain(&["job"]).for_each(|title| until_alive(title));
    lab.user("alice", &format!("scancel {first}")).ok();
    until_ended(&first);
    // They cannot open the GPU any more.
    meanwhile("alice", &format!("{HOLD} shows innocent"));
    meanwhile("bob", &format!("{HOLD} hides innocent-of-bob"));
    meanwhile("daemon", &format!("{HOLD} hides innocent-of-daemon"));
    let innocent = ["innocent", "innocent-of-bob", "innocent-of-daemon"];
    innocent.iter().for_each(|title| until_alive(title));
    // The same user keeps them.
    lab.user("alice", "srun --gres=gpu:1 true").ok();
    let log = lab.container.log();
    assert_eq!(holders.map(lives), [true, true, true, false], "{log}");
    lab.user("bob", "srun --gres=gpu:1 true").ok();
    let log = lab.container.log();
    assert_eq!(holders.map(lives), [false; 4], "{log}");
    assert_eq!(innocent.map(lives), [true; 3], "{log}");
    assert_eq!(lab.container.sh(&format!("squeue --noheader --jobs={other} --format=%T")), "RUNNING", "{log}");
    // Three that showed it, and one that may have hidden it: the constant messages differ.
    let mut killed: BTreeMap<String, u32> = BTreeMap::new();
    for record in lab.container.records("gpu-user-killed") {
        *killed.entry(record["message"].to_string()).or_default() += 1;
    }
    let mut counts: Vec<u32> = killed.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 3], "{log}");
    assert!(lives("job"), "{log}");
    let kept = lab.container.records("gpu-kept-open");
    assert!(kept.iter().any(|record| record["fields"]["holder"] == other), "{log}");
}
