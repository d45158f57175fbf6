//! What a start depends on: configuration, key, clock, ports, disk, address.

use std::collections::BTreeSet;

use crate::entry::{Check, Entry};
use crate::facts::{ContainerFacts, Credential, Facts, Port, PortOwner, StartFacts};
use model::inventory::{Kind, Observations};
use model::oom_kill::OomKill;
use model::printable;

/// The free space for the state directory, in MiB, below which doctor and each start warn.
const LOW_DISK_MIB: u64 = 100;

/// The kinds of findings that belong to no other entry.
const OTHER_KINDS: &[Kind] =
    &[Kind::Container, Kind::Files, Kind::GpuGroups, Kind::GpuNotOffered, Kind::Settings, Kind::Other];

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "configuration",
        symptoms: &["exit code 78"],
        examines: "slurminit.toml and the variables that override it",
        cause: "an invalid key or value; the container exits with 78",
        fix: "correct the line or the variable that the finding names; `config/reference.toml` explains every key",
        check: Check::Container(|facts, _| match &facts.root.read().configuration {
            Ok(()) => Observations::ok("the configuration is valid"),
            Err(why) => Observations::usual_fault(why.as_str()),
        }),
    },
    Entry {
        id: "munge",
        symptoms: &["`Munge decode failed`", "`Unable to contact slurm controller`", "exit code 100"],
        examines: "munge -n | unmunge",
        cause: "munged is not running, uses another socket, or rejects its key or its directories",
        fix: "see `slurminit status` and `slurminit logs munged`; run `chmod 0400` on your mounted key, or remove the volume of /etc/munge so that a new key is created",
        check: Check::Container(munge),
    },
    Entry {
        id: "munge-key",
        symptoms: &["every container of the image has the same munge key"],
        examines: "the munge key: mode, age, location",
        cause: "Debian's package creates a key at installation; anyone with the image can impersonate any user of this cluster",
        fix: "`rm -f /etc/munge/munge.key` in the image's Dockerfile, in the layer that installs munge; then use a volume or a secret",
        check: Check::Start(Kind::MungeKey, munge_key),
    },
    Entry {
        id: "munge-peers",
        symptoms: &[
            "the log repeats `Munge decode failed: Invalid credential`",
            "after a new munge key, a node is down or a container is not ready",
        ],
        examines: "the last log lines of slurmctld and slurmd: hosts whose credentials were rejected in the last 5 minutes",
        cause: "that host's container and this one have different munge keys, one munged still uses an old key, or the clocks differ (see the entry clock)",
        fix: "use the same key in both containers, then restart both containers",
        check: Check::Container(|facts, _| {
            let rejected = facts.root.read().rejected_peers.as_ref();
            rejected.map_or_else(|why| Observations::note(why.as_str()), munge_peers)
        }),
    },
    Entry {
        id: "clock",
        symptoms: &[
            "munge reports `Rewound credential` or `Expired credential`: the clocks of two machines differ",
            "munge reports `Invalid credential`: the keys of two machines differ",
        ],
        examines: "a fresh credential from another machine: `ssh OTHER munge -n | slurminit doctor --credential -`",
        cause: "munge accepts a fresh credential for 5 minutes, by the clocks of both machines, and requires the same key on both",
        fix: "`sudo timedatectl set-ntp true` on both hosts; use the same key on both (`/run/secrets/munge.key`), and restart both containers",
        check: Check::Container(clock),
    },
    Entry {
        id: "ports",
        symptoms: &["`Address already in use`", "exit code 101 or 102"],
        examines: "the owners of the ports of slurmctld and slurmd",
        cause: "another Slurm daemon or service uses the port: on the host with `--network host`, or in a container that shares the network",
        fix: "set `controller_port` or `daemon_port` in `[slurm]` of slurminit.toml to a free port, or stop the other process",
        check: Check::Start(Kind::Ports, ports),
    },
    Entry {
        id: "saved-state",
        symptoms: &[
            "`CLUSTER NAME MISMATCH`, exit code 78",
            "`Incomplete job state save file, start with '-i' to ignore this`, exit code 101",
        ],
        examines: "the cluster's name in slurmctld's saved state, and in slurm.conf",
        cause: "the state volume belongs to a cluster with another name; or a full disk or a power failure truncated a file",
        fix: "use the old `cluster_name`, or remove the state volume with its jobs; truncated file: see the last log lines",
        check: Check::Start(Kind::SavedState, saved_state),
    },
    Entry {
        id: "disk",
        symptoms: &["`No space left on device`", "exit code 104, \"cannot write\""],
        examines: "free space and mount options of the state directory",
        cause: "the disk is full, or the volume is mounted read-only; slurmctld loses jobs that it cannot save",
        fix: "free disk space (`docker system df` shows what uses it); mount the volume without `:ro`",
        check: Check::Start(Kind::Disk, disk),
    },
    Entry {
        id: "address",
        symptoms: &["exit code 101 or 102 with `--network none`", "the start is delayed by several seconds"],
        examines: "getent hosts, for this host's own name",
        cause: "Slurm looks up the address of its own host, but neither /etc/hosts nor a name server contains it; with `--network none`, the engine does not add it to /etc/hosts",
        fix: "use a network (an internal one is enough), or `docker run --add-host NAME:ADDRESS`",
        check: Check::Container(|_, container| match &container.has_address {
            Err(why) => Observations::could_not_look(why.as_str()),
            Ok(true) => Observations::ok("this host's name resolves"),
            Ok(false) => Observations::usual_fault("this host's name does not resolve"),
        }),
    },
    Entry {
        id: "memory-kills",
        symptoms: &["Jobs failing with OOM errors", "`slurmstepd: error: Detected 1 oom_kill event`"],
        examines: "oom_kill in the container's memory.events (cgroup v1: memory.oom_control), and the job processes that were killed",
        cause: "jobs used more memory than they requested, or together more than the container's limit",
        fix: "request enough memory (`srun --mem=8G`), or raise the container's limit: `docker run --memory` (compose: `deploy.resources.limits.memory`)",
        check: Check::Start(Kind::MemoryKills, memory_kills),
    },
    Entry {
        id: "oom-group",
        symptoms: &[
            "in Kubernetes, the whole container ends with OOMKilled (exit code 137) when one job runs out of memory",
        ],
        examines: "memory.oom.group of the container's cgroup",
        cause: "since 1.28 the kubelet has the kernel kill all processes of a container together",
        fix: "`singleProcessOOMKill: true` in the kubelet's configuration (Kubernetes 1.32); or make the cgroup writable, so that slurminit can turn off memory.oom.group",
        check: Check::Start(Kind::OomGroup, oom_group),
    },
    Entry {
        id: "limits",
        symptoms: &["fewer CPUs or less memory than the machine has"],
        examines: "the container's cpuset, CPU quota and memory limit",
        cause: "the container was created with limits",
        fix: "change the limits with `docker run --cpus`, `--cpuset-cpus` or `--memory`",
        check: Check::Container(limits),
    },
    Entry {
        id: "proxy",
        symptoms: &[
            "behind a proxy, a service in the container is unreachable or loses results (a notebook cannot reach its kernel)",
        ],
        examines: "http_proxy and no_proxy in the container's environment",
        cause: "programs in this container may send local requests to the proxy, which drops them",
        fix: "set `no_proxy=localhost,127.0.0.1,NAME` wherever http_proxy is set (NAME: the container's host name); open the service's page without the proxy",
        check: Check::Start(Kind::Proxy, proxy),
    },
    Entry {
        id: "others",
        symptoms: &["any other finding of the start"],
        examines: "other findings of detection and planning",
        cause: "see the finding",
        fix: "see the finding",
        check: Check::Findings(OTHER_KINDS, "no other findings"),
    },
];

