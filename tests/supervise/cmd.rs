//! CMD: exit code, signals, file descriptors, environment.

use super::*;

#[test]
fn returns_every_exit_code_of_command() {
    for code in 0..=255 {
        assert_eq!(run(sh(&format!("exit {code}"))).code, code);
    }
}

#[test]
fn returns_128_plus_signal_of_killed_command() {
    for signal in [1, 2, 3, 6, 9, 11, 13, 15, 31, 34, 64] {
        assert_eq!(run(sh(&format!("kill -{signal} $$"))).code, 128 + signal, "signal {signal}");
    }
}

#[test]
fn names_unexecutable_command_and_returns_126_or_127() {
    let (_keep, directory) = scratch();
    let no_format = directory.join("no-format");
    fs::write(&no_format, "no program\n").unwrap();
    let no_x = directory.join("no-x");
    fs::write(&no_x, "#!/bin/sh\n").unwrap();
    Command::new("chmod").arg("+x").arg(&no_format).status().unwrap();
    let cases = [
        ("/nonexistent/program", 127),
        ("no-such-program-in-path", 127),
        (directory.to_str().unwrap(), 126),
        (no_x.to_str().unwrap(), 126),
        (no_format.to_str().unwrap(), 126),
    ];
    for (file, code) in cases {
        let end = run(plain(&[file]));
        assert_eq!(end.code, code, "{file}: {}", end.stderr);
        assert_eq!(end.stderr.lines().filter(|line| line.contains(file)).count(), 1, "{}", end.stderr);
    }
}

#[test]
fn forwards_signals_to_command() {
    let caught = (1..=64).filter(|s| ![9, 17, 19, 20, 21, 22, 32, 33].contains(s)).collect::<Vec<i32>>();
    // Python, because a shell cannot trap SIGSEGV or real-time signals. It polls, because Python runs handlers between
    // calls: a signal just before signal.pause() would stay unhandled until the next one.
    let script = "import os, signal, sys, time\n\
        def say(number, frame):\n    os.write(1, b'%d\\n' % number)\n\
        for s in map(int, sys.argv[1].split(',')): signal.signal(s, say)\n\
        print('set', flush=True)\n\
        while True: time.sleep(0.01)";
    let list = caught.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let (_keep, directory) = scratch();
    let log = directory.join("log");
    let mut command = plain(&["python3", "-c", script, &list]);
    command.stdout(fs::File::create(&log).unwrap());
    let mut init = Init::start(command);
    wait_for("the handlers", || fs::read_to_string(&log).ok().filter(|text| text.contains("set")));
    for signal in &caught {
        init.signal(*signal);
        wait_for(&format!("signal {signal}"), || {
            fs::read_to_string(&log).unwrap().lines().any(|line| *line == signal.to_string()).then_some(())
        });
    }
    kill(init.children()[0], 9);
    assert_eq!(exit(&mut init.unshare).code(), Some(137));
}

#[test]
fn command_inherits_signal_mask_and_ignored_signals() {
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned()).unwrap()
    };
    let end = run(plain(&["cat", "/proc/self/status"]));
    for name in ["SigBlk:", "SigIgn:"] {
        // glibc reserves 32 and 33; programs cannot change their state.
        let set = u64::from_str_radix(&field(&end.stdout, name), 16).unwrap() & !(0b11 << 31);
        assert_eq!(set, 0, "{name}");
    }

    // Ignored signals stay ignored: HUP (1) and PIPE (13).
    let script = format!("trap '' HUP PIPE; exec {} run --role none -- cat /proc/self/status", slurminit());
    let mut command = Command::new("env");
    command.args(["--default-signal", "unshare", "--pid", "--fork", "--mount-proc", "--", "sh", "-c", &script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let end = run(command);
    let ignored = u64::from_str_radix(&field(&end.stdout, "SigIgn:"), 16).unwrap();
    assert_eq!(ignored & 0x7fff_ffff, 0x1001, "{}", end.stderr);
}

#[test]
fn keeps_sigterm_sent_before_handlers_are_installed() {
    let mut early = 0;
    for _ in 0..20 {
        let init = Init::start(plain(&["sleep", &NEVER.to_string()]));
        // slurminit blocks SIGTERM while it reads its configuration and executes its second program. Under load, the
        // poll may miss this and find only the handlers.
        let is_early = wait_for("SIGTERM to be blocked or caught", || {
            // unshare(1) also blocks SIGTERM briefly.
            let program = fs::read_link(format!("/proc/{}/exe", init.pid)).ok()?;
            program.file_name()?.to_str()?.starts_with("slurminit").then_some(())?;
            let has = |field| Some(u64::from_str_radix(&status_field(init.pid, field)?, 16).ok()? >> 14 & 1 == 1);
            let is_blocked = has("SigBlk")?;
            (is_blocked || has("SigCgt")?).then_some(is_blocked)
        });
        init.signal(15);
        let end = init.end();
        assert_eq!(end.code, 128 + 15, "{}", end.stderr);
        early += u32::from(is_early);
        if early == 5 {
            return;
        }
    }
    assert!(early > 0, "SIGTERM was blocked in none of 20 starts");
}

#[test]
fn command_inherits_only_stdio_and_passed_descriptors() {
    // The test runner may leak descriptors; slurminit passes those as well, so compare with a plain shell.
    let list = "exec ls /proc/self/fd";
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        run(command).stdout
    };
    assert_eq!(run(sh(list)).stdout, shell(list));
    let passed = format!("exec 7</dev/null; exec {} run --role none -- ls /proc/self/fd", slurminit());
    assert_eq!(shell(&passed), shell(&format!("exec 7</dev/null; {list}")));
}

