//! `slurminit prepare`: the child of PID 1 that does everything that may hang or fail before the daemons start, at a start and at a reload.

use std::io::Write as _;
use std::path::PathBuf;

use super::Configuration;
use config::StartOnlyTables;
use model::prepared::{PrepareEvent, PrepareInput};
use model::{exit_code, message};
use plan::{FileName, Refusal};
use startup::prepare;
use startup::prepare::Sources;
use sys::report;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look for /proc, /sys, /dev, /etc, /usr, /config and other directories below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Use this inventory (the output of `slurminit detect --json`) instead of detection
    #[arg(long, value_name = "FILE", hide = true)]
    inventory: Option<PathBuf>,
    /// Compare with the running configuration, and refuse a change that would fail
    #[arg(long)]
    reload: bool,
    /// Read from standard input: checksums of PID 1's configuration, the time limit, and a dead daemon's last log lines
    #[arg(long)]
    given: bool,
    /// At a reload: the node's current name
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Restore these files to the versions that the daemons used before the last reload
    #[arg(long, value_name = "FILE", value_delimiter = ',', value_parser = parse_file_name)]
    restore: Vec<FileName>,
    /// Open the partitions that a killed reload has closed
    #[arg(long)]
    reopen: bool,
    /// Find the cause of this daemon's death in its last log lines
    #[arg(long, value_name = "DAEMON")]
    died: Option<String>,
}

fn parse_file_name(text: &str) -> Result<FileName, String> {
    FileName::WRITTEN
        .into_iter()
        .find(|name| name.as_str() == text)
        .ok_or_else(|| "not the name of a file that slurminit writes for Slurm".to_owned())
}

/// If a start or a reload fails, the last event is the error, and the exit code is the error's.
pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    let Args { root, inventory, node, .. } = &args;
    let input: PrepareInput =
        if args.given { serde_json::from_reader(std::io::stdin().lock())? } else { PrepareInput::default() };
    let start_only: Option<StartOnlyTables> =
        input.held.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    let (config, inventory) = (configuration.file(), inventory.as_deref());
    let sources = Sources {
        config,
        root,
        inventory,
        held: start_only.as_ref(),
        node: node.as_deref(),
        time_limit: input.time_limit,
    };
    if args.reopen {
        prepare::reopen(&sources);
        return Ok(exit_code::SUCCESS);
    }
    let is_restore = !args.restore.is_empty();
    if let Some(daemon) = &args.died {
        // This must precede a restore, which replaces the files that the daemon used.
        if let Some(Refusal { exit_code, finding }) = prepare::explain(&sources, daemon, &input.last_lines, is_restore)
        {
            send(&PrepareEvent::Failed { exit_code, finding })?;
        }
        if !is_restore {
            return Ok(exit_code::SUCCESS);
        }
    }
    if is_restore {
        let Err(Refusal { exit_code, finding }) = prepare::restore(&sources, &args.restore) else {
            return Ok(exit_code::SUCCESS);
        };
        report::error(message!(
            "restore-failed",
            "could not restore the previous files: {error}",
            error = finding.what
        ));
        return Ok(exit_code);
    }
    let outcome = match args.reload {
        true => prepare::reload(&sources).map(|prepared| (prepared, None)),
        false => prepare::start(&sources, &send).map(|(prepared, key)| (prepared, Some(key))),
    };
    let (prepared, key) = match outcome {
        Ok(outcome) => outcome,
        Err(Refusal { exit_code, finding }) => {
            send(&PrepareEvent::Failed { exit_code, finding })?;
            return Ok(exit_code);
        }
    };
    send(&PrepareEvent::Done(prepared))?;
    if let Some(key) = key {
        // The key is synced only after the events, so that the daemons do not wait for the disk.
        key.sync()?;
        // This comes last, because it drops root's rights. PID 1 starts the daemons meanwhile.
        prepare::environments::write(config, root).unwrap_or_else(|error| {
            report::warn(message!("environments-not-written", "{error}", error = format!("{error:#}")));
        });
    }
    Ok(exit_code::SUCCESS)
}

/// Writes an event to standard output at once, as a line.
fn send(event: &PrepareEvent) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}
