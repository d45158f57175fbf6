//! NVIDIA GPUs in MIG mode.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use model::inventory::{Access, Obstacle, Source};

use super::Machine;

#[test]
fn gpu_in_mig_mode_without_instance_is_unusable_and_reported() {
    let inventory = Machine::new(Some("[[gpu]]\nmig = 'enabled'\n[[gpu]]")).with_devices(&[0, 1]).detect();
    assert_eq!(inventory.gpus[0].mig, Some(vec![]));
    assert_eq!(inventory.usable_gpus().map(|gpu| gpu.index).collect::<Vec<_>>(), [1]);
    let [finding] = inventory.findings.as_slice() else { panic!("{:?}", inventory.findings) };
    assert!(finding.what.contains("GPU 0 is in MIG mode without an instance"), "{finding:?}");
    assert!(finding.fix.contains(":00.0 -cgi PROFILE -C"), "{finding:?}");
}

/// GPU 0 has minor 3; one slot is empty; a device file of one instance is missing from the container.
#[test]
fn finds_mig_instances_with_device_files() {
    let toml = r#"
        [[gpu]]
        minor = 3
        [[gpu.mig]]
        profile = "1c.3g.71gb"
        gi = 2
        ci = 1
        memory_mib = 71424
        [[gpu.mig]]
        profile = "1g.18gb+me"
        gi = 9
        slot = 4
        [[gpu.mig]]
        gi = 10
        slot = 5
        [[gpu]]
        minor = 0
    "#;
    let minors = "config 1\nmonitor 2\ngpu0/gi2/access 21\ngpu3/gi2/access 426\ngpu3/gi2/ci1/access 428\n\
                  gpu3/gi9/access 489\ngpu3/gi9/ci0/access 490\ngpu3/gi10/access 498\ngpu3/gi10/ci0/access 499\n";
    let machine =
        Machine::new(Some(toml)).with_devices(&[0, 3]).with_file("proc/driver/nvidia-caps/mig-minors", minors);
    fs::create_dir(machine.path("dev/nvidia-caps")).unwrap();
    for number in [426, 428, 489, 490, 498] {
        symlink("/dev/null", machine.path(&format!("dev/nvidia-caps/nvidia-cap{number}"))).unwrap();
    }
    let inventory = machine.detect();
    let Some([first, second, third]) = inventory.gpus[0].mig.as_deref() else { panic!("{:?}", inventory.gpus[0]) };
    assert_eq!((first.profile.as_deref(), first.memory_mib), (Some("1c.3g.71gb"), Some(71_424)));
    assert_eq!((first.gpu_instance, first.compute_instance), (Some(2), Some(1)));
    assert_eq!(first.uuid.as_deref(), Some("MIG-fa4e0000-0000-0000-0000-000000000000"));
    let files = ["/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap426", "/dev/nvidia-caps/nvidia-cap428"];
    assert_eq!(first.device_files, files.map(PathBuf::from));
    assert_eq!(second.profile.as_deref(), Some("1g.18gb+me"));
    assert_eq!((&first.access, &second.access), (&Access::Usable, &Access::Usable));
    assert!(matches!(&third.access, Access::Unusable { reason, .. } if reason.contains("nvidia-cap499")), "{third:?}");
    assert_eq!(inventory.gpus[1].mig, None);
    assert_eq!(inventory.usable_gpus().count(), 2);
    let [finding] = inventory.findings.as_slice() else { panic!("{:?}", inventory.findings) };
    assert!(finding.what.starts_with("1 of 3 MIG instances of NVIDIA GPU 0"), "{finding:?}");
}

#[test]
fn excludes_mig_instance_without_capability_entry() {
    let inventory = Machine::new(Some("[[gpu]]\n[[gpu.mig]]\ngi = 7")).with_devices(&[0]).detect();
    assert_eq!(inventory.usable_gpus().count(), 0);
    assert!(
        inventory.findings[0].cause.contains("mig-minors has no line for a capability of GPU instance 7"),
        "{:?}",
        inventory.findings
    );
}

