//! `slurminit agent`: monitors the GPUs while the container runs, and, if configured, memory and directories.
//!
//! It runs as root, loads no vendor library and opens no port. The samples come from the processes that `watcher` starts, whose only right
//! is to open GPUs; [`faults::controller`] decides the actions.

mod checks;
pub mod files;
mod guard;
mod notify;
pub mod rights;
mod slurm;
mod tasks;
pub mod usage;
mod watcher;

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use checks::CheckSchedule;
use config::Config;
use control::status;
use faults::controller::{Action, Clock, HealthController, Recount};
use faults::fault::FaultKind;
use faults::report::Report;
use faults::sample::{Identity, Line};
use faults::usage::{IdleAction, IdleJob};
use guard::Resource;
use model::inventory::Vendor;
use model::message;
use model::prepared::Prepared;
use model::printable;
use model::process_id::ProcessId;
use notify::{Event, JobEvent};
use probe::vendor;
use sys::proc;
use sys::report;
use tasks::{Task, TaskResult, Worker};
use watcher::{Watcher, WatcherEvent};

/// Runs the agent until SIGTERM or SIGINT. Returns at once if the configuration has no sampling interval.
///
/// # Errors
/// PID 1 has not finished the start, its status cannot be read, or a signal handler or thread cannot be set up.
pub fn run(config: &Config, root: &Path) -> anyhow::Result<()> {
    let Some(interval) = config.agent.interval else { return Ok(()) };
    let is_stopping = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&is_stopping))?;
    }
    let mut agent = Agent::new(config, root, interval)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGUSR1] {
        // A signal may interrupt another thread, so it also wakes this one through a pipe.
        signal_hook::low_level::pipe::register(signal, agent.worker.wake_sender()?)?;
    }
    while !is_stopping.load(Ordering::Relaxed) {
        agent.run_once();
    }
    agent.clear_faults();
    agent.usage.save();
    Ok(())
}

struct Agent<'a> {
    config: &'a Config,
    node: String,
    health: HealthController,
    watchers: Vec<Watcher>,
    worker: Worker,
    notifier: notify::Notifier<'a>,
    usage: usage::Keeper,
    checks: CheckSchedule,
    began: Instant,
    last_report: Option<Report>,
    has_warned: bool,
}

impl<'a> Agent<'a> {
    fn new(config: &'a Config, root: &Path, interval: Duration) -> anyhow::Result<Self> {
        let run = &config.paths.run;
        let prepared = prepared(&config.paths.run)?;
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        let (former, applied) = (files::former_report(run), files::left_out(run));
        let recount = recount(config, &prepared.node_name);
        let mut health = HealthController::new(config.faults.clone(), interval_ms, recount, former.as_ref(), &applied);
        health.set_offered(offered(&prepared));
        health.set_awaited(prepared.awaited.clone());
        let node = prepared.node_name.clone();
        let vendors = Vendor::ALL.into_iter().filter(|vendor| vendor::probe_of(*vendor).has_traces(root));
        let began = Instant::now();
        if is_guard_needed(config, &prepared) {
            guard::watch(Resource::Memory, config.memory.clone(), interval, &node)?;
        }
        for limit in &config.node.directory_limits {
            guard::watch(Resource::directory(limit), guard::directory_levels(), interval, &node)?;
        }
        let mut agent = Self {
            config,
            worker: Worker::start(config, &node)?,
            node,
            health,
            watchers: vendors.map(|vendor| Watcher::new(vendor, config, interval)).collect(),
            notifier: notify::Notifier::new(&config.notifies),
            usage: usage::Keeper::new(config, &prepared, interval_ms),
            checks: CheckSchedule::new(interval),
            began,
            last_report: None,
            has_warned: false,
        };
        // The first watcher process must not open GPUs that the previous agent had closed.
        agent.close_and_check(began);
        Ok(agent)
    }

