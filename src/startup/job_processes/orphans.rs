//! Kills what jobs leave behind where no Epilog does: the operator may have replaced or removed it.
//!
//! A process that outlives its slurmstepd becomes a child of PID 1. If its job has no step here any more, slurmctld is asked whether that job has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::unistd::{Uid, User};

use slurm::client::{Client, Jobs, limit};
use sys::leftovers::look::{self, Mark};
use sys::leftovers::{self, Evidence, Handle, Job, Orphans, Process};
use sys::report;

/// How long a process of root must be an orphan: slurmd's own children are one until they have become slurmstepd.
const SETTLED: Duration = Duration::from_millis(200);
/// How long reading the environments may take, because processes can block it.
const LOOK: Duration = Duration::from_millis(150);
/// The pause before slurmctld is asked again about the same orphans; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// PID and start time.
type Key = (i32, u64);

/// An orphan's user, and the job that its environment names.
type Claim = (u32, Option<u32>);

/// The orphans and slurmstepds of this node.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Since when each orphan has been one.
    since: BTreeMap<Key, Instant>,
    evidence: BTreeMap<Key, Option<u32>>,
    /// Report the end of a step.
    steps: BTreeMap<Key, Handle>,
    /// The claims about which slurmctld was last asked.
    asked: BTreeSet<Claim>,
    ask_after: Option<Instant>,
    pause: Duration,
}

