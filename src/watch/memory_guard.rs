//! What is done when the container's memory runs short.
//!
//! Time and the state of the memory are inputs, and [`Act`]s come out. It is for a node where Slurm itself holds no job to its
//! memory: there the kernel would end whatever process it finds.

use config::{Memory, Victim};
use probe::memory::Sample;

/// The pause after a job was cancelled, in ms: its memory has to come back before the next one is looked at.
const REST: u64 = 30_000;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Let the node take no more jobs, for this reason.
    Close(String),
    /// Take that back.
    Open,
    /// Cancel a job, and tell it this.
    Cancel(Victim, String),
}

/// The state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    is_closed: bool,
    cancelled_ms: Option<u64>,
}

impl Guard {
    /// `is_closed`: whether an agent before this one closed the node because of its memory.
    pub const fn new(is_closed: bool) -> Self {
        Self { is_closed, cancelled_ms: None }
    }

    /// What is to be done now.
    pub fn step(&mut self, now_ms: u64, sample: &Sample, levels: &Memory) -> Vec<Act> {
        let (free, mut acts) = (sample.free_percent(), Vec::new());
        let words = format!("memory is short: {} of {} MiB are free ({free} %)", sample.free_mib, sample.usable_mib);
        if !self.is_closed && free < levels.close_below.into() {
            self.is_closed = true;
            acts.push(Act::Close(words.clone()));
        } else if self.is_closed && free > levels.open_above.into() {
            self.is_closed = false;
            acts.push(Act::Open);
        }
        let has_rested = self.cancelled_ms.is_none_or(|last| now_ms.saturating_sub(last) >= REST);
        // Memory that is used and that nobody waits for hurts nobody.
        let hurts = sample.pressure.is_none_or(|waiting| waiting > 0.0);
        if free < levels.cancel_below.into() && hurts && has_rested && levels.cancel != Victim::None {
            self.cancelled_ms = Some(now_ms);
            acts.push(Act::Cancel(levels.cancel, words));
        }
        acts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(free: u64, pressure: Option<f64>) -> Sample {
        Sample { free_mib: free * 10, usable_mib: 1000, pressure }
    }

    fn acts(guard: &mut Guard, now_ms: u64, free: u64, pressure: Option<f64>) -> Vec<&'static str> {
        let acts = guard.step(now_ms, &sample(free, pressure), &Memory::default());
        let word = |act: &Act| match act {
            Act::Close(_) => "close",
            Act::Open => "open",
            Act::Cancel(..) => "cancel",
        };
        acts.iter().map(word).collect()
    }

    #[test]
    fn the_node_closes_at_one_level_and_opens_at_another() {
        let mut guard = Guard::default();
        for (now, (free, want)) in
            (0..).zip([(80, vec![]), (34, vec!["close"]), (36, vec![]), (50, vec![]), (51, vec!["open"]), (36, vec![])])
        {
            assert_eq!(acts(&mut guard, now, free, None), want, "{free}");
        }
        // One that an agent before this one closed.
        assert_eq!(acts(&mut Guard::new(true), 0, 90, None), ["open"]);
        assert_eq!(acts(&mut Guard::new(true), 0, 40, None), [""; 0]);
    }

    #[test]
    fn a_job_is_cancelled_when_processes_wait_for_memory_and_the_next_one_later() {
        let mut guard = Guard::new(true);
        assert_eq!(acts(&mut guard, 0, 14, Some(0.0)), [""; 0], "nobody waits");
        assert_eq!(acts(&mut guard, 1, 14, Some(0.1)), ["cancel"]);
        assert_eq!(acts(&mut guard, 30_000, 14, None), [""; 0]);
        assert_eq!(acts(&mut guard, 30_001, 14, None), ["cancel"]);
        let words = guard.step(90_000, &sample(14, None), &Memory::default());
        assert!(
            matches!(&words[0], Act::Cancel(Victim::Youngest, why) if why.contains("140 of 1000 MiB are free (14 %)"))
        );
        let none = Memory { cancel: Victim::None, ..Memory::default() };
        assert_eq!(guard.step(900_000, &sample(1, None), &none), []);
    }

    proptest! {
        /// It never closes twice or opens twice, and ends open when there is memory.
        #[test]
        fn it_closes_and_opens_in_turn(history in proptest::collection::vec(0..=100_u64, 1..200)) {
            let (mut guard, mut is_closed) = (Guard::default(), false);
            for (now, free) in (0..).zip(history) {
                for act in acts(&mut guard, now * 5000, free, None) {
                    prop_assert!(act == "cancel" || (act == "close") != is_closed);
                    is_closed = if act == "cancel" { is_closed } else { act == "close" };
                }
            }
            acts(&mut guard, u64::MAX, 99, None);
            prop_assert_eq!(guard.is_closed, false);
        }
    }
}
