//! Watches the container's memory, and applies the decisions of the guard.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::slurm;
use crate::memory_guard::{self, Action, Guard, JobMemory};
use crate::memory_use::{self, MemoryUse, ProcessMemory};
use config::{Config, Victim};
use model::message;
use probe::memory;
use sys::report;
use sys::users;

/// Starts a thread that watches the memory until the agent ends: Slurm's answers can take long, and so can those about GPUs.
pub(super) fn watch(config: &Config, interval: Duration, node: &str) -> io::Result<()> {
    let (config, node) = (config.clone(), node.to_owned());
    let mut watch =
        Watch { config, node, guard: Guard::default(), is_node_known: false, is_other_drain_reported: false };
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
    guard: Guard,
    /// Whether the guard has the state of the node, which an earlier agent may have drained.
    is_node_known: bool,
    /// Whether the log has that the node is drained for another reason while memory is low.
    is_other_drain_reported: bool,
}

impl Watch {
    fn step(&mut self, now_ms: u64) {
        let Some(sample) = memory::sample(Path::new("/")) else { return };
        if !self.is_node_known {
            let Some(is_closed) = slurm::is_drained_for_memory(&self.node) else { return };
            (self.guard.is_closed, self.is_node_known) = (is_closed, true);
        }
        for action in self.guard.step(now_ms, &sample, &self.config.memory) {
            if let Err(why) = self.apply(action) {
                report::warn(message!("memory-action-failed", "the action failed: {why}; will retry", why));
                self.is_node_known = false;
            }
        }
    }

    fn apply(&mut self, action: Action) -> Result<(), String> {
        let node = &self.node;
        match action {
            Action::Drain(why) => {
                let is_drained = slurm::drain_for_memory(node, &why)?;
                if is_drained {
                    report::warn(message!(
                        "memory-low",
                        "{why}; node drained until more than {percent} % are free",
                        why,
                        percent = self.config.memory.open_above
                    ));
                } else if !self.is_other_drain_reported {
                    report::warn(message!("memory-low", "{why}; the node is drained for another reason", why));
                }
                // Another's drain can end before memory is free.
                (self.guard.is_closed, self.is_other_drain_reported) = (is_drained, !is_drained);
            }
            Action::Resume => match slurm::resume_after_memory(node)? {
                true => report::info(message!("memory-recovered", "memory recovered; node resumed")),
                false => report::info(message!(
                    "memory-recovered",
                    "memory recovered; the node was not resumed, because it is not drained for its memory any more"
                )),
            },
            Action::Cancel(which, why) => cancel(node, which, &why)?,
        }
        Ok(())
    }
}

/// Cancels a job that uses more than it requested, if its user has the most memory, and names the users with the most memory.
fn cancel(node: &str, which: Victim, why: &str) -> Result<(), String> {
    let mut jobs = slurm::running(node)?;
    let MemoryUse { processes, users } = memory_use::read();
    for job in &mut jobs {
        // A process can claim to belong to another user's job.
        let belongs_to_job = |process: &&ProcessMemory| process.job == Some(job.job) && process.uid == job.uid;
        job.used = processes.iter().filter(belongs_to_job).map(|process| process.bytes).sum::<u64>() >> 20;
    }
    let mib_by_user = users.iter().map(|(uid, memory)| (*uid, memory.sum() >> 20)).collect();
    let users = memory_use::describe_users(&users, users::display_name);
    match memory_guard::victim(&jobs, &mib_by_user, which) {
        Some(JobMemory { job, requested, used, .. }) => {
            slurm::cancel(job, &format!("cancelled, because the node's {why}"))?;
            let requested = requested.unwrap_or_default();
            report::warn(message!(
                "job-cancelled-for-memory",
                "{why}; cancelled job {job}, which uses {used} MiB and requested {requested}; {users}",
                why,
                job,
                used,
                requested,
                users
            ));
        }
        None => report::warn(message!(
            "no-job-cancelled-for-memory",
            "{why}; no job cancelled: no job of the user with the most unrequested memory exceeds its request; {users}",
            why,
            users
        )),
    }
    Ok(())
}
