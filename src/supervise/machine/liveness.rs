//! Whether units that are ready still answer: rounds of questions, one at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::RestartPolicy;

use super::super::liveness::Verdict;
use super::unit::{Again, State};
use super::{Child, Effect, Machine, Moment, Notice, Phase};

/// What the machine keeps between two rounds.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    round: Round,
    /// How many rounds in a row ended without a verdict.
    unheard: u32,
}

/// One child asks all units, so that probes cannot pile up and an interval costs one wake-up.
#[derive(Debug, Default)]
enum Round {
    /// No unit is there to be asked.
    #[default]
    Idle,
    /// The next round begins then.
    Pause { until: Moment },
    /// The child asks; it ends by itself, and is killed at the end of this time.
    Asking { since: Moment, until: Moment, asked: Vec<usize>, heard: BTreeMap<usize, Verdict> },
}

/// What a unit's answers were so far.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The beginning of the ready state in which it answered.
    answered: Option<Moment>,
    /// Since when every question was answered.
    calm_since: Option<Moment>,
    slow: u32,
    overloaded_since: Option<Moment>,
    told: Option<String>,
    told_overload: bool,
    restarts: Restarts,
    /// Why it was told to end, if it was for its silence.
    pub(super) silence: Option<String>,
}

/// The restarts for silence, which have a back-off of their own: whoever causes the silence must not cause the restarts.
#[derive(Debug, Default)]
struct Restarts {
    in_a_row: u32,
    /// The next one comes then, at the earliest.
    not_before: Moment,
    /// Whether it was told that a silent unit is left alone until then.
    told: bool,
}

impl Restarts {
    /// The pause after the last one.
    fn pause(&self) -> Duration {
        match self.in_a_row {
            0 => Duration::ZERO,
            n => AGAIN.saturating_mul(1_u32.checked_shl(n - 1).unwrap_or(u32::MAX)).min(AGAIN_MAX),
        }
    }

    fn note(&mut self, now: Moment) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.not_before = now + self.pause();
        self.told = false;
    }
}

impl Pulse {
    /// Whether it ever answered: with the configuration that it has, it can.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// It answered. One that has done so for as long as its last pause was, and for a minute, has recovered.
    fn answers(&mut self, now: Moment, ready: Moment) {
        self.answered = Some(ready);
        (self.told, self.overloaded_since) = (None, None);
        let calm = now.saturating_sub(*self.calm_since.get_or_insert(now));
        if calm >= CALM.max(self.restarts.pause()) {
            (self.restarts, self.told_overload) = (Restarts::default(), false);
        }
    }
}

/// The child keeps its own time, in which it could run; by this many times the question's own, it has had enough.
const ENOUGH: u32 = 4;
/// One that works but does not answer for so many rounds is as good as hung. A minute, with the default interval.
const SLOW_ROUNDS: u32 = 12;
/// One that is kept busy by others has so long: a restart ends their connections, and they come back.
const OVERLOAD: Duration = Duration::from_secs(300);
/// The pause after the first restart for silence; it doubles with each.
const AGAIN: Duration = Duration::from_secs(30);
const AGAIN_MAX: Duration = Duration::from_secs(600);
/// One that has answered for so long is not silent any more.
const CALM: Duration = Duration::from_secs(60);
/// So many rounds without a verdict are worth a word.
const UNHEARD_ROUNDS: u32 = 12;

impl Liveness {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.round {
            Round::Idle => None,
            Round::Pause { until } | Round::Asking { until, .. } => Some(until),
        }
    }

    /// Nobody is asked any more.
    pub(super) fn stop(&mut self) {
        self.round = Round::Idle;
    }
}

impl Machine {
    /// The units of the round that is under way.
    pub fn asked(&self) -> &[usize] {
        match &self.liveness.round {
            Round::Asking { asked, .. } => asked,
            Round::Idle | Round::Pause { .. } => &[],
        }
    }

