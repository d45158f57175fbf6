//! `slurminit prepare`: the child of PID 1 that does all that may hang or fail before the daemons start.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::install::{self, InstallError, MungeKey};
use crate::inventory::{Finding, Inventory, Severity, SlurmVersion};
use crate::plan::{self, Customized, DevicePath, Plan};
use crate::render::{self, ConfigFile};
use crate::report::{PrepareEvent, Prepared};
use crate::{commands, exit_code};

/// The first Slurm whose daemons know `--systemd`.
const HANDS_OVER: SlurmVersion = SlurmVersion { year: 23, month: 11 };

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The operator's file [default: SLURMINIT_CONFIG, else /config/slurminit.toml if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read and write below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Take this inventory (the output of `slurminit detect --json`) in place of a detection
    #[arg(long, value_name = "FILE", hide = true)]
    inventory: Option<PathBuf>,
}

/// Does it. What went wrong is the last event; the exit code says the same.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match prepare(&args) {
        Ok((prepared, key)) => {
            tell(&PrepareEvent::Done(prepared))?;
            // The daemons start meanwhile. A disk that cannot do this has told so at the writing, or will at the next.
            key.sync()?;
            Ok(exit_code::SUCCESS)
        }
        Err(Failure { exit_code, finding }) => {
            tell(&PrepareEvent::Failed { exit_code, finding })?;
            Ok(exit_code)
        }
    }
}

/// Why the cluster must not start.
struct Failure {
    exit_code: u8,
    finding: Finding,
}

impl Failure {
    fn new(exit_code: u8, what: impl ToString, cause: &str, repair: &str) -> Self {
        let finding = Finding {
            severity: Severity::Error,
            what: what.to_string(),
            cause: cause.to_owned(),
            repair: repair.to_owned(),
        };
        Self { exit_code, finding }
    }
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        Self::new(
            exit_code::PREPARE,
            error,
            "the daemons need it before they can start",
            "see the message; then start again",
        )
    }
}

impl From<plan::Refusal> for Failure {
    fn from(plan::Refusal { exit_code, finding }: plan::Refusal) -> Self {
        Self { exit_code, finding }
    }
}

fn prepare(args: &Args) -> Result<(Prepared, MungeKey), Failure> {
    let config = commands::load_config::load(args.config.as_deref()).map_err(|error| {
        Failure::new(exit_code::CONFIG, error, "the configuration is not valid", "correct it and start again")
    })?;
    let unusable = install::make_directories(&config, &args.root)?;
    let key = install::install_munge_key(&config, &args.root)?;
    // munged starts while the driver is asked.
    tell_or_fail(&PrepareEvent::MungeKeyReady)?;

    let inventory = super::render::inventory(&config, &args.root, args.inventory.as_deref()).map_err(|error| {
        Failure::new(exit_code::PREPARE, format!("{error:#}"), "detection failed", "run `slurminit detect`")
    })?;
    tell_or_fail(&PrepareEvent::Detected)?;
    let Planned { plan, files, customized } = plan_files(&config, &inventory, &args.root)?;
    let texts: Vec<_> = files.iter().map(|file| (file.name, file.text.as_str())).collect();
    let changed = install::install_files(&config.paths, &args.root, &texts)?;

    let mut findings = plan.findings;
    findings.extend(inventory.findings.iter().cloned());
    findings.extend(key.findings.iter().cloned());
    findings.extend(unusable);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let (node_name, gres) =
        customized.node(&inventory.hostname).unwrap_or((plan.node.name.to_string(), plan.node.gres));
    let saved_jobs = install::under(&args.root, &config.paths.state).join("slurmctld/job_state").exists();
    let hands_over = inventory.slurm.version.is_some_and(|version| version >= HANDS_OVER);
    let gpus = plan
        .gres
        .lines
        .iter()
        .map(|line| {
            let file = line.files.last().map_or("no file", DevicePath::as_str);
            format!("{file}: {}", line.comment)
        })
        .collect();
    Ok((Prepared { node_name, gres, saved_jobs, hands_over, summary: plan.summary, gpus, changed, findings }, key))
}

/// The plan and the files that it comes to, the user's among them.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) files: Vec<ConfigFile>,
    pub(super) customized: Customized,
}

/// Plans and renders, with the user's own files in place of the generated ones.
pub(super) fn plan_files(config: &Config, inventory: &Inventory, root: &Path) -> Result<Planned, PlanError> {
    let mut plan = plan::plan(config, inventory)?;
    let found = install::find_user_files(&config.paths, root)?;
    let exists = |path: &Path| install::under(root, path).exists();
    let customized = plan.respect(plan::choose(config, &found), inventory, &exists);
    let mut files = render::render(&plan);
    for file in &mut files {
        if let Some(own) = customized.get(file.name) {
            file.text.clone_from(&own.text);
        }
    }
    Ok(Planned { plan, files, customized })
}

/// Why there is no plan.
pub(super) enum PlanError {
    Refused(plan::Refusal),
    Unreadable(InstallError),
}

impl From<plan::Refusal> for PlanError {
    fn from(refusal: plan::Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<InstallError> for PlanError {
    fn from(error: InstallError) -> Self {
        Self::Unreadable(error)
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Refused(refusal) => refusal.into(),
            PlanError::Unreadable(error) => error.into(),
        }
    }
}

fn tell_or_fail(event: &PrepareEvent) -> Result<(), Failure> {
    tell(event).map_err(|error| Failure::new(exit_code::INTERNAL, error, "nobody reads the events", "report this"))
}

/// One line on standard output, at once.
fn tell(event: &PrepareEvent) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}
