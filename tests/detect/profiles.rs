//! Tests each card with each driver branch that supports it, in each command that reads GPUs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use fake_nvml::profile::{self, BRANCHES, Profile};
use faults::report::{GpuReport, Report};
use faults::sample::{GpuSample, Identity, Line};
use model::inventory::{Inventory, Source};

use super::{Machine, fake_nvml, succeeded};

/// A machine with two of these cards, and the path of the driver's library.
fn machine(profile: &Profile) -> (Machine, PathBuf) {
    let machine = Machine::new(Some(&profile.machine(2))).with_devices(&[0, 1]);
    let machine = machine.with_file("fake-nvml.toml", &profile.machine(2));
    let caps = "gpu0/gi2/access 30\ngpu0/gi2/ci0/access 31\ngpu0/gi9/access 84\ngpu0/gi9/ci0/access 85\n";
    let machine =
        machine.with_file("proc/driver/nvidia-caps/mig-minors", &(caps.to_owned() + &caps.replace("gpu0", "gpu1")));
    for number in [30, 31, 84, 85] {
        let file = machine.path(&format!("dev/nvidia-caps/nvidia-cap{number}"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/null", file).unwrap();
    }
    fs::set_permissions(machine.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let library = machine.path("libnvidia-ml.so.1");
    fs::write(&library, profile::without(fs::read(fake_nvml()).unwrap(), profile.branch.missing)).unwrap();
    (machine, library)
}

/// One sample of each GPU by `slurminit look`.
fn sample(machine: &Machine, library: &PathBuf) -> Vec<(Identity, GpuSample)> {
    samples(machine, library, 1)
}

/// `rounds` samples of each GPU.
fn samples(machine: &Machine, library: &PathBuf, mut rounds: u32) -> Vec<(Identity, GpuSample)> {
    let mut command = Command::new(harness::slurminit());
    command.args(["look", "--vendor", "nvidia", "--interval-ms", "2000", "--meters"]);
    command.env("SLURMINIT_NVML_LIBRARY", library).env("FAKE_NVML", machine.path("fake-nvml.toml"));
    let mut child: Child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (mut listed, mut samples) = (Vec::new(), Vec::new());
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        match serde_json::from_str(&line.unwrap()).unwrap() {
            Line::Listed { gpus } => listed = gpus,
            Line::Seen { gpu, seen } => {
                samples.push((listed.iter().find(|listed| listed.key() == gpu).unwrap().clone(), *seen));
            }
            Line::Done if rounds == 1 => break,
            Line::Done => rounds -= 1,
            line => assert!(!matches!(line, Line::Trouble { .. }), "{line:?}"),
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    samples
}

#[test]
fn each_command_reads_each_card_with_each_driver_branch() {
    for profile in Profile::all() {
        let (name, (machine, library)) = (profile.name(), machine(&profile));
        let run = |arguments: &[&str]| {
            let mut command = machine.command();
            command.env("SLURMINIT_NVML_LIBRARY", &library).args(arguments);
            succeeded(command.output().unwrap())
        };
        let inventory: Inventory = serde_json::from_str(&run(&["--json"])).unwrap();
        let driver = &inventory.drivers[0];
        assert_eq!((driver.source, driver.version.as_deref()), (Source::Nvml, Some(profile.branch.driver)), "{name}");
        assert_eq!(driver.cuda_version.as_deref(), Some(profile.branch.cuda), "{name}");
        assert!(
            inventory.gpus.len() == 2 && inventory.gpus.iter().all(|gpu| gpu.is_usable()),
            "{name}: {inventory:#?}"
        );
        let total = inventory.gpus[0].memory_mib.unwrap();
        let text = run(&[]) + &format!("{:?}", inventory.findings);
        assert_names_no_other_branch(&profile, &text);
        let domain = (profile.card.name == "GB200").then(|| format!("{}.7", "abababab-abab-abab-abab-abababababab"));
        assert_eq!(inventory.gpus[0].nvlink_domain, domain, "{name}");
        for idle in inventory.gpus.iter().filter_map(|gpu| gpu.condition.as_ref()) {
            let (used, whole) = idle.memory_mib.unwrap();
            let free = idle.memory_free_mib.unwrap();
            assert!(whole == total && used + free <= whole && free > whole / 2, "{name}: {used} {free} {whole}");
        }
        assert!(!text.contains("the link has errors"), "{name}: {text}");

        let samples = sample(&machine, &library);
        assert_eq!(samples.len(), 2, "{name}");
        check_report(&profile, &machine, &samples);
        check_render(&profile, &machine, &run(&["--json"]));
        check_doctor(&profile, &machine, &library);
        for (_, GpuSample { condition, readings, trouble }) in samples {
            assert_eq!(trouble, None, "{name}");
            let has_recovery_action = profile.branch.has_recovery_action() && profile.card.name != "vGPU";
            assert_eq!(readings.recovery_action.is_some(), has_recovery_action, "{name}");
            assert_eq!(condition.memory_mib.map(|(_, whole)| whole), Some(total), "{name}");
            let is_guest = profile.card.name == "vGPU";
            assert_eq!((condition.temperature.is_none(), readings.power_mw.is_none()), (is_guest, is_guest), "{name}");
            let has_rows = ["H100", "H100-VM", "L40S", "GB200"].contains(&profile.card.name);
            assert_eq!(readings.remapped_rows.is_some(), has_rows, "{name}");
            assert_eq!(readings.instances.len(), if profile.card.name == "A100-MIG" { 2 } else { 0 }, "{name}");
            let is_plausible = readings.power_mw.is_none_or(|mw| (1_000..2_000_000).contains(&mw))
                && readings.clocks.sm.is_none_or(|mhz| (100..5_000).contains(&mhz))
                && readings.fan_percent.is_none_or(|percent| percent <= 100);
            assert!(is_plausible, "{name}: {readings:?}");
        }
    }
}

/// Collects the path of each value that is not null, such as `.readings.clocks.sm`.
fn collect_paths(value: &serde_json::Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| collect_paths(field, &format!("{path}.{name}"), into));
        }
        serde_json::Value::Null => {}
        _ => drop(into.insert(path.to_owned())),
    }
}

#[test]
fn stand_in_reports_same_fields_as_real_h100() {
    let profile = Profile::all().find(|profile| profile.name() == "R580 H100-VM").unwrap();
    let (machine, library) = machine(&profile);
    // GPM compares two samples.
    let samples = samples(&machine, &library, 2);
    let stand_in = serde_json::to_value(&samples.last().unwrap().1).unwrap();
    let recorded: serde_json::Value = serde_json::from_str(include_str!("recorded/h100-vm-r580.json")).unwrap();
    let paths = |value| {
        let mut paths = BTreeSet::new();
        collect_paths(value, "", &mut paths);
        paths
    };
    assert_eq!(paths(&stand_in), paths(&recorded));
    for field in ["/condition/memory_mib", "/condition/memory_free_mib", "/condition/pcie", "/readings/power_limit_mw"]
    {
        assert_eq!(stand_in.pointer(field), recorded.pointer(field), "{field}");
    }
}

/// Asserts that the text names no other driver branch, since advice for another branch does not apply.
fn assert_names_no_other_branch(profile: &Profile, text: &str) {
    let name = profile.name();
    assert!(!text.contains("nvidia-driver-") && !text.contains("panicked"), "{name}: {text}");
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    for other in BRANCHES.iter().filter(|branch| branch.name != profile.branch.name) {
        let number = other.number().to_string();
        assert!(!words.contains(&number.as_str()) && !words.contains(&other.name), "{name}: {number}: {text}");
    }
}

/// Checks `slurminit render --explain`.
fn check_render(profile: &Profile, machine: &Machine, inventory: &str) {
    let file = machine.path("inventory.json");
    fs::write(&file, inventory).unwrap();
    let mut command = Command::new(harness::slurminit());
    command.args(["render", "--explain", "--root"]).arg(machine.path(".")).arg("--inventory").arg(file);
    let explained = succeeded(command.output().unwrap());
    assert_names_no_other_branch(profile, &explained);
    let gres = if profile.card.name == "A100-MIG" { "gpu:nvidia_a100_" } else { "gpu:nvidia:2" };
    assert!(explained.contains(&format!("Gres={gres}")), "{}: {explained}", profile.name());
}

/// Checks `slurminit doctor`, whatever its findings.
fn check_doctor(profile: &Profile, machine: &Machine, library: &PathBuf) {
    let mut command = Command::new(harness::slurminit());
    command.args(["doctor", "--container", "--root"]).arg(machine.path("."));
    command.env("SLURMINIT_NVML_LIBRARY", library).env("FAKE_NVML", machine.path("fake-nvml.toml"));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(output.status.code().is_some_and(|code| code < 100), "{}: {}: {text}", profile.name(), output.status);
    assert_names_no_other_branch(profile, &text);
}

/// Checks the metrics for an agent report with these samples.
fn check_report(profile: &Profile, machine: &Machine, samples: &[(Identity, GpuSample)]) {
    let name = profile.name();
    let gpu = |(identity, seen): &(Identity, GpuSample)| GpuReport {
        identity: identity.clone(),
        condition: seen.condition.clone(),
        readings: seen.readings.clone(),
        ..GpuReport::default()
    };
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let gpus = samples.iter().map(gpu).collect();
    let report = Report { process: sys::proc::own_id(), at: now, interval_ms: 60_000, gpus, ..Report::default() };
    let run = machine.path("run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("gpus.json"), serde_json::to_string(&report).unwrap()).unwrap();
    let files = watch::overview::files(&run);
    let text = watch::metrics::text(&files, Err("away"), Some("host"));
    assert_names_no_other_branch(profile, &text.lines().filter(|line| line.starts_with('#')).collect::<String>());
    let values = |metric: &str| -> Vec<f64> {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
    };
    let is_guest = profile.card.name == "vGPU";
    let total = samples[0].1.condition.memory_mib.unwrap().1 * 1024 * 1024;
    #[expect(clippy::cast_precision_loss, reason = "a GPU's memory is below 2^53 bytes")]
    let bounds = [
        ("memory_total_bytes", total as f64, total as f64, 2),
        ("memory_free_bytes", total as f64 / 2.0, total as f64, 2),
        ("temperature_celsius", 1.0, 120.0, if is_guest { 0 } else { 2 }),
        ("power_watts", 1.0, 2000.0, if is_guest { 0 } else { 2 }),
        ("clock_hertz", 1e8, 5e9, 2),
        ("utilization_ratio", 0.0, 1.0, if profile.card.name == "A100-MIG" { 0 } else { 2 }),
    ];
    for (metric, least, most, count) in bounds {
        let found = values(&format!("slurminit_gpu_{metric}"));
        assert_eq!(found.len(), count, "{name}: {metric}: {text}");
        assert!(found.iter().all(|value| (least..=most).contains(value)), "{name}: {metric}: {found:?}");
    }
}
