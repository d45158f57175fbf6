//! The test job: runs `true` as root's job on this node. It is needed if the user provides one of Slurm's files.
//!
//! Slurm loads the programs and plugins of jobs only when the first job runs. A failing Prolog then drains the node, and every job fails if
//! a TaskProlog or an MPI plugin is missing. So a test job must show that jobs can run before the container is ready.
//!
//! The job must not delay or preempt another one: it runs only on an idle node, at once or not at all. A node on which it fails is
//! drained, so that waiting jobs keep waiting; the next start resumes the node and tests again.

use std::path::Path;
use std::time::{Duration, Instant};

use install::load_config;
use install::planned::locate_fault;
use machine::node_report::{NodeReport, SINFO_FORMAT, TEST_JOB_REASON};
use model::exit_code;
use model::inventory::{Finding, Kind};
use model::message;
use model::printable;
use slurm::client::{Client, Jobs};
use sys::report;
use sys::tool;
use sys::tool::answer::Answer;

/// The memory of the job, in MiB: enough for a TaskProlog in Python. On a node with less, the job requests all of the node's memory.
const MEMORY_MIB: u64 = 256;
/// The client for all commands except srun. The timeout applies to each command.
const CLEANUP: Client = Client::with_timeout(Duration::from_secs(5));
/// The pause between two queries of the node while its Epilog runs; Slurm sends no event when it ends.
const EPILOG_POLL: Duration = Duration::from_millis(20);
/// The maximum length of srun's error text in an outcome, in characters.
const MAX_SYMPTOM_LENGTH: usize = 200;

/// The outcome of the test job.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Ran,
    /// No job was started, for this reason. For example, a rule of an account or a partition forbids it, or the node is not idle.
    NotTried(String),
    /// The job failed or did not end in time, or Slurm drained the node because of it, with this symptom.
    Failed(String),
}

/// Runs the job with this time limit, logs the result, and drains the node if the job failed. Returns this program's exit code.
///
/// # Errors
/// The node cannot be drained.
pub fn run(config_file: Option<&Path>, root: &Path, node: &str, limit: Duration) -> anyhow::Result<u8> {
    let begin = Instant::now();
    let outcome = test(node, begin + limit, limit);
    match &outcome {
        Outcome::Ran => {
            report::info(message!("test-job-ran", "a test job ran in {ms} ms", ms = begin.elapsed().as_millis()));
        }
        Outcome::NotTried(reason) => {
            report::info(message!("test-job-not-tried", "no test job was run: {reason}", reason))
        }
        Outcome::Failed(symptom) => {
            CLEANUP.update_node(node, &["state=drain".to_owned(), format!("reason={TEST_JOB_REASON}{symptom}")])?;
            report::error(explain(config_file, root, node, symptom).message("test-job-failed"));
            return Ok(exit_code::TEST_JOB_FAILED);
        }
    }
    Ok(exit_code::SUCCESS)
}

