//! `slurminit configure`: checks the host before a container exists, and writes the files with which Compose passes the GPUs.

use std::path::PathBuf;
use std::time::Duration;

use super::detect::parse_seconds;
use crate::output::{error_line, print};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use doctor::configure::assess::assess;
use doctor::configure::choice;
use doctor::configure::choice::{GpuType, Selection};
use doctor::configure::files::{Destination, write_files};
use doctor::configure::look;
use doctor::configure::{gpu_file, text};
use model::exit_code;
use model::text_type;
use probe::Options;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look for the host's /proc, /sys, /dev, /etc, /usr and other directories below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// The directory of compose.yaml, where the files are written
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// The GPUs that the container gets: all, or comma-separated numbers, GPU-... and MIG-... IDs
    #[arg(long, value_name = "LIST", default_value = "all")]
    gpus: Selection,
    /// The GPU type of the image; only GPUs of this type are passed, even if a check failed [default: the first type whose GPUs work, else none]
    #[arg(long, value_parser = gpu_type(), value_name = "TYPE")]
    gpu_type: Option<GpuType>,
    /// The image for testing the GPUs, if the engine has it
    #[arg(long, default_value = "slurminit:latest")]
    image: String,
    /// Do not start a container to test the GPUs
    #[arg(long)]
    no_trial: bool,
    /// Change nothing, and show what would be written
    #[arg(long, conflicts_with = "print")]
    dry_run: bool,
    /// Change nothing, and print compose.gpus.yaml; the report goes to standard error
    #[arg(long)]
    print: bool,
    /// How long each of docker, compose and nvidia-smi may take; the test of the GPUs has its own timeout
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = parse_seconds)]
    timeout: Duration,
}

/// The parser of `--gpu-type`.
fn gpu_type() -> impl TypedValueParser<Value = GpuType> {
    let words = GpuType::ALL.map(|gpu_type| {
        let help = gpu_type.vendor().map_or_else(|| "No GPU".to_owned(), |vendor| format!("{vendor} GPUs"));
        PossibleValue::new(gpu_type.as_str()).help(help)
    });
    PossibleValuesParser::new(words).try_map(|text| text_type::word(&text))
}

/// Returns 1 if a check failed, the host cannot meet the request, or compose would not pass the GPUs. Even then, .env and (unless the user
/// made a file of this name) compose.gpus.yaml are written; `--dry-run` and `--print` write nothing. An unknown GPU in `--gpus` is an error,
/// and no file is written.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    for (option, directory) in [("--root", &args.root), ("--directory", &args.directory)] {
        let shown = directory.display();
        anyhow::ensure!(directory.is_dir(), "{option} {shown}: no such directory");
    }
    anyhow::ensure!(
        args.print || args.directory.join("compose.yaml").is_file(),
        "no compose.yaml in {}: change to the project's directory, set --directory, or use --print",
        args.directory.display()
    );
    let inventory = probe::detect(&Options { root: args.root.clone(), ..Options::default() });
    let host = look::observe_host(&args.root, args.timeout, &inventory);
    choice::check(&args.gpus, args.gpu_type, &host).map_err(anyhow::Error::msg)?;
    let assessment = assess(&host, &look::trials(&args.image, args.no_trial, args.timeout, &host));
    let selected = assessment.container_gpus(&host, args.gpu_type, &args.gpus);
    let unmet = choice::unmet_request(&args.gpus, args.gpu_type, &selected, &host);
    let report = text::render(&assessment) + &unmet.as_ref().map(text::unmet_request).unwrap_or_default();
    let is_healthy = unmet.is_none() && !assessment.has_errors(args.gpu_type);
    let (text, is_complete) = if args.print {
        error_line(report.trim_end());
        (gpu_file::render(&selected), is_healthy)
    } else {
        let destination = Destination { directory: &args.directory, is_dry_run: args.dry_run };
        let (outcome, is_written) = write_files(destination, &selected)?;
        let is_complete = is_written && is_healthy;
        let next_step = text::next_step(is_complete, args.dry_run, host.compose.command());
        (report + &outcome + &text::result(&selected) + &next_step, is_complete)
    };
    print(&text)?;
    Ok(if is_complete { exit_code::SUCCESS } else { exit_code::FAILURE })
}
