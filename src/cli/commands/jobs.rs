//! `slurminit jobs`: handles jobs at a stop of the container, and those that an earlier start left behind.

use std::path::PathBuf;
use std::time::Duration;

use config::OnStop;
use model::exit_code;
use model::text_type::word;
use startup::jobs;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    /// The node's name in slurm.conf
    #[arg(long, global = true, default_value = "localhost")]
    node: String,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Give running jobs notice and time, then requeue or cancel them
    Quiesce {
        /// The time from the notice on, in seconds
        #[arg(long)]
        grace: f64,
        /// What happens to jobs that are still running then: requeue or cancel
        #[arg(long, value_parser = parse_on_stop)]
        on_stop: OnStop,
        /// The container's command has ended, and the container with it
        #[arg(long)]
        after_command: bool,
        /// The node leaves the cluster of another container's controller
        #[arg(long)]
        leave: bool,
        /// The controller is in this container, too
        #[arg(long, requires = "leave")]
        with_controller: bool,
    },
    /// Note the next job ID before slurmctld stops; its jobs run in other containers
    NoteNext,
    /// Wait for the controller, have it forget what this node was if that is not true any more, and become slurmd
    Join {
        /// What slurmd says of the node: CPUs=4 Gres=gpu:nvidia:2
        #[arg(long)]
        conf: String,
        /// Its GPUs, for `slurminit nodes`
        #[arg(long, default_value = "")]
        gpus: String,
        /// A slurmd of this container was ready before
        #[arg(long)]
        again: bool,
        /// slurmd's port
        #[arg(long)]
        port: u16,
        /// slurmd and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Say when the controller does not reach this node
    Reached {
        /// slurmd's port
        #[arg(long)]
        port: u16,
        /// PID 1's control socket
        #[arg(long)]
        socket: PathBuf,
    },
    /// Requeue the jobs that ran when a former start ended without notice
    Recover,
    /// Note which jobs slurmctld gives to the node, and make it save what its backfill scheduler has started
    Follow {
        #[command(flatten)]
        place: Place,
        /// PID 1's control socket
        #[arg(long)]
        socket: PathBuf,
    },
    /// Wait until no job is left that can still run
    Wait,
    /// Raise the next job ID if slurmctld ended without saving it, and become slurmctld
    Number {
        #[command(flatten)]
        place: Place,
        /// The slurmctld before this one ended in order, and has saved everything if it saved within this many seconds
        #[arg(long, value_name = "SECONDS")]
        saved_within: Option<u64>,
        /// slurmctld and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Keep jobs that may run only once from running twice, and name what slurmctld has forgotten
    Account {
        /// slurmd is suspended, and has taken no request of this slurmctld
        #[arg(long)]
        held: bool,
    },
    /// Cancel or requeue jobs that have ended without a returned slurmctld knowing
    Reclaim,
}

/// The directory of slurmctld, found without asking slurmctld.
#[derive(Debug, clap::Args)]
struct Place {
    /// slurm.conf
    #[arg(long)]
    slurm_conf: PathBuf,
    /// The state directory where slurm.conf names none
    #[arg(long)]
    state: PathBuf,
}

fn parse_on_stop(text: &str) -> Result<OnStop, &'static str> {
    word(text).map_err(|_| "want requeue or cancel")
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let node = &args.node;
    match args.what {
        What::Quiesce { grace, on_stop, after_command, leave, with_controller } => {
            let grace = Duration::try_from_secs_f64(grace)?;
            return match leave {
                true => jobs::leave(node, grace, on_stop, with_controller),
                false => jobs::quiesce(node, grace, on_stop, after_command),
            };
        }
        What::NoteNext => {
            jobs::note_next_id();
            Ok(())
        }
        What::Join { conf, gpus, again, port, command } => jobs::join::run(node, conf, &gpus, again, port, &command),
        What::Reached { port, socket } => jobs::reached::watch(node, port, &socket),
        What::Recover => jobs::recover(node),
        What::Follow { place, socket } => jobs::follow::run(&place.slurm_conf, &place.state, &socket),
        What::Wait => jobs::wait(),
        What::Number { place, saved_within, command } => {
            jobs::ids::run(&place.slurm_conf, &place.state, saved_within.map(Duration::from_secs), &command)
        }
        What::Account { held } => jobs::account(node, held),
        What::Reclaim => jobs::reclaim(node),
    }
    .map(|()| exit_code::SUCCESS)
}
