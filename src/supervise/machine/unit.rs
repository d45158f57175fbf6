//! The life of one daemon or service.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::{DaemonName, OnGiveUp, ReadinessTest, RestartPolicy, Supervise};

use super::liveness::Pulse;
use super::setback::{LONGEST, Setbacks};
use super::{Child, Effect, Exit, Fault, Machine, Moment, Notice};

/// A unit's state and its history.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) state: State,
    /// How often it was started.
    pub(super) starts: u32,
    pub(super) last_end: Option<End>,
    pub(super) pulse: Pulse,
    pub(super) setbacks: Setbacks,
    /// When it failed, oldest first; as many as can matter.
    failures: VecDeque<Moment>,
    in_a_row: u32,
}

/// How a unit's last process ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) at: Moment,
    pub(super) exit: Exit,
    /// Why it was told to; `None` if it was not.
    pub(super) told: Option<Again>,
    /// What its silence was, if it was told for that.
    pub(super) silence: Option<String>,
}

/// Whether a unit that was told to end is started once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It is not.
    No,
    /// It is, and this was a failure: it did not get ready.
    AfterFailure,
    /// It is, for it did not answer. Who made it silent may be somebody else, so this is no failure.
    AfterSilence,
    /// It is, for somebody asked for that.
    AsAsked,
}

/// Where a unit is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Something that it needs is not there yet.
    Waiting,
    /// Its process lives and does not answer yet.
    Starting { since: Moment, look_at: Moment, pause: Duration, until: Moment, told: bool },
    /// It answers.
    Ready { since: Moment },
    /// It was told to end, and is told again at `nudge`; KILL follows at the deadline.
    Stopping { deadline: Moment, nudge: Option<Moment>, killed: bool, again: Again },
    /// It failed and is started again then.
    BackingOff { until: Moment },
    /// It ended, and nothing asks for it to run.
    Finished,
    /// It failed too often.
    GivenUp,
}

/// The pause between two looks at readiness; looking costs some 50 microseconds.
const LOOK: Duration = Duration::from_millis(1);
/// From then on a start is slow, and the pauses grow.
const LOOK_SLOWER: Duration = Duration::from_millis(200);
/// The longest pause between two looks.
const LOOK_MAX: Duration = Duration::from_millis(50);
/// From then on a start is worth a word in the log.
const SLOW_START: Duration = Duration::from_secs(2);
/// munged can lose a TERM that comes while it starts (0.5.16: seen with a stop in its first 20 ms). Slurm's daemons take a
/// second one without harm; an operator's service might take it for impatience, and gets one.
const NUDGE: Duration = Duration::from_millis(100);
/// How often a process that does not die of KILL is sent it again.
const KILL_AGAIN: Duration = Duration::from_millis(500);

impl Unit {
    pub(super) fn new() -> Self {
        Self {
            state: State::Waiting,
            starts: 0,
            last_end: None,
            pulse: Pulse::default(),
            setbacks: Setbacks::default(),
            failures: VecDeque::new(),
            in_a_row: 0,
        }
    }

    /// Whether its main process lives.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.state, State::Starting { .. } | State::Ready { .. } | State::Stopping { .. })
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Whether it ended, as it may.
    pub(super) fn has_finished(&self) -> bool {
        self.state == State::Finished
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        match &self.state {
            State::Starting { look_at, until, .. } => Some(*look_at.min(until)),
            State::Stopping { deadline, nudge, .. } => Some(nudge.map_or(*deadline, |nudge| nudge.min(*deadline))),
            State::BackingOff { until } => Some(*until),
            State::Waiting | State::Ready { .. } | State::Finished | State::GivenUp => None,
        }
    }

    /// A long run makes up for the failures before it.
    pub(super) fn ran_well(&mut self, ran: Duration, policy: &Supervise) {
        if ran >= policy.reset_after {
            self.forget_failures();
            self.setbacks.forget();
        }
    }

    /// Notes a failure; returns whether there were too many.
    pub(super) fn failed(&mut self, now: Moment, policy: &Supervise) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.failures.push_back(now);
        let window = policy.give_up_window;
        self.failures.retain(|at| now.saturating_sub(*at) <= window);
        self.failures.len() >= policy.give_up_after as usize
    }

    /// Notes a death that is not its configuration's: it served until then, and any user's request may have ended it.
    fn died_in_service(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    pub(super) fn forget_failures(&mut self) {
        self.failures.clear();
        self.in_a_row = 0;
    }

    /// The pause before the next start: none after a first failure, then doubling, give or take a quarter.
    fn pause(&self, policy: &Supervise, random: u64) -> Duration {
        match self.in_a_row {
            0 | 1 => Duration::ZERO,
            n => {
                let doubled = policy.restart_initial_delay.saturating_mul(1_u32.checked_shl(n - 2).unwrap_or(u32::MAX));
                let percent = 75 + u32::try_from(random % 51).unwrap_or(0);
                doubled.min(policy.restart_max_delay).saturating_mul(percent) / 100
            }
        }
    }
}

