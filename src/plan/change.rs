//! How to apply a change of Slurm's files: no action, `scontrol reconfigure`, a restart of slurmctld and slurmd, or a restart of the container.

use std::collections::BTreeMap;

use model::prepared::Apply;

use super::FileName;
use super::customized::{included, parse};

/// One of Slurm's files with its text, generated or the user's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The file's name.
    pub name: FileName,
    /// The content of the file.
    pub text: String,
}

/// The difference between the files that the daemons run with and new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The action that the daemons need.
    pub apply: Apply,
    /// The changes, as readable items.
    pub changes: Vec<String>,
    /// Whether the Gres of a node in slurm.conf changed, which aborts the jobs that use the node's GRES.
    pub gres: bool,
    /// Whether the controller must delete the node so that it registers again with new resources.
    pub node: bool,
    /// The changed keys that require a restart of the container.
    pub start_only: Vec<&'static str>,
    /// The files whose text differs.
    pub files: Vec<FileName>,
}

/// Keys that slurminit itself uses while the daemons run, or that Slurm's saved state depends on.
const START_ONLY_KEYS: [&str; 6] =
    ["ClusterName", "SlurmctldPort", "SlurmdPort", "SlurmdSpoolDir", "SlurmUser", "StateSaveLocation"];

/// Keys that `scontrol reconfigure` applies in every supported release: plain values that the daemons read when
/// they need them (slurm.conf(5), and `read_config.c`). A change of any other key outside of PartitionName lines requires a
/// restart of the daemons, or of the container for [`START_ONLY_KEYS`].
const RECONFIGURABLE_KEYS: [&str; 50] = [
    "BatchStartTimeout",
    "CompleteWait",
    "DebugFlags",
    "DefMemPerCPU",
    "DefMemPerGPU",
    "DefMemPerNode",
    "DisableRootJobs",
    "EnforcePartLimits",
    "CliFilterPlugins",
    "Epilog",
    "EpilogSlurmctld",
    "FairShareDampeningFactor",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "HealthCheckProgram",
    "InactiveLimit",
    "JobFileAppend",
    "JobRequeue",
    "KillOnBadExit",
    "KillWait",
    "LogTimeFormat",
    "MailProg",
    "MaxMemPerCPU",
    "MaxMemPerNode",
    "MaxTasksPerNode",
    "MessageTimeout",
    "MinJobAge",
    "OverTimeLimit",
    "PriorityDecayHalfLife",
    "PriorityFavorSmall",
    "PriorityMaxAge",
    "PriorityWeightAge",
    "PriorityWeightFairshare",
    "PriorityWeightJobSize",
    "PriorityWeightPartition",
    "PriorityWeightQOS",
    "Prolog",
    "PrologSlurmctld",
    "RequeueExit",
    "RequeueExitHold",
    "ReturnToService",
    "SchedulerParameters",
    "SlurmctldDebug",
    "SlurmctldTimeout",
    "SlurmdDebug",
    "SlurmdTimeout",
    "TaskEpilog",
    "TaskProlog",
    "UnkillableStepTimeout",
    "WaitTime",
];

/// Compares the new files with those that the daemons are using.
pub fn change(old: &[Text], new: &[Text]) -> Change {
    let mut change = Change::default();
    for Text { name, text } in new {
        let before = old.iter().find(|file| file.name == *name).map_or("", |file| file.text.as_str());
        if before == text {
            if *name == FileName::SlurmConf && includes(text) {
                change.require(Apply::Reconfigure, "files that slurm.conf includes (not compared)".to_owned());
            }
            continue;
        }
        change.files.push(*name);
        match name {
            FileName::SlurmConf => change.compare_slurm_conf(before, text),
            // slurmd reads oci.conf only when it starts.
            FileName::GresConf | FileName::CgroupConf | FileName::OciConf => {
                if parse::lines(before) == parse::lines(text) {
                    change.changes.push(format!("{name}: comments"));
                } else {
                    change.require(Apply::Restart, format!("{name} changed"));
                }
            }
            // Slurm reads the scripts again each time it runs them.
            _ => change.changes.push(format!("{name} changed")),
        }
    }
    change
}

impl Change {
    /// Records that the node differs from its registration (`slurmd --conf`).
    pub fn renew_node(&mut self, registered: &str, now: &str) {
        self.node = true;
        let only_in = |text: &str, other: &str| -> Vec<String> {
            let is_other = |word: &&str| !other.split_whitespace().any(|known| known == *word);
            text.split_whitespace().filter(is_other).map(str::to_owned).collect()
        };
        let (new, removed) = (only_in(now, registered), only_in(registered, now));
        let difference = if new.is_empty() { format!("without {}", removed.join(" ")) } else { new.join(" ") };
        self.require(Apply::Restart, format!("the node ({difference})"));
    }

