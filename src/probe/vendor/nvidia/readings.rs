//! Measurements of GPUs through NVML.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;

use super::nvml::{self, Answers};
use crate::live::MAX_POWER_MW;
use model::inventory::{Clocks, Readings, RemappedRows};

/// The IDs `NVML_FI_DEV_...` of nvml.h.
const REMAPPED_CORRECTABLE: u32 = 142;
const REMAPPED_UNCORRECTABLE: u32 = 143;
const REMAPPED_PENDING: u32 = 144;
const REMAPPED_FAILURE: u32 = 145;
const RECOVERY_ACTION: u32 = 230;
/// The largest number of links of any GPU (H100 and B200).
const MAX_LINKS: u32 = 18;
/// The maximum plausible clock: 100 GHz.
const MAX_MHZ: u32 = 100_000;

/// The measurements of one GPU that need no previous sample. The GPU's condition contains further ones.
pub(super) fn of_nvml(device: &Device<'_>, answers: &Answers) -> Readings {
    let power = |answer: Result<u32, _>| answers.of(answer).map(u64::from).filter(|mw| *mw <= MAX_POWER_MW);
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
    let of = |clock| of(clock).filter(|mhz| *mhz <= MAX_MHZ);
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
    // All bits set means unknown.
    u32::try_from(nvml::number(value)?).ok().filter(|number| *number != u32::MAX)
}

/// The number of NVLinks that are down; `None` if NVML reports no NVLink. The search ends at the first link that NVML does not report.
fn links_down(device: &Device<'_>) -> Option<u32> {
    let states: Vec<bool> = (0..MAX_LINKS).map_while(|link| device.link_wrapper_for(link).is_active().ok()).collect();
    let down = states.iter().filter(|is_up| !**is_up).count();
    (!states.is_empty()).then(|| u32::try_from(down).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bits_set_is_no_value() {
        let values = [SampleValue::U32(7), SampleValue::U64(7), SampleValue::I64(7)];
        assert_eq!(values.map(number), [Some(7); 3]);
        let unknown = [
            SampleValue::U32(u32::MAX),
            SampleValue::U64(u64::MAX),
            SampleValue::U64(u64::from(u32::MAX)),
            SampleValue::I64(-1),
            SampleValue::F64(1.0),
        ];
        assert_eq!(unknown.map(number), [None; 5]);
    }

    #[test]
    fn discards_implausible_clock() {
        let clocks = clocks(|clock| match clock {
            Clock::Graphics => Some(MAX_MHZ),
            Clock::SM => Some(MAX_MHZ + 1),
            Clock::Memory => Some(3_201),
            Clock::Video => None,
        });
        let expected = Clocks { graphics: Some(MAX_MHZ), sm: None, memory: Some(3_201), video: None };
        assert_eq!(clocks, expected);
    }
}
