//! PID 1: starts the daemons in order, keeps them alive, and ends them in order.
//!
//! Here the pure state machine meets the world: this loop turns signals, deaths and output into events, and applies the
//! effects that come back. Everything that happens goes through one channel, so its order is the order in which it was
//! seen; a child's last output comes before its death.

mod advice;
mod alarm;
mod changes;
mod clock;
pub mod daemon;
mod footprint;
pub mod handover;
mod limits;
pub mod liveness;
pub mod machine;
pub mod node;
mod notify;
mod output;
mod process;
mod programs;
mod readiness;
mod reap;
mod requests;
pub mod signals;
pub mod sockets;
pub mod status;
mod struck;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tracing::{debug, error, info, trace, warn};

use crate::config::{Config, Held, Level};
use crate::logs::Logs;
use footprint::Activity;
use machine::{Child, Effect, Event, Exit, Machine, Notice, ReloadNotice, Setup};
use output::{Pipe, Pump, Reader};
use process::{Output, Program, Started};
use signals::{Inherited, Signals};

/// What PID 1 is asked to do.
#[derive(Debug)]
pub struct Job {
    /// The operator's configuration.
    pub config: Config,
    /// The file that it came from, for the preparation to read again.
    pub config_file: Option<PathBuf>,
    /// The file that is looked at whether it was named or not.
    pub watched_file: PathBuf,
    /// What of the configuration this process holds on to, before its command line changed anything.
    pub held: Held,
    /// The container's command; empty to serve.
    pub cmd: Vec<OsString>,
    /// Whether the command is all there is (the role `none`).
    pub only_cmd: bool,
}

/// Runs until everything has ended, and returns the container's exit code.
///
/// # Errors
/// Only before anything was started: no signal handler, no event loop. After that nothing ends PID 1 but its work.
pub fn run(job: Job, inherited: Inherited, logs: Logs) -> anyhow::Result<u8> {
    if nix::unistd::getpid() != Pid::from_raw(1) {
        // As PID 1 orphans come to us by themselves.
        nix::sys::prctl::set_child_subreaper(true)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let signals = Signals::install()?;
        tokio::task::spawn_local(logs.clone().drain());
        let activity = Activity::default();
        tokio::task::spawn_local(activity.clone().release_when_quiet());
        let (events, incoming) = unbounded_channel();
        let world = World::new(job, inherited, logs.clone(), events, activity);
        changes::watch_for_changes(&world.job, &world.events);
        let code = world.run(&signals, incoming).await;
        logs.finish();
        Ok(code)
    })
}

/// A child and what the edge knows of it.
struct Living {
    child: Child,
    program: Program,
    started: Started,
    outputs: Vec<std::rc::Rc<Pump>>,
    notify: Option<notify::Notify>,
}

/// A round of liveness questions is what happens all the time: it is over when its child is, and needs no alarm that
/// waits until it is quiet.
#[derive(Default)]
struct SinceWait {
    more_than_a_round: bool,
    round_ended: bool,
}

/// The world outside the machine.
struct World {
    job: Job,
    inherited: Inherited,
    logs: Logs,
    events: UnboundedSender<Event>,
    activity: Activity,
    /// What happened since the last wait.
    since_wait: SinceWait,
    start: Instant,
    machine: Machine,
    living: BTreeMap<Pid, Living>,
    dying: Vec<reap::Dying>,
    status: status::Publisher,
    exit: Option<u8>,
}

impl World {
    fn new(job: Job, inherited: Inherited, logs: Logs, events: UnboundedSender<Event>, activity: Activity) -> Self {
        let start = Instant::now();
        let units = if job.only_cmd { Vec::new() } else { daemon::units(&job.config) };
        let machine = Machine::new(Setup {
            hooks: job.config.hooks.pre_start.iter().map(|hook| hook.timeout).collect(),
            has_cmd: !job.cmd.is_empty(),
            only_cmd: job.only_cmd,
            supervise: job.config.supervise.clone(),
            jobs_grace: job.config.jobs.grace,
            seed: status::monotonic_ms(),
            units,
        });
        let status = status::Publisher::new(&job.config.paths.run, job.only_cmd);
        if !job.only_cmd {
            if let Err(error) = logs.keep(machine.units().iter().map(|unit| unit.name.clone())) {
                warn!(
                    "no memory file: {error}; `logs` will show nothing, and a daemon's last words are in the log alone"
                );
            }
        }
        let (since_wait, living, dying) = (SinceWait::default(), BTreeMap::new(), Vec::new());
        Self { job, inherited, logs, events, activity, since_wait, start, machine, living, dying, status, exit: None }
    }