    fn now(&self) -> Clock {
        self.clock(Instant::now())
    }

    fn clock(&self, at: Instant) -> Clock {
        let ms = at.saturating_duration_since(self.began).as_millis();
        Clock { ms: u64::try_from(ms).unwrap_or(u64::MAX), unix: unix() }
    }

    /// Waits for the next event or deadline, and handles it.
    fn run_once(&mut self) {
        self.wait();
        let instant = Instant::now();
        for index in 0..self.watchers.len() {
            let Some(watcher) = self.watchers.get_mut(index) else { break };
            let (vendor, events) = (watcher.vendor, watcher.step(instant));
            for event in events {
                self.handle_event(vendor, event);
            }
        }
        for result in self.worker.results() {
            self.handle_result(result);
        }
        self.close_and_check(instant);
        let actions = self.health.step(self.now());
        actions.into_iter().for_each(|action| self.apply(action));
        self.notifier.step(instant, &self.node);
        self.write();
    }

    /// Closes the GPUs that are excluded from jobs, if the vendor's tools refuse an open GPU. They are then opened only for short periodic
    /// checks, and not even for these while they are released.
    fn close_and_check(&mut self, now: Instant) {
        self.health.set_released(&files::released(&self.config.paths.run));
        let mut closed = BTreeSet::new();
        let mut to_check = Vec::new();
        let needs_closed_gpu = |watcher: &&mut Watcher| watcher.vendor.traits().fix.needs_closed_gpu;
        for watcher in self.watchers.iter_mut().filter(needs_closed_gpu) {
            watcher.close(now, self.health.gpus_to_close(watcher.vendor));
            closed.extend(watcher.closed_keys());
            to_check.extend(self.health.gpus_to_check(watcher.vendor));
        }
        for gpu in self.checks.begin(now, to_check, |key| self.health.is_returning(key)) {
            if self.worker.check(&gpu, self.config.agent.timeout).is_err() {
                self.checks.end(now, &gpu.key());
            }
        }
        closed.retain(|key| !self.checks.is_running(key));
        self.health.set_closed(closed);
    }

