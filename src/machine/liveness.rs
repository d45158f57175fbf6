//! Liveness checks of ready units: one round of queries at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use model::daemons::{DaemonName, RestartPolicy};
use model::supervise::Supervise;

use super::cluster::Cluster;
use super::step::Step;
use super::unit::{RestartIntent, Unit, doubling};
use super::units::Units;
use super::{Child, Moment, Notice};
use crate::UnitId;
use crate::liveness_result::Liveness;
use model::unit::Spec;

/// The state kept between two rounds.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    round: Round,
    /// How many rounds in a row ended without a verdict.
    rounds_without_result: u32,
}

/// A single child asks all units. So probes cannot pile up, and an interval costs one wake-up.
#[derive(Debug, Default)]
enum Round {
    /// There is no unit to ask.
    #[default]
    Idle,
    /// The next round begins at this moment.
    Pause { until: Moment },
    /// The child is asking. It ends by itself; at the deadline it is killed.
    Asking { since: Moment, until: Moment, asked: Vec<UnitId>, results: BTreeMap<UnitId, Liveness> },
}

/// The history of a unit's answers.
#[derive(Debug, Default)]
pub(super) struct LivenessHistory {
    /// When the ready state began in which the unit last answered.
    answered: Option<Moment>,
    /// Since when every question was answered.
    calm_since: Option<Moment>,
    slow: u32,
    overloaded_since: Option<Moment>,
    reported: Option<String>,
    has_reported_overload: bool,
    restarts: Restarts,
    /// Why slurminit stopped the unresponsive unit.
    pub(super) silence: Option<String>,
}

/// Restarts of unresponsive units have a separate backoff, so that a user who blocks a daemon cannot make it
/// restart all the time.
#[derive(Debug, Default)]
struct Restarts {
    in_a_row: u32,
    /// The earliest moment for the next restart.
    not_before: Moment,
    /// Whether it was logged that the unit is left alone until then.
    is_reported: bool,
}

impl Restarts {
    /// The pause after the last restart.
    fn pause(&self) -> Duration {
        doubling(self.in_a_row, RESTART_PAUSE, RESTART_PAUSE_MAX)
    }

    fn note(&mut self, now: Moment) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.not_before = now + self.pause();
        self.is_reported = false;
    }
}

impl LivenessHistory {
    /// Whether the unit ever answered. If so, its configuration works.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// The unit answered. It has recovered once it has done so for a minute, and for as long as its last pause.
    fn answers(&mut self, now: Moment, ready: Moment) {
        self.answered = Some(ready);
        (self.reported, self.overloaded_since) = (None, None);
        let calm = now.saturating_sub(*self.calm_since.get_or_insert(now));
        if calm >= RECOVERED_AFTER.max(self.restarts.pause()) {
            (self.restarts, self.has_reported_overload) = (Restarts::default(), false);
        }
    }
}

/// The first round comes early: it starts the helpers that watch over processes and jobs.
const FIRST: Duration = Duration::from_secs(1);
/// The child stops its own clock while it cannot run. It is killed after this multiple of the longest question's
/// timeout.
const CHILD_TIMEOUT_FACTOR: u32 = 4;
/// A unit that works but does not answer for this many rounds counts as hung: one minute at the default interval.
const SLOW_ROUNDS: u32 = 12;
/// How long a unit may be overloaded by clients before it is restarted: a restart drops their connections, but they
/// come back.
const OVERLOAD_PATIENCE: Duration = Duration::from_secs(300);
/// The pause after the first restart for silence; doubles with each restart.
const RESTART_PAUSE: Duration = Duration::from_secs(30);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(600);
/// A unit that has answered for this long has recovered.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);
/// After this many rounds without a verdict a warning is logged.
const ROUNDS_WITHOUT_RESULT: u32 = 12;

