//! `slurminit jobs`: handles jobs when the container or a daemon starts or stops, and executes slurmctld and slurmd.

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
    /// The node's name in Slurm; a list if nodes are simulated
    #[arg(long, global = true, default_value = "localhost")]
    node: String,
}

#[derive(Debug, clap::Subcommand)]
enum JobsVerb {
    /// Notify the running jobs, and end those that are still running after the grace period
    Quiesce {
        /// The grace period, in seconds
        #[arg(long)]
        grace: f64,
        /// requeue: requeue the jobs that the stop ends; cancel: cancel those that are still running after the grace period
        #[arg(long, value_parser = parse_on_stop)]
        on_stop: OnStop,
        /// The container stops because its command has ended: warn about jobs in the queue
        #[arg(long)]
        after_command: bool,
        /// In a cluster of several containers: handle only the jobs of this node, and then remove the node from the cluster, unless jobs
        /// name it or it has a drain that a start does not remove
        #[arg(long)]
        leave: bool,
        /// Do not remove the node, because the cluster's controller is in this container
        #[arg(long, requires = "leave")]
        with_controller: bool,
    },
    /// Record the next job ID before slurmctld stops; the jobs continue in other containers
    NoteNext,
    /// Wait for the controller, delete its record of this node if outdated, requeue the node's lost jobs, and execute slurmd
    Join {
        /// The node's parameters for `slurmd --conf`: CPUs=4 Gres=gpu:nvidia:2
        #[arg(long)]
        conf: String,
        /// The node's GPUs, for `slurminit nodes`
        #[arg(long, default_value = "")]
        gpus: String,
        /// This is a restart: a slurmd of this container was ready before
        #[arg(long)]
        again: bool,
        /// slurmd's port
        #[arg(long)]
        port: u16,
        /// slurmd and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Execute slurmd, in a separate cgroup if Slurm uses cgroup v2 and the container has its own cgroup namespace
    OwnCgroup {
        /// slurmd and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Log an error while the controller cannot reach this node, restart slurmd if the controller has no current record of the node, and end an
    /// obsolete drain
    Reached {
        /// slurmd's port
        #[arg(long)]
        port: u16,
        /// PID 1's control socket
        #[arg(long)]
        socket: PathBuf,
    },
    /// Requeue, fail or cancel the jobs that an earlier start left behind, and remove their spool files
    Recover,
    /// Follow the daemons' logs: record started jobs, make slurmctld save the jobs that backfill starts, and report a full disk and jobs whose
    /// output file cannot be opened
    Follow {
        #[command(flatten)]
        place: StateArgs,
        /// PID 1's control socket
        #[arg(long)]
        socket: PathBuf,
    },
    /// Wait until no job is left that is running or can run without manual action
    Wait,
    /// Raise the next job ID beyond all IDs that may be in use, adopt the cluster ID of a new accounting database, and execute slurmctld
    Number {
        #[command(flatten)]
        place: StateArgs,
        /// The previous slurmctld stopped cleanly: its state is complete if it was saved in the last SECONDS seconds
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
    /// Cancel, requeue or hold jobs that ended while slurmctld was down, and jobs whose slurmstepd died
    Reclaim {
        /// Only handle jobs whose slurmstepd died
        #[arg(long)]
        dead_steps: bool,
    },
}

/// Where to find the path of slurmctld's state directory.
#[derive(Debug, clap::Args)]
struct StateArgs {
    /// The path of slurm.conf
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
