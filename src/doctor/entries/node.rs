//! Slurm's daemons, node and jobs.

use crate::entry::{Check, Entry};
use crate::facts::{ContainerFacts, Controller, Facts, MAX_EXPLAINED, NO_SLURMD, NodeFacts, Observed, has_no_slurmd};
use machine::node_report::{NodeVerdict, SPOOL_FULL_REASON, TEST_JOB_REASON};
use machine::{StopReason, UnitSnapshot, UnitState};
use model::inventory::gres::gpus;
use model::inventory::{Kind, Observations};
use model::printable;
use model::queued_job::QueuedJob;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "daemons",
        symptoms: &[
            "the container is unhealthy, or exits with 100 to 103",
            "`no cluster is running in this container`",
        ],
        examines: "slurminit's status file",
        cause: "a daemon or service crashes, cannot start or waits for another; or the container has another entry point and no cluster",
        fix: "see `slurminit logs NAME`; SLURMINIT_ON_GIVE_UP=hold keeps the container running; with another entry point: `slurminit up`",
        check: Check::Container(daemons),
    },
    Entry {
        id: "controller",
        symptoms: &["`slurm_load_partitions: Unable to contact slurm controller (connect failure)`"],
        examines: "scontrol ping, and the error of sinfo",
        cause: "slurmctld is not running or not responding, or has another munge key",
        fix: "see `slurminit status` and `slurminit logs slurmctld` in the controller's container; then `slurminit restart slurmctld`",
        check: Check::Container(|_, container| {
            Observations::either(observed_value(container, &container.slurm.controller).map(controller))
        }),
    },
    Entry {
        id: "node",
        symptoms: &["the node is `down`, `inval`, `unknown` or `not responding`"],
        examines: "sinfo: the node's state",
        cause: "slurmd is not running or has not registered, or the node was marked down; `inval`: slurm.conf configures more than the machine has",
        fix: "see `slurminit status` and `slurminit logs slurmd`; then `slurminit resume NODE`",
        check: Check::Container(|_, container| Observations::either(local_node(container).map(node_state))),
    },
    Entry {
        id: "drain",
        symptoms: &["the node is `drained`, and jobs wait with `(Resources)` or `ReqNodeNotAvail`"],
        examines: "sinfo: the node's state and reason",
        cause: "an administrator or Slurm drained the node; Slurm keeps a drain in its saved state, even after its cause is fixed",
        fix: "`slurminit resume NODE`",
        check: Check::Container(|_, container| Observations::either(local_node(container).map(drain))),
    },
    Entry {
        id: "gres",
        symptoms: &[
            "Slurm reports `Invalid GRES specification` (`Invalid generic resource (gres) specification`)",
            "`Requested node configuration is not available`",
            "`gres/gpu count reported lower than configured`",
            "Invalid GPU ID",
        ],
        examines: "the node's GRES (sinfo -o '%n %G') and the usable GPUs",
        cause: "your own slurm.conf or gres.conf does not match the GPUs, Slurm's files were written before the GPUs changed, or the job requests GPUs that the \
                node does not have",
        fix: "correct your files as `slurminit render --diff` shows, or remove them from config/; then `docker compose restart slurm`",
        check: Check::FindingsAnd(&[Kind::Gres], gres),
    },
    Entry {
        id: "slurm-security",
        symptoms: &["an image scanner reports CVEs of Slurm"],
        examines: "the version of Slurm and of its package (/var/lib/dpkg/status)",
        cause: "the image was built before the fixes of known security holes were published",
        fix: "`docker build --pull --no-cache ...`; if it builds Slurm from source, also set the version that the finding names",
        check: Check::Findings(&[Kind::SlurmSecurity], "no known security hole found for this Slurm"),
    },
    Entry {
        id: "real-memory",
        symptoms: &[
            "`Low RealMemory`, the node is `inval` or `drained`",
            "`Memory specification can not be satisfied`",
        ],
        examines: "RealMemory in slurm.conf, the container's memory, the node's reason",
        cause: "your own slurm.conf configures more memory than the container has",
        fix: "correct your file as `slurminit render --diff` shows, or remove it from `config/`; then `docker compose restart slurm`",
        check: Check::FindingsAnd(&[Kind::RealMemory], real_memory),
    },
    Entry {
        id: "own-files",
        symptoms: &["exit code 102, `Waiting for gres.conf file` in the log", "a file in `config/` is not used"],
        examines: "your own Slurm files, compared with this machine",
        cause: "the files do not match this machine or slurminit.toml (devices, hosts, plugins, ports), or have no line `# USER_CUSTOMIZED=true`",
        fix: "`slurminit render --diff`; correct or remove the file, then `docker compose restart slurm`",
        check: Check::Findings(&[Kind::OwnFiles], "no Slurm files of your own, or no problem with them"),
    },
    Entry {
        id: "stale-files",
        symptoms: &["Slurm shows other GPUs, CPUs or memory than `slurminit detect`"],
        examines: "the installed Slurm files, compared with what a start would write now",
        cause: "something changed since the container started: GPUs, limits, slurminit.toml",
        fix: "`slurminit render --diff` shows the difference; `docker compose restart slurm`",
        check: Check::Container(|facts, container| {
            let files = observed_value(container, &facts.root.read().stale_files);
            Observations::either(files.map(|files| stale_files(files)))
        }),
    },
    Entry {
        id: "waiting-jobs",
        symptoms: &["a job stays pending"],
        examines: "squeue: pending jobs, and Slurm's reason",
        cause: "the resources are in use; or the job is held, requests more than exists, or waits for another job or its begin time",
        fix: "`slurminit why JOBID` shows the reason; request less, release the job (`scontrol release JOBID`), or wait",
        check: Check::Container(|_, container| {
            let jobs = observed_value(container, &container.slurm.waiting_jobs);
            Observations::either(jobs.map(|jobs| waiting_jobs(jobs)))
        }),
    },
    Entry {
        id: "lost-jobs",
        symptoms: &["a job starts again or is cancelled, but not by its user"],
        examines: "squeue: jobs with slurminit's note that their slurmstepd died",
        cause: "usually the container ran out of memory or reached its process limit, which ended the slurmstepd",
        fix: "see `slurminit logs` and the entry memory-kills; raise `docker run --memory` or `--pids-limit`, or submit with `--no-requeue`",
        check: Check::Container(|_, container| {
            let jobs = observed_value(container, &container.slurm.lost_jobs);
            Observations::either(jobs.map(|jobs| lost_jobs(jobs)))
        }),
    },
];

