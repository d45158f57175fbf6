//! Jetson, WSL2, Docker Desktop, Kubernetes pods, and containers that lack requested GPUs or the library.

use std::path::Path;

use model::inventory::{Access, Inventory, Platform, Source};

use super::{Machine, reason, succeeded};

/// Runs the detection with these environment variables.
fn with_variables(machine: &Machine, variables: &[(&str, &str)]) -> Inventory {
    let output = machine.command().envs(variables.iter().copied()).arg("--json").output().unwrap();
    serde_json::from_str(&succeeded(output)).unwrap()
}

fn with_character_device(machine: Machine, file: &str) -> Machine {
    std::fs::create_dir_all(machine.path(file).parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/null", machine.path(file)).unwrap();
    machine
}

#[test]
fn jetson_is_one_gpu() {
    for (file, has_nvml) in
        [("dev/nvgpu/igpu0/ctrl", true), ("dev/nvhost-ctrl-gpu", false), ("dev/nvgpu/igpu0/ctrl", false)]
    {
        // Only some Jetsons have NVML.
        let nvml = "[[gpu]]\nname = 'Orin (nvgpu)'\n[[fault]]\nat = 'memory'\nkind = 'not-supported'\n";
        let machine = with_character_device(Machine::new(has_nvml.then_some(nvml)), file)
            .with_file("proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
            .with_file("proc/device-tree/compatible", "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
            .with_devices(&[0]);
        let inventory = machine.detect();
        let [gpu] = inventory.gpus.as_slice() else { panic!("{:?}", inventory.gpus) };
        assert_eq!((inventory.drivers[0].source, &gpu.access), (Source::Nvgpu, &Access::Usable), "{file}");
        assert_eq!(gpu.device_file.as_deref(), Some(Path::new("/").join(file).as_path()));
        assert_eq!(gpu.model.as_deref(), Some("NVIDIA Jetson AGX Orin Developer Kit"));
        assert_eq!(gpu.compute.as_deref(), Some("8.7"));
        assert_eq!(inventory.findings, []);
    }
}

#[test]
fn wsl2_has_one_device_for_two_gpus() {
    let nvml = "gpus = 2\n[[fault]]\nat = 'minor'\nkind = 'not-supported'\n";
    let machine = with_character_device(Machine::new(Some(nvml)), "dev/dxg")
        .with_file("proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n");
    let inventory = machine.detect();
    assert_eq!((inventory.platform, inventory.usable_gpus().count()), (Platform::Wsl2, 2), "{:?}", inventory.gpus);
    assert!(inventory.gpus.iter().all(|gpu| gpu.device_file.as_deref() == Some(Path::new("/dev/dxg"))));
    assert_eq!(inventory.findings, []);
}

#[test]
fn wsl2_without_nvml_reports_that_only_nvidia_gpus_work() {
    let inventory = with_character_device(Machine::new(None), "dev/dxg").detect();
    assert_eq!(inventory.gpus, []);
    let [finding] = inventory.findings.as_slice() else { panic!("{:?}", inventory.findings) };
    assert!(finding.cause.contains("only NVIDIA GPUs"), "{finding:?}");
}

#[test]
fn docker_desktop_is_detected_by_its_kernel() {
    let machine = Machine::new(None).with_file("proc/sys/kernel/osrelease", "6.10.14-linuxkit\n");
    assert_eq!(machine.detect().platform, Platform::DockerDesktop);
}

/// A pod with `nvidia.com/gpu: 1` on a machine with eight GPUs: CDI leaves all GPUs in /proc, and sets NVIDIA_VISIBLE_DEVICES to `void`.
#[test]
fn pod_with_one_of_eight_gpus_can_use_only_that_one() {
    let all = |machine: Machine| {
        (0..8).fold(machine, |machine, gpu| {
            let text = format!("Model: NVIDIA H200\nGPU UUID: GPU-0{gpu}\nDevice Minor: {gpu}\n");
            machine.with_file(&format!("proc/driver/nvidia/gpus/0000:1{gpu}:00.0/information"), &text)
        })
    };
    let void = [("NVIDIA_VISIBLE_DEVICES", "void")];
    let nvml = "[[gpu]]\nminor = 5\nuuid = 'GPU-05'\npci = '00000000:15:00.0'\n";
    let with_nvml = with_variables(&all(Machine::new(Some(nvml)).with_devices(&[5])), &void);
    assert_eq!(with_nvml.findings, []);
    let without = with_variables(&all(Machine::new(None).with_devices(&[5])), &void);
    for inventory in [&with_nvml, &without] {
        let usable: Vec<_> = inventory.usable_gpus().map(|gpu| gpu.uuid.as_deref()).collect();
        assert_eq!(usable, [Some("GPU-05")]);
    }
    assert_eq!(without.gpus.len(), 8);
    assert!(reason(&without.gpus[0]).ends_with("/dev/nvidia0 is not in this container"));
}

#[test]
fn reports_requested_gpus_that_are_missing() {
    let one = || Machine::new(Some("gpus = 1")).with_devices(&[0]);
    for (machine, devices, expected) in [
        (one(), "all", ""),
        (one(), "0", ""),
        (one(), "GPU-fa4e0000", ""),
        (one(), "GPU-0bad", "GPU-0bad not usable in this container"),
        (one(), "0,1", "only 1 of 2 requested GPUs usable in this container"),
        (one(), "MIG-0bad", "MIG-0bad not usable in this container"),
        (Machine::new(None), "void", "requests no NVIDIA GPU"),
        (Machine::new(None), "none", "requests no NVIDIA GPU"),
        (Machine::new(None), "all", "requests NVIDIA GPUs, but none is available"),
    ] {
        let inventory = with_variables(&machine, &[("NVIDIA_VISIBLE_DEVICES", devices)]);
        let findings: Vec<&str> = inventory.findings.iter().map(|finding| finding.what.as_str()).collect();
        match expected {
            "" => assert_eq!(findings, [""; 0], "{devices}"),
            part => assert!(findings.len() == 1 && findings[0].contains(part), "{devices}: {findings:?}"),
        }
    }
}

/// The device file is present but NVIDIA's library is missing, for three different reasons.
#[test]
fn missing_library_is_explained_by_capabilities() {
    for (capabilities, cause) in [
        ("compute", "does not contain \"utility\""),
        ("compute,utility", "another runtime started the container"),
        ("", "only with the driver capability \"utility\""),
    ] {
        let machine = Machine::new(None).with_devices(&[0]);
        let inventory = with_variables(&machine, &[("NVIDIA_DRIVER_CAPABILITIES", capabilities)]);
        assert_eq!(inventory.usable_gpus().count(), 1);
        let [finding] = inventory.findings.as_slice() else { panic!("{:?}", inventory.findings) };
        assert!(finding.cause.contains(cause), "{capabilities}: {finding:?}");
    }
}
