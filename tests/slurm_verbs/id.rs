//! `slurminit jobs number`: the next job ID and the ID of the cluster before slurmctld starts.

use std::fs;

use super::fake::Fake;

/// The head of `node_state`, from which a state without jobs is made.
const NODE_STATE: &[u8] = b"\x00\x00\x00\x11PROTOCOL_VERSION\0\x2a\x00\x00\x00\x00\x00\x6a\x00\x00\x00\x00\x00\x00\x00";

/// Runs the verb with an accounting database, and returns its log. `saved`: the file `clustername`.
fn number(fake: &Fake, saved: &str) -> String {
    let (conf, state) = (fake.path("slurm.conf"), fake.path("state"));
    let text = format!(
        "ClusterName=lab\nAccountingStorageType=accounting_storage/slurmdbd\nStateSaveLocation={}\n",
        state.display()
    );
    fs::write(&conf, text).unwrap();
    if !saved.is_empty() {
        fs::write(state.join("clustername"), saved).unwrap();
    }
    let places = ["--slurm-conf", conf.to_str().unwrap(), "--state", state.to_str().unwrap()];
    let output = fake.run(&[&["jobs", "number"], &places[..], &["--", "echo", "slurmctld"]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "slurmctld\n", "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn new_state_continues_after_last_job_of_database() {
    let fake = Fake::new().reply("sacctmgr *", &["lab\n"]).reply("sacct *", &["17\n23\n5\n"]);
    let log = number(&fake, "");
    assert!(log.contains("jobs with ID 1 or higher: the next job ID is 24"), "{log}");
    assert!(fake.path("state/job_state").exists());
    assert_eq!(fake.calls("sacct ").len(), 1, "{:?}", fake.calls(""));
}

#[test]
fn state_is_unchanged_if_database_has_no_later_job() {
    for (cluster, jobs, queries) in [("", "17\n", 0), ("lab\n", "", 1)] {
        let fake = Fake::new().reply("sacctmgr *", &[cluster]).reply("sacct *", &[jobs]);
        assert_eq!(number(&fake, ""), "");
        assert!(!fake.path("state/job_state").exists(), "{cluster:?} {jobs:?}");
        assert_eq!(fake.calls("sacct ").len(), queries, "{cluster:?} {jobs:?}");
    }
}

#[test]
fn saved_state_is_raised_only_if_its_next_ids_are_in_database() {
    for (newer, expected) in [("3\n", true), ("", false)] {
        let fake = Fake::new()
            .reply("sacctmgr *", &["lab\n"])
            .reply("sacct *--jobs=*", &[newer])
            .reply("sacct *", &["2\n3\n"]);
        fs::write(fake.path("state/node_state"), NODE_STATE).unwrap();
        // Recorded by a clean stop.
        fs::write(fake.path("state/slurminit.next_job_id"), "1\n").unwrap();
        let log = number(&fake, "lab|17\n");
        assert_eq!(log.contains("the next job ID is 4"), expected, "{log}");
        assert_eq!(fake.path("state/job_state").exists(), expected);
        assert_eq!(fs::read_to_string(fake.path("state/clustername")).unwrap(), "lab|17\n");
    }
}

#[test]
fn saved_cluster_adopts_id_of_database_without_it() {
    let fake = Fake::new().reply("sacctmgr *", &[""]).fail("sacct *", "unknown cluster");
    let log = number(&fake, "lab|17\n");
    assert!(log.contains("slurmctld will adopt the database's cluster ID"), "{log}");
    assert!(!fake.path("state/clustername").exists());
    // slurmdbd does not respond.
    let fake = Fake::new().fail("sacctmgr *", "connection refused").fail("sacct *", "connection refused");
    number(&fake, "lab|17\n");
    assert!(fake.path("state/clustername").exists());
}
