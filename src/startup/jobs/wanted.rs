//! The jobs that ask for a node by its name, or want none on it.

use super::join::value;
use super::output;
use config::NodeRange;

/// Those that have not ended. `known`: what slurmctld says of the node, which users may name by its host name too.
pub(super) fn by_jobs(known: &str) -> anyhow::Result<Vec<String>> {
    let jobs = output("squeue", &["--noheader", "--all", "--format=%i|%n|%x"])?;
    Ok(those_that_name(known, &jobs))
}

fn those_that_name(known: &str, jobs: &str) -> Vec<String> {
    let own: Vec<&str> = ["NodeName", "NodeHostName"].into_iter().filter_map(|key| value(known, key)).collect();
    let is_own = |list: &str| {
        let ranges = NodeRange::each(list).unwrap_or_default();
        ranges.iter().flat_map(NodeRange::names).any(|name| own.contains(&name.as_str()))
    };
    let names = |line: &&str| line.split('|').skip(1).any(is_own);
    jobs.lines().filter(names).filter_map(|line| line.split('|').next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::those_that_name;

    #[test]
    fn jobs_name_a_node_in_a_list_by_either_name_or_to_be_kept_off_it() {
        let known =
            "NodeName=compute-2 Arch=x86_64 NodeAddr=172.18.0.3 NodeHostName=3feeba991c75 State=IDLE+DYNAMIC_NORM";
        let jobs =
            "1|compute-[1-2]|\n2||compute-2\n3||\n4_[1-3]|3feeba991c75|\n5|compute-[3-9]|compute-1\n6|compute-22|\n";
        assert_eq!(those_that_name(known, jobs), ["1", "2", "4_[1-3]"]);
    }
}
