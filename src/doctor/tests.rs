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
        let texts = [entry.examines, entry.cause, entry.repair];
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

/// The startup log contains faults, but no notes.
#[test]
fn start_reports_only_problems() {
    let (inventory, mut environment) = (Inventory::default(), Environment::default());
    environment.proxy = Some("http_proxy");
    let healthy = CheapFacts {
        key: Some(KeyFacts { path: "/etc/munge/munge.key".to_owned(), mode: 0o400, is_from_image: false }),
        cluster: "lab".to_owned(),
        saved_cluster: Some("lab".to_owned()),
        state: "/var/lib/slurm".to_owned(),
        state_disk: Ok(facts::Disk { free_mib: 5_000, total_mib: 9_000, is_read_only: false }),
        ports: vec![Port { daemon: "slurmctld", number: 6817, owner: PortOwner::Free }],
        cuda: CudaFacts::default(),
        memory_kills: Ok(facts::MemoryKills::default()),
        has_kfd: false,
        settings: facts::ContainerSettings::default(),
        exposed_secrets: Vec::new(),
    };
    let findings =
        |cheap: &CheapFacts| startup_findings(&StartFacts { inventory: &inventory, environment: &environment, cheap });
    assert_eq!(findings(&healthy), []);
    let faulty = CheapFacts {
        saved_cluster: Some("old".to_owned()),
        ports: vec![Port { daemon: "slurmctld", number: 6817, owner: PortOwner::External }],
        key: healthy.key.clone().map(|key| KeyFacts { is_from_image: true, ..key }),
        ..healthy
    };
    let findings: Vec<String> = findings(&faulty).into_iter().map(|finding| finding.what).collect();
    assert_eq!(findings.len(), 3, "{findings:?}");
    assert!(findings.iter().any(|what| what.contains("cluster old")), "{findings:?}");
}

#[test]
fn combined_verdict_is_the_worst() {
    let order = [Verdict::Ok, Verdict::Note, Verdict::CouldNotLook, Verdict::Warn, Verdict::Fail];
    assert!(order.is_sorted());
    let both = Observations::all([Observations::ok("a"), Observations::warn("b", "c", "d")], || Observations::ok(""));
    assert_eq!((both.verdict(), both.observations().len()), (Verdict::Warn, 2));
}
