use super::*;

const PREVIOUS: &str = "NodeSet=big Feature=h200\nNodeName=a[1-2] CPUs=4 State=UNKNOWN\nNodeName=DEFAULT Sockets=2\n\
    NodeName=b CPUs=2\nPartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n\
    PartitionName=gpu Nodes=big State=DOWN\n";

/// Parses lines of job ID, UID, state, time, partitions, nodes and required nodes.
fn jobs(lines: &str) -> Vec<QueuedJob> {
    let job = |line: &str| {
        let [id, uid, state, time, partition, nodes, required] =
            line.split('|').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        QueuedJob { id, uid: uid.parse().unwrap(), state, time, partition, nodes, required, ..QueuedJob::default() }
    };
    lines.lines().map(job).collect()
}

fn users(name: &str, lines: &str, saved: &Saved) -> Option<Vec<String>> {
    let gone = removed_partitions(PREVIOUS, "PartitionName=short Nodes=ALL\n");
    let gone = gone.iter().find(|gone| gone.name == name).unwrap();
    gone.using_jobs(&InUse { jobs: Some(jobs(lines)), saved: saved.clone() })
}

fn saved(text: &str) -> Saved {
    let mut saved = Saved::default();
    saved.add(&[&(text.len() as u32 + 1).to_be_bytes()[..], text.as_bytes(), b"\0"].concat());
    saved
}

#[test]
fn kept_partition_accepts_no_new_jobs() {
    let gone = removed_partitions(PREVIOUS, "PartitionName=short Nodes=ALL Default=YES\n");
    let lines: Vec<String> =
        gone.iter().map(|gone| gone.settings.iter().map(|(key, value)| format!(" {key}={value}")).collect()).collect();
    assert_eq!(lines, [" Nodes=ALL MaxTime=INFINITE State=DRAIN", " Nodes=big State=DOWN"]);
    assert_eq!(gone.iter().map(|gone| (gone.is_up, gone.sets.len())).collect::<Vec<_>>(), [(true, 0), (false, 1)]);
    assert_eq!(super::removed_partitions(PREVIOUS, PREVIOUS), []);
}

#[test]
fn kept_partition_loses_missing_nodes() {
    let former = "NodeSet=big Feature=h200\nNodeName=host1 CPUs=2\nNodeName=burst-[1-2] CPUs=4 State=CLOUD\n\
                  PartitionName=burst Nodes=burst-[1-2]\nPartitionName=both Nodes=host1,burst-1,big\nPartitionName=all Nodes=ALL\n";
    let lists = |now: &str| -> Vec<String> {
        let mut gone = removed_partitions(former, now);
        gone.iter_mut().for_each(|gone| gone.remove_missing_nodes(former, now));
        gone.iter().map(|gone| gone.settings[0].1.clone()).collect()
    };
    assert_eq!(lists("NodeName=host1 CPUs=2\n"), ["", "host1,big", "ALL"]);
    // A node that is kept for another job stays in the list.
    assert_eq!(lists("NodeName=host1\nNodeName=burst-1 Port=1 State=DOWN\n"), ["burst-1", "host1,burst-1,big", "ALL"]);
    // The new node's host has the name of the previous node, which therefore cannot be kept.
    assert_eq!(lists("NodeName=gpu1 NodeHostname=host1\n"), ["", "big", "ALL"]);
    assert_eq!(lists("NodeName=host1\nNodeName=burst-[1-9]\n"), ["burst-[1-2]", "host1,burst-1,big", "ALL"]);
}

#[test]
fn unreadable_state_may_contain_any_partition() {
    let mut unreadable = Saved::default();
    assert_eq!(users("debug", "8|0|RUNNING|5:00|short|a1|", &unreadable), None);
    unreadable.mark_unreadable();
    assert_eq!(users("debug", "8|0|RUNNING|5:00|short|a1|", &unreadable).unwrap(), ["8"]);
}