#[test]
fn command_inherits_directory_stdin_and_environment() {
    let mut command = sh("pwd; echo $GREETING; cat");
    command.current_dir("/usr").env("GREETING", "hello").stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"from outside\n").unwrap();
    assert_eq!(end(child).stdout, "/usr\nhello\nfrom outside\n");
}

#[test]
fn stops_processes_left_by_command() {
    let (_keep, directory) = scratch();
    let output = directory.join("said");
    // One process writes a file on TERM, the other ignores TERM.
    let script = format!(
        "sh -c 'trap \"echo term > {output}; exit 0\" TERM; echo up > {output}.up; while :; do sleep 0.01; done' & \
         sh -c 'trap \"\" TERM; while :; do sleep 0.01; done' & \
         until [ -e {output}.up ]; do sleep 0.01; done; exit 5",
        output = output.display()
    );
    let end = run(sh(&script));
    assert_eq!(end.code, 5, "{}", end.stderr);
    assert_eq!(fs::read_to_string(&output).unwrap(), "term\n", "the TERM handler did not finish");
}

#[test]
fn is_subreaper_of_command_when_not_pid_1() {
    let (_keep, directory) = scratch();
    let file = directory.join("orphan");
    let script = format!("(sleep 1000 & echo $! > {}) ; exit 3", file.display());
    let mut command = Command::new(slurminit());
    command.args(["run", "--role", "none", "--", "sh", "-c", &script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let end = run(command);
    assert_eq!(end.code, 3, "{}", end.stderr);
    let orphan = fs::read_to_string(&file).unwrap();
    assert!(!Path::new("/proc").join(orphan.trim()).exists(), "the orphan {orphan} survived");
}

/// A script that writes `up` and then sleeps, with `trap` as its TERM handler.
fn sleeping_script(trap: &str, file: &Path) -> String {
    format!("trap '{trap}' TERM; echo up > {}; while :; do sleep 0.05; done", file.display())
}

fn stop(pid: i32) {
    kill(pid, 19);
    wait_for("the stop", || status_field(pid, "State").filter(|state| state.starts_with('T')));
}

#[test]
fn stopped_command_is_continued_to_handle_sigterm() {
    let (_keep, directory) = scratch();
    let up = directory.join("up");
    let init = Init::start(sh(&sleeping_script("exit 9", &up)));
    wait_for_file(&up);
    stop(init.children()[0]);
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 9, "{}", end.stderr);
}

#[test]
fn running_command_receives_no_sigcont() {
    let (_keep, directory) = scratch();
    let up = directory.join("up");
    let script = "trap 'echo cont' CONT; ".to_owned() + &sleeping_script("echo term; exit 9", &up);
    let init = Init::start(sh(&script));
    wait_for_file(&up);
    init.signal(15);
    assert_eq!(init.end().stdout, "term\n");
}

#[test]
fn stop_timeout_kills_command_that_ignores_sigterm() {
    let (_keep, directory) = scratch();
    let up = directory.join("up");
    let mut command = sh(&sleeping_script("", &up));
    command.env("SLURMINIT_STOP_TIMEOUT", "0.3").env(JSON_LOG.0, JSON_LOG.1);
    let init = Init::start(command);
    wait_for_file(&up);
    let start = Instant::now();
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 137, "{}", end.stderr);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    assert_eq!(end.logged("unit-killed", "the command"), 1, "{}", end.stderr);

    // A command that exits within the timeout keeps its exit code.
    let init = {
        let mut command = sh(&sleeping_script("sleep 0.1; exit 6", &directory.join("up2")));
        command.env("SLURMINIT_STOP_TIMEOUT", "15");
        Init::start(command)
    };
    wait_for_file(&directory.join("up2"));
    init.signal(15);
    assert_eq!(init.end().code, 6);
}

#[test]
fn command_without_stop_timeout_may_ignore_sigterm() {
    let (_keep, directory) = scratch();
    let up = directory.join("up");
    // The stop timeout of a cluster (8 s) does not apply.
    let script = "n=0; trap 'n=$((n+1))' TERM; echo up > FILE; until [ $n = 2 ]; do sleep 0.05; done; exit 4";
    let init = Init::start(sh(&script.replace("FILE", &up.display().to_string())));
    wait_for_file(&up);
    init.signal(15);
    std::thread::sleep(Duration::from_millis(8500)); // longer than the stop timeout of a cluster
    init.signal(15);
    assert_eq!(init.end().code, 4);
}

#[test]
fn program_of_pid_1_starts_only_through_run() {
    let init = Path::new(slurminit()).with_file_name("slurminit-init");
    let output = Command::new(init).arg("--help").output().unwrap();
    let why = "slurminit: slurminit-init cannot read its task: expected --task DESCRIPTOR -- CMD...; start it with `slurminit run`\n";
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(1), why));
}
