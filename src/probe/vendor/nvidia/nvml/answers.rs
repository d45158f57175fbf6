//! Remembers whether an answer of NVML means that the whole GPU is unusable.

use std::cell::Cell;

use nvml_wrapper::error::NvmlError;

use model::inventory::{Access, Obstacle};

/// The first error about one GPU that means that the whole GPU is unusable. Any other failed call loses only its own value.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    loss_reason: Cell<Option<&'static str>>,
}

impl Answers {
    /// The value, if the call succeeded. Remembers an error that means that the GPU is unusable.
    pub(crate) fn of<T>(&self, answer: Result<T, NvmlError>) -> Option<T> {
        if let Err(error) = &answer {
            self.loss_reason.set(self.loss_reason.get().or_else(|| loss_reason(error)));
        }
        answer.ok()
    }

    /// The access to the GPU, if any call reported that the GPU is lost or needs a reset; otherwise `None`.
    pub(crate) fn obstacle(&self) -> Option<Access> {
        self.loss_reason.get().map(|reason| Access::unusable(Obstacle::Lost, reason))
    }
}

/// The access to a GPU for which NVML returns no handle.
pub(crate) fn refused_access(error: &NvmlError) -> Access {
    if let Some(reason) = loss_reason(error) {
        return Access::unusable(Obstacle::Lost, reason);
    }
    // NVML also counts GPUs that this container may not open.
    let obstacle = if matches!(error, NvmlError::NoPermission) { Obstacle::NotGiven } else { Obstacle::Refused };
    Access::unusable(obstacle, format!("NVML lists the GPU but cannot open it: {error}"))
}

fn loss_reason(error: &NvmlError) -> Option<&'static str> {
    match error {
        NvmlError::GpuLost => Some("NVML reports it as lost"),
        NvmlError::ResetRequired => Some("NVML reports that it needs a reset"),
        _ => None,
    }
}