    fn require(&mut self, apply: Apply, what: String) {
        self.apply = self.apply.max(apply);
        self.changes.push(what);
    }

    fn compare_slurm_conf(&mut self, old: &str, new: &str) {
        let before = self.changes.len();
        let (former, latest) = (SlurmConf::parse(old), SlurmConf::parse(new));
        for key in former.keys.keys().chain(latest.keys.keys().filter(|key| !former.keys.contains_key(*key))) {
            let (from, to) = (former.keys.get(key), latest.keys.get(key));
            if from.map(|(_, values)| values) == to.map(|(_, values)| values) {
                continue;
            }
            let spelled = to.or(from).map_or(key.as_str(), |(spelled, _)| spelled);
            let apply = if RECONFIGURABLE_KEYS.iter().any(|known| known.eq_ignore_ascii_case(key)) {
                Apply::Reconfigure
            } else {
                Apply::Restart
            };
            self.start_only.extend(START_ONLY_KEYS.iter().filter(|known| known.eq_ignore_ascii_case(key)));
            self.require(apply, spelled.to_owned());
        }
        if former.nodes != latest.nodes {
            self.require(Apply::Restart, "the nodes".to_owned());
            self.gres |= gres(&former.nodes) != gres(&latest.nodes);
        }
        if former.partitions != latest.partitions {
            self.require(Apply::Reconfigure, "the partitions".to_owned());
        }
        if includes(old) || includes(new) {
            self.require(Apply::Restart, "files that slurm.conf includes (not compared)".to_owned());
        }
        if self.changes.len() == before {
            // slurmctld and slurmd compare checksums of the whole file, including its comments.
            self.require(Apply::Reconfigure, "slurm.conf: comments".to_owned());
        }
    }
}

/// The parts of a slurm.conf, grouped by how a change of them is applied.
#[derive(Debug, Default)]
struct SlurmConf {
    /// By lower-case key: the key as written, and its values in order.
    keys: BTreeMap<String, (String, Vec<String>)>,
    nodes: Vec<parse::Line>,
    partitions: Vec<parse::Line>,
}

impl SlurmConf {
    fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in parse::lines(text) {
            let first = line.pairs().first().map(|(key, _)| key.to_ascii_lowercase()).unwrap_or_default();
            match first.as_str() {
                "nodename" | "nodeset" | "downnodes" | "frontendname" => conf.nodes.push(line),
                "partitionname" => conf.partitions.push(line),
                _ => {
                    for (key, value) in line.pairs() {
                        let entry = conf.keys.entry(key.to_ascii_lowercase()).or_insert((key.clone(), Vec::new()));
                        entry.1.push(value.clone());
                    }
                }
            }
        }
        conf
    }
}

/// The NodeName and Gres of each node with GRES.
fn gres(nodes: &[parse::Line]) -> Vec<(Option<&str>, &str)> {
    let with_gres = |node: &'_ parse::Line| node.get("Gres").is_some_and(|gres| !gres.is_empty());
    let pair = |node| (parse::Line::get(node, "NodeName"), parse::Line::get(node, "Gres").unwrap_or_default());
    nodes.iter().filter(|node| with_gres(node)).map(pair).collect()
}

fn includes(text: &str) -> bool {
    text.lines().any(|line| included(line).is_some())
}

