//! `slurminit prepare`: the child of PID 1 that does all that may hang or fail before the daemons start.

mod ask_slurm;
mod explain;
mod held_gpus;
mod reload;

pub(super) use reload::dry_run;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigError, Held};
use crate::doctor::{self, facts::Start};
use crate::install::{self, AccountError, InstallError, MungeKey};
use crate::inventory::{Finding, Inventory, Severity, SlurmVersion};
use crate::plan::{self, Customized, DevicePath, FileName, Plan};
use crate::render::{self, ConfigFile};
use crate::report::{OfferedGpu, PrepareEvent, Prepared};
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
    /// Weigh it against what runs, and refuse what would not run
    #[arg(long)]
    reload: bool,
    /// Checksums of what PID 1 took from the configuration
    #[arg(long, value_name = "CHECKSUMS")]
    held: Option<Held>,
    /// At a reload: the name that the node has now
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Install again what the daemons ran with before the last reload
    #[arg(long, value_name = "FILE", value_delimiter = ',', value_parser = parse_file_name)]
    restore: Vec<FileName>,
    /// Say whether the configuration is what this daemon died of
    #[arg(long, value_name = "DAEMON")]
    died: Option<String>,
    /// Its last words
    #[arg(long, value_name = "LINES", default_value = "", hide_default_value = true)]
    words: String,
}

fn parse_file_name(text: &str) -> Result<FileName, String> {
    FileName::WRITTEN.into_iter().find(|name| name.as_str() == text).ok_or_else(|| "no file of Slurm's".to_owned())
}

/// Does it. What went wrong is the last event; the exit code says the same.
pub fn run(args: Args) -> anyhow::Result<u8> {
    if let Some(daemon) = &args.died {
        // Before the files that it died of are replaced.
        if let Some(Failure { exit_code, finding }) = explain::explain(&args, daemon) {
            tell(&PrepareEvent::Failed { exit_code, finding })?;
        }
        if args.restore.is_empty() {
            return Ok(exit_code::SUCCESS);
        }
    }
    if !args.restore.is_empty() {
        let Err(Failure { exit_code, finding }) = reload::restore(&args) else { return Ok(exit_code::SUCCESS) };
        eprintln!("error: {}", finding.what);
        return Ok(exit_code);
    }
    let outcome = match args.reload {
        true => reload::reload(&args).map(|prepared| (prepared, None)),
        false => prepare(&args).map(|(prepared, key)| (prepared, Some(key))),
    };
    match outcome {
        Ok((prepared, key)) => {
            tell(&PrepareEvent::Done(prepared))?;
            // The daemons start meanwhile. A disk that cannot do this has told so at the writing, or will at the next.
            let at_a_start = key.is_some();
            key.map(|key| key.sync()).transpose()?;
            if at_a_start {
                // Last, for it gives up root's rights. No job has started yet.
                commands::environments::write(args.config.as_deref(), &args.root)
                    .unwrap_or_else(|error| eprintln!("warning: {error:#}"));
            }
            Ok(exit_code::SUCCESS)
        }
        Err(Failure { exit_code, finding }) => {
            tell(&PrepareEvent::Failed { exit_code, finding })?;
            Ok(exit_code)
        }
    }
}

/// Why the cluster must not start.
pub(super) struct Failure {
    pub(super) exit_code: u8,
    pub(super) finding: Finding,
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
    let config = load(args)?;
    let (what, cause) = ("a slurminit runs this cluster", "two would take the files from each other");
    if let Some(pid) = commands::lock::holder_other_than_parent(&args.root, &config.paths.run) {
        let what = format!("{what} already (pid {pid})");
        return Err(Failure::new(exit_code::PREPARE, what, cause, "for new files: slurminit reload"));
    }
    let accounts = accounts(&config, args)?;
    let unusable = install::make_directories(&config, &args.root)?;
    let key = install::install_munge_key(&config, &args.root)?;
    // munged starts while the driver is asked.
    tell_or_fail(&PrepareEvent::MungeKeyReady)?;

    let inventory = detected(&config, &args.root, args.inventory.as_deref())?;
    tell_or_fail(&PrepareEvent::Detected)?;
    let planned = plan_files(&config, &inventory, &args.root)?;
    let texts: Vec<_> = planned.files.iter().map(|file| (file.name, file.text.as_str())).collect();
    install::note_copies(&config.paths, &args.root, &planned.customized)?;
    let changed = install::install_files(&config.paths, &args.root, &texts)?;
    if let Err(error) = install::keep_applied(&config.paths, &args.root, &texts) {
        eprintln!("warning: {error}; a reload will compare with the installed files");
    }
    let cheap = cheap_findings(&config, &args.root, &inventory, &planned.files);
    let mut prepared = report(&config, &args.root, planned, &inventory, changed);
    if let Some(held) = &args.held {
        if let Err(error) = install::keep_held(&config.paths, &args.root, &format!("{held}\n{}", prepared.node_name)) {
            eprintln!("warning: {error}; `slurminit reload --dry-run` will not compare what only a start takes");
        }
    }
    prepared.findings.extend(accounts);
    prepared.findings.extend(unusable);
    prepared.findings.extend(cheap);
    prepared.findings.extend(key.findings.iter().cloned());
    prepared.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok((prepared, key))
}