/// The observed value; if the cluster is not running or the value is unknown, the observation that states the reason.
fn observed_value<'a, T>(container: &ContainerFacts, observed: &'a Observed<T>) -> Result<&'a T, Observations> {
    container.status.as_ref().map_err(|why| Observations::note(why.as_str()))?;
    observed.as_ref().map_err(|why| Observations::could_not_look(why.as_str()))
}

/// The node of this container; if the cluster is not running, or has no slurmd in this container, or the node is unknown, the observation that states the reason.
fn local_node(container: &ContainerFacts) -> Result<&NodeFacts, Observations> {
    match &container.status {
        Ok(status) if has_no_slurmd(status) => Err(Observations::note(NO_SLURMD)),
        _ => observed_value(container, &container.slurm.node),
    }
}

fn daemons(_: &Facts, container: &ContainerFacts) -> Observations {
    let status = match &container.status {
        Err(why) => return Observations::usual_fault(why.as_str()),
        Ok(status) => status,
    };
    let unit_problem = |unit: &UnitSnapshot| {
        let UnitSnapshot { name, state, restarts, last_exit, last_exit_why, .. } = unit;
        let stop_reason = last_exit_why.as_ref();
        let exit = last_exit.as_ref().map_or_else(|| "exit status unknown".to_owned(), ToString::to_string);
        match state {
            UnitState::GivenUp => {
                Some(Observations::usual_fault(format!("{name} is no longer restarted (crash loop): {exit}")))
            }
            UnitState::BackingOff => {
                Some(Observations::usual_fault(format!("{name} waits for its restart (backoff): {exit}")))
            }
            UnitState::Starting | UnitState::Waiting | UnitState::Stopping => {
                Some(Observations::usual_warning(format!("{name} is {state}")))
            }
            UnitState::Finished => None,
            // A restart on request is not a fault.
            _ if *restarts > 0 && stop_reason != Some(&StopReason::RestartRequested) => {
                let why = stop_reason.map_or_else(|| "unexpected exit".to_owned(), ToString::to_string);
                Some(Observations::usual_warning(format!(
                    "{name} is running, restarts: {restarts}; last restart: {why} ({exit})"
                )))
            }
            _ => None,
        }
    };
    Observations::all(status.units.iter().filter_map(unit_problem), || {
        let running = status.units.iter().filter(|unit| unit.state != UnitState::Finished);
        let names: Vec<&str> = running.map(|unit| unit.name.as_str()).collect();
        Observations::ok(format!("running: {}", names.join(", ")))
    })
}

