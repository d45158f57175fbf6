use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::facts::{CheapFacts, ContainerFacts, CudaFacts, Environment, KeyFacts, Port, PortOwner, RootFacts};
use super::*;
use model::inventory::{DeviceFiles, Gpu, Inventory, Kind};
use model::oom_kill::OomKill;
use model::queued_job::QueuedJob;

fn entries() -> impl Iterator<Item = &'static Entry> {
    PARTS.iter().flat_map(|part| part.entries)
}

#[test]
fn every_entry_has_unique_name_and_all_texts() {
    let mut names = BTreeSet::new();
    for entry in entries() {
        assert!(names.insert(entry.id), "duplicate entry {}", entry.id);
        let texts = [entry.examines, entry.cause, entry.fix];
        assert!(!entry.symptoms.is_empty() && texts.iter().all(|text| !text.is_empty()), "{}", entry.id);
    }
}

/// A new kind of finding fails this test until it is assigned to an entry.
#[test]
fn every_kind_of_finding_has_one_entry() {
    let mut assigned = BTreeSet::new();
    for entry in entries() {
        let kinds = match &entry.check {
            Check::Findings(kinds, _) | Check::FindingsAnd(kinds, _) => *kinds,
            Check::Start(kind, _) => {
                assert_eq!(kind.to_string(), entry.id);
                std::slice::from_ref(kind)
            }
            _ => continue,
        };
        kinds.iter().for_each(|kind| assert!(assigned.insert(*kind), "{kind:?} has two entries"));
    }
    assert_eq!(assigned.len(), Kind::Other as usize + 1, "a kind has no entry; assigned: {assigned:?}");
}

/// A container with a healthy cluster, as far as every user can observe it.
fn container(cheap: CheapFacts) -> ContainerFacts {
    let unit = |name: &str| machine::UnitSnapshot { name: name.to_owned(), ..machine::UnitSnapshot::default() };
    ContainerFacts {
        status: Ok(machine::Snapshot { units: vec![unit("munged"), unit("slurmd")], ..machine::Snapshot::default() }),
        slurm: facts::SlurmFacts::not_queried("the controller does not respond"),
        munge: Err("no munged".to_owned()),
        foreign_credential: None,
        step_credential_lifetime: 10,
        has_address: Ok(true),
        gpu_health: Err("no report of a running GPU agent".to_owned()),
        namespaces: Ok(()),
        proot: Ok(()),
        ordinary_user: None,
        ssh_clients: None,
        cheap,
    }
}

/// What a user observes if the GPUs are closed: a denied driver, and files that seem outdated.
fn denied() -> RootFacts {
    let finding = |kind| Finding::error(kind, "denied", "closed", "docker compose restart slurm");
    RootFacts {
        inventory: Inventory::default(),
        conditions: Err("Unknown Error".to_owned()),
        configuration: Err("slurminit.toml: permission denied".to_owned()),
        findings: [Kind::GpuDoesNotOpen, Kind::NvmlRefuses, Kind::Gres, Kind::GpuType].map(finding).to_vec(),
        stale_files: Ok(vec!["gres.conf".to_owned()]),
        rejected_peers: Ok(["c1.lab".to_owned()].into()),
    }
}

/// What root observes in a healthy container.
fn seen_by_root() -> RootFacts {
    RootFacts {
        inventory: Inventory::default(),
        conditions: Ok(Vec::new()),
        configuration: Ok(()),
        findings: Vec::new(),
        stale_files: Ok(Vec::new()),
        rejected_peers: Ok(BTreeSet::new()),
    }
}

/// The answers of users do not depend on what only root can observe, and offer no fix that only root can do.
#[test]
fn user_gets_no_answer_that_needs_root() {
    let examined = |is_root: bool, root: RootFacts| {
        let side = Side::Container(Box::new(container(healthy())));
        let facts = Facts { is_root, root: RootOnly::new(root), environment: Environment::default(), side };
        examine(&facts).into_iter().map(|it| (it.entry.id, it.observations)).collect::<Vec<_>>()
    };
    let user = examined(false, denied());
    assert_eq!(user, examined(false, seen_by_root()), "the user's answers depend on what only root can observe");
    let of = |answers: &[(&str, Observations)], entry: &str| {
        answers.iter().find(|(id, _)| *id == entry).map(|(_, answer)| answer.clone()).unwrap()
    };
    let as_root = examined(true, denied());
    for entry in ["configuration", "device-rules", "gpu-type", "gres", "stale-files", "munge-peers"] {
        assert_eq!(of(&user, entry), root_only::not_checked(), "{entry}");
        assert!(of(&as_root, entry).verdict() >= Verdict::Warn, "{entry}");
    }
    assert_eq!(of(&user, "munge").verdict(), Verdict::Fail);
    for (entry, answer) in user {
        let fixes = answer.observations().iter().filter(|it| it.verdict >= Verdict::Warn).map(|it| &it.fix);
        assert!(fixes.flatten().all(|fix| fix == ASK_ADMINISTRATOR), "{entry}: {answer:?}");
    }
}