    fn wait(&self) {
        let waits: Vec<_> = self.watchers.iter().map(Watcher::poll_source).collect();
        let now = Instant::now();
        let due = self.health.next_deadline().map(|ms| self.began + Duration::from_millis(ms));
        let until = waits.iter().map(|(_, until)| *until).chain(due).chain(self.notifier.due(now)).min();
        // Without GPUs there is nothing to monitor.
        let left = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(now));
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let pipes = waits.iter().filter_map(|(pipe, _)| *pipe).chain([self.worker.wake_receiver()]);
        let mut fds: Vec<PollFd<'_>> = pipes.map(|pipe: BorrowedFd<'_>| PollFd::new(pipe, PollFlags::POLLIN)).collect();
        // A signal ends the wait, too.
        let _ = poll(&mut fds, timeout);
    }

    fn handle_event(&mut self, vendor: Vendor, event: WatcherEvent) {
        let now = self.now();
        match event {
            WatcherEvent::Started => self.health.on_watcher_restart(vendor),
            WatcherEvent::Line(Line::Listed { gpus }) => {
                // The output is untrusted: a watcher may report only GPUs of its own vendor.
                let own: Vec<Identity> = gpus.into_iter().filter(|gpu| gpu.vendor == vendor).collect();
                self.usage.set_listed(vendor, &own);
                self.health.begin_round(now, vendor, own);
            }
            WatcherEvent::Line(Line::Seen { gpu, seen }) => {
                self.usage.add_sample(&gpu, &seen);
                self.health.add_sample(now, &gpu, *seen);
            }
            WatcherEvent::Line(Line::Done) => {
                // A reload by another caller may have changed the offered GPUs.
                if let Ok(prepared) = prepared(&self.config.paths.run) {
                    self.health.set_offered(offered(&prepared));
                    self.usage.set_offered(&prepared.gpus);
                    self.health.set_awaited(prepared.awaited);
                }
                self.health.end_round(now, vendor);
                if self.usage.end_round(Instant::now()) {
                    self.worker.queue(Task::QueryUsage);
                }
            }
            WatcherEvent::Line(Line::Event { gpu, xid }) => {
                self.usage.add_error(gpu.as_ref());
                self.health.add_event(now, gpu.as_ref(), xid);
            }
            WatcherEvent::Line(Line::Reset { gpu, phase }) => self.health.on_reset(now, vendor, &gpu, &phase),
            WatcherEvent::Line(Line::Trouble { kind, what }) => {
                self.health.add_failure(now, vendor, None, kind, &printable::line(&what))
            }
            WatcherEvent::Line(Line::Opening { gpu }) if gpu.vendor == vendor => self.health.on_gpu_opening(now, gpu),
            WatcherEvent::Line(Line::Opening { .. } | Line::Asking { .. }) => {}
            WatcherEvent::Waiting(gpu) => {
                let (name, maker) = (self.health.name_of(&gpu), vendor.traits().maker);
                report::info(message!(
                    "gpus-initializing",
                    "waiting for the {maker} driver to initialize {gpu}",
                    maker,
                    gpu = name
                ));
            }
            WatcherEvent::TimedOut(gpu, time) => {
                let gpu = gpu.map(|gpu| self.health.key_of(&gpu));
                let what = format!("no answer within {:.1} s", time.as_secs_f64());
                self.health.add_failure(now, vendor, gpu.as_ref(), FaultKind::Silent, &what);
            }
            WatcherEvent::Crashed(gpu, how) => {
                let gpu = gpu.map(|gpu| self.health.key_of(&gpu));
                let what = format!("the process that queries the driver crashed repeatedly ({how})");
                self.health.add_failure(now, vendor, gpu.as_ref(), FaultKind::Silent, &what);
            }
            WatcherEvent::Restarted(why) => {
                report::warn(message!(
                    "gpus-not-read",
                    "could not query the {maker} GPUs: {why}",
                    maker = vendor.traits().maker,
                    why
                ));
            }
        }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Log(level, message) => report::write(level, message),
            Action::Drain { reason } => self.worker.queue(Task::Drain(printable::line(&reason).into_owned())),
            Action::QueryJobs => self.worker.queue(Task::QueryJobs),
            Action::Reload { without } => self.worker.queue(Task::Reload(without)),
            Action::Resume => self.worker.queue(Task::Resume),
            Action::Notify(fault) => self.notifier.notify(Instant::now(), &Event::Fault(fault)),
        }
    }

    /// Handles the result of a task.
    fn handle_result(&mut self, result: TaskResult) {
        let now = self.now();
        match result {
            TaskResult::Drained(outcome) => self.health.on_drain_outcome(now, &outcome),
            TaskResult::OnNode(began, answer) => {
                let had_warned = std::mem::replace(&mut self.has_warned, answer.is_err());
                if let (Err(why), false) = (&answer, had_warned) {
                    report::warn(message!("jobs-of-gpus-unknown", "cannot determine which jobs hold GPUs: {why}", why));
                }
                self.health.on_node_state(now, self.clock(began), answer.ok().as_ref());
            }
            TaskResult::Reloaded(outcome) => {
                let outcome = outcome.map(|prepared| {
                    self.health.set_awaited(prepared.awaited.clone());
                    offered(&prepared)
                });
                self.health.on_reload_outcome(now, outcome);
            }
            TaskResult::Checked(gpu, line) => {
                let key = self.health.key_of(&gpu);
                self.checks.end(Instant::now(), &key);
                match line {
                    Ok(Line::Seen { seen, .. }) => self.health.add_sample(now, &key, *seen),
                    Ok(Line::Trouble { kind, what }) => {
                        self.health.add_failure(now, gpu.vendor, Some(&key), kind, &printable::line(&what));
                    }
                    Ok(_) => {}
                    Err(why) => {
                        let what = format!("could not check the GPU: {}", printable::line(&why));
                        self.health.add_failure(now, gpu.vendor, Some(&key), FaultKind::Silent, &what);
                    }
                }
            }
            TaskResult::Resumed(Err(why)) => {
                report::warn(message!("node-not-resumed", "cannot resume the node: {why}; will retry", why))
            }
            TaskResult::Resumed(Ok(())) | TaskResult::Noted(Ok(())) | TaskResult::Marked(_, Ok(())) => {}
            TaskResult::Marked(job, Err(why)) => {
                report::warn(message!(
                    "idle-job-not-marked",
                    "cannot record in the AdminComment of job {job} whether its GPUs are idle: {why}",
                    job,
                    why
                ));
            }
            TaskResult::Noted(Err(why)) => {
                report::warn(message!(
                    "idle-job-not-cancelled",
                    "cannot warn the user of a job with idle GPUs, or cannot cancel the job: {why}",
                    why = why
                ));
            }
            TaskResult::Usage { asked, jobs, hides_jobs } => {
                for idle in self.usage.update(asked, jobs, hides_jobs) {
                    self.handle_idle(idle);
                }
                for event in self.usage.take_ends() {
                    self.notifier.notify(Instant::now(), &Event::Job(event));
                }
                for (job, at) in self.usage.idle_marks() {
                    self.worker.queue(Task::MarkIdle(job, at));
                }
            }
        }
    }

    /// Logs a job that does not use its GPUs, notifies the receivers, and, if configured, warns the job's user or cancels the job.
    fn handle_idle(&mut self, idle: IdleJob) {
        let minutes = idle.seconds / 60;
        let time = if minutes == 0 { format!("{} s", idle.seconds) } else { format!("{minutes} min") };
        let (below, job, user) = (self.config.gpu.idle.below, idle.job, printable::short(&idle.user, 100));
        report::warn(match idle.action {
            IdleAction::Cancel => message!(
                "idle-job-cancelled",
                "cancelling job {job} of {user}: GPU use below {below} % for {time}, for the second time",
                job = job,
                user = user,
                below = below,
                time = time
            ),
            _ => message!(
                "idle-job",
                "job {job} of {user}: GPU use below {below} % for {time}",
                job = job,
                user = user,
                below = below,
                time = time
            ),
        });
        let why = format!("GPU use of this job was below {below} % for {time}");
        let event = JobEvent {
            at: unix(),
            kind: JobEvent::kind(idle.action),
            job: self.usage.job_use(job).unwrap_or_default(),
            line: format!("job {job} of {user}: GPU use was below {below} % for {time}"),
        };
        self.notifier.notify(Instant::now(), &Event::Job(event));
        if let Some(task) = idle_task(job, idle.action, self.config.gpu.idle.action, &why) {
            self.worker.queue(task);
        }
    }

    fn write(&mut self) {
        let mut report = self.health.report(proc::own_id());
        self.usage.describe(&mut report);
        if self.last_report.as_ref() == Some(&report) {
            return;
        }
        if let Err(error) = files::write_report(&self.config.paths.run, &report) {
            report::warn(message!(
                "gpu-report-not-written",
                "cannot write the GPU report to {directory}: {error}",
                directory = self.config.paths.run.display(),
                error
            ));
        }
        self.last_report = Some(report);
    }

    /// Clears the faults in the report: an operator who restarts the agent expects new samples.
    fn clear_faults(&self) {
        let mut report = self.health.report(ProcessId::default());
        report.gpus.iter_mut().for_each(|gpu| gpu.faults.clear());
        let _ = files::write_report(&self.config.paths.run, &report);
    }
}

