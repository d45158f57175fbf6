//! PID 1 reaps any number of orphans.

use super::*;

/// The number of zombies among PID 1's children.
fn zombies(init: &Init) -> usize {
    let is_zombie = |pid: &i32| status_field(*pid, "State").is_some_and(|state| state.starts_with('Z'));
    init.children().iter().filter(|pid| is_zombie(pid)).count()
}

#[test]
fn reaps_orphans_of_any_depth() {
    let (_keep, directory) = scratch();
    let flag = directory.join("flag");
    let script = format!(
        "for i in 1 2 3 4 5; do ( ( ( ( exit 0 ) & ) & ) & ) ; done; echo > {}; exec sleep 1000",
        flag.display()
    );
    let init = Init::start(sh(&script));
    wait_for_file(&flag);
    wait_for("the orphans to be reaped", || (init.children().len() == 1).then_some(()));
    init.signal(15);
    assert_eq!(init.end().code, 143);
}

#[test]
fn reaps_three_hundred_zombies_without_sleeping_in_between() {
    let (_keep, directory) = scratch();
    let gate = directory.join("gate");
    Command::new("mkfifo").arg(&gate).status().unwrap();
    // Each orphan reads the pipe until its end, which reaches all of them at once.
    let script = format!(
        "exec 3< {}; i=0; while [ $i -lt 300 ]; do ( cat <&3 & ); i=$((i+1)); done; exec sleep 1000",
        gate.display()
    );
    let init = Init::start(sh(&script));
    let writer = fs::OpenOptions::new().write(true).open(&gate).unwrap();
    wait_for("300 orphans", || (init.children().len() == 301).then_some(()));
    // Stop PID 1, so that all orphans die before it reaps one.
    init.signal(19);
    drop(writer);
    wait_for("300 zombies", || (zombies(&init) == 300).then_some(()));
    let sleeps = || status_field(init.pid, "voluntary_ctxt_switches").unwrap().parse::<u64>().unwrap();
    let before = sleeps();
    init.signal(18);
    wait_for("the zombies to be reaped", || (init.children().len() == 1).then_some(()));
    let slept = sleeps() - before;
    assert!(slept < 30, "PID 1 slept {slept} times while reaping 300 zombies");
    init.signal(15);
    init.end();
}

#[test]
fn thousand_orphans_leave_no_zombie_and_grow_no_memory() {
    let (_keep, directory) = scratch();
    let half = directory.join("half");
    let done = directory.join("done");
    let batch = "i=0; while [ $i -lt 500 ]; do ( : & ); i=$((i+1)); done";
    let script = format!("{batch}; echo > {}; {batch}; echo > {}; exec sleep 1000", half.display(), done.display());
    let init = Init::start(sh(&script));
    wait_for_file(&half);
    // The counters of /proc/PID/status are inexact on machines with many CPUs.
    let memory = || {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", init.pid)).unwrap();
        let anonymous = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        anonymous.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = memory();
    wait_for_file(&done);
    wait_for("the orphans to be reaped", || (init.children().len() == 1).then_some(()));
    let growth = memory().saturating_sub(before);
    assert!(growth <= 16, "{growth} KiB for 500 orphans");
    init.signal(15);
    init.end();
}
