//! `slurminit detect` with a fake NVML library, and with directory trees in place of the machine's `/proc`, `/sys` and `/dev`.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

mod elsewhere;
mod gpus_in_trouble;
mod look;
mod mig;
mod profiles;
mod real_library;
mod requirements;

use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use model::inventory::{Access, Gpu, Inventory, Severity, Source};
use nix::poll::{PollFd, PollFlags, poll};
use tempfile::TempDir;

/// Time limit for operations that must not hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Detection timeout in tests where a probe hangs; the probe is killed after 60 % of this time.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Path of the fake NVML library. Cargo builds it next to the test because the crate is a dev-dependency.
fn fake_nvml() -> PathBuf {
    let library = harness::fake_nvml();
    assert!(library.exists(), "{} is missing: run `cargo test --workspace`", library.display());
    library
}

/// A root directory, and the machine that the fake library reports.
struct Machine {
    root: TempDir,
    nvml: Option<String>,
}

impl Machine {
    fn new(nvml: Option<&str>) -> Self {
        let machine = Self { root: TempDir::new().unwrap(), nvml: nvml.map(str::to_owned) };
        fs::create_dir(machine.path("dev")).unwrap();
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Adds stand-ins for device files, like `docker run --device /dev/null:/dev/nvidiaN`.
    fn with_devices(self, minors: &[u32]) -> Self {
        for minor in minors {
            symlink("/dev/null", self.path(&format!("dev/nvidia{minor}"))).unwrap();
        }
        self
    }

    fn with_file(self, path: &str, text: &str) -> Self {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(harness::slurminit());
        command.args(["detect", "--root"]).arg(self.root.path());
        for variable in ["SLURMINIT_NVML_LIBRARY", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"] {
            command.env_remove(variable);
        }
        if let Some(nvml) = &self.nvml {
            fs::write(self.path("fake-nvml.toml"), nvml).unwrap();
            command.env("SLURMINIT_NVML_LIBRARY", fake_nvml()).env("FAKE_NVML", self.path("fake-nvml.toml"));
        }
        command
    }

    fn detect(&self) -> Inventory {
        self.detect_within(PATIENCE)
    }

    fn detect_within(&self, timeout: Duration) -> Inventory {
        let mut command = self.command();
        command.args(["--json", "--timeout", &timeout.as_secs().to_string()]);
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(command.output()));
        let output = is_done.recv_timeout(PATIENCE).expect("detection finishes");
        serde_json::from_str(&succeeded(output.unwrap())).unwrap()
    }
}

