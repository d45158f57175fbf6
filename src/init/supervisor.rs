//! The loop of PID 1, which connects the state machine to processes, signals and sockets.
//!
//! It turns signals, deaths and output into events, and applies the resulting effects. Signals, deaths and output pass through
//! one channel, so these events are handled in the order in which they arrived. A child's last output comes before its death.

mod command_line;
mod external_failure;
#[cfg(test)]
mod fixture;
mod handovers;
mod panic_backoff;
mod programs;
mod reap;
mod requests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::libc;
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::output::{LineHandler, PipeReader};
use super::process::{self, Output, Program, Started};
use super::signals::Signals;
use super::{advice, alarm, clock, limits, notify, readiness, status};
use crate::logs::{Circumstances, Logs, report, warn};
use machine::{Child, Effect, Event, Exit, Machine, Notice, Unit};
use model::log::Level;
use model::message;
use model::task::Task;
use sys::inherited::Inherited;
use sys::users;

/// A running child.
pub(super) struct RunningChild {
    child: Child,
    program: Program,
    started: Started,
    outputs: Vec<std::rc::Rc<PipeReader>>,
    notify: Option<notify::Notify>,
}

/// The state machine, its children, and its connections to the operating system.
pub(super) struct Supervisor {
    pub(super) task: Task,
    cmd: Vec<OsString>,
    inherited: Inherited,
    logs: Logs,
    pub(super) events: UnboundedSender<Event>,
    start: Instant,
    machine: Machine,
    running_children: BTreeMap<Pid, RunningChild>,
    dying_units: Vec<reap::DyingUnit>,
    status: status::Publisher,
    panic_backoff: panic_backoff::PanicBackoff,
    exit: Option<u8>,
}

impl Supervisor {
    pub(super) fn new(
        task: Task,
        cmd: Vec<OsString>,
        inherited: Inherited,
        logs: Logs,
        events: UnboundedSender<Event>,
    ) -> Self {
        let start = Instant::now();
        let has_cluster = task.setup.has_cluster;
        let machine = Machine::new(task.setup.clone());
        let status = status::Publisher::new(&task.paths.run, has_cluster);
        if has_cluster {
            if let Err(error) = logs.keep_last_lines(machine.units().iter().map(|unit| unit.spec.name.clone())) {
                warn(&message!(
                    "recent-lines-not-kept",
                    "cannot create a memory file for recent log lines: {error}; `slurminit logs` will not work",
                    error
                ));
            }
        }
        let (running_children, dying_units) = (BTreeMap::new(), Vec::new());
        let panic_backoff = panic_backoff::PanicBackoff::default();
        Self {
            task,
            cmd,
            inherited,
            logs,
            events,
            start,
            machine,
            running_children,
            dying_units,
            status,
            panic_backoff,
            exit: None,
        }
    }

    pub(super) async fn run(mut self, signals: &Signals, mut incoming: UnboundedReceiver<Event>) -> u8 {
        self.send(Event::Tick);
        let mut requests = self.open_control();
        let alarm = alarm::Alarm::new();
        let mut clock = clock::Clock::new();
        loop {
            self.report_deaths();
            while let Ok(event) = incoming.try_recv() {
                self.handle_event(event);
            }
            if let Some(code) = self.exit {
                return code;
            }
            if let Some(jump) = clock.jump().filter(|_| self.task.setup.has_cluster) {
                warn(&message!(
                    "clock-set",
                    "the system clock was set {jump}; Slurm's timestamps change with it",
                    jump
                ));
            }
            self.publish();
            let wake = self.machine.next_wake().map(|at| self.start + self.panic_backoff.wake(at));
            let wake = self.dying_units.iter().map(|dying| dying.until).chain(wake).min();
            let deadline = wake.unwrap_or(self.start);
            tokio::select! {
                biased;
                received = signals.next() => self.handle_signals(&received.unwrap_or_default()),
                event = incoming.recv() => self.handle_event(event.unwrap_or(Event::Tick)),
                Some(request) = requests.recv() => self.answer(request),
                () = alarm.wait_until(deadline), if wake.is_some() => self.handle_event(Event::Tick),
            }
        }
    }

    fn send(&self, event: Event) {
        // The receiver lives as long as the loop.
        let _ = self.events.send(event);
    }

