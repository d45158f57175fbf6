//! Protection of the container's memory: draining and job cancellation before an OOM.

use serde::Deserialize;

use super::{Fault, Step};

/// The settings of the table `[memory]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Whether the protection is on. It has no effect if Slurm limits the memory of jobs itself.
    pub guard: bool,
    /// The node is drained below this share of free memory, in percent.
    pub close_below: u8,
    /// A job is cancelled below this share of free memory, in percent, unless no process waits for memory.
    pub cancel_below: u8,
    /// The node is resumed above this share of free memory, in percent.
    pub open_above: u8,
    /// The choice of the job to cancel.
    pub cancel: Victim,
}

impl Default for Memory {
    fn default() -> Self {
        Self { guard: false, close_below: 35, cancel_below: 15, open_above: 50, cancel: Victim::Youngest }
    }
}

/// The choice of the job to cancel. Only a job that uses more than it requested can be cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Victim {
    /// The job that started last, because it loses the least work.
    #[default]
    Youngest,
    /// The job that started first.
    Oldest,
    /// No job is cancelled.
    None,
}

/// Checks that the three levels are in ascending order and at most 100 percent.
pub(super) fn check(memory: &Memory) -> Result<(), Fault> {
    let Memory { cancel_below, close_below, open_above, .. } = *memory;
    if cancel_below < close_below && close_below < open_above && open_above <= 100 {
        return Ok(());
    }
    let what = format!(
        "expected cancel_below ({cancel_below}) < close_below ({close_below}) < open_above ({open_above}) <= 100 percent"
    );
    Err(Fault::new(vec![Step::from("memory"), Step::from("close_below")], what))
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn rejects_thresholds_out_of_order() {
        let parse = |text: &str| Config::parse(text, std::path::Path::new("t"));
        assert!(parse("[memory]\nguard = true\n").unwrap().memory.guard);
        assert!(!parse("").unwrap().memory.guard);
        for wrong in ["close_below = 50", "cancel_below = 35", "open_above = 101", "close_below = 10"] {
            let error = parse(&format!("[memory]\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("expected cancel_below"), "{error}");
        }
    }
}
