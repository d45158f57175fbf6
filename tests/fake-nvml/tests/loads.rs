//! Tests the library through nvml-wrapper, as slurminit uses it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Path of the fake library. Cargo puts the cdylib beside the test binary.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libfake_nvml.so")
}

/// Initializes NVML with this machine file. Sets an environment variable of the process, so only one test may call this function.
fn with_machine(toml: &str) -> Result<Nvml, NvmlError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), toml).unwrap();
    // SAFETY: this binary has only one test, which starts no thread.
    unsafe { std::env::set_var("FAKE_NVML", file.path()) };
    Nvml::builder().lib_path(library().as_os_str()).init()
}

#[test]
fn nvml_wrapper_reads_values_of_machine_file() {
    let nvml = with_machine(
        r#"
        driver = "535.154.05"
        cuda = "12.2"
        [[gpu]]
        [[gpu]]
        name = "NVIDIA A100-SXM4-40GB"
        uuid = "GPU-1c1d"
        minor = 3
        pci = "0000:c7:00.0"
        memory_mib = 40960
        compute = [8, 0]
        cpus = "0-1,64"
        numa = 1
        links = { "0" = 4 }
        switch_links = 2
        [[gpu]]
        denied = true
        [[fault]]
        at = "name"
        gpu = 0
        kind = "gpu-is-lost"
        [[fault]]
        at = "memory"
        gpu = 0
        kind = "nonsense"
        "#,
    )
    .unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "535.154.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12020);
    assert_eq!(nvml.device_count().unwrap(), 3);

    let gpu = nvml.device_by_index(1).unwrap();
    assert_eq!(gpu.name().unwrap(), "NVIDIA A100-SXM4-40GB");
    assert_eq!(gpu.uuid().unwrap(), "GPU-1c1d");
    assert_eq!((gpu.index().unwrap(), gpu.minor_number().unwrap()), (1, 3));
    assert_eq!(gpu.pci_info().unwrap().bus_id, "00000000:C7:00.0");
    assert_eq!(gpu.memory_info().unwrap().total, 40960 << 20);
    let compute = gpu.cuda_compute_capability().unwrap();
    assert_eq!((compute.major, compute.minor), (8, 0));
    assert_eq!(gpu.cpu_affinity(3).unwrap(), [0b11, 0b1, 0]);
    assert_eq!(gpu.numa_node_id().unwrap(), 1);
    assert_eq!(gpu.mig_mode().unwrap().current, 0);

    let lane = |number| gpu.link_wrapper_for(number);
    assert!(lane(5).is_active().unwrap());
    assert!(!lane(6).is_active().unwrap());
    assert_eq!(lane(3).remote_pci_info().unwrap().bus, 0x10);
    assert!(matches!(lane(18).is_active(), Err(NvmlError::InvalidArg)));

    let first = nvml.device_by_index(0).unwrap();
    assert!(matches!(first.name(), Err(NvmlError::GpuLost)));
    assert_eq!(first.memory_info().unwrap().total, u64::MAX);
    assert!(matches!(first.numa_node_id(), Err(NvmlError::NotSupported)));
    assert!(matches!(first.link_wrapper_for(0).is_active(), Err(NvmlError::NotSupported)));
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::NoPermission)));
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::InvalidArg)));
    nvml.shutdown().unwrap();

    let mismatch = with_machine("[[fault]]\nat = 'init'\nkind = 'lib-rm-version-mismatch'");
    assert!(matches!(mismatch.err().unwrap(), NvmlError::LibRmVersionMismatch));
    assert_eq!(with_machine("").unwrap().device_count().unwrap(), 0);
}
