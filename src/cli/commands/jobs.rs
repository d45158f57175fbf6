//! `slurminit jobs`: handles jobs at a stop of the container, and jobs that an earlier start left behind.

use std::path::PathBuf;
use std::time::Duration;

use config::OnStop;
use model::exit_code;
use model::text_type::word;
use startup::jobs;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: JobsVerb,
    /// The node's name in slurm.conf
    #[arg(long, global = true, default_value = "localhost")]
    node: String,
}

#[derive(Debug, clap::Subcommand)]
enum JobsVerb {
    /// Notify running jobs, wait for the grace period, then requeue or cancel them
    Quiesce {
        /// The grace period, in seconds
        #[arg(long)]
        grace: f64,
        /// The action for jobs that are still running then: requeue or cancel
        #[arg(long, value_parser = parse_on_stop)]
        on_stop: OnStop,
        /// Report a stop that the end of the container's command has caused
        #[arg(long)]
        after_command: bool,
        /// Remove the node from the cluster of another container's controller
        #[arg(long)]
        leave: bool,
        /// Keep the node in the cluster, because its controller is in this container
        #[arg(long, requires = "leave")]
        with_controller: bool,
    },
    /// Record the next job ID before slurmctld stops; its jobs run in other containers
    NoteNext,
    /// Wait for the controller, delete its record of this node if outdated, and execute slurmd
    Join {
        /// The node's hardware for slurmd: CPUs=4 Gres=gpu:nvidia:2
        #[arg(long)]
        conf: String,
        /// Its GPUs, for `slurminit nodes`
        #[arg(long, default_value = "")]
        gpus: String,
        /// Restart slurmd: one of this container was ready before
        #[arg(long)]
        again: bool,
        /// slurmd's port
        #[arg(long)]
        port: u16,
        /// slurmd and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Execute slurmd in a cgroup of its own
    OwnCgroup {
        /// slurmd and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Report when the controller does not reach this node
    Reached {
        /// slurmd's port
        #[arg(long)]
        port: u16,
        /// PID 1's control socket
        #[arg(long)]
        socket: PathBuf,
    },
    /// Requeue the jobs that were running when an earlier start ended without an ordered stop
    Recover,
    /// Record which jobs slurmctld assigns to the node, and make it save the jobs started by backfill
    Follow {
        #[command(flatten)]
        place: StateArgs,
        /// PID 1's control socket
        #[arg(long)]
        socket: PathBuf,
    },
    /// Wait until no job is left that can still run
    Wait,
    /// Raise the next job ID if slurmctld ended without saving it, and execute slurmctld
    Number {
        #[command(flatten)]
        place: StateArgs,
        /// The previous slurmctld stopped cleanly: its state is complete if it was saved within this many seconds
        #[arg(long, value_name = "SECONDS")]
        saved_within: Option<u64>,
        /// slurmctld and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Keep non-requeueable jobs from running twice, and report jobs that slurmctld has forgotten
    Account {
        /// Assume that slurmd is suspended and has handled no request of this slurmctld
        #[arg(long)]
        held: bool,
    },
    /// Cancel or requeue jobs that ended while slurmctld was down
    Reclaim {
        /// Requeue or cancel jobs whose slurmstepd died instead
        #[arg(long)]
        dead_steps: bool,
    },
}

/// The directory of slurmctld, read from the files.
#[derive(Debug, clap::Args)]
struct StateArgs {
    /// slurm.conf
    #[arg(long)]
    slurm_conf: PathBuf,
    /// The state directory if slurm.conf names none
    #[arg(long)]
    state: PathBuf,
}

fn parse_on_stop(text: &str) -> Result<OnStop, &'static str> {
    word(text).map_err(|_| "expected requeue or cancel")
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let node = &args.node;
    match args.verb {
        JobsVerb::Quiesce { grace, on_stop, after_command, leave, with_controller } => {
            let grace = Duration::try_from_secs_f64(grace)?;
            return match leave {
                true => jobs::leave(node, grace, on_stop, with_controller),
                false => jobs::quiesce(node, grace, on_stop, after_command),
            };
        }
        JobsVerb::NoteNext => {
            jobs::note_next_id();
            Ok(())
        }
        JobsVerb::Join { conf, gpus, again, port, command } => {
            jobs::join::run(node, conf, &gpus, again, port, &command)
        }
        JobsVerb::OwnCgroup { command } => jobs::own_group::execute(&command),
        JobsVerb::Reached { port, socket } => jobs::controller_reachability::watch(node, port, &socket),
        JobsVerb::Recover => jobs::recover(node),
        JobsVerb::Follow { place, socket } => jobs::follow::run(&place.slurm_conf, &place.state, &socket),
        JobsVerb::Wait => jobs::wait(),
        JobsVerb::Number { place, saved_within, command } => {
            jobs::ids::run(&place.slurm_conf, &place.state, saved_within.map(Duration::from_secs), &command)
        }
        JobsVerb::Account { held } => jobs::account(node, held),
        JobsVerb::Reclaim { dead_steps: true } => jobs::reclaim_dead_steps(node),
        JobsVerb::Reclaim { dead_steps: false } => jobs::reclaim(node),
    }
    .map(|()| exit_code::SUCCESS)
}
