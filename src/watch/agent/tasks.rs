//! The thread that queries and updates Slurm, and requests reloads from PID 1. These tasks can take a long time, so the agent's main thread
//! does not wait for them.

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
    /// Query the state of the node and the jobs that have its GPUs.
    QueryJobs,
    /// Reload without these GPUs.
    Reload(Vec<LeftOutGpu>),
    /// Resume the node.
    Resume,
    /// Query the jobs of the node, including those that ended in the last few minutes, and whether Slurm hides jobs.
    QueryUsage,
    /// Write this text to a job's output and AdminComment.
    Warn(u64, String),
    /// Set this node's mark in the AdminComment of a job whose GPUs are idle here, or remove the mark.
    MarkIdle(u64, Option<u64>),
    /// Write this text to a job's output and AdminComment, and cancel the job.
    Cancel(u64, String),
}

/// The result of a task or a check.
#[derive(Debug)]
pub(super) enum TaskResult {
    Drained(DrainOutcome),
    /// The answer to [`Task::QueryJobs`], and when the query began.
    OnNode(Instant, Result<SlurmNodeState, String>),
    Reloaded(Result<Box<Prepared>, String>),
    Resumed(Result<(), String>),
    /// The answer to [`Task::QueryUsage`]. `asked`: when the query began, in ms since 1970.
    Usage {
        asked: u64,
        jobs: Result<Vec<Job>, String>,
        hides_jobs: bool,
    },
    /// The outcome of [`Task::Warn`] or [`Task::Cancel`].
    Noted(Result<(), String>),
    /// The outcome of [`Task::MarkIdle`] for this job.
    Marked(u64, Result<(), String>),
    /// The last line of a check of this GPU, which is closed except for such checks.
    Checked(Identity, Result<Line, String>),
}

/// The agent's handle to the thread.
#[derive(Debug)]
pub(super) struct Worker {
    tasks: Sender<Task>,
    done: Receiver<TaskResult>,
    sender: Sender<TaskResult>,
    wake_receiver: UnixStream,
    wake_sender: UnixStream,
}

