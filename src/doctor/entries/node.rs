//! Slurm: its daemons, its node, its jobs.

use crate::doctor::claims;
use crate::doctor::entry::{Answer, Entry, Judge};
use crate::doctor::facts::{ContainerFacts, Facts, NodeFacts};
use crate::supervise::machine::UnitSnapshot;
use crate::supervise::node::NodeVerdict;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "daemons",
        symptoms: &[
            "the container is unhealthy, or ends with 100 to 103",
            "`no slurminit runs here as PID 1 of a cluster`",
        ],
        looks_at: "slurminit's status file",
        cause: "a daemon or service dies or cannot start, or no cluster was started in this container",
        repair: "its last words in `docker logs slurminit`; `SLURMINIT_ON_GIVE_UP=hold` keeps the container for a look inside; where \
                 another program is the entry point: `slurminit run &`, then `slurminit health --wait 60`",
        judge: Judge::Container(daemons),
    },
    Entry {
        id: "controller",
        symptoms: &["`slurm_load_partitions: Unable to contact slurm controller (connect failure)`"],
        looks_at: "scontrol ping",
        cause: "slurmctld does not run, or does not answer",
        repair: "`slurminit status`, and slurmctld's lines in `docker logs slurminit`; `docker restart slurminit`",
        judge: Judge::Container(controller),
    },
    Entry {
        id: "node",
        symptoms: &["the node is `down`, `unknown` or `not responding`"],
        looks_at: "sinfo: the node's state",
        cause: "slurmd does not run, or has not registered",
        repair: "`slurminit status`, and slurmd's lines in `docker logs slurminit`; `scontrol update nodename=localhost state=resume`",
        judge: Judge::Container(node_state),
    },
    Entry {
        id: "drain",
        symptoms: &["the node is `drained`, and jobs wait with `(Resources)` or `ReqNodeNotAvail`"],
        looks_at: "sinfo: the node's state and reason",
        cause: "an administrator drained it, or Slurm did for a cause that is repaired: Slurm keeps a drain in its saved state",
        repair: "`scontrol update nodename=localhost state=resume`",
        judge: Judge::Container(drain),
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
                 them from `config/` (or their marker line) and `docker restart slurminit` to have them generated",
        judge: Judge::Container(gres),
    },
    Entry {
        id: "real-memory",
        symptoms: &["`Low RealMemory`, the node is `inval` or `drained`"],
        looks_at: "RealMemory in slurm.conf, the container's memory, the node's reason",
        cause: "a slurm.conf of your own names more memory than the container has",
        repair: "`slurminit render --diff` shows the right number; correct or remove the file in `config/`, then `docker restart slurminit`",
        judge: Judge::Container(real_memory),
    },
    Entry {
        id: "own-files",
        symptoms: &["exit code 102, `Waiting for gres.conf file` in the log", "a file in `config/` is not used"],
        looks_at: "slurm.conf, gres.conf and cgroup.conf of your own, against this machine",
        cause: "they name devices, ports, hosts or plugins that are not here, or lack the line `# USER_CUSTOMIZED=true`",
        repair: "`slurminit render --diff`; correct or remove the file, then `docker restart slurminit`",
        judge: Judge::Container(|_, container| {
            Answer::all(claims::of(&container.findings, "own-files"), || {
                Answer::ok("there are no Slurm files of your own, or nothing is wrong with them")
            })
        }),
    },
    Entry {
        id: "stale-files",
        symptoms: &["Slurm knows other GPUs, CPUs or memory than `slurminit detect` shows"],
        looks_at: "the installed Slurm files, and what a start would write now",
        cause: "something changed since the container started: GPUs, limits, slurminit.toml",
        repair: "`slurminit render --diff` shows the difference; `docker restart slurminit`",
        judge: Judge::Container(stale_files),
    },
    Entry {
        id: "waiting-jobs",
        symptoms: &["a job stays pending"],
        looks_at: "squeue: the jobs that wait, and Slurm's reason",
        cause: "others have the GPUs, or the job asks for more than is left, or than there is",
        repair: "`squeue`, `scontrol show job N`; ask for less, or wait",
        judge: Judge::Container(waiting_jobs),
    },
];

/// Why there is nothing to ask Slurm about, as an answer.
fn no_cluster(container: &ContainerFacts) -> Option<Answer> {
    container.status.as_ref().err().map(|why| Answer::note(why.as_str()))
}

