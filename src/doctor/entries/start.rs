//! What a start depends on: configuration, key, clock, ports, disk, address.

use crate::entry::{Entry, Judge};
use crate::facts::{ContainerFacts, Credential, Facts, Holder, Port, Start};
use model::inventory::{Kind, Observations};

/// Less free space than this, in MiB, gets a warning.
const LOW_DISK: u64 = 100;
/// Clock differences below this, in seconds, are tolerated: a credential takes time to arrive.
const CLOCK_DRIFT: i64 = 10;

/// Findings without an entry of their own.
const OTHERS: &[Kind] =
    &[Kind::Container, Kind::Files, Kind::GpuGroups, Kind::GpuNotOffered, Kind::Settings, Kind::Other];

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "configuration",
        symptoms: &["exit code 78"],
        looks_at: "slurminit.toml and the variables that go over it",
        cause: "a key or a value that is not valid",
        repair: "correct the file and line, or the variable, that the answer names; `config/slurminit.toml` explains every key",
        judge: Judge::Container(|_, container| match &container.configuration {
            Ok(()) => Observations::ok("the configuration is valid"),
            Err(why) => Observations::fail(
                why.as_str(),
                "the configuration is not valid, and the container ends with 78",
                "correct it and start again",
            ),
        }),
    },
    Entry {
        id: "munge",
        symptoms: &["`Munge decode failed`", "`Unable to contact slurm controller`", "exit code 100"],
        looks_at: "munge -n | unmunge",
        cause: "munged does not run, or refuses its key or its directories",
        repair: "`slurminit status`, and munged's lines in `docker compose logs slurm`; `docker compose down && docker volume rm slurminit_munge-key` for a new key, \
                 or `chmod 0400` on your secret",
        judge: Judge::Container(munge),
    },
    Entry {
        id: "munge-key",
        symptoms: &["every container that is made of the image has the same munge key"],
        looks_at: "the munge key: its mode, its age, where it lies",
        cause: "the key is a part of the image: Debian's package makes one when it is installed",
        repair: "`rm -f /etc/munge/munge.key` in the image's Dockerfile, in the layer that installs munge; then a volume or a secret",
        judge: Judge::Start(munge_key),
    },
    Entry {
        id: "clock",
        symptoms: &[
            "munge says `Rewound credential` or `Expired credential`: the clocks of two machines differ",
            "munge says `Invalid credential`: the keys of two machines differ",
        ],
        looks_at: "a credential that another machine has just made: `ssh OTHER munge -n | slurminit doctor --credential -`",
        cause: "munge takes a credential for 5 minutes by the clocks of both machines, and only with the same key on both",
        repair: "`sudo timedatectl set-ntp true` on both hosts; the same key on both (`/run/secrets/munge.key`)",
        judge: Judge::Container(clock),
    },
    Entry {
        id: "ports",
        symptoms: &["`Address already in use`", "exit code 101 or 102"],
        looks_at: "who listens on the ports of slurmctld and slurmd",
        cause: "another Slurm, with `--network host` or in a container that shares this one's network",
        repair: "`controller_port` and `daemon_port` in `[slurm]` of slurminit.toml",
        judge: Judge::Start(ports),
    },
    Entry {
        id: "saved-state",
        symptoms: &[
            "`CLUSTER NAME MISMATCH`, exit code 78",
            "`Incomplete job state save file, start with '-i' to ignore this`, exit code 101",
        ],
        looks_at: "the cluster's name in slurmctld's saved state, and in slurm.conf",
        cause: "the state volume belongs to a cluster of another name; or a full disk or a power failure cut a file of it short",
        repair: "the old `cluster_name`, or, to lose the old jobs, `docker compose down && docker volume rm slurminit_state`; a file that \
                 is cut short is put aside, with the command in the container's last words, and slurmctld takes the one before it",
        judge: Judge::Start(saved_state),
    },
    Entry {
        id: "disk",
        symptoms: &["`No space left on device`", "exit code 104, \"cannot write\""],
        looks_at: "free space and mount options of the state directory",
        cause: "the disk is full, or the volume is mounted read-only",
        repair: "`docker system df` shows what takes the space; mount the volume without `:ro`",
        judge: Judge::Start(disk),
    },
    Entry {
        id: "address",
        symptoms: &["exit code 101 or 102 with `--network none`", "the start takes seconds longer than it should"],
        looks_at: "getent hosts, for this host's own name",
        cause: "Slurm looks up its own host's address, and no file and no name server has it",
        repair: "use a network, if only an internal one; `docker run --add-host NAME:ADDRESS`",
        judge: Judge::Container(|_, container| match &container.has_address {
            Err(why) => Observations::could_not_look(why.as_str()),
            Ok(true) => Observations::ok("this host's name has an address"),
            Ok(false) => Observations::fail(
                "this host's name has no address",
                "Slurm looks it up; --network none leaves it out of /etc/hosts",
                "use a network, if only an internal one, or docker run --add-host NAME:ADDRESS",
            ),
        }),
    },
    Entry {
        id: "memory-kills",
        symptoms: &["Jobs failing with OOM errors", "`slurmstepd: error: Detected 1 oom_kill event`"],
        looks_at: "oom_kill in the container's memory.events, and its limit",
        cause: "jobs use more memory than they asked for, up to the container's limit",
        repair: "`srun --mem=8G`; a higher limit: `docker run --memory` (compose: `deploy.resources.limits.memory`)",
        judge: Judge::Start(memory_kills),
    },
    Entry {
        id: "limits",
        symptoms: &["fewer CPUs or less memory than the machine has"],
        looks_at: "the container's cpuset, CPU quota and memory limit",
        cause: "the container has a limit",
        repair: "`docker run --cpus`, `--cpuset-cpus`, `--memory` set them",
        judge: Judge::Container(limits),
    },
    Entry {
        id: "proxy",
        symptoms: &[
            "a service in the container cannot be reached, or drops its results, through a proxy (a notebook does not find its kernel)",
        ],
        looks_at: "http_proxy and no_proxy in the container's environment",
        cause: "programs of this container send what is meant for the container itself through a proxy that does not pass it on",
        repair: "`no_proxy=localhost,127.0.0.1,NAME` beside http_proxy; open the service's page without the proxy",
        judge: Judge::Start(proxy),
    },
    Entry {
        id: "others",
        symptoms: &["any other finding of the start"],
        looks_at: "what detection and plan find",
        cause: "the answer says it",
        repair: "the answer says it",
        judge: Judge::Findings(OTHERS, "nothing else was found"),
    },
];

