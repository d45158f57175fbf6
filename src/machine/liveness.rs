//! Liveness checks of ready units: one round of queries at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use model::daemons::{DaemonName, RestartPolicy};
use model::supervise::Supervise;

use super::cluster::Cluster;
use super::step::Step;
use super::unit::{RestartIntent, Unit, exponential_backoff};
use super::units::Units;
use super::{Child, Moment, Notice};
use crate::UnitId;
use crate::liveness_result::Liveness;
use model::unit::Spec;

/// The state kept between two rounds.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    round: Round,
    /// The number of consecutive rounds without a result.
    rounds_without_result: u32,
}

/// The current round, or the pause before the next. A single child checks all units, so that probes cannot pile up, and an interval costs
/// one wake-up.
#[derive(Debug, Default)]
enum Round {
    /// There is no unit to check.
    #[default]
    Idle,
    /// The next round begins at this moment.
    Pause { until: Moment },
    /// The child checks the units. It ends by itself; at the deadline it is killed.
    Checking { since: Moment, until: Moment, checked: Vec<UnitId>, results: BTreeMap<UnitId, Liveness> },
}

/// The history of a unit's answers.
#[derive(Debug, Default)]
pub(super) struct LivenessHistory {
    /// The start of the ready state in which the unit last answered; `None` if the unit never answered.
    answered_when_ready_since: Option<Moment>,
    /// The time since which the unit has answered every check; `None` if it did not answer the last one. Checks that could not be made do not count.
    answering_since: Option<Moment>,
    /// The number of consecutive rounds in which the unit was slow.
    slow_rounds: u32,
    /// The last reported reason why the unit could not be checked.
    reported_check_error: Option<String>,
    restarts: UnresponsiveRestarts,
    /// Why slurminit stopped the unresponsive unit.
    pub(super) unresponsive_reason: Option<String>,
}

/// Restarts of unresponsive units have a separate backoff, so that a user who blocks a daemon cannot make it
/// restart all the time.
#[derive(Debug, Default)]
struct UnresponsiveRestarts {
    consecutive_restarts: u32,
    /// The earliest moment for the next restart.
    not_before: Moment,
    /// Whether it was logged that there is no restart until `not_before`.
    is_reported: bool,
}

impl UnresponsiveRestarts {
    /// The pause after the last restart.
    fn pause(&self) -> Duration {
        exponential_backoff(self.consecutive_restarts, RESTART_PAUSE, RESTART_PAUSE_MAX)
    }

    fn note(&mut self, now: Moment) {
        self.consecutive_restarts = self.consecutive_restarts.saturating_add(1);
        self.not_before = now + self.pause();
        self.is_reported = false;
    }
}

impl LivenessHistory {
    /// Whether the unit ever answered. If so, its configuration works.
    pub(super) fn has_answered(&self) -> bool {
        self.answered_when_ready_since.is_some()
    }

    /// Records an answer. The unit has recovered once it has answered for a minute, and for at least as long as its last pause.
    fn record_answer(&mut self, now: Moment, ready_since: Moment) {
        self.answered_when_ready_since = Some(ready_since);
        self.reported_check_error = None;
        let answering_for = now.saturating_sub(*self.answering_since.get_or_insert(now));
        if answering_for >= RECOVERED_AFTER.max(self.restarts.pause()) {
            self.restarts = UnresponsiveRestarts::default();
        }
    }
}