fn node(container: &ContainerFacts) -> Result<&NodeFacts, Answer> {
    if let Some(answer) = no_cluster(container) {
        return Err(answer);
    }
    container.slurm.node.as_ref().map_err(|why| Answer::could_not_look(why.as_str()))
}

fn daemons(_: &Facts, container: &ContainerFacts) -> Answer {
    let status = match &container.status {
        Err(why) => {
            return Answer::fail(
                why.as_str(),
                "the container was started with another entry point, or slurminit has ended or not begun",
                "start the container without --entrypoint; or start a cluster beside what runs: slurminit run & slurminit health --wait 60",
            );
        }
        Ok(status) => status,
    };
    let trouble = |unit: &UnitSnapshot| {
        let UnitSnapshot { name, state, restarts, last_exit, last_exit_why, .. } = unit;
        let why = last_exit_why.as_deref();
        let last = last_exit.as_deref().unwrap_or("nobody knows how it ended");
        let log = format!("docker logs slurminit 2>&1 | grep {name}");
        match state.as_str() {
            "given up" => {
                Some(Answer::fail(format!("{name} was given up on: {last}"), "it ended again and again", log))
            }
            "backing off" => Some(Answer::fail(format!("{name} waits for its next start: {last}"), "it ended", log)),
            "starting" | "waiting" | "stopping" => {
                Some(Answer::warn(format!("{name} is {state}"), "it is on its way, or what it needs is not ready", log))
            }
            // What an operator asked for is nobody's fault.
            _ if *restarts > 0 && !why.is_some_and(|why| why.contains("asked for")) => Some(Answer::warn(
                format!("{name} runs, and was started again {restarts} times: {last}"),
                why.unwrap_or("it died"),
                log,
            )),
            _ => None,
        }
    };
    Answer::all(status.units.iter().filter_map(trouble), || {
        let names: Vec<&str> = status.units.iter().map(|unit| unit.name.as_str()).collect();
        Answer::ok(format!("{} run", names.join(", ")))
    })
}

fn controller(_: &Facts, container: &ContainerFacts) -> Answer {
    if let Some(answer) = no_cluster(container) {
        return answer;
    }
    match &container.slurm.controller {
        Err(why) => Answer::could_not_look(why.as_str()),
        Ok(true) => Answer::ok("slurmctld answers"),
        Ok(false) => Answer::fail(
            "slurmctld does not answer",
            "it does not run, or is stuck",
            "slurminit status, and slurmctld's lines in docker logs slurminit",
        ),
    }
}

/// What a reason is about, so that one entry speaks of it and not all.
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
    let reason = if report.reason.is_empty() { String::new() } else { format!(" ({})", report.reason) };
    let silent = if report.responding { "" } else { ", and slurmd does not answer" };
    format!("the node {name} is {}{reason}{silent}", report.state)
}

fn is_drained(node: &NodeFacts) -> bool {
    node.report.state.starts_with("drain")
}

/// A drain can outlive its cause: its entry is another one.
fn is_refused_for(node: &NodeFacts, what: About) -> bool {
    !is_drained(node) && about(&node.report.reason) == what
}

fn node_state(_: &Facts, container: &ContainerFacts) -> Answer {
    let node = match node(container) {
        Err(answer) => return answer,
        Ok(node) => node,
    };
    if node.report.verdict() == NodeVerdict::Usable {
        return Answer::ok(shown(node));
    }
    if node.report.responding
        && (is_drained(node) || !matches!(about(&node.report.reason), About::Nothing | About::Other))
    {
        return Answer::note(format!("{}: see the entries below", shown(node)));
    }
    Answer::fail(
        shown(node),
        "slurmd does not run, has not registered yet, or the controller gave it up",
        format!("slurminit status; slurmd's lines in docker logs slurminit; then {}", resume(node)),
    )
}

fn drain(_: &Facts, container: &ContainerFacts) -> Answer {
    let node = match node(container) {
        Err(answer) => return answer,
        Ok(node) => node,
    };
    if !is_drained(node) {
        return Answer::ok("the node is not drained");
    }
    if node.report.verdict() == NodeVerdict::Repaired {
        return Answer::fail(
            shown(node),
            "Slurm drained it, for it registered with less than slurm.conf claims; Slurm keeps the drain also when that is repaired",
            format!("slurminit render --diff must show nothing; then {}", resume(node)),
        );
    }
    Answer::warn(shown(node), "an administrator drained it; slurminit leaves such a drain alone", resume(node))
}

