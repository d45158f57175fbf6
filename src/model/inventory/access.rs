//! Whether a GPU can be used, and if not, why.

use serde::{Deserialize, Serialize};

use super::Vendor;

/// Whether a GPU that the driver reports can be used in this container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum Access {
    /// The device file can be opened.
    #[default]
    Usable,
    /// The GPU exists but cannot be used.
    Unusable {
        /// The reason in a sentence: `/dev/nvidia1 is not in this container`.
        reason: String,
        /// The kind of reason.
        #[serde(default)]
        obstacle: Obstacle,
    },
}

impl Access {
    /// The GPU cannot be used.
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

/// What keeps this container's jobs from using a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// The device file is not in the container.
    #[default]
    NotGiven,
    /// The container's device rules deny access.
    Denied,
    /// The file's mode or its mount denies access.
    Mode,
    /// The file is not a device file.
    NoDevice,
    /// No driver is behind the device file.
    NoDriver,
    /// The GPU fell off the bus or needs a reset.
    Lost,
    /// The driver counts the GPU but refuses to open it.
    Refused,
    /// The driver does not answer.
    Hang,
    /// Another GPU has the same device file.
    SharedFile,
    /// The device file is unknown.
    UnknownFile,
    /// Another GPU has the same unique name.
    SharedName,
    /// The GPU has no name by which a job could select it in the runtime.
    Nameless,
    /// The driver has it, and it has a fault for which jobs are not to get it.
    Faulty,
    /// The operator excluded it.
    NotChosen,
    /// It is integrated into the processor, and there are discrete GPUs.
    Integrated,
    /// Something else.
    Other,
}

impl Obstacle {
    /// Whether this is a fault, rather than something that was not given or not wanted.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::NotGiven | Self::NotChosen | Self::Integrated)
    }

    /// Whether the vendor's runtime still sees and counts the GPU.
    pub const fn is_seen_by_runtime(self) -> bool {
        matches!(self, Self::NotChosen | Self::Integrated | Self::Faulty)
    }

    /// Cause and repair.
    pub const fn words(self, vendor: Vendor) -> (&'static str, &'static str) {
        let words = &vendor.traits().obstacles;
        match self {
            Self::NotGiven => ("this container was not given them", words.not_given),
            Self::Denied => words.denied,
            Self::Mode => (
                "the device file is closed to this user, or lies on a mount with the option nodev",
                "run the container as root, without a user namespace that hides the file's owner, and pass the file with --device",
            ),
            Self::NoDevice => (
                "what lies in the device file's place is none: a bind mount of a file that the host lacks makes a directory",
                "pass the device with --device (NVIDIA: --gpus all), not as a volume, and create the container anew",
            ),
            Self::NoDriver => {
                ("the device file is there, and the kernel has no driver for it any more", words.no_driver)
            }
            Self::Lost => {
                ("the GPU fell off the bus or waits for a reset: power, heat, the slot, or the card itself", words.lost)
            }
            Self::Hang => ("the driver hangs: a GPU failed or is being reset", words.hang),
            Self::Refused => (
                "the driver has the GPU and does not give it to this container, or could not set it up",
                "run nvidia-smi on the host; where it works there, start the container with --gpus all",
            ),
            Self::SharedFile => (
                "slurmd ends when two GPUs name one device file, so the first one has it",
                "nothing; report the machine, for a driver should not say this",
            ),
            Self::UnknownFile => (
                "neither NVML nor /proc/driver/nvidia tells the GPU's minor number, and Slurm gives jobs only what has a file",
                "give the container /proc/driver/nvidia as NVIDIA's runtime does (--gpus all), or update the driver",
            ),
            Self::SharedName => (
                "CUDA finds a GPU by its UUID: with one UUID for two, two jobs could compute on the same one",
                "run nvidia-smi -L on the host; where it shows the UUID twice too, the card's firmware is at fault",
            ),
            Self::Nameless => (
                "the driver gives it no UUID, and CUDA finds an instance by nothing else",
                "run nvidia-smi -L on the host; make the instance anew (nvidia-smi mig -dci, -dgi, -cgi PROFILE -C)",
            ),
            Self::Faulty => (
                "it has a fault for which [faults] of slurminit.toml keeps it from jobs",
                "see `slurminit status`: when it is well again it comes back by itself; `slurminit restart agent` has it looked at anew",
            ),
            Self::NotChosen => (
                "[gpu] only or except of slurminit.toml leaves it out",
                "nothing, if that is meant; else change [gpu] only or except",
            ),
            Self::Integrated => (
                "it is a part of the processor, and would go to any job that asks for a GPU",
                "nothing, if that is meant; else name it in [gpu] only of slurminit.toml, with the others that jobs are to have",
            ),
            Self::Other => {
                ("the kernel's message is all that is known", "look for the driver's messages on the host (dmesg)")
            }
        }
    }
}
