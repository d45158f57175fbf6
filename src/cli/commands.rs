//! The verbs, one file each: `Args` is the verb's command line, and `run` executes the verb. If a verb has several exit codes, `run` returns one.

mod agent;
mod as_user;
mod associations;
mod columns;
mod config;
mod configure;
mod detect;
mod doctor;
mod drain;
mod environments;
mod epilog;
mod free_port;
mod gpu;
mod health;
mod hook;
mod image;
mod job_map;
mod jobs;
mod join_command;
mod liveness;
mod logs;
mod look;
mod mail;
mod mariadb;
mod metrics;
mod nodes;
mod notebook;
mod oci;
mod oom_score;
mod period;
mod power;
mod prepare;
mod prolog;
mod reload;
mod render;
mod report;
mod restart;
mod resume;
mod run;
mod sbatch_args;
mod session;
mod status;
mod stop;
mod submit;
mod test_job;
mod token;
mod up;
mod usage;
mod webhook;
mod why;

use std::path::{Path, PathBuf};

use crate::output::print;
use ::config::{Config, ConfigError};
use install::load_config;
use model::exit_code;

// The option that most verbs have in common. A doc comment here would become clap's description of each verb.
#[derive(Debug, clap::Args)]
pub(crate) struct Configuration {
    /// The configuration file [default: the one named by SLURMINIT_CONFIG, else the text of SLURMINIT_TOML, else /config/slurminit.toml if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

impl Configuration {
    fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn load(&self) -> Result<Config, ConfigError> {
        load_config::load(self.file())
    }
}

/// The version of the objects that `--json` prints (docs/reference/commands.md). It changes when a key is changed or removed, not when one is added.
const SHAPE: u32 = 1;

/// What `--json` prints: the fields of `value`, and [`SHAPE`].
fn json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    #[derive(serde::Serialize)]
    struct Shaped<'a, T> {
        shape: u32,
        #[serde(flatten)]
        value: &'a T,
    }
    let text = serde_json::to_string_pretty(&Shaped { shape: SHAPE, value })?;
    Ok(model::printable::json(&text).into_owned() + "\n")
}

/// Prints a value as JSON or as text.
fn print_value(as_json: bool, value: &impl serde::Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    print(&if as_json { json(value)? } else { text() })
}

/// The exit code of a verb that did not fail: 0 if `run` returns nothing.
trait Outcome {
    fn code(self) -> u8;
}

impl Outcome for () {
    fn code(self) -> u8 {
        exit_code::SUCCESS
    }
}

impl Outcome for u8 {
    fn code(self) -> u8 {
        self
    }
}

