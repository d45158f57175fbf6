//! Real driver branches and cards: which calls exist and which return NOT_SUPPORTED.
//!
//! Sources: nvml.h for the calls of each branch (NVIDIA/go-nvml has the header of each CUDA release; 11.4 is R470, 12.2
//! R535, 12.4 R550, 12.8 R570, 13.0 R580); the N/A values of `nvidia-smi -q` for each card.

use std::fmt::Write as _;

/// A driver branch, with the calls and fields that it lacks.
#[derive(Debug, PartialEq, Eq)]
pub struct Branch {
    /// Name of the branch, such as `R535`.
    pub name: &'static str,
    /// Version of one release of the branch.
    pub driver: &'static str,
    /// The highest supported CUDA version.
    pub cuda: &'static str,
    /// NVML calls that the branch does not have.
    pub missing: &'static [&'static str],
    /// Field IDs that the branch does not support.
    pub lacks_fields: &'static [u32],
}

/// A GPU model.
#[derive(Debug, PartialEq, Eq)]
pub struct Card {
    /// Short name, such as `T4`.
    pub name: &'static str,
    /// The keys of the card's `[[gpu]]` table, and the tables below it.
    keys: &'static str,
    /// IDs of fields that no driver supports for the card.
    lacks_fields: &'static [u32],
    /// Number of the oldest branch that supports the card.
    since: u32,
}

/// A combination of card and driver branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The driver branch.
    pub branch: &'static Branch,
    /// The GPU model.
    pub card: &'static Card,
}

/// Fields of the remapped rows, which data centre cards since Ampere support.
const ROWS: [u32; 4] = [142, 143, 144, 145];

/// The branches, oldest first. R555 added the PCI Express counters (197, 198), R570 the recovery action (230).
pub const BRANCHES: [Branch; 5] = [
    Branch {
        name: "R470",
        driver: "470.256.02",
        cuda: "11.4",
        missing: &[
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlGpmQueryDeviceSupport",
            "nvmlGpmSampleAlloc",
            "nvmlGpmSampleGet",
            "nvmlGpmMigSampleGet",
            "nvmlGpmMetricsGet",
            "nvmlDeviceGetGpuFabricInfo",
            "nvmlDeviceGetGpuFabricInfoV",
            "nvmlDeviceGetNumaNodeId",
        ],
        lacks_fields: &[197, 198, 230],
    },
    Branch {
        name: "R535",
        driver: "535.154.05",
        cuda: "12.2",
        missing: &["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNumaNodeId"],
        lacks_fields: &[197, 198, 230],
    },
    Branch { name: "R550", driver: "550.54.15", cuda: "12.4", missing: &[], lacks_fields: &[197, 198, 230] },
    Branch { name: "R570", driver: "570.86.15", cuda: "12.8", missing: &[], lacks_fields: &[] },
    Branch { name: "R580", driver: "580.65.06", cuda: "13.0", missing: &[], lacks_fields: &[] },
];