/// The maximum delay of the first round, which is early because it also starts the helpers that watch over processes and jobs.
const FIRST_ROUND_DELAY: Duration = Duration::from_secs(1);
/// The child is killed after this multiple of the longest check's timeout: the child's own timeouts do not count the time during which it cannot run.
const CHILD_TIMEOUT_FACTOR: u32 = 4;
/// A busy unit that does not answer for this many rounds is considered hung: one minute at the default interval.
const SLOW_ROUNDS: u32 = 12;
/// The pause after the first restart of an unresponsive unit; doubles with each restart.
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
            Round::Pause { until } | Round::Checking { until, .. } => Some(until),
        }
    }

    pub(super) fn stop(&mut self) {
        self.round = Round::Idle;
    }

    pub(super) fn units_being_checked(&self) -> &[UnitId] {
        match &self.round {
            Round::Checking { checked, .. } => checked,
            Round::Idle | Round::Pause { .. } => &[],
        }
    }

    pub(super) fn advance(&mut self, units: &Units, policy: &Supervise, step: &mut Step) {
        let interval = policy.probe_interval;
        match &mut self.round {
            Round::Checking { until, .. } if step.now >= *until => {
                *until = step.now + interval;
                step.kill_task(Child::Liveness);
            }
            Round::Idle if units_to_check(units, policy).next().is_some() => {
                self.round = Round::Pause { until: step.now + interval.min(FIRST_ROUND_DELAY) };
            }
            Round::Pause { until } if step.now >= *until => self.begin_round(units, policy, step),
            _ => {}
        }
    }

    fn begin_round(&mut self, units: &Units, policy: &Supervise, step: &mut Step) {
        let Some(longest) = units_to_check(units, policy).map(|unit| probe_timeout(&unit.spec, policy)).max() else {
            return self.stop();
        };
        let checked = units_to_check(units, policy).map(|unit| unit.id).collect();
        let until = step.now + longest * CHILD_TIMEOUT_FACTOR;
        self.round = Round::Checking { since: step.now, until, checked, results: BTreeMap::new() };
        step.start_task(Child::Liveness);
        // A helper that is still running is not started again. `OomScore` needs slurmd's directories.
        if units.daemon(DaemonName::Slurmd).is_none_or(Unit::is_ready) {
            step.start_task(Child::OomScore);
        }
        if units.daemon(DaemonName::Slurmctld).is_some() {
            step.start_task(Child::JobsFollow);
        } else if units.daemon(DaemonName::Slurmd).is_some_and(Unit::is_ready) {
            // Only once slurmd is ready: the first rounds can come during GPU detection, when the node's name is not yet known.
            step.start_task(Child::JobsReached);
        }
    }

    pub(super) fn take_result(&mut self, unit: UnitId, liveness: Liveness) {
        if let Round::Checking { checked, results, .. } = &mut self.round {
            if checked.contains(&unit) {
                results.insert(unit, liveness);
            }
        }
    }

    /// Ends a round, after the child has ended and its output was read. Applies the result of each unit that is not exempt and whose dependencies
    /// answered.
    pub(super) fn round_ended(&mut self, cluster: &mut Cluster, is_exempt: impl Fn(&Unit) -> bool) {
        let Round::Checking { since, checked, results, .. } = &mut self.round else { return };
        let (since, checked, results) = (*since, std::mem::take(checked), std::mem::take(results));
        let Cluster { units, policy, step, jobs, .. } = cluster;
        self.round = Round::Pause { until: (since + policy.probe_interval).max(step.now) };
        self.rounds_without_result = if results.is_empty() { self.rounds_without_result.saturating_add(1) } else { 0 };
        if self.rounds_without_result == ROUNDS_WITHOUT_RESULT {
            step.report(Notice::NoVerdict { rounds: ROUNDS_WITHOUT_RESULT });
        }
        let answered = |unit: UnitId| !checked.contains(&unit) || results.get(&unit) == Some(&Liveness::Answers);
        for id in &checked {
            // A unit's check also fails if a unit on which it depends, such as munged, does not answer. Then only that other unit is restarted.
            let is_excused = is_exempt(&units[*id]) || jobs.launch_hold.applied_since(&units[*id], since);
            if is_excused || !dependencies_answered(units, *id, since, &answered) {
                continue;
            }
            if let Some((ready_since, liveness)) = ready_at(&units[*id], since).zip(results.get(id)) {
                units[*id].apply_liveness(ready_since, liveness.clone(), policy, step);
            }
        }
    }
}

/// How long a unit's answer may take.
pub(super) fn probe_timeout(spec: &Spec, policy: &Supervise) -> Duration {
    let own = spec.liveness.as_ref().and_then(|liveness| liveness.timeout);
    own.unwrap_or(policy.probe_timeout).min(policy.probe_interval)
}