/// The number of GPUs in `gpu:nvidia:2(S:0-1),gpu:amd:1`.
fn gpus_in(gres: &str) -> u64 {
    let outside = |part: &str| part.split('(').next().unwrap_or_default().to_owned();
    // A comma can also stand in the sockets' parentheses: S:0,2.
    let parts = gres.split(',').filter(|part| part.trim_start().starts_with("gpu")).map(outside);
    parts.map(|part| part.rsplit(':').next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(1)).sum()
}

fn gres(facts: &Facts, container: &ContainerFacts) -> Answer {
    let own: Vec<Answer> = claims::of(&container.findings, "gres").collect();
    let node = match node(container) {
        Err(answer) => return Answer::all(own, || answer),
        Ok(node) => node,
    };
    let repair = "slurminit render --diff shows what your files should say; correct or remove them in config/, then docker restart slurminit";
    let refused = is_refused_for(node, About::Gres)
        .then(|| Answer::fail(shown(node), "slurm.conf claims more GPUs than slurmd finds in gres.conf", repair));
    Answer::all(own.into_iter().chain(refused), || {
        let offered = gpus_in(&node.gres);
        if offered == 0 && facts.inventory.usable_gpus().next().is_none() {
            return Answer::trouble(
                crate::doctor::Verdict::Note,
                "the node offers no GPU: Slurm refuses a job that asks for one",
                "no GPU can be used in this container",
                "see the entry no-gpu",
            );
        }
        if offered == 0 {
            return Answer::fail(
                "the node offers no GPU, and this container has some",
                "Slurm's files are older than the GPUs",
                repair,
            );
        }
        Answer::ok(format!("the node offers {}: jobs can ask for that, type and number", node.gres))
    })
}

fn real_memory(_: &Facts, container: &ContainerFacts) -> Answer {
    let own: Vec<Answer> = claims::of(&container.findings, "real-memory").collect();
    let refused = node(container).ok().filter(|node| is_refused_for(node, About::Memory)).map(|node| {
        Answer::fail(
            shown(node),
            "slurm.conf claims more memory than this machine has",
            "slurminit render --diff shows the right RealMemory; correct or remove config/slurm.conf, then docker restart slurminit",
        )
    });
    Answer::all(own.into_iter().chain(refused), || Answer::ok("slurm.conf claims no more memory than there is"))
}

fn stale_files(_: &Facts, container: &ContainerFacts) -> Answer {
    if let Some(answer) = no_cluster(container) {
        return answer;
    }
    match &container.stale_files {
        Err(why) => Answer::could_not_look(why.as_str()),
        Ok(files) if files.is_empty() => Answer::ok("the installed files are what a start would write now"),
        Ok(files) => Answer::warn(
            format!("a start would now write another {}", files.join(", ")),
            "something changed since the container started: GPUs, limits, slurminit.toml",
            "slurminit render --diff shows the difference; docker restart slurminit",
        ),
    }
}

fn waiting_jobs(_: &Facts, container: &ContainerFacts) -> Answer {
    if let Some(answer) = no_cluster(container) {
        return answer;
    }
    let jobs = match &container.slurm.waiting_jobs {
        Err(why) => return Answer::could_not_look(why.as_str()),
        Ok(jobs) if jobs.is_empty() => return Answer::ok("no job waits"),
        Ok(jobs) => jobs,
    };
    let some: Vec<String> = jobs.iter().take(5).map(|job| format!("{} ({})", job.id, job.reason)).collect();
    let more = if jobs.len() > some.len() { format!(" and {} more", jobs.len() - some.len()) } else { String::new() };
    Answer::trouble(
        crate::doctor::Verdict::Note,
        format!("jobs wait: {}{more}", some.join(", ")),
        "Resources, Priority: others have what they ask for; ReqNodeNotAvail: see the node above; the rest is in man squeue, JOB REASON CODES",
        "scontrol show job N; ask for less, or wait",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_as_sinfo_spells_them() {
        for (gres, want) in [
            ("gpu:nvidia:2", 2),
            ("gpu:nvidia:2(S:0-1)", 2),
            ("gpu:a:1(S:0,2),gpu:b:3", 4),
            ("gpu:1", 1),
            ("", 0),
            ("(null)", 0),
            ("license:4", 0),
        ] {
            assert_eq!(gpus_in(gres), want, "{gres}");
        }
    }
}
