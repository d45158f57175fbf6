//! `slurminit configure`: the host's side, before there is a container.

mod report;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::detect::parse_seconds;
use crate::configure::answer::Answer;
use crate::configure::assess::{Trials, assess};
use crate::configure::choice::{self, GpuType, Selection};
use crate::configure::compose_override::{self, Wanted};
use crate::configure::env_file;
use crate::configure::look::{self, Tools};
use crate::configure::passthrough::{self, Trial, way};
use crate::configure::situation::Situation;
use crate::detect::{self, Options};
use crate::exit_code;
use crate::install::replace_users_file;
use crate::inventory::Vendor;

/// How long the trial's container may take: a first start of many GPUs is slow.
const TRIAL: Duration = Duration::from_secs(60);

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Look for the host's /proc, /sys, /dev, /etc and /usr below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Where compose.yaml is, and the files are written
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Which GPUs the container gets: all, or numbers, GPU-... and MIG-... ids with commas between them
    #[arg(long, value_name = "LIST", default_value = "all")]
    gpus: Selection,
    /// What the image is built for, whatever the checks say
    #[arg(long, value_enum, value_name = "TYPE")]
    gpu_type: Option<GpuType>,
    /// The image to try the GPUs with, if the engine has it
    #[arg(long, default_value = "slurminit:latest")]
    image: String,
    /// Start no container
    #[arg(long)]
    no_trial: bool,
    /// Change nothing, and show what would be written
    #[arg(long, conflicts_with = "print")]
    dry_run: bool,
    /// Change nothing, and print compose.override.yaml; the report goes to standard error
    #[arg(long)]
    print: bool,
    /// How long each of docker, compose and nvidia-smi may take
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = parse_seconds)]
    timeout: Duration,
}

/// Does it. The code is 1 where something is wrong that a repair would better; the files are written nevertheless.
pub fn run(args: Args) -> anyhow::Result<u8> {
    for (option, directory) in [("--root", &args.root), ("--directory", &args.directory)] {
        let shown = directory.display();
        anyhow::ensure!(directory.is_dir(), "{option} {shown}: there is no such directory");
    }
    anyhow::ensure!(
        args.print || args.directory.join("compose.yaml").is_file(),
        "there is no compose.yaml in {}: go to the project's directory or name it with --directory, or use --print",
        args.directory.display()
    );
    let tools = Tools { deadline: args.timeout };
    // Before the first program is asked: detection forks.
    let inventory = detect::detect(&Options { root: args.root.clone(), ..Options::default() });
    let seen = look::look(&args.root, tools, &inventory);
    choice::check(&args.gpus, args.gpu_type, &seen)?;
    let assessment = assess(&seen, &trials(&args.image, args.no_trial, tools, &seen));
    let wanted = assessment.wanted(&seen, args.gpu_type, &args.gpus);
    let found = report::render(&assessment);
    let (text, is_done) = if args.print {
        eprint!("{found}");
        (compose_override::render(&wanted), !assessment.has_errors(args.gpu_type))
    } else {
        let (outcome, is_written) = files(&args, &wanted)?;
        let is_done = is_written && !assessment.has_errors(args.gpu_type);
        let next = report::next(is_done, args.dry_run, seen.compose.command());
        (found + &outcome + &report::result(&wanted) + &next, is_done)
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(if is_done { exit_code::SUCCESS } else { exit_code::FAILURE })
}

/// Gives the GPUs to a container for a moment, where there is an image to do it with.
pub(super) fn trials(image: &str, no_trial: bool, tools: Tools, seen: &Situation) -> Trials {
    let can_try = if no_trial {
        Err("--no-trial")
    } else if seen.engine.info().is_none() {
        Err("the engine cannot be asked")
    } else if !look::has_image(tools, image) {
        Err("the image is not built yet; run this again when it is")
    } else {
        Ok(())
    };
    let trial = |vendor: Vendor, is_worth_it: bool| match can_try {
        Err(why) => Trial::NotTried(why),
        Ok(()) if !is_worth_it => Trial::NotTried("something else is missing"),
        Ok(()) => try_with(vendor, image, seen),
    };
    Trials {
        nvidia: trial(Vendor::Nvidia, !seen.nvidia.gpus.is_empty()),
        amd: trial(Vendor::Amd, seen.amd.kfd.is_some() && !seen.amd.render_nodes.is_empty()),
    }
}

fn try_with(vendor: Vendor, image: &str, seen: &Situation) -> Trial {
    let name = format!("slurminit-trial-{}", std::process::id());
    let arguments = passthrough::arguments(vendor, way(seen), &seen.amd, image, &name);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = Tools { deadline: TRIAL }.ask("docker", &arguments);
    if answer == Answer::Silent {
        // Only its client was killed.
        Tools { deadline: TRIAL }.ask("docker", &["rm", "--force", &name]);
    }
    passthrough::judge(vendor, &answer)
}

/// Writes both files, or says what would be written; and whether all that could be done.
fn files(args: &Args, wanted: &Wanted) -> anyhow::Result<(String, bool)> {
    let mut lines = String::from("\nFiles\n");
    let path = args.directory.join(compose_override::NAME);
    let text = compose_override::render(wanted);
    let old = read(&path)?;
    let other = compose_override::OTHER_NAMES.into_iter().find(|name| args.directory.join(name).exists());
    let is_theirs = old.as_deref().is_some_and(|old| !compose_override::is_ours(old));
    let foreign = other.or(is_theirs.then_some(compose_override::NAME));
    let is_met = match foreign {
        None => {
            lines += &write(args, &path, compose_override::NAME, old.as_deref(), &text)?;
            true
        }
        Some(name) if wanted.is_met_by(&read(&args.directory.join(name))?.unwrap_or_default()) => {
            lines += &report::foreign_and_well(name, wanted);
            true
        }
        Some(name) => {
            lines += &report::foreign(name, &text);
            false
        }
    };
    let path = args.directory.join(env_file::NAME);
    let old = read(&path)?;
    let text = env_file::with_gpu_type(old.as_deref().unwrap_or_default(), wanted.gpu_type);
    let unread = |files: &&str| !wanted.is_plain() && !files.contains(compose_override::NAME);
    let compose_file = env_file::compose_file(&text).filter(unread);
    // Never shown: it can hold passwords.
    let is_changed = old.as_deref() != Some(&text);
    if !args.dry_run && is_changed {
        replace_users_file(&path, &text)?;
    }
    lines += &report::env(wanted.gpu_type, is_changed, args.dry_run);
    lines += &compose_file.map(report::compose_file).unwrap_or_default();
    Ok((lines, is_met && compose_file.is_none()))
}

fn write(args: &Args, path: &Path, name: &str, old: Option<&str>, text: &str) -> anyhow::Result<String> {
    if args.dry_run {
        return Ok(report::would_write(name, old, text));
    }
    let is_changed = replace_users_file(path, text)?;
    Ok(report::written(name, is_changed))
}

/// The file's text, if there is one.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error)
            .with_context(|| format!("cannot read {}; correct its permissions or move it away", path.display())),
    }
}
