//! The NVLink fabric of a GPU, which connects GPUs through switches.

use nvml_wrapper::Device;

use super::raw_calls::{fabric_state_v1, fabric_state_v2};

/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u32 = 3;

/// 1: not started, 2: in progress, 3: completed; `None` for a GPU that joins none.
pub(crate) fn fabric_state(device: &Device<'_>) -> Option<u32> {
    let state = fabric_state_v2(device).or_else(|_| fabric_state_v1(device)).ok()?;
    (1..=COMPLETED).contains(&state).then_some(state)
}
