//! A ward with a cluster that is a few variables.

use proptest::prelude::*;

use super::*;
use crate::gpu_health::report::JobOnGpu;
use crate::inventory::{Condition, Readings, RemappedRows, Slowdown};

const NVIDIA: Vendor = Vendor::Nvidia;

/// What the edge would do, without an edge.
struct World {
    ward: Ward,
    now: Clock,
    gpus: Vec<Identity>,
    /// What Slurm offers, by position in `gpus`.
    offered: Vec<usize>,
    jobs: Vec<Option<u64>>,
    drained: Option<String>,
    said: Vec<String>,
    reload_fails: bool,
    recount: Recount,
    /// Whether a job without a GPU is on the node.
    has_other_job: bool,
}

fn identity(index: u32) -> Identity {
    Identity {
        index,
        uuid: Some(format!("GPU-{index}")),
        pci_address: format!("0000:{:02x}:00.0", 0x10 + index).parse().ok(),
        ..Identity::default()
    }
}

impl World {
    fn new(count: u32) -> Self {
        Self::with(count, "", Recount::WithoutGpuJobs)
    }

    fn with(count: u32, faults: &str, recount: Recount) -> Self {
        let faults = crate::config::Config::parse(faults, std::path::Path::new("t")).unwrap().faults;
        let mut world = Self {
            ward: Ward::new(faults, 5000, recount, None, &[]),
            now: Clock::default(),
            gpus: (0..count).map(identity).collect(),
            offered: (0..count as usize).collect(),
            jobs: vec![None; count as usize],
            drained: None,
            said: Vec::new(),
            reload_fails: false,
            recount,
            has_other_job: false,
        };
        world.ward.offer(world.offer());
        world.look(&[]);
        world
    }

    fn offer(&self) -> Vec<Offered> {
        let address = |index: &usize| self.gpus[*index].pci_address.map(|address| address.to_string());
        self.offered.iter().map(|index| Offered { pci_address: address(index), file: String::new() }).collect()
    }

    fn well() -> Seen {
        Seen { readings: Readings { recovery_action: Some(0), ..Readings::default() }, ..Seen::default() }
    }

    /// A look at which all are well but these.
    fn look(&mut self, bad: &[(usize, Seen)]) {
        self.pass(5000);
        self.ward.listed(self.now, NVIDIA, self.gpus.clone());
        for (index, gpu) in self.gpus.clone().iter().enumerate() {
            let seen = bad.iter().find(|(bad, _)| *bad == index).map_or_else(Self::well, |(_, seen)| seen.clone());
            self.ward.seen(self.now, &gpu.key(), seen);
        }
        self.ward.done(self.now, NVIDIA);
        self.act();
    }

    fn pass(&mut self, ms: u64) {
        self.now = Clock { ms: self.now.ms + ms, unix: self.now.unix + ms / 1000 };
    }

    /// A look at which a GPU is lost.
    fn lost(&mut self, index: usize) {
        self.look(&[(index, Seen { trouble: Some(FaultKind::Lost), ..Seen::default() })]);
    }

    fn act(&mut self) {
        self.rest();
        self.pass(300);
        self.rest();
    }

    fn rest(&mut self) {
        for _ in 0..20 {
            let acts = self.ward.step(self.now);
            if acts.is_empty() {
                return;
            }
            for act in acts {
                self.do_it(act);
            }
        }
        panic!("it never comes to rest: {:?}", self.ward.stage);
    }

