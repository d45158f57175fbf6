//! Whether a GPU can be used, and what stands in the way where it cannot.

use serde::{Deserialize, Serialize};

use super::Vendor;

/// Whether a GPU that the driver counts can be used in this container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum Access {
    /// Its device file opens.
    Usable,
    /// It is there and cannot be used.
    Unusable {
        /// Why, in a sentence: `/dev/nvidia1 is not in this container`.
        reason: String,
        /// What kind of reason that is.
        #[serde(default)]
        obstacle: Obstacle,
    },
}

impl Access {
    /// It cannot be used.
    pub fn unusable(obstacle: Obstacle, reason: impl Into<String>) -> Self {
        Self::Unusable { reason: reason.into(), obstacle }
    }

    /// What stands in the way; `None` where nothing does.
    pub const fn obstacle(&self) -> Option<Obstacle> {
        match self {
            Self::Usable => None,
            Self::Unusable { obstacle, .. } => Some(*obstacle),
        }
    }
}

/// What stands between a GPU and this container's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// Its device file is not in the container.
    #[default]
    NotGiven,
    /// The container's device rules refuse it.
    Denied,
    /// The file's mode, or its mount, refuses it.
    Mode,
    /// The file is none of a device.
    NoDevice,
    /// The file has no driver behind it.
    NoDriver,
    /// It fell off the bus, or needs a reset.
    Lost,
    /// The driver counts it and does not hand it out.
    Refused,
    /// The driver does not answer.
    Hang,
    /// Its device file is another GPU's, too.
    SharedFile,
    /// Nothing tells which device file is its.
    UnknownFile,
    /// Its unique name is another GPU's, too.
    SharedName,
    /// It has no name by which a job could ask the runtime for it.
    Nameless,
    /// The operator leaves it out.
    NotChosen,
    /// It is a part of the processor, beside GPUs that are not.
    Integrated,
    /// Something else.
    Other,
}

impl Obstacle {
    /// Whether something is broken, as against what the container was not given or the operator does not want.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::NotGiven | Self::NotChosen | Self::Integrated)
    }

    /// Whether the vendor's runtime sees and counts the GPU all the same.
    pub const fn is_seen_by_runtime(self) -> bool {
        matches!(self, Self::NotChosen | Self::Integrated)
    }

    /// Cause and repair.
    pub const fn words(self, vendor: Vendor) -> (&'static str, &'static str) {
        match (self, vendor) {
            (Self::NotGiven, Vendor::Nvidia) => (
                "this container was not given them",
                "nothing, if that is meant; else create the container with them (docker run --gpus all)",
            ),
            (Self::NotGiven, Vendor::Amd) => (
                "this container was not given them",
                "nothing, if that is meant; else create the container with them (docker run --device /dev/kfd --device /dev/dri)",
            ),
            (Self::Denied, Vendor::Nvidia) => (
                "most often the container's device rules were rewritten under it (systemctl daemon-reload on the host)",
                "re-create the container (docker compose up --force-recreate); a restart is not enough",
            ),
            (Self::Denied, Vendor::Amd) => (
                "the files of /dev/dri are in this container, by a volume perhaps, and its device rules do not hold them",
                "pass them as devices: docker run --device /dev/kfd --device /dev/dri",
            ),
            (Self::Mode, _) => (
                "the device file is closed to this user, or lies on a mount with the option nodev",
                "run the container as root, without a user namespace that hides the file's owner, and pass the file with --device",
            ),
            (Self::NoDevice, _) => (
                "what lies in the device file's place is none: a bind mount of a file that the host lacks makes a directory",
                "pass the device with --device (NVIDIA: --gpus all), not as a volume, and create the container anew",
            ),
            (Self::NoDriver, Vendor::Nvidia) => (
                "the device file is there, and the kernel has no driver for it any more",
                "run nvidia-smi on the host; load the driver there (modprobe nvidia), then create the container anew",
            ),
            (Self::NoDriver, Vendor::Amd) => (
                "the device file is there, and the kernel has no driver for it any more",
                "load the driver on the host (modprobe amdgpu), then create the container anew",
            ),
            (Self::Lost, Vendor::Nvidia) => (
                "the GPU fell off the bus or waits for a reset: power, heat, the slot, or the card itself",
                "look for Xid messages on the host (dmesg | grep -i xid); reset it there (nvidia-smi -r), else reboot the host",
            ),
            (Self::Lost, Vendor::Amd) => (
                "the GPU fell off the bus or waits for a reset: power, heat, the slot, or the card itself",
                "look for amdgpu messages on the host (dmesg | grep -i amdgpu); reset it there (amd-smi reset -G), else reboot the host",
            ),
            (Self::Refused, _) => (
                "the driver has the GPU and does not give it to this container, or could not set it up",
                "run nvidia-smi on the host; where it works there, start the container with --gpus all",
            ),
            (Self::Hang, Vendor::Nvidia) => (
                "the driver hangs: a GPU failed or is being reset",
                "look for NVRM and Xid messages on the host (dmesg); reboot it",
            ),
            (Self::Hang, Vendor::Amd) => (
                "the driver hangs: a GPU failed or is being reset",
                "look for amdgpu messages on the host (dmesg | grep -i amdgpu); reboot it",
            ),
            (Self::SharedFile, _) => (
                "slurmd ends when two GPUs name one device file, so the first one has it",
                "nothing; report the machine, for a driver should not say this",
            ),
            (Self::UnknownFile, _) => (
                "neither NVML nor /proc/driver/nvidia tells the GPU's minor number, and Slurm gives jobs only what has a file",
                "give the container /proc/driver/nvidia as NVIDIA's runtime does (--gpus all), or update the driver",
            ),
            (Self::SharedName, _) => (
                "CUDA finds a GPU by its UUID: with one UUID for two, two jobs could compute on the same one",
                "run nvidia-smi -L on the host; where it shows the UUID twice too, the card's firmware is at fault",
            ),
            (Self::Nameless, _) => (
                "the driver gives it no UUID, and CUDA finds an instance by nothing else",
                "run nvidia-smi -L on the host; make the instance anew (nvidia-smi mig -dci, -dgi, -cgi PROFILE -C)",
            ),
            (Self::NotChosen, _) => (
                "[gpu] only or except of slurminit.toml leaves it out",
                "nothing, if that is meant; else change [gpu] only or except",
            ),
            (Self::Integrated, _) => (
                "it is a part of the processor and would go to any job that asks for a GPU, beside GPUs that are worth more",
                "nothing, if that is meant; else name it in [gpu] only of slurminit.toml, with the others that jobs are to have",
            ),
            (Self::Other, _) => {
                ("the kernel's message is all that is known", "look for the driver's messages on the host (dmesg)")
            }
        }
    }
}
