//! `slurminit power`: starts or stops nodes with the operator's command, and reports failures to slurmctld.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::Context as _;

use machine::node_report::OUR_REASON;
use slurm::client::{Client, limit};
use slurm::nodes;
use sys::tool;
use sys::tool::answer::first_line;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The action: resume starts the nodes, suspend stops them
    #[arg(value_enum)]
    action: Action,
    /// How long the command may take, in seconds
    #[arg(long, value_name = "SECONDS")]
    limit: u64,
    /// The nodes, as Slurm lists them
    nodes: String,
    /// The command, which gets the nodes' names as additional arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    Resume,
    Suspend,
}

const SLURM: Client = Client::with_timeout(limit::COMMAND);

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let names = nodes::expand_node_list(&args.nodes)?;
    let (program, arguments) = args.command.split_first().context("no command")?;
    let result = tool::output(Command::new(program).args(arguments).args(&names), Duration::from_secs(args.limit));
    let Some(why) = failure(program, args.limit, result) else {
        if args.action == Action::Suspend {
            // One node's failure must not keep the other nodes down.
            let results: Vec<_> = names
                .iter()
                .filter(|name| missed_resume_timeout(name))
                .map(|name| SLURM.update_node(name, &["state=resume"]))
                .collect();
            results.into_iter().collect::<Result<(), _>>()?;
        }
        return Ok(());
    };
    let (state, advice) = match args.action {
        // slurmctld requeues the nodes' jobs and stops the nodes. It starts a node again when a job needs it.
        Action::Resume => ("state=power_down_force", ""),
        // A running node may cost money, so a person must check.
        Action::Suspend => {
            ("state=drain", "; the node may still be running: stop it by hand, then run `slurminit resume NODE`")
        }
    };
    SLURM
        .update_node(&args.nodes, &[state, &format!("reason={OUR_REASON}{why}{advice}")])
        .with_context(|| why.clone())?;
    anyhow::bail!("{why}")
}

/// Whether the node did not start within ResumeTimeout. slurmctld sets the state of such a node to DOWN, and runs SuspendProgram for it. A node
/// with fewer resources than configured is excluded, because it must stay DOWN.
fn missed_resume_timeout(node: &str) -> bool {
    SLURM.node(node).ok().flatten().is_some_and(|record| {
        record.has_state(&["DOWN"])
            && record.reason_contains("ResumeTimeout reached")
            && !record.reason_contains(&nodes::shortfall_reason_prefix())
    })
}

/// Why the command failed (`None` if it succeeded), on one line without characters that could end the reason in Slurm.
fn failure(program: &str, limit: u64, result: std::io::Result<Output>) -> Option<String> {
    let why = match result {
        Ok(output) if output.status.success() => return None,
        Ok(output) => {
            let [stderr, stdout] = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes));
            format!("{program} failed ({}): {}", output.status, first_line([stderr.as_ref(), stdout.as_ref()]))
        }
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => format!("{program} timed out after {limit} s"),
        Err(error) => format!("{program} cannot be executed: {error}"),
    };
    Some(why.chars().map(|c| if c.is_control() || matches!(c, '"' | '\\') { ' ' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_one_line_with_command_output() {
        let error = |script: &str, limit: u64| {
            let result = tool::output(Command::new("sh").args(["-c", script]), Duration::from_secs(limit));
            failure("start-node", limit, result)
        };
        assert_eq!(error("echo fine", 20), None);
        assert_eq!(error("echo 'no \"quota\"'; exit 3", 20).unwrap(), "start-node failed (exit status: 3): no  quota ");
        assert_eq!(
            error("echo out; printf 'bad\\033\\nmore' >&2; exit 1", 20).unwrap(),
            "start-node failed (exit status: 1): bad "
        );
        assert!(error("exec sleep 1000", 0).unwrap().contains("timed out after 0 s"));
        let missing = tool::output(&mut Command::new("/no/such"), limit::COMMAND);
        assert!(failure("/no/such", 1, missing).unwrap().contains("cannot be executed"));
    }
}
