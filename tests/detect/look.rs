//! `slurminit look`, the process that samples the driver for the agent: readings that need several samples or calls.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use fake_nvml::profile;
use faults::fault::FaultKind;
use faults::sample::{Identity, Line};
use model::inventory::{InstanceReadings, Readings};
use tempfile::TempDir;

use super::fake_nvml;

/// The readings of each GPU in each sample of one process; `machines` contains the fake driver's file for each sample.
fn samples(machines: &[&str], arguments: &[&str]) -> Vec<Vec<Readings>> {
    samples_without(&[], machines, arguments)
}

/// Like `samples`, but with a driver that lacks these calls: a copy of the library in which they are renamed.
fn samples_without(calls: &[&str], machines: &[&str], arguments: &[&str]) -> Vec<Vec<Readings>> {
    let directory = TempDir::new().unwrap();
    // The process drops root privileges.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = directory.path().join("libnvidia-ml.so.1");
    fs::write(&library, profile::without(fs::read(fake_nvml()).unwrap(), calls)).unwrap();
    let machine = directory.path().join("machine.toml");
    let write = |text: &str| {
        fs::write(directory.path().join("new"), text).unwrap();
        fs::rename(directory.path().join("new"), &machine).unwrap();
    };
    write(machines[0]);
    // The interval is long enough to write the next machine before the next sample.
    let mut command = Command::new(harness::slurminit());
    command.args(["look", "--vendor", "nvidia", "--interval-ms", "2000"]).args(arguments);
    command.env("SLURMINIT_NVML_LIBRARY", &library).env("FAKE_NVML", &machine);
    let mut child = KillOnDrop(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut samples = Vec::new();
    for number in 0..machines.len() {
        let mut sample = Vec::new();
        loop {
            match serde_json::from_str(&lines.next().expect("the process keeps sampling").unwrap()).unwrap() {
                Line::Seen { seen, .. } => sample.push(seen.readings),
                Line::Done => break,
                line => assert!(!matches!(line, Line::Trouble { .. }), "{line:?}"),
            }
        }
        samples.push(sample);
        machines.get(number + 1).into_iter().for_each(|next| write(next));
    }
    samples
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn reports_fabric_and_pci_express_traffic() {
    // PCIe traffic: GPU 0 reports it through GPM, GPU 1 has 64-bit counters, GPU 2 has 32-bit counters, and GPU 3 reports nothing.
    let machine = |bytes: u64| {
        format!(
            "[[gpu]]\ncondition = {{ fabric = 3, tensor = 40.5, pcie_mib = [1.5, 2.0] }}\n\
             [[gpu]]\ncondition = {{ fabric = 0, pcie_bytes = [{}, {}] }}\n\
             [[gpu]]\ncondition = {{ pcie_bytes = [{bytes}, {bytes}] }}\n[[gpu]]\n",
            (1_u64 << 40) + bytes,
            (1_u64 << 41) - bytes,
        )
    };
    let samples = samples(&[&machine(0), &machine(100_000_000)], &["--meters"]);
    let [gpm, counting, narrow, silent] = samples[1].as_slice() else { panic!("{samples:?}") };
    assert_eq!((gpm.fabric_state, gpm.tensor_ppm), (Some(3), Some(405_000)));
    assert_eq!((gpm.pcie_traffic.sent, gpm.pcie_traffic.received), (Some(3 << 19), Some(2 << 20)));
    // The rate depends on the sampling interval, which varies with load. The received counter decreased, so it has no rate.
    assert!(counting.pcie_traffic.sent.is_some_and(|rate| rate > 0), "{counting:?}");
    assert_eq!((counting.pcie_traffic.received, counting.fabric_state), (None, None));
    for gpu in [narrow, silent] {
        assert_eq!((gpu.pcie_traffic.sent, gpu.pcie_traffic.received, gpu.tensor_ppm), (None, None, None));
    }
    let first = &samples[0];
    assert!(first.iter().all(|gpu| gpu.tensor_ppm.is_none() && gpu.pcie_traffic.sent.is_none()), "{first:?}");
}

#[test]
fn reports_memory_and_utilization_of_mig_instances() {
    let machine = |uuid: &str| {
        format!(
            "[[gpu]]\n[[gpu.mig]]\nprofile = '1c.2g.35gb'\ngi = 3\nused_mib = 100\nbusy = [90.0, 20.0]\nuuid = '{uuid}'\n\
             [[gpu.mig]]\nprofile = '1c.2g.35gb'\ngi = 3\nci = 1\nused_mib = 100\nbusy = [90.0, 20.0]\n\
             [[gpu.mig]]\ngi = 9\nslot = 4\n"
        )
    };
    let (one, other) = (machine("MIG-1"), machine("MIG-2"));
    let samples = samples(&[&one, &one, &other], &["--meters"]);
    let instances = |number: usize| samples[number][0].instances.as_slice();
    let busy = |one: &InstanceReadings| (one.gpu_instance, one.compute_instance, one.sm_ppm, one.tensor_ppm);
    assert_eq!(
        instances(0).iter().map(busy).collect::<Vec<_>>(),
        [(3, 0, None, None), (3, 1, None, None), (9, 0, None, None)]
    );
    let second: Vec<_> = instances(1).iter().map(busy).collect();
    assert_eq!(second, [(3, 0, Some(900_000), Some(200_000)), (3, 1, None, None), (9, 0, None, None)]);
    let [first, _, last] = instances(1) else { panic!("{samples:?}") };
    assert_eq!((first.memory_used, last.memory_used), (Some(100 << 20), Some(0)));
    assert_eq!((first.uuid.as_deref(), first.profile.as_deref()), (Some("MIG-1"), Some("1c.2g.35gb")));
    // A new instance with the same ID has no previous sample.
    assert_eq!(busy(&instances(2)[0]), (3, 0, None, None));
}

#[test]
fn skips_extra_calls_of_whole_gpus_unless_requested() {
    let machine = "[[gpu]]\ncondition = { tensor = 1.0 }\n[[gpu.mig]]\nbusy = [1.0, 1.0]\n";
    let samples = samples(&[machine, machine], &[]);
    assert_eq!((samples[1][0].tensor_ppm, samples[1][0].instances.len()), (None, 1));
}

#[test]
fn old_and_new_drivers_report_available_facts() {
    let machine = "[[gpu]]\ncondition = { fabric = 2, tensor = 1.0 }\n[[gpu.mig]]\nused_mib = 5\nbusy = [1.0, 1.0]\n";
    let calls = ["nvmlDeviceGetGpuFabricInfoV", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetFieldValues"];
    let samples = samples_without(&calls, &[machine, machine], &["--meters"]);
    let new = samples_without(&["nvmlDeviceGetGpuFabricInfo"], &[machine], &[]);
    assert_eq!(new[0][0].fabric_state, Some(2));
    let gpu = &samples[1][0];
    assert_eq!((gpu.fabric_state, gpu.tensor_ppm, gpu.pcie_traffic.sent), (Some(2), None, None));
    assert_eq!((gpu.instances[0].memory_used, gpu.instances[0].sm_ppm), (Some(5 << 20), None));
}

#[test]
fn failing_extra_calls_cause_no_fault() {
    for kind in ["unknown", "not-supported", "nonsense", "invalid-argument"] {
        let faults: String = ["gpm", "fabric", "fields", "mig-device", "mig-instance"]
            .map(|at| format!("[[fault]]\nat = '{at}'\nkind = '{kind}'\n"))
            .concat();
        let machine = format!("[[gpu]]\ncondition = {{ fabric = 3 }}\n[[gpu.mig]]\nbusy = [1.0, 1.0]\n{faults}");
        let samples = samples(&[&machine, &machine], &["--meters"]);
        assert_eq!((samples[1][0].power_mw, samples[1][0].fabric_state), (Some(70_000), None), "{kind}");
    }
}

/// The answer to a check of one GPU, by a machine with two.
fn check(machine: &str, gpu: &Identity) -> Line {
    let directory = TempDir::new().unwrap();
    // The process drops root privileges.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = directory.path().join("libnvidia-ml.so.1");
    fs::copy(fake_nvml(), &library).unwrap();
    fs::write(directory.path().join("machine.toml"), machine).unwrap();
    let mut command = Command::new(harness::slurminit());
    command.args(["look", "--vendor", "nvidia", "--only", &serde_json::to_string(gpu).unwrap()]);
    command.env("SLURMINIT_NVML_LIBRARY", &library).env("FAKE_NVML", directory.path().join("machine.toml"));
    let output = command.output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Line> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.into_iter().next().unwrap()
}

#[test]
fn check_of_one_gpu_reports_that_gpu_or_its_fault() {
    let gpu = |uuid: Option<&str>| Identity { index: 1, uuid: uuid.map(str::to_owned), ..Identity::default() };
    let machine = |more: &str| {
        format!("[[gpu]]\nuuid = 'GPU-a'\n[[gpu]]\nuuid = 'GPU-b'\ncondition = {{ temperature = 61 }}\n{more}")
    };
    let fault = |at: &str, kind: &str| format!("[[fault]]\nat = '{at}'\nkind = '{kind}'\n");
    let seen = |temperature, trouble| (None, temperature, trouble);
    for (more, uuid, expected) in [
        (String::new(), Some("GPU-b"), seen(Some(61), None)),
        (String::new(), None, seen(Some(61), None)),
        // Another card in the same slot.
        (String::new(), Some("GPU-c"), seen(None, Some(FaultKind::Lost))),
        (fault("handle", "gpu-is-lost"), Some("GPU-b"), seen(None, Some(FaultKind::Lost))),
        // The GPU is lost after it was identified.
        (fault("temperature", "gpu-is-lost"), Some("GPU-b"), seen(None, Some(FaultKind::Lost))),
        (fault("init", "unknown"), Some("GPU-b"), (Some(FaultKind::DeviceDenied), None, None)),
        (fault("count", "unknown"), Some("GPU-b"), (Some(FaultKind::DeviceDenied), None, None)),
        (fault("init", "driver-not-loaded"), Some("GPU-b"), (Some(FaultKind::Lost), None, None)),
    ] {
        let answer = match check(&machine(&more), &gpu(uuid)) {
            Line::Seen { seen, .. } => (None, seen.condition.temperature, seen.trouble),
            Line::Trouble { kind, .. } => (Some(kind), None, None),
            line => panic!("{line:?}"),
        };
        assert_eq!(answer, expected, "{more} {uuid:?}");
    }
}
