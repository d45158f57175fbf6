//! The scheduler statistics of slurmctld, from `sdiag`.

/// Slurm's statistics. A field is `None` if sdiag does not print it. Cycle durations are in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names follow sdiag's")]
pub struct Scheduler {
    pub threads: Option<u64>,
    pub queue_size: Option<u64>,
    pub dbd_queue_size: Option<u64>,
    pub last_cycle: Option<u64>,
    pub mean_cycle: Option<u64>,
    pub cycles_per_minute: Option<u64>,
    pub backfill_last_cycle: Option<u64>,
    pub backfill_mean_cycle: Option<u64>,
    pub backfill_depth_mean: Option<u64>,
    pub backfilled_since_start: Option<u64>,
    pub backfilled_since_cycle: Option<u64>,
    pub backfilled_heterogeneous: Option<u64>,
}

impl Scheduler {
    /// Parses sdiag's output. Some names occur both in the section about the main scheduler and in the one about backfill.
    pub fn parse(text: &str) -> Self {
        let (main, backfill) = text.split_once("Backfilling stats").unwrap_or((text, ""));
        // The sections after backfill contain user names, which could look like a field.
        let backfill = backfill.split("Remote Procedure Call").next().unwrap_or_default();
        let number = |part: &str, name: &str| {
            let mut lines = part.lines().filter_map(|line| line.trim().split_once(':'));
            lines.find(|(key, _)| key.trim() == name).and_then(|(_, value)| value.trim().parse().ok())
        };
        Self {
            threads: number(main, "Server thread count"),
            queue_size: number(main, "Agent queue size"),
            dbd_queue_size: number(main, "DBD Agent queue size"),
            last_cycle: number(main, "Last cycle"),
            mean_cycle: number(main, "Mean cycle"),
            cycles_per_minute: number(main, "Cycles per minute"),
            backfill_last_cycle: number(backfill, "Last cycle"),
            backfill_mean_cycle: number(backfill, "Mean cycle"),
            backfill_depth_mean: number(backfill, "Depth Mean"),
            backfilled_since_start: number(backfill, "Total backfilled jobs (since last slurm start)"),
            backfilled_since_cycle: number(backfill, "Total backfilled jobs (since last stats cycle start)"),
            backfilled_heterogeneous: number(backfill, "Total backfilled heterogeneous job components"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_main_and_backfill_scheduler() {
        let text = "Server thread count:  3\nDBD Agent queue size: 1\n\nMain schedule statistics (microseconds):\n\tLast cycle:   970\n\
                    \tMean cycle:   745\n\nBackfilling stats\n\tTotal backfilled jobs (since last slurm start): 11\n\tLast cycle: 1942\n\
                    \tDepth Mean: 29\n\nRemote Procedure Call statistics by user\n\tMean cycle: 9\n";
        let scheduler = Scheduler::parse(text);
        assert_eq!((scheduler.threads, scheduler.dbd_queue_size, scheduler.queue_size), (Some(3), Some(1), None));
        assert_eq!((scheduler.last_cycle, scheduler.backfill_last_cycle), (Some(970), Some(1942)));
        assert_eq!((scheduler.mean_cycle, scheduler.backfill_mean_cycle), (Some(745), None));
        assert_eq!((scheduler.backfilled_since_start, scheduler.backfill_depth_mean), (Some(11), Some(29)));
    }
}
