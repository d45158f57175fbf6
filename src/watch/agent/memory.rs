//! Watches the container's memory, and applies the decisions of the guard.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::slurm;
use crate::memory_guard::{self, Action, Guard, JobMemory};
use crate::memory_use::{self, ProcessMemory};
use config::{Config, Victim};
use model::message;
use probe::memory;
use sys::report;
use sys::users;

/// Starts a thread that watches the memory until the agent ends: Slurm's answers can take long, and so can those about GPUs.
pub(super) fn watch(config: &Config, interval: Duration, node: &str) -> io::Result<()> {
    let mut watch = Watch { config: config.clone(), node: node.to_owned(), guard: None };
    let began = Instant::now();
    let body = move || {
        loop {
            watch.step(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
            pause(interval);
        }
    };
    thread::Builder::new().name("memory".to_owned()).spawn(body).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "memory causes no event; this thread does nothing else")]
fn pause(time: Duration) {
    thread::sleep(time);
}

struct Watch {
    config: Config,
    node: String,
    /// `None` until it is known whether an earlier agent drained the node.
    guard: Option<Guard>,
}

impl Watch {
    fn step(&mut self, now_ms: u64) {
        let Some(sample) = memory::sample(Path::new("/")) else { return };
        if self.guard.is_none() {
            self.guard = slurm::is_drained_for_memory(&self.node).map(Guard::new);
        }
        let actions =
            self.guard.as_mut().map(|guard| guard.step(now_ms, &sample, &self.config.memory)).unwrap_or_default();
        for action in actions {
            self.apply(action);
        }
    }

    fn apply(&mut self, action: Action) {
        let node = &self.node;
        let outcome = match action {
            Action::Drain(why) => {
                let level = self.config.memory.open_above;
                report::warn(message!(
                    "memory-low",
                    "{why}; node drained until more than {percent} % are free",
                    why = why,
                    percent = level
                ));
                slurm::drain_for_memory(node, &why)
            }
            Action::Resume => {
                report::info(message!("memory-recovered", "memory recovered; node resumed"));
                slurm::resume_after_memory(node)
            }
            Action::Cancel(which, why) => cancel(node, which, &why),
        };
        if let Err(why) = outcome {
            report::warn(message!("memory-action-failed", "the action failed: {why}; will retry", why = why));
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
        let belongs_to_job = |process: &&ProcessMemory| process.job == Some(job.job) && process.uid == job.uid;
        job.used = processes.iter().filter(belongs_to_job).map(|process| process.bytes).sum::<u64>() >> 20;
    }
    let users = memory_use::describe_users(&memory_use::by_user(&processes), users::display_name);
    match memory_guard::victim(&jobs, which) {
        Some(JobMemory { job, requested, used, .. }) => {
            slurm::cancel(job, why)?;
            let requested = requested.unwrap_or_default();
            report::warn(message!(
                "job-cancelled-for-memory",
                "{why}; cancelled job {job}, which uses {used} MiB and requested {requested}; {users}",
                why = why,
                job = job,
                used = used,
                requested = requested,
                users = users
            ));
        }
        None => report::warn(message!(
            "no-job-cancelled-for-memory",
            "{why}; no job uses more than it requested, so none is cancelled; {users}",
            why = why,
            users = users
        )),
    }
    Ok(())
}
