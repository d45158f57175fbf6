//! The thread that queries and updates Slurm, and has PID 1 reload. These tasks can take long, so the agent itself does not wait
//! for them.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ::slurm::client::{Client, limit};

use super::{files, prepared, slurm, unix_ms};
use config::Config;
use control::reload;
use faults::controller::{DrainOutcome, LeftOutGpu, SlurmNodeState};
use faults::sample::{Identity, Line};
use faults::usage::Job;
use machine::Outcome;
use model::prepared::Prepared;
use model::supervise::Supervise;
use sys::tool;

/// A task. Tasks run in the order in which they were queued.
#[derive(Debug)]
pub(super) enum Task {
    /// Drain the node for this reason.
    Drain(String),
    /// Query the jobs on the node.
    QueryJobs,
    /// Reload without these GPUs.
    Reload(Vec<LeftOutGpu>),
    /// Resume the node.
    Resume,
    /// Query the jobs that have, or had, GPUs of the node.
    QueryUsage,
    /// Write this to a job's output and AdminComment.
    Warn(u64, String),
    /// Set this node's mark of a job whose GPUs are idle here, or remove it.
    MarkIdle(u64, Option<u64>),
    /// Write this to a job's output and AdminComment, and cancel the job.
    Cancel(u64, String),
}

/// The result of a task.
#[derive(Debug)]
pub(super) enum TaskResult {
    Drained(DrainOutcome),
    /// The answer to a query, and when the query began.
    OnNode(Instant, Result<SlurmNodeState, String>),
    Reloaded(Result<Box<Prepared>, String>),
    Resumed(Result<(), String>),
    /// The answer to a query. `asked`: when the query began, in ms since 1970.
    Usage {
        asked: u64,
        jobs: Result<Vec<Job>, String>,
        hides_jobs: bool,
    },
    /// A job was warned or cancelled.
    Noted(Result<(), String>),
    /// A sample of a GPU that is closed except for such checks.
    Checked(Identity, Result<Line, String>),
}

/// The agent's handle of the thread.
#[derive(Debug)]
pub(super) struct Worker {
    tasks: Sender<Task>,
    done: Receiver<TaskResult>,
    sender: Sender<TaskResult>,
    wake_receiver: UnixStream,
    wake_sender: UnixStream,
}

/// The inputs of the thread.
struct Work {
    node: String,
    run: PathBuf,
    supervise: Supervise,
    /// Whether Slurm hides jobs, and when this was queried.
    hides_jobs: Option<(Instant, bool)>,
}

const PRIVACY_INTERVAL: Duration = Duration::from_secs(300);

impl Worker {
    pub(super) fn start(config: &Config, node: &str) -> std::io::Result<Self> {
        let (tasks, queued) = channel();
        let (sender, done) = channel();
        let (wake_receiver, wake_sender) = UnixStream::pair()?;
        wake_receiver.set_nonblocking(true)?;
        wake_sender.set_nonblocking(true)?;
        let (worker_sender, mut worker_wake) = (sender.clone(), wake_sender.try_clone()?);
        let mut work = Work {
            node: node.to_owned(),
            run: config.paths.run.clone(),
            supervise: config.supervise.clone(),
            hides_jobs: None,
        };
        thread::Builder::new().name("slurm".to_owned()).spawn(move || {
            for task in queued {
                if worker_sender.send(work.execute(&slurm::SLURM, task)).is_err() {
                    return;
                }
                // An error is ignored: a full pipe wakes the agent, too.
                let _ = worker_wake.write(&[0]);
            }
        })?;
        Ok(Self { tasks, done, sender, wake_receiver, wake_sender })
    }

    /// Queues a task.
    pub(super) fn queue(&self, task: Task) {
        // An error is ignored: the thread ends only with the agent.
        let _ = self.tasks.send(task);
    }

    /// A copy of the socket that wakes the agent, for signal handlers.
    pub(super) fn wake_sender(&self) -> std::io::Result<UnixStream> {
        self.wake_sender.try_clone()
    }

