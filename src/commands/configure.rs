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
use crate::configure::env_file;
use crate::configure::gpu_file::{self, Wanted};
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
    /// Change nothing, and print compose.gpus.yaml; the report goes to standard error
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
    let unmet = choice::unmet(&args.gpus, args.gpu_type, &wanted, &seen);
    let found = report::render(&assessment) + &unmet.as_ref().map(report::unmet).unwrap_or_default();
    let is_well = unmet.is_none() && !assessment.has_errors(args.gpu_type);
    let (text, is_done) = if args.print {
        eprint!("{found}");
        (gpu_file::render(&wanted), is_well)
    } else {
        let (outcome, is_written) = files(&args, &wanted)?;
        let is_done = is_written && is_well;
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
    lines += &move_former_file(args)?;
    let text = gpu_file::render(wanted);
    let path = args.directory.join(gpu_file::NAME);
    let old = read(&path)?;
    let has_it_all = people_give_it(args, wanted)?;
    let is_theirs = old.as_deref().is_some_and(|old| !gpu_file::is_ours(old));
    let is_met = match (has_it_all, is_theirs) {
        (Some(name), _) => {
            lines += &report::foreign_and_well(name);
            true
        }
        (None, true) if wanted.is_met_by(old.as_deref().unwrap_or_default()) => {
            lines += &report::foreign_and_well(gpu_file::NAME);
            true
        }
        (None, true) => {
            lines += &report::foreign(gpu_file::NAME, &text);
            false
        }
        (None, false) => {
            lines += &write(args, &path, gpu_file::NAME, old.as_deref(), &text)?;
            true
        }
    };
    let path = args.directory.join(env_file::NAME);
    let old = read(&path)?;
    let text = env_file::with_gpus(old.as_deref().unwrap_or_default(), wanted.gpu_type, has_it_all.is_none());
    let needs_it = !wanted.is_plain() && has_it_all.is_none();
    let unread = if needs_it { unread(args, &text)? } else { None };
    // Never shown: it can hold passwords.
    let is_changed = old.as_deref() != Some(&text);
    if !args.dry_run && is_changed {
        replace_users_file(&path, &text)?;
    }
    lines += &report::env(wanted.gpu_type, has_it_all.is_none(), is_changed, args.dry_run);
    let is_read = unread.is_none();
    lines += &unread.map(|cause| report::unread(&cause)).unwrap_or_default();
    Ok((lines, is_met && is_read))
}

/// Whoever put the lines into a file of their own has the GPUs from there, and must not get them twice.
fn people_give_it(args: &Args, wanted: &Wanted) -> anyhow::Result<Option<&'static str>> {
    for name in gpu_file::OVERRIDES.into_iter().filter(|_| !wanted.is_plain()) {
        let text = read(&args.directory.join(name))?;
        if text.is_some_and(|text| !gpu_file::is_ours(&text) && wanted.is_met_by(&text)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// An older version wrote what is now people's own file. It stays, under another name, for they may have added to it.
fn move_former_file(args: &Args) -> anyhow::Result<String> {
    let path = args.directory.join(gpu_file::FORMER_NAME);
    if !read(&path)?.is_some_and(|text| gpu_file::is_ours(&text)) {
        return Ok(String::new());
    }
    if !args.dry_run {
        let aside = args.directory.join(format!("{}.previous", gpu_file::FORMER_NAME));
        fs::rename(&path, &aside)
            .with_context(|| format!("cannot rename {} to {}", path.display(), aside.display()))?;
    }
    Ok(report::moved(args.dry_run))
}

/// Why compose does not read our file, if it does not: `COMPOSE_FILE` leaves out what names it, or compose.yaml is of an
/// older version, or of people's own making.
fn unread(args: &Args, env: &str) -> anyhow::Result<Option<String>> {
    let listed = env_file::compose_file(env);
    for name in listed.unwrap_or("compose.yaml").split([':', ',']).map(str::trim) {
        let text = read(&args.directory.join(name))?.unwrap_or_default();
        if name == gpu_file::NAME || text.contains(gpu_file::VARIABLE) || text.contains(gpu_file::NAME) {
            return Ok(None);
        }
    }
    Ok(Some(match listed {
        Some(files) => format!("the line COMPOSE_FILE={files} in .env names the files that it reads"),
        None => format!("the service in compose.yaml does not extend ${{{}}}", gpu_file::VARIABLE),
    }))
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
