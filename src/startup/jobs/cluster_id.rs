//! Keeps the cluster's ID the same in slurmctld's state (`clustername`: `NAME|ID`) and in the accounting database.
//!
//! slurmctld and the database each create an ID if they have none, and slurmctld exits with CLUSTER ID MISMATCH if the IDs differ (24.11 to
//! 26.05, `controller.c`). If the database has no job of this cluster, the database is the newer of the two. slurmctld then has to start
//! without the file: it adopts the database's ID and keeps its jobs. If the database has jobs of this cluster, that would mix the jobs of two
//! clusters, so the administrator has to decide.

use std::path::Path;

use super::notes::Notes;
use model::{exit_code, message};
use plan::{Refusal, last_value};
use slurm::client::{Client, limit};
use sys::report;

const FILE: &str = "clustername";
/// The beginning of slurmctld's message about different IDs.
const MISMATCH: &str = "CLUSTER ID MISMATCH";

/// If the database does not contain this cluster, removes the saved ID, so that slurmctld adopts the database's. Runs before slurmctld starts.
pub(super) fn adopt_from_new_database(conf: &str, notes: &Notes) -> anyhow::Result<()> {
    let storage = last_value(conf, "AccountingStorageType").unwrap_or_default();
    let Some(name) = saved_name(notes)?.filter(|_| storage.ends_with("slurmdbd")) else { return Ok(()) };
    let arguments = ["-nP", "show", "cluster", &format!("name={name}"), "format=cluster"];
    // If slurmdbd does not respond, slurmctld starts with its saved ID.
    let is_new =
        Client::with_timeout(limit::COMMAND).output("sacctmgr", &arguments).is_ok_and(|out| out.trim().is_empty());
    if is_new { adopt(notes, &name) } else { Ok(()) }
}

/// The number of IDs to look up in the database: several, because some IDs are never used.
const LOOKED_FOR: u32 = 20;

/// The ID after the last job in the accounting database, if the database contains jobs whose IDs slurmctld would use again.
pub(super) fn next_id_of_newer_database(conf: &str, notes: &Notes, next: u32) -> anyhow::Result<Option<u32>> {
    let storage = last_value(conf, "AccountingStorageType").unwrap_or_default();
    if !storage.ends_with("slurmdbd") {
        return Ok(None);
    }
    let client = Client::with_timeout(limit::COMMAND);
    let saved = saved_name(notes)?;
    let name = saved.clone().or_else(|| last_value(conf, "ClusterName")).unwrap_or_default().to_lowercase();
    // sacct fails for a cluster that the database does not contain.
    let has_cluster = || -> anyhow::Result<bool> {
        let arguments = ["-nP", "show", "cluster", &format!("name={name}"), "format=cluster"];
        Ok(!client.output("sacctmgr", &arguments)?.trim().is_empty())
    };
    if saved.is_none() && !has_cluster()? {
        return Ok(None);
    }
    let query = |jobs: &[&str]| {
        let cluster = format!("--clusters={name}");
        let arguments = ["-anPX", &cluster, "--starttime=1970-01-01", "--format=jobidraw"];
        client.output("sacct", &arguments.iter().chain(jobs).copied().collect::<Vec<_>>())
    };
    let ids: Vec<String> = (next..next.saturating_add(LOOKED_FOR)).map(|id| id.to_string()).collect();
    // A query for all jobs would take a long time in a large database. Without a saved ID it is needed, because the first jobs may have been
    // purged already.
    if saved.is_some() && query(&[&format!("--jobs={}", ids.join(","))])?.trim().is_empty() {
        return Ok(None);
    }
    let last = query(&[])?.lines().filter_map(|line| line.trim().parse::<u32>().ok()).max();
    Ok(last.filter(|last| *last >= next).map(|last| last.saturating_add(1)))
}

