//! Decides what to do when the container's memory, or the space of a directory, runs short.
//!
//! Time and samples are inputs, and [`Action`]s are outputs. Memory is guarded, if configured, on nodes where Slurm does not limit the memory
//! of jobs, because an OOM kill could hit any process there. Directories are guarded because the kubelet ends a whole pod if a volume exceeds
//! its size limit.

use std::collections::BTreeMap;

use config::{Memory, Victim};
use probe::memory::MemoryState;

/// The pause after an attempt to cancel a job, in ms: the job's memory has to be released before the next attempt.
const CANCEL_PAUSE_MS: u64 = 30_000;

/// An action of the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drain the node. The text describes the free memory or space, for the reason.
    Drain(String),
    /// Resume the node.
    Resume,
    /// Cancel a job that uses more than it requested. The text describes the free memory or space, for the log and the note to the job's user.
    Cancel(Victim, String),
}

/// A running job, and its memory on this node in MiB. If the guard watches a directory, `requested` is 0 and `used` is the growth of the
/// user's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobMemory {
    /// The job ID.
    pub job: u64,
    /// The user ID.
    pub uid: u32,
    /// The allocated memory; `None` if the cluster allocates no memory.
    pub requested: Option<u64>,
    /// The memory that the job's processes use.
    pub used: u64,
}

impl JobMemory {
    fn within_request(&self) -> u64 {
        self.requested.map_or(self.used, |requested| self.used.min(requested))
    }
}

/// Chooses the job to cancel. The job uses more than it requested, and belongs to the user with the most memory that no job requested. So
/// a user's files, or processes outside of jobs, cannot cause the cancellation of other users' jobs. `jobs` are sorted by their start.
/// `users` is the memory of each user in MiB, including that outside of jobs; `None` is memory of an unknown user. A job without a memory
/// allocation is never chosen.
pub fn victim(jobs: &[JobMemory], users: &BTreeMap<Option<u32>, u64>, which: Victim) -> Option<JobMemory> {
    let unrequested = |(uid, used): (&Option<u32>, &u64)| {
        let jobs_of_user = jobs.iter().filter(|job| Some(job.uid) == *uid);
        used.saturating_sub(jobs_of_user.map(JobMemory::within_request).sum())
    };
    let (top_user, _) = users.iter().max_by_key(|user| unrequested(*user))?;
    let mut exceeding =
        jobs.iter().copied().filter(|job| Some(job.uid) == *top_user && job.used > job.within_request());
    match which {
        Victim::Youngest => exceeding.next_back(),
        Victim::Oldest => exceeding.next(),
        Victim::None => None,
    }
}

/// The state of the guard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Whether the guard has drained the node.
    pub is_closed: bool,
    cancelled_ms: Option<u64>,
}

