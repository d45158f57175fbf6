//! Steps where namespaces are refused, with mounts and chroot(1) in place of PRoot.

use std::io::{BufRead as _, BufReader};

use super::*;

/// Runs a program with other paths, ends after all processes of the program, and kills them after SIGQUIT, as PRoot does.
const PROOT: &str = r#"#!/bin/bash
env >"DIRECTORY/variables"
cd /
set -m
while :; do
    case $1 in
        -v) shift 2 ;;
        -r) root=$2; shift 2 ;;
        -w) directory=$2; shift 2 ;;
        -b) mount --rbind "${2%%:*}" "$root${2#*:}" || exit; shift 2 ;;
        *) break ;;
    esac
done
chroot "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$directory" "$@" <&0 &
trap 'kill -KILL -- -$!; exit 130' QUIT
wait $!
status=$?
while kill -0 -- -$!; do sleep 0.01; done 2>/dev/null
exit $status
"#;

/// The kernel refuses user namespaces below chroot(2).
const START: &str = r#"
mkdir -p root && mount --rbind / root
proot() { exec chroot root bash -c 'cd "$1/work" && exec "$0" oci --environment /run/slurminit/oci/0/step/environment' "$0" "$PWD"; }
"#;

impl Container {
    fn with_proot() -> Self {
        let container = Self::new();
        container.stand_in("proot", PROOT.replace("DIRECTORY", container.directory.to_str().unwrap()));
        container
    }

    /// A step in the image of the bundle, after a part of a shell script.
    fn proot(&self, before: &str, arguments: &[&str]) -> Command {
        self.step(&format!("{START}{before}\nproot"), self.path("bundle").to_str().unwrap(), arguments)
    }

    fn proot_sh(&self, before: &str, line: &str) -> End {
        run(self.proot(before, &["sh", "-c", line]))
    }
}

#[test]
fn step_under_proot_gets_files_of_image_and_container() {
    let container = Container::with_proot();
    let mounts = [("/mnt/one/two", "reference"), ("/srv/file", "reference/file"), ("/tmp", "/tmp")];
    let mounts = mounts.map(|(to, from)| json!({ "destination": to, "source": from, "options": ["bind"] }));
    container.bundle(json!({ "process": { "env": ["A=image"] }, "mounts": mounts }));
    container.environment(&["A=job", "B=x y", "LD_BIND_NOW=1"]);
    let end = container.proot_sh("", "pwd; cat /etc/mark /mnt/one/two/file /srv/file; echo $A $B; exit 7");
    let work = container.path("work");
    assert_eq!(end.stdout, format!("{}\nof the image\ngenome\ngenome\nimage x y\n", work.display()), "{}", end.stderr);
    assert_eq!(end.code, 7);
    let variables = fs::read_to_string(container.path("variables")).unwrap();
    assert!(!["LD_BIND_NOW", "PROOT_LOADER", "A="].iter().any(|name| variables.contains(name)), "{variables}");
}

#[test]
fn step_under_proot_ends_like_its_program() {
    let container = Container::with_proot();
    for (line, code, signal) in [
        ("exit 5", Some(5), None),
        // PRoot would wait for this process.
        ("sleep 600 & exit 6", Some(6), None),
        ("kill -TERM $$", None, Some(15)),
        ("kill -KILL $$", None, Some(9)),
        ("kill -34 $$", None, Some(34)),
    ] {
        let mut step = container.proot("", &["sh", "-c", line]).spawn().unwrap();
        let status = exit(&mut step);
        assert_eq!((status.code(), status.signal()), (code, signal), "{line}");
    }
    // The program never started.
    container.stand_in("proot", "#!/bin/sh\nexit 9\n");
    let end = container.proot_sh("", "exit 5");
    assert_eq!(end.code, 9, "{}", end.stderr);
}