/// The cheap observations of a container without a fault.
fn healthy() -> CheapFacts {
    CheapFacts {
        key: Ok(Some(KeyFacts { path: "/etc/munge/munge.key".to_owned(), mode: 0o400, is_from_image: false })),
        cluster: "lab".to_owned(),
        saved_cluster: Ok(Some("lab".to_owned())),
        state: "/var/lib/slurm".to_owned(),
        state_disk: Ok(facts::Disk { free_mib: 5_000, total_mib: 9_000, is_read_only: false }),
        ports: vec![Port { daemon: "slurmctld", number: 6817, owner: PortOwner::Free }],
        cuda: CudaFacts::default(),
        memory_kills: Ok(facts::MemoryKills::default()),
        has_oom_group: false,
        has_kfd: false,
        settings: facts::ContainerSettings::default(),
        exposed_secrets: Vec::new(),
    }
}

/// The startup log contains faults, but no notes.
#[test]
fn start_reports_only_problems() {
    let (inventory, mut environment) = (Inventory::default(), Environment::default());
    environment.proxy = Some("http_proxy");
    let healthy = healthy();
    let findings = |cheap: &CheapFacts| {
        startup_findings(&StartFacts { inventory: RootOnly::new(&inventory), environment: &environment, cheap })
    };
    assert_eq!(findings(&healthy), []);
    let faulty = CheapFacts {
        saved_cluster: Ok(Some("old".to_owned())),
        ports: vec![Port { daemon: "slurmctld", number: 6817, owner: PortOwner::External }],
        key: healthy.key.clone().map(|key| key.map(|key| KeyFacts { is_from_image: true, ..key })),
        ..healthy
    };
    let findings: Vec<String> = findings(&faulty).into_iter().map(|finding| finding.what).collect();
    assert_eq!(findings.len(), 3, "{findings:?}");
    assert!(findings.iter().any(|what| what.contains("cluster old")), "{findings:?}");
}

#[test]
fn combined_verdict_is_the_worst() {
    let order = [Verdict::Ok, Verdict::Note, Verdict::CouldNotLook, Verdict::Warn, Verdict::Fail];
    let of = |verdict| Observations::with_fix(verdict, "a", "b", "c");
    for (place, better) in order.iter().enumerate() {
        for worse in &order[place..] {
            for pair in [[*better, *worse], [*worse, *better]] {
                let both = Observations::all(pair.map(of), || Observations::ok(""));
                assert_eq!((both.verdict(), both.observations().len()), (*worse, 2), "{pair:?}");
            }
        }
    }
}

/// What root reads about an entry: the verdict and the observation of each line.
fn lines(id: &str, change: impl FnOnce(&mut RootFacts, &mut ContainerFacts)) -> Vec<String> {
    let (mut root, mut container) = (seen_by_root(), container(healthy()));
    change(&mut root, &mut container);
    let side = Side::Container(Box::new(container));
    let facts = Facts { is_root: true, root: RootOnly::new(root), environment: Environment::default(), side };
    let examined = examine(&facts).into_iter().find(|it| it.entry.id == id).unwrap();
    examined.observations.observations().iter().map(|it| format!("{:?} {}", it.verdict, it.seen)).collect()
}

#[test]
fn finished_service_is_neither_running_nor_a_problem() {
    let of = |state| {
        lines("daemons", |_, container| {
            let units = &mut container.status.as_mut().unwrap().units;
            units[0].state = machine::UnitState::Ready;
            (units[1].state, units[1].restarts) = (state, 1);
        })
    };
    assert_eq!(of(machine::UnitState::Finished), ["Ok running: munged"]);
    assert!(of(machine::UnitState::Ready)[0].starts_with("Warn slurmd is running, restarts: 1"));
}

