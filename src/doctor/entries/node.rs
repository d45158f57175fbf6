//! Slurm's daemons, node and jobs.

use crate::entry::{Entry, Judge};
use crate::facts::{ContainerFacts, Facts, NodeFacts, Observed};
use config::DaemonName;
use machine::node_report::NodeVerdict;
use machine::{StopReason, UnitSnapshot, UnitState};
use model::inventory::gres::gpus;
use model::inventory::{Kind, Observations};
use model::queued_job::QueuedJob;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "daemons",
        symptoms: &[
            "the container is unhealthy, or exits with 100 to 103",
            "`no slurminit runs here as PID 1 of a cluster`",
        ],
        looks_at: "slurminit's status file",
        cause: "a daemon or service crashes or cannot start, or no cluster was started in this container",
        repair: "see `docker compose logs slurm`; SLURMINIT_ON_GIVE_UP=hold keeps the container; with another entry point: `slurminit up`",
        judge: Judge::Container(daemons),
    },
    Entry {
        id: "controller",
        symptoms: &["`slurm_load_partitions: Unable to contact slurm controller (connect failure)`"],
        looks_at: "scontrol ping",
        cause: "slurmctld is not running or not responding",
        repair: "`slurminit status`, and slurmctld's lines in `docker compose logs slurm`; `docker compose restart slurm`",
        judge: Judge::Container(|_, it| Observations::either(seen(it, &it.slurm.controller).map(controller))),
    },
    Entry {
        id: "node",
        symptoms: &["the node is `down`, `unknown` or `not responding`"],
        looks_at: "sinfo: the node's state",
        cause: "slurmd is not running, or has not registered",
        repair: "`slurminit status`, and slurmd's lines in `docker compose logs slurm`; `scontrol update nodename=localhost state=resume`",
        judge: Judge::Container(|_, it| Observations::either(own_node(it).map(node_state))),
    },
    Entry {
        id: "drain",
        symptoms: &["the node is `drained`, and jobs wait with `(Resources)` or `ReqNodeNotAvail`"],
        looks_at: "sinfo: the node's state and reason",
        cause: "an administrator or Slurm drained the node; Slurm keeps a drain in its saved state, even after its cause is fixed",
        repair: "`scontrol update nodename=localhost state=resume`",
        judge: Judge::Container(|_, it| Observations::either(own_node(it).map(drain))),
    },
    Entry {
        id: "gres",
        symptoms: &[
            "Slurm reports `Invalid GRES specification` (`Invalid generic resource (gres) specification`)",
            "`Requested node configuration is not available`",
            "`gres/gpu count reported lower than configured`",
            "Invalid GPU ID",
        ],
        looks_at: "the node's GRES (sinfo -o '%n %G') and the usable GPUs",
        cause: "your own slurm.conf or gres.conf does not match the GPUs, or the job requests GPUs that the node does not have",
        repair: "correct your files as `slurminit render --diff` shows, or remove them from config/; then `docker compose restart slurm`",
        judge: Judge::FindingsAnd(&[Kind::Gres], gres),
    },
    Entry {
        id: "real-memory",
        symptoms: &["`Low RealMemory`, the node is `inval` or `drained`"],
        looks_at: "RealMemory in slurm.conf, the container's memory, the node's reason",
        cause: "your own slurm.conf has more memory than the container",
        repair: "correct your file as `slurminit render --diff` shows, or remove it from `config/`; then `docker compose restart slurm`",
        judge: Judge::FindingsAnd(&[Kind::RealMemory], real_memory),
    },
    Entry {
        id: "own-files",
        symptoms: &["exit code 102, `Waiting for gres.conf file` in the log", "a file in `config/` is not used"],
        looks_at: "your own slurm.conf, gres.conf and cgroup.conf, compared with this machine",
        cause: "the files name missing devices, ports, hosts or plugins, or have no line `# USER_CUSTOMIZED=true`",
        repair: "`slurminit render --diff`; correct or remove the file, then `docker compose restart slurm`",
        judge: Judge::Findings(&[Kind::OwnFiles], "no own Slurm files, or no problem with them"),
    },
    Entry {
        id: "stale-files",
        symptoms: &["Slurm shows other GPUs, CPUs or memory than `slurminit detect`"],
        looks_at: "the installed Slurm files, compared with what a start would write now",
        cause: "something changed since the container started: GPUs, limits, slurminit.toml",
        repair: "`slurminit render --diff` shows the difference; `docker compose restart slurm`",
        judge: Judge::Container(|_, it| {
            Observations::either(seen(it, &it.stale_files).map(|files| stale_files(files)))
        }),
    },
    Entry {
        id: "waiting-jobs",
        symptoms: &["a job stays pending"],
        looks_at: "squeue: pending jobs, and Slurm's reason",
        cause: "the GPUs are in use, or the job requests more than is free or exists",
        repair: "`squeue`, `scontrol show job N`; request less, or wait",
        judge: Judge::Container(|_, it| {
            Observations::either(seen(it, &it.slurm.waiting_jobs).map(|jobs| waiting_jobs(jobs)))
        }),
    },
];

