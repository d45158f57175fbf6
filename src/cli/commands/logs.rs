//! `slurminit logs`: shows the last log lines of a daemon, of a service or of slurminit, and with `--follow` also new lines.

use std::io::Write as _;
use std::path::Path;

use super::{Configuration, status};
use control::client;
use control::client::ControlError;
use machine::protocol::{self, Request};
use startup::up;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The daemon or service, or slurminit for its own lines; omit it to list the names. `docker logs` has the whole log; after
    /// `slurminit up`, it is in /var/log/slurminit.log
    #[arg(required_if_eq("follow", "true"))]
    name: Option<String>,
    /// The maximum number of lines; only the last 64 KiB are kept
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    lines: u32,
    /// Continue with each new line, across restarts of the daemon, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let config = configuration.load()?;
    let socket = protocol::socket(&config.paths.run);
    let Args { name, lines, follow, .. } = args;
    let Some(name) = name else { return super::print(&names(&config.paths.run)?) };
    let mut is_closed = false;
    let mut write = |lines: &[u8]| {
        let mut out = std::io::stdout().lock();
        let written = out.write_all(lines).and_then(|()| out.flush());
        is_closed |= written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
        written
    };
    let answer = match follow {
        true => client::follow(&socket, &Request::Follow { name, lines }, &mut write).map(|()| Vec::new()),
        false => client::ask(&socket, &Request::Logs { name, lines }).map(|(_, lines)| lines),
    };
    let written = answer.as_ref().map_or(Ok(()), |lines| write(lines));
    // A reader that ends (`| head`) is not an error.
    if is_closed {
        return Ok(());
    }
    written?;
    let has_former_log = matches!(answer, Err(ControlError::NotRunning { .. })) && Path::new(up::LOG).exists();
    match has_former_log {
        true => {
            answer.map_err(|error| anyhow::anyhow!("{error}; the log of the last `slurminit up` is in {}", up::LOG))?
        }
        false => answer?,
    };
    Ok(())
}

/// The names for which there are log lines, one on each line: slurminit, the daemons and the services.
fn names(run: &Path) -> anyhow::Result<String> {
    let status = status::current(run)?;
    let units = status.snapshot.units.iter().map(|unit| unit.name.as_str());
    Ok(std::iter::once("slurminit").chain(units).map(|name| format!("{name}\n")).collect())
}
