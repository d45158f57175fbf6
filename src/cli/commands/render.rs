//! `slurminit render`: shows the files that a start would write, and why; changes nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::Configuration;
use config::Config;
use install::planned::{PlanError, Planned, plan_files};
use model::exit_code;
use model::inventory::Finding;
use plan::render::explain;
use plan::{Decision, Text};
use serde_json::json;
use startup::prepare::inventory;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look for /proc, /sys, /dev, /etc, /usr, the Slurm files in /config, and other directories below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Use this inventory (the output of `slurminit detect --json`) instead of detection
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Show the differences from the installed files
    #[arg(long)]
    diff: bool,
    /// Show every decision with its reason
    #[arg(long)]
    explain: bool,
    /// Print files, decisions and findings as JSON
    #[arg(long, conflicts_with_all = ["diff", "explain"])]
    json: bool,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    let config_file = configuration.file();
    let config = configuration.load()?;
    let inventory = inventory(&config, &args.root, args.inventory.as_deref())?;
    let Planned { plan, files, .. } = match plan_files(&config, config_file, &inventory, &args.root) {
        Ok(planned) => planned,
        Err(PlanError::Unreadable(error)) => return Err(error.into()),
        Err(PlanError::Refused(refusal)) => {
            let findings = [refusal.finding];
            super::print(&if args.json { json(&config, &[], &[], &findings)? } else { explain(&[], &findings) })?;
            return Ok(refusal.exit_code);
        }
    };
    let findings = [plan.findings, inventory.findings].concat();
    if args.json {
        super::print(&json(&config, &files, &plan.decisions, &findings)?)?;
        return Ok(exit_code::SUCCESS);
    }
    if args.explain {
        super::print(&explain(&plan.decisions, &findings))?;
    }
    if args.diff {
        super::print(&difference(&config, &args.root, &files)?)?;
    }
    if !args.explain && !args.diff {
        let mut text = String::new();
        for file in &files {
            let _ = writeln!(text, "==> {} <==\n{}", config.paths.slurm.join(file.name.as_str()).display(), file.text);
        }
        super::print(&text)?;
    }
    Ok(exit_code::SUCCESS)
}

fn json(config: &Config, files: &[Text], decisions: &[Decision], findings: &[Finding]) -> serde_json::Result<String> {
    let file = |file: &Text| json!({ "path": config.paths.slurm.join(file.name.as_str()), "text": file.text });
    let decision = |decision: &Decision| json!({ "what": decision.what, "why": decision.why });
    super::json(&json!({
        "files": files.iter().map(file).collect::<Vec<_>>(),
        "decisions": decisions.iter().map(decision).collect::<Vec<_>>(),
        "findings": findings,
    }))
}

/// A unified diff from the installed files to the new ones; empty if they are equal.
fn difference(config: &Config, root: &Path, files: &[Text]) -> anyhow::Result<String> {
    let mut text = String::new();
    for file in files {
        let path = config.paths.slurm.join(file.name.as_str());
        let old = match std::fs::read_to_string(sys::under(root, &path)) {
            Ok(old) => old,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let (from, to) = (format!("{} (installed)", path.display()), format!("{} (next start)", path.display()));
        text.push_str(&similar::TextDiff::from_lines(&old, &file.text).unified_diff().header(&from, &to).to_string());
    }
    Ok(text)
}