impl Watch {
    /// Becomes readable when a step ends.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.steps.values().filter_map(Handle::descriptor)
    }

    /// When to look at the latest, if there are orphans.
    pub(super) fn due(&self) -> Option<Instant> {
        let settled = self.since.values().map(|since| *since + SETTLED).filter(|at| *at > Instant::now()).min();
        let next = self.ask_after.filter(|_| !self.asked.is_empty());
        settled.into_iter().chain(next).min()
    }

    /// Kills the orphans whose jobs have ended.
    pub(super) fn look(&mut self) {
        let Some(mark) = Mark::of_slurmd() else { return };
        let found = look::orphans(mark);
        self.note(&found, Instant::now());
        let claims = self.claims(&found, Instant::now());
        if claims.is_empty() {
            self.asked.clear();
            return;
        }
        if self.asked == claims && self.ask_after.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.pause = if self.asked == claims { (self.pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        self.ask_after = Some(Instant::now() + self.pause);
        // Without an answer nothing is killed.
        if let Some(holding) = jobs_of(claims.iter().map(|(uid, _)| *uid).collect()) {
            for job in ended(&claims, &holding) {
                end(&job, mark);
            }
        }
        self.asked = claims;
    }

    /// Updates what is known about orphans and steps.
    fn note(&mut self, found: &Orphans, now: Instant) {
        let keys: BTreeSet<Key> = found.orphans.iter().map(key).collect();
        self.since.retain(|key, _| keys.contains(key));
        self.evidence.retain(|key, _| keys.contains(key));
        for key in keys {
            self.since.entry(key).or_insert(now);
        }
        let steps = self.steps.len();
        self.steps.retain(|key, _| found.steps.contains(key));
        if self.steps.len() < steps {
            // A job may have ended with its step.
            self.asked.clear();
        }
        for (pid, start) in &found.steps {
            if !self.steps.contains_key(&(*pid, *start)) {
                self.steps.extend(Handle::of(*pid, *start).map(|handle| ((*pid, *start), handle)));
            }
        }
    }

    /// What the settled orphans claim, except those whose job has a step here.
    fn claims(&mut self, found: &Orphans, now: Instant) -> BTreeSet<Claim> {
        let has_settled = |orphan: &Process| self.since.get(&key(orphan)).is_some_and(|since| now >= *since + SETTLED);
        // A user's processes may replace each other faster than that.
        let is_settled = |orphan: &&Process| orphan.uid != 0 || has_settled(orphan);
        let settled: Vec<&Process> = found.orphans.iter().filter(is_settled).collect();
        let new: Vec<&Process> =
            settled.iter().copied().filter(|orphan| !self.evidence.contains_key(&key(orphan))).collect();
        if !new.is_empty() {
            let mut read = look::evidence(&new, now + LOOK);
            let job = |orphan: &&Process| (key(orphan), read.remove(&orphan.pid).unwrap_or_default());
            let read: Vec<(Key, Evidence)> = new.iter().map(job).collect();
            // slurmd's scripts are not a job's.
            let scripts = read.iter().filter(|(_, evidence)| evidence.is_script).map(|(key, _)| *key);
            let scripts: BTreeSet<Key> = scripts.collect();
            self.evidence.extend(
                read.into_iter().filter(|(key, _)| !scripts.contains(key)).map(|(key, evidence)| (key, evidence.job)),
            );
        }
        let claim = |orphan: &&Process| Some((orphan.uid, *self.evidence.get(&key(orphan))?));
        let has_step = |job: Option<u32>| job.is_some_and(|job| found.jobs_with_steps.contains(&job));
        settled.iter().filter_map(claim).filter(|(_, job)| !has_step(*job)).collect()
    }
}

fn key(process: &Process) -> Key {
    (process.pid, process.start)
}

/// The jobs of these users that hold resources, by user and ID; `None` without an answer from slurmctld.
fn jobs_of(users: BTreeSet<u32>) -> Option<BTreeSet<(u32, u32)>> {
    let users: Vec<String> = users.iter().map(u32::to_string).collect();
    let option = format!("--user={}", users.join(","));
    let jobs = Client::each(limit::COMMAND).jobs(&Jobs { options: &["--all", &option], ..Jobs::HOLDING }).ok()?;
    Some(jobs.into_iter().filter_map(|job| Some((job.uid, u32::try_from(job.number).ok()?))).collect())
}

/// The ended jobs among the claims. An orphan that names no job is left behind only if its user has no job at all.
fn ended(claims: &BTreeSet<Claim>, holding: &BTreeSet<(u32, u32)>) -> Vec<Job> {
    let has_jobs = |uid: u32| holding.iter().any(|(owner, _)| *owner == uid);
    let has_ended = |(uid, job): &&Claim| match job {
        Some(job) => !holding.iter().any(|(_, other)| other == job),
        None => !has_jobs(*uid),
    };
    let job = |(uid, job): &Claim| Job {
        id: job.unwrap_or(0),
        uid: *uid,
        devices: BTreeSet::new(),
        others: holding.iter().filter(|(owner, _)| owner == uid).map(|(_, job)| *job).collect(),
    };
    claims.iter().filter(has_ended).map(job).collect()
}

fn end(job: &Job, mark: Mark) {
    let user = User::from_uid(Uid::from_raw(job.uid)).ok().flatten();
    let user = user.map_or_else(|| format!("user {}", job.uid), |user| leftovers::printable(&user.name));
    leftovers::end(job, &user, mark).into_iter().for_each(|report| report::write(report.level, report.message));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1000;
    const BOB: u32 = 1001;

    fn ended_of(claims: &[Claim], holding: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let claims = claims.iter().copied().collect();
        ended(&claims, &holding.iter().copied().collect()).into_iter().map(|job| (job.uid, job.id)).collect()
    }

    #[test]
    fn only_orphans_of_ended_jobs_are_killed() {
        assert_eq!(ended_of(&[(ALICE, Some(7)), (ALICE, Some(8))], &[(ALICE, 8)]), [(ALICE, 7)]);
        assert_eq!(ended_of(&[(ALICE, Some(7))], &[(BOB, 7)]), [], "a process started with another user's rights");
    }

    #[test]
    fn orphan_without_job_lives_while_its_user_has_a_job() {
        assert_eq!(ended_of(&[(ALICE, None)], &[(ALICE, 8)]), []);
        assert_eq!(ended_of(&[(ALICE, None)], &[(BOB, 8)]), [(ALICE, 0)]);
    }

    #[test]
    fn orphan_of_root_must_have_settled_and_job_have_no_step() {
        let orphan = |pid, uid| Process {
            pid,
            parent: 1,
            session: pid,
            start: 5,
            uid,
            gid: uid,
            name: "x".to_owned(),
            role: leftovers::Role::Other,
            is_marked: true,
        };
        let mut found =
            Orphans { orphans: vec![orphan(30, 0), orphan(31, 0), orphan(32, ALICE)], ..Orphans::default() };
        found.jobs_with_steps.insert(8);
        let (mut watch, now) = (Watch::default(), Instant::now());
        watch.evidence.extend([((30, 5), Some(7)), ((31, 5), Some(8)), ((32, 5), None)]);
        watch.note(&found, now);
        assert_eq!(watch.claims(&found, now), BTreeSet::from([(ALICE, None)]), "slurmd's child becomes slurmstepd");
        let later = watch.claims(&found, now + SETTLED);
        assert_eq!(later, BTreeSet::from([(0, Some(7)), (ALICE, None)]), "job 8 has a step");
        watch.note(&Orphans::default(), now + SETTLED);
        assert!(watch.since.is_empty() && watch.evidence.is_empty() && watch.due().is_none(), "PIDs are reused");
    }
}