fn controller(controller: &Controller) -> Observations {
    match controller {
        Controller::Responds => Observations::ok("slurmctld responds"),
        Controller::Rejects => Observations::fail(
            "slurmctld responds, but authentication fails: Protocol authentication error",
            "this container's munge key is not the controller's, or the clocks differ",
            "use one munge key in both containers (see the entry munge-peers), then restart both containers; for the clocks see the entry clock",
        ),
        Controller::Silent => Observations::usual_fault("slurmctld does not respond"),
    }
}

/// Whether the node's reason in Slurm is about GRES, which the entry `gres` reports.
fn is_about_gres(reason: &str) -> bool {
    reason.starts_with("gres/") || reason.contains("GRES")
}

/// Whether the node's reason in Slurm is about memory, which the entry `real-memory` reports.
fn is_about_memory(reason: &str) -> bool {
    reason.contains("RealMemory") && !is_about_gres(reason)
}

fn resume(node: &NodeFacts) -> String {
    format!("slurminit resume {}", node.name)
}

fn describe_node(node: &NodeFacts) -> String {
    let NodeFacts { name, report, .. } = node;
    let response = if report.responding { "" } else { ", and slurmd does not respond" };
    format!("the node {name} is {report}{response}")
}

fn is_drained(node: &NodeFacts) -> bool {
    node.report.state.starts_with("drain")
}

/// Whether the node is unusable, and its reason is of this kind. Excludes drained nodes, which the entry `drain`
/// reports, because a drain can outlive its cause. A usable node can have an old reason: Slurm keeps it after a resume.
fn is_refused_because_of(node: &NodeFacts, reason: fn(&str) -> bool) -> bool {
    !is_drained(node) && node.report.verdict() != NodeVerdict::Usable && reason(&node.report.reason)
}

fn node_state(node: &NodeFacts) -> Observations {
    if node.report.verdict() == NodeVerdict::Usable {
        return Observations::ok(describe_node(node));
    }
    if node.report.is_refused() {
        let line = node.refused_line.as_ref().map_or_else(String::new, |line| format!("; slurm.conf: {line}"));
        return Observations::fail(
            format!("{}{line}", describe_node(node)),
            "slurmctld refuses the registration: the node's line in slurm.conf configures more than this machine has",
            "if slurm.conf is your own, write the values of `slurmd -C` and `slurmd -G` into the line (slurminit render --diff shows what differs); then slurminit reload",
        );
    }
    let reason = &node.report.reason;
    if node.report.responding && (is_drained(node) || is_about_gres(reason) || is_about_memory(reason)) {
        return Observations::note(format!("{}: see the entries below", describe_node(node)));
    }
    Observations::usual_fault(describe_node(node))
}