fn munge(_: &Facts, container: &ContainerFacts) -> Observations {
    if let Err(why) = &container.status {
        return Observations::note(why.as_str());
    }
    match &container.munge {
        Err(why) => Observations::usual_fault(format!("munge does not respond: {why}")),
        Ok(credential) if credential.status == "Success" => Observations::ok("munged encodes and decodes credentials"),
        Ok(credential) => Observations::fail(
            format!("munged rejects its own credential: {}", credential.status),
            "the clock jumped, or munged was restarted with another key during this check",
            "run slurminit doctor again; if the fault persists, docker compose restart slurm",
        ),
    }
}

fn munge_peers(rejected: &BTreeSet<String>) -> Observations {
    let observe = |host: &String| {
        Observations::usual_fault(format!("this container rejected credentials of {host} in the last 5 minutes"))
    };
    Observations::all(rejected.iter().map(observe), || {
        Observations::ok("no credential of another host was rejected in the last 5 minutes")
    })
}

fn munge_key(start: &StartFacts<'_>) -> Observations {
    let key = match &start.cheap.key {
        Err(why) => return Observations::could_not_look(why.as_str()),
        Ok(None) => return Observations::note("no munge key yet; a start of the controller creates one"),
        Ok(Some(key)) => key,
    };
    let path = &key.path;
    if key.is_from_image {
        return Observations::usual_warning(format!(
            "the munge key {path} is part of the image: every container of the image has the same key"
        ));
    }
    if key.mode & 0o077 != 0 {
        return Observations::fail(
            format!("the munge key {path} has mode {:04o}: the mode gives other users access", key.mode),
            "munged rejects the key at its next start",
            format!("chmod 0400 {path}; create a new key if another user may have read or replaced it"),
        );
    }
    Observations::ok(format!("{path} (mode {:04o}) is not part of the image", key.mode))
}

