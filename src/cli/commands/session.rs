//! `slurminit session`: a shell, a command, or logins with SSH, in a job.
//!
//! A session is a batch job of the user, whose script is `slurminit session keep`. Shells and connections run as steps of the same job (`srun
//! --overlap`). The job ends when it has had no step for a while, so that a killed client, terminal or login container leaves no allocation behind.

mod client;
mod job;
mod keep;
mod ssh;
mod stream;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use super::Configuration;
use super::columns::{Column, format_table};
use crate::output::error_line;
use model::{exit_code, printable};

pub(super) use job::{Request, Session, StepOptions, time_limit};
pub(super) use keep::FILES;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    request: Request,
    /// Name the session: it continues for 10 minutes after its last shell, and the same command opens another shell in it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The command; without one a login shell
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List your sessions
    List,
    /// End a session
    End {
        /// The session's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Print the lines for `~/.ssh/config` with which `ssh gpu` and VS Code reach your job
    SshConfig(ssh::Config),
    /// Connect standard input and output to an SSH server in a session; ssh runs it as ProxyCommand
    Proxy(ssh::Proxy),
    /// End the job when it has had no step for this long; the session's batch script
    #[command(hide = true)]
    Keep {
        /// The time without a step, in seconds
        #[arg(value_name = "SECONDS")]
        seconds: u64,
    },
    /// Connect standard input and output to a socket on the job's node; `slurminit notebook` runs it in a step
    #[command(hide = true)]
    Stream {
        /// The path of the socket on the node
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,
    },
}

/// How long a session with a name continues without a step.
const KEEP: Duration = Duration::from_secs(600);

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    match args.verb {
        Some(Verb::List) => list(),
        Some(Verb::End { name }) => Session::named(&name)?.cancel(),
        Some(Verb::SshConfig(config)) => super::print(&config.text()?),
        Some(Verb::Proxy(proxy)) => proxy.run(configuration),
        Some(Verb::Keep { seconds }) => keep::run(Duration::from_secs(seconds)),
        Some(Verb::Stream { socket }) => stream::run(&socket),
        None => return shell(&args.request, args.name.as_deref(), &args.command),
    }
    .map(|()| exit_code::SUCCESS)
}

fn shell(request: &Request, name: Option<&str>, command: &[OsString]) -> anyhow::Result<u8> {
    let mut session = match name {
        Some(name) => Session::find_or_submit(name, request, KEEP)?,
        None => Session::submit(&format!("shell-{}", std::process::id()), request, Duration::ZERO)?,
    };
    session.wait_until_running()?;
    let end = match (name, command) {
        (Some(_), _) => "some time after its last shell or command exits",
        (None, []) => "with this shell",
        (None, _) => "with this command",
    };
    error_line(printable::line(&format!("slurminit: {}; it ends {end}", session.description()?)));
    let mut step = session.step(&StepOptions { image: request.container.as_deref(), ..StepOptions::default() });
    step.args(std::io::stdin().is_terminal().then_some("--pty"));
    match command {
        [] => step.args(["sh", "-c", "exec \"${SHELL:-/bin/sh}\" -l"]),
        command => step.args(command),
    };
    let status = session.run(step, name.is_none())?;
    Ok(exit_code::of(status))
}

fn list() -> anyhow::Result<()> {
    let columns = [
        Column::left("NAME", 10, 32),
        Column::right("JOB", 10),
        Column::left("STATE", 10, 16),
        Column::left("NODE", 10, 32),
        Column::right("CPUS", 6),
        Column::left("UNTIL", 19, 19),
    ];
    let sessions = Session::all()?;
    let row = |one: Session| [one.name, one.job, one.state, one.node, one.cpus.to_string(), one.end];
    super::print(&format_table(&columns, &sessions.into_iter().map(row).collect::<Vec<_>>()))
}