fn munge(_: &Facts, container: &ContainerFacts) -> Observations {
    if let Err(why) = &container.status {
        return Observations::note(why.as_str());
    }
    match &container.munge {
        Err(why) => Observations::fail(
            format!("munge does not answer: {why}"),
            "munged does not run, or its socket is elsewhere",
            "slurminit status, and munged's lines in docker logs",
        ),
        Ok(own) if own.status == "Success" => Observations::ok("munged makes and reads credentials"),
        Ok(own) => Observations::fail(
            format!("munged refuses a credential that it made itself: {}", own.status),
            "its clock jumped, or its key changed under it",
            "docker compose restart slurm",
        ),
    }
}

fn munge_key(start: &Start<'_>) -> Observations {
    let Some(key) = &start.cheap.key else {
        return Observations::note("there is no munge key yet; the start makes one");
    };
    let path = &key.path;
    if key.is_of_the_image {
        return Observations::warn(
            format!("the munge key {path} came with the image: every container that is made of it has the same one"),
            "the image was built without removing the key that munge's package makes; who has the image can be anybody in this cluster",
            format!(
                "rm -f {path} in the Dockerfile, in the layer that installs munge; or mount a volume or a secret of your own"
            ),
        );
    }
    if key.mode & 0o077 != 0 {
        return Observations::fail(
            format!("the munge key {path} has mode {:04o}: others can read it", key.mode),
            "munged refuses it at its next start",
            format!("chmod 0400 {path}; make a new key if somebody else may have read it"),
        );
    }
    Observations::ok(format!("{path} is this cluster's own, mode {:04o}", key.mode))
}

fn clock(_: &Facts, container: &ContainerFacts) -> Observations {
    match &container.foreign_credential {
        None => Observations::note(
            "give it one with `ssh OTHER munge -n | slurminit doctor --credential -`; one machine alone needs none",
        ),
        Some(Err(why)) => Observations::could_not_look(why.as_str()),
        Some(Ok(credential)) => foreign(credential),
    }
}

fn foreign(credential: &Credential) -> Observations {
    let Credential { status, encoded, decoded } = credential;
    let seconds = encoded.zip(*decoded).map(|(encoded, decoded)| decoded - encoded);
    let sync = "sudo timedatectl set-ntp true on both hosts";
    match (status.as_str(), seconds) {
        ("Success" | "Replayed credential", Some(seconds)) if seconds.abs() < CLOCK_DRIFT => {
            Observations::ok("it has the same key and the same time")
        }
        ("Success" | "Replayed credential", None) => Observations::ok("it has the same key"),
        ("Success" | "Replayed credential", Some(seconds)) => Observations::warn(
            format!("it has the same key; {}", apart(seconds)),
            "its clock is wrong, or the credential was not made just now; munge refuses one that is 5 minutes off",
            sync,
        ),
        ("Expired credential" | "Rewound credential", seconds) => Observations::fail(
            format!("munge refuses it ({status}): {}", seconds.map_or_else(|| "the clocks differ".to_owned(), apart)),
            "the clocks of the two machines differ by more than the credential's life, or it was not made just now",
            sync,
        ),
        (status, _) => Observations::fail(
            format!("munge refuses it: {status}"),
            "the other machine has another munge key",
            "give both the same key, as the secret /run/secrets/munge.key, and restart both",
        ),
    }
}