/// The observation, if a cluster is running and it could be made; otherwise the reason.
fn seen<'a, T>(container: &ContainerFacts, looked: &'a Observed<T>) -> Result<&'a T, Observations> {
    container.status.as_ref().map_err(|why| Observations::note(why.as_str()))?;
    looked.as_ref().map_err(|why| Observations::could_not_look(why.as_str()))
}

/// The node, if slurmd runs here; otherwise the reason.
fn own_node(container: &ContainerFacts) -> Result<&NodeFacts, Observations> {
    let runs = |units: &[UnitSnapshot], name: DaemonName| units.iter().any(|unit| unit.name == name.as_str());
    match &container.status {
        Ok(status) if runs(&status.units, DaemonName::Munged) && !runs(&status.units, DaemonName::Slurmd) => {
            Err(Observations::note("no slurmd in this container"))
        }
        _ => seen(container, &container.slurm.node),
    }
}

fn daemons(_: &Facts, container: &ContainerFacts) -> Observations {
    let status = match &container.status {
        Err(why) => {
            return Observations::fail(
                why.as_str(),
                "the container was started with another entry point, or slurminit has exited or not started",
                "start the container without --entrypoint, or start a cluster in this container: slurminit up",
            );
        }
        Ok(status) => status,
    };
    let trouble = |unit: &UnitSnapshot| {
        let UnitSnapshot { name, state, restarts, last_exit, last_exit_why, .. } = unit;
        let why = last_exit_why.as_ref();
        let last = last_exit.as_ref().map_or_else(|| "exit status unknown".to_owned(), ToString::to_string);
        let log = format!("docker compose logs slurm 2>&1 | grep {name}");
        match state {
            UnitState::GivenUp => Some(Observations::fail(format!("{name} gave up: {last}"), "crash loop", log)),
            UnitState::BackingOff => {
                Some(Observations::fail(format!("{name} waits for its restart (backoff): {last}"), "it exited", log))
            }
            UnitState::Starting | UnitState::Waiting | UnitState::Stopping => Some(Observations::warn(
                format!("{name} is {state}"),
                "the daemon is starting, or a dependency is not ready",
                log,
            )),
            // A restart on request is not a fault.
            _ if *restarts > 0 && why != Some(&StopReason::RestartAsked) => Some(Observations::warn(
                format!("{name} is running after {restarts} restarts: {last}"),
                why.map_or_else(|| "it crashed".to_owned(), ToString::to_string),
                log,
            )),
            _ => None,
        }
    };
    Observations::all(status.units.iter().filter_map(trouble), || {
        let names: Vec<&str> = status.units.iter().map(|unit| unit.name.as_str()).collect();
        Observations::ok(format!("{} run", names.join(", ")))
    })
}

fn controller(answers: &bool) -> Observations {
    if *answers {
        return Observations::ok("slurmctld responds");
    }
    Observations::fail(
        "slurmctld does not respond",
        "it is not running, or hangs",
        "slurminit status, and slurmctld's lines in docker compose logs slurm",
    )
}

/// The subject of a drain reason, so that exactly one entry reports it.
#[derive(PartialEq, Eq)]
enum About {
    Nothing,
    Gres,
    Memory,
    Other,
}

fn about(reason: &str) -> About {
    if reason.is_empty() {
        About::Nothing
    } else if reason.starts_with("gres/") || reason.contains("GRES") {
        About::Gres
    } else if reason.contains("RealMemory") {
        About::Memory
    } else {
        About::Other
    }
}

fn resume(node: &NodeFacts) -> String {
    format!("scontrol update nodename={} state=resume", node.name)
}

fn shown(node: &NodeFacts) -> String {
    let NodeFacts { name, report, .. } = node;
    let silent = if report.responding { "" } else { ", and slurmd does not respond" };
    format!("the node {name} is {report}{silent}")
}

fn is_drained(node: &NodeFacts) -> bool {
    node.report.state.starts_with("drain")
}