/// The kernel ignores a signal that PID 1 sends to itself.
#[test]
fn step_that_is_pid_1_returns_the_code_of_its_programs_signal() {
    let container = Container::with_proot();
    let mut command = Command::new("unshare");
    let step = container.proot("mount -t proc proc root/proc", &["sh", "-c", "kill -TERM $$"]);
    command.args(["--pid", "--fork", "--kill-child", "--"]).arg(step.get_program()).args(step.get_args());
    for (name, value) in step.get_envs() {
        value.map(|value| command.env(name, value));
    }
    let end = run(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert_eq!(end.code, 143, "{}", end.stderr);
}

/// Waits until the process sleeps.
fn until_asleep(pid: i32) {
    wait_for("sleep", || status_field(pid, "State").filter(|state| state.starts_with('S')));
}

#[test]
fn signal_to_all_processes_reaches_program_once_and_signal_to_task_is_forwarded() {
    let container = Container::with_proot();
    let line =
        "trap 'echo 10' USR1; trap 'echo 12' USR2; trap 'exit 3' TERM; echo $$; while :; do sleep 600 & wait $!; done";
    let mut child = container.proot("", &["sh", "-c", line]).spawn().unwrap();
    let mut lines =
        BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap().parse::<i32>().unwrap());
    let program = lines.next().unwrap();
    let task = i32::try_from(child.id()).unwrap();
    let [witness, _] = children(child.id()).try_into().unwrap();
    // The task knows its program once the program's parent, which reports it, waits for the program.
    let parent = status_field(program, "PPid").unwrap().parse().unwrap();
    until_asleep(parent);
    until_asleep(task);
    kill(witness, 10);
    until_asleep(witness);
    kill(parent, 10);
    kill(program, 10);
    assert_eq!(lines.next(), Some(10));
    kill(task, 10);
    let start = Instant::now();
    kill(task, 12);
    assert_eq!(lines.next(), Some(12));
    assert!(start.elapsed() >= Duration::from_millis(100), "the witness had no time to report the signal");
    kill(task, 15);
    assert_eq!(lines.next(), None);
    assert_eq!(exit(&mut child).code(), Some(3));
}

/// Gives the container another /tmp, in which the test's directory remains. The program may be in /tmp, too.
fn tmp(options: &str, then: &str) -> String {
    format!(
        "cp \"$0\" /run/program && BASH_ARGV0=/run/program\n\
         kept=$(mktemp -d -p /run) && mount --rbind . $kept && mount -t tmpfs -o {options} tmp root/tmp\n\
         mkdir -p \"root$PWD\" && mount --rbind $kept \"root$PWD\" && {then}"
    )
}

#[test]
fn step_without_namespaces_and_proot_names_both_reasons() {
    let container = Container::new();
    let end = container.proot_sh("", "true");
    let why = "slurminit: this container can neither create user namespaces (unshare: EPERM: Operation not permitted) nor run PRoot (/usr/bin/proot is missing)";
    assert!(end.stderr.contains(why) && end.code == 126, "{}", end.stderr);

    let container = Container::with_proot();
    let end = container.proot_sh(&tmp("size=16m", "mount -o remount,bind,ro root/tmp"), "true");
    assert!(end.stderr.contains("a job's user cannot create a directory in /tmp: "), "{}", end.stderr);
}

#[test]
fn read_only_mount_needs_namespaces_unless_its_files_are_there_anyway() {
    let container = Container::with_proot();
    for (to, options, is_refused) in
        [("/mnt", &["bind", "ro"][..], true), ("/mnt", &["bind"], false), ("/tmp", &["bind", "ro"], false)]
    {
        let source = if to == "/tmp" { "/tmp" } else { "reference" };
        container.bundle(json!({ "mounts": [{ "destination": to, "source": source, "options": options }] }));
        let end = container.proot_sh("", "exit 5");
        assert_eq!(end.code, if is_refused { 126 } else { 5 }, "{to} {options:?}: {}", end.stderr);
        assert_eq!(end.stderr.contains("mounts /mnt read-only, which PRoot cannot do"), is_refused, "{}", end.stderr);
    }
}

#[test]
fn first_task_warns_that_proot_leaves_image_writable() {
    let container = Container::with_proot();
    for (is_read_only, task, warns) in [(true, "0", true), (true, "1", false), (false, "0", false)] {
        container.bundle(json!({ "root": { "path": "image", "readonly": is_read_only } }));
        container.environment(&[&format!("SLURM_PROCID={task}")]);
        let end = container.proot_sh("", "exit 5");
        assert_eq!(end.code, 5, "{}", end.stderr);
        assert_eq!(end.stderr.contains("warning: PRoot leaves the image writable"), warns, "{task}: {}", end.stderr);
    }
}

#[test]
fn proot_gets_loader_in_memory_where_tmp_cannot_hold_one() {
    let container = Container::with_proot();
    // The loader is a program inside PRoot.
    let program = fs::read("/bin/true").unwrap();
    let proot = "#!/bin/bash\n[ -n \"$PROOT_LOADER\" ] && $PROOT_LOADER && exit 3\nexit 4\n";
    container.stand_in("proot", [proot.as_bytes(), &program].concat());
    for (options, code) in [("size=16m", 4), ("size=512k", 3), ("size=16m,noexec", 3)] {
        let end = container.proot_sh(&tmp(options, ":"), "true");
        assert_eq!(end.code, code, "{options}: {}", end.stderr);
    }
}