impl Machine {
    pub(super) fn advance_unit(&mut self, now: Moment, unit: usize, out: &mut Vec<Effect>) {
        let Some(this) = self.units.get(unit) else { return };
        match this.state.clone() {
            State::Waiting => self.start_unit_if_possible(now, unit, out),
            State::BackingOff { until } if now >= until => self.start_unit_if_possible(now, unit, out),
            State::Starting { since, until, .. } if now >= until => {
                let name = self.name(unit);
                out.push(Effect::Say(Notice::NeverReady { name, after: now.saturating_sub(since) }));
                self.stop_unit(now, unit, Again::AfterFailure, out);
            }
            State::Starting { since, look_at, pause, until, told } if now >= look_at => {
                let slow = now >= since + SLOW_START;
                if slow && !told {
                    out.push(Effect::Say(Notice::StartsSlowly { name: self.name(unit), patience: until - since }));
                }
                let next_pause = if now < since + LOOK_SLOWER { LOOK } else { (pause * 2).min(LOOK_MAX) };
                let next =
                    State::Starting { since, look_at: now + pause, pause: next_pause, until, told: told || slow };
                let command =
                    matches!(self.setup.units.get(unit).map(|spec| &spec.readiness), Some(ReadinessTest::Command(_)));
                self.set_state(unit, next);
                if command {
                    self.spawn_task(Child::Probe(unit), out);
                } else {
                    out.push(Effect::Look(unit));
                }
            }
            State::Stopping { deadline, killed, again, .. } if now >= deadline => {
                if !killed {
                    out.push(Effect::Say(Notice::Killing { name: self.name(unit) }));
                }
                out.push(Effect::Kill(Child::Unit(unit)));
                let deadline = now + KILL_AGAIN;
                self.set_state(unit, State::Stopping { deadline, nudge: None, killed: true, again });
            }
            State::Stopping { deadline, nudge: Some(nudge), killed, again } if now >= nudge => {
                out.push(Effect::Signal(Child::Unit(unit), libc::SIGTERM));
                self.set_state(unit, State::Stopping { deadline, nudge: Some(now + NUDGE), killed, again });
            }
            _ => {}
        }
    }

    fn start_unit_if_possible(&mut self, now: Moment, unit: usize, out: &mut Vec<Effect>) {
        let Some(spec) = self.setup.units.get(unit) else { return };
        let met = |other: &usize| self.units.get(*other).is_some_and(Unit::is_ready);
        if !self.open.contains(&spec.gate) || !spec.after.iter().all(met) {
            // A back-off that is over waits like any other: without a deadline.
            return self.set_state(unit, State::Waiting);
        }
        let until = now + spec.ready_timeout;
        let started = spec.readiness == ReadinessTest::Started;
        self.set_state(unit, State::Starting { since: now, look_at: now + LOOK, pause: LOOK, until, told: false });
        if let Some(this) = self.units.get_mut(unit) {
            this.starts = this.starts.saturating_add(1);
        }
        out.push(Effect::Spawn(Child::Unit(unit)));
        if started {
            self.unit_is_ready(now, unit, out);
            // Those after it in the list are looked at in this same step; those before it must not wait for the next event.
            for other in 0..unit {
                self.advance_unit(now, other, out);
            }
        }
    }

    /// The unit's readiness was looked at; an answer that comes late, to a unit that starts no more, says nothing, and none
    /// does during the stop: what waits for a unit must not start any more.
    pub(super) fn looked(&mut self, now: Moment, unit: usize, ready: bool, out: &mut Vec<Effect>) {
        if ready
            && !self.is_stopping()
            && self.units.get(unit).is_some_and(|unit| matches!(unit.state, State::Starting { .. }))
        {
            self.unit_is_ready(now, unit, out);
        }
    }

    fn unit_is_ready(&mut self, now: Moment, unit: usize, out: &mut Vec<Effect>) {
        let Some(State::Starting { since, .. }) = self.units.get(unit).map(|unit| unit.state.clone()) else { return };
        self.set_state(unit, State::Ready { since: now });
        if let Some(this) = self.units.get_mut(unit) {
            this.setbacks.served = true;
        }
        out.push(Effect::Say(Notice::UnitReady { name: self.name(unit), after: now.saturating_sub(since) }));
        match self.setup.units.get(unit).and_then(|spec| spec.daemon) {
            Some(DaemonName::Slurmctld) => {
                // It may not know that a drain was taken back: slurmctld saves a change five seconds late.
                self.resumed = false;
                self.account_for_jobs(now, out);
            }
            Some(DaemonName::Slurmd) => self.slurmd_is_ready(now, out),
            _ => {}
        }
        let answers = |name| {
            let at = self.setup.units.iter().position(|spec| spec.daemon == Some(name));
            at.and_then(|at| self.units.get(at)).is_some_and(Unit::is_ready)
        };
        if answers(DaemonName::Slurmctld) && answers(DaemonName::Slurmd) {
            self.ask_node(now);
        }
    }