    /// How long the answer of a unit may take.
    pub fn probe_timeout(&self, unit: usize) -> Duration {
        let supervise = &self.setup.supervise;
        let own = self.setup.units.get(unit).and_then(|spec| spec.liveness.as_ref()?.timeout);
        own.unwrap_or(supervise.probe_timeout).min(supervise.probe_interval)
    }

    pub(super) fn advance_liveness(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let interval = self.setup.supervise.probe_interval;
        match &mut self.liveness.round {
            Round::Asking { until, .. } => {
                if now >= *until {
                    *until = now + interval;
                    out.push(Effect::Kill(Child::Liveness));
                }
            }
            Round::Idle => {
                if !self.to_ask().is_empty() {
                    self.liveness.round = Round::Pause { until: now + interval };
                }
            }
            Round::Pause { until } => {
                if now >= *until {
                    self.begin_round(now, out);
                }
            }
        }
    }

    fn begin_round(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let asked = self.to_ask();
        let Some(longest) = asked.iter().map(|unit| self.probe_timeout(*unit)).max() else {
            return self.liveness.stop();
        };
        let until = now + longest * ENOUGH;
        self.liveness.round = Round::Asking { since: now, until, asked, heard: BTreeMap::new() };
        self.spawn_task(Child::Liveness, out);
    }

    fn to_ask(&self) -> Vec<usize> {
        if self.setup.supervise.probe_interval.is_zero() {
            return Vec::new();
        }
        let units = self.setup.units.iter().zip(&self.units).enumerate();
        // What may not be started again must not be ended either.
        let wanted = units.filter(|(_, (spec, unit))| {
            spec.liveness.is_some() && spec.restart != RestartPolicy::Never && unit.is_ready()
        });
        wanted.map(|(unit, _)| unit).collect()
    }

    pub(super) fn liveness_said(&mut self, unit: usize, verdict: Verdict) {
        if let Round::Asking { asked, heard, .. } = &mut self.liveness.round {
            if asked.contains(&unit) {
                heard.insert(unit, verdict);
            }
        }
    }

    /// The child has ended, and whatever it said was heard: now each unit is judged.
    pub(super) fn round_ended(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let Round::Asking { since, asked, heard, .. } = &mut self.liveness.round else { return };
        let (since, asked, heard) = (*since, std::mem::take(asked), std::mem::take(heard));
        self.liveness.round = Round::Pause { until: (since + self.setup.supervise.probe_interval).max(now) };
        self.liveness.unheard = if heard.is_empty() { self.liveness.unheard.saturating_add(1) } else { 0 };
        if self.liveness.unheard == UNHEARD_ROUNDS {
            out.push(Effect::Say(Notice::NoVerdict { rounds: UNHEARD_ROUNDS }));
        }
        if !matches!(self.phase, Phase::Boot { .. } | Phase::Serve) {
            return;
        }
        // A munged that hangs would make the reload wait for daemons that can do nothing without it.
        let spared: Vec<usize> = if self.reload.is_applying() { self.slurm_units().collect() } else { Vec::new() };
        let answered = |unit: usize| !asked.contains(&unit) || heard.get(&unit) == Some(&Verdict::Answers);
        for unit in asked.iter().filter(|unit| !spared.contains(unit)) {
            // A question to a unit fails if munged does not answer, or whatever else it needs: that is judged, not this.
            let blamed = self.ready_since(*unit, since).filter(|_| self.is_sound(*unit, since, &answered));
            let (Some(ready), Some(verdict)) = (blamed, heard.get(unit)) else { continue };
            self.judge(now, *unit, ready, verdict.clone(), out);
        }
    }

    /// When the unit became ready, if it was when the round began and is still.
    fn ready_since(&self, unit: usize, begin: Moment) -> Option<Moment> {
        match self.units.get(unit)?.state {
            State::Ready { since } if since <= begin => Some(since),
            _ => None,
        }
    }

