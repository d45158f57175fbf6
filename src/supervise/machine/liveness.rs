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
    slow: u32,
    told: Option<String>,
    /// Why it was told to end, if it was for its silence.
    pub(super) silence: Option<String>,
}

/// The child keeps its own time, in which it could run; by this many times the question's own, it has had enough.
const ENOUGH: u32 = 4;
/// One that works but does not answer for so many rounds is as good as hung. A minute, with the default interval.
const SLOW_ROUNDS: u32 = 12;
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
        let slow = if matches!(verdict, Verdict::Slow(_)) { pulse.slow.saturating_add(1) } else { 0 };
        pulse.slow = slow;
        match verdict {
            Verdict::Answers => {
                pulse.answered = Some(ready);
                pulse.told = None;
            }
            Verdict::Silent(_) | Verdict::Slow(_) if starts => {}
            Verdict::Slow(why) if slow < SLOW_ROUNDS => {
                if slow == 1 {
                    out.push(Effect::Say(Notice::Slow { name, why }));
                }
            }
            Verdict::Silent(why) | Verdict::Slow(why) => {
                pulse.slow = 0;
                pulse.silence = Some(why.clone());
                out.push(Effect::Say(Notice::Silent { name, why }));
                self.restart_silent(now, unit, ready, out);
            }
            Verdict::Unknown(why) => {
                if pulse.told.as_ref() != Some(&why) {
                    pulse.told = Some(why.clone());
                    out.push(Effect::Say(Notice::NotAsked { name, why }));
                }
            }
        }
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
    fn restart_silent(&mut self, now: Moment, unit: usize, ready: Moment, out: &mut Vec<Effect>) {
        if let Some(this) = self.units.get_mut(unit) {
            this.ran_well(now.saturating_sub(ready), &self.setup.supervise);
        }
        let patience = self.probe_timeout(unit) / 2;
        self.stop_unit(now, unit, Again::AfterFailure, out);
        if let Some(State::Stopping { deadline, .. }) = self.units.get_mut(unit).map(|unit| &mut unit.state) {
            *deadline = (*deadline).min(now + patience);
        }
    }
}

#[cfg(test)]
mod tests;
