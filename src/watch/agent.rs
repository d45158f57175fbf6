//! `slurminit agent`: monitors the GPUs while the container runs.
//!
//! It runs as root, loads no vendor library and opens no port. The samples come from [`watcher`]'s processes, whose only right is
//! to open GPUs; `gpu_health` decides the actions.

pub mod files;
mod memory;
mod notify;
pub mod rights;
mod slurm;
mod watcher;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use config::Config;
use init::reloading;
use init::status;
use machine::Outcome;
use model::faults::fault::FaultKind;
use model::faults::look::Line;
use model::faults::report::Report;
use model::faults::ward::{Act, Clock, Offered, Recount, Ward};
use model::inventory::Vendor;
use model::prepared::Prepared;
use model::printable;
use probe::vendor;
use watcher::{Watcher, WatcherEvent};

/// Monitors the GPUs until SIGTERM.
///
/// # Errors
/// The run directory or PID 1 does not exist.
pub fn run(config: &Config, root: &Path) -> anyhow::Result<()> {
    let Some(interval) = config.agent.interval else { return Ok(()) };
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ends))?;
    }
    let mut agent = Agent::new(config, root, interval)?;
    while !ends.load(Ordering::Relaxed) {
        agent.turn();
    }
    agent.forget();
    Ok(())
}

struct Agent<'a> {
    config: &'a Config,
    node: String,
    ward: Ward,
    watchers: Vec<Watcher>,
    memory: Option<memory::Watch<'a>>,
    notifier: notify::Notifier<'a>,
    began: Instant,
    last: Option<Report>,
    complained: bool,
}

impl<'a> Agent<'a> {
    fn new(config: &'a Config, root: &Path, interval: Duration) -> anyhow::Result<Self> {
        let run = &config.paths.run;
        let prepared = prepared(config)?;
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        let (former, applied) = (files::former_report(run), files::left_out(run));
        let recount = recount(config, &prepared.node_name);
        let mut ward = Ward::new(config.faults.clone(), interval_ms, recount, former.as_ref(), &applied);
        ward.offer(offered(&prepared));
        let node = prepared.node_name.clone();
        let vendors = Vendor::ALL.into_iter().filter(|vendor| vendor::of(*vendor).has_traces(root));
        let began = Instant::now();
        Ok(Self {
            config,
            node,
            ward,
            memory: guards(config, &prepared).then(|| memory::Watch::new(config, interval, began)),
            watchers: vendors.map(|vendor| Watcher::new(vendor, config, interval)).collect(),
            notifier: notify::Notifier::new(&config.notifies),
            began,
            last: None,
            complained: false,
        })
    }