    fn do_it(&mut self, act: Act) {
        match act {
            Act::Say { line, .. } => self.said.push(line),
            Act::Drain { reason } => {
                let outcome = match &self.drained {
                    Some(other) if !other.starts_with("GPU ") => Drained::Others(other.clone()),
                    _ => {
                        assert!(reason.starts_with("GPU "), "nobody would know it: {reason:?}");
                        self.drained = Some(reason);
                        Drained::Ours
                    }
                };
                self.ward.drained(self.now, &outcome);
            }
            Act::Ask => {
                let job = |index: &usize| self.jobs[*index].map(|job| JobOnGpu { job, user: "alice".to_owned() });
                let gpus: Vec<Vec<JobOnGpu>> =
                    self.offered.iter().map(|index| job(index).into_iter().collect()).collect();
                let held = gpus.iter().filter(|jobs| !jobs.is_empty()).count();
                let is_empty = held == 0 && !self.has_other_job;
                let node = OnNode { is_drained: self.drained.is_some(), gpus, held, is_empty };
                self.ward.on_node(self.now, self.now, Some(&node));
            }
            Act::Reload { without } => {
                assert!(self.drained.is_some(), "a job could begin meanwhile");
                assert!(self.offered.iter().all(|index| self.jobs[*index].is_none()), "Slurm would abort a job");
                assert!(self.recount == Recount::WithoutGpuJobs || !self.has_other_job, "Slurm would forget a job");
                if self.reload_fails {
                    return self.ward.reloaded(self.now, Err("no".to_owned()));
                }
                let is_out = |index: &usize| without.iter().any(|out| out.gpu == self.gpus[*index]);
                self.offered = (0..self.gpus.len()).filter(|index| !is_out(index)).collect();
                self.ward.reloaded(self.now, Ok(self.offer()));
            }
            Act::Resume if self.drained.as_ref().is_some_and(|reason| !reason.starts_with("GPU ")) => {}
            Act::Resume => self.drained = None,
            Act::Notify(told) => assert!(self.said.contains(&told.line), "it is told before"),
        }
    }

    fn event(&mut self, index: usize, xid: u32) {
        self.ward.event(self.now, Some(&self.gpus[index].key()), xid);
        self.act();
    }
}

#[test]
fn a_lost_gpu_costs_one_gpu_and_it_comes_back() {
    let mut world = World::new(4);
    world.jobs[1] = Some(7);
    world.lost(3);
    assert!(
        world
            .drained
            .as_deref()
            .is_some_and(|reason| reason.starts_with("GPU 3 (0000:13:00.0): the driver has lost it"))
    );
    assert_eq!(world.offered.len(), 4, "job 7 would be aborted");
    assert!(world.ward.report(1).node.is_some_and(|node| node.ends_with("have ended: 7")));
    world.lost(3);
    world.jobs[1] = None;
    world.lost(3);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0, 1, 2], None));
    assert!(world.ward.report(1).gpus[3].is_out);
    // A job that runs on the others is not disturbed by its return, and one look is no proof.
    world.jobs[0] = Some(8);
    world.look(&[]);
    world.look(&[]);
    world.look(&[]);
    assert_eq!((world.offered.len(), world.drained.clone()), (3, None));
    world.jobs[0] = None;
    world.look(&[]);
    world.look(&[]);
    assert_eq!((world.offered.len(), world.drained.clone()), (4, None));
    assert_eq!(world.ward.report(1).node, None);
    assert!(world.said.iter().any(|line| line.contains("all 4 GPUs are offered to jobs again")));
}

#[test]
fn a_gpu_that_is_well_again_does_not_wait_for_ever() {
    let mut world = World::new(2);
    world.lost(1);
    assert_eq!(world.offered, [0]);
    world.jobs[0] = Some(9);
    for _ in 0..800 {
        world.look(&[]);
    }
    assert!(world.drained.as_deref().is_some_and(|reason| reason.starts_with("GPU 1 is well again")));
    world.jobs[0] = None;
    world.look(&[]);
    assert_eq!((world.offered.len(), world.drained), (2, None));
}

#[test]
fn an_error_of_a_program_is_told_with_its_job_and_drains_nothing() {
    let mut world = World::new(2);
    world.jobs[1] = Some(17);
    for xid in [13, 31, 43] {
        for _ in 0..100 {
            world.event(1, xid);
        }
    }
    assert_eq!((world.drained.clone(), world.offered.len()), (None, 2));
    let lines: Vec<_> = world.said.iter().filter(|line| line.contains("XID")).collect();
    assert_eq!(lines.len(), 2, "once a minute, and 43 only counts: {lines:?}");
    assert!(lines[0].contains("job 17 of alice had it") && lines[0].contains("GPU-1") && lines[0].contains("Repair: "));
    assert_eq!(world.ward.report(1).gpus[1].counts[&FaultKind::Xid(43)].count, 100);
}

#[test]
fn an_xid_for_which_the_gpu_is_to_be_reset_drains_until_the_driver_says_that_it_is_well() {
    let mut world = World::new(2);
    world.event(0, 79);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    for _ in 0..11 {
        world.look(&[]);
    }
    assert_eq!(world.offered, [1], "the driver may need a while to say otherwise");
    let reset = Seen { readings: Readings { recovery_action: Some(1), ..Readings::default() }, ..Seen::default() };
    world.look(&[(0, reset)]);
    assert_eq!(world.offered, [1]);
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!(world.offered, [0, 1]);
    // A driver that has no such word: it stays out.
    let silent = |index| (index, Seen::default());
    world.event(1, 48);
    (0..100).for_each(|_| world.look(&[silent(0), silent(1)]));
    assert_eq!(world.offered, [0]);
}

