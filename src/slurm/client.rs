//! The client of Slurm's commands. Each query is a method with a typed result.
//!
//! A client limits the time of each command, or of all together. It caches no result; a view with several readers does,
//! for [`limit::CACHE_LIFETIME`].

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

/// Runs a program with arguments.
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
    /// Job states; empty for jobs that have not ended.
    pub states: &'a [&'a str],
    /// Only jobs on this node.
    pub node: Option<&'a str>,
    /// Other options: `--array`, `--all`.
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

    /// The output of a command.
    ///
    /// # Errors
    /// The command cannot be executed, fails, or times out.
    pub fn output<S: AsRef<str>>(&self, program: &'static str, arguments: &[S]) -> Result<String, QueryError> {
        self.answer(program, arguments).map(|(stdout, _)| stdout)
    }

    /// Both outputs of a command that succeeds.
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

    /// `scontrol update` of the entity `what` with these settings.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn update<S: AsRef<str>>(&self, entity: &str, settings: &[S]) -> Result<(), QueryError> {
        let fixed = ["update", entity].into_iter();
        self.run("scontrol", &fixed.chain(settings.iter().map(AsRef::as_ref)).collect::<Vec<&str>>())
    }

    /// The controller's status, if it responds.
    ///
    /// # Errors
    /// As [`Self::output`]; the output, if no controller is up.
    pub fn ping(&self) -> Result<NodeReport, QueryError> {
        let output = self.output("scontrol", &["ping"])?;
        let report = output.lines().find_map(NodeReport::of_controller);
        report.ok_or(QueryError::Failed { program: "scontrol", output })
    }

    /// The error of a controller that responds and rejects the credentials of this container. `scontrol ping` calls it down.
    pub fn rejection(&self) -> Option<QueryError> {
        self.output("sinfo", &["--noheader"]).err().filter(QueryError::is_authentication)
    }

    /// The controller's reports of a node in any partition, or of several nodes.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn node_reports(&self, node: &str) -> Result<Vec<NodeReport>, QueryError> {
        let (nodes, format) = (format!("--nodes={node}"), format!("--format={SINFO_FORMAT}"));
        let output = self.output("sinfo", &["--noheader", "--all", &nodes, &format])?;
        Ok(output.lines().filter_map(NodeReport::parse).collect())
    }

    /// The GRES of a node and the controller's report of it; `None` if no partition contains the node.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn node_with_gres(&self, node: &str) -> Result<Option<(String, NodeReport)>, QueryError> {
        let format = format!("--format=%G|{SINFO_FORMAT}");
        let output = self.output("sinfo", &["--noheader", "--nodes", node, &format])?;
        let (gres, rest) = output.lines().next().unwrap_or_default().split_once('|').unwrap_or_default();
        let gres = if gres == "(null)" { "" } else { gres };
        Ok(NodeReport::parse(rest).map(|report| (gres.to_owned(), report)))
    }

    /// The controller's record of a node; `None` if there is none, for which scontrol fails (`info_node.c`).
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

    /// The jobs of the queue with account, name and requested GPUs, for people.
    ///
    /// Users choose accounts and names, and a name can contain a newline. So each line begins with a random mark, without which it is
    /// part of the name before it.
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

    /// The jobs as JSON, with `--json` among the options.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn jobs_json(&self, filter: &Jobs) -> Result<String, QueryError> {
        self.output("squeue", &filter.arguments())
    }

    /// The jobs of the queue with columns that only `squeue --Format` has. Each width must exceed the longest value.
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

    /// The accounts' fair-share factors, from the accounting database.
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

/// A job of [`Client::jobs_for_display`].
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

/// Slurm's programs in a test: the output, or the error, of the first entry with which the command line begins. Other
/// commands fail.
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
mod tests {
    use super::*;

    #[test]
    fn error_distinguishes_missing_slow_and_failing_command() {
        let error = |answer: &Answer| {
            let run = |_: &str, _: &[&str]| answer.clone();
            Client::with_runner(&run).run("sinfo", &["--all"]).unwrap_err()
        };
        assert_eq!(error(&Answer::Missing), QueryError::Missing("sinfo"));
        assert_eq!(error(&Answer::Silent), QueryError::TimedOut("sinfo"));
        let failed = Answer::Ended { succeeded: false, stdout: "b".to_owned(), stderr: "a\n".to_owned() };
        assert_eq!(error(&failed), QueryError::Failed { program: "sinfo", output: "a\nb".to_owned() });
    }