fn apart(seconds: i64) -> String {
    let way = if seconds < 0 { "after" } else { "before" };
    format!("it was made {} s {way} this machine's time", seconds.abs())
}

fn ports(start: &Start<'_>) -> Observations {
    let judge = |port: &Port| {
        let Port { daemon, number, holder } = port;
        match holder {
            Holder::Nobody => Observations::note(format!("nobody listens on {number}, {daemon}'s port")),
            Holder::Process(name) if name == daemon => Observations::ok(format!("{daemon} listens on {number}")),
            Holder::Process(name) => taken(port, &format!("the process {name} of this container")),
            Holder::Stranger => taken(port, "a process outside of this container"),
        }
    };
    Observations::all(start.cheap.ports.iter().map(judge), || Observations::note("it was not looked at"))
}

fn taken(port: &Port, who: &str) -> Observations {
    let Port { daemon, number, .. } = port;
    let key = if *daemon == "slurmctld" { "controller_port" } else { "daemon_port" };
    Observations::fail(
        format!("{who} listens on {number}, {daemon}'s port"),
        "another Slurm, or another service: --network host, or a network that is shared with another container",
        format!("set {key} in [slurm] of slurminit.toml to a free port, or end the other one"),
    )
}

fn saved_state(start: &Start<'_>) -> Observations {
    let (own, state) = (&start.cheap.cluster, &start.cheap.state);
    match &start.cheap.saved_cluster {
        None => Observations::ok(format!("no jobs are saved in {state}")),
        Some(saved) if saved.eq_ignore_ascii_case(own) => {
            Observations::ok(format!("the jobs in {state} are those of the cluster {own}"))
        }
        Some(saved) => Observations::fail(
            format!("the jobs in {state} are those of the cluster {saved}, and this one is called {own}"),
            "slurmctld ends with CLUSTER NAME MISMATCH, so that it does not lose them",
            format!("set cluster_name = \"{saved}\"; or, to lose the old jobs, remove the state volume"),
        ),
    }
}

fn disk(start: &Start<'_>) -> Observations {
    let state = &start.cheap.state;
    match &start.cheap.state_disk {
        Err(why) => Observations::could_not_look(why.as_str()),
        Ok(disk) if disk.is_read_only => Observations::fail(
            format!("{state} is read-only"),
            "slurmctld must write its jobs there",
            "mount the volume without :ro",
        ),
        Ok(disk) if disk.free_mib < LOW_DISK => Observations::warn(
            format!("{state} has {} of {} MiB left", disk.free_mib, disk.whole_mib),
            "the disk is nearly full: slurmctld loses jobs that it cannot write",
            "free some space: docker system df shows what takes it",
        ),
        Ok(_) => Observations::ok(format!("{state} has at least {LOW_DISK} MiB left")),
    }
}

fn memory_kills(start: &Start<'_>) -> Observations {
    match &start.cheap.memory_kills {
        Err(why) => Observations::note(why.as_str()),
        Ok(0) => Observations::ok("the kernel killed nothing in this container for want of memory"),
        Ok(kills) => Observations::warn(
            format!("the kernel killed {kills} processes of this container for want of memory"),
            "jobs used more than they asked for, up to the container's limit",
            "ask for what a job needs (srun --mem=8G); raise the limit with docker run --memory",
        ),
    }
}

fn limits(facts: &Facts, _: &ContainerFacts) -> Observations {
    let inventory = &facts.inventory;
    let machine: usize = inventory.cpu.sockets.iter().flatten().map(model::inventory::CpuSet::len).sum();
    let mut limits = Vec::new();
    if inventory.cpu.allowed.len() < machine {
        limits.push(format!("{} of the machine's {machine} CPUs", inventory.cpu.allowed.len()));
    }
    limits.extend(inventory.cpu.quota.map(|quota| format!("the time of {quota} CPUs")));
    let memory = &inventory.memory;
    if memory.usable_mib() < memory.total_mib {
        limits.push(format!("{} of the machine's {} MiB", memory.usable_mib(), memory.total_mib));
    }
    if limits.is_empty() {
        return Observations::ok("the container may use the whole machine");
    }
    Observations::hint(
        format!("the container may use {}", limits.join(", ")),
        "it was created with limits",
        "docker run --cpus, --cpuset-cpus and --memory set them",
    )
}

fn proxy(start: &Start<'_>) -> Observations {
    let environment = start.environment;
    let Some(name) = environment.proxy else { return Observations::ok("no proxy is set") };
    let exceptions = environment.no_proxy.as_deref().unwrap_or_default();
    if exceptions.split(',').any(|host| matches!(host.trim(), "localhost" | "*")) {
        return Observations::ok(format!("{name} is set, and no_proxy leaves localhost out"));
    }
    Observations::hint(
        format!("{name} is set, and no_proxy does not name localhost"),
        "programs here may send what is meant for this container itself through the proxy, which drops it",
        "set no_proxy=localhost,127.0.0.1 beside it; open pages of services without the proxy",
    )
}
