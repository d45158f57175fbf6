//! Watches the container's memory, and applies the decisions of the guard.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{say, slurm};
use crate::memory_guard::{self, Action, Guard, JobMemory};
use crate::memory_use::{self, ProcessMemory};
use config::{Config, Victim};
use probe::memory;
use sys::users;

#[derive(Debug)]
pub(super) struct Watch<'a> {
    config: &'a Config,
    interval: Duration,
    due: Instant,
    /// `None` until it is known whether an earlier agent drained the node.
    guard: Option<Guard>,
}

impl<'a> Watch<'a> {
    pub(super) const fn new(config: &'a Config, interval: Duration, now: Instant) -> Self {
        Self { config, interval, due: now, guard: None }
    }

    /// Time of the next sample.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn step(&mut self, now: Instant, now_ms: u64, node: &str) {
        if now < self.due {
            return;
        }
        self.due = now + self.interval;
        let Some(sample) = memory::free(Path::new("/")) else { return };
        if self.guard.is_none() {
            self.guard = slurm::is_closed_for_memory(node).map(Guard::new);
        }
        let acts =
            self.guard.as_mut().map(|guard| guard.step(now_ms, &sample, &self.config.memory)).unwrap_or_default();
        for act in acts {
            self.act(act, node);
        }
    }

    fn act(&mut self, act: Action, node: &str) {
        let outcome = match act {
            Action::Close(why) => {
                let level = self.config.memory.open_above;
                say(false, &format!("{why}; node drained until more than {level} % are free"));
                slurm::close_for_memory(node, &why)
            }
            Action::Open => {
                say(true, "memory recovered; node resumed");
                slurm::open_after_memory(node)
            }
            Action::Cancel(which, why) => cancel(node, which, &why),
        };
        if let Err(why) = outcome {
            say(false, &format!("the action failed: {why}; will retry"));
            // The current state of the node decides the next action.
            self.guard = None;
        }
    }
}

/// Cancels a job that uses more than it requested, if there is one, and names the users with the most memory.
fn cancel(node: &str, which: Victim, why: &str) -> Result<(), String> {
    let mut jobs = slurm::running(node)?;
    let processes = memory_use::processes();
    for job in &mut jobs {
        // A process can claim to belong to another user's job.
        let is_its = |process: &&ProcessMemory| process.job == Some(job.job) && process.uid == job.uid;
        job.used = processes.iter().filter(is_its).map(|process| process.bytes).sum::<u64>() >> 20;
    }
    let most = memory_use::words(&memory_use::by_user(&processes), users::shown);
    match memory_guard::victim(&jobs, which) {
        Some(JobMemory { job, requested, used, .. }) => {
            slurm::cancel(job, why)?;
            let requested = requested.unwrap_or_default();
            say(false, &format!("{why}; cancelled job {job}, which uses {used} MiB and requested {requested}; {most}"));
        }
        None => say(false, &format!("{why}; no job uses more than it requested, so none is cancelled; {most}")),
    }
    Ok(())
}
