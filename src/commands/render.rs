//! `slurminit render`: what this start would write, and why; changes nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::prepare::{PlanError, Planned, plan_files};
use crate::config::Config;
use crate::inventory::Inventory;
use crate::render::{ConfigFile, explain};
use crate::{commands, detect, exit_code, install};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The operator's file [default: SLURMINIT_CONFIG, else /config/slurminit.toml if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Take this inventory (the output of `slurminit detect --json`) in place of a detection
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Show the difference to the installed files
    #[arg(long)]
    diff: bool,
    /// Show every decision with its reason
    #[arg(long)]
    explain: bool,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let config = match commands::load_config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("slurminit: {error}");
            return Ok(exit_code::CONFIG);
        }
    };
    let inventory = inventory(&config, &args.root, args.inventory.as_deref())?;
    let Planned { plan, files, .. } = match plan_files(&config, &inventory, &args.root) {
        Ok(planned) => planned,
        Err(PlanError::Unreadable(error)) => return Err(error.into()),
        Err(PlanError::Refused(refusal)) => {
            print(&explain(&[], &[refusal.finding]))?;
            return Ok(refusal.exit_code);
        }
    };
    if args.explain {
        let mut findings = plan.findings;
        findings.extend(inventory.findings);
        print(&explain(&plan.decisions, &findings))?;
    }
    if args.diff {
        print(&difference(&config, &args.root, &files)?)?;
    }
    if !args.explain && !args.diff {
        let mut text = String::new();
        for file in &files {
            let _ = writeln!(text, "==> {} <==\n{}", config.paths.slurm.join(file.name.as_str()).display(), file.text);
        }
        print(&text)?;
    }
    Ok(exit_code::SUCCESS)
}

/// A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Write as _};
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A unified diff from the installed files to the new ones; empty if nothing would change.
fn difference(config: &Config, root: &Path, files: &[ConfigFile]) -> anyhow::Result<String> {
    let mut text = String::new();
    for file in files {
        let path = config.paths.slurm.join(file.name.as_str());
        let old = match std::fs::read_to_string(install::under(root, &path)) {
            Ok(old) => old,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let (from, to) = (format!("{} (installed)", path.display()), format!("{} (this start)", path.display()));
        text.push_str(&similar::TextDiff::from_lines(&old, &file.text).unified_diff().header(&from, &to).to_string());
    }
    Ok(text)
}

/// The inventory from a file, else from a detection.
pub(super) fn inventory(config: &Config, root: &Path, file: Option<&Path>) -> anyhow::Result<Inventory> {
    let Some(path) = file else {
        // The same variable that `slurminit detect` knows.
        let nvml_library =
            std::env::var_os("SLURMINIT_NVML_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
        let request = detect::nvidia_request::Request::from_environment();
        let deadline = config.gpu.detect_timeout;
        let options =
            detect::Options { root: root.to_owned(), deadline, nvml_library, request, ..detect::Options::default() };
        return Ok(detect::detect(&options));
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let inventory = serde_json::from_str(&text);
    inventory.with_context(|| format!("{} is not the output of `slurminit detect --json`", path.display()))
}