fn drain(node: &NodeFacts) -> Observations {
    if !is_drained(node) {
        return Observations::ok("the node is not drained");
    }
    let fail = |cause: &str, fix: String| Observations::fail(describe_node(node), cause, fix);
    match node.report.verdict() {
        NodeVerdict::Repaired if node.report.has_hardware_reason() => fail(
            "the node registered with resources that do not match slurm.conf; Slurm keeps the drain even after a fix",
            format!("check that slurminit render --diff shows no difference; then {}", resume(node)),
        ),
        NodeVerdict::Repaired if node.report.reason == SPOOL_FULL_REASON => fail(
            "the file system of SlurmdSpoolDir was full when a job started; Slurm keeps the drain after space is free",
            format!("free space (df shows where), then {}", resume(node)),
        ),
        NodeVerdict::Repaired if node.report.is_drained_by_agent() => fail(
            "the agent drained the node, and resumes it once the cause is gone or the faulty GPU is excluded",
            "slurminit status shows the cause and, for a faulty GPU, the fix".to_owned(),
        ),
        NodeVerdict::Repaired if node.report.has_drain_reason(TEST_JOB_REASON) => fail(
            "the test job of a start or reload failed because of a program, plugin or setting in your own Slurm files",
            format!(
                "see slurminit logs slurmd; correct the setting that `docker logs` names and run slurminit reload, or correct the program and run {}",
                resume(node)
            ),
        ),
        NodeVerdict::NotYet => Observations::warn(
            describe_node(node),
            "slurmd is not running, or the controller cannot reach it (see the entry node)",
            "see slurminit logs slurmd; run slurminit doctor again when slurmd responds",
        ),
        NodeVerdict::Repaired => {
            fail("the cause of the drain no longer exists; the next start resumes the node", resume(node))
        }
        _ => Observations::warn(
            describe_node(node),
            "an administrator or Slurm drained the node; it has to be resumed manually",
            resume(node),
        ),
    }
}

fn gres(facts: &Facts, container: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let node = match local_node(container) {
        Err(answer) => return Observations::all(found, || answer),
        Ok(node) => node,
    };
    let refused = is_refused_because_of(node, is_about_gres).then(|| Observations::usual_fault(describe_node(node)));
    Observations::all(found.into_iter().chain(refused), || {
        let offered = gpus(&node.gres);
        if offered == 0 && facts.inventory().usable_gpus().next().is_none() {
            return Observations::note(
                "no usable GPU in this container (see the entry no-gpu), so the node offers none",
            );
        }
        if offered == 0 {
            return Observations::usual_fault("the node offers no GPU, but this container has GPUs");
        }
        Observations::ok(format!("the node offers {}", node.gres))
    })
}

fn real_memory(_: &Facts, container: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let node = observed_value(container, &container.slurm.node);
    let refused = node.ok().filter(|node| is_refused_because_of(node, is_about_memory));
    let refused = refused.map(|node| Observations::usual_fault(describe_node(node)));
    Observations::all(found.into_iter().chain(refused), || Observations::ok("the memory in slurm.conf is available"))
}

fn stale_files(files: &[String]) -> Observations {
    if files.is_empty() {
        return Observations::ok("the installed files are up to date");
    }
    Observations::usual_warning(format!("outdated files: {}", files.join(", ")))
}

fn lost_jobs(jobs: &[(String, String)]) -> Observations {
    let observe = |(job, state): &(String, String)| {
        Observations::usual_warning(format!(
            "the slurmstepd of job {job} died; the job was requeued or cancelled, and is {state}"
        ))
    };
    Observations::all(jobs.iter().map(observe), || Observations::ok("no job has lost its slurmstepd"))
}

fn waiting_jobs(jobs: &[QueuedJob]) -> Observations {
    if jobs.is_empty() {
        return Observations::ok("no pending jobs");
    }
    // squeue prints the UID of a user whom slurmctld cannot look up.
    if let Some(job) = jobs.iter().find(|job| job.user == job.uid.to_string()) {
        let (id, uid) = (job.number, job.uid);
        return Observations::fail(
            format!("job {id} is pending ({}): slurmctld finds no entry in passwd for its user ID {uid}", job.reason),
            "Slurm cannot create a credential for a user without an entry in passwd, and holds the job",
            format!(
                "add a [[user]] with uid = {uid} to slurminit.toml, or an entry to /etc/passwd; slurminit reload; scontrol release {id}"
            ),
        );
    }
    let explain = |job: &QueuedJob| {
        let waits_for = if job.waits_for.is_empty() { "is pending" } else { job.waits_for.as_str() };
        Observations::usual_hint(format!("job {} of {} {waits_for}", job.id, job.user))
    };
    let unlisted = jobs.len().saturating_sub(MAX_EXPLAINED);
    let more = (unlisted > 0).then(|| Observations::usual_hint(printable::count(unlisted, "more pending job")));
    Observations::all(jobs.iter().take(MAX_EXPLAINED).map(explain).chain(more), || Observations::ok("no pending jobs"))
}
