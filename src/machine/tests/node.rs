//! Drains that slurminit removes.

use super::*;

#[test]
fn removes_repaired_drain_once() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("drained|gres/gpu count reported lower than configured (0 < 1)");
    assert_eq!(sim.spawned.last(), Some(&Child::NodeResume));
    sim.exits(Child::NodeResume, Exit::Code(0));
    sim.node("drained|gres/gpu count reported lower than configured (0 < 1)");
    assert_ne!(sim.spawned.last(), Some(&Child::NodeResume), "the cause persists");
    sim.wait(Duration::from_secs(61));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::NOT_READY));
}

#[test]
fn restarting_service_leaves_cluster_ready() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.send(Event::ReadinessChecked(API, true));
    let checks = |sim: &Sim| sim.spawned.iter().filter(|child| **child == Child::NodeCheck).count();
    let before = checks(&sim);
    for _ in 0..3 {
        sim.exits(Child::Unit(API), Exit::Code(0));
        assert!(sim.machine.snapshot().ready, "{}", sim.machine.snapshot().why);
        sim.wait(Duration::from_secs(30));
        sim.send(Event::ReadinessChecked(API, true));
        assert!(sim.machine.snapshot().ready, "{}", sim.machine.snapshot().why);
    }
    assert_eq!(checks(&sim), before, "a service says nothing about the node");
}

/// slurmctld saves a change with a delay of five seconds: if it is killed before that, its successor drains the node
/// again.
#[test]
fn removes_drain_again_after_slurmctld_restored_it() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    let drained = "drained|slurminit: the jobs of the former start are gone";
    sim.node(drained);
    sim.exits(Child::NodeResume, Exit::Code(0));
    sim.node("idle|none");
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.exits(Child::JobsAccount, Exit::Code(0));
    sim.exits(Child::JobsReclaim, Exit::Code(0));
    sim.node(drained);
    assert_eq!(sim.spawned.last(), Some(&Child::NodeResume));
}

/// A start detects all GPUs; later the agent has newer results.
#[test]
fn removes_agents_drain_only_at_start() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    let drained = "drained|slurminit: GPU 3 (0000:13:00.0): XID 79, it has fallen off the bus";
    sim.node(drained);
    assert_eq!(sim.spawned.last(), Some(&Child::NodeResume));
    sim.exits(Child::NodeResume, Exit::Code(0));
    sim.node("idle|none");
    let before = sim.spawned.iter().filter(|child| **child == Child::NodeResume).count();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.exits(Child::JobsAccount, Exit::Code(0));
    sim.exits(Child::JobsReclaim, Exit::Code(0));
    sim.node(drained);
    assert_eq!(sim.spawned.iter().filter(|child| **child == Child::NodeResume).count(), before);
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn removes_drain_of_own_epilog_that_ended_with_slurmd() {
    for own_epilog in [true, false] {
        let mut sim = Sim::new(cluster(false));
        sim.send(Event::Prepare(PrepareEvent::MungeKeyReady));
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { own_epilog, ..Prepared::default() })));
        sim.exits(Child::Prepare, Exit::Code(0));
        for unit in DAEMONS {
            sim.send(Event::ReadinessChecked(unit, true));
        }
        sim.node("idle|none");
        sim.exits(Child::Unit(SLURMD), Exit::Code(1));
        sim.send(Event::ReadinessChecked(SLURMD, true));
        sim.node("drained|Epilog error");
        assert_eq!(sim.spawned.contains(&Child::NodeResume), own_epilog);
    }
}

/// slurmctld sets its reasons as SlurmUser.
#[test]
fn removes_drain_that_slurmctld_and_not_root_has_set() {
    for (slurm_user, setter, is_removed) in
        [(None, "slurm", true), (None, "root", false), (Some("root"), "root", true), (Some("lab"), "root", false)]
    {
        let mut sim = Sim::new(cluster(false));
        sim.send(Event::Prepare(PrepareEvent::MungeKeyReady));
        let slurm_user = slurm_user.map(str::to_owned);
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { slurm_user, ..Prepared::default() })));
        sim.exits(Child::Prepare, Exit::Code(0));
        for unit in DAEMONS {
            sim.send(Event::ReadinessChecked(unit, true));
        }
        sim.node(&format!("drained {setter}|Low CPUs"));
        assert_eq!(sim.spawned.contains(&Child::NodeResume), is_removed, "{setter}");
    }
}

#[test]
fn keeps_administrators_drain_and_becomes_ready() {
    let mut sim = Sim::new(cluster(false));
    sim.prepared();
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.send(Event::ReadinessChecked(API, true));
    sim.node("drained|fan broken");
    assert!(!sim.spawned.contains(&Child::NodeResume));
    assert!(sim.machine.snapshot().ready);
    assert_eq!(sim.machine.next_wake(), None, "an idle container has no deadline");
}
