//! The NVLink fabric of a GPU, which connects GPUs through switches.

use nvml_wrapper::Device;

use super::raw_calls::{fabric_v1, fabric_v2};

/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u32 = 3;

/// NVML's answer about the fabric of a GPU.
pub(super) struct Fabric {
    pub(super) state: u32,
    /// All zero if the fabric ends at this machine (HGX).
    pub(super) cluster: [u8; 16],
    pub(super) clique: u32,
}

/// The state of the GPU's registration with its fabric (1 not started, 2 in progress, 3 completed); `None` for a GPU without a fabric, or if NVML
/// does not report the state.
pub(crate) fn fabric_state(device: &Device<'_>) -> Option<u32> {
    fabric(device).map(|fabric| fabric.state).filter(|state| (1..=COMPLETED).contains(state))
}

/// The NVLink domain that the GPU shares with other machines, as NVIDIA's GPU feature discovery names it (`nvidia.com/gpu.clique`):
/// the cluster's UUID, a dot, the clique. `None` if the fabric ends at this machine, and until the registration is completed.
pub(super) fn nvlink_domain(device: &Device<'_>) -> Option<String> {
    fabric(device)?.domain()
}

impl Fabric {
    fn domain(&self) -> Option<String> {
        let Self { state, cluster, clique } = self;
        if *state != COMPLETED || *cluster == [0; 16] {
            return None;
        }
        let hex: String = cluster.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{}-{}-{}-{}-{}.{clique}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
    }
}

fn fabric(device: &Device<'_>) -> Option<Fabric> {
    fabric_v2(device).or_else(|_| fabric_v1(device)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_is_that_of_a_completed_fabric_between_machines() {
        let mut cluster = [0; 16];
        let domain = |state, cluster| Fabric { state, cluster, clique: 7 }.domain();
        assert_eq!(domain(COMPLETED, cluster), None, "HGX");
        (cluster[0], cluster[15]) = (0xab, 1);
        assert_eq!(domain(COMPLETED, cluster).as_deref(), Some("ab000000-0000-0000-0000-000000000001.7"));
        assert_eq!(domain(2, cluster), None, "in progress");
    }
}