impl Guard {
    /// The actions to take now.
    pub fn step(&mut self, now_ms: u64, sample: &MemoryState, levels: &Memory) -> Vec<Action> {
        let (free, mut actions) = (sample.free_percent(), Vec::new());
        let reason = format!("{} of {} MiB free ({free} %)", sample.free_mib, sample.usable_mib);
        if !self.is_closed && free < levels.close_below.into() {
            self.is_closed = true;
            actions.push(Action::Drain(reason.clone()));
        } else if self.is_closed && free > levels.open_above.into() {
            self.is_closed = false;
            actions.push(Action::Resume);
        }
        let has_rested = self.cancelled_ms.is_none_or(|last| now_ms.saturating_sub(last) >= CANCEL_PAUSE_MS);
        // Without pressure, low free memory harms no process.
        let is_under_pressure = sample.pressure.is_none_or(|waiting| waiting > 0.0);
        if free < levels.cancel_below.into() && is_under_pressure && has_rested && levels.cancel != Victim::None {
            self.cancelled_ms = Some(now_ms);
            actions.push(Action::Cancel(levels.cancel, reason));
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(free: u64, pressure: Option<f64>) -> MemoryState {
        MemoryState { free_mib: free * 10, usable_mib: 1000, pressure }
    }

    fn actions(guard: &mut Guard, now_ms: u64, free: u64, pressure: Option<f64>) -> Vec<&'static str> {
        let steps = guard.step(now_ms, &sample(free, pressure), &Memory::default());
        let word = |action: &Action| match action {
            Action::Drain(_) => "close",
            Action::Resume => "open",
            Action::Cancel(..) => "cancel",
        };
        steps.iter().map(word).collect()
    }

    #[test]
    fn drains_and_resumes_at_different_levels() {
        let mut guard = Guard::default();
        for (now, (free, want)) in
            (0..).zip([(80, vec![]), (34, vec!["close"]), (36, vec![]), (50, vec![]), (51, vec!["open"]), (36, vec![])])
        {
            assert_eq!(actions(&mut guard, now, free, None), want, "{free}");
        }
        // A node that an earlier agent has drained.
        for (free, want) in [(90, vec!["open"]), (40, vec![])] {
            let mut guard = Guard { is_closed: true, ..Guard::default() };
            assert_eq!(actions(&mut guard, 0, free, None), want);
        }
    }

    #[test]
    fn cancels_jobs_under_memory_pressure_with_pause() {
        let mut guard = Guard { is_closed: true, ..Guard::default() };
        assert_eq!(actions(&mut guard, 0, 14, Some(0.0)), [""; 0], "no pressure");
        assert_eq!(actions(&mut guard, 1, 14, Some(0.1)), ["cancel"]);
        assert_eq!(actions(&mut guard, 30_000, 14, None), [""; 0]);
        assert_eq!(actions(&mut guard, 30_001, 14, None), ["cancel"]);
        let steps = guard.step(90_000, &sample(14, None), &Memory::default());
        assert!(
            matches!(&steps[0], Action::Cancel(Victim::Youngest, why) if why.contains("140 of 1000 MiB free (14 %)"))
        );
        let none = Memory { cancel: Victim::None, ..Memory::default() };
        assert_eq!(guard.step(900_000, &sample(1, None), &none), []);
    }

    #[test]
    fn selects_only_job_above_its_memory_request() {
        let job = |job, requested, used| JobMemory { job, uid: 0, requested, used };
        let jobs =
            [job(1, Some(10), 11), job(2, Some(10), 10), job(3, Some(10), 900), job(4, None, 900), job(5, Some(0), 0)];
        let users = [(Some(0), 1900)].into();
        let of = |which| victim(&jobs, &users, which).map(|job| job.job);
        assert_eq!([of(Victim::Youngest), of(Victim::Oldest), of(Victim::None)], [Some(3), Some(1), None]);
        assert_eq!(victim(&jobs[1..2], &users, Victim::Youngest), None);
    }

    #[test]
    fn cancels_no_job_because_of_memory_of_another_user() {
        let job = |job, uid, requested, used| JobMemory { job, uid, requested: Some(requested), used };
        let jobs = [job(1, 1, 10, 60), job(2, 2, 100, 100), job(3, 2, 10, 15)];
        let of = |users: &[(Option<u32>, u64)]| {
            victim(&jobs, &users.iter().copied().collect(), Victim::Youngest).map(|job| job.job)
        };
        assert_eq!(of(&[(Some(1), 60), (Some(2), 115)]), Some(1), "what jobs requested does not count");
        assert_eq!(of(&[(Some(1), 60), (Some(2), 115), (Some(3), 600)]), None, "user 3 has no job");
        assert_eq!(of(&[(Some(1), 60), (Some(2), 115), (None, 600)]), None, "of an unknown user");
        assert_eq!(of(&[(Some(1), 60), (Some(2), 715)]), Some(3), "user 2 has files, and a job above its request");
    }

    proptest! {
        /// Never drains or resumes twice in a row, and leaves the node resumed when memory is free.
        #[test]
        fn drains_and_resumes_alternately(history in proptest::collection::vec(0..=100_u64, 1..200)) {
            let (mut guard, mut is_closed) = (Guard::default(), false);
            for (now, free) in (0..).zip(history) {
                for action in actions(&mut guard, now * 5000, free, None) {
                    prop_assert!(action == "cancel" || (action == "close") != is_closed);
                    is_closed = if action == "cancel" { is_closed } else { action == "close" };
                }
            }
            actions(&mut guard, u64::MAX, 99, None);
            prop_assert_eq!(guard.is_closed, false);
        }
    }
}
