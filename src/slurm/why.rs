//! Why a job waits, in plain words, from one snapshot of slurmctld's queue, nodes and reservations.
//!
//! [`Situation::explain`] is pure. It computes the free resources from the nodes alone, so resources are not listed as free if the job that
//! holds them started between two queries, or is hidden from the reader (PrivateData). It suggests a change only
//! for a job whose resources one node must provide: how another job is spread over nodes is Slurm's decision.

mod fit;
mod query;
mod request;
mod suggestion;
mod text;

use std::collections::BTreeMap;

use crate::nodes::ClusterNode;
use fit::{Closed, Resource, Shortage};
use model::hostlist;
use model::printable::count;
use model::queued_job::QueuedJob;
use model::slurm_time::date_seconds;
pub use query::Snapshot;
pub use request::{Gpus, Request};

/// The queue, the nodes and the reservations, from one series of queries.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The jobs of the queue, with an entry for each task of an array.
    pub jobs: &'a [QueuedJob],
    /// The nodes.
    pub nodes: &'a [ClusterNode],
    /// The time of the queries, the resources of the jobs, and the reservations.
    pub details: &'a Details,
}

/// The data that explain jobs, besides the queue and the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The time of the queries, in squeue's format (local time): `2026-11-28T18:30:00`; empty if no job is pending or holds resources.
    pub now: String,
    /// The resources that jobs request or hold, by job ID.
    pub requests: BTreeMap<u64, Request>,
    /// The reservations; empty if no job is pending or holds resources.
    pub reservations: Vec<Reservation>,
}

/// The text for jobs that PrivateData hides.
const HIDDEN: &str = "jobs that you may not see";

/// A reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// The name.
    pub name: String,
    /// The start, in squeue's format (local time).
    pub start: String,
    /// The end, in squeue's format (local time).
    pub end: String,
    /// The reserved nodes, as a host list.
    pub nodes: String,
}

impl Reservation {
    fn has(&self, node: &str) -> bool {
        hostlist::contains(&self.nodes, node)
    }
}

/// The position of a pending job in the queue, and the nodes that its options allow.
struct Position<'a> {
    /// The jobs ahead of this job in the queue of its partitions, beginning with the one that Slurm considers first.
    before: Vec<&'a QueuedJob>,
    /// The nodes that the job's options allow and on which it can start once enough resources are free.
    open: Vec<&'a ClusterNode>,
    /// The other nodes that the job's options allow, and why the job cannot start there.
    closed: Vec<(&'a ClusterNode, Closed<'a>)>,
    /// Whether one node must provide all requested resources.
    is_single: bool,
    /// The open node with the fewest permanent shortages, then with the fewest shortages; `None` if no node is open, or if the job can be spread over
    /// several open nodes.
    best: Option<&'a ClusterNode>,
    /// The shortages on `best`, or on all open nodes together if `best` is `None`.
    shortages: Vec<Shortage>,
}