#[test]
fn kept_partition_brings_its_node_sets_once() {
    let config = config::Config::parse("role = 'controller'\n", std::path::Path::new("x")).unwrap();
    let inventory = model::inventory::Inventory { hostname: "head".to_owned(), ..Default::default() };
    let mut plan = crate::plan(&config, &inventory).unwrap();
    let gone = removed_partitions(PREVIOUS, "PartitionName=short Nodes=ALL\n");
    plan.keep(&gone, &[]);
    plan.keep(&gone, &[]);
    let kept: Vec<_> = plan.partitions.iter().filter(|one| one.is_kept).map(|one| one.name.as_str()).collect();
    assert_eq!(kept, ["debug", "gpu", "debug", "gpu"]);
    let sets = plan.node_sets.unwrap();
    let own = &gone[1].sets[0];
    assert_eq!(sets.iter().filter(|set| *set == own).count(), 1, "{sets:?}");
}

#[test]
fn nodes_are_equal_whatever_their_order_of_keys() {
    assert!(has_same_nodes("NodeName=a CPUs=4\n", "NodeName=a CPUs=4\nPartitionName=x\n"));
    assert!(!has_same_nodes("NodeName=a CPUs=4\n", "NodeName=a CPUs=4\nNodeName=b CPUs=4\n"));
}

#[test]
fn missing_entry_names_what_to_keep_and_the_jobs() {
    let refusal = missing_entry("the partition debug", "DRAIN", &["7".to_owned()], "/config/slurm.conf");
    let text = refusal.finding.to_string();
    assert!(text.contains("the partition debug") && text.contains("State=DRAIN") && text.contains('7'), "{text}");
    assert_eq!(refusal.exit_code, exit_code::FAILURE);
}

#[test]
fn finds_jobs_that_use_removed_partition() {
    let none = Saved::default();
    assert_eq!(users("debug", "7|0|PENDING|0:00|debug||\n8|0|RUNNING|5:00|short|a1|", &none).unwrap(), ["7"]);
    assert_eq!(users("debug", "12_[1-3]|0|PENDING|0:00|short,debug||", &none).unwrap(), ["12_[1-3]"]);
    assert_eq!(users("debug", "8|0|RUNNING|5:00|short|a1|", &none), None);
    assert_eq!(users("debug", "8|0|RUNNING|5:00|short|a1|", &saved("short,debug")).unwrap(), ["8"]);
    assert_eq!(users("debug", "8|0|RUNNING|0:04|short|a1|", &none).unwrap(), ["8"]);
    assert_eq!(users("debug", "", &saved("debug")), None);
}

#[test]
fn uses_saved_state_without_slurmctld() {
    let gone = removed_partitions(PREVIOUS, "PartitionName=short Nodes=ALL\n");
    let used = |text| gone[0].using_jobs(&InUse { jobs: None, saved: saved(text) }).is_some();
    assert!(used("debug") && used("long,debug") && !used("debugging"));
}

#[test]
fn rejects_changes_to_nodes_of_jobs() {
    let refused = |to: &str, lines: &str| check_nodes(PREVIOUS, to, &jobs(lines)).is_err();
    let without_a2 = PREVIOUS.replace("a[1-2]", "a1");
    assert!(refused(&without_a2, "7|0|RUNNING|5:00|debug|a[1-2]|"));
    assert!(refused(&without_a2, "7|0|PENDING|0:00|debug||a2"));
    assert!(!refused(&without_a2, "7|0|RUNNING|5:00|debug|a1|") && !refused(&without_a2, "7|0|PENDING|0:00|debug||"));
    // A dynamic node is not in slurm.conf.
    assert!(!refused(&without_a2, "7|0|RUNNING|5:00|debug|c1|c1"));
    let fewer_cpus = PREVIOUS.replace("CPUs=4", "CPUs=3");
    assert!(refused(&fewer_cpus, "7|0|RUNNING|5:00|debug|a1|") && !refused(&fewer_cpus, "7|0|PENDING|0:00|debug||a1"));
    assert!(refused(&PREVIOUS.replace("Sockets=2", "Sockets=1"), "7|0|RUNNING|5:00|debug|b|"));
    let select = |select| format!("{PREVIOUS}SelectType=select/{select}\n");
    let refused = |lines| check_nodes(&select("cons_tres"), &select("linear"), &jobs(lines)).is_err();
    assert!(refused("7|0|PENDING|0:00|debug||") && !refused(""));
}

