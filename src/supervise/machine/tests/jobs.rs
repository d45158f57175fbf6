//! What becomes of jobs when the child that speaks for them cannot.

use super::*;

fn no_process() -> Exit {
    let message = "cannot start `/usr/bin/slurminit`: Try again".to_owned();
    Exit::NotStarted(SpawnFailure { code: exit_code::FAILURE, message, fault: None })
}

#[test]
fn jobs_that_get_no_notice_of_the_stop_are_told_of_and_the_stop_goes_on() {
    for exit in [no_process(), Exit::Code(exit_code::FAILURE), Exit::Signal(libc::SIGKILL)] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.give(Event::Signal(libc::SIGTERM));
        sim.exits(Child::JobsQuiesce, exit.clone());
        let notice = Notice::JobsNotTold { exit: exit.clone() };
        assert_eq!(sim.said.iter().filter(|said| **said == notice).count(), 1, "{exit:?}: {:?}", sim.said);
        assert_eq!(sim.stopped, [Child::Unit(3)], "nobody waits for what cannot be");
        sim.let_end();
        assert_eq!(sim.exit, Some(0));
    }
}

#[test]
fn jobs_that_had_their_notice_need_no_word_and_those_that_were_not_asked_in_time_one() {
    for code in [0, exit_code::JOBS_LEFT] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.give(Event::Signal(libc::SIGTERM));
        sim.exits(Child::JobsQuiesce, Exit::Code(code));
        assert!(!sim.said.iter().any(|said| said.level() == crate::config::Level::Warn), "{:?}", sim.said);
    }
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.give(Event::Signal(libc::SIGTERM));
    sim.wait(Duration::from_secs(6));
    let about_jobs = |said: &&Notice| matches!(said, Notice::JobsNotAsked { .. } | Notice::JobsNotTold { .. });
    assert_eq!(sim.said.iter().filter(about_jobs).count(), 1, "one word for one fault: {:?}", sim.said);
}

/// As far as slurmctld's readiness.
fn until_slurmctld(saved_jobs: bool) -> Sim {
    let mut setup = cluster(false);
    setup.units[2].gate = Gate::Jobs;
    let mut sim = Sim::new(setup);
    sim.give(Event::Prepare(PrepareEvent::MungeKeyReady));
    sim.give(Event::Prepare(PrepareEvent::Done(Prepared { saved_jobs, ..Prepared::default() })));
    sim.exits(Child::Prepare, Exit::Code(0));
    sim.give(Event::Looked(0, true));
    sim.give(Event::Looked(1, true));
    sim
}

#[test]
fn jobs_of_a_former_start_that_nobody_could_account_for_are_told_of_and_slurmd_starts() {
    let mut sim = until_slurmctld(true);
    assert!(!sim.living.contains(&Child::Unit(2)), "slurmd waits");
    sim.exits(Child::JobsRecover, no_process());
    assert_eq!(sim.said.last(), Some(&Notice::JobsNotRecovered { exit: no_process() }));
    assert!(sim.living.contains(&Child::Unit(2)));

    let mut sim = until_slurmctld(true);
    sim.wait(Duration::from_secs(15));
    assert!(!sim.living.contains(&Child::JobsRecover), "one that hangs has its time");
    assert!(matches!(sim.said.last(), Some(Notice::JobsNotRecovered { .. })), "{:?}", sim.said);
    assert!(sim.living.contains(&Child::Unit(2)));
}

#[test]
fn each_slurmctld_after_the_first_is_asked_for_allocations_that_nobody_holds() {
    let mut sim = until_slurmctld(false);
    let asked = |sim: &Sim| sim.spawned.iter().filter(|child| **child == Child::JobsReclaim).count();
    sim.give(Event::Looked(2, true));
    sim.node("idle|none");
    sim.give(Event::Looked(3, true));
    assert_eq!(asked(&sim), 0, "a first start has none");
    for round in 1..4 {
        sim.wait(Duration::from_secs(61));
        sim.exits(Child::Unit(1), Exit::Signal(libc::SIGKILL));
        sim.give(Event::Looked(1, true));
        assert_eq!(asked(&sim), round);
        sim.exits(Child::JobsReclaim, Exit::Code(0));
        sim.node("idle|none");
    }
    assert_eq!(sim.machine.next_wake(), None, "and it is asked once");
}