impl<'s> Situation<'s> {
    /// The job with this ID, such as `17` or `17_3`. If only an array has this ID, its first pending task, or else its first task.
    pub fn job(&self, id: &str) -> Option<&'s QueuedJob> {
        let is_same = |job: &&QueuedJob| job.id == id || job.number.to_string() == id;
        let mut tasks: Vec<&QueuedJob> = self.jobs.iter().filter(|job| job.array() == Some(id)).collect();
        tasks.sort_by_key(|job| !job.is_pending());
        self.jobs.iter().find(is_same).or(tasks.first().copied())
    }

    /// Sets the job's number of GPUs and, if it is pending, the explanation of why it waits.
    pub fn describe(&self, job: &mut QueuedJob) {
        if let Some(request) = self.details.requests.get(&job.number) {
            job.gpus = request.gpu_count();
        }
        if job.is_pending() {
            job.waits_for = self.explain(job);
        }
    }

    /// Explains why the job waits, or which resources it holds. The text follows the job's ID, so it begins with a
    /// verb, unless it is a reason of Slurm without a translation.
    pub fn explain(&self, job: &QueuedJob) -> String {
        let Some(request) = self.details.requests.get(&job.number) else { return job.plain_reason() };
        if !job.is_pending() {
            return self.held(job, request);
        }
        let asks = format!("It requests {}.", text::request(job, request));
        if !request::is_in_line(job) {
            return [self.obstacle(job, request), asks].join(". ");
        }
        let position = self.position(job, request);
        let sentences = [
            Some(self.headline(job, request, &position)),
            Some(asks),
            text::free(request, &position),
            text::closed(&position),
            self.holders(&position),
            self.place(job, &position),
            self.estimate(request),
            suggestion::suggest(job, request, self, &position),
        ];
        let sentences = sentences.into_iter().flatten();
        sentences.map(|sentence| sentence.trim_end_matches('.').to_owned() + ".").collect::<Vec<_>>().join(" ")
    }

    fn position<'a>(&'a self, job: &QueuedJob, request: &Request) -> Position<'a> {
        let allowed = fit::allowed(job, request, self);
        let (mut open, mut closed) = (Vec::new(), Vec::new());
        for node in &allowed {
            match fit::closed(node, request, self) {
                None => open.push(*node),
                Some(why) => closed.push((*node, why)),
            }
        }
        let is_single = request.is_single(allowed.len());
        // A node that has enough once jobs have ended comes before one that never has enough.
        let lack = |node: &&ClusterNode| {
            let all = fit::shortages(node, request);
            (all.iter().filter(|one| one.is_permanent()).count(), all.len(), fit::missing_amount(&all))
        };
        let best = if is_single || open.len() == 1 { open.iter().copied().min_by_key(lack) } else { None };
        let shortages = match best {
            Some(node) => fit::shortages(node, request),
            None => fit::shortages_together(&open, request),
        };
        Position { before: self.before(job, request), open, closed, is_single, best, shortages }
    }

    /// The jobs that Slurm considers before this one: those in line for any of this job's partitions with a higher priority, or with an equal
    /// priority and a lower ID.
    fn before(&self, job: &QueuedJob, request: &Request) -> Vec<&QueuedJob> {
        let shares_partition =
            |other: &QueuedJob| other.partition.split(',').any(|one| job.partition.split(',').any(|own| own == one));
        let key = |priority: u64, number: u64| (std::cmp::Reverse(priority), number);
        let own = key(request.priority, job.number);
        let key_of = |other: &QueuedJob| Some(key(self.details.requests.get(&other.number)?.priority, other.number));
        let mut before: Vec<&QueuedJob> = self
            .jobs
            .iter()
            .filter(|other| other.id != job.id && request::is_in_line(other) && shares_partition(other))
            .filter(|other| key_of(other).is_some_and(|key| key < own))
            .collect();
        before.sort_by_key(|other| key_of(other));
        before
    }

    /// The first sentence about a job that waits for something other than its turn, resources or nodes.
    fn obstacle(&self, job: &QueuedJob, request: &Request) -> String {
        let plain = job.plain_reason();
        match job.reason.as_str() {
            "JobHeldUser" => format!("{plain}; to release it, run scontrol release {}", job.id),
            "JobHeldAdmin" => format!("{plain}, who can release it with scontrol release {}", job.id),
            "DependencyNeverSatisfied" => {
                format!(
                    "cannot start: {} did not end as the dependency of this job requires; cancel this job with scancel {}",
                    job.awaited_jobs(),
                    job.id
                )
            }
            "BeginTime" => match text::date(&request.start, &self.details.now) {
                Some(start) => format!("waits for its start time {start}"),
                None => plain,
            },
            "Dependency" => match self.awaited(job) {
                Some(states) => format!("{plain} ({states})"),
                None => plain,
            },
            "Reservation" if !request.reservation.is_empty() => {
                let known = self.details.reservations.iter().find(|one| one.name == request.reservation);
                let start = known.and_then(|one| text::date(&one.start, &self.details.now));
                let start = start.map_or_else(String::new, |start| format!(", which begins at {start}"));
                format!("waits for its reservation {}{start}", request.reservation)
            }
            _ => plain,
        }
    }

    /// The states of the jobs that this job waits for.
    fn awaited(&self, job: &QueuedJob) -> Option<String> {
        let known = self.jobs.iter().filter(|other| job.awaits(other));
        let state = |other: &QueuedJob| match self.until(other.number) {
            Some(until) if !other.is_pending() && !other.is_completing() => format!("{} runs {until}", other.id),
            _ => format!("{} is {}", other.id, other.state.to_lowercase()),
        };
        let states: Vec<String> = known.take(text::MOST).map(state).collect();
        (!states.is_empty()).then(|| states.join(", "))
    }

    /// The first sentence about a job that waits for its turn, for resources or for nodes.
    fn headline(&self, job: &QueuedJob, request: &Request, position: &Position<'_>) -> String {
        let next = position.before.first().map(|first| format!("job {} of {}", first.id, first.user));
        if let Some(lack) = position.shortages.iter().find(|one| one.is_permanent()) {
            let is_enough = |node: &ClusterNode| fit::shortages(node, request).iter().all(|one| !one.is_permanent());
            let closed = position.closed.iter().find(|(node, _)| !position.is_single || is_enough(node));
            return match closed {
                Some((node, why)) => format!("waits for {}", text::closed_node(node, why, &self.details.now)),
                None if position.open.is_empty() && position.closed.is_empty() => text::no_node(job, request),
                None if position.open.is_empty() => {
                    "cannot start: no node that it can use has enough resources".to_owned()
                }
                None => format!("cannot start: {}", text::never(lack, position.is_single)),
            };
        }
        if let Some(lack) = position.shortages.first() {
            return format!(
                "waits for {}: {}",
                text::amount(&lack.resource, lack.requested),
                self.in_use(lack, position)
            );
        }
        match next {
            Some(next) => format!("waits for its turn: {next} is ahead of it"),
            None if request.has_more => "waits for resources that only Slurm counts, such as shares of GPUs".to_owned(),
            None if !position.is_single => "waits until Slurm finds enough nodes with enough free resources".to_owned(),
            None => "waits for Slurm's next scheduling cycle".to_owned(),
        }
    }

    /// The use of a missing resource: `2 of 2 in use by alice (until 18:30)`.
    fn in_use(&self, lack: &Shortage, position: &Position<'_>) -> String {
        let used = text::used(lack);
        let nodes = position.best.map_or_else(|| position.open.clone(), |best| vec![best]);
        // A job on several nodes occurs once for each node.
        let mut users: Vec<(String, Vec<u64>)> = Vec::new();
        for job in nodes.iter().flat_map(|node| text::holders_of(node, &lack.resource)) {
            let owner = nodes.iter().flat_map(|node| &node.jobs).find(|owned| owned.job == job);
            let user = owner.map_or_else(|| "?".to_owned(), |owned| owned.user.clone());
            match users.iter_mut().find(|(known, _)| *known == user) {
                Some((_, jobs)) => jobs.push(job),
                None => users.push((user, vec![job])),
            }
        }
        let until = |jobs: &[u64]| jobs.iter().filter_map(|job| self.until(*job)).min();
        let name = |(user, jobs): &(String, Vec<u64>)| match until(jobs) {
            Some(until) => format!("{user} ({until})"),
            None => user.clone(),
        };
        match users.as_slice() {
            [] if lack.free == lack.total => used,
            [] => format!("{used} by {HIDDEN}"),
            users => {
                let more = users.len().saturating_sub(text::MOST);
                let names: Vec<String> = users.iter().take(text::MOST).map(name).collect();
                let more = if more > 0 { format!(" and {}", count(more, "more user")) } else { String::new() };
                let is_hidden = nodes.iter().any(|node| text::has_hidden_holder(node, &lack.resource));
                let hidden = if is_hidden { format!(" and {HIDDEN}") } else { String::new() };
                format!("{used} by {}{more}{hidden}", names.join(", "))
            }
        }
    }

    /// When a running job ends: `until 18:30`, `without a time limit`, or `ending`.
    fn until(&self, job: u64) -> Option<String> {
        let request = self.details.requests.get(&job)?;
        if self.jobs.iter().any(|other| other.number == job && other.is_completing()) {
            return Some("ending".to_owned());
        }
        let end = text::date(&request.end, &self.details.now).filter(|_| request.has_limit());
        Some(match end {
            Some(end) => format!("until {end}"),
            None => "without a time limit".to_owned(),
        })
    }

    /// A sentence about the jobs that hold the missing resources.
    fn holders(&self, position: &Position<'_>) -> Option<String> {
        let nodes = position.best.map_or_else(|| position.open.clone(), |best| vec![best]);
        let resources: Vec<&Resource> = position.shortages.iter().map(|lack| &lack.resource).collect();
        let mut shares: Vec<(&ClusterNode, u64)> = Vec::new();
        for node in nodes {
            for job in resources.iter().flat_map(|resource| text::holders_of(node, resource)) {
                if !shares.iter().any(|(_, known)| *known == job) {
                    shares.push((node, job));
                }
            }
        }
        let line = |(node, job): &(&ClusterNode, u64)| {
            let until = self.until(*job).map_or_else(String::new, |until| format!(" {until}"));
            text::holder(node, *job).map(|holder| holder + &until)
        };
        let lines: Vec<String> = shares.iter().filter_map(line).take(text::MOST).collect();
        let more = shares.len().saturating_sub(text::MOST);
        let more = if more > 0 { format!(" and {}", count(more, "more job")) } else { String::new() };
        (!lines.is_empty()).then(|| format!("In use by {}{more}", lines.join("; ")))
    }

    fn place(&self, job: &QueuedJob, position: &Position<'_>) -> Option<String> {
        let shares_partition =
            |other: &QueuedJob| other.partition.split(',').any(|one| job.partition.split(',').any(|own| own == one));
        let total = self.jobs.iter().filter(|other| request::is_in_line(other) && shares_partition(other)).count();
        match position.before.as_slice() {
            [] if total > 1 => Some(format!("It is the first of {total} jobs in the queue")),
            [] => None,
            [first, ..] => {
                let number = position.before.len() + 1;
                Some(format!(
                    "It is number {number} in the queue of {}, which begins with job {} of {}",
                    job.partition, first.id, first.user
                ))
            }
        }
    }

    /// Slurm's estimate of the start. It is useless if a job without a time limit must end first: Slurm assumes that such a job runs for a year.
    fn estimate(&self, request: &Request) -> Option<String> {
        const USELESS: u64 = 180 * 86_400;
        let (start, now) = (date_seconds(&request.start)?, date_seconds(&self.details.now)?);
        let from_now = start.checked_sub(now).filter(|seconds| *seconds > 0)?;
        match from_now > USELESS {
            true => Some(
                "Slurm's estimate of its start is useless, probably because jobs that it waits for have no time limit"
                    .to_owned(),
            ),
            false => Some(format!("Slurm expects it to start by {}", text::date(&request.start, &self.details.now)?)),
        }
    }

    /// Describes the state and the resources of a job that is not pending.
    fn held(&self, job: &QueuedJob, request: &Request) -> String {
        let state = job.state.to_lowercase();
        let until = if job.is_completing() { None } else { self.until(job.number) };
        let until = until.map_or_else(String::new, |until| format!(" {until}"));
        format!("is {state} on {}{until} with {}.", job.nodes, text::request(job, request))
    }
}

#[cfg(test)]
mod tests;