fn units_to_check<'a>(units: &'a Units, policy: &Supervise) -> impl Iterator<Item = &'a Unit> + use<'a> {
    let is_enabled = !policy.probe_interval.is_zero();
    // A failed check stops the unit, so a unit that is never restarted is not checked.
    let has_check = |unit: &&Unit| unit.spec.liveness.is_some() && unit.spec.restart != RestartPolicy::Never;
    units.iter().filter(move |unit| is_enabled && unit.is_ready()).filter(has_check)
}

/// When the unit became ready, if it has been ready since before the round began.
fn ready_at(unit: &Unit, round_start: Moment) -> Option<Moment> {
    unit.ready_since().filter(|since| *since <= round_start)
}

/// Whether all dependencies of the unit, including indirect ones, were ready or had finished, and none that was checked failed to answer.
fn dependencies_answered(units: &Units, id: UnitId, round_start: Moment, answered: &impl Fn(UnitId) -> bool) -> bool {
    units[id].dependencies.iter().all(|other| {
        let is_available = ready_at(&units[*other], round_start).is_some() || units[*other].has_finished();
        is_available && answered(*other) && dependencies_answered(units, *other, round_start, answered)
    })
}

impl Unit {
    /// Records a usable or drained node as an answer of this unit: the controller reports such a state only if munged, slurmctld and slurmd work.
    pub(super) fn record_usable_node(&mut self) {
        let ready_since = self.ready_since();
        let history = &mut self.liveness_history;
        history.answered_when_ready_since = ready_since.or(history.answered_when_ready_since);
    }

    fn apply_liveness(&mut self, ready_since: Moment, liveness: Liveness, policy: &Supervise, step: &mut Step) {
        let (name, now) = (self.name(), step.now);
        let liveness_history = &mut self.liveness_history;
        // slurmctld listens before it has read its saved state. A unit that has not answered since it became ready may still be starting.
        let is_still_starting = liveness_history.answered_when_ready_since != Some(ready_since)
            && now < ready_since + self.spec.ready_timeout;
        liveness_history.slow_rounds =
            if matches!(liveness, Liveness::Slow(_)) { liveness_history.slow_rounds.saturating_add(1) } else { 0 };
        if !matches!(liveness, Liveness::Answers | Liveness::Unknown(_)) {
            liveness_history.answering_since = None;
        }
        let why = match liveness {
            Liveness::Answers => return liveness_history.record_answer(now, ready_since),
            Liveness::Unknown(why) => {
                if liveness_history.reported_check_error.as_ref() != Some(&why) {
                    liveness_history.reported_check_error = Some(why.clone());
                    step.report(Notice::NotChecked { name, why });
                }
                return;
            }
            // Only root and the unit's own user can send it SIGSTOP, so no other user can cause this restart.
            Liveness::Stopped(why) => return self.stop_unresponsive(why, policy, step),
            _ if is_still_starting => return,
            Liveness::Slow(why) if liveness_history.slow_rounds < SLOW_ROUNDS => {
                if liveness_history.slow_rounds == 1 {
                    let limit = policy.probe_interval * SLOW_ROUNDS;
                    step.report(Notice::Slow { name, why, limit });
                }
                return;
            }
            Liveness::Silent(why) | Liveness::Slow(why) => why,
        };
        // Restarts the unit, unless it was restarted recently. Then the next restart has to wait.
        let restarts = &mut liveness_history.restarts;
        if now >= restarts.not_before {
            restarts.note(now);
            self.stop_unresponsive(why, policy, step);
        } else if !std::mem::replace(&mut restarts.is_reported, true) {
            let pause = restarts.not_before - now;
            step.report(Notice::StillUnresponsive { name, why, pause });
        }
    }

    /// Stops the unit for a restart. A stopped process handles SIGTERM after SIGCONT. A deadlocked process never handles it, so SIGKILL follows
    /// early.
    fn stop_unresponsive(&mut self, why: String, policy: &Supervise, step: &mut Step) {
        self.liveness_history.slow_rounds = 0;
        self.liveness_history.unresponsive_reason = Some(why.clone());
        step.report(Notice::Unresponsive { name: self.name(), why });
        self.stop(RestartIntent::Unresponsive, step);
        self.kill_by(step.now + probe_timeout(&self.spec, policy) / 2);
    }
}

#[cfg(test)]
mod tests;