#[test]
fn keeps_removed_node_down_while_jobs_use_it() {
    let now = PREVIOUS.replace("NodeName=b CPUs=2", "NodeName=c CPUs=2");
    let gone = removed_nodes(PREVIOUS, &now);
    let line =
        |node: &RemovedNode| node.settings.iter().map(|(key, value)| format!(" {key}={value}")).collect::<String>();
    assert_eq!(gone.len(), 1);
    let first = line(&gone[0]);
    assert_eq!(
        (gone[0].name.as_str(), first.as_str()),
        ("b", " NodeHostname=gone-b NodeAddr=127.0.0.1 Port=1 CPUs=2 Sockets=2 State=DOWN Reason=no longer configured")
    );
    let kept = format!("{now}NodeName=b{}\n", first.replace("no longer configured", "\"no longer configured\""));
    let again = removed_nodes(&kept, &now);
    assert_eq!((line(&again[0]), gone[0].is_kept, again[0].is_kept), (first, false, true));
    let used = |line: &str| again[0].using_jobs(&InUse { jobs: Some(jobs(line)), saved: Saved::default() });
    assert_eq!(used("7|0|PENDING|0:00|debug||a1,b").unwrap(), ["7"]);
    assert_eq!(used("7|0|PENDING|0:00|debug||a1"), None);
    assert!(again[0].using_jobs(&InUse { jobs: None, saved: saved("b") }).is_some());
}

#[test]
fn localhost_as_only_node_matches_every_name() {
    let localhost = "SlurmctldHost=host1(127.0.0.1)\nNodeName=localhost CPUs=2\n";
    let named = "SlurmctldHost=host1(127.0.0.1)\nNodeName=gpu1 NodeHostname=host1 CPUs=2\n";
    let names = |gone: Vec<RemovedNode>| gone.into_iter().map(|node| node.name).collect::<Vec<_>>();
    assert_eq!(names(removed_nodes(localhost, named)), ["localhost"]);
    assert_eq!(names(removed_nodes(localhost, &named.replace("host1", "host2"))), ["host1", "localhost"]);
    assert_eq!(names(removed_nodes(named, localhost)), [""; 0]);
    // The line of localhost is the last, and not the only one.
    let mut gone = removed_nodes(localhost, "SlurmctldHost=host1(127.0.0.1)\n");
    gone.retain(|node| node.using_jobs(&InUse { jobs: None, saved: saved("localhost") }).is_some());
    assert_eq!(names(gone), ["host1", "localhost"]);
    let pinned = jobs("7|0|PENDING|0:00|debug||host1");
    assert!(
        check_nodes(localhost, &localhost.replace("CPUs=2", "CPUs=1"), &pinned).is_ok()
            && check_nodes(localhost, named, &pinned).is_err()
    );
}

/// slurm.conf(5): a DEFAULT line adds to the earlier ones.
#[test]
fn removed_node_has_values_of_all_default_lines() {
    let former = "NodeName=DEFAULT CPUs=4\nNodeName=DEFAULT Sockets=2\nNodeName=b\n";
    let gone = removed_nodes(former, "NodeName=a\nNodeName=c\n");
    let has = |key: &str, value: &str| gone[0].settings.contains(&(key.to_owned(), value.to_owned()));
    assert!(has("CPUs", "4") && has("Sockets", "2"), "{gone:?}");
}