    fn handle_signals(&mut self, signals: &[i32]) {
        for signal in signals {
            match *signal {
                libc::SIGCHLD => self.reap(),
                signal => self.send(Event::Signal(signal)),
            }
        }
    }

    /// Handles one event. A panic loses this event, but does not end the container.
    fn handle_event(&mut self, event: Event) {
        let now = self.start.elapsed();
        let step = AssertUnwindSafe(|| {
            let effects = self.machine.step(now, event);
            self.apply_all(effects);
        });
        if catch_unwind(step).is_ok() {
            return self.panic_backoff.end();
        }
        let error = message!("internal-error", "internal error in slurminit (please report it); continuing");
        report(Level::Error, None, &error);
        self.panic_backoff.begin(now);
        // Effects that the step had decided before the panic are still applied.
        let remaining = AssertUnwindSafe(|| {
            let effects = self.machine.effects_of_panic();
            self.apply_all(effects);
        });
        if catch_unwind(remaining).is_err() {
            let error = message!(
                "internal-error",
                "internal error in slurminit (please report it); some effects of the last event are lost"
            );
            report(Level::Error, None, &error);
        }
    }

    fn apply_all(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if effect == Effect::Spawn(Child::Cmd) {
                // The command may read the status at once.
                self.publish();
            }
            self.apply(effect);
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Spawn(child) => self.spawn(child),
            Effect::Signal(child, signal) => self.signal(child, signal),
            Effect::Continue(child) => {
                if let Some(running) = self.find(child) {
                    process::continue_if_stopped(&running.started);
                }
            }
            Effect::Kill(child) => {
                if let Some(running) = self.find(child) {
                    process::signal_group(&running.started, libc::SIGKILL);
                }
            }
            Effect::CheckReadiness(id) => {
                if readiness::is_ready(&self.machine.units()[id].spec.readiness, self.owner(id)) {
                    self.send(Event::ReadinessChecked(id, true));
                }
            }
            Effect::SignalAll(signal) => {
                reap::signal_all(signal);
                // If no process is left, no SIGCHLD will come.
                self.reap();
            }
            Effect::Report(notice) => self.log_notice(&notice),
            Effect::Exit(code) => self.exit = Some(code),
        }
    }

    fn find(&self, child: Child) -> Option<&RunningChild> {
        self.running_children.values().find(|running| running.child == child)
    }

    fn spawn(&mut self, child: Child) {
        if let Some(failure) = self.port_conflict(child).or_else(|| self.thread_shortage(child)) {
            return self.send(Event::Exited(child, Exit::NotStarted(failure)));
        }
        if child.unit().is_some() {
            self.logs.begin_process(&self.source(child));
        }
        let mut program = self.program(child);
        let notify = self.prepare_handover(child, &mut program);
        match process::start(&program, &self.inherited) {
            Ok(mut started) => {
                if child.unit().is_some() {
                    started.limits = limits::LimitCounts::now();
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
        let (what, pid) = (format!("{child:?}"), started.pid);
        report(Level::Trace, None, &message!("process-started", "started {what} pid={pid}", what, pid));
        let log = LineHandler::Log {
            source: self.source(child),
            is_packet_mode: started.is_packet_mode,
            circumstances: self.circumstances(child).into(),
            reports: program.reports.into(),
        };
        let captured = match child {
            Child::Prepare | Child::Explain(_) | Child::Reload | Child::Restore => LineHandler::Prepare,
            Child::Liveness => LineHandler::Liveness,
            _ => LineHandler::Node(std::cell::RefCell::default()),
        };
        let pipes = [(started.log.take(), log), (started.captured.take(), captured)];
        let outputs = pipes
            .into_iter()
            .filter_map(|(pipe, handler)| {
                let reader = PipeReader::new(pipe?, handler, self.logs.clone(), self.events.clone())?;
                // The output of liveness checks is read at the child's death. Reading it earlier would cost three
                // wake-ups per round.
                if child != Child::Liveness {
                    tokio::task::spawn_local(std::rc::Rc::clone(&reader).run());
                }
                Some(reader)
            })
            .collect();
        self.running_children.insert(started.pid, RunningChild { child, program, started, outputs, notify });
    }

    /// The circumstances that decide whether a log line of this child is harmless.
    fn circumstances(&self, child: Child) -> Circumstances {
        let Some(id) = child.unit() else { return Circumstances::default() };
        let user = |unit: &Unit| match &unit.spec.user {
            Some(name) => users::local(name).map(|user| user.uid),
            None => Some(nix::unistd::Uid::effective().as_raw()),
        };
        Circumstances {
            new_state: self.machine.units()[id].has_empty_state(self.machine.prepared()),
            without_cgroups: self.machine.prepared().is_some_and(|prepared| prepared.without_cgroups),
            daemon_uids: self
                .machine
                .units()
                .iter()
                .filter(|unit| unit.spec.daemon.is_some())
                .filter_map(user)
                .collect(),
        }
    }

    fn signal(&self, child: Child, signal: i32) {
        let Some(running) = self.find(child) else { return };
        let is_service = child.unit().is_some_and(|id| self.machine.units()[id].spec.daemon.is_none());
        // A service may be a shell with children. A daemon ends its own children, and a signal to slurmd must not reach
        // its job steps.
        match is_service {
            true => process::signal_group(&running.started, signal),
            false => process::signal_process(&running.started, signal),
        }
    }

    fn publish(&mut self) {
        let mut snapshot = self.machine.snapshot();
        for (unit, shown) in self.machine.units().iter().zip(&mut snapshot.units) {
            shown.pid = self.find(Child::Unit(unit.id)).map(|running| running.started.pid.as_raw());
        }
        self.status.publish(snapshot);
    }

    fn log_notice(&self, notice: &Notice) {
        if let Notice::Prepared { prepared } | Notice::ReloadPrepared { prepared } = notice {
            for finding in &prepared.findings {
                log_finding(finding);
            }
            for gpu in &prepared.gpus {
                report(Level::Info, None, &message!("gpu", "{gpu}", gpu = gpu.line));
            }
        }
        let failed = match notice {
            Notice::GaveUp { name, hold: true, .. } => Some(name),
            Notice::RollingBack { name, .. } => name.as_ref(),
            Notice::Ended { why: Some(why), .. } => match why.as_ref() {
                Notice::GaveUp { name, .. } => Some(name),
                _ => None,
            },
            _ => None,
        };
        if let Some(name) = failed {
            let lines = self.logs.lines_of_last_run(name);
            for line in &lines {
                let last = message!("last-output", "last output of {name}: {line}", name, line);
                report(Level::Error, Some(name), &last);
            }
            if let Some(fix) = advice::fix(&lines, &self.task.paths.state) {
                let fix = message!("fix", "fix: {fix}", fix);
                report(Level::Error, Some(name), &fix);
            }
        }
        let (level, message) = notice.record();
        report(level, notice.unit().as_deref(), &message);
    }

    fn source(&self, child: Child) -> String {
        match child {
            Child::Unit(id) | Child::Probe(id) => self.machine.units()[id].spec.name.clone(),
            Child::Hook(index) => format!("hook-{}", index + 1),
            Child::Prepare | Child::Explain(_) => "prepare".to_owned(),
            Child::Liveness => "liveness".to_owned(),
            Child::OomScore => "oom-score".to_owned(),
            Child::Environments => "environments".to_owned(),
            Child::Associations => "associations".to_owned(),
            Child::TestJob => "test-job".to_owned(),
            Child::Reload | Child::Restore | Child::Reopen => "reload".to_owned(),
            Child::NodeCheck => "sinfo".to_owned(),
            Child::NodeResume | Child::Reconfigure => "scontrol".to_owned(),
            Child::JobsRecover
            | Child::JobsAccount
            | Child::JobsReclaim
            | Child::JobsReclaimDeadSteps
            | Child::JobsQuiesce
            | Child::JobsFollow
            | Child::JobsReached
            | Child::JobsWait => "jobs".to_owned(),
            Child::FreePort(_) => "ports".to_owned(),
            Child::Cmd => "cmd".to_owned(),
        }
    }
}

fn log_finding(finding: &model::inventory::Finding) {
    use model::inventory::Severity;
    let level = match finding.severity {
        Severity::Error => Level::Error,
        Severity::Warning => Level::Warn,
        Severity::Info => Level::Info,
    };
    report(level, None, &finding.message(finding.kind.to_string()));
}