impl Rounds {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.round {
            Round::Idle => None,
            Round::Pause { until } | Round::Asking { until, .. } => Some(until),
        }
    }

    pub(super) fn stop(&mut self) {
        self.round = Round::Idle;
    }

    pub(super) fn asked(&self) -> &[UnitId] {
        match &self.round {
            Round::Asking { asked, .. } => asked,
            Round::Idle | Round::Pause { .. } => &[],
        }
    }

    pub(super) fn advance(&mut self, units: &Units, policy: &Supervise, step: &mut Step) {
        let interval = policy.probe_interval;
        match &mut self.round {
            Round::Asking { until, .. } if step.now >= *until => {
                *until = step.now + interval;
                step.kill_task(Child::Liveness);
            }
            Round::Idle if to_ask(units, policy).next().is_some() => {
                self.round = Round::Pause { until: step.now + interval.min(FIRST) };
            }
            Round::Pause { until } if step.now >= *until => self.begin_round(units, policy, step),
            _ => {}
        }
    }

    fn begin_round(&mut self, units: &Units, policy: &Supervise, step: &mut Step) {
        let Some(longest) = to_ask(units, policy).map(|unit| probe_timeout(&unit.spec, policy)).max() else {
            return self.stop();
        };
        let asked = to_ask(units, policy).map(|unit| unit.id).collect();
        let until = step.now + longest * CHILD_TIMEOUT_FACTOR;
        self.round = Round::Asking { since: step.now, until, asked, results: BTreeMap::new() };
        step.start_task(Child::Liveness);
        // A helper that is still alive is not started again.
        step.start_task(Child::OomScore);
        if units.daemon(DaemonName::Slurmctld).is_some() {
            step.start_task(Child::JobsFollow);
        } else if units.daemon(DaemonName::Slurmd).is_some_and(Unit::is_ready) {
            // Not before: while a driver is queried, the node's name is not known, but munged is asked already.
            step.start_task(Child::JobsReached);
        }
    }

    pub(super) fn take_result(&mut self, unit: UnitId, liveness: Liveness) {
        if let Round::Asking { asked, results, .. } = &mut self.round {
            if asked.contains(&unit) {
                results.insert(unit, liveness);
            }
        }
    }

    /// The child has ended and its output was read. Judges each unit, except those that are spared.
    pub(super) fn round_ended(&mut self, cluster: &mut Cluster, is_spared: impl Fn(&Unit) -> bool) {
        let Round::Asking { since, asked, results, .. } = &mut self.round else { return };
        let (since, asked, results) = (*since, std::mem::take(asked), std::mem::take(results));
        let Cluster { units, policy, step, jobs, .. } = cluster;
        self.round = Round::Pause { until: (since + policy.probe_interval).max(step.now) };
        self.rounds_without_result = if results.is_empty() { self.rounds_without_result.saturating_add(1) } else { 0 };
        if self.rounds_without_result == ROUNDS_WITHOUT_RESULT {
            step.report(Notice::NoVerdict { rounds: ROUNDS_WITHOUT_RESULT });
        }
        let answered = |unit: UnitId| !asked.contains(&unit) || results.get(&unit) == Some(&Liveness::Answers);
        for id in &asked {
            // A check also fails if munged, or another unit that this one needs, does not answer. Then only that unit
            // is judged.
            let is_excused = is_spared(&units[*id]) || jobs.launch_hold.has_held(&units[*id], since);
            if is_excused || !is_sound(units, *id, since, &answered) {
                continue;
            }
            if let Some((ready, liveness)) = ready_at(&units[*id], since).zip(results.get(id)) {
                units[*id].judge(ready, liveness.clone(), policy, step);
            }
        }
    }
}

/// How long a unit's answer may take.
pub(super) fn probe_timeout(spec: &Spec, policy: &Supervise) -> Duration {
    let own = spec.liveness.as_ref().and_then(|liveness| liveness.timeout);
    own.unwrap_or(policy.probe_timeout).min(policy.probe_interval)
}

