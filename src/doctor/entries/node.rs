//! Slurm's daemons, node and jobs.

use crate::entry::{Entry, Judge};
use crate::facts::{ContainerFacts, Facts, Looked, NodeFacts};
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
            "the container is unhealthy, or ends with 100 to 103",
            "`no slurminit runs here as PID 1 of a cluster`",
        ],
        looks_at: "slurminit's status file",
        cause: "a daemon or service dies or cannot start, or no cluster was started in this container",
        repair: "its last words in `docker compose logs slurm`; `SLURMINIT_ON_GIVE_UP=hold` keeps the container for a look inside; where \
                 another program is the entry point: `slurminit up`",
        judge: Judge::Container(daemons),
    },
    Entry {
        id: "controller",
        symptoms: &["`slurm_load_partitions: Unable to contact slurm controller (connect failure)`"],
        looks_at: "scontrol ping",
        cause: "slurmctld does not run, or does not answer",
        repair: "`slurminit status`, and slurmctld's lines in `docker compose logs slurm`; `docker compose restart slurm`",
        judge: Judge::Container(|_, it| Observations::either(seen(it, &it.slurm.controller).map(controller))),
    },
    Entry {
        id: "node",
        symptoms: &["the node is `down`, `unknown` or `not responding`"],
        looks_at: "sinfo: the node's state",
        cause: "slurmd does not run, or has not registered",
        repair: "`slurminit status`, and slurmd's lines in `docker compose logs slurm`; `scontrol update nodename=localhost state=resume`",
        judge: Judge::Container(|_, it| Observations::either(own_node(it).map(node_state))),
    },
    Entry {
        id: "drain",
        symptoms: &["the node is `drained`, and jobs wait with `(Resources)` or `ReqNodeNotAvail`"],
        looks_at: "sinfo: the node's state and reason",
        cause: "an administrator drained it, or Slurm did for a cause that is repaired: Slurm keeps a drain in its saved state",
        repair: "`scontrol update nodename=localhost state=resume`",
        judge: Judge::Container(|_, it| Observations::either(own_node(it).map(drain))),
    },
    Entry {
        id: "gres",
        symptoms: &[
            "Slurm says `Invalid GRES specification` (`Invalid generic resource (gres) specification`)",
            "`Requested node configuration is not available`",
            "`gres/gpu count reported lower than configured`",
            "Invalid GPU ID",
        ],
        looks_at: "the node's GRES (sinfo -o '%n %G') and the GPUs that can be used",
        cause: "a slurm.conf or gres.conf of your own names other GPUs than there are, or the job asks for a type or a number that \
                the node does not have",
        repair: "`sinfo -o '%n %G'` shows what can be asked for; `slurminit render --diff` shows what your files should say; remove \
                 them from `config/` (or their marker line) and `docker compose restart slurm` to have them generated",
        judge: Judge::FindingsAnd(&[Kind::Gres], gres),
    },
    Entry {
        id: "real-memory",
        symptoms: &["`Low RealMemory`, the node is `inval` or `drained`"],
        looks_at: "RealMemory in slurm.conf, the container's memory, the node's reason",
        cause: "a slurm.conf of your own names more memory than the container has",
        repair: "`slurminit render --diff` shows the right number; correct or remove the file in `config/`, then `docker compose restart slurm`",
        judge: Judge::FindingsAnd(&[Kind::RealMemory], real_memory),
    },
    Entry {
        id: "own-files",
        symptoms: &["exit code 102, `Waiting for gres.conf file` in the log", "a file in `config/` is not used"],
        looks_at: "slurm.conf, gres.conf and cgroup.conf of your own, against this machine",
        cause: "they name devices, ports, hosts or plugins that are not here, or lack the line `# USER_CUSTOMIZED=true`",
        repair: "`slurminit render --diff`; correct or remove the file, then `docker compose restart slurm`",
        judge: Judge::Findings(
            &[Kind::OwnFiles],
            "there are no Slurm files of your own, or nothing is wrong with them",
        ),
    },
    Entry {
        id: "stale-files",
        symptoms: &["Slurm knows other GPUs, CPUs or memory than `slurminit detect` shows"],
        looks_at: "the installed Slurm files, and what a start would write now",
        cause: "something changed since the container started: GPUs, limits, slurminit.toml",
        repair: "`slurminit render --diff` shows the difference; `docker compose restart slurm`",
        judge: Judge::Container(|_, it| {
            Observations::either(seen(it, &it.stale_files).map(|files| stale_files(files)))
        }),
    },
    Entry {
        id: "waiting-jobs",
        symptoms: &["a job stays pending"],
        looks_at: "squeue: the jobs that wait, and Slurm's reason",
        cause: "others have the GPUs, or the job asks for more than is left, or than there is",
        repair: "`squeue`, `scontrol show job N`; ask for less, or wait",
        judge: Judge::Container(|_, it| {
            Observations::either(seen(it, &it.slurm.waiting_jobs).map(|jobs| waiting_jobs(jobs)))
        }),
    },
];

/// The observation, if a cluster is running and it could be made; otherwise the reason.
fn seen<'a, T>(container: &ContainerFacts, looked: &'a Looked<T>) -> Result<&'a T, Observations> {
    container.status.as_ref().map_err(|why| Observations::note(why.as_str()))?;
    looked.as_ref().map_err(|why| Observations::could_not_look(why.as_str()))
}

/// The node, if slurmd runs here; otherwise the reason.
fn own_node(container: &ContainerFacts) -> Result<&NodeFacts, Observations> {
    let runs = |units: &[UnitSnapshot], name: DaemonName| units.iter().any(|unit| unit.name == name.as_str());
    match &container.status {
        Ok(status) if runs(&status.units, DaemonName::Munged) && !runs(&status.units, DaemonName::Slurmd) => {
            Err(Observations::note("no node runs in this container"))
        }
        _ => seen(container, &container.slurm.node),
    }
}