    async fn run(mut self, signals: &Signals, mut incoming: UnboundedReceiver<Event>) -> u8 {
        self.send(Event::Tick);
        let mut requests = self.open_control();
        let alarm = alarm::Alarm::new();
        let mut clock = clock::Clock::new();
        loop {
            self.tell_deaths();
            while let Ok(event) = incoming.try_recv() {
                self.take(event);
            }
            if let Some(code) = self.exit {
                return code;
            }
            if let Some(jump) = clock.jump().filter(|_| !self.job.only_cmd) {
                warn!("the clock was set {jump}; Slurm's times follow it");
            }
            self.publish();
            let wake = self.machine.next_wake().map(|at| self.start + at);
            let wake = self.dying.iter().map(|dying| dying.until).chain(wake).min();
            self.note_activity();
            let deadline = wake.unwrap_or(self.start);
            tokio::select! {
                biased;
                caught = signals.next() => self.caught(&caught.unwrap_or_default()),
                event = incoming.recv() => self.take(event.unwrap_or(Event::Tick)),
                Some(asked) = requests.recv() => {
                    self.since_wait.more_than_a_round = true;
                    self.answer(asked);
                }
                () = alarm.wait_until(deadline), if wake.is_some() => self.take(Event::Tick),
            }
        }
    }

    fn note_activity(&mut self) {
        match std::mem::take(&mut self.since_wait) {
            SinceWait { more_than_a_round: true, .. } => self.activity.note(),
            SinceWait { round_ended: true, .. } => self.activity.release(),
            SinceWait { .. } => {}
        }
    }

    fn send(&self, event: Event) {
        // The receiver lives as long as the loop.
        let _ = self.events.send(event);
    }

    fn caught(&mut self, signals: &[i32]) {
        for signal in signals {
            match *signal {
                libc::SIGCHLD => self.reap(),
                signal => self.send(Event::Signal(signal)),
            }
        }
    }

    /// One step. A mistake of ours in it costs this event, and never the container.
    fn take(&mut self, event: Event) {
        let now = self.start.elapsed();
        self.since_wait.round_ended |= matches!(event, Event::Exited(Child::Liveness, _));
        self.since_wait.more_than_a_round |=
            !matches!(event, Event::Tick | Event::Liveness(..) | Event::Exited(Child::Liveness, _));
        let step = AssertUnwindSafe(|| {
            for effect in self.machine.step(now, event) {
                self.since_wait.more_than_a_round |= effect != Effect::Spawn(Child::Liveness);
                self.apply(effect);
            }
        });
        if catch_unwind(step).is_err() {
            error!("internal error in slurminit (please report it); going on");
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Spawn(child) => self.spawn(child),
            Effect::Signal(child, signal) => self.signal(child, signal),
            Effect::Kill(child) => {
                if let Some(living) = self.find(child) {
                    process::send_group(&living.started, libc::SIGKILL);
                }
            }
            Effect::Look(unit) => {
                let units = self.machine.units();
                let owner = self.owner(unit);
                if units.get(unit).is_some_and(|spec| readiness::is_ready(&spec.readiness, owner)) {
                    self.send(Event::Looked(unit, true));
                }
            }
            Effect::SignalAll(signal) => {
                reap::signal_all(signal);
                // With nobody left there is no SIGCHLD that would say so.
                self.reap();
            }
            Effect::Say(notice) => self.say(&notice),
            Effect::Exit(code) => self.exit = Some(code),
        }
    }

    fn find(&self, child: Child) -> Option<&Living> {
        self.living.values().find(|living| living.child == child)
    }

    fn spawn(&mut self, child: Child) {
        if let Some(failure) = self.taken_port(child) {
            return self.send(Event::Exited(child, Exit::NotStarted(failure)));
        }
        if unit_of(child).is_some() {
            self.logs.begin(&self.source(child));
        }
        let mut program = self.program(child);
        let notify = self.expect_handover(child, &mut program);
        match process::start(&program, &self.inherited) {
            Ok(mut started) => {
                if unit_of(child).is_some() {
                    started.limits = limits::Counts::now();
                }
                if let Some(notify) = &notify {
                    notify.started(started.pid);
                }
                self.adopt(child, program, started, notify);
            }
            Err(failure) => self.send(Event::Exited(child, Exit::NotStarted(failure))),
        }
    }

