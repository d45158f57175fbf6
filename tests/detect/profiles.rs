//! Each card with each driver branch that drives it, and each verb that reads GPUs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fake_nvml::profile::{self, Profile};
use model::faults::look::{Line, Seen};
use model::inventory::{Inventory, Source};

use crate::{Machine, fake_nvml, succeeded};

/// A machine with two such cards, and the driver's library.
fn machine(profile: &Profile) -> (Machine, PathBuf) {
    let machine = Machine::new(Some(&profile.machine(2))).with_devices(&[0, 1]);
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
fn look(machine: &Machine, library: &PathBuf) -> Vec<Seen> {
    let mut command = Command::new(harness::slurminit());
    command.args(["look", "--vendor", "nvidia", "--interval-ms", "200", "--meters"]);
    command.env("SLURMINIT_NVML_LIBRARY", library).env("FAKE_NVML", machine.path("fake-nvml.toml"));
    let mut child: Child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        match serde_json::from_str(&line.unwrap()).unwrap() {
            Line::Seen { seen: one, .. } => seen.push(*one),
            Line::Done => break,
            line => assert!(!matches!(line, Line::Trouble { .. }), "{line:?}"),
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    seen
}

#[test]
fn each_card_with_each_driver_branch_is_read_by_each_verb() {
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
        // No advice names a branch: that of the machine may be newer.
        let text = run(&[]) + &format!("{:?}", inventory.findings);
        assert!(!text.contains("nvidia-driver-"), "{name}: {text}");
        for idle in inventory.gpus.iter().filter_map(|gpu| gpu.condition.as_ref()) {
            let (used, whole) = idle.memory_mib.unwrap();
            let free = idle.memory_free_mib.unwrap();
            assert!(whole == total && used + free <= whole && free > whole / 2, "{name}: {used} {free} {whole}");
        }
        assert!(!text.contains("the link has errors"), "{name}: {text}");

        let seen = look(&machine, &library);
        assert_eq!(seen.len(), 2, "{name}");
        for Seen { condition, readings, trouble } in seen {
            assert_eq!(trouble, None, "{name}");
            let can_say = profile.branch.has_recovery_action() && profile.card.name != "vGPU";
            assert_eq!(readings.recovery_action.is_some(), can_say, "{name}");
            assert_eq!(condition.memory_mib.map(|(_, whole)| whole), Some(total), "{name}");
            let is_guest = profile.card.name == "vGPU";
            assert_eq!((condition.temperature.is_none(), readings.power_mw.is_none()), (is_guest, is_guest), "{name}");
            let has_rows = ["H100", "L40S", "GB200"].contains(&profile.card.name);
            assert_eq!(readings.remapped_rows.is_some(), has_rows, "{name}");
            assert_eq!(readings.instances.len(), if profile.card.name == "A100-MIG" { 2 } else { 0 }, "{name}");
            let in_order = readings.power_mw.is_none_or(|mw| (1_000..2_000_000).contains(&mw))
                && readings.clocks.sm.is_none_or(|mhz| (100..5_000).contains(&mhz))
                && readings.fan_percent.is_none_or(|percent| percent <= 100);
            assert!(in_order, "{name}: {readings:?}");
        }
    }
}