    /// Whether all that the unit needs was there and answered.
    fn is_sound(&self, unit: usize, begin: Moment, answered: &impl Fn(usize) -> bool) -> bool {
        let is_there = |other: usize| {
            self.ready_since(other, begin).is_some() || self.units.get(other).is_some_and(super::Unit::has_finished)
        };
        let sound = |other: &usize| is_there(*other) && answered(*other) && self.is_sound(*other, begin, answered);
        self.setup.units.get(unit).is_some_and(|spec| spec.after.iter().all(sound))
    }

    fn judge(&mut self, now: Moment, unit: usize, ready: Moment, verdict: Verdict, out: &mut Vec<Effect>) {
        let name = self.name(unit);
        let ready_timeout = self.setup.units.get(unit).map_or(Duration::MAX, |spec| spec.ready_timeout);
        let Some(pulse) = self.units.get_mut(unit).map(|unit| &mut unit.pulse) else { return };
        // slurmctld listens before it has read its saved state: a unit that has never answered is still starting.
        let starts = pulse.answered != Some(ready) && now < ready + ready_timeout;
        pulse.slow = if matches!(verdict, Verdict::Slow(_)) { pulse.slow.saturating_add(1) } else { 0 };
        match verdict {
            Verdict::Answers => return pulse.answers(now, ready),
            Verdict::Unknown(why) => {
                if pulse.told.as_ref() != Some(&why) {
                    pulse.told = Some(why.clone());
                    out.push(Effect::Say(Notice::NotAsked { name, why }));
                }
                return;
            }
            _ => pulse.calm_since = None,
        }
        let why = match verdict {
            Verdict::Stopped(why) => why,
            _ if starts => return,
            Verdict::Slow(why) if pulse.slow < SLOW_ROUNDS => {
                if pulse.slow == 1 {
                    out.push(Effect::Say(Notice::Slow { name, why }));
                }
                return;
            }
            Verdict::Overloaded(why) => {
                if !std::mem::replace(&mut pulse.told_overload, true) {
                    out.push(Effect::Say(Notice::Overloaded { name, why: why.clone() }));
                }
                if now < *pulse.overloaded_since.get_or_insert(now) + OVERLOAD {
                    return;
                }
                why
            }
            Verdict::Silent(why) | Verdict::Slow(why) => why,
            Verdict::Answers | Verdict::Unknown(_) => return,
        };
        self.is_silent(now, unit, why, out);
    }

    /// It is started again, or left alone for a while if that was done just now.
    fn is_silent(&mut self, now: Moment, unit: usize, why: String, out: &mut Vec<Effect>) {
        let name = self.name(unit);
        let Some(pulse) = self.units.get_mut(unit).map(|unit| &mut unit.pulse) else { return };
        if now < pulse.restarts.not_before {
            if !std::mem::replace(&mut pulse.restarts.told, true) {
                let pause = pulse.restarts.not_before - now;
                out.push(Effect::Say(Notice::LeftSilent { name, why, pause }));
            }
            return;
        }
        pulse.restarts.note(now);
        (pulse.slow, pulse.overloaded_since) = (0, None);
        pulse.silence = Some(why.clone());
        out.push(Effect::Say(Notice::Silent { name, why }));
        self.restart_silent(now, unit, out);
    }

    /// The node's state was told, and it can be used: munged, slurmctld and slurmd have each done their part.
    pub(super) fn daemons_answered(&mut self) {
        for (spec, unit) in self.setup.units.iter().zip(&mut self.units) {
            if let (Some(_), State::Ready { since }) = (spec.daemon, &unit.state) {
                unit.pulse.answered = Some(*since);
            }
        }
    }

    /// A stopped process obeys TERM once it is told to go on; a deadlocked one never does, and is not waited for long.
    fn restart_silent(&mut self, now: Moment, unit: usize, out: &mut Vec<Effect>) {
        let patience = self.probe_timeout(unit) / 2;
        self.stop_unit(now, unit, Again::AfterSilence, out);
        if let Some(State::Stopping { deadline, .. }) = self.units.get_mut(unit).map(|unit| &mut unit.state) {
            *deadline = (*deadline).min(now + patience);
        }
    }
}

#[cfg(test)]
mod tests;
