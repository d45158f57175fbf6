//! The preparation of a reload: the same decisions as at a start, weighed against what runs. Whatever would not run is
//! refused here, before anything is written.

use std::path::Path;

use super::ask_slurm::ask_slurm;
use super::held_gpus::check_nobody_holds_gpus;
use super::{Args, Failure, Planned, accounts, inventory, load, plan_files, report};
use crate::config::{Config, Held, Paths};
use crate::exit_code;
use crate::install;
use crate::inventory::{Inventory, Severity};
use crate::plan::{self, Change, Text};
use crate::report::{Apply, Prepared};

/// What a reload comes to.
pub(in crate::commands) struct Weighed {
    pub(in crate::commands) change: Change,
    /// A unified difference to what the daemons run with.
    pub(in crate::commands) difference: String,
    planned: Planned,
    new: Vec<Text>,
}

/// Does it: nothing is written unless all of it can be taken.
pub(super) fn reload(args: &Args) -> Result<Prepared, Failure> {
    let config = load(args)?;
    let deferred = deferred(&config, args.held.as_ref())?;
    let inventory = inventory(&config, args)?;
    let weighed = weigh(&config, &inventory, &args.root, args.node.as_deref())?;
    for line in weighed.difference.lines() {
        eprintln!("{line}");
    }
    let Weighed { planned, change, new, .. } = weighed;
    if change.apply != Apply::Nothing {
        ask_slurm(&config, &args.root, &new, &planned.customized)?;
    }
    if change.gres {
        check_nobody_holds_gpus()?;
    }
    let before = people(&args.root);
    let accounts = accounts(&config, args)?;
    let texts: Vec<_> = new.iter().map(|file| (file.name, file.text.as_str())).collect();
    install::install_files(&config.paths, &args.root, &texts)?;
    install::keep_applied(&config.paths, &args.root, &texts)?;
    let changed = change.files.iter().map(|name| config.paths.slurm.join(name.as_str())).collect();
    let mut prepared = report(&config, &args.root, planned, &inventory, changed);
    prepared.findings.extend(accounts);
    (prepared.apply, prepared.news, prepared.deferred) = (change.apply, change.news, deferred);
    if people(&args.root) != before {
        prepared.news.push("the accounts".to_owned());
    }
    Ok(prepared)
}

/// The accounts as they are, to see whether they change.
fn people(root: &Path) -> [Option<Vec<u8>>; 2] {
    ["/etc/passwd", "/etc/group"].map(|path| crate::walk::read(&install::under(root, Path::new(path))).ok())
}

/// Goes back to what the daemons ran with before the last reload.
pub(super) fn restore(args: &Args) -> Result<(), Failure> {
    // The operator's file may be broken by now; its paths are then those that most have.
    let paths = load(args).map_or_else(|_| Paths::default(), |config| config.paths);
    Ok(install::restore_applied(&paths, &args.root, &args.restore)?)
}

/// The tables that changed and count only at the next start.
fn deferred(config: &Config, held: Option<&Held>) -> Result<Vec<String>, Failure> {
    let changed = held.map(|held| held.changed(&Held::of(config))).unwrap_or_default();
    let needed: Vec<&str> = changed.iter().map(String::as_str).filter(|name| Held::is_needed(name)).collect();
    if !needed.is_empty() {
        return Err(only_at_a_start(&format!("{} in slurminit.toml changed", needed.join(" and "))));
    }
    Ok(changed)
}

fn only_at_a_start(what: &str) -> Failure {
    let cause = "slurminit and the daemons hold on to it for as long as the container runs";
    Failure::new(exit_code::CONFIG, what, cause, "restart the container (docker restart), or take the change back")
}

/// Plans, renders, and compares with what the daemons run with.
pub(in crate::commands) fn weigh(
    config: &Config,
    inventory: &Inventory,
    root: &Path,
    node: Option<&str>,
) -> Result<Weighed, Failure> {
    let planned = plan_files(config, inventory, root)?;
    // At a start these are errors in the log, for there is nothing to lose. Here there is.
    if let Some(fault) = planned.customized.findings.iter().find(|finding| finding.severity == Severity::Error) {
        return Err(Failure { exit_code: exit_code::CONFIG, finding: fault.clone() });
    }
    let (name, _) = planned.node(inventory);
    if let Some(running) = node.filter(|running| !running.is_empty() && *running != name) {
        return Err(only_at_a_start(&format!("the node's name changed from {running} to {name}")));
    }
    let new: Vec<Text> = planned.files.iter().map(|file| Text { name: file.name, text: file.text.clone() }).collect();
    let old = install::read_applied(&config.paths, root)?;
    let change = plan::change(&old, &new);
    if !change.fixed.is_empty() {
        return Err(only_at_a_start(&format!("{} in slurm.conf changed", change.fixed.join(" and "))));
    }
    Ok(Weighed { difference: difference(&old, &new), planned, change, new })
}

fn difference(old: &[Text], new: &[Text]) -> String {
    let mut all = String::new();
    for Text { name, text } in new {
        let before = old.iter().find(|file| file.name == *name).map_or("", |file| file.text.as_str());
        let (from, to) = (format!("{name} (running)"), format!("{name} (new)"));
        let lines = similar::TextDiff::from_lines(before, text);
        all.push_str(&lines.unified_diff().context_radius(0).header(&from, &to).to_string());
    }
    all
}