fn succeeded(output: Output) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{}: {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn reason(gpu: &Gpu) -> &str {
    match &gpu.access {
        Access::Unusable { reason, .. } => reason,
        Access::Usable => "usable",
    }
}

#[test]
fn reports_all_facts_from_nvml() {
    let toml = r#"
        driver = "535.154.05"
        cuda = "12.2"
        [[gpu]]
        name = "NVIDIA A100-SXM4-40GB"
        minor = 1
        pci = "00000000:17:00.0"
        memory_mib = 40960
        compute = [8, 0]
        cpus = "0-15,32-47"
        numa = 1
        links = { "1" = 12 }
        [[gpu]]
        minor = 0
        links = { "0" = 12 }
    "#;
    let machine =
        Machine::new(Some(toml)).with_devices(&[0, 1]).with_file("sys/bus/pci/devices/0000:17:00.0/numa_node", "3\n");
    let inventory = machine.detect();
    let driver = &inventory.drivers[0];
    assert_eq!((driver.source, driver.version.as_deref()), (Source::Nvml, Some("535.154.05")));
    assert_eq!(driver.cuda_version.as_deref(), Some("12.2"));
    let [first, second] = inventory.gpus.as_slice() else { panic!("{:?}", inventory.gpus) };
    assert_eq!((first.index, first.minor), (0, Some(1)));
    assert_eq!(first.device_file.as_deref(), Some(Path::new("/dev/nvidia1")));
    assert_eq!(first.uuid.as_deref(), Some("GPU-fa4e0000-0000-0000-0000-000000000000"));
    assert_eq!(first.model.as_deref(), Some("NVIDIA A100-SXM4-40GB"));
    assert_eq!(first.pci_address, "0000:17:00.0".parse().ok());
    assert_eq!((first.memory_mib, first.compute.as_deref()), (Some(40_960), Some("8.0")));
    assert_eq!(first.cpus, "0-15,32-47".parse().ok());
    assert_eq!(first.numa_node, Some(3), "the PCI device's node wins over NVML's, which can be the GPU's own memory");
    assert_eq!((&first.links, &second.links), (&[(1, 12)].into(), &[(0, 12)].into()));
    assert_eq!(inventory.usable_gpus().count(), 2);
    assert_eq!(inventory.findings, []);
}

#[test]
fn gpu_without_device_file_is_listed_with_reason() {
    let inventory = Machine::new(Some("gpus = 2")).with_devices(&[1]).detect();
    assert!(reason(&inventory.gpus[0]).ends_with("dev/nvidia0 is not in this container"));
    assert_eq!(inventory.gpus[1].access, Access::Usable);
    assert_eq!(inventory.findings, [], "NVIDIA_VISIBLE_DEVICES=1 is no fault");

    let inventory = Machine::new(Some("gpus = 2")).detect();
    assert_eq!(inventory.usable_gpus().count(), 0);
    assert!(inventory.findings[0].what.ends_with("that the NVIDIA driver lists (2)"), "{:?}", inventory.findings);
}

#[test]
fn gpu_denied_by_nvml_affects_no_other_gpu() {
    let inventory = Machine::new(Some("[[gpu]]\ndenied = true\n[[gpu]]")).with_devices(&[0, 1]).detect();
    assert!(reason(&inventory.gpus[0]).contains("permission"), "{}", reason(&inventory.gpus[0]));
    assert_eq!(inventory.gpus[1].access, Access::Usable);
    assert_eq!(inventory.findings, [], "a device file without a GPU causes no finding");
}

/// Each fault: the NVML call, the kind of fault, a part of the expected finding, and a part of its fix.
const FAULTS: [(&str, &str, &str, &str); 13] = [
    ("init", "hang", "timed out after 6.", "dmesg"),
    ("count", "spin", "timed out after 6.", "dmesg"),
    ("init", "crash", "crashed (SIGSEGV)", "re-install"),
    ("count", "abort", "crashed (SIGABRT)", "re-install"),
    ("uuid", "exit", "exited with code 0", "remove copies"),
    ("count", "nonsense", "number of GPUs: 4294967295", "remove copies"),
    ("init", "unknown", "Unknown Error", "re-create the container"),
    ("count", "unknown", "Unknown Error", "re-create the container"),
    ("init", "lib-rm-version-mismatch", "version mismatch", "reboot the host"),
    ("init", "driver-not-loaded", "not loaded", "nvidia-smi"),
    ("init", "no-permission", "refused", "--gpus all"),
    ("init", "gpu-is-lost", "fell off the bus", "dmesg"),
    ("init", "unheard-of", "unexpected", "nvidia-smi"),
];

#[test]
fn driver_fault_is_reported_and_kernel_files_are_used() {
    for (at, kind, verdict, fix) in FAULTS {
        let toml = format!("gpus = 1\n[[fault]]\nat = '{at}'\nkind = '{kind}'");
        // A tenth of the time is left for the kernel's files.
        let timeout = if ["hang", "spin"].contains(&kind) { 5 * TIMEOUT } else { PATIENCE };
        let inventory = Machine::new(Some(&toml)).with_devices(&[0]).detect_within(timeout);
        assert_eq!(inventory.drivers[0].source, Source::NvidiaProc, "{at} {kind}");
        assert_eq!(inventory.usable_gpus().count(), 1, "{at} {kind}");
        let [finding] = inventory.findings.as_slice() else { panic!("{at} {kind}: {:?}", inventory.findings) };
        assert!(finding.what.contains(verdict), "{at} {kind}: {}", finding.what);
        assert!(finding.what.contains("without memory size, compute capability and NVLinks"), "{}", finding.what);
        assert!(finding.fix.contains(fix), "{at} {kind}: {}", finding.fix);
    }
}

#[test]
fn loses_only_implausible_or_failed_fact() {
    for at in ["driver-version", "cuda-version", "uuid", "name", "pci", "memory", "compute", "affinity", "numa"] {
        for kind in ["nonsense", "unterminated", "untouched", "noise", "unknown", "not-supported"] {
            let toml = format!("[[gpu]]\nnuma = 0\n[[fault]]\nat = '{at}'\nkind = '{kind}'");
            let inventory = Machine::new(Some(&toml)).with_devices(&[0]).detect();
            assert_eq!(inventory.drivers[0].source, Source::Nvml, "{at} {kind}");
            let gpu = &inventory.gpus[0];
            assert_eq!(gpu.access, Access::Usable, "{at} {kind}");
            let lost = [
                (inventory.drivers[0].version.is_none(), "driver-version"),
                (inventory.drivers[0].cuda_version.is_none(), "cuda-version"),
                (gpu.uuid.is_none(), "uuid"),
                (gpu.model.is_none(), "name"),
                (gpu.pci_address.is_none(), "pci"),
                (gpu.memory_mib.is_none(), "memory"),
                (gpu.compute.is_none(), "compute"),
                (gpu.cpus.is_none(), "affinity"),
                (gpu.numa_node.is_none(), "numa"),
            ];
            for (is_lost, fact) in lost {
                // An untouched output stays zero, which is a valid NUMA node.
                let expected = fact == at && kind != "noise" && (at, kind) != ("numa", "untouched");
                assert_eq!(is_lost, expected, "{fact} with {at} {kind}");
            }
        }
    }
}

#[test]
fn reads_missing_minor_from_proc_and_assigns_each_file_once() {
    let fault = "gpus = 2\n[[fault]]\nat = 'minor'\nkind = 'not-supported'";
    let machine = Machine::new(Some(fault))
        .with_devices(&[3])
        .with_file("proc/driver/nvidia/gpus/0000:10:00.0/information", "Device Minor: \t 3\n");
    let inventory = machine.detect();
    assert_eq!(inventory.gpus[0].device_file.as_deref(), Some(Path::new("/dev/nvidia3")));
    assert!(reason(&inventory.gpus[1]).contains("does not report the GPU"), "{}", reason(&inventory.gpus[1]));

    let fault = "gpus = 2\n[[fault]]\nat = 'minor'\nkind = 'untouched'";
    let inventory = Machine::new(Some(fault)).with_devices(&[0]).detect();
    assert_eq!(inventory.usable_gpus().count(), 1);
    assert!(reason(&inventory.gpus[1]).contains("belongs to GPU 0"));
}

#[test]
fn detects_gpus_from_kernel_files_without_nvml() {
    let information =
        "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-1c1d\nBus Location: \t 0000:81:00.0\nDevice Minor: \t 0\n";
    let machine = Machine::new(None)
        .with_file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu\n")
        .with_file("proc/driver/nvidia/gpus/0000:81:00.0/information", information)
        .with_file("proc/driver/nvidia/gpus/0000:17:00.0/information", "Device Minor: 1\n")
        .with_file("sys/bus/pci/devices/0000:81:00.0/local_cpulist", "8-15\n")
        .with_file("sys/bus/pci/devices/0000:81:00.0/numa_node", "1\n")
        .with_file("dev/nvidia5", "no device")
        .with_devices(&[0, 7]);
    let inventory = machine.detect();
    assert_eq!(inventory.drivers[0].version.as_deref(), Some("535.154.05"));
    let minors: Vec<_> = inventory.gpus.iter().map(|gpu| (gpu.index, gpu.minor.unwrap())).collect();
    assert_eq!(minors, [(0, 1), (1, 0), (2, 5), (3, 7)], "ordered by PCI address, then by device file");
    let gpu = &inventory.gpus[1];
    assert_eq!((gpu.model.as_deref(), gpu.uuid.as_deref()), (Some("NVIDIA H200"), Some("GPU-1c1d")));
    assert_eq!((gpu.cpus.clone(), gpu.numa_node), ("8-15".parse().ok(), Some(1)));
    assert!(reason(&inventory.gpus[0]).contains("not in this container"));
    assert!(reason(&inventory.gpus[2]).contains("is not a device file"));
    assert_eq!(inventory.usable_gpus().map(|gpu| gpu.minor.unwrap()).collect::<Vec<_>>(), [0, 7]);
    let severities: Vec<_> = inventory.findings.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Severity::Warning, Severity::Error], "{:?}", inventory.findings);
    assert!(inventory.findings[0].fix.contains("NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
}

#[test]
fn hanging_driver_files_are_reported_for_each_driver() {
    let machine = Machine::new(None).with_devices(&[0]);
    // Opening a FIFO without a writer blocks, like reading the files of a stuck driver.
    for file in ["proc/driver/nvidia/version", "sys/class/kfd/kfd/topology/nodes/0/properties"] {
        let file = machine.path(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let inventory = machine.detect_within(TIMEOUT);
    assert!(reason(&inventory.gpus[0]).contains("timed out after"), "{}", reason(&inventory.gpus[0]));
    let [nvidia, amd] = inventory.findings.as_slice() else { panic!("{:?}", inventory.findings) };
    assert!(nvidia.what.contains("the probe of /proc and the device files failed, too"), "{}", nvidia.what);
    assert!(amd.what.contains("KFD") && amd.what.contains("timed out after"), "{}", amd.what);
}

#[test]
fn machine_without_gpus_has_no_findings() {
    let inventory = Machine::new(None).detect();
    assert_eq!((inventory.gpus, inventory.drivers, inventory.findings), (vec![], vec![], vec![]));
}

#[test]
fn reports_missing_configured_library() {
    let machine = Machine::new(None);
    let output = machine.command().env("SLURMINIT_NVML_LIBRARY", machine.path("none.so")).output().unwrap();
    let text = succeeded(output);
    assert!(text.contains("none.so") && text.contains("fix:"), "{text}");
}

#[test]
fn hostile_name_does_not_reach_terminal() {
    let hostile = "[[gpu]]\nname = \"\\u001b[2Jx\\r\\n,#=\\u202e\"\n[[gpu]]\nname = [78, 10, 255]";
    let machine = Machine::new(Some(hostile)).with_devices(&[0, 1]);
    let text = succeeded(machine.command().output().unwrap());
    assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
    assert!(text.contains("\\x1b[2Jx\\x0d\\x0a,#=\\u{202e}"), "{text}");
    assert_eq!(machine.detect().gpus[1].model, None, "not UTF-8");
}

#[test]
fn closed_stdout_causes_no_panic() {
    let machine = Machine::new(Some("gpus = 8"));
    let mut child = machine.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(stderr, "");
}

#[test]
fn probe_does_not_outlive_killed_detection() {
    let machine = Machine::new(Some(""));
    let mut command = machine.command();
    // The library reads its machine from a FIFO that never ends, so the probe hangs. The writer detects when the probe exits.
    let fifo = machine.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut detection = command.args(["--timeout", "60"]).env("FAKE_NVML", &fifo).spawn().unwrap();
    let writer = fs::File::options().write(true).open(&fifo).unwrap();
    detection.kill().unwrap();
    detection.wait().unwrap();
    let mut reader_is_gone = [PollFd::new(writer.as_fd(), PollFlags::empty())];
    assert_eq!(poll(&mut reader_is_gone, u16::try_from(PATIENCE.as_millis()).unwrap()), Ok(1), "probe still running");
}

#[test]
fn wrong_command_line_names_expected_arguments() {
    for (arguments, expected) in
        [(["--timeout", "soon"], "expected a number of seconds"), (["--root", "/no/such"], "no such directory")]
    {
        let output = Command::new(harness::slurminit()).arg("detect").args(arguments).output().unwrap();
        assert!(!output.status.success());
        assert!(String::from_utf8(output.stderr).unwrap().contains(expected), "{arguments:?}");
    }
}
