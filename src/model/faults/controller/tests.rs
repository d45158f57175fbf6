//! A health with a cluster that is a few variables.

mod faults;
mod node;
mod resets;

use proptest::prelude::*;

use super::*;
use crate::faults::look::Phase;
use crate::inventory::{Condition, Readings, RemappedRows, Slowdown};
use crate::queued_job::OwnedJob;

const NVIDIA: Vendor = Vendor::Nvidia;

/// What the edge would do, without an edge.
struct World {
    health: HealthController,
    now: Clock,
    gpus: Vec<Identity>,
    /// What Slurm offers, by position in `gpus`.
    offered: Vec<usize>,
    jobs: Vec<Option<u64>>,
    drained: Option<String>,
    log: Vec<String>,
    reload_fails: bool,
    recount: Recount,
    /// Whether a job without a GPU is on the node.
    has_other_job: bool,
    /// Whether slurmctld does not answer.
    is_away: bool,
    /// How often Slurm was asked.
    asked: u32,
}

fn identity(index: u32) -> Identity {
    Identity {
        index,
        uuid: Some(format!("GPU-{index}")),
        pci_address: format!("0000:{:02x}:00.0", 0x10 + index).parse().ok(),
        ..Identity::default()
    }
}

/// The part of slurminit.toml that matters here.
#[derive(serde::Deserialize)]
struct Configuration {
    #[serde(default)]
    faults: Faults,
}

impl World {
    fn new(count: u32) -> Self {
        Self::with(count, "", Recount::WithoutGpuJobs)
    }

    fn with(count: u32, faults: &str, recount: Recount) -> Self {
        let Configuration { faults } = toml::from_str(faults).unwrap();
        let mut world = Self {
            health: HealthController::new(faults, 5000, recount, None, &[]),
            now: Clock::default(),
            gpus: (0..count).map(identity).collect(),
            offered: (0..count as usize).collect(),
            jobs: vec![None; count as usize],
            drained: None,
            log: Vec::new(),
            reload_fails: false,
            recount,
            has_other_job: false,
            is_away: false,
            asked: 0,
        };
        world.health.offer(world.offer());
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
        self.health.listed(self.now, NVIDIA, self.gpus.clone());
        for (index, gpu) in self.gpus.clone().iter().enumerate() {
            let seen = bad.iter().find(|(bad, _)| *bad == index).map_or_else(Self::well, |(_, seen)| seen.clone());
            self.health.seen(self.now, &gpu.key(), seen);
        }
        self.health.done(self.now, NVIDIA);
        self.action();
    }

    fn pass(&mut self, ms: u64) {
        self.now = Clock { ms: self.now.ms + ms, unix: self.now.unix + ms / 1000 };
    }

    /// A look at which a GPU is lost.
    fn lost(&mut self, index: usize) {
        self.look(&[(index, Seen { trouble: Some(FaultKind::Lost), ..Seen::default() })]);
    }

    fn action(&mut self) {
        self.rest();
        self.pass(300);
        self.rest();
    }

    fn rest(&mut self) {
        for _ in 0..20 {
            let actions = self.health.step(self.now);
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.do_it(action);
            }
        }
        panic!("it never comes to rest: {:?}", self.health.stage);
    }

    fn do_it(&mut self, action: Action) {
        match action {
            Action::Log(_, message) => self.log.push(message.text),
            Action::Drain { reason } => {
                let outcome = match &self.drained {
                    Some(other) if !other.starts_with("GPU ") => Drained::Others(other.clone()),
                    _ => {
                        assert!(reason.starts_with("GPU "), "the reason must name the GPU: {reason:?}");
                        self.drained = Some(reason);
                        Drained::Ours
                    }
                };
                self.health.drained(self.now, &outcome);
            }
            Action::Ask => {
                let job = |index: &usize| self.jobs[*index].map(|job| OwnedJob { job, user: "alice".to_owned() });
                let gpus: Vec<Vec<OwnedJob>> =
                    self.offered.iter().map(|index| job(index).into_iter().collect()).collect();
                let held = gpus.iter().filter(|jobs| !jobs.is_empty()).count();
                let is_empty = held == 0 && !self.has_other_job;
                let is_ours = self.drained.as_ref().is_some_and(|reason| reason.starts_with("GPU "));
                let node = OnNode { is_closed: self.drained.is_some(), is_ours, gpus, held, is_empty };
                self.asked += 1;
                self.health.on_node(self.now, self.now, Some(&node).filter(|_| !self.is_away));
            }
            Action::Reload { without } => {
                assert!(self.drained.is_some(), "a job could begin meanwhile");
                assert!(self.offered.iter().all(|index| self.jobs[*index].is_none()), "Slurm would abort a job");
                assert!(self.recount == Recount::WithoutGpuJobs || !self.has_other_job, "Slurm would forget a job");
                if self.reload_fails {
                    return self.health.reloaded(self.now, Err("no".to_owned()));
                }
                let is_out = |index: &usize| without.iter().any(|out| out.gpu == self.gpus[*index]);
                self.offered = (0..self.gpus.len()).filter(|index| !is_out(index)).collect();
                self.health.reloaded(self.now, Ok(self.offer()));
            }
            Action::Resume if self.is_away => {}
            Action::Resume if self.drained.as_ref().is_some_and(|reason| !reason.starts_with("GPU ")) => {}
            Action::Resume => self.drained = None,
            Action::Notify(notification) => {
                assert!(self.log.contains(&notification.line), "the log line precedes the notification")
            }
        }
    }

    fn event(&mut self, index: usize, xid: u32) {
        self.health.event(self.now, Some(&self.gpus[index].key()), xid);
        self.action();
    }

    /// A reset begins for this cause, or ends.
    fn reset(&mut self, index: usize, cause: Option<&str>) {
        let begins = |cause: &str| Phase::Begins { cause: Some(cause.to_owned()) };
        self.health.reset(self.now, NVIDIA, &self.gpus[index].key(), &cause.map_or(Phase::Ends, begins));
        self.action();
    }

    fn faults(&self, index: usize) -> Vec<FaultKind> {
        self.health.report(1).gpus[index].faults.iter().map(|fault| fault.kind).collect()
    }
}

proptest! {
    /// Whatever happens: no job is aborted (the world asserts it), and when all is well again, all GPUs are offered and nothing is
    /// drained.
    #[test]
    fn always_ends_consistently(history in proptest::collection::vec((0..10_u8, 0..3_usize), 1..60)) {
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
                    world.action();
                }
                6 => world.reload_fails = !world.reload_fails,
                7 => world.reset(gpu, Some("HWS hang")),
                8 => world.reset(gpu, None),
                _ => world.look(&[]),
            }
        }
        (0..3).for_each(|gpu| world.reset(gpu, None));
        world.reload_fails = false;
        world.jobs = vec![None; 3];
        (0..200).for_each(|_| world.look(&[]));
        prop_assert_eq!((world.offered.len(), &world.drained), (3, &None));
        prop_assert!(world.health.report(1).gpus.iter().all(|gpu| gpu.faults.is_empty() && !gpu.is_out));
    }
}