macro_rules! verbs {
    (
        $option:ident;
        public { $($(#[$line:meta])* $verb:ident($module:ident $(, $configuration:ident)?),)* }
        internal { $($(#[$hidden_line:meta])* $hidden:ident($hidden_module:ident $(, $hidden_configuration:ident)?),)* }
    ) => {
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[$line])* $verb($module::Args),)*
            $($(#[$hidden_line])* #[command(hide = true)] $hidden($hidden_module::Args),)*
        }

        impl Verb {
            pub(crate) fn run(self, $option: &Configuration) -> anyhow::Result<u8> {
                match self {
                    $(Self::$verb(args) => $module::run(args $(, $configuration)?).map(Outcome::code),)*
                    $(Self::$hidden(args) => $hidden_module::run(args $(, $hidden_configuration)?).map(Outcome::code),)*
                }
            }
        }
    };
}

verbs! {
    configuration;
    public {
        /// Start the cluster and supervise its daemons (the image's entry point)
        Run(run, configuration),
        /// Start the cluster in a container whose PID 1 is another program, and wait until it is ready
        Up(up, configuration),
        /// Show the GPUs, CPUs and memory that this container can use
        Detect(detect, configuration),
        /// Show the Slurm files that a start would write; changes nothing
        Render(render, configuration),
        /// Check a slurminit.toml, or show each effective value and its origin
        Config(config, configuration),
        /// Check Docker and the GPUs of this host, and write compose.gpus.yaml and .env
        Configure(configure),
        /// Check for all known faults, on the host or in the container, and show the fixes
        Doctor(doctor, configuration),
        /// Detect the hardware again and apply hardware and configuration changes with as few restarts as possible
        Reload(reload, configuration),
        /// Show the daemons, the node and the GPUs
        Status(status, configuration),
        /// Show all nodes of the cluster and the users of their GPUs
        Nodes(nodes, configuration),
        /// Drain nodes: no new jobs start there, running jobs continue
        Drain(drain, configuration),
        /// Resume nodes that are drained or down
        Resume(resume, configuration),
        /// Release a GPU for a reset on the host, and give it back to jobs
        Gpu(gpu, configuration),
        /// Make a token that authenticates REST API requests as a user
        Token(token),
        /// Show what jobs did with their GPUs: use, memory, energy, waste, with hints
        Report(report, configuration),
        /// Explain why a job waits, who holds what it requests, and what would let it start now
        Why(why, configuration),
        /// Show how many GPU and CPU hours each user has used
        Usage(usage),
        /// Import, list and remove container images for jobs (`srun --container=NAME`)
        Image(image, configuration),
        /// Start an interactive shell in a job, or connect to it with ssh and VS Code
        Session(session, configuration),
        /// Run JupyterLab in a job, reachable at a port of this container
        Notebook(notebook),
        /// Submit a command to particular nodes and GPUs, one job for each target
        Submit(submit, configuration),
        /// Check whether the cluster is ready (or, with --live, alive): exit with 0 or 1, and print the reason
        Health(health, configuration),
        /// Restart a daemon or service, and wait until it is ready
        Restart(restart, configuration),
        /// Stop the cluster cleanly, and with it the container if slurminit is PID 1
        Stop(stop, configuration),
        /// Show the last log lines of a daemon, of a service, or of slurminit itself
        Logs(logs, configuration),
        /// Print the command that joins another machine to this controller's cluster (it contains the cluster's key)
        JoinCommand(join_command, configuration),
        /// Print the sbatch arguments for the resources that a method.json requests
        SbatchArgs(sbatch_args),
    }
    internal {
        /// Detect, plan, render and install; PID 1 runs it as a child
        Prepare(prepare, configuration),
        /// Write each user's login environment for Slurm; PID 1 runs it as a child
        Environments(environments, configuration),
        /// Create or update the accounts, users and QOS of the configuration; PID 1 runs it as a child
        Associations(associations, configuration),
        /// Check that a job runs on this node; PID 1 runs it as a child
        TestJob(test_job, configuration),
        /// Handle jobs when the container or a daemon starts or stops; PID 1 runs it
        Jobs(jobs),
        /// Check the liveness of the daemons; PID 1 runs it as a child
        Liveness(liveness),
        /// Execute a command as another user, who may come from a directory service; PID 1 and its children run it
        AsUser(as_user),
        /// Monitor the GPUs while the container runs; PID 1 runs it as a child
        Agent(agent, configuration),
        /// Sample one vendor's GPUs repeatedly, or one GPU once; the agent runs it as a child
        Look(look),
        /// Post a message to a webhook; the agent runs it as a child
        Webhook(webhook),
        /// Write which job has which GPU, for exporters on the host; slurmd runs it
        JobMap(job_map),
        /// Keep the oom_score_adj of jobs' and users' processes above that of the daemons; PID 1 runs it as a child
        OomScore(oom_score),
        /// Free a unit's port that another process took; PID 1 runs it as a child
        FreePort(free_port),
        /// Give a job access to its GPUs, and make the names of its nodes resolve; slurmd runs it before the job's first process on a node
        Prolog(prolog),
        /// Revoke a job's access to its GPUs, and kill the processes that it left behind; slurmd runs it at the end of each job
        Epilog(epilog),
        /// Run a step of a job in a container image; slurmstepd runs it
        Oci(oci),
        /// Run an operator's command before or after a job; slurmd runs it
        Hook(hook),
        /// Create the accounting database at the first start, and execute mariadbd; PID 1 runs it
        Mariadb(mariadb),
        /// Start or stop nodes with the operator's command; slurmctld runs it
        Power(power),
        /// Send mail about a job through a relay; slurmctld runs it
        Mail(mail),
        /// Serve metrics and the status page; PID 1 runs it
        Metrics(metrics),
    }
}