/// Called after slurmctld has died during a start. Resolves a mismatch with a database in which an earlier start has registered this
/// cluster, but which contains no jobs of this cluster. If it contains such jobs or cannot be queried, returns why the cluster cannot
/// start.
pub(crate) fn resolve_mismatch(state: &Path, log_lines: &[&str]) -> Option<Refusal> {
    // Only the start of a line is trusted: users' text, such as a job's name, can appear later in it.
    let mismatch = log_lines.iter().find(|line| line.starts_with(MISMATCH))?;
    let resolve = || -> anyhow::Result<Option<String>> {
        let notes = Notes::open_as_root(state)?;
        let Some(name) = saved_name(&notes)? else { return Ok(None) };
        let cluster = format!("--clusters={name}");
        let arguments = ["-anPX", &cluster, "--starttime=1970-01-01", "--format=jobidraw"];
        let jobs = Client::with_timeout(limit::COMMAND).output("sacct", &arguments);
        match jobs.is_ok_and(|jobs| jobs.trim().is_empty()) {
            true => adopt(&notes, &name).map(|()| None),
            false => Ok(Some(name)),
        }
    };
    let name = match resolve() {
        Ok(name) => name?,
        Err(error) => {
            report::warn(message!(
                "cluster-id-not-adopted",
                "cannot adopt the cluster ID of the accounting database: {error}",
                error = format!("{error:#}")
            ));
            return None;
        }
    };
    let [saved, stored] = ids(mismatch);
    let state = state.display();
    Some(Refusal::new(
        exit_code::CONFIG,
        format!(
            "cluster {name} has the ID {stored} in the accounting database, but the ID {saved} in the saved state {state}"
        ),
        "state and database belong to different clusters, or one of them was replaced by an older or newer copy",
        format!(
            "use the volume and the database that belong together; or keep both clusters apart with another `cluster_name` and a new volume; or, to \
             continue the saved jobs in this database, remove {state}/{FILE}: job IDs can then occur twice in sacct"
        ),
    ))
}

/// The cluster's name in the file, if it contains no unusual characters and the file also contains an ID.
fn saved_name(notes: &Notes) -> anyhow::Result<Option<String>> {
    let text = notes.text(FILE)?.unwrap_or_default();
    let (name, id) = text.trim().split_once('|').unwrap_or_default();
    let is_plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    Ok((is_plain && id != "0").then(|| name.to_owned()))
}

fn adopt(notes: &Notes, name: &str) -> anyhow::Result<()> {
    notes.remove(FILE)?;
    report::info(message!(
        "cluster-registered-again",
        "the accounting database has no jobs of cluster {name}; slurmctld will adopt the database's cluster ID, and the saved jobs keep their IDs",
        name
    ));
    Ok(())
}

/// The IDs of the state and of the database, which slurmctld quotes: `"ClusterID=17" ... "18"`.
fn ids(mismatch: &str) -> [&str; 2] {
    let mut quoted = mismatch.split('"').skip(1).step_by(2);
    let mut next = || quoted.next().unwrap_or("unknown");
    let saved = next();
    [saved.strip_prefix("ClusterID=").unwrap_or(saved), next()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_saved_name_and_ids_of_message() {
        let state = tempfile::tempdir().unwrap();
        let notes = Notes::open_as_slurm(state.path()).unwrap();
        assert_eq!(saved_name(&notes).unwrap(), None);
        for (text, name) in [
            ("lab|17", Some("lab")),
            ("lab|17\n", Some("lab")),
            ("lab", None),
            ("lab|0", None),
            ("a b|1", None),
            ("", None),
        ] {
            std::fs::write(state.path().join(FILE), text).unwrap();
            assert_eq!(saved_name(&notes).unwrap().as_deref(), name, "{text}");
        }
        let message = "CLUSTER ID MISMATCH.\nslurmctld has been started with \"ClusterID=3163\"  from the state files in StateSaveLocation, \
                       but the DBD thinks it should be \"209\".\nRunning";
        assert_eq!(ids(message), ["3163", "209"]);
        assert_eq!(ids("CLUSTER ID MISMATCH"), ["unknown", "unknown"]);
        let name_of_job = "error: job_submit: CLUSTER ID MISMATCH";
        assert_eq!(resolve_mismatch(state.path(), &[name_of_job]), None);
    }
}