fn daemons(_: &Facts, container: &ContainerFacts) -> Observations {
    let status = match &container.status {
        Err(why) => {
            return Observations::fail(
                why.as_str(),
                "the container was started with another entry point, or slurminit has ended or not begun",
                "start the container without --entrypoint; or start a cluster beside what runs: slurminit up",
            );
        }
        Ok(status) => status,
    };
    let trouble = |unit: &UnitSnapshot| {
        let UnitSnapshot { name, state, restarts, last_exit, last_exit_why, .. } = unit;
        let why = last_exit_why.as_ref();
        let last = last_exit.as_ref().map_or_else(|| "nobody knows how it ended".to_owned(), ToString::to_string);
        let log = format!("docker compose logs slurm 2>&1 | grep {name}");
        match state {
            UnitState::GivenUp => {
                Some(Observations::fail(format!("{name} was given up on: {last}"), "it ended again and again", log))
            }
            UnitState::BackingOff => {
                Some(Observations::fail(format!("{name} waits for its next start: {last}"), "it ended", log))
            }
            UnitState::Starting | UnitState::Waiting | UnitState::Stopping => Some(Observations::warn(
                format!("{name} is {state}"),
                "it is on its way, or what it needs is not ready",
                log,
            )),
            // A restart on request is no fault.
            _ if *restarts > 0 && why != Some(&StopReason::RestartAsked) => Some(Observations::warn(
                format!("{name} runs, and was started again {restarts} times: {last}"),
                why.map_or_else(|| "it died".to_owned(), ToString::to_string),
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
        return Observations::ok("slurmctld answers");
    }
    Observations::fail(
        "slurmctld does not answer",
        "it does not run, or is stuck",
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
    let silent = if report.responding { "" } else { ", and slurmd does not answer" };
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
        "slurmd does not run, has not registered yet, or the controller gave it up",
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
            "Slurm drained it, for it registered with less than slurm.conf claims; Slurm keeps the drain also when that is repaired",
            format!("slurminit render --diff must show nothing; then {}", resume(node)),
        );
    }
    Observations::warn(shown(node), "an administrator drained it; slurminit leaves such a drain alone", resume(node))
}

fn gres(facts: &Facts, container: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let node = match own_node(container) {
        Err(answer) => return Observations::all(found, || answer),
        Ok(node) => node,
    };
    let repair = "slurminit render --diff shows what your files should say; correct or remove them in config/, then docker compose restart slurm";
    let refused = is_refused_for(node, About::Gres)
        .then(|| Observations::fail(shown(node), "slurm.conf claims more GPUs than slurmd finds in gres.conf", repair));
    Observations::all(found.into_iter().chain(refused), || {
        let offered = gpus(&node.gres);
        if offered == 0 && facts.inventory.usable_gpus().next().is_none() {
            return Observations::hint(
                "the node offers no GPU: Slurm refuses a job that asks for one",
                "no GPU can be used in this container",
                "see the entry no-gpu",
            );
        }
        if offered == 0 {
            return Observations::fail(
                "the node offers no GPU, and this container has some",
                "Slurm's files are older than the GPUs",
                repair,
            );
        }
        Observations::ok(format!("the node offers {}: jobs can ask for that, type and number", node.gres))
    })
}

fn real_memory(_: &Facts, container: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let node = seen(container, &container.slurm.node);
    let refused = node.ok().filter(|node| is_refused_for(node, About::Memory)).map(|node| {
        Observations::fail(
            shown(node),
            "slurm.conf claims more memory than this machine has",
            "slurminit render --diff shows the right RealMemory; correct or remove config/slurm.conf, then docker compose restart slurm",
        )
    });
    Observations::all(found.into_iter().chain(refused), || {
        Observations::ok("slurm.conf claims no more memory than there is")
    })
}

fn stale_files(files: &[String]) -> Observations {
    if files.is_empty() {
        return Observations::ok("the installed files are what a start would write now");
    }
    Observations::warn(
        format!("a start would now write another {}", files.join(", ")),
        "something changed since the container started: GPUs, limits, slurminit.toml",
        "slurminit render --diff shows the difference; docker compose restart slurm",
    )
}

fn waiting_jobs(jobs: &[QueuedJob]) -> Observations {
    if jobs.is_empty() {
        return Observations::ok("no job waits");
    }
    // squeue prints the number of a user whose name slurmctld does not find.
    if let Some(job) = jobs.iter().find(|job| job.user == job.uid.to_string()) {
        let (id, uid) = (job.number, job.uid);
        return Observations::fail(
            format!("job {id} waits ({}), and its user, uid {uid}, has no account in this container", job.reason),
            "Slurm makes no credential for a user without an account, and holds the job",
            format!(
                "add a [[user]] with uid = {uid} to slurminit.toml, or an account to /etc/passwd, then slurminit reload; scontrol release {id}"
            ),
        );
    }
    let some: Vec<String> = jobs.iter().take(5).map(|job| format!("{} ({})", job.number, job.reason)).collect();
    let more = if jobs.len() > some.len() { format!(" and {} more", jobs.len() - some.len()) } else { String::new() };
    Observations::hint(
        format!("jobs wait: {}{more}", some.join(", ")),
        "Resources, Priority: others have what they ask for; ReqNodeNotAvail: see the node above; the rest is in man squeue, JOB REASON CODES",
        "scontrol show job N; ask for less, or wait",
    )
}