/// The number, counted from 1, of the first line that sets `key`. Slurm names an unknown key, but usually not the line.
pub fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let sets = |line: &str| parse::lines(line).iter().any(|line| line.get(key).is_some());
    text.lines().position(sets).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str = "# by slurminit\nClusterName=c\nSchedulerParameters=defer\nSelectType=select/cons_tres\n\
        NodeName=n CPUs=2 Gres=gpu:1\nPartitionName=debug Nodes=ALL\n";

    fn compare(old: &str, new: &str) -> Change {
        let file = |text: &str| [Text { name: FileName::SlurmConf, text: text.to_owned() }];
        change(&file(old), &file(new))
    }

    #[test]
    fn identical_files_require_no_action() {
        assert_eq!(compare(CONF, CONF), Change::default());
    }

    #[test]
    fn new_node_set_does_not_change_gres() {
        for conf in [CONF.to_owned(), CONF.replace("NodeName=n CPUs=2 Gres=gpu:1\n", "")] {
            let change = compare(&conf, &conf.replace("PartitionName", "NodeSet=big Feature=h200\nPartitionName"));
            assert!(change.apply == Apply::Restart && !change.gres, "{change:?}");
        }
        assert!(compare(CONF, &CONF.replace("gpu:1", "gpu:2")).gres);
        assert!(compare(CONF, &CONF.replace(" Gres=gpu:1", "")).gres);
    }

    #[test]
    fn slurm_conf_change_requires_reconfigure_or_restart() {
        let cases = [
            ("PartitionName=debug", "PartitionName=short", Apply::Reconfigure, "the partitions"),
            ("=defer", "=batch_sched_delay=0", Apply::Reconfigure, "SchedulerParameters"),
            ("Gres=gpu:1", "Gres=gpu:2", Apply::Restart, "the nodes"),
            ("select/cons_tres", "select/linear", Apply::Restart, "SelectType"),
            ("# by slurminit", "# by hand", Apply::Reconfigure, "slurm.conf: comments"),
            ("ClusterName=c\n", "ClusterName=c\nSomethingNew=1\n", Apply::Restart, "SomethingNew"),
            ("SchedulerParameters=defer\n", "", Apply::Reconfigure, "SchedulerParameters"),
        ];
        for (from, to, apply, news) in cases {
            let change = compare(CONF, &CONF.replace(from, to));
            assert_eq!((change.apply, change.changes.as_slice()), (apply, &[news.to_owned()][..]), "{from} -> {to}");
            assert_eq!(change.files, [FileName::SlurmConf]);
        }
    }

    #[test]
    fn strongest_action_applies_and_all_changes_are_reported() {
        let change = compare(CONF, &CONF.replace("debug", "short").replace("CPUs=2", "CPUs=1"));
        assert_eq!(change.apply, Apply::Restart);
        assert_eq!(change.changes, ["the nodes", "the partitions"]);
    }

    #[test]
    fn key_case_and_quotes_do_not_change_value() {
        let change = compare(CONF, &CONF.replace("SchedulerParameters=defer", "schedulerparameters = \"defer\""));
        assert_eq!(change.apply, Apply::Reconfigure);
        assert_eq!(change.changes, ["slurm.conf: comments"]);
    }

    #[test]
    fn distinguishes_changed_gpus_from_changed_cpus() {
        assert!(compare(CONF, &CONF.replace("gpu:1", "gpu:2")).gres);
        assert!(!compare(CONF, &CONF.replace("CPUs=2", "CPUs=1")).gres);
    }

    #[test]
    fn changed_node_requires_restart_and_reports_changes() {
        let mut change = Change::default();
        change.renew_node("CPUs=2 Gres=gpu:nvidia:4", "CPUs=2 Gres=gpu:nvidia:3");
        assert_eq!((change.apply, change.node), (Apply::Restart, true));
        change.renew_node("CPUs=2 Gres=gpu:nvidia:4", "CPUs=2");
        assert_eq!(change.changes, ["the node (Gres=gpu:nvidia:3)", "the node (without Gres=gpu:nvidia:4)"]);
    }

    #[test]
    fn reports_changes_that_require_new_container() {
        assert_eq!(compare(CONF, &CONF.replace("ClusterName=c", "clustername=d")).start_only, ["ClusterName"]);
        assert_eq!(compare(CONF, &format!("{CONF}SlurmctldPort=7000\n")).start_only, ["SlurmctldPort"]);
    }

    #[test]
    fn include_lines_always_require_action() {
        let conf = format!("{CONF}Include more.conf\n");
        assert_eq!(compare(&conf, &conf).apply, Apply::Reconfigure);
        assert_eq!(compare(CONF, &conf).apply, Apply::Restart);
    }

    #[test]
    fn files_that_daemons_read_at_start_require_restart_and_task_prolog_no_action() {
        let required_action = |name, old: &str, new: &str| {
            let file = |text: &str| [Text { name, text: text.to_owned() }];
            change(&file(old), &file(new)).apply
        };
        let line = "Name=gpu File=/dev/nvidia0\n";
        assert_eq!(required_action(FileName::GresConf, line, "Name=gpu File=/dev/nvidia1\n"), Apply::Restart);
        assert_eq!(required_action(FileName::GresConf, line, &format!("# one\n{line}")), Apply::Nothing);
        assert_eq!(required_action(FileName::CgroupConf, "", "ConstrainDevices=yes\n"), Apply::Restart);
        let oci_conf = "RunTimeRun=\"slurminit oci --images /a \\# slurminit %@ %r\"\n";
        assert_eq!(required_action(FileName::OciConf, oci_conf, &oci_conf.replace("/a", "/b")), Apply::Restart);
        assert_eq!(required_action(FileName::TaskProlog, "#!/bin/sh\n", "#!/bin/sh\ntrue\n"), Apply::Nothing);
    }

    #[test]
    fn finds_line_of_key() {
        assert_eq!(line_of_key(CONF, "selecttype"), Some(4));
        assert_eq!(line_of_key(CONF, "Gres"), Some(5));
        assert_eq!(line_of_key("# Foo=1\nNote=Foo\n", "Foo"), None);
    }
}
