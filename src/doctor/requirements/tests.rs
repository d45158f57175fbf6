use super::*;
use model::inventory::{Access, Driver, Ecc, MigInstance, Obstacle, Pcie, Slowdown, Source, Vendor};

fn nvidia(version: Option<&str>, cuda: Option<&str>) -> Driver {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Driver { vendor: Vendor::Nvidia, source: Source::Nvml, version: owned(version), cuda_version: owned(cuda) }
}

fn gpu(vendor: &str, index: u32, compute: Option<&str>, memory_mib: Option<u64>, condition: Option<Condition>) -> Gpu {
    let compute = serde_json::to_value(compute).unwrap();
    let json = serde_json::json!({
        "vendor": vendor, "index": index, "compute": compute, "memory_mib": memory_mib, "links": {},
        "access": {"state": "usable"},
    });
    Gpu { condition, ..serde_json::from_value(json).unwrap() }
}

fn healthy(index: u32) -> Condition {
    Condition {
        index,
        slowdowns: Some(Vec::new()),
        temperature: Some(35),
        utilization: Some(0),
        pcie: Some(Pcie { generation: 1, highest_generation: 5, lanes: 16, most_lanes: 16 }),
        is_persistent: Some(true),
        ecc: Some(Ecc { is_on: true, uncorrected: Some(0) }),
        ..Condition::default()
    }
}

fn faulty(index: u32) -> Condition {
    Condition {
        slowdowns: Some(vec![Slowdown::Heat]),
        temperature: Some(93),
        utilization: Some(90),
        pcie: Some(Pcie { generation: 1, highest_generation: 5, lanes: 4, most_lanes: 16 }),
        is_persistent: Some(false),
        ecc: Some(Ecc { is_on: true, uncorrected: Some(2) }),
        ..healthy(index)
    }
}

/// Formats each requirement as one line, followed by its cause and fix.
fn verdicts(inventory: &Inventory, image_cuda: Option<&str>, minimum: &Observed<GpuSettings>) -> String {
    let environment = Environment { cuda_version: image_cuda.map(str::to_owned), ..Environment::default() };
    let cuda = CudaFacts::default();
    let facts = RequirementFacts { inventory, environment: &environment, cuda: &cuda, minimum };
    let line = |Requirement { name, observation: Observation { verdict, seen, cause, fix, .. } }: Requirement| {
        let why = cause.zip(fix).map(|(cause, fix)| format!("\n    {cause}\n    {fix}")).unwrap_or_default();
        format!("{name}: {verdict:?}: {seen}{why}\n")
    };
    requirements(&facts).into_iter().map(line).collect()
}

fn minimum(compute: &str, memory_mib: u64) -> Observed<GpuSettings> {
    Ok(GpuSettings { min_compute: compute.parse().ok(), min_memory_mib: Some(memory_mib), ..GpuSettings::default() })
}

#[test]
fn reports_verdict_for_each_requirement() {
    let instance = |memory_mib| MigInstance {
        profile: Some("1g.18gb".to_owned()),
        uuid: None,
        gpu_instance: None,
        compute_instance: None,
        memory_mib: Some(memory_mib),
        device_files: Vec::new(),
        access: Access::Usable,
    };
    let mut partitioned = gpu("nvidia", 2, Some("9.0"), Some(143_771), None);
    partitioned.mig = Some(vec![instance(16_384), instance(71_000)]);
    let mut ecc_off = healthy(3);
    ecc_off.ecc = Some(Ecc { is_on: false, uncorrected: None });
    let mut hidden = gpu("nvidia", 4, Some("3.5"), Some(1), Some(faulty(4)));
    hidden.access = Access::unusable(Obstacle::NotGiven, "denied");
    let inventory = Inventory {
        drivers: vec![nvidia(Some("535.154.05"), Some("12.2"))],
        gpus: vec![
            gpu("nvidia", 0, Some("9.0"), Some(143_771), Some(healthy(0))),
            gpu("nvidia", 1, Some("7.5"), Some(15_360), Some(faulty(1))),
            partitioned,
            gpu("nvidia", 3, Some("10.0"), None, Some(ecc_off)),
            hidden,
            gpu("amd", 0, Some("gfx90a"), Some(65_536), None),
        ],
        ..Inventory::default()
    };
    insta::assert_snapshot!(verdicts(&inventory, Some("13.0"), &minimum("8.0", 16_385)));
}

#[test]
fn gives_no_verdict_without_driver_report() {
    let silent = Condition { index: 0, ..Condition::default() };
    let inventory = Inventory {
        drivers: vec![nvidia(None, None)],
        gpus: vec![gpu("nvidia", 0, None, None, Some(silent)), gpu("nvidia", 1, None, None, None)],
        ..Inventory::default()
    };
    assert_eq!(verdicts(&inventory, None, &minimum("9.0", 1)), "");
    assert_eq!(verdicts(&Inventory::default(), Some("12.4"), &Ok(GpuSettings::default())), "");
}

#[test]
fn driver_verdict_follows_minimum_of_cuda_version() {
    let mut seen = String::new();
    for (version, cuda, image_cuda) in [
        (Some("590.48.01"), Some("13.1"), None),
        (Some("580.65.06"), None, None),
        (Some("579.99"), None, Some("13.0")),
        (Some("525.60.13"), None, Some("12.4")),
        (Some("525.60.11"), None, Some("12.4")),
        (Some("470.57.02"), None, None),
        (Some("470.57.01"), None, None),
        (None, Some("12.2"), Some("12.4")),
        (Some("x"), None, Some("12.4")),
    ] {
        let inventory = Inventory { drivers: vec![nvidia(version, cuda)], ..Inventory::default() };
        seen += &verdicts(&inventory, image_cuda, &Ok(GpuSettings::default()));
    }
    insta::assert_snapshot!(seen);
}

#[test]
fn invalid_configuration_yields_no_gpu_verdict() {
    let inventory = Inventory { gpus: vec![gpu("nvidia", 0, Some("3.5"), None, None)], ..Inventory::default() };
    let printed = verdicts(&inventory, None, &Err("slurminit.toml:1: no".to_owned()));
    assert_eq!(printed, "configuration: CouldNotLook: slurminit.toml:1: no\n");
}

#[test]
fn unresponsive_gpu_is_not_reported_as_healthy() {
    let (reporting, silent) = (healthy(0), Condition { index: 1, ..Condition::default() });
    let seen = |answer: &Observations| answer.observations()[0].seen.clone();
    let persistence = work::persistence_of(&[&Condition { is_persistent: Some(true), ..reporting }, &silent]).unwrap();
    assert_eq!(seen(&persistence), "persistence mode is on for GPU 0");
    let observation = work::unresponsive_gpu(&silent, Vendor::default());
    assert_eq!(observation, None, "an old driver may support none of the queries");
    let lost = Condition { obstacle: Some(Obstacle::Lost), ..silent.clone() };
    let lost = work::unresponsive_gpu(&lost, Vendor::default()).unwrap();
    assert_eq!((lost.verdict(), seen(&lost).as_str()), (crate::Verdict::Fail, "GPU 1 is lost or needs a reset"));
    let refused = Condition { obstacle: Some(Obstacle::Refused), ..silent };
    assert_eq!(work::unresponsive_gpu(&refused, Vendor::default()).unwrap().verdict(), crate::Verdict::CouldNotLook);
}