    fn now(&self) -> Clock {
        Clock { ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX), unix: unix() }
    }

    /// Waits for the next event or deadline, and handles it.
    fn turn(&mut self) {
        self.wait();
        let instant = Instant::now();
        for index in 0..self.watchers.len() {
            let Some(watcher) = self.watchers.get_mut(index) else { break };
            let (vendor, heard) = (watcher.vendor, watcher.step(instant));
            for heard in heard {
                self.take(vendor, heard);
            }
        }
        // An action can have a result that requires further actions.
        for _ in 0..8 {
            let acts = self.ward.step(self.now());
            if acts.is_empty() {
                break;
            }
            acts.into_iter().for_each(|act| self.act(act));
        }
        let (now, node) = (self.now(), &self.node);
        self.memory.iter_mut().for_each(|memory| memory.step(instant, now.ms, node));
        self.notifier.step(instant, node);
        self.write();
    }

    fn wait(&self) {
        let waits: Vec<_> = self.watchers.iter().map(Watcher::waits).collect();
        let now = Instant::now();
        let due = self.ward.next().map(|ms| self.began + Duration::from_millis(ms));
        let until = waits
            .iter()
            .map(|(_, until)| *until)
            .chain(due)
            .chain(self.memory.as_ref().map(memory::Watch::due))
            .chain(self.notifier.due(now))
            .min();
        // Without GPUs there is nothing to monitor.
        let left = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(now));
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let pipes = waits.iter().filter_map(|(pipe, _)| *pipe);
        let mut fds: Vec<PollFd<'_>> = pipes.map(|pipe: BorrowedFd<'_>| PollFd::new(pipe, PollFlags::POLLIN)).collect();
        // A signal ends the wait, too.
        let _ = poll(&mut fds, timeout);
    }

    fn take(&mut self, vendor: Vendor, heard: WatcherEvent) {
        let now = self.now();
        match heard {
            WatcherEvent::Started => self.ward.watcher_restarted(vendor),
            WatcherEvent::Line(Line::Listed { gpus }) => {
                // A process reports only GPUs of its own vendor.
                let own = gpus.into_iter().filter(|gpu| gpu.vendor == vendor).collect();
                self.ward.listed(now, vendor, own);
            }
            WatcherEvent::Line(Line::Seen { gpu, seen }) => self.ward.seen(now, &gpu, *seen),
            WatcherEvent::Line(Line::Done) => {
                // A reload by another caller may have changed the list.
                if let Ok(prepared) = prepared(self.config) {
                    self.ward.offer(offered(&prepared));
                }
                self.ward.done(now, vendor);
            }
            WatcherEvent::Line(Line::Event { gpu, xid }) => self.ward.event(now, gpu.as_ref(), xid),
            WatcherEvent::Line(Line::Reset { gpu, phase }) => self.ward.reset(now, vendor, &gpu, &phase),
            WatcherEvent::Line(Line::Trouble { kind, what }) => {
                self.ward.trouble(now, vendor, None, kind, &printable::line(&what))
            }
            WatcherEvent::Line(Line::Asking { .. }) => {}
            WatcherEvent::TimedOut(gpu, time) => {
                let what = format!("no answer within {:.1} s", time.as_secs_f64());
                self.ward.trouble(now, vendor, gpu.as_ref(), FaultKind::Silent, &what);
            }
            WatcherEvent::Crashed(gpu, how) => {
                let what = format!("the process that queries it crashes ({how})");
                self.ward.trouble(now, vendor, gpu.as_ref(), FaultKind::Silent, &what);
            }
            WatcherEvent::Restarted(why) => {
                say(false, &format!("reading the {} GPUs failed: {why}", vendor.traits().maker))
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Say { is_good, line } => say(is_good, &line),
            Act::Drain { reason } => {
                let outcome = slurm::drain(&self.node, &printable::line(&reason));
                self.ward.drained(self.now(), &outcome);
            }
            Act::Ask => {
                let asked = self.now();
                let answer = slurm::on_node(&self.node);
                if let Err(error) = &answer {
                    if !std::mem::replace(&mut self.complained, true) {
                        say(false, &format!("cannot determine which jobs have GPUs: {error:#}"));
                    }
                }
                self.complained &= answer.is_err();
                self.ward.on_node(self.now(), asked, answer.ok().as_ref());
            }
            Act::Reload { without } => {
                let outcome = self.reload(&without);
                self.ward.reloaded(self.now(), outcome);
            }
            Act::Notify(told) => self.notifier.tell(Instant::now(), &told),
            Act::Resume => {
                if let Err(why) = slurm::resume(&self.node) {
                    say(false, &format!("cannot resume the node: {why}; will retry"));
                }
            }
        }
    }

    fn reload(&self, without: &[model::faults::ward::Out]) -> Result<Vec<Offered>, String> {
        let run = &self.config.paths.run;
        let former = files::left_out(run);
        files::write_out(run, without).map_err(|error| format!("{}: {error}", run.display()))?;
        let outcome = match reloading::reload(&self.config.paths.run, &self.config.supervise) {
            Ok(last) if matches!(last.outcome, Outcome::Applied | Outcome::Unchanged) => {
                prepared(self.config).map(|prepared| offered(&prepared))
            }
            Ok(last) => Err(anyhow::anyhow!("{}", last.text)),
            Err(error) => Err(error),
        };
        outcome.map_err(|error| {
            // A later reload by another caller must find the list that is in use.
            let _ = files::write_out(run, &former);
            format!("{error:#}")
        })
    }

    fn write(&mut self) {
        let report = self.ward.report(std::process::id());
        if self.last.as_ref() == Some(&report) {
            return;
        }
        if let Err(error) = files::write_report(&self.config.paths.run, &report) {
            say(false, &format!("cannot write the GPU report to {}: {error}", self.config.paths.run.display()));
        }
        self.last = Some(report);
    }

    /// Clears the faults: an operator who restarts the agent expects new samples.
    fn forget(&self) {
        let mut report = self.ward.report(0);
        report.gpus.iter_mut().for_each(|gpu| gpu.faults.clear());
        let _ = files::write_report(&self.config.paths.run, &report);
    }
}

fn recount(config: &Config, node: &str) -> Recount {
    match config.adds_its_node() {
        false => Recount::WithoutGpuJobs,
        true if config.autoscale.has(node) => Recount::Never,
        true => Recount::WithoutJobs,
    }
}

/// Whether the memory guard is on; it is unnecessary if Slurm limits memory by cgroups.
fn guards(config: &Config, prepared: &Prepared) -> bool {
    if config.memory.guard && !prepared.without_cgroups {
        say(true, "[memory] guard is not needed: Slurm limits the memory of jobs by cgroups");
    }
    config.memory.guard && prepared.without_cgroups
}

fn prepared(config: &Config) -> anyhow::Result<Prepared> {
    let status = status::read(&config.paths.run)?;
    status.snapshot.prepared.ok_or_else(|| anyhow::anyhow!("the start has not finished"))
}

fn offered(prepared: &Prepared) -> Vec<Offered> {
    let of =
        |gpu: &model::prepared::OfferedGpu| Offered { pci_address: gpu.pci_address.clone(), file: gpu.file.clone() };
    prepared.gpus.iter().map(of).collect()
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a fault has a date, which outlives the agent")]
pub fn unix() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Writes to the log, through PID 1.
fn say(is_good: bool, line: &str) {
    let level = if is_good { "" } else { "warning: " };
    eprintln!("{level}{}", printable::line(line));
}
