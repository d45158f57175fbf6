//! The command line.

use clap::{Parser, Subcommand};

use crate::{commands, exit_code};

/// PID 1 of a GPU-aware Slurm container.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Prepare, boot and keep the daemons alive (the image's entry point)
    Run(commands::run::Args),
    /// Show the GPUs, CPUs and memory that this container can use
    Detect(commands::detect::Args),
    /// Show the Slurm files that this start would get; changes nothing
    Render(commands::render::Args),
    /// On the host: check Docker and the GPUs, and write compose.override.yaml and .env for them
    Configure(commands::configure::Args),
    /// Look for every known fault, on the host or in the container, and say what repairs it
    Doctor(commands::doctor::Args),
    /// Detect, plan, render and install; PID 1 runs it as a child
    #[command(hide = true)]
    Prepare(commands::prepare::Args),
    /// Write what Slurm gives each user as the environment of a login; PID 1 runs it as a child
    #[command(hide = true)]
    Environments(commands::environments::Args),
    /// Give running jobs notice at a stop, requeue lost ones at a start; PID 1 runs it as a child
    #[command(hide = true)]
    Jobs(commands::jobs::Args),
    /// Ask the daemons whether they still answer; PID 1 runs it as a child
    #[command(hide = true)]
    Liveness(commands::liveness::Args),
    /// Get a unit's port back from a process that took it; PID 1 runs it as a child
    #[command(hide = true)]
    FreePort(commands::free_port::Args),
    /// Say which of a user's processes have a socket; runs as that user
    #[command(hide = true)]
    Holders(commands::holders::Args),
    /// End what a job left behind on the node; slurmd runs it at the end of each job
    #[command(hide = true)]
    Epilog(commands::epilog::Args),
    /// Detect again, and apply what changed in the hardware and in the configuration; what can go on running does
    Reload(commands::reload::Args),
    /// Show the daemons, the node and the GPUs
    Status(commands::status::Args),
    /// Exit with 0 when the cluster is ready (or, with --live, alive), else with 1; one line says why
    Health(commands::health::Args),
    /// Start a daemon or service again, and wait until it is ready
    Restart(commands::restart::Args),
    /// Stop the container in order, as `docker stop` does
    Stop(commands::stop::Args),
    /// Show the last lines of a daemon, of a service, or of slurminit itself
    Logs(commands::logs::Args),
    /// Show what the start spent its time on
    Timeline(commands::timeline::Args),
    /// Print the arguments of sbatch for the resources of a method.json
    SbatchArgs(commands::sbatch_args::Args),
}

impl Cli {
    /// Runs the verb. An error ends in one message on standard error and a code that is not 0.
    pub fn run(self) -> u8 {
        let outcome = match self.verb {
            Verb::Run(args) => commands::run::run(args),
            Verb::Detect(args) => commands::detect::run(args),
            Verb::Render(args) => commands::render::run(args),
            Verb::Configure(args) => commands::configure::run(args),
            Verb::Doctor(args) => commands::doctor::run(args),
            Verb::Prepare(args) => commands::prepare::run(args),
            Verb::Environments(args) => commands::environments::run(args),
            Verb::Jobs(args) => commands::jobs::run(args),
            Verb::Liveness(args) => commands::liveness::run(args),
            Verb::FreePort(args) => commands::free_port::run(args),
            Verb::Holders(args) => commands::holders::run(args),
            Verb::Epilog(args) => commands::epilog::run(&args),
            Verb::Reload(args) => commands::reload::run(args),
            Verb::Status(args) => commands::status::run(args),
            Verb::Health(args) => commands::health::run(args),
            Verb::Restart(args) => commands::restart::run(args),
            Verb::Stop(args) => commands::stop::run(args),
            Verb::Logs(args) => commands::logs::run(args),
            Verb::Timeline(args) => commands::timeline::run(args),
            Verb::SbatchArgs(args) => commands::sbatch_args::run(args),
        };
        outcome.unwrap_or_else(|error| {
            eprintln!("slurminit: {}", crate::printable::lines(&format!("{error:#}")));
            exit_code::FAILURE
        })
    }
}