/// The task, if any, for a job that does not use its GPUs. `most`: the strongest configured action.
fn idle_task(job: u64, action: IdleAction, most: IdleAction, why: &str) -> Option<Task> {
    match (action, most) {
        (IdleAction::Warn, IdleAction::Cancel) => {
            let note = format!("{why}; the job will be cancelled if this continues for as long again");
            Some(Task::Warn(job, note))
        }
        (IdleAction::Warn, _) => Some(Task::Warn(job, why.to_owned())),
        (IdleAction::Cancel, _) => Some(Task::Cancel(job, format!("cancelled: {why}, again"))),
        _ => None,
    }
}

fn recount(config: &Config, node: &str) -> Recount {
    match config.has_dynamic_node() {
        false => Recount::WithoutGpuJobs,
        true if config.autoscale.has(node) => Recount::Never,
        true => Recount::WithoutJobs,
    }
}

/// Whether the memory guard is on; it is unnecessary if Slurm limits memory by cgroups.
fn is_guard_needed(config: &Config, prepared: &Prepared) -> bool {
    match (config.memory.guard, prepared.without_cgroups) {
        (true, false) => {
            report::info(message!(
                "memory-guard-off",
                "`[memory] guard` has no effect on a node where Slurm can use cgroups"
            ));
            false
        }
        (guard, _) => guard,
    }
}