/// CUDA selects an instance only by UUID, so instances with a missing or duplicate UUID are excluded.
#[test]
fn excludes_mig_instance_without_unique_uuid() {
    let toml = "[[gpu]]\n[[gpu.mig]]\ngi = 1\nuuid = 'MIG-1'\n[[gpu.mig]]\ngi = 1\nuuid = 'MIG-1'\n[[gpu.mig]]\ngi = 1\nuuid = ''\n";
    let machine = Machine::new(Some(toml))
        .with_devices(&[0])
        .with_file("proc/driver/nvidia-caps/mig-minors", "gpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\n");
    fs::create_dir(machine.path("dev/nvidia-caps")).unwrap();
    for number in [3, 4] {
        symlink("/dev/null", machine.path(&format!("dev/nvidia-caps/nvidia-cap{number}"))).unwrap();
    }
    let inventory = machine.detect();
    let obstacles: Vec<_> = inventory.gpus[0].mig.iter().flatten().map(|it| it.access.obstacle()).collect();
    assert_eq!(obstacles, [None, Some(Obstacle::SharedName), Some(Obstacle::Nameless)]);
    let [finding] = inventory.findings.as_slice() else { panic!("{:?}", inventory.findings) };
    assert!(finding.what.starts_with("2 of 3 MIG instances") && finding.cause.contains("no UUID"), "{finding:?}");
}

/// Whatever the driver reports, the other GPU stays usable and no instance without device files is offered.
#[test]
fn mig_query_fault_affects_no_other_gpu() {
    for at in ["mig-mode", "mig-device", "mig-instance", "name", "uuid", "memory", "index"] {
        for kind in ["nonsense", "unterminated", "untouched", "unknown", "not-supported", "not-found"] {
            let fault = format!("[[fault]]\nat = '{at}'\ngpu = 0\nkind = '{kind}'");
            let machine = Machine::new(Some(&format!("[[gpu]]\n[[gpu.mig]]\ngi = 1\n[[gpu]]\n{fault}")));
            let machine = machine.with_devices(&[0, 1]).with_file(
                "proc/driver/nvidia-caps/mig-minors",
                "gpu0/gi0/access 1\ngpu0/gi0/ci0/access 2\ngpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\n",
            );
            let inventory = machine.detect();
            assert_eq!(inventory.drivers[0].source, Source::Nvml, "{at} {kind}");
            assert!(inventory.usable_gpus().any(|gpu| gpu.index == 1), "{at} {kind}");
            // The capability files are missing, so no instance is usable.
            let instances = inventory.gpus[0].mig.iter().flatten();
            assert!(instances.clone().all(|instance| instance.access != Access::Usable), "{at} {kind}");
            assert_eq!(inventory.gpus[0].mig.is_none(), at == "mig-mode", "{at} {kind}");
        }
    }
}

/// Without NVML an instance has no UUID, and a GPU in MIG mode cannot be used as a whole.
#[test]
fn excludes_gpu_in_mig_mode_without_nvml() {
    let machine = Machine::new(Some("gpus = 2\n[[fault]]\nat = 'init'\nkind = 'unknown'"));
    let machine = machine.with_devices(&[0, 1]);
    let machine = machine.with_file("proc/driver/nvidia/capabilities/gpu0/mig/gi9/access", "DeviceFileMinor: 219\n");
    let machine = machine.with_file("proc/driver/nvidia/capabilities/gpu1/mig/config", "DeviceFileMinor: 1\n");
    let inventory = machine.detect();
    assert_eq!(inventory.drivers[0].source, Source::NvidiaProc);
    assert_eq!(inventory.usable_gpus().map(|gpu| gpu.index).collect::<Vec<_>>(), [1]);
    let [_, finding] = inventory.findings.as_slice() else { panic!("{:?}", inventory.findings) };
    assert!(finding.cause.contains("the UUID of GPU instance 9 is available only from NVML"), "{finding:?}");
}
