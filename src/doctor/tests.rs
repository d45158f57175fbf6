use std::collections::BTreeSet;

use super::facts::{CheapFacts, CudaFacts, Environment, KeyFacts, Port, PortOwner};
use super::*;
use model::inventory::Inventory;
use model::inventory::Kind;

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
fn container(cheap: CheapFacts) -> facts::ContainerFacts {
    let unit = |name: &str| machine::UnitSnapshot { name: name.to_owned(), ..machine::UnitSnapshot::default() };
    facts::ContainerFacts {
        status: Ok(machine::Snapshot { units: vec![unit("munged"), unit("slurmd")], ..machine::Snapshot::default() }),
        slurm: facts::SlurmFacts::not_queried("the controller does not respond"),
        munge: Err("no munged".to_owned()),
        foreign_credential: None,
        step_credential_lifetime: 10,
        has_address: Ok(true),
        gpu_health: Err("no GPU agent in this container".to_owned()),
        namespaces: Ok(()),
        proot: Ok(()),
        ordinary_user: None,
        ssh_clients: None,
        cheap,
    }
}

/// What a user observes if the GPUs are closed: a denied driver, and files that seem outdated.
fn denied() -> facts::RootFacts {
    let finding = |kind| Finding::error(kind, "denied", "closed", "docker compose restart slurm");
    facts::RootFacts {
        inventory: Inventory::default(),
        conditions: Err("Unknown Error".to_owned()),
        configuration: Err("slurminit.toml: permission denied".to_owned()),
        findings: [Kind::GpuDoesNotOpen, Kind::NvmlRefuses, Kind::Gres, Kind::GpuType].map(finding).to_vec(),
        stale_files: Ok(vec!["gres.conf".to_owned()]),
        rejected_peers: Ok(["c1.lab".to_owned()].into()),
    }
}

/// The answers of users do not depend on what only root can observe, and offer no fix that only root can do.
#[test]
fn user_gets_no_answer_that_needs_root() {
    let examined = |is_root: bool, root: facts::RootFacts| {
        let side = Side::Container(Box::new(container(healthy())));
        let facts = Facts { is_root, root: RootOnly::new(root), environment: Environment::default(), side };
        examine(&facts).into_iter().map(|it| (it.entry.id, it.observations)).collect::<Vec<_>>()
    };
    let seen_by_root = || facts::RootFacts {
        inventory: Inventory::default(),
        conditions: Ok(Vec::new()),
        configuration: Ok(()),
        findings: Vec::new(),
        stale_files: Ok(Vec::new()),
        rejected_peers: Ok(std::collections::BTreeSet::new()),
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
