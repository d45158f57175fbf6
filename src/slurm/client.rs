//! The client of Slurm's commands. Most queries are methods with typed results.
//!
//! A client limits the time of each command, or of all together. It does not cache results; a view with several readers
//! caches them for [`limit::CACHE_LIFETIME`].

pub mod limit;

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::config::RunningConfig;
use crate::error::QueryError;
use crate::node_record::NodeRecord;
use crate::sbatch_args::Capacity;
use crate::scheduler::Scheduler;
use crate::shares::{self, FairShare};
use machine::node_report::{NodeReport, SINFO_FORMAT};
use model::inventory::gres;
use model::printable;
use model::queued_job::{COLUMNS, HOLDING, QueuedJob};
use sys::tool;
use sys::tool::answer::Answer;

/// The maximum length of a displayed job name, in characters.
const MAX_NAME_LENGTH: usize = 60;

/// A function that runs a program with arguments.
pub type Run<'a> = &'a dyn Fn(&str, &[&str]) -> Answer;

/// Runs Slurm's commands.
#[derive(Clone, Copy)]
pub struct Client<'a>(Runner<'a>);

#[derive(Clone, Copy)]
enum Runner<'a> {
    PerCommand(Duration),
    Deadline(Instant),
    Custom(Run<'a>),
}

/// A filter for the jobs that squeue lists.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jobs<'a> {
    /// The job states to list; if empty, squeue lists the jobs that have not ended.
    pub states: &'a [&'a str],
    /// Only jobs on this node; `localhost` is ignored.
    pub node: Option<&'a str>,
    /// Other options of squeue, such as `--array` and `--all`.
    pub options: &'a [&'a str],
}

impl Jobs<'_> {
    /// Jobs that hold resources.
    pub const HOLDING: Self = Self { states: &HOLDING, node: None, options: &[] };

    fn arguments(&self) -> Vec<String> {
        let mut all = vec!["--noheader".to_owned()];
        all.extend(self.options.iter().map(|option| (*option).to_owned()));
        all.extend((!self.states.is_empty()).then(|| format!("--states={}", self.states.join(","))));
        // squeue replaces `localhost` by this machine's name, which is not a node name (24.11, "Invalid node name").
        let node = self.node.filter(|node| *node != "localhost");
        all.extend(node.map(|node| format!("--nodelist={node}")));
        all
    }
}

impl Client<'static> {
    /// A client with this timeout for each command.
    pub const fn with_timeout(limit: Duration) -> Self {
        Self(Runner::PerCommand(limit))
    }

    /// A client with this timeout for all commands together.
    pub fn with_total_timeout(limit: Duration) -> Self {
        Self(Runner::Deadline(Instant::now() + limit))
    }
}

impl<'a> Client<'a> {
    /// A client that runs commands with this function.
    pub const fn with_runner(run: Run<'a>) -> Self {
        Self(Runner::Custom(run))
    }

    /// The standard output of a command that succeeds.
    ///
    /// # Errors
    /// The command cannot be executed, fails, or times out.
    pub fn output<S: AsRef<str>>(&self, program: &'static str, arguments: &[S]) -> Result<String, QueryError> {
        self.answer(program, arguments).map(|(stdout, _)| stdout)
    }

    /// The standard output and standard error of a command that succeeds.
    pub(crate) fn answer<S: AsRef<str>>(
        &self,
        program: &'static str,
        arguments: &[S],
    ) -> Result<(String, String), QueryError> {
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        let answer = match self.0 {
            Runner::PerCommand(limit) => tool::ask(program, &arguments, limit),
            Runner::Deadline(deadline) => {
                tool::ask(program, &arguments, deadline.saturating_duration_since(Instant::now()))
            }
            Runner::Custom(run) => run(program, &arguments),
        };
        match answer {
            Answer::Ended { succeeded: true, stdout, stderr } => Ok((stdout, stderr)),
            Answer::Ended { stdout, stderr, .. } => Err(QueryError::Failed { program, output: stderr + &stdout }),
            Answer::Silent => Err(QueryError::TimedOut(program)),
            Answer::Missing => Err(QueryError::Missing(program)),
        }
    }

