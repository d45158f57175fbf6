//! Watches the container's memory, and does what the guard decides.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{say, slurm};
use crate::memory_guard::{Act, Guard};
use config::Config;
use probe::memory;

#[derive(Debug)]
pub(super) struct Watch<'a> {
    config: &'a Config,
    interval: Duration,
    due: Instant,
    /// `None` until it is known whether an agent before this one closed the node.
    guard: Option<Guard>,
}

impl<'a> Watch<'a> {
    pub(super) const fn new(config: &'a Config, interval: Duration, now: Instant) -> Self {
        Self { config, interval, due: now, guard: None }
    }

    /// When it looks next.
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

    fn act(&mut self, act: Act, node: &str) {
        let outcome = match act {
            Act::Close(why) => {
                let level = self.config.memory.open_above;
                say(false, &format!("{why}: the node takes no more jobs until more than {level} % are free"));
                slurm::close_for_memory(node, &why)
            }
            Act::Open => {
                say(true, "there is memory again: the node takes jobs");
                slurm::open_after_memory(node)
            }
            Act::Cancel(victim, why) => slurm::cancel(node, victim, &why).map(|job| match job {
                Some(job) => say(false, &format!("{why}: job {job} is cancelled, before the kernel ends any process")),
                None => say(false, &format!("{why}, and no job runs that could be cancelled")),
            }),
        };
        if let Err(why) = outcome {
            say(false, &format!("that could not be done: {why}; trying again"));
            // What the node is by now decides how to go on.
            self.guard = None;
        }
    }
}