    pub(super) fn unit_exited(
        &mut self,
        now: Moment,
        unit: usize,
        exit: Exit,
        fault: Option<Fault>,
        out: &mut Vec<Effect>,
    ) {
        let stopping_all = self.is_stopping();
        let name = self.name(unit);
        let policy = self.setup.units.get(unit).map_or(RestartPolicy::Never, |spec| spec.restart);
        let Some(this) = self.units.get_mut(unit) else { return };
        let before = std::mem::replace(&mut this.state, State::Finished);
        let told = match before {
            State::Stopping { again, .. } => Some(again),
            _ => None,
        };
        let silence = this.pulse.silence.take();
        this.last_end = Some(End { at: now, exit: exit.clone(), told, silence });
        if stopping_all {
            let expected = told.is_some() || policy != RestartPolicy::Always && exit == Exit::Code(0);
            return out.push(Effect::Say(Notice::UnitStopped { name, exit, expected }));
        }
        if self.reload_takes_exit(now, unit, told, out) {
            return out.push(Effect::Say(Notice::UnitStopped { name, exit, expected: told.is_some() }));
        }
        let Some(this) = self.units.get_mut(unit) else { return };
        if let Some(Again::AsAsked | Again::AfterSilence) = told {
            this.state = State::Waiting;
            return out.push(Effect::Say(Notice::UnitStopped { name, exit, expected: true }));
        }
        let ran = match before {
            State::Ready { since } | State::Starting { since, .. } => now.saturating_sub(since),
            _ => Duration::ZERO,
        };
        let again = match policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit != Exit::Code(0) || told == Some(Again::AfterFailure),
            RestartPolicy::Never => false,
        };
        if !again {
            return out.push(Effect::Say(Notice::UnitFinished { name, exit }));
        }
        this.ran_well(ran, &self.setup.supervise);
        if let Some(fault) = fault {
            return self.struck(now, unit, exit, fault, out);
        }
        let random = next_random(&mut self.jitter);
        // One that counts as ready once it is started may never have listened.
        let is_seen = self.setup.units.get(unit).is_some_and(|spec| spec.readiness != ReadinessTest::Started);
        let served = is_seen && matches!(before, State::Ready { .. }) && this.pulse.has_answered();
        if served {
            this.died_in_service();
        } else if this.failed(now, &self.setup.supervise) {
            this.state = State::GivenUp;
            return self.gave_up(now, unit, &exit, out);
        }
        let pause = this.pause(&self.setup.supervise, random).min(if served { LONGEST } else { Duration::MAX });
        this.state = State::BackingOff { until: now + pause };
        let again_and_again = served && this.in_a_row == self.setup.supervise.give_up_after;
        out.push(Effect::Say(Notice::UnitDied { name: name.clone(), exit, ran, pause }));
        if again_and_again {
            out.push(Effect::Say(Notice::DiesInService { name, deaths: self.setup.supervise.give_up_after }));
        }
        self.explain_death(unit, out);
    }

    pub(super) fn gave_up(&mut self, now: Moment, unit: usize, exit: &Exit, out: &mut Vec<Effect>) {
        let Some(spec) = self.setup.units.get(unit) else { return };
        let hold = self.setup.supervise.on_give_up == OnGiveUp::Hold;
        let notice = Notice::GaveUp {
            name: spec.name.clone(),
            failures: self.setup.supervise.give_up_after,
            within: self.setup.supervise.give_up_window,
            last: exit.clone(),
            hold: hold || spec.essential.is_none(),
        };
        out.push(Effect::Say(notice.clone()));
        if let (Some(code), false) = (spec.essential, hold) {
            self.begin_stop(now, code, Some(notice), out);
        }
    }

    /// Tells a unit to end. CONT follows, for a stopped process takes no TERM.
    pub(super) fn stop_unit(&mut self, now: Moment, unit: usize, again: Again, out: &mut Vec<Effect>) {
        let Some(spec) = self.setup.units.get(unit) else { return };
        let deadline = now + spec.stop_timeout;
        let nudge = spec.daemon.is_some().then(|| now + NUDGE);
        self.set_state(unit, State::Stopping { deadline, nudge, killed: false, again });
        out.push(Effect::Signal(Child::Unit(unit), libc::SIGTERM));
        out.push(Effect::Signal(Child::Unit(unit), libc::SIGCONT));
    }

    pub(super) fn set_state(&mut self, unit: usize, state: State) {
        if let Some(unit) = self.units.get_mut(unit) {
            unit.state = state;
        }
    }

    /// Its name in logs.
    pub fn name(&self, unit: usize) -> String {
        self.setup.units.get(unit).map(|spec| spec.name.clone()).unwrap_or_default()
    }
}

/// xorshift64: enough to spread restarts, and the same for the same seed.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