fn test(node: &str, deadline: Instant, limit: Duration) -> Outcome {
    let sinfo = |client: Client| {
        let format = format!("--format=%P|%a|%m|{SINFO_FORMAT}");
        client.output("sinfo", &["--noheader", "--all", "--nodes", node, &format])
    };
    let place = sinfo(CLEANUP).map_err(|error| error.to_string()).and_then(|output| Place::choose(&output));
    let place = match place {
        Ok(place) => place,
        Err(reason) => return Outcome::NotTried(reason),
    };
    let name = format!("slurminit-test-{node}");
    let answer = tool::ask("srun", &place.arguments(node, &name, limit), left(deadline));
    if answer == Answer::Silent {
        let own = format!("--name={name}");
        let has_started =
            CLEANUP.jobs(&Jobs { options: &["--me", &own], ..Jobs::default() }).is_ok_and(|jobs| !jobs.is_empty());
        let _ = CLEANUP.run("scancel", &["--me", &own]);
        let text = format!("{NOT_ENDED} {} s", limit.as_secs());
        return if has_started { Outcome::Failed(text) } else { Outcome::NotTried("srun timed out".to_owned()) };
    }
    let mut reports = Vec::new();
    // srun has reported the end of the job, but its Epilog may still be running.
    loop {
        reports = sinfo(CLEANUP)
            .map_or(reports, |output| output.lines().filter_map(Place::parse).map(|place| place.report).collect());
        let is_completing = reports.iter().any(|report| matches!(report.state.as_str(), "completing" | "draining"));
        if !is_completing || left(deadline).is_zero() {
            return classify(&answer, &reports);
        }
        crate::jobs::pause(EPILOG_POLL);
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// A partition of the node, and the node's state.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    partition: String,
    is_default: bool,
    is_up: bool,
    memory_mib: u64,
    report: NodeReport,
}

impl Place {
    /// Parses a line of sinfo: `debug*|up|8000|idle Unknown|none`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, '|');
        let (name, state, memory, report) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let partition = name.trim_end_matches('*');
        Some(Self {
            is_default: partition != name,
            partition: partition.to_owned(),
            is_up: state == "up",
            memory_mib: memory.trim_end_matches('+').parse().ok()?,
            report: NodeReport::parse(report)?,
        })
    }

    /// The default partition if it is up, or else the first partition that is up. The error is the reason why no job may start now.
    fn choose(output: &str) -> Result<Self, String> {
        let places: Vec<Self> = output.lines().filter_map(Self::parse).collect();
        if let Some(busy) = places.iter().find(|place| place.report.state != "idle" || !place.report.responding) {
            return Err(format!("the node is {}", busy.report));
        }
        let usable = places.into_iter().filter(|place| place.is_up);
        usable.min_by_key(|place| !place.is_default).ok_or_else(|| "no partition of the node is up".to_owned())
    }

    fn arguments(&self, node: &str, name: &str, limit: Duration) -> Vec<String> {
        let fixed = ["--immediate", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--input=none", "--chdir=/"];
        let chosen = [
            format!("--job-name={name}"),
            format!("--nodelist={node}"),
            format!("--partition={}", self.partition),
            format!("--mem={}", self.memory_mib.min(MEMORY_MIB)),
            // Slurm's time limit, in minutes, is at least one minute longer than that of this process.
            format!("--time={}", limit.as_secs() / 60 + 2),
            "true".to_owned(),
        ];
        fixed.into_iter().map(str::to_owned).chain(chosen).collect()
    }
}

/// srun's error messages if it receives no allocation (24.11 to 26.05, `allocate.c`).
const NOT_ALLOCATED: [&str; 2] = ["Unable to allocate resources: ", "Job submit/allocate failed: "];

fn classify(answer: &Answer, reports: &[NodeReport]) -> Outcome {
    let (succeeded, stderr) = match answer {
        Answer::Ended { succeeded, stderr, .. } => (*succeeded, stderr.as_str()),
        Answer::Missing => return Outcome::NotTried("srun is not installed or not executable".to_owned()),
        Answer::Silent => return Outcome::NotTried("srun timed out".to_owned()),
    };
    // Parses `srun: error: text` and `slurmstepd-box: error: text`.
    let errors: Vec<&str> = stderr.lines().filter_map(|line| Some(line.split_once(": error: ")?.1.trim())).collect();
    if errors.iter().any(|line| NOT_ALLOCATED.iter().any(|text| line.contains(text))) {
        return Outcome::NotTried(printable::short(&errors.join("; "), MAX_SYMPTOM_LENGTH));
    }
    // slurmctld drains the node as SlurmUser if the job failed. A reason that root set usually comes from an administrator.
    let drained = reports.iter().find(|report| report.state.starts_with("drain") && !report.is_roots);
    match (drained, succeeded) {
        (Some(report), _) => Outcome::Failed(report.reason.clone()),
        (None, true) => Outcome::Ran,
        (None, false) => {
            let first = errors.first().copied().or_else(|| stderr.lines().find(|line| !line.trim().is_empty()));
            Outcome::Failed(printable::short(first.unwrap_or("srun failed"), MAX_SYMPTOM_LENGTH))
        }
    }
}

const SCRIPT: &str = "the script cannot be executed (does its interpreter exist?), or exits with a code other than 0";
const HANGS: &str = "the script, or a program that it runs, may hang";
const NOT_ENDED: &str = "the job did not end within";

/// Part of a symptom, the key of slurm.conf that it refers to, and the cause.
const CAUSES: [(&str, &str, &str); 9] = [
    (NOT_ENDED, "Prolog", HANGS),
    (NOT_ENDED, "TaskProlog", HANGS),
    (NOT_ENDED, "PrologSlurmctld", HANGS),
    ("Epilog error", "Epilog", SCRIPT),
    ("TaskProlog", "TaskProlog", SCRIPT),
    // slurmstepd's line about the TaskProlog may be lost: srun reports the exit on another connection.
    ("task 0: Exited with exit code", "TaskProlog", SCRIPT),
    ("rolog", "Prolog", SCRIPT),
    // Reported by srun after slurmctld has cancelled the job.
    ("still not ready", "PrologSlurmctld", SCRIPT),
    ("mpi", "MpiDefault", "Slurm cannot load this plugin"),
];

/// The finding about a failed test job. It names the place in the user's file or configuration if the symptom can be attributed to a setting.
fn explain(config_file: Option<&Path>, root: &Path, node: &str, symptom: &str) -> Finding {
    let config = load_config::load(config_file).unwrap_or_default();
    let files = install::find_user_files(&config.paths, root).unwrap_or_default();
    let own = plan::select_user_files(&config, &files);
    let known = CAUSES
        .iter()
        .filter(|(part, ..)| symptom.contains(part))
        .find_map(|(_, key, cause)| Some((own.culprit(&config, key)?, key, cause)));
    let value = known.as_ref().and_then(|(_, key, _)| Some(format!(" ({key}={})", own.last_value(key)?)));
    let cause = known
        .as_ref()
        .map_or("a setting in your own Slurm files, or a program or plugin that it names", |(.., cause)| cause);
    let blamed = || plan::blame(&config, &[], &own, &[symptom]).map(|blame| blame.culprit);
    let culprit = known.as_ref().map(|(culprit, ..)| culprit.clone()).or_else(blamed);
    let symptom = format!("jobs cannot run: {symptom}{}", value.unwrap_or_default());
    let (what, _) = locate_fault(config_file, culprit.as_ref(), &symptom);
    let fix = format!(
        "see `slurminit logs slurmd` (for PrologSlurmctld: `slurminit logs slurmctld`); correct the setting and run \
         `slurminit reload`, or correct the program and run `slurminit resume {node}`"
    );
    Finding::error(Kind::OwnFiles, what, cause, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(stderr: &str, node: &str) -> Outcome {
        let succeeded = stderr.is_empty();
        let answer = Answer::Ended { succeeded, stdout: String::new(), stderr: stderr.to_owned() };
        classify(&answer, &[NodeReport::parse(node).unwrap()])
    }

    fn failed(symptom: &str) -> Outcome {
        Outcome::Failed(symptom.to_owned())
    }

    #[test]
    fn distinguishes_failed_job_from_refused_one() {
        assert_eq!(outcome("", "idle Unknown|none"), Outcome::Ran);
        let refused = [
            "srun: error: Unable to allocate resources: Requested nodes are busy",
            "srun: error: invalid partition specified: nix\nsrun: error: Unable to allocate resources: Invalid partition name specified",
            "srun: error: root may not run jobs\nsrun: error: Unable to allocate resources: Unspecified error",
        ];
        for stderr in refused {
            assert!(matches!(outcome(stderr, "idle Unknown|none"), Outcome::NotTried(_)), "{stderr}");
        }
        // An administrator drained the node meanwhile.
        assert!(matches!(outcome(refused[0], "drained root|fan"), Outcome::NotTried(_)));
        let prolog = "srun: error: Task launch for StepId=2.0 failed on node box: Job prolog failed\n\
                      srun: error: Application launch failed: Job prolog failed\nsrun: Job step aborted\n";
        assert_eq!(outcome(prolog, "drained slurm|Prolog error"), failed("Prolog error"));
        assert_eq!(outcome("", "drained slurm|Epilog error"), failed("Epilog error"));
        assert_eq!(outcome("", "drained root|fan broken"), Outcome::Ran);
        let task = "slurmstepd-box: error: TaskProlog failed status=127\nsrun: error: box: task 0: Exited with exit code 127\n";
        assert_eq!(outcome(task, "idle Unknown|none"), failed("TaskProlog failed status=127"));
        assert_eq!(outcome("\nsrun: lost contact\n", "idle Unknown|none"), failed("srun: lost contact"));
        let mpi = "srun: error: Couldn't find the specified plugin name for mpi/x looking at all files\nsrun: error: cannot find mpi plugin\n";
        let Outcome::Failed(symptom) = outcome(mpi, "idle Unknown|none") else { panic!("it did not fail") };
        assert!(symptom.starts_with("Couldn't find"), "{symptom}");
    }

    #[test]
    fn chooses_default_partition_of_idle_node() {
        let chosen = |text: &str| Place::choose(text).map(|place| place.partition);
        assert_eq!(chosen("gpu|up|8000|idle u|none\ndebug*|up|8000|idle u|none"), Ok("debug".to_owned()));
        assert_eq!(chosen("gpu|up|8000|idle u|none\ndebug*|inact|8000|idle u|none"), Ok("gpu".to_owned()));
        assert!(chosen("gpu|down|8000|idle u|none").is_err() && chosen("").is_err());
        for busy in ["mixed u|none", "allocated u|none", "idle* u|none", "completing u|none", "drained root|fan"] {
            assert!(chosen(&format!("debug*|up|8000|{busy}")).is_err(), "{busy}");
        }
        let small = Place::choose("debug*|up|1|idle u|none").unwrap();
        assert!(small.arguments("box", "x", Duration::from_secs(60)).contains(&"--mem=1".to_owned()));
    }

    #[test]
    fn explains_with_line_of_own_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("config")).unwrap();
        let conf =
            "# USER_CUSTOMIZED=true\nProlog=/p.sh\nTaskProlog=/t.sh\nMpiDefault=pmix_v9\nPrologSlurmctld=/s.sh\n";
        std::fs::write(root.path().join("config/slurm.conf"), conf).unwrap();
        let cases = [
            ("Prolog error", ":2: "),
            ("TaskProlog failed status=127", ":3: "),
            ("box: task 0: Exited with exit code 127", ":3: "),
            ("the job did not end within 60 s", ":2: "),
            ("Nodes box are still not ready", ":5: "),
            ("Couldn't find the specified plugin name for mpi/pmix_v9 looking at all files", ":4: "),
        ];
        for (symptom, place) in cases {
            let finding = explain(None, root.path(), "box", symptom);
            assert!(finding.what.contains(place) && finding.fix.contains("resume box"), "{finding}");
        }
        assert!(explain(None, root.path(), "box", "cgroup: no such file").what.contains("jobs cannot run: cgroup"));
        std::fs::write(root.path().join("config/slurm.conf"), "# USER_CUSTOMIZED=true\n").unwrap();
        let finding = explain(None, root.path(), "box", "box: task 0: Exited with exit code 1");
        assert!(finding.cause.starts_with("a setting in your own Slurm files"), "{finding}");
    }
}