/// The state of the thread.
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
                // An error is ignored: a full socket wakes the agent, too.
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

    /// Samples one GPU in a new process that opens no other GPU. The result is a [`TaskResult::Checked`].
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
                        .ok_or("the process ended without an answer".to_owned())
                }
                Err(error) => Err(error.to_string()),
            };
            let _ = sender.send(TaskResult::Checked(gpu, line));
            let _ = wake_sender.write(&[0]);
        })?;
        Ok(())
    }

    /// Readable when a task or a check is done, or a signal has arrived.
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
            Task::MarkIdle(job, at) => TaskResult::Marked(job, slurm::mark_idle(client, &self.node, job, at)),
            Task::Cancel(job, note) => TaskResult::Noted(slurm::cancel(client, job, &note)),
            Task::QueryUsage => {
                let asked = unix_ms();
                let jobs = slurm::gpu_jobs(client, &self.node).map_err(|error| format!("{error:#}"));
                TaskResult::Usage { asked, jobs, hides_jobs: self.hides_jobs(client) }
            }
        }
    }

    /// Whether Slurm's PrivateData hides jobs. The answer is cached for [`PRIVACY_INTERVAL`]; `true` if Slurm does not respond.
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
            // A later reload by another caller must use the list that is in effect.
            let _ = files::write_out(&self.run, &former);
            format!("{error:#}")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;
    use crate::fake_slurm::FakeSlurm;
    use machine::protocol::{self, Reply};
    use machine::{LastReload, STATUS_FILE, Snapshot, Status};

    #[test]
    fn privacy_of_jobs_is_asked_again_after_some_minutes() {
        let config = Config::default();
        let (run, supervise) = (config.paths.run, config.supervise);
        let mut work = Work { node: "c1".to_owned(), run, supervise, hides_jobs: None };
        let mut hides = |answer: Result<&str, &str>, asked: Option<(Duration, bool)>| {
            if let Some((ago, hides)) = asked {
                work.hides_jobs = Some((Instant::now().checked_sub(ago).unwrap(), hides));
            }
            let slurm = FakeSlurm::new(&[("scontrol show config", answer)]);
            (work.hides_jobs(&Client::with_runner(&slurm.run())), slurm.commands("").len())
        };
        let (public, private) = (Ok("PrivateData = none\n"), Ok("PrivateData = jobs\n"));
        assert_eq!(hides(public, None), (false, 1));
        assert_eq!(hides(private, None), (false, 0), "the answer is kept");
        assert_eq!(hides(private, Some((Duration::from_secs(299), false))), (false, 0));
        assert_eq!(hides(private, Some((PRIVACY_INTERVAL, false))), (true, 1));
        assert_eq!(hides(Err("no answer"), Some((PRIVACY_INTERVAL, false))), (true, 1));
        assert_eq!(hides(public, Some((PRIVACY_INTERVAL, true))), (false, 1));
    }

    /// Answers one reload request as PID 1 would, with a status whose last reload has this outcome and text.
    fn serve_reload(run: &Path, outcome: Outcome, text: &str) -> thread::JoinHandle<()> {
        let last = LastReload { serves: 1, at_ms: 0, outcome, text: text.to_owned() };
        let mut snapshot = Snapshot {
            prepared: Some(Prepared { node_name: "c1".to_owned(), ..Prepared::default() }),
            ..Snapshot::default()
        };
        snapshot.reload.last = Some(last);
        let status = Status { version: "0".to_owned(), process: sys::proc::own_id(), started_ms: 0, snapshot };
        fs::write(run.join(STATUS_FILE), serde_json::to_string(&status).unwrap()).unwrap();
        let listener = UnixListener::bind(protocol::socket(run)).unwrap();
        thread::spawn(move || {
            let mut client = BufReader::new(listener.accept().unwrap().0);
            client.read_until(b'\n', &mut Vec::new()).unwrap();
            client.get_mut().write_all(&protocol::line(&Reply::Reloading { asked: 1 })).unwrap();
        })
    }

    #[test]
    fn list_of_excluded_gpus_is_kept_only_if_the_reload_applied_it() {
        let gpu = |index| LeftOutGpu { gpu: Identity { index, ..Identity::default() }, ..LeftOutGpu::default() };
        for (outcome, is_applied) in [
            (Outcome::Applied, true),
            (Outcome::Unchanged, true),
            (Outcome::Refused, false),
            (Outcome::RolledBack, false),
        ] {
            let run = tempfile::tempdir().unwrap();
            files::write_out(run.path(), &[gpu(0)]).unwrap();
            let pid_1 = serve_reload(run.path(), outcome, "the reload failed");
            let supervise = Config::default().supervise;
            let work = Work { node: "c1".to_owned(), run: run.path().to_owned(), supervise, hides_jobs: None };
            let result = work.reload(&[gpu(1)]).map(|prepared| prepared.node_name);
            pid_1.join().unwrap();
            let expected = if is_applied { Ok("c1".to_owned()) } else { Err("the reload failed".to_owned()) };
            assert_eq!(result, expected, "{outcome:?}");
            let kept: Vec<u32> = files::left_out(run.path()).iter().map(|out| out.gpu.index).collect();
            assert_eq!(kept, [u32::from(is_applied)], "{outcome:?}");
        }
    }

    #[test]
    fn executes_queued_task_and_wakes_agent() {
        let config = Config::parse("[paths]\nrun = '/dev/null/run'\n", Path::new("slurminit.toml")).unwrap();
        let mut worker = Worker::start(&config, "node1").unwrap();
        worker.queue(Task::Reload(Vec::new()));
        worker.wake_receiver.set_nonblocking(false).unwrap();
        worker.wake_receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        worker.wake_receiver.read_exact(&mut [0]).unwrap();
        worker.wake_receiver.set_nonblocking(true).unwrap();
        let results = worker.results();
        assert!(
            matches!(&results[..], [TaskResult::Reloaded(Err(why))] if why.starts_with("/dev/null/run: ")),
            "{results:?}"
        );
    }
}
