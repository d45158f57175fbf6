//! Measurements of GPUs: NVIDIA's through NVML, AMD's from sysfs.

use std::fs;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;

use super::nvml::{self, Answers};
use model::inventory::{Clocks, Condition, PciAddress, Readings, RemappedRows};

/// `NVML_FI_DEV_...` of nvml.h.
const REMAPPED_CORRECTABLE: u32 = 142;
const REMAPPED_UNCORRECTABLE: u32 = 143;
const REMAPPED_PENDING: u32 = 144;
const REMAPPED_FAILURE: u32 = 145;
const RECOVERY_ACTION: u32 = 230;
/// More links than any GPU has.
const MOST_LINKS: u32 = 18;
/// 100 kW.
const MOST_MW: u64 = 100_000_000;
/// 100 GHz.
const MOST_MHZ: u32 = 100_000;

/// NVML's answers for one GPU.
pub(super) fn of_nvml(device: &Device<'_>, answers: &Answers) -> Readings {
    let power = |answer: Result<u32, _>| answers.of(answer).map(u64::from).filter(|mw| *mw <= MOST_MW);
    let percent = |answer: Result<u32, _>| answers.of(answer).filter(|percent| *percent <= 100);
    let ecc =
        |kind| answers.of(device.total_ecc_errors(kind, EccCounter::Aggregate)).filter(|count| *count != u64::MAX);
    let fields = fields(device, answers);
    Readings {
        memory_utilization: percent(device.utilization_rates().map(|rates| rates.memory)),
        power_mw: power(device.power_usage()),
        power_limit_mw: power(device.enforced_power_limit()),
        set_power_limit_mw: power(device.power_management_limit()),
        default_power_limit_mw: power(device.power_management_limit_default()),
        energy_mj: answers.of(device.total_energy_consumption()).filter(|energy| *energy != u64::MAX),
        fan_percent: percent(device.fan_speed(0)),
        pstate: answers.of(device.performance_state()).map(|state| state.as_c()).filter(|n| *n < 16),
        clocks: clocks(|clock| answers.of(device.clock_info(clock))),
        highest_clocks: clocks(|clock| answers.of(device.max_clock_info(clock))),
        clock_event_reasons: answers.of(device.current_throttle_reasons()).map(|reasons| reasons.bits()),
        ecc_corrected: ecc(MemoryError::Corrected),
        ecc_uncorrected: ecc(MemoryError::Uncorrected),
        remapped_rows: fields.0,
        recovery_action: fields.1,
        nvlinks_down: links_down(device),
        fabric_state: nvml::fabric_state(device),
        ..Readings::default()
    }
}

fn clocks(of: impl Fn(Clock) -> Option<u32>) -> Clocks {
    let of = |clock| of(clock).filter(|mhz| *mhz <= MOST_MHZ);
    Clocks { graphics: of(Clock::Graphics), sm: of(Clock::SM), memory: of(Clock::Memory), video: of(Clock::Video) }
}

/// The remapped rows, and the recovery action.
fn fields(device: &Device<'_>, answers: &Answers) -> (Option<RemappedRows>, Option<u32>) {
    let ids = [REMAPPED_CORRECTABLE, REMAPPED_UNCORRECTABLE, REMAPPED_PENDING, REMAPPED_FAILURE, RECOVERY_ACTION];
    let Some(values) = answers.of(device.field_values_for(&ids.map(FieldId))) else { return (None, None) };
    let values: Vec<Option<u32>> = values.into_iter().map(|value| number(value.ok()?.value.ok()?)).collect();
    let [correctable, uncorrectable, pending, failure, action] = values[..] else { return (None, None) };
    let rows = || {
        Some(RemappedRows {
            correctable: correctable?,
            uncorrectable: uncorrectable?,
            is_pending: pending? != 0,
            has_failed: failure? != 0,
        })
    };
    (rows(), action)
}