#[test]
fn an_administrators_drain_stays() {
    let mut world = World::new(2);
    world.drained = Some("fan".to_owned());
    world.lost(0);
    assert_eq!((world.offered.clone(), world.drained.as_deref()), (vec![1], Some("fan")));
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained.as_deref()), (2, Some("fan")));
}

#[test]
fn policies_are_the_operators() {
    let mut world =
        World::with(2, "[faults]\nlost = 'warn'\n[faults.xid]\n13 = 'drain'\n31 = 'ignore'\n", Recount::WithoutGpuJobs);
    world.lost(0);
    world.event(0, 31);
    assert_eq!((world.offered.len(), world.drained.clone()), (2, None));
    world.look(&[]);
    world.event(1, 13);
    assert_eq!(world.offered, [0]);
    assert!(!world.said.iter().any(|line| line.contains("XID 31")));
}

#[test]
fn a_node_whose_number_of_gpus_cannot_change_is_drained_until_the_gpu_is_back() {
    let mut world = World::with(2, "", Recount::Never);
    world.lost(0);
    (0..20).for_each(|_| world.lost(0));
    assert_eq!(world.offered.len(), 2);
    assert!(
        world.drained.is_some()
            && world.ward.report(1).node.is_some_and(|node| node.contains("restart this container"))
    );
    // What somebody takes back is drained again, for jobs would fail on it.
    world.drained = None;
    (0..3).for_each(|_| world.lost(0));
    assert!(world.drained.is_some());
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!(world.drained, None);
}

#[test]
fn a_node_that_the_controller_has_to_forget_waits_for_all_of_its_jobs() {
    let mut world = World::with(2, "", Recount::WithoutJobs);
    (world.jobs[1], world.has_other_job) = (Some(7), true);
    world.lost(0);
    (0..5).for_each(|_| world.lost(0));
    world.jobs[1] = None;
    (0..5).for_each(|_| world.lost(0));
    assert!(world.drained.is_some() && world.offered.len() == 2);
    let doing = world.ward.report(1).node.unwrap();
    assert!(doing.contains("until all of its jobs have ended"), "{doing}");
    world.has_other_job = false;
    world.lost(0);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    // Back: a job without a GPU is waited for, too.
    world.has_other_job = true;
    (0..5).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained.clone()), (1, None));
    world.has_other_job = false;
    (0..2).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained), (2, None));
}

#[test]
fn a_reload_that_fails_is_tried_again_ever_later() {
    let mut world = World::new(1);
    world.reload_fails = true;
    (0..1000).for_each(|_| world.lost(0));
    let tries = world.said.iter().filter(|line| line.contains("could not be changed")).count();
    assert!((8..20).contains(&tries), "{tries}");
    assert!(world.drained.is_some());
    world.reload_fails = false;
    (0..130).for_each(|_| world.lost(0));
    assert_eq!((world.offered.len(), world.drained), (0, None));
}

#[test]
fn a_gpu_that_is_no_longer_listed_is_lost_and_one_that_was_never_there_is_not() {
    let mut world = World::new(3);
    world.pass(5000);
    world.ward.listed(world.now, NVIDIA, world.gpus[..2].to_vec());
    world.ward.done(world.now, NVIDIA);
    world.act();
    assert!(world.said.iter().any(|line| line.starts_with("GPU 2") && line.contains("no longer lists it")));
    assert_eq!(world.ward.report(1).gpus.len(), 3);
}