    #[test]
    fn update_names_entity_before_settings() {
        let lines = std::cell::RefCell::new(Vec::new());
        let run = |program: &str, arguments: &[&str]| {
            lines.borrow_mut().push(format!("{program} {}", arguments.join(" ")));
            Answer::Ended { succeeded: true, stdout: String::new(), stderr: String::new() }
        };
        let client = Client::with_runner(&run);
        client.update_node("c1", &["state=resume", "reason=none"]).unwrap();
        client.update_job("7", &["timelimit=5"]).unwrap();
        let expected = ["scontrol update nodename=c1 state=resume reason=none", "scontrol update jobid=7 timelimit=5"];
        assert_eq!(lines.into_inner(), expected);
    }

    #[test]
    fn controller_is_up_or_rejects_credentials() {
        let up = answers([
            ("scontrol ping", Ok("Slurmctld(primary) at c1 is DOWN\nSlurmctld(backup) at c2 is UP\n")),
            ("sinfo", Ok("main up\n")),
        ]);
        let up = Client::with_runner(&up);
        assert_eq!((up.ping().map(|report| report.state), up.rejection()), (Ok("up".to_owned()), None));
        let down = "Slurmctld(primary) at c1 is DOWN\n";
        let other_key = answers([("scontrol ping", Ok(down)), ("sinfo", Err("slurm: Protocol authentication error"))]);
        let other_key = Client::with_runner(&other_key);
        assert_eq!(other_key.ping(), Err(QueryError::Failed { program: "scontrol", output: down.to_owned() }));
        assert!(other_key.rejection().is_some());
        let silent = answers([("sinfo", Err("Unable to contact slurm controller"))]);
        assert_eq!(Client::with_runner(&silent).rejection(), None);
    }

    #[test]
    fn node_queries_omit_lines_without_a_node() {
        let run = answers([
            ("sinfo --noheader --all --nodes=c[1-2] --format=%T ", Ok("idle root|none\n\ndown* root|fan\n")),
            ("sinfo --noheader --nodes c1 --format=%G|%T ", Ok("gpu:nvidia:2|idle root|none\n")),
            ("sinfo --noheader --nodes c2 ", Ok("(null)|down root|fan\n")),
            ("sinfo --noheader --nodes c3 ", Ok("\n")),
            ("scontrol --oneliner show node c1", Ok("NodeName=c1 State=IDLE\n\n")),
            ("scontrol --oneliner show node c2", Err("Node c2 not found")),
            ("scontrol --oneliner show node c3", Err("Unable to contact slurm controller")),
            ("scontrol --oneliner show node", Ok("NodeName=c1 State=IDLE\nNodeName=c2 State=DOWN\nx\n")),
        ]);
        let client = Client::with_runner(&run);
        let states: Vec<String> =
            client.node_reports("c[1-2]").unwrap().into_iter().map(|report| report.state).collect();
        assert_eq!(states, ["idle", "down"]);
        let with_gres = |node: &str| client.node_with_gres(node).unwrap().map(|(gres, report)| (gres, report.state));
        assert_eq!(with_gres("c1"), Some(("gpu:nvidia:2".to_owned(), "idle".to_owned())));
        assert_eq!(with_gres("c2"), Some((String::new(), "down".to_owned())));
        assert_eq!(with_gres("c3"), None);
        assert!(client.node("c1").unwrap().is_some_and(|node| node.has_state(&["IDLE"])));
        assert_eq!(client.node("c2"), Ok(None));
        assert!(client.node("c3").is_err());
        let states: Vec<_> = client.nodes().unwrap().iter().map(|node| node.get("State").map(str::to_owned)).collect();
        assert_eq!(states, [Some("IDLE".to_owned()), Some("DOWN".to_owned())]);
    }

    #[test]
    fn job_queries_apply_filter() {
        let holding = format!("squeue --noheader --array --states={} --nodelist=c1 --format=", HOLDING.join(","));
        let run = answers([
            (&holding, Ok("7|7_1|RUNNING|2|0:00|main|bob|1000|c1||||None|gres/gpu:2\nx|y\n")),
            ("squeue --noheader --json", Ok("{}")),
            ("squeue --noheader --Format=JobID:4,State:10", Ok("7   RUNNING\n8   PENDING\n")),
        ]);
        let client = Client::with_runner(&run);
        let jobs = client.jobs(&Jobs { node: Some("c1"), options: &["--array"], ..Jobs::HOLDING }).unwrap();
        let jobs: Vec<_> = jobs.iter().map(|job| (job.number, job.gres.as_str())).collect();
        assert_eq!(jobs, [(7, "gres/gpu:2")]);
        assert_eq!(client.jobs_json(&Jobs { options: &["--json"], ..Jobs::default() }).as_deref(), Ok("{}"));
        let columns = client.job_columns(&Jobs::default(), &[("JobID", 4), ("State", 10)]).unwrap();
        assert_eq!(columns, [["7", "RUNNING"], ["8", "PENDING"]]);
    }

