//! Keeps partitions and nodes that jobs use, according to slurmctld, or to its saved state while it is down.

use std::io::ErrorKind;
use std::path::Path;

use super::budget::Budget;
use config::{Config, Role};
use install::planned::{Planned, slurm_conf, state_directory};
use model::exit_code;
use model::inventory::{Finding, Kind};
use model::message;
use model::queued_job::QueuedJob;
use plan::in_use;
use plan::in_use::{InUse, RemovedNode, RemovedPartition, Saved};
use plan::{FileName, Refusal};
use slurm::client::{Client, Jobs};
use slurm::error::QueryError;
use sys::report;
use sys::trusted_path;

/// Whether a slurmctld in this container reads this container's slurm.conf.
fn has_slurmctld(config: &Config) -> bool {
    matches!(config.role, Role::All | Role::Controller)
}

/// At a start: keeps the partitions and nodes of the saved jobs. If only the user can keep an entry, the finding is an
/// error.
pub(super) fn keep_at_start(config: &Config, root: &Path, planned: &mut Planned) -> Result<Vec<Finding>, Refusal> {
    let Some(former) = install::read_former(&config.paths, root)?.filter(|_| has_slurmctld(config)) else {
        return Ok(Vec::new());
    };
    let now = slurm_conf(&planned.files);
    let (partitions, nodes) = (in_use::removed_partitions(&former, now), in_use::removed_nodes(&former, now));
    if partitions.is_empty() && nodes.is_empty() {
        return Ok(Vec::new());
    }
    let used = InUse { jobs: None, saved: saved(config, root, planned) };
    Ok(keep(&former, planned, partitions, nodes, &used).into_iter().map(|kept| kept.finding()).collect())
}

/// A partition or node that is no longer configured, and the jobs that use it.
#[derive(Clone, Debug)]
pub struct KeptEntry {
    /// The kind and name, such as `the partition debug`.
    what: String,
    state: &'static str,
    jobs: Vec<String>,
    /// The user's slurm.conf, which does not contain the entry.
    own: Option<String>,
}

impl KeptEntry {
    pub fn finding(&self) -> Finding {
        let Self { what, state, jobs, own } = self;
        let jobs = if jobs.is_empty() { "saved jobs".to_owned() } else { format!("jobs {}", in_use::job_list(jobs)) };
        match own {
            None => Finding::warning(
                Kind::Settings,
                format!("{what} is no longer configured; kept with State={state} for {jobs}"),
                "without this entry slurmctld would end the jobs as NODE_FAIL",
                "no action: the next reload or start after these jobs have ended removes it; to end them now, use scancel",
            ),
            Some(own) => Finding::error(
                Kind::OwnFiles,
                format!("{own} no longer contains {what}; slurmctld ends its {jobs} as NODE_FAIL"),
                "slurminit does not change your slurm.conf, and slurmctld ends a job whose partition or nodes are no longer configured",
                format!("next time, keep its line in that file, with State={state}, until its jobs have ended"),
            ),
        }
    }
}

fn keep(
    former: &str,
    planned: &mut Planned,
    mut partitions: Vec<RemovedPartition>,
    mut nodes: Vec<RemovedNode>,
    used: &InUse,
) -> Vec<KeptEntry> {
    let own = planned.customized.get(FileName::SlurmConf).map(|file| file.path.display().to_string());
    let mut kept = Vec::new();
    let mut keep_if_used = |what: String, state, users: Option<Vec<String>>| {
        let is_used = users.is_some();
        kept.extend(users.map(|jobs| KeptEntry { what, state, jobs, own: own.clone() }));
        is_used
    };
    partitions.retain(|gone| keep_if_used(format!("the partition {}", gone.name), "DRAIN", gone.using_jobs(used)));
    nodes.retain(|node| keep_if_used(format!("the node {}", node.name), "DOWN", node.using_jobs(used)));
    if own.is_none() && !kept.is_empty() {
        planned.keep(&[], &nodes);
        for partition in &mut partitions {
            partition.remove_missing_nodes(former, slurm_conf(&planned.files));
        }
        planned.keep(&partitions, &[]);
    }
    kept
}

/// The partitions and nodes that a reload keeps, and the partitions that it removes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) entries: Vec<KeptEntry>,
    /// The partitions that the reload removes. They accept new jobs, but no job uses them.
    pub(super) removed: Vec<String>,
}

/// At a reload: keeps the partitions of jobs, and nodes that were already kept for jobs. Fails if jobs would still lose a
/// partition or a node.
pub(super) fn keep_at_reload(
    config: &Config,
    root: &Path,
    former: &str,
    planned: &mut Planned,
    budget: &Budget,
) -> Result<Kept, Refusal> {
    let now = slurm_conf(&planned.files);
    let (partitions, mut nodes) = (in_use::removed_partitions(former, now), in_use::removed_nodes(former, now));
    if !has_slurmctld(config) || (partitions.is_empty() && in_use::has_same_nodes(former, now)) {
        return Ok(Kept::default());
    }
    nodes.retain(|node| node.is_kept);
    let used = InUse { jobs: jobs(&budget.slurm())?, saved: saved(config, root, planned) };
    let is_removed = |gone: &&RemovedPartition| gone.is_up && gone.using_jobs(&used).is_none();
    let removed = partitions.iter().filter(is_removed).map(|gone| gone.name.clone()).collect();
    let entries = keep(former, planned, partitions, nodes, &used);
    if let Some((kept, user_file)) = entries.iter().find_map(|kept| Some((kept, kept.own.as_ref()?))) {
        return Err(in_use::missing_entry(&kept.what, kept.state, &kept.jobs, user_file));
    }
    in_use::check_nodes(former, slurm_conf(&planned.files), used.jobs.as_deref().unwrap_or_default())?;
    Ok(Kept { entries, removed })
}