    fn adopt(&mut self, child: Child, program: Program, mut started: Started, notify: Option<notify::Notify>) {
        trace!(pid = started.pid.as_raw(), "started {child:?}");
        let log = Reader::Log { source: self.source(child) };
        let captured = match child {
            Child::Prepare | Child::Reload => Reader::Prepare,
            Child::Liveness => Reader::Liveness,
            _ => Reader::Node,
        };
        // A round of liveness questions is over when its child is, and has little to say: not worth three more wake-ups.
        let pipe = if child == Child::Liveness { Pipe::unwatched } else { Pipe::watched };
        let pipes = [(started.log.take(), log), (started.captured.take(), captured)];
        let outputs = pipes
            .into_iter()
            .filter_map(|(end, reader)| {
                let pump =
                    Pump::new(pipe(end?)?, reader, self.logs.clone(), self.events.clone(), self.activity.clone());
                tokio::task::spawn_local(std::rc::Rc::clone(&pump).run());
                Some(pump)
            })
            .collect();
        self.living.insert(started.pid, Living { child, program, started, outputs, notify });
    }

    fn signal(&self, child: Child, signal: i32) {
        let Some(living) = self.find(child) else { return };
        let is_service =
            unit_of(child).is_some_and(|unit| self.machine.units().get(unit).is_some_and(|spec| spec.daemon.is_none()));
        // A service may be a shell with children; Slurm's daemons end their own, and slurmd must not end its job steps.
        if is_service { process::send_group(&living.started, signal) } else { process::send(&living.started, signal) }
    }

    fn publish(&mut self) {
        let mut snapshot = self.machine.snapshot();
        for living in self.living.values() {
            if let Some(unit) = unit_of(living.child).and_then(|unit| snapshot.units.get_mut(unit)) {
                unit.pid = Some(living.started.pid.as_raw());
            }
        }
        self.status.publish(snapshot);
    }

    fn say(&self, notice: &Notice) {
        if let Notice::Prepared(prepared) | Notice::Reload(ReloadNotice::Found(prepared)) = notice {
            for finding in &prepared.findings {
                say_finding(finding);
            }
            for gpu in &prepared.gpus {
                info!("{}", gpu.line);
            }
        }
        let failed = match notice {
            Notice::GaveUp { name, hold: true, .. } => Some(name),
            Notice::Reload(ReloadNotice::GoesBack { name, .. }) if !name.is_empty() => Some(name),
            Notice::Ended { why: Some(why), .. } => match why.as_ref() {
                Notice::GaveUp { name, .. } => Some(name),
                _ => None,
            },
            _ => None,
        };
        if let Some(name) = failed {
            let words = self.logs.last_words(name);
            for line in &words {
                error!("last words of {name}: {line}");
            }
            if let Some(repair) = advice::repair(&words, &self.job.config.paths.state) {
                error!("repair: {repair}");
            }
        }
        log(notice.level(), notice);
    }

    fn source(&self, child: Child) -> String {
        match child {
            Child::Unit(unit) | Child::Probe(unit) => {
                self.machine.units().get(unit).map(|spec| spec.name.clone()).unwrap_or_default()
            }
            Child::Hook(index) => format!("hook-{}", index + 1),
            Child::Prepare => "prepare".to_owned(),
            Child::Liveness => "liveness".to_owned(),
            Child::Environments => "environments".to_owned(),
            Child::Reload | Child::Restore => "reload".to_owned(),
            Child::NodeCheck => "sinfo".to_owned(),
            Child::NodeResume | Child::Reconfigure => "scontrol".to_owned(),
            Child::JobsRecover | Child::JobsReclaim | Child::JobsQuiesce => "jobs".to_owned(),
            Child::FreePort(_) => "ports".to_owned(),
            Child::Cmd => "cmd".to_owned(),
        }
    }
}

fn unit_of(child: Child) -> Option<usize> {
    match child {
        Child::Unit(unit) => Some(unit),
        _ => None,
    }
}

fn log(level: Level, message: &impl std::fmt::Display) {
    match level {
        Level::Error => error!("{message}"),
        Level::Warn => warn!("{message}"),
        Level::Info => info!("{message}"),
        Level::Debug => debug!("{message}"),
        Level::Trace => trace!("{message}"),
    }
}

fn say_finding(finding: &crate::inventory::Finding) {
    use crate::inventory::Severity;
    let level = match finding.severity {
        Severity::Error => Level::Error,
        Severity::Warning => Level::Warn,
        Severity::Info => Level::Info,
    };
    log(level, &format_args!("{}; cause: {}; repair: {}", finding.what, finding.cause, finding.repair));
}