#[test]
fn a_look_for_allocations_that_hangs_or_fails_has_its_time_and_is_told_of() {
    for exit in [None, Some(no_process()), Some(Exit::Code(1))] {
        let mut sim = until_slurmctld(false);
        sim.exits(Child::Unit(1), Exit::Code(1));
        sim.give(Event::Looked(1, true));
        match &exit {
            None => sim.wait(Duration::from_secs(60)),
            Some(exit) => sim.exits(Child::JobsReclaim, exit.clone()),
        }
        let exit = exit.unwrap_or(Exit::Signal(libc::SIGKILL));
        assert!(sim.said.contains(&Notice::JobsNotReclaimed { exit }), "{:?}", sim.said);
        // A stop ends it, without a word: nobody needs it any more.
        sim.exits(Child::Unit(1), Exit::Code(1));
        sim.wait(Duration::from_secs(2));
        sim.give(Event::Looked(1, true));
        assert!(sim.living.contains(&Child::JobsReclaim));
        let said = sim.said.len();
        sim.give(Event::Signal(libc::SIGTERM));
        assert!(!sim.living.contains(&Child::JobsReclaim));
        assert!(!sim.said[said..].iter().any(|said| matches!(said, Notice::JobsNotReclaimed { .. })));
    }
}

#[test]
fn a_slurmctld_that_comes_up_while_the_jobs_are_accounted_for_is_asked_after_that() {
    for saved_jobs in [false, true] {
        let mut sim = until_slurmctld(saved_jobs);
        if !saved_jobs {
            sim.exits(Child::Unit(1), Exit::Code(1));
            sim.give(Event::Looked(1, true));
        }
        let first = if saved_jobs { Child::JobsRecover } else { Child::JobsReclaim };
        assert_eq!(sim.spawned.iter().filter(|child| **child == first).count(), 1);
        // It dies again, and what the child was told is of no worth.
        sim.exits(Child::Unit(1), Exit::Code(1));
        sim.wait(Duration::from_secs(2));
        sim.give(Event::Looked(1, true));
        let asked = sim.spawned.len();
        sim.exits(first, Exit::Code(1));
        assert!(sim.spawned[asked..].contains(&Child::JobsReclaim), "{:?}", sim.spawned);
        // While it is away nobody is asked.
        sim.exits(Child::Unit(1), Exit::Code(1));
        sim.exits(Child::JobsReclaim, Exit::Code(1));
        assert!(!sim.living.contains(&Child::JobsReclaim));
    }
}

#[test]
fn each_slurmd_after_the_first_is_asked_for_batch_jobs_that_never_began() {
    for saved_jobs in [false, true] {
        let mut sim = until_slurmctld(saved_jobs);
        let asked = |sim: &Sim| sim.spawned.iter().filter(|child| **child == Child::JobsReclaim).count();
        if saved_jobs {
            sim.exits(Child::JobsRecover, Exit::Code(0));
        }
        sim.give(Event::Looked(2, true));
        sim.node("idle|none");
        assert_eq!(asked(&sim), 0, "a first slurmd has launched nothing");
        sim.wait(Duration::from_secs(61));
        sim.exits(Child::Unit(2), Exit::Signal(libc::SIGKILL));
        sim.give(Event::Looked(2, true));
        assert_eq!(asked(&sim), 1);
        // Another one comes while the first look goes on.
        sim.exits(Child::Unit(2), Exit::Signal(libc::SIGKILL));
        sim.wait(Duration::from_secs(2));
        sim.give(Event::Looked(2, true));
        assert_eq!(asked(&sim), 1);
        sim.exits(Child::JobsReclaim, Exit::Code(0));
        assert_eq!(asked(&sim), 2);
    }
}