/// Fails if the reload would remove the account of a user who still has jobs.
pub(super) fn check_accounts_in_use(config: &Config, root: &Path, client: &Client<'_>) -> Result<(), Refusal> {
    let leaving = install::removed_users(config, root)?;
    if leaving.is_empty() {
        return Ok(());
    }
    let jobs = jobs(client)?.unwrap_or_default();
    for (uid, name) in leaving {
        let own_jobs: Vec<String> = jobs.iter().filter(|job| job.uid == uid).map(|job| job.id.clone()).collect();
        if !own_jobs.is_empty() {
            return Err(Refusal::new(
                exit_code::FAILURE,
                format!("the user {name} is no longer configured, but has jobs: {}", in_use::job_list(&own_jobs)),
                "slurmctld cannot start the jobs of a user without an entry in passwd",
                format!("run `slurminit reload` when these jobs have ended; to end them now, use scancel --user={uid}"),
            ));
        }
    }
    Ok(())
}

/// The texts of slurmctld's saved jobs, from both copies: slurmctld reads the older file if the newer one is missing.
fn saved(config: &Config, root: &Path, planned: &Planned) -> Saved {
    let (state, mut saved) = (state_directory(config, root, &planned.files), Saved::default());
    let directory = match trusted_path::open(Path::new("/"), &state) {
        Err(untrusted) if untrusted.is_missing() => return saved,
        directory => directory.ok(),
    };
    for name in ["job_state", "job_state.old"] {
        match directory.as_ref().map(|directory| directory.read(name)) {
            Some(Ok(bytes)) => saved.add(&bytes),
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => {}
            _ => saved.mark_unreadable(),
        }
    }
    saved
}

/// All jobs that have not ended; `None` if the query fails without a timeout, for example because no controller is running.
fn jobs(client: &Client<'_>) -> Result<Option<Vec<QueuedJob>>, Refusal> {
    match client.jobs(&Jobs { options: &["--all", "--sort=i"], ..Jobs::default() }) {
        Ok(jobs) => Ok(Some(jobs)),
        Err(QueryError::TimedOut(_)) => Err(Refusal::new(
            exit_code::FAILURE,
            "slurmctld did not respond in time, so it is unknown which jobs exist",
            "a reload must not remove resources of jobs",
            "see `slurminit logs slurmctld`, then run `slurminit reload`",
        )),
        Err(error) => {
            report::warn(message!("jobs-not-checked", "cannot check which jobs exist: {error}", error));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;
    use model::inventory::Severity;
    use sys::tool::answer::Answer;

    #[test]
    fn reload_without_controller_ignores_jobs_and_refuses_silent_one() {
        let slurm = FakeSlurm::new(&[("squeue", Ok("7|7|RUNNING|1|0:10|main|alice|1501|c1|||(null)|None|N/A"))]);
        let found = jobs(&Client::with_runner(&slurm.run())).unwrap().unwrap();
        assert_eq!(found.iter().map(|job| (job.number, job.uid)).collect::<Vec<_>>(), [(7, 1501)]);
        assert!(slurm.commands("squeue")[0].contains("--all --sort=i"), "{:?}", slurm.commands(""));
        assert_eq!(jobs(&Client::with_runner(&|_, _| Answer::Missing)).unwrap(), None);
        let refused = jobs(&Client::with_runner(&|_, _| Answer::Silent)).unwrap_err();
        assert_eq!(refused.finding.what, "slurmctld did not respond in time, so it is unknown which jobs exist");
    }

    #[test]
    fn finding_names_kept_entry_and_its_jobs() {
        let kept = |own: Option<&str>, jobs: &[&str]| {
            let jobs = jobs.iter().map(ToString::to_string).collect();
            let kept = KeptEntry { what: "the node c1".to_owned(), state: "DOWN", jobs, own: own.map(str::to_owned) };
            (kept.finding().what, kept.finding().severity)
        };
        let generated = "the node c1 is no longer configured; kept with State=DOWN for jobs 7, 8";
        assert_eq!(kept(None, &["7", "8"]), (generated.to_owned(), Severity::Warning));
        let own = "/config/slurm.conf no longer contains the node c1; slurmctld ends its saved jobs as NODE_FAIL";
        assert_eq!(kept(Some("/config/slurm.conf"), &[]), (own.to_owned(), Severity::Error));
    }

    #[test]
    fn account_of_user_with_jobs_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nalice:x:1501:1501:made by slurminit:/home/alice:/bin/bash\n",
        );
        write("etc/group", "root:x:0:\nalice:x:1501:\n");
        let alice = "[[user]]\nname = 'alice'\nuid = 1501\n";
        let job = |id: u32, uid: u32| format!("{id}|{id}|RUNNING|1|0:10|main|alice|{uid}|c1|||(null)|None|N/A\n");
        for (toml, queue, jobs, queries) in [
            (alice, job(7, 1501), None, 0),
            ("", job(7, 1502), None, 1),
            ("", job(7, 1501) + &job(8, 1502) + &job(9, 1501), Some("7, 9"), 1),
        ] {
            let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
            let slurm = FakeSlurm::new(&[("squeue", Ok(&queue))]);
            let refused = check_accounts_in_use(&config, root.path(), &Client::with_runner(&slurm.run())).err();
            let expected = jobs.map(|jobs| format!("the user alice is no longer configured, but has jobs: {jobs}"));
            assert_eq!(refused.map(|refusal| refusal.finding.what), expected);
            assert_eq!(slurm.commands("squeue").len(), queries);
        }
    }
}