/// The GPU models: data centre, workstation and consumer cards, and one in a virtual machine.
pub const CARDS: [Card; 8] = [
    Card {
        name: "H100",
        keys: "name = 'NVIDIA H100 80GB HBM3'\nmemory_mib = 81559\nreserved_mib = 551\ncompute = [9, 0]\nswitch_links = 18\n\
               unsupported = ['fan']\ncondition = { tensor = 40.0, fabric = 3, pcie_bytes = [8589934592, 8589934592] }\n",
        lacks_fields: &[],
        since: 525,
    },
    // Recorded with driver 580.159.04 in tests/detect/recorded: one of the machine's cards, in a VM without links or a NUMA node.
    Card {
        name: "H100-VM",
        keys: "name = 'NVIDIA H100 80GB HBM3'\nmemory_mib = 81559\nreserved_mib = 480\ncompute = [9, 0]\npersistence = true\n\
               unsupported = ['fan', 'link-state', 'link-remote', 'fabric']\n\
               condition = { temperature = 33, tensor = 0.0, pcie_bytes = [2952825772, 1150054372], pcie_mib = [0.8, 0.5] }\n",
        lacks_fields: &[],
        since: 525,
    },
    Card {
        name: "A100-MIG",
        keys: "name = 'NVIDIA A100-SXM4-40GB'\nmemory_mib = 40960\nreserved_mib = 577\ncompute = [8, 0]\n\
               unsupported = ['fan', 'utilization']\ncondition = { pcie = [4, 4, 16, 16] }\n\
               [[gpu.mig]]\nprofile = '3g.20gb'\ngi = 2\nmemory_mib = 19968\n\
               [[gpu.mig]]\nprofile = '1g.5gb'\ngi = 9\nmemory_mib = 4864\n",
        lacks_fields: &ROWS,
        since: 450,
    },
    Card {
        name: "L40S",
        keys: "name = 'NVIDIA L40S'\nmemory_mib = 46068\nreserved_mib = 598\ncompute = [8, 9]\nmig = 'unsupported'\n\
               unsupported = ['fan']\ncondition = { pcie = [1, 4, 16, 16], utilization = 2 }\n",
        lacks_fields: &[],
        since: 535,
    },
    Card {
        name: "RTX-3080",
        keys: "name = 'NVIDIA GeForce RTX 3080'\nmemory_mib = 10240\nreserved_mib = 225\ncompute = [8, 6]\nmig = 'unsupported'\n\
               unsupported = ['ecc']\ncondition = { pcie = [1, 4, 16, 16], utilization = 3 }\n",
        lacks_fields: &ROWS,
        since: 455,
    },
    Card {
        name: "T4",
        keys: "name = 'Tesla T4'\nmemory_mib = 15360\nreserved_mib = 387\ncompute = [7, 5]\nmig = 'unsupported'\n\
               unsupported = ['fan']\ncondition = { pcie = [1, 3, 16, 16] }\n",
        lacks_fields: &ROWS,
        since: 410,
    },
    Card {
        name: "GB200",
        keys: "name = 'NVIDIA GB200'\nmemory_mib = 189471\nreserved_mib = 700\ncompute = [10, 0]\nswitch_links = 18\n\
               unsupported = ['fan']\ncondition = { tensor = 10.0, fabric = 3, fabric_cluster = [171, 7], pcie_bytes = [8589934592, 8589934592] }\n",
        lacks_fields: &[],
        since: 570,
    },
    // In a VM guest: no sensors, links or ECC.
    Card {
        name: "vGPU",
        keys: "name = 'NVIDIA A100-20C'\nmemory_mib = 20480\nreserved_mib = 1570\ncompute = [8, 0]\nmig = 'unsupported'\n\
               unsupported = ['fan', 'power', 'temperature', 'link', 'ecc', 'events']\n",
        lacks_fields: &[142, 143, 144, 145, 197, 198, 230],
        since: 450,
    },
];

impl Profile {
    /// Each card with each branch that supports it.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_branch = |branch: &'static Branch| {
            let is_supported = move |card: &&Card| card.since <= branch.number();
            CARDS.iter().filter(is_supported).map(move |card| Self { branch, card })
        };
        BRANCHES.iter().flat_map(of_branch)
    }

    /// Name of the profile, such as `R535 T4`.
    pub fn name(&self) -> String {
        format!("{} {}", self.branch.name, self.card.name)
    }

    /// A machine file with `gpus` of the card.
    pub fn machine(&self, gpus: u32) -> String {
        let mut text = format!("driver = '{}'\ncuda = '{}'\n", self.branch.driver, self.branch.cuda);
        let fields = [self.branch.lacks_fields, self.card.lacks_fields].concat();
        for _ in 0..gpus {
            let _ = write!(text, "[[gpu]]\nlacks_fields = {fields:?}\n{}", self.card.keys);
        }
        text
    }
}

impl Branch {
    /// Number of the branch: 535 for `R535`.
    pub fn number(&self) -> u32 {
        self.name.trim_start_matches('R').parse().unwrap_or_default()
    }

    /// Whether the driver reports the recovery action of a GPU.
    pub fn has_recovery_action(&self) -> bool {
        !self.lacks_fields.contains(&230)
    }
}

/// Renames these calls in the library, so that it lacks them.
///
/// # Panics
/// If the library does not have one of the calls.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn without(mut library: Vec<u8>, calls: &[&str]) -> Vec<u8> {
    for name in calls.iter().map(|call| format!("{call}\0")) {
        let is_name = |window: &[u8]| window == name.as_bytes();
        let at = library.windows(name.len()).position(is_name).expect("the library has the call");
        if let Some(first) = library.get_mut(at) {
            *first = b'X';
        }
    }
    library
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn every_profile_parses_as_machine() {
        let all: Vec<Profile> = Profile::all().collect();
        assert_eq!(all.len(), 34, "{:?}", all.iter().map(Profile::name).collect::<Vec<_>>());
        for profile in all {
            let machine =
                Machine::parse(&profile.machine(2)).unwrap_or_else(|error| panic!("{}: {error}", profile.name()));
            assert_eq!((machine.count(), machine.driver()), (2, profile.branch.driver));
        }
    }
}
