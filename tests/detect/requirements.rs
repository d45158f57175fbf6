//! The verdicts on GPU requirements in `slurminit detect`.

use serde_json::Value;

use super::{Machine, succeeded};
use model::inventory::{Inventory, Source};

/// Name and verdict of each requirement.
fn verdicts(machine: &Machine, arguments: &[&str]) -> (Inventory, Vec<(String, String)>) {
    let output = machine.command().args(["--json", "--timeout", "2"]).args(arguments).output().unwrap();
    let text = succeeded(output);
    let json: Value = serde_json::from_str(&text).unwrap();
    let text_of = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
    let all = json["requirements"].as_array().unwrap().iter().map(|it| (text_of(it, "name"), text_of(it, "verdict")));
    (serde_json::from_str(&text).unwrap(), all.collect())
}

#[test]
fn each_gpu_gets_requirement_verdicts() {
    let toml = r#"
        [[gpu]]
        persistence = true
        [[gpu]]
        memory_mib = 8192
        compute = [7, 5]
        condition = { pcie = [1, 4, 4, 16], utilization = 90, slowdown = ["thermal"], temperature = 93, ecc_errors = 2 }
    "#;
    let floors = "[gpu]\nmin_compute = \"8.0\"\nmin_memory_mib = 16384\n";
    let machine = Machine::new(Some(toml)).with_devices(&[0, 1]).with_file("floors.toml", floors);
    let config = machine.path("floors.toml");
    let (inventory, actual) = verdicts(&machine, &["--config", config.to_str().unwrap()]);
    let actual: Vec<(&str, &str)> = actual.iter().map(|(name, verdict)| (name.as_str(), verdict.as_str())).collect();
    let expected = [
        ("cuda-version", "ok"),
        ("compute", "ok"),
        ("compute", "fail"),
        ("memory", "ok"),
        ("memory", "fail"),
        ("gpu-speed", "ok"),
        ("gpu-speed", "warn"),
        ("gpu-speed", "warn"),
        ("gpu-speed", "warn"),
        ("ecc", "ok"),
        ("ecc", "warn"),
        ("persistence", "note"),
    ];
    assert_eq!(actual, expected);
    assert_eq!(inventory.gpus[1].condition.as_ref().and_then(|it| it.temperature), Some(93));

    let broken = machine.with_file("floors.toml", "[gpu]\nmin_compute = \"new\"\n");
    let (_, actual) = verdicts(&broken, &["--config", config.to_str().unwrap()]);
    assert_eq!(actual[1], ("configuration".to_owned(), "could-not-look".to_owned()));
}

/// A driver that does not respond gets no verdict, and one that returns nonsense gets no negative verdict. Neither makes a GPU unusable.
#[test]
fn failed_condition_queries_cause_no_negative_verdict() {
    let with_faults = |kind: &str| {
        let faults = ["persistence", "pci", "clocks", "ecc", "processes"]
            .map(|at| format!("[[fault]]\nat = '{at}'\nkind = '{kind}'\n"));
        Machine::new(Some(&format!("gpus = 1\n{}", faults.concat()))).with_devices(&[0])
    };
    for kind in ["not-supported", "function-not-found", "nonsense", "untouched", "crash", "exit", "hang"] {
        let machine = if kind == "crash" || kind == "exit" || kind == "hang" {
            // Only ECC queries fail: the calls that detection needs must succeed.
            Machine::new(Some(&format!("gpus = 1\n[[fault]]\nat = 'ecc'\nkind = '{kind}'\n"))).with_devices(&[0])
        } else {
            with_faults(kind)
        };
        let (inventory, actual) = verdicts(&machine, &[]);
        assert_eq!(inventory.drivers[0].source, Source::Nvml, "{kind}");
        assert_eq!((inventory.usable_gpus().count(), inventory.findings.as_slice()), (1, [].as_slice()), "{kind}");
        let negative: Vec<_> = actual.iter().filter(|(_, verdict)| verdict != "ok" && verdict != "note").collect();
        assert!(negative.is_empty(), "{kind}: {negative:?}");
        if kind != "untouched" {
            assert_eq!(actual, [("cuda-version".to_owned(), "ok".to_owned())], "{kind}");
        }
    }
}

/// The table shows which GPUs jobs can use; the JSON lists all GPUs of the machine.
#[test]
fn reports_gpu_excluded_by_operator() {
    let machine = Machine::new(Some("gpus = 2")).with_devices(&[0, 1]).with_file("own.toml", "[gpu]\nexcept = [1]\n");
    let config = machine.path("own.toml");
    let text = succeeded(machine.command().arg("--config").arg(&config).output().unwrap());
    let row = text.lines().find(|line| line.starts_with("nvidia 1")).unwrap();
    assert!(row.ends_with("left out: excluded by `1` in `[gpu] except`"), "{row}");
    let json = succeeded(machine.command().arg("--json").arg("--config").arg(&config).output().unwrap());
    assert_eq!(serde_json::from_str::<Inventory>(&json).unwrap().usable_gpus().count(), 2);
}