    /// Runs a command for its effect.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn run<S: AsRef<str>>(&self, program: &'static str, arguments: &[S]) -> Result<(), QueryError> {
        self.output(program, arguments).map(drop)
    }

    /// `scontrol update` of a node, or of several, with these settings.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn update_node<S: AsRef<str>>(&self, node: &str, settings: &[S]) -> Result<(), QueryError> {
        self.update(&format!("nodename={node}"), settings)
    }

    /// `scontrol update` of a job, or of several, with these settings.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn update_job<S: AsRef<str>>(&self, job: &str, settings: &[S]) -> Result<(), QueryError> {
        self.update(&format!("jobid={job}"), settings)
    }

    /// `scontrol update` of this entity, such as `jobid=17`, with these settings.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn update<S: AsRef<str>>(&self, entity: &str, settings: &[S]) -> Result<(), QueryError> {
        let fixed = ["update", entity].into_iter();
        self.run("scontrol", &fixed.chain(settings.iter().map(AsRef::as_ref)).collect::<Vec<&str>>())
    }

    /// The status of the first controller that is up.
    ///
    /// # Errors
    /// As [`Self::output`]. If no controller is up, the error contains the output.
    pub fn ping(&self) -> Result<NodeReport, QueryError> {
        let output = self.output("scontrol", &["ping"])?;
        let report = output.lines().find_map(NodeReport::of_controller);
        report.ok_or(QueryError::Failed { program: "scontrol", output })
    }

    /// The error if slurmctld rejects the credentials of this container, or this container rejects slurmctld's. `scontrol ping` reports such a
    /// controller as down.
    pub fn rejection(&self) -> Option<QueryError> {
        self.output("sinfo", &["--noheader"]).err().filter(QueryError::is_authentication)
    }

    /// The controller's reports on one or more nodes that are in a partition.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn node_reports(&self, node: &str) -> Result<Vec<NodeReport>, QueryError> {
        let (nodes, format) = (format!("--nodes={node}"), format!("--format={SINFO_FORMAT}"));
        let output = self.output("sinfo", &["--noheader", "--all", &nodes, &format])?;
        Ok(output.lines().filter_map(NodeReport::parse).collect())
    }

    /// The GRES of a node and the controller's report on it; `None` if no partition contains the node.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn node_with_gres(&self, node: &str) -> Result<Option<(String, NodeReport)>, QueryError> {
        let format = format!("--format=%G|{SINFO_FORMAT}");
        let output = self.output("sinfo", &["--noheader", "--all", "--nodes", node, &format])?;
        let (gres, rest) = output.lines().next().unwrap_or_default().split_once('|').unwrap_or_default();
        let gres = if gres == "(null)" { "" } else { gres };
        Ok(NodeReport::parse(rest).map(|report| (gres.to_owned(), report)))
    }

    /// The controller's record of a node; `None` if there is none, in which case scontrol fails (`info_node.c`).
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn node(&self, node: &str) -> Result<Option<NodeRecord>, QueryError> {
        match self.output("scontrol", &["--oneliner", "show", "node", node]) {
            Ok(output) => Ok(output.lines().find_map(NodeRecord::parse)),
            Err(QueryError::Failed { output, .. }) if output.contains(&format!("Node {node} not found")) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The controller's records of all nodes.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn nodes(&self) -> Result<Vec<NodeRecord>, QueryError> {
        let output = self.output("scontrol", &["--oneliner", "show", "node"])?;
        Ok(output.lines().filter_map(NodeRecord::parse).collect())
    }

    /// The configuration that the controller runs with.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn config(&self) -> Result<RunningConfig, QueryError> {
        self.output("scontrol", &["show", "config"]).map(RunningConfig::new)
    }

    /// Expands a list such as `compute-[1-3],gpu7` into names, with Slurm's own command.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn hostnames(&self, list: &str) -> Result<Vec<String>, QueryError> {
        let output = self.output("scontrol", &["show", "hostnames", list])?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// The jobs of the queue and the GRES that they request.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn jobs(&self, filter: &Jobs) -> Result<Vec<QueuedJob>, QueryError> {
        let mut arguments = filter.arguments();
        arguments.push(format!("--format={COLUMNS}|%b"));
        let job = |line: &str| {
            let (job, gres) = QueuedJob::parse(line)?;
            Some(QueuedJob { gres: gres.to_owned(), ..job })
        };
        Ok(self.output("squeue", &arguments)?.lines().filter_map(job).collect())
    }

    /// The jobs of the queue with account, name and requested GPUs, for display.
    ///
    /// Users choose accounts and names, and a name can contain a newline. So each line begins with a random mark. A line without the
    /// mark belongs to the name in the line before it.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn jobs_for_display(&self, filter: &Jobs) -> Result<Vec<QueuedJob>, QueryError> {
        let mark = format!("{:016x}:", RandomState::new().hash_one(0));
        let mut arguments = filter.arguments();
        arguments.push(format!("--format={mark}{COLUMNS}|%D|%b|%a|%j"));
        let job = |line: &str| parse_displayed_job(line.strip_prefix(&mark)?);
        Ok(self.output("squeue", &arguments)?.lines().filter_map(job).collect())
    }

    /// The jobs as JSON. The filter's options must include `--json`.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn jobs_json(&self, filter: &Jobs) -> Result<String, QueryError> {
        self.output("squeue", &filter.arguments())
    }

    /// The values of columns of `squeue --Format`, a row for each job. squeue truncates a value that is longer than its column.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn job_columns<const N: usize>(
        &self,
        filter: &Jobs,
        columns: &[(&str, usize); N],
    ) -> Result<Vec<[String; N]>, QueryError> {
        let mut arguments = filter.arguments();
        let format: Vec<String> = columns.iter().map(|(name, width)| format!("{name}:{width}")).collect();
        arguments.push(format!("--Format={}", format.join(",")));
        Ok(self.output("squeue", &arguments)?.lines().map(|line| split_columns(line, columns)).collect())
    }

    /// The scheduler's statistics.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn scheduler(&self) -> Result<Scheduler, QueryError> {
        self.output("sdiag", &[] as &[&str]).map(|output| Scheduler::parse(&output))
    }

    /// The accounts' fair-share factors.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn shares(&self) -> Result<Vec<FairShare>, QueryError> {
        self.output("sshare", &shares::ARGUMENTS).map(|output| shares::parse(&output))
    }

    /// The cluster's capacity for jobs.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn capacity(&self) -> Result<Capacity, QueryError> {
        let show = |entity| self.output("scontrol", &["--oneliner", "show", entity]);
        Ok(Capacity::parse(&show("node")?, &show("partition")?))
    }

    /// The addresses of nodes, by name.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn addresses(&self, nodes: &str) -> Result<Vec<(String, SocketAddr)>, QueryError> {
        let output = self.output("scontrol", &["getaddrs", nodes])?;
        Ok(output.lines().filter_map(parse_address).collect())
    }
}

