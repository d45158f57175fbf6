//! The job of a session.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg, OFlag};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::client;
use crate::commands::submit::run_sbatch;
use crate::output::error_line;
use model::printable;
use model::queued_job::{COMPLETING, PENDING};
use model::slurm_time::TimeLimit;
use slurm::client::{Client, limit};
use slurm::why::Snapshot;

/// The resources that a session requests.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Request {
    /// GPUs: a number, or gpu:TYPE:NUMBER
    #[arg(long, value_name = "GPUS", default_value = "1")]
    pub(crate) gpus: String,
    /// The number of CPUs
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) cpus: u32,
    /// Memory, such as 16G
    #[arg(long, value_name = "SIZE")]
    pub(crate) mem: Option<String>,
    /// Time limit: 8h, 30m, or in Slurm's format
    #[arg(long, value_name = "TIME", default_value = "8h")]
    pub(crate) time: String,
    /// A container image, as for `srun --container`
    #[arg(long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// Another option of sbatch: --sbatch=--partition=gpu; can be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) sbatch: Vec<String>,
}

impl Request {
    fn gres(&self) -> Option<String> {
        match self.gpus.as_str() {
            "0" | "" => None,
            count if count.bytes().all(|byte| byte.is_ascii_digit()) => Some(format!("gpu:{count}")),
            gres => Some(gres.to_owned()),
        }
    }

    /// The request as command-line options of this program.
    pub(super) fn options(&self) -> Vec<String> {
        let mut options =
            vec![format!("--gpus={}", self.gpus), format!("--cpus={}", self.cpus), format!("--time={}", self.time)];
        options.extend(self.mem.iter().map(|mem| format!("--mem={mem}")));
        options.extend(self.container.iter().map(|container| format!("--container={container}")));
        options.extend(self.sbatch.iter().map(|option| format!("--sbatch={option}")));
        options
    }
}

/// Parses the time in an option: 8h, 30m, or in Slurm's format.
pub(crate) fn time_limit(time: &str) -> anyhow::Result<TimeLimit> {
    let number = |unit| time.strip_suffix(unit).and_then(|number| number.parse::<u64>().ok());
    let minutes = number('h').and_then(|hours| hours.checked_mul(60)).or_else(|| number('m'));
    let limit = TimeLimit::parse(&minutes.map_or_else(|| time.to_owned(), |minutes| minutes.to_string()));
    limit.with_context(|| format!("{time:?} is not a time such as 8h, 30m or 1-12:00:00"))
}

/// A session's job, as squeue lists it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    pub(super) name: String,
    pub(crate) job: String,
    pub(super) state: String,
    /// The node of the batch script.
    pub(super) node: String,
    pub(super) cpus: u64,
    pub(super) end: String,
}

/// How a step of a session runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepOptions<'a> {
    /// The container image in which the step runs; `None` runs the step without an image.
    pub(crate) image: Option<&'a str>,
    /// Whether output is unbuffered.
    pub(crate) is_unbuffered: bool,
}

/// The prefix of the job's name.
const PREFIX: &str = "session/";
/// The interval of queries until the job is running.
const INTERVAL: Duration = Duration::from_millis(100);
/// How often the reason for waiting is queried. It is printed only if it has changed.
const EXPLAIN_INTERVAL: Duration = Duration::from_secs(5);

impl Session {
    /// The sessions of this user.
    pub(crate) fn all() -> anyhow::Result<Vec<Self>> {
        // The name is the last field, because the names of other jobs may contain `|`.
        let output = client().output("squeue", &["--me", "--noheader", "--format=%A|%T|%B|%C|%e|%j"])?;
        let parse = |line: &str| {
            let mut fields = line.splitn(6, '|').map(str::to_owned);
            let mut next = || fields.next();
            let (job, state, node, cpus, end, name) = (next()?, next()?, next()?, next()?, next()?, next()?);
            let name = name.strip_prefix(PREFIX).filter(|name| is_name(name))?.to_owned();
            let is_job = job.bytes().all(|byte| byte.is_ascii_digit());
            (is_job && state != COMPLETING).then(|| Self {
                name,
                job,
                state,
                node,
                cpus: cpus.parse().unwrap_or(1),
                end,
            })
        };
        Ok(output.lines().filter_map(parse).collect())
    }

    fn find(name: &str) -> anyhow::Result<Option<Self>> {
        anyhow::ensure!(
            is_name(name),
            "{name:?} is not a session name: a name has 1 to 40 letters, digits, dots, dashes and underscores"
        );
        Ok(Self::all()?.into_iter().find(|session| session.name == name))
    }

    /// The session of this name.
    ///
    /// # Errors
    /// The name is invalid, there is no such session, or squeue failed.
    pub(super) fn named(name: &str) -> anyhow::Result<Self> {
        Self::find(name)?.with_context(|| format!("no session {name:?}; see `slurminit session list`"))
    }

    /// The session of this name; submits its job if there is none. Commands that start at the same time share one job.
    pub(crate) fn find_or_submit(name: &str, request: &Request, keep: Duration) -> anyhow::Result<Self> {
        let path = directory()?.join("lock");
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = options.open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let _lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        match Self::find(name)? {
            Some(session) => Ok(session),
            None => Self::submit(name, request, keep),
        }
    }