/// A drained node is left to another entry, because a drain can outlive its cause.
fn is_refused_for(node: &NodeFacts, what: About) -> bool {
    !is_drained(node) && about(&node.report.reason) == what
}

fn node_state(node: &NodeFacts) -> Observations {
    if node.report.verdict() == NodeVerdict::Usable {
        return Observations::ok(shown(node));
    }
    if node.report.responding
        && (is_drained(node) || !matches!(about(&node.report.reason), About::Nothing | About::Other))
    {
        return Observations::note(format!("{}: see the entries below", shown(node)));
    }
    Observations::fail(
        shown(node),
        "slurmd is not running, has not registered yet, or was marked down by the controller",
        format!("slurminit status; slurmd's lines in docker compose logs slurm; then {}", resume(node)),
    )
}

fn drain(node: &NodeFacts) -> Observations {
    if !is_drained(node) {
        return Observations::ok("the node is not drained");
    }
    if node.report.verdict() == NodeVerdict::Repaired {
        return Observations::fail(
            shown(node),
            "the node registered with less than slurm.conf configures; Slurm keeps the drain even after a fix",
            format!("slurminit render --diff must show nothing; then {}", resume(node)),
        );
    }
    Observations::warn(
        shown(node),
        "an administrator drained the node; slurminit does not change such a drain",
        resume(node),
    )
}

fn gres(facts: &Facts, container: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let node = match own_node(container) {
        Err(answer) => return Observations::all(found, || answer),
        Ok(node) => node,
    };
    let repair =
        "see slurminit render --diff; correct or remove your files in config/, then docker compose restart slurm";
    let refused = is_refused_for(node, About::Gres)
        .then(|| Observations::fail(shown(node), "slurm.conf configures more GPUs than gres.conf", repair));
    Observations::all(found.into_iter().chain(refused), || {
        let offered = gpus(&node.gres);
        if offered == 0 && facts.inventory.usable_gpus().next().is_none() {
            return Observations::hint(
                "the node offers no GPU; Slurm refuses jobs that request one",
                "no usable GPU in this container",
                "see the entry no-gpu",
            );
        }
        if offered == 0 {
            return Observations::fail(
                "the node offers no GPU, but this container has GPUs",
                "Slurm's files were written before the GPUs were available",
                repair,
            );
        }
        Observations::ok(format!("the node offers {}", node.gres))
    })
}

fn real_memory(_: &Facts, container: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let node = seen(container, &container.slurm.node);
    let refused = node.ok().filter(|node| is_refused_for(node, About::Memory)).map(|node| {
        Observations::fail(
            shown(node),
            "slurm.conf configures more memory than this machine has",
            "see RealMemory in slurminit render --diff; correct or remove config/slurm.conf, then docker compose restart slurm",
        )
    });
    Observations::all(found.into_iter().chain(refused), || Observations::ok("the memory in slurm.conf is available"))
}

fn stale_files(files: &[String]) -> Observations {
    if files.is_empty() {
        return Observations::ok("the installed files are up to date");
    }
    Observations::warn(
        format!("outdated files: {}", files.join(", ")),
        "something changed since the container started: GPUs, limits, slurminit.toml",
        "see slurminit render --diff; then docker compose restart slurm",
    )
}

fn waiting_jobs(jobs: &[QueuedJob]) -> Observations {
    if jobs.is_empty() {
        return Observations::ok("no pending job");
    }
    // squeue prints the number of a user whose name slurmctld does not find.
    if let Some(job) = jobs.iter().find(|job| job.user == job.uid.to_string()) {
        let (id, uid) = (job.number, job.uid);
        return Observations::fail(
            format!("job {id} is pending ({}): its user (UID {uid}) has no account in this container", job.reason),
            "Slurm cannot create a credential for a user without an account, and holds the job",
            format!(
                "add a [[user]] with uid = {uid} to slurminit.toml, or an account to /etc/passwd; slurminit reload; scontrol release {id}"
            ),
        );
    }
    let some: Vec<String> = jobs.iter().take(5).map(|job| format!("{} ({})", job.number, job.reason)).collect();
    let more = if jobs.len() > some.len() { format!(" and {} more", jobs.len() - some.len()) } else { String::new() };
    Observations::hint(
        format!("pending jobs: {}{more}", some.join(", ")),
        "Resources, Priority: the resources are in use; ReqNodeNotAvail: see the node above; others: man squeue, JOB REASON CODES",
        "scontrol show job N; request less, or wait",
    )
}