fn prepared(run: &Path) -> anyhow::Result<Prepared> {
    let status = status::read(run)?;
    status.snapshot.prepared.ok_or_else(|| anyhow::anyhow!("the start has not finished"))
}

fn offered(prepared: &Prepared) -> Vec<Identity> {
    prepared.gpus.iter().map(Identity::from).collect()
}

/// Seconds since 1970.
pub fn unix() -> u64 {
    unix_ms() / 1000
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "faults and jobs have dates, which outlive the agent")]
pub fn unix_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_memory_where_slurm_does_not() {
        for (guard, without_cgroups, is_needed) in
            [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
        {
            let config = Config::parse(&format!("[memory]\nguard = {guard}\n"), Path::new("slurminit.toml")).unwrap();
            let prepared = Prepared { without_cgroups, ..Prepared::default() };
            assert_eq!(is_guard_needed(&config, &prepared), is_needed, "{guard} {without_cgroups}");
        }
    }

    #[test]
    fn warning_to_idle_job_announces_cancel_only_if_configured() {
        let task = |action, most| idle_task(7, action, most, "GPU use was low");
        for (action, most, warning) in [
            (IdleAction::Warn, IdleAction::Warn, Some("GPU use was low")),
            (
                IdleAction::Warn,
                IdleAction::Cancel,
                Some("GPU use was low; the job will be cancelled if this continues for as long again"),
            ),
            (IdleAction::Report, IdleAction::Report, None),
        ] {
            let note = task(action, most).map(|task| match task {
                Task::Warn(7, note) => note,
                other => panic!("{other:?}"),
            });
            assert_eq!(note.as_deref(), warning);
        }
        let cancel = task(IdleAction::Cancel, IdleAction::Cancel);
        assert!(
            matches!(&cancel, Some(Task::Cancel(7, note)) if note == "cancelled: GPU use was low, again"),
            "{cancel:?}"
        );
    }

    #[test]
    fn changes_gpu_count_without_gpu_jobs_or_without_any() {
        let recount = |toml: &str| recount(&Config::parse(toml, Path::new("slurminit.toml")).unwrap(), "burst-1");
        assert_eq!(recount(""), Recount::WithoutGpuJobs);
        assert_eq!(recount("role = 'compute'\n[slurm]\ncontroller = 'head'\n"), Recount::WithoutJobs);
        let nodes = "[[autoscale.nodes]]\nname = 'burst-[1-2]'\ncpus = 1\nmemory_mib = 1000\n";
        let cloud = format!("role = 'compute'\n[slurm]\ncontroller = 'head'\n{nodes}");
        assert_eq!(recount(&cloud), Recount::Never);
    }
}