    /// Submits the job of a session. `keep`: how long the job continues without a step.
    pub(crate) fn submit(name: &str, request: &Request, keep: Duration) -> anyhow::Result<Self> {
        anyhow::ensure!(is_name(name), "{name:?} is not a session name");
        let program = std::env::current_exe()?;
        let mut sbatch = Command::new("sbatch");
        sbatch.args([
            "--parsable",
            "--nodes=1",
            "--ntasks=1",
            "--no-requeue",
            "--output=/dev/null",
            "--error=/dev/null",
        ]);
        sbatch.arg(format!("--job-name={PREFIX}{name}")).arg(format!("--cpus-per-task={}", request.cpus));
        sbatch.arg(format!("--time={}", time_limit(&request.time)?));
        sbatch.args(request.gres().map(|gres| format!("--gres={gres}")));
        sbatch.args(request.mem.iter().map(|mem| format!("--mem={mem}"))).args(&request.sbatch);
        sbatch.arg(format!("--wrap=exec {} session keep {}", program.display(), keep.as_secs()));
        let job = run_sbatch(&mut sbatch)?;
        Ok(Self { name: name.to_owned(), job, state: PENDING.to_owned(), ..Self::default() })
    }

    /// Waits until the job runs. While it is pending, prints what it waits for. SIGINT, SIGTERM or SIGHUP cancels a job
    /// that is not running yet.
    #[expect(clippy::disallowed_methods, reason = "squeue is polled: Slurm has no event for the start of a job")]
    pub(crate) fn wait_until_running(&mut self) -> anyhow::Result<()> {
        let signal = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(number, Arc::clone(&signal))?;
        }
        let (mut printed, mut next) = (String::new(), Instant::now() + Duration::from_secs(1));
        loop {
            // An interrupt at a terminal also ends the running squeue, so the signal is checked before its result.
            let sessions = Self::all();
            if signal.load(Ordering::Relaxed) {
                self.cancel()?;
                anyhow::bail!("job {} is cancelled", self.job);
            }
            let known = sessions?.into_iter().find(|session| session.job == self.job);
            *self = known.with_context(|| {
                format!("job {} has ended; see `sacct -j {0}`, or `scontrol show job {0}`", self.job)
            })?;
            if self.state == "RUNNING" {
                return Ok(());
            }
            if Instant::now() >= next {
                next = Instant::now() + EXPLAIN_INTERVAL;
                let text = self.explanation().unwrap_or_default();
                if !text.is_empty() && text != printed && self.state == PENDING {
                    error_line(printable::line(&format!("slurminit: {text} (Ctrl-C cancels the job)")));
                    printed = text;
                }
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn explanation(&self) -> anyhow::Result<String> {
        let snapshot = Snapshot::query(&client(), None)?;
        let situation = snapshot.situation();
        let job = situation.job(&self.job).context("the job is no longer in the queue")?;
        Ok(situation.sentence(job))
    }

    /// The job's resources and the time at which it ends, as text without a full stop.
    pub(crate) fn description(&self) -> anyhow::Result<String> {
        Ok(self.explanation()?.trim_end_matches('.').to_owned())
    }

    /// `srun` for a step that overlaps the job's other steps and can use all resources of the job on its node.
    pub(crate) fn step(&self, options: &StepOptions<'_>) -> Command {
        let mut srun = Command::new("srun");
        srun.args(["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--quiet"]);
        srun.arg(format!("--jobid={}", self.job)).arg(format!("--nodelist={}", self.node));
        srun.arg(format!("--cpus-per-task={}", self.cpus));
        srun.args(options.image.map(|image| format!("--container={image}")));
        srun.args(options.is_unbuffered.then_some("--unbuffered"));
        srun
    }

    /// Runs a step, and waits until it ends. `ends_job`: the job ends with the step.
    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own child")]
    pub(crate) fn run(&self, mut step: Command, ends_job: bool) -> anyhow::Result<ExitStatus> {
        let _client = client::attach(&mut step, self.node_address()?, false)?;
        let status = step.status().context("cannot execute srun");
        if ends_job {
            self.cancel()?;
        }
        status
    }

    /// The address on which slurmd of the session's node listens.
    pub(super) fn node_address(&self) -> anyhow::Result<SocketAddr> {
        let address = client().addresses(&self.node)?.pop().map(|(_, address)| address);
        address.with_context(|| format!("`scontrol getaddrs {}` printed no address", self.node))
    }

    /// Ends the job.
    pub(crate) fn cancel(&self) -> anyhow::Result<()> {
        Ok(client().run("scancel", &[&self.job])?)
    }
}

fn client() -> Client<'static> {
    Client::with_timeout(limit::COMMAND)
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=40).contains(&name.len()) && name.chars().all(is_plain)
}

/// The user's directory for sessions. If it is missing, it is created with mode 0700.
pub(super) fn directory() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).context("HOME is not set")?;
    let directory = PathBuf::from(home).join(".local/state/slurminit");
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gres(gpus: &str) -> Option<String> {
        let (gpus, time) = (gpus.to_owned(), "8h".to_owned());
        Request { gpus, cpus: 1, mem: None, time, container: None, sbatch: Vec::new() }.gres()
    }

    #[test]
    fn translates_gpus_and_times_for_slurm() {
        let gres = ["0", "2", "gpu:nvidia:1"].map(gres);
        assert_eq!(gres, [None, Some("gpu:2".to_owned()), Some("gpu:nvidia:1".to_owned())]);
        let limits = ["8h", "30m", "1-12:00:00"].map(|time| time_limit(time).unwrap().to_string());
        assert_eq!(limits, ["0-08:00:00", "0-00:30:00", "1-12:00:00"]);
        assert!(["0h", "", "8 h", "x"].iter().all(|time| time_limit(time).is_err()));
    }

    #[test]
    fn name_has_no_characters_of_formats_and_shells() {
        assert!(["a", "train_1.b-c"].iter().all(|name| is_name(name)));
        assert!(["", "a|b", "a b", "a/b", "$(x)", &"a".repeat(41)].iter().all(|name| !is_name(name)));
    }
}