#[test]
fn small_shared_memory_matters_only_with_a_gpu() {
    let of = |mib, gpus: usize| {
        lines("shared-memory", |root, container| {
            container.cheap.settings.shared_memory_mib = mib;
            root.inventory.gpus = vec![Gpu::default(); gpus];
        })
    };
    assert_eq!(of(Some(64), 1), ["Note /dev/shm has 64 MiB"]);
    assert_eq!(of(Some(64), 0), ["Ok /dev/shm has 64 MiB"]);
    assert_eq!(of(Some(1023), 1), ["Note /dev/shm has 1023 MiB"]);
    assert_eq!(of(Some(1024), 1), ["Ok /dev/shm has 1024 MiB"]);
    assert_eq!(of(None, 1), ["Note /dev/shm not found"]);
}

#[test]
fn gpus_that_all_users_can_open_await_the_next_start() {
    let of = |device_files, stale: &[&str], gpus: usize| {
        lines("isolation", |root, _| {
            root.inventory = Inventory { device_files, gpus: vec![Gpu::default(); gpus], ..Inventory::default() };
            root.stale_files = Ok(stale.iter().map(ToString::to_string).collect());
        })
    };
    let (isolated, closed) =
        ("Ok the kernel restricts each job to its own GPUs", "Ok only the job's user can open the job's GPUs");
    for stale in ["prolog", "slurm.conf"] {
        assert_eq!(of(DeviceFiles::Open, &["gres.conf", stale], 1), ["Warn every user can open at least one GPU"]);
        assert_eq!(of(DeviceFiles::Closed, &[stale], 1), [closed]);
        assert_eq!(of(DeviceFiles::Hosts, &[stale], 1), [isolated]);
    }
    assert_eq!(of(DeviceFiles::Open, &["gres.conf"], 1), [isolated]);
    assert_eq!(of(DeviceFiles::Open, &["prolog"], 0), ["Note no usable GPU in this container"]);
}

#[test]
fn names_process_that_has_the_port_of_a_daemon() {
    let of = |owner| {
        lines("ports", |_, container| {
            container.cheap.ports = vec![Port { daemon: "slurmd", number: 6818, owner }];
        })
    };
    assert_eq!(of(PortOwner::Free), ["Note port 6818 of slurmd is free"]);
    assert_eq!(of(PortOwner::Process("slurmd".to_owned())), ["Ok slurmd listens on 6818"]);
    let other = "Fail port 6818 of slurmd is in use by process python3 of this container";
    assert_eq!(of(PortOwner::Process("python3".to_owned())), [other]);
    assert_eq!(
        of(PortOwner::External),
        ["Fail port 6818 of slurmd is in use by another process, probably outside of this container"]
    );
}

#[test]
fn names_jobs_whose_processes_were_killed_for_memory() {
    let of = |count, jobs: &[u32]| {
        let kill = |job: &u32| OomKill { job: *job, process: "python3".to_owned(), resident_mib: 900 };
        let job_kills = jobs.iter().map(kill).collect();
        lines("memory-kills", |_, container| container.cheap.memory_kills = Ok(facts::MemoryKills { count, job_kills }))
    };
    assert_eq!(of(0, &[]), ["Ok no OOM kills in this container"]);
    assert_eq!(of(1, &[]), ["Warn 1 OOM kill in this container"]);
    let named = "Warn 3 OOM kills in this container: job 7 (python3, 900 MiB), job 8 (python3, 900 MiB)";
    assert_eq!(of(3, &[7, 8]), [named]);
}

#[test]
fn address_with_as_many_connections_as_sshd_accepts_is_named() {
    let of = |clients: &[(u8, usize)]| {
        let clients = clients.iter().map(|(last, count)| (IpAddr::from(Ipv4Addr::new(10, 0, 0, *last)), *count));
        lines("ssh-connections", |_, container| container.ssh_clients = Some(clients.collect()))
    };
    assert_eq!(of(&[(1, 39), (2, 2)]), ["Ok SSH connections: 41; client addresses: 2"]);
    assert_eq!(of(&[(1, 40), (2, 2)]), ["Warn 10.0.0.1 has 40 connections to sshd"]);
}

#[test]
fn explains_first_pending_jobs_and_counts_the_others() {
    let of = |count: u64| {
        let job = |number: u64| QueuedJob {
            number,
            id: number.to_string(),
            user: "eve".to_owned(),
            waits_for: "waits".to_owned(),
            ..QueuedJob::default()
        };
        lines("waiting-jobs", |_, container| container.slurm.waiting_jobs = Ok((1..=count).map(job).collect()))
    };
    let five: Vec<String> = (1..=5).map(|number| format!("Note job {number} of eve waits")).collect();
    assert_eq!(of(0), ["Ok no pending jobs"]);
    assert_eq!(of(5), five);
    assert_eq!(of(7), [&five[..], &["Note 2 more pending jobs".to_owned()]].concat());
}