/// Parses a line such as `compute-1: 172.18.0.3:6818` (Slurm 24.11, `info_node.c`).
fn parse_address(line: &str) -> Option<(String, SocketAddr)> {
    let (name, address) = line.split_once(": ")?;
    let name = model::value::NodeName::try_from(name.to_owned()).ok()?;
    Some((name.to_string(), address.trim().parse().ok()?))
}

/// Parses a line of [`Client::jobs_for_display`] without its mark.
fn parse_displayed_job(line: &str) -> Option<QueuedJob> {
    let (mut job, rest) = QueuedJob::parse(line)?;
    let mut fields = rest.splitn(4, '|');
    let mut next = || fields.next().unwrap_or_default();
    let (nodes, gres, account, name) = (next(), next(), next(), next());
    // `gres:gpu:2`, and `gres/gpu:2` in newer releases, for each node.
    let per_node = gres::gpus(&gres.replace("gres/", "").replace("gres:", ""));
    job.gpus = per_node.saturating_mul(nodes.parse().unwrap_or(1).max(1));
    job.account = account.to_owned();
    job.name = printable::short(name, MAX_NAME_LENGTH);
    Some(job)
}

/// The columns of a line of `squeue --Format`.
fn split_columns<const N: usize>(line: &str, columns: &[(&str, usize); N]) -> [String; N] {
    let mut from = 0;
    columns.map(|(_, width)| {
        let column = line.get(from..line.len().min(from + width)).unwrap_or_default().trim();
        from += width;
        column.to_owned()
    })
}

/// Slurm's programs in a test: a command has the output, or the error, of the first entry with whose text its command line begins.
/// Other commands fail.
#[cfg(test)]
pub(crate) fn answers<const N: usize>(known: [(&str, Result<&str, &str>); N]) -> impl Fn(&str, &[&str]) -> Answer {
    move |program, arguments| {
        let line = format!("{program} {}", arguments.join(" "));
        let output = known.iter().find(|(command, _)| line.starts_with(command)).map(|(_, output)| *output);
        let (stdout, stderr) = match output {
            Some(Ok(stdout)) => (stdout.to_owned(), String::new()),
            Some(Err(stderr)) => (String::new(), stderr.to_owned()),
            None => (String::new(), format!("unexpected: {line}")),
        };
        Answer::Ended { succeeded: matches!(output, Some(Ok(_))), stdout, stderr }
    }
}

#[cfg(test)]
mod tests;