fn number(value: SampleValue) -> Option<u32> {
    match value {
        SampleValue::U32(number) => Some(number),
        SampleValue::U64(number) => number.try_into().ok(),
        SampleValue::I64(number) => number.try_into().ok(),
        SampleValue::F64(_) => None,
    }
    // A driver that sets every bit tells nothing.
    .filter(|number| *number != u32::MAX)
}

/// `None` for a GPU without NVLink.
fn links_down(device: &Device<'_>) -> Option<u32> {
    let states: Vec<bool> = (0..MOST_LINKS).map_while(|link| device.link_wrapper_for(link).is_active().ok()).collect();
    let down = states.iter().filter(|is_up| !**is_up).count();
    (!states.is_empty()).then(|| u32::try_from(down).unwrap_or(u32::MAX))
}

/// What the kernel's files say of an AMD GPU.
pub(super) fn of_amd(root: &Path, index: u32, address: PciAddress) -> (Condition, Readings) {
    let device = root.join("sys/bus/pci/devices").join(address.to_string());
    let number = |name: &str| value(&device.join(name));
    let percent =
        |name: &str| number(name).and_then(|percent| u32::try_from(percent).ok()).filter(|percent| *percent <= 100);
    let sensor = |name: &str| sensors(&device).find_map(|sensors| value(&sensors.join(name)));
    // In microwatts.
    let power = |name: &str| sensor(name).map(|microwatts| microwatts / 1000).filter(|mw| *mw <= MOST_MW);
    let memory = number("mem_info_vram_used").zip(number("mem_info_vram_total"));
    let celsius = sensor("temp1_input").and_then(|thousandths| u32::try_from(thousandths / 1000).ok());
    let readings = Readings {
        memory_utilization: percent("mem_busy_percent"),
        power_mw: power("power1_average").or_else(|| power("power1_input")),
        power_limit_mw: power("power1_cap"),
        default_power_limit_mw: power("power1_cap_default"),
        ras_uncorrected: ras(&device.join("ras")),
        ..Readings::default()
    };
    let memory = memory.filter(|(used, whole)| used <= whole).map(|(used, whole)| (used >> 20, whole >> 20));
    let condition = Condition {
        index,
        memory_mib: memory,
        temperature: celsius,
        utilization: percent("gpu_busy_percent"),
        ..Condition::default()
    };
    (condition, readings)
}

fn sensors(device: &Path) -> impl Iterator<Item = std::path::PathBuf> + use<> {
    fs::read_dir(device.join("hwmon")).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn value(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The uncorrectable errors of all blocks: lines `ue: N` of `ras/*_err_count`. "Query currently inaccessible" is no error.
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
    fn amds_files_become_measurements_and_what_they_lack_stays_open() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:03:00.0");
        let write = |name: &str, text: &str| {
            let file = device.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let address = "0000:03:00.0".parse().unwrap();
        assert_eq!(of_amd(root.path(), 0, address), (Condition::default(), Readings::default()));
        write("gpu_busy_percent", "37\n");
        write("mem_busy_percent", "200\n");
        write("mem_info_vram_used", "1073741824\n");
        write("mem_info_vram_total", "68702699520\n");
        write("hwmon/hwmon4/temp1_input", "45000\n");
        write("hwmon/hwmon4/power1_average", "93000000\n");
        write("ras/umc_err_count", "ue: 2\nce: 7\nde: 0\n");
        write("ras/gfx_err_count", "Query currently inaccessible\n");
        write("ras/features", "ue: 99\n");
        let (condition, readings) = of_amd(root.path(), 1, address);
        let seen = (condition.utilization, condition.memory_mib, condition.temperature);
        assert_eq!(seen, (Some(37), Some((1024, 65520)), Some(45)));
        assert_eq!((readings.power_mw, readings.memory_utilization), (Some(93_000), None));
        assert_eq!(readings.ras_uncorrected, Some(2));
    }
}
