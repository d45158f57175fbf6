//! Tests [`HealthController`] with a simulated cluster.

mod faults;
mod node;
mod resets;

use proptest::prelude::*;

use super::*;
use crate::sample::Phase;
use model::inventory::{Condition, Readings, RemappedRows, Slowdown};
use model::queued_job::OwnedJob;

const NVIDIA: Vendor = Vendor::Nvidia;

/// A simulated cluster with one node.
struct Cluster {
    health: HealthController,
    now: Clock,
    gpus: Vec<Identity>,
    /// The GPUs available to jobs, as positions in `gpus`.
    offered: Vec<usize>,
    jobs: Vec<Option<u64>>,
    drained: Option<String>,
    log: Vec<String>,
    reload_fails: bool,
    recount: Recount,
    /// Whether a job without a GPU is on the node.
    has_other_job: bool,
    is_slurmctld_down: bool,
    /// The number of queries to Slurm.
    queries: u32,
}

fn identity(index: u32) -> Identity {
    Identity {
        index,
        uuid: Some(format!("GPU-{index}")),
        pci_address: format!("0000:{:02x}:00.0", 0x10 + index).parse().ok(),
        ..Identity::default()
    }
}

/// The part of slurminit.toml with the table `[faults]`.
#[derive(serde::Deserialize)]
struct Configuration {
    #[serde(default)]
    faults: Faults,
}

impl Cluster {
    fn new(count: u32) -> Self {
        Self::with(count, "", Recount::WithoutGpuJobs)
    }

    fn with(count: u32, faults: &str, recount: Recount) -> Self {
        let Configuration { faults } = toml::from_str(faults).unwrap();
        let mut cluster = Self {
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
            is_slurmctld_down: false,
            queries: 0,
        };
        cluster.health.set_offered(cluster.offer());
        cluster.sample(&[]);
        cluster
    }

    fn offer(&self) -> Vec<Identity> {
        self.offered.iter().map(|index| self.gpus[*index].clone()).collect()
    }

    fn healthy() -> GpuSample {
        GpuSample { readings: Readings { recovery_action: Some(0), ..Readings::default() }, ..GpuSample::default() }
    }

    /// Runs a sampling round in which all GPUs except `bad` are healthy.
    fn sample(&mut self, bad: &[(usize, GpuSample)]) {
        self.advance(5000);
        self.health.begin_round(self.now, NVIDIA, self.gpus.clone());
        for (index, gpu) in self.gpus.clone().iter().enumerate() {
            let seen = bad.iter().find(|(bad, _)| *bad == index).map_or_else(Self::healthy, |(_, seen)| seen.clone());
            self.health.add_sample(self.now, &gpu.key(), seen);
        }
        self.health.end_round(self.now, NVIDIA);
        self.settle();
    }

    fn advance(&mut self, ms: u64) {
        self.now = Clock { ms: self.now.ms + ms, unix: self.now.unix + ms / 1000 };
    }

    /// Runs a sampling round in which a GPU is lost.
    fn lose(&mut self, index: usize) {
        self.sample(&[(index, GpuSample { trouble: Some(FaultKind::Lost), ..GpuSample::default() })]);
    }

    fn settle(&mut self) {
        self.run_actions();
        self.advance(300);
        self.run_actions();
    }