    /// Samples one GPU in a process that opens no other, and ends.
    pub(super) fn check(&self, gpu: &Identity, timeout: Duration) -> std::io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["look", "--vendor", gpu.vendor.as_str(), "--only"]).arg(serde_json::to_string(gpu)?);
        let (sender, mut wake_sender, gpu) = (self.sender.clone(), self.wake_sender.try_clone()?, gpu.clone());
        thread::Builder::new().name("check".to_owned()).spawn(move || {
            let line = match tool::output(&mut command, timeout) {
                Ok(output) => {
                    let lines = output.stdout.split(|byte| *byte == b'\n');
                    lines
                        .filter_map(|line| serde_json::from_slice(line).ok())
                        .next_back()
                        .ok_or("it ended without an answer".to_owned())
                }
                Err(error) => Err(error.to_string()),
            };
            let _ = sender.send(TaskResult::Checked(gpu, line));
            let _ = wake_sender.write(&[0]);
        })?;
        Ok(())
    }

    /// Readable when a task has been done.
    pub(super) fn wake_receiver(&self) -> BorrowedFd<'_> {
        self.wake_receiver.as_fd()
    }

    /// The results since the last call.
    pub(super) fn results(&mut self) -> Vec<TaskResult> {
        let mut bytes = [0; 64];
        while self.wake_receiver.read(&mut bytes).is_ok_and(|count| count > 0) {}
        self.done.try_iter().collect()
    }
}

impl Work {
    fn execute(&mut self, client: &Client, task: Task) -> TaskResult {
        match task {
            Task::Drain(reason) => TaskResult::Drained(slurm::drain(client, &self.node, &reason)),
            Task::QueryJobs => {
                let began = Instant::now();
                let client = Client::with_total_timeout(limit::COMMAND);
                TaskResult::OnNode(began, slurm::on_node(&client, &self.node).map_err(|error| format!("{error:#}")))
            }
            Task::Reload(without) => TaskResult::Reloaded(self.reload(&without)),
            Task::Resume => TaskResult::Resumed(slurm::resume(client, &self.node)),
            Task::Warn(job, note) => TaskResult::Noted(slurm::warn(client, job, &note)),
            Task::MarkIdle(job, at) => TaskResult::Noted(slurm::mark_idle(client, &self.node, job, at)),
            Task::Cancel(job, note) => TaskResult::Noted(slurm::cancel(client, job, &note)),
            Task::QueryUsage => {
                let asked = unix_ms();
                let jobs = slurm::gpu_jobs(client, &self.node).map_err(|error| format!("{error:#}"));
                TaskResult::Usage { asked, jobs, hides_jobs: self.hides_jobs(client) }
            }
        }
    }

    /// Whether Slurm's PrivateData hides jobs, which seldom changes. If Slurm does not respond, they are hidden.
    fn hides_jobs(&mut self, client: &Client) -> bool {
        match self.hides_jobs {
            Some((asked, hides)) if asked.elapsed() < PRIVACY_INTERVAL => hides,
            _ => {
                let hides = slurm::hides_jobs(client).unwrap_or(true);
                self.hides_jobs = Some((Instant::now(), hides));
                hides
            }
        }
    }

    fn reload(&self, without: &[LeftOutGpu]) -> Result<Box<Prepared>, String> {
        let former = files::left_out(&self.run);
        files::write_out(&self.run, without).map_err(|error| format!("{}: {error}", self.run.display()))?;
        let outcome = match reload::reload(&self.run, &self.supervise) {
            Ok(last) if matches!(last.outcome, Outcome::Applied | Outcome::Unchanged) => {
                prepared(&self.run).map(Box::new)
            }
            Ok(last) => Err(anyhow::anyhow!("{}", last.text)),
            Err(error) => Err(error),
        };
        outcome.map_err(|error| {
            // A later reload by another caller must find the list that is in use.
            let _ = files::write_out(&self.run, &former);
            format!("{error:#}")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn executes_queued_task_and_wakes_agent() {
        let config = Config::parse("[paths]\nrun = '/nonexistent/run'\n", Path::new("slurminit.toml")).unwrap();
        let mut worker = Worker::start(&config, "node1").unwrap();
        worker.queue(Task::Reload(Vec::new()));
        worker.wake_receiver.set_nonblocking(false).unwrap();
        worker.wake_receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        worker.wake_receiver.read_exact(&mut [0]).unwrap();
        worker.wake_receiver.set_nonblocking(true).unwrap();
        let results = worker.results();
        assert!(
            matches!(&results[..], [TaskResult::Reloaded(Err(why))] if why.starts_with("/nonexistent/run: ")),
            "{results:?}"
        );
    }
}