fn invalid(error: ConfigError) -> Failure {
    Failure::new(exit_code::CONFIG, error, "the configuration is not valid", "correct it and start again")
}

fn load(args: &Args) -> Result<Config, Failure> {
    commands::load_config::load(args.config.as_deref()).map_err(invalid)
}

/// Makes the accounts of the operator's people, and returns what there is to say about them.
fn accounts(config: &Config, args: &Args) -> Result<Vec<Finding>, Failure> {
    install::install_accounts(config, &args.root).map_err(|error| no_accounts(error, args.config.as_deref()))
}

fn no_accounts(error: AccountError, config_file: Option<&Path>) -> Failure {
    match error {
        AccountError::Refused(fault) => invalid(commands::load_config::locate(config_file, fault)),
        AccountError::Install(error) => error.into(),
    }
}

fn detected(config: &Config, root: &Path, file: Option<&Path>) -> Result<Inventory, Failure> {
    super::render::inventory(config, root, file).map_err(|error| {
        Failure::new(exit_code::PREPARE, format!("{error:#}"), "detection failed", "run `slurminit detect`")
    })
}

/// What PID 1 is told of it.
fn report(config: &Config, root: &Path, planned: Planned, inventory: &Inventory, changed: Vec<PathBuf>) -> Prepared {
    let (node_name, gres) = planned.node(inventory);
    let saved_jobs = has_saved_jobs(config, root, &planned.files);
    let own_epilog = runs_own_epilog(&planned);
    let plan = planned.plan;
    let mut findings = plan.findings;
    findings.extend(inventory.findings.iter().cloned());
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let gpu = |line: &plan::GresLine| {
        let file = line.files.last().map_or("no file", DevicePath::as_str).to_owned();
        let pci_address = line.pci_address.map(|address| address.to_string());
        OfferedGpu { line: format!("{file}: {}", line.comment), model: line.name.clone(), pci_address, file }
    };
    let gpus = plan.gres.lines.iter().map(gpu).collect();
    let hands_over = inventory.slurm.version.is_some_and(|version| version >= HANDS_OVER);
    let summary = plan.summary;
    Prepared {
        node_name,
        gres,
        saved_jobs,
        hands_over,
        own_epilog,
        summary,
        gpus,
        changed,
        findings,
        ..Prepared::default()
    }
}

/// Whether slurm.conf, generated or not, names slurminit's own Epilog and no other.
fn runs_own_epilog(planned: &Planned) -> bool {
    let Some(own) = planned.plan.epilog.as_ref().map(|epilog| format!("Epilog={}", epilog.path.display())) else {
        return false;
    };
    let slurm_conf = planned.files.iter().find(|file| file.name == FileName::SlurmConf);
    let mut epilogs = slurm_conf
        .iter()
        .flat_map(|file| file.text.lines())
        .map(str::trim)
        .filter(|line| line.split_once('=').is_some_and(|(key, _)| key.trim().eq_ignore_ascii_case("Epilog")));
    epilogs.next() == Some(&own) && epilogs.next().is_none()
}

/// What `slurminit doctor` would say of the key, the ports, the disk and such, where it costs next to nothing.
fn cheap_findings(config: &Config, root: &Path, inventory: &Inventory, files: &[ConfigFile]) -> Vec<Finding> {
    let cheap = commands::doctor::look_cheaply(root, config, inventory, &cluster_name(files));
    let environment = doctor::look::environment();
    doctor::at_start(&Start { inventory, environment: &environment, cheap: &cheap })
}

/// Whether slurmctld will find jobs of a former start. It takes the older file where the newer one is missing, as it is for
/// a moment at each save (Slurm 22.05 to 24.11, `job_mgr.c`).
fn has_saved_jobs(config: &Config, root: &Path, files: &[ConfigFile]) -> bool {
    let own = slurm_conf_value(files, "StateSaveLocation").map(PathBuf::from);
    let state = install::under(root, &own.unwrap_or_else(|| config.paths.state.join("slurmctld")));
    ["job_state", "job_state.old", "node_state"].iter().any(|name| state.join(name).symlink_metadata().is_ok())
}

/// The cluster's name, as slurm.conf has it.
pub(super) fn cluster_name(files: &[ConfigFile]) -> String {
    slurm_conf_value(files, "ClusterName").unwrap_or_default()
}

/// What slurm.conf says last of a key.
fn slurm_conf_value(files: &[ConfigFile], wanted: &str) -> Option<String> {
    let text = files.iter().find(|file| file.name == FileName::SlurmConf).map(|file| file.text.as_str());
    value_in(text.unwrap_or_default(), wanted)
}

/// What the text of a slurm.conf says last of a key.
pub(super) fn value_in(slurm_conf: &str, wanted: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let value = value.split_whitespace().next()?;
        key.trim().eq_ignore_ascii_case(wanted).then(|| value.trim_matches('"').to_owned())
    };
    slurm_conf.lines().filter_map(value).next_back()
}

/// The plan and the files that it comes to, the user's among them.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) files: Vec<ConfigFile>,
    pub(super) customized: Customized,
}

impl Planned {
    /// The node's name and its Gres.
    fn node(&self, inventory: &Inventory) -> (String, String) {
        let own = self.customized.node(&inventory.hostname);
        own.unwrap_or_else(|| (self.plan.node.name.to_string(), self.plan.node.gres.clone()))
    }
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
