//! Suggests a fix for a daemon that keeps dying, if its last log lines reveal the cause.

use std::path::Path;

/// slurmctld's state files: the name in the log message about a truncated file, and the file name (Slurm 24.11).
const STATE_FILES: [(&str, &str); 11] = [
    ("job state save", "job_state"),
    ("node data checkpoint", "node_state"),
    ("partition data checkpoint", "part_state"),
    ("reservation data checkpoint", "resv_state"),
    ("trigger data checkpoint", "trigger_state"),
    ("last_config_lite checkpoint", "last_config_lite"),
    ("assoc mgr state", "assoc_mgr_state"),
    ("assoc usage state", "assoc_usage"),
    ("QOS usage state", "qos_usage"),
    ("last_tres state", "last_tres"),
    ("fed_mgr state", "fed_mgr_state"),
];

/// The cause, and the commands to run on the host that correct it; `None` if no line names a truncated state file.
/// slurmctld's own advice, `-i`, discards the unreadable record and all records after it.
pub(super) fn fix(last_lines: &[String], state: &Path) -> Option<String> {
    let truncated_file = |line: &String| {
        let file = line.strip_prefix("Incomplete ")?;
        let is_named = |name: &str| file.strip_prefix(name).is_some_and(|rest| rest.starts_with(" file, start with"));
        STATE_FILES.iter().find(|(name, _)| is_named(name))
    };
    let (_, name) = last_lines.iter().rev().find_map(truncated_file)?;
    let file = state.join("slurmctld").join(name);
    let file = file.display();
    let mv_args = format!("--entrypoint mv IMAGE {file} {file}.cut");
    let commands =
        format!("docker stop CONTAINER; docker run --rm --volumes-from CONTAINER {mv_args}; docker start CONTAINER");
    Some(format!(
        "{file} is truncated; move it away, so that slurmctld reads {name}.old, or starts without this file: {commands}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_fix_only_for_truncated_state_file() {
        let advice = |line: &str| fix(&["x".to_owned(), line.to_owned()], Path::new("/var/lib/slurm"));
        let tail =
            "file, start with '-i' to ignore this. Warning: using -i will lose the data that can't be recovered.";
        let hint = advice(&format!("Incomplete job state save {tail}")).unwrap();
        assert!(
            hint.contains("mv IMAGE /var/lib/slurm/slurmctld/job_state /var/lib/slurm/slurmctld/job_state.cut"),
            "{hint}"
        );
        assert!(
            advice(&format!("Incomplete QOS usage state {tail}")).is_some_and(|hint| hint.contains("qos_usage.old"))
        );
        for other in ["Incomplete job record", "Incomplete job state save file", "CLUSTER NAME MISMATCH.", ""] {
            assert_eq!(advice(other), None, "{other}");
        }
    }
}
