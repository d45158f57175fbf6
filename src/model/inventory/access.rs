//! Whether a GPU can be used, and if not, why.

use serde::{Deserialize, Serialize};

use super::Vendor;

/// Whether a GPU or MIG instance that the driver reports can be used in this container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum Access {
    /// The GPU can be used.
    #[default]
    Usable,
    /// The GPU exists but cannot be used.
    Unusable {
        /// The reason in a sentence: `/dev/nvidia1 is not in this container`.
        reason: String,
        /// The reason as a kind, for decisions.
        #[serde(default)]
        obstacle: Obstacle,
    },
}

impl Access {
    /// The access of a GPU that cannot be used.
    pub fn unusable(obstacle: Obstacle, reason: impl Into<String>) -> Self {
        Self::Unusable { reason: reason.into(), obstacle }
    }

    /// The kind of reason; `None` if the GPU is usable.
    pub const fn obstacle(&self) -> Option<Obstacle> {
        match self {
            Self::Usable => None,
            Self::Unusable { obstacle, .. } => Some(*obstacle),
        }
    }
}

/// The kind of reason why jobs in this container cannot use a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// The GPU was not passed to the container.
    #[default]
    NotGiven,
    /// The container's device rules deny access.
    Denied,
    /// The file's mode or its mount denies access.
    Mode,
    /// The file is not a device file.
    NoDevice,
    /// The device file has no driver.
    NoDriver,
    /// The GPU fell off the bus or needs a reset.
    Lost,
    /// The driver lists the GPU but denies access, or could not initialize it.
    Refused,
    /// The driver does not answer.
    Hang,
    /// The driver is still initializing the GPU.
    Starting,
    /// Another GPU has the same device file.
    SharedFile,
    /// The device file is unknown.
    UnknownFile,
    /// Another GPU or MIG instance has the same UUID.
    SharedName,
    /// The MIG instance has no known UUID by which a job could select it in CUDA.
    Nameless,
    /// The GPU has a fault and is excluded from jobs.
    Faulty,
    /// The operator excluded the GPU.
    NotChosen,
    /// The GPU is integrated into the processor. Jobs do not get it, because there are discrete GPUs, or because jobs get no integrated GPU of this
    /// vendor by default.
    Integrated,
    /// Any other reason.
    Other,
}

impl Obstacle {
    /// Whether this is unintended; `false` if the GPU was not passed, was excluded by the operator, or is integrated.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::NotGiven | Self::NotChosen | Self::Integrated)
    }

    /// All obstacles.
    pub const ALL: [Self; 17] = [
        Self::NotGiven,
        Self::Denied,
        Self::Mode,
        Self::NoDevice,
        Self::NoDriver,
        Self::Lost,
        Self::Refused,
        Self::Hang,
        Self::Starting,
        Self::SharedFile,
        Self::UnknownFile,
        Self::SharedName,
        Self::Nameless,
        Self::Faulty,
        Self::NotChosen,
        Self::Integrated,
        Self::Other,
    ];

    /// Whether the GPU and its driver are in the container, although jobs cannot or may not use the GPU now. If not, the machine is treated as one
    /// without this GPU.
    pub const fn is_present(self) -> bool {
        !matches!(self, Self::NotGiven | Self::Denied | Self::Mode | Self::NoDevice | Self::NoDriver | Self::Refused)
    }

    /// Whether the vendor's runtime still enumerates the GPU.
    pub const fn is_seen_by_runtime(self) -> bool {
        matches!(self, Self::NotChosen | Self::Integrated | Self::Faulty | Self::Starting)
    }

    /// Whether CUDA counts the GPU; `None` if unknown, because CUDA may fail to open or initialize it.
    pub const fn is_counted(self) -> Option<bool> {
        match self {
            Self::NotChosen | Self::Integrated => Some(true),
            Self::NotGiven | Self::Denied | Self::Mode | Self::NoDevice | Self::NoDriver => Some(false),
            _ => None,
        }
    }

    /// The likely cause and the fix, for a GPU of this vendor.
    pub const fn cause_and_fix(self, vendor: Vendor) -> (&'static str, &'static str) {
        let words = &vendor.traits().obstacles;
        match self {
            Self::NotGiven => ("not passed to this container", words.not_given),
            Self::Denied => words.denied,
            Self::Mode => (
                "the file mode denies access, or the mount has the option nodev",
                "run the container as root, without a user namespace that hides the file's owner, and pass the file with --device",
            ),
            Self::NoDevice => (
                "the path is not a device node: a bind mount of a file that is missing on the host creates a directory",
                "pass the device with --device (NVIDIA: --gpus all), not as a volume, and re-create the container",
            ),
            Self::NoDriver => ("the device file exists, but the kernel no longer has a driver for it", words.no_driver),
            Self::Lost => ("the GPU fell off the bus or needs a reset (power, heat, slot or card)", words.lost),
            Self::Hang => ("the driver hangs: a GPU failed or is being reset", words.hang),
            Self::Starting => (
                "the driver initializes each GPU at its first use, which takes seconds without persistence mode",
                "no action: jobs get the GPU as soon as it responds; nvidia-persistenced on the host speeds this up",
            ),
            Self::Refused => (
                "the driver denies this container access to the GPU, or could not initialize it",
                "run nvidia-smi on the host; if it works, start the container with --gpus all",
            ),
            Self::SharedFile => (
                "slurmd exits if two GPUs have the same device file, so only the first GPU is used",
                "no action; report this as a bug (the driver reports one device file for two GPUs)",
            ),
            Self::UnknownFile => (
                "neither NVML nor /proc/driver/nvidia reports the GPU's minor number, so its device file is unknown",
                "start the container with --gpus all (which mounts /proc/driver/nvidia), or update the driver",
            ),
            Self::SharedName => (
                "duplicate UUID: CUDA selects GPUs by UUID, so two jobs could share one GPU",
                "run nvidia-smi -L on the host; if it also shows duplicate UUIDs, the card's firmware is faulty",
            ),
            Self::Nameless => (
                "no UUID from the driver; CUDA requires it to select an instance",
                "run nvidia-smi -L on the host; if it shows no UUID, re-create the instance (nvidia-smi mig -dci, -dgi, -cgi PROFILE -C), \
                 otherwise start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            ),
            Self::Faulty => (
                "excluded because of a fault ([faults] of slurminit.toml)",
                "no action if the GPU recovers by itself; otherwise run `slurminit gpu release GPU`, fix the GPU, then run `slurminit gpu return GPU`",
            ),
            Self::NotChosen => (
                "excluded by `[gpu] only` or `except` of slurminit.toml",
                "no action if intended; otherwise change `[gpu] only` or `except`",
            ),
            Self::Integrated => (
                "the GPU is integrated into the processor, and could be allocated to any GPU job",
                "no action if intended; otherwise add it to `[gpu] only` of slurminit.toml, with the other GPUs for jobs",
            ),
            Self::Other => (
                "the kernel refused to open the device file, with the error shown in parentheses",
                "check the driver's messages on the host (dmesg)",
            ),
        }
    }
}