fn clock(_: &Facts, container: &ContainerFacts) -> Observations {
    match &container.foreign_credential {
        None => Observations::note(
            "not checked: run `ssh OTHER munge -n | slurminit doctor --credential -` (not needed with a single machine)",
        ),
        Some(Err(why)) => Observations::could_not_look(why.as_str()),
        Some(Ok(credential)) => foreign_credential(credential, container.step_credential_lifetime),
    }
}

fn foreign_credential(credential: &Credential, lifetime: i64) -> Observations {
    let Credential { status, encoded, decoded } = credential;
    let seconds = encoded.zip(*decoded).map(|(encoded, decoded)| decoded - encoded);
    match (status.as_str(), seconds) {
        ("Success" | "Replayed credential", Some(seconds)) if seconds.abs() < lifetime => {
            Observations::ok(format!("same key; {}", clock_difference(seconds)))
        }
        ("Success" | "Replayed credential", None) => Observations::ok("same key"),
        ("Success" | "Replayed credential", Some(seconds)) => Observations::usual_warning(format!(
            "same key; {}; slurmd rejects steps (\"Job credential expired\") if its clock is {lifetime} s ahead",
            clock_difference(seconds)
        )),
        ("Expired credential" | "Rewound credential", seconds) => Observations::usual_fault(format!(
            "munge rejects the credential ({status}): {}",
            seconds.map_or_else(|| "the clocks differ".to_owned(), clock_difference)
        )),
        ("Invalid credential", _) => Observations::usual_fault(
            "munge rejects the credential: Invalid credential; the other machine has another munge key, or the credential is incomplete",
        ),
        (status, _) => Observations::usual_fault(format!(
            "munge rejects the credential: {status}; pass the complete output of `munge -n` from the other machine"
        )),
    }
}

fn clock_difference(seconds: i64) -> String {
    let direction = if seconds < 0 { "ahead of" } else { "behind" };
    format!("the credential's timestamp is {} s {direction} this machine's clock", seconds.abs())
}

fn ports(start: &StartFacts<'_>) -> Observations {
    let check = |port: &Port| {
        let Port { daemon, number, owner } = port;
        match owner {
            PortOwner::Free => Observations::note(format!("port {number} of {daemon} is free")),
            PortOwner::Process(name) if name == daemon => Observations::ok(format!("{daemon} listens on {number}")),
            PortOwner::Process(name) => port_conflict(port, &format!("process {name} of this container")),
            PortOwner::External => port_conflict(port, "another process, probably outside of this container"),
        }
    };
    Observations::all(start.cheap.ports.iter().map(check), || Observations::note("not checked"))
}

fn port_conflict(port: &Port, owner: &str) -> Observations {
    Observations::usual_fault(format!("port {} of {} is in use by {owner}", port.number, port.daemon))
}