    #[test]
    fn cluster_queries_parse_slurms_output() {
        let run = answers([
            ("scontrol show config", Ok("MaxNodeCount = 64\n")),
            ("scontrol show hostnames c[1-2]", Ok("c1\nc2\n")),
            ("scontrol getaddrs c1", Ok("c1: 172.18.0.3:6818\nx\n")),
            ("scontrol --oneliner show node", Ok("NodeName=c1 CPUEfctv=2 RealMemory=8000 Partitions=main\n")),
            ("scontrol --oneliner show partition", Ok("PartitionName=main Default=YES\n")),
            ("sdiag ", Ok("Server thread count: 3\n")),
            ("sshare ", Ok(" lab||0.250000|\n")),
        ]);
        let client = Client::with_runner(&run);
        assert_eq!(client.config().unwrap().max_node_count(), Some(64));
        assert_eq!(client.hostnames("c[1-2]").unwrap(), ["c1", "c2"]);
        assert_eq!(client.addresses("c1").unwrap(), [("c1".to_owned(), "172.18.0.3:6818".parse().unwrap())]);
        assert_eq!(client.scheduler().unwrap().threads, Some(3));
        assert_eq!(client.shares().unwrap(), [FairShare { account: "lab".to_owned(), factor: 0.25 }]);
        assert_ne!(client.capacity(), Ok(Capacity::default()));
    }

    #[test]
    fn parses_node_addresses() {
        let pair = |line: &str| parse_address(line).map(|(name, address)| format!("{name} {}", address.ip()));
        assert_eq!(pair("compute-1: 172.18.0.3:6818").as_deref(), Some("compute-1 172.18.0.3"));
        assert_eq!(pair("compute-1: [fd00::3]:6818").as_deref(), Some("compute-1 fd00::3"));
        for other in ["", "compute-1: x:6818", "a b: 172.18.0.3:6818", "172.18.0.3:6818"] {
            assert_eq!(pair(other), None, "{other}");
        }
    }

    #[test]
    fn ignores_lines_forged_by_job_name() {
        let line = |mark: &str, id: u64, name: &str| {
            format!("{mark}{id}|{id}|PENDING|2|0:00|main|bob|1000|||||Resources|2|gres/gpu:nvidia:2|lab|{name}\n")
        };
        let run = |_: &str, arguments: &[&str]| {
            let format = arguments.last().and_then(|format| format.strip_prefix("--format=")).unwrap_or_default();
            let mark = format.split_once('%').unwrap_or_default().0;
            let text = line(mark, 7, &format!("train|a\n{}", line("", 8, "forged")));
            Answer::Ended { succeeded: true, stdout: text, stderr: String::new() }
        };
        let jobs = Client::with_runner(&run).jobs_for_display(&Jobs::default()).unwrap();
        let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
        assert_eq!((job.number, job.name.as_str(), job.gpus), (7, "train|a", 4));
        assert_eq!(job.account, "lab");
    }

    #[test]
    fn splits_columns_by_width() {
        let columns = [("JobID", 4), ("State", 10), ("NodeList", 6)];
        assert_eq!(split_columns("7   PENDING         ", &columns), ["7", "PENDING", ""]);
        assert_eq!(split_columns("7   RUNNING   c1", &columns), ["7", "RUNNING", "c1"]);
        assert_eq!(split_columns("", &columns), [""; 3]);
    }

    #[test]
    fn omits_localhost_in_squeue_arguments() {
        let arguments = |node| Jobs { node: Some(node), ..Jobs::HOLDING }.arguments().len();
        assert_eq!((arguments("localhost"), arguments("c1")), (2, 3));
    }

    #[test]
    fn deadline_covers_all_commands_of_a_client() {
        let minute = Duration::from_secs(60);
        assert_eq!(Client::with_timeout(minute).run("true", &[""; 0]), Ok(()));
        assert_eq!(Client::with_total_timeout(minute).run("true", &[""; 0]), Ok(()));
        let passed = Client::with_total_timeout(Duration::ZERO).run("sleep", &["60"]);
        assert_eq!(passed, Err(QueryError::TimedOut("sleep")));
    }
}