#[test]
fn what_a_look_shows_has_its_fault() {
    let seen = |readings: Readings, slowdowns: Vec<Slowdown>| Seen {
        condition: Condition { slowdowns: Some(slowdowns), ..Condition::default() },
        readings,
        trouble: None,
    };
    let failed = RemappedRows { has_failed: true, ..RemappedRows::default() };
    for (shown, kind, drains) in [
        (
            seen(Readings { recovery_action: Some(2), ..Readings::default() }, vec![]),
            FaultKind::RecoveryAction(2),
            true,
        ),
        (
            seen(Readings { remapped_rows: Some(failed), ..Readings::default() }, vec![]),
            FaultKind::RowRemapFailed,
            true,
        ),
        (seen(Readings::default(), vec![Slowdown::Heat]), FaultKind::Heat, false),
        (seen(Readings::default(), vec![Slowdown::PowerBrake, Slowdown::PowerCap]), FaultKind::PowerBrake, false),
    ] {
        let mut world = World::new(2);
        world.look(&[(1, shown)]);
        let kinds: Vec<_> = world.ward.report(1).gpus[1].faults.iter().map(|fault| fault.kind).collect();
        assert_eq!(kinds, [kind]);
        assert_eq!(world.offered.len() == 1, drains, "{kind}");
        (0..2).for_each(|_| world.look(&[]));
        assert!(world.ward.report(1).gpus[1].faults.is_empty(), "{kind}");
    }
    // Only what comes after the first look is new.
    let with =
        |errors| seen(Readings { ecc_uncorrected: Some(errors), nvlinks_down: Some(2), ..Readings::default() }, vec![]);
    let mut ward = Ward::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    let now = Clock::default();
    ward.listed(now, NVIDIA, vec![identity(0)]);
    for (errors, faults) in [(9, 0), (9, 0), (10, 1), (3, 1)] {
        ward.seen(now, &identity(0).key(), with(errors));
        assert_eq!(ward.report(1).gpus[0].faults.len(), faults, "{errors}");
    }
}

#[test]
fn memory_that_is_in_use_without_a_job_is_told_and_a_jobs_is_not() {
    let used = |index| {
        let memory_mib = Some((20_480, 143_771));
        (index, Seen { condition: Condition { memory_mib, ..Condition::default() }, ..World::well() })
    };
    let mut world = World::new(2);
    world.jobs[0] = Some(7);
    (0..30).for_each(|_| world.look(&[used(0), used(1)]));
    let told: Vec<_> = world.said.iter().filter(|line| line.contains("in use")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("GPU 1 (") && told[0].contains("20480 MiB"), "{told:?}");
    // The job ends, and what it left stays.
    world.jobs[0] = None;
    (0..30).for_each(|_| world.look(&[used(0), used(1)]));
    assert_eq!(world.ward.report(1).gpus[0].faults[0].kind, FaultKind::Leftover);
    (0..3).for_each(|_| world.look(&[]));
    assert!(world.ward.report(1).gpus.iter().all(|gpu| gpu.faults.is_empty()));
    assert_eq!((world.offered.len(), world.drained), (2, None));
}

#[test]
fn an_agent_that_was_killed_leaves_nothing_behind() {
    let mut world = World::new(2);
    world.jobs[1] = Some(3);
    world.event(0, 79);
    assert!(world.drained.is_some());
    // In the middle of a drain: the next one remembers why, and goes on.
    let former = world.ward.report(1);
    world.ward = Ward::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &[]);
    world.ward.offer(world.offer());
    world.look(&[]);
    assert_eq!(world.offered.len(), 2);
    world.jobs[1] = None;
    world.look(&[]);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    // Restarted on purpose, it has forgotten the fault: the GPU comes back.
    let mut former = world.ward.report(1);
    let out = vec![Out { gpu: identity(0), reason: String::new() }];
    former.gpus.iter_mut().for_each(|gpu| gpu.faults.clear());
    world.ward = Ward::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &out);
    world.ward.offer(world.offer());
    (0..4).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained.clone()), (2, None));
}

proptest! {
    /// Whatever happens: no job is aborted (the world asserts it), and when all is well again, all GPUs are offered and nothing is
    /// drained.
    #[test]
    fn it_always_ends_well(history in proptest::collection::vec((0..7_u8, 0..3_usize), 1..60)) {
        let mut world = World::new(3);
        for (what, gpu) in history {
            match what {
                0 => world.lost(gpu),
                1 => world.event(gpu, 79),
                2 => world.event(gpu, 31),
                3 if world.drained.is_none() && world.offered.contains(&gpu) => world.jobs[gpu] = Some(5),
                4 => world.jobs[gpu] = None,
                5 => {
                    world.pass(1000);
                    world.act();
                }
                6 => world.reload_fails = !world.reload_fails,
                _ => world.look(&[]),
            }
        }
        world.reload_fails = false;
        world.jobs = vec![None; 3];
        (0..200).for_each(|_| world.look(&[]));
        prop_assert_eq!((world.offered.len(), &world.drained), (3, &None));
        prop_assert!(world.ward.report(1).gpus.iter().all(|gpu| gpu.faults.is_empty() && !gpu.is_out));
    }
}