fn saved_state(start: &StartFacts<'_>) -> Observations {
    let (cluster, state) = (&start.cheap.cluster, &start.cheap.state);
    match &start.cheap.saved_cluster {
        Err(why) => Observations::could_not_look(why.as_str()),
        Ok(None) => Observations::ok(format!("no saved jobs in {state}")),
        // Without a plan, the name of this cluster is unknown.
        Ok(Some(saved)) if cluster.is_empty() => {
            Observations::note(format!("the saved jobs in {state} belong to cluster {saved}"))
        }
        Ok(Some(saved)) if saved.eq_ignore_ascii_case(cluster) => {
            Observations::ok(format!("the saved jobs in {state} belong to cluster {cluster}"))
        }
        Ok(Some(saved)) => Observations::usual_fault(format!(
            "the saved jobs in {state} belong to cluster {saved}, but this cluster is {cluster}"
        )),
    }
}

fn disk(start: &StartFacts<'_>) -> Observations {
    let state = &start.cheap.state;
    match &start.cheap.state_disk {
        Err(why) => Observations::could_not_look(why.as_str()),
        Ok(disk) if disk.is_read_only => Observations::usual_fault(format!("{state} is read-only")),
        Ok(disk) if disk.free_mib < LOW_DISK_MIB => {
            Observations::usual_warning(format!("{state} has {} of {} MiB free", disk.free_mib, disk.total_mib))
        }
        Ok(_) => Observations::ok(format!("{state} has at least {LOW_DISK_MIB} MiB free")),
    }
}

fn memory_kills(start: &StartFacts<'_>) -> Observations {
    match &start.cheap.memory_kills {
        Err(why) => Observations::note(why.as_str()),
        Ok(kills) if kills.count == 0 => Observations::ok("no OOM kills in this container"),
        Ok(kills) => Observations::usual_warning(format!(
            "{} in this container{}",
            printable::count(kills.count, "OOM kill"),
            format_kills(&kills.job_kills)
        )),
    }
}

fn oom_group(start: &StartFacts<'_>) -> Observations {
    if !start.cheap.has_oom_group {
        return Observations::ok("an OOM kill ends one process");
    }
    Observations::usual_warning("an OOM kill ends the container and all its jobs (memory.oom.group is 1)")
}

/// Formats OOM kills as the end of a message: `: job 7 (python3, 900 MiB), ...`.
fn format_kills(kills: &[OomKill]) -> String {
    let format_kill = |kill: &OomKill| {
        let OomKill { job, process, resident_mib } = kill;
        format!("job {job} ({}, {resident_mib} MiB)", printable::line(process))
    };
    match kills {
        [] => String::new(),
        kills => format!(": {}", kills.iter().map(format_kill).collect::<Vec<_>>().join(", ")),
    }
}

fn limits(facts: &Facts, _: &ContainerFacts) -> Observations {
    let inventory = facts.inventory();
    let machine: usize = inventory.cpu.sockets.iter().flatten().map(model::inventory::CpuSet::len).sum();
    let mut limits = Vec::new();
    if inventory.cpu.allowed.len() < machine {
        limits.push(format!("{} of the machine's {machine} CPUs", inventory.cpu.allowed.len()));
    }
    limits.extend(inventory.cpu.quota.map(|quota| format!("a CPU quota of {quota} CPUs")));
    let memory = &inventory.memory;
    if memory.usable_mib() < memory.total_mib {
        limits.push(format!("{} of the machine's {} MiB of memory", memory.usable_mib(), memory.total_mib));
    }
    if limits.is_empty() {
        return Observations::ok("the container may use all CPUs and memory of the machine");
    }
    Observations::usual_hint(format!("the container's limits: {}", limits.join(", ")))
}

fn proxy(start: &StartFacts<'_>) -> Observations {
    let environment = start.environment;
    let Some(name) = environment.proxy else { return Observations::ok("no proxy is set") };
    let exceptions = environment.no_proxy.as_deref().unwrap_or_default();
    if exceptions.split(',').any(|host| matches!(host.trim(), "localhost" | "*")) {
        return Observations::ok(format!("{name} is set; no_proxy covers localhost"));
    }
    Observations::usual_hint(format!("{name} is set, but no_proxy does not contain localhost"))
}
