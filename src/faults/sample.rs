//! The events of the watcher process: one line of JSON each.
//!
//! The watcher runs a vendor's library, so its output is not trusted.

use serde::{Deserialize, Serialize};

use super::fault::FaultKind;
use model::inventory::{Condition, Readings};

pub use model::inventory::{Identity, Key};

/// A line of the watcher's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "line")]
pub enum Line {
    /// A sampling round begins. These GPUs exist, whether or not they respond.
    Listed {
        /// The GPUs, in the driver's order.
        gpus: Vec<Identity>,
    },
    /// The driver initializes this GPU, which can take seconds. Its UUID is unknown.
    Opening {
        /// The GPU, without its UUID.
        gpu: Identity,
    },
    /// The watcher begins to query this GPU.
    Asking {
        /// The GPU.
        gpu: Key,
    },
    /// The query has ended, with values or with a fault.
    Seen {
        /// The GPU.
        gpu: Key,
        /// The sample of the GPU.
        seen: Box<GpuSample>,
    },
    /// The sampling round has ended.
    Done,
    /// The driver reported an error of a GPU.
    Event {
        /// The GPU; `None` if unknown.
        gpu: Option<Key>,
        /// The error number (XID).
        xid: u32,
    },
    /// The driver reported a reset of a GPU.
    Reset {
        /// The GPU.
        gpu: Key,
        /// The phase of the reset.
        phase: Phase,
    },
    /// No GPU of the vendor can be sampled; in the check of a single GPU, that GPU cannot be sampled.
    Trouble {
        /// The fault of each of these GPUs.
        kind: FaultKind,
        /// The reason, as text for a message.
        what: String,
    },
}

/// The start or the end of a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The reset begins. Processes on the GPU are lost.
    Begins {
        /// The driver's text for the cause; untrusted.
        cause: Option<String>,
    },
    /// The reset has ended; the GPU is usable.
    Ends,
}

/// A sample of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSample {
    /// The condition of the GPU.
    pub condition: Condition,
    /// The measurements of the GPU.
    pub readings: Readings,
    /// The fault that prevented the sample; `None` if the values are present.
    pub trouble: Option<FaultKind>,
}