    fn run_actions(&mut self) {
        for _ in 0..20 {
            let actions = self.health.step(self.now);
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.perform(action);
            }
        }
        panic!("the actions do not end: {:?}", self.health.stage);
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Log(_, message) => self.log.push(message.text),
            Action::Drain { reason } => {
                let outcome = match &self.drained {
                    Some(other) if !other.starts_with("GPU ") => DrainOutcome::Others(other.clone()),
                    _ => {
                        assert!(reason.starts_with("GPU "), "the reason must name the GPU: {reason:?}");
                        self.drained = Some(reason);
                        DrainOutcome::Ours
                    }
                };
                self.health.on_drain_outcome(self.now, &outcome);
            }
            Action::QueryJobs => {
                let job = |index: &usize| self.jobs[*index].map(|job| OwnedJob { job, user: "alice".to_owned() });
                let gpus: Vec<Vec<OwnedJob>> =
                    self.offered.iter().map(|index| job(index).into_iter().collect()).collect();
                let allocated_gpus = gpus.iter().filter(|jobs| !jobs.is_empty()).count();
                let is_empty = allocated_gpus == 0 && !self.has_other_job;
                let is_ours = self.drained.as_ref().is_some_and(|reason| reason.starts_with("GPU "));
                let is_closed = self.drained.is_some();
                let node = SlurmNodeState { is_closed, is_ours, gpus, allocated_gpus, is_empty };
                self.queries += 1;
                self.health.on_node_state(self.now, self.now, Some(&node).filter(|_| !self.is_slurmctld_down));
            }
            Action::Reload { without } => {
                assert!(self.drained.is_some(), "a job could start during the reload");
                assert!(self.offered.iter().all(|index| self.jobs[*index].is_none()), "Slurm would abort a job");
                assert!(self.recount == Recount::WithoutGpuJobs || !self.has_other_job, "Slurm would lose a job");
                if self.reload_fails {
                    return self.health.on_reload_outcome(self.now, Err("no".to_owned()));
                }
                let is_out = |index: &usize| without.iter().any(|out| out.gpu == self.gpus[*index]);
                self.offered = (0..self.gpus.len()).filter(|index| !is_out(index)).collect();
                self.health.on_reload_outcome(self.now, Ok(self.offer()));
            }
            Action::Resume if self.is_slurmctld_down => {}
            Action::Resume if self.drained.as_ref().is_some_and(|reason| !reason.starts_with("GPU ")) => {}
            Action::Resume => self.drained = None,
            Action::Notify(notification) => {
                assert!(self.log.contains(&notification.line), "the log line precedes the notification")
            }
        }
    }

    fn event(&mut self, index: usize, xid: u32) {
        self.health.add_event(self.now, Some(&self.gpus[index].key()), xid);
        self.settle();
    }

    /// Reports the start of a reset with this cause, or the end of a reset.
    fn reset(&mut self, index: usize, cause: Option<&str>) {
        let start = |cause: &str| Phase::Begins { cause: Some(cause.to_owned()) };
        self.health.on_reset(self.now, NVIDIA, &self.gpus[index].key(), &cause.map_or(Phase::Ends, start));
        self.settle();
    }

    fn faults(&self, index: usize) -> Vec<FaultKind> {
        self.health.report(ProcessId::default()).gpus[index].faults.iter().map(|fault| fault.kind).collect()
    }
}

proptest! {
    /// No job is aborted (asserted in `perform`). When all GPUs are healthy again, all are offered and the node is
    /// not drained.
    #[test]
    fn any_history_ends_with_all_gpus_offered(history in proptest::collection::vec((0..10_u8, 0..3_usize), 1..60)) {
        let mut cluster = Cluster::new(3);
        for (event, gpu) in history {
            match event {
                0 => cluster.lose(gpu),
                1 => cluster.event(gpu, 79),
                2 => cluster.event(gpu, 31),
                3 if cluster.drained.is_none() && cluster.offered.contains(&gpu) => cluster.jobs[gpu] = Some(5),
                4 => cluster.jobs[gpu] = None,
                5 => {
                    cluster.advance(1000);
                    cluster.settle();
                }
                6 => cluster.reload_fails = !cluster.reload_fails,
                7 => cluster.reset(gpu, Some("HWS hang")),
                8 => cluster.reset(gpu, None),
                _ => cluster.sample(&[]),
            }
        }
        (0..3).for_each(|gpu| cluster.reset(gpu, None));
        cluster.reload_fails = false;
        cluster.jobs = vec![None; 3];
        (0..200).for_each(|_| cluster.sample(&[]));
        prop_assert_eq!((cluster.offered.len(), &cluster.drained), (3, &None));
        prop_assert!(cluster.health.report(ProcessId::default()).gpus.iter().all(|gpu| gpu.faults.is_empty() && !gpu.is_out));
    }
}
