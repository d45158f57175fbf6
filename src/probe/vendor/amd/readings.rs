//! Measurements of AMD GPUs from sysfs.

use std::fs;
use std::path::Path;

use crate::live::MAX_POWER_MW;
use crate::regular;
use model::inventory::{Condition, PciAddress, Readings};

/// The measurements of an AMD GPU in the kernel's files.
pub(super) fn read(root: &Path, index: u32, address: PciAddress) -> (Condition, Readings) {
    let device = root.join("sys/bus/pci/devices").join(address.to_string());
    let number = |name: &str| value(&device.join(name));
    let percent =
        |name: &str| number(name).and_then(|percent| u32::try_from(percent).ok()).filter(|percent| *percent <= 100);
    let sensor = |name: &str| sensors(&device).find_map(|sensors| value(&sensors.join(name)));
    // sysfs reports power in microwatts.
    let power = |name: &str| sensor(name).map(|microwatts| microwatts / 1000).filter(|mw| *mw <= MAX_POWER_MW);
    let memory = number("mem_info_vram_used").zip(number("mem_info_vram_total"));
    let celsius = temperature(&device).and_then(|thousandths| u32::try_from(thousandths / 1000).ok());
    let readings = Readings {
        memory_utilization: percent("mem_busy_percent"),
        power_mw: power("power1_average").or_else(|| power("power1_input")),
        power_limit_mw: power("power1_cap"),
        default_power_limit_mw: power("power1_cap_default"),
        ras_uncorrected: ras(&device.join("ras")),
        ..Readings::default()
    };
    let memory = memory.filter(|(used, total)| used <= total).map(|(used, total)| (used >> 20, total >> 20));
    let condition = Condition {
        index,
        memory_mib: memory,
        temperature: celsius,
        utilization: percent("gpu_busy_percent"),
        ..Condition::default()
    };
    (condition, readings)
}

/// The temperature of the chip's edge, in thousandths of a degree. An MI300 hides this sensor (GC 9.4.3, `hwmon_attributes_visible`); then
/// this is the temperature of the hottest point. Without labels, this is the first sensor's temperature.
fn temperature(device: &Path) -> Option<u64> {
    let labelled_sensor = |label_text: &str| {
        sensors(device).find_map(|sensors| {
            let is_labelled = |number: &u32| {
                regular::line(&sensors.join(format!("temp{number}_label"))).is_some_and(|label| label == label_text)
            };
            let number = (1..=3).find(is_labelled)?;
            value(&sensors.join(format!("temp{number}_input")))
        })
    };
    let unlabelled = || sensors(device).find_map(|sensors| value(&sensors.join("temp1_input")));
    labelled_sensor("edge").or_else(|| labelled_sensor("junction")).or_else(unlabelled)
}

fn sensors(device: &Path) -> impl Iterator<Item = std::path::PathBuf> + use<> {
    fs::read_dir(device.join("hwmon")).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn value(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number of uncorrectable errors of all blocks: the lines `ue: N` of `ras/*_err_count`. A file with the text "Query currently inaccessible"
/// is skipped.
fn ras(directory: &Path) -> Option<u64> {
    let files = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let counts = files.filter(|file| file.to_string_lossy().ends_with("_err_count")).filter_map(|file| {
        let text = fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| line.trim().strip_prefix("ue:")?.trim().parse::<u64>().ok())
    });
    Some(counts.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_amd_files_and_leaves_missing_values_unset() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:03:00.0");
        let write = |name: &str, text: &str| {
            let file = device.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let address = "0000:03:00.0".parse().unwrap();
        assert_eq!(read(root.path(), 0, address), (Condition::default(), Readings::default()));
        write("gpu_busy_percent", "37\n");
        write("mem_busy_percent", "200\n");
        write("mem_info_vram_used", "1073741824\n");
        write("mem_info_vram_total", "68702699520\n");
        write("hwmon/hwmon4/temp1_input", "45000\n");
        write("hwmon/hwmon4/temp1_label", "edge\n");
        write("hwmon/hwmon4/temp2_label", "junction\n");
        write("hwmon/hwmon4/temp2_input", "61000\n");
        write("hwmon/hwmon4/power1_average", "93000000\n");
        write("ras/umc_err_count", "ue: 2\nce: 7\nde: 0\n");
        write("ras/gfx_err_count", "Query currently inaccessible\n");
        write("ras/features", "ue: 99\n");
        let (condition, readings) = read(root.path(), 1, address);
        let seen = (condition.utilization, condition.memory_mib, condition.temperature);
        assert_eq!(seen, (Some(37), Some((1024, 65520)), Some(45)));
        assert_eq!((readings.power_mw, readings.memory_utilization), (Some(93_000), None));
        assert_eq!(readings.ras_uncorrected, Some(2));
        fs::remove_file(device.join("hwmon/hwmon4/power1_average")).unwrap();
        for (file, text) in
            [("power1_input", "91000000"), ("power1_cap", "300000000"), ("power1_cap_default", "320000000")]
        {
            write(&format!("hwmon/hwmon4/{file}"), text);
        }
        write("mem_busy_percent", "100\n");
        let readings = read(root.path(), 1, address).1;
        let power = (readings.power_mw, readings.power_limit_mw, readings.default_power_limit_mw);
        assert_eq!((power, readings.memory_utilization), ((Some(91_000), Some(300_000), Some(320_000)), Some(100)));
        // An MI300X has no edge sensor (temp1).
        for file in ["temp1_input", "temp1_label"] {
            fs::remove_file(device.join("hwmon/hwmon4").join(file)).unwrap();
        }
        assert_eq!(read(root.path(), 1, address).0.temperature, Some(61));
    }
}