fn to_ask<'a>(units: &'a Units, policy: &Supervise) -> impl Iterator<Item = &'a Unit> + use<'a> {
    let asks = !policy.probe_interval.is_zero();
    // A unit that may not be started again must not be ended either.
    let is_asked = |unit: &&Unit| unit.spec.liveness.is_some() && unit.spec.restart != RestartPolicy::Never;
    units.iter().filter(move |unit| asks && unit.is_ready()).filter(is_asked)
}

/// When the unit became ready, if it has been ready since before the round began.
fn ready_at(unit: &Unit, begin: Moment) -> Option<Moment> {
    unit.ready_since().filter(|since| *since <= begin)
}

/// Whether everything that the unit needs was ready and answered.
fn is_sound(units: &Units, id: UnitId, begin: Moment, answered: &impl Fn(UnitId) -> bool) -> bool {
    units[id].needs.iter().all(|other| {
        let is_there = ready_at(&units[*other], begin).is_some() || units[*other].has_finished();
        is_there && answered(*other) && is_sound(units, *other, begin, answered)
    })
}

impl Unit {
    /// The node became usable, so this unit has done its part.
    pub(super) fn note_answer(&mut self) {
        self.liveness_history.answered = self.ready_since().or(self.liveness_history.answered);
    }

    fn judge(&mut self, ready: Moment, liveness: Liveness, policy: &Supervise, step: &mut Step) {
        let (name, now) = (self.name(), step.now);
        let liveness_history = &mut self.liveness_history;
        // slurmctld listens before it has read its saved state. A unit that has never answered may still be starting.
        let starts = liveness_history.answered != Some(ready) && now < ready + self.spec.ready_timeout;
        liveness_history.slow =
            if matches!(liveness, Liveness::Slow(_)) { liveness_history.slow.saturating_add(1) } else { 0 };
        if !matches!(liveness, Liveness::Answers | Liveness::Unknown(_)) {
            liveness_history.calm_since = None;
        }
        let why = match liveness {
            Liveness::Answers => return liveness_history.answers(now, ready),
            Liveness::Unknown(why) => {
                if liveness_history.reported.as_ref() != Some(&why) {
                    liveness_history.reported = Some(why.clone());
                    step.report(Notice::NotChecked { name, why });
                }
                return;
            }
            // Only root and the unit's own user can stop it, so no other user can cause this restart.
            Liveness::Stopped(why) => return self.end_silent(why, policy, step),
            _ if starts => return,
            Liveness::Slow(why) if liveness_history.slow < SLOW_ROUNDS => {
                if liveness_history.slow == 1 {
                    step.report(Notice::Slow { name, why });
                }
                return;
            }
            Liveness::Overloaded(why) => {
                if !std::mem::replace(&mut liveness_history.has_reported_overload, true) {
                    step.report(Notice::Overloaded { name: name.clone(), why: why.clone() });
                }
                if now < *liveness_history.overloaded_since.get_or_insert(now) + OVERLOAD_PATIENCE {
                    return;
                }
                why
            }
            Liveness::Silent(why) | Liveness::Slow(why) => why,
        };
        // The unit is restarted, unless that was done recently. Then it is left alone for a while.
        let restarts = &mut liveness_history.restarts;
        if now >= restarts.not_before {
            restarts.note(now);
            self.end_silent(why, policy, step);
        } else if !std::mem::replace(&mut restarts.is_reported, true) {
            let pause = restarts.not_before - now;
            step.report(Notice::StillUnresponsive { name, why, pause });
        }
    }

    /// A stopped process obeys SIGTERM once it gets SIGCONT. A deadlocked one never does, so SIGKILL follows early.
    fn end_silent(&mut self, why: String, policy: &Supervise, step: &mut Step) {
        (self.liveness_history.slow, self.liveness_history.overloaded_since) = (0, None);
        self.liveness_history.silence = Some(why.clone());
        step.report(Notice::Unresponsive { name: self.name(), why });
        self.stop(RestartIntent::AfterSilence, step);
        self.hurry(step.now + probe_timeout(&self.spec, policy) / 2);
    }
}

#[cfg(test)]
mod tests;
