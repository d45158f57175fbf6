//! Preemption: jobs of a `[[partition]]` with `preempt` make room for jobs of partitions without it.

use config::{Config, Partition, Preempt};

use super::settings::Settings;

/// The time from the signal to a preempted job until Slurm kills the job, in seconds.
const GRACE: u32 = 60;

/// Whether a partition has `preempt`.
fn is_on(config: &Config) -> bool {
    config.partitions.iter().any(|partition| partition.preempt.is_some())
}

/// Adds the keys for preemption to slurm.conf.
pub(super) fn settings(settings: &mut Settings, config: &Config) {
    if !is_on(config) {
        return;
    }
    let why = "jobs of a partition with a lower PriorityTier make room (`preempt` of [[partition]])";
    settings.add_because("PreemptType", "preempt/partition_prio", why);
    settings.add_because("PreemptMode", "REQUEUE", "PreemptType requires a mode; each partition sets its own");
    let why = "a preempted job gets the signal that it requested (--signal) instead of SIGTERM";
    settings.add_because("PreemptParameters", "send_user_signal", why);
}

/// The keys for preemption in the partition's line, and their reason. Slurm's default PriorityTier is 1.
pub(super) fn of_partition(config: &Config, partition: &Partition) -> (Vec<(&'static str, String)>, &'static str) {
    let mode = match partition.preempt {
        _ if !is_on(config) => return (Vec::new(), ""),
        None => return (vec![("PreemptMode", "OFF".to_owned())], "its jobs are not preempted"),
        Some(Preempt::Requeue) => "REQUEUE",
        Some(Preempt::Cancel) => "CANCEL",
    };
    let keys =
        vec![("PriorityTier", "0".to_owned()), ("PreemptMode", mode.to_owned()), ("GraceTime", GRACE.to_string())];
    (keys, "`preempt`: its jobs make room for those of partitions without it, after a signal and GraceTime seconds")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use model::inventory::Inventory;

    use super::*;
    use crate::render;

    fn lines(toml: &str) -> Vec<String> {
        let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
        let inventory = Inventory { hostname: "box".to_owned(), ..Inventory::default() };
        let text = render::render(&crate::plan(&config, &inventory).unwrap()).swap_remove(0).text;
        let is_wanted = |line: &&str| line.starts_with("Preempt") || line.starts_with("PartitionName=");
        text.lines().filter(is_wanted).map(str::to_owned).collect()
    }

    #[test]
    fn only_partitions_with_the_key_are_preempted() {
        let two = "[[partition]]\nname = 'gpu'\n[[partition]]\nname = 'spare'\n";
        assert!(!lines(two).iter().any(|line| line.contains("Preempt")));
        let expected = [
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "PreemptParameters=send_user_signal",
            "PartitionName=gpu Nodes=ALL Default=YES PreemptMode=OFF",
            "PartitionName=spare Nodes=ALL PriorityTier=0 PreemptMode=REQUEUE GraceTime=60",
        ];
        assert_eq!(lines(&format!("{two}preempt = 'requeue'\n")), expected);
        let own = lines(&format!("{two}preempt = 'cancel'\nGraceTime = 7\nPriorityTier = 3\n")).pop().unwrap();
        assert!(own.contains("PreemptMode=CANCEL GraceTime=7 PriorityTier=3"), "{own}");
    }

    #[test]
    fn warns_if_no_partition_preempts() {
        let findings = |toml: &str| {
            let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
            let inventory = Inventory { hostname: "box".to_owned(), ..Inventory::default() };
            let findings = crate::plan(&config, &inventory).unwrap().findings;
            findings.iter().filter(|finding| finding.what.contains("`preempt`")).count()
        };
        let spare = "[[partition]]\nname = 'spare'\npreempt = 'requeue'\n";
        assert_eq!(
            (findings(spare), findings(&format!("{spare}[[partition]]\nname = 'gpu'\n")), findings("")),
            (1, 0, 0)
        );
    }
}
